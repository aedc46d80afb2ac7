/* backend/cpu: the state of one sequence, its copies and its form as bytes (backend/state.h). Here the recurrent state lies
 * with the value index contiguous, which is the direction its kernels work in, and keys and values of a head lie together. */
#include "backend/cpu/cpu.h"
#include "backend/state.h"
#include <stdlib.h>
#include <string.h>

struct rl_snapshot {
    const rl_backend *backend;
    uint32_t pos;
    float data[]; /* conv, then state */
};

static size_t conv_floats(const rl_model *m)
{
    return (size_t)m->n_recurrent * (m->hp.dn_conv - 1) * m->hp.dn_conv_dim;
}

static size_t state_floats(const rl_model *m)
{
    return (size_t)m->n_recurrent * m->hp.dn_value_heads * m->hp.dn_head_dim * m->hp.dn_head_dim;
}

rl_status cpu_seq_create(rl_backend *backend, uint32_t capacity, rl_seq **out, rl_error *err)
{
    cpu_backend *b = (cpu_backend *)backend;
    const rl_model *m = backend->model;
    const size_t kv_rows = 2 * (size_t)(m->n_attention + m->hp.n_mtp) * m->hp.n_head_kv;
    size_t kv = 0;
    if (capacity == 0 || !rl_mul_size(kv_rows * m->hp.head_dim * b->kv_bytes, capacity, &kv))
        return rl_fail(err, RL_ERR_ARGUMENT, "a sequence cannot hold %u positions", capacity);
    cpu_seq *s = rl_calloc(1, sizeof *s);
    if (s) {
        s->base.backend = backend;
        s->capacity = capacity;
        s->conv = rl_aligned_alloc(RL_CACHE_LINE, conv_floats(m) + 1, sizeof(float));
        s->state = rl_aligned_alloc(RL_CACHE_LINE, state_floats(m) + 1, sizeof(float));
        s->kv = rl_aligned_alloc(RL_CACHE_LINE, kv + 1, 1);
    }
    if (!s || !s->conv || !s->state || !s->kv) {
        if (s) cpu_seq_free(&s->base);
        return rl_fail(err, RL_ERR_MEMORY, "no memory for a sequence of %u positions (%zu bytes of keys and values)", capacity,
                       kv);
    }
    cpu_seq_reset(&s->base);
    *out = &s->base;
    return RL_OK;
}

void cpu_seq_free(rl_seq *seq)
{
    if (!seq) return;
    cpu_seq *s = (cpu_seq *)seq;
    rl_aligned_free(s->conv);
    rl_aligned_free(s->state);
    rl_aligned_free(s->kv);
    free(s);
}

uint32_t cpu_seq_position(const rl_seq *s)
{
    return ((const cpu_seq *)s)->pos;
}

void cpu_seq_reset(rl_seq *seq)
{
    cpu_seq *s = (cpu_seq *)seq;
    memset(s->conv, 0, conv_floats(seq->backend->model) * sizeof(float));
    memset(s->state, 0, state_floats(seq->backend->model) * sizeof(float));
    s->pos = s->mtp_pos = 0;
}

/* Positions in use of a layer of the cache, the MTP block last. */
static uint32_t kv_length(const cpu_seq *s, uint32_t layer)
{
    return layer < s->base.backend->model->n_attention ? s->pos : s->mtp_pos;
}

rl_status cpu_seq_copy(rl_seq *to, const rl_seq *from, rl_error *err)
{
    cpu_seq *d = (cpu_seq *)to;
    const cpu_seq *s = (const cpu_seq *)from;
    const cpu_backend *b = (const cpu_backend *)from->backend;
    const rl_model *m = b->base.model;
    if (to->backend != from->backend) return rl_fail(err, RL_ERR_ARGUMENT, "sequences of different backends cannot be copied");
    if (d->capacity < s->pos || d->capacity < s->mtp_pos)
        return rl_fail(err, RL_ERR_LIMIT, "the copy holds %u positions, the sequence has %u", d->capacity, s->pos);
    if (d == s) return RL_OK;
    memcpy(d->conv, s->conv, conv_floats(m) * sizeof(float));
    memcpy(d->state, s->state, state_floats(m) * sizeof(float));
    for (uint32_t i = 0; i < m->n_attention + m->hp.n_mtp; i++)
        for (uint32_t what = 0; what < 2; what++)
            for (uint32_t h = 0; h < m->hp.n_head_kv; h++)
                memcpy(cpu_kv(b, d, i, what, h), cpu_kv(b, s, i, what, h),
                       (size_t)kv_length(s, i) * m->hp.head_dim * b->kv_bytes);
    d->pos = s->pos;
    d->mtp_pos = s->mtp_pos;
    return RL_OK;
}

