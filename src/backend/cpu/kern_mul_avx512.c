/* backend/cpu/kern_mul_avx512: tiles times activations with 512-bit vectors. One lane per weight row: sums need no shuffles,
 * and the order of additions is the same for any number of activation rows. */
#include "backend/cpu/kern_avx512.h"

#include <immintrin.h>
#include <math.h>
#include <stddef.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

INLINE __m512i broadcast32(const void *p)
{
    int32_t v;
    memcpy(&v, p, 4);
    return _mm512_set1_epi32(v);
}

INLINE __m512 broadcast_float(const void *p)
{
    float v;
    memcpy(&v, p, 4);
    return _mm512_set1_ps(v);
}

/* ---- Integer tiles ----------------------------------------------------------------------------------------------------------
 */

/* Two tiles (32 rows) and up to six activation rows go together: a broadcast activation serves two products, so that loads, of
 * which a processor may do one a cycle at this width, do not set the pace. */
#define MOST 6

/* Chains of dependent products: enough that they do not wait for each other. */
#define WAYS(tiles, n) ((tiles) * (n) >= 4 ? 1 : (tiles) * (n) == 1 ? 4 : 2)

/* dot[tile][i] = sums of weight times activation over n4 quadruples of columns from q of each tile. Weights are unsigned with
 * bias 128, or 0 where neg is 0; starting from -128 times the sum of the activations takes the bias off for nothing. at and neg
 * are offsets into the activation blocks. */
INLINE void dot_group(const rl_tile *t, int tiles, int quad, int n4, const uint8_t *const *act, size_t at, size_t neg, int n,
                      __m512i dot[2][MOST])
{
    const int ways = WAYS(tiles, n);
    __m512i part[2][MOST][4];
    for (int i = 0; i < n; i++)
        for (int g = 0; g < tiles; g++)
            for (int k = 0; k < ways; k++)
                part[g][i][k] = neg && k == 0 ? broadcast32(act[i] + neg) : _mm512_setzero_si512();
#pragma GCC unroll 8
    for (int c = 0; c < n4; c++) {
        __m512i w[2];
        for (int g = 0; g < tiles; g++)
            w[g] = _mm512_load_si512(t[g].q[quad + c]);
        for (int i = 0; i < n; i++) {
            const __m512i a = broadcast32(act[i] + at + 4 * c);
            for (int g = 0; g < tiles; g++)
                part[g][i][c % ways] = _mm512_dpbusd_epi32(part[g][i][c % ways], w[g], a);
        }
    }
    for (int i = 0; i < n; i++)
        for (int g = 0; g < tiles; g++) {
            dot[g][i] = part[g][i][0];
            for (int k = 1; k < ways; k++)
                dot[g][i] = _mm512_add_epi32(dot[g][i], part[g][i][k]);
        }
}

/* y = y + I d_w d_a, and the same for the offsets. */
INLINE void add_super(const rl_tile *t, const rl_act_block *a, int group, bool offsets, __m512i total, float *acc)
{
    const __m512 da = _mm512_set1_ps(a->d[0]);
    __m512 y = _mm512_loadu_ps(acc);
    y = _mm512_fmadd_ps(_mm512_cvtepi32_ps(total), _mm512_mul_ps(_mm512_load_ps(t->d[0]), da), y);
    if (offsets) {
        const int16_t *sums = group == 32 ? a->sum32 : a->sum16;
        __m512i m = _mm512_setzero_si512();
        for (int g = 0; g < (group == 32 ? 4 : 8); g++)
            m = _mm512_dpwssd_epi32(m, _mm512_load_si512(t->mx[g]), broadcast32(sums + 2 * g));
        y = _mm512_fmadd_ps(_mm512_cvtepi32_ps(m), _mm512_mul_ps(_mm512_load_ps(t->dm), da), y);
    }
    _mm512_storeu_ps(acc, y);
}

