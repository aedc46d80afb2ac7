/* backend/cpu/kern_codebook_avx2: decoders of the codebook types. Entries are read by scalar loads from tables that stay in the
 * first-level cache (16 KiB at most), one per group of 8 weights, while the vector units finish the codes of the group before.
 */
#include "backend/cpu/kern_avx2.h"

#include <pthread.h>

/* Eight bytes 8 g + 16 of the IQ1 codebook: with the shift of +-1 the biased code. */
static _Alignas(64) uint64_t iq1_grid[2048];

static void make_tables(void)
{
    for (int n = 0; n < 2048; n++)
        for (int k = 0; k < 8; k++) {
            const int g = (int8_t)(rl_iq1s_grid[n] >> 8 * k);
            iq1_grid[n] |= (uint64_t)(8 * g + 16) << 8 * k;
        }
}

void rl_codebook_init_avx2(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, make_tables);
}

/* Entries of 8 rows for one group: columns 0..3 in *lo and 4..7 in *hi. e[r] is the entry of row r. */
INLINE void join8(const uint64_t *const e[8], __m256i *lo, __m256i *hi)
{
#define TWO(a, b) _mm_castps_si128(_mm_loadh_pi(_mm_castsi128_ps(_mm_loadl_epi64((const __m128i *)(a))), (const __m64 *)(b)))
    const __m256i a = _mm256_inserti128_si256(_mm256_castsi128_si256(TWO(e[0], e[1])), TWO(e[4], e[5]), 1);
    const __m256i b = _mm256_inserti128_si256(_mm256_castsi128_si256(TWO(e[2], e[3])), TWO(e[6], e[7]), 1);
    *lo = _mm256_castps_si256(_mm256_shuffle_ps(_mm256_castsi256_ps(a), _mm256_castsi256_ps(b), 0x88));
    *hi = _mm256_castps_si256(_mm256_shuffle_ps(_mm256_castsi256_ps(a), _mm256_castsi256_ps(b), 0xdd));
}

/* 16-bit indices of a sub-block: four per row from low bytes and high bits. In `index` row r, group l is at slot(r, l). */
INLINE void store_indices(__m256i low, __m256i high, uint16_t index[32])
{
    _mm256_store_si256((__m256i *)index, _mm256_unpacklo_epi8(low, high));
    _mm256_store_si256((__m256i *)index + 1, _mm256_unpackhi_epi8(low, high));
}

INLINE int slot(int r, int l)
{
    return (r & 2) * 8 + (r >> 2) * 8 + (r & 1) * 4 + l;
}

INLINE void join_by_slots(const uint64_t *grid, const uint16_t index[32], int l, __m256i *lo, __m256i *hi)
{
    const uint64_t *e[8];
    UNROLL
    for (int r = 0; r < 8; r++)
        e[r] = grid + index[slot(r, l)];
    join8(e, lo, hi);
}

/* ---- IQ1
 * ----------------------------------------------------------------------------------------------------------------------- */

/* shift: 1 or -1 in byte l of every lane. */
INLINE void iq1_emit8(sink *s, int b, int l, const uint16_t index[32], __m256i shift)
{
    __m256i lo, hi;
    join_by_slots(iq1_grid, index, l, &lo, &hi);
    const __m256i e = pick(shift, l, l, l, l);
    emit(s, 8 * b + 2 * l, _mm256_add_epi8(lo, e));
    emit(s, 8 * b + 2 * l + 1, _mm256_add_epi8(hi, e));
}

/* 1 - 2 x for bit 0 of every byte. */
INLINE __m256i shift_of(__m256i bit)
{
    return _mm256_sub_epi8(_mm256_set1_epi8(1), _mm256_add_epi8(bit, bit));
}

