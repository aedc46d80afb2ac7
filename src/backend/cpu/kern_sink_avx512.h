/* backend/cpu/kern_sink_avx512: where decoded weights go.
 *
 * A decoder of a type walks a packed block (kern_pack.h) column by column and hands 4 columns of 16 rows at a time to a sink.
 * The same decoder, inlined twice, either fills a tile or multiplies at once with one activation row, which is all that decode
 * needs. Columns come in ascending order; a decoder says where groups begin and end. */
#ifndef RL_CPU_KERN_SINK_AVX512_H
#define RL_CPU_KERN_SINK_AVX512_H

#include "backend/cpu/kern_avx512.h"
#include "backend/cpu/kern_pack.h"

#include <string.h>

/* Loops over the parts of a block: shifts and positions must become constants. */
#define UNROLL _Pragma("GCC unroll 16")

#define INLINE static inline __attribute__((always_inline))

/* t is NULL when multiplying. All fields live in registers. */
typedef struct sink {
    rl_tile *t;
    const rl_act_block *a;
    __m512i dot[2]; /* of the current group; two, so that products do not wait for each other */
    __m512i total, offsets;
    __m512 y;
} sink;

INLINE __m512i broadcast32(const void *p)
{
    int32_t v;
    memcpy(&v, p, 4);
    return _mm512_set1_epi32(v);
}

/* Codes of columns 4c .. 4c + 3, biased as the type's rl_ktype says. */
INLINE void emit(sink *s, int c, __m512i codes)
{
    if (s->t)
        _mm512_store_si512(s->t->q[c], codes);
    else
        s->dot[c & 1] = _mm512_dpbusd_epi32(s->dot[c & 1], codes, broadcast32(s->a->code + 4 * c));
}

INLINE void block_begin(sink *s)
{
    s->total = s->offsets = s->dot[0] = s->dot[1] = _mm512_setzero_si512();
}

/* Groups of 16 columns with bias 128, of 32 with bias 128, of any size without bias. */
INLINE void group16_begin(sink *s, int g)
{
    if (s->t) return;
    s->dot[0] = _mm512_set1_epi32(s->a->neg16[g]);
    s->dot[1] = _mm512_setzero_si512();
}

INLINE void group32_begin(sink *s, int g)
{
    if (s->t) return;
    s->dot[0] = _mm512_set1_epi32(s->a->neg32[g]);
    s->dot[1] = _mm512_setzero_si512();
}

INLINE void group_begin(sink *s)
{
    if (!s->t) s->dot[0] = s->dot[1] = _mm512_setzero_si512();
}

INLINE void group_end(sink *s, int g, __m512i scale)
{
    if (s->t)
        _mm512_store_si512(s->t->sx[g], scale);
    else
        s->total = _mm512_add_epi32(s->total, _mm512_mullo_epi32(_mm512_add_epi32(s->dot[0], s->dot[1]), scale));
}

/* Integer offsets of groups 2p (low halves of the lanes) and 2p + 1. */
INLINE void offsets16(sink *s, int p, __m512i pair)
{
    if (s->t)
        _mm512_store_si512(s->t->mx[p], pair);
    else
        s->offsets = _mm512_dpwssd_epi32(s->offsets, pair, broadcast32(s->a->sum16 + 2 * p));
}

INLINE void offsets32(sink *s, int p, __m512i pair)
{
    if (s->t)
        _mm512_store_si512(s->t->mx[p], pair);
    else
        s->offsets = _mm512_dpwssd_epi32(s->offsets, pair, broadcast32(s->a->sum32 + 2 * p));
}

INLINE void block_end(sink *s, __m512 d)
{
    if (s->t)
        _mm512_store_ps(s->t->d[0], d);
    else
        s->y = _mm512_fmadd_ps(_mm512_cvtepi32_ps(s->total), _mm512_mul_ps(d, _mm512_set1_ps(s->a->d[0])), s->y);
}

INLINE void block_end_offsets(sink *s, __m512 d, __m512 dm)
{
    block_end(s, d);
    if (s->t)
        _mm512_store_ps(s->t->dm, dm);
    else
        s->y = _mm512_fmadd_ps(_mm512_cvtepi32_ps(s->offsets), _mm512_mul_ps(dm, _mm512_set1_ps(s->a->d[0])), s->y);
}

/* Folded codes (rl_fold): the products of the whole block are in dot. */
INLINE void fold_half_end(sink *s)
{
    if (s->t) return;
    const __m512i sum = _mm512_add_epi32(s->dot[0], s->dot[1]);
    s->total = _mm512_sub_epi32(_mm512_add_epi32(sum, sum), _mm512_set1_epi32(135 * s->a->sum256));
}

