/* server/scheduler: the one thread that runs the model.
 *
 * Between two passes requests join and leave: clients that went away are dropped, waiting requests take free places, and one
 * pass is made of a token of every sequence that decodes and a chunk of the prompts that are being read, so that a long prompt
 * costs the others no more than a chunk. Chunks are multiples of the recurrence's block of 64, and end where a mark belongs:
 * the results of a sequence do not depend on its company. */
#include "internal.h"
#include "sessions.h"

#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK       64  /* of the recurrence */
#define SAY_SECONDS 2.0 /* silence after which a stream says something to stay alive */
#define BATCH_MAX   512

typedef struct scheduler {
    rl_server *s;
    srv_job *running[BATCH_MAX]; /* admitted jobs, by arrival */
    uint32_t n_running;
    rl_batch_item items[BATCH_MAX];
    srv_choice *of[BATCH_MAX];
    uint32_t n_items;
} scheduler;

/* ---- The end of a choice and of a job ------------------------------------------------------------------------------------ */

static void release(rl_server *s, srv_choice *c)
{
    if (c->slot) {
        c->slot->choice = NULL;
        c->slot->unsaved = true;
        c->slot->used = rl_now();
        c->slot = NULL;
    }
    c->phase = SRV_DONE;
    c->job->n_done++;
    s->n_running--;
}

static void end_choice(rl_server *s, srv_choice *c, srv_finish why)
{
    if (c->phase == SRV_DONE) return;
    /* The last token stays in the session uncomputed: the next turn begins with it. */
    if (c->slot && c->pending >= 0) rl_session_append(c->slot->session, c->pending, NULL);
    c->pending = -1;
    srv_choice_close(c, why);
    release(s, c);
}

static const char *finish_name(srv_finish f)
{
    static const char *const names[] = {"none", "stop", "stop-string", "length", "context", "cancelled", "error"};
    return names[f];
}

static double rate(double n, double seconds)
{
    return seconds > 0 ? n / seconds : 0;
}

static void log_job(const srv_job *j, int status, bool cancelled)
{
    if (!j->server->o.log_requests) return;
    double now = rl_now(), admitted = j->t_admitted > 0 ? j->t_admitted : now, first = j->t_first > 0 ? j->t_first : now;
    rl_log(RL_LOG_INFO,
           "%s %s %d%s prompt=%zu reused=%u answer=%u n=%u wait=%.3fs prefill=%.3fs (%.0f tok/s) decode=%.3fs (%.1f tok/s) "
           "finish=%s",
           j->id, j->api->path, status, j->p.stream ? " stream" : "", j->n_prompt, j->n_reused, j->n_generated, j->p.n,
           admitted - j->t_arrived, first - admitted, rate((double)j->n_prompt - j->n_reused, first - admitted), now - first,
           rate(j->n_generated, now - first), cancelled ? "cancelled" : finish_name(j->choices[0].finish));
    if (j->server->o.log_prompts && j->n_prompt > 0)
        rl_log(RL_LOG_INFO, "%s answer: %.*s", j->id, (int)j->choices[0].raw.size, srv_view(&j->choices[0].raw).data);
}

static void unlink_job(rl_server *s, srv_job *j)
{
    for (srv_job **at = &s->jobs; *at; at = &(*at)->next)
        if (*at == j) {
            *at = j->next;
            break;
        }
    s->n_jobs--;
    if (s->n_jobs == 0) pthread_cond_broadcast(&s->idle);
}

/* Hands the end over. The job may be freed by this. */
static void finish_job(rl_server *s, srv_job *j)
{
    pthread_mutex_lock(&s->lock);
    bool cancelled = j->cancelled, failed = j->failure.status != 0;
    pthread_mutex_unlock(&s->lock);
    int status = 200;
    if (!cancelled) {
        if (failed && j->p.stream && j->started)
            j->api->stream_error(j, &j->failure);
        else if (failed)
            srv_put_json(&j->fresh, j->api->error(&j->failure)), status = j->failure.status;
        else
            j->api->finish(j);
    }
    log_job(j, cancelled ? 499 : status, cancelled);
    pthread_mutex_lock(&s->lock);
    if (!cancelled) srv_put(&j->out, j->fresh.data, j->fresh.size);
    if (j->fresh.failed || j->out.failed) status = 500;
    j->status = status;
    j->finished = true;
    unlink_job(s, j);
    srv_counters *n = &s->counters;
    n->cancelled += cancelled;
    n->failed += failed;
    if (j->admitted) {
        n->prompt_tokens += j->n_prompt;
        n->reused_tokens += j->n_reused;
        n->generated_tokens += j->n_generated;
        double took = rl_now() - j->t_admitted;
        s->answer_average = s->answer_average > 0 ? 0.8 * s->answer_average + 0.2 * took : took;
    } else {
        n->waiting--;
    }
    srv_http_resume(j);
    pthread_mutex_unlock(&s->lock);
    srv_job_unref(j);
}

