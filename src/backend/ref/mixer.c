/* backend/ref/mixer: the two token mixers, gated attention and gated DeltaNet. */
#include "backend/ref/ref.h"
#include <math.h>
#include <string.h>

/* Returns from the calling stage when the tap (or anything else) failed. */
#define TRY(call)                                                                                                              \
    do {                                                                                                                       \
        rl_status status_ = (call);                                                                                            \
        if (status_ != RL_OK) return status_;                                                                                  \
    } while (0)

/* ---- Attention --------------------------------------------------------------------------------------------------------- */

/* Rotates pairs (i, i + R/2) of the first R components. */
static void rope(const ref_backend *b, uint32_t n_rot, uint32_t position, double *x)
{
    const uint32_t half = n_rot / 2;
    for (uint32_t i = 0; i < half; i++) {
        const double angle = position * b->freq[i], c = cos(angle) * b->rope_scale, s = sin(angle) * b->rope_scale;
        const double lo = x[i], hi = x[i + half];
        x[i] = lo * c - hi * s;
        x[i + half] = lo * s + hi * c;
    }
}

static void norm_and_rotate(ref_run *run, const rl_layer *l)
{
    const rl_hparams *hp = run->hp;
    const ref_scratch *s = &run->b->s;
    const uint32_t d = hp->head_dim;
    for (uint32_t i = 0; i < run->n_spans; i++)
        for (uint32_t t = 0; t < run->spans[i].n; t++) {
            const size_t row = run->spans[i].row0 + t;
            const uint32_t position = run->spans[i].position + t;
            for (uint32_t h = 0; h < hp->n_head; h++) {
                double *q = s->q + (row * hp->n_head + h) * d;
                ref_rms_norm(s->qgate + (row * hp->n_head + h) * 2 * d, l->q_norm, d, (double)hp->eps, q);
                rope(run->b, hp->n_rot, position, q);
            }
            for (uint32_t j = 0; j < hp->n_head_kv; j++) {
                double *k = s->k + (row * hp->n_head_kv + j) * d;
                ref_rms_norm(k, l->k_norm, d, (double)hp->eps, k);
                rope(run->b, hp->n_rot, position, k);
            }
        }
}

typedef struct attend {
    ref_run *run;
    const ref_span *span;
    const ref_kv *kv;
} attend;

/* One query head of one row over all keys up to its own position. */
static void attend_head(void *ctx, int member, uint32_t item)
{
    const attend *a = ctx;
    const rl_hparams *hp = a->run->hp;
    const ref_backend *b = a->run->b;
    const uint32_t d = hp->head_dim, h = item % hp->n_head, t = item / hp->n_head, j = h / (hp->n_head / hp->n_head_kv);
    const uint32_t n = a->span->position + t + 1;
    const size_t row = a->span->row0 + t, stride = (size_t)hp->n_head_kv * d;
    const double *q = b->s.q + (row * hp->n_head + h) * d, *k = a->kv->k + (size_t)j * d, *v = a->kv->v + (size_t)j * d;
    double *score = b->scores + (size_t)member * b->score_capacity, *out = b->s.core + (row * hp->n_head + h) * d;
    double max = -INFINITY, sum = 0;
    for (uint32_t u = 0; u < n; u++) {
        score[u] = ref_dot(q, k + u * stride, d) / sqrt(d);
        max = fmax(max, score[u]);
    }
    for (uint32_t u = 0; u < n; u++)
        sum += score[u] = exp(score[u] - max);
    memset(out, 0, d * sizeof *out);
    for (uint32_t u = 0; u < n; u++)
        for (uint32_t i = 0; i < d; i++)
            out[i] += score[u] / sum * v[u * stride + i];
}

