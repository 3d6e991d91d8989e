/* Text that is written: decoded, as JSON, or as MessagePack. A Buffer grows before anything is put into it. */

#ifndef PAIRWRIGHT_OUTPUT_H
#define PAIRWRIGHT_OUTPUT_H

#include "json_input.h"

typedef struct {
    Byte *data;
    Py_ssize_t size, room;
    bool has_failed; /* out of memory; nothing is written from then on */
} Buffer;

static bool make_room(Buffer *b, Py_ssize_t size) {
    if (b->has_failed) return false;
    if (b->room - b->size >= size) return true;
    Py_ssize_t room = 2 * b->room > b->size + size ? 2 * b->room : b->size + size;
    Byte *grown = PyMem_Realloc(b->data, room);
    if (grown == NULL) {
        b->has_failed = true;
        return false;
    }
    b->data = grown;
    b->room = room;
    return true;
}

static inline void put(Buffer *b, const void *data, Py_ssize_t size) {
    if (size == 0 || !make_room(b, size)) return;
    memcpy(b->data + b->size, data, size);
    b->size += size;
}

static void put_byte(Buffer *b, Byte byte) { put(b, &byte, 1); }

#define PUT(b, literal) put(b, literal, sizeof(literal) - 1)

/* Puts what is in another buffer in front of all. */
static void put_first(Buffer *b, const Buffer *head) {
    b->has_failed |= head->has_failed;
    if (!make_room(b, head->size)) return;
    memmove(b->data + head->size, b->data, b->size);
    memcpy(b->data, head->data, head->size);
    b->size += head->size;
}

static PyObject *bytes_of(const Buffer *b) {
    return b->has_failed ? PyErr_NoMemory() : PyBytes_FromStringAndSize((const char *)b->data, b->size);
}

static void put_code_point(Buffer *b, uint32_t code) {
    if (code < 0x80) {
        put_byte(b, (Byte)code);
        return;
    }
    int shift = code < 0x800 ? 6 : code < 0x10000 ? 12 : 18;
    put_byte(b, (Byte)((shift == 6 ? 0xc0 : shift == 12 ? 0xe0 : 0xf0) | code >> shift));
    while ((shift -= 6) >= 0) put_byte(b, (Byte)(0x80 | (code >> shift & 0x3f)));
}

/* The text that a string stands for. Its escapes were checked when it was read. */
static void put_decoded(Buffer *b, const String *s) {
    const Byte *at = s->text, *end = s->text + s->size;
    while (at < end) {
        const Byte *escape = memchr(at, '\\', end - at);
        put(b, at, (escape == NULL ? end : escape) - at);
        if (escape == NULL) return;
        at = escape + escape_size(escape, end);
        if (escape[1] == 'u') {
            uint32_t code = (uint32_t)code_unit(escape, end);
            if (at - escape == 12)
                code = 0x10000 + ((code - 0xd800) << 10) + ((uint32_t)code_unit(escape + 6, end) - 0xdc00);
            put_code_point(b, code);
        } else {
            put_byte(b, MEANING[escape[1]]);
        }
    }
}

/* The same, as a view of the input where that says it, or else of `scratch`, which is overwritten. */
static View decoded(const String *s, Buffer *scratch) {
    if (!s->has_escapes) return (View){s->text, s->size};
    scratch->size = 0;
    put_decoded(scratch, s);
    return (View){scratch->data, scratch->size};
}

/* Text as a JSON string, escaped as msgspec does. */
static void put_json_text(Buffer *b, View v) {
    static const char names[] = "\"\\btnfr", bytes[] = "\"\\\b\t\n\f\r", hex[] = "0123456789abcdef";
    Py_ssize_t begin = 0;
    PUT(b, "\"");
    for (Py_ssize_t at = 0; at < v.size; at++) {
        Byte byte = v.text[at];
        if (byte >= 0x20 && byte != '"' && byte != '\\') continue;
        put(b, v.text + begin, at - begin);
        begin = at + 1;
        const char *name = byte == 0 ? NULL : strchr(bytes, byte);
        if (name != NULL) {
            put_byte(b, '\\');
            put_byte(b, (Byte)names[name - bytes]);
        } else {
            PUT(b, "\\u00");
            put_byte(b, (Byte)hex[byte >> 4]);
            put_byte(b, (Byte)hex[byte & 15]);
        }
    }
    put(b, v.text + begin, v.size - begin);
    PUT(b, "\"");
}

static void put_json(Buffer *b, const String *s, Buffer *scratch) {
    if (s->is_usual)
        put(b, s->text - 1, s->size + 2); /* with its quotes */
    else
        put_json_text(b, decoded(s, scratch));
}

/* The header of a MessagePack value with so many bytes or elements, or of a number. */
static void put_header(Buffer *b, size_t size, size_t fix_limit, Byte fix, Byte of_8, Byte of_16) {
    if (size < fix_limit) {
        put_byte(b, (Byte)(fix | size));
        return;
    }
    int num_bytes = size < 256 && of_8 != 0 ? 1 : size < 65536 ? 2 : 4;
    put_byte(b, num_bytes == 1 ? of_8 : num_bytes == 2 ? of_16 : (Byte)(of_16 + 1));
    while (num_bytes-- > 0) put_byte(b, (Byte)(size >> 8 * num_bytes));
}

static void pack_array(Buffer *b, size_t size) { put_header(b, size, 16, 0x90, 0, 0xdc); }

static void pack_number(Buffer *b, size_t number) { put_header(b, number, 128, 0, 0xcc, 0xcd); }

static void pack_nil(Buffer *b) { put_byte(b, 0xc0); }

static void pack_text(Buffer *b, View v) {
    put_header(b, v.size, 32, 0xa0, 0xd9, 0xda);
    put(b, v.text, v.size);
}

static Py_ssize_t num_characters(View v) {
    Py_ssize_t number = 0;
    for (Py_ssize_t i = 0; i < v.size; i++) number += (v.text[i] & 0xc0) != 0x80;
    return number;
}

#endif
