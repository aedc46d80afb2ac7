/* server/job: the life of a job between the HTTP side and the scheduler. */
#include "internal.h"

#include <stdlib.h>
#include <string.h>

/* A client that does not read must not fill the memory. */
#define OUT_MAX (16u << 20)

static void free_job(srv_job *j)
{
    for (uint32_t i = 0; j->choices && i < j->p.n; i++)
        srv_choice_free(&j->choices[i]);
    free(j->choices);
    free(j->prompt);
    for (size_t i = 0; i < j->n_owned; i++)
        free(j->owned[i]);
    free(j->owned);
    rl_grammar_free(j->grammar);
    json_decref(j->body);
    srv_buf_free(&j->fresh);
    srv_buf_free(&j->out);
    free(j);
}

void srv_job_unref(srv_job *j)
{
    if (!j) return;
    rl_server *s = j->server;
    pthread_mutex_lock(&s->lock);
    int left = --j->refs;
    pthread_mutex_unlock(&s->lock);
    if (left == 0) free_job(j);
}

void srv_flush(srv_job *j)
{
    if (j->fresh.size == 0) return;
    pthread_mutex_lock(&j->server->lock);
    if (j->fresh.failed || j->out.size + j->fresh.size > OUT_MAX) j->cancelled = true;
    if (!j->cancelled) srv_put(&j->out, j->fresh.data, j->fresh.size);
    if (j->out.failed) j->cancelled = true;
    srv_http_resume(j);
    pthread_mutex_unlock(&j->server->lock);
    j->fresh.size = 0;
    j->t_said = rl_now();
}

/* Seconds until a place is likely to be free. */
static int retry_after(const rl_server *s)
{
    double each = s->answer_average > 0 ? s->answer_average : 1;
    double wait = each * (s->n_jobs + 1) / s->o.parallel;
    return wait < 1 ? 1 : wait > 120 ? 120 : (int)wait;
}

bool srv_submit(srv_job *j, srv_error *e)
{
    rl_server *s = j->server;
    bool ok = true;
    pthread_mutex_lock(&s->lock);
    if (s->draining) {
        ok = srv_refuse(e, 503, "server_error", "shutting_down", "the server is shutting down");
        e->retry_after = 5;
    } else if (s->n_jobs >= s->o.parallel + s->o.queue) {
        ok = srv_refuse(e, 429, "rate_limit_error", "overloaded",
                        "%u requests are running or waiting; this is the limit (--parallel and --queue)", s->n_jobs);
        e->retry_after = retry_after(s);
        s->counters.refused++;
    } else {
        srv_job **at = &s->jobs;
        while (*at)
            at = &(*at)->next;
        *at = j;
        j->next = NULL;
        j->refs++;
        j->t_arrived = j->t_said = rl_now();
        s->n_jobs++;
        s->counters.requests++;
        s->counters.waiting++;
        pthread_cond_signal(&s->work);
    }
    pthread_mutex_unlock(&s->lock);
    return ok;
}
