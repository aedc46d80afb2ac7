/* backend/cpu/matmul: weight matrices times activation rows, the bulk of all work.
 *
 * One interface for decode (one row) and prefill (many): y[t][r] = sum_c W[r][c] * x[t][c]. The caller splits the output rows
 * among threads; a call computes its range alone. Two precisions (backend.h): exact  float32 weights times float32 activations
 * in a fixed order of summation that depends on the column count only: the same bits for any number of activation rows, any
 * split of rows among threads, and any instruction set with fused multiply-add. fast   int8 activations: integer sums are
 * exact and the order of the float sums is fixed too (kern.h), so here as well all layouts, instruction sets and row counts
 * give the same bits. A matrix is used in the file's own layout (mapped) or re-encoded when opened (same values, cheaper to
 * decode). */
#ifndef RL_CPU_MATMUL_H
#define RL_CPU_MATMUL_H

#include "backend/backend.h"
#include "base/cpu.h"

/* Output rows are split among threads at multiples of this. */
#define RL_MM_ROWS 16

typedef struct rl_mm rl_mm; /* kernels chosen for one instruction set and precision */
rl_status rl_mm_create(rl_isa isa, rl_precision precision, rl_mm **out, rl_error *err);
void rl_mm_free(rl_mm *mm);

/* A matrix ready for use. For expert tensors one rl_mm_matrix describes all n matrices. */
typedef struct rl_mm_matrix {
    rl_type type;
    uint32_t rows, cols, n;
    const uint8_t *data; /* file layout, or the re-encoded copy */
    uint64_t row_bytes, matrix_bytes;
    uint32_t layout; /* 0 = the file's; others are private to matmul */
    void *owned;     /* the copy, or NULL */
    uint64_t owned_bytes;
} rl_mm_matrix;

/* repack asks for the re-encoded layout (ignored where there is none or where it would be slower). pool shares the work and may
 * be NULL. */
rl_status rl_mm_matrix_init(const rl_mm *mm, const rl_matrix *src, bool repack, rl_pool *pool, rl_mm_matrix *out,
                            rl_error *err);
void rl_mm_matrix_free(rl_mm_matrix *m);

/* Activation rows prepared for products with any matrix of `cols` columns. Memory is the caller's: rl_mm_act_bytes(…, n).
 * Several threads may prepare disjoint row ranges. x must stay valid: exact precision reads nothing else, and fast precision
 * reads it for plain weight types, which are always multiplied as floats. */
typedef struct rl_mm_act {
    const float *x; /* n rows of cols floats, `stride` floats apart */
    size_t stride;
    uint32_t cols, n;
    uint8_t *mem; /* quantised rows */
} rl_mm_act;
size_t rl_mm_act_bytes(const rl_mm *mm, uint32_t cols, uint32_t n);
void rl_mm_act_init(const rl_mm *mm, rl_mm_act *a, const float *x, size_t stride, uint32_t cols, uint32_t n, void *mem);
void rl_mm_act_prepare(const rl_mm *mm, rl_mm_act *a, uint32_t row_begin, uint32_t row_end);

/* Scratch per thread for rl_mm_mul. */
size_t rl_mm_scratch_bytes(const rl_mm *mm, uint32_t max_cols);

/* y[j * ldy + r] for r in [r_begin, r_end) of matrix e and activation rows index[j] (j when index is NULL), j < n_rows.
 * r_begin is a multiple of RL_MM_ROWS; r_end too, or the number of rows. */
void rl_mm_mul(const rl_mm *mm, const rl_mm_matrix *w, uint32_t e, uint32_t r_begin, uint32_t r_end, const rl_mm_act *a,
               const uint32_t *index, uint32_t n_rows, float *y, size_t ldy, void *scratch);

/* One row of a matrix as floats (embedding rows). */
void rl_mm_row(const rl_mm_matrix *w, uint32_t e, uint32_t r, float *out);

#endif
