/* backend/ref/sequence: the state of a sequence; copies, snapshots, export and import. */
#include "backend/ref/ref.h"
#include "backend/state.h"
#include "base/mem.h"
#include <stdlib.h>
#include <string.h>

typedef struct ref_snapshot {
    uint32_t position;
    double recurrent[];
} ref_snapshot;

static const rl_model *model_of(const ref_seq *s)
{
    return s->base.backend->model;
}

static uint32_t n_caches(const rl_model *m)
{
    return m->n_attention + m->hp.n_mtp;
}

static size_t recurrent_total(const rl_model *m)
{
    return m->n_recurrent * ref_recurrent_size(&m->hp);
}

static size_t kv_width(const rl_model *m)
{
    return (size_t)m->hp.n_head_kv * m->hp.head_dim;
}

rl_status ref_seq_create(rl_backend *b, uint32_t capacity, rl_seq **out, rl_error *err)
{
    ref_seq *s = rl_calloc(1, sizeof *s);
    if (s) {
        s->base.backend = b;
        s->capacity = capacity;
        s->recurrent = rl_calloc(recurrent_total(b->model), sizeof *s->recurrent);
        s->kv = rl_calloc(n_caches(b->model), sizeof *s->kv);
    }
    if (!s || !s->recurrent || !s->kv) {
        ref_seq_free((rl_seq *)s);
        return rl_fail(err, RL_ERR_MEMORY, "cannot allocate a sequence");
    }
    *out = &s->base;
    return RL_OK;
}

void ref_seq_free(rl_seq *seq)
{
    ref_seq *s = (ref_seq *)seq;
    if (!s) return;
    for (uint32_t i = 0; s->kv && i < n_caches(model_of(s)); i++) {
        free(s->kv[i].k);
        free(s->kv[i].v);
    }
    free(s->kv);
    free(s->recurrent);
    free(s);
}

uint32_t ref_seq_position(const rl_seq *s)
{
    return ((const ref_seq *)s)->position;
}

uint32_t ref_mtp_position(const rl_seq *s)
{
    return ((const ref_seq *)s)->mtp_position;
}

void ref_mtp_truncate(rl_seq *seq, uint32_t n)
{
    ref_seq *s = (ref_seq *)seq;
    if (n < s->mtp_position) s->mtp_position = n;
}

void ref_seq_reset(rl_seq *seq)
{
    ref_seq *s = (ref_seq *)seq;
    s->position = s->mtp_position = 0;
    memset(s->recurrent, 0, recurrent_total(model_of(s)) * sizeof *s->recurrent);
}

static bool grow(double **p, size_t n)
{
    double *grown = rl_realloc(*p, n, sizeof **p);
    if (grown) *p = grown;
    return grown != NULL;
}

rl_status ref_kv_reserve(ref_seq *s, uint32_t index, uint32_t rows, rl_error *err)
{
    ref_kv *kv = &s->kv[index];
    if (rows <= kv->rows) return RL_OK;
    uint32_t want = kv->rows < s->capacity / 2 ? 2 * kv->rows : s->capacity;
    if (want < rows) want = rows;
    if (!grow(&kv->k, want * kv_width(model_of(s))) || !grow(&kv->v, want * kv_width(model_of(s))))
        return rl_fail(err, RL_ERR_MEMORY, "cannot allocate keys and values for %u positions", want);
    kv->rows = want;
    return RL_OK;
}

/* Positions that cache i holds. */
static uint32_t cache_rows(const ref_seq *s, uint32_t i)
{
    return i < model_of(s)->n_attention ? s->position : s->mtp_position;
}

rl_status ref_seq_copy(rl_seq *dst_, const rl_seq *src_, rl_error *err)
{
    ref_seq *dst = (ref_seq *)dst_;
    const ref_seq *src = (const ref_seq *)src_;
    const rl_model *m = model_of(src);
    if (dst == src) return RL_OK;
    if (dst->capacity < src->position || dst->capacity < src->mtp_position)
        return rl_fail(err, RL_ERR_LIMIT, "a copy of %u positions does not fit a context of %u", src->position, dst->capacity);
    for (uint32_t i = 0; i < n_caches(m); i++) {
        const uint32_t rows = cache_rows(src, i);
        const size_t bytes = rows * kv_width(m) * sizeof(double);
        rl_status status = ref_kv_reserve(dst, i, rows, err);
        if (status != RL_OK) return status;
        if (rows == 0) continue;
        memcpy(dst->kv[i].k, src->kv[i].k, bytes);
        memcpy(dst->kv[i].v, src->kv[i].v, bytes);
    }
    memcpy(dst->recurrent, src->recurrent, recurrent_total(m) * sizeof *dst->recurrent);
    dst->position = src->position;
    dst->mtp_position = src->mtp_position;
    return RL_OK;
}

