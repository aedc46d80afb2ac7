/* backend/cpu: the state of one sequence, its copies and its form as bytes.
 *
 * The exported form is the one of docs/backend.md: a head of sixteen little-endian words, then per recurrent layer the carried
 * conv rows and the state [value head][key][value], then per attention layer (the MTP block last) keys and values as
 * [KV head][position][D]. Memory is laid out the same way, so a part is written in one piece. */
#include "backend/cpu/cpu.h"
#include <stdlib.h>
#include <string.h>

#define STATE_MAGIC   0x53534c52u /* "RLSS" */
#define STATE_VERSION 1u

enum { HEAD_WORDS = 16 };

struct rl_snapshot {
    const rl_backend *backend;
    uint32_t pos, mtp_pos;
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
                memcpy(cpu_kv(b, d, i, what, h), cpu_kv(b, s, i, what, h), (size_t)kv_length(s, i) * m->hp.head_dim * b->kv_bytes);
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
    snap->mtp_pos = s->mtp_pos;
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
    if (snap->pos > s->capacity)
        return rl_fail(err, RL_ERR_LIMIT, "the snapshot stands at position %u, the sequence holds %u", snap->pos, s->capacity);
    memcpy(s->conv, snap->data, conv_floats(m) * sizeof(float));
    memcpy(s->state, snap->data + conv_floats(m), state_floats(m) * sizeof(float));
    s->pos = snap->pos;
    if (s->mtp_pos > snap->mtp_pos) s->mtp_pos = snap->mtp_pos;
    return RL_OK;
}

void cpu_snapshot_free(rl_snapshot *snap)
{
    rl_aligned_free(snap);
}

/* ---- Bytes ------------------------------------------------------------------------------------------------------------- */

static void fill_head(const cpu_seq *s, uint32_t *w)
{
    const cpu_backend *b = (const cpu_backend *)s->base.backend;
    const rl_model *m = b->base.model;
    const rl_hparams *hp = &m->hp;
    const uint32_t words[HEAD_WORDS] = {STATE_MAGIC,        STATE_VERSION,  s->pos,          s->mtp_pos,
                                        m->n_recurrent,     hp->dn_conv - 1, hp->dn_conv_dim, hp->dn_value_heads,
                                        hp->dn_head_dim,    m->n_attention, hp->n_mtp,       hp->n_head_kv,
                                        hp->head_dim,       (uint32_t)b->kv};
    memcpy(w, words, sizeof words);
}

rl_status cpu_seq_export(const rl_seq *seq, rl_status (*put)(void *ctx, const void *data, size_t n, rl_error *err), void *ctx,
                         rl_error *err)
{
    const cpu_seq *s = (const cpu_seq *)seq;
    const cpu_backend *b = (const cpu_backend *)seq->backend;
    const rl_model *m = b->base.model;
    uint32_t head[HEAD_WORDS];
    fill_head(s, head);
    rl_status st = put(ctx, head, sizeof head, err);
    const size_t conv = conv_floats(m) / (m->n_recurrent ? m->n_recurrent : 1);
    const size_t state = state_floats(m) / (m->n_recurrent ? m->n_recurrent : 1);
    for (uint32_t i = 0; i < m->n_recurrent && st == RL_OK; i++) {
        st = put(ctx, s->conv + i * conv, conv * sizeof(float), err);
        if (st == RL_OK) st = put(ctx, s->state + i * state, state * sizeof(float), err);
    }
    for (uint32_t i = 0; i < m->n_attention + m->hp.n_mtp; i++)
        for (uint32_t what = 0; what < 2; what++)
            for (uint32_t h = 0; h < m->hp.n_head_kv && st == RL_OK && kv_length(s, i); h++)
                st = put(ctx, cpu_kv(b, s, i, what, h), (size_t)kv_length(s, i) * m->hp.head_dim * b->kv_bytes, err);
    return st;
}

