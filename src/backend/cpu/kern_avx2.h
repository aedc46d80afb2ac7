/* backend/cpu/kern_avx2: what the files of the AVX2 kernels share: the sink of decoded weights and helpers of decoders.
 *
 * The 16 rows of a packed block (kern_pack.h) are two halves of 8 lanes, decoded one after the other. 8-bit products are summed
 * in pairs to 16 bits, which must not overflow. With activations of at most 127 in magnitude there are three kinds of codes:
 *   chunk 4   codes up to 31 with bias: four products fit 16 bits before they are widened
 *   chunk 1   codes up to 127 with bias: one product does
 *   signed    codes of the full range, without bias: magnitude times activation with the code's sign
 * Biases are powers of two. The integer scale is applied when products are widened (vpmaddwd), so sx of a tile holds it twice,
 * in both halves of a lane, and mx of a type with a bias holds -bias times the scales of two groups: one more product with the
 * sums of the activations takes the bias off. */
#ifndef RL_CPU_KERN_AVX2_H
#define RL_CPU_KERN_AVX2_H

#include "backend/cpu/kern.h"
#include "backend/cpu/kern_pack.h"

#include <immintrin.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

extern const rl_type_kernels rl_linear_kernels_avx2[RL_TYPE_END];
extern const rl_type_kernels rl_codebook_kernels_avx2[RL_TYPE_END];
extern const rl_type_kernels rl_plain_kernels_avx2[RL_TYPE_END];
void rl_codebook_init_avx2(void);

/* How the codes of a type are multiplied. */
typedef enum rl_code_kind { RL_CODES_4, RL_CODES_1, RL_CODES_SIGNED } rl_code_kind;

INLINE __m256i broadcast32(const void *p)
{
    int32_t v;
    memcpy(&v, p, 4);
    return _mm256_set1_epi32(v);
}

