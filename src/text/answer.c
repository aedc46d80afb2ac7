/* text/answer: from generated text to events: reasoning, content, and where calls begin.
 *
 * Text is passed on as soon as it cannot become part of a tag. The parser is a machine of small steps over the text not yet
 * understood; a step decides only when what follows cannot change the decision, which is why the events do not depend on how
 * the text was cut. A call is announced when its name is known and its arguments have begun; what does not get that far stays
 * content. */
#include "text/answer.h"
#include "base/error.h"
#include "base/mem.h"
#include <stdlib.h>
#include <string.h>

/* ---- Input and events ---------------------------------------------------------------------------------------------------- */

void rl_answer_emit(parser *p, rl_answer_kind kind, rl_slice text)
{
    bool text_kind = kind == RL_ANSWER_CONTENT || kind == RL_ANSWER_REASONING || kind == RL_ANSWER_CALL_ARGUMENTS;
    if (p->status != RL_OK || (text_kind && text.size == 0)) return;
    rl_answer_event e = {.kind = kind, .text = text};
    if (kind != RL_ANSWER_CONTENT && kind != RL_ANSWER_REASONING) e.call = p->n_calls - 1;
    if (!p->fn(p->ctx, &e)) p->status = RL_ERR_CANCELLED;
}

void rl_answer_start_call(parser *p, rl_slice name)
{
    p->n_calls++;
    p->damaged = false;
    p->any_parameter = false;
    p->given = 0;
    rl_buffer_clear(&p->out);
    rl_answer_emit(p, RL_ANSWER_CALL_START, name);
}

void rl_answer_flush_arguments(parser *p)
{
    if (p->out.failed) p->status = RL_ERR_MEMORY;
    rl_answer_emit(p, RL_ANSWER_CALL_ARGUMENTS, rl_buffer_view(&p->out));
    rl_buffer_clear(&p->out);
}

void rl_answer_end_call(parser *p, rl_call_end end, rl_answer_state next)
{
    rl_answer_flush_arguments(p);
    p->after_call = true;
    p->state = next;
    if (p->status != RL_OK) return;
    rl_answer_event e = {.kind = RL_ANSWER_CALL_END, .text = {"", 0}, .call = p->n_calls - 1, .end = end};
    if (!p->fn(p->ctx, &e)) p->status = RL_ERR_CANCELLED;
}

rl_match rl_answer_match(const parser *p, rl_slice text, const char *tag)
{
    size_t n = strlen(tag), have = text.size < n ? text.size : n;
    if (memcmp(text.data, tag, have) != 0) return RL_MATCH_NO;
    if (have == n) return RL_MATCH_YES;
    return p->final ? RL_MATCH_NO : RL_MATCH_PART;
}

rl_match rl_answer_name(const parser *p, rl_slice text, size_t *end)
{
    for (size_t i = 0; i < text.size && i <= RL_ANSWER_NAME_MAX; i++) {
        char c = text.data[i];
        if (c == '>') {
            *end = i;
            return i > 0 ? RL_MATCH_YES : RL_MATCH_NO;
        }
        if (c == '<' || c == '\n') return RL_MATCH_NO;
    }
    return text.size > RL_ANSWER_NAME_MAX || p->final ? RL_MATCH_NO : RL_MATCH_PART;
}

/* ---- Reasoning ----------------------------------------------------------------------------------------------------------- */

static void skip_newlines(parser *p)
{
    rl_slice rest = rl_answer_rest(p);
    size_t i = 0;
    while (i < rest.size && rest.data[i] == '\n')
        i++;
    p->at += i;
    if (i < rest.size) p->skip_newlines = false;
}

