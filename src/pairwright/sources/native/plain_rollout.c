/* A plain line of a NeMo Gym file, read without making Python objects of what is in it.

   Says exactly what nemo_gym_plain.py says of the line, or None: then that file reads it, and after it the general
   reader. tests/store/test_plain_lane.py compares all three. It is here because making objects takes half of an import.

   Only the limited API is used, so that one build serves every Python from 3.11 on. */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>

#include "answer.h"

typedef struct {
    View known; /* what the rollout before was given: an object */
    bool is_known; /* this one was given the same */
    View given; /* what it was given instead */
    View reward, agent, task, run;
    String model;
    bool has_tools, has_instructions; /* in the response */
    Items *items;
    PyObject *decode;
    PyObject *more; /* a dict of the other fields, once there is one */
    bool has_raised;
} Rollout;

/* Those that mean something come first; the others are the rest of the Responses API, as in nemo_gym_shapes.py. */
enum { R_OUTPUT, R_MODEL, R_INCOMPLETE, R_TOOLS, R_INSTRUCTIONS };
static const Key RESPONSE_KEYS[] = {
    KEY("output"), KEY("model"), KEY("incomplete_details"), KEY("tools"), KEY("instructions"), KEY("id"), KEY("object"),
    KEY("created_at"), KEY("completed_at"), KEY("status"), KEY("error"), KEY("metadata"), KEY("parallel_tool_calls"),
    KEY("temperature"), KEY("tool_choice"), KEY("top_p"), KEY("background"), KEY("conversation"),
    KEY("max_output_tokens"), KEY("max_tool_calls"), KEY("previous_response_id"), KEY("prompt"),
    KEY("prompt_cache_key"), KEY("prompt_cache_retention"), KEY("reasoning"), KEY("safety_identifier"),
    KEY("service_tier"), KEY("text"), KEY("top_logprobs"), KEY("truncation"), KEY("usage"), KEY("user"), KEY("billing"), KEY("store"),
    KEY("frequency_penalty"), KEY("presence_penalty"), NO_KEY,
};
#define NUM_RESPONSE_KEYS ((int)(sizeof(RESPONSE_KEYS) / sizeof(Key)) - 1)

/* null, a text or a list; is it more than null and nothing? */
static bool take_text_or_list(Cursor *c, bool *is_there) {
    View value;
    bool is_list = is_next(c, '[');
    if (take_null(c)) return true;
    if (!(is_list || is_next(c, '"')) || !take_value(c, &value)) return false;
    Cursor inside = {value.text + 1, value.text + value.size - 1};
    if (is_list) skip_space(&inside);
    *is_there = inside.at < inside.end;
    return true;
}

static bool take_response_field(Cursor *c, int number, const String *key, void *into) {
    Rollout *rollout = into;
    View skipped;
    (void)key;
    switch (number) {
        case R_OUTPUT: return take_items(c, rollout->items);
        case R_MODEL: return take_string_or_null(c, &rollout->model) && !rollout->model.has_escapes;
        case R_INCOMPLETE: return take_null(c);
        case R_TOOLS: return take_text_or_list(c, &rollout->has_tools);
        case R_INSTRUCTIONS: return take_text_or_list(c, &rollout->has_instructions);
        default: return number < NUM_RESPONSE_KEYS && take_value(c, &skipped);
    }
}

/* The Python value of a piece of JSON; None if it is not there. */
static PyObject *value_of(const Rollout *rollout, View v) {
    if (v.text == NULL) {
        Py_INCREF(Py_None);
        return Py_None;
    }
    Cursor c = {v.text, v.text + v.size};
    if (v.size < 18 && take_digits(&c) == v.size) { /* an index; it has no leading zero, or it was not taken */
        long long number = 0;
        for (Py_ssize_t i = 0; i < v.size; i++) number = 10 * number + (v.text[i] - '0');
        return PyLong_FromLongLong(number);
    }
    PyObject *text = PyBytes_FromStringAndSize((const char *)v.text, v.size);
    PyObject *value = text == NULL ? NULL : PyObject_CallFunctionObjArgs(rollout->decode, text, NULL);
    Py_XDECREF(text);
    return value;
}

/* A field that not every rollout has. */
static bool add_more(Rollout *rollout, const String *key, View v) {
    if (rollout->more == NULL) rollout->more = PyDict_New();
    PyObject *name = PyUnicode_FromStringAndSize((const char *)key->text, key->size);
    PyObject *value = name == NULL || rollout->more == NULL ? NULL : value_of(rollout, v);
    int is_known = value == NULL ? -1 : PyDict_Contains(rollout->more, name);
    bool is_added = is_known == 0 && PyDict_SetItem(rollout->more, name, value) == 0;
    rollout->has_raised = !is_added && is_known != 1;
    Py_XDECREF(name);
    Py_XDECREF(value);
    return is_added;
}

enum { L_GIVEN, L_RESPONSE, L_REWARD, L_AGENT, L_TASK, L_RUN, L_NOT_PLAIN };
static const Key LINE_KEYS[] = {
    KEY("responses_create_params"), KEY("response"), KEY("reward"), KEY("agent_ref"), KEY("_ng_task_index"),
    KEY("_ng_rollout_index"), KEY("output"), KEY("reward_components"), NO_KEY,
};
#define NUM_LINE_KEYS ((int)(sizeof(LINE_KEYS) / sizeof(Key)) - 1)

