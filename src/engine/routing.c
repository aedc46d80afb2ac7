/* engine/routing: how often each expert was chosen, counted only while somebody looks: a pass that shows its stages is a little
 * slower. */
#include "base/mem.h"
#include "engine/engine.h"

#include <stdlib.h>
#include <string.h>

static rl_status count(void *ctx, rl_stage stage, uint32_t layer, uint32_t row0, uint32_t n_rows, uint32_t width, float *data)
{
    rl_engine *e = ctx;
    (void)row0;
    if (stage != RL_STAGE_ROUTER_IDS) return RL_OK;
    uint64_t *counts = e->routed + (size_t)layer * e->info->n_expert;
    for (size_t i = 0; i < (size_t)n_rows * width; i++)
        if (data[i] >= 0 && data[i] < (float)e->info->n_expert) counts[(uint32_t)data[i]]++;
    return RL_OK;
}

bool rl_engine_watch_routing(rl_engine *e, bool on)
{
    if (!on) {
        if (e->tap == count) e->tap = NULL;
        return true;
    }
    if (e->tap) return e->tap == count; /* a trace is being recorded */
    if (!e->routed) e->routed = rl_calloc((size_t)e->info->n_layer * e->info->n_expert, sizeof *e->routed);
    if (!e->routed) return false;
    e->tap = count;
    e->tap_ctx = e;
    return true;
}

void rl_engine_routing(const rl_engine *e, uint64_t *counts)
{
    size_t bytes = (size_t)e->info->n_layer * e->info->n_expert * sizeof *counts;
    if (e->routed)
        memcpy(counts, e->routed, bytes);
    else
        memset(counts, 0, bytes);
}