static bool step_start(parser *p)
{
    rl_slice rest = rl_answer_rest(p);
    size_t i = rl_answer_skip_space(rest, 0);
    bool opened = p->thinking == RL_THINKING_ALWAYS;
    if (rest.size - i == 0 && !p->final && i <= RL_ANSWER_SPACE_MAX) return false;
    rl_match m = i > RL_ANSWER_SPACE_MAX ? RL_MATCH_NO : rl_answer_match(p, rl_slice_from(rest, i), "<think>");
    if (m == RL_MATCH_PART) return false;
    if (m == RL_MATCH_YES) p->at += i + strlen("<think>");
    p->state = m == RL_MATCH_YES || opened ? RL_AT_REASONING : RL_AT_CONTENT;
    p->skip_newlines = p->state == RL_AT_REASONING;
    return true;
}

/* Reasoning ends at the first closing tag; newlines around it belong to the frame. */
static bool step_reasoning(parser *p)
{
    if (p->skip_newlines) skip_newlines(p);
    rl_slice rest = rl_answer_rest(p);
    size_t end = 0;
    rl_match m = RL_MATCH_NO;
    for (end = 0; end < rest.size; end++) {
        if (rest.data[end] == '<') m = rl_answer_match(p, rl_slice_from(rest, end), "</think>");
        if (m != RL_MATCH_NO) break;
    }
    size_t shown = end;
    while (shown > 0 && rest.data[shown - 1] == '\n' && end - shown < RL_ANSWER_SPACE_MAX)
        shown--;
    rl_answer_emit(p, RL_ANSWER_REASONING, (rl_slice){rest.data, shown});
    p->at += shown;
    if (m != RL_MATCH_YES) {
        if (p->final) p->at += rest.size - shown;
        return false;
    }
    p->at += end - shown + strlen("</think>");
    p->state = RL_AT_CONTENT;
    p->skip_newlines = true;
    return true;
}

/* ---- Content ------------------------------------------------------------------------------------------------------------- */

/* White space between content and a call: one newline is the frame's in the JSON style; the XML style trims. Between two calls
 * none of it is content. */
void rl_answer_space_before_call(parser *p, rl_slice space)
{
    if (p->after_call || p->style == RL_TOOL_XML) return;
    if (space.size > 0 && space.data[space.size - 1] == '\n') space.size--;
    rl_answer_emit(p, RL_ANSWER_CONTENT, space);
}

/* <function=NAME> at the start of text; `declared`: only names of the request count. */
static rl_match match_function(const parser *p, rl_slice text, bool declared, size_t *used)
{
    static const char tag[] = "<function=";
    size_t end = 0;
    rl_match m = rl_answer_match(p, text, tag);
    if (m != RL_MATCH_YES) return m;
    text = rl_slice_from(text, sizeof tag - 1);
    m = rl_answer_name(p, text, &end);
    if (m == RL_MATCH_YES && declared && rl_schema_find(&p->schema, (rl_slice){text.data, end}) == NULL) return RL_MATCH_NO;
    *used = sizeof tag - 1 + end + 1;
    return m;
}

static void begin_xml_call(parser *p, rl_slice tag)
{
    size_t skip = strlen("<function=");
    rl_slice name = {tag.data + skip, tag.size - skip - 1};
    p->tool = rl_schema_find(&p->schema, name);
    rl_answer_start_call(p, name);
    p->state = RL_AT_XML_BODY;
}

