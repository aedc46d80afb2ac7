/* text/grammar_schema: JSON and JSON schemas as grammars.
 *
 * Followed are: type (also lists), properties, required, additionalProperties, items, prefixItems, minItems, maxItems, enum,
 * const, anyOf, oneOf, allOf of one, minLength, maxLength, $ref within the schema. Bounds of numbers, formats and uniqueness
 * are not: they do not change the shape. Members come in the order in which the schema declares them, white space is limited to
 * a blank or a line break with its indentation, and numbers to a length, so that a model cannot lose itself in them. */
#include "base/error.h"
#include "base/mem.h"
#include "text/grammar.h"
#include "text/json.h"

#include <stdlib.h>
#include <string.h>

#define REFS_MAX   512
#define DEPTH_MAX  64
#define REPEAT_MAX 1024

/* ---- JSON itself -----------------------------------------------------------------------------------------------------------
 */

static uint32_t call(rl_grammar *g, uint32_t rule)
{
    return rl_g_emit(g, RL_G_CALL, rule, 0);
}

/* An optional part is written between the two. */
static uint32_t begin_option(rl_grammar *g)
{
    uint32_t split = rl_g_emit(g, RL_G_SPLIT, 0, 0);
    rl_g_patch(g, split, rl_g_here(g));
    return split;
}

static void end_option(rl_grammar *g, uint32_t split)
{
    rl_g_patch_b(g, split, rl_g_here(g));
}

/* Alternatives: each is written between next_way calls; the jumps behind them are patched at the end. */
typedef struct ways {
    uint32_t jumps[64], n, split;
} ways;

static void begin_way(rl_grammar *g, ways *w, bool last)
{
    if (w->n > 0) rl_g_patch_b(g, w->split, rl_g_here(g));
    if (!last) w->split = begin_option(g);
}

static void end_way(rl_grammar *g, ways *w)
{
    if (w->n < 64)
        w->jumps[w->n++] = rl_g_emit(g, RL_G_JUMP, 0, 0);
    else
        g->failed = true;
}

static void end_ways(rl_grammar *g, const ways *w)
{
    for (uint32_t i = 0; i < w->n; i++)
        rl_g_patch(g, w->jumps[i], rl_g_here(g));
}

static void up_to(rl_grammar *g, uint32_t times, const char *chars, const char *ranges)
{
    uint32_t splits[32];
    for (uint32_t i = 0; i < times; i++) {
        splits[i] = begin_option(g);
        rl_g_set(g, chars, ranges);
    }
    for (uint32_t i = 0; i < times; i++)
        end_option(g, splits[i]);
}

static void write_space(rl_grammar *g)
{
    uint32_t option = begin_option(g);
    ways w = {0};
    begin_way(g, &w, false);
    rl_g_literal(g, " ");
    end_way(g, &w);
    begin_way(g, &w, true);
    rl_g_literal(g, "\n");
    up_to(g, 16, " \t", "");
    end_way(g, &w);
    end_ways(g, &w);
    end_option(g, option);
    rl_g_emit(g, RL_G_RETURN, 0, 0);
}

/* One character of a string: well-formed UTF-8 but quotes, backslashes and control characters, or an escape (a surrogate only
 * with its other half). */
