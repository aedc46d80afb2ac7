/* backend/cpu/matmul: the driver of the kernels. Splits a product into tiles, builds each once and multiplies it with all
 * activation rows; knows nothing of types beyond their class, nor of instruction sets beyond their table. */
#include "backend/cpu/matmul.h"
#include "backend/cpu/kern.h"
#include "base/mem.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define SUPER(g)                                                                                                               \
    {                                                                                                                          \
        .kclass = RL_KCLASS_SUPER, .group = g, .offsets = false, .bias = 128                                                   \
    }
#define SUPER_OFFSETS(g)                                                                                                       \
    {                                                                                                                          \
        .kclass = RL_KCLASS_SUPER, .group = g, .offsets = true, .bias = 0                                                      \
    }
#define BLOCK_32                                                                                                               \
    {                                                                                                                          \
        .kclass = RL_KCLASS_32, .group = 32, .offsets = false, .bias = 128                                                     \
    }

const rl_ktype rl_ktypes_wide[RL_TYPE_END] = {
    [RL_Q4_0] = BLOCK_32,          [RL_Q5_0] = BLOCK_32,   [RL_Q8_0] = BLOCK_32,          [RL_IQ4_NL] = BLOCK_32,
    [RL_MXFP4] = BLOCK_32,         [RL_Q3_K] = SUPER(16),  [RL_Q2_K] = SUPER_OFFSETS(16), [RL_Q4_K] = SUPER_OFFSETS(32),
    [RL_Q5_K] = SUPER_OFFSETS(32), [RL_Q6_K] = SUPER(16),  [RL_TQ1_0] = SUPER(32),        [RL_TQ2_0] = SUPER(32),
    [RL_IQ1_S] = SUPER(32),        [RL_IQ1_M] = SUPER(16), [RL_IQ2_XXS] = SUPER(32),      [RL_IQ2_XS] = SUPER(16),
    [RL_IQ2_S] = SUPER(16),        [RL_IQ3_S] = SUPER(32), [RL_IQ3_XXS] = SUPER(32),      [RL_IQ4_XS] = SUPER(32),
};

struct rl_mm {
    rl_precision precision;
    const rl_kern *kern;
};

const rl_kern *rl_mm_kern(rl_isa isa)
{
#if defined(__x86_64__)
    if (isa == RL_ISA_AVX512) return &rl_kern_avx512;
#endif
    (void)isa;
    return &rl_kern_scalar;
}

rl_status rl_mm_create(rl_isa isa, rl_precision precision, rl_mm **out, rl_error *err)
{
    const rl_status status = rl_isa_parse(rl_isa_name(isa), &isa, err);
    if (status != RL_OK) return status;
    rl_mm *mm = malloc(sizeof *mm);
    if (!mm) return rl_fail(err, RL_ERR_MEMORY, "out of memory for the table of matrix kernels");
    mm->precision = precision;
    mm->kern = rl_mm_kern(isa);
    *out = mm;
    return RL_OK;
}

void rl_mm_free(rl_mm *mm)
{
    free(mm);
}

rl_status rl_mm_matrix_init(const rl_mm *mm, const rl_matrix *src, bool repack, rl_pool *pool, rl_mm_matrix *out, rl_error *err)
{
    (void)mm, (void)repack, (void)pool;
    if (!rl_quant_get(src->type)) {
        const rl_type_info *info = rl_type_get(src->type);
        return rl_fail(err, RL_ERR_UNSUPPORTED, "type %s holds no weights to multiply with", info ? info->name : "unknown");
    }
    *out = (rl_mm_matrix){.type = src->type,
                          .rows = src->rows,
                          .cols = src->cols,
                          .n = src->n,
                          .data = src->data,
                          .row_bytes = src->row_bytes,
                          .matrix_bytes = src->matrix_bytes};
    return RL_OK;
}

void rl_mm_matrix_free(rl_mm_matrix *m)
{
    rl_aligned_free(m->owned);
    *m = (rl_mm_matrix){0};
}

static bool quantised(const rl_mm *mm, uint32_t cols)
{
    return mm->precision == RL_PRECISION_FAST && cols % 32 == 0;
}

size_t rl_mm_act_bytes(const rl_mm *mm, uint32_t cols, uint32_t n)
{
    return quantised(mm, cols) ? sizeof(rl_act_block) * rl_act_blocks(cols) * n + 63 : 0;
}

void rl_mm_act_init(const rl_mm *mm, rl_mm_act *a, const float *x, size_t stride, uint32_t cols, uint32_t n, void *mem)
{
    (void)mm;
    *a = (rl_mm_act){.x = x, .stride = stride, .cols = cols, .n = n};
    a->mem = mem ? (uint8_t *)(((uintptr_t)mem + 63) & ~(uintptr_t)63) : NULL;
}

void rl_mm_act_prepare(const rl_mm *mm, rl_mm_act *a, uint32_t row_begin, uint32_t row_end)
{
    if (!quantised(mm, a->cols)) return;
    rl_act_block *blocks = (rl_act_block *)a->mem;
    for (uint32_t i = row_begin; i < row_end; i++)
        mm->kern->quantize(a->x + i * a->stride, a->cols, blocks + (size_t)i * rl_act_blocks(a->cols));
}

/* What one call of rl_mm_mul works in. rows is the staging area of types without an integer tile. */
typedef struct scratch {
    rl_tile tile;
    _Alignas(64) float w[RL_TILE_COLS * RL_TILE_ROWS];
    _Alignas(64) float rows[RL_TILE_COLS * RL_TILE_ROWS];
    _Alignas(64) float acc[RL_TILE_ACTS * RL_TILE_ROWS];
    union {
        const float *x[RL_TILE_ACTS];
        const rl_act_block *act[RL_TILE_ACTS];
    } in;
} scratch;

