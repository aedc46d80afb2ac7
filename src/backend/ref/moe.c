/* backend/ref/moe: router, routed experts and the shared expert. */
#include "backend/ref/ref.h"
#include <math.h>
#include <string.h>

/* The k most probable experts in falling order, ties to the lower index, and their weights renormalised to sum 1. */
static void route_row(const rl_hparams *hp, const double *logits, double *ids, double *weights)
{
    const uint32_t n = hp->n_expert, k = hp->n_expert_used;
    double max = -INFINITY, all = 0, chosen = 0;
    for (uint32_t e = 0; e < n; e++)
        max = fmax(max, logits[e]);
    for (uint32_t e = 0; e < n; e++)
        all += exp(logits[e] - max);
    for (uint32_t i = 0; i < k; i++) {
        uint32_t best = n;
        for (uint32_t e = 0; e < n; e++) {
            bool taken = false;
            for (uint32_t p = 0; p < i; p++)
                taken |= ids[p] == e;
            if (!taken && (best == n || logits[e] > logits[best])) best = e;
        }
        ids[i] = best;
        weights[i] = exp(logits[best] - max) / all;
        chosen += weights[i];
    }
    for (uint32_t i = 0; i < k; i++)
        weights[i] /= fmax(chosen, 0x1p-14);
}

/* Rows that chose expert e, and with which weight. */
static uint32_t rows_of(const ref_run *run, uint32_t e, double *weight)
{
    const ref_scratch *s = &run->b->s;
    const uint32_t k = run->hp->n_expert_used;
    uint32_t n = 0;
    for (uint32_t t = 0; t < run->n_rows; t++)
        for (uint32_t i = 0; i < k; i++)
            if (s->ids[(size_t)t * k + i] == e) {
                weight[n] = s->weights[(size_t)t * k + i];
                s->rows[n++] = t;
                break;
            }
    return n;
}

/* y = down(silu(gate x) * up x) for n rows, through ff_gate and ff_up. */
static void feed_forward(ref_backend *b, const rl_matrix *gate, const rl_matrix *up, const rl_matrix *down, uint32_t e,
                         const double *x, uint32_t n, double *y)
{
    ref_scratch *s = &b->s;
    ref_matmul(b, gate, e, x, n, s->ff_gate);
    ref_matmul(b, up, e, x, n, s->ff_up);
    for (size_t i = 0; i < (size_t)n * gate->rows; i++)
        s->ff_up[i] *= ref_silu(s->ff_gate[i]);
    ref_matmul(b, down, e, s->ff_up, n, y);
}

/* Experts in rising order, so that a row's sum does not depend on the other rows. */
static void routed_experts(ref_run *run, const rl_layer *l)
{
    const size_t e = run->hp->n_embd;
    ref_backend *b = run->b;
    ref_scratch *s = &b->s;
    double *weight = s->shared; /* free until the shared expert runs */
    memset(s->experts, 0, run->n_rows * e * sizeof *s->experts);
    for (uint32_t x = 0; x < run->hp->n_expert; x++) {
        const uint32_t n = rows_of(run, x, weight);
        if (n == 0) continue;
        for (uint32_t i = 0; i < n; i++)
            memcpy(s->gather + i * e, s->norm + s->rows[i] * e, e * sizeof *s->gather);
        feed_forward(b, &l->gate_exps, &l->up_exps, &l->down_exps, x, s->gather, n, s->ff_out);
        for (uint32_t i = 0; i < n; i++)
            for (size_t c = 0; c < e; c++)
                s->experts[s->rows[i] * e + c] += weight[i] * s->ff_out[i * e + c];
    }
}

static void shared_expert(ref_run *run, const rl_layer *l)
{
    const size_t e = run->hp->n_embd;
    ref_scratch *s = &run->b->s;
    feed_forward(run->b, &l->gate_shared, &l->up_shared, &l->down_shared, 0, s->norm, run->n_rows, s->shared);
    for (size_t t = 0; t < run->n_rows; t++) {
        double gate = 0;
        for (size_t c = 0; c < e; c++)
            gate += (double)l->shared_router[c] * s->norm[t * e + c];
        for (size_t c = 0; c < e; c++)
            s->shared[t * e + c] *= ref_sigmoid(gate);
    }
}

rl_status ref_moe(ref_run *run, const rl_layer *l, uint32_t layer)
{
    const rl_hparams *hp = run->hp;
    ref_scratch *s = &run->b->s;
    const uint32_t n = run->n_rows, k = hp->n_expert_used;
    ref_matmul(run->b, &l->router, 0, s->norm, n, s->logits);
    rl_status status = ref_show(run, RL_STAGE_ROUTER_LOGITS, layer, s->logits);
    for (size_t t = 0; t < n; t++)
        route_row(hp, s->logits + t * hp->n_expert, s->ids + t * k, s->weights + t * k);
    if (status == RL_OK) status = ref_show(run, RL_STAGE_ROUTER_IDS, layer, s->ids);
    if (status == RL_OK) status = ref_show(run, RL_STAGE_ROUTER_WEIGHTS, layer, s->weights);
    if (status != RL_OK) return status;
    routed_experts(run, l);
    status = ref_show(run, RL_STAGE_EXPERTS, layer, s->experts);
    if (status != RL_OK) return status;
    shared_expert(run, l);
    status = ref_show(run, RL_STAGE_SHARED, layer, s->shared);
    for (size_t i = 0; i < (size_t)n * hp->n_embd; i++)
        s->x[i] += s->experts[i] + s->shared[i];
    return status;
}
