/* base/cpu: what the processor offers, and what of it we may use. */
#ifndef RL_BASE_CPU_H
#define RL_BASE_CPU_H

#include "base/error.h"

/* Instruction set levels of our kernels, in rising order on each architecture.
 *   scalar : portable C
 *   avx2   : AVX2 + FMA + F16C + BMI2 (x86-64-v3)
 *   avx512 : AVX-512 F/BW/DQ/VL + VNNI + VBMI + BITALG (Ice Lake, Zen 4 and later), BF16 used when present
 *   neon   : AArch64 with dot product */
typedef enum rl_isa { RL_ISA_SCALAR, RL_ISA_AVX2, RL_ISA_AVX512, RL_ISA_NEON } rl_isa;

typedef struct rl_cpu_info {
    char brand[64];
    int logical_cores;  /* that this process may run on (affinity and cgroup quota respected) */
    int physical_cores; /* of those */
    bool avx2, fma, f16c, avx_vnni, avx512, avx512_vnni, avx512_vbmi, avx512_bf16, neon_dot;
    uint32_t l1d_bytes, l2_bytes, l3_bytes; /* per core, per core, shared; 0 when unknown */
    rl_isa best;
} rl_cpu_info;

const rl_cpu_info *rl_cpu(void); /* detected once, thread safe */

const char *rl_isa_name(rl_isa isa);
/* "auto" or a name above; RL_ERR_UNSUPPORTED with the reason when the processor lacks it. */
rl_status rl_isa_parse(const char *name, rl_isa *out, rl_error *err);

#endif
