/* backend/cpu/kern_codebook_avx512: decoders of the codebook types.
 *
 * A codebook entry is 8 (IQ3: 4) components of few levels. Level numbers of 2 bits make an entry two bytes, and a table of
 * bytes with up to 2048 entries can be read for 64 indices at once by byte permutes of registers: 128 entries each, blended by
 * the index bits above the seventh. So indices of 16 rows are expanded to levels side by side, without a single load that
 * depends on the weights. Levels, signs and (IQ1) scales then meet in a table of 64 bytes that gives the finished code. */
#include "backend/cpu/kern_sink_avx512.h"

#include <pthread.h>

/* Two bytes an entry: components 0..3 and 4..7 (IQ3: 0, 1 and 2, 3 as nibbles). */
static _Alignas(64) uint8_t iq1_lo[2048], iq2xxs_lo[256], iq2xxs_hi[256], iq2xs_lo[512], iq2xs_hi[512], iq2s_lo[1024],
    iq2s_hi[1024], iq3xxs_lo[256], iq3xxs_hi[256], iq3s_lo[512], iq3s_hi[512];

/* The IQ1 codebook is sorted by its upper four components, and no sixteen neighbours n & ~15 .. n | 15 have more than two
 * different ones: `first` while n % 16 < turn, then `second`. Three tables of 128 instead of one of 2048. */
static _Alignas(64) uint8_t iq1_first[128], iq1_second[128], iq1_turn[128];

/* Level numbers of 8 components, two bits each. */
static uint16_t levels8(uint64_t entry, int signs)
{
    uint16_t v = 0;
    for (int k = 0; k < 8; k++) {
        const int8_t c = (int8_t)(entry >> 8 * k);
        const unsigned level = signs ? (unsigned)(c + 1) : c == 8 ? 0 : c == 25 ? 1 : 2;
        v = (uint16_t)(v | level << 2 * k);
    }
    return v;
}

static void split8(const uint64_t *grid, int n, uint8_t *lo, uint8_t *hi)
{
    for (int i = 0; i < n; i++) {
        const uint16_t v = levels8(grid[i], 0);
        lo[i] = (uint8_t)v;
        hi[i] = (uint8_t)(v >> 8);
    }
}

/* Eight levels: 4, 12, .. 52, 62 for IQ3_XXS, 1, 3, .. 15 for IQ3_S. */
static void split4(const uint32_t *grid, int n, int step, uint8_t *lo, uint8_t *hi)
{
    for (int i = 0; i < n; i++) {
        unsigned level[4];
        for (int k = 0; k < 4; k++)
            level[k] = (grid[i] >> 8 * k & 255) / (unsigned)step;
        lo[i] = (uint8_t)(level[0] | level[1] << 4);
        hi[i] = (uint8_t)(level[2] | level[3] << 4);
    }
}

static void make_tables(void)
{
    split8(rl_iq2xxs_grid, 256, iq2xxs_lo, iq2xxs_hi);
    split8(rl_iq2xs_grid, 512, iq2xs_lo, iq2xs_hi);
    split8(rl_iq2s_grid, 1024, iq2s_lo, iq2s_hi);
    split4(rl_iq3xxs_grid, 256, 8, iq3xxs_lo, iq3xxs_hi);
    split4(rl_iq3s_grid, 512, 2, iq3s_lo, iq3s_hi);
    for (int n = 0; n < 2048; n++) {
        const uint16_t v = levels8(rl_iq1s_grid[n], 1);
        const uint8_t hi = (uint8_t)(v >> 8);
        iq1_lo[n] = (uint8_t)v;
        if (n % 16 == 0) {
            iq1_first[n / 16] = iq1_second[n / 16] = hi;
            iq1_turn[n / 16] = 16;
        } else if (hi != iq1_second[n / 16]) {
            iq1_second[n / 16] = hi;
            iq1_turn[n / 16] = (uint8_t)(n % 16);
        }
    }
}

void rl_codebook_init_avx512(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, make_tables);
}

/* ---- Table reads ------------------------------------------------------------------------------------------------------------
 */

INLINE __m512i table128(const uint8_t *t, __m512i index)
{
    return _mm512_permutex2var_epi8(_mm512_load_si512(t), index, _mm512_load_si512(t + 64));
}

INLINE __m512i table256(const uint8_t *t, __m512i index, __mmask64 k7)
{
    return _mm512_mask_blend_epi8(k7, table128(t, index), table128(t + 128, index));
}