INLINE void super(const rl_tile *t, int tiles, const rl_act_block *const *rows, int n, size_t block, int group, bool offsets,
                  float *acc, size_t stride)
{
    const uint8_t *act[MOST];
    __m512i total[2][MOST], dot[2][MOST];
    for (int i = 0; i < n; i++) {
        act[i] = (const uint8_t *)(rows[i] + block);
        for (int g = 0; g < tiles; g++)
            total[g][i] = _mm512_setzero_si512();
    }
    const size_t neg = offsetof(rl_act_block, neg16) + (group == 16 ? 0 : sizeof(int32_t[16]));
    for (int k = 0; k < RL_TILE_COLS / group; k++) {
        dot_group(t, tiles, group / 4 * k, group / 4, act, (size_t)group * (size_t)k, offsets ? 0 : neg + 4 * (size_t)k, n,
                  dot);
        for (int g = 0; g < tiles; g++) {
            const __m512i s = _mm512_load_si512(t[g].sx[k]);
            for (int i = 0; i < n; i++)
                total[g][i] = _mm512_add_epi32(total[g][i], _mm512_mullo_epi32(dot[g][i], s));
        }
    }
    for (int g = 0; g < tiles; g++)
        for (int i = 0; i < n; i++)
            add_super(t + g, rows[i] + block, group, offsets, total[g][i], acc + g * stride + RL_TILE_ROWS * i);
}

INLINE void blocks32(const rl_tile *t, int tiles, const rl_act_block *const *rows, int n, size_t block, uint32_t n_cols,
                     float *acc, size_t stride)
{
    const uint8_t *act[MOST];
    __m512 y[2][MOST];
    __m512i dot[2][MOST];
    for (int i = 0; i < n; i++) {
        act[i] = (const uint8_t *)(rows[i] + block);
        for (int g = 0; g < tiles; g++)
            y[g][i] = _mm512_loadu_ps(acc + g * stride + RL_TILE_ROWS * i);
    }
    for (uint32_t k = 0; k < n_cols / 32; k++) {
        dot_group(t, tiles, (int)(8 * k), 8, act, 32 * k, offsetof(rl_act_block, neg32) + 4 * k, n, dot);
        for (int g = 0; g < tiles; g++) {
            const __m512 d = _mm512_load_ps(t[g].d[k]);
            for (int i = 0; i < n; i++) {
                const __m512 da = broadcast_float(act[i] + offsetof(rl_act_block, d) + 4 * k);
                y[g][i] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot[g][i]), _mm512_mul_ps(d, da), y[g][i]);
            }
        }
    }
    for (int i = 0; i < n; i++)
        for (int g = 0; g < tiles; g++)
            _mm512_storeu_ps(acc + g * stride + RL_TILE_ROWS * i, y[g][i]);
}

/* Codes that carry their scale (or half of it): one integer product for the whole block. */
INLINE void folded(const rl_ktype *k, const rl_tile *t, int tiles, const rl_act_block *const *rows, int n, size_t block,
                   float *acc, size_t stride)
{
    const uint8_t *act[MOST];
    __m512i sum[2][MOST];
    for (int i = 0; i < n; i++) {
        act[i] = (const uint8_t *)(rows[i] + block);
        for (int g = 0; g < tiles; g++)
            sum[g][i] = _mm512_setzero_si512();
    }
    for (int p = 0; p < 8; p++) {
        __m512i dot[2][MOST];
        dot_group(t, tiles, 8 * p, 8, act, 32 * (size_t)p, 0, n, dot);
        for (int g = 0; g < tiles; g++)
            for (int i = 0; i < n; i++)
                sum[g][i] = _mm512_add_epi32(sum[g][i], dot[g][i]);
    }
    for (int g = 0; g < tiles; g++)
        for (int i = 0; i < n; i++) {
            __m512i total = sum[g][i];
            if (k->fold == RL_FOLD_HALF)
                total = _mm512_sub_epi32(_mm512_add_epi32(total, total), _mm512_set1_epi32(135 * rows[i][block].sum256));
            add_super(t + g, rows[i] + block, 16, k->offsets, total, acc + g * stride + RL_TILE_ROWS * i);
        }
}

