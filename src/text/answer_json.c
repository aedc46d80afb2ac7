/* text/answer_json: calls in the JSON style.
 *
 * The usual shape (name first, then arguments that are an object) is passed on while it is written. Any other is read as a
 * whole and judged then: it becomes a call or stays text. */
#include "text/answer.h"
#include <string.h>

static bool in_string(const rl_json_stream *j)
{
    return j->state == RL_JSON_STRING || j->state == RL_JSON_ESCAPE || j->state == RL_JSON_HEX;
}

/* ---- The head ------------------------------------------------------------------------------------------------------------ */

/* Skips white space and one fixed token. */
static rl_match take(const parser *p, rl_slice text, size_t *i, const char *token)
{
    *i = rl_answer_skip_space(text, *i);
    rl_match m = rl_answer_match(p, rl_slice_from(text, *i), token);
    if (m == RL_MATCH_YES) *i += strlen(token);
    return m;
}

/* The string that starts at *i, decoded. */
static rl_match take_string(const parser *p, rl_slice text, size_t *i, rl_buffer *out)
{
    *i = rl_answer_skip_space(text, *i);
    size_t end = *i;
    if (end < text.size && text.data[end] != '"') return RL_MATCH_NO;
    for (end++; end < text.size && text.data[end] != '"'; end++)
        if (text.data[end] == '\\') end++;
    if (end >= text.size) return p->final ? RL_MATCH_NO : RL_MATCH_PART;
    rl_buffer canonical = {0};
    bool good = rl_json_normalise((rl_slice){text.data + *i, end + 1 - *i}, &canonical);
    if (good) rl_json_decode(rl_buffer_view(&canonical), out);
    rl_buffer_free(&canonical);
    *i = end + 1;
    return good && out->size > 0 ? RL_MATCH_YES : RL_MATCH_NO;
}

/* Only the first RL_ANSWER_HEAD_MAX bytes decide, so that waiting for more has an end. */
rl_match rl_answer_json_head(const parser *p, rl_slice text, rl_buffer *name, size_t *used, rl_answer_state *state)
{
    bool cut = text.size >= RL_ANSWER_HEAD_MAX;
    if (cut) text.size = RL_ANSWER_HEAD_MAX;
    size_t i = 0;
    rl_match m = take(p, text, &i, "{");
    if (m == RL_MATCH_YES) m = take(p, text, &i, "\"name\"");
    if (m == RL_MATCH_YES) m = take(p, text, &i, ":");
    if (m == RL_MATCH_YES) m = take_string(p, text, &i, name);
    if (m == RL_MATCH_YES) m = take(p, text, &i, ",");
    if (m == RL_MATCH_YES) m = take(p, text, &i, "\"arguments\"");
    if (m == RL_MATCH_YES) m = take(p, text, &i, ":");
    if (m == RL_MATCH_YES) m = take(p, text, &i, "{");
    if (m == RL_MATCH_PART && !cut) return m;
    if (m == RL_MATCH_YES) {
        *state = RL_AT_JSON_ARGS;
        *used = i - 1; /* the brace belongs to the arguments */
        return m;
    }
    *state = RL_AT_JSON_OBJECT;
    return p->n_given_up < RL_ANSWER_RETRY_MAX ? RL_MATCH_YES : RL_MATCH_NO;
}

/* ---- Arguments as they come ---------------------------------------------------------------------------------------------- */

/* A tag, or the end of the text, where JSON should go on: the reading stops. True when all that was begun is complete but for
 * closing brackets. */
static bool stops_complete(parser *p, bool tag, rl_buffer *out)
{
    /* A number before a tag is whole, one at the end of the text may have been cut. */
    if (p->json.state == RL_JSON_SCALAR && tag) rl_json_push(&p->json, ' ', out);
    return p->json.state == RL_JSON_NEXT;
}

bool rl_answer_json_args(parser *p)
{
    rl_slice rest = rl_answer_rest(p);
    size_t i = 0;
    bool tag = false;
    while (i < rest.size && p->json.state != RL_JSON_DONE && p->json.state != RL_JSON_BAD) {
        tag = rest.data[i] == '<' && !in_string(&p->json);
        if (tag) break;
        rl_json_push(&p->json, rest.data[i++], &p->out);
    }
    p->at += i;
    if (p->json.state == RL_JSON_DONE) {
        rl_answer_flush_arguments(p);
        p->state = RL_AT_JSON_TAIL;
        return true;
    }
    if (p->json.state != RL_JSON_BAD && !tag && !p->final) {
        rl_answer_flush_arguments(p);
        return false;
    }
    bool complete = p->json.state != RL_JSON_BAD && stops_complete(p, tag, &p->out);
    rl_json_close(&p->json, &p->out);
    rl_answer_end_call(p, complete ? RL_CALL_UNCLOSED : RL_CALL_DAMAGED, RL_AT_SKIP);
    return true;
}