INLINE __m512i table512(const uint8_t *t, __m512i index, __mmask64 k7, __mmask64 k8)
{
    return _mm512_mask_blend_epi8(k8, table256(t, index, k7), table256(t + 256, index, k7));
}

INLINE __m512i table1024(const uint8_t *t, __m512i index, __mmask64 k7, __mmask64 k8, __mmask64 k9)
{
    return _mm512_mask_blend_epi8(k9, table512(t, index, k7, k8), table512(t + 512, index, k7, k8));
}

INLINE __mmask64 bit_mask(__m512i v, int bit)
{
    return _mm512_test_epi8_mask(v, _mm512_set1_epi8((char)(1 << bit)));
}

/* ---- IQ1: three levels, a shift per 8, folded with the scale
 * ------------------------------------------------------------------ */

/* (s c + 135) / 2 for index = level | shift sign << 2 | scale << 3. */
#define IQ1_CODE(i) (char)(((2 * ((i) >> 3) + 1) * (8 * (((i)&3) - 1) + ((i)&4 ? -1 : 1)) + 135) / 2)
#define TABLE64(f)                                                                                                             \
    _mm512_set_epi8(f(63), f(62), f(61), f(60), f(59), f(58), f(57), f(56), f(55), f(54), f(53), f(52), f(51), f(50), f(49),   \
                    f(48), f(47), f(46), f(45), f(44), f(43), f(42), f(41), f(40), f(39), f(38), f(37), f(36), f(35), f(34),   \
                    f(33), f(32), f(31), f(30), f(29), f(28), f(27), f(26), f(25), f(24), f(23), f(22), f(21), f(20), f(19),   \
                    f(18), f(17), f(16), f(15), f(14), f(13), f(12), f(11), f(10), f(9), f(8), f(7), f(6), f(5), f(4), f(3),   \
                    f(2), f(1), f(0))

/* Level bytes of 32 columns: index = low byte | (high & 7) << 8. */
INLINE void iq1_levels(__m512i low, __m512i high, __m512i *lo, __m512i *hi)
{
    const __mmask64 k7 = _mm512_movepi8_mask(low), k8 = bit_mask(high, 0), k9 = bit_mask(high, 1), k10 = bit_mask(high, 2);
    *lo = _mm512_mask_blend_epi8(k10, table1024(iq1_lo, low, k7, k8, k9), table1024(iq1_lo + 1024, low, k7, k8, k9));
    const __m512i low4 = _mm512_set1_epi8(15);
    const __m512i sixteenth = select_bits(_mm512_srli_epi16(low, 4), _mm512_slli_epi16(high, 4), low4); /* index / 16, 7 bits */
    const __mmask64 second = _mm512_cmpge_epu8_mask(_mm512_and_si512(low, low4), table128(iq1_turn, sixteenth));
    *hi = _mm512_mask_blend_epi8(second, table128(iq1_first, sixteenth), table128(iq1_second, sixteenth));
}

/* Emits sub-block b. extra: per group of 8 a byte with the shift sign in bit 2 and the scale in bits 3..5. */
INLINE void iq1_emit(sink *s, int b, __m512i lo, __m512i hi, __m512i extra, __m512i table)
{
    const __m512i level = _mm512_set1_epi8(3);
    UNROLL
    for (int l = 0; l < 4; l++) {
        const int at = 8 * l;
        const __m512i x = take(extra, at, at, at, at);
        emit(s, 8 * b + 2 * l, _mm512_permutexvar_epi8(select_bits(take(lo, at, at + 2, at + 4, at + 6), x, level), table));
        emit(s, 8 * b + 2 * l + 1, _mm512_permutexvar_epi8(select_bits(take(hi, at, at + 2, at + 4, at + 6), x, level), table));
    }
}

