/* server/messages: OpenAI messages and tools to turns. */
#include "internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MESSAGES_MAX 65536
#define TOOLS_MAX    1024

static bool no_memory(srv_error *e)
{
    return srv_refuse(e, 500, "server_error", NULL, "no memory for the request");
}

static rl_slice slice_of(const json_t *string)
{
    return (rl_slice){json_string_value(string), json_string_length(string)};
}

/* Text of one part of a content, by the names that the different APIs use. */
static bool part_text(json_t *part, const char *param, rl_slice *out, srv_error *e)
{
    static const char *const texts[] = {"text", "input_text", "output_text", NULL};
    const char *type = "text";
    if (json_is_string(part)) {
        *out = slice_of(part);
        return true;
    }
    if (!json_is_object(part)) return srv_bad(e, param, "'%s' has a part that is not an object", param);
    if (!srv_get_string(part, "type", &type, e)) return false;
    bool known = false;
    for (size_t i = 0; texts[i]; i++)
        known = known || strcmp(type, texts[i]) == 0;
    json_t *text = srv_member(part, "text");
    char shown[64];
    if (!known)
        return srv_bad(e, param, "'%s' has a part of type \"%s\"; this model takes text only", param,
                       rl_escape(shown, sizeof shown, type, strlen(type)));
    if (!json_is_string(text)) return srv_bad(e, param, "'%s' has a part without a string 'text'", param);
    *out = slice_of(text);
    return true;
}

bool srv_content_text(srv_job *j, json_t *content, const char *param, rl_slice *out, srv_error *e)
{
    *out = (rl_slice){"", 0};
    if (!content || json_is_null(content)) return true;
    if (json_is_string(content)) {
        *out = slice_of(content);
        return true;
    }
    if (!json_is_array(content)) return srv_bad(e, param, "'%s' must be a string or an array of parts", param);
    srv_buf all = {0};
    for (size_t i = 0; i < json_array_size(content); i++) {
        rl_slice text = {"", 0};
        if (!part_text(json_array_get(content, i), param, &text, e)) {
            srv_buf_free(&all);
            return false;
        }
        srv_put(&all, text.data, text.size);
    }
    if (all.failed) {
        srv_buf_free(&all);
        return no_memory(e);
    }
    if (all.data && !srv_own(j, all.data)) return no_memory(e);
    *out = srv_view(&all);
    return true;
}

/* ---- Calls in the history ------------------------------------------------------------------------------------------------ */

void *srv_request_alloc(srv_job *j, size_t n, size_t size, srv_error *e)
{
    void *p = calloc(n + 1, size);
    if (srv_own(j, p)) return p;
    no_memory(e);
    return NULL;
}

bool srv_read_call(srv_job *j, json_t *name, json_t *arguments, const char *param, rl_tool_call *out, srv_error *e)
{
    if (!json_is_string(name)) return srv_bad(e, param, "'%s' has a call without a function name", param);
    out->name = slice_of(name);
    if (!arguments) {
        out->arguments = (rl_slice){"{}", 2};
    } else if (json_is_string(arguments)) {
        /* What is not an object (a model's slip that a client hands back) must not end the conversation. */
        json_t *o = json_loadb(json_string_value(arguments), json_string_length(arguments), JSON_ALLOW_NUL, NULL);
        out->arguments = json_is_object(o) ? slice_of(arguments) : (rl_slice){"{}", 2};
        json_decref(o);
    } else if (json_is_object(arguments)) {
        char *text = srv_dump_json(arguments);
        if (!srv_own(j, text)) return no_memory(e);
        out->arguments = (rl_slice){text, strlen(text)};
    } else {
        return srv_bad(e, param, "'%s' has a call whose arguments are neither a string nor an object", param);
    }
    return true;
}

static bool read_call(srv_job *j, json_t *call, const char *param, rl_tool_call *out, const char **id, srv_error *e)
{
    json_t *f = json_is_object(call) ? srv_member(call, "function") : NULL;
    *id = json_is_object(call) ? json_string_value(srv_member(call, "id")) : NULL;
    return srv_read_call(j, f ? srv_member(f, "name") : NULL, f ? srv_member(f, "arguments") : NULL, param, out, e);
}

static bool read_calls(srv_job *j, json_t *list, const char *param, rl_chat_turn *turn, srv_error *e)
{
    if (!list) return true;
    if (!json_is_array(list)) return srv_bad(e, param, "'%s' must be an array", param);
    size_t n = json_array_size(list);
    rl_tool_call *calls = calloc(n + 1, sizeof *calls);
    if (!srv_own(j, calls)) return no_memory(e);
    const char **ids = calloc(n + 1, sizeof *ids);
    bool ok = ids || no_memory(e);
    for (size_t i = 0; i < n && ok; i++)
        ok = read_call(j, json_array_get(list, i), param, &calls[i], &ids[i], e);
    turn->calls = calls;
    turn->n_calls = n;
    if (ok && n > 0) srv_replay_find(j, turn, ids);
    free(ids);
    return ok;
}

/* ---- Messages ------------------------------------------------------------------------------------------------------------ */

