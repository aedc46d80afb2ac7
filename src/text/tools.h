/* text/tools: conversations with tools and reasoning, and the reading of answers while they are generated.
 *
 * How a model wants its tools written and whether it thinks aloud is read from the chat template in its file (a Jinja source,
 * which is not executed: the fixed texts are cut out of it, see docs/text.md). Needs nothing but redlite.h. */
#ifndef RL_TEXT_TOOLS_H
#define RL_TEXT_TOOLS_H

#include "redlite.h"

/* ---- Format -------------------------------------------------------------------------------------------------------------- */

typedef enum rl_tool_style {
    RL_TOOL_JSON, /* <tool_call>{"name": ..., "arguments": {...}}</tool_call> */
    RL_TOOL_XML   /* <tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call> */
} rl_tool_style;

typedef enum rl_thinking {
    RL_THINKING_NEVER, /* <think> means nothing */
    RL_THINKING_MAY,   /* the model opens <think> itself when it wants to */
    RL_THINKING_ALWAYS /* the prompt opens it, the answer begins inside */
} rl_thinking;

/* Immutable after creation: threads may share it. */
typedef struct rl_chat_format rl_chat_format;

/* From the metadata of a model file. A file without a template gets the JSON style, no thinking, and our own wording. */
rl_status rl_chat_format_open(const char *model_path, rl_chat_format **out, rl_error *err);
/* From the text of a template (n may be 0). */
rl_status rl_chat_format_parse(const char *chat_template, size_t n, rl_chat_format **out, rl_error *err);
void rl_chat_format_free(rl_chat_format *f);

rl_tool_style rl_chat_format_style(const rl_chat_format *f);
rl_thinking rl_chat_format_thinking(const rl_chat_format *f);
bool rl_chat_format_can_skip_thinking(const rl_chat_format *f); /* no_thinking below has an effect */
/* False when the template has no tool texts, so that our own wording is used. */
bool rl_chat_format_knows_tools(const rl_chat_format *f);

/* ---- Prompts ------------------------------------------------------------------------------------------------------------- */

typedef struct rl_tool_call {
    rl_slice name;
    rl_slice arguments; /* JSON text of an object; empty counts as {} */
} rl_tool_call;

typedef struct rl_chat_turn {
    rl_role role;
    rl_slice content;
    rl_slice reasoning; /* assistant only; data == NULL: not given (it may then be in the content, between <think> tags) */
    const rl_tool_call *calls; /* assistant only */
    size_t n_calls;
} rl_chat_turn;

typedef struct rl_chat_request {
    const rl_chat_turn *turns;
    size_t n_turns;
    const rl_slice *tools; /* one JSON object each: {"type": "function", "function": {...}} or the function itself */
    size_t n_tools;
    bool add_generation; /* end with the opening of an assistant turn */
    bool no_thinking;
} rl_chat_request;

/* Ids of the prompt (free() *ids), or its text (free() *text). Contents, names, tools and results cannot become control tokens.
 * RL_ERR_ARGUMENT: a tool that is not JSON or has no name, arguments that are not an object, a role out of range. */
rl_status rl_chat_request_tokenize(const rl_tokenizer *t, const rl_chat_format *f, const rl_chat_request *r, int32_t **ids,
                                   size_t *n_ids, rl_error *err);
rl_status rl_chat_request_render(const rl_chat_format *f, const rl_chat_request *r, char **text, size_t *size, rl_error *err);

/* ---- Answers ------------------------------------------------------------------------------------------------------------- */

typedef enum rl_answer_kind {
    RL_ANSWER_CONTENT,
    RL_ANSWER_REASONING,
    RL_ANSWER_CALL_START,     /* text = name of the function */
    RL_ANSWER_CALL_ARGUMENTS, /* text = next part of the arguments */
    RL_ANSWER_CALL_END
} rl_answer_kind;

/* How a call ended. In every case the arguments given between its start and its end are together one valid JSON object. */
typedef enum rl_call_end {
    RL_CALL_WHOLE,    /* the model closed it */
    RL_CALL_UNCLOSED, /* closing tags are missing, but no value was cut */
    RL_CALL_DAMAGED   /* a value was cut off or a part was dropped: better not carried out */
} rl_call_end;

typedef struct rl_answer_event {
    rl_answer_kind kind;
    rl_slice text;   /* whole UTF-8 characters; valid during the call */
    size_t call;     /* of calls: their number, from 0 */
    rl_call_end end; /* of RL_ANSWER_CALL_END */
} rl_answer_event;

/* Returning false cancels: the push or finish that is running ends with RL_ERR_CANCELLED. */
typedef bool (*rl_answer_fn)(void *ctx, const rl_answer_event *event);

/* Turns generated text, given in pieces of any size, into events. What the events say when joined does not depend on where the
 * pieces were cut. Without tools in the request nothing is taken for a call. */
typedef struct rl_answer_parser rl_answer_parser;

/* r: the request that was answered (its tools and no_thinking are used, and not needed afterwards). */
rl_status rl_answer_parser_create(const rl_chat_format *f, const rl_chat_request *r, rl_answer_fn fn, void *ctx,
                                  rl_answer_parser **out, rl_error *err);
rl_status rl_answer_parser_push(rl_answer_parser *p, const char *text, size_t n, rl_error *err); /* any bytes */
rl_status rl_answer_parser_finish(rl_answer_parser *p, rl_error *err);                           /* the answer is over */
size_t rl_answer_parser_calls(const rl_answer_parser *p);                                        /* calls begun so far */
void rl_answer_parser_free(rl_answer_parser *p);

#endif
