/* JSON as it stands in the input: taken piece by piece, checked, and not decoded.

   Input is hostile. A Cursor is never moved beyond its end and nothing recurses. Each `take` function moves behind what
   it takes and returns true, or returns false, and then the text is of no more use. Strings are checked as JSON and as
   UTF-8. Numbers that a decoder might refuse for their size are refused here. */

#ifndef PAIRWRIGHT_JSON_INPUT_H
#define PAIRWRIGHT_JSON_INPUT_H

#include <Python.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define MAX_DEPTH 60
#define MAX_NUMBER_SIZE 32

typedef unsigned char Byte;

typedef struct {
    const Byte *at, *end;
} Cursor;

/* A piece of the input; NULL if there is none. */
typedef struct {
    const Byte *text;
    Py_ssize_t size;
} View;

typedef enum { ABSENT, IS_NULL, TEXT } Kind;

/* A string as it stands in the input, without its quotes. */
typedef struct {
    const Byte *text;
    Py_ssize_t size;
    Kind kind;
    bool has_escapes;
    bool is_usual; /* escaped as our encoder does it, so that it can be copied */
} String;

static void skip_space(Cursor *c) {
    while (c->at < c->end && (*c->at == ' ' || *c->at == '\n' || *c->at == '\t' || *c->at == '\r')) c->at++;
}

static bool is_next(const Cursor *c, Byte wanted) { return c->at < c->end && *c->at == wanted; }

/* A character, with white space around it. */
static bool take(Cursor *c, Byte wanted) {
    skip_space(c);
    if (!is_next(c, wanted)) return false;
    c->at++;
    skip_space(c);
    return true;
}

static bool take_word(Cursor *c, const void *word, Py_ssize_t size) {
    if (c->end - c->at < size || memcmp(c->at, word, size) != 0) return false;
    c->at += size;
    return true;
}

static bool take_null(Cursor *c) { return take_word(c, "null", 4); }

static bool take_empty_list(Cursor *c) { return take(c, '[') && take(c, ']'); }

static int hex_digit(Byte b) {
    if (b >= '0' && b <= '9') return b - '0';
    b |= 0x20;
    return b >= 'a' && b <= 'f' ? b - 'a' + 10 : -1;
}

/* The code unit of \uXXXX at `at`; -1 if it is none. */
static int code_unit(const Byte *at, const Byte *end) {
    int value = 0;
    if (end - at < 6 || at[0] != '\\' || at[1] != 'u') return -1;
    for (int i = 2; i < 6; i++) {
        int digit = hex_digit(at[i]);
        if (digit < 0) return -1;
        value = value * 16 + digit;
    }
    return value;
}

/* What \b, \f and so on stand for; 0 if there is no such escape. */
static const Byte MEANING[256] = {
    ['"'] = '"', ['\\'] = '\\', ['/'] = '/', ['b'] = '\b', ['f'] = '\f', ['n'] = '\n', ['r'] = '\r', ['t'] = '\t',
};

/* How many bytes the escape at `at` has; 0 if it is not valid. */
static int escape_size(const Byte *at, const Byte *end) {
    if (end - at < 2) return 0;
    if (at[1] != 'u') return MEANING[at[1]] ? 2 : 0;
    int first = code_unit(at, end);
    if (first < 0) return 0;
    if (first < 0xd800 || first > 0xdfff) return 6;
    if (first > 0xdbff) return 0;
    int second = code_unit(at + 6, end);
    return second >= 0xdc00 && second <= 0xdfff ? 12 : 0;
}

/* How many bytes the UTF-8 sequence at `at` has, which does not begin with ASCII; 0 if it is not valid. */
static int sequence_size(const Byte *at, const Byte *end) {
    Byte b = at[0];
    int size = b >= 0xc2 && b <= 0xdf ? 2 : (b & 0xf0) == 0xe0 ? 3 : b >= 0xf0 && b <= 0xf4 ? 4 : 0;
    if (size == 0 || end - at < size) return 0;
    for (int i = 1; i < size; i++)
        if ((at[i] & 0xc0) != 0x80) return 0;
    if ((b == 0xe0 && at[1] < 0xa0) || (b == 0xed && at[1] > 0x9f)) return 0; /* overlong; a surrogate */
    if ((b == 0xf0 && at[1] < 0x90) || (b == 0xf4 && at[1] > 0x8f)) return 0; /* overlong; above U+10FFFF */
    return size;
}

/* Moves to the first byte that is a quote, a backslash, a control character or not ASCII, or to the end. */
static const Byte *skip_usual(const Byte *at, const Byte *end) {
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    const uint64_t ones = 0x0101010101010101u, highs = 0x8080808080808080u;
    for (; end - at >= 8; at += 8) {
        uint64_t word;
        memcpy(&word, at, 8);
        uint64_t quote = word ^ (ones * '"'), backslash = word ^ (ones * '\\');
        uint64_t found = (word | (word - ones * 0x20) | (quote - ones) | (backslash - ones)) & highs;
        if (found) return at + (__builtin_ctzll(found) >> 3); /* borrows only reach bytes behind the first */
    }
#endif
    while (at < end && *at >= 0x20 && *at < 0x80 && *at != '"' && *at != '\\') at++;
    return at;
}