INLINE void fast_n(const rl_ktype *k, const rl_tile *t, int tiles, const rl_act_block *const *act, int n, uint32_t block,
                   uint32_t n_cols, float *acc, size_t stride)
{
    if (k->kclass == RL_KCLASS_32)
        blocks32(t, tiles, act, n, block, n_cols, acc, stride);
    else if (k->fold)
        folded(k, t, tiles, act, n, block, acc, stride);
    else if (k->offsets)
        super(t, tiles, act, n, block, 32, true, acc, stride);
    else if (k->group == 16)
        super(t, tiles, act, n, block, 16, false, acc, stride);
    else
        super(t, tiles, act, n, block, 32, false, acc, stride);
}

/* One function per size keeps the accumulators of each in registers. */
typedef void fast_fn(const rl_ktype *k, const rl_tile *t, const rl_act_block *const *act, uint32_t block, uint32_t n_cols,
                     float *acc, size_t stride);
#define FAST(tiles, n)                                                                                                         \
    static void fast_##tiles##_##n(const rl_ktype *k, const rl_tile *t, const rl_act_block *const *act, uint32_t block,        \
                                   uint32_t n_cols, float *acc, size_t stride)                                                 \
    {                                                                                                                          \
        fast_n(k, t, tiles, act, n, block, n_cols, acc, stride);                                                               \
    }
FAST(1, 1)
FAST(1, 2)
FAST(1, 3)
FAST(1, 4)
FAST(1, 5)
FAST(1, 6)
FAST(2, 1)
FAST(2, 2)
FAST(2, 3)
FAST(2, 4)
FAST(2, 5)
FAST(2, 6)

static void fast(const rl_ktype *k, const rl_tile *t, uint32_t n_tiles, const rl_act_block *const *act, uint32_t n,
                 uint32_t block, uint32_t n_cols, float *acc, size_t stride)
{
    static fast_fn *const one[MOST] = {fast_1_1, fast_1_2, fast_1_3, fast_1_4, fast_1_5, fast_1_6};
    static fast_fn *const two[MOST] = {fast_2_1, fast_2_2, fast_2_3, fast_2_4, fast_2_5, fast_2_6};
    for (uint32_t g = 0; g < n_tiles; g += 2, t += 2, acc += 2 * stride) {
        fast_fn *const *fn = n_tiles - g >= 2 ? two : one;
        for (uint32_t i = 0, parts = (n + MOST - 1) / MOST; i < n; parts--) { /* as equal as possible */
            const uint32_t size = (n - i + parts - 1) / parts;
            fn[size - 1](k, t, act + i, block, n_cols, acc + (size_t)i * RL_TILE_ROWS, stride);
            i += size;
        }
    }
}

/* ---- Float tiles ------------------------------------------------------------------------------------------------------------
 */

/* How the bytes of a group of columns become floats: ((v >> shift) & mask | 2^23) - zero, times scale, plus offset. A byte
 * or-ed into the mantissa of 2^23 is that number plus the byte; zero is 2^23 plus the bias. The products are exact, so the
 * fused form rounds as the decoder does. Folded codes of kind HALF count twice: their shift is one less and their mask one bit
 * up. */
typedef struct widening {
    __m512 zero, scale, offset;
    bool twice;
} widening;

INLINE widening widening_of(const rl_ktype *k, const rl_tile *t, uint32_t g, bool twice)
{
    widening v = {.offset = _mm512_setzero_ps(), .twice = twice};
    v.zero = _mm512_set1_ps(8388608.0f + (twice ? 135 : k->bias));
    if (k->kclass == RL_KCLASS_32)
        v.scale = _mm512_load_ps(t->d[g]);
    else if (k->fold)
        v.scale = _mm512_load_ps(t->d[0]);
    else
        v.scale = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_load_si512(t->sx[g])), _mm512_load_ps(t->d[0]));
    if (k->offsets) {
        const __m512i m = _mm512_load_si512(t->mx[g / 2]);
        const __m512i mg = g % 2 ? _mm512_srli_epi32(m, 16) : _mm512_and_si512(m, _mm512_set1_epi32(0xffff));
        v.offset = _mm512_mul_ps(_mm512_cvtepi32_ps(mg), _mm512_load_ps(t->dm));
    }
    return v;
}

