/* quant/validate: which blocks hold numbers that are not finite. All other bit patterns of all types are decodable. */
#include "quant/layout.h"

typedef bool (*bad_fn)(const uint8_t *block);

static bool bad_half(const uint8_t *p)
{
    return (le16(p) & 0x7c00) == 0x7c00;
}

static bool bad_f32(const uint8_t *p)
{
    return (le32(p) & 0x7f800000) == 0x7f800000;
}

static bool bad_f64(const uint8_t *p)
{
    return (le32(p + 4) & 0x7ff00000) == 0x7ff00000;
}

static bool bad_bf16(const uint8_t *p)
{
    return (le16(p) & 0x7f80) == 0x7f80;
}

static bool bad_two_halves(const uint8_t *p)
{
    return bad_half(p) || bad_half(p + 2);
}

static bool bad_iq1_m(const uint8_t *p)
{
    return (rl_iq1_m_scale_bits(p + 48) & 0x7c00) == 0x7c00;
}

static bool bad_mxfp4(const uint8_t *p)
{
    return p[0] == 255;
}

/* The check of a type and the offset in the block it starts from. */
static bad_fn check_of(rl_type type, unsigned *offset)
{
    *offset = 0;
    switch (type) {
    case RL_F32:
    case RL_Q8_K:
        return bad_f32;
    case RL_F64:
        return bad_f64;
    case RL_BF16:
        return bad_bf16;
    case RL_F16:
    case RL_Q1_0:
    case RL_Q2_0:
    case RL_Q4_0:
    case RL_Q5_0:
    case RL_Q8_0:
    case RL_IQ1_S:
    case RL_IQ2_XXS:
    case RL_IQ2_XS:
    case RL_IQ2_S:
    case RL_IQ3_XXS:
    case RL_IQ3_S:
    case RL_IQ4_NL:
    case RL_IQ4_XS:
        return bad_half;
    case RL_Q4_1:
    case RL_Q5_1:
    case RL_Q8_1:
    case RL_Q4_K:
    case RL_Q5_K:
        return bad_two_halves;
    case RL_Q2_K:
        *offset = 80;
        return bad_two_halves;
    case RL_Q3_K:
        *offset = 108;
        return bad_half;
    case RL_Q6_K:
        *offset = 208;
        return bad_half;
    case RL_TQ1_0:
        *offset = 52;
        return bad_half;
    case RL_TQ2_0:
        *offset = 64;
        return bad_half;
    case RL_IQ1_M:
        return bad_iq1_m;
    case RL_MXFP4:
        return bad_mxfp4;
    default: /* integers, and NVFP4, whose every scale byte has a finite value */
        return NULL;
    }
}

int64_t rl_quant_find_invalid(rl_type type, const void *src, size_t n_blocks)
{
    unsigned offset;
    bad_fn bad = check_of(type, &offset);
    if (bad == NULL) return -1;
    const uint8_t *p = (const uint8_t *)src + offset;
    size_t bytes = rl_type_get(type)->block_bytes;
    for (size_t n = 0; n < n_blocks; n++, p += bytes)
        if (bad(p)) return (int64_t)n;
    return -1;
}
