/* backend/cpu/kern_linear_avx2: decoders of the types whose bits are the codes, or index a table of 16: the K family, the
 * 32-weight types and IQ4_XS. */
#include "backend/cpu/kern_avx2.h"

INLINE __m256i table16(const int8_t *values, int bias)
{
    const __m128i t = _mm_add_epi8(_mm_loadu_si128((const __m128i *)values), _mm_set1_epi8((char)bias));
    return _mm256_broadcastsi128_si256(t);
}

/* Words 0..3 of nibbles: the low ones are columns 0..15, the high ones 16..31. */
INLINE void nibbles32(sink *s, int g, const uint8_t *planes, const __m256i *table)
{
    UNROLL
    for (int j = 0; j < 8; j++) {
        const __m256i v = bits(plane(s, planes, j % 4), j < 4 ? 0 : 4, 15);
        emit(s, 8 * g + j, table ? _mm256_shuffle_epi8(*table, v) : v);
    }
}

INLINE void decode_q4_0(sink *s, int g, const uint8_t *planes, const uint8_t *scales)
{
    block32_begin(s, g);
    nibbles32(s, g, planes, NULL);
    block32_end(s, g, half_scales(s, scales));
}

INLINE void decode_iq4_nl(sink *s, int g, const uint8_t *planes, const uint8_t *scales)
{
    const __m256i table = table16(rl_iq4nl_values, 0);
    block32_begin(s, g);
    nibbles32(s, g, planes, &table);
    block32_end(s, g, half_scales(s, scales));
}

INLINE void decode_mxfp4(sink *s, int g, const uint8_t *planes, const uint8_t *scales)
{
    const __m256i table = table16(rl_fp4_values, 16);
    block32_begin(s, g);
    nibbles32(s, g, planes, &table);
    /* 2^(e - 128): exponent field e - 1, and the subnormals 2^-128 and 2^-127 for e = 0 and 1 */
    const __m256i e = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(scales + 8 * s->half)));
    const __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
    const __m256i small = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), e);
    const __m256i d = _mm256_blendv_epi8(normal, small, _mm256_cmpgt_epi32(_mm256_set1_epi32(2), e));
    block32_end(s, g, _mm256_castsi256_ps(d));
}

/* Word 0 is the fifth bits, of column i in bit i. */
INLINE void decode_q5_0(sink *s, int g, const uint8_t *planes, const uint8_t *scales)
{
    const __m256i all = plane(s, planes, 0);
    block32_begin(s, g);
    UNROLL
    for (int j = 0; j < 8; j++) {
        const int byte = j / 2;
        const __m256i mask = _mm256_set1_epi32(j % 2 ? (int)0x80402010 : 0x08040201);
        const __m256i hit = _mm256_cmpeq_epi8(_mm256_and_si256(pick(all, byte, byte, byte, byte), mask), mask);
        const __m256i low = bits(plane(s, planes, 1 + j % 4), j < 4 ? 0 : 4, 15);
        emit(s, 8 * g + j, _mm256_or_si256(low, _mm256_and_si256(hit, _mm256_set1_epi8(16))));
    }
    block32_end(s, g, half_scales(s, scales));
}

INLINE void decode_q8_0(sink *s, int g, const uint8_t *planes, const uint8_t *scales)
{
    block32_begin(s, g);
    UNROLL
    for (int j = 0; j < 8; j++)
        emit(s, 8 * g + j, plane(s, planes, j));
    block32_end(s, g, half_scales(s, scales));
}

RL_BLOCK32_FUNCTIONS(q4_0, RL_CODES_4, 8, 2, 4, 0, 2, 18)
RL_BLOCK32_FUNCTIONS(iq4_nl, RL_CODES_SIGNED, 0, 2, 4, 0, 2, 18)
RL_BLOCK32_FUNCTIONS(mxfp4, RL_CODES_4, 16, 1, 4, 0, 1, 17)
RL_BLOCK32_FUNCTIONS(q5_0, RL_CODES_4, 16, 2, 5, 0, 2, 22)
RL_BLOCK32_FUNCTIONS(q8_0, RL_CODES_SIGNED, 0, 2, 8, 0, 2, 34)

/* ---- Super-blocks
 * ------------------------------------------------------------------------------------------------------------- */

