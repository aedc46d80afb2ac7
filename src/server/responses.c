/* server/responses: /v1/responses, without stored conversations: every request brings its whole input, as coding agents do. */
#include "openai.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- The request --------------------------------------------------------------------------------------------------------- */

static const char *type_of(json_t *item, const char *other)
{
    const char *t = json_is_object(item) ? json_string_value(srv_member(item, "type")) : NULL;
    return t ? t : other;
}

static bool read_message(srv_job *j, json_t *item, const char *param, srv_error *e)
{
    const char *role = json_string_value(srv_member(item, "role"));
    rl_chat_turn *turn = &j->turns[j->request.n_turns++];
    if (!role) return srv_bad(e, param, "'%s' has no role", param);
    if (strcmp(role, "assistant") == 0)
        turn->role = RL_ROLE_ASSISTANT;
    else if (strcmp(role, "user") == 0)
        turn->role = RL_ROLE_USER;
    else if (strcmp(role, "system") == 0 || strcmp(role, "developer") == 0)
        turn->role = RL_ROLE_SYSTEM;
    else
        return srv_bad(e, param, "'%s.role' must be user, assistant, system or developer", param);
    return srv_content_text(j, srv_member(item, "content"), param, &turn->content, e);
}

/* Calls are items of their own: they join the assistant's turn before them. */
static bool read_call(srv_job *j, json_t *item, const char *param, srv_error *e)
{
    rl_chat_turn *turn = j->request.n_turns > 0 ? &j->turns[j->request.n_turns - 1] : NULL;
    if (!turn || turn->role != RL_ROLE_ASSISTANT) {
        turn = &j->turns[j->request.n_turns++];
        *turn = (rl_chat_turn){.role = RL_ROLE_ASSISTANT, .content = {"", 0}};
    }
    rl_tool_call *calls = srv_request_alloc(j, turn->n_calls + 1, sizeof *calls, e);
    if (!calls) return false;
    if (turn->n_calls) memcpy(calls, turn->calls, turn->n_calls * sizeof *calls);
    turn->calls = calls;
    return srv_read_call(j, srv_member(item, "name"), srv_member(item, "arguments"), param, &calls[turn->n_calls++], e);
}

static bool read_item(srv_job *j, json_t *item, size_t i, srv_error *e)
{
    char param[64];
    snprintf(param, sizeof param, "input[%zu]", i);
    if (!json_is_object(item)) return srv_bad(e, param, "'%s' is not an object", param);
    const char *type = type_of(item, "message");
    if (strcmp(type, "message") == 0) return read_message(j, item, param, e);
    if (strcmp(type, "function_call") == 0) return read_call(j, item, param, e);
    if (strcmp(type, "reasoning") == 0) return true; /* old reasoning leaves the prompt anyway */
    if (strcmp(type, "function_call_output") == 0) {
        rl_chat_turn *turn = &j->turns[j->request.n_turns++];
        turn->role = RL_ROLE_TOOL;
        return srv_content_text(j, srv_member(item, "output"), param, &turn->content, e);
    }
    char shown[64];
    return srv_bad(e, param, "'%s' has the type \"%s\", which this server does not know", param,
                   rl_escape(shown, sizeof shown, type, strlen(type)));
}

/* Ids of the calls of every turn, for exact replay: turns and calls come in the order of the items. */
static bool find_replays(srv_job *j, json_t *input, srv_error *e)
{
    const char **ids = srv_request_alloc(j, json_array_size(input), sizeof *ids, e);
    if (!ids) return false;
    size_t n = 0, i, at = 0;
    json_t *item;
    json_array_foreach(input, i, item) if (strcmp(type_of(item, ""), "function_call") == 0) ids[n++] =
        json_string_value(srv_member(item, "call_id"));
    for (size_t t = 0; t < j->request.n_turns; t++) {
        if (j->turns[t].n_calls > 0) srv_replay_find(j, &j->turns[t], ids + at);
        at += j->turns[t].n_calls;
    }
    return true;
}

