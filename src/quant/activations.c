/* quant/activations: float rows into the 8-bit blocks the integer dot products are defined with. The kernels of a backend may
 * use other layouts and roundings; these are the ones the exact integers of the tests are stated for. */
#include "quant/layout.h"

#include <math.h>
#include <string.h>

static void put16(uint8_t *p, uint32_t v)
{
    p[0] = (uint8_t)v;
    p[1] = (uint8_t)(v >> 8);
}

static void put_f32(uint8_t *p, float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    put16(p, bits);
    put16(p + 2, bits >> 16);
}

static bool all_finite(const float *x, int n)
{
    for (int i = 0; i < n; i++)
        if (!isfinite(x[i])) return false;
    return true;
}

/* A rounded quotient as a code. Only where the reciprocal of a tiny scale overflowed is it infinite or (0 times infinity) NaN.
 */
static int8_t code_of(float rounded)
{
    if (rounded >= 127.0f) return 127;
    if (rounded <= -127.0f) return -127;
    return isnan(rounded) ? 0 : (int8_t)rounded;
}

/* Codes of 32 values; returns the unrounded scale and the sum of the codes. */
static float quantize_32(const float *x, uint8_t *codes, int *sum)
{
    memset(codes, 0, 32);
    *sum = 0;
    if (!all_finite(x, 32)) return NAN;
    float largest = 0.0f;
    for (int i = 0; i < 32; i++)
        largest = fmaxf(largest, fabsf(x[i]));
    float d = largest / 127.0f;
    float inverse = d != 0.0f ? 1.0f / d : 0.0f;
    for (int i = 0; i < 32; i++) {
        int8_t code = code_of(roundf(x[i] * inverse));
        codes[i] = (uint8_t)code;
        *sum += code;
    }
    return d;
}

void rl_quantize_q8_0(const float *x, void *dst, size_t n)
{
    uint8_t *block = dst;
    for (size_t i = 0; i < n; i += 32, block += RL_Q8_0_BYTES) {
        int sum;
        put16(block, rl_f32_to_f16(quantize_32(x + i, block + 2, &sum)));
    }
}

void rl_quantize_q8_1(const float *x, void *dst, size_t n)
{
    uint8_t *block = dst;
    for (size_t i = 0; i < n; i += 32, block += RL_Q8_1_BYTES) {
        int sum;
        float d = quantize_32(x + i, block + 4, &sum);
        put16(block, rl_f32_to_f16(d));
        put16(block + 2, rl_f32_to_f16((float)sum * d));
    }
}

static void quantize_q8_k_block(const float *x, uint8_t *block)
{
    memset(block, 0, RL_Q8_K_BYTES);
    if (!all_finite(x, 256)) {
        put_f32(block, NAN);
        return;
    }
    float extreme = 0.0f; /* the first of largest magnitude, with its sign: its code is -127 */
    for (int i = 0; i < 256; i++)
        if (fabsf(x[i]) > fabsf(extreme)) extreme = x[i];
    if (extreme == 0.0f) return;
    float inverse = -127.0f / extreme;
    put_f32(block, 1.0f / inverse);
    for (int t = 0; t < 16; t++) {
        int sum = 0;
        for (int k = 16 * t; k < 16 * t + 16; k++) {
            int8_t code = code_of(rintf(inverse * x[k]));
            block[4 + k] = (uint8_t)code;
            sum += code;
        }
        put16(block + 260 + 2 * t, (uint32_t)sum);
    }
}

void rl_quantize_q8_k(const float *x, void *dst, size_t n)
{
    uint8_t *block = dst;
    for (size_t i = 0; i < n; i += 256, block += RL_Q8_K_BYTES)
        quantize_q8_k_block(x + i, block);
}