/* Column j of the four in the bytes of q. */
INLINE __m512 widened(const widening *v, __m512i q, int j)
{
    const __m512i mask = _mm512_set1_epi32(v->twice ? 0x1fe : 0xff), magic = _mm512_set1_epi32(0x4b000000);
    const int shift = 8 * j - v->twice;
    const __m512i moved = shift < 0 ? _mm512_slli_epi32(q, 1) : shift ? _mm512_srli_epi32(q, (unsigned)shift) : q;
    const __m512i u = _mm512_ternarylogic_epi32(moved, mask, magic, 0xea); /* (a & b) | c */
    return _mm512_fmadd_ps(_mm512_sub_ps(_mm512_castsi512_ps(u), v->zero), v->scale, v->offset);
}

INLINE void expand_codes(const rl_ktype *k, const rl_tile *t, uint32_t n_cols, bool twice, float *w)
{
    for (uint32_t g = 0; g < n_cols / k->group; g++) {
        const widening v = widening_of(k, t, g, twice);
        for (uint32_t c = g * k->group; c < (g + 1) * k->group; c += 4) {
            const __m512i q = _mm512_load_si512(t->q[c / 4]);
            for (int j = 0; j < 4; j++)
                _mm512_store_ps(w + RL_TILE_ROWS * (c + (uint32_t)j), widened(&v, q, j));
        }
    }
}

static void expand(const rl_ktype *k, const rl_tile *t, uint32_t n_cols, float *w)
{
    if (k->fold == RL_FOLD_HALF)
        expand_codes(k, t, n_cols, true, w);
    else
        expand_codes(k, t, n_cols, false, w);
}

INLINE void multiply_codes(const rl_ktype *k, const rl_tile *t, const float *x, uint32_t n_cols, bool twice, float *acc)
{
    __m512 p[4] = {_mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps()};
    for (uint32_t g = 0; g < n_cols / k->group; g++) {
        const widening v = widening_of(k, t, g, twice);
        for (uint32_t c = g * k->group; c < (g + 1) * k->group; c += 4) {
            const __m512i q = _mm512_load_si512(t->q[c / 4]);
            for (int j = 0; j < 4; j++)
                p[j] = _mm512_fmadd_ps(widened(&v, q, j), _mm512_set1_ps(x[c + (uint32_t)j]), p[j]);
        }
    }
    const __m512 sum = _mm512_add_ps(_mm512_add_ps(p[0], p[1]), _mm512_add_ps(p[2], p[3]));
    _mm512_storeu_ps(acc, _mm512_add_ps(_mm512_loadu_ps(acc), sum));
}

static void exact_row(const rl_ktype *k, const rl_tile *t, const float *x, uint32_t n_cols, float *acc)
{
    if (k->fold == RL_FOLD_HALF)
        multiply_codes(k, t, x, n_cols, true, acc);
    else
        multiply_codes(k, t, x, n_cols, false, acc);
}

static void transpose(const float *rows, uint32_t n_cols, float *w)
{
    for (uint32_t c = 0; c < n_cols; c += 16) {
        __m512i r[16];
        for (int i = 0; i < 16; i++)
            r[i] = _mm512_loadu_si512(rows + RL_TILE_COLS * i + c);
        rl_transpose16_avx512(r);
        for (int i = 0; i < 16; i++)
            _mm512_storeu_si512(w + RL_TILE_ROWS * (c + (uint32_t)i), r[i]);
    }
}

