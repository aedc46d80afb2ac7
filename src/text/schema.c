/* text/schema: types of parameters, and untyped text made into JSON by them. */
#include "text/schema.h"
#include "base/error.h"
#include "base/mem.h"
#include "text/json.h"
#include <stdlib.h>
#include <strings.h>

static rl_status read_tool(rl_schema_tool *t, rl_slice text, size_t i, rl_error *err)
{
    if (!rl_json_normalise(text, &t->json))
        return rl_fail(err, RL_ERR_ARGUMENT, "tool %zu is not valid JSON (or nested deeper than %d)", i, RL_JSON_DEPTH);
    rl_slice tool = rl_buffer_view(&t->json), function = rl_json_member(tool, "function");
    if (function.size == 0) function = tool;
    rl_slice name = rl_json_member(function, "name");
    if (rl_json_kind(name) != '"')
        return rl_fail(err, RL_ERR_ARGUMENT, "tool %zu has no name, expected an object with a function's name", i);
    rl_json_decode(name, &t->name);
    t->properties = rl_json_member(rl_json_member(function, "parameters"), "properties");
    return t->name.failed ? rl_fail(err, RL_ERR_MEMORY, "no memory for the tools of a request") : RL_OK;
}

rl_status rl_schema_create(rl_schema *s, const rl_slice *tools, size_t n, rl_error *err)
{
    *s = (rl_schema){0};
    s->tools = rl_calloc(n, sizeof *s->tools);
    if (s->tools == NULL) return rl_fail(err, RL_ERR_MEMORY, "no memory for %zu tools", n);
    s->n = n;
    for (size_t i = 0; i < n; i++) {
        rl_status status = read_tool(&s->tools[i], tools[i], i, err);
        if (status != RL_OK) {
            rl_schema_free(s);
            return status;
        }
    }
    return RL_OK;
}

void rl_schema_free(rl_schema *s)
{
    for (size_t i = 0; i < s->n; i++) {
        rl_buffer_free(&s->tools[i].json);
        rl_buffer_free(&s->tools[i].name);
    }
    free(s->tools);
    *s = (rl_schema){0};
}

static bool same(rl_slice a, rl_slice b)
{
    return a.size == b.size && __builtin_memcmp(a.data, b.data, a.size) == 0;
}

const rl_schema_tool *rl_schema_find(const rl_schema *s, rl_slice name)
{
    for (size_t i = 0; i < s->n; i++)
        if (same(rl_buffer_view(&s->tools[i].name), name)) return &s->tools[i];
    return NULL;
}

static unsigned type_bit(rl_slice name)
{
    static const struct {
        const char *name;
        unsigned bit;
    } types[] = {
        {"\"string\"", RL_SCHEMA_STRING}, {"\"integer\"", RL_SCHEMA_NUMBER}, {"\"number\"", RL_SCHEMA_NUMBER},
        {"\"boolean\"", RL_SCHEMA_BOOL},  {"\"object\"", RL_SCHEMA_OBJECT},  {"\"array\"", RL_SCHEMA_ARRAY},
        {"\"null\"", RL_SCHEMA_NULL},
    };
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        if (rl_slice_equals(name, types[i].name)) return types[i].bit;
    return RL_SCHEMA_STRING; /* a type we do not know: the text as it is */
}

/* "type" may be one name or a list of them. */
static unsigned declared_types(rl_slice schema)
{
    rl_slice type = rl_json_member(schema, "type"), one;
    size_t cursor = 0;
    unsigned types = 0;
    if (rl_json_kind(type) == '"') return type_bit(type);
    while (rl_json_kind(type) == '[' && rl_json_next(type, &cursor, NULL, &one))
        types |= type_bit(one);
    return types;
}

/* The common ways to say "this or null" are lists of alternatives, one level deep. */
static unsigned schema_types(rl_slice schema)
{
    static const char *const lists[] = {"anyOf", "oneOf"};
    unsigned types = declared_types(schema);
    for (size_t i = 0; types == 0 && i < 2; i++) {
        rl_slice list = rl_json_member(schema, lists[i]), one;
        size_t cursor = 0;
        while (rl_json_kind(list) == '[' && rl_json_next(list, &cursor, NULL, &one))
            types |= declared_types(one);
    }
    return types;
}

size_t rl_schema_parameter(const rl_schema_tool *t, rl_slice name, unsigned *types)
{
    *types = 0;
    if (t == NULL || rl_json_kind(t->properties) != '{') return SIZE_MAX;
    rl_buffer decoded = {0};
    rl_slice key, schema;
    size_t cursor = 0, found = SIZE_MAX;
    for (size_t i = 0; found == SIZE_MAX && rl_json_next(t->properties, &cursor, &key, &schema); i++) {
        rl_buffer_clear(&decoded);
        rl_json_decode(key, &decoded);
        if (!same(rl_buffer_view(&decoded), name)) continue;
        *types = schema_types(schema);
        found = i;
    }
    rl_buffer_free(&decoded);
    return found;
}

static bool is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static bool is_word(rl_slice s, const char *word)
{
    return s.size == __builtin_strlen(word) && strncasecmp(s.data, word, s.size) == 0;
}

static unsigned kind_bit(char kind)
{
    switch (kind) {
    case '"':
        return RL_SCHEMA_STRING;
    case '{':
        return RL_SCHEMA_OBJECT;
    case '[':
        return RL_SCHEMA_ARRAY;
    case 't':
    case 'f':
        return RL_SCHEMA_BOOL;
    case 'n':
        return RL_SCHEMA_NULL;
    default:
        return RL_SCHEMA_NUMBER;
    }
}

void rl_schema_convert(unsigned types, rl_slice text, rl_buffer *out)
{
    rl_slice t = text;
    while (t.size > 0 && is_space(t.data[0]))
        t = (rl_slice){t.data + 1, t.size - 1};
    while (t.size > 0 && is_space(t.data[t.size - 1]))
        t.size--;
    const char *word = NULL;
    if ((types & RL_SCHEMA_BOOL) != 0) word = is_word(t, "true") ? "true" : is_word(t, "false") ? "false" : NULL;
    if ((types & RL_SCHEMA_NULL) != 0 && (is_word(t, "null") || is_word(t, "none"))) word = "null";
    if (word != NULL) {
        rl_buffer_text(out, word);
        return;
    }
    rl_buffer json = {0};
    bool read = types != RL_SCHEMA_STRING && rl_json_normalise(t, &json);
    unsigned bit = read ? kind_bit(rl_json_kind(rl_buffer_view(&json))) : 0;
    /* A text in quotes is taken for a JSON string only where nothing is declared. */
    if (read && (types == 0 || (types & bit & ~(unsigned)RL_SCHEMA_STRING) != 0)) {
        rl_buffer_slice(out, rl_buffer_view(&json));
    } else {
        rl_buffer_char(out, '"');
        rl_json_escape(text, out);
        rl_buffer_char(out, '"');
    }
    rl_buffer_free(&json);
}
