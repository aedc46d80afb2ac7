/* text/answer: the state shared by the files that read answers. */
#ifndef RL_TEXT_ANSWER_H
#define RL_TEXT_ANSWER_H

#include "text/json.h"
#include "text/schema.h"
#include "text/tools.h"

/* Bounds that keep look-ahead, and so the work per piece, small. */
#define RL_ANSWER_NAME_MAX  256  /* bytes of a function's or parameter's name */
#define RL_ANSWER_SPACE_MAX 64   /* white space held back before a tag */
#define RL_ANSWER_HEAD_MAX  1024 /* of a JSON call, up to its arguments */
#define RL_ANSWER_RETRY_MAX 64   /* calls read as a whole that may turn out to be text: each is read twice */

typedef enum rl_answer_state {
    RL_AT_START, /* a <think> may come */
    RL_AT_REASONING,
    RL_AT_CONTENT,
    RL_AT_JSON_ARGS,   /* the arguments object, passed on as it comes */
    RL_AT_JSON_OBJECT, /* a call of unusual shape, read as a whole before anything is said */
    RL_AT_JSON_TAIL,   /* behind the arguments */
    RL_AT_XML_BODY,    /* between parameters */
    RL_AT_XML_VALUE,
    RL_AT_XML_TAIL, /* behind </function> */
    RL_AT_SKIP      /* remains of a damaged call, up to its closing tag */
} rl_answer_state;

struct rl_answer_parser {
    rl_tool_style style;
    rl_thinking thinking;
    rl_schema schema;
    rl_answer_fn fn;
    void *ctx;
    rl_status status; /* first failure, sticky */

    rl_utf8_stream utf8;
    rl_buffer in; /* not yet understood */
    size_t at;    /* of it consumed */
    bool final;   /* nothing follows */
    rl_answer_state state;

    bool skip_newlines; /* at the start of reasoning and behind </think> */
    bool after_call;    /* nothing but white space since a call */
    size_t n_calls;
    rl_buffer out; /* arguments of the current call, to be passed on */

    rl_json_stream json;
    size_t object_from, object_at; /* RL_AT_JSON_OBJECT: first byte behind <tool_call>, next byte to read (offsets in `in`) */
    rl_buffer object;
    size_t n_given_up; /* calls that turned out to be text */

    const rl_schema_tool *tool; /* of an XML call */
    unsigned types;             /* of the current parameter */
    uint64_t given;             /* which of the first 64 declared parameters were given */
    bool any_parameter, damaged;
    bool value_begun; /* its first newline is gone */
    bool value_empty; /* nothing of it was taken yet */
    rl_buffer value;  /* of a parameter that is not a plain string */
};

typedef struct rl_answer_parser parser;

/* ---- answer.c: input and events ------------------------------------------------------------------------------------------ */

/* What is not consumed. */
static inline rl_slice rl_answer_rest(const parser *p)
{
    rl_slice all = rl_buffer_view(&p->in);
    return (rl_slice){all.data + p->at, all.size - p->at};
}

typedef enum rl_match { RL_MATCH_NO, RL_MATCH_PART, RL_MATCH_YES } rl_match;
/* Whether the text begins with the tag; PART = it may, when more has come. */
rl_match rl_answer_match(const parser *p, rl_slice text, const char *tag);
/* Reads NAME> behind a tag's equals sign: offset of the '>' in *end. NO: no such name can come. */
rl_match rl_answer_name(const parser *p, rl_slice text, size_t *end);

void rl_answer_emit(parser *p, rl_answer_kind kind, rl_slice text);
/* White space between what was said and a call; to be called before start_call. */
void rl_answer_space_before_call(parser *p, rl_slice space);
void rl_answer_start_call(parser *p, rl_slice name);
void rl_answer_flush_arguments(parser *p); /* passes on p->out */
void rl_answer_end_call(parser *p, rl_call_end end, rl_answer_state next);

/* The text from here, n bytes, is content after all. */
void rl_answer_content(parser *p, size_t n);

static inline bool rl_answer_is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}
static inline rl_slice rl_slice_from(rl_slice s, size_t i)
{
    return (rl_slice){s.data + i, s.size - i};
}
static inline size_t rl_answer_skip_space(rl_slice s, size_t i)
{
    while (i < s.size && rl_answer_is_space(s.data[i]))
        i++;
    return i;
}

/* ---- Steps: each consumes something or changes the state, or returns false when it needs more text -------------------------
 */

bool rl_answer_json_args(parser *p);
bool rl_answer_json_object(parser *p);
bool rl_answer_json_tail(parser *p);
bool rl_answer_xml_body(parser *p);
bool rl_answer_xml_value(parser *p);
bool rl_answer_xml_tail(parser *p);

/* How a call may begin at the start of text (behind <tool_call> and white space): PART, NO, or YES with *state and *used. */
rl_match rl_answer_json_head(const parser *p, rl_slice text, rl_buffer *name, size_t *used, rl_answer_state *state);

#endif