static bool take_string(Cursor *c, String *s) {
    if (!is_next(c, '"')) return false;
    const Byte *at = c->at + 1, *end = c->end;
    *s = (String){.text = at, .kind = TEXT, .is_usual = true};
    for (;;) {
        at = skip_usual(at, end);
        if (at == end || *at < 0x20) return false;
        if (*at == '"') break;
        int size;
        if (*at == '\\') {
            size = escape_size(at, end);
            s->has_escapes = true;
            s->is_usual &= size == 2 && at[1] != '/';
        } else {
            size = sequence_size(at, end);
        }
        if (size == 0) return false;
        at += size;
    }
    s->size = at - s->text;
    c->at = at + 1;
    return true;
}

static bool take_string_or_null(Cursor *c, String *s) {
    *s = (String){.kind = IS_NULL};
    return take_null(c) || take_string(c, s);
}

static Py_ssize_t take_digits(Cursor *c) {
    const Byte *begin = c->at;
    while (c->at < c->end && *c->at >= '0' && *c->at <= '9') c->at++;
    return c->at - begin;
}

static bool take_number(Cursor *c) {
    const Byte *begin = c->at;
    if (is_next(c, '-')) c->at++;
    bool is_zero = is_next(c, '0');
    Py_ssize_t num_digits = take_digits(c);
    if (num_digits == 0 || (is_zero && num_digits > 1)) return false;
    if (is_next(c, '.')) {
        c->at++;
        if (take_digits(c) == 0) return false;
    }
    if (is_next(c, 'e') || is_next(c, 'E')) {
        c->at++;
        if (is_next(c, '+') || is_next(c, '-')) c->at++;
        num_digits = take_digits(c);
        if (num_digits == 0 || num_digits > 2) return false;
    }
    return c->at - begin <= MAX_NUMBER_SIZE;
}

static bool take_scalar(Cursor *c) {
    String s;
    if (c->at == c->end) return false;
    switch (*c->at) {
        case '"': return take_string(c, &s);
        case 't': return take_word(c, "true", 4);
        case 'f': return take_word(c, "false", 5);
        case 'n': return take_null(c);
        default: return take_number(c);
    }
}

static bool take_colon(Cursor *c) {
    String key;
    return take_string(c, &key) && take(c, ':');
}

/* A value of any kind. `objects` has a bit for every list or object that is open: 1 if it is an object. */
static bool take_value(Cursor *c, View *value) {
    uint64_t objects = 0;
    int depth = 0;
    value->text = c->at;
    do {
        if (is_next(c, '{') || is_next(c, '[')) {
            bool is_object = *c->at == '{';
            if (++depth > MAX_DEPTH) return false;
            objects = objects << 1 | is_object;
            c->at++;
            skip_space(c);
            if (!is_next(c, is_object ? '}' : ']')) {
                if (is_object && !take_colon(c)) return false;
                continue;
            }
        } else if (!take_scalar(c)) {
            return false;
        }
        while (depth > 0) { /* behind a value */
            skip_space(c);
            if (is_next(c, ',')) {
                c->at++;
                skip_space(c);
                if (objects & 1 && !take_colon(c)) return false;
                break;
            }
            if (!is_next(c, objects & 1 ? '}' : ']')) return false;
            c->at++;
            objects >>= 1;
            depth--;
        }
    } while (depth > 0);
    value->size = c->at - value->text;
    return true;
}

static bool equals_text(const String *s, const char *text, Py_ssize_t size) {
    return s->kind == TEXT && s->size == size && memcmp(s->text, text, size) == 0;
}

#define EQUALS(s, literal) equals_text(s, literal, sizeof(literal) - 1)

typedef struct {
    const char *text;
    Py_ssize_t size;
} Key;

#define KEY(literal) {literal, sizeof(literal) - 1}
#define NO_KEY {NULL, 0}

/* Takes the value of a field: `number` is that of its key in the table, or the table's size for another key. */
typedef bool (*TakeField)(Cursor *c, int number, const String *key, void *into);

/* { key: value, ... }. No key of the table stands twice, and no key has escapes. */
static bool take_object(Cursor *c, const Key *keys, TakeField take_field, void *into) {
    uint64_t seen = 0;
    if (!take(c, '{')) return false;
    if (take(c, '}')) return true;
    do {
        String key;
        int number = 0;
        if (!take_string(c, &key) || key.has_escapes || !take(c, ':')) return false;
        while (keys[number].text != NULL && !equals_text(&key, keys[number].text, keys[number].size)) number++;
        if (keys[number].text != NULL && seen >> number & 1) return false;
        seen |= (uint64_t)1 << number;
        if (!take_field(c, number, &key, into)) return false;
    } while (take(c, ','));
    return take(c, '}');
}

#endif
