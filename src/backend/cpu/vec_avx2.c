/* backend/cpu/vec: table for AVX2 with FMA and F16C (sixteen registers of eight floats). */
#include "backend/cpu/vec.h"
#include "quant/quant.h"
#include <immintrin.h>
#include <math.h>

#define VEC_NAME rl_vec_avx2
#define VEC_ISA  RL_ISA_AVX2
enum { VL = 8, QV = 2, PB = 4, DV = 2, HB = 2, CB = 1, NB = 4 };

typedef __m256 V;

static inline V v_zero(void)
{
    return _mm256_setzero_ps();
}
static inline V v_set1(float a)
{
    return _mm256_set1_ps(a);
}
static inline __m256i part_mask(uint32_t n)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
static inline V v_load(const float *p)
{
    return _mm256_loadu_ps(p);
}
static inline V v_load_part(const float *p, uint32_t n)
{
    return _mm256_maskload_ps(p, part_mask(n));
}
static inline void v_store(float *p, V x)
{
    _mm256_storeu_ps(p, x);
}
static inline void v_store_part(float *p, uint32_t n, V x)
{
    _mm256_maskstore_ps(p, part_mask(n), x);
}
static inline V v_add(V a, V b)
{
    return _mm256_add_ps(a, b);
}
static inline V v_sub(V a, V b)
{
    return _mm256_sub_ps(a, b);
}
static inline V v_mul(V a, V b)
{
    return _mm256_mul_ps(a, b);
}
static inline V v_div(V a, V b)
{
    return _mm256_div_ps(a, b);
}
static inline V v_fma(V a, V b, V c)
{
    return _mm256_fmadd_ps(a, b, c);
}
static inline V v_max(V a, V b)
{
    return _mm256_max_ps(a, b);
}
static inline V v_min(V a, V b)
{
    return _mm256_min_ps(a, b);
}
static inline V v_round(V a)
{
    return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
static inline V power_of_two(__m256i n)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
}
static inline V v_scale2(V x, V n)
{
    const __m256i whole = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(whole, 1);
    const V y = _mm256_mul_ps(_mm256_mul_ps(x, power_of_two(half)), power_of_two(_mm256_sub_epi32(whole, half)));
    return _mm256_blendv_ps(y, x, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
}
static inline __m128 halves(V a)
{
    return _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
}
static inline float v_sum(V a)
{
    __m128 s = halves(a);
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
static inline void v_sum4(const V *a, float *out)
{
    const __m128 lo = _mm_hadd_ps(halves(a[0]), halves(a[1])), hi = _mm_hadd_ps(halves(a[2]), halves(a[3]));
    _mm_storeu_ps(out, _mm_hadd_ps(lo, hi));
}
static inline V v_load_f16(const uint16_t *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}
static inline void v_store_f16(uint16_t *p, V x)
{
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}

#include "backend/cpu/vec_kernels.h"
