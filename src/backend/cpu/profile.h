/* backend/cpu/profile: where the time of passes goes.
 *
 * A pass is a sequence of phases between barriers; member 0 reads the clock at the end of each. Bytes are those the phase has
 * to move at least once (weights, state, keys and values), FLOPs two per multiply-add: both are computed from shapes, so their
 * rates are what the phase achieves of the machine's ceilings. Single-row passes (decode) and others (prefill) are kept apart.
 */
#ifndef RL_CPU_PROFILE_H
#define RL_CPU_PROFILE_H

#include "backend/backend.h"

typedef enum cpu_phase {
    CPU_PHASE_START, /* waking the pool, embedding rows, rotary tables */
    CPU_PHASE_NORM,
    CPU_PHASE_DN_IN,
    CPU_PHASE_DN_CONV,
    CPU_PHASE_DN_STATE,
    CPU_PHASE_DN_GATE,
    CPU_PHASE_DN_OUT,
    CPU_PHASE_AT_IN,
    CPU_PHASE_AT_ROPE,
    CPU_PHASE_AT_CORE,
    CPU_PHASE_AT_GATE,
    CPU_PHASE_AT_OUT,
    CPU_PHASE_ROUTER,
    CPU_PHASE_SELECT,
    CPU_PHASE_EXPERT_WAIT, /* member 0 waits for experts from the file; not part of the next phase */
    CPU_PHASE_EXPERT_IN,
    CPU_PHASE_EXPERT_OUT,
    CPU_PHASE_HEAD,
    CPU_PHASE_COUNT
} cpu_phase;

typedef struct cpu_profile {
    bool on;
    uint64_t last_ns;
    rl_profile kinds[2]; /* prefill, decode */
    rl_profile *now;
} cpu_profile;

void cpu_profile_init(cpu_profile *p, bool on);
void cpu_profile_begin(cpu_profile *p, uint32_t rows);
/* The time since the last call belongs to `phase`. */
void cpu_profile_end(cpu_profile *p, cpu_phase phase);

/* A table per kind of pass, as log messages. */
void cpu_profile_log(const cpu_profile *p);

/* Part of the phase that runs belongs to another. */
void cpu_profile_apart(cpu_profile *p, cpu_phase running, cpu_phase apart, double seconds);

static inline void cpu_profile_work(cpu_profile *p, cpu_phase phase, uint64_t bytes, uint64_t flops)
{
    p->now->stages[phase].bytes += bytes;
    p->now->stages[phase].flops += flops;
}

#endif