/* A call at the start of text, behind `space` bytes of white space that come before it in the input. YES: it was begun. */
static rl_match try_call(parser *p, rl_slice text, rl_slice space)
{
    static const char open[] = "<tool_call>";
    size_t used = 0;
    rl_match m = match_function(p, text, true, &used);
    if (m == RL_MATCH_YES) {
        rl_answer_space_before_call(p, space);
        begin_xml_call(p, (rl_slice){text.data, used});
        p->at += space.size + used;
        return m;
    }
    if (m == RL_MATCH_PART) return m;
    m = rl_answer_match(p, text, open);
    if (m != RL_MATCH_YES) return m;
    size_t i = rl_answer_skip_space(text, sizeof open - 1);
    if (i > sizeof open - 1 + RL_ANSWER_SPACE_MAX) return RL_MATCH_NO;
    if (i == text.size) return p->final ? RL_MATCH_NO : RL_MATCH_PART;
    if (text.data[i] == '{') {
        rl_buffer name = {0};
        rl_answer_state state = RL_AT_JSON_OBJECT;
        m = rl_answer_json_head(p, rl_slice_from(text, i), &name, &used, &state);
        if (m == RL_MATCH_YES && state == RL_AT_JSON_ARGS) {
            rl_answer_space_before_call(p, space);
            rl_answer_start_call(p, rl_buffer_view(&name));
            p->at += space.size + i + used;
        } else if (m == RL_MATCH_YES) {
            p->object_from = p->object_at = p->at + space.size + i;
        }
        rl_buffer_free(&name);
        if (m == RL_MATCH_YES) {
            rl_json_free(&p->json);
            p->json = (rl_json_stream){.lenient = true};
            rl_buffer_clear(&p->object);
            p->state = state;
        }
        return m;
    }
    m = match_function(p, rl_slice_from(text, i), false, &used);
    if (m == RL_MATCH_YES) {
        rl_answer_space_before_call(p, space);
        begin_xml_call(p, (rl_slice){text.data + i, used});
        p->at += space.size + i + used;
    }
    return m;
}

void rl_answer_content(parser *p, size_t n)
{
    if (n == 0) return;
    rl_answer_emit(p, RL_ANSWER_CONTENT, (rl_slice){rl_answer_rest(p).data, n});
    p->at += n;
    p->after_call = false;
}

/* Start of the white space that ends at `end`, at most RL_ANSWER_SPACE_MAX bytes of it. */
static size_t space_before(rl_slice s, size_t end)
{
    size_t i = end;
    while (i > 0 && end - i < RL_ANSWER_SPACE_MAX && rl_answer_is_space(s.data[i - 1]))
        i--;
    return i;
}

static bool step_content(parser *p)
{
    static const char close[] = "</tool_call>";
    if (p->skip_newlines) skip_newlines(p);
    rl_slice rest = rl_answer_rest(p);
    if (p->schema.n == 0) {
        rl_answer_content(p, rest.size);
        return false;
    }
    for (size_t i = 0; i < rest.size; i++) {
        if (rest.data[i] != '<') continue;
        size_t space = space_before(rest, i);
        if (p->after_call && space == 0) { /* a closing tag too many */
            rl_match m = rl_answer_match(p, rl_slice_from(rest, i), close);
            if (m == RL_MATCH_PART) return false;
            if (m == RL_MATCH_YES) {
                p->at += i + sizeof close - 1;
                return true;
            }
        }
        /* What stands before the white space is content whatever comes. */
        if (space > 0) {
            rl_answer_content(p, space);
            return true;
        }
        rl_match m = try_call(p, rl_slice_from(rest, i), (rl_slice){rest.data, i});
        if (m == RL_MATCH_YES) return true;
        if (m == RL_MATCH_PART) return false;
        rl_answer_content(p, i + 1);
        return true;
    }
    size_t held = p->final ? rest.size : space_before(rest, rest.size);
    if (p->final && p->after_call && rl_answer_skip_space(rest, 0) == rest.size) {
        p->at += rest.size;
        return false;
    }
    rl_answer_content(p, held);
    return false;
}

/* ---- The machine -----------------------------------------------------------------------------------------------------------
 */

/* Remains of a damaged call: everything up to its closing tag, or to the next call. */
static bool step_skip(parser *p)
{
    static const char close[] = "</tool_call>";
    rl_slice rest = rl_answer_rest(p);
    for (size_t i = 0; i < rest.size; i++) {
        if (rest.data[i] != '<') continue;
        rl_match end = rl_answer_match(p, rl_slice_from(rest, i), close),
                 next = rl_answer_match(p, rl_slice_from(rest, i), "<tool_call>");
        if (end == RL_MATCH_NO && next == RL_MATCH_NO) continue;
        p->at += i + (end == RL_MATCH_YES ? sizeof close - 1 : 0);
        if (end == RL_MATCH_PART || next == RL_MATCH_PART) return false;
        p->state = RL_AT_CONTENT;
        return true;
    }
    p->at += rest.size;
    return false;
}

