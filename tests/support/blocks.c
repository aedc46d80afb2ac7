#include "support/blocks.h"

#include <math.h>
#include <string.h>

const rl_type rl_test_weight_types[RL_TEST_N_WEIGHT_TYPES] = {
    RL_F32,   RL_F16,  RL_Q4_0,    RL_Q4_1,   RL_Q5_0,    RL_Q5_1,  RL_Q8_0,   RL_Q2_K,  RL_Q3_K,  RL_Q4_K,
    RL_Q5_K,  RL_Q6_K, RL_IQ2_XXS, RL_IQ2_XS, RL_IQ3_XXS, RL_IQ1_S, RL_IQ4_NL, RL_IQ3_S, RL_IQ2_S, RL_IQ4_XS,
    RL_IQ1_M, RL_BF16, RL_TQ1_0,   RL_TQ2_0,  RL_MXFP4,   RL_NVFP4, RL_Q1_0,   RL_Q2_0};

/* Where the f16 scales of a type are (-1: none there) and the largest weight of a block with d = 1. */
typedef struct scale_fields {
    int d, second;
    float largest;
} scale_fields;

static scale_fields fields_of(rl_type type)
{
    switch (type) {
    case RL_Q4_0:
        return (scale_fields){0, -1, 8};
    case RL_Q4_1:
        return (scale_fields){0, 2, 15};
    case RL_Q5_0:
        return (scale_fields){0, -1, 16};
    case RL_Q5_1:
        return (scale_fields){0, 2, 31};
    case RL_Q8_0:
        return (scale_fields){0, -1, 128};
    case RL_Q1_0:
        return (scale_fields){0, -1, 1};
    case RL_Q2_0:
        return (scale_fields){0, -1, 2};
    case RL_Q2_K:
        return (scale_fields){80, 82, 45};
    case RL_Q3_K:
        return (scale_fields){108, -1, 128};
    case RL_Q4_K:
        return (scale_fields){0, 2, 945};
    case RL_Q5_K:
        return (scale_fields){0, 2, 1953};
    case RL_Q6_K:
        return (scale_fields){208, -1, 4096};
    case RL_TQ1_0:
        return (scale_fields){52, -1, 1};
    case RL_TQ2_0:
        return (scale_fields){64, -1, 2};
    case RL_IQ1_S:
    case RL_IQ1_M: /* its scattered field is written by put_scale */
        return (scale_fields){0, -1, 16.875f};
    case RL_IQ2_XXS:
    case RL_IQ2_XS:
    case RL_IQ2_S:
        return (scale_fields){0, -1, 166.625f};
    case RL_IQ3_XXS:
        return (scale_fields){0, -1, 480.5f};
    case RL_IQ3_S:
        return (scale_fields){0, -1, 465};
    case RL_IQ4_NL:
        return (scale_fields){0, -1, 127};
    case RL_IQ4_XS:
        return (scale_fields){0, -1, 4064};
    case RL_MXFP4:
    case RL_NVFP4:
        return (scale_fields){-1, -1, 6};
    default:
        return (scale_fields){-1, -1, 1};
    }
}

static void put_half(uint8_t *p, float f)
{
    uint16_t h = rl_f32_to_f16(f);
    p[0] = (uint8_t)h;
    p[1] = (uint8_t)(h >> 8);
}

/* The largest of the codes 0 .. 0x7e (0x7f means zero) whose value is at most |d|. */
static uint8_t nvfp4_code(float d)
{
    uint8_t code = 0;
    for (int x = 1; x < 0x7f; x++) {
        int exponent = x >> 3, mantissa = x & 7;
        double value = exponent ? ldexp(8 + mantissa, exponent - 10) : ldexp(mantissa, -9);
        if (value <= fabs((double)d)) code = (uint8_t)x;
    }
    return code;
}

static uint8_t mxfp4_exponent(float d)
{
    int e = d != 0.0f ? ilogbf(d) + 127 : 0;
    return (uint8_t)(e < 0 ? 0 : e > 254 ? 254 : e);
}

