/* backend/cpu/kern_mul_avx2: tiles times activations with 256-bit vectors, 8 rows a vector. See kern_avx2.h for how codes of
 * different sizes are multiplied without overflow. */
#include "backend/cpu/kern_avx2.h"

#include <math.h>

/* ---- Integer tiles ----------------------------------------------------------------------------------------------------------
 */

/* Adds to total[half][i] the products over n4 quadruples of columns, widened with the scale of each half. */
INLINE void dot_group(rl_code_kind kind, const uint8_t *q, int n4, const int8_t *const *a, int n, const __m256i scale[2],
                      __m256i total[2][2])
{
    __m256i sum[2][2];
    UNROLL
    for (int c = 0; c < n4; c++) {
        const __m256i w[2] = {_mm256_load_si256((const __m256i *)(q + 64 * c)),
                              _mm256_load_si256((const __m256i *)(q + 64 * c) + 1)};
        const __m256i size[2] = {_mm256_abs_epi8(w[0]), _mm256_abs_epi8(w[1])}; /* unused but for signed codes */
        for (int i = 0; i < n; i++) {
            const __m256i x = broadcast32(a[i] + 4 * c);
            for (int h = 0; h < 2; h++) {
                const __m256i p = kind == RL_CODES_SIGNED ? _mm256_maddubs_epi16(size[h], _mm256_sign_epi8(x, w[h]))
                                                          : _mm256_maddubs_epi16(w[h], x);
                if (kind != RL_CODES_4) {
                    total[h][i] = _mm256_add_epi32(total[h][i], _mm256_madd_epi16(p, scale[h]));
                    continue;
                }
                sum[h][i] = c % 4 == 0 ? p : _mm256_add_epi16(sum[h][i], p);
                if (c % 4 == 3) total[h][i] = _mm256_add_epi32(total[h][i], _mm256_madd_epi16(sum[h][i], scale[h]));
            }
        }
    }
}

INLINE void add_scaled(float *acc, __m256i total, const float *d, float da)
{
    const __m256 scale = _mm256_mul_ps(_mm256_load_ps(d), _mm256_set1_ps(da));
    _mm256_storeu_ps(acc, _mm256_fmadd_ps(_mm256_cvtepi32_ps(total), scale, _mm256_loadu_ps(acc)));
}

/* Products of mx with the sums of the activations: biases or offsets. */
INLINE __m256i weigh_sums(const rl_tile *t, int h, int group, const rl_act_block *a, __m256i total)
{
    const int16_t *sums = group == 16 ? a->sum16 : a->sum32;
    for (int p = 0; p < RL_TILE_COLS / group / 2; p++)
        total = _mm256_add_epi32(
            total, _mm256_madd_epi16(_mm256_load_si256((const __m256i *)t->mx[p] + h), broadcast32(sums + 2 * p)));
    return total;
}

INLINE void super(rl_code_kind kind, const rl_tile *t, const rl_act_block *const *act, int n, uint32_t block, int group,
                  bool offsets, bool biased, float *acc)
{
    const rl_act_block *b[2];
    __m256i total[2][2];
    for (int i = 0; i < n; i++) {
        b[i] = act[i] + block;
        total[0][i] = total[1][i] = _mm256_setzero_si256();
    }
    for (int g = 0; g < RL_TILE_COLS / group; g++) {
        const __m256i *sx = (const __m256i *)t->sx[g];
        const __m256i scale[2] = {_mm256_load_si256(sx), _mm256_load_si256(sx + 1)};
        const int8_t *a[2];
        for (int i = 0; i < n; i++)
            a[i] = b[i]->code + group * g;
        dot_group(kind, &t->q[group / 4 * g][0][0], group / 4, a, n, scale, total);
    }
    for (int i = 0; i < n; i++)
        for (int h = 0; h < 2; h++) {
            float *y = acc + RL_TILE_ROWS * i + 8 * h;
            if (biased) total[h][i] = weigh_sums(t, h, group, b[i], total[h][i]);
            add_scaled(y, total[h][i], t->d[0] + 8 * h, b[i]->d[0]);
            if (offsets) add_scaled(y, weigh_sums(t, h, group, b[i], _mm256_setzero_si256()), t->dm + 8 * h, b[i]->d[0]);
        }
}

