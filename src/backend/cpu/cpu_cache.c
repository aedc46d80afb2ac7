/* backend/cpu: the experts of a layer, in place or from the cache of experts/.
 *
 * Member 0 announces the experts in use and opens waves; every member takes the wave's experts in order of arrival. In place
 * all of them are one wave that has arrived. */
#include "backend/cpu/cpu.h"
#include "base/clock.h"

/* Predictions pay while a token waits for the disk; a chunk of many rows reads whole layers anyway. */
#define PREDICT_ROWS 8

static bool predicts(const cpu_worker *w, uint32_t layer)
{
    const cpu_backend *b = w->b;
    return b->experts && !w->p->mtp && w->p->n_rows <= PREDICT_ROWS && layer + 1 < b->base.model->hp.n_layer &&
           rl_experts_can_predict(b->experts);
}

const rl_mm_matrix *cpu_next_router(const cpu_worker *w, uint32_t layer)
{
    return predicts(w, layer) ? &w->b->layers[layer + 1].router : NULL;
}

/* The MTP block's experts follow the trunk's. */
static uint32_t layer_in_cache(const cpu_worker *w, uint32_t layer)
{
    return w->p->mtp ? w->b->base.model->hp.n_layer : layer;
}

void cpu_resident(cpu_worker *w, uint32_t layer)
{
    rl_experts_resident(w->b->experts, layer_in_cache(w, layer), w->b->s.resident);
}

static void predict(cpu_worker *w, uint32_t layer)
{
    const cpu_backend *b = w->b;
    const uint32_t ne = b->base.model->hp.n_expert, k = b->base.model->hp.n_expert_used;
    uint32_t best[RL_MAX_EXPERTS_USED];
    if (b->route_bias > 0) cpu_resident(w, layer + 1);
    for (uint32_t row = 0; row < w->p->n_rows; row++) {
        float *logits = b->s.next_logits + (size_t)row * ne;
        for (uint32_t e = 0; e < ne && b->route_bias > 0; e++)
            logits[e] += b->s.resident[e] ? b->route_bias : 0;
        cpu_largest(logits, ne, k, best);
        rl_experts_predict(b->experts, layer + 1, best, k);
    }
}

void cpu_open_set(cpu_worker *w, uint32_t layer)
{
    cpu_pass *p = w->p;
    if (w->b->experts) rl_experts_begin(w->b->experts, layer_in_cache(w, layer), w->b->s.active, p->n_active);
    p->wave_end = 0;
    cpu_open_wave(w);
    if (predicts(w, layer)) predict(w, layer);
}

void cpu_open_wave(cpu_worker *w)
{
    cpu_pass *p = w->p;
    p->wave_begin = p->wave_end;
    p->wave_end = w->b->experts ? rl_experts_wave(w->b->experts) : p->n_active;
    atomic_store_explicit(&w->b->expert_items[0], 0, memory_order_relaxed);
    atomic_store_explicit(&w->b->expert_items[1], 0, memory_order_relaxed);
}

void cpu_close_set(cpu_worker *w)
{
    if (w->b->experts) rl_experts_release(w->b->experts);
}

bool cpu_wave_next(cpu_worker *w, uint32_t pos, uint32_t *i)
{
    if (!w->b->experts) {
        *i = w->p->wave_begin + pos;
        return true;
    }
    if (w->id > 0 || !w->b->profile.on) return rl_experts_next(w->b->experts, pos, i);
    const uint64_t start = rl_now_ns();
    const bool ok = rl_experts_next(w->b->experts, pos, i);
    cpu_profile_apart(&w->b->profile, CPU_PHASE_EXPERT_IN, CPU_PHASE_EXPERT_WAIT, (double)(rl_now_ns() - start) * 1e-9);
    return ok;
}

bool cpu_wave_failed(cpu_worker *w)
{
    if (!w->b->experts || !rl_experts_failed(w->b->experts)) return false;
    if (w->id == 0) w->p->status = RL_ERR_IO;
    return true;
}

cpu_expert cpu_expert_at(const cpu_worker *w, const rl_mm_matrix *all, uint32_t part, uint32_t i)
{
    cpu_expert e = {*all, w->b->s.active[i]};
    if (w->b->experts) {
        e.matrix.data = rl_experts_at(w->b->experts, i, part);
        e.matrix.n = 1;
        e.e = 0;
    }
    return e;
}