INLINE void exact_n(const float *w, const float *const *x, int n, uint32_t n_cols, float *acc)
{
    __m512 p[6][4];
    for (int i = 0; i < n; i++)
        for (int j = 0; j < 4; j++)
            p[i][j] = _mm512_setzero_ps();
    uint32_t c = 0;
    for (; c + 4 <= n_cols; c += 4)
        for (uint32_t j = 0; j < 4; j++) {
            const __m512 v = _mm512_load_ps(w + RL_TILE_ROWS * (c + j));
            for (int i = 0; i < n; i++)
                p[i][j] = _mm512_fmadd_ps(v, _mm512_set1_ps(x[i][c + j]), p[i][j]);
        }
    for (uint32_t j = 0; j < 3; j++) {
        if (c + j >= n_cols) break;
        const __m512 v = _mm512_load_ps(w + RL_TILE_ROWS * (c + j));
        for (int i = 0; i < n; i++)
            p[i][j] = _mm512_fmadd_ps(v, _mm512_set1_ps(x[i][c + j]), p[i][j]);
    }
    for (int i = 0; i < n; i++) {
        const __m512 sum = _mm512_add_ps(_mm512_add_ps(p[i][0], p[i][1]), _mm512_add_ps(p[i][2], p[i][3]));
        float *y = acc + RL_TILE_ROWS * i;
        _mm512_storeu_ps(y, _mm512_add_ps(_mm512_loadu_ps(y), sum));
    }
}

static void exact6(const float *w, const float *const *x, uint32_t n_cols, float *acc)
{
    exact_n(w, x, 6, n_cols, acc);
}

static void exact3(const float *w, const float *const *x, uint32_t n_cols, float *acc)
{
    exact_n(w, x, 3, n_cols, acc);
}

static void exact1(const float *w, const float *const *x, uint32_t n_cols, float *acc)
{
    exact_n(w, x, 1, n_cols, acc);
}

static void exact(const float *w, const float *const *x, uint32_t n, uint32_t n_cols, float *acc)
{
    for (; n >= 6; n -= 6, x += 6, acc += 6 * RL_TILE_ROWS)
        exact6(w, x, n_cols, acc);
    if (n >= 3) {
        exact3(w, x, n_cols, acc);
        n -= 3, x += 3, acc += 3 * RL_TILE_ROWS;
    }
    for (; n; n--, x++, acc += RL_TILE_ROWS)
        exact1(w, x, n_cols, acc);
}

/* ---- Activations ------------------------------------------------------------------------------------------------------------
 */

/* The first element of largest magnitude of n (32 or 256) floats; *bad when one is NaN or infinite. */
INLINE float first_largest(const float *x, uint32_t n, bool *bad)
{
    __m512 most = _mm512_setzero_ps();
    __mmask16 invalid = 0;
    for (uint32_t i = 0; i < n; i += 16) {
        const __m512 v = _mm512_loadu_ps(x + i);
        most = _mm512_max_ps(most, _mm512_abs_ps(v));
        invalid |= _mm512_fpclass_ps_mask(v, 0x99); /* NaN and infinities */
    }
    *bad = invalid != 0;
    const float largest = _mm512_reduce_max_ps(most);
    const __m512 target = _mm512_set1_ps(largest);
    for (uint32_t i = 0; i < n; i += 16) {
        const __mmask16 hit = _mm512_cmp_ps_mask(_mm512_abs_ps(_mm512_loadu_ps(x + i)), target, _CMP_EQ_OQ);
        if (hit) return x[i + (uint32_t)__builtin_ctz(hit)];
    }
    return 0;
}

static void sum_block(rl_act_block *b, uint32_t n)
{
    b->sum256 = 0;
    for (uint32_t g = 0; g < n / 16; g++) {
        const __m512i v = _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(b->code + 16 * g)));
        const int sum = _mm512_reduce_add_epi32(v);
        b->sum16[g] = (int16_t)sum;
        b->neg16[g] = -128 * sum;
        b->sum256 += sum;
    }
    for (uint32_t g = 0; g < n / 32; g++) {
        b->sum32[g] = (int16_t)(b->sum16[2 * g] + b->sum16[2 * g + 1]);
        b->neg32[g] = -128 * b->sum32[g];
    }
}

