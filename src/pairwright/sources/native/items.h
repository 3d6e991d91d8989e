/* The items of a response that are plain, as views of the input: which item is plain, and what is looked at of it. */

#ifndef PAIRWRIGHT_ITEMS_H
#define PAIRWRIGHT_ITEMS_H

#include "json_input.h"

#define MAX_ITEMS 2048 /* looking for the call that a result answers goes through all before it */

typedef enum { MESSAGE, CALL, RESULT, REASONING } Type;

/* A list of parts. */
typedef struct {
    Cursor parts; /* at the first one, if there is one */
    Py_ssize_t num_parts;
    String text; /* of the first one */
    bool is_text; /* the first one is text */
    bool is_list; /* it is there at all, and not null */
} Parts;

typedef struct {
    Type type;
    String content; /* the text of a message or a result; the arguments of a call */
    String name, call_id;
    Parts summary;
    Py_ssize_t number; /* of a call: stands for its id */
} Item;

typedef struct {
    String type, text;
} Part;

static const Key PART_KEYS[] = {KEY("type"), KEY("text"), KEY("annotations"), KEY("logprobs"), NO_KEY};

static bool take_part_field(Cursor *c, int number, const String *key, void *into) {
    Part *part = into;
    (void)key;
    switch (number) {
        case 0: return take_string(c, &part->type) && !part->type.has_escapes;
        case 1: return take_string_or_null(c, &part->text);
        case 2:
        case 3: return take_null(c) || take_empty_list(c);
        default: return false;
    }
}

static bool take_part(Cursor *c, Part *part) {
    *part = (Part){{0}, {0}};
    return take_object(c, PART_KEYS, take_part_field, part);
}

/* A list of parts, or null. */
static bool take_parts(Cursor *c, Parts *parts) {
    if (take_null(c)) return true;
    if (!take(c, '[')) return false;
    parts->is_list = true;
    parts->parts = *c;
    if (take(c, ']')) return true;
    do {
        Part part;
        if (!take_part(c, &part)) return false;
        if (parts->num_parts++ > 0) continue;
        parts->text = part.text;
        parts->is_text =
            EQUALS(&part.type, "output_text") || EQUALS(&part.type, "input_text") || EQUALS(&part.type, "text");
    } while (take(c, ','));
    return take(c, ']');
}

/* The fields of an item, in this order. The first ones are strings, and F_CONTENT may be a list of parts instead. */
enum { F_TYPE, F_ROLE, F_STATUS, F_ID, F_NAME, F_CALL_ID, F_ARGUMENTS, F_OUTPUT, F_CONTENT, F_SUMMARY, F_ENCRYPTED };

static const Key ITEM_KEYS[] = {
    KEY("type"),      KEY("role"),   KEY("status"),  KEY("id"),      KEY("name"),              KEY("call_id"),
    KEY("arguments"), KEY("output"), KEY("content"), KEY("summary"), KEY("encrypted_content"), NO_KEY,
};

typedef struct {
    String strings[F_CONTENT + 1];
    Parts content, summary;
} Fields;

static bool take_item_field(Cursor *c, int number, const String *key, void *into) {
    Fields *fields = into;
    (void)key;
    switch (number) {
        case F_CONTENT:
            if (is_next(c, '[')) return take_parts(c, &fields->content);
            /* fall through */
        case F_ID:
        case F_ARGUMENTS:
        case F_OUTPUT: return take_string_or_null(c, &fields->strings[number]);
        case F_SUMMARY: return take_parts(c, &fields->summary);
        case F_ENCRYPTED: return take_null(c);
        default:
            if (number > F_ENCRYPTED) return false;
            return take_string_or_null(c, &fields->strings[number]) && !fields->strings[number].has_escapes;
    }
}

#define BIT(number) (1u << (number))

/* Whether none of some fields is a string. */
static bool has_none(const Fields *fields, unsigned bits) {
    for (int i = 0; i <= F_CONTENT; i++)
        if (bits >> i & 1 && fields->strings[i].kind == TEXT) return false;
    return true;
}

