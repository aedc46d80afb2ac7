/* backend/cpu/kern_plain_avx512: packed plain types (planes of 16 elements per column), multiplied as floats. */
#include "backend/cpu/kern_avx512.h"

#define INLINE static inline __attribute__((always_inline))

typedef enum plain { PLAIN_F32, PLAIN_F16, PLAIN_BF16 } plain;

INLINE __m512 column(plain type, const uint8_t *planes, size_t c)
{
    if (type == PLAIN_F32) return _mm512_loadu_ps(planes + 64 * c);
    const __m256i v = _mm256_loadu_si256((const __m256i *)(planes + 32 * c));
    if (type == PLAIN_F16) return _mm512_cvtph_ps(v);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(v), 16));
}

INLINE void widen(plain type, const uint8_t *planes, uint32_t n_cols, float *w)
{
    for (uint32_t c = 0; c < n_cols; c++)
        _mm512_store_ps(w + RL_TILE_ROWS * c, column(type, planes, c));
}

/* The exact arithmetic of kern.h, all columns at once. */
INLINE void float_row(plain type, const uint8_t *planes, uint32_t n_cols, const float *x, float *y)
{
    __m512 sum = _mm512_setzero_ps();
    for (uint32_t b = 0; b < n_cols; b += RL_TILE_COLS) {
        const uint32_t end = n_cols - b < RL_TILE_COLS ? n_cols : b + RL_TILE_COLS;
        __m512 p[4] = {_mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps()};
        uint32_t c = b;
        for (; c + 4 <= end; c += 4)
            for (uint32_t j = 0; j < 4; j++)
                p[j] = _mm512_fmadd_ps(column(type, planes, c + j), _mm512_set1_ps(x[c + j]), p[j]);
        for (uint32_t j = 0; j < 3; j++)
            if (c + j < end) p[j] = _mm512_fmadd_ps(column(type, planes, c + j), _mm512_set1_ps(x[c + j]), p[j]);
        sum = _mm512_add_ps(sum, _mm512_add_ps(_mm512_add_ps(p[0], p[1]), _mm512_add_ps(p[2], p[3])));
    }
    _mm512_storeu_ps(y, sum);
}

#define PLAIN(name, type)                                                                                                      \
    static void widen_##name(const uint8_t *planes, uint32_t n_cols, float *w)                                                 \
    {                                                                                                                          \
        widen(type, planes, n_cols, w);                                                                                        \
    }                                                                                                                          \
    static void float_row_##name(const uint8_t *planes, uint32_t n_cols, const float *x, float *y)                             \
    {                                                                                                                          \
        float_row(type, planes, n_cols, x, y);                                                                                 \
    }
PLAIN(f32, PLAIN_F32)
PLAIN(f16, PLAIN_F16)
PLAIN(bf16, PLAIN_BF16)

const rl_type_kernels rl_plain_kernels_avx512[RL_TYPE_END] = {
    [RL_F32] = {.widen = widen_f32, .float_row = float_row_f32},
    [RL_F16] = {.widen = widen_f16, .float_row = float_row_f16},
    [RL_BF16] = {.widen = widen_bf16, .float_row = float_row_bf16},
};
