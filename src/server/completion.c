/* server/completion: /v1/completions, the continuation of a text. */
#include "openai.h"

#include <stdlib.h>
#include <string.h>

static bool read_ids(srv_job *j, json_t *list, srv_error *e)
{
    size_t n = json_array_size(list);
    uint32_t n_vocab = rl_engine_vocab_size(j->server->engine);
    j->prompt = calloc(n + 1, sizeof *j->prompt);
    if (!j->prompt) return srv_refuse(e, 500, "server_error", NULL, "no memory for the prompt");
    for (size_t i = 0; i < n; i++) {
        json_t *v = json_array_get(list, i);
        json_int_t id = json_is_integer(v) ? json_integer_value(v) : -1;
        if (id < 0 || id >= n_vocab)
            return srv_bad(e, "prompt", "'prompt'[%zu] is not a token id; expected 0 to %u", i, n_vocab - 1);
        j->prompt[i] = (int32_t)id;
    }
    j->n_prompt = n;
    return true;
}

static bool read_prompt(srv_job *j, json_t *prompt, srv_error *e)
{
    if (json_is_array(prompt) && json_array_size(prompt) == 1 && !json_is_integer(json_array_get(prompt, 0)))
        prompt = json_array_get(prompt, 0); /* a list of one prompt */
    if (json_is_string(prompt)) {
        j->prompt_text = (rl_slice){json_string_value(prompt), json_string_length(prompt)};
        return true;
    }
    if (json_is_array(prompt) && json_array_size(prompt) > 0 && json_is_integer(json_array_get(prompt, 0)))
        return read_ids(j, prompt, e);
    return srv_bad(e, "prompt", "'prompt' must be a string or an array of token ids (one prompt a request)");
}

static bool parse(srv_job *j, json_t *body, srv_error *e)
{
    json_int_t logprobs = -1, best_of = 1;
    j->p.logprobs = json_is_true(json_object_get(body, "logprobs"));
    if (!srv_parse_common(j, body, e) || !srv_get_bool(body, "echo", &j->p.echo, e) ||
        !srv_get_int(body, "best_of", 1, 1, &best_of, e) || !read_prompt(j, srv_member(body, "prompt"), e))
        return false;
    if (!json_is_boolean(json_object_get(body, "logprobs")) && !srv_get_int(body, "logprobs", 0, 20, &logprobs, e))
        return false;
    if (logprobs >= 0) {
        j->p.logprobs = true;
        j->p.top_logprobs = (uint32_t)logprobs;
    }
    if (!srv_member(body, "max_tokens") && !srv_member(body, "max_completion_tokens"))
        j->p.max_tokens = 16; /* as the API says */
    return srv_parse_form(j, body, e);
}

/* The shape of this API: parallel lists. Takes the entries. */
static json_t *logprobs_of(json_t *entries)
{
    if (json_is_null(entries)) return entries;
    json_t *tokens = json_array(), *values = json_array(), *tops = json_array(), *entry;
    size_t i, k;
    json_array_foreach(entries, i, entry)
    {
        json_array_append(tokens, json_object_get(entry, "token"));
        json_array_append(values, json_object_get(entry, "logprob"));
        json_t *top = json_object(), *alternative;
        json_array_foreach(json_object_get(entry, "top_logprobs"), k, alternative) json_object_set(
            top, json_string_value(json_object_get(alternative, "token")), json_object_get(alternative, "logprob"));
        json_array_append_new(tops, top);
    }
    json_decref(entries);
    return json_pack("{s:o, s:o, s:o}", "tokens", tokens, "token_logprobs", values, "top_logprobs", tops);
}

/* Takes text. */
static json_t *choice_json(srv_choice *c, json_t *text, const char *finish)
{
    return json_pack("{s:i, s:o, s:o, s:s?}", "index", (int)c->index, "text", text, "logprobs",
                     logprobs_of(srv_new_logprobs(c)), "finish_reason", finish);
}

/* Takes choices. */
static json_t *envelope(srv_job *j, json_t *choices)
{
    return json_pack("{s:s, s:s, s:I, s:s, s:o}", "id", j->id, "object", "text_completion", "created", (json_int_t)j->created,
                     "model", j->server->model_name, "choices", choices);
}

static void send_text(srv_choice *c, const char *text, size_t n, const char *finish)
{
    srv_job *j = c->job;
    json_t *o = envelope(j, json_pack("[o]", choice_json(c, json_stringn(text, n), finish)));
    if (o && j->p.include_usage) json_object_set_new(o, "usage", json_null());
    srv_sse_data(j, o);
}

static void start(srv_job *j)
{
    for (uint32_t i = 0; i < j->p.n && j->p.echo; i++)
        send_text(&j->choices[i], j->prompt_text.data ? j->prompt_text.data : "", j->prompt_text.size, NULL);
}

static void event(srv_choice *c, const rl_answer_event *e)
{
    if (e->kind == RL_ANSWER_CONTENT) send_text(c, e->text.data, e->text.size, NULL);
}

static void choice_done(srv_choice *c)
{
    send_text(c, "", 0, srv_openai_finish(c));
}

static void finish(srv_job *j)
{
    if (j->p.stream) {
        if (j->p.include_usage) {
            json_t *o = envelope(j, json_array());
            json_object_set_new(o, "usage", srv_openai_usage(j));
            json_object_set_new(o, "timings", srv_timings(j));
            srv_sse_data(j, o);
        }
        srv_puts(&j->fresh, "data: [DONE]\n\n");
        return;
    }
    json_t *choices = json_array();
    for (uint32_t i = 0; i < j->p.n; i++) {
        srv_choice *c = &j->choices[i];
        srv_buf text = {0};
        if (j->p.echo) srv_put(&text, j->prompt_text.data, j->prompt_text.size);
        srv_put(&text, c->content.data, c->content.size);
        rl_slice all = srv_view(&text);
        json_array_append_new(choices, choice_json(c, json_stringn(all.data, all.size), srv_openai_finish(c)));
        srv_buf_free(&text);
    }
    json_t *o = envelope(j, choices);
    json_object_set_new(o, "usage", srv_openai_usage(j));
    json_object_set_new(o, "timings", srv_timings(j));
    srv_put_json(&j->fresh, o);
}

const srv_api srv_completion_api = {.path = "/v1/completions",
                                    .id_prefix = "cmpl-",
                                    .parse = parse,
                                    .start = start,
                                    .event = event,
                                    .choice_done = choice_done,
                                    .finish = finish,
                                    .progress = srv_sse_progress,
                                    .error = srv_openai_error,
                                    .stream_error = srv_openai_stream_error};