bool rl_answer_json_tail(parser *p)
{
    static const char close[] = "</tool_call>";
    rl_slice rest = rl_answer_rest(p);
    size_t i = 0;
    while (i < rest.size && (rl_answer_is_space(rest.data[i]) || rest.data[i] == '}'))
        i++;
    p->at += i;
    rest = rl_slice_from(rest, i);
    if (rest.size == 0 && !p->final) return false;
    rl_match m = rl_answer_match(p, rest, close);
    if (m == RL_MATCH_PART) return false;
    if (m == RL_MATCH_YES) {
        p->at += sizeof close - 1;
        rl_answer_end_call(p, RL_CALL_WHOLE, RL_AT_CONTENT);
    } else if (rest.size > 0 && rest.data[0] == ',') { /* members behind the arguments */
        rl_answer_end_call(p, RL_CALL_WHOLE, RL_AT_SKIP);
    } else {
        rl_answer_end_call(p, RL_CALL_UNCLOSED, RL_AT_CONTENT);
    }
    return true;
}

/* ---- Whole objects ------------------------------------------------------------------------------------------------------- */

/* The arguments of the object that was read: an object, a string that holds one, or none. */
static bool find_arguments(rl_slice object, rl_buffer *out)
{
    rl_slice a = rl_json_member(object, "arguments");
    if (a.size == 0) a = rl_json_member(object, "parameters");
    if (a.size == 0) {
        rl_buffer_text(out, "{}");
        return true;
    }
    if (rl_json_kind(a) == '"') {
        rl_buffer text = {0};
        rl_json_decode(a, &text);
        bool good = rl_json_normalise(rl_buffer_view(&text), out) && rl_json_kind(rl_buffer_view(out)) == '{';
        rl_buffer_free(&text);
        return good;
    }
    rl_buffer_slice(out, a);
    return rl_json_kind(a) == '{';
}

/* Makes the object that was read a call, if it is one. */
static bool announce(parser *p)
{
    rl_slice object = rl_buffer_view(&p->object), name = rl_json_member(object, "name");
    rl_buffer decoded = {0}, arguments = {0};
    bool good = rl_json_kind(name) == '"' && name.size > 2 && find_arguments(object, &arguments);
    if (good) {
        rl_slice rest = rl_answer_rest(p);
        rl_json_decode(name, &decoded);
        rl_answer_space_before_call(p, (rl_slice){rest.data, rl_answer_skip_space(rest, 0)});
        rl_answer_start_call(p, rl_buffer_view(&decoded));
        rl_buffer_slice(&p->out, rl_buffer_view(&arguments));
        rl_answer_flush_arguments(p);
    }
    rl_buffer_free(&decoded);
    rl_buffer_free(&arguments);
    return good;
}

bool rl_answer_json_object(parser *p)
{
    rl_slice in = rl_buffer_view(&p->in);
    bool tag = false;
    while (p->object_at < in.size && p->json.state != RL_JSON_DONE && p->json.state != RL_JSON_BAD) {
        tag = in.data[p->object_at] == '<' && !in_string(&p->json);
        if (tag) break;
        rl_json_push(&p->json, in.data[p->object_at++], &p->object);
    }
    bool done = p->json.state == RL_JSON_DONE;
    if (!done && p->json.state != RL_JSON_BAD) {
        if (!tag && !p->final) return false;
        done = stops_complete(p, tag, &p->object);
        if (done) rl_json_close(&p->json, &p->object);
    }
    if (done && announce(p)) {
        p->at = p->object_at;
        p->state = RL_AT_JSON_TAIL;
        return true;
    }
    /* No call: the opening tag is text, and what follows is looked at again. */
    rl_slice rest = rl_answer_rest(p);
    p->n_given_up++;
    p->state = RL_AT_CONTENT;
    rl_answer_content(p, rl_answer_skip_space(rest, 0) + strlen("<tool_call>"));
    return true;
}
