/* server/form: answers that must have a form: JSON, a schema, a tool call. */
#include "internal.h"

#include <stdlib.h>
#include <string.h>

bool srv_force_json(srv_job *j, const json_t *schema, srv_error *e)
{
    rl_error err = {0};
    const rl_chat_format *f = j->chat ? j->server->format : NULL;
    char *text = schema ? srv_dump_json(schema) : NULL;
    if (schema && !text) return srv_refuse(e, 500, "server_error", NULL, "no memory for the schema");
    rl_status st = rl_grammar_answer_json(f, &j->request, text, text ? strlen(text) : 0, &j->grammar, &err);
    free(text);
    if (st == RL_OK) return true;
    srv_failed(e, &err);
    if (e->status == 400) srv_bad(e, "response_format", "%s", err.text);
    return false;
}

bool srv_force_call(srv_job *j, const char *name, srv_error *e)
{
    rl_error err = {0};
    if (j->request.n_tools == 0) return srv_bad(e, "tool_choice", "'tool_choice' asks for a call, but there are no tools");
    bool many = j->p.parallel_calls && !name;
    if (rl_grammar_tool_calls(j->server->format, &j->request, name, many, &j->grammar, &err) == RL_OK) return true;
    srv_failed(e, &err);
    if (e->status == 400) srv_bad(e, "tool_choice", "%s", err.text);
    return false;
}

static bool parse_tool_choice(srv_job *j, json_t *choice, srv_error *e)
{
    const char *word = json_string_value(choice), *name = NULL;
    if (!choice) return true;
    if (word && (strcmp(word, "auto") == 0 || strcmp(word, "none") == 0)) return true;
    if (word && (strcmp(word, "required") == 0 || strcmp(word, "any") == 0)) return srv_force_call(j, NULL, e);
    json_t *function = json_is_object(choice) ? srv_member(choice, "function") : NULL;
    name = json_string_value(srv_member(function ? function : choice, "name"));
    if (name) return srv_force_call(j, name, e);
    return srv_bad(e, "tool_choice", "'tool_choice' must be none, auto, required or name a function");
}

bool srv_parse_form(srv_job *j, json_t *body, srv_error *e)
{
    json_t *format = srv_member(body, "response_format");
    const char *type = NULL;
    if (!parse_tool_choice(j, srv_member(body, "tool_choice"), e)) return false;
    if (!format || j->grammar) return true;
    if (!json_is_object(format) || !srv_get_string(format, "type", &type, e) || !type)
        return srv_bad(e, "response_format", "'response_format' must be an object with a type");
    if (strcmp(type, "text") == 0) return true;
    if (strcmp(type, "json_object") == 0) return srv_force_json(j, srv_member(format, "schema"), e);
    json_t *holder = srv_member(format, "json_schema"), *schema = holder ? srv_member(holder, "schema") : NULL;
    if (strcmp(type, "json_schema") != 0)
        return srv_bad(e, "response_format", "'response_format.type' must be text, json_object or json_schema");
    if (!json_is_object(schema)) return srv_bad(e, "response_format", "'response_format.json_schema.schema' must be an object");
    return srv_force_json(j, schema, e);
}
