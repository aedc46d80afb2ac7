/* experts/layout: offsets, size classes and the division of a budget. */
#include "experts/layout.h"
#include "base/mem.h"
#include "experts/io.h"

#include <stdlib.h>
#include <string.h>

static rl_status set_part(const rl_matrix *m, rl_expert_part *part, uint64_t *slot, rl_error *err)
{
    const uint64_t bytes = m->row_bytes * m->rows;
    if (m->copied || bytes == 0 || bytes > RL_IO_MAX_CHUNK / 4)
        return rl_fail(err, RL_ERR_UNSUPPORTED, "the experts of %s cannot be read piece by piece: %llu bytes each",
                       m->tensor->name, (unsigned long long)bytes);
    *part = (rl_expert_part){.tensor = m->tensor,
                             .offset = m->tensor->offset + (uint64_t)(m->data - m->tensor->data),
                             .stride = m->matrix_bytes,
                             .bytes = (uint32_t)bytes,
                             .at = (uint32_t)*slot};
    /* Up to a block less one byte may come before the first byte wanted; the read ends with a block. */
    *slot += (bytes + 2ull * (RL_IO_ALIGN - 1)) / RL_IO_ALIGN * RL_IO_ALIGN;
    return RL_OK;
}

static uint32_t class_of(rl_expert_layout *l, uint32_t slot_bytes)
{
    uint32_t c = 0;
    while (c < l->n_classes && l->classes[c].slot_bytes != slot_bytes)
        c++;
    if (c == l->n_classes) l->classes[l->n_classes++] = (rl_expert_class){.slot_bytes = slot_bytes};
    l->classes[c].n_experts += l->n_experts;
    return c;
}

rl_status rl_expert_layout_create(const rl_model *m, rl_expert_layout *out, rl_error *err)
{
    rl_expert_layout l = {.n_layers = m->hp.n_layer + m->hp.n_mtp, .n_experts = m->hp.n_expert, .n_used = m->hp.n_expert_used};
    l.layers = rl_calloc(l.n_layers, sizeof *l.layers);
    l.classes = rl_calloc(l.n_layers, sizeof *l.classes);
    rl_status st = l.layers && l.classes ? RL_OK : rl_fail(err, RL_ERR_MEMORY, "no memory for the layout of the experts");
    for (uint32_t i = 0; i < l.n_layers && st == RL_OK; i++) {
        const rl_layer *src = i < m->hp.n_layer ? &m->layers[i] : &m->mtp.block;
        uint64_t slot = 0;
        st = set_part(&src->gate_exps, &l.layers[i].part[0], &slot, err);
        if (st == RL_OK) st = set_part(&src->up_exps, &l.layers[i].part[1], &slot, err);
        if (st == RL_OK) st = set_part(&src->down_exps, &l.layers[i].part[2], &slot, err);
        if (st == RL_OK) l.layers[i].cls = class_of(&l, (uint32_t)slot);
    }
    if (st != RL_OK) {
        rl_expert_layout_free(&l);
        return st;
    }
    *out = l;
    return RL_OK;
}

void rl_expert_layout_free(rl_expert_layout *l)
{
    free(l->layers);
    free(l->classes);
    *l = (rl_expert_layout){0};
}

static uint32_t least_slots(const rl_expert_layout *l, const rl_expert_class *c)
{
    const uint32_t twice = 2 * l->n_used;
    return twice < c->n_experts ? twice : c->n_experts;
}

uint64_t rl_expert_layout_least(const rl_expert_layout *l, uint64_t extra)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < l->n_classes; i++)
        sum += least_slots(l, &l->classes[i]) * (l->classes[i].slot_bytes + extra);
    return sum;
}

uint64_t rl_expert_layout_all(const rl_expert_layout *l, uint64_t extra)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < l->n_classes; i++)
        sum += l->classes[i].n_experts * (l->classes[i].slot_bytes + extra);
    return sum;
}

void rl_expert_layout_divide(rl_expert_layout *l, uint64_t bytes, uint64_t extra)
{
    const double all = (double)rl_expert_layout_all(l, extra), rest = (double)(bytes - rl_expert_layout_least(l, extra));
    uint64_t left = bytes;
    for (uint32_t i = 0; i < l->n_classes; i++) {
        rl_expert_class *c = &l->classes[i];
        const uint32_t least = least_slots(l, c);
        const double share = rest / all * c->n_experts;
        c->n_slots = share < c->n_experts - least ? least + (uint32_t)share : c->n_experts;
        left -= (uint64_t)c->n_slots * (c->slot_bytes + extra);
    }
    /* What rounding left over. */
    for (uint32_t i = 0; i < l->n_classes; i++) {
        rl_expert_class *c = &l->classes[i];
        const uint64_t cost = c->slot_bytes + extra, room = left / cost, want = c->n_experts - c->n_slots;
        const uint64_t more = room < want ? room : want;
        c->n_slots += (uint32_t)more;
        left -= more * cost;
    }
}
