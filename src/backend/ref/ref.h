/* backend/ref: every stage in double precision, written as the formulas of docs/model.md read. It judges the other backends,
 * so it prefers plain to fast: weights are decoded where they are used, sums run in one fixed order per output, and a row's
 * numbers do not depend on the rows computed with it. Precision, KV type and instruction set of the options are ignored. */
#ifndef RL_BACKEND_REF_H
#define RL_BACKEND_REF_H

#include "backend/backend.h"

extern const rl_backend_ops rl_backend_ref;

/* Scratch of a pass: max_rows times the width of each stage. */
typedef struct ref_scratch {
    double *x, *norm, *mix;                               /* residual stream, input of a mixer or MoE, output of a mixer */
    double *qkv, *z, *ba, *beta, *decay, *conv, *dq, *dk; /* DeltaNet */
    double *qgate, *q, *k, *v;                            /* attention */
    double *core, *gated;                                 /* either mixer */
    double *logits, *ids, *weights, *experts, *shared;    /* MoE */
    double *gather, *ff_gate, *ff_up, *ff_out;            /* rows of one expert */
    double *hidden;                                       /* after the final norm; also both halves of the MTP input */
    double *head;                                         /* REF_HEAD_ROWS rows of the vocabulary */
    float *shown;                                         /* a stage as the tap sees it */
    uint32_t *rows;                                       /* rows that chose an expert */
} ref_scratch;

enum { REF_HEAD_ROWS = 16, REF_TILE = 16 };

typedef struct ref_backend {
    rl_backend base;
    rl_pool *pool;
    uint32_t max_rows;
    double *freq, rope_scale;
    double *tiles;  /* per member: REF_TILE rows of the widest matrix */
    float *decoded; /* per member: one row as decoded */
    uint32_t max_cols;
    double *scores; /* per member: attention over score_capacity positions */
    uint32_t score_capacity;
    ref_scratch s;
    void *scratch;
    uint64_t scratch_bytes;
} ref_backend;

/* Keys and values of one attention layer; grows with use. */
typedef struct ref_kv {
    double *k, *v;
    uint32_t rows;
} ref_kv;

typedef struct ref_seq {
    rl_seq base;
    uint32_t capacity, position, mtp_position;
    double *recurrent; /* per DeltaNet layer: W-1 convolution inputs, then Hv states [d][s] */
    ref_kv *kv;        /* per attention layer, then the MTP block */
} ref_seq;

/* A run of rows that belong to one sequence: what a mixer sees. */
typedef struct ref_span {
    ref_seq *seq;
    uint32_t row0, n, position;
} ref_span;

/* One pass over some rows: the trunk or the MTP block (which has no tap). */
typedef struct ref_run {
    ref_backend *b;
    const rl_hparams *hp;
    const ref_span *spans;
    uint32_t n_spans, n_rows;
    rl_tap_fn tap;
    void *tap_ctx;
    rl_error *err;
} ref_run;

static inline ref_backend *ref_backend_of(rl_backend *b)
{
    return (ref_backend *)b;
}

/* Numbers of one DeltaNet layer: convolution inputs, then states. */
static inline size_t ref_conv_size(const rl_hparams *hp)
{
    return (size_t)(hp->dn_conv - 1) * hp->dn_conv_dim;
}

static inline size_t ref_recurrent_size(const rl_hparams *hp)
{
    return ref_conv_size(hp) + (size_t)hp->dn_value_heads * hp->dn_head_dim * hp->dn_head_dim;
}

/* math.c */
double ref_sigmoid(double x);
double ref_silu(double x);
double ref_dot(const double *a, const double *b, size_t n);
void ref_rms_norm(const double *x, const float *w, uint32_t n, double eps, double *out);
void ref_l2_norm(const double *x, uint32_t n, double eps, double *out);
/* y[t][r] = row r of matrix e times x[t]; x is n rows of m->cols, y n rows of m->rows. */
void ref_matmul(ref_backend *b, const rl_matrix *m, uint32_t e, const double *x, uint32_t n, double *y);
void ref_decode_row(ref_backend *b, const rl_matrix *m, uint32_t e, uint32_t r, double *out);
/* fn(ctx, member, item) for every item < n, spread over the pool. */
typedef void (*ref_item_fn)(void *ctx, int member, uint32_t item);
void ref_parallel(ref_backend *b, uint32_t n, ref_item_fn fn, void *ctx);

/* forward.c */
rl_status ref_show(ref_run *run, rl_stage stage, uint32_t layer, double *values);
rl_status ref_forward(rl_backend *b, const rl_pass *pass, rl_error *err);
rl_status ref_mtp(rl_backend *b, rl_seq *s, const int32_t *ids, const float *hidden, uint32_t n, float *logits,
                  float *hidden_out, rl_error *err);

/* mixer.c: input in s.norm, output in s.mix. `index` counts layers of the kind. */
rl_status ref_attention(ref_run *run, const rl_layer *l, uint32_t layer, uint32_t index);
rl_status ref_deltanet(ref_run *run, const rl_layer *l, uint32_t layer, uint32_t index);

/* moe.c: input in s.norm, output added to s.x. */
rl_status ref_moe(ref_run *run, const rl_layer *l, uint32_t layer);

/* sequence.c */
rl_status ref_seq_create(rl_backend *b, uint32_t capacity, rl_seq **out, rl_error *err);
void ref_seq_free(rl_seq *s);
uint32_t ref_seq_position(const rl_seq *s);
void ref_seq_reset(rl_seq *s);
rl_status ref_seq_copy(rl_seq *dst, const rl_seq *src, rl_error *err);
rl_status ref_snapshot_take(const rl_seq *s, rl_snapshot **out, rl_error *err);
rl_status ref_restore(rl_seq *s, const rl_snapshot *snap, rl_error *err);
void ref_snapshot_free(rl_snapshot *snap);
uint64_t ref_snapshot_bytes(const rl_backend *b);
rl_status ref_seq_export(const rl_seq *s, rl_status (*put)(void *, const void *, size_t, rl_error *), void *ctx, rl_error *err);
rl_status ref_seq_import(rl_seq *s, rl_status (*get)(void *, void *, size_t, rl_error *), void *ctx, rl_error *err);
uint32_t ref_mtp_position(const rl_seq *s);
void ref_mtp_truncate(rl_seq *s, uint32_t n);
/* Room for the first `rows` positions of an attention layer. */
rl_status ref_kv_reserve(ref_seq *s, uint32_t index, uint32_t rows, rl_error *err);

#endif
