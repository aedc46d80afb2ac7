/* engine/session: sequences of tokens and the model's state after them.
 *
 * The state of a recurrence cannot be cut back, so a session keeps its ids and the number of leading ids the state covers.
 * Everything that moves it backwards (truncating, a failed pass) restores the best mark and leaves the rest to be computed by
 * the next pass. Every pass asks for the logits of its last row, even inside a long prompt: one row of the head costs
 * little, and a cancelled prefill then has logits wherever it stopped. */
#include "base/mem.h"
#include "engine/engine.h"

#include <stdlib.h>
#include <string.h>

/* ---- Creation -------------------------------------------------------------------------------------------------------- */

static rl_status check_memory(rl_engine *e, uint32_t capacity, rl_error *err)
{
    rl_engine_memory m;
    rl_machine_info machine;
    rl_engine_memory_info(e, &m);
    rl_machine(&machine);
    uint64_t need = m.session_fixed + m.session_per_token * capacity;
    /* Memory is handed out lazily by the system, and a promise it cannot keep kills the process: ask first. */
    if (machine.memory_available_bytes && need > machine.memory_available_bytes)
        return rl_fail(
            err, RL_ERR_MEMORY,
            "a session of %u positions needs %.1f MiB but only %.1f MiB of memory are available; use a smaller context",
            capacity, (double)need / 1048576.0, (double)machine.memory_available_bytes / 1048576.0);
    return RL_OK;
}

rl_status rl_session_create(rl_engine *e, uint32_t capacity, rl_session **out, rl_error *err)
{
    if (!e || !out) return rl_fail(err, RL_ERR_ARGUMENT, "rl_session_create needs an engine and a place for the session");
    if (capacity == 0) capacity = e->context;
    if (capacity > RL_MAX_CONTEXT)
        return rl_fail(err, RL_ERR_ARGUMENT, "a session of %u positions was asked for; expected at most %u", capacity,
                       RL_MAX_CONTEXT);
    rl_status st = check_memory(e, capacity, err);
    if (st != RL_OK) return st;
    rl_session *s = rl_calloc(1, sizeof *s);
    if (!s) return rl_fail(err, RL_ERR_MEMORY, "no memory for a session");
    s->engine = e;
    s->capacity = capacity;
    s->ids = rl_alloc(capacity, sizeof *s->ids);
    s->logits = rl_alloc(e->model->hp.n_vocab, sizeof *s->logits);
    st = s->ids && s->logits ? e->backend->ops->seq_create(e->backend, capacity, &s->seq, err)
                             : rl_fail(err, RL_ERR_MEMORY, "no memory for a session of %u positions", capacity);
    e->n_sessions++;
    if (st != RL_OK) {
        rl_session_free(s);
        return st;
    }
    *out = s;
    return RL_OK;
}

static void drop_mark(rl_session *s, uint32_t i)
{
    s->engine->backend->ops->snapshot_free(s->marks[i].snapshot);
    free(s->marks[i].logits);
    s->n_marks--;
    memmove(&s->marks[i], &s->marks[i + 1], (s->n_marks - i) * sizeof s->marks[0]);
}

static void drop_marks_beyond(rl_session *s, uint32_t position)
{
    while (s->n_marks && s->marks[s->n_marks - 1].position > position)
        drop_mark(s, s->n_marks - 1);
}

void rl_session_free(rl_session *s)
{
    if (!s) return;
    while (s->n_marks)
        drop_mark(s, s->n_marks - 1);
    if (s->seq) s->engine->backend->ops->seq_free(s->seq);
    s->engine->n_sessions--;
    free(s->ids);
    free(s->logits);
    free(s);
}

void rl_session_reset(rl_session *s)
{
    while (s->n_marks)
        drop_mark(s, s->n_marks - 1);
    s->engine->backend->ops->seq_reset(s->seq);
    s->n = s->computed = 0;
}

/* The mark at a position, NULL when there is none. */
static const rl_mark *mark_at(const rl_session *s, uint32_t position)
{
    for (uint32_t i = 0; i < s->n_marks; i++)
        if (s->marks[i].position == position) return &s->marks[i];
    return NULL;
}

