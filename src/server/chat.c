/* server/chat: /v1/chat/completions. */
#include "openai.h"

#include <string.h>

static bool parse(srv_job *j, json_t *body, srv_error *e)
{
    json_int_t top = 0;
    json_t *thinking = srv_member(body, "chat_template_kwargs");
    bool think = true;
    if (!srv_parse_common(j, body, e) || !srv_parse_tools(j, body, e) ||
        !srv_parse_messages(j, srv_member(body, "messages"), e) || !srv_get_bool(body, "logprobs", &j->p.logprobs, e) ||
        !srv_get_int(body, "top_logprobs", 0, 20, &top, e))
        return false;
    if (top > 0 && !j->p.logprobs) return srv_bad(e, "top_logprobs", "'top_logprobs' needs 'logprobs': true");
    if (json_is_object(thinking) && !srv_get_bool(thinking, "enable_thinking", &think, e)) return false;
    j->request.no_thinking = !think;
    j->p.top_logprobs = (uint32_t)top;
    return srv_parse_form(j, body, e);
}

/* ---- Streams ------------------------------------------------------------------------------------------------------------- */

/* Takes delta. */
static void send_delta(srv_choice *c, json_t *delta, const char *finish)
{
    srv_job *j = c->job;
    json_t *logprobs = c->logprobs ? json_pack("{s:o}", "content", srv_new_logprobs(c)) : json_null();
    json_t *o = json_pack("{s:s, s:s, s:I, s:s, s:[{s:i, s:o, s:o, s:s?}]}", "id", j->id, "object", "chat.completion.chunk",
                          "created", (json_int_t)j->created, "model", j->server->model_name, "choices", "index", (int)c->index,
                          "delta", delta, "logprobs", logprobs, "finish_reason", finish);
    if (o && j->p.include_usage) json_object_set_new(o, "usage", json_null());
    srv_sse_data(j, o);
}

static void start(srv_job *j)
{
    for (uint32_t i = 0; i < j->p.n; i++)
        send_delta(&j->choices[i], json_pack("{s:s, s:s}", "role", "assistant", "content", ""), NULL);
}

static void event(srv_choice *c, const rl_answer_event *e)
{
    json_t *text = e->text.data ? json_stringn(e->text.data, e->text.size) : NULL;
    switch (e->kind) {
    case RL_ANSWER_CONTENT:
        send_delta(c, json_pack("{s:o}", "content", text), NULL);
        return;
    case RL_ANSWER_REASONING:
        send_delta(c, json_pack("{s:o}", "reasoning_content", text), NULL);
        return;
    case RL_ANSWER_CALL_START:
        send_delta(c,
                   json_pack("{s:[{s:i, s:s, s:s, s:{s:o, s:s}}]}", "tool_calls", "index", (int)e->call, "id",
                             c->calls[e->call].id, "type", "function", "function", "name", text, "arguments", ""),
                   NULL);
        return;
    case RL_ANSWER_CALL_ARGUMENTS:
        send_delta(c, json_pack("{s:[{s:i, s:{s:o}}]}", "tool_calls", "index", (int)e->call, "function", "arguments", text),
                   NULL);
        return;
    case RL_ANSWER_CALL_END:
        json_decref(text);
        return;
    }
}

static void choice_done(srv_choice *c)
{
    send_delta(c, json_object(), srv_openai_finish(c));
}

/* ---- The whole answer ---------------------------------------------------------------------------------------------------- */

static json_t *text_of(const srv_buf *b)
{
    rl_slice s = srv_view(b);
    return json_stringn(s.data, s.size);
}

static json_t *message_of(const srv_choice *c)
{
    json_t *m = json_pack("{s:s, s:o}", "role", "assistant", "content",
                          c->content.size == 0 && c->n_calls > 0 ? json_null() : text_of(&c->content));
    if (c->reasoning.size > 0) json_object_set_new(m, "reasoning_content", text_of(&c->reasoning));
    if (c->n_calls == 0) return m;
    json_t *calls = json_array();
    for (size_t i = 0; i < c->n_calls; i++)
        json_array_append_new(calls,
                              json_pack("{s:s, s:s, s:{s:o, s:o}}", "id", c->calls[i].id, "type", "function", "function",
                                        "name", text_of(&c->calls[i].name), "arguments", text_of(&c->calls[i].arguments)));
    json_object_set_new(m, "tool_calls", calls);
    return m;
}

static void finish_stream(srv_job *j)
{
    if (j->p.include_usage)
        srv_sse_data(j, json_pack("{s:s, s:s, s:I, s:s, s:[], s:o, s:o}", "id", j->id, "object", "chat.completion.chunk",
                                  "created", (json_int_t)j->created, "model", j->server->model_name, "choices", "usage",
                                  srv_openai_usage(j), "timings", srv_timings(j)));
    srv_puts(&j->fresh, "data: [DONE]\n\n");
}

static void finish(srv_job *j)
{
    if (j->p.stream) {
        finish_stream(j);
        return;
    }
    json_t *choices = json_array();
    for (uint32_t i = 0; i < j->p.n; i++) {
        srv_choice *c = &j->choices[i];
        json_t *logprobs = c->logprobs ? json_pack("{s:O}", "content", c->logprobs) : json_null();
        json_array_append_new(choices, json_pack("{s:i, s:o, s:o, s:s}", "index", (int)i, "message", message_of(c), "logprobs",
                                                 logprobs, "finish_reason", srv_openai_finish(c)));
    }
    srv_put_json(&j->fresh, json_pack("{s:s, s:s, s:I, s:s, s:o, s:o, s:o}", "id", j->id, "object", "chat.completion",
                                      "created", (json_int_t)j->created, "model", j->server->model_name, "choices", choices,
                                      "usage", srv_openai_usage(j), "timings", srv_timings(j)));
}

const srv_api srv_chat_api = {.path = "/v1/chat/completions",
                              .id_prefix = "chatcmpl-",
                              .parse = parse,
                              .start = start,
                              .event = event,
                              .choice_done = choice_done,
                              .finish = finish,
                              .progress = srv_sse_progress,
                              .error = srv_openai_error,
                              .stream_error = srv_openai_stream_error};