/* 8 x 8 transpose of 32-bit elements. */
INLINE void transpose8(__m256i r[8])
{
    __m256i t[8];
    for (int i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_epi32(r[i], r[i + 1]);
        t[i + 1] = _mm256_unpackhi_epi32(r[i], r[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
        r[i] = _mm256_unpacklo_epi64(t[i], t[i + 2]);
        r[i + 1] = _mm256_unpackhi_epi64(t[i], t[i + 2]);
        r[i + 2] = _mm256_unpacklo_epi64(t[i + 1], t[i + 3]);
        r[i + 3] = _mm256_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    for (int i = 0; i < 4; i++) {
        t[i] = _mm256_permute2x128_si256(r[i], r[i + 4], 0x20);
        t[i + 4] = _mm256_permute2x128_si256(r[i], r[i + 4], 0x31);
    }
    for (int i = 0; i < 8; i++)
        r[i] = t[i];
}

/* ---- The sink
 * ----------------------------------------------------------------------------------------------------------------- */

/* t is NULL when multiplying with one activation row. kind and bias are constants of the type. */
typedef struct sink {
    rl_code_kind kind;
    int bias;
    int half;
    rl_tile *t;
    const rl_act_block *a;
    __m256i scale, sum, total, offsets, previous;
    __m256 y;
} sink;

INLINE __m256i product(rl_code_kind kind, __m256i codes, __m256i a)
{
    if (kind == RL_CODES_SIGNED) return _mm256_maddubs_epi16(_mm256_abs_epi8(codes), _mm256_sign_epi8(a, codes));
    return _mm256_maddubs_epi16(codes, a);
}

/* Codes of columns 4c .. 4c + 3, c ascending. */
INLINE void emit(sink *s, int c, __m256i codes)
{
    if (s->t) {
        _mm256_store_si256((__m256i *)s->t->q[c] + s->half, codes);
        return;
    }
    const __m256i p = product(s->kind, codes, broadcast32(s->a->code + 4 * c));
    if (s->kind != RL_CODES_4) {
        s->total = _mm256_add_epi32(s->total, _mm256_madd_epi16(p, s->scale));
        return;
    }
    s->sum = c % 4 == 0 ? p : _mm256_add_epi16(s->sum, p);
    if (c % 4 == 3) s->total = _mm256_add_epi32(s->total, _mm256_madd_epi16(s->sum, s->scale));
}

INLINE void block_begin(sink *s)
{
    s->total = s->offsets = _mm256_setzero_si256();
}

INLINE void store_pair(sink *s, int p, __m256i pair)
{
    _mm256_store_si256((__m256i *)s->t->mx[p] + s->half, pair);
}

/* Group g of 16 or 32 columns begins; scale is a 32-bit integer a lane. */
INLINE void group_begin(sink *s, int g, int group, __m256i scale)
{
    s->scale = _mm256_or_si256(_mm256_and_si256(scale, _mm256_set1_epi32(0xffff)), _mm256_slli_epi32(scale, 16));
    if (s->t) _mm256_store_si256((__m256i *)s->t->sx[g] + s->half, s->scale);
    if (s->bias == 0) return;
    const __m256i weighted = _mm256_mullo_epi16(s->scale, _mm256_set1_epi16((short)-s->bias));
    if (g % 2 == 0) {
        s->previous = weighted;
        return;
    }
    const __m256i pair = _mm256_blend_epi16(s->previous, weighted, 0xaa);
    if (s->t)
        store_pair(s, g / 2, pair);
    else
        s->total =
            _mm256_add_epi32(s->total, _mm256_madd_epi16(pair, broadcast32((group == 16 ? s->a->sum16 : s->a->sum32) + g - 1)));
}

/* Integer offsets of groups 2p (low halves of the lanes) and 2p + 1. */
INLINE void group_offsets(sink *s, int p, int group, __m256i pair)
{
    if (s->t)
        store_pair(s, p, pair);
    else
        s->offsets = _mm256_add_epi32(s->offsets,
                                      _mm256_madd_epi16(pair, broadcast32((group == 16 ? s->a->sum16 : s->a->sum32) + 2 * p)));
}

INLINE void block_end(sink *s, __m256 d)
{
    if (s->t)
        _mm256_store_ps(s->t->d[0] + 8 * s->half, d);
    else
        s->y = _mm256_fmadd_ps(_mm256_cvtepi32_ps(s->total), _mm256_mul_ps(d, _mm256_set1_ps(s->a->d[0])), s->y);
}

INLINE void block_end_offsets(sink *s, __m256 d, __m256 dm)
{
    block_end(s, d);
    if (s->t)
        _mm256_store_ps(s->t->dm + 8 * s->half, dm);
    else
        s->y = _mm256_fmadd_ps(_mm256_cvtepi32_ps(s->offsets), _mm256_mul_ps(dm, _mm256_set1_ps(s->a->d[0])), s->y);
}

INLINE int log2_of(int bias)
{
    int n = 0;
    while (bias > 1 << n)
        n++;
    return n;
}

/* Block g of 32 weights with a float scale of its own. */
INLINE void block32_begin(sink *s, int g)
{
    s->scale = _mm256_set1_epi16(1);
    if (s->t) return;
    s->total = s->bias ? _mm256_srai_epi32(_mm256_set1_epi32(s->a->neg32[g]), 7 - log2_of(s->bias)) : _mm256_setzero_si256();
}

INLINE void block32_end(sink *s, int g, __m256 d)
{
    if (s->t)
        _mm256_store_ps(s->t->d[g] + 8 * s->half, d);
    else
        s->y = _mm256_fmadd_ps(_mm256_cvtepi32_ps(s->total), _mm256_mul_ps(d, _mm256_set1_ps(s->a->d[g])), s->y);
}

/* ---- Helpers of decoders
 * ------------------------------------------------------------------------------------------------------ */

/* Word i of the 8 rows of the sink's half. */
INLINE __m256i plane(const sink *s, const uint8_t *planes, int i)
{
    return _mm256_load_si256((const __m256i *)(planes + 64 * i) + s->half);
}

INLINE __m256 half_scales(const sink *s, const uint8_t *scales)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)scales + s->half));
}

/* Byte positions o0 .. o3 of every 32-bit lane. */
INLINE __m256i pick(__m256i v, int o0, int o1, int o2, int o3)
{
    const int lane = o0 | o1 << 8 | o2 << 16 | o3 << 24;
    const __m256i at = _mm256_add_epi32(_mm256_set1_epi32(lane), _mm256_setr_epi32(0, 0x04040404, 0x08080808, 0x0c0c0c0c, 0,
                                                                                   0x04040404, 0x08080808, 0x0c0c0c0c));
    return _mm256_shuffle_epi8(v, at);
}

