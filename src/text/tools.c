/* text/tools: rendering of requests: the system turn with its tools, calls and results in both styles, reasoning in the
 * history.
 *
 * The exact newlines are those of the models' templates (docs/text.md); none of them is for looks. */
#include "text/tools.h"
#include "base/error.h"
#include "text/format.h"
#include "text/json.h"
#include "text/prompt.h"
#include <stdlib.h>
#include <string.h>

typedef struct renderer {
    const rl_chat_format *f;
    const rl_chat_request *r;
    rl_prompt p;
    rl_buffer work; /* canonical JSON of what is being written */
    rl_error *err;
} renderer;

static bool is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static rl_slice trim(rl_slice s)
{
    while (s.size > 0 && is_space(s.data[0]))
        s = (rl_slice){s.data + 1, s.size - 1};
    while (s.size > 0 && is_space(s.data[s.size - 1]))
        s.size--;
    return s;
}

static rl_slice trim_newlines(rl_slice s, bool left, bool right)
{
    while (left && s.size > 0 && s.data[0] == '\n')
        s = (rl_slice){s.data + 1, s.size - 1};
    while (right && s.size > 0 && s.data[s.size - 1] == '\n')
        s.size--;
    return s;
}

/* ---- Tools --------------------------------------------------------------------------------------------------------------- */

static void put_decoded(renderer *x, rl_slice string, bool trimmed)
{
    rl_buffer text = {0};
    rl_json_decode(string, &text);
    rl_slice v = rl_buffer_view(&text);
    rl_prompt_content(&x->p, trimmed ? trim(v) : v);
    x->p.text.failed |= text.failed;
    rl_buffer_free(&text);
}

/* As the templates' string conversion writes it: strings bare, containers as JSON, the three words as Python spells them. */
static void put_value(renderer *x, rl_slice value, bool trimmed)
{
    switch (rl_json_kind(value)) {
    case '"':
        put_decoded(x, value, trimmed);
        return;
    case 't':
        rl_prompt_content(&x->p, rl_slice_of("True"));
        return;
    case 'f':
        rl_prompt_content(&x->p, rl_slice_of("False"));
        return;
    case 'n':
        rl_prompt_content(&x->p, rl_slice_of("None"));
        return;
    default:
        rl_prompt_content(&x->p, value);
    }
}

static bool key_is(rl_slice key, const char *name)
{
    return rl_slice_equals((rl_slice){key.data + 1, key.size - 2}, name);
}

static void put_element(renderer *x, rl_slice key, rl_slice value, bool trimmed)
{
    rl_prompt_frame(&x->p, "\n<");
    put_decoded(x, key, false);
    rl_prompt_frame(&x->p, ">");
    put_value(x, value, trimmed);
    rl_prompt_frame(&x->p, "</");
    put_decoded(x, key, false);
    rl_prompt_frame(&x->p, ">");
}

/* Every member whose name is not in the list (NULL-terminated). */
static void put_others(renderer *x, rl_slice object, const char *const *except)
{
    size_t cursor = 0;
    rl_slice key, value;
    if (rl_json_kind(object) != '{') return;
    while (rl_json_next(object, &cursor, &key, &value)) {
        bool skip = false;
        for (size_t i = 0; except[i] != NULL; i++)
            skip |= key_is(key, except[i]);
        if (!skip) put_element(x, key, value, false);
    }
}

static void put_parameter(renderer *x, rl_slice name, rl_slice schema)
{
    static const char *const named[] = {"name", "type", "description", NULL};
    rl_prompt_frame(&x->p, "\n<parameter>\n<name>");
    put_decoded(x, name, false);
    rl_prompt_frame(&x->p, "</name>");
    rl_slice type = rl_json_member(schema, "type"), description = rl_json_member(schema, "description");
    if (type.size > 0) put_element(x, rl_slice_of("\"type\""), type, false);
    if (description.size > 0) put_element(x, rl_slice_of("\"description\""), description, true);
    put_others(x, schema, named);
    rl_prompt_frame(&x->p, "\n</parameter>");
}

