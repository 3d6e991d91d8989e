/* What the model did, from plain items to what the table holds of it: messages as JSON, and their canonical form.

   The same as plain_answer.py makes of the items, which is the place to read what a completion is. */

#ifndef PAIRWRIGHT_ANSWER_H
#define PAIRWRIGHT_ANSWER_H

#include "items.h"
#include "output.h"

#define HEAD 80 /* so much of a result is searched for a failure, as in result_text.py */

/* A completion while it is made: as JSON messages, and packed in its canonical form. */
typedef struct {
    Buffer json, packed, scratch;
    const String *content; /* these three are of the message that is open; NULL: it has no text */
    bool has_reasoning;
    Buffer reasoning;
    Py_ssize_t num_turns, num_calls, num_ids, num_characters;
    PyObject *names, *decode, *pack, *error_kind;
    PyObject *errors; /* a list of what failed, once something has */
} Answer;

/* What a step says: go on, the items are not plain, or an exception is set. */
typedef enum { FINE, NOT_PLAIN, RAISED } Verdict;

/* Whether result_text.py has to look at the text of a result. All that it takes for a failure has one of these words
   near the start; where a character is not ASCII, it knows what is white space and what is lower case. */
static bool may_show_failure(View v) {
    static const char *const words[] = {"error", "\"detail\"", "traceback", "exception", "failed", NULL};
    char head[HEAD + 1];
    Py_ssize_t at = 0, size = 0;
    while (at < v.size && v.text[at] <= ' ') at++;
    for (; at < v.size && size < HEAD; at++) {
        Byte byte = v.text[at];
        if (byte == 0 || byte >= 0x80) return true;
        head[size++] = (char)(byte >= 'A' && byte <= 'Z' ? byte | 0x20 : byte);
    }
    head[size] = 0;
    for (int i = 0; words[i] != NULL; i++)
        if (strstr(head, words[i]) != NULL) return true;
    return false;
}

/* Notes a failure of the last message: (message, kind, text, tool, call id). A kind of None is an unknown tool. */
static Verdict add_error(Answer *a, PyObject *kind, PyObject *text, const Item *call, const String *call_id) {
    if (a->errors == NULL) a->errors = PyList_New(0);
    PyObject *error = a->errors == NULL ? NULL
                                        : Py_BuildValue("nOOz#s#", a->num_turns - 1, kind, text,
                                                        call == NULL ? NULL : call->name.text,
                                                        call == NULL ? 0 : call->name.size, call_id->text, call_id->size);
    int failed = error == NULL ? -1 : PyList_Append(a->errors, error);
    Py_XDECREF(error);
    return failed ? RAISED : FINE;
}

/* Asks Python whether the text of a result shows that its call failed. */
static Verdict check_result(Answer *a, View v, const Item *call, const String *call_id) {
    if (!may_show_failure(v)) return FINE;
    PyObject *text = PyUnicode_FromStringAndSize((const char *)v.text, v.size);
    PyObject *kind = text == NULL ? NULL : PyObject_CallFunctionObjArgs(a->error_kind, text, NULL);
    Verdict verdict = kind == NULL ? RAISED : kind == Py_None ? FINE : add_error(a, kind, text, call, call_id);
    Py_XDECREF(text);
    Py_XDECREF(kind);
    return verdict;
}

/* The value of a call's arguments, as Python decodes and packs it. */
static Verdict pack_value(Answer *a, View v) {
    PyObject *text = PyBytes_FromStringAndSize((const char *)v.text, v.size);
    PyObject *value = text == NULL ? NULL : PyObject_CallFunctionObjArgs(a->decode, text, NULL);
    PyObject *packed = value == NULL ? NULL : PyObject_CallFunctionObjArgs(a->pack, value, NULL);
    char *data;
    Py_ssize_t size;
    Verdict verdict = RAISED;
    if (packed != NULL && PyBytes_AsStringAndSize(packed, &data, &size) == 0) {
        put(&a->packed, data, size);
        verdict = FINE;
    }
    Py_XDECREF(text);
    Py_XDECREF(value);
    Py_XDECREF(packed);
    return verdict;
}

