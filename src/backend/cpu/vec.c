/* backend/cpu/vec: choice of the table. */
#include "backend/cpu/vec.h"

const rl_vec *rl_vec_get(rl_isa isa)
{
#if defined(__x86_64__)
    if (isa == RL_ISA_AVX512) return &rl_vec_avx512;
    if (isa == RL_ISA_AVX2) return &rl_vec_avx2;
#endif
    (void)isa;
    return &rl_vec_scalar;
}

/* Keys, queries and values of the staged tokens. */
size_t rl_delta_stage_floats(uint32_t s)
{
    return (size_t)3 * RL_DELTA_STAGE * s;
}
