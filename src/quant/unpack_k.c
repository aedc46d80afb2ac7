/* quant/unpack_k: the K family, blocks of 256 with quantised scales for sub-blocks of 16 or 32 weights. Layouts are given as
 * offset:field, d and dmin being f16. */
#include "quant/layout.h"

/* 0:16 bytes, low nibble scale and high nibble offset of each 16 weights 16:64 bytes of bit pairs 80:d 82:dmin */
void rl_unpack_q2_k(const void *block, rl_block_codes *out)
{
    const uint8_t *b = block;
    out->scale = half_at(b + 80);
    out->offset_scale = -half_at(b + 82);
    out->has_offset = true;
    for (int t = 0; t < 16; t++) {
        out->s[t] = b[t] & 15;
        out->m[t] = b[t] >> 4;
    }
    spread_pairs(b + 16, out->c);
}

/* 0:32 bytes of third bits, bit i / 32 of byte i % 32 32:64 bytes of bit pairs 96:12 bytes of scales 108:d
 * Scale t: its low four bits are a nibble of the first 8 scale bytes, its upper two a bit pair of the last 4; stored plus 32.
 * The code is the 3-bit number minus 4. */
void rl_unpack_q3_k(const void *block, rl_block_codes *out)
{
    const uint8_t *b = block, *sc = b + 96;
    set_plain_scale(out, half_at(b + 108), 256);
    for (int t = 0; t < 16; t++) {
        int low = sc[t % 8] >> (4 * (t / 8)) & 15;
        int high = sc[8 + t % 4] >> (2 * (t / 4)) & 3;
        out->s[t] = (low | high << 4) - 32;
    }
    spread_pairs(b + 32, out->c);
    for (int g = 0; g < 8; g++)
        for (int l = 0; l < 32; l++)
            out->c[32 * g + l] = (int8_t)((out->c[32 * g + l] | (b[l] >> g & 1) << 2) - 4);
}

/* Head of Q4_K and Q5_K: 0:d 2:dmin 4:12 bytes S with a 6-bit scale and a 6-bit offset for each 32 weights. Sub-blocks 0..3
 * have them in the low bits of S[g] and S[g + 4]; those of 4..7 are nibbles of S[g + 4] with their upper bits in the tops of
 * the bytes of the first four. */
static void unpack_k4_head(const uint8_t *b, rl_block_codes *out)
{
    const uint8_t *packed = b + 4;
    out->scale = half_at(b);
    out->offset_scale = -half_at(b + 2);
    out->has_offset = true;
    for (int g = 0; g < 4; g++) {
        int tail = packed[g + 8];
        out->s[2 * g] = out->s[2 * g + 1] = packed[g] & 63;
        out->m[2 * g] = out->m[2 * g + 1] = packed[g + 4] & 63;
        out->s[2 * g + 8] = out->s[2 * g + 9] = (tail & 15) | packed[g] >> 6 << 4;
        out->m[2 * g + 8] = out->m[2 * g + 9] = tail >> 4 | packed[g + 4] >> 6 << 4;
    }
}

/* 0:head 16:128 bytes of nibbles, 32 bytes per 64 weights. */
void rl_unpack_q4_k(const void *block, rl_block_codes *out)
{
    const uint8_t *b = block;
    unpack_k4_head(b, out);
    for (int t = 0; t < 4; t++)
        spread_nibbles(b + 16 + 32 * t, 32, out->c + 64 * t);
}

/* 0:head 16:32 bytes of fifth bits, bit i / 32 of byte i % 32 48:128 bytes of nibbles as in Q4_K. */
void rl_unpack_q5_k(const void *block, rl_block_codes *out)
{
    const uint8_t *b = block;
    unpack_k4_head(b, out);
    for (int t = 0; t < 4; t++)
        spread_nibbles(b + 48 + 32 * t, 32, out->c + 64 * t);
    for (int g = 0; g < 8; g++)
        for (int l = 0; l < 32; l++)
            out->c[32 * g + l] = (int8_t)(out->c[32 * g + l] | (b[16 + l] >> g & 1) << 4);
}

/* 0:128 bytes of low nibbles, 64 bytes per 128 weights 128:64 bytes of upper bit pairs, 32 bytes per 128 weights 192:16 signed
 * scales 208:d. The code is the 6-bit number minus 32. */
void rl_unpack_q6_k(const void *block, rl_block_codes *out)
{
    const uint8_t *b = block;
    set_plain_scale(out, half_at(b + 208), 256);
    for (int t = 0; t < 16; t++)
        out->s[t] = (int8_t)b[192 + t];
    for (int h = 0; h < 2; h++)
        spread_nibbles(b + 64 * h, 64, out->c + 128 * h);
    for (int h = 0; h < 2; h++)
        for (int j = 0; j < 4; j++)
            for (int l = 0; l < 32; l++) {
                int8_t *c = &out->c[128 * h + 32 * j + l];
                *c = (int8_t)((*c | (b[128 + 32 * h + l] >> (2 * j) & 3) << 4) - 32);
            }
}