/* Words: 0..7 low index bytes, 8..11 high bits and shift signs, 12, 13 scales and the scattered block scale. */
INLINE void decode_iq1_m(sink *s, const uint8_t *planes, const uint8_t *scales)
{
    (void)scales;
    const __m512i table = TABLE64(IQ1_CODE), scale_bits = _mm512_set1_epi8(0x38);
    block_begin(s);
    UNROLL
    for (int b = 0; b < 8; b++) {
        const __m512i h = plane(planes, 8 + b / 2);
        const int at = 16 * (b % 2), u = 16 * (b / 2 % 2) + 6 * (b % 2) - 3;
        __m512i lo, hi;
        iq1_levels(plane(planes, b), take(h, at, at + 4, at + 8, at + 12), &lo, &hi);
        const __m512i signs = take(h, at + 1, at + 5, at + 9, at + 13);
        const __m512i extra = select_bits(take(plane(planes, 12 + b / 4), u, u, u + 3, u + 3), signs, scale_bits);
        iq1_emit(s, b, lo, hi, extra, table);
    }
    fold_half_end(s);
    const __m512i s0 = plane(planes, 12), s1 = plane(planes, 13), low = _mm512_set1_epi32(0xf);
    __m512i d = _mm512_and_si512(_mm512_srli_epi32(s0, 12), low);
    d = and_or(_mm512_srli_epi32(s0, 24), _mm512_set1_epi32(0xf0), d);
    d = and_or(_mm512_srli_epi32(s1, 4), _mm512_set1_epi32(0xf00), d);
    d = and_or(_mm512_srli_epi32(s1, 16), _mm512_set1_epi32(0xf000), d);
    block_end(s, _mm512_mul_ps(_mm512_cvtph_ps(_mm512_cvtepi32_epi16(d)), _mm512_set1_ps(0.125f)));
}

/* Words: 0..7 low index bytes, 8..11 two 16-bit fields each: four times three index bits, scale, shift sign. */
INLINE void decode_iq1_s(sink *s, const uint8_t *planes, const uint8_t *scales)
{
    const __m512i table = TABLE64(IQ1_CODE), scale_bits = _mm512_set1_epi8(0x38);
    block_begin(s);
    UNROLL
    for (int b = 0; b < 8; b++) {
        const __m512i h = plane(planes, 8 + b / 2);
        const int at = 16 * (b % 2);
        __m512i lo, hi;
        iq1_levels(plane(planes, b), take(h, at, at + 3, at + 6, at + 9), &lo, &hi);
        const __m512i scale = take(h, at + 9, at + 9, at + 9, at + 9), sign = take(h, at + 13, at + 13, at + 13, at + 13);
        iq1_emit(s, b, lo, hi, select_bits(scale, sign, scale_bits), table);
    }
    fold_half_end(s);
    block_end(s, _mm512_mul_ps(half_scales(scales), _mm512_set1_ps(0.125f)));
}

RL_SUPER_FUNCTIONS(iq1_m, 0, 14, 0, 0, 56)
RL_SUPER_FUNCTIONS(iq1_s, 2, 12, 0, 2, 50)

/* ---- IQ2: three magnitudes and a sign bit per weight
 * ---------------------------------------------------------------------------- */

/* index = level | sign << 2, higher bits ignored. */
#define IQ2_CODE(i) (char)(((i)&4 ? -1 : 1) * (((i)&3) == 0 ? 8 : ((i)&3) == 1 ? 25 : 43) + 128)

/* Sign masks of groups from their 7-bit selectors: bit 7 makes the number of bits even. */
INLINE __m512i even_signs(__m512i selectors)
{
    const __m512i seven = _mm512_set1_epi8(0x7f);
    const __m512i count = _mm512_popcnt_epi8(_mm512_and_si512(selectors, seven));
    return select_bits(selectors, _mm512_slli_epi16(count, 7), seven);
}

/* Emits groups 2h and 2h + 1 of sub-block b: 16 columns. */
INLINE void iq2_emit16(sink *s, int b, int h, __m512i lo, __m512i hi, __m512i signs, __m512i table)
{
    const __m512i level = _mm512_set1_epi8(3);
    UNROLL
    for (int l = 2 * h; l < 2 * h + 2; l++) {
        const int at = 8 * l;
        const __m512i s0 = take(signs, at - 2, at - 1, at, at + 1), s1 = take(signs, at + 2, at + 3, at + 4, at + 5);
        emit(s, 8 * b + 2 * l, _mm512_permutexvar_epi8(select_bits(take(lo, at, at + 2, at + 4, at + 6), s0, level), table));
        emit(s, 8 * b + 2 * l + 1,
             _mm512_permutexvar_epi8(select_bits(take(hi, at, at + 2, at + 4, at + 6), s1, level), table));
    }
}

INLINE __m512i odd_scale(__m512i v, int at) /* 2 x + 1 for the nibble x from bit `at` */
{
    const __m512i shifted = at ? _mm512_srli_epi32(v, at - 1) : _mm512_slli_epi32(v, 1);
    return and_or(shifted, _mm512_set1_epi32(0x1e), _mm512_set1_epi32(1));
}

INLINE __m512 eighth(__m512 d)
{
    return _mm512_mul_ps(d, _mm512_set1_ps(0.125f));
}