static void write_chr(rl_grammar *g)
{
    static const struct {
        const char *ranges[4];
    } utf8[] = {{{"\x20\x21\x23\x5b\x5d\x7f", NULL}},
                {{"\xc2\xdf", "\x80\xbf", NULL}},
                {{"\xe0\xe0", "\xa0\xbf", "\x80\xbf", NULL}},
                {{"\xe1\xec\xee\xef", "\x80\xbf", "\x80\xbf", NULL}},
                {{"\xed\xed", "\x80\x9f", "\x80\xbf", NULL}},
                {{"\xf0\xf0", "\x90\xbf", "\x80\xbf", "\x80\xbf"}},
                {{"\xf1\xf3", "\x80\xbf", "\x80\xbf", "\x80\xbf"}},
                {{"\xf4\xf4", "\x80\x8f", "\x80\xbf", "\x80\xbf"}}};
    static const char hex[] = "09afAF";
    ways w = {0}, e = {0};
    for (size_t i = 0; i < sizeof utf8 / sizeof *utf8; i++) {
        begin_way(g, &w, false);
        for (size_t k = 0; k < 4 && utf8[i].ranges[k]; k++)
            rl_g_set(g, "", utf8[i].ranges[k]);
        end_way(g, &w);
    }
    begin_way(g, &w, true);
    rl_g_literal(g, "\\");
    begin_way(g, &e, false);
    rl_g_set(g, "\"\\/bfnrt", "");
    end_way(g, &e);
    begin_way(g, &e, false);
    rl_g_literal(g, "u");
    rl_g_set(g, "", "09acACefEF");
    for (int i = 0; i < 3; i++)
        rl_g_set(g, "", hex);
    end_way(g, &e);
    begin_way(g, &e, false);
    rl_g_literal(g, "u");
    rl_g_set(g, "dD", "");
    rl_g_set(g, "", "07");
    rl_g_set(g, "", hex);
    rl_g_set(g, "", hex);
    end_way(g, &e);
    begin_way(g, &e, true);
    rl_g_literal(g, "u");
    rl_g_set(g, "dD", "");
    rl_g_set(g, "89abAB", "");
    rl_g_set(g, "", hex);
    rl_g_set(g, "", hex);
    rl_g_literal(g, "\\u");
    rl_g_set(g, "dD", "");
    rl_g_set(g, "", "cfCF");
    rl_g_set(g, "", hex);
    rl_g_set(g, "", hex);
    end_way(g, &e);
    end_ways(g, &e);
    end_way(g, &w);
    end_ways(g, &w);
    rl_g_emit(g, RL_G_RETURN, 0, 0);
}

static void write_string(rl_grammar *g, const rl_g_json *r)
{
    rl_g_literal(g, "\"");
    uint32_t loop = rl_g_here(g), option = begin_option(g);
    call(g, r->chr);
    rl_g_emit(g, RL_G_JUMP, loop, 0);
    end_option(g, option);
    rl_g_literal(g, "\"");
    rl_g_emit(g, RL_G_RETURN, 0, 0);
}

static void write_whole(rl_grammar *g)
{
    ways w = {0};
    uint32_t minus = begin_option(g);
    rl_g_literal(g, "-");
    end_option(g, minus);
    begin_way(g, &w, false);
    rl_g_literal(g, "0");
    end_way(g, &w);
    begin_way(g, &w, true);
    rl_g_set(g, "", "19");
    up_to(g, 15, "", "09");
    end_way(g, &w);
    end_ways(g, &w);
}

static void write_number(rl_grammar *g, const rl_g_json *r)
{
    call(g, r->integer);
    uint32_t fraction = begin_option(g);
    rl_g_literal(g, ".");
    rl_g_set(g, "", "09");
    up_to(g, 15, "", "09");
    end_option(g, fraction);
    uint32_t exponent = begin_option(g);
    rl_g_set(g, "eE", "");
    uint32_t sign = begin_option(g);
    rl_g_set(g, "+-", "");
    end_option(g, sign);
    rl_g_set(g, "", "09");
    up_to(g, 1, "", "09"); /* no exponent that a double cannot hold */
    end_option(g, exponent);
    rl_g_emit(g, RL_G_RETURN, 0, 0);
}

/* open [ item { , item } ] close; item is written by a CALL of the rule (with a key before it in objects). */
static void write_list(rl_grammar *g, const rl_g_json *r, const char *open, const char *close, bool keys, uint32_t item)
{
    rl_g_literal(g, open);
    call(g, r->space);
    uint32_t some = begin_option(g), loop = rl_g_here(g);
    if (keys) {
        call(g, r->string);
        rl_g_literal(g, ":");
        call(g, r->space);
    }
    call(g, item);
    call(g, r->space);
    uint32_t more = begin_option(g);
    rl_g_literal(g, ",");
    call(g, r->space);
    rl_g_emit(g, RL_G_JUMP, loop, 0);
    end_option(g, more);
    end_option(g, some);
    rl_g_literal(g, close);
}

static void write_value(rl_grammar *g, const rl_g_json *r)
{
    static const char *const words[] = {"true", "false", "null"};
    const uint32_t rules[] = {r->string, r->object, r->array, r->number};
    ways w = {0};
    for (size_t i = 0; i < 4; i++) {
        begin_way(g, &w, false);
        call(g, rules[i]);
        end_way(g, &w);
    }
    for (size_t i = 0; i < 3; i++) {
        begin_way(g, &w, i == 2);
        rl_g_literal(g, words[i]);
        end_way(g, &w);
    }
    end_ways(g, &w);
    rl_g_emit(g, RL_G_RETURN, 0, 0);
}