static void put_xml_tool(renderer *x, rl_slice function)
{
    static const char *const of_parameters[] = {"type", "properties", NULL};
    static const char *const of_function[] = {"type", "name", "description", "parameters", NULL};
    rl_slice parameters = rl_json_member(function, "parameters"), description = rl_json_member(function, "description");
    rl_slice properties = rl_json_member(parameters, "properties"), key, value;
    rl_prompt_frame(&x->p, "\n<function>\n<name>");
    put_decoded(x, rl_json_member(function, "name"), false);
    rl_prompt_frame(&x->p, "</name>");
    if (description.size > 0) put_element(x, rl_slice_of("\"description\""), description, true);
    rl_prompt_frame(&x->p, "\n<parameters>");
    size_t cursor = 0;
    while (rl_json_kind(properties) == '{' && rl_json_next(properties, &cursor, &key, &value))
        put_parameter(x, key, value);
    put_others(x, parameters, of_parameters);
    rl_prompt_frame(&x->p, "\n</parameters>");
    put_others(x, function, of_function);
    rl_prompt_frame(&x->p, "\n</function>");
}

static rl_status put_tools(renderer *x)
{
    rl_prompt_content(&x->p, rl_buffer_view(&x->f->before_tools));
    for (size_t i = 0; i < x->r->n_tools; i++) {
        rl_buffer_clear(&x->work);
        if (!rl_json_normalise(x->r->tools[i], &x->work))
            return rl_fail(x->err, RL_ERR_ARGUMENT, "tool %zu is not valid JSON (or nested deeper than %d)", i, RL_JSON_DEPTH);
        rl_slice tool = rl_buffer_view(&x->work), function = rl_json_member(tool, "function");
        if (function.size == 0) function = tool;
        if (rl_json_kind(rl_json_member(function, "name")) != '"')
            return rl_fail(x->err, RL_ERR_ARGUMENT, "tool %zu has no name, expected an object with a function's name", i);
        if (x->f->style == RL_TOOL_XML) {
            put_xml_tool(x, function);
        } else {
            rl_prompt_frame(&x->p, "\n");
            rl_prompt_content(&x->p, tool);
        }
    }
    rl_prompt_content(&x->p, rl_buffer_view(&x->f->after_tools));
    return RL_OK;
}

/* The first turn: system message and tools. *first becomes the index of the first turn that is not in it. */
static rl_status put_system(renderer *x, size_t *first)
{
    bool has_system = x->r->n_turns > 0 && x->r->turns[0].role == RL_ROLE_SYSTEM, has_tools = x->r->n_tools > 0;
    rl_status s = RL_OK;
    *first = has_system;
    if (!has_system && !has_tools) return RL_OK;
    rl_prompt_frame(&x->p, "<|im_start|>system\n");
    if (has_system) {
        rl_prompt_content(&x->p, x->r->turns[0].content);
        if (has_tools && x->f->style == RL_TOOL_JSON) rl_prompt_frame(&x->p, "\n\n");
    } else if (x->f->style == RL_TOOL_XML) {
        rl_prompt_content(&x->p, rl_buffer_view(&x->f->identity));
    }
    if (has_tools) s = put_tools(x);
    rl_prompt_frame(&x->p, "<|im_end|>\n");
    return s;
}

/* ---- Calls and results --------------------------------------------------------------------------------------------------- */

/* Canonical arguments in x->work. */
static rl_status read_arguments(renderer *x, const rl_tool_call *c, size_t turn)
{
    rl_slice text = trim(c->arguments);
    rl_buffer_clear(&x->work);
    if (rl_json_normalise(text.size > 0 ? text : rl_slice_of("{}"), &x->work) && rl_json_kind(rl_buffer_view(&x->work)) == '{')
        return RL_OK;
    char shown[96];
    return rl_fail(x->err, RL_ERR_ARGUMENT, "the arguments of the call of \"%s\" in message %zu are not a JSON object",
                   rl_escape(shown, sizeof shown, c->name.data, c->name.size), turn);
}

static rl_status put_json_calls(renderer *x, const rl_chat_turn *m, size_t turn, bool after_content)
{
    for (size_t i = 0; i < m->n_calls; i++) {
        rl_status s = read_arguments(x, &m->calls[i], turn);
        if (s != RL_OK) return s;
        rl_prompt_frame(&x->p, i > 0 || after_content ? "\n<tool_call>\n{\"name\": \"" : "<tool_call>\n{\"name\": \"");
        rl_prompt_content(&x->p, m->calls[i].name);
        rl_prompt_frame(&x->p, "\", \"arguments\": ");
        rl_prompt_content(&x->p, rl_buffer_view(&x->work));
        rl_prompt_frame(&x->p, "}\n</tool_call>");
    }
    return RL_OK;
}

