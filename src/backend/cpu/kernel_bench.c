/* backend/cpu/kernel_bench: speed of the matrix kernels alone, on random weights with harmless scales. */
#include "backend/cpu/kernel_bench.h"
#include "base/mem.h"

#include <string.h>
#include <time.h>

/* Where the binary16 numbers of a block are; none in the remaining types, whose random bytes are harmless. */
static int scale_offsets(rl_type type, uint32_t at[2])
{
    switch (type) {
    case RL_Q4_0:
    case RL_Q5_0:
    case RL_Q8_0:
    case RL_IQ4_NL:
    case RL_IQ4_XS:
    case RL_IQ1_S:
    case RL_IQ2_XXS:
    case RL_IQ2_XS:
    case RL_IQ2_S:
    case RL_IQ3_XXS:
    case RL_IQ3_S:
    case RL_Q1_0:
    case RL_Q2_0:
    case RL_F16:
        at[0] = 0;
        return 1;
    case RL_Q4_1:
    case RL_Q5_1:
    case RL_Q4_K:
    case RL_Q5_K:
        at[0] = 0, at[1] = 2;
        return 2;
    case RL_Q2_K:
        at[0] = 80, at[1] = 82;
        return 2;
    case RL_Q3_K:
        at[0] = 108;
        return 1;
    case RL_Q6_K:
        at[0] = 208;
        return 1;
    case RL_TQ1_0:
        at[0] = 52;
        return 1;
    case RL_TQ2_0:
        at[0] = 64;
        return 1;
    default:
        return 0;
    }
}

static void random_blocks(rl_type type, uint8_t *dst, uint64_t bytes)
{
    const rl_type_info *info = rl_type_get(type);
    uint64_t state = 0x9e3779b97f4a7c15u;
    for (uint64_t i = 0; i < bytes; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        dst[i] = (uint8_t)(state >> 56);
    }
    uint32_t at[2];
    const int n = scale_offsets(type, at);
    for (uint64_t b = 0; b + info->block_bytes <= bytes; b += info->block_bytes) {
        uint8_t *block = dst + b;
        for (int i = 0; i < n; i++)
            block[at[i] + 1] = 0x24 | (block[at[i] + 1] & 0x83); /* magnitudes of 2^-6 and thereabouts */
        if (type == RL_IQ1_M) block[55] = (uint8_t)(0x20 | (block[55] & 0x8f));
        if (type == RL_MXFP4) block[0] = (uint8_t)(120 | (block[0] & 3));
        if (type == RL_BF16) block[1] = 0x3c | (block[1] & 0x83);
        if (type == RL_F32) block[3] = 0x3c | (block[3] & 0x83);
    }
}

/* CPU time of this thread: what other programs take from the core does not count. */
static double thread_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

typedef struct bench {
    rl_mm *mm;
    uint8_t *data;
    float *x, *y;
    void *act, *scratch;
    rl_mm_matrix w;
} bench;

static void release(bench *b)
{
    if (b->mm) rl_mm_matrix_free(&b->w);
    rl_aligned_free(b->data);
    rl_aligned_free(b->x);
    rl_aligned_free(b->y);
    rl_aligned_free(b->act);
    rl_aligned_free(b->scratch);
    rl_mm_free(b->mm);
}

static rl_status prepare(const rl_kernel_bench_case *c, bench *b, rl_error *err)
{
    rl_status status = rl_mm_create(c->isa, c->precision, &b->mm, err);
    if (status != RL_OK) return status;
    rl_matrix m = {.type = c->type, .cols = c->cols, .rows = c->rows, .row_bytes = rl_type_row_bytes(c->type, c->cols)};
    m.matrix_bytes = m.row_bytes * m.rows;
    m.n = c->bytes > m.matrix_bytes ? (uint32_t)(c->bytes / m.matrix_bytes) : 1;
    b->data = rl_aligned_alloc(64, m.n, m.matrix_bytes);
    b->x = rl_aligned_alloc(64, (size_t)c->acts * c->cols, sizeof(float));
    b->y = rl_aligned_alloc(64, (size_t)c->acts * c->rows, sizeof(float));
    b->act = rl_aligned_alloc(64, rl_mm_act_bytes(b->mm, c->cols, c->acts) + 1, 1);
    b->scratch = rl_aligned_alloc(64, rl_mm_scratch_bytes(b->mm, c->cols), 1);
    if (!b->data || !b->x || !b->y || !b->act || !b->scratch)
        return rl_fail(err, RL_ERR_MEMORY, "kernel-bench: out of memory for %llu bytes of weights",
                       (unsigned long long)c->bytes);
    random_blocks(c->type, b->data, m.matrix_bytes * m.n);
    for (size_t i = 0; i < (size_t)c->acts * c->cols; i++)
        b->x[i] = (float)((i * 2654435761u >> 16 & 0xff) - 128.0) / 64;
    m.data = b->data;
    return rl_mm_matrix_init(b->mm, &m, c->repack, NULL, &b->w, err);
}

rl_status rl_kernel_bench(const rl_kernel_bench_case *c, rl_kernel_bench_result *out, rl_error *err)
{
    const rl_type_info *info = rl_type_get(c->type);
    if (!info || c->rows == 0 || c->acts == 0 || c->cols == 0 || c->cols % 256 != 0)
        return rl_fail(err, RL_ERR_ARGUMENT,
                       "kernel-bench: rows and activation rows must be at least 1, columns a multiple of 256");
    bench b = {0};
    rl_status status = prepare(c, &b, err);
    if (status == RL_OK) {
        rl_mm_act act;
        rl_mm_act_init(b.mm, &act, b.x, c->cols, c->cols, c->acts, b.act);
        rl_mm_act_prepare(b.mm, &act, 0, c->acts);
        uint64_t products = 0;
        double begin = 0, elapsed = 0;
        for (uint32_t e = 0;; e = (e + 1) % b.w.n) {
            rl_mm_mul(b.mm, &b.w, e, 0, c->rows, &act, NULL, c->acts, b.y, c->rows, b.scratch);
            if (begin == 0) { /* the first product warms up */
                begin = thread_seconds();
                continue;
            }
            products++;
            elapsed = thread_seconds() - begin;
            if (elapsed >= c->seconds) break;
        }
        const double weights = (double)c->rows * c->cols * (double)products / elapsed;
        out->repacked = b.w.layout != 0;
        out->bytes_per_weight = (double)b.w.matrix_bytes / ((double)c->rows * c->cols);
        out->weights_per_second = weights;
        out->bytes_per_second = weights * out->bytes_per_weight;
        out->macs_per_second = weights * c->acts;
    }
    release(&b);
    return status;
}