void rl_g_json_rules(rl_grammar *g, rl_g_json *r)
{
    r->space = rl_g_here(g);
    write_space(g);
    r->chr = rl_g_here(g);
    write_chr(g);
    r->string = rl_g_here(g);
    write_string(g, r);
    r->integer = rl_g_here(g);
    write_whole(g);
    rl_g_emit(g, RL_G_RETURN, 0, 0);
    r->number = rl_g_here(g);
    write_number(g, r);
    /* Values, objects and arrays need one another: value goes first through a jump that is patched. */
    uint32_t value = rl_g_emit(g, RL_G_JUMP, 0, 0);
    r->value = value;
    r->object = rl_g_here(g);
    write_list(g, r, "{", "}", true, r->value);
    rl_g_emit(g, RL_G_RETURN, 0, 0);
    r->array = rl_g_here(g);
    write_list(g, r, "[", "]", false, r->value);
    rl_g_emit(g, RL_G_RETURN, 0, 0);
    rl_g_patch(g, value, rl_g_here(g));
    write_value(g, r);
}

/* ---- Schemas ---------------------------------------------------------------------------------------------------------------
 */

typedef struct ref {
    rl_slice target; /* a schema within the root */
    uint32_t at;     /* the CALL to patch */
} ref;

typedef struct writer {
    rl_grammar *g;
    const rl_g_json *r;
    rl_slice root;
    bool lenient;
    rl_error *err;
    uint32_t depth;
    ref refs[REFS_MAX]; /* CALLs in want of a rule */
    uint32_t n_refs;
    struct {
        rl_slice target;
        uint32_t rule;
    } known[REFS_MAX];
    uint32_t n_known;
} writer;

static rl_status write_schema(writer *w, rl_slice schema);

/* A CALL of the rule for a schema, which is written later (or was before). */
static rl_status call_schema(writer *w, rl_slice schema)
{
    if (w->n_refs == REFS_MAX) return rl_fail(w->err, RL_ERR_LIMIT, "the schema has more than %d parts", REFS_MAX);
    w->refs[w->n_refs++] = (ref){schema, rl_g_emit(w->g, RL_G_CALL, 0, 0)};
    return RL_OK;
}

static bool is_text(rl_slice value, const char *text)
{
    return value.size == strlen(text) + 2 && memcmp(value.data + 1, text, value.size - 2) == 0;
}

static bool read_count(rl_slice schema, const char *key, uint32_t *out)
{
    rl_slice v = rl_json_member(schema, key);
    if (v.size == 0 || v.size > 9) return false;
    uint32_t n = 0;
    for (size_t i = 0; i < v.size; i++) {
        if (v.data[i] < '0' || v.data[i] > '9') return false;
        n = n * 10 + (uint32_t)(v.data[i] - '0');
    }
    *out = n;
    return true;
}

/* "#/a/b" within the root; ~1 and ~0 as in JSON pointers are not needed by any known generator. */
static rl_slice follow(const writer *w, rl_slice pointer)
{
    rl_slice at = w->root, none = {NULL, 0};
    if (pointer.size < 3 || pointer.data[1] != '#') return none;
    size_t i = 2, end = pointer.size - 1;
    while (i < end) {
        char name[128];
        size_t n = 0;
        if (pointer.data[i++] != '/') return none;
        while (i < end && pointer.data[i] != '/' && n + 1 < sizeof name)
            name[n++] = pointer.data[i++];
        name[n] = 0;
        at = rl_json_kind(at) == '{' ? rl_json_member(at, name) : none;
        if (at.size == 0) return none;
    }
    return at;
}

/* One of the values of a list, each written by fn. */
typedef rl_status (*write_fn)(writer *w, rl_slice value);

