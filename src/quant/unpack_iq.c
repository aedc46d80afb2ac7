/* quant/unpack_iq: formats whose codes are vectors of a codebook. A block is eight sub-blocks b of 32 weights, each of four
 * groups l of 8; a group is one vector of 8 or two of 4. Every index the bits can form lies inside its codebook. Layouts are
 * given as offset:field, d being the f16 scale. */
#include "quant/layout.h"

/* Eight components, those under a set bit of `negative` with their sign turned. */
static void put_vector8(uint64_t entry, unsigned negative, int8_t *dst)
{
    for (int k = 0; k < 8; k++) {
        int v = (int8_t)(entry >> (8 * k));
        dst[k] = (int8_t)(negative >> k & 1 ? -v : v);
    }
}

static void put_vector4x2(uint32_t first, uint32_t second, unsigned negative, int8_t *dst)
{
    put_vector8((uint64_t)second << 32 | first, negative, dst);
}

/* Eight components -1, 0, 1 as eighths with the group's shift of plus or minus one eighth. */
static void put_shifted(uint64_t entry, bool minus, int8_t *dst)
{
    for (int k = 0; k < 8; k++)
        dst[k] = (int8_t)(8 * (int8_t)(entry >> (8 * k)) + (minus ? -1 : 1));
}

/* 0:d 2:32 low index bytes 34:a u16 per sub-block: upper index bits of the groups (3 each), scale (3), sign of the shift (1).
 */
void rl_unpack_iq1_s(const void *block, rl_block_codes *out)
{
    const uint8_t *b = block;
    set_plain_scale(out, half_at(b) * 0.125f, 256);
    for (int g = 0; g < 8; g++) {
        uint32_t qh = le16(b + 34 + 2 * g);
        out->s[2 * g] = out->s[2 * g + 1] = 2 * (int)(qh >> 12 & 7) + 1;
        for (int l = 0; l < 4; l++)
            put_shifted(rl_iq1s_grid[b[2 + 4 * g + l] | (qh >> (3 * l) & 7) << 8], qh >> 15, out->c + 32 * g + 8 * l);
    }
}

/* 0:32 low index bytes 32:a nibble per group: upper index bits (3), sign of the shift (1) 48:four u16, each with the 3-bit
 * scales of four times 16 weights and on top a nibble of d. */
void rl_unpack_iq1_m(const void *block, rl_block_codes *out)
{
    const uint8_t *b = block;
    set_plain_scale(out, rl_f16_to_f32(rl_iq1_m_scale_bits(b + 48)) * 0.125f, 256);
    for (int t = 0; t < 16; t++)
        out->s[t] = 2 * (int)(le16(b + 48 + 2 * (t / 4)) >> (3 * (t % 4)) & 7) + 1;
    for (int g = 0; g < 32; g++) {
        uint32_t h = b[32 + g / 2] >> (4 * (g % 2)) & 15;
        put_shifted(rl_iq1s_grid[b[g] | (h & 7) << 8], h >> 3, out->c + 8 * g);
    }
}

/* The 32-bit word IQ2_XXS and IQ3_XXS have per sub-block: four 7-bit sign selectors and a 4-bit scale. */
static unsigned word_signs(uint32_t word, int l)
{
    return rl_ksigns[word >> (7 * l) & 127];
}

static int32_t word_scale(uint32_t word)
{
    return 2 * (int32_t)(word >> 28) + 1;
}

/* 0:d 2:per sub-block four index bytes and a word of signs and scale. */
void rl_unpack_iq2_xxs(const void *block, rl_block_codes *out)
{
    const uint8_t *b = block;
    set_plain_scale(out, half_at(b) * 0.125f, 256);
    for (int g = 0; g < 8; g++) {
        const uint8_t *record = b + 2 + 8 * g;
        uint32_t word = le32(record + 4);
        out->s[2 * g] = out->s[2 * g + 1] = word_scale(word);
        for (int l = 0; l < 4; l++)
            put_vector8(rl_iq2xxs_grid[record[l]], word_signs(word, l), out->c + 32 * g + 8 * l);
    }
}

/* The 4-bit scales of each 16 weights of IQ2_XS and IQ2_S. */
static void set_nibble_scales(const uint8_t *sc, rl_block_codes *out)
{
    for (int t = 0; t < 16; t++)
        out->s[t] = 2 * (sc[t / 2] >> (4 * (t % 2)) & 15) + 1;
}

/* 0:d 2:a u16 per group, index (9 bits) and sign selector (7) 66:scales */
void rl_unpack_iq2_xs(const void *block, rl_block_codes *out)
{
    const uint8_t *b = block;
    set_plain_scale(out, half_at(b) * 0.125f, 256);
    set_nibble_scales(b + 66, out);
    for (int g = 0; g < 32; g++) {
        uint32_t x = le16(b + 2 + 2 * g);
        put_vector8(rl_iq2xs_grid[x & 511], rl_ksigns[x >> 9], out->c + 8 * g);
    }
}

/* 0:d 2:32 low index bytes 34:32 sign masks 66:upper index bits, a bit pair per group 74:scales */
void rl_unpack_iq2_s(const void *block, rl_block_codes *out)
{
    const uint8_t *b = block;
    set_plain_scale(out, half_at(b) * 0.125f, 256);
    set_nibble_scales(b + 74, out);
    for (int g = 0; g < 32; g++) {
        uint32_t high = b[66 + g / 4] >> (2 * (g % 4)) & 3;
        put_vector8(rl_iq2s_grid[b[2 + g] | high << 8], b[34 + g], out->c + 8 * g);
    }
}

/* 0:d 2:64 index bytes, one per 4 weights 66:a word of signs and scale per sub-block */
void rl_unpack_iq3_xxs(const void *block, rl_block_codes *out)
{
    const uint8_t *b = block, *qs = b + 2;
    set_plain_scale(out, half_at(b) * 0.25f, 256);
    for (int g = 0; g < 8; g++) {
        uint32_t word = le32(b + 66 + 4 * g);
        out->s[2 * g] = out->s[2 * g + 1] = word_scale(word);
        for (int l = 0; l < 4; l++) {
            const uint8_t *q = qs + 8 * g + 2 * l;
            put_vector4x2(rl_iq3xxs_grid[q[0]], rl_iq3xxs_grid[q[1]], word_signs(word, l), out->c + 32 * g + 8 * l);
        }
    }
}

/* 0:d 2:64 low index bytes, one per 4 weights 66:ninth index bits, a bit per 4 weights 74:32 sign masks 106:scales, a nibble
 * per sub-block */
void rl_unpack_iq3_s(const void *block, rl_block_codes *out)
{
    const uint8_t *b = block, *qs = b + 2;
    set_plain_scale(out, half_at(b), 256);
    for (int g = 0; g < 8; g++) {
        uint32_t high = b[66 + g];
        out->s[2 * g] = out->s[2 * g + 1] = 2 * (b[106 + g / 2] >> (4 * (g % 2)) & 15) + 1;
        for (int l = 0; l < 4; l++) {
            const uint8_t *q = qs + 8 * g + 2 * l;
            uint32_t first = q[0] | (high >> (2 * l) & 1) << 8;
            uint32_t second = q[1] | (high >> (2 * l + 1) & 1) << 8;
            put_vector4x2(rl_iq3s_grid[first], rl_iq3s_grid[second], b[74 + 4 * g + l], out->c + 32 * g + 8 * l);
        }
    }
}
