/* backend/cpu: the mixture of experts over rows.
 *
 * Router logits and the shared expert's inner part are products over all rows. Selection sorts the (expert, token) pairs by
 * expert. Then an item is (expert, block of inner rows): gate and up of all its tokens, SiLU; who finishes an expert's last
 * block prepares its pairs for the down product. In the last phase an item is a block of output columns, for which all experts
 * are walked in ascending order: the weighted sum is formed in place, in an order that depends on nothing but the selection,
 * and no (pair, column) result is ever stored. */
#include "backend/cpu/cpu.h"
#include <math.h>
#include <string.h>

/* From this many rows on selection is shared by members; below, one does it while the others finish the shared expert. */
#define SELECT_ROWS 32

void cpu_largest(const float *x, uint32_t n, uint32_t k, uint32_t *best)
{
    uint32_t count = 0;
    for (uint32_t e = 0; e < n; e++) {
        if (count == k && !(x[e] > x[best[k - 1]])) continue;
        uint32_t at = count < k ? count++ : k - 1;
        for (; at > 0 && x[e] > x[best[at - 1]]; at--)
            best[at] = best[at - 1];
        best[at] = e;
    }
}

/* The k largest logits and their renormalised probabilities. Biased: as if the logits of cached experts were higher, for the
 * choice alone. */
static void select_row(const cpu_backend *b, uint32_t row, bool biased)
{
    const rl_hparams *hp = &b->base.model->hp;
    const cpu_scratch *s = &b->s;
    const uint32_t ne = hp->n_expert, k = hp->n_expert_used;
    const float *logits = s->logits + (size_t)row * ne;
    float *probs = s->probs + (size_t)row * ne;
    uint32_t best[RL_MAX_EXPERTS_USED] = {0};
    for (uint32_t e = 0; e < ne && biased; e++)
        probs[e] = logits[e] + (s->resident[e] ? b->route_bias : 0);
    cpu_largest(biased ? probs : logits, ne, k, best);
    memcpy(probs, logits, ne * sizeof(float));
    const float all = b->vec->exp_sum(probs, ne);
    float sum = 0;
    for (uint32_t i = 0; i < k; i++)
        sum += probs[best[i]] / all;
    sum = sum > 0x1p-14f ? sum : 0x1p-14f;
    for (uint32_t i = 0; i < k; i++) {
        s->ids[(size_t)row * k + i] = (float)best[i];
        s->weights[(size_t)row * k + i] = probs[best[i]] / all / sum;
    }
}

/* An id as the tap may have left it. */
static uint32_t expert_of(const rl_hparams *hp, float id)
{
    return id >= 0 && id < (float)hp->n_expert ? (uint32_t)id : 0;
}

/* Pairs sorted by expert, then token (counting sort), and the list of experts in use. */
static void sort_pairs(cpu_pass *p)
{
    const cpu_backend *b = p->b;
    const rl_hparams *hp = &b->base.model->hp;
    const cpu_scratch *s = &b->s;
    const uint32_t k = hp->n_expert_used, pairs = p->n_rows * k;
    memset(s->cursor, 0, hp->n_expert * sizeof *s->cursor);
    for (uint32_t i = 0; i < pairs; i++)
        s->cursor[expert_of(hp, s->ids[i])]++;
    uint32_t at = 0, n = 0;
    for (uint32_t e = 0; e < hp->n_expert; e++) {
        const uint32_t count = s->cursor[e];
        s->cursor[e] = at;
        if (count == 0) continue;
        s->active[n] = e;
        s->active_begin[n] = at;
        atomic_store_explicit(&s->done[n], 0, memory_order_relaxed);
        n++;
        at += count;
    }
    s->active_begin[n] = at;
    p->n_active = n;
    for (uint32_t i = 0; i < pairs; i++) {
        const uint32_t to = s->cursor[expert_of(hp, s->ids[i])]++;
        s->pair_token[to] = i / k;
        s->pair_weight[to] = s->weights[i];
    }
}

static void shared_inner(cpu_worker *w, const cpu_layer *l, uint32_t begin, uint32_t end)
{
    const cpu_backend *b = w->b;
    const rl_hparams *hp = &b->base.model->hp;
    const cpu_scratch *s = &b->s;
    for (uint32_t row = begin; row < end; row++) {
        const size_t at = (size_t)row * hp->n_ff_shared;
        b->vec->silu_mul(s->sgate + at, s->sup + at, s->sgate + at, hp->n_ff_shared);
        const float logit = b->vec->dot(l->src->shared_router, s->norm + (size_t)row * hp->n_embd, hp->n_embd);
        s->sscale[row] = 1.0f / (1.0f + expf(-logit));
    }
    if (begin < end) rl_mm_act_prepare(b->mm, &w->p->a_shared, begin, end);
}