INLINE void blocks32(rl_code_kind kind, const rl_ktype *k, const rl_tile *t, const rl_act_block *const *act, int n,
                     uint32_t block, uint32_t n_cols, float *acc)
{
    const __m256i ones[2] = {_mm256_set1_epi16(1), _mm256_set1_epi16(1)};
    const __m128i down = _mm_cvtsi32_si128(7 - log2_of(k->bias));
    for (uint32_t g = 0; g < n_cols / 32; g++) {
        const int8_t *a[2];
        __m256i total[2][2];
        for (int i = 0; i < n; i++) {
            const rl_act_block *b = act[i] + block;
            a[i] = b->code + 32 * g;
            total[0][i] = total[1][i] =
                k->bias ? _mm256_sra_epi32(_mm256_set1_epi32(b->neg32[g]), down) : _mm256_setzero_si256();
        }
        dot_group(kind, &t->q[8 * g][0][0], 8, a, n, ones, total);
        for (int i = 0; i < n; i++)
            for (int h = 0; h < 2; h++)
                add_scaled(acc + RL_TILE_ROWS * i + 8 * h, total[h][i], t->d[g] + 8 * h, act[i][block].d[g]);
    }
}

INLINE void fast_n(const rl_ktype *k, const rl_tile *t, const rl_act_block *const *act, int n, uint32_t block, uint32_t n_cols,
                   float *acc)
{
    if (k->kclass == RL_KCLASS_32) {
        if (k->kind == RL_CODES_4)
            blocks32(RL_CODES_4, k, t, act, n, block, n_cols, acc);
        else
            blocks32(RL_CODES_SIGNED, k, t, act, n, block, n_cols, acc);
    } else if (k->offsets && k->group == 16) {
        super(RL_CODES_4, t, act, n, block, 16, true, false, acc);
    } else if (k->offsets) {
        super(RL_CODES_4, t, act, n, block, 32, true, false, acc);
    } else if (k->kind == RL_CODES_SIGNED) {
        super(RL_CODES_SIGNED, t, act, n, block, 32, false, false, acc);
    } else if (k->kind == RL_CODES_4 && k->group == 16) {
        super(RL_CODES_4, t, act, n, block, 16, false, true, acc);
    } else if (k->kind == RL_CODES_4) {
        super(RL_CODES_4, t, act, n, block, 32, false, true, acc);
    } else if (k->group == 16) {
        super(RL_CODES_1, t, act, n, block, 16, false, true, acc);
    } else {
        super(RL_CODES_1, t, act, n, block, 32, false, true, acc);
    }
}

static void fast2(const rl_ktype *k, const rl_tile *t, const rl_act_block *const *act, uint32_t block, uint32_t n_cols,
                  float *acc)
{
    fast_n(k, t, act, 2, block, n_cols, acc);
}

static void fast1(const rl_ktype *k, const rl_tile *t, const rl_act_block *const *act, uint32_t block, uint32_t n_cols,
                  float *acc)
{
    fast_n(k, t, act, 1, block, n_cols, acc);
}

static void fast(const rl_ktype *k, const rl_tile *t, uint32_t n_tiles, const rl_act_block *const *act, uint32_t n,
                 uint32_t block, uint32_t n_cols, float *acc, size_t stride)
{
    for (uint32_t g = 0; g < n_tiles; g++, t++, acc += stride) {
        uint32_t i = 0;
        for (; i + 2 <= n; i += 2)
            fast2(k, t, act + i, block, n_cols, acc + (size_t)i * RL_TILE_ROWS);
        if (i < n) fast1(k, t, act + i, block, n_cols, acc + (size_t)i * RL_TILE_ROWS);
    }
}

/* ---- Float tiles ------------------------------------------------------------------------------------------------------------
 */

/* How the bytes of a group of columns become floats: (byte | 2^23) - zero, times scale, plus offset. A byte or-ed into the
 * mantissa of 2^23 is that number plus the byte; zero is 2^23 plus the bias. The products are exact, so the fused form rounds
 * as the decoder does. Signed codes are made unsigned by flipping their top bit. */
typedef struct widening {
    __m256 zero, scale, offset;
    __m256i flip;
} widening;