static rl_status copy_state(rl_session *t, const rl_session *s, uint32_t n, rl_error *err)
{
    const rl_backend_ops *ops = s->engine->backend->ops;
    const rl_mark *m = n < s->computed ? mark_at(s, n) : NULL;
    rl_status st = ops->seq_copy(t->seq, s->seq, err);
    if (st == RL_OK && m) st = ops->restore(t->seq, m->snapshot, err);
    if (st != RL_OK) return st;
    t->n = n;
    t->computed = m ? n : s->computed;
    if (n) memcpy(t->ids, s->ids, n * sizeof *s->ids);
    memcpy(t->logits, m ? m->logits : s->logits, s->engine->model->hp.n_vocab * sizeof(float));
    return RL_OK;
}

rl_status rl_session_fork_at(const rl_session *s, uint32_t n, uint32_t capacity, rl_session **out, rl_error *err)
{
    if (!s || !out) return rl_fail(err, RL_ERR_ARGUMENT, "a copy of a session needs a session and a place for it");
    if (n > s->n || (n > 0 && n < s->computed && !mark_at(s, n)))
        return rl_fail(err, RL_ERR_ARGUMENT, "a session at position %u has no state at position %u to copy", s->n, n);
    if (capacity == 0) capacity = s->engine->context;
    uint32_t held = n > 0 ? s->computed : 0; /* what the copy holds before it is cut back */
    if (capacity < n || capacity < held)
        return rl_fail(err, RL_ERR_LIMIT, "a copy of %u positions cannot hold a session at position %u", capacity, s->n);
    rl_session *t = NULL;
    rl_status st = rl_session_create(s->engine, capacity, &t, err);
    if (st == RL_OK && n > 0) st = copy_state(t, s, n, err);
    if (st != RL_OK) {
        rl_session_free(t);
        return st;
    }
    *out = t;
    return RL_OK;
}

rl_status rl_session_fork(const rl_session *s, uint32_t capacity, rl_session **out, rl_error *err)
{
    return rl_session_fork_at(s, s ? s->n : 0, capacity, out, err);
}

/* ---- Questions ------------------------------------------------------------------------------------------------------- */

rl_engine *rl_session_engine(const rl_session *s)
{
    return s->engine;
}

uint32_t rl_session_capacity(const rl_session *s)
{
    return s->capacity;
}

uint32_t rl_session_position(const rl_session *s)
{
    return s->n;
}

uint32_t rl_session_computed(const rl_session *s)
{
    return s->computed;
}

const int32_t *rl_session_tokens(const rl_session *s)
{
    return s->ids;
}

const float *rl_session_logits(const rl_session *s)
{
    return s->n > 0 && s->computed == s->n ? s->logits : NULL;
}

uint32_t rl_session_common_prefix(const rl_session *s, const int32_t *ids, size_t n)
{
    uint32_t i = 0;
    while (i < n && i < s->n && ids[i] == s->ids[i])
        i++;
    return i;
}

/* The largest position at or before n with a state: where the session stands, a mark, or the empty beginning. */
static uint32_t best_state(const rl_session *s, uint32_t n)
{
    uint32_t best = s->computed <= n ? s->computed : 0;
    for (uint32_t i = 0; i < s->n_marks; i++)
        if (s->marks[i].position <= n && s->marks[i].position > best) best = s->marks[i].position;
    return best;
}

uint32_t rl_session_reusable_prefix(const rl_session *s, const int32_t *ids, size_t n)
{
    return best_state(s, rl_session_common_prefix(s, ids, n));
}

/* ---- Going back ------------------------------------------------------------------------------------------------------ */

/* Puts the sequence at the last mark at or before n, whatever state it is in. A restore that fails (no memory for the copy)
 * costs only time: the sequence starts over. */