static void fail_job(rl_server *s, srv_job *j, const rl_error *err)
{
    if (!j->failure.status) srv_failed(&j->failure, err);
    for (uint32_t i = 0; i < j->p.n; i++)
        if (j->admitted) end_choice(s, &j->choices[i], SRV_FINISH_ERROR);
}

/* ---- Joining ------------------------------------------------------------------------------------------------------------- */

static void emit_start(srv_job *j)
{
    if (j->started || !j->p.stream) return;
    j->started = true;
    j->api->start(j);
}

static void say_progress(srv_job *j, const char *what, uint32_t done, uint32_t total)
{
    if (!j->p.stream || rl_now() - j->t_said < SAY_SECONDS) return;
    emit_start(j);
    j->api->progress(j, what, done, total);
    srv_flush(j);
}

/* The prompt is in: the other choices continue from copies. */
static void split_choices(scheduler *x, srv_job *j)
{
    rl_server *s = x->s;
    rl_error err = {0};
    for (uint32_t i = 1; i < j->p.n; i++) {
        srv_choice *c = &j->choices[i];
        c->slot = srv_slot_copy(s, j->choices[0].slot, (uint32_t)j->n_prompt, &err);
        if (!c->slot) {
            fail_job(s, j, &err);
            return;
        }
        c->slot->choice = c;
    }
}

static void admit(scheduler *x, srv_job *j)
{
    rl_server *s = x->s;
    rl_error err = {0};
    pthread_mutex_lock(&s->lock);
    s->counters.waiting--;
    s->counters.running++;
    pthread_mutex_unlock(&s->lock);
    j->admitted = true;
    j->t_admitted = rl_now();
    s->n_running += j->p.n;
    x->running[x->n_running++] = j;
    for (uint32_t i = 0; i < j->p.n; i++)
        j->choices[i].phase = i == 0 ? SRV_PREFILL : SRV_WAITING;
    srv_choice *c = &j->choices[0];
    c->slot = srv_slot_take(s, j, &err);
    if (!c->slot) {
        fail_job(s, j, &err);
        return;
    }
    c->slot->choice = c;
    for (uint32_t i = 0; i < j->p.n; i++)
        for (size_t k = 0; k < j->n_prompt; k++)
            rl_sampler_accept(j->choices[i].sampler, j->prompt[k]);
}

/* Requests in the order of their arrival: one that needs many places is not overtaken for ever. */
static void admit_waiting(scheduler *x)
{
    rl_server *s = x->s;
    for (;;) {
        srv_job *next = NULL;
        pthread_mutex_lock(&s->lock);
        for (srv_job *j = s->jobs; j && !next; j = j->next)
            if (!j->admitted && !j->cancelled) next = j;
        pthread_mutex_unlock(&s->lock);
        if (!next || s->n_running + next->p.n > s->o.parallel || x->n_running == BATCH_MAX) return;
        admit(x, next);
    }
}

/* ---- Leaving ------------------------------------------------------------------------------------------------------------- */

/* lock held. Whether the other side of the connection is closed. */
static bool client_left(const srv_job *j)
{
    if (j->fd < 0 || !j->connection) return false;
    struct pollfd p = {.fd = j->fd, .events = POLLRDHUP};
    return poll(&p, 1, 0) > 0 && (p.revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL)) != 0;
}

static bool too_late(const rl_server *s, srv_job *j, double now)
{
    if (j->admitted && s->o.answer_seconds && now - j->t_admitted > s->o.answer_seconds)
        return !srv_refuse(&j->failure, 504, "server_error", "timeout", "the answer took more than %u s", s->o.answer_seconds);
    if (!j->admitted && s->o.queue_seconds && now - j->t_arrived > s->o.queue_seconds) {
        srv_refuse(&j->failure, 429, "rate_limit_error", "overloaded", "no place became free within %u s", s->o.queue_seconds);
        j->failure.retry_after = 10;
        return true;
    }
    return false;
}