/* Whether a name is one of the tools', where there are tools. */
static bool is_offered(const Answer *a, const String *name) {
    Py_ssize_t num_names = PyTuple_Size(a->names);
    for (Py_ssize_t i = 0; i < num_names; i++) {
        PyObject *known = PyTuple_GetItem(a->names, i);
        if (PyBytes_Size(known) == name->size && memcmp(PyBytes_AsString(known), name->text, name->size) == 0)
            return true;
    }
    return num_names == 0;
}

/* The latest call before `end` that has an id; NULL if there is none. */
static const Item *call_with(const Item *items, Py_ssize_t end, const String *id) {
    for (Py_ssize_t i = end; i-- > 0;)
        if (items[i].type == CALL && items[i].call_id.size == id->size &&
            memcmp(items[i].call_id.text, id->text, id->size) == 0)
            return &items[i];
    return NULL;
}

/* Begins the message that is open, in both forms, with all that comes before its calls; then none is open. */
static void begin_turn(Answer *a, size_t num_fields) {
    View content = {NULL, 0}, reasoning = {a->reasoning.data, a->reasoning.size};
    if (a->num_turns++ > 0) PUT(&a->json, ",");
    PUT(&a->json, "{\"role\":\"assistant\"");
    if (a->content != NULL) {
        PUT(&a->json, ",\"content\":");
        put_json(&a->json, a->content, &a->scratch);
        content = decoded(a->content, &a->scratch);
    }
    if (a->has_reasoning) {
        PUT(&a->json, ",\"reasoning\":");
        put_json_text(&a->json, reasoning);
    }
    pack_array(&a->packed, num_fields);
    pack_text(&a->packed, (View){(const Byte *)"assistant", 9});
    pack_text(&a->packed, content);
    pack_text(&a->packed, reasoning);
    pack_nil(&a->packed); /* its name */
    a->content = NULL;
    a->has_reasoning = false;
    a->reasoning.size = 0;
}

static void put_turn(Answer *a) {
    begin_turn(a, 4);
    PUT(&a->json, "}");
}

/* The message that makes the calls from `begin` to `end`. */
static Verdict put_calls(Answer *a, Item *items, Py_ssize_t begin, Py_ssize_t end) {
    begin_turn(a, 6);
    PUT(&a->json, ",\"tool_calls\":[");
    pack_array(&a->packed, end - begin);
    for (Py_ssize_t i = begin; i < end; i++) {
        Item *call = &items[i];
        if (!is_offered(a, &call->name) && add_error(a, Py_None, Py_None, call, &call->call_id) == RAISED)
            return RAISED;
        const Item *before = call_with(items, i, &call->call_id);
        call->number = before == NULL ? a->num_ids++ : before->number;
        if (i > begin) PUT(&a->json, ",");
        PUT(&a->json, "{\"name\":");
        put_json(&a->json, &call->name, &a->scratch);
        PUT(&a->json, ",\"arguments\":");
        put_json(&a->json, &call->content, &a->scratch);
        PUT(&a->json, ",\"id\":");
        put_json(&a->json, &call->call_id, &a->scratch);
        PUT(&a->json, "}");
        View arguments = decoded(&call->content, &a->scratch);
        a->num_characters += num_characters(arguments);
        pack_array(&a->packed, 3);
        pack_number(&a->packed, call->number);
        pack_text(&a->packed, (View){call->name.text, call->name.size});
        if (pack_value(a, arguments) == RAISED) return RAISED;
    }
    a->num_calls += end - begin;
    PUT(&a->json, "]}");
    pack_nil(&a->packed); /* the call that it answers */
    return FINE;
}