/* One head's rows, converted when they were stored in the other type. */
static rl_status read_rows(const cpu_backend *b, rl_kv_type stored, uint8_t *to, size_t n,
                           rl_status (*get)(void *ctx, void *data, size_t n, rl_error *err), void *ctx, rl_error *err)
{
    if (stored == b->kv) return get(ctx, to, n * b->kv_bytes, err);
    enum { PIECE = 4096 };
    float wide[PIECE];
    uint16_t narrow[PIECE];
    for (size_t at = 0; at < n; at += PIECE) {
        const size_t count = n - at < PIECE ? n - at : PIECE;
        const bool widen = b->kv == RL_KV_F32;
        const rl_status st = widen ? get(ctx, narrow, count * sizeof *narrow, err) : get(ctx, wide, count * sizeof *wide, err);
        if (st != RL_OK) return st;
        if (widen)
            b->vec->from_f16(narrow, (float *)(void *)to + at, count);
        else
            b->vec->to_f16(wide, (uint16_t *)(void *)to + at, count);
    }
    return RL_OK;
}

static rl_status check_head(const cpu_seq *s, const uint32_t *head, rl_error *err)
{
    uint32_t want[HEAD_WORDS];
    fill_head(s, want);
    if (head[0] != STATE_MAGIC || head[1] != STATE_VERSION)
        return rl_fail(err, RL_ERR_FORMAT, "this is not the state of a sequence in version %u", STATE_VERSION);
    if (memcmp(head + 4, want + 4, 9 * sizeof *head) != 0)
        return rl_fail(err, RL_ERR_FORMAT, "the saved state has another shape than this model");
    if (head[13] != RL_KV_F32 && head[13] != RL_KV_F16)
        return rl_fail(err, RL_ERR_FORMAT, "the saved state names key and value type %u, expected 0 or 1", head[13]);
    if (head[2] > s->capacity || head[3] > s->capacity)
        return rl_fail(err, RL_ERR_LIMIT, "the saved state has %u positions and %u MTP entries, the sequence holds %u", head[2],
                       head[3], s->capacity);
    return RL_OK;
}

static rl_status read_body(cpu_seq *s, rl_kv_type stored, rl_status (*get)(void *ctx, void *data, size_t n, rl_error *err),
                           void *ctx, rl_error *err)
{
    const cpu_backend *b = (const cpu_backend *)s->base.backend;
    const rl_model *m = b->base.model;
    rl_status st = RL_OK;
    const size_t conv = conv_floats(m) / (m->n_recurrent ? m->n_recurrent : 1);
    const size_t state = state_floats(m) / (m->n_recurrent ? m->n_recurrent : 1);
    for (uint32_t i = 0; i < m->n_recurrent && st == RL_OK; i++) {
        st = get(ctx, s->conv + i * conv, conv * sizeof(float), err);
        if (st == RL_OK) st = get(ctx, s->state + i * state, state * sizeof(float), err);
    }
    for (uint32_t i = 0; i < m->n_attention + m->hp.n_mtp; i++)
        for (uint32_t what = 0; what < 2; what++)
            for (uint32_t h = 0; h < m->hp.n_head_kv && st == RL_OK && kv_length(s, i); h++)
                st = read_rows(b, stored, cpu_kv(b, s, i, what, h), (size_t)kv_length(s, i) * m->hp.head_dim, get, ctx, err);
    return st;
}

rl_status cpu_seq_import(rl_seq *seq, rl_status (*get)(void *ctx, void *data, size_t n, rl_error *err), void *ctx, rl_error *err)
{
    cpu_seq *s = (cpu_seq *)seq;
    uint32_t head[HEAD_WORDS];
    cpu_seq_reset(seq);
    rl_status st = get(ctx, head, sizeof head, err);
    if (st == RL_OK) st = check_head(s, head, err);
    if (st != RL_OK) return st;
    s->pos = head[2];
    s->mtp_pos = head[3];
    st = read_body(s, (rl_kv_type)head[13], get, ctx, err);
    if (st != RL_OK) cpu_seq_reset(seq);
    return st;
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
