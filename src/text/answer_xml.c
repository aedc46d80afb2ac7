/* text/answer_xml: calls in the XML style: untyped values between tags, made into JSON by the declared types.
 *
 * Values of type string are passed on while they are written, the others when they are whole. A value may contain anything that
 * looks like a tag; it ends at the first </parameter>, and, because models forget that one, before the closing tags of the
 * call and before a line that opens another declared parameter that was not given yet. */
#include "text/answer.h"
#include <string.h>

static void finish_arguments(parser *p)
{
    rl_buffer_text(&p->out, p->any_parameter ? "}" : "{}");
}

static void end(parser *p, rl_call_end how)
{
    rl_answer_end_call(p, p->damaged ? RL_CALL_DAMAGED : how, RL_AT_CONTENT);
}

/* ---- Between parameters ---------------------------------------------------------------------------------------------------
 */

static void begin_value(parser *p, rl_slice key)
{
    size_t index = rl_schema_parameter(p->tool, key, &p->types);
    if (index < 64) p->given |= UINT64_C(1) << index;
    rl_buffer_text(&p->out, p->any_parameter ? ", \"" : "{\"");
    rl_json_escape(key, &p->out);
    rl_buffer_text(&p->out, p->types == RL_SCHEMA_STRING ? "\": \"" : "\": ");
    p->any_parameter = true;
    p->value_begun = false;
    p->value_empty = true;
    rl_buffer_clear(&p->value);
    p->state = RL_AT_XML_VALUE;
}

/* <parameter=KEY>, or what is left of one: a parameter without a name is dropped. */
static rl_match open_parameter(parser *p, rl_slice rest)
{
    static const char tag[] = "<parameter=";
    size_t stop = 0;
    rl_match m = rl_answer_match(p, rest, tag);
    if (m != RL_MATCH_YES) return m;
    rl_slice name = rl_slice_from(rest, sizeof tag - 1);
    m = rl_answer_name(p, name, &stop);
    if (m == RL_MATCH_PART) return m;
    if (m == RL_MATCH_YES) {
        begin_value(p, (rl_slice){name.data, stop});
        p->at += sizeof tag - 1 + stop + 1;
    } else {
        p->damaged = true;
        p->at += sizeof tag - 1;
    }
    return RL_MATCH_YES;
}

bool rl_answer_xml_body(parser *p)
{
    static const char *const tags[] = {"</parameter>", "</function>", "</tool_call>", "<tool_call>", "<function="};
    rl_slice rest = rl_answer_rest(p);
    size_t i = rl_answer_skip_space(rest, 0);
    p->at += i;
    rest = rl_slice_from(rest, i);
    if (rest.size == 0) {
        if (!p->final) return false;
        finish_arguments(p);
        end(p, RL_CALL_UNCLOSED);
        return true;
    }
    rl_match m = open_parameter(p, rest);
    if (m == RL_MATCH_YES) return true;
    bool part = m == RL_MATCH_PART;
    size_t which = 0;
    while (which < 5 && (m = rl_answer_match(p, rest, tags[which])) != RL_MATCH_YES) {
        part |= m == RL_MATCH_PART;
        which++;
    }
    if (which == 5 && part) return false;
    if (which == 5) { /* text that belongs to nothing */
        const char *next = memchr(rest.data + 1, '<', rest.size - 1);
        p->damaged = true;
        p->at += next != NULL ? (size_t)(next - rest.data) : rest.size;
        return true;
    }
    if (which < 3) p->at += strlen(tags[which]);
    if (which == 0) return true; /* closed twice */
    finish_arguments(p);
    if (which == 1)
        p->state = RL_AT_XML_TAIL;
    else
        end(p, which == 2 ? RL_CALL_WHOLE : RL_CALL_UNCLOSED);
    return true;
}

bool rl_answer_xml_tail(parser *p)
{
    static const char twice[] = "</function>", close[] = "</tool_call>";
    rl_slice rest = rl_answer_rest(p);
    size_t i = rl_answer_skip_space(rest, 0);
    p->at += i;
    rest = rl_slice_from(rest, i);
    if (rest.size == 0 && !p->final) return false;
    rl_match again = rl_answer_match(p, rest, twice), closed = rl_answer_match(p, rest, close);
    if (again == RL_MATCH_PART || closed == RL_MATCH_PART) return false;
    if (again == RL_MATCH_YES) {
        p->at += sizeof twice - 1;
        return true;
    }
    if (closed == RL_MATCH_YES) p->at += sizeof close - 1;
    end(p, RL_CALL_WHOLE);
    return true;
}