void rl_test_set_scales(rl_type type, void *block, float d, float second)
{
    uint8_t *p = block;
    scale_fields fields = fields_of(type);
    if (type == RL_F32) {
        memcpy(p, &d, sizeof d);
    } else if (type == RL_F16) {
        put_half(p, d);
    } else if (type == RL_BF16) {
        uint16_t h = rl_f32_to_bf16(d);
        memcpy(p, &h, sizeof h);
    } else if (type == RL_MXFP4) {
        p[0] = mxfp4_exponent(d);
    } else if (type == RL_NVFP4) {
        memset(p, nvfp4_code(d), 4);
    } else if (type == RL_IQ1_M) {
        uint16_t h = rl_f32_to_f16(d);
        for (int t = 0; t < 4; t++)
            p[49 + 2 * t] = (uint8_t)((p[49 + 2 * t] & 15) | (h >> (4 * t) & 15) << 4);
    } else {
        put_half(p + fields.d, d);
        if (fields.second >= 0) put_half(p + fields.second, second);
    }
}

void rl_test_random_blocks(rl_type type, rl_rng *rng, void *dst, size_t n_blocks)
{
    size_t bytes = rl_type_get(type)->block_bytes;
    uint8_t *block = dst;
    for (size_t n = 0; n < n_blocks; n++, block += bytes) {
        rl_rng_fill_bytes(rng, block, bytes);
        float d = rl_rng_uniform(rng), second = rl_rng_uniform(rng);
        /* Away from zero, but for elements that are weights themselves. */
        if (rl_quant_get(type)->act != RL_ACT_NONE) d += d < 0.0f ? -0.25f : 0.25f;
        scale_fields fields = fields_of(type);
        /* m of Q4_1 and Q5_1 is a weight; dmin is multiplied by up to 15 (Q2_K) or 63. */
        float largest_offset = type == RL_Q2_K ? 15.0f : type == RL_Q4_K || type == RL_Q5_K ? 63.0f : 1.0f;
        rl_test_set_scales(type, block, d / fields.largest, second / largest_offset);
        if (type == RL_NVFP4)
            for (int t = 0; t < 4; t++)
                block[t] = nvfp4_code((fabsf(rl_rng_uniform(rng)) + 0.25f) / fields.largest);
    }
}

const char *rl_test_edge_name(rl_test_edge edge)
{
    static const char *const names[RL_N_EDGES] = {"zero scale",      "negative zero scale",
                                                  "negative scale",  "tiny scale",
                                                  "subnormal scale", "huge scale",
                                                  "codes 00",        "codes ff",
                                                  "codes 80",        "codes 7f",
                                                  "codes 55",        "codes aa",
                                                  "codes 0ff0"};
    return names[edge];
}

void rl_test_edge_block(rl_type type, rl_test_edge edge, rl_rng *rng, void *dst)
{
    static const int fill[RL_N_EDGES] = {
        [RL_EDGE_CODES_00] = 0x0000, [RL_EDGE_CODES_FF] = 0xffff, [RL_EDGE_CODES_80] = 0x8080,  [RL_EDGE_CODES_7F] = 0x7f7f,
        [RL_EDGE_CODES_55] = 0x5555, [RL_EDGE_CODES_AA] = 0xaaaa, [RL_EDGE_CODES_0FF0] = 0x0ff0};
    size_t bytes = rl_type_get(type)->block_bytes;
    uint8_t *block = dst;
    float usual = 1.0f / fields_of(type).largest;
    if (edge < RL_EDGE_CODES_00)
        rl_rng_fill_bytes(rng, block, bytes);
    else
        for (size_t i = 0; i < bytes; i++)
            block[i] = (uint8_t)(i % 2 == 0 ? fill[edge] >> 8 : fill[edge]);

    switch (edge) {
    case RL_EDGE_ZERO_SCALE:
        rl_test_set_scales(type, block, 0.0f, 0.0f);
        break;
    case RL_EDGE_NEG_ZERO_SCALE:
        rl_test_set_scales(type, block, -0.0f, -0.0f);
        break;
    case RL_EDGE_NEG_SCALE:
        rl_test_set_scales(type, block, -usual, usual);
        break;
    case RL_EDGE_TINY_SCALE:
        rl_test_set_scales(type, block, type == RL_MXFP4 ? 0.0f : 0x1p-24f, 0x1p-24f);
        if (type == RL_NVFP4) memset(block, 1, 4);
        break;
    case RL_EDGE_SUBNORMAL:
        rl_test_set_scales(type, block, 0x3ffp-24f, -0x3ffp-24f);
        if (type == RL_MXFP4) block[0] = 1;
        if (type == RL_NVFP4) memset(block, 7, 4);
        break;
    case RL_EDGE_HUGE_SCALE:
        rl_test_set_scales(type, block, type == RL_MXFP4 ? 0x1p112f : 65504.0f, 65504.0f);
        break;
    default:
        rl_test_set_scales(type, block, usual, -usual);
        break;
    }
}
