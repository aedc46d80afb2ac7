/* backend/cpu/kern_pack: which words of a block make planes, and the packing of whole row groups (when a matrix is opened). */
#include "backend/cpu/kern_pack.h"

#include <string.h>

/* clang-format off */
static const rl_pack packs[RL_TYPE_END] = {
    /*              first words scale_at scale_bytes element */
    [RL_Q4_0]    = {2,  4,   0, 2, 4}, [RL_Q5_0]   = {2, 5,  0, 2, 4}, [RL_Q8_0]   = {2, 8,  0,   2, 4},
    [RL_IQ4_NL]  = {2,  4,   0, 2, 4}, [RL_MXFP4]  = {1, 4,  0, 1, 4},
    [RL_Q2_K]    = {0, 21,   0, 0, 4}, [RL_Q3_K]   = {0, 27, 108, 2, 4}, [RL_Q4_K] = {0, 36, 0,   0, 4},
    [RL_Q5_K]    = {0, 44,   0, 0, 4}, [RL_Q6_K]   = {0, 52, 208, 2, 4},
    [RL_IQ1_S]   = {2, 12,   0, 2, 4}, [RL_IQ1_M]  = {0, 14, 0, 0, 4},
    [RL_IQ2_XXS] = {2, 16,   0, 2, 4}, [RL_IQ2_XS] = {2, 18, 0, 2, 4}, [RL_IQ2_S]  = {2, 20, 0,   2, 4},
    [RL_IQ3_XXS] = {2, 24,   0, 2, 4}, [RL_IQ3_S]  = {2, 27, 0, 2, 4}, [RL_IQ4_XS] = {0, 34, 0,   0, 4},
    [RL_F32]     = {0,  1,   0, 0, 4}, [RL_F16]    = {0, 1,  0, 0, 2}, [RL_BF16]   = {0, 1,  0,   0, 2},
};
/* clang-format on */

const rl_pack *rl_pack_of(rl_type type)
{
    return &packs[type];
}

uint64_t rl_pack_scales_bytes(const rl_pack *p, uint32_t n_blocks)
{
    return ((uint64_t)n_blocks * 16 * p->scale_bytes + 63) & ~(uint64_t)63;
}

uint64_t rl_pack_group_bytes(const rl_pack *p, uint32_t n_blocks)
{
    return (rl_pack_scales_bytes(p, n_blocks) + (uint64_t)n_blocks * p->words * p->element * 16 + 63) & ~(uint64_t)63;
}

void rl_pack_rows(rl_type type, const uint8_t *const *rows, uint32_t n_blocks, uint8_t *group)
{
    const rl_pack *p = &packs[type];
    const uint32_t block_bytes = rl_type_get(type)->block_bytes, e = p->element;
    uint8_t *planes = group + rl_pack_scales_bytes(p, n_blocks);
    memset(group, 0, rl_pack_group_bytes(p, n_blocks));
    for (uint32_t r = 0; r < 16; r++) {
        const uint8_t *block = rows[r];
        if (!block) continue;
        for (uint32_t b = 0; b < n_blocks; b++, block += block_bytes) {
            memcpy(group + (b * 16 + r) * p->scale_bytes, block + p->scale_at, p->scale_bytes);
            for (uint32_t w = 0; w < p->words; w++)
                memcpy(planes + ((uint64_t)(b * p->words + w) * 16 + r) * e, block + p->first + w * e, e);
        }
    }
}

void rl_unpack_block(rl_type type, const uint8_t *planes, const uint8_t *scales, uint32_t b, uint32_t r, uint8_t *block)
{
    const rl_pack *p = &packs[type];
    const uint32_t e = p->element;
    memcpy(block + p->scale_at, scales + (b * 16 + r) * p->scale_bytes, p->scale_bytes);
    for (uint32_t w = 0; w < p->words; w++)
        memcpy(block + p->first + w * e, planes + ((uint64_t)(b * p->words + w) * 16 + r) * e, e);
}