static bool is_call(const Fields *f) {
    return f->strings[F_NAME].kind == TEXT && f->strings[F_CALL_ID].kind == TEXT &&
           f->strings[F_ARGUMENTS].kind == TEXT && !f->content.is_list && !f->summary.is_list &&
           has_none(f, BIT(F_ROLE) | BIT(F_OUTPUT) | BIT(F_CONTENT));
}

static bool is_result(const Fields *f) {
    return f->strings[F_CALL_ID].kind == TEXT && f->strings[F_OUTPUT].kind == TEXT && !f->content.is_list &&
           !f->summary.is_list && has_none(f, BIT(F_ROLE) | BIT(F_ARGUMENTS) | BIT(F_CONTENT));
}

static bool is_reasoning(const Fields *f) {
    return f->summary.num_parts > 0 && f->content.num_parts == 0 &&
           has_none(f, BIT(F_ROLE) | BIT(F_CALL_ID) | BIT(F_ARGUMENTS) | BIT(F_OUTPUT) | BIT(F_CONTENT));
}

static bool is_message(const Fields *f) {
    const String *status = &f->strings[F_STATUS];
    bool has_text = f->content.is_list ? f->content.num_parts == 1 && f->content.is_text && f->content.text.kind == TEXT
                                       : f->strings[F_CONTENT].kind == TEXT;
    return has_text && !f->summary.is_list && EQUALS(&f->strings[F_ROLE], "assistant") &&
           (status->kind != TEXT || EQUALS(status, "completed")) &&
           has_none(f, BIT(F_CALL_ID) | BIT(F_ARGUMENTS) | BIT(F_OUTPUT));
}

static bool take_item(Cursor *c, Item *item) {
    Fields f = {0};
    if (!take_object(c, ITEM_KEYS, take_item_field, &f)) return false;
    const String *type = &f.strings[F_TYPE];
    *item = (Item){.name = f.strings[F_NAME], .call_id = f.strings[F_CALL_ID], .summary = f.summary};
    if (EQUALS(type, "function_call")) {
        item->type = CALL;
        item->content = f.strings[F_ARGUMENTS];
        return is_call(&f);
    }
    if (item->name.kind != ABSENT) return false;
    if (EQUALS(type, "function_call_output")) {
        item->type = RESULT;
        item->content = f.strings[F_OUTPUT];
        return is_result(&f);
    }
    if (EQUALS(type, "reasoning")) {
        item->type = REASONING;
        return is_reasoning(&f);
    }
    item->type = MESSAGE;
    item->content = f.content.is_list ? f.content.text : f.strings[F_CONTENT];
    return (type->kind != TEXT || EQUALS(type, "message")) && is_message(&f);
}

#define FEW_ITEMS 16

typedef struct {
    Item *items;
    Py_ssize_t size, room;
    Item few[FEW_ITEMS]; /* what `items` points to until there are more */
} Items;

static bool make_room_for_item(Items *all) {
    if (all->room == 0) {
        all->items = all->few;
        all->room = FEW_ITEMS;
    }
    if (all->size < all->room) return true;
    if (all->size == MAX_ITEMS) return false;
    bool is_few = all->items == all->few;
    Item *grown = PyMem_Realloc(is_few ? NULL : all->items, 2 * all->room * sizeof(Item));
    if (grown == NULL) return false;
    if (is_few) memcpy(grown, all->few, sizeof(all->few));
    all->items = grown;
    all->room *= 2;
    return true;
}

static void free_items(Items *all) {
    if (all->items != all->few) PyMem_Free(all->items);
}

/* A list of items, all of them plain, and at least one. */
static bool take_items(Cursor *c, Items *all) {
    if (!take(c, '[')) return false;
    do {
        if (!make_room_for_item(all) || !take_item(c, &all->items[all->size++])) return false;
    } while (take(c, ','));
    return take(c, ']');
}

#endif
