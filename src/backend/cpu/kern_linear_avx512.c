/* backend/cpu/kern_linear_avx512: decoders of the types whose bits are the codes, or index a table of 16: the K family, the
 * 32-weight types and IQ4_XS. Codes with a sign leave as code + 128 through a 64-byte table, which ignores the bits above its
 * six index bits and so saves the masks. */
#include "backend/cpu/kern_sink_avx512.h"

INLINE __m512i lookup(__m512i index, __m512i table)
{
    return _mm512_permutexvar_epi8(index, table);
}

/* 16 table entries four times over, so that index bits 4 and 5 do not matter. */
INLINE __m512i table16(const int8_t *values)
{
    return _mm512_add_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)values)), _mm512_set1_epi8((char)128));
}

/* A table made by calling a function for each of the 64 indices; folds to a constant. */
#define TABLE64(f)                                                                                                             \
    _mm512_set_epi8(f(63), f(62), f(61), f(60), f(59), f(58), f(57), f(56), f(55), f(54), f(53), f(52), f(51), f(50), f(49),   \
                    f(48), f(47), f(46), f(45), f(44), f(43), f(42), f(41), f(40), f(39), f(38), f(37), f(36), f(35), f(34),   \
                    f(33), f(32), f(31), f(30), f(29), f(28), f(27), f(26), f(25), f(24), f(23), f(22), f(21), f(20), f(19),   \
                    f(18), f(17), f(16), f(15), f(14), f(13), f(12), f(11), f(10), f(9), f(8), f(7), f(6), f(5), f(4), f(3),   \
                    f(2), f(1), f(0))

/* ---- 32-weight types --------------------------------------------------------------------------------------------------------
 */

/* Words 0..3 of nibbles: the low ones are columns 0..15, the high ones 16..31. */
INLINE void nibbles32(sink *s, int g, const uint8_t *planes, __m512i table)
{
    UNROLL
    for (int j = 0; j < 4; j++)
        emit(s, 8 * g + j, lookup(plane(planes, j), table));
    UNROLL
    for (int j = 0; j < 4; j++)
        emit(s, 8 * g + 4 + j, lookup(_mm512_srli_epi32(plane(planes, j), 4), table));
}

INLINE void decode_q4_0(sink *s, int g, const uint8_t *planes, const uint8_t *scales)
{
    static const int8_t values[16] = {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7};
    group32_begin(s, g);
    nibbles32(s, g, planes, table16(values));
    block32_end(s, g, half_scales(scales));
}

INLINE void decode_iq4_nl(sink *s, int g, const uint8_t *planes, const uint8_t *scales)
{
    group32_begin(s, g);
    nibbles32(s, g, planes, table16(rl_iq4nl_values));
    block32_end(s, g, half_scales(scales));
}

INLINE void decode_mxfp4(sink *s, int g, const uint8_t *planes, const uint8_t *scales)
{
    group32_begin(s, g);
    nibbles32(s, g, planes, table16(rl_fp4_values));
    /* 2^(e - 128): exponent field e - 1, and the subnormals 2^-128 and 2^-127 for e = 0 and 1 */
    const __m512i e = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)scales));
    const __m512i normal = _mm512_slli_epi32(_mm512_sub_epi32(e, _mm512_set1_epi32(1)), 23);
    const __m512i small = _mm512_sllv_epi32(_mm512_set1_epi32(0x00200000), e);
    const __mmask16 is_small = _mm512_cmplt_epu32_mask(e, _mm512_set1_epi32(2));
    block32_end(s, g, _mm512_castsi512_ps(_mm512_mask_mov_epi32(normal, is_small, small)));
}

/* Word 0 is the fifth bits, of column i in bit i. */
INLINE void decode_q5_0(sink *s, int g, const uint8_t *planes, const uint8_t *scales)
{
#define Q5_0(i) (char)(((i)&31) - 16 + 128)
    const __m512i table = TABLE64(Q5_0), low = _mm512_set1_epi8(15), bits = plane(planes, 0);
    group32_begin(s, g);
    UNROLL
    for (int j = 0; j < 8; j++) {
        const __m512i v = _mm512_srli_epi32(plane(planes, 1 + j % 4), j < 4 ? 0 : 4);
        const __m512i fifth = take(bits, 4 * j - 4, 4 * j - 3, 4 * j - 2, 4 * j - 1); /* bit 4 of each byte */
        emit(s, 8 * g + j, lookup(select_bits(v, fifth, low), table));
    }
    block32_end(s, g, half_scales(scales));
}