static rl_status write_any_of(writer *w, rl_slice list, write_fn fn)
{
    size_t cursor = 0, next_cursor;
    rl_slice value, next;
    if (rl_json_kind(list) != '[' || !rl_json_next(list, &cursor, NULL, &value))
        return rl_fail(w->err, RL_ERR_ARGUMENT, "a schema offers an empty or damaged list of alternatives");
    uint32_t *jumps = NULL, n = 0;
    rl_status st = RL_OK;
    for (;;) {
        next_cursor = cursor;
        bool more = rl_json_next(list, &next_cursor, NULL, &next);
        uint32_t split = more ? begin_option(w->g) : 0;
        st = fn(w, value);
        uint32_t *grown = st == RL_OK ? rl_realloc(jumps, n + 1, sizeof *jumps) : NULL;
        if (!grown) break;
        jumps = grown;
        jumps[n++] = rl_g_emit(w->g, RL_G_JUMP, 0, 0);
        if (!more) break;
        end_option(w->g, split);
        value = next;
        cursor = next_cursor;
    }
    for (uint32_t i = 0; i < n; i++)
        rl_g_patch(w->g, jumps[i], rl_g_here(w->g));
    free(jumps);
    return st;
}

static rl_status write_literal(writer *w, rl_slice value)
{
    rl_g_text(w->g, value);
    return RL_OK;
}

static bool is_required(rl_slice required, rl_slice key)
{
    size_t cursor = 0;
    rl_slice name;
    while (rl_json_kind(required) == '[' && rl_json_next(required, &cursor, NULL, &name))
        if (name.size == key.size && memcmp(name.data, key.data, key.size) == 0) return true;
    return false;
}

/* Members beyond the declared ones. */
static rl_status write_more_members(writer *w, rl_slice additional, bool first)
{
    rl_grammar *g = w->g;
    uint32_t loop = rl_g_here(g), some = begin_option(g), skip = 0;
    if (!first) {
        rl_g_literal(g, ",");
        call(g, w->r->space);
    }
    skip = rl_g_here(g);
    call(g, w->r->string);
    rl_g_literal(g, ":");
    call(g, w->r->space);
    rl_status st = RL_OK;
    if (rl_json_kind(additional) == '{')
        st = call_schema(w, additional);
    else
        call(g, w->r->value);
    call(g, w->r->space);
    if (first) { /* behind the first one they need commas */
        uint32_t more = begin_option(g);
        rl_g_literal(g, ",");
        call(g, w->r->space);
        rl_g_emit(g, RL_G_JUMP, skip, 0);
        end_option(g, more);
    } else {
        rl_g_emit(g, RL_G_JUMP, loop, 0);
    }
    end_option(g, some);
    return st;
}

/* "key": value */
static rl_status write_member(writer *w, rl_slice key, rl_slice schema)
{
    rl_g_text(w->g, key);
    rl_g_literal(w->g, ":");
    call(w->g, w->r->space);
    rl_status st = call_schema(w, schema);
    call(w->g, w->r->space);
    return st;
}

/* Declared members in their order. Two strands of code run side by side: one for "nothing was written yet", one, with commas,
 * for the rest; writing a member changes from the first to the second. */
static rl_status write_members(writer *w, rl_slice properties, rl_slice required, rl_slice additional, bool open)
{
    rl_grammar *g = w->g;
    rl_status st = RL_OK;
    uint32_t *wrote = NULL, n = 0; /* jumps from the first strand into the second, one a member */
    size_t cursor = 0;
    rl_slice key, value;
    uint32_t all_required = UINT32_MAX; /* the first required member ends the first strand: nothing passes it unwritten */
    for (; st == RL_OK && rl_json_next(properties, &cursor, &key, &value); n++) {
        uint32_t *grown = rl_realloc(wrote, n + 1, sizeof *wrote);
        if (!grown) {
            st = rl_fail(w->err, RL_ERR_MEMORY, "no memory for a schema");
            break;
        }
        wrote = grown;
        bool optional = !is_required(required, key);
        uint32_t split = optional ? begin_option(g) : 0;
        st = write_member(w, key, value);
        wrote[n] = rl_g_emit(g, RL_G_JUMP, 0, 0);
        if (!optional) {
            all_required = n++;
            break;
        }
        end_option(g, split);
    }
    uint32_t done = 0;
    bool passes = all_required == UINT32_MAX;
    if (st == RL_OK && passes) {
        if (open) st = write_more_members(w, additional, true);
        done = rl_g_emit(g, RL_G_JUMP, 0, 0);
    }
    cursor = 0;
    for (uint32_t i = 0; st == RL_OK && rl_json_next(properties, &cursor, &key, &value); i++) {
        if (i > 0) { /* the first has nothing before it */
            bool optional = !is_required(required, key);
            uint32_t split = optional ? begin_option(g) : 0;
            rl_g_literal(g, ",");
            call(g, w->r->space);
            st = write_member(w, key, value);
            if (optional) end_option(g, split);
        }
        if (i < n) rl_g_patch(g, wrote[i], rl_g_here(g));
    }
    if (st == RL_OK && open) st = write_more_members(w, additional, false);
    if (passes) rl_g_patch(g, done, rl_g_here(g));
    free(wrote);
    return st;
}

