/* engine/bench: timing prefill and decode of the real call path, at a depth, in one or several sessions. */
#include "base/error.h"
#include "base/mem.h"
#include "engine/engine.h"
#include "engine/random.h"

#include <stdlib.h>

#define MAX_BENCH_SESSIONS 256

typedef struct bench {
    rl_engine *e;
    const rl_bench_case *c;
    rl_session *s[MAX_BENCH_SESSIONS];
    rl_batch_item items[MAX_BENCH_SESSIONS];
    int32_t *ids; /* depth + prompt + generate random ids */
} bench;

static rl_status check_case(const rl_bench_case *c, uint32_t reps, rl_error *err)
{
    if (c->prompt == 0 && c->generate == 0)
        return rl_fail(err, RL_ERR_ARGUMENT, "the case has neither prompt nor generated tokens");
    if ((uint64_t)c->prompt + c->generate + c->depth > RL_MAX_CONTEXT)
        return rl_fail(err, RL_ERR_ARGUMENT, "the case needs %llu positions; expected at most %u",
                       (unsigned long long)c->prompt + c->generate + c->depth, RL_MAX_CONTEXT);
    if (c->sessions < 1 || c->sessions > MAX_BENCH_SESSIONS)
        return rl_fail(err, RL_ERR_ARGUMENT, "the case has %u sessions; expected 1 to %d", c->sessions, MAX_BENCH_SESSIONS);
    if (reps < 1) return rl_fail(err, RL_ERR_ARGUMENT, "a case needs at least one repetition");
    return RL_OK;
}

/* Every session at the depth, with a mark to come back to. One is computed, the others are copies. */
static rl_status prepare(bench *b, rl_progress_fn progress, void *ctx, rl_error *err)
{
    uint32_t capacity = b->c->depth + b->c->prompt + b->c->generate;
    b->ids = rl_alloc(capacity, sizeof *b->ids);
    if (!b->ids) return rl_fail(err, RL_ERR_MEMORY, "no memory for %u ids", capacity);
    rl_random r;
    rl_random_seed(&r, 1); /* the same text every time */
    for (uint32_t i = 0; i < capacity; i++)
        b->ids[i] = (int32_t)(rl_random_u32(&r) % b->e->model->hp.n_vocab);
    rl_status st = rl_session_create(b->e, capacity, &b->s[0], err);
    if (st == RL_OK) st = rl_session_extend(b->s[0], b->ids, b->c->depth, progress, ctx, err);
    for (uint32_t i = 1; i < b->c->sessions && st == RL_OK; i++)
        st = rl_session_fork(b->s[0], capacity, &b->s[i], err);
    for (uint32_t i = 0; i < b->c->sessions && st == RL_OK; i++)
        st = rl_session_mark(b->s[i], err);
    return st;
}

static rl_status run_once(bench *b, double *seconds, rl_error *err)
{
    const rl_bench_case *c = b->c;
    rl_status st = RL_OK;
    for (uint32_t i = 0; i < c->sessions && st == RL_OK; i++)
        st = rl_session_truncate(b->s[i], c->depth, err);
    double start = rl_now();
    for (uint32_t i = 0; i < c->sessions && c->prompt && st == RL_OK; i++)
        st = rl_session_extend(b->s[i], b->ids + c->depth, c->prompt, NULL, NULL, err);
    for (uint32_t t = 0; t < c->generate && st == RL_OK; t++) {
        for (uint32_t i = 0; i < c->sessions; i++)
            b->items[i] = (rl_batch_item){.session = b->s[i], .ids = b->ids + c->depth + c->prompt + t, .n = 1};
        st = rl_engine_extend_batch(b->e, b->items, c->sessions, err);
    }
    *seconds = rl_now() - start;
    return st;
}

rl_status rl_bench_run(rl_engine *e, const rl_bench_case *c, uint32_t reps, bool warm_up, double *seconds,
                       rl_progress_fn progress, void *ctx, rl_error *err)
{
    rl_status st = check_case(c, reps, err);
    if (st != RL_OK) return st;
    bench *b = rl_calloc(1, sizeof *b);
    if (!b) return rl_fail(err, RL_ERR_MEMORY, "no memory for a measurement");
    b->e = e;
    b->c = c;
    st = prepare(b, progress, ctx, err);
    double unused;
    if (st == RL_OK && warm_up) st = run_once(b, &unused, err);
    for (uint32_t i = 0; i < reps && st == RL_OK; i++) {
        st = run_once(b, &seconds[i], err);
        if (st == RL_OK && progress && !progress(ctx, i + 1, reps))
            st = rl_fail(err, RL_ERR_CANCELLED, "cancelled after %u of %u repetitions", i + 1, reps);
    }
    for (uint32_t i = 0; i < c->sessions; i++)
        rl_session_free(b->s[i]);
    free(b->ids);
    free(b);
    return st;
}