static bool read_input(srv_job *j, json_t *body, srv_error *e)
{
    json_t *input = srv_member(body, "input"), *instructions = srv_member(body, "instructions"), *item;
    size_t n = json_is_array(input) ? json_array_size(input) : 1, i;
    if (!json_is_string(input) && !(json_is_array(input) && n > 0))
        return srv_bad(e, "input", "'input' must be a string or an array of items");
    if (instructions && !json_is_string(instructions)) return srv_bad(e, "instructions", "'instructions' must be a string");
    j->turns = srv_request_alloc(j, n + 1, sizeof *j->turns, e);
    if (!j->turns) return false;
    j->chat = true;
    j->request.turns = j->turns;
    j->request.add_generation = true;
    if (instructions)
        j->turns[j->request.n_turns++] = (rl_chat_turn){
            .role = RL_ROLE_SYSTEM, .content = {json_string_value(instructions), json_string_length(instructions)}};
    if (json_is_string(input)) {
        j->turns[j->request.n_turns++] =
            (rl_chat_turn){.role = RL_ROLE_USER, .content = {json_string_value(input), json_string_length(input)}};
        return true;
    }
    json_array_foreach(input, i, item) if (!read_item(j, item, i, e)) return false;
    if (j->request.n_turns == 0) return srv_bad(e, "input", "'input' has no messages");
    return find_replays(j, input, e);
}

static bool read_tools(srv_job *j, json_t *body, srv_error *e)
{
    json_t *tools = srv_member(body, "tools"), *choice = srv_member(body, "tool_choice"), *tool;
    if (tools && !json_is_array(tools)) return srv_bad(e, "tools", "'tools' must be an array");
    const char *word = json_string_value(choice);
    if (word && strcmp(word, "none") == 0) return true;
    j->tools = srv_request_alloc(j, json_array_size(tools), sizeof *j->tools, e);
    if (!j->tools) return false;
    size_t i;
    json_array_foreach(tools, i, tool)
    {
        char param[64];
        snprintf(param, sizeof param, "tools[%zu]", i);
        /* Tools that the provider would run (search and the like) do not exist here: the model is not told of them. */
        if (strcmp(type_of(tool, "function"), "function") != 0) continue;
        if (!json_is_object(tool)) return srv_bad(e, param, "'%s' is not an object", param);
        if (!srv_add_tool(j, srv_member(tool, "name"), srv_member(tool, "description"), srv_member(tool, "parameters"), param,
                          e))
            return false;
    }
    return true;
}

/* text.format is response_format by another name. */
static bool read_format(srv_job *j, json_t *body, srv_error *e)
{
    json_t *text = srv_member(body, "text"), *format = json_is_object(text) ? srv_member(text, "format") : NULL;
    const char *type = type_of(format, "text");
    if (j->grammar || strcmp(type, "text") == 0) return true;
    if (strcmp(type, "json_object") == 0) return srv_force_json(j, NULL, e);
    if (strcmp(type, "json_schema") == 0 && json_is_object(srv_member(format, "schema")))
        return srv_force_json(j, srv_member(format, "schema"), e);
    return srv_bad(e, "text.format", "'text.format' must be text, json_object or json_schema with a schema");
}

static bool parse(srv_job *j, json_t *body, srv_error *e)
{
    json_int_t max = -1;
    j->p.parallel_calls = true;
    if (srv_member(body, "previous_response_id"))
        return srv_bad(e, "previous_response_id", "this server keeps no responses: send the whole input");
    if (!srv_parse_common(j, body, e) || !srv_get_int(body, "max_output_tokens", 1, UINT32_MAX, &max, e) ||
        !srv_get_bool(body, "parallel_tool_calls", &j->p.parallel_calls, e) || !read_input(j, body, e) ||
        !read_tools(j, body, e) || !srv_parse_form(j, body, e) || !read_format(j, body, e))
        return false;
    j->p.n = 1;
    if (max > 0) j->p.max_tokens = (uint32_t)max;
    return true;
}

/* ---- The answer ---------------------------------------------------------------------------------------------------------- */

static json_t *text_of(const srv_buf *b)
{
    rl_slice s = srv_view(b);
    return json_stringn(s.data, s.size);
}