INLINE void decode_q8_0(sink *s, int g, const uint8_t *planes, const uint8_t *scales)
{
    group32_begin(s, g);
    UNROLL
    for (int j = 0; j < 8; j++)
        emit(s, 8 * g + j, _mm512_xor_si512(plane(planes, j), _mm512_set1_epi8((char)128)));
    block32_end(s, g, half_scales(scales));
}

RL_BLOCK32_FUNCTIONS(q4_0, 2, 4, 0, 2, 18)
RL_BLOCK32_FUNCTIONS(iq4_nl, 2, 4, 0, 2, 18)
RL_BLOCK32_FUNCTIONS(mxfp4, 1, 4, 0, 1, 17)
RL_BLOCK32_FUNCTIONS(q5_0, 2, 5, 0, 2, 22)
RL_BLOCK32_FUNCTIONS(q8_0, 2, 8, 0, 2, 34)

/* ---- Super-blocks -----------------------------------------------------------------------------------------------------------
 */

/* d in the low and -dmin in the high half of a word. */
INLINE void two_halves(__m512i word, __m512 *d, __m512 *dm)
{
    *d = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(word));
    const __m512 m = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(word, 16)));
    *dm = _mm512_castsi512_ps(_mm512_xor_si512(_mm512_castps_si512(m), _mm512_set1_epi32((int)0x80000000)));
}

/* Six-bit scales and offsets of Q4_K and Q5_K from the three words that pack them: bytes g of sc and mn, g < 8. */
INLINE void scales_k4(const uint8_t *planes, __m512i sc[2], __m512i mn[2])
{
    const __m512i s0 = plane(planes, 1), s1 = plane(planes, 2), s2 = plane(planes, 3);
    const __m512i six = _mm512_set1_epi8(63), four = _mm512_set1_epi8(15);
    sc[0] = _mm512_and_si512(s0, six);
    mn[0] = _mm512_and_si512(s1, six);
    sc[1] = select_bits(s2, _mm512_and_si512(_mm512_srli_epi32(s0, 2), _mm512_set1_epi8(48)), four);
    mn[1] = select_bits(_mm512_srli_epi32(s2, 4), _mm512_and_si512(_mm512_srli_epi32(s1, 2), _mm512_set1_epi8(48)), four);
}

INLINE void offsets_k4(sink *s, const __m512i mn[2])
{
    UNROLL
    for (int p = 0; p < 4; p++) { /* bytes 2 (p % 2) and the next as 16-bit halves */
        const __m512i v = p % 2 ? _mm512_srli_epi32(mn[p / 2], 16) : mn[p / 2];
        const __m512i low = _mm512_and_si512(v, _mm512_set1_epi32(0xff));
        offsets32(s, p, and_or(_mm512_slli_epi32(v, 8), _mm512_set1_epi32(0xff0000), low));
    }
}

INLINE __m512i byte_of(__m512i v, int i)
{
    return _mm512_and_si512(_mm512_srli_epi32(v, 8 * i), _mm512_set1_epi32(0xff));
}

INLINE void decode_q4_k(sink *s, const uint8_t *planes, const uint8_t *scales)
{
    (void)scales;
    __m512i sc[2], mn[2];
    __m512 d, dm;
    const __m512i low = _mm512_set1_epi8(15);
    block_begin(s);
    scales_k4(planes, sc, mn);
    UNROLL
    for (int g = 0; g < 8; g++) {
        group_begin(s);
        UNROLL
        for (int j = 0; j < 8; j++)
            emit(s, 8 * g + j, _mm512_and_si512(_mm512_srli_epi32(plane(planes, 4 + 8 * (g / 2) + j), g % 2 ? 4 : 0), low));
        group_end(s, g, byte_of(sc[g / 4], g % 4));
    }
    offsets_k4(s, mn);
    two_halves(plane(planes, 0), &d, &dm);
    block_end_offsets(s, d, dm);
}