/* Words: 0..7 low index bytes, 8..11 high bits and shift signs, 12, 13 scales and the scattered block scale. */
INLINE void decode_iq1_m(sink *s, const uint8_t *planes, const uint8_t *scales)
{
    (void)scales;
    _Alignas(32) uint16_t index[8][32];
    __m256i shift[8];
    UNROLL
    for (int b = 0; b < 8; b++) {
        const int at = 2 * (b % 2);
        const __m256i h = pick(plane(s, planes, 8 + b / 2), at, at, at + 1, at + 1);
        const __m256i nibble = _mm256_or_si256(bits32(h, 0, 0x000f000f), bits32(h, 4, 0x0f000f00));
        store_indices(plane(s, planes, b), bits(nibble, 0, 7), index[b]);
        shift[b] = shift_of(bits(nibble, 3, 1));
    }
    block_begin(s);
    UNROLL
    for (int b = 0; b < 8; b++) {
        const __m256i sc = plane(s, planes, 12 + b / 4);
        const int at = 16 * (b / 2 % 2) + 6 * (b % 2);
        UNROLL
        for (int h = 0; h < 2; h++) {
            group_begin(s, 2 * b + h, 16, _mm256_or_si256(bits32(sc, at + 3 * h - 1, 14), _mm256_set1_epi32(1)));
            iq1_emit8(s, b, 2 * h, index[b], shift[b]);
            iq1_emit8(s, b, 2 * h + 1, index[b], shift[b]);
        }
    }
    const __m256i s0 = plane(s, planes, 12), s1 = plane(s, planes, 13);
    const __m256i d = _mm256_or_si256(_mm256_or_si256(bits32(s0, 12, 0xf), bits32(s0, 24, 0xf0)),
                                      _mm256_or_si256(bits32(s1, 4, 0xf00), bits32(s1, 16, 0xf000)));
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(d, d), 0x08);
    block_end(s, _mm256_mul_ps(_mm256_cvtph_ps(_mm256_castsi256_si128(packed)), _mm256_set1_ps(0.125f)));
}

/* Words: 0..7 low index bytes, 8..11 two 16-bit fields each: four times three index bits, scale, shift sign. */
INLINE void decode_iq1_s(sink *s, const uint8_t *planes, const uint8_t *scales)
{
    block_begin(s);
    UNROLL
    for (int b = 0; b < 8; b++) {
        _Alignas(32) uint16_t index[32];
        const __m256i h = _mm256_srli_epi32(plane(s, planes, 8 + b / 2), 16 * (b % 2));
        const __m256i high = _mm256_or_si256(_mm256_or_si256(bits32(h, 0, 7), bits32(h, -5, 0x700)),
                                             _mm256_or_si256(bits32(h, -10, 0x70000), bits32(h, -15, 0x7000000)));
        store_indices(plane(s, planes, b), high, index);
        const __m256i sign = bits32(h, 15, 1), shift = shift_of(pick(sign, 0, 0, 0, 0));
        group_begin(s, b, 32, _mm256_or_si256(bits32(h, 11, 14), _mm256_set1_epi32(1)));
        UNROLL
        for (int l = 0; l < 4; l++)
            iq1_emit8(s, b, l, index, shift);
    }
    block_end(s, _mm256_mul_ps(half_scales(s, scales), _mm256_set1_ps(0.125f)));
}

RL_SUPER_FUNCTIONS(iq1_m, RL_CODES_4, 16, 0, 14, 0, 0, 56)
RL_SUPER_FUNCTIONS(iq1_s, RL_CODES_4, 16, 2, 12, 0, 2, 50)

/* ---- IQ2 and IQ3: magnitudes and a sign bit per weight
 * ----------------------------------------------------------------------------- */

/* Sign masks from their 7-bit selectors: bit 7 makes the number of bits even. */
INLINE __m256i even_signs(__m256i selectors)
{
    const __m256i odd = _mm256_setr_epi8(0, -128, -128, 0, -128, 0, 0, -128, -128, 0, 0, -128, 0, -128, -128, 0, 0, -128, -128,
                                         0, -128, 0, 0, -128, -128, 0, 0, -128, 0, -128, -128, 0);
    const __m256i low = _mm256_shuffle_epi8(odd, bits(selectors, 0, 15)),
                  high = _mm256_shuffle_epi8(odd, bits(selectors, 4, 7));
    return _mm256_or_si256(selectors, _mm256_xor_si256(low, high));
}

/* bias + magnitude, or bias - magnitude where the sign bits (mask) of the replicated mask byte are set. */
INLINE __m256i signed_code(__m256i magnitude, __m256i signs, int mask, int bias)
{
    const __m256i m = _mm256_set1_epi32(mask);
    const __m256i negative = _mm256_cmpeq_epi8(_mm256_and_si256(signs, m), m);
    const __m256i v = _mm256_sub_epi8(_mm256_xor_si256(magnitude, negative), negative);
    return _mm256_add_epi8(v, _mm256_set1_epi8((char)bias));
}

#define SIGNS_LO 0x08040201
#define SIGNS_HI (int)0x80402010

/* Group l of sub-block b from its joined entries; its sign mask is byte `at` of the lanes. */
INLINE void iq2_emit8(sink *s, int b, int l, __m256i lo, __m256i hi, __m256i signs, int at)
{
    const __m256i mask = pick(signs, at, at, at, at);
    emit(s, 8 * b + 2 * l, signed_code(lo, mask, SIGNS_LO, 64));
    emit(s, 8 * b + 2 * l + 1, signed_code(hi, mask, SIGNS_HI, 64));
}