rl_status ref_attention(ref_run *run, const rl_layer *l, uint32_t layer, uint32_t index)
{
    const rl_hparams *hp = run->hp;
    ref_backend *b = run->b;
    ref_scratch *s = &b->s;
    const uint32_t d = hp->head_dim, n = run->n_rows;
    const size_t kv_width = (size_t)hp->n_head_kv * d;
    ref_matmul(b, &l->q, 0, s->norm, n, s->qgate);
    TRY(ref_show(run, RL_STAGE_AT_QGATE, layer, s->qgate));
    ref_matmul(b, &l->k, 0, s->norm, n, s->k);
    ref_matmul(b, &l->v, 0, s->norm, n, s->v);
    norm_and_rotate(run, l);
    TRY(ref_show(run, RL_STAGE_AT_Q, layer, s->q));
    TRY(ref_show(run, RL_STAGE_AT_K, layer, s->k));
    TRY(ref_show(run, RL_STAGE_AT_V, layer, s->v));
    for (uint32_t i = 0; i < run->n_spans; i++) {
        const ref_span *span = &run->spans[i];
        TRY(ref_kv_reserve(span->seq, index, span->position + span->n, run->err));
        const ref_kv *kv = &span->seq->kv[index];
        memcpy(kv->k + span->position * kv_width, s->k + span->row0 * kv_width, span->n * kv_width * sizeof *s->k);
        memcpy(kv->v + span->position * kv_width, s->v + span->row0 * kv_width, span->n * kv_width * sizeof *s->v);
        attend a = {run, span, kv};
        ref_parallel(b, span->n * hp->n_head, attend_head, &a);
    }
    TRY(ref_show(run, RL_STAGE_AT_CORE, layer, s->core));
    for (size_t i = 0; i < (size_t)n * hp->n_head; i++)
        for (uint32_t c = 0; c < d; c++)
            s->gated[i * d + c] = s->core[i * d + c] * ref_sigmoid(s->qgate[i * 2 * d + d + c]);
    TRY(ref_show(run, RL_STAGE_AT_GATED, layer, s->gated));
    ref_matmul(b, &l->o, 0, s->gated, n, s->mix);
    return RL_OK;
}

/* ---- DeltaNet ---------------------------------------------------------------------------------------------------------- */

static double softplus(double x)
{
    return x > 20 ? x : log1p(exp(x));
}

/* ba holds, per key head, the betas of its r value heads and then their alphas. */
static void beta_and_decay(ref_run *run, const rl_layer *l)
{
    const rl_hparams *hp = run->hp;
    const ref_scratch *s = &run->b->s;
    const uint32_t hv = hp->dn_value_heads, r = hv / hp->dn_key_heads;
    for (size_t t = 0; t < run->n_rows; t++)
        for (uint32_t h = 0; h < hv; h++) {
            const double *ba = s->ba + t * 2 * hv + (size_t)(h / r) * 2 * r;
            s->beta[t * hv + h] = ref_sigmoid(ba[h % r]);
            s->decay[t * hv + h] = (double)l->a[h] * softplus(ba[r + h % r] + (double)l->dt_bias[h]);
        }
}

/* Causal convolution over time and SiLU, per channel; `past` holds the last W-1 inputs and is moved on. */
static void convolve(ref_run *run, const rl_layer *l, const ref_span *span, double *past)
{
    const rl_hparams *hp = run->hp;
    const uint32_t w = hp->dn_conv, cd = hp->dn_conv_dim, back = w - 1;
    const double *u = run->b->s.qkv + (size_t)span->row0 * cd;
    double *out = run->b->s.conv + (size_t)span->row0 * cd;
    for (uint32_t t = 0; t < span->n; t++)
        for (uint32_t c = 0; c < cd; c++) {
            double sum = 0;
            for (uint32_t i = 0; i < w; i++) {
                const size_t at = t + i; /* in past followed by u */
                sum += (double)l->conv[(size_t)c * w + i] * (at < back ? past[at * cd + c] : u[(at - back) * cd + c]);
            }
            out[(size_t)t * cd + c] = ref_silu(sum);
        }
    for (uint32_t i = 0; i < back; i++) {
        const size_t at = (size_t)span->n + i;
        memmove(past + (size_t)i * cd, at < back ? past + at * cd : u + (at - back) * cd, cd * sizeof *past);
    }
}

static void normalise_heads(ref_run *run)
{
    const rl_hparams *hp = run->hp;
    const ref_scratch *s = &run->b->s;
    const uint32_t dim = hp->dn_head_dim;
    for (size_t t = 0; t < run->n_rows; t++)
        for (uint32_t j = 0; j < hp->dn_key_heads; j++) {
            const double *c = s->conv + t * hp->dn_conv_dim + (size_t)j * dim;
            const size_t to = t * hp->dn_key_dim + (size_t)j * dim;
            ref_l2_norm(c, dim, (double)hp->eps, s->dq + to);
            ref_l2_norm(c + hp->dn_key_dim, dim, (double)hp->eps, s->dk + to);
        }
}

