/* server/anthropic: /v1/messages, the shape of Anthropic's API: a system text beside the messages, contents as blocks, and
 * streams that open, fill and close blocks. */
#include "internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- The request --------------------------------------------------------------------------------------------------------- */

static rl_slice slice_of(const json_t *string)
{
    return (rl_slice){json_string_value(string), json_string_length(string)};
}

static bool has_type(json_t *block, const char *type)
{
    const char *t = json_is_object(block) ? json_string_value(srv_member(block, "type")) : NULL;
    return t && strcmp(t, type) == 0;
}

/* Blocks of a message that are not text: results become turns of their own, before the message. */
static bool read_results(srv_job *j, json_t *content, const char *param, srv_error *e)
{
    json_t *block;
    size_t i;
    json_array_foreach(content, i, block)
    {
        if (!has_type(block, "tool_result")) continue;
        rl_chat_turn *turn = &j->turns[j->request.n_turns++];
        turn->role = RL_ROLE_TOOL;
        if (!srv_content_text(j, srv_member(block, "content"), param, &turn->content, e)) return false;
    }
    return true;
}

static bool read_calls(srv_job *j, json_t *content, const char *param, rl_chat_turn *turn, srv_error *e)
{
    size_t n = json_array_size(content), i;
    rl_tool_call *calls = srv_request_alloc(j, n, sizeof *calls, e);
    const char **ids = calls ? srv_request_alloc(j, n, sizeof *ids, e) : NULL;
    json_t *block;
    if (!ids) return false;
    turn->calls = calls;
    json_array_foreach(content, i, block)
    {
        if (has_type(block, "thinking") && json_is_string(srv_member(block, "thinking")))
            turn->reasoning = slice_of(srv_member(block, "thinking"));
        if (!has_type(block, "tool_use")) continue;
        ids[turn->n_calls] = json_string_value(srv_member(block, "id"));
        if (!srv_read_call(j, srv_member(block, "name"), srv_member(block, "input"), param, &calls[turn->n_calls++], e))
            return false;
    }
    if (turn->n_calls > 0) srv_replay_find(j, turn, ids);
    return true;
}

/* The text blocks of a content; blocks of other kinds are the caller's. */
static bool read_text(srv_job *j, json_t *content, const char *param, rl_slice *out, bool *any, srv_error *e)
{
    *any = !json_is_array(content);
    if (*any) return srv_content_text(j, content, param, out, e);
    json_t *texts = json_array(), *block;
    size_t i;
    bool ok = true;
    json_array_foreach(content, i, block)
    {
        static const char *const others[] = {"tool_use", "tool_result", "thinking", "redacted_thinking"};
        bool other = false;
        for (size_t k = 0; k < sizeof others / sizeof *others; k++)
            other = other || has_type(block, others[k]);
        if (!other) json_array_append(texts, block);
    }
    *any = json_array_size(texts) > 0;
    ok = srv_content_text(j, texts, param, out, e);
    /* A single text points into its block, which the body keeps. */
    json_decref(texts);
    return ok;
}

static bool read_message(srv_job *j, json_t *m, size_t i, srv_error *e)
{
    char param[64];
    snprintf(param, sizeof param, "messages.%zu", i);
    if (!json_is_object(m)) return srv_bad(e, param, "'%s' is not an object", param);
    const char *role = json_string_value(srv_member(m, "role"));
    json_t *content = srv_member(m, "content");
    bool user = role && strcmp(role, "user") == 0, any = false;
    if (!user && (!role || (strcmp(role, "assistant") != 0 && strcmp(role, "system") != 0)))
        return srv_bad(e, param, "'%s.role' must be user or assistant", param);
    if (!content) return srv_bad(e, param, "'%s.content' is missing", param);
    if (user && !read_results(j, content, param, e)) return false;
    rl_chat_turn *turn = &j->turns[j->request.n_turns];
    turn->role = user ? RL_ROLE_USER : strcmp(role, "system") == 0 ? RL_ROLE_SYSTEM : RL_ROLE_ASSISTANT;
    if (!read_text(j, content, param, &turn->content, &any, e)) return false;
    if (turn->role == RL_ROLE_ASSISTANT && json_is_array(content) && !read_calls(j, content, param, turn, e)) return false;
    if (any || turn->n_calls > 0 || turn->role == RL_ROLE_ASSISTANT) j->request.n_turns++;
    return true;
}

static size_t count_turns(json_t *messages)
{
    size_t n = 1, i;
    json_t *m;
    json_array_foreach(messages, i, m) n += 1 + json_array_size(json_is_object(m) ? srv_member(m, "content") : NULL);
    return n;
}