INLINE void decode_iq2_xxs(sink *s, const uint8_t *planes, const uint8_t *scales)
{
    const __m512i table = TABLE64(IQ2_CODE);
    block_begin(s);
    UNROLL
    for (int b = 0; b < 8; b++) {
        const __m512i index = plane(planes, 2 * b), rest = plane(planes, 2 * b + 1);
        const __mmask64 k7 = _mm512_movepi8_mask(index);
        const __m512i lo = table256(iq2xxs_lo, index, k7), hi = table256(iq2xxs_hi, index, k7);
        const __m512i signs = even_signs(take(rest, 0, 7, 14, 21));
        group32_begin(s, b);
        iq2_emit16(s, b, 0, lo, hi, signs, table);
        iq2_emit16(s, b, 1, lo, hi, signs, table);
        group_end(s, b, odd_scale(rest, 28));
    }
    block_end(s, eighth(half_scales(scales)));
}

/* Index of a permute of two words of 16-bit fields: the low (0) or high (1) bytes of a lane's four fields. */
INLINE __m512i bytes_of_fields(int high)
{
    const __m512i lanes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    return _mm512_add_epi32(_mm512_mullo_epi32(lanes, _mm512_set1_epi32(0x04040404)),
                            _mm512_set1_epi32(0x42400200 + high * 0x01010101));
}

/* Words: 2b, 2b + 1 four 16-bit fields (index, selector << 9); 16, 17 scales. */
INLINE void decode_iq2_xs(sink *s, const uint8_t *planes, const uint8_t *scales)
{
    const __m512i table = TABLE64(IQ2_CODE);
    block_begin(s);
    UNROLL
    for (int b = 0; b < 8; b++) {
        const __m512i f0 = plane(planes, 2 * b), f1 = plane(planes, 2 * b + 1);
        const __m512i index = _mm512_permutex2var_epi8(f0, bytes_of_fields(0), f1);
        const __m512i upper = _mm512_permutex2var_epi8(f0, bytes_of_fields(1), f1);
        const __mmask64 k7 = _mm512_movepi8_mask(index), k8 = bit_mask(upper, 0);
        const __m512i lo = table512(iq2xs_lo, index, k7, k8), hi = table512(iq2xs_hi, index, k7, k8);
        const __m512i signs = even_signs(_mm512_srli_epi16(upper, 1));
        UNROLL
        for (int h = 0; h < 2; h++) {
            const int g = 2 * b + h;
            group16_begin(s, g);
            iq2_emit16(s, b, h, lo, hi, signs, table);
            group_end(s, g, odd_scale(plane(planes, 16 + g / 8), 4 * (g % 8)));
        }
    }
    block_end(s, eighth(half_scales(scales)));
}

/* Words: 0..7 low index bytes, 8..15 sign masks, 16, 17 upper index bits, 18, 19 scales. */
INLINE void decode_iq2_s(sink *s, const uint8_t *planes, const uint8_t *scales)
{
    const __m512i table = TABLE64(IQ2_CODE);
    block_begin(s);
    UNROLL
    for (int b = 0; b < 8; b++) {
        const int at = 8 * (b % 4);
        const __m512i index = plane(planes, b), signs = plane(planes, 8 + b);
        const __m512i upper = take(plane(planes, 16 + b / 4), at, at + 2, at + 4, at + 6);
        const __mmask64 k7 = _mm512_movepi8_mask(index), k8 = bit_mask(upper, 0), k9 = bit_mask(upper, 1);
        const __m512i lo = table1024(iq2s_lo, index, k7, k8, k9), hi = table1024(iq2s_hi, index, k7, k8, k9);
        UNROLL
        for (int h = 0; h < 2; h++) {
            const int g = 2 * b + h;
            group16_begin(s, g);
            iq2_emit16(s, b, h, lo, hi, signs, table);
            group_end(s, g, odd_scale(plane(planes, 18 + g / 8), 4 * (g % 8)));
        }
    }
    block_end(s, eighth(half_scales(scales)));
}

RL_SUPER_FUNCTIONS(iq2_xxs, 2, 16, 0, 2, 66)
RL_SUPER_FUNCTIONS(iq2_xs, 2, 18, 0, 2, 74)
RL_SUPER_FUNCTIONS(iq2_s, 2, 20, 0, 2, 82)

/* ---- IQ3: eight magnitudes and a sign bit per weight
 * ------------------------------------------------------------------------------ */

/* index = level | sign << 3, higher bits ignored. */
#define IQ3XXS_CODE(i) (char)(((i)&8 ? -1 : 1) * (((i)&7) == 7 ? 62 : 8 * ((i)&7) + 4) + 128)
#define IQ3S_CODE(i)   (char)(((i)&8 ? -1 : 1) * (2 * ((i)&7) + 1) + 128)

