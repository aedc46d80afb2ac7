/* quant/unpack_linear: formats whose codes are numbers or indices into a table of 16 values: the blocks with one scale, the
 * ternary ones, the value tables and the 4-bit floats. Layouts are given as offset:field, d being the f16 scale. */
#include "quant/layout.h"

/* 0:d 2:16 bytes, weight i is bit i % 8 of byte i / 8, set for plus. */
void rl_unpack_q1_0(const void *block, rl_block_codes *out)
{
    const uint8_t *b = block;
    set_plain_scale(out, half_at(b), 128);
    for (int i = 0; i < 128; i++)
        out->c[i] = (int8_t)(2 * (b[2 + i / 8] >> (i % 8) & 1) - 1);
}

/* 0:d 2:16 bytes, weight i is bit pair i % 4 of byte i / 4, minus 1. */
void rl_unpack_q2_0(const void *block, rl_block_codes *out)
{
    const uint8_t *b = block;
    set_plain_scale(out, half_at(b), 64);
    for (int i = 0; i < 64; i++)
        out->c[i] = (int8_t)((b[2 + i / 4] >> (2 * (i % 4)) & 3) - 1);
}

/* 0:d 2:16 bytes of nibbles, minus 8. */
void rl_unpack_q4_0(const void *block, rl_block_codes *out)
{
    const uint8_t *b = block;
    set_plain_scale(out, half_at(b), 32);
    spread_nibbles(b + 2, 16, out->c);
    for (int i = 0; i < 32; i++)
        out->c[i] = (int8_t)(out->c[i] - 8);
}

static void set_offset(rl_block_codes *out, float m)
{
    out->offset_scale = m;
    out->has_offset = true;
    out->m[0] = out->m[1] = 1;
}

/* 0:d 2:m (f16) 4:16 bytes of nibbles. */
void rl_unpack_q4_1(const void *block, rl_block_codes *out)
{
    const uint8_t *b = block;
    set_plain_scale(out, half_at(b), 32);
    set_offset(out, half_at(b + 2));
    spread_nibbles(b + 4, 16, out->c);
}

/* The 5-bit codes of Q5_0 and Q5_1: bit i of the 4 bytes qh is the fifth bit of weight i. */
static void spread_five_bits(const uint8_t *qh, const uint8_t *qs, int bias, int8_t *dst)
{
    spread_nibbles(qs, 16, dst);
    for (int i = 0; i < 32; i++)
        dst[i] = (int8_t)((dst[i] | (qh[i / 8] >> (i % 8) & 1) << 4) - bias);
}

/* 0:d 2:qh 6:16 bytes of nibbles, minus 16. */
void rl_unpack_q5_0(const void *block, rl_block_codes *out)
{
    const uint8_t *b = block;
    set_plain_scale(out, half_at(b), 32);
    spread_five_bits(b + 2, b + 6, 16, out->c);
}

/* 0:d 2:m (f16) 4:qh 8:16 bytes of nibbles. */
void rl_unpack_q5_1(const void *block, rl_block_codes *out)
{
    const uint8_t *b = block;
    set_plain_scale(out, half_at(b), 32);
    set_offset(out, half_at(b + 2));
    spread_five_bits(b + 4, b + 8, 0, out->c);
}

/* 0:d 2:32 signed codes. */
void rl_unpack_q8_0(const void *block, rl_block_codes *out)
{
    const uint8_t *b = block;
    set_plain_scale(out, half_at(b), 32);
    for (int i = 0; i < 32; i++)
        out->c[i] = (int8_t)b[2 + i];
}

/* Digit n of a byte that holds a fraction in base 3, minus 1; power is 3^n. The product modulo 256 drops the digits before. */
static int8_t ternary_digit(uint8_t byte, unsigned power)
{
    uint8_t rest = (uint8_t)(byte * power);
    return (int8_t)((rest * 3 >> 8) - 1);
}

