/* backend/cpu/vec: everything of a layer that is not a product with a weight matrix, on float rows.
 *
 * One table of functions per instruction set; the bodies are written once (vec_kernels.h) over a handful of vector operations.
 * All sums are float32 in at least four partial sums and in an order fixed by the lengths alone. Lengths are free unless
 * stated; vectors that do not fill the last register are handled in the functions. */
#ifndef RL_CPU_VEC_H
#define RL_CPU_VEC_H

#include "base/cpu.h"
#include <stddef.h>
#include <stdint.h>

/* Tokens whose rows delta_chunk copies together at a time. */
#define RL_DELTA_STAGE 64

typedef struct rl_vec {
    rl_isa isa;
    uint32_t panel; /* query rows of a panel: the row counts of the tile functions are multiples of it */
    uint32_t lanes; /* floats in a register: the row counts of scores and softmax_tile are multiples of it */

    float (*dot)(const float *a, const float *b, uint32_t n);
    void (*add)(float *y, const float *x, uint32_t n);
    void (*axpy)(float *y, float a, const float *x, uint32_t n);
    void (*scale)(float *y, float a, uint32_t n);
    void (*rms_norm)(const float *x, const float *w, float eps, float *y, uint32_t n);
    void (*l2_norm)(float *x, float eps, uint32_t n);
    void (*silu_mul)(const float *g, const float *u, float *y, uint32_t n); /* y = silu(g) * u; y may be g or u */
    void (*sigmoid_mul)(const float *x, const float *gate, float *y, uint32_t n);
    void (*gated_norm)(const float *x, const float *w, const float *z, float eps, float *y, uint32_t n);
    /* y = silu(sum over i < taps of w[i * ldw + c] * u[i][c]) */
    void (*conv_silu)(const float *const *u, const float *w, size_t ldw, uint32_t taps, float *y, uint32_t n);
    /* Rotates the pairs (x[i], x[i + half]). */
    void (*rope)(float *x, const float *c, const float *s, uint32_t half);
    /* x = exp(x - max x); returns the sum. */
    float (*exp_sum)(float *x, uint32_t n);
    void (*from_f16)(const uint16_t *x, float *y, size_t n);
    void (*to_f16)(const float *x, uint16_t *y, size_t n);

    /* One token of the delta rule on one head's state m[key s][value d] (s x s): decay, read with k, write, read with q. */
    void (*delta_step)(float *m, uint32_t s, const float *q, const float *k, const float *v, float decay, float beta, float *o);
    /* The same for n tokens, four at a time in chunked form: the state is walked once per four tokens. q, k, v, o: row t at
     * t * ld; decay and beta: at t * ldg; q is multiplied by q_scale. stage: rl_delta_stage_floats(s) floats. */
    void (*delta_chunk)(float *m, uint32_t s, uint32_t n, const float *q, const float *k, size_t ldqk, float q_scale,
                        const float *v, size_t ldv, const float *decay, const float *beta, size_t ldg, float *o, size_t ldo,
                        float *stage);

    /* Attention. Scores and probabilities lie transposed, st[position][row], so that softmax works on whole registers.
     * pack_q turns n_tok x g query vectors (token t, head h at q + t * ldq + h * d) into panels, zero filled up to `rows`. */
    void (*pack_q)(const float *q, size_t ldq, uint32_t n_tok, uint32_t g, uint32_t d, float *panels, uint32_t rows);
    /* st[p][row] = scale * (key p . query row), many rows. */
    void (*score_tile)(const float *panels, uint32_t rows, const float *k, uint32_t n_pos, uint32_t d, float scale, float *st);
    /* The same for a few rows held as g contiguous vectors; columns from g to `rows` of st are left alone. Touches
     * prefetch_bytes at prefetch + p * prefetch_bytes for every position. */
    void (*scores)(const float *q, uint32_t g, const float *k, uint32_t n_pos, uint32_t d, float scale, float *st,
                   uint32_t rows, const void *prefetch, size_t prefetch_bytes);
    /* Online softmax: turns st into exp(st - m), brings the running maximum m and sum l up to date and leaves in corr the
     * factor for what was accumulated before. */
    void (*softmax_tile)(float *st, uint32_t rows, uint32_t n_pos, float *m, float *l, float *corr);
    /* o[row] = corr[row] * o[row] + sum over p of st[p][row] * v[p], for the first n_rows of `rows` rows of d floats. */
    void (*value_tile)(const float *st, uint32_t rows, uint32_t n_rows, uint32_t n_pos, const float *v, uint32_t d,
                       const float *corr, float *o);
} rl_vec;

/* The table for an instruction set; levels without one of their own get the next lower. */
const rl_vec *rl_vec_get(rl_isa isa);

size_t rl_delta_stage_floats(uint32_t s);

extern const rl_vec rl_vec_scalar;
#if defined(__x86_64__)
extern const rl_vec rl_vec_avx2, rl_vec_avx512;
#endif

#endif
