/* text/grammar_calls: tool calls as grammars, in the two styles that models write (docs/text.md). */
#include "base/error.h"
#include "text/format.h"
#include "text/grammar.h"
#include "text/json.h"
#include "text/schema.h"

#include <string.h>

/* The schema of a function's parameters, empty when none is declared. */
static rl_slice parameters_of(const rl_schema_tool *t)
{
    rl_slice tool = rl_buffer_view(&t->json), f = rl_json_member(tool, "function");
    return rl_json_member(f.size > 0 ? f : tool, "parameters");
}

static rl_status write_json_call(rl_grammar *g, const rl_g_json *r, const rl_schema_tool *t, rl_error *err)
{
    rl_slice schema = parameters_of(t);
    rl_status st = RL_OK;
    rl_g_literal(g, "<tool_call>\n{\"name\": \"");
    rl_g_text(g, rl_buffer_view(&t->name));
    rl_g_literal(g, "\", \"arguments\": ");
    if (rl_json_kind(schema) == '{' && t->properties.size > 0)
        st = rl_g_schema(g, r, schema, true, err);
    else
        rl_g_emit(g, RL_G_CALL, r->object, 0);
    rl_g_literal(g, "}\n</tool_call>");
    return st;
}

/* One parameter: strings are bare text up to the closing tag, everything else is JSON. */
static rl_status write_parameter(rl_grammar *g, const rl_g_json *r, const rl_schema_tool *t, rl_slice key, rl_slice schema,
                                 rl_error *err)
{
    rl_buffer name = {0};
    unsigned types = 0;
    rl_status st = RL_OK;
    rl_json_decode(key, &name);
    rl_schema_parameter(t, rl_buffer_view(&name), &types);
    rl_g_literal(g, "<parameter=");
    rl_g_text(g, rl_buffer_view(&name));
    rl_g_literal(g, ">\n");
    if (types == 0 || types & RL_SCHEMA_STRING) {
        rl_g_until(g, "\n</parameter>");
        rl_g_literal(g, "\n");
    } else {
        st = rl_g_schema(g, r, schema, true, err);
        rl_g_literal(g, "\n</parameter>\n");
    }
    if (name.failed) g->failed = true;
    rl_buffer_free(&name);
    return st;
}

static bool required_key(rl_slice required, rl_slice key)
{
    size_t cursor = 0;
    rl_slice name;
    while (rl_json_kind(required) == '[' && rl_json_next(required, &cursor, NULL, &name))
        if (name.size == key.size && memcmp(name.data, key.data, key.size) == 0) return true;
    return false;
}

static rl_status write_xml_call(rl_grammar *g, const rl_g_json *r, const rl_schema_tool *t, rl_error *err)
{
    rl_slice required = rl_json_member(parameters_of(t), "required"), key, schema;
    size_t cursor = 0;
    rl_status st = RL_OK;
    rl_g_literal(g, "<tool_call>\n<function=");
    rl_g_text(g, rl_buffer_view(&t->name));
    rl_g_literal(g, ">\n");
    while (st == RL_OK && rl_json_kind(t->properties) == '{' && rl_json_next(t->properties, &cursor, &key, &schema)) {
        bool optional = !required_key(required, key);
        uint32_t split = optional ? rl_g_emit(g, RL_G_SPLIT, 0, 0) : 0;
        if (optional) rl_g_patch(g, split, rl_g_here(g));
        st = write_parameter(g, r, t, key, schema, err);
        if (optional) rl_g_patch_b(g, split, rl_g_here(g));
    }
    rl_g_literal(g, "</function>\n</tool_call>");
    return st;
}

/* What may stand before the calls: reasoning, when the model thinks. */
static void write_reasoning(rl_grammar *g, const rl_chat_format *f, const rl_chat_request *request)
{
    bool silent = request->no_thinking && f->can_skip_thinking;
    if (f->thinking == RL_THINKING_NEVER || silent) return;
    uint32_t split = 0;
    if (f->thinking == RL_THINKING_MAY) {
        split = rl_g_emit(g, RL_G_SPLIT, 0, 0);
        rl_g_patch(g, split, rl_g_here(g));
        rl_g_literal(g, "<think>");
    }
    rl_g_until(g, "</think>");
    rl_g_literal(g, "\n\n");
    if (f->thinking == RL_THINKING_MAY) rl_g_patch_b(g, split, rl_g_here(g));
}