static bool take_line_field(Cursor *c, int number, const String *key, void *into) {
    Rollout *rollout = into;
    View value;
    switch (number) {
        case L_GIVEN: /* text that begins with a whole object has that object there */
            rollout->is_known = rollout->known.size > 0 && take_word(c, rollout->known.text, rollout->known.size);
            if (!rollout->is_known && !take_value(c, &rollout->given)) rollout->given.text = NULL;
            return rollout->is_known; /* if not, the line is read again with it */
        case L_RESPONSE: return take_object(c, RESPONSE_KEYS, take_response_field, rollout);
        case L_REWARD: return take_value(c, &rollout->reward);
        case L_AGENT: return take_value(c, &rollout->agent);
        case L_TASK: return take_value(c, &rollout->task);
        case L_RUN: return take_value(c, &rollout->run);
        default: return number == NUM_LINE_KEYS && take_value(c, &value) && add_more(rollout, key, value);
    }
}

/* Reads a line up to the end. The verdict is RAISED if a field could not be decoded. */
static Verdict take_line(Cursor *c, Rollout *rollout) {
    bool is_taken = take_object(c, LINE_KEYS, take_line_field, rollout) && c->at == c->end;
    if (rollout->has_raised) return RAISED;
    return is_taken && rollout->is_known && rollout->items->size > 0 ? FINE : NOT_PLAIN;
}

/* All that was read, as nemo_gym_plain.py takes it apart. Takes over `completion` and `canonical`. */
static PyObject *to_tuple(const Rollout *rollout, const Answer *a, PyObject *completion, PyObject *canonical) {
    const View agent = rollout->agent.text == NULL ? (View){(const Byte *)"null", 4} : rollout->agent;
    PyObject *reward = value_of(rollout, rollout->reward);
    PyObject *task = reward == NULL ? NULL : value_of(rollout, rollout->task);
    PyObject *run = task == NULL ? NULL : value_of(rollout, rollout->run);
    PyObject *result = NULL;
    if (run != NULL && completion != NULL && canonical != NULL)
        result = Py_BuildValue("(OOnnn)(OOOy#z#O)Oii", completion, canonical, a->num_turns, a->num_characters,
                               a->num_calls, reward, task, run, agent.text, agent.size, rollout->model.text,
                               rollout->model.size, rollout->more ? rollout->more : Py_None,
                               a->errors ? a->errors : Py_None, rollout->has_tools, rollout->has_instructions);
    Py_XDECREF(reward);
    Py_XDECREF(task);
    Py_XDECREF(run);
    Py_XDECREF(completion);
    Py_XDECREF(canonical);
    return result;
}

/* The rollout with its completion; Py_None if that is not plain. */
static PyObject *with_answer(Rollout *rollout, Answer *a, Py_ssize_t num_bytes) {
    make_room(&a->json, num_bytes); /* mostly enough for each */
    make_room(&a->packed, num_bytes);
    Verdict verdict = put_answer(a, rollout->items);
    if (verdict == RAISED) return NULL;
    if (verdict == NOT_PLAIN) {
        Py_INCREF(Py_None);
        return Py_None;
    }
    return to_tuple(rollout, a, bytes_of(&a->json), bytes_of(&a->packed));
}

static PyObject *read_rollout(PyObject *module, PyObject *const *args, Py_ssize_t num_args) {
    char *known;
    Py_buffer line;
    (void)module;
    if (num_args != 6 || !PyBytes_Check(args[1]) || !PyTuple_Check(args[2]))
        return PyErr_Format(PyExc_TypeError, "read_rollout(line, known, names, decode, pack, error_kind)");
    for (Py_ssize_t i = 0; i < PyTuple_Size(args[2]); i++)
        if (!PyBytes_Check(PyTuple_GetItem(args[2], i))) return PyErr_Format(PyExc_TypeError, "names are bytes");
    Items items;
    items.items = NULL;
    items.size = items.room = 0;
    Rollout rollout = {.decode = args[3], .items = &items};
    Answer answer = {.names = args[2], .decode = args[3], .pack = args[4], .error_kind = args[5]};
    if (PyBytes_AsStringAndSize(args[1], &known, &rollout.known.size) < 0) return NULL;
    rollout.known.text = (const Byte *)known;
    if (PyObject_GetBuffer(args[0], &line, PyBUF_SIMPLE) < 0) return NULL;

    Cursor c = {line.buf, (const Byte *)line.buf + line.len};
    PyObject *result = NULL;
    Verdict verdict = take_line(&c, &rollout);
    if (verdict == FINE) {
        result = with_answer(&rollout, &answer, line.len);
    } else if (verdict == NOT_PLAIN && rollout.given.text != NULL) {
        result = PyBytes_FromStringAndSize((const char *)rollout.given.text, rollout.given.size);
    } else if (verdict == NOT_PLAIN) {
        result = Py_None;
        Py_INCREF(result);
    }
    Py_XDECREF(rollout.more);
    free_items(&items);
    free_answer(&answer);
    PyBuffer_Release(&line);
    return result;
}

static PyMethodDef methods[] = {
    {"read_rollout", (PyCFunction)(void (*)(void))read_rollout, METH_FASTCALL,
     "A plain line, None if it is not plain, or what it was given if that is not what is known."},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {{0, NULL}};

static PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "plain_rollout", .m_methods = methods, .m_slots = slots,
};

PyMODINIT_FUNC PyInit_plain_rollout(void) { return PyModuleDef_Init(&definition); }
