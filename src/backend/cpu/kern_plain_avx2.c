/* backend/cpu/kern_plain_avx2: packed plain types (planes of 16 elements per column), multiplied as floats. */
#include "backend/cpu/kern_avx2.h"

typedef enum plain { PLAIN_F32, PLAIN_F16, PLAIN_BF16 } plain;

INLINE __m256 column(plain type, const uint8_t *planes, size_t c, int half)
{
    if (type == PLAIN_F32) return _mm256_loadu_ps((const float *)(planes + 64 * c) + 8 * half);
    const __m128i v = _mm_loadu_si128((const __m128i *)(planes + 32 * c) + half);
    if (type == PLAIN_F16) return _mm256_cvtph_ps(v);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(v), 16));
}

INLINE void widen(plain type, const uint8_t *planes, uint32_t n_cols, float *w)
{
    for (uint32_t c = 0; c < n_cols; c++)
        for (int h = 0; h < 2; h++)
            _mm256_store_ps(w + RL_TILE_ROWS * c + 8 * h, column(type, planes, c, h));
}

/* The exact arithmetic of kern.h, all columns at once. */
INLINE void float_row(plain type, const uint8_t *planes, uint32_t n_cols, const float *x, float *y)
{
    __m256 sum[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    for (uint32_t b = 0; b < n_cols; b += RL_TILE_COLS) {
        const uint32_t end = n_cols - b < RL_TILE_COLS ? n_cols : b + RL_TILE_COLS;
        __m256 p[2][4];
        for (int h = 0; h < 2; h++)
            for (int j = 0; j < 4; j++)
                p[h][j] = _mm256_setzero_ps();
        uint32_t c = b;
        for (; c + 4 <= end; c += 4)
            for (uint32_t j = 0; j < 4; j++)
                for (int h = 0; h < 2; h++)
                    p[h][j] = _mm256_fmadd_ps(column(type, planes, c + j, h), _mm256_set1_ps(x[c + j]), p[h][j]);
        for (uint32_t j = 0; j < 3; j++)
            for (int h = 0; h < 2 && c + j < end; h++)
                p[h][j] = _mm256_fmadd_ps(column(type, planes, c + j, h), _mm256_set1_ps(x[c + j]), p[h][j]);
        for (int h = 0; h < 2; h++)
            sum[h] = _mm256_add_ps(sum[h], _mm256_add_ps(_mm256_add_ps(p[h][0], p[h][1]), _mm256_add_ps(p[h][2], p[h][3])));
    }
    _mm256_storeu_ps(y, sum[0]);
    _mm256_storeu_ps(y + 8, sum[1]);
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

const rl_type_kernels rl_plain_kernels_avx2[RL_TYPE_END] = {
    [RL_F32] = {.widen = widen_f32, .float_row = float_row_f32},
    [RL_F16] = {.widen = widen_f16, .float_row = float_row_f16},
    [RL_BF16] = {.widen = widen_bf16, .float_row = float_row_bf16},
};