static void quantize(const float *x, uint32_t cols, rl_act_block *row)
{
    const uint32_t group = rl_act_group(cols);
    for (uint32_t c = 0; c < cols; c += group) {
        rl_act_block *b = row + c / 256;
        bool bad;
        const float inverse = -127.0f / first_largest(x + c, group, &bad);
        const bool zero = bad || !isfinite(inverse);
        const float scale = bad ? NAN : zero ? 0 : 1.0f / inverse;
        const __m512 inv = _mm512_set1_ps(inverse);
        for (uint32_t i = 0; i < group; i += 16) {
            __m512i v = _mm512_cvtps_epi32(_mm512_mul_ps(inv, _mm512_loadu_ps(x + c + i)));
            v = zero ? _mm512_setzero_si512() : _mm512_min_epi32(v, _mm512_set1_epi32(127));
            _mm_storeu_si128((__m128i *)(b->code + (c + i) % 256), _mm512_cvtepi32_epi8(v));
        }
        for (uint32_t g = 0; g < group / 32; g++)
            b->d[c % 256 / 32 + g] = scale;
    }
    for (uint32_t c = 0; c < cols; c += 256)
        sum_block(row + c / 256, cols - c < 256 ? cols - c : 256);
}

/* Bias and vector forms of a tile that was built portably. */
static void finish(const rl_ktype *k, uint32_t n_cols, rl_tile *t)
{
    const __m512i bias = _mm512_set1_epi8((char)k->bias);
    for (uint32_t c = 0; c < n_cols / 4; c++)
        _mm512_store_si512(t->q[c], _mm512_add_epi8(_mm512_load_si512(t->q[c]), bias));
    rl_tile_scales_avx512(k, t);
}

/* clang-format off */
#define SUPER(g)         {.kclass = RL_KCLASS_SUPER, .group = g, .bias = 128}
#define SUPER_OFFSETS(g) {.kclass = RL_KCLASS_SUPER, .group = g, .offsets = true}
#define BLOCK_32         {.kclass = RL_KCLASS_32, .group = 32, .bias = 128}
static const rl_ktype types[RL_TYPE_END] = {
    [RL_Q4_0] = BLOCK_32, [RL_Q5_0] = BLOCK_32, [RL_Q8_0] = BLOCK_32, [RL_IQ4_NL] = BLOCK_32, [RL_MXFP4] = BLOCK_32,
    [RL_Q2_K] = {.kclass = RL_KCLASS_SUPER, .group = 16, .offsets = true, .fold = RL_FOLD_WHOLE},
    [RL_Q3_K] = SUPER(16), [RL_Q4_K] = SUPER_OFFSETS(32), [RL_Q5_K] = SUPER_OFFSETS(32), [RL_Q6_K] = SUPER(16),
    [RL_TQ1_0] = SUPER(32), [RL_TQ2_0] = SUPER(32),
    [RL_IQ1_S] = {.kclass = RL_KCLASS_SUPER, .group = 16, .fold = RL_FOLD_HALF},
    [RL_IQ1_M] = {.kclass = RL_KCLASS_SUPER, .group = 16, .fold = RL_FOLD_HALF},
    [RL_IQ2_XXS] = SUPER(32), [RL_IQ2_XS] = SUPER(16), [RL_IQ2_S] = SUPER(16),
    [RL_IQ3_S] = SUPER(32), [RL_IQ3_XXS] = SUPER(32), [RL_IQ4_XS] = SUPER(32),
};
/* clang-format on */

const rl_kern rl_kern_avx512 = {
    .isa = RL_ISA_AVX512,
    .types = types,
    .kernels = {rl_linear_kernels_avx512, rl_codebook_kernels_avx512, rl_plain_kernels_avx512},
    .init = rl_codebook_init_avx512,
    .quantize = quantize,
    .finish = finish,
    .fast = fast,
    .expand = expand,
    .transpose = transpose,
    .exact = exact,
    .exact_row = exact_row,
};