INLINE __m256i odd_scale(__m256i v, int at) /* 2 x + 1 for the nibble x from bit `at` */
{
    return _mm256_or_si256(bits32(v, at - 1, 0x1e), _mm256_set1_epi32(1));
}

/* Four 7-bit selectors to bytes. */
INLINE __m256i selectors7(__m256i v)
{
    return _mm256_or_si256(_mm256_or_si256(bits32(v, 0, 0x7f), bits32(v, -1, 0x7f00)),
                           _mm256_or_si256(bits32(v, -2, 0x7f0000), bits32(v, -3, 0x7f000000)));
}

INLINE void decode_iq2_xxs(sink *s, const uint8_t *planes, const uint8_t *scales)
{
    block_begin(s);
    UNROLL
    for (int b = 0; b < 8; b++) {
        const uint8_t *index = planes + 128 * b + 32 * s->half;
        const __m256i rest = plane(s, planes, 2 * b + 1), signs = even_signs(selectors7(rest));
        group_begin(s, b, 32, odd_scale(rest, 28));
        UNROLL
        for (int l = 0; l < 4; l++) {
            const uint64_t *e[8];
            __m256i lo, hi;
            UNROLL
            for (int r = 0; r < 8; r++)
                e[r] = rl_iq2xxs_grid + index[4 * r + l];
            join8(e, &lo, &hi);
            iq2_emit8(s, b, l, lo, hi, signs, l);
        }
    }
    block_end(s, _mm256_mul_ps(half_scales(s, scales), _mm256_set1_ps(0.125f)));
}

/* Words: 2b, 2b + 1 four 16-bit fields (index, selector << 9); 16, 17 scales. */
INLINE void decode_iq2_xs(sink *s, const uint8_t *planes, const uint8_t *scales)
{
    _Alignas(32) uint16_t index[16][16];
    UNROLL
    for (int i = 0; i < 16; i++)
        _mm256_store_si256((__m256i *)index[i], bits32(plane(s, planes, i), 0, 0x01ff01ff));
    block_begin(s);
    UNROLL
    for (int b = 0; b < 8; b++) {
        /* bytes of the selectors: groups 0, 2, 1, 3 */
        const __m256i selectors =
            _mm256_or_si256(bits32(plane(s, planes, 2 * b), 9, 0x007f007f), bits32(plane(s, planes, 2 * b + 1), 1, 0x7f007f00));
        const __m256i signs = even_signs(selectors);
        UNROLL
        for (int l = 0; l < 4; l++) {
            const int g = 2 * b + l / 2;
            const uint64_t *e[8];
            __m256i lo, hi;
            if (l % 2 == 0) group_begin(s, g, 16, odd_scale(plane(s, planes, 16 + g / 8), 4 * (g % 8)));
            UNROLL
            for (int r = 0; r < 8; r++)
                e[r] = rl_iq2xs_grid + index[g][2 * r + l % 2];
            join8(e, &lo, &hi);
            iq2_emit8(s, b, l, lo, hi, signs, l == 1 ? 2 : l == 2 ? 1 : l);
        }
    }
    block_end(s, _mm256_mul_ps(half_scales(s, scales), _mm256_set1_ps(0.125f)));
}

/* Words: 0..7 low index bytes, 8..15 sign masks, 16, 17 upper index bits, 18, 19 scales. */
INLINE void decode_iq2_s(sink *s, const uint8_t *planes, const uint8_t *scales)
{
    block_begin(s);
    UNROLL
    for (int b = 0; b < 8; b++) {
        _Alignas(32) uint16_t index[32];
        const __m256i h = _mm256_srli_epi32(plane(s, planes, 16 + b / 4), 8 * (b % 4)), signs = plane(s, planes, 8 + b);
        const __m256i high = _mm256_or_si256(_mm256_or_si256(bits32(h, 0, 3), bits32(h, -6, 0x300)),
                                             _mm256_or_si256(bits32(h, -12, 0x30000), bits32(h, -18, 0x3000000)));
        store_indices(plane(s, planes, b), high, index);
        UNROLL
        for (int l = 0; l < 4; l++) {
            const int g = 2 * b + l / 2;
            __m256i lo, hi;
            if (l % 2 == 0) group_begin(s, g, 16, odd_scale(plane(s, planes, 18 + g / 8), 4 * (g % 8)));
            join_by_slots(rl_iq2s_grid, index, l, &lo, &hi);
            iq2_emit8(s, b, l, lo, hi, signs, l);
        }
    }
    block_end(s, _mm256_mul_ps(half_scales(s, scales), _mm256_set1_ps(0.125f)));
}