static void restore_before(rl_session *s, uint32_t n)
{
    const rl_backend_ops *ops = s->engine->backend->ops;
    drop_marks_beyond(s, n);
    while (s->n_marks) {
        const rl_mark *m = &s->marks[s->n_marks - 1];
        if (ops->restore(s->seq, m->snapshot, NULL) == RL_OK) {
            s->computed = m->position;
            memcpy(s->logits, m->logits, s->engine->model->hp.n_vocab * sizeof(float));
            return;
        }
        drop_mark(s, s->n_marks - 1);
    }
    ops->seq_reset(s->seq);
    s->computed = 0;
}

rl_status rl_session_truncate(rl_session *s, uint32_t n, rl_error *err)
{
    if (n > s->n)
        return rl_fail(err, RL_ERR_ARGUMENT, "cannot cut a session of %u positions to %u: it would have to grow", s->n, n);
    s->n = n;
    if (n < s->computed) restore_before(s, n);
    return RL_OK;
}

rl_status rl_session_mark(rl_session *s, rl_error *err)
{
    rl_status st = rl_session_extend(s, NULL, 0, NULL, NULL, err);
    if (st != RL_OK) return st;
    if (s->n == 0 || (s->n_marks && s->marks[s->n_marks - 1].position == s->n)) return RL_OK;
    size_t bytes = s->engine->model->hp.n_vocab * sizeof(float);
    rl_mark m = {.position = s->n, .logits = rl_alloc(bytes, 1)};
    if (!m.logits) return rl_fail(err, RL_ERR_MEMORY, "no memory for a mark at position %u", s->n);
    st = s->engine->backend->ops->snapshot(s->seq, &m.snapshot, err);
    if (st != RL_OK) {
        free(m.logits);
        return st;
    }
    memcpy(m.logits, s->logits, bytes);
    if (s->n_marks == RL_SESSION_MARKS) drop_mark(s, 1);
    s->marks[s->n_marks++] = m;
    return RL_OK;
}

uint32_t rl_session_marks(const rl_session *s, uint32_t *out, uint32_t cap)
{
    for (uint32_t i = 0; i < s->n_marks && i < cap; i++)
        out[i] = s->marks[i].position;
    return s->n_marks;
}

void rl_session_unmark(rl_session *s, uint32_t position)
{
    for (uint32_t i = 0; i < s->n_marks; i++)
        if (s->marks[i].position == position) {
            drop_mark(s, i);
            return;
        }
}

/* ---- Going forward --------------------------------------------------------------------------------------------------- */

/* Checks and takes the ids of a call: they are pending until passes have computed them. */
static rl_status take_ids(rl_session *s, const int32_t *ids, size_t n, rl_error *err)
{
    if (n > 0 && !ids) return rl_fail(err, RL_ERR_ARGUMENT, "%zu ids were announced but none given", n);
    if (n > s->capacity - s->n)
        return rl_fail(err, RL_ERR_LIMIT, "%zu tokens do not fit: the session is at position %u of %u", n, s->n, s->capacity);
    rl_status st = rl_engine_check_ids(s->engine, ids, n, err);
    if (st != RL_OK) return st;
    s->n_before = s->n;
    if (n) memcpy(s->ids + s->n, ids, n * sizeof *ids);
    s->n += (uint32_t)n;
    return RL_OK;
}

/* Ends a call before its ids are all computed: what was held before the call stays, what it completed stays. */
static void give_up(rl_session *s)
{
    s->n = s->computed > s->n_before ? s->computed : s->n_before;
    s->n_before = s->n; /* giving up twice changes nothing */
}

/* The same after a failed pass, when the sequence's state is lost. */
static void recover(rl_session *s)
{
    give_up(s);
    restore_before(s, s->computed);
}