static bool read_messages(srv_job *j, json_t *body, srv_error *e)
{
    json_t *messages = srv_member(body, "messages"), *system = srv_member(body, "system"), *m;
    if (!json_is_array(messages) || json_array_size(messages) == 0)
        return srv_bad(e, "messages", "'messages' must be an array with at least one message");
    j->turns = srv_request_alloc(j, count_turns(messages), sizeof *j->turns, e);
    if (!j->turns) return false;
    j->chat = true;
    j->request.turns = j->turns;
    j->request.add_generation = true;
    if (system) {
        j->turns[0].role = RL_ROLE_SYSTEM;
        if (!srv_content_text(j, system, "system", &j->turns[0].content, e)) return false;
        j->request.n_turns = 1;
    }
    size_t i;
    json_array_foreach(messages, i, m) if (!read_message(j, m, i, e)) return false;
    return true;
}

static bool read_tools(srv_job *j, json_t *body, srv_error *e)
{
    json_t *tools = srv_member(body, "tools"), *choice = srv_member(body, "tool_choice"), *tool;
    bool alone = false;
    j->p.parallel_calls = true;
    if (choice && !json_is_object(choice)) return srv_bad(e, "tool_choice", "'tool_choice' must be an object");
    if (choice && !srv_get_bool(choice, "disable_parallel_tool_use", &alone, e)) return false;
    j->p.parallel_calls = !alone;
    if (tools && !json_is_array(tools)) return srv_bad(e, "tools", "'tools' must be an array");
    if (choice && has_type(choice, "none")) return true;
    j->tools = srv_request_alloc(j, json_array_size(tools), sizeof *j->tools, e);
    if (!j->tools) return false;
    size_t i;
    json_array_foreach(tools, i, tool)
    {
        char param[64];
        snprintf(param, sizeof param, "tools.%zu", i);
        if (!json_is_object(tool)) return srv_bad(e, param, "'%s' is not an object", param);
        if (!srv_add_tool(j, srv_member(tool, "name"), srv_member(tool, "description"), srv_member(tool, "input_schema"), param,
                          e))
            return false;
    }
    if (choice && has_type(choice, "any")) return srv_force_call(j, NULL, e);
    if (!choice || !has_type(choice, "tool")) return true;
    const char *name = json_string_value(srv_member(choice, "name"));
    return name ? srv_force_call(j, name, e) : srv_bad(e, "tool_choice", "'tool_choice.name' is missing");
}

static bool parse(srv_job *j, json_t *body, srv_error *e)
{
    json_t *thinking = srv_member(body, "thinking");
    if (!srv_member(body, "max_tokens")) return srv_bad(e, "max_tokens", "'max_tokens' is missing");
    if (!srv_parse_common(j, body, e) || !srv_parse_stop(j, body, "stop_sequences", e)) return false;
    j->request.no_thinking = !thinking || has_type(thinking, "disabled");
    return read_messages(j, body, e) && read_tools(j, body, e);
}

/* ---- The answer ---------------------------------------------------------------------------------------------------------- */

static json_t *text_of(const srv_buf *b)
{
    rl_slice s = srv_view(b);
    return json_stringn(s.data, s.size);
}

static json_t *usage_of(const srv_job *j)
{
    return json_pack("{s:i, s:i, s:i, s:i}", "input_tokens", (int)(j->n_prompt - j->n_reused), "cache_read_input_tokens",
                     (int)j->n_reused, "cache_creation_input_tokens", 0, "output_tokens", (int)j->n_generated);
}

static const char *stop_reason(const srv_choice *c)
{
    if (c->finish == SRV_FINISH_LENGTH || c->finish == SRV_FINISH_CONTEXT) return "max_tokens";
    if (c->finish == SRV_FINISH_STOP_TEXT) return "stop_sequence";
    return c->n_calls > 0 ? "tool_use" : "end_turn";
}

/* Takes content. */
static json_t *message_of(const srv_job *j, json_t *content, const char *reason)
{
    const srv_choice *c = &j->choices[0];
    const char *stop = reason && c->finish == SRV_FINISH_STOP_TEXT ? c->stop_text : NULL;
    return json_pack("{s:s, s:s, s:s, s:s, s:o, s:s?, s:s?, s:o}", "id", j->id, "type", "message", "role", "assistant", "model",
                     j->server->model_name, "content", content, "stop_reason", reason, "stop_sequence", stop, "usage",
                     usage_of(j));
}