/* Notes who left, and ends what has to end. Jobs that wait are finished here, running ones by collect(). */
static void drop_leavers(scheduler *x)
{
    rl_server *s = x->s;
    double now = rl_now();
    pthread_mutex_lock(&s->lock);
    srv_http_reap(s);
    for (srv_job *j = s->jobs; j; j = j->next)
        if (!j->cancelled && (s->stopping || client_left(j))) j->cancelled = true;
    srv_job *j = s->jobs;
    pthread_mutex_unlock(&s->lock);
    /* Only this thread takes jobs out of the list and new ones come at its end: walking without the lock is safe but for the
     * last link, which is read under it. */
    while (j) {
        pthread_mutex_lock(&s->lock);
        srv_job *next = j->next;
        bool cancelled = j->cancelled;
        pthread_mutex_unlock(&s->lock);
        bool late = !cancelled && !j->failure.status && too_late(s, j, now);
        if ((cancelled || late) && !j->admitted)
            finish_job(s, j);
        else if (cancelled || late)
            for (uint32_t i = 0; i < j->p.n; i++)
                end_choice(s, &j->choices[i], cancelled ? SRV_FINISH_CANCELLED : SRV_FINISH_ERROR);
        else if (!j->admitted)
            say_progress(j, "queued", 0, 0);
        j = next;
    }
}

static void collect(scheduler *x)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < x->n_running; i++) {
        srv_job *j = x->running[i];
        if (j->n_done < j->p.n) {
            x->running[n++] = j;
            continue;
        }
        pthread_mutex_lock(&x->s->lock);
        x->s->counters.running--;
        pthread_mutex_unlock(&x->s->lock);
        finish_job(x->s, j);
    }
    x->n_running = n;
}

/* ---- A pass -------------------------------------------------------------------------------------------------------------- */

static void add_item(scheduler *x, srv_choice *c, const int32_t *ids, uint32_t n)
{
    x->of[x->n_items] = c;
    x->items[x->n_items++] = (rl_batch_item){.session = c->slot->session, .ids = ids, .n = n};
}

/* Ids of the next chunk of a prompt: to the next mark, or less in whole blocks. */
static uint32_t chunk_of(const srv_choice *c, uint32_t budget)
{
    const srv_job *j = c->job;
    uint32_t at = rl_session_position(c->slot->session), end = (uint32_t)j->n_prompt;
    for (uint32_t i = j->n_marks; i-- > 0;)
        if (j->marks[i] > at) end = j->marks[i];
    return end - at <= budget ? end - at : budget / BLOCK * BLOCK;
}

static void compose(scheduler *x)
{
    rl_server *s = x->s;
    x->n_items = 0;
    for (uint32_t i = 0; i < x->n_running; i++)
        for (uint32_t k = 0; k < x->running[i]->p.n; k++) {
            srv_choice *c = &x->running[i]->choices[k];
            if (c->phase == SRV_DECODE) add_item(x, c, &c->pending, 1);
        }
    uint32_t decoding = x->n_items, rows = rl_engine_prefill_batch(s->engine);
    uint32_t budget = rows > decoding ? rows - decoding : BLOCK;
    if (decoding && budget > s->o.chunk) budget = s->o.chunk;
    for (uint32_t i = 0; i < x->n_running && budget > 0; i++) {
        srv_choice *c = &x->running[i]->choices[0];
        if (c->phase != SRV_PREFILL) continue;
        uint32_t at = rl_session_position(c->slot->session), n = chunk_of(c, budget);
        /* A prompt that is all there takes no room; of the others, less than a block goes to nobody: first come, first served.
         */
        if (n == 0 && at < c->job->n_prompt) break;
        add_item(x, c, c->job->prompt + at, n);
        budget -= n;
    }
}

/* Draws the next token of a choice from its session's logits. */
static void advance(scheduler *x, srv_choice *c)
{
    rl_server *s = x->s;
    srv_job *j = c->job;
    rl_session *session = c->slot->session;
    const float *logits = rl_session_logits(session);
    rl_error err = {0};
    int32_t id = -1;
    c->pending = -1;
    if (j->t_first <= 0) j->t_first = rl_now();
    c->phase = SRV_DECODE;
    if (c->n_generated >= j->p.max_tokens) {
        end_choice(s, c, SRV_FINISH_LENGTH);
        return;
    }
    if (!logits || rl_sampler_sample(c->sampler, logits, &id, &err) != RL_OK) {
        if (!logits) snprintf(err.text, sizeof err.text, "a session has no logits"), err.status = RL_ERR_INTERNAL;
        fail_job(s, j, &err);
        return;
    }
    if (rl_token_is_eog(s->tokenizer, id) && !j->p.ignore_eos) {
        end_choice(s, c, SRV_FINISH_STOP);
        return;
    }
    rl_sampler_accept(c->sampler, id);
    c->pending = id;
    emit_start(j);
    srv_choice_token(c, id, logits);
    if (c->finish != SRV_FINISH_NONE)
        end_choice(s, c, c->finish);
    else if (c->n_generated >= j->p.max_tokens)
        end_choice(s, c, SRV_FINISH_LENGTH);
    else if (rl_session_position(session) + 1 >= rl_session_capacity(session))
        end_choice(s, c, SRV_FINISH_CONTEXT);
}