INLINE void decode_q5_k(sink *s, const uint8_t *planes, const uint8_t *scales)
{
    (void)scales;
    __m512i sc[2], mn[2];
    __m512 d, dm;
    const __m512i low = _mm512_set1_epi8(15), fifth = _mm512_set1_epi8(16);
    block_begin(s);
    scales_k4(planes, sc, mn);
    UNROLL
    for (int g = 0; g < 8; g++) {
        group_begin(s);
        UNROLL
        for (int j = 0; j < 8; j++) {
            const __m512i v = _mm512_srli_epi32(plane(planes, 12 + 8 * (g / 2) + j), g % 2 ? 4 : 0), h = plane(planes, 4 + j);
            const __m512i top = g < 4 ? _mm512_slli_epi32(h, 4 - g) : _mm512_srli_epi32(h, g - 4);
            emit(s, 8 * g + j, and_or(v, low, _mm512_and_si512(top, fifth)));
        }
        group_end(s, g, byte_of(sc[g / 4], g % 4));
    }
    offsets_k4(s, mn);
    two_halves(plane(planes, 0), &d, &dm);
    block_end_offsets(s, d, dm);
}

/* Code times scale (at most 45) in one byte: index = code | scale << 2. */
INLINE void decode_q2_k(sink *s, const uint8_t *planes, const uint8_t *scales)
{
    (void)scales;
#define Q2_K(i) (char)(((i)&3) * ((i) >> 2))
    const __m512i table = TABLE64(Q2_K), code = _mm512_set1_epi8(3);
    __m512 d, dm;
    block_begin(s);
    UNROLL
    for (int g = 0; g < 16; g++) {
        const __m512i sm = plane(planes, g / 4);
        const int at = 8 * (g % 4) - 2; /* puts the low nibble of byte g % 4 above the code */
        const __m512i scale = take(sm, at, at, at, at);
        UNROLL
        for (int j = 0; j < 4; j++) {
            const int c = 4 * g + j; /* quadruple of columns: half c / 32, bit pair c / 8 % 4, word c % 8 */
            const __m512i v = _mm512_srli_epi32(plane(planes, 4 + 8 * (c / 32) + c % 8), 2 * (c / 8 % 4));
            emit(s, c, lookup(select_bits(v, scale, code), table));
        }
    }
    fold_whole_end(s);
    UNROLL
    for (int p = 0; p < 8; p++) {
        const __m512i v = _mm512_srli_epi32(plane(planes, p / 2), p % 2 ? 20 : 4);
        const __m512i low = _mm512_and_si512(v, _mm512_set1_epi32(15));
        offsets16(s, p, and_or(_mm512_slli_epi32(v, 8), _mm512_set1_epi32(0x0f0000), low));
    }
    two_halves(plane(planes, 20), &d, &dm);
    block_end_offsets(s, d, dm);
}

INLINE void decode_q3_k(sink *s, const uint8_t *planes, const uint8_t *scales)
{
#define Q3_K(i) (char)(((i)&7) - 4 + 128)
    const __m512i table = TABLE64(Q3_K), code = _mm512_set1_epi8(3);
    block_begin(s);
    UNROLL
    for (int g = 0; g < 16; g++) {
        group16_begin(s, g);
        UNROLL
        for (int j = 0; j < 4; j++) {
            const int c = 4 * g + j, bit = c / 8;
            const __m512i v = _mm512_srli_epi32(plane(planes, 8 + 8 * (c / 32) + c % 8), 2 * (c / 8 % 4));
            const __m512i h = plane(planes, c % 8);
            const __m512i third = bit < 2 ? _mm512_slli_epi32(h, 2 - bit) : _mm512_srli_epi32(h, bit - 2);
            emit(s, c, lookup(select_bits(v, third, code), table));
        }
        const __m512i lo = _mm512_srli_epi32(plane(planes, 24 + g / 4 % 2), 8 * (g % 4) + 4 * (g / 8));
        const int at = 8 * (g % 4) + 2 * (g / 4) - 4; /* two upper bits to bits 4 and 5 */
        const __m512i top = plane(planes, 26);
        const __m512i hi = at < 0 ? _mm512_slli_epi32(top, -at) : _mm512_srli_epi32(top, at);
        const __m512i u = and_or(lo, _mm512_set1_epi32(15), _mm512_and_si512(hi, _mm512_set1_epi32(48)));
        group_end(s, g, _mm512_sub_epi32(u, _mm512_set1_epi32(32)));
    }
    block_end(s, half_scales(scales));
}