/* ---- Snapshots --------------------------------------------------------------------------------------------------------- */

uint64_t cpu_snapshot_bytes(const rl_backend *b)
{
    return sizeof(rl_snapshot) + (conv_floats(b->model) + state_floats(b->model)) * sizeof(float);
}

rl_status cpu_snapshot(const rl_seq *seq, rl_snapshot **out, rl_error *err)
{
    const cpu_seq *s = (const cpu_seq *)seq;
    const rl_model *m = seq->backend->model;
    const uint64_t bytes = cpu_snapshot_bytes(seq->backend);
    rl_snapshot *snap = rl_aligned_alloc(RL_CACHE_LINE, bytes, 1);
    if (!snap) return rl_fail(err, RL_ERR_MEMORY, "no memory for a snapshot of %llu bytes", (unsigned long long)bytes);
    snap->backend = seq->backend;
    snap->pos = s->pos;
    memcpy(snap->data, s->conv, conv_floats(m) * sizeof(float));
    memcpy(snap->data + conv_floats(m), s->state, state_floats(m) * sizeof(float));
    *out = snap;
    return RL_OK;
}

rl_status cpu_restore(rl_seq *seq, const rl_snapshot *snap, rl_error *err)
{
    cpu_seq *s = (cpu_seq *)seq;
    const rl_model *m = seq->backend->model;
    if (snap->backend != seq->backend) return rl_fail(err, RL_ERR_ARGUMENT, "the snapshot belongs to another backend");
    if (snap->pos > s->pos)
        return rl_fail(err, RL_ERR_ARGUMENT, "a snapshot of position %u cannot be restored to a sequence at position %u",
                       snap->pos, s->pos);
    memcpy(s->conv, snap->data, conv_floats(m) * sizeof(float));
    memcpy(s->state, snap->data + conv_floats(m), state_floats(m) * sizeof(float));
    s->pos = snap->pos;
    return RL_OK;
}

void cpu_snapshot_free(rl_snapshot *snap)
{
    rl_aligned_free(snap);
}

/* ---- Bytes ------------------------------------------------------------------------------------------------------------- */

/* Output gathered into pieces of useful size, as rows of heads lie apart in memory. */
typedef struct out_stream {
    rl_put_fn put;
    void *ctx;
    rl_error *err;
    rl_status status;
    size_t used;
    uint8_t piece[16384];
} out_stream;

static void flush(out_stream *o)
{
    if (o->used && o->status == RL_OK) o->status = o->put(o->ctx, o->piece, o->used, o->err);
    o->used = 0;
}

static void write_bytes(out_stream *o, const void *data, size_t n)
{
    if (n > sizeof o->piece - o->used) flush(o);
    if (n > sizeof o->piece) {
        if (o->status == RL_OK) o->status = o->put(o->ctx, data, n, o->err);
        return;
    }
    memcpy(o->piece + o->used, data, n);
    o->used += n;
}

static void write_recurrent(out_stream *o, const cpu_seq *s, uint32_t layer)
{
    const rl_hparams *hp = &s->base.backend->model->hp;
    const size_t conv = (size_t)(hp->dn_conv - 1) * hp->dn_conv_dim, d = hp->dn_head_dim;
    write_bytes(o, s->conv + layer * conv, conv * sizeof(float));
    for (uint32_t h = 0; h < hp->dn_value_heads; h++) {
        const float *m = s->state + ((size_t)layer * hp->dn_value_heads + h) * d * d;
        for (size_t value = 0; value < d; value++) {
            float keys[RL_MAX_STATE];
            for (size_t key = 0; key < d; key++)
                keys[key] = m[key * d + value];
            write_bytes(o, keys, d * sizeof(float));
        }
    }
}

static void write_kv(out_stream *o, const cpu_seq *s, uint32_t layer, uint32_t n)
{
    const cpu_backend *b = (const cpu_backend *)s->base.backend;
    const size_t row = (size_t)b->base.model->hp.head_dim * b->kv_bytes;
    for (uint32_t what = 0; what < 2; what++)
        for (size_t at = 0; at < n; at++)
            for (uint32_t h = 0; h < b->base.model->hp.n_head_kv; h++)
                write_bytes(o, cpu_kv(b, s, layer, what, h) + at * row, row);
}