/* Router decision; ends with a barrier. */
static bool choose(cpu_worker *w, const cpu_layer *l, uint32_t layer)
{
    cpu_backend *b = w->b;
    cpu_pass *p = w->p;
    const uint32_t n = p->n_rows, k = b->base.model->hp.n_expert_used;
    uint32_t begin, end;
    cpu_my_rows(w, &begin, &end);
    const bool split = n >= SELECT_ROWS;
    if (split) {
        for (uint32_t row = begin; row < end; row++)
            select_row(b, row, false);
        cpu_sync(w, CPU_PHASE_SELECT);
    }
    if (w->id == 0) {
        const bool biased = !split && b->route_bias > 0;
        if (biased) cpu_resident(w, layer);
        for (uint32_t row = 0; row < n && !split; row++)
            select_row(b, row, biased);
        cpu_show_alone(w, RL_STAGE_ROUTER_IDS, layer, b->s.ids, k);
        cpu_show_alone(w, RL_STAGE_ROUTER_WEIGHTS, layer, b->s.weights, k);
        sort_pairs(p);
        if (p->status == RL_OK) cpu_open_set(w, layer);
    }
    if (!split && w->size > 1) {
        /* Member 0 selects, the others take the rows of the shared expert. */
        if (w->id > 0) {
            rl_pool_part(n, 1, w->id - 1, w->size - 1, &begin, &end);
            shared_inner(w, l, begin, end);
        }
    } else {
        shared_inner(w, l, begin, end);
    }
    cpu_sync(w, CPU_PHASE_SELECT);
    return p->status == RL_OK;
}

/* A product over the rows index[0 .. n) that may be forced through the single-row kernel. */
static void multiply_rows(cpu_worker *w, const rl_mm_matrix *m, uint32_t e, uint32_t begin, uint32_t end, const rl_mm_act *a,
                          const uint32_t *index, uint32_t n, float *y, size_t ldy)
{
    if (w->b->on.expert_mm) {
        rl_mm_mul(w->b->mm, m, e, begin, end, a, index, n, y, ldy, w->my->mm);
        return;
    }
    for (uint32_t i = 0; i < n; i++)
        rl_mm_mul(w->b->mm, m, e, begin, end, a, index + i, 1, y + i * ldy, ldy, w->my->mm);
}

/* Rows of an item: whole blocks, smaller when there would be too few items to go round. */
static uint32_t item_rows(uint32_t rows, uint32_t n_experts, uint32_t most, int members)
{
    uint32_t block = most;
    while (block > RL_MM_ROWS && (uint64_t)((rows + block - 1) / block) * n_experts < 8ull * (unsigned)members)
        block /= 2;
    return block;
}

/* Gate and up of the wave's experts, in order of arrival. */
static void experts_inner(cpu_worker *w, const cpu_layer *l)
{
    const cpu_backend *b = w->b;
    cpu_pass *p = w->p;
    const cpu_scratch *s = &b->s;
    const uint32_t f = b->base.model->hp.n_ff_expert;
    const uint32_t n_wave = p->wave_end - p->wave_begin;
    const uint32_t block = item_rows(f, n_wave, CPU_EXPERT_ROWS, w->size), blocks = (f + block - 1) / block;
    uint32_t item, stop, i;
    while (rl_pool_next(&w->b->expert_items[0], n_wave * blocks, 1, &item, &stop)) {
        if (!cpu_wave_next(w, item / blocks, &i)) return;
        const cpu_expert gate = cpu_expert_at(w, &l->gate_exps, 0, i), up = cpu_expert_at(w, &l->up_exps, 1, i);
        const uint32_t begin = item % blocks * block;
        const uint32_t end = f - begin < block ? f : begin + block, first = s->active_begin[i], last = s->active_begin[i + 1];
        for (uint32_t pair = first; pair < last; pair += CPU_SLAB) {
            const uint32_t n = last - pair < CPU_SLAB ? last - pair : CPU_SLAB;
            multiply_rows(w, &gate.matrix, gate.e, begin, end, &p->a_norm, s->pair_token + pair, n, w->my->gate - begin, block);
            multiply_rows(w, &up.matrix, up.e, begin, end, &p->a_norm, s->pair_token + pair, n, w->my->up - begin, block);
            for (uint32_t j = 0; j < n; j++)
                b->vec->silu_mul(w->my->gate + (size_t)j * block, w->my->up + (size_t)j * block,
                                 s->hidden + (size_t)(pair + j) * f + begin, end - begin);
        }
        if (atomic_fetch_add_explicit(&s->done[i], 1, memory_order_acq_rel) + 1 == blocks)
            rl_mm_act_prepare(b->mm, &p->a_hidden, first, last);
    }
    if (w->id == 0 && b->profile.on)
        cpu_profile_work(&w->b->profile, CPU_PHASE_EXPERT_IN, n_wave * (l->gate_exps.matrix_bytes + l->up_exps.matrix_bytes),
                         4ull * f * l->gate_exps.cols * (s->active_begin[p->wave_end] - s->active_begin[p->wave_begin]));
}