static bool step(parser *p)
{
    switch (p->state) {
    case RL_AT_START:
        return step_start(p);
    case RL_AT_REASONING:
        return step_reasoning(p);
    case RL_AT_CONTENT:
        return step_content(p);
    case RL_AT_JSON_ARGS:
        return rl_answer_json_args(p);
    case RL_AT_JSON_OBJECT:
        return rl_answer_json_object(p);
    case RL_AT_JSON_TAIL:
        return rl_answer_json_tail(p);
    case RL_AT_XML_BODY:
        return rl_answer_xml_body(p);
    case RL_AT_XML_VALUE:
        return rl_answer_xml_value(p);
    case RL_AT_XML_TAIL:
        return rl_answer_xml_tail(p);
    case RL_AT_SKIP:
        return step_skip(p);
    }
    return false;
}

static rl_status run(parser *p, rl_error *err)
{
    while (p->status == RL_OK && step(p)) {
    }
    if (p->in.failed || p->value.failed || p->object.failed || p->json.ahead.failed || p->json.scalar.failed)
        p->status = RL_ERR_MEMORY;
    if (p->state != RL_AT_JSON_OBJECT) { /* its offsets are into the input */
        rl_buffer_drop_front(&p->in, p->at);
        p->at = 0;
    }
    if (p->status == RL_ERR_CANCELLED) return rl_fail(err, RL_ERR_CANCELLED, "the reader of the answer asked to stop");
    if (p->status != RL_OK) return rl_fail(err, p->status, "no memory to read an answer");
    return RL_OK;
}

rl_status rl_answer_parser_create(const rl_chat_format *f, const rl_chat_request *r, rl_answer_fn fn, void *ctx,
                                  rl_answer_parser **out, rl_error *err)
{
    parser *p = rl_calloc(1, sizeof *p);
    if (p == NULL) return rl_fail(err, RL_ERR_MEMORY, "no memory to read an answer");
    rl_status s = rl_schema_create(&p->schema, r->tools, r->n_tools, err);
    if (s != RL_OK) {
        free(p);
        return s;
    }
    p->style = rl_chat_format_style(f);
    bool silent = r->no_thinking && rl_chat_format_can_skip_thinking(f);
    p->thinking = silent ? RL_THINKING_NEVER : rl_chat_format_thinking(f);
    p->state = p->thinking == RL_THINKING_NEVER ? RL_AT_CONTENT : RL_AT_START;
    p->fn = fn;
    p->ctx = ctx;
    *out = p;
    return RL_OK;
}

rl_status rl_answer_parser_push(rl_answer_parser *p, const char *text, size_t n, rl_error *err)
{
    char clean[3 * 256 + 12];
    if (p->final) return rl_fail(err, RL_ERR_ARGUMENT, "text was given to an answer that is finished");
    for (size_t i = 0; i < n; i += 256) {
        size_t part = n - i < 256 ? n - i : 256;
        rl_buffer_put(&p->in, clean, rl_utf8_stream_push(&p->utf8, text + i, part, clean));
    }
    return run(p, err);
}

rl_status rl_answer_parser_finish(rl_answer_parser *p, rl_error *err)
{
    char clean[12];
    if (p->final) return RL_OK;
    rl_buffer_put(&p->in, clean, rl_utf8_stream_finish(&p->utf8, clean));
    p->final = true;
    return run(p, err);
}

size_t rl_answer_parser_calls(const rl_answer_parser *p)
{
    return p->n_calls;
}

void rl_answer_parser_free(rl_answer_parser *p)
{
    if (p == NULL) return;
    rl_schema_free(&p->schema);
    rl_json_free(&p->json);
    rl_buffer_free(&p->in);
    rl_buffer_free(&p->out);
    rl_buffer_free(&p->object);
    rl_buffer_free(&p->value);
    free(p);
}