static rl_status put_xml_calls(renderer *x, const rl_chat_turn *m, size_t turn)
{
    for (size_t i = 0; i < m->n_calls; i++) {
        rl_status s = read_arguments(x, &m->calls[i], turn);
        if (s != RL_OK) return s;
        rl_prompt_frame(&x->p, "\n<tool_call>\n<function=");
        rl_prompt_content(&x->p, m->calls[i].name);
        rl_prompt_frame(&x->p, ">\n");
        size_t cursor = 0;
        rl_slice key, value;
        while (rl_json_next(rl_buffer_view(&x->work), &cursor, &key, &value)) {
            rl_prompt_frame(&x->p, "<parameter=");
            put_decoded(x, key, false);
            rl_prompt_frame(&x->p, ">\n");
            put_value(x, value, false);
            rl_prompt_frame(&x->p, "\n</parameter>\n");
        }
        rl_prompt_frame(&x->p, "</function>\n</tool_call>");
    }
    return RL_OK;
}

static void put_result(renderer *x, size_t i)
{
    const rl_chat_turn *m = x->r->turns;
    bool first = i == 0 || m[i - 1].role != RL_ROLE_TOOL, last = i + 1 == x->r->n_turns || m[i + 1].role != RL_ROLE_TOOL;
    bool after = x->f->results_break_after;
    if (first) rl_prompt_frame(&x->p, after ? "<|im_start|>user\n" : "<|im_start|>user");
    rl_prompt_frame(&x->p, after ? "<tool_response>\n" : "\n<tool_response>\n");
    rl_prompt_content(&x->p, m[i].content);
    rl_prompt_frame(&x->p, after ? "\n</tool_response>\n" : "\n</tool_response>");
    if (last) rl_prompt_frame(&x->p, "<|im_end|>\n");
}

/* ---- Assistant turns ----------------------------------------------------------------------------------------------------- */

static bool is_wrapped_result(rl_slice s)
{
    static const char end[] = "</tool_response>";
    return rl_slice_starts(s, "<tool_response>") && s.size >= sizeof end - 1 &&
           memcmp(s.data + s.size - (sizeof end - 1), end, sizeof end - 1) == 0;
}

/* Index of the last question of the user: what comes after it is the running tool loop, whose reasoning is kept. */
static size_t last_question(const rl_chat_request *r)
{
    for (size_t i = r->n_turns; i-- > 0;)
        if (r->turns[i].role == RL_ROLE_USER && !is_wrapped_result(r->turns[i].content)) return i;
    return r->n_turns > 0 ? r->n_turns - 1 : 0;
}

/* Cuts reasoning that a client left in the content off from it. */
static void split_reasoning(const rl_chat_turn *m, rl_slice *reasoning, rl_slice *content)
{
    static const char open[] = "<think>", close[] = "</think>";
    *content = m->content;
    *reasoning = m->reasoning;
    if (m->reasoning.data != NULL) return;
    size_t first = rl_slice_find(m->content, 0, close);
    if (first == SIZE_MAX) return;
    size_t last = first, from = 0;
    for (size_t at; (at = rl_slice_find(m->content, last + 1, close)) != SIZE_MAX;)
        last = at;
    rl_slice before = {m->content.data, first};
    for (size_t at; (at = rl_slice_find(before, from, open)) != SIZE_MAX;)
        from = at + sizeof open - 1;
    last += sizeof close - 1;
    *reasoning = (rl_slice){before.data + from, before.size - from};
    *content = trim_newlines((rl_slice){m->content.data + last, m->content.size - last}, true, false);
}