/* Adds the wave's part of the weighted sums; the last wave brings the shared expert. */
static void experts_outer(cpu_worker *w, const cpu_layer *l)
{
    const cpu_backend *b = w->b;
    cpu_pass *p = w->p;
    const cpu_scratch *s = &b->s;
    const uint32_t e_dim = b->base.model->hp.n_embd, n = p->n_rows;
    const uint32_t block = item_rows(e_dim, 1, CPU_EXPERT_ROWS, w->size), blocks = (e_dim + block - 1) / block;
    const bool last_wave = p->wave_end == p->n_active;
    uint32_t item, stop;
    while (rl_pool_next(&w->b->expert_items[1], blocks, 1, &item, &stop)) {
        const uint32_t begin = item * block, end = e_dim - begin < block ? e_dim : begin + block, width = end - begin;
        for (uint32_t row = 0; row < n && p->wave_begin == 0; row++)
            memset(s->experts + (size_t)row * e_dim + begin, 0, width * sizeof(float));
        for (uint32_t i = p->wave_begin; i < p->wave_end; i++) {
            const cpu_expert down = cpu_expert_at(w, &l->down_exps, 2, i);
            const uint32_t last = s->active_begin[i + 1];
            for (uint32_t pair = s->active_begin[i]; pair < last; pair += CPU_SLAB) {
                const uint32_t m = last - pair < CPU_SLAB ? last - pair : CPU_SLAB;
                multiply_rows(w, &down.matrix, down.e, begin, end, &p->a_hidden, s->iota + pair, m, w->my->gate - begin, block);
                for (uint32_t j = 0; j < m; j++)
                    b->vec->axpy(s->experts + (size_t)s->pair_token[pair + j] * e_dim + begin, s->pair_weight[pair + j],
                                 w->my->gate + (size_t)j * block, width);
            }
        }
        if (!last_wave) continue;
        multiply_rows(w, &l->down_shared, 0, begin, end, &p->a_shared, s->iota, n, s->shared, e_dim);
        for (uint32_t row = 0; row < n; row++)
            b->vec->scale(s->shared + (size_t)row * e_dim + begin, s->sscale[row], width);
    }
    if (w->id == 0 && b->profile.on)
        cpu_profile_work(&w->b->profile, CPU_PHASE_EXPERT_OUT,
                         (p->wave_end - p->wave_begin) * l->down_exps.matrix_bytes + last_wave * l->down_shared.matrix_bytes,
                         2ull * e_dim *
                             ((uint64_t)l->down_exps.cols * (s->active_begin[p->wave_end] - s->active_begin[p->wave_begin]) +
                              (uint64_t)l->down_shared.cols * n * last_wave));
}

bool cpu_moe(cpu_worker *w, const cpu_layer *l, uint32_t layer)
{
    cpu_pass *p = w->p;
    const cpu_scratch *s = &w->b->s;
    const rl_hparams *hp = &w->b->base.model->hp;
    const uint32_t n = p->n_rows;
    const rl_mm_matrix *next = cpu_next_router(w, layer);
    const cpu_product in[] = {{&l->router, &p->a_norm, NULL, n, s->logits, hp->n_expert},
                              {&l->gate_shared, &p->a_norm, NULL, n, s->sgate, hp->n_ff_shared},
                              {&l->up_shared, &p->a_norm, NULL, n, s->sup, hp->n_ff_shared},
                              {next, &p->a_norm, NULL, n, s->next_logits, hp->n_expert}};
    cpu_multiply(w, CPU_PHASE_ROUTER, in, next ? 4 : 3);
    cpu_sync(w, CPU_PHASE_ROUTER);
    if (!cpu_show(w, RL_STAGE_ROUTER_LOGITS, layer, s->logits, hp->n_expert)) return false;
    if (!choose(w, l, layer)) return false;
    for (;;) {
        const bool last = p->wave_end == p->n_active;
        experts_inner(w, l);
        cpu_sync(w, CPU_PHASE_EXPERT_IN);
        if (cpu_wave_failed(w)) return false;
        experts_outer(w, l);
        cpu_sync(w, CPU_PHASE_EXPERT_OUT);
        if (last) break;
        if (w->id == 0) cpu_open_wave(w);
        cpu_sync(w, CPU_PHASE_SELECT);
    }
    if (w->id == 0) cpu_close_set(w);
    return cpu_show(w, RL_STAGE_EXPERTS, layer, s->experts, hp->n_embd) &&
           cpu_show(w, RL_STAGE_SHARED, layer, s->shared, hp->n_embd);
}
