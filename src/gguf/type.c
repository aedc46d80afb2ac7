/* Tensor element types: block sizes by type number. What the bytes mean is the business of quant/. */
#include "gguf/gguf.h"

#include <assert.h>

static const rl_type_info types[RL_TYPE_END] = {
    [RL_F32] = {"F32", 1, 4},
    [RL_F16] = {"F16", 1, 2},
    [RL_Q4_0] = {"Q4_0", 32, 18},
    [RL_Q4_1] = {"Q4_1", 32, 20},
    [RL_Q5_0] = {"Q5_0", 32, 22},
    [RL_Q5_1] = {"Q5_1", 32, 24},
    [RL_Q8_0] = {"Q8_0", 32, 34},
    [RL_Q8_1] = {"Q8_1", 32, 36},
    [RL_Q2_K] = {"Q2_K", 256, 84},
    [RL_Q3_K] = {"Q3_K", 256, 110},
    [RL_Q4_K] = {"Q4_K", 256, 144},
    [RL_Q5_K] = {"Q5_K", 256, 176},
    [RL_Q6_K] = {"Q6_K", 256, 210},
    [RL_Q8_K] = {"Q8_K", 256, 292},
    [RL_IQ2_XXS] = {"IQ2_XXS", 256, 66},
    [RL_IQ2_XS] = {"IQ2_XS", 256, 74},
    [RL_IQ3_XXS] = {"IQ3_XXS", 256, 98},
    [RL_IQ1_S] = {"IQ1_S", 256, 50},
    [RL_IQ4_NL] = {"IQ4_NL", 32, 18},
    [RL_IQ3_S] = {"IQ3_S", 256, 110},
    [RL_IQ2_S] = {"IQ2_S", 256, 82},
    [RL_IQ4_XS] = {"IQ4_XS", 256, 136},
    [RL_I8] = {"I8", 1, 1},
    [RL_I16] = {"I16", 1, 2},
    [RL_I32] = {"I32", 1, 4},
    [RL_I64] = {"I64", 1, 8},
    [RL_F64] = {"F64", 1, 8},
    [RL_IQ1_M] = {"IQ1_M", 256, 56},
    [RL_BF16] = {"BF16", 1, 2},
    [RL_TQ1_0] = {"TQ1_0", 256, 54},
    [RL_TQ2_0] = {"TQ2_0", 256, 66},
    [RL_MXFP4] = {"MXFP4", 32, 17},
    [RL_NVFP4] = {"NVFP4", 64, 36},
    [RL_Q1_0] = {"Q1_0", 128, 18},
    [RL_Q2_0] = {"Q2_0", 64, 18},
};

const rl_type_info *rl_type_get(uint32_t type)
{
    return type < RL_TYPE_END && types[type].name ? &types[type] : NULL;
}

uint64_t rl_type_row_bytes(rl_type type, uint64_t n)
{
    const rl_type_info *info = rl_type_get((uint32_t)type);
    assert(info && n % info->block_weights == 0);
    return n / info->block_weights * info->block_bytes;
}
