/* quant/convert: 16-bit floating point numbers. Integer arithmetic, so that neither the processor's rounding nor its
 * flush-to-zero mode changes a result. */
#include "quant/layout.h"

#include <string.h>

float rl_bits_to_f32(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static uint32_t f32_bits(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

float rl_f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16;
    uint32_t exponent = h >> 10 & 31;
    uint32_t mantissa = h & 0x3ff;
    if (exponent == 31) return rl_bits_to_f32(sign | 0x7f800000 | mantissa << 13 | (mantissa ? 0x400000 : 0));
    if (exponent != 0) return rl_bits_to_f32(sign | (exponent + 112) << 23 | mantissa << 13);
    /* Subnormal: an integer below 1024 in units of 2^-24, a normal number in float32. */
    float magnitude = (float)mantissa * 0x1p-24f;
    return sign ? -magnitude : magnitude;
}

uint16_t rl_f32_to_f16(float f)
{
    uint32_t bits = f32_bits(f);
    uint32_t sign = bits >> 16 & 0x8000;
    uint32_t magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000) return (uint16_t)(sign | 0x7e00);
    if (magnitude >= 0x477ff000) return (uint16_t)(sign | 0x7c00); /* 65520 and above round to infinity */
    if (magnitude <= 0x33000000) return (uint16_t)sign;            /* 2^-25 and below round to zero */

    /* value = significand * 2^-shift in units of the result's last place; a carry out of the mantissa counts up the exponent
     * field by itself, which is the right result. */
    uint32_t exponent = magnitude >> 23;
    uint32_t significand = (magnitude & 0x7fffff) | 0x800000;
    uint32_t shift = 13, base = 0;
    if (exponent >= 113)
        base = (exponent - 113) << 10; /* the implicit bit of the significand adds the missing 1 */
    else
        shift = 126 - exponent;
    uint32_t kept = significand >> shift;
    uint32_t rest = significand & ((1u << shift) - 1);
    uint32_t half = 1u << (shift - 1);
    if (rest > half || (rest == half && (kept & 1))) kept++;
    return (uint16_t)(sign | (base + kept));
}

float rl_bf16_to_f32(uint16_t h)
{
    return rl_bits_to_f32((uint32_t)h << 16);
}

uint16_t rl_f32_to_bf16(float f)
{
    uint32_t bits = f32_bits(f);
    if ((bits & 0x7fffffff) > 0x7f800000) return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
