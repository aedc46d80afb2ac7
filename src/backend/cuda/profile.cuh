/* backend/cuda/profile: the time between events on the stream, by phase. Recording costs a few microseconds per launch, so a
 * profiled pass is not replayed as a graph. */
#ifndef RL_CUDA_PROFILE_CUH
#define RL_CUDA_PROFILE_CUH

#include "backend/cuda/common.cuh"

enum phase {
    PHASE_START, /* descriptors, embedding rows, rotary table */
    PHASE_NORM,
    PHASE_DN_IN,
    PHASE_DN_CONV,
    PHASE_DN_STATE,
    PHASE_DN_GATE,
    PHASE_DN_OUT,
    PHASE_AT_IN,
    PHASE_AT_ROPE,
    PHASE_AT_CORE,
    PHASE_AT_GATE,
    PHASE_AT_OUT,
    PHASE_ROUTER,
    PHASE_SELECT,
    PHASE_EXPERT_IN,
    PHASE_EXPERT_ACT,
    PHASE_EXPERT_OUT,
    PHASE_COMBINE,
    PHASE_SHARED,
    PHASE_HEAD,
    PHASE_COUNT
};

struct profiler {
    bool on, log;
    rl_profile kinds[2]; /* prefill, decode */
    std::vector<cudaEvent_t> events;
    std::vector<phase> phases; /* of the interval that ends with the event */
};

void profile_init(profiler *p, bool on);
void profile_free(profiler *p);
void profile_mark(profiler *p, phase ph, cudaStream_t st);
/* The pass has ended and the stream is idle. */
void profile_end(profiler *p, uint32_t rows);
bool cuda_profile(const rl_backend *b, bool decode, rl_profile *out);

#endif
