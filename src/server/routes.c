/* server/routes: which path does what, and the requests that are answered at once. */
#include "http.h"

#include <stdlib.h>
#include <string.h>

static json_t *model_json(const rl_server *s)
{
    const rl_model_info *m = rl_engine_info(s->engine);
    return json_pack("{s:s, s:s, s:I, s:s, s:i, s:I, s:I}", "id", s->model_name, "object", "model", "created",
                     (json_int_t)s->started, "owned_by", "redlite", "context_length", (int)rl_engine_context(s->engine),
                     "parameters", (json_int_t)m->parameters, "size", (json_int_t)m->file_bytes);
}

static bool get_models(srv_exchange *x, json_t *body, srv_answer *out, srv_error *e)
{
    (void)body;
    (void)e;
    srv_put_json(&out->text, json_pack("{s:s, s:[o]}", "object", "list", "data", model_json(x->server)));
    return true;
}

static bool get_model(srv_exchange *x, json_t *body, srv_answer *out, srv_error *e)
{
    (void)body;
    const char *name = x->url + strlen("/v1/models/");
    if (strcmp(name, x->server->model_name) != 0)
        return srv_refuse(e, 404, "invalid_request_error", "model_not_found", "the model here is \"%s\"",
                          x->server->model_name);
    srv_put_json(&out->text, model_json(x->server));
    return true;
}

static bool get_health(srv_exchange *x, json_t *body, srv_answer *out, srv_error *e)
{
    (void)body;
    (void)e;
    pthread_mutex_lock(&x->server->lock);
    bool draining = x->server->draining;
    pthread_mutex_unlock(&x->server->lock);
    if (draining) out->status = 503;
    srv_put_json(&out->text, json_pack("{s:s}", "status", draining ? "shutting down" : "ok"));
    return true;
}

static bool get_metrics(srv_exchange *x, json_t *body, srv_answer *out, srv_error *e)
{
    (void)body;
    (void)e;
    out->type = "text/plain; version=0.0.4; charset=utf-8";
    srv_metrics(x->server, &out->text);
    return true;
}

/* What the page draws. Asking turns the counting on for a while. */
static bool get_experts(srv_exchange *x, json_t *body, srv_answer *out, srv_error *e)
{
    (void)body;
    (void)e;
    rl_server *s = x->server;
    const rl_model_info *m = rl_engine_info(s->engine);
    json_t *counts = json_array();
    pthread_mutex_lock(&s->lock);
    s->watched_until = rl_now() + 5;
    for (size_t i = 0; i < (size_t)m->n_layer * m->n_expert; i++)
        json_array_append_new(counts, json_integer((json_int_t)s->routed[i]));
    rl_cache_stats c = s->cache;
    uint32_t running = s->counters.running, waiting = s->counters.waiting;
    pthread_mutex_unlock(&s->lock);
    json_t *cache =
        c.experts == 0
            ? json_null()
            : json_pack("{s:s, s:i, s:i, s:I, s:I, s:I, s:I, s:f}", "residency", rl_residency_name(c.residency), "slots",
                        (int)c.slots, "experts", (int)c.experts, "hits", (json_int_t)c.hits, "misses", (json_int_t)c.misses,
                        "loads", (json_int_t)c.loads, "bytes_read", (json_int_t)c.bytes_read, "wait_seconds", c.wait_seconds);
    srv_put_json(&out->text, json_pack("{s:i, s:i, s:i, s:o, s:o, s:i, s:i}", "layers", (int)m->n_layer, "experts",
                                       (int)m->n_expert, "used", (int)m->n_expert_used, "counts", counts, "cache", cache,
                                       "running", (int)running, "waiting", (int)waiting));
    return true;
}

/* ---- The page ------------------------------------------------------------------------------------------------------------ */

extern const unsigned char srv_page_index_html[], srv_page_page_js[], srv_page_page_css[];
extern const size_t srv_page_index_html_size, srv_page_page_js_size, srv_page_page_css_size;

static bool send_page(srv_answer *out, const char *type, const void *data, size_t size)
{
    out->type = type;
    out->constant = data;
    out->constant_size = size;
    return true;
}

