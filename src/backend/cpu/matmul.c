/* backend/cpu/matmul: the driver of the kernels. Splits a product into tiles, builds each once and multiplies it with all
 * activation rows; knows nothing of types beyond their class, nor of instruction sets beyond their table. */
#include "backend/cpu/matmul.h"
#include "backend/cpu/kern.h"
#include "backend/cpu/kern_pack.h"
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

const rl_type_kernels *rl_kernels_of(const rl_kern *kern, rl_type type)
{
    static const rl_type_kernels none;
    for (size_t i = 0; i < sizeof kern->kernels / sizeof *kern->kernels; i++) {
        if (!kern->kernels[i]) continue;
        const rl_type_kernels *k = &kern->kernels[i][type];
        if (k->tile || k->widen) return k;
    }
    return &none;
}

struct rl_mm {
    rl_precision precision;
    const rl_kern *kern;
};

const rl_kern *rl_mm_kern(rl_isa isa)
{
#if defined(__x86_64__)
    if (isa == RL_ISA_AVX2) return &rl_kern_avx2;
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
    if (mm->kern->init) mm->kern->init();
    *out = mm;
    return RL_OK;
}

void rl_mm_free(rl_mm *mm)
{
    free(mm);
}

/* Layouts of rl_mm_matrix: the file's; packed (kern_pack.h); F32 whose values all fit BF16, packed as such. */
enum { LAYOUT_FILE, LAYOUT_PACKED, LAYOUT_PACKED_BF16 };

static rl_type stored_type(const rl_mm_matrix *w)
{
    return w->layout == LAYOUT_PACKED_BF16 ? RL_BF16 : w->type;
}

static uint32_t n_blocks(const rl_mm_matrix *w)
{
    return w->cols / rl_type_get(stored_type(w))->block_weights;
}

/* ---- Packing
 * ----------------------------------------------------------------------------------------------------------------- */

typedef struct packing {
    const rl_matrix *src;
    rl_mm_matrix *dst;
    uint32_t n_groups; /* of 16 rows, in all matrices */
    atomic_uint next;
    atomic_bool fits_bf16, failed;
} packing;

static uint32_t groups_per_matrix(uint32_t rows)
{
    return (rows + RL_TILE_ROWS - 1) / RL_TILE_ROWS;
}

static void check_bf16(void *ctx, int member)
{
    (void)member;
    packing *p = ctx;
    uint32_t g, end;
    while (rl_pool_next(&p->next, p->n_groups, 4, &g, &end))
        for (; g < end; g++) {
            const uint32_t per = groups_per_matrix(p->src->rows), first = g % per * RL_TILE_ROWS;
            for (uint32_t r = first; r < first + RL_TILE_ROWS && r < p->src->rows; r++) {
                const uint8_t *row = rl_matrix_row(p->src, g / per, r);
                unsigned lost = 0;
                for (uint32_t c = 0; c < p->src->cols; c++)
                    lost |= row[4 * (size_t)c] | row[4 * (size_t)c + 1];
                if (lost) atomic_store(&p->fits_bf16, false);
            }
        }
}

static void pack_groups(void *ctx, int member)
{
    (void)member;
    packing *p = ctx;
    const uint32_t per = groups_per_matrix(p->src->rows);
    const rl_type type = stored_type(p->dst);
    const bool narrow = p->dst->layout == LAYOUT_PACKED_BF16;
    uint8_t *narrowed = narrow ? rl_alloc((size_t)p->src->cols * RL_TILE_ROWS, 2) : NULL;
    if (narrow && !narrowed) {
        atomic_store(&p->failed, true);
        return;
    }
    uint32_t g, end;
    while (rl_pool_next(&p->next, p->n_groups, 4, &g, &end))
        for (; g < end; g++) {
            const uint8_t *rows[RL_TILE_ROWS];
            for (uint32_t i = 0; i < RL_TILE_ROWS; i++) {
                const uint32_t r = g % per * RL_TILE_ROWS + i;
                rows[i] = r < p->src->rows ? rl_matrix_row(p->src, g / per, r) : NULL;
                if (!narrow || !rows[i]) continue;
                uint8_t *row = narrowed + 2 * (size_t)i * p->src->cols;
                for (uint32_t c = 0; c < p->src->cols; c++)
                    memcpy(row + 2 * (size_t)c, rows[i] + 4 * (size_t)c + 2, 2);
                rows[i] = row;
            }
            uint8_t *group = (uint8_t *)p->dst->owned + g / per * p->dst->matrix_bytes + g % per * p->dst->row_bytes;
            rl_pack_rows(type, rows, n_blocks(p->dst), group);
        }
    free(narrowed);
}