INLINE widening widening_of(const rl_ktype *k, const rl_tile *t, uint32_t g, int h)
{
    const bool is_signed = k->kind == RL_CODES_SIGNED;
    widening v = {.offset = _mm256_setzero_ps(), .flip = _mm256_set1_epi8(is_signed ? (char)128 : 0)};
    v.zero = _mm256_set1_ps(8388608.0f + (is_signed ? 128 : k->bias));
    if (k->kclass == RL_KCLASS_32) {
        v.scale = _mm256_load_ps(t->d[g] + 8 * h);
    } else {
        const __m256i twice = _mm256_load_si256((const __m256i *)t->sx[g] + h);
        v.scale = _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_srai_epi32(twice, 16)), _mm256_load_ps(t->d[0] + 8 * h));
    }
    if (k->offsets) {
        const __m256i m = bits32(_mm256_load_si256((const __m256i *)t->mx[g / 2] + h), g % 2 ? 16 : 0, 0xffff);
        v.offset = _mm256_mul_ps(_mm256_cvtepi32_ps(m), _mm256_load_ps(t->dm + 8 * h));
    }
    return v;
}

/* Column j of the four in the bytes of q. */
INLINE __m256 widened(const widening *v, __m256i q, int j)
{
    const __m256i u = _mm256_or_si256(bits32(q, 8 * j, 0xff), _mm256_set1_epi32(0x4b000000));
    return _mm256_fmadd_ps(_mm256_sub_ps(_mm256_castsi256_ps(u), v->zero), v->scale, v->offset);
}

static void expand(const rl_ktype *k, const rl_tile *t, uint32_t n_cols, float *w)
{
    for (uint32_t g = 0; g < n_cols / k->group; g++)
        for (int h = 0; h < 2; h++) {
            const widening v = widening_of(k, t, g, h);
            for (uint32_t c = g * k->group; c < (g + 1) * k->group; c += 4) {
                const __m256i q = _mm256_xor_si256(_mm256_load_si256((const __m256i *)t->q[c / 4] + h), v.flip);
                UNROLL
                for (int j = 0; j < 4; j++)
                    _mm256_store_ps(w + RL_TILE_ROWS * (c + (uint32_t)j) + 8 * h, widened(&v, q, j));
            }
        }
}

static void exact_row(const rl_ktype *k, const rl_tile *t, const float *x, uint32_t n_cols, float *acc)
{
    __m256 p[2][4];
    for (int j = 0; j < 4; j++)
        p[0][j] = p[1][j] = _mm256_setzero_ps();
    for (uint32_t g = 0; g < n_cols / k->group; g++)
        for (int h = 0; h < 2; h++) {
            const widening v = widening_of(k, t, g, h);
            for (uint32_t c = g * k->group; c < (g + 1) * k->group; c += 4) {
                const __m256i q = _mm256_xor_si256(_mm256_load_si256((const __m256i *)t->q[c / 4] + h), v.flip);
                UNROLL
                for (int j = 0; j < 4; j++)
                    p[h][j] = _mm256_fmadd_ps(widened(&v, q, j), _mm256_set1_ps(x[c + (uint32_t)j]), p[h][j]);
            }
        }
    for (int h = 0; h < 2; h++) {
        const __m256 sum = _mm256_add_ps(_mm256_add_ps(p[h][0], p[h][1]), _mm256_add_ps(p[h][2], p[h][3]));
        _mm256_storeu_ps(acc + 8 * h, _mm256_add_ps(_mm256_loadu_ps(acc + 8 * h), sum));
    }
}

static void transpose(const float *rows, uint32_t n_cols, float *w)
{
    for (uint32_t c = 0; c < n_cols; c += 8)
        for (uint32_t h = 0; h < 2; h++) {
            __m256i r[8];
            for (uint32_t i = 0; i < 8; i++)
                r[i] = _mm256_loadu_si256((const __m256i *)(rows + RL_TILE_COLS * (8 * h + i) + c));
            transpose8(r);
            for (uint32_t i = 0; i < 8; i++)
                _mm256_storeu_si256((__m256i *)(w + RL_TILE_ROWS * (c + i) + 8 * h), r[i]);
        }
}