static Verdict put_result(Answer *a, const Item *items, Py_ssize_t at) {
    const Item *result = &items[at];
    const Item *call = call_with(items, at, &result->call_id);
    if (a->num_turns++ > 0) PUT(&a->json, ",");
    PUT(&a->json, "{\"role\":\"tool\",\"content\":");
    put_json(&a->json, &result->content, &a->scratch);
    PUT(&a->json, ",\"tool_call_id\":");
    put_json(&a->json, &result->call_id, &a->scratch);
    PUT(&a->json, "}");
    View text = decoded(&result->content, &a->scratch);
    a->num_characters += num_characters(text);
    pack_array(&a->packed, 6);
    pack_text(&a->packed, (View){(const Byte *)"tool", 4});
    pack_text(&a->packed, text);
    pack_text(&a->packed, (View){NULL, 0});
    pack_nil(&a->packed);
    pack_array(&a->packed, 0);
    if (call == NULL)
        pack_text(&a->packed, (View){result->call_id.text, result->call_id.size});
    else
        pack_number(&a->packed, call->number);
    return check_result(a, text, call, &result->call_id);
}

/* Adds the texts of a summary to the reasoning of the open message. */
static Verdict add_thought(Answer *a, const Parts *summary) {
    Cursor c = summary->parts;
    Py_ssize_t before = a->reasoning.size, size;
    if (a->has_reasoning) PUT(&a->reasoning, "\n");
    size = a->reasoning.size;
    do {
        Part part;
        if (!take_part(&c, &part)) return NOT_PLAIN; /* it was taken before, so it can be again */
        if (part.text.kind != TEXT || part.text.size == 0) continue;
        if (a->reasoning.size > size) PUT(&a->reasoning, "\n");
        put_decoded(&a->reasoning, &part.text);
    } while (take(&c, ','));
    if (a->reasoning.size == size) return NOT_PLAIN;
    a->num_characters += num_characters((View){a->reasoning.data + before, a->reasoning.size - before});
    a->has_reasoning = true;
    return FINE;
}

static Verdict put_items(Answer *a, Items *all) {
    Item *items = all->items;
    Py_ssize_t num_items = all->size;
    Verdict verdict = FINE;
    for (Py_ssize_t i = 0; i < num_items && verdict == FINE;) {
        Item *item = &items[i];
        if (item->type == CALL) { /* belongs to the open message, as do the calls that follow */
            Py_ssize_t end = i + 1;
            while (end < num_items && items[end].type == CALL) end++;
            verdict = put_calls(a, items, i, end);
            i = end;
            continue;
        }
        /* whatever follows a text closes the message; reasoning alone goes on into a text */
        if (a->content != NULL || (a->has_reasoning && item->type == RESULT)) put_turn(a);
        if (item->type == RESULT) {
            verdict = put_result(a, items, i);
        } else if (item->type == REASONING) {
            verdict = add_thought(a, &item->summary);
        } else {
            a->content = &item->content;
            a->num_characters += num_characters(decoded(a->content, &a->scratch));
        }
        i++;
    }
    if (a->content != NULL || a->has_reasoning) put_turn(a);
    return verdict;
}

/* Both forms, whole. The packed one gets the header of what `content_hash` hashes, a list with the list of messages. */
static Verdict put_answer(Answer *a, Items *all) {
    PUT(&a->json, "[");
    Verdict verdict = put_items(a, all);
    PUT(&a->json, "]");
    if (verdict != FINE) return verdict;
    a->scratch.size = 0;
    pack_array(&a->scratch, 1);
    pack_array(&a->scratch, a->num_turns);
    put_first(&a->packed, &a->scratch);
    a->json.has_failed |= a->scratch.has_failed || a->reasoning.has_failed;
    return FINE;
}

static void free_answer(Answer *a) {
    Py_XDECREF(a->errors);
    PyMem_Free(a->json.data);
    PyMem_Free(a->packed.data);
    PyMem_Free(a->scratch.data);
    PyMem_Free(a->reasoning.data);
}

#endif