/* The id of an item: of the response, with its place. */
static const char *item_id(const srv_choice *c, size_t i, char out[80])
{
    static const char *const prefix[] = {"msg", "rs", "fc"};
    snprintf(out, 80, "%s_%s_%zu", prefix[c->blocks[i].kind], c->job->id + strlen("resp_"), i);
    return out;
}

static json_t *text_part(const char *type, json_t *text)
{
    json_t *o = json_pack("{s:s, s:o}", "type", type, "text", text);
    if (o && strcmp(type, "output_text") == 0) json_object_set_new(o, "annotations", json_array());
    return o;
}

static json_t *item_of(const srv_choice *c, size_t i, bool whole)
{
    char id[80];
    const srv_block *b = &c->blocks[i];
    const char *status = whole ? "completed" : "in_progress";
    item_id(c, i, id);
    if (b->kind == SRV_BLOCK_CALL) {
        const srv_call *call = &c->calls[b->call];
        return json_pack("{s:s, s:s, s:s, s:o, s:o, s:s}", "type", "function_call", "id", id, "call_id", call->id, "name",
                         text_of(&call->name), "arguments", whole ? text_of(&call->arguments) : json_string(""), "status",
                         status);
    }
    bool reasoning = b->kind == SRV_BLOCK_REASONING;
    json_t *content = json_array();
    if (whole) json_array_append_new(content, text_part(reasoning ? "reasoning_text" : "output_text", text_of(&b->text)));
    if (reasoning) return json_pack("{s:s, s:s, s:[], s:o}", "type", "reasoning", "id", id, "summary", "content", content);
    return json_pack("{s:s, s:s, s:s, s:s, s:o}", "type", "message", "id", id, "status", status, "role", "assistant", "content",
                     content);
}

static json_t *usage_of(const srv_job *j)
{
    return json_pack("{s:i, s:{s:i}, s:i, s:{s:i}, s:i}", "input_tokens", (int)j->n_prompt, "input_tokens_details",
                     "cached_tokens", (int)j->n_reused, "output_tokens", (int)j->n_generated, "output_tokens_details",
                     "reasoning_tokens", 0, "total_tokens", (int)j->n_prompt + (int)j->n_generated);
}

static json_t *response_of(srv_job *j, bool whole)
{
    const srv_choice *c = &j->choices[0];
    bool cut = whole && (c->finish == SRV_FINISH_LENGTH || c->finish == SRV_FINISH_CONTEXT);
    json_t *output = json_array(), *tools = srv_member(j->body, "tools"), *choice = srv_member(j->body, "tool_choice");
    for (size_t i = 0; whole && i < c->n_blocks; i++)
        json_array_append_new(output, item_of(c, i, true));
    json_t *o =
        json_pack("{s:s, s:s, s:I, s:s, s:s, s:o, s:n, s:b, s:f, s:f}", "id", j->id, "object", "response", "created_at",
                  (json_int_t)j->created, "status",
                  cut     ? "incomplete"
                  : whole ? "completed"
                          : "in_progress",
                  "model", j->server->model_name, "output", output, "error", "parallel_tool_calls", (int)j->p.parallel_calls,
                  "temperature", (double)j->p.sampling.temperature, "top_p", (double)j->p.sampling.top_p);
    if (!o) return NULL;
    json_object_set_new(o, "incomplete_details", cut ? json_pack("{s:s}", "reason", "max_output_tokens") : json_null());
    json_object_set_new(o, "usage", whole ? usage_of(j) : json_null());
    json_object_set_new(o, "tools", tools ? json_incref(tools) : json_array());
    json_object_set_new(o, "tool_choice", choice ? json_incref(choice) : json_string("auto"));
    return o;
}

/* Takes data; numbers the event. */
static void send(srv_job *j, const char *event, json_t *data)
{
    if (data) {
        json_object_set_new(data, "type", json_string(event));
        json_object_set_new(data, "sequence_number", json_integer((json_int_t)j->choices[0].n_events++));
    }
    srv_putf(&j->fresh, "event: %s\ndata: ", event);
    srv_put_json(&j->fresh, data);
    srv_puts(&j->fresh, "\n\n");
}