/* 0:48 bytes of five digits (32 bytes for weights 0..159, 16 for 160..239) 48:4 bytes of four digits (240..255) 52:d */
void rl_unpack_tq1_0(const void *block, rl_block_codes *out)
{
    static const uint8_t powers[5] = {1, 3, 9, 27, 81};
    const uint8_t *b = block;
    set_plain_scale(out, half_at(b + 52), 256);
    for (int n = 0; n < 5; n++) {
        for (int j = 0; j < 32; j++)
            out->c[32 * n + j] = ternary_digit(b[j], powers[n]);
        for (int j = 0; j < 16; j++)
            out->c[160 + 16 * n + j] = ternary_digit(b[32 + j], powers[n]);
    }
    for (int n = 0; n < 4; n++)
        for (int j = 0; j < 4; j++)
            out->c[240 + 4 * n + j] = ternary_digit(b[48 + j], powers[n]);
}

/* 0:64 bytes of bit pairs, minus 1 64:d */
void rl_unpack_tq2_0(const void *block, rl_block_codes *out)
{
    const uint8_t *b = block;
    set_plain_scale(out, half_at(b + 64), 256);
    spread_pairs(b, out->c);
    for (int i = 0; i < 256; i++)
        out->c[i] = (int8_t)(out->c[i] - 1);
}

/* As spread_nibbles, through a table of values. */
static void spread_values(const uint8_t *src, int n, const int8_t *values, int8_t *dst)
{
    for (int j = 0; j < n; j++) {
        dst[j] = values[src[j] & 15];
        dst[j + n] = values[src[j] >> 4];
    }
}

/* 0:d 2:16 bytes of nibbles. */
void rl_unpack_iq4_nl(const void *block, rl_block_codes *out)
{
    const uint8_t *b = block;
    set_plain_scale(out, half_at(b), 32);
    spread_values(b + 2, 16, rl_iq4nl_values, out->c);
}

/* 0:d 2:upper two scale bits of each 32 weights (u16) 4:lower four (nibbles) 8:128 bytes of nibbles, 16 bytes per 32 weights.
 */
void rl_unpack_iq4_xs(const void *block, rl_block_codes *out)
{
    const uint8_t *b = block;
    uint32_t high = le16(b + 2);
    set_plain_scale(out, half_at(b), 256);
    for (int g = 0; g < 8; g++) {
        int low = b[4 + g / 2] >> (4 * (g % 2)) & 15;
        out->s[2 * g] = out->s[2 * g + 1] = (low | (int)(high >> (2 * g) & 3) << 4) - 32;
        spread_values(b + 8 + 16 * g, 16, rl_iq4nl_values, out->c + 32 * g);
    }
}

/* 0:e, the exponent of the scale 2^(e - 127) 1:16 bytes of nibbles. The table holds doubled values, hence 2^(e - 128), which is
 * subnormal for e < 2. */
void rl_unpack_mxfp4(const void *block, rl_block_codes *out)
{
    const uint8_t *b = block;
    uint32_t e = b[0];
    set_plain_scale(out, rl_bits_to_f32(e < 2 ? 0x200000u << e : (e - 1) << 23), 32);
    spread_values(b + 1, 16, rl_fp4_values, out->c);
}

/* 0:four scales, one per 16 weights, as unsigned 8-bit floats (4 bits exponent, 3 mantissa; 0x7f means 0) 4:32 bytes of
 * nibbles, 8 bytes per 16 weights. The scales become integers in units of 2^-10. */
void rl_unpack_nvfp4(const void *block, rl_block_codes *out)
{
    const uint8_t *b = block;
    set_plain_scale(out, 0x1p-10f, 64);
    for (int t = 0; t < 4; t++) {
        int exponent = b[t] >> 3 & 15, mantissa = b[t] & 7;
        if (b[t] == 0x7f)
            out->s[t] = 0;
        else
            out->s[t] = exponent == 0 ? mantissa : (8 + mantissa) << exponent >> 1;
        spread_values(b + 4 + 8 * t, 8, rl_fp4_values, out->c + 16 * t);
    }
}