/* (v >> shift) & mask in every byte; shift may be negative. */
INLINE __m256i bits(__m256i v, int shift, int mask)
{
    const __m256i w = shift < 0 ? _mm256_slli_epi32(v, -shift) : shift > 0 ? _mm256_srli_epi32(v, shift) : v;
    return _mm256_and_si256(w, _mm256_set1_epi8((char)mask));
}

INLINE __m256i bits32(__m256i v, int shift, int mask)
{
    const __m256i w = shift < 0 ? _mm256_slli_epi32(v, -shift) : shift > 0 ? _mm256_srli_epi32(v, shift) : v;
    return _mm256_and_si256(w, _mm256_set1_epi32(mask));
}

/* ---- From a decoder to the functions of a type
 * ---------------------------------------------------------------------------------- */

INLINE void pack_block(const uint8_t *const *rows, size_t at, int first, int words, int scale_at, int scale_bytes,
                       uint8_t *planes, uint8_t *scales)
{
    const __m256i order = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    for (int half = 0; half < 2; half++)
        for (int w = 0; w < words; w += 8) {
            const int n = words - w < 8 ? words - w : 8;
            __m256i r[8];
            for (int i = 0; i < 8; i++) {
                const void *p = rows[8 * half + i] + at + first + 4 * w;
                r[i] =
                    n == 8 ? _mm256_loadu_si256(p) : _mm256_maskload_epi32(p, _mm256_cmpgt_epi32(_mm256_set1_epi32(n), order));
            }
            transpose8(r);
            for (int i = 0; i < n; i++)
                _mm256_store_si256((__m256i *)(planes + 64 * (w + i)) + half, r[i]);
        }
    for (int i = 0; i < 16; i++)
        memcpy(scales + scale_bytes * i, rows[i] + at + scale_at, (size_t)scale_bytes);
}

/* Functions of a type with blocks of 256 weights; decode(sink, planes, scales). */
#define RL_SUPER_FUNCTIONS(name, code_kind, code_bias, first, words, scale_at, scale_bytes, block_bytes)                       \
    static void tile_##name(const uint8_t *planes, const uint8_t *scales, uint32_t n_cols, rl_tile *t)                         \
    {                                                                                                                          \
        (void)n_cols;                                                                                                          \
        for (int half = 0; half < 2; half++) {                                                                                 \
            sink s = {.kind = code_kind, .bias = code_bias, .half = half, .t = t};                                             \
            decode_##name(&s, planes, scales);                                                                                 \
        }                                                                                                                      \
    }                                                                                                                          \
    static void build_##name(const uint8_t *const *rows, uint32_t n_cols, rl_tile *t)                                          \
    {                                                                                                                          \
        _Alignas(64) uint8_t planes[64 * (words)], scales[32];                                                                 \
        pack_block(rows, 0, first, words, scale_at, scale_bytes, planes, scales);                                              \
        tile_##name(planes, scales, n_cols, t);                                                                                \
    }                                                                                                                          \
    static void multiply_##name(const uint8_t *planes, const uint8_t *scales, const rl_act_block *a, __m256 y[2])              \
    {                                                                                                                          \
        for (int half = 0; half < 2; half++) {                                                                                 \
            sink s = {.kind = code_kind, .bias = code_bias, .half = half, .a = a, .y = y[half]};                               \
            decode_##name(&s, planes, scales);                                                                                 \
            y[half] = s.y;                                                                                                     \
        }                                                                                                                      \
    }                                                                                                                          \
    static void row_##name(const uint8_t *planes, const uint8_t *scales, uint32_t n_cols, const rl_act_block *a, float *y)     \
    {                                                                                                                          \
        __m256 sum[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};                                                            \
        for (uint32_t c = 0; c < n_cols; c += 256, a++, planes += 64 * (words), scales += 16 * (scale_bytes))                  \
            multiply_##name(planes, scales, a, sum);                                                                           \
        _mm256_storeu_ps(y, sum[0]);                                                                                           \
        _mm256_storeu_ps(y + 8, sum[1]);                                                                                       \
    }                                                                                                                          \
    static void file_row_##name(const uint8_t *const *rows, uint32_t n_cols, const rl_act_block *a, float *y)                  \
    {                                                                                                                          \
        _Alignas(64) uint8_t planes[64 * (words)], scales[32];                                                                 \
        __m256 sum[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};                                                            \
        const size_t ahead = (size_t)(rows[1] - rows[0]) * RL_TILE_ROWS;                                                       \
        size_t at = 0;                                                                                                         \
        for (uint32_t c = 0; c < n_cols; c += 256, a++, at += (block_bytes)) {                                                 \
            for (int i = 0; i < 16; i++)                                                                                       \
                for (int k = 0; k < (block_bytes); k += 64)                                                                    \
                    _mm_prefetch((const char *)rows[i] + ahead + at + k, _MM_HINT_T0);                                         \
            pack_block(rows, at, first, words, scale_at, scale_bytes, planes, scales);                                         \
            multiply_##name(planes, scales, a, sum);                                                                           \
        }                                                                                                                      \
        _mm256_storeu_ps(y, sum[0]);                                                                                           \
        _mm256_storeu_ps(y + 8, sum[1]);                                                                                       \
    }