/* 32-bit lanes to the binary16 numbers in their low halves. */
INLINE __m256 low_half(__m256i v)
{
    const __m256i packed = _mm256_packus_epi32(_mm256_and_si256(v, _mm256_set1_epi32(0xffff)), _mm256_setzero_si256());
    return _mm256_cvtph_ps(_mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08)));
}

/* d in the low and dmin in the high half of a word. */
INLINE void end_with_offsets(sink *s, __m256i word)
{
    const __m256 dm = _mm256_xor_ps(low_half(_mm256_srli_epi32(word, 16)), _mm256_set1_ps(-0.0f));
    block_end_offsets(s, low_half(word), dm);
}

/* Six-bit scales and offsets of Q4_K and Q5_K from the three words that pack them: bytes g of sc and mn, g < 8. */
INLINE void scales_k4(const sink *s, const uint8_t *planes, __m256i sc[2], __m256i mn[2])
{
    const __m256i s0 = plane(s, planes, 1), s1 = plane(s, planes, 2), s2 = plane(s, planes, 3);
    sc[0] = bits(s0, 0, 63);
    mn[0] = bits(s1, 0, 63);
    sc[1] = _mm256_or_si256(bits(s2, 0, 15), bits(s0, 2, 48));
    mn[1] = _mm256_or_si256(bits(s2, 4, 15), bits(s1, 2, 48));
}

INLINE void offsets_k4(sink *s, const __m256i mn[2])
{
    UNROLL
    for (int p = 0; p < 4; p++) { /* bytes 2 (p % 2) and the next as 16-bit halves */
        const __m256i v = p % 2 ? _mm256_srli_epi32(mn[p / 2], 16) : mn[p / 2];
        group_offsets(s, p, 32, _mm256_or_si256(bits32(v, 0, 0xff), bits32(v, -8, 0xff0000)));
    }
}

INLINE void decode_q4_k(sink *s, const uint8_t *planes, const uint8_t *scales)
{
    (void)scales;
    __m256i sc[2], mn[2];
    block_begin(s);
    scales_k4(s, planes, sc, mn);
    UNROLL
    for (int g = 0; g < 8; g++) {
        group_begin(s, g, 32, bits32(sc[g / 4], 8 * (g % 4), 0xff));
        UNROLL
        for (int j = 0; j < 8; j++)
            emit(s, 8 * g + j, bits(plane(s, planes, 4 + 8 * (g / 2) + j), g % 2 ? 4 : 0, 15));
    }
    offsets_k4(s, mn);
    end_with_offsets(s, plane(s, planes, 0));
}

INLINE void decode_q5_k(sink *s, const uint8_t *planes, const uint8_t *scales)
{
    (void)scales;
    __m256i sc[2], mn[2];
    block_begin(s);
    scales_k4(s, planes, sc, mn);
    UNROLL
    for (int g = 0; g < 8; g++) {
        group_begin(s, g, 32, bits32(sc[g / 4], 8 * (g % 4), 0xff));
        UNROLL
        for (int j = 0; j < 8; j++) {
            const __m256i low = bits(plane(s, planes, 12 + 8 * (g / 2) + j), g % 2 ? 4 : 0, 15);
            emit(s, 8 * g + j, _mm256_or_si256(low, bits(plane(s, planes, 4 + j), g - 4, 16)));
        }
    }
    offsets_k4(s, mn);
    end_with_offsets(s, plane(s, planes, 0));
}

INLINE void decode_q2_k(sink *s, const uint8_t *planes, const uint8_t *scales)
{
    (void)scales;
    block_begin(s);
    UNROLL
    for (int g = 0; g < 16; g++) {
        group_begin(s, g, 16, bits32(plane(s, planes, g / 4), 8 * (g % 4), 15));
        UNROLL
        for (int j = 0; j < 4; j++) {
            const int c = 4 * g + j; /* quadruple of columns: half c / 32, bit pair c / 8 % 4, word c % 8 */
            emit(s, c, bits(plane(s, planes, 4 + 8 * (c / 32) + c % 8), 2 * (c / 8 % 4), 3));
        }
    }
    UNROLL
    for (int p = 0; p < 8; p++) {
        const __m256i v = _mm256_srli_epi32(plane(s, planes, p / 2), p % 2 ? 20 : 4);
        group_offsets(s, p, 16, _mm256_or_si256(bits32(v, 0, 15), bits32(v, -8, 0x0f0000)));
    }
    end_with_offsets(s, plane(s, planes, 20));
}