static rl_status write_object(writer *w, rl_slice schema)
{
    rl_slice properties = rl_json_member(schema, "properties"), additional = rl_json_member(schema, "additionalProperties");
    bool declared = rl_json_kind(properties) == '{' && properties.size > 2;
    /* An object that declares members means these alone, unless it says otherwise. */
    bool open = rl_json_kind(additional) == '{' || rl_json_kind(additional) == 't' || (!declared && additional.size == 0);
    rl_g_literal(w->g, "{");
    call(w->g, w->r->space);
    rl_status st = RL_OK;
    if (declared)
        st = write_members(w, properties, rl_json_member(schema, "required"), additional, open);
    else if (open)
        st = write_more_members(w, additional, true);
    rl_g_literal(w->g, "}");
    return st;
}

/* Between min and max times; write(i) writes the ith with its comma. max UINT32_MAX: no end. */
static rl_status write_items(writer *w, rl_slice items, uint32_t from, uint32_t min, uint32_t max)
{
    rl_grammar *g = w->g;
    uint32_t options[REPEAT_MAX], n = 0;
    rl_status st = RL_OK;
    bool endless = max == UINT32_MAX;
    uint32_t last = endless ? (min > from ? min : from) + 1 : max, loop = 0, more = 0;
    for (uint32_t i = from; i < last && st == RL_OK; i++) {
        loop = rl_g_here(g);
        if (i >= min) options[n++] = begin_option(g);
        if (i > 0) {
            rl_g_literal(g, ",");
            call(g, w->r->space);
        }
        st = items.size ? call_schema(w, items) : (call(g, w->r->value), RL_OK);
        call(g, w->r->space);
    }
    if (endless && last > from) {
        if (last == 1) { /* the first has no comma: the loop needs one of its own */
            more = rl_g_here(g);
            options[n++] = begin_option(g);
            rl_g_literal(g, ",");
            call(g, w->r->space);
            if (st == RL_OK) st = items.size ? call_schema(w, items) : (call(g, w->r->value), RL_OK);
            call(g, w->r->space);
            loop = more;
        }
        rl_g_emit(g, RL_G_JUMP, loop, 0);
    }
    for (uint32_t i = 0; i < n; i++)
        end_option(g, options[i]);
    return st;
}

static rl_status write_array(writer *w, rl_slice schema)
{
    rl_slice items = rl_json_member(schema, "items"), prefix = rl_json_member(schema, "prefixItems");
    uint32_t min = 0, max = UINT32_MAX, fixed = 0;
    read_count(schema, "minItems", &min);
    read_count(schema, "maxItems", &max);
    if (min >= REPEAT_MAX || (max != UINT32_MAX && max >= REPEAT_MAX) || min > max)
        return rl_fail(w->err, RL_ERR_ARGUMENT, "a schema has minItems or maxItems out of order or above %d", REPEAT_MAX - 1);
    if (rl_json_kind(items) != '{') {
        if (rl_json_kind(items) == 'f') max = 0;
        items = (rl_slice){NULL, 0};
    }
    rl_g_literal(w->g, "[");
    call(w->g, w->r->space);
    rl_status st = RL_OK;
    size_t cursor = 0;
    rl_slice item;
    while (st == RL_OK && rl_json_kind(prefix) == '[' && rl_json_next(prefix, &cursor, NULL, &item)) {
        if (fixed++ > 0) {
            rl_g_literal(w->g, ",");
            call(w->g, w->r->space);
        }
        st = call_schema(w, item);
        call(w->g, w->r->space);
    }
    /* A tuple means its own items, unless more are described. */
    bool more = fixed == 0 || items.size > 0;
    if (st == RL_OK && more && (max == UINT32_MAX || max > fixed)) st = write_items(w, items, fixed, min, max);
    rl_g_literal(w->g, "]");
    return st;
}