static uint32_t min_u32(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* The next `rows` pending ids of one session. logits: rows x V when all are wanted, else the session's own row. */
static rl_status pass_one(rl_session *s, uint32_t rows, float *all, rl_error *err)
{
    rl_engine *e = s->engine;
    rl_segment seg = {.seq = s->seq, .ids = s->ids + s->computed, .n = rows, .want = all ? RL_LOGITS_ALL : RL_LOGITS_LAST};
    rl_pass pass = {.segments = &seg, .n_segments = 1, .logits = all ? all : s->logits, .tap = e->tap, .tap_ctx = e->tap_ctx};
    rl_status st = e->backend->ops->forward(e->backend, &pass, err);
    if (st != RL_OK) {
        recover(s);
        return st;
    }
    s->computed += rows;
    size_t v = e->model->hp.n_vocab;
    if (all) memcpy(s->logits, all + (rows - 1) * v, v * sizeof(float));
    return RL_OK;
}

static rl_status cancelled(rl_session *s, rl_error *err)
{
    give_up(s);
    return rl_fail(err, RL_ERR_CANCELLED, "cancelled at position %u", s->computed);
}

/* Passes until `target` ids are computed. *done counts ids over the whole call. */
static rl_status compute_to(rl_session *s, uint32_t target, uint64_t *done, uint64_t total, rl_progress_fn progress, void *ctx,
                            rl_error *err)
{
    while (s->computed < target) {
        if (progress && !progress(ctx, *done, total)) return cancelled(s, err);
        uint32_t rows = min_u32(target - s->computed, s->engine->batch);
        rl_status st = pass_one(s, rows, NULL, err);
        if (st != RL_OK) return st;
        *done += rows;
    }
    return RL_OK;
}

rl_status rl_session_extend(rl_session *s, const int32_t *ids, size_t n, rl_progress_fn progress, void *ctx, rl_error *err)
{
    rl_status st = take_ids(s, ids, n, err);
    if (st != RL_OK) return st;
    uint64_t done = 0, total = s->n - s->computed;
    st = compute_to(s, s->n, &done, total, progress, ctx, err);
    if (st == RL_OK && progress && total) progress(ctx, done, total); /* complete: nothing is left to cancel */
    return st;
}

rl_status rl_session_extend_logits(rl_session *s, const int32_t *ids, size_t n, rl_logits_fn fn, void *ctx, rl_error *err)
{
    rl_status st = take_ids(s, ids, n, err);
    if (st != RL_OK || n == 0) return st;
    uint64_t done = 0;
    uint32_t first = s->n - (uint32_t)n;
    st = compute_to(s, first, &done, 0, NULL, NULL, err);
    if (st != RL_OK) return st;
    size_t v = s->engine->model->hp.n_vocab;
    uint32_t fit = (uint32_t)(RL_LOGITS_BUFFER_BYTES / (v * sizeof(float)));
    uint32_t most = fit >= 64 ? fit / 64 * 64 : 1; /* whole blocks of the recurrence, as a plain prefill has */
    most = min_u32(min_u32(most, s->engine->batch), (uint32_t)n);
    float *rows = rl_alloc((size_t)most * v, sizeof(float));
    if (!rows) {
        give_up(s);
        return rl_fail(err, RL_ERR_MEMORY, "no memory for the logits of %u positions", most);
    }
    while (st == RL_OK && s->computed < s->n) {
        uint32_t at = s->computed, count = min_u32(s->n - at, most);
        st = pass_one(s, count, rows, err);
        for (uint32_t i = 0; st == RL_OK && i < count; i++) {
            st = fn(ctx, at + i, rows + i * v, err);
            if (st != RL_OK) give_up(s);
        }
    }
    free(rows);
    return st;
}

rl_status rl_session_append(rl_session *s, int32_t id, rl_error *err)
{
    return take_ids(s, &id, 1, err);
}

rl_status rl_session_set_tokens(rl_session *s, const int32_t *ids, size_t n, rl_progress_fn progress, void *ctx,
                                uint32_t *reused, rl_error *err)
{
    if (n > s->capacity)
        return rl_fail(err, RL_ERR_LIMIT, "%zu tokens do not fit in a session of %u positions", n, s->capacity);
    rl_status st = rl_engine_check_ids(s->engine, ids, n, err);
    if (st != RL_OK) return st;
    uint32_t common = rl_session_common_prefix(s, ids, n);
    st = rl_session_truncate(s, common, err);
    if (st != RL_OK) return st;
    if (reused) *reused = s->computed;
    return rl_session_extend(s, ids + common, n - common, progress, ctx, err);
}

/* ---- Several sessions in one pass ------------------------------------------------------------------------------------ */

static rl_status take_batch(rl_engine *e, rl_batch_item *items, uint32_t n, rl_error *err)
{
    rl_status st = RL_OK;
    uint32_t taken = 0;
    for (; taken < n; taken++) {
        rl_session *s = items[taken].session;
        if (!s || s->engine != e || s->in_call) {
            st = rl_fail(err, RL_ERR_ARGUMENT, "item %u of the batch %s", taken,
                         !s           ? "has no session"
                         : s->in_call ? "names a session a second time"
                                      : "is of another engine");
            break;
        }
        st = take_ids(s, items[taken].ids, items[taken].n, err);
        if (st != RL_OK) {
            rl_error_prefix(err, "item %u of the batch", taken);
            break;
        }
        s->in_call = true;
    }
    if (st == RL_OK) return RL_OK;
    for (uint32_t i = 0; i < n; i++)
        items[i].status = st;
    for (uint32_t i = 0; i < taken; i++) {
        items[i].session->n = items[i].session->n_before;
        items[i].session->in_call = false;
    }
    return st;
}

static rl_status reserve_batch_logits(rl_engine *e, uint32_t rows, rl_error *err)
{
    if (rows <= e->batch_logits_rows) return RL_OK;
    float *p = rl_realloc(e->batch_logits, (size_t)rows * e->model->hp.n_vocab, sizeof(float));
    if (!p) return rl_fail(err, RL_ERR_MEMORY, "no memory for the logits of %u sessions", rows);
    e->batch_logits = p;
    e->batch_logits_rows = rows;
    return RL_OK;
}

/* Packs pending ids of items into one pass, in order; returns the number of segments. */
static uint32_t pack(rl_engine *e, rl_batch_item *items, uint32_t n)
{
    uint32_t n_segments = 0, left = e->max_rows;
    for (uint32_t i = 0; i < n && left > 0; i++) {
        rl_session *s = items[i].session;
        uint32_t rows = min_u32(s->n - s->computed, left);
        if (rows == 0) continue;
        e->segments[n_segments] = (rl_segment){.seq = s->seq, .ids = s->ids + s->computed, .n = rows, .want = RL_LOGITS_LAST};
        e->pass_items[n_segments++] = &items[i];
        left -= rows;
    }
    return n_segments;
}

static rl_status pass_many(rl_engine *e, uint32_t n_segments, rl_error *err)
{
    size_t v = e->model->hp.n_vocab;
    rl_pass pass = {
        .segments = e->segments, .n_segments = n_segments, .logits = e->batch_logits, .tap = e->tap, .tap_ctx = e->tap_ctx};
    rl_status st = e->backend->ops->forward(e->backend, &pass, err);
    for (uint32_t i = 0; i < n_segments; i++) {
        rl_session *s = e->pass_items[i]->session;
        if (st != RL_OK) {
            recover(s);
            continue;
        }
        s->computed += e->segments[i].n;
        memcpy(s->logits, e->batch_logits + i * v, v * sizeof(float));
    }
    return st;
}

rl_status rl_engine_extend_batch(rl_engine *e, rl_batch_item *items, uint32_t n, rl_error *err)
{
    rl_status st = take_batch(e, items, n, err);
    if (st != RL_OK) return st;
    st = reserve_batch_logits(e, min_u32(n, e->max_rows), err);
    uint32_t n_segments;
    while (st == RL_OK && (n_segments = pack(e, items, n)) > 0)
        st = pass_many(e, n_segments, err);
    for (uint32_t i = 0; i < n; i++) {
        rl_session *s = items[i].session;
        s->in_call = false;
        bool complete = s->computed == s->n && s->n == s->n_before + items[i].n;
        items[i].status = complete ? RL_OK : st;
        if (!complete) give_up(s);
    }
    return st;
}