/* A block, whole or (when it opens in a stream) empty. */
static json_t *block_of(const srv_choice *c, const srv_block *b, bool whole)
{
    switch (b->kind) {
    case SRV_BLOCK_TEXT:
        return json_pack("{s:s, s:o}", "type", "text", "text", whole ? text_of(&b->text) : json_string(""));
    case SRV_BLOCK_REASONING:
        return json_pack("{s:s, s:o, s:s}", "type", "thinking", "thinking", whole ? text_of(&b->text) : json_string(""),
                         "signature", "");
    case SRV_BLOCK_CALL:
        break;
    }
    const srv_call *call = &c->calls[b->call];
    rl_slice arguments = srv_view(&call->arguments);
    json_t *input = whole ? json_loadb(arguments.data, arguments.size, JSON_ALLOW_NUL, NULL) : json_object();
    return json_pack("{s:s, s:s, s:o, s:o}", "type", "tool_use", "id", call->id, "name", text_of(&call->name), "input",
                     input ? input : json_object());
}

static void send(srv_job *j, const char *event, json_t *data)
{
    if (data) json_object_set_new(data, "type", json_string(event));
    srv_putf(&j->fresh, "event: %s\ndata: ", event);
    srv_put_json(&j->fresh, data);
    srv_puts(&j->fresh, "\n\n");
}

static void start(srv_job *j)
{
    send(j, "message_start", json_pack("{s:o}", "message", message_of(j, json_array(), NULL)));
}

static void close_block(srv_choice *c)
{
    if (c->n_opened > 0) send(c->job, "content_block_stop", json_pack("{s:i}", "index", (int)c->n_opened - 1));
}

static void event(srv_choice *c, const rl_answer_event *e)
{
    static const char *const names[][2] = {[RL_ANSWER_CONTENT] = {"text_delta", "text"},
                                           [RL_ANSWER_REASONING] = {"thinking_delta", "thinking"},
                                           [RL_ANSWER_CALL_ARGUMENTS] = {"input_json_delta", "partial_json"}};
    if (c->n_opened < c->n_blocks) {
        close_block(c);
        send(c->job, "content_block_start",
             json_pack("{s:i, s:o}", "index", (int)c->n_opened, "content_block", block_of(c, &c->blocks[c->n_opened], false)));
        c->n_opened++;
    }
    if (e->kind == RL_ANSWER_CALL_START || e->kind == RL_ANSWER_CALL_END) return;
    send(c->job, "content_block_delta",
         json_pack("{s:i, s:{s:s, s:o}}", "index", (int)c->n_opened - 1, "delta", "type", names[e->kind][0], names[e->kind][1],
                   json_stringn(e->text.data, e->text.size)));
}

static void choice_done(srv_choice *c)
{
    close_block(c);
}

static void finish(srv_job *j)
{
    srv_choice *c = &j->choices[0];
    if (j->p.stream) {
        const char *stop = c->finish == SRV_FINISH_STOP_TEXT ? c->stop_text : NULL;
        send(j, "message_delta",
             json_pack("{s:{s:s, s:s?}, s:o}", "delta", "stop_reason", stop_reason(c), "stop_sequence", stop, "usage",
                       usage_of(j)));
        send(j, "message_stop", json_object());
        return;
    }
    json_t *content = json_array();
    for (size_t i = 0; i < c->n_blocks; i++)
        json_array_append_new(content, block_of(c, &c->blocks[i], true));
    srv_put_json(&j->fresh, message_of(j, content, stop_reason(c)));
}

static void progress(srv_job *j, const char *what, uint32_t done, uint32_t total)
{
    srv_putf(&j->fresh, ": %s %u/%u\n", what, done, total);
    send(j, "ping", json_object());
}

static json_t *error(const srv_error *e)
{
    const char *type = strcmp(e->type, "server_error") == 0 ? "api_error" : e->type;
    json_t *message = json_string(e->message);
    return json_pack("{s:s, s:{s:s, s:o}}", "type", "error", "error", "type", type, "message",
                     message ? message : json_string("the request cannot be carried out"));
}

static void stream_error(srv_job *j, const srv_error *e)
{
    send(j, "error", error(e));
}

const srv_api srv_messages_api = {.path = "/v1/messages",
                                  .id_prefix = "msg_",
                                  .parse = parse,
                                  .start = start,
                                  .event = event,
                                  .choice_done = choice_done,
                                  .finish = finish,
                                  .progress = progress,
                                  .error = error,
                                  .stream_error = stream_error};