static bool get_page(srv_exchange *x, json_t *body, srv_answer *out, srv_error *e)
{
    (void)body;
    (void)e;
    if (strcmp(x->url, "/page.js") == 0)
        return send_page(out, "text/javascript; charset=utf-8", srv_page_page_js, srv_page_page_js_size);
    if (strcmp(x->url, "/page.css") == 0)
        return send_page(out, "text/css; charset=utf-8", srv_page_page_css, srv_page_page_css_size);
    return send_page(out, "text/html; charset=utf-8", srv_page_index_html, srv_page_index_html_size);
}

static bool post_tokenize(srv_exchange *x, json_t *body, srv_answer *out, srv_error *e)
{
    json_t *content = srv_member(body, "content");
    if (!content) content = srv_member(body, "prompt");
    bool special = true;
    if (!json_is_string(content)) return srv_bad(e, "content", "'content' must be a string");
    if (!srv_get_bool(body, "parse_special", &special, e)) return false;
    int32_t *ids = NULL;
    size_t n = 0;
    rl_error err = {0};
    if (rl_tokenize(x->server->tokenizer, json_string_value(content), json_string_length(content), special, &ids, &n, &err) !=
        RL_OK)
        return srv_failed(e, &err);
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(list, json_integer(ids[i]));
    free(ids);
    srv_put_json(&out->text, json_pack("{s:o, s:I}", "tokens", list, "count", (json_int_t)n));
    return true;
}

static bool post_detokenize(srv_exchange *x, json_t *body, srv_answer *out, srv_error *e)
{
    json_t *list = srv_member(body, "tokens"), *v;
    const rl_tokenizer *t = x->server->tokenizer;
    if (!json_is_array(list)) return srv_bad(e, "tokens", "'tokens' must be an array of token ids");
    srv_buf bytes = {0};
    size_t i;
    json_array_foreach(list, i, v)
    {
        json_int_t id = json_is_integer(v) ? json_integer_value(v) : -1;
        if (id < 0 || id >= rl_tokenizer_n_vocab(t)) {
            srv_buf_free(&bytes);
            return srv_bad(e, "tokens", "'tokens'[%zu] is not a token id; expected 0 to %u", i, rl_tokenizer_n_vocab(t) - 1);
        }
        rl_slice s = rl_token_bytes(t, (int32_t)id, true);
        srv_put(&bytes, s.data, s.size);
    }
    rl_utf8_stream u = {0};
    char *text = malloc(3 * bytes.size + 24);
    size_t n = text ? rl_utf8_stream_push(&u, srv_view(&bytes).data, bytes.size, text) : 0;
    if (text) n += rl_utf8_stream_finish(&u, text + n);
    srv_put_json(&out->text, text ? json_pack("{s:o}", "content", json_stringn(text, n)) : NULL);
    free(text);
    srv_buf_free(&bytes);
    return true;
}

const srv_route srv_routes[] = {{.method = "POST", .path = "/v1/chat/completions", .api = &srv_chat_api},
                                {.method = "POST", .path = "/chat/completions", .api = &srv_chat_api},
                                {.method = "POST", .path = "/v1/completions", .api = &srv_completion_api},
                                {.method = "POST", .path = "/completions", .api = &srv_completion_api},
                                {.method = "POST", .path = "/v1/messages", .api = &srv_messages_api},
                                {.method = "POST", .path = "/v1/responses", .api = &srv_responses_api},
                                {.method = "GET", .path = "/v1/models", .answer = get_models},
                                {.method = "GET", .path = "/models", .answer = get_models},
                                {.method = "GET", .path = "/v1/models/*", .answer = get_model},
                                {.method = "POST", .path = "/tokenize", .answer = post_tokenize},
                                {.method = "POST", .path = "/detokenize", .answer = post_detokenize},
                                {.method = "GET", .path = "/health", .open = true, .answer = get_health},
                                {.method = "GET", .path = "/experts", .answer = get_experts},
                                {.method = "GET", .path = "/", .open = true, .answer = get_page},
                                {.method = "GET", .path = "/page.js", .open = true, .answer = get_page},
                                {.method = "GET", .path = "/page.css", .open = true, .answer = get_page},
                                {.method = "GET", .path = "/metrics", .answer = get_metrics},
                                {0}};