/* ---- Values ----------------------------------------------------------------------------------------------------------------
 */

static void take(parser *p, rl_slice text)
{
    if (text.size == 0) return;
    p->value_empty = false;
    p->at += text.size;
    if (p->types == RL_SCHEMA_STRING)
        rl_json_escape(text, &p->out);
    else
        rl_buffer_slice(&p->value, text);
}

static void end_value(parser *p)
{
    if (p->types == RL_SCHEMA_STRING)
        rl_buffer_char(&p->out, '"');
    else
        rl_schema_convert(p->types, rl_buffer_view(&p->value), &p->out);
    rl_answer_flush_arguments(p);
    p->state = RL_AT_XML_BODY;
}

/* </function> followed by </tool_call> or the end of the answer. */
static rl_match closes_call(const parser *p, rl_slice text)
{
    static const char tag[] = "</function>";
    rl_match m = rl_answer_match(p, text, tag);
    if (m != RL_MATCH_YES) return m;
    size_t i = rl_answer_skip_space(text, sizeof tag - 1);
    if (i > sizeof tag - 1 + RL_ANSWER_SPACE_MAX) return RL_MATCH_NO;
    if (i == text.size) return p->final ? RL_MATCH_YES : RL_MATCH_PART;
    return rl_answer_match(p, rl_slice_from(text, i), "</tool_call>");
}

/* <parameter=KEY> with a declared key that was not given yet. */
static rl_match opens_another(const parser *p, rl_slice text)
{
    static const char tag[] = "<parameter=";
    size_t stop = 0;
    unsigned types;
    rl_match m = rl_answer_match(p, text, tag);
    if (m != RL_MATCH_YES) return m;
    rl_slice name = rl_slice_from(text, sizeof tag - 1);
    m = rl_answer_name(p, name, &stop);
    if (m != RL_MATCH_YES) return m;
    size_t index = rl_schema_parameter(p->tool, (rl_slice){name.data, stop}, &types);
    return index < 64 && (p->given >> index & 1) == 0 ? RL_MATCH_YES : RL_MATCH_NO;
}

/* Whether the value ends at offset i of rest; *skip = bytes of the tag that go with it. */
static rl_match ends_value(const parser *p, rl_slice rest, size_t i, size_t *skip)
{
    static const char close[] = "</parameter>";
    rl_slice text = rl_slice_from(rest, i);
    *skip = 0;
    rl_match m = rl_answer_match(p, text, close);
    if (m == RL_MATCH_YES) *skip = sizeof close - 1;
    if (m == RL_MATCH_NO) m = closes_call(p, text);
    bool line_start = i > 0 ? rest.data[i - 1] == '\n' : p->value_empty;
    if (m == RL_MATCH_NO && line_start) m = opens_another(p, text);
    return m;
}

bool rl_answer_xml_value(parser *p)
{
    rl_slice rest = rl_answer_rest(p);
    if (!p->value_begun && rest.size > 0) {
        if (rest.data[0] == '\n') p->at++;
        p->value_begun = true;
        rest = rl_answer_rest(p);
    }
    rl_match m = RL_MATCH_NO;
    size_t i = 0, skip = 0;
    for (; i < rest.size; i++) {
        if (rest.data[i] == '<') m = ends_value(p, rest, i, &skip);
        if (m != RL_MATCH_NO) break;
    }
    /* One newline before the end belongs to the frame, so the last one waits. */
    size_t newline = i > 0 && rest.data[i - 1] == '\n';
    take(p, (rl_slice){rest.data, i - newline});
    if (m == RL_MATCH_YES) {
        p->at += newline + skip;
        end_value(p);
        return true;
    }
    if (!p->final) {
        rl_answer_flush_arguments(p);
        return false;
    }
    p->at += newline;
    p->damaged = true;
    end_value(p);
    return true;
}