/* One half of the rows with n activation rows. */
INLINE void exact_n(const float *w, const float *const *x, int n, uint32_t n_cols, float *acc)
{
    __m256 p[3][4];
    for (int i = 0; i < n; i++)
        for (int j = 0; j < 4; j++)
            p[i][j] = _mm256_setzero_ps();
    uint32_t c = 0;
    for (; c + 4 <= n_cols; c += 4)
        for (uint32_t j = 0; j < 4; j++) {
            const __m256 v = _mm256_load_ps(w + RL_TILE_ROWS * (c + j));
            for (int i = 0; i < n; i++)
                p[i][j] = _mm256_fmadd_ps(v, _mm256_set1_ps(x[i][c + j]), p[i][j]);
        }
    for (uint32_t j = 0; j < 3; j++) {
        if (c + j >= n_cols) break;
        const __m256 v = _mm256_load_ps(w + RL_TILE_ROWS * (c + j));
        for (int i = 0; i < n; i++)
            p[i][j] = _mm256_fmadd_ps(v, _mm256_set1_ps(x[i][c + j]), p[i][j]);
    }
    for (int i = 0; i < n; i++) {
        const __m256 sum = _mm256_add_ps(_mm256_add_ps(p[i][0], p[i][1]), _mm256_add_ps(p[i][2], p[i][3]));
        float *y = acc + RL_TILE_ROWS * i;
        _mm256_storeu_ps(y, _mm256_add_ps(_mm256_loadu_ps(y), sum));
    }
}

static void exact3(const float *w, const float *const *x, uint32_t n_cols, float *acc)
{
    exact_n(w, x, 3, n_cols, acc);
    exact_n(w + 8, x, 3, n_cols, acc + 8);
}

static void exact1(const float *w, const float *const *x, uint32_t n_cols, float *acc)
{
    exact_n(w, x, 1, n_cols, acc);
    exact_n(w + 8, x, 1, n_cols, acc + 8);
}

static void exact(const float *w, const float *const *x, uint32_t n, uint32_t n_cols, float *acc)
{
    for (; n >= 3; n -= 3, x += 3, acc += 3 * RL_TILE_ROWS)
        exact3(w, x, n_cols, acc);
    for (; n; n--, x++, acc += RL_TILE_ROWS)
        exact1(w, x, n_cols, acc);
}

/* ---- Activations ------------------------------------------------------------------------------------------------------------
 */

INLINE __m256 magnitude(__m256 v)
{
    return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), v);
}

/* The first element of largest magnitude of n (32 or 256) floats; *bad when one is NaN or infinite. */
INLINE float first_largest(const float *x, uint32_t n, bool *bad)
{
    const __m256 infinity = _mm256_set1_ps(INFINITY);
    __m256 most = _mm256_setzero_ps(), invalid = _mm256_setzero_ps();
    for (uint32_t i = 0; i < n; i += 8) {
        const __m256 v = magnitude(_mm256_loadu_ps(x + i));
        most = _mm256_max_ps(most, v);
        invalid = _mm256_or_ps(invalid, _mm256_cmp_ps(v, infinity, _CMP_NLT_UQ));
    }
    *bad = _mm256_movemask_ps(invalid) != 0;
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(most), _mm256_extractf128_ps(most, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    m = _mm_max_ss(m, _mm_movehdup_ps(m));
    const __m256 target = _mm256_set1_ps(_mm_cvtss_f32(m));
    for (uint32_t i = 0; i < n; i += 8) {
        const int hit = _mm256_movemask_ps(_mm256_cmp_ps(magnitude(_mm256_loadu_ps(x + i)), target, _CMP_EQ_OQ));
        if (hit) return x[i + (uint32_t)__builtin_ctz((unsigned)hit)];
    }
    return 0;
}

/* 32 codes. */
INLINE void quantize32(const float *x, float inverse, int8_t *codes)
{
    __m256i v[4];
    for (int i = 0; i < 4; i++)
        v[i] = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_set1_ps(inverse), _mm256_loadu_ps(x + 8 * i)));
    const __m256i a = _mm256_packs_epi32(v[0], v[1]), b = _mm256_packs_epi32(v[2], v[3]);
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    _mm256_storeu_si256((__m256i *)codes, _mm256_permutevar8x32_epi32(_mm256_packs_epi16(a, b), order));
}

static void sum_block(rl_act_block *b, uint32_t n)
{
    b->sum256 = 0;
    for (uint32_t g = 0; g < n / 32; g++) {
        /* unsigned sums of code + 128 in the low words of four 64-bit lanes */
        const __m256i v =
            _mm256_xor_si256(_mm256_loadu_si256((const __m256i *)(b->code + 32 * g)), _mm256_set1_epi8((char)128));
        const __m256i s = _mm256_sad_epu8(v, _mm256_setzero_si256());
        const int lo = _mm256_extract_epi16(s, 0) + _mm256_extract_epi16(s, 4) - 16 * 128;
        const int hi = _mm256_extract_epi16(s, 8) + _mm256_extract_epi16(s, 12) - 16 * 128;
        b->sum16[2 * g] = (int16_t)lo;
        b->sum16[2 * g + 1] = (int16_t)hi;
        b->sum32[g] = (int16_t)(lo + hi);
        b->neg16[2 * g] = -128 * lo;
        b->neg16[2 * g + 1] = -128 * hi;
        b->neg32[g] = -128 * (lo + hi);
        b->sum256 += lo + hi;
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
        if (zero)
            memset(b->code + c % 256, 0, group);
        else
            for (uint32_t i = 0; i < group; i += 32)
                quantize32(x + c + i, inverse, b->code + (c + i) % 256);
        for (uint32_t g = 0; g < group / 32; g++)
            b->d[c % 256 / 32 + g] = scale;
    }
    for (uint32_t c = 0; c < cols; c += 256)
        sum_block(row + c / 256, cols - c < 256 ? cols - c : 256);
}