static void start(srv_job *j)
{
    send(j, "response.created", json_pack("{s:o}", "response", response_of(j, false)));
    send(j, "response.in_progress", json_pack("{s:o}", "response", response_of(j, false)));
}

/* An event about the item at place i, with more members added by the caller. */
static json_t *about(const srv_choice *c, size_t i)
{
    char id[80];
    return json_pack("{s:s, s:i}", "item_id", item_id(c, i, id), "output_index", (int)i);
}

static json_t *about_part(const srv_choice *c, size_t i)
{
    json_t *o = about(c, i);
    json_object_set_new(o, "content_index", json_integer(0));
    return o;
}

static void open_item(srv_choice *c)
{
    size_t i = c->n_opened++;
    srv_block_kind kind = c->blocks[i].kind;
    send(c->job, "response.output_item.added", json_pack("{s:i, s:o}", "output_index", (int)i, "item", item_of(c, i, false)));
    if (kind == SRV_BLOCK_CALL) return;
    json_t *o = about_part(c, i);
    json_object_set_new(o, "part", text_part(kind == SRV_BLOCK_REASONING ? "reasoning_text" : "output_text", json_string("")));
    send(c->job, "response.content_part.added", o);
}

static void close_item(srv_choice *c)
{
    if (c->n_opened == 0) return;
    size_t i = c->n_opened - 1;
    const srv_block *b = &c->blocks[i];
    if (b->kind == SRV_BLOCK_CALL) {
        json_t *o = about(c, i);
        json_object_set_new(o, "arguments", text_of(&c->calls[b->call].arguments));
        json_object_set_new(o, "name", text_of(&c->calls[b->call].name));
        send(c->job, "response.function_call_arguments.done", o);
    } else {
        bool reasoning = b->kind == SRV_BLOCK_REASONING;
        json_t *o = about_part(c, i), *part = about_part(c, i);
        json_object_set_new(o, "text", text_of(&b->text));
        send(c->job, reasoning ? "response.reasoning_text.done" : "response.output_text.done", o);
        json_object_set_new(part, "part", text_part(reasoning ? "reasoning_text" : "output_text", text_of(&b->text)));
        send(c->job, "response.content_part.done", part);
    }
    send(c->job, "response.output_item.done", json_pack("{s:i, s:o}", "output_index", (int)i, "item", item_of(c, i, true)));
}

static void event(srv_choice *c, const rl_answer_event *e)
{
    if (c->n_opened < c->n_blocks) {
        close_item(c);
        open_item(c);
    }
    if (e->kind == RL_ANSWER_CALL_START || e->kind == RL_ANSWER_CALL_END) return;
    bool call = e->kind == RL_ANSWER_CALL_ARGUMENTS;
    json_t *o = call ? about(c, c->n_opened - 1) : about_part(c, c->n_opened - 1);
    json_object_set_new(o, "delta", json_stringn(e->text.data, e->text.size));
    send(c->job,
         call                             ? "response.function_call_arguments.delta"
         : e->kind == RL_ANSWER_REASONING ? "response.reasoning_text.delta"
                                          : "response.output_text.delta",
         o);
}

static void choice_done(srv_choice *c)
{
    close_item(c);
}

static void finish(srv_job *j)
{
    if (!j->p.stream) {
        srv_put_json(&j->fresh, response_of(j, true));
        return;
    }
    const srv_choice *c = &j->choices[0];
    bool cut = c->finish == SRV_FINISH_LENGTH || c->finish == SRV_FINISH_CONTEXT;
    send(j, cut ? "response.incomplete" : "response.completed", json_pack("{s:o}", "response", response_of(j, true)));
}

static void stream_error(srv_job *j, const srv_error *e)
{
    send(j, "error", json_pack("{s:s?, s:s, s:n}", "code", e->code, "message", e->message, "param"));
}

const srv_api srv_responses_api = {.path = "/v1/responses",
                                   .id_prefix = "resp_",
                                   .parse = parse,
                                   .start = start,
                                   .event = event,
                                   .choice_done = choice_done,
                                   .finish = finish,
                                   .progress = srv_sse_progress,
                                   .error = srv_openai_error,
                                   .stream_error = stream_error};
