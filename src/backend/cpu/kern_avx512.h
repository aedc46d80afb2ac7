/* backend/cpu/kern_avx512: what the files of the AVX-512 kernels share. */
#ifndef RL_CPU_KERN_AVX512_H
#define RL_CPU_KERN_AVX512_H

#include "backend/cpu/kern.h"

#include <immintrin.h>

extern const rl_type_kernels rl_linear_kernels_avx512[RL_TYPE_END];
extern const rl_type_kernels rl_codebook_kernels_avx512[RL_TYPE_END];
extern const rl_type_kernels rl_plain_kernels_avx512[RL_TYPE_END];
void rl_codebook_init_avx512(void);

/* 16 x 16 transpose of 32-bit elements. */
static inline __attribute__((always_inline)) void rl_transpose16_avx512(__m512i r[16])
{
    __m512i t[16];
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
        r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    for (int i = 0; i < 4; i++) {
        t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
        t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
    }
    for (int i = 0; i < 4; i++) {
        r[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
        r[i + 4] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88);
        r[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
        r[i + 12] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xdd);
    }
}

/* sx and mx from s and m. */
static inline void rl_tile_scales_avx512(const rl_ktype *k, rl_tile *t)
{
    if (k->kclass != RL_KCLASS_SUPER) return;
    const uint32_t n_groups = RL_TILE_COLS / k->group;
    for (uint32_t g = 0; g < n_groups; g++)
        _mm512_store_si512(t->sx[g], _mm512_cvtepi8_epi32(_mm_load_si128((const __m128i *)t->s[g])));
    if (!k->offsets) return;
    for (uint32_t g = 0; g < n_groups / 2; g++) {
        const __m128i a = _mm_load_si128((const __m128i *)t->m[2 * g]), b = _mm_load_si128((const __m128i *)t->m[2 * g + 1]);
        const __m256i pairs = _mm256_set_m128i(_mm_unpackhi_epi8(a, b), _mm_unpacklo_epi8(a, b));
        _mm512_store_si512(t->mx[g], _mm512_cvtepu8_epi16(pairs));
    }
}

#endif
