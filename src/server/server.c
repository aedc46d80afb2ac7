/* server/server: start, drain and stop. */
#include "internal.h"
#include "sessions.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void rl_server_options_init(rl_server_options *o)
{
    *o = (rl_server_options){.host = "127.0.0.1",
                             .port = 8080,
                             .parallel = 4,
                             .sessions = 8,
                             .chunk = 256,
                             .queue = 64,
                             .queue_seconds = 300,
                             .read_seconds = 60,
                             .connections = 1024,
                             .body_mib = 32,
                             .head_kib = 64,
                             .state_mib = 4096,
                             .log_requests = true};
}

/* The name that clients see: as told, else the file's own name for the model, else the file name. */
static void name_model(rl_server *s)
{
    const rl_model_info *m = rl_engine_info(s->engine);
    const char *slash = strrchr(s->o.model_path, '/'), *name = s->o.model_name;
    if (!name) name = m->name[0] ? m->name : slash ? slash + 1 : s->o.model_path;
    rl_escape(s->model_name, sizeof s->model_name, name, strlen(name));
}

static rl_status fail(rl_error *err, rl_status status, const char *text)
{
    if (err) {
        err->status = status;
        snprintf(err->text, sizeof err->text, "%s", text);
    }
    return status;
}

static rl_status open_parts(rl_server *s, rl_error *err)
{
    s->tokenizer = rl_engine_tokenizer(s->engine);
    if (!s->tokenizer) return fail(err, RL_ERR_UNSUPPORTED, "the model has no vocabulary: it cannot be served");
    rl_status st = rl_chat_format_open(s->o.model_path, &s->format, err);
    if (st != RL_OK) return st;
    st = rl_token_order_create(s->tokenizer, &s->order, err);
    if (st != RL_OK) return st;
    s->replay = srv_replay_new();
    if (!s->replay) return fail(err, RL_ERR_MEMORY, "no memory for a server");
    name_model(s);
    s->started = time(NULL);
    s->n_slots = s->o.sessions > s->o.parallel ? s->o.sessions : s->o.parallel;
    s->slots = calloc(s->n_slots, sizeof *s->slots);
    const rl_model_info *m = rl_engine_info(s->engine);
    s->routed = calloc((size_t)m->n_layer * m->n_expert + 1, sizeof *s->routed);
    if (!s->slots || !s->routed) return fail(err, RL_ERR_MEMORY, "no memory for the sessions");
    if (s->o.state_dir && !(s->checkpoints = srv_checkpoints_open(s)))
        return fail(err, RL_ERR_IO, "the folder for checkpoints (--state-dir) cannot be used");
    st = srv_http_start(s, err);
    if (st != RL_OK) return st;
    if (pthread_create(&s->scheduler, NULL, srv_scheduler_main, s) != 0)
        return fail(err, RL_ERR_MEMORY, "the scheduler's thread could not be started");
    s->scheduler_runs = true;
    return RL_OK;
}

rl_status rl_server_start(rl_engine *e, const rl_server_options *o, rl_server **out, rl_error *err)
{
    if (!e || !o || !out || !o->model_path || !o->host)
        return fail(err, RL_ERR_ARGUMENT, "a server needs an engine, a model path and an address");
    if (o->parallel < 1 || o->parallel > 256) return fail(err, RL_ERR_ARGUMENT, "parallel must be 1 to 256");
    rl_server *s = calloc(1, sizeof *s);
    if (!s) return fail(err, RL_ERR_MEMORY, "no memory for a server");
    s->o = *o;
    s->engine = e;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->work, NULL);
    pthread_cond_init(&s->idle, NULL);
    rl_status st = open_parts(s, err);
    if (st != RL_OK) {
        rl_server_stop(s);
        return st;
    }
    *out = s;
    return RL_OK;
}

uint32_t rl_server_port(const rl_server *s)
{
    return s->port;
}

void rl_server_drain(rl_server *s, double seconds)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += (time_t)seconds;
    pthread_mutex_lock(&s->lock);
    s->draining = true;
    while (s->n_jobs > 0 && pthread_cond_timedwait(&s->idle, &s->lock, &until) == 0) {
    }
    pthread_mutex_unlock(&s->lock);
}

void rl_server_stop(rl_server *s)
{
    if (!s) return;
    pthread_mutex_lock(&s->lock);
    s->draining = s->stopping = true;
    pthread_cond_broadcast(&s->work);
    pthread_mutex_unlock(&s->lock);
    if (s->scheduler_runs) pthread_join(s->scheduler, NULL);
    srv_http_stop(s);
    srv_slots_free(s);
    srv_checkpoints_free(s->checkpoints);
    srv_replay_free(s->replay);
    rl_token_order_free(s->order);
    rl_chat_format_free(s->format);
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->work);
    pthread_cond_destroy(&s->idle);
    free(s->routed);
    free(s);
}