/* The same for blocks of 32 weights; decode(sink, block of the tile, planes, scales). */
#define RL_BLOCK32_FUNCTIONS(name, code_kind, code_bias, first, words, scale_at, scale_bytes, block_bytes)                     \
    static void tile_##name(const uint8_t *planes, const uint8_t *scales, uint32_t n_cols, rl_tile *t)                         \
    {                                                                                                                          \
        for (uint32_t g = 0; g < n_cols / 32; g++)                                                                             \
            for (int half = 0; half < 2; half++) {                                                                             \
                sink s = {.kind = code_kind, .bias = code_bias, .half = half, .t = t};                                         \
                decode_##name(&s, (int)g, planes + 64 * (words)*g, scales + 16 * (scale_bytes)*g);                             \
            }                                                                                                                  \
    }                                                                                                                          \
    static void build_##name(const uint8_t *const *rows, uint32_t n_cols, rl_tile *t)                                          \
    {                                                                                                                          \
        _Alignas(64) uint8_t planes[64 * (words)], scales[32];                                                                 \
        for (uint32_t g = 0; g < n_cols / 32; g++) {                                                                           \
            pack_block(rows, (block_bytes)*g, first, words, scale_at, scale_bytes, planes, scales);                            \
            for (int half = 0; half < 2; half++) {                                                                             \
                sink s = {.kind = code_kind, .bias = code_bias, .half = half, .t = t};                                         \
                decode_##name(&s, (int)g, planes, scales);                                                                     \
            }                                                                                                                  \
        }                                                                                                                      \
    }                                                                                                                          \
    INLINE void multiply_##name(const uint8_t *planes, const uint8_t *scales, uint32_t g, const rl_act_block *a, __m256 y[2])  \
    {                                                                                                                          \
        for (int half = 0; half < 2; half++) {                                                                                 \
            sink s = {.kind = code_kind, .bias = code_bias, .half = half, .a = a + g / 8, .y = y[half]};                       \
            decode_##name(&s, (int)(g % 8), planes, scales);                                                                   \
            y[half] = s.y;                                                                                                     \
        }                                                                                                                      \
    }                                                                                                                          \
    static void row_##name(const uint8_t *planes, const uint8_t *scales, uint32_t n_cols, const rl_act_block *a, float *y)     \
    {                                                                                                                          \
        __m256 sum[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};                                                            \
        for (uint32_t g = 0; g < n_cols / 32; g++, planes += 64 * (words), scales += 16 * (scale_bytes))                       \
            multiply_##name(planes, scales, g, a, sum);                                                                        \
        _mm256_storeu_ps(y, sum[0]);                                                                                           \
        _mm256_storeu_ps(y + 8, sum[1]);                                                                                       \
    }                                                                                                                          \
    static void file_row_##name(const uint8_t *const *rows, uint32_t n_cols, const rl_act_block *a, float *y)                  \
    {                                                                                                                          \
        _Alignas(64) uint8_t planes[64 * (words)], scales[32];                                                                 \
        __m256 sum[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};                                                            \
        for (uint32_t g = 0; g < n_cols / 32; g++) {                                                                           \
            pack_block(rows, (block_bytes)*g, first, words, scale_at, scale_bytes, planes, scales);                            \
            multiply_##name(planes, scales, g, a, sum);                                                                        \
        }                                                                                                                      \
        _mm256_storeu_ps(y, sum[0]);                                                                                           \
        _mm256_storeu_ps(y + 8, sum[1]);                                                                                       \
    }

#define RL_TYPE_KERNELS(name)                                                                                                  \
    {                                                                                                                          \
        .tile = tile_##name, .build = build_##name, .row = row_##name, .file_row = file_row_##name                             \
    }

#endif