static bool is_mark(const srv_job *j, uint32_t at)
{
    for (uint32_t i = 0; i < j->n_marks; i++)
        if (j->marks[i] == at) return true;
    return false;
}

/* A chunk of a prompt was computed. */
static void prompt_chunk_done(scheduler *x, srv_choice *c)
{
    srv_job *j = c->job;
    rl_session *session = c->slot->session;
    uint32_t at = rl_session_position(session);
    rl_error err = {0};
    if (is_mark(j, at) && rl_session_mark(session, &err) != RL_OK)
        rl_log(RL_LOG_WARN, "%s goes without a mark: %s", j->id, err.text); /* only costs time later */
    if (at < j->n_prompt) {
        say_progress(j, "prefill", at, (uint32_t)j->n_prompt);
        return;
    }
    split_choices(x, j);
    for (uint32_t i = 0; i < j->p.n; i++)
        if (j->choices[i].phase != SRV_DONE) advance(x, &j->choices[i]);
}

static void count_pass(rl_server *s, const scheduler *x, double seconds)
{
    uint64_t rows = 0;
    bool prefill = false;
    for (uint32_t i = 0; i < x->n_items; i++) {
        rows += x->items[i].n;
        prefill = prefill || x->of[i]->phase == SRV_PREFILL;
    }
    pthread_mutex_lock(&s->lock);
    s->counters.passes++;
    s->counters.pass_rows += rows;
    *(prefill ? &s->counters.prefill_seconds : &s->counters.decode_seconds) += seconds;
    pthread_mutex_unlock(&s->lock);
}

static void run_pass(scheduler *x)
{
    rl_server *s = x->s;
    rl_error err = {0};
    double start = rl_now();
    pthread_mutex_lock(&s->lock);
    bool watched = start < s->watched_until;
    pthread_mutex_unlock(&s->lock);
    rl_engine_watch_routing(s->engine, watched);
    rl_engine_extend_batch(s->engine, x->items, x->n_items, &err);
    if (watched) {
        pthread_mutex_lock(&s->lock);
        rl_engine_routing(s->engine, s->routed);
        rl_engine_cache_stats(s->engine, &s->cache);
        pthread_mutex_unlock(&s->lock);
    }
    count_pass(s, x, rl_now() - start);
    for (uint32_t i = 0; i < x->n_items; i++) {
        srv_choice *c = x->of[i];
        if (c->phase == SRV_DONE) continue; /* its job failed meanwhile */
        if (x->items[i].status != RL_OK)
            fail_job(s, c->job, &err);
        else if (c->phase == SRV_PREFILL)
            prompt_chunk_done(x, c);
        else
            advance(x, c);
    }
    for (uint32_t i = 0; i < x->n_running; i++)
        srv_flush(x->running[i]);
}

/* ---- The thread ---------------------------------------------------------------------------------------------------------- */

/* States go to disk when there is nothing else to do, or when they have waited long, or at the end. */
static void save_sessions(scheduler *x)
{
    enum { SAVE_SECONDS = 60 };
    rl_server *s = x->s;
    if (!s->checkpoints) return;
    for (uint32_t i = 0; i < s->n_slots; i++) {
        srv_slot *slot = &s->slots[i];
        if (!slot->unsaved || slot->choice) continue;
        pthread_mutex_lock(&s->lock);
        bool busy = s->jobs && rl_now() - slot->used < SAVE_SECONDS;
        pthread_mutex_unlock(&s->lock);
        if (busy) continue;
        srv_checkpoint_save(s->checkpoints, slot->session);
        slot->unsaved = false;
    }
}

/* False when the server stops and nothing is left to end. */
static bool wait_for_work(scheduler *x)
{
    rl_server *s = x->s;
    bool go_on = true;
    save_sessions(x);
    pthread_mutex_lock(&s->lock);
    while (!s->jobs && !s->stopping) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec++; /* to look after connections that never become requests */
        pthread_cond_timedwait(&s->work, &s->lock, &until);
        srv_http_reap(s);
    }
    if (!s->jobs && s->stopping && x->n_running == 0) go_on = false;
    pthread_mutex_unlock(&s->lock);
    return go_on;
}

void *srv_scheduler_main(void *server)
{
    scheduler *x = calloc(1, sizeof *x);
    if (!x) {
        rl_log(RL_LOG_ERROR, "no memory for the scheduler");
        return NULL;
    }
    x->s = server;
    while (wait_for_work(x)) {
        drop_leavers(x);
        collect(x);
        admit_waiting(x);
        compose(x);
        if (x->n_items > 0) run_pass(x);
        collect(x);
    }
    free(x);
    return NULL;
}