typedef struct delta {
    ref_run *run;
    uint32_t index;
} delta;

/* One value head of one sequence over its rows: decay, read with k, write, read with q. Row d of the state holds M[.][d]. */
static void delta_head(void *ctx, int member, uint32_t item)
{
    const delta *x = ctx;
    const rl_hparams *hp = x->run->hp;
    const ref_scratch *s = &x->run->b->s;
    const uint32_t dim = hp->dn_head_dim, hv = hp->dn_value_heads, h = item % hv, j = h / (hv / hp->dn_key_heads);
    const ref_span *span = &x->run->spans[item / hv];
    double *state = span->seq->recurrent + x->index * ref_recurrent_size(hp) + ref_conv_size(hp) + (size_t)h * dim * dim;
    (void)member;
    for (size_t t = span->row0; t < span->row0 + span->n; t++) {
        const double *q = s->dq + t * hp->dn_key_dim + (size_t)j * dim, *k = s->dk + t * hp->dn_key_dim + (size_t)j * dim;
        const double *v = s->conv + t * hp->dn_conv_dim + 2 * hp->dn_key_dim + (size_t)h * dim;
        const double decay = exp(s->decay[t * hv + h]), beta = s->beta[t * hv + h];
        double *out = s->core + t * hp->dn_value_dim + (size_t)h * dim;
        for (uint32_t d = 0; d < dim; d++) {
            double *m = state + (size_t)d * dim;
            for (uint32_t i = 0; i < dim; i++)
                m[i] *= decay;
            const double write = beta * (v[d] - ref_dot(m, k, dim));
            for (uint32_t i = 0; i < dim; i++)
                m[i] += k[i] * write;
            out[d] = ref_dot(m, q, dim) / sqrt(dim);
        }
    }
}

static void norm_and_gate(ref_run *run, const rl_layer *l)
{
    const rl_hparams *hp = run->hp;
    const ref_scratch *s = &run->b->s;
    const uint32_t dim = hp->dn_head_dim;
    for (size_t head = 0; head < (size_t)run->n_rows * hp->dn_value_heads; head++) {
        double *out = s->gated + head * dim;
        ref_rms_norm(s->core + head * dim, l->ssm_norm, dim, (double)hp->eps, out);
        for (uint32_t d = 0; d < dim; d++)
            out[d] *= ref_silu(s->z[head * dim + d]);
    }
}

rl_status ref_deltanet(ref_run *run, const rl_layer *l, uint32_t layer, uint32_t index)
{
    const rl_hparams *hp = run->hp;
    ref_backend *b = run->b;
    ref_scratch *s = &b->s;
    const uint32_t n = run->n_rows;
    ref_matmul(b, &l->qkv, 0, s->norm, n, s->qkv);
    TRY(ref_show(run, RL_STAGE_DN_QKV, layer, s->qkv));
    ref_matmul(b, &l->gate, 0, s->norm, n, s->z);
    TRY(ref_show(run, RL_STAGE_DN_Z, layer, s->z));
    ref_matmul(b, &l->ba, 0, s->norm, n, s->ba);
    beta_and_decay(run, l);
    TRY(ref_show(run, RL_STAGE_DN_BETA, layer, s->beta));
    TRY(ref_show(run, RL_STAGE_DN_DECAY, layer, s->decay));
    for (uint32_t i = 0; i < run->n_spans; i++)
        convolve(run, l, &run->spans[i], run->spans[i].seq->recurrent + index * ref_recurrent_size(hp));
    TRY(ref_show(run, RL_STAGE_DN_CONV, layer, s->conv));
    normalise_heads(run);
    TRY(ref_show(run, RL_STAGE_DN_Q, layer, s->dq));
    TRY(ref_show(run, RL_STAGE_DN_K, layer, s->dk));
    delta x = {run, index};
    ref_parallel(b, run->n_spans * hp->dn_value_heads, delta_head, &x);
    TRY(ref_show(run, RL_STAGE_DN_CORE, layer, s->core));
    norm_and_gate(run, l);
    TRY(ref_show(run, RL_STAGE_DN_GATED, layer, s->gated));
    ref_matmul(b, &l->out, 0, s->gated, n, s->mix);
    return RL_OK;
}
