/* backend/cpu: what every phase of a pass is made of: barriers, products split among members, and the tap. */
#include "backend/cpu/cpu.h"
#include <string.h>

/* Bytes of weights an item of a product should hold when few rows share them: a few microseconds of memory time, so that
 * members finish together. */
#define ITEM_BYTES 32768

void cpu_sync(cpu_worker *w, cpu_phase phase)
{
    rl_pool_barrier(w->b->pool);
    if (w->id == 0 && w->b->experts) rl_experts_poll(w->b->experts);
    if (w->id == 0 && w->b->profile.on) cpu_profile_end(&w->b->profile, phase);
}

atomic_uint *cpu_counter(cpu_worker *w)
{
    return &w->b->counters[w->next_counter++];
}

void cpu_show_alone(cpu_worker *w, rl_stage stage, uint32_t layer, float *data, size_t stride)
{
    cpu_pass *p = w->p;
    if (!p->tap || p->status != RL_OK) return;
    const uint32_t width = rl_stage_width(&w->b->base.model->hp, stage);
    if (stride == width) {
        p->status = p->tap(p->tap_ctx, stage, layer, 0, p->n_rows, width, data);
        return;
    }
    float *packed = w->b->s.tap;
    for (uint32_t r = 0; r < p->n_rows; r++)
        memcpy(packed + (size_t)r * width, data + r * stride, width * sizeof(float));
    p->status = p->tap(p->tap_ctx, stage, layer, 0, p->n_rows, width, packed);
    for (uint32_t r = 0; r < p->n_rows; r++)
        memcpy(data + r * stride, packed + (size_t)r * width, width * sizeof(float));
}

bool cpu_show(cpu_worker *w, rl_stage stage, uint32_t layer, float *data, size_t stride)
{
    if (!w->p->tap) return true;
    rl_pool_barrier(w->b->pool);
    if (w->id == 0) cpu_show_alone(w, stage, layer, data, stride);
    rl_pool_barrier(w->b->pool);
    const bool go_on = w->p->status == RL_OK;
    rl_pool_barrier(w->b->pool); /* before member 0 can write the status of the next stage */
    return go_on;
}

static uint32_t round_rows(uint64_t rows)
{
    return (uint32_t)((rows + RL_MM_ROWS - 1) / RL_MM_ROWS * RL_MM_ROWS);
}

/* Rows of an item: by bytes when the weights are the work, by share when many rows reuse each weight (then longer items let the
 * kernel reuse activations). */
static uint32_t item_rows(const cpu_worker *w, const cpu_product *c, uint64_t total_rows)
{
    if (c->n < RL_MM_ROWS) {
        const uint64_t rows = (uint64_t)ITEM_BYTES * c->w->rows / c->w->matrix_bytes;
        return round_rows(rows < RL_MM_ROWS ? RL_MM_ROWS : rows > 256 ? 256 : rows);
    }
    const uint64_t share = total_rows / ((uint64_t)w->size * 8);
    return round_rows(share < 64 ? 64 : share > 1024 ? 1024 : share);
}

void cpu_multiply(cpu_worker *w, cpu_phase phase, const cpu_product *products, int n)
{
    uint64_t total_rows = 0;
    for (int i = 0; i < n; i++)
        total_rows += products[i].w->rows;
    uint32_t grain[8], first[9] = {0};
    for (int i = 0; i < n; i++) {
        const cpu_product *c = &products[i];
        grain[i] = item_rows(w, c, total_rows);
        first[i + 1] = first[i] + (c->n ? (c->w->rows + grain[i] - 1) / grain[i] : 0);
        if (w->id == 0 && w->b->profile.on)
            cpu_profile_work(&w->b->profile, phase, c->w->matrix_bytes, 2ull * c->w->rows * c->w->cols * c->n);
    }
    atomic_uint *counter = cpu_counter(w);
    uint32_t item, end;
    while (rl_pool_next(counter, first[n], 1, &item, &end)) {
        int i = 0;
        while (item >= first[i + 1])
            i++;
        const cpu_product *c = &products[i];
        if (w->id == 0 && w->b->experts) rl_experts_poll(w->b->experts);
        const uint32_t begin = (item - first[i]) * grain[i];
        const uint32_t stop = c->w->rows - begin < grain[i] ? c->w->rows : begin + grain[i];
        if (c->n == 1 || w->b->on.gemm_tg) {
            rl_mm_mul(w->b->mm, c->w, 0, begin, stop, c->a, c->index, c->n, c->y, c->ldy, w->my->mm);
        } else {
            const uint32_t *index = c->index ? c->index : w->b->s.iota;
            for (uint32_t r = 0; r < c->n; r++)
                rl_mm_mul(w->b->mm, c->w, 0, begin, stop, c->a, index + r, 1, c->y + r * c->ldy, c->ldy, w->my->mm);
        }
    }
}
