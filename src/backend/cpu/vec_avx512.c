/* backend/cpu/vec: table for AVX-512 (thirty-two registers of sixteen floats). */
#include "backend/cpu/vec.h"
#include "quant/quant.h"
#include <immintrin.h>
#include <math.h>

#define VEC_NAME rl_vec_avx512
#define VEC_ISA  RL_ISA_AVX512
enum { VL = 16, QV = 2, PB = 8, DV = 4, HB = 4, CB = 2, NB = 8 };

typedef __m512 V;

static inline V v_zero(void)
{
    return _mm512_setzero_ps();
}
static inline V v_set1(float a)
{
    return _mm512_set1_ps(a);
}
static inline __mmask16 part_mask(uint32_t n)
{
    return (__mmask16)((1u << n) - 1);
}
static inline V v_load(const float *p)
{
    return _mm512_loadu_ps(p);
}
static inline V v_load_part(const float *p, uint32_t n)
{
    return _mm512_maskz_loadu_ps(part_mask(n), p);
}
static inline void v_store(float *p, V x)
{
    _mm512_storeu_ps(p, x);
}
static inline void v_store_part(float *p, uint32_t n, V x)
{
    _mm512_mask_storeu_ps(p, part_mask(n), x);
}
static inline V v_add(V a, V b)
{
    return _mm512_add_ps(a, b);
}
static inline V v_sub(V a, V b)
{
    return _mm512_sub_ps(a, b);
}
static inline V v_mul(V a, V b)
{
    return _mm512_mul_ps(a, b);
}
static inline V v_div(V a, V b)
{
    return _mm512_div_ps(a, b);
}
static inline V v_fma(V a, V b, V c)
{
    return _mm512_fmadd_ps(a, b, c);
}
static inline V v_max(V a, V b)
{
    return _mm512_max_ps(a, b);
}
static inline V v_min(V a, V b)
{
    return _mm512_min_ps(a, b);
}
static inline V v_round(V a)
{
    return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
static inline V v_scale2(V x, V n)
{
    return _mm512_scalef_ps(x, n);
}
static inline float v_sum(V a)
{
    return _mm512_reduce_add_ps(a);
}
static inline __m128 quarters(V a)
{
    const __m256 h = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    return _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
}
static inline void v_sum4(const V *a, float *out)
{
    const __m128 lo = _mm_hadd_ps(quarters(a[0]), quarters(a[1])), hi = _mm_hadd_ps(quarters(a[2]), quarters(a[3]));
    _mm_storeu_ps(out, _mm_hadd_ps(lo, hi));
}
static inline V v_load_f16(const uint16_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}
static inline void v_store_f16(uint16_t *p, V x)
{
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

#include "backend/cpu/vec_kernels.h"