static bool read_role(json_t *m, const char *param, rl_role *out, srv_error *e)
{
    static const struct {
        const char *name;
        rl_role role;
    } roles[] = {{"system", RL_ROLE_SYSTEM},       {"developer", RL_ROLE_SYSTEM}, {"user", RL_ROLE_USER},
                 {"assistant", RL_ROLE_ASSISTANT}, {"tool", RL_ROLE_TOOL},        {"function", RL_ROLE_TOOL}};
    const char *role = NULL;
    if (!srv_get_string(m, "role", &role, e)) return false;
    if (!role) return srv_bad(e, param, "'%s' has no role", param);
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++)
        if (strcmp(role, roles[i].name) == 0) {
            *out = roles[i].role;
            return true;
        }
    char shown[64];
    return srv_bad(e, param, "'%s' has the role \"%s\"; expected system, developer, user, assistant or tool", param,
                   rl_escape(shown, sizeof shown, role, strlen(role)));
}

static bool read_message(srv_job *j, json_t *m, size_t i, rl_chat_turn *turn, srv_error *e)
{
    char param[64], field[96];
    snprintf(param, sizeof param, "messages[%zu]", i);
    if (!json_is_object(m)) return srv_bad(e, param, "'%s' is not an object", param);
    if (!read_role(m, param, &turn->role, e)) return false;
    json_t *content = srv_member(m, "content"), *calls = srv_member(m, "tool_calls");
    snprintf(field, sizeof field, "%s.content", param);
    if (!content && turn->role != RL_ROLE_ASSISTANT) return srv_bad(e, field, "'%s' is missing", field);
    if (!srv_content_text(j, content, field, &turn->content, e)) return false;
    if (turn->role != RL_ROLE_ASSISTANT) return true;
    json_t *reasoning = srv_member(m, "reasoning_content");
    if (!reasoning) reasoning = srv_member(m, "reasoning");
    if (json_is_string(reasoning)) turn->reasoning = slice_of(reasoning);
    snprintf(field, sizeof field, "%s.tool_calls", param);
    return read_calls(j, calls, field, turn, e);
}

bool srv_parse_messages(srv_job *j, json_t *messages, srv_error *e)
{
    if (!messages) return srv_bad(e, "messages", "'messages' is missing");
    if (!json_is_array(messages)) return srv_bad(e, "messages", "'messages' must be an array");
    size_t n = json_array_size(messages);
    if (n == 0) return srv_bad(e, "messages", "'messages' is empty");
    if (n > MESSAGES_MAX) return srv_bad(e, "messages", "there are %zu messages; expected at most %d", n, MESSAGES_MAX);
    j->turns = calloc(n, sizeof *j->turns);
    if (!srv_own(j, j->turns)) return no_memory(e);
    for (size_t i = 0; i < n; i++)
        if (!read_message(j, json_array_get(messages, i), i, &j->turns[i], e)) return false;
    j->chat = true;
    j->request.turns = j->turns;
    j->request.n_turns = n;
    j->request.add_generation = true;
    return true;
}

/* ---- Tools --------------------------------------------------------------------------------------------------------------- */

bool srv_add_tool(srv_job *j, json_t *name, json_t *description, json_t *parameters, const char *param, srv_error *e)
{
    if (!json_is_string(name) || json_string_length(name) == 0 || json_string_length(name) > 256)
        return srv_bad(e, param, "'%s' must have a name of 1 to 256 bytes", param);
    json_t *f = json_pack("{s:O}", "name", name);
    if (json_is_string(description)) json_object_set(f, "description", description);
    if (json_is_object(parameters)) json_object_set(f, "parameters", parameters);
    json_t *tool = json_pack("{s:s, s:o}", "type", "function", "function", f);
    char *text = tool ? srv_dump_json(tool) : NULL;
    json_decref(tool);
    if (!srv_own(j, text)) return no_memory(e);
    j->tools[j->request.n_tools++] = (rl_slice){text, strlen(text)};
    j->request.tools = j->tools;
    return true;
}

static bool read_tool(srv_job *j, json_t *tool, size_t i, srv_error *e)
{
    char param[64];
    snprintf(param, sizeof param, "tools[%zu]", i);
    json_t *f = json_is_object(tool) ? srv_member(tool, "function") : NULL;
    if (!json_is_object(f)) return srv_bad(e, param, "'%s' is not a tool of type function", param);
    json_t *name = srv_member(f, "name");
    if (!json_is_string(name) || json_string_length(name) == 0 || json_string_length(name) > 256)
        return srv_bad(e, param, "'%s.function.name' must be a string of 1 to 256 bytes", param);
    char *text = srv_dump_json(tool);
    if (!srv_own(j, text)) return no_memory(e);
    j->tools[i] = (rl_slice){text, strlen(text)};
    return true;
}

bool srv_parse_tools(srv_job *j, json_t *body, srv_error *e)
{
    json_t *tools = srv_member(body, "tools"), *choice = srv_member(body, "tool_choice");
    j->p.parallel_calls = true;
    if (!srv_get_bool(body, "parallel_tool_calls", &j->p.parallel_calls, e)) return false;
    if (!tools) return true;
    if (!json_is_array(tools)) return srv_bad(e, "tools", "'tools' must be an array");
    size_t n = json_array_size(tools);
    if (n > TOOLS_MAX) return srv_bad(e, "tools", "there are %zu tools; expected at most %d", n, TOOLS_MAX);
    bool none = json_is_string(choice) && strcmp(json_string_value(choice), "none") == 0;
    if (n == 0 || none) return true;
    j->tools = calloc(n, sizeof *j->tools);
    if (!srv_own(j, j->tools)) return no_memory(e);
    for (size_t i = 0; i < n; i++)
        if (!read_tool(j, json_array_get(tools, i), i, e)) return false;
    j->request.tools = j->tools;
    j->request.n_tools = n;
    return true;
}