uint64_t ref_snapshot_bytes(const rl_backend *b)
{
    return sizeof(ref_snapshot) + recurrent_total(b->model) * sizeof(double);
}

rl_status ref_snapshot_take(const rl_seq *seq, rl_snapshot **out, rl_error *err)
{
    const ref_seq *s = (const ref_seq *)seq;
    ref_snapshot *snap = rl_alloc(1, ref_snapshot_bytes(s->base.backend));
    if (!snap) return rl_fail(err, RL_ERR_MEMORY, "cannot allocate a snapshot");
    snap->position = s->position;
    memcpy(snap->recurrent, s->recurrent, recurrent_total(model_of(s)) * sizeof *snap->recurrent);
    *out = (rl_snapshot *)snap;
    return RL_OK;
}

rl_status ref_restore(rl_seq *seq, const rl_snapshot *snapshot, rl_error *err)
{
    ref_seq *s = (ref_seq *)seq;
    const ref_snapshot *snap = (const ref_snapshot *)snapshot;
    if (s->position < snap->position)
        return rl_fail(err, RL_ERR_ARGUMENT, "a snapshot of position %u cannot be restored to a sequence at position %u",
                       snap->position, s->position);
    s->position = snap->position;
    memcpy(s->recurrent, snap->recurrent, recurrent_total(model_of(s)) * sizeof *s->recurrent);
    return RL_OK;
}

void ref_snapshot_free(rl_snapshot *snap)
{
    free(snap);
}

/* ---- Export and import: the layout is that of backend/state.h ------------------------------------------------------------ */

rl_status ref_seq_export(const rl_seq *seq, rl_put_fn put, void *ctx, rl_error *err)
{
    const ref_seq *s = (const ref_seq *)seq;
    const rl_model *m = model_of(s);
    const size_t size = ref_recurrent_size(&m->hp);
    const rl_state_info info = {s->position, s->mtp_position, RL_ELEM_F64, RL_ELEM_F64};
    rl_status status = rl_state_put_header(&m->hp, &info, put, ctx, err);
    uint32_t recurrent = 0, cache = 0;
    for (uint32_t i = 0; status == RL_OK && i < m->hp.n_layer + m->hp.n_mtp; i++) {
        if (i < m->hp.n_layer && m->layers[i].kind == RL_LAYER_RECURRENT) {
            status = rl_state_put(RL_ELEM_F64, s->recurrent + recurrent++ * size, size, put, ctx, err);
            continue;
        }
        const size_t n = cache_rows(s, cache) * kv_width(m);
        status = rl_state_put(RL_ELEM_F64, s->kv[cache].k, n, put, ctx, err);
        if (status == RL_OK) status = rl_state_put(RL_ELEM_F64, s->kv[cache].v, n, put, ctx, err);
        cache++;
    }
    return status;
}

static rl_status import_cache(ref_seq *s, uint32_t i, rl_elem kind, rl_get_fn get, void *ctx, rl_error *err)
{
    const size_t n = cache_rows(s, i) * kv_width(model_of(s));
    rl_status status = ref_kv_reserve(s, i, cache_rows(s, i), err);
    if (status == RL_OK) status = rl_state_get(kind, RL_ELEM_F64, s->kv[i].k, n, get, ctx, err);
    return status == RL_OK ? rl_state_get(kind, RL_ELEM_F64, s->kv[i].v, n, get, ctx, err) : status;
}

rl_status ref_seq_import(rl_seq *seq, rl_get_fn get, void *ctx, rl_error *err)
{
    ref_seq *s = (ref_seq *)seq;
    const rl_model *m = model_of(s);
    const size_t size = ref_recurrent_size(&m->hp);
    rl_state_info info;
    ref_seq_reset(seq);
    rl_status status = rl_state_get_header(&m->hp, s->capacity, &info, get, ctx, err);
    if (status != RL_OK) return status;
    s->position = info.position;
    s->mtp_position = info.mtp_position;
    uint32_t recurrent = 0, cache = 0;
    for (uint32_t i = 0; status == RL_OK && i < m->hp.n_layer + m->hp.n_mtp; i++) {
        if (i < m->hp.n_layer && m->layers[i].kind == RL_LAYER_RECURRENT)
            status = rl_state_get(info.state, RL_ELEM_F64, s->recurrent + recurrent++ * size, size, get, ctx, err);
        else
            status = import_cache(s, cache++, info.kv, get, ctx, err);
    }
    if (status != RL_OK) ref_seq_reset(seq);
    return status;
}