/* Emits the four quadruples of word w (16 columns) from their level nibbles: lo holds components 0, 1 and hi 2, 3 of each
 * quadruple. signs: masks of the groups of 8 of this sub-block. */
INLINE void iq3_emit16(sink *s, int b, int h, __m512i lo, __m512i hi, __m512i signs, __m512i table)
{
    const __m512i level = _mm512_set1_epi8(7);
    /* nibbles of quadruples 0, 1 and of 2, 3 in order */
    const __m512i a = _mm512_unpacklo_epi8(lo, hi), c = _mm512_unpackhi_epi8(lo, hi);
    const __m512i q01 = _mm512_castps_si512(_mm512_shuffle_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(c), 0x88));
    const __m512i q23 = _mm512_castps_si512(_mm512_shuffle_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(c), 0xdd));
    UNROLL
    for (int j = 0; j < 4; j++) {
        const __m512i v = j < 2 ? q01 : q23;
        const int at = 16 * (j % 2), sign = 16 * h + 4 * j - 3;
        const __m512i negative = take(signs, sign, sign + 1, sign + 2, sign + 3);
        emit(s, 8 * b + 4 * h + j,
             _mm512_permutexvar_epi8(select_bits(take(v, at, at + 4, at + 8, at + 12), negative, level), table));
    }
}

/* Words: 0..15 indices, 16..23 sign selectors and scale as in IQ2_XXS. */
INLINE void decode_iq3_xxs(sink *s, const uint8_t *planes, const uint8_t *scales)
{
    const __m512i table = TABLE64(IQ3XXS_CODE);
    block_begin(s);
    UNROLL
    for (int b = 0; b < 8; b++) {
        const __m512i rest = plane(planes, 16 + b), signs = even_signs(take(rest, 0, 7, 14, 21));
        group32_begin(s, b);
        UNROLL
        for (int h = 0; h < 2; h++) {
            const __m512i index = plane(planes, 2 * b + h);
            const __mmask64 k7 = _mm512_movepi8_mask(index);
            iq3_emit16(s, b, h, table256(iq3xxs_lo, index, k7), table256(iq3xxs_hi, index, k7), signs, table);
        }
        group_end(s, b, odd_scale(rest, 28));
    }
    block_end(s, _mm512_mul_ps(half_scales(scales), _mm512_set1_ps(0.25f)));
}

/* Words: 0..15 low index bytes, 16, 17 the ninth bits, 18..25 sign masks, 26 scales. */
INLINE void decode_iq3_s(sink *s, const uint8_t *planes, const uint8_t *scales)
{
    const __m512i table = TABLE64(IQ3S_CODE);
    block_begin(s);
    UNROLL
    for (int b = 0; b < 8; b++) {
        const __m512i signs = plane(planes, 18 + b);
        group32_begin(s, b);
        UNROLL
        for (int h = 0; h < 2; h++) {
            const __m512i index = plane(planes, 2 * b + h);
            const int at = 8 * (b % 4) + 4 * h;
            const __mmask64 k7 = _mm512_movepi8_mask(index);
            const __mmask64 k8 = bit_mask(take(plane(planes, 16 + b / 4), at, at + 1, at + 2, at + 3), 0);
            iq3_emit16(s, b, h, table512(iq3s_lo, index, k7, k8), table512(iq3s_hi, index, k7, k8), signs, table);
        }
        group_end(s, b, odd_scale(plane(planes, 26), 4 * b));
    }
    block_end(s, half_scales(scales));
}

RL_SUPER_FUNCTIONS(iq3_xxs, 2, 24, 0, 2, 98)
RL_SUPER_FUNCTIONS(iq3_s, 2, 27, 0, 2, 110)

const rl_type_kernels rl_codebook_kernels_avx512[RL_TYPE_END] = {
    [RL_IQ1_S] = RL_TYPE_KERNELS(iq1_s),     [RL_IQ1_M] = RL_TYPE_KERNELS(iq1_m), [RL_IQ2_XXS] = RL_TYPE_KERNELS(iq2_xxs),
    [RL_IQ2_XS] = RL_TYPE_KERNELS(iq2_xs),   [RL_IQ2_S] = RL_TYPE_KERNELS(iq2_s), [RL_IQ3_S] = RL_TYPE_KERNELS(iq3_s),
    [RL_IQ3_XXS] = RL_TYPE_KERNELS(iq3_xxs),
};
