/* quant/layout: inside quant only. Reading fields of blocks, and the list of unpackers.
 *
 * Block sizes such as 17 or 210 leave fields unaligned, so every field is put together from bytes. */
#ifndef RL_QUANT_LAYOUT_H
#define RL_QUANT_LAYOUT_H

#include "quant/quant.h"

static inline uint32_t le16(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8;
}

static inline uint32_t le32(const uint8_t *p)
{
    return le16(p) | le16(p + 2) << 16;
}

static inline float half_at(const uint8_t *p)
{
    return rl_f16_to_f32((uint16_t)le16(p));
}

float rl_bits_to_f32(uint32_t bits);

/* The scale pattern an IQ1_M block scatters over the top nibbles of its four 16-bit words (sc = byte 48 of the block). */
static inline uint16_t rl_iq1_m_scale_bits(const uint8_t *sc)
{
    return (uint16_t)(le16(sc) >> 12 | le16(sc + 2) >> 12 << 4 | le16(sc + 4) >> 12 << 8 | le16(sc + 6) >> 12 << 12);
}

/* Every block type: enumerator, function suffix, weights, bytes, activation kind. */
#define RL_BLOCK_TYPES(X)                                                                                                      \
    X(Q1_0, q1_0, 128, 18, Q8_0)                                                                                               \
    X(Q2_0, q2_0, 64, 18, Q8_0)                                                                                                \
    X(Q4_0, q4_0, 32, 18, Q8_0)                                                                                                \
    X(Q4_1, q4_1, 32, 20, Q8_1)                                                                                                \
    X(Q5_0, q5_0, 32, 22, Q8_0)                                                                                                \
    X(Q5_1, q5_1, 32, 24, Q8_1)                                                                                                \
    X(Q8_0, q8_0, 32, 34, Q8_0)                                                                                                \
    X(Q2_K, q2_k, 256, 84, Q8_K)                                                                                               \
    X(Q3_K, q3_k, 256, 110, Q8_K)                                                                                              \
    X(Q4_K, q4_k, 256, 144, Q8_K)                                                                                              \
    X(Q5_K, q5_k, 256, 176, Q8_K)                                                                                              \
    X(Q6_K, q6_k, 256, 210, Q8_K)                                                                                              \
    X(TQ1_0, tq1_0, 256, 54, Q8_K)                                                                                             \
    X(TQ2_0, tq2_0, 256, 66, Q8_K)                                                                                             \
    X(IQ1_S, iq1_s, 256, 50, Q8_K)                                                                                             \
    X(IQ1_M, iq1_m, 256, 56, Q8_K)                                                                                             \
    X(IQ2_XXS, iq2_xxs, 256, 66, Q8_K)                                                                                         \
    X(IQ2_XS, iq2_xs, 256, 74, Q8_K)                                                                                           \
    X(IQ2_S, iq2_s, 256, 82, Q8_K)                                                                                             \
    X(IQ3_XXS, iq3_xxs, 256, 98, Q8_K)                                                                                         \
    X(IQ3_S, iq3_s, 256, 110, Q8_K)                                                                                            \
    X(IQ4_NL, iq4_nl, 32, 18, Q8_0)                                                                                            \
    X(IQ4_XS, iq4_xs, 256, 136, Q8_K)                                                                                          \
    X(MXFP4, mxfp4, 32, 17, Q8_0)                                                                                              \
    X(NVFP4, nvfp4, 64, 36, Q8_0)

#define RL_DECLARE_UNPACK(id, name, weights, bytes, act) void rl_unpack_##name(const void *block, rl_block_codes *out);
RL_BLOCK_TYPES(RL_DECLARE_UNPACK)
#undef RL_DECLARE_UNPACK

/* One scale, no offsets, s = 1 for all of the block's weights. */
static inline void set_plain_scale(rl_block_codes *out, float scale, int n_weights)
{
    out->scale = scale;
    out->offset_scale = 0.0f;
    out->has_offset = false;
    for (int t = 0; t < n_weights / 16; t++)
        out->s[t] = 1;
}

/* n bytes into 2n codes: the low nibbles first, then the high ones. */
static inline void spread_nibbles(const uint8_t *src, int n, int8_t *dst)
{
    for (int j = 0; j < n; j++) {
        dst[j] = (int8_t)(src[j] & 15);
        dst[j + n] = (int8_t)(src[j] >> 4);
    }
}

/* The arrangement Q2_K, Q3_K and TQ2_0 share: each 32 bytes hold 128 codes, bit pair j of byte l is weight 32 j + l. */
static inline void spread_pairs(const uint8_t *src, int8_t *dst)
{
    for (int h = 0; h < 2; h++)
        for (int j = 0; j < 4; j++)
            for (int l = 0; l < 32; l++)
                dst[128 * h + 32 * j + l] = (int8_t)(src[32 * h + l] >> (2 * j) & 3);
}

#endif
