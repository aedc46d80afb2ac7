/* backend/cpu/vec: portable table. The "register" holds four floats so that every sum has four partial sums; compilers turn the
 * small loops into whatever the baseline offers. */
#include "backend/cpu/vec.h"
#include "quant/quant.h"
#include <math.h>
#include <string.h>

#define VEC_NAME rl_vec_scalar
#define VEC_ISA  RL_ISA_SCALAR
enum { VL = 4, QV = 1, PB = 4, DV = 2, HB = 1, CB = 1, NB = 1 };

typedef struct V {
    float f[VL];
} V;

#define LANES(expr)                                                                                                            \
    do {                                                                                                                       \
        V out;                                                                                                                 \
        for (int lane = 0; lane < VL; lane++)                                                                                  \
            out.f[lane] = (expr);                                                                                              \
        return out;                                                                                                            \
    } while (0)

static inline V v_zero(void)
{
    LANES(0.0f);
}
static inline V v_set1(float a)
{
    LANES(a);
}
static inline V v_load(const float *p)
{
    LANES(p[lane]);
}
static inline V v_load_part(const float *p, uint32_t n)
{
    LANES((uint32_t)lane < n ? p[lane] : 0.0f);
}
static inline void v_store(float *p, V x)
{
    memcpy(p, x.f, sizeof x.f);
}
static inline void v_store_part(float *p, uint32_t n, V x)
{
    memcpy(p, x.f, n * sizeof(float));
}
static inline V v_add(V a, V b)
{
    LANES(a.f[lane] + b.f[lane]);
}
static inline V v_sub(V a, V b)
{
    LANES(a.f[lane] - b.f[lane]);
}
static inline V v_mul(V a, V b)
{
    LANES(a.f[lane] * b.f[lane]);
}
static inline V v_div(V a, V b)
{
    LANES(a.f[lane] / b.f[lane]);
}
static inline V v_fma(V a, V b, V c)
{
    LANES(a.f[lane] * b.f[lane] + c.f[lane]);
}
/* As on x86, the second operand when either is NaN. */
static inline V v_max(V a, V b)
{
    LANES(a.f[lane] > b.f[lane] ? a.f[lane] : b.f[lane]);
}
static inline V v_min(V a, V b)
{
    LANES(a.f[lane] < b.f[lane] ? a.f[lane] : b.f[lane]);
}
static inline V v_round(V a)
{
    LANES(rintf(a.f[lane]));
}
static inline float power_of_two(int n)
{
    const uint32_t bits = (uint32_t)(n + 127) << 23;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}
static inline float scale2(float x, float n)
{
    if (n != n) return n;
    const int a = (int)n / 2, b = (int)n - a;
    return x * power_of_two(a) * power_of_two(b);
}
static inline V v_scale2(V x, V n)
{
    LANES(scale2(x.f[lane], n.f[lane]));
}
static inline float v_sum(V a)
{
    return (a.f[0] + a.f[1]) + (a.f[2] + a.f[3]);
}
static inline void v_sum4(const V *a, float *out)
{
    for (int i = 0; i < 4; i++)
        out[i] = v_sum(a[i]);
}
static inline V v_load_f16(const uint16_t *p)
{
    LANES(rl_f16_to_f32(p[lane]));
}
static inline void v_store_f16(uint16_t *p, V x)
{
    for (int i = 0; i < VL; i++)
        p[i] = rl_f32_to_f16(x.f[i]);
}

#include "backend/cpu/vec_kernels.h"
