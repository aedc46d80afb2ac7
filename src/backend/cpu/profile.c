/* backend/cpu/profile: accumulation of phase times. */
#include "backend/cpu/profile.h"
#include "base/clock.h"
#include <string.h>

static const char *const phase_names[CPU_PHASE_COUNT] = {
    "start",   "norm",    "dn_in",  "dn_conv", "dn_state", "dn_gate",    "dn_out",      "at_in", "at_rope",
    "at_core", "at_gate", "at_out", "router",  "select",   "experts_in", "experts_out", "head",
};
_Static_assert(CPU_PHASE_COUNT <= RL_PROFILE_STAGES_MAX, "every phase has a row in rl_profile");

void cpu_profile_init(cpu_profile *p, bool on)
{
    memset(p, 0, sizeof *p);
    p->on = on;
    for (int k = 0; k < 2; k++) {
        p->kinds[k].n_stages = CPU_PHASE_COUNT;
        for (int i = 0; i < CPU_PHASE_COUNT; i++)
            p->kinds[k].stages[i].name = phase_names[i];
    }
    p->now = &p->kinds[0];
}

void cpu_profile_begin(cpu_profile *p, uint32_t rows)
{
    p->now = &p->kinds[rows == 1];
    p->now->passes++;
    p->now->rows += rows;
    p->last_ns = rl_now_ns();
}

void cpu_profile_end(cpu_profile *p, cpu_phase phase)
{
    const uint64_t t = rl_now_ns();
    const double seconds = (double)(t - p->last_ns) * 1e-9;
    p->last_ns = t;
    p->now->stages[phase].seconds += seconds;
    p->now->stages[phase].calls++;
    p->now->seconds += seconds;
}
