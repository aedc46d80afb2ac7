/* backend/cuda/profile: accumulation of phase times. */
#include "backend/cuda/profile.cuh"

#include <stdlib.h>
#include <string.h>

static const char *const phase_names[PHASE_COUNT] = {
    "start",   "norm",   "dn_in",  "dn_conv", "dn_state",   "dn_gate",     "dn_out",      "at_in",   "at_rope", "at_core",
    "at_gate", "at_out", "router", "select",  "experts_in", "experts_act", "experts_out", "combine", "shared",  "head",
};

void profile_init(profiler *p, bool on)
{
    const char *v = getenv("RL_PREFILL_PROFILE");
    p->log = v && strcmp(v, "1") == 0;
    p->on = on || p->log;
    for (rl_profile &k : p->kinds) {
        k = {};
        k.n_stages = PHASE_COUNT;
        for (int i = 0; i < PHASE_COUNT; i++)
            k.stages[i].name = phase_names[i];
    }
}

static void log_kind(const char *name, const rl_profile &k)
{
    if (!k.passes) return;
    host->log(RL_LOG_INFO, "%s: %llu passes, %llu rows, %.3f s, %.1f rows/s", name, (unsigned long long)k.passes,
              (unsigned long long)k.rows, k.seconds, (double)k.rows / k.seconds);
    for (const rl_profile_stage &s : k.stages)
        if (s.calls)
            host->log(RL_LOG_INFO, "  %-12s %10.3f ms/pass %5.1f%%  %8.1f us/call", s.name, s.seconds * 1e3 / (double)k.passes,
                      100 * s.seconds / k.seconds, s.seconds * 1e6 / (double)s.calls);
}

void profile_free(profiler *p)
{
    if (p->log) {
        log_kind("prefill", p->kinds[0]);
        log_kind("decode", p->kinds[1]);
    }
    for (cudaEvent_t e : p->events)
        cudaEventDestroy(e);
}

void profile_mark(profiler *p, phase ph, cudaStream_t st)
{
    if (!p->on) return;
    if (p->phases.size() == p->events.size()) {
        cudaEvent_t e;
        if (cudaEventCreate(&e) != cudaSuccess) return;
        p->events.push_back(e);
    }
    cudaEventRecord(p->events[p->phases.size()], st);
    p->phases.push_back(ph);
}

void profile_end(profiler *p, uint32_t rows)
{
    if (!p->on) return;
    rl_profile &k = p->kinds[rows == 1];
    k.passes++;
    k.rows += rows;
    for (size_t i = 1; i < p->phases.size(); i++) {
        float ms = 0;
        if (cudaEventElapsedTime(&ms, p->events[i - 1], p->events[i]) != cudaSuccess) continue;
        rl_profile_stage &s = k.stages[p->phases[i]];
        s.calls++;
        s.seconds += ms * 1e-3;
        k.seconds += ms * 1e-3;
    }
    p->phases.clear();
}

bool cuda_profile(const rl_backend *b, bool decode, rl_profile *out)
{
    const profiler *p = ((const cuda_backend *)b)->profile;
    if (!p->on) return false;
    *out = p->kinds[decode];
    return true;
}