INLINE void fold_whole_end(sink *s)
{
    if (!s->t) s->total = _mm512_add_epi32(s->dot[0], s->dot[1]);
}

/* 32-weight types: block g of the tile ends; its group began with group32_begin. */
INLINE void block32_end(sink *s, int g, __m512 d)
{
    if (s->t)
        _mm512_store_ps(s->t->d[g], d);
    else
        s->y = _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_add_epi32(s->dot[0], s->dot[1])),
                               _mm512_mul_ps(d, _mm512_set1_ps(s->a->d[g])), s->y);
}

/* ---- Helpers of decoders ----------------------------------------------------------------------------------------------------
 */

INLINE __m512i plane(const uint8_t *planes, int i)
{
    return _mm512_load_si512(planes + 64 * i);
}

INLINE __m512 half_scales(const uint8_t *scales)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)scales));
}

/* mask ? a : b, bit by bit. */
INLINE __m512i select_bits(__m512i a, __m512i b, __m512i mask)
{
    return _mm512_ternarylogic_epi32(a, b, mask, 0xe4);
}

INLINE __m512i and_or(__m512i a, __m512i mask, __m512i b)
{
    return _mm512_ternarylogic_epi32(a, mask, b, 0xea);
}

/* Control of vpmultishiftqb: byte j of every 32-bit lane becomes the 8 bits from bit o_j of that lane. Bits beyond the lane
 * come from its neighbour. */
INLINE __m512i windows(int o0, int o1, int o2, int o3)
{
    const uint64_t lane =
        (uint64_t)(o0 & 63) | (uint64_t)(o1 & 63) << 8 | (uint64_t)(o2 & 63) << 16 | (uint64_t)(o3 & 63) << 24;
    const uint64_t next = (uint64_t)((o0 + 32) & 63) | (uint64_t)((o1 + 32) & 63) << 8 | (uint64_t)((o2 + 32) & 63) << 16 |
                          (uint64_t)((o3 + 32) & 63) << 24;
    return _mm512_set1_epi64((long long)(lane | next << 32));
}

INLINE __m512i take(__m512i v, int o0, int o1, int o2, int o3)
{
    return _mm512_multishift_epi64_epi8(windows(o0, o1, o2, o3), v);
}

/* ---- From a decoder to the functions of a type ------------------------------------------------------------------------------
 */

/* Packs one block of 16 rows. words is a constant of the type; the masked load never reads beyond a block. */
INLINE void pack_block(const uint8_t *const *rows, size_t at, int first, int words, int scale_at, int scale_bytes,
                       uint8_t *planes, uint8_t *scales)
{
    for (int w = 0; w < words; w += 16) {
        const int n = words - w < 16 ? words - w : 16;
        __m512i r[16];
        for (int i = 0; i < 16; i++)
            r[i] = _mm512_maskz_loadu_epi32((__mmask16)((1u << n) - 1), rows[i] + at + first + 4 * w);
        rl_transpose16_avx512(r);
        for (int i = 0; i < n; i++)
            _mm512_store_si512(planes + 64 * (w + i), r[i]);
    }
    for (int i = 0; i < 16; i++)
        memcpy(scales + scale_bytes * i, rows[i] + at + scale_at, (size_t)scale_bytes);
}

/* Functions of a type with blocks of 256 weights: tile from packed and from rows, product of all blocks with one activation row
 * from packed and from rows. decode(sink, planes, scales). */