RL_SUPER_FUNCTIONS(iq2_xxs, RL_CODES_1, 64, 2, 16, 0, 2, 66)
RL_SUPER_FUNCTIONS(iq2_xs, RL_CODES_1, 64, 2, 18, 0, 2, 74)
RL_SUPER_FUNCTIONS(iq2_s, RL_CODES_1, 64, 2, 20, 0, 2, 82)

/* Entries of 8 rows for a quadruple; the index bytes of a row are 4 apart. */
INLINE __m256i join4_bytes(const uint32_t *grid, const uint8_t *index)
{
    return _mm256_setr_epi32((int)grid[index[0]], (int)grid[index[4]], (int)grid[index[8]], (int)grid[index[12]],
                             (int)grid[index[16]], (int)grid[index[20]], (int)grid[index[24]], (int)grid[index[28]]);
}

/* Words: 0..15 indices, 16..23 sign selectors and scale as in IQ2_XXS. */
INLINE void decode_iq3_xxs(sink *s, const uint8_t *planes, const uint8_t *scales)
{
    block_begin(s);
    UNROLL
    for (int b = 0; b < 8; b++) {
        const __m256i rest = plane(s, planes, 16 + b), signs = even_signs(selectors7(rest));
        group_begin(s, b, 32, odd_scale(rest, 28));
        UNROLL
        for (int j = 0; j < 8; j++) {
            const uint8_t *index = planes + 64 * (2 * b + j / 4) + 32 * s->half + j % 4;
            const __m256i mask = pick(signs, j / 2, j / 2, j / 2, j / 2);
            emit(s, 8 * b + j, signed_code(join4_bytes(rl_iq3xxs_grid, index), mask, j % 2 ? SIGNS_HI : SIGNS_LO, 64));
        }
    }
    block_end(s, _mm256_mul_ps(half_scales(s, scales), _mm256_set1_ps(0.25f)));
}

/* Words: 0..15 low index bytes, 16, 17 the ninth bits, 18..25 sign masks, 26 scales. */
INLINE void decode_iq3_s(sink *s, const uint8_t *planes, const uint8_t *scales)
{
    block_begin(s);
    UNROLL
    for (int b = 0; b < 8; b++) {
        const __m256i signs = plane(s, planes, 18 + b);
        group_begin(s, b, 32, odd_scale(plane(s, planes, 26), 4 * b));
        UNROLL
        for (int h = 0; h < 2; h++) {
            _Alignas(32) uint16_t index[32];
            const __m256i n = pick(plane(s, planes, 16 + b / 4), b % 4, b % 4, b % 4, b % 4);
            const __m256i m = _mm256_set1_epi32(h ? SIGNS_HI : SIGNS_LO);
            const __m256i ninth = _mm256_and_si256(_mm256_cmpeq_epi8(_mm256_and_si256(n, m), m), _mm256_set1_epi8(1));
            store_indices(plane(s, planes, 2 * b + h), ninth, index);
            UNROLL
            for (int j = 0; j < 4; j++) {
                const int l = 2 * h + j / 2;
                const __m256i v = _mm256_setr_epi32((int)rl_iq3s_grid[index[slot(0, j)]], (int)rl_iq3s_grid[index[slot(1, j)]],
                                                    (int)rl_iq3s_grid[index[slot(2, j)]], (int)rl_iq3s_grid[index[slot(3, j)]],
                                                    (int)rl_iq3s_grid[index[slot(4, j)]], (int)rl_iq3s_grid[index[slot(5, j)]],
                                                    (int)rl_iq3s_grid[index[slot(6, j)]], (int)rl_iq3s_grid[index[slot(7, j)]]);
                emit(s, 8 * b + 4 * h + j, signed_code(v, pick(signs, l, l, l, l), j % 2 ? SIGNS_HI : SIGNS_LO, 16));
            }
        }
    }
    block_end(s, half_scales(s, scales));
}

RL_SUPER_FUNCTIONS(iq3_xxs, RL_CODES_1, 64, 2, 24, 0, 2, 98)
RL_SUPER_FUNCTIONS(iq3_s, RL_CODES_4, 16, 2, 27, 0, 2, 110)

const rl_type_kernels rl_codebook_kernels_avx2[RL_TYPE_END] = {
    [RL_IQ1_S] = RL_TYPE_KERNELS(iq1_s),     [RL_IQ1_M] = RL_TYPE_KERNELS(iq1_m), [RL_IQ2_XXS] = RL_TYPE_KERNELS(iq2_xxs),
    [RL_IQ2_XS] = RL_TYPE_KERNELS(iq2_xs),   [RL_IQ2_S] = RL_TYPE_KERNELS(iq2_s), [RL_IQ3_S] = RL_TYPE_KERNELS(iq3_s),
    [RL_IQ3_XXS] = RL_TYPE_KERNELS(iq3_xxs),
};