INLINE void decode_q3_k(sink *s, const uint8_t *planes, const uint8_t *scales)
{
    block_begin(s);
    UNROLL
    for (int g = 0; g < 16; g++) {
        const __m256i lo = bits32(plane(s, planes, 24 + g / 4 % 2), 8 * (g % 4) + 4 * (g / 8), 15);
        const __m256i hi = bits32(plane(s, planes, 26), 8 * (g % 4) + 2 * (g / 4) - 4, 48);
        group_begin(s, g, 16, _mm256_sub_epi32(_mm256_or_si256(lo, hi), _mm256_set1_epi32(32)));
        UNROLL
        for (int j = 0; j < 4; j++) {
            const int c = 4 * g + j;
            const __m256i low = bits(plane(s, planes, 8 + 8 * (c / 32) + c % 8), 2 * (c / 8 % 4), 3);
            emit(s, c, _mm256_or_si256(low, bits(plane(s, planes, c % 8), c / 8 - 2, 4)));
        }
    }
    block_end(s, half_scales(s, scales));
}

INLINE void decode_q6_k(sink *s, const uint8_t *planes, const uint8_t *scales)
{
    block_begin(s);
    UNROLL
    for (int g = 0; g < 16; g++) {
        const __m256i sc = plane(s, planes, 48 + g / 4);
        group_begin(s, g, 16, _mm256_srai_epi32(_mm256_slli_epi32(sc, 24 - 8 * (g % 4)), 24));
        UNROLL
        for (int j = 0; j < 4; j++) {
            const int c = 4 * g + j, half = c / 32, r = c % 32; /* r: quadruple within the half */
            const __m256i low = bits(plane(s, planes, 16 * half + r % 16), r < 16 ? 0 : 4, 15);
            emit(s, c, _mm256_or_si256(low, bits(plane(s, planes, 32 + 8 * half + r % 8), 2 * (r / 8) - 4, 48)));
        }
    }
    block_end(s, half_scales(s, scales));
}

/* Word 0: d and the upper scale bits; word 1: the lower ones. */
INLINE void decode_iq4_xs(sink *s, const uint8_t *planes, const uint8_t *scales)
{
    (void)scales;
    const __m256i table = table16(rl_iq4nl_values, 0), head = plane(s, planes, 0);
    block_begin(s);
    UNROLL
    for (int g = 0; g < 8; g++) {
        const __m256i u = _mm256_or_si256(bits32(plane(s, planes, 1), 4 * g, 15), bits32(head, 12 + 2 * g, 48));
        group_begin(s, g, 32, _mm256_sub_epi32(u, _mm256_set1_epi32(32)));
        nibbles32(s, g, planes + 64 * (2 + 4 * g), &table);
    }
    block_end(s, low_half(head));
}

RL_SUPER_FUNCTIONS(q2_k, RL_CODES_4, 0, 0, 21, 0, 0, 84)
RL_SUPER_FUNCTIONS(q3_k, RL_CODES_4, 4, 0, 27, 108, 2, 110)
RL_SUPER_FUNCTIONS(q4_k, RL_CODES_4, 0, 0, 36, 0, 0, 144)
RL_SUPER_FUNCTIONS(q5_k, RL_CODES_4, 0, 0, 44, 0, 0, 176)
RL_SUPER_FUNCTIONS(q6_k, RL_CODES_1, 32, 0, 52, 208, 2, 210)
RL_SUPER_FUNCTIONS(iq4_xs, RL_CODES_SIGNED, 0, 0, 34, 0, 0, 136)

const rl_type_kernels rl_linear_kernels_avx2[RL_TYPE_END] = {
    [RL_Q4_0] = RL_TYPE_KERNELS(q4_0),     [RL_Q5_0] = RL_TYPE_KERNELS(q5_0),     [RL_Q8_0] = RL_TYPE_KERNELS(q8_0),
    [RL_IQ4_NL] = RL_TYPE_KERNELS(iq4_nl), [RL_MXFP4] = RL_TYPE_KERNELS(mxfp4),   [RL_Q2_K] = RL_TYPE_KERNELS(q2_k),
    [RL_Q3_K] = RL_TYPE_KERNELS(q3_k),     [RL_Q4_K] = RL_TYPE_KERNELS(q4_k),     [RL_Q5_K] = RL_TYPE_KERNELS(q5_k),
    [RL_Q6_K] = RL_TYPE_KERNELS(q6_k),     [RL_IQ4_XS] = RL_TYPE_KERNELS(iq4_xs),
};