#define RL_SUPER_FUNCTIONS(name, first, words, scale_at, scale_bytes, block_bytes)                                             \
    static void tile_##name(const uint8_t *planes, const uint8_t *scales, uint32_t n_cols, rl_tile *t)                         \
    {                                                                                                                          \
        (void)n_cols;                                                                                                          \
        sink s = {.t = t};                                                                                                     \
        decode_##name(&s, planes, scales);                                                                                     \
    }                                                                                                                          \
    static void build_##name(const uint8_t *const *rows, uint32_t n_cols, rl_tile *t)                                          \
    {                                                                                                                          \
        _Alignas(64) uint8_t planes[64 * (words)], scales[32];                                                                 \
        (void)n_cols;                                                                                                          \
        sink s = {.t = t};                                                                                                     \
        pack_block(rows, 0, first, words, scale_at, scale_bytes, planes, scales);                                              \
        decode_##name(&s, planes, scales);                                                                                     \
    }                                                                                                                          \
    static void row_##name(const uint8_t *planes, const uint8_t *scales, uint32_t n_cols, const rl_act_block *a, float *y)     \
    {                                                                                                                          \
        sink s = {.a = a, .y = _mm512_setzero_ps()};                                                                           \
        for (uint32_t c = 0; c < n_cols; c += 256, s.a++, planes += 64 * (words), scales += 16 * (scale_bytes))                \
            decode_##name(&s, planes, scales);                                                                                 \
        _mm512_storeu_ps(y, s.y);                                                                                              \
    }                                                                                                                          \
    static void file_row_##name(const uint8_t *const *rows, uint32_t n_cols, const rl_act_block *a, float *y)                  \
    {                                                                                                                          \
        _Alignas(64) uint8_t planes[64 * (words)], scales[32];                                                                 \
        sink s = {.a = a, .y = _mm512_setzero_ps()};                                                                           \
        const size_t ahead = (size_t)(rows[1] - rows[0]) * RL_TILE_ROWS;                                                       \
        size_t at = 0;                                                                                                         \
        for (uint32_t c = 0; c < n_cols; c += 256, s.a++, at += (block_bytes)) {                                               \
            for (int i = 0; i < 16; i++)                                                                                       \
                for (int k = 0; k < (block_bytes); k += 64)                                                                    \
                    _mm_prefetch((const char *)rows[i] + ahead + at + k, _MM_HINT_T0);                                         \
            pack_block(rows, at, first, words, scale_at, scale_bytes, planes, scales);                                         \
            decode_##name(&s, planes, scales);                                                                                 \
        }                                                                                                                      \
        _mm512_storeu_ps(y, s.y);                                                                                              \
    }

/* The same for blocks of 32 weights; decode(sink, block of the tile, planes, scales). */
#define RL_BLOCK32_FUNCTIONS(name, first, words, scale_at, scale_bytes, block_bytes)                                           \
    static void tile_##name(const uint8_t *planes, const uint8_t *scales, uint32_t n_cols, rl_tile *t)                         \
    {                                                                                                                          \
        sink s = {.t = t};                                                                                                     \
        for (uint32_t g = 0; g < n_cols / 32; g++)                                                                             \
            decode_##name(&s, (int)g, planes + 64 * (words)*g, scales + 16 * (scale_bytes)*g);                                 \
    }                                                                                                                          \
    static void build_##name(const uint8_t *const *rows, uint32_t n_cols, rl_tile *t)                                          \
    {                                                                                                                          \
        _Alignas(64) uint8_t planes[64 * (words)], scales[32];                                                                 \
        sink s = {.t = t};                                                                                                     \
        for (uint32_t g = 0; g < n_cols / 32; g++) {                                                                           \
            pack_block(rows, (block_bytes)*g, first, words, scale_at, scale_bytes, planes, scales);                            \
            decode_##name(&s, (int)g, planes, scales);                                                                         \
        }                                                                                                                      \
    }                                                                                                                          \
    static void row_##name(const uint8_t *planes, const uint8_t *scales, uint32_t n_cols, const rl_act_block *a, float *y)     \
    {                                                                                                                          \
        sink s = {.a = a, .y = _mm512_setzero_ps()};                                                                           \
        for (uint32_t g = 0; g < n_cols / 32; g++, planes += 64 * (words), scales += 16 * (scale_bytes)) {                     \
            s.a = a + g / 8;                                                                                                   \
            decode_##name(&s, (int)(g % 8), planes, scales);                                                                   \
        }                                                                                                                      \
        _mm512_storeu_ps(y, s.y);                                                                                              \
    }                                                                                                                          \
    static void file_row_##name(const uint8_t *const *rows, uint32_t n_cols, const rl_act_block *a, float *y)                  \
    {                                                                                                                          \
        _Alignas(64) uint8_t planes[64 * (words)], scales[32];                                                                 \
        sink s = {.a = a, .y = _mm512_setzero_ps()};                                                                           \
        for (uint32_t g = 0; g < n_cols / 32; g++) {                                                                           \
            s.a = a + g / 8;                                                                                                   \
            pack_block(rows, (block_bytes)*g, first, words, scale_at, scale_bytes, planes, scales);                            \
            decode_##name(&s, (int)(g % 8), planes, scales);                                                                   \
        }                                                                                                                      \
        _mm512_storeu_ps(y, s.y);                                                                                              \
    }

#define RL_TYPE_KERNELS(name)                                                                                                  \
    {                                                                                                                          \
        .tile = tile_##name, .build = build_##name, .row = row_##name, .file_row = file_row_##name                             \
    }

#endif
