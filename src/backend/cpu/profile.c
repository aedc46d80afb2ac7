/* backend/cpu/profile: accumulation of phase times. */
#include "backend/cpu/profile.h"
#include "base/clock.h"
#include "base/log.h"
#include <string.h>

static const char *const phase_names[CPU_PHASE_COUNT] = {
    "start",   "norm",    "dn_in",  "dn_conv", "dn_state", "dn_gate",      "dn_out",     "at_in",       "at_rope",
    "at_core", "at_gate", "at_out", "router",  "select",   "experts_wait", "experts_in", "experts_out", "head",
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

void cpu_profile_apart(cpu_profile *p, cpu_phase running, cpu_phase apart, double seconds)
{
    p->now->stages[running].seconds -= seconds;
    p->now->stages[apart].seconds += seconds;
    p->now->stages[apart].calls++;
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

static double rate(double amount, double seconds)
{
    return seconds > 0 ? amount / seconds * 1e-9 : 0;
}

void cpu_profile_log(const cpu_profile *p)
{
    static const char *const kinds[2] = {"prefill", "decode"};
    for (int k = 0; k < 2; k++) {
        const rl_profile *r = &p->kinds[k];
        if (r->passes == 0) continue;
        rl_log(RL_LOG_INFO, "%s: %llu passes, %llu rows, %.3f s, %.2f rows/s", kinds[k], (unsigned long long)r->passes,
               (unsigned long long)r->rows, r->seconds, (double)r->rows / r->seconds);
        rl_log(RL_LOG_INFO, "  %-12s %10s %6s %12s %8s %9s", "phase", "ms/pass", "share", "MB/pass", "GB/s", "GFLOP/s");
        for (uint32_t i = 0; i < r->n_stages; i++) {
            const rl_profile_stage *s = &r->stages[i];
            rl_log(RL_LOG_INFO, "  %-12s %10.3f %5.1f%% %12.3f %8.2f %9.1f", s->name, s->seconds * 1e3 / (double)r->passes,
                   100 * s->seconds / r->seconds, (double)s->bytes * 1e-6 / (double)r->passes,
                   rate((double)s->bytes, s->seconds), rate((double)s->flops, s->seconds));
        }
    }
}