static rl_status put_assistant(renderer *x, size_t i, size_t question)
{
    const rl_chat_turn *m = &x->r->turns[i];
    rl_slice reasoning = {NULL, 0}, content = m->content;
    bool think = false;
    if (x->f->strips_reasoning) {
        split_reasoning(m, &reasoning, &content);
        reasoning = trim_newlines(reasoning, true, true);
        think = i > question && (i + 1 == x->r->n_turns || reasoning.size > 0);
    }
    bool exact = m->exact.data != NULL, xml_calls = x->f->style == RL_TOOL_XML && m->n_calls > 0 && !exact;
    if (exact) content = m->exact;
    if (xml_calls) content = trim(content);
    rl_prompt_frame(&x->p, "<|im_start|>assistant");
    if (think) {
        rl_prompt_frame(&x->p, "\n<think>\n");
        rl_prompt_content(&x->p, reasoning);
        rl_prompt_frame(&x->p, "\n</think>\n\n");
        rl_prompt_content(&x->p, trim_newlines(content, true, false));
    } else if (!xml_calls || content.size > 0) {
        rl_prompt_frame(&x->p, "\n");
        rl_prompt_content(&x->p, content);
    }
    if (xml_calls && content.size > 0) rl_prompt_frame(&x->p, "\n");
    rl_status s = exact ? RL_OK : xml_calls ? put_xml_calls(x, m, i) : put_json_calls(x, m, i, content.size > 0);
    rl_prompt_frame(&x->p, "<|im_end|>\n");
    return s;
}

static rl_status put_turn(renderer *x, size_t i, size_t question)
{
    const rl_chat_turn *m = &x->r->turns[i];
    switch (m->role) {
    case RL_ROLE_ASSISTANT:
        return put_assistant(x, i, question);
    case RL_ROLE_TOOL:
        put_result(x, i);
        return RL_OK;
    case RL_ROLE_SYSTEM:
    case RL_ROLE_USER:
        rl_prompt_frame(&x->p, m->role == RL_ROLE_USER ? "<|im_start|>user\n" : "<|im_start|>system\n");
        rl_prompt_content(&x->p, m->content);
        rl_prompt_frame(&x->p, "<|im_end|>\n");
        return RL_OK;
    }
    return rl_fail(x->err, RL_ERR_ARGUMENT, "message %zu has role %d, expected 0 to %d", i, (int)m->role, RL_ROLE_TOOL);
}

static void put_generation(renderer *x)
{
    rl_prompt_frame(&x->p, "<|im_start|>assistant\n");
    if (x->r->no_thinking && x->f->can_skip_thinking)
        rl_prompt_frame(&x->p, "<think>\n\n</think>\n\n");
    else if (x->f->thinking == RL_THINKING_ALWAYS)
        rl_prompt_frame(&x->p, "<think>\n");
}

/* On success the caller owns *out. */
static rl_status render(const rl_chat_format *f, const rl_chat_request *r, rl_prompt *out, rl_error *err)
{
    renderer x = {.f = f, .r = r, .err = err};
    size_t first = 0, question = last_question(r);
    rl_prompt_frame(&x.p, "");
    rl_status s = put_system(&x, &first);
    for (size_t i = first; s == RL_OK && i < r->n_turns; i++)
        s = put_turn(&x, i, question);
    if (s == RL_OK && r->add_generation) put_generation(&x);
    if (s == RL_OK && x.work.failed) s = rl_fail(err, RL_ERR_MEMORY, "no memory for the JSON of a request");
    if (s == RL_OK) s = rl_prompt_check(&x.p, err);
    rl_buffer_free(&x.work);
    if (s == RL_OK)
        *out = x.p;
    else
        rl_prompt_free(&x.p);
    return s;
}

rl_status rl_chat_request_render(const rl_chat_format *f, const rl_chat_request *r, char **text, size_t *size, rl_error *err)
{
    rl_prompt p;
    rl_status s = render(f, r, &p, err);
    if (s == RL_OK) rl_prompt_take_text(&p, text, size);
    return s;
}

rl_status rl_chat_request_tokenize(const rl_tokenizer *t, const rl_chat_format *f, const rl_chat_request *r, int32_t **ids,
                                   size_t *n_ids, rl_error *err)
{
    if (rl_token_im_start(t) < 0 || rl_token_im_end(t) < 0)
        return rl_fail(err, RL_ERR_UNSUPPORTED, "the vocabulary has no <|im_start|> and <|im_end|>: this model cannot chat");
    rl_prompt p;
    rl_status s = render(f, r, &p, err);
    if (s != RL_OK) return s;
    s = rl_prompt_tokenize(t, &p, ids, n_ids, err);
    rl_prompt_free(&p);
    return s;
}