static rl_status write_calls(rl_grammar *g, const rl_g_json *r, const rl_chat_format *f, const rl_schema *s, const char *name,
                             rl_error *err)
{
    uint32_t over = rl_g_emit(g, RL_G_JUMP, 0, 0), call = rl_g_here(g);
    rl_status st = RL_OK;
    bool any = false;
    for (size_t i = 0; i < s->n && st == RL_OK; i++) {
        if (name && !rl_slice_equals(rl_buffer_view(&s->tools[i].name), name)) continue;
        any = true;
        uint32_t split = rl_g_emit(g, RL_G_SPLIT, 0, 0);
        rl_g_patch(g, split, rl_g_here(g));
        st = f->style == RL_TOOL_XML ? write_xml_call(g, r, &s->tools[i], err) : write_json_call(g, r, &s->tools[i], err);
        rl_g_emit(g, RL_G_RETURN, 0, 0);
        rl_g_patch_b(g, split, rl_g_here(g));
    }
    /* Behind the last alternative: a byte set that holds nothing. */
    rl_g_set(g, "", "");
    rl_g_patch(g, over, rl_g_here(g));
    rl_g_emit(g, RL_G_CALL, call, 0);
    if (st == RL_OK && !any) st = rl_fail(err, RL_ERR_ARGUMENT, "there is no tool of the name that must be called");
    return st;
}

static void write_repeat(rl_grammar *g, uint32_t first)
{
    uint32_t split = rl_g_emit(g, RL_G_SPLIT, 0, 0);
    rl_g_patch(g, split, rl_g_here(g));
    rl_g_literal(g, "\n");
    rl_g_emit(g, RL_G_JUMP, first, 0);
    rl_g_patch_b(g, split, rl_g_here(g));
}

rl_status rl_grammar_tool_calls(const rl_chat_format *f, const rl_chat_request *request, const char *name, bool many,
                                rl_grammar **out, rl_error *err)
{
    rl_schema s = {0};
    rl_status st = rl_schema_create(&s, request->tools, request->n_tools, err);
    if (st != RL_OK) return st;
    rl_grammar *g = rl_g_new(err);
    if (!g) {
        rl_schema_free(&s);
        return RL_ERR_MEMORY;
    }
    rl_g_json r;
    rl_g_json_rules(g, &r);
    g->start = rl_g_here(g);
    write_reasoning(g, f, request);
    uint32_t first = rl_g_here(g);
    st = write_calls(g, &r, f, &s, name, err);
    if (many) write_repeat(g, first);
    rl_g_emit(g, RL_G_RETURN, 0, 0);
    rl_schema_free(&s);
    return rl_g_finish(g, st, out, err);
}

/* Calls instead of what is written next. */
static rl_status write_calls_or(rl_grammar *g, const rl_g_json *r, const rl_chat_format *f, const rl_chat_request *request,
                                rl_error *err)
{
    rl_schema s = {0};
    rl_status st = rl_schema_create(&s, request->tools, request->n_tools, err);
    if (st != RL_OK) return st;
    uint32_t split = rl_g_emit(g, RL_G_SPLIT, 0, 0);
    rl_g_patch(g, split, rl_g_here(g));
    uint32_t first = rl_g_here(g);
    st = write_calls(g, r, f, &s, NULL, err);
    write_repeat(g, first);
    rl_g_emit(g, RL_G_RETURN, 0, 0);
    rl_g_patch_b(g, split, rl_g_here(g));
    rl_schema_free(&s);
    return st;
}

rl_status rl_grammar_answer_json(const rl_chat_format *f, const rl_chat_request *request, const char *schema, size_t n,
                                 rl_grammar **out, rl_error *err)
{
    rl_buffer text = {0};
    if (schema && !rl_json_normalise((rl_slice){schema, n}, &text)) {
        rl_buffer_free(&text);
        return rl_fail(err, RL_ERR_ARGUMENT, "the schema is not valid JSON");
    }
    rl_grammar *g = rl_g_new(err);
    rl_status st = g ? RL_OK : RL_ERR_MEMORY;
    if (g) {
        rl_g_json r;
        rl_g_json_rules(g, &r);
        g->start = rl_g_here(g);
        if (f) write_reasoning(g, f, request);
        st = f && request->n_tools > 0 ? write_calls_or(g, &r, f, request, err) : RL_OK;
        if (st == RL_OK && schema)
            st = rl_g_schema(g, &r, rl_buffer_view(&text), false, err);
        else if (st == RL_OK)
            rl_g_emit(g, RL_G_CALL, r.object, 0);
        rl_g_emit(g, RL_G_RETURN, 0, 0);
        st = rl_g_finish(g, st, out, err);
    }
    rl_buffer_free(&text);
    return st;
}