INLINE void decode_q6_k(sink *s, const uint8_t *planes, const uint8_t *scales)
{
#define Q6_K(i) (char)((i)-32 + 128)
    const __m512i table = TABLE64(Q6_K), low = _mm512_set1_epi8(15);
    block_begin(s);
    UNROLL
    for (int g = 0; g < 16; g++) {
        group16_begin(s, g);
        UNROLL
        for (int j = 0; j < 4; j++) {
            const int c = 4 * g + j, half = c / 32, r = c % 32; /* r: quadruple within the half */
            const __m512i v = _mm512_srli_epi32(plane(planes, 16 * half + r % 16), r < 16 ? 0 : 4);
            const __m512i h = plane(planes, 32 + 8 * half + r % 8);
            const int up = 4 - 2 * (r / 8);
            const __m512i top = up >= 0 ? _mm512_slli_epi32(h, up) : _mm512_srli_epi32(h, -up);
            emit(s, c, lookup(select_bits(v, top, low), table));
        }
        const __m512i sc = plane(planes, 48 + g / 4);
        group_end(s, g, _mm512_srai_epi32(_mm512_slli_epi32(sc, 24 - 8 * (g % 4)), 24));
    }
    block_end(s, half_scales(scales));
}

/* Word 0: d and the upper scale bits; word 1: the lower ones. */
INLINE void decode_iq4_xs(sink *s, const uint8_t *planes, const uint8_t *scales)
{
    (void)scales;
    const __m512i table = table16(rl_iq4nl_values), head = plane(planes, 0), sl = plane(planes, 1);
    block_begin(s);
    UNROLL
    for (int g = 0; g < 8; g++) {
        group32_begin(s, g);
        nibbles32(s, g, planes + 64 * (2 + 4 * g), table);
        const __m512i hi = _mm512_srli_epi32(head, 12 + 2 * g); /* bits 16 + 2 g to 4 and 5 */
        const __m512i u =
            and_or(_mm512_srli_epi32(sl, 4 * g), _mm512_set1_epi32(15), _mm512_and_si512(hi, _mm512_set1_epi32(48)));
        group_end(s, g, _mm512_sub_epi32(u, _mm512_set1_epi32(32)));
    }
    block_end(s, _mm512_cvtph_ps(_mm512_cvtepi32_epi16(head)));
}

RL_SUPER_FUNCTIONS(q2_k, 0, 21, 0, 0, 84)
RL_SUPER_FUNCTIONS(q3_k, 0, 27, 108, 2, 110)
RL_SUPER_FUNCTIONS(q4_k, 0, 36, 0, 0, 144)
RL_SUPER_FUNCTIONS(q5_k, 0, 44, 0, 0, 176)
RL_SUPER_FUNCTIONS(q6_k, 0, 52, 208, 2, 210)
RL_SUPER_FUNCTIONS(iq4_xs, 0, 34, 0, 0, 136)

const rl_type_kernels rl_linear_kernels_avx512[RL_TYPE_END] = {
    [RL_Q4_0] = RL_TYPE_KERNELS(q4_0),     [RL_Q5_0] = RL_TYPE_KERNELS(q5_0),     [RL_Q8_0] = RL_TYPE_KERNELS(q8_0),
    [RL_IQ4_NL] = RL_TYPE_KERNELS(iq4_nl), [RL_MXFP4] = RL_TYPE_KERNELS(mxfp4),   [RL_Q2_K] = RL_TYPE_KERNELS(q2_k),
    [RL_Q3_K] = RL_TYPE_KERNELS(q3_k),     [RL_Q4_K] = RL_TYPE_KERNELS(q4_k),     [RL_Q5_K] = RL_TYPE_KERNELS(q5_k),
    [RL_Q6_K] = RL_TYPE_KERNELS(q6_k),     [RL_IQ4_XS] = RL_TYPE_KERNELS(iq4_xs),
};