static void share(rl_pool *pool, rl_pool_fn fn, packing *p)
{
    atomic_store(&p->next, 0);
    if (pool)
        rl_pool_run(pool, fn, p);
    else
        fn(p, 0);
}

static rl_status pack(const rl_mm *mm, const rl_matrix *src, rl_pool *pool, rl_mm_matrix *out, rl_error *err)
{
    const rl_type_kernels *kernels = rl_kernels_of(mm->kern, src->type);
    if (!kernels->row && !kernels->float_row) return RL_OK;
    packing p = {.src = src, .dst = out, .n_groups = groups_per_matrix(src->rows) * src->n, .fits_bf16 = src->type == RL_F32};
    if (src->type == RL_F32) share(pool, check_bf16, &p);
    out->layout = atomic_load(&p.fits_bf16) ? LAYOUT_PACKED_BF16 : LAYOUT_PACKED;
    out->row_bytes = rl_pack_group_bytes(rl_pack_of(stored_type(out)), n_blocks(out)); /* of 16 rows */
    out->matrix_bytes = out->row_bytes * groups_per_matrix(src->rows);
    out->owned = rl_aligned_alloc(64, src->n, out->matrix_bytes);
    if (out->owned) share(pool, pack_groups, &p);
    if (!out->owned || atomic_load(&p.failed)) {
        rl_aligned_free(out->owned);
        return rl_fail(err, RL_ERR_MEMORY, "out of memory for %llu bytes of re-encoded weights",
                       (unsigned long long)(out->matrix_bytes * src->n));
    }
    out->owned_bytes = out->matrix_bytes * src->n;
    out->data = out->owned;
    return RL_OK;
}