static rl_status write_text(writer *w, rl_slice schema)
{
    uint32_t min = 0, max = UINT32_MAX, options[REPEAT_MAX];
    bool bounded = read_count(schema, "maxLength", &max);
    if (!read_count(schema, "minLength", &min) && !bounded) {
        call(w->g, w->r->string);
        return RL_OK;
    }
    if (min >= REPEAT_MAX || min > max)
        return rl_fail(w->err, RL_ERR_ARGUMENT, "a schema has minLength above maxLength or %d", REPEAT_MAX - 1);
    rl_g_literal(w->g, "\"");
    for (uint32_t i = 0; i < min; i++)
        call(w->g, w->r->chr);
    if (bounded && max < REPEAT_MAX) {
        for (uint32_t i = min; i < max; i++) {
            options[i] = begin_option(w->g);
            call(w->g, w->r->chr);
        }
        for (uint32_t i = min; i < max; i++)
            end_option(w->g, options[i]);
    } else { /* a bound beyond what is worth unrolling is no bound */
        uint32_t loop = rl_g_here(w->g), option = begin_option(w->g);
        call(w->g, w->r->chr);
        rl_g_emit(w->g, RL_G_JUMP, loop, 0);
        end_option(w->g, option);
    }
    rl_g_literal(w->g, "\"");
    return RL_OK;
}

static rl_status write_type(writer *w, rl_slice schema, rl_slice type)
{
    if (is_text(type, "object")) return write_object(w, schema);
    if (is_text(type, "array")) return write_array(w, schema);
    if (is_text(type, "string")) return write_text(w, schema);
    if (is_text(type, "number")) return call(w->g, w->r->number), RL_OK;
    if (is_text(type, "integer")) return call(w->g, w->r->integer), RL_OK;
    if (is_text(type, "null")) return rl_g_literal(w->g, "null"), RL_OK;
    if (is_text(type, "boolean")) {
        uint32_t split = begin_option(w->g);
        rl_g_literal(w->g, "true");
        uint32_t jump = rl_g_emit(w->g, RL_G_JUMP, 0, 0);
        end_option(w->g, split);
        rl_g_literal(w->g, "false");
        rl_g_patch(w->g, jump, rl_g_here(w->g));
        return RL_OK;
    }
    char shown[80];
    return rl_fail(w->err, RL_ERR_ARGUMENT,
                   "a schema has the type %s; expected object, array, string, number, integer, boolean or null",
                   rl_escape(shown, sizeof shown, type.data, type.size));
}

/* A list of types is a list of alternatives over the same schema. */
static rl_status write_types(writer *w, rl_slice schema, rl_slice types)
{
    size_t cursor = 0, ahead;
    rl_slice type, next;
    uint32_t jumps[8], n = 0;
    rl_status st = RL_OK;
    if (!rl_json_next(types, &cursor, NULL, &type))
        return rl_fail(w->err, RL_ERR_ARGUMENT, "a schema has an empty list of types");
    for (bool more = true; more && st == RL_OK;) {
        ahead = cursor;
        more = rl_json_next(types, &ahead, NULL, &next);
        if (n == 8) return rl_fail(w->err, RL_ERR_ARGUMENT, "a schema has a list of more than 8 types");
        uint32_t split = more ? begin_option(w->g) : 0;
        st = write_type(w, schema, type);
        jumps[n++] = rl_g_emit(w->g, RL_G_JUMP, 0, 0);
        if (more) end_option(w->g, split);
        type = next;
        cursor = ahead;
    }
    for (uint32_t i = 0; i < n; i++)
        rl_g_patch(w->g, jumps[i], rl_g_here(w->g));
    return st;
}

static rl_status check_keywords(const writer *w, rl_slice schema)
{
    static const char *const refused[] = {
        "pattern",     "not",           "if",       "patternProperties",    "dependentSchemas",
        "$dynamicRef", "propertyNames", "contains", "unevaluatedProperties"};
    if (w->lenient) return RL_OK;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        if (rl_json_member(schema, refused[i]).size > 0)
            return rl_fail(w->err, RL_ERR_UNSUPPORTED, "the schema uses \"%s\", which this server cannot enforce", refused[i]);
    return RL_OK;
}