static rl_elem kv_elem(const cpu_backend *b)
{
    return b->kv == RL_KV_F16 ? RL_ELEM_F16 : RL_ELEM_F32;
}

rl_status cpu_seq_export(const rl_seq *seq, rl_put_fn put, void *ctx, rl_error *err)
{
    const cpu_seq *s = (const cpu_seq *)seq;
    const rl_model *m = seq->backend->model;
    const rl_state_info info = {s->pos, s->mtp_pos, RL_ELEM_F32, kv_elem((const cpu_backend *)seq->backend)};
    rl_status st = rl_state_put_header(&m->hp, &info, put, ctx, err);
    if (st != RL_OK) return st;
    out_stream o = {.put = put, .ctx = ctx, .err = err};
    uint32_t recurrent = 0, attention = 0;
    for (uint32_t i = 0; i < m->hp.n_layer && o.status == RL_OK; i++) {
        if (m->layers[i].kind == RL_LAYER_ATTENTION)
            write_kv(&o, s, attention++, s->pos);
        else
            write_recurrent(&o, s, recurrent++);
    }
    if (m->hp.n_mtp) write_kv(&o, s, attention, s->mtp_pos);
    flush(&o);
    return o.status;
}

typedef struct in_stream {
    rl_get_fn get;
    void *ctx;
    rl_error *err;
    rl_state_info info;
} in_stream;

static rl_status read_recurrent(const in_stream *in, cpu_seq *s, uint32_t layer)
{
    const rl_hparams *hp = &s->base.backend->model->hp;
    const size_t conv = (size_t)(hp->dn_conv - 1) * hp->dn_conv_dim, d = hp->dn_head_dim;
    rl_status st = rl_state_get(in->info.state, RL_ELEM_F32, s->conv + layer * conv, conv, in->get, in->ctx, in->err);
    for (uint32_t h = 0; h < hp->dn_value_heads; h++) {
        float *m = s->state + ((size_t)layer * hp->dn_value_heads + h) * d * d;
        for (size_t value = 0; value < d && st == RL_OK; value++) {
            float keys[RL_MAX_STATE];
            st = rl_state_get(in->info.state, RL_ELEM_F32, keys, d, in->get, in->ctx, in->err);
            for (size_t key = 0; key < d && st == RL_OK; key++)
                m[key * d + value] = keys[key];
        }
    }
    return st;
}

static rl_status read_kv(const in_stream *in, cpu_seq *s, uint32_t layer, uint32_t n)
{
    const cpu_backend *b = (const cpu_backend *)s->base.backend;
    const size_t d = b->base.model->hp.head_dim;
    rl_status st = RL_OK;
    for (uint32_t what = 0; what < 2; what++)
        for (size_t at = 0; at < n; at++)
            for (uint32_t h = 0; h < b->base.model->hp.n_head_kv && st == RL_OK; h++)
                st = rl_state_get(in->info.kv, kv_elem(b), cpu_kv(b, s, layer, what, h) + at * d * b->kv_bytes, d, in->get,
                                  in->ctx, in->err);
    return st;
}

rl_status cpu_seq_import(rl_seq *seq, rl_get_fn get, void *ctx, rl_error *err)
{
    cpu_seq *s = (cpu_seq *)seq;
    const rl_model *m = seq->backend->model;
    in_stream in = {.get = get, .ctx = ctx, .err = err};
    cpu_seq_reset(seq);
    rl_status st = rl_state_get_header(&m->hp, s->capacity, &in.info, get, ctx, err);
    uint32_t recurrent = 0, attention = 0;
    for (uint32_t i = 0; i < m->hp.n_layer && st == RL_OK; i++)
        st = m->layers[i].kind == RL_LAYER_ATTENTION ? read_kv(&in, s, attention++, in.info.position)
                                                     : read_recurrent(&in, s, recurrent++);
    if (st == RL_OK && m->hp.n_mtp) st = read_kv(&in, s, attention, in.info.mtp_position);
    if (st != RL_OK) {
        cpu_seq_reset(seq);
        return st;
    }
    s->pos = in.info.position;
    s->mtp_pos = in.info.mtp_position;
    return RL_OK;
}

uint32_t cpu_mtp_position(const rl_seq *s)
{
    return ((const cpu_seq *)s)->mtp_pos;
}

void cpu_mtp_truncate(rl_seq *seq, uint32_t n)
{
    cpu_seq *s = (cpu_seq *)seq;
    if (n < s->mtp_pos) s->mtp_pos = n;
}