rl_status rl_mm_matrix_init(const rl_mm *mm, const rl_matrix *src, bool repack, rl_pool *pool, rl_mm_matrix *out, rl_error *err)
{
    if (!rl_quant_get(src->type)) {
        const rl_type_info *info = rl_type_get(src->type);
        return rl_fail(err, RL_ERR_UNSUPPORTED, "type %s holds no weights to multiply with", info ? info->name : "unknown");
    }
    rl_mm_matrix m = {.type = src->type,
                      .rows = src->rows,
                      .cols = src->cols,
                      .n = src->n,
                      .data = src->data,
                      .row_bytes = src->row_bytes,
                      .matrix_bytes = src->matrix_bytes};
    const rl_status status = repack ? pack(mm, src, pool, &m, err) : RL_OK;
    if (status == RL_OK) *out = m;
    return status;
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

/* ---- Products
 * ---------------------------------------------------------------------------------------------------------------- */

/* Row groups whose tiles are built before activations pass by: each activation block is then read once for 64 rows. */
#define GROUPS 4

/* Activation rows that pass by together: their blocks stay in the first-level cache for all tiles. */
#define PASS 24

/* What one call of rl_mm_mul works in. rows is the staging area of types without an integer tile. */
typedef struct scratch {
    rl_tile tile[GROUPS];
    _Alignas(64) float w[RL_TILE_COLS * RL_TILE_ROWS];
    _Alignas(64) float rows[RL_TILE_COLS * RL_TILE_ROWS];
    _Alignas(64) float acc[GROUPS][RL_TILE_ACTS * RL_TILE_ROWS];
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

/* Where 16 rows of a matrix are. */
typedef struct source {
    rl_type type;
    bool packed;
    const uint8_t *rows[RL_TILE_ROWS]; /* file layout; the last row repeated where the matrix ends */
    const uint8_t *planes, *scales;    /* packed */
} source;

static source locate(const rl_mm_matrix *w, const uint8_t *data, uint32_t row)
{
    source s = {.type = stored_type(w), .packed = w->layout != LAYOUT_FILE};
    if (s.packed) {
        s.scales = data + row / RL_TILE_ROWS * w->row_bytes;
        s.planes = s.scales + rl_pack_scales_bytes(rl_pack_of(s.type), n_blocks(w));
        return s;
    }
    for (uint32_t r = 0; r < RL_TILE_ROWS; r++)
        s.rows[r] = data + (row + r < w->rows ? row + r : w->rows - 1) * w->row_bytes;
    return s;
}

static void advance(source *s, uint32_t n_cols)
{
    const rl_type_info *info = rl_type_get(s->type);
    if (s->packed) {
        const rl_pack *p = rl_pack_of(s->type);
        const uint32_t blocks = n_cols / info->block_weights;
        s->planes += (size_t)blocks * p->words * p->element * RL_TILE_ROWS;
        s->scales += (size_t)blocks * p->scale_bytes * RL_TILE_ROWS;
        return;
    }
    const uint64_t bytes = rl_type_row_bytes(s->type, n_cols);
    for (uint32_t r = 0; r < RL_TILE_ROWS; r++)
        s->rows[r] += bytes;
}

static void build_tile(const rl_kern *kern, const source *s, uint32_t n_cols, rl_tile *t)
{
    const rl_type_kernels *kernels = rl_kernels_of(kern, s->type);
    const rl_ktype *k = &kern->types[s->type];
    if (s->packed) {
        kernels->tile(s->planes, s->scales, n_cols, t);
    } else if (kernels->build) {
        kernels->build(s->rows, n_cols, t);
    } else {
        rl_tile_build_portable(s->type, k, s->rows, n_cols, t);
        kern->finish(k, n_cols, t);
    }
}

static void build_float_tile(const rl_kern *kern, const source *src, uint32_t n_cols, scratch *s)
{
    const rl_ktype *k = &kern->types[src->type];
    if (k->kclass != RL_KCLASS_FLOAT) {
        build_tile(kern, src, n_cols, &s->tile[0]);
        kern->expand(k, &s->tile[0], n_cols, s->w);
    } else if (src->packed) {
        rl_kernels_of(kern, src->type)->widen(src->planes, n_cols, s->w);
    } else {
        const rl_quant_traits *traits = rl_quant_get(src->type);
        const uint32_t blocks = n_cols / rl_type_get(src->type)->block_weights;
        for (uint32_t r = 0; r < RL_TILE_ROWS; r++)
            traits->decode(src->rows[r], s->rows + r * RL_TILE_COLS, blocks);
        kern->transpose(s->rows, n_cols, s->w);
    }
}

static uint32_t columns_at(const rl_mm_matrix *w, uint32_t c)
{
    return w->cols - c < RL_TILE_COLS ? w->cols - c : RL_TILE_COLS;
}

/* Products of n_groups row groups with n activation rows, into s->acc; those of s->in are quantised. */
static void multiply_fast(const rl_kern *kern, const rl_mm_matrix *w, source *src, uint32_t n_groups, uint32_t n, scratch *s)
{
    const rl_type_kernels *kernels = rl_kernels_of(kern, src->type);
    const rl_ktype *k = &kern->types[src->type];
    if (n == 1 && kernels->row) {
        for (uint32_t g = 0; g < n_groups; g++) {
            if (src[g].packed)
                kernels->row(src[g].planes, src[g].scales, w->cols, s->in.act[0], s->acc[g]);
            else
                kernels->file_row(src[g].rows, w->cols, s->in.act[0], s->acc[g]);
        }
        return;
    }
    for (uint32_t g = 0; g < n_groups; g++)
        memset(s->acc[g], 0, (size_t)n * RL_TILE_ROWS * sizeof(float));
    for (uint32_t c = 0; c < w->cols; c += RL_TILE_COLS) {
        const uint32_t n_cols = columns_at(w, c);
        for (uint32_t g = 0; g < n_groups; g++) {
            build_tile(kern, &src[g], n_cols, &s->tile[g]);
            advance(&src[g], n_cols);
        }
        for (uint32_t i = 0; i < n; i += PASS)
            kern->fast(k, s->tile, n_groups, s->in.act + i, n - i < PASS ? n - i : PASS, c / RL_TILE_COLS, n_cols,
                       s->acc[0] + (size_t)i * RL_TILE_ROWS, RL_TILE_ACTS * RL_TILE_ROWS);
    }
}

/* The same for one row group with rows of floats. */
static void multiply_exact(const rl_kern *kern, const rl_mm_matrix *w, source *src, uint32_t n, scratch *s)
{
    const rl_ktype *k = &kern->types[src->type];
    const rl_type_kernels *kernels = rl_kernels_of(kern, src->type);
    if (n == 1 && src->packed && kernels->float_row) {
        kernels->float_row(src->planes, w->cols, s->in.x[0], s->acc[0]);
        return;
    }
    memset(s->acc[0], 0, (size_t)n * RL_TILE_ROWS * sizeof(float));
    for (uint32_t c = 0; c < w->cols; c += RL_TILE_COLS) {
        const uint32_t n_cols = columns_at(w, c);
        if (n == 1 && k->kclass != RL_KCLASS_FLOAT && kern->exact_row) {
            build_tile(kern, src, n_cols, &s->tile[0]);
            kern->exact_row(k, &s->tile[0], s->in.x[0], n_cols, s->acc[0]);
        } else {
            build_float_tile(kern, src, n_cols, s);
            kern->exact(s->w, s->in.x, n, n_cols, s->acc[0]);
        }
        for (uint32_t i = 0; i < n; i++)
            s->in.x[i] += n_cols;
        advance(src, n_cols);
    }
}

static void set_inputs(const rl_mm_matrix *w, bool fast, const rl_mm_act *a, const uint32_t *index, uint32_t j, uint32_t n,
                       scratch *s)
{
    for (uint32_t i = 0; i < n; i++) {
        const size_t at = index ? index[j + i] : j + i;
        if (fast)
            s->in.act[i] = (const rl_act_block *)a->mem + at * rl_act_blocks(w->cols);
        else
            s->in.x[i] = a->x + at * a->stride;
    }
}

void rl_mm_mul(const rl_mm *mm, const rl_mm_matrix *w, uint32_t e, uint32_t r_begin, uint32_t r_end, const rl_mm_act *a,
               const uint32_t *index, uint32_t n_rows, float *y, size_t ldy, void *scratch_memory)
{
    assert(r_begin % RL_TILE_ROWS == 0 && r_end <= w->rows && a->cols == w->cols);
    scratch *s = (scratch *)(((uintptr_t)scratch_memory + 63) & ~(uintptr_t)63);
    const uint8_t *data = w->data + e * w->matrix_bytes;
    const bool fast = quantised(mm, w->cols) && mm->kern->types[w->type].kclass != RL_KCLASS_FLOAT;
    const uint32_t step = fast ? GROUPS : 1;
    for (uint32_t j = 0; j < n_rows; j += RL_TILE_ACTS) {
        const uint32_t n = n_rows - j < RL_TILE_ACTS ? n_rows - j : RL_TILE_ACTS;
        set_inputs(w, fast, a, index, j, n, s);
        for (uint32_t r = r_begin; r < r_end; r += step * RL_TILE_ROWS) {
            const uint32_t left = (r_end - r + RL_TILE_ROWS - 1) / RL_TILE_ROWS, n_groups = left < step ? left : step;
            source src[GROUPS];
            for (uint32_t g = 0; g < n_groups; g++)
                src[g] = locate(w, data, r + g * RL_TILE_ROWS);
            if (fast) {
                multiply_fast(mm->kern, w, src, n_groups, n, s);
            } else {
                multiply_exact(mm->kern, w, src, n, s);
                set_inputs(w, fast, a, index, j, n, s);
            }
            for (uint32_t g = 0; g < n_groups; g++) {
                const uint32_t at = r + g * RL_TILE_ROWS, n_out = r_end - at < RL_TILE_ROWS ? r_end - at : RL_TILE_ROWS;
                for (uint32_t i = 0; i < n; i++)
                    memcpy(y + (j + i) * ldy + at, s->acc[g] + i * RL_TILE_ROWS, n_out * sizeof(float));
            }
        }
    }
}

void rl_mm_row(const rl_mm_matrix *w, uint32_t e, uint32_t r, float *out)
{
    const rl_type type = stored_type(w);
    const uint8_t *data = w->data + e * w->matrix_bytes;
    if (w->layout == LAYOUT_FILE) {
        rl_quant_get(type)->decode(data + r * w->row_bytes, out, n_blocks(w));
        return;
    }
    /* one block at a time through the file's form */
    const rl_type_info *info = rl_type_get(type);
    const rl_pack *p = rl_pack_of(type);
    const uint8_t *scales = data + r / RL_TILE_ROWS * w->row_bytes, *planes = scales + rl_pack_scales_bytes(p, n_blocks(w));
    uint8_t block[256];
    for (uint32_t b = 0; b < n_blocks(w); b++) {
        rl_unpack_block(type, planes, scales, b, r % RL_TILE_ROWS, block);
        rl_quant_get(type)->decode(block, out + (size_t)b * info->block_weights, 1);
    }
}