/* Bias and vector forms of a tile that was built portably. */
static void finish(const rl_ktype *k, uint32_t n_cols, rl_tile *t)
{
    const __m256i bias = _mm256_set1_epi8((char)k->bias);
    for (uint32_t c = 0; c < n_cols / 4; c++)
        for (int h = 0; h < 2; h++) {
            __m256i *q = (__m256i *)t->q[c] + h;
            _mm256_store_si256(q, _mm256_add_epi8(_mm256_load_si256(q), bias));
        }
    if (k->kclass != RL_KCLASS_SUPER) return;
    for (uint32_t g = 0; g < (uint32_t)RL_TILE_COLS / k->group; g++)
        for (uint32_t r = 0; r < RL_TILE_ROWS; r++) {
            const int s = t->s[g][r];
            t->sx[g][r] = (int32_t)((uint32_t)(s & 0xffff) | (uint32_t)s << 16);
            t->mx[g / 2][r][g % 2] = (int16_t)(k->offsets ? t->m[g][r] : -k->bias * s);
        }
}

/* clang-format off */
#define SUPER(codes, b, g) {.kclass = RL_KCLASS_SUPER, .kind = codes, .bias = b, .group = g}
#define OFFSETS(g)         {.kclass = RL_KCLASS_SUPER, .kind = RL_CODES_4, .group = g, .offsets = true}
#define BLOCK_32(codes, b) {.kclass = RL_KCLASS_32, .kind = codes, .bias = b, .group = 32}
static const rl_ktype types[RL_TYPE_END] = {
    [RL_Q4_0] = BLOCK_32(RL_CODES_4, 8), [RL_Q5_0] = BLOCK_32(RL_CODES_4, 16), [RL_MXFP4] = BLOCK_32(RL_CODES_4, 16),
    [RL_Q8_0] = BLOCK_32(RL_CODES_SIGNED, 0), [RL_IQ4_NL] = BLOCK_32(RL_CODES_SIGNED, 0),
    [RL_Q2_K] = OFFSETS(16), [RL_Q4_K] = OFFSETS(32), [RL_Q5_K] = OFFSETS(32),
    [RL_Q3_K] = SUPER(RL_CODES_4, 4, 16), [RL_Q6_K] = SUPER(RL_CODES_1, 32, 16),
    [RL_TQ1_0] = SUPER(RL_CODES_4, 4, 32), [RL_TQ2_0] = SUPER(RL_CODES_4, 4, 32),
    [RL_IQ1_S] = SUPER(RL_CODES_4, 16, 32), [RL_IQ1_M] = SUPER(RL_CODES_4, 16, 16),
    [RL_IQ2_XXS] = SUPER(RL_CODES_1, 64, 32), [RL_IQ2_XS] = SUPER(RL_CODES_1, 64, 16), [RL_IQ2_S] = SUPER(RL_CODES_1, 64, 16),
    [RL_IQ3_XXS] = SUPER(RL_CODES_1, 64, 32), [RL_IQ3_S] = SUPER(RL_CODES_4, 16, 32),
    [RL_IQ4_XS] = SUPER(RL_CODES_SIGNED, 0, 32),
};
/* clang-format on */

const rl_kern rl_kern_avx2 = {
    .isa = RL_ISA_AVX2,
    .types = types,
    .kernels = {rl_linear_kernels_avx2, rl_codebook_kernels_avx2, rl_plain_kernels_avx2},
    .init = rl_codebook_init_avx2,
    .quantize = quantize,
    .finish = finish,
    .fast = fast,
    .expand = expand,
    .transpose = transpose,
    .exact = exact,
    .exact_row = exact_row,
};
