/* server/replay: see internal.h. A ring of the last answers with calls; HTTP threads look up, the scheduler adds. */
#include "internal.h"

#include <stdlib.h>
#include <string.h>

#define KEPT      1024
#define BYTES_MAX (64u << 20)

typedef struct kept {
    char *ids;  /* of the calls, each with its NUL */
    char *text; /* content and calls */
    size_t size, ids_size;
    size_t content_size; /* of the content, which text begins with in some form: compared as it was sent */
    char *content;
    json_t *calls; /* [{"name", "arguments"}] */
} kept;

struct srv_replay {
    pthread_mutex_t lock;
    kept ring[KEPT];
    size_t next, bytes;
};

static void drop(struct srv_replay *r, kept *k)
{
    r->bytes -= k->size + k->content_size;
    free(k->ids);
    free(k->text);
    free(k->content);
    json_decref(k->calls);
    *k = (kept){0};
}

struct srv_replay *srv_replay_new(void)
{
    struct srv_replay *r = calloc(1, sizeof *r);
    if (r) pthread_mutex_init(&r->lock, NULL);
    return r;
}

void srv_replay_free(struct srv_replay *r)
{
    if (!r) return;
    for (size_t i = 0; i < KEPT; i++)
        drop(r, &r->ring[i]);
    pthread_mutex_destroy(&r->lock);
    free(r);
}

static char *copy(const char *data, size_t n)
{
    char *p = malloc(n + 1);
    if (!p) return NULL;
    if (n) memcpy(p, data, n);
    p[n] = 0;
    return p;
}

/* The raw text behind the reasoning: what the prompt writes as content. */
static rl_slice behind_reasoning(const srv_choice *c)
{
    static const char close[] = "</think>";
    rl_slice raw = srv_view(&c->raw);
    char *at = c->reasoning.size > 0 ? memmem(raw.data, raw.size, close, sizeof close - 1) : NULL;
    if (!at) return raw;
    const char *end = raw.data + raw.size, *from = at + sizeof close - 1;
    while (from < end && *from == '\n')
        from++;
    return (rl_slice){from, (size_t)(end - from)};
}

void srv_replay_keep(rl_server *s, const srv_choice *c)
{
    kept k = {.calls = json_array()};
    srv_buf ids = {0};
    for (size_t i = 0; i < c->n_calls; i++) {
        const srv_call *call = &c->calls[i];
        rl_slice name = srv_view(&call->name), arguments = srv_view(&call->arguments);
        /* A damaged call must not come back as it was. */
        json_t *object =
            call->ended && call->end == RL_CALL_WHOLE ? json_loadb(arguments.data, arguments.size, JSON_ALLOW_NUL, NULL) : NULL;
        srv_put(&ids, call->id, strlen(call->id) + 1);
        if (json_array_append_new(
                k.calls, json_pack("{s:o, s:o}", "name", json_stringn(name.data, name.size), "arguments", object)) != 0)
            ids.failed = true;
    }
    rl_slice text = behind_reasoning(c), content = srv_view(&c->content);
    k.text = copy(text.data, text.size);
    k.content = copy(content.data, content.size);
    k.size = text.size;
    k.content_size = content.size;
    k.ids = ids.data;
    k.ids_size = ids.size;
    if (ids.failed || !k.text || !k.content || text.size + content.size > BYTES_MAX / 4) {
        free(k.ids);
        free(k.text);
        free(k.content);
        json_decref(k.calls);
        return;
    }
    struct srv_replay *r = s->replay;
    pthread_mutex_lock(&r->lock);
    r->bytes += k.size + k.content_size;
    drop(r, &r->ring[r->next]);
    r->ring[r->next] = k;
    r->next = (r->next + 1) % KEPT;
    for (size_t i = 0; r->bytes > BYTES_MAX && i < KEPT - 1; i++)
        drop(r, &r->ring[(r->next + i) % KEPT]);
    pthread_mutex_unlock(&r->lock);
}

static bool same_calls(const kept *k, const rl_chat_turn *turn, const char *const *ids)
{
    const char *id = k->ids;
    if (!id || json_array_size(k->calls) != turn->n_calls) return false;
    for (size_t i = 0; i < turn->n_calls; i++, id += strlen(id) + 1) {
        json_t *call = json_array_get(k->calls, i), *name = json_object_get(call, "name");
        rl_slice n = turn->calls[i].name, a = turn->calls[i].arguments;
        if (!ids[i] || strcmp(ids[i], id) != 0 || json_string_length(name) != n.size ||
            memcmp(json_string_value(name), n.data, n.size) != 0)
            return false;
        json_t *arguments = json_loadb(a.data, a.size, JSON_ALLOW_NUL, NULL);
        bool same = arguments && json_equal(arguments, json_object_get(call, "arguments"));
        json_decref(arguments);
        if (!same) return false;
    }
    return true;
}

void srv_replay_find(srv_job *j, rl_chat_turn *turn, const char *const *ids)
{
    struct srv_replay *r = j->server->replay;
    if (!ids[0]) return;
    char *text = NULL;
    pthread_mutex_lock(&r->lock);
    for (size_t i = 0; i < KEPT && !text; i++) {
        const kept *k = &r->ring[i];
        if (!k->ids || strcmp(k->ids, ids[0]) != 0 || !same_calls(k, turn, ids)) continue;
        if (turn->content.size != k->content_size ||
            (k->content_size && memcmp(turn->content.data, k->content, k->content_size)))
            continue;
        text = copy(k->text, k->size);
        if (text) turn->exact = (rl_slice){text, k->size};
    }
    pthread_mutex_unlock(&r->lock);
    if (text && !srv_own(j, text)) turn->exact = (rl_slice){NULL, 0};
}