static rl_status write_keywords(writer *w, rl_slice schema)
{
    rl_slice v;
    if ((v = rl_json_member(schema, "$ref")).size > 0) {
        rl_slice target = follow(w, v);
        char shown[120];
        if (target.size == 0)
            return rl_fail(w->err, RL_ERR_ARGUMENT, "the schema refers to %s, which it does not contain",
                           rl_escape(shown, sizeof shown, v.data, v.size));
        return call_schema(w, target);
    }
    if ((v = rl_json_member(schema, "const")).size > 0) return write_literal(w, v);
    if ((v = rl_json_member(schema, "enum")).size > 0) return write_any_of(w, v, write_literal);
    if ((v = rl_json_member(schema, "anyOf")).size > 0) return write_any_of(w, v, write_schema);
    if ((v = rl_json_member(schema, "oneOf")).size > 0) return write_any_of(w, v, write_schema);
    if ((v = rl_json_member(schema, "allOf")).size > 0) {
        size_t cursor = 0;
        rl_slice only, other;
        if (rl_json_kind(v) == '[' && rl_json_next(v, &cursor, NULL, &only) && !rl_json_next(v, &cursor, NULL, &other))
            return write_schema(w, only);
        if (!w->lenient) return rl_fail(w->err, RL_ERR_UNSUPPORTED, "the schema uses \"allOf\" of several schemas");
        call(w->g, w->r->value);
        return RL_OK;
    }
    v = rl_json_member(schema, "type");
    if (rl_json_kind(v) == '"') return write_type(w, schema, v);
    if (rl_json_kind(v) == '[') return write_types(w, schema, v);
    if (rl_json_member(schema, "properties").size > 0) return write_object(w, schema);
    if (rl_json_member(schema, "items").size > 0) return write_array(w, schema);
    call(w->g, w->r->value);
    return RL_OK;
}

static rl_status write_schema(writer *w, rl_slice schema)
{
    if (rl_json_kind(schema) == 't') return call(w->g, w->r->value), RL_OK;
    if (rl_json_kind(schema) != '{') return rl_fail(w->err, RL_ERR_ARGUMENT, "a schema is neither an object nor true");
    if (w->depth == DEPTH_MAX) return rl_fail(w->err, RL_ERR_LIMIT, "the schema nests more than %d alternatives", DEPTH_MAX);
    rl_status st = check_keywords(w, schema);
    w->depth++;
    if (st == RL_OK) st = write_keywords(w, schema);
    w->depth--;
    return st;
}

/* Rules that were called but not written: one each, however often it is called, which also ends recursion. */
static rl_status write_rules(writer *w)
{
    rl_status st = RL_OK;
    while (w->n_refs > 0 && st == RL_OK && !w->g->failed) {
        ref r = w->refs[--w->n_refs];
        uint32_t k = 0;
        while (k < w->n_known && w->known[k].target.data != r.target.data)
            k++;
        if (k == w->n_known) {
            if (k == REFS_MAX) return rl_fail(w->err, RL_ERR_LIMIT, "the schema has more than %d parts", REFS_MAX);
            w->known[w->n_known].target = r.target;
            w->known[w->n_known++].rule = rl_g_here(w->g);
            st = write_schema(w, r.target);
            rl_g_emit(w->g, RL_G_RETURN, 0, 0);
        }
        rl_g_patch(w->g, r.at, w->known[k].rule);
    }
    return st;
}

rl_status rl_g_schema(rl_grammar *g, const rl_g_json *r, rl_slice schema, bool lenient, rl_error *err)
{
    writer *w = rl_calloc(1, sizeof *w);
    if (!w) return rl_fail(err, RL_ERR_MEMORY, "no memory for a schema");
    *w = (writer){.g = g, .r = r, .root = schema, .lenient = lenient, .err = err};
    rl_status st = write_schema(w, schema);
    uint32_t over = rl_g_emit(g, RL_G_JUMP, 0, 0); /* the rules stand in the way */
    if (st == RL_OK) st = write_rules(w);
    rl_g_patch(g, over, rl_g_here(g));
    free(w);
    return st;
}