size_t rl_mm_scratch_bytes(const rl_mm *mm, uint32_t max_cols)
{
    (void)mm, (void)max_cols;
    return sizeof(scratch) + 63;
}

static void build_tile(const rl_kern *kern, rl_type type, const uint8_t *const *rows, uint32_t n_cols, rl_tile *t)
{
    const rl_ktype *k = &kern->types[type];
    if (kern->build[type]) {
        kern->build[type](rows, n_cols, t);
        return;
    }
    rl_tile_build_portable(type, k, rows, n_cols, t);
    kern->finish(k, n_cols, t);
}

static void build_float_tile(const rl_kern *kern, rl_type type, const uint8_t *const *rows, uint32_t n_cols, scratch *s)
{
    const rl_ktype *k = &kern->types[type];
    if (k->kclass != RL_KCLASS_FLOAT) {
        build_tile(kern, type, rows, n_cols, &s->tile);
        kern->expand(k, &s->tile, n_cols, s->w);
        return;
    }
    const rl_quant_traits *traits = rl_quant_get(type);
    const uint32_t n_blocks = n_cols / rl_type_get(type)->block_weights;
    for (uint32_t r = 0; r < RL_TILE_ROWS; r++)
        traits->decode(rows[r], s->rows + r * RL_TILE_COLS, n_blocks);
    kern->transpose(s->rows, n_cols, s->w);
}

/* Products of 16 rows (the last repeated where the matrix ends) with n activation rows, into s->acc. */
static void multiply_rows(const rl_mm *mm, const rl_mm_matrix *w, const uint8_t *data, uint32_t row, const rl_mm_act *a,
                          const uint32_t *index, uint32_t n, scratch *s)
{
    const rl_kern *kern = mm->kern;
    const rl_ktype *k = &kern->types[w->type];
    const bool fast = quantised(mm, w->cols) && k->kclass != RL_KCLASS_FLOAT;
    const uint8_t *rows[RL_TILE_ROWS];
    for (uint32_t r = 0; r < RL_TILE_ROWS; r++)
        rows[r] = data + (row + r < w->rows ? row + r : w->rows - 1) * w->row_bytes;
    for (uint32_t i = 0; i < n; i++) {
        const size_t at = index ? index[i] : i;
        if (fast)
            s->in.act[i] = (const rl_act_block *)a->mem + at * rl_act_blocks(w->cols);
        else
            s->in.x[i] = a->x + at * a->stride;
    }
    memset(s->acc, 0, (size_t)n * RL_TILE_ROWS * sizeof(float));
    for (uint32_t c = 0; c < w->cols; c += RL_TILE_COLS) {
        const uint32_t n_cols = w->cols - c < RL_TILE_COLS ? w->cols - c : RL_TILE_COLS;
        if (fast) {
            build_tile(kern, w->type, rows, n_cols, &s->tile);
            kern->fast(k, &s->tile, s->in.act, n, c / RL_TILE_COLS, n_cols, s->acc);
        } else {
            build_float_tile(kern, w->type, rows, n_cols, s);
            kern->exact(s->w, s->in.x, n, n_cols, s->acc);
            for (uint32_t i = 0; i < n; i++)
                s->in.x[i] += n_cols;
        }
        const uint64_t bytes = rl_type_row_bytes(w->type, n_cols);
        for (uint32_t r = 0; r < RL_TILE_ROWS; r++)
            rows[r] += bytes;
    }
}

void rl_mm_mul(const rl_mm *mm, const rl_mm_matrix *w, uint32_t e, uint32_t r_begin, uint32_t r_end, const rl_mm_act *a,
               const uint32_t *index, uint32_t n_rows, float *y, size_t ldy, void *scratch_memory)
{
    assert(r_begin % RL_TILE_ROWS == 0 && r_end <= w->rows && a->cols == w->cols);
    scratch *s = (scratch *)(((uintptr_t)scratch_memory + 63) & ~(uintptr_t)63);
    const uint8_t *data = w->data + e * w->matrix_bytes;
    for (uint32_t j = 0; j < n_rows; j += RL_TILE_ACTS) {
        const uint32_t n = n_rows - j < RL_TILE_ACTS ? n_rows - j : RL_TILE_ACTS;
        rl_mm_act part = *a;
        if (!index) { /* without an index the rows of this part start at j */
            part.x += j * part.stride;
            if (part.mem) part.mem += j * sizeof(rl_act_block) * rl_act_blocks(w->cols);
        }
        for (uint32_t r = r_begin; r < r_end; r += RL_TILE_ROWS) {
            const uint32_t n_out = r_end - r < RL_TILE_ROWS ? r_end - r : RL_TILE_ROWS;
            multiply_rows(mm, w, data, r, &part, index ? index + j : NULL, n, s);
            for (uint32_t i = 0; i < n; i++)
                memcpy(y + (j + i) * ldy + r, s->acc + i * RL_TILE_ROWS, n_out * sizeof(float));
        }
    }
}

void rl_mm_row(const rl_mm_matrix *w, uint32_t e, uint32_t r, float *out)
{
    const uint8_t *row = w->data + e * w->matrix_bytes + r * w->row_bytes;
    rl_quant_get(w->type)->decode(row, out, w->cols / rl_type_get(w->type)->block_weights);
}
