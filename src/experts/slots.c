/* experts/slots: lists, table and reads of the slots. */
#include "experts/slots.h"
#include "base/mem.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* How far from the cold end a guess looks for a slot that is not of this pass. */
#define GUESS_LOOK 64

/* ---- Memory ----------------------------------------------------------------------------------------------------------------
 */

uint64_t rl_slots_overhead(const rl_expert_layout *l)
{
    const uint64_t keys = (uint64_t)l->n_layers * l->n_experts;
    return keys * sizeof(uint32_t) + l->n_layers * sizeof(rl_expert_layer) + l->n_classes * 64ull + 4096;
}

/* Slots are laid out one after another in buffers of at most RL_IO_MAX_CHUNK; none straddles two. The first round counts. */
static uint32_t place_slots(rl_slots *s, bool assign)
{
    uint32_t buffer = 0, slot = 0;
    size_t used = 0;
    for (uint32_t c = 0; c < s->layout.n_classes; c++) {
        const uint32_t bytes = s->layout.classes[c].slot_bytes;
        for (uint32_t i = 0; i < s->layout.classes[c].n_slots; i++, slot++) {
            if (used + bytes > RL_IO_MAX_CHUNK) {
                buffer++;
                used = 0;
            }
            if (assign) {
                s->slots[slot].data = s->buffers[buffer].data + used;
                s->slots[slot].buffer = buffer;
                s->slots[slot].cls = c;
            } else if (s->buffers) {
                s->buffers[buffer].bytes = used + bytes;
            }
            used += bytes;
        }
    }
    return buffer + 1;
}

static rl_status allocate(rl_slots *s, rl_error *err)
{
    const size_t keys = (size_t)s->layout.n_layers * s->layout.n_experts;
    for (uint32_t c = 0; c < s->layout.n_classes; c++)
        s->n_slots += s->layout.classes[c].n_slots;
    s->slots = rl_calloc(s->n_slots, sizeof *s->slots);
    s->table = rl_alloc(keys, sizeof *s->table);
    s->lists = rl_calloc(s->layout.n_classes, sizeof *s->lists);
    s->n_buffers = place_slots(s, false);
    s->buffers = rl_calloc(s->n_buffers, sizeof *s->buffers);
    if (!s->slots || !s->table || !s->lists || !s->buffers)
        return rl_fail(err, RL_ERR_MEMORY, "no memory for the tables of the expert cache");
    memset(s->table, 0xff, keys * sizeof *s->table);
    place_slots(s, false);
    for (uint32_t i = 0; i < s->n_buffers; i++) {
        void *p = mmap(NULL, s->buffers[i].bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED)
            return rl_fail(err, RL_ERR_MEMORY, "no memory for %zu bytes of the expert cache", s->buffers[i].bytes);
        s->buffers[i].data = p;
#if defined(MADV_HUGEPAGE)
        madvise(p, s->buffers[i].bytes, MADV_HUGEPAGE);
#endif
    }
    place_slots(s, true);
    return RL_OK;
}

rl_status rl_slots_open(rl_slots *s, const rl_model *m, const rl_io_options *io, rl_error *err)
{
    rl_status st = allocate(s, err);
    if (st == RL_OK) st = rl_io_open(m->gguf, io, s->buffers, s->n_buffers, &s->io, err);
    if (st != RL_OK) return st;
    for (uint32_t c = 0; c < s->layout.n_classes; c++)
        s->lists[c].warm = s->lists[c].cold = s->lists[c].free = RL_NO_SLOT;
    for (uint32_t i = s->n_slots; i-- > 0;) {
        rl_slot *slot = &s->slots[i];
        slot->key = RL_NO_KEY;
        slot->set_index = UINT32_MAX;
        slot->next = s->lists[slot->cls].free;
        s->lists[slot->cls].free = i;
    }
    return RL_OK;
}

void rl_slots_close(rl_slots *s)
{
    rl_io_close(s->io);
    for (uint32_t i = 0; i < s->n_buffers && s->buffers; i++)
        if (s->buffers[i].data) munmap(s->buffers[i].data, s->buffers[i].bytes);
    free(s->buffers);
    free(s->slots);
    free(s->table);
    free(s->lists);
    rl_expert_layout_free(&s->layout);
}

/* ---- Lists -----------------------------------------------------------------------------------------------------------------
 */

static void list_add(rl_slots *s, uint32_t i)
{
    rl_slot *slot = &s->slots[i];
    uint32_t *warm = &s->lists[slot->cls].warm, *cold = &s->lists[slot->cls].cold;
    slot->listed = true;
    slot->prev = slot->cold ? *cold : RL_NO_SLOT;
    slot->next = slot->cold ? RL_NO_SLOT : *warm;
    *(slot->prev != RL_NO_SLOT ? &s->slots[slot->prev].next : warm) = i;
    *(slot->next != RL_NO_SLOT ? &s->slots[slot->next].prev : cold) = i;
}

static void list_remove(rl_slots *s, uint32_t i)
{
    rl_slot *slot = &s->slots[i];
    *(slot->prev != RL_NO_SLOT ? &s->slots[slot->prev].next : &s->lists[slot->cls].warm) = slot->next;
    *(slot->next != RL_NO_SLOT ? &s->slots[slot->next].prev : &s->lists[slot->cls].cold) = slot->prev;
    slot->listed = false;
}

static void make_free(rl_slots *s, uint32_t i)
{
    rl_slot *slot = &s->slots[i];
    slot->state = RL_SLOT_FREE;
    slot->next = s->lists[slot->cls].free;
    s->lists[slot->cls].free = i;
}

/* What the slot held is forgotten; the slot itself stays where it is. */
static void forget(rl_slots *s, rl_slot *slot)
{
    s->table[slot->key] = RL_NO_SLOT;
    slot->key = RL_NO_KEY;
    s->used_bytes -= s->layout.classes[slot->cls].slot_bytes;
}

void rl_slot_pin(rl_slots *s, uint32_t i)
{
    if (s->slots[i].listed) list_remove(s, i);
    s->slots[i].pins++;
}

void rl_slot_unpin(rl_slots *s, uint32_t i)
{
    rl_slot *slot = &s->slots[i];
    if (--slot->pins > 0) return;
    if (slot->state == RL_SLOT_READY)
        list_add(s, i);
    else if (slot->state == RL_SLOT_FREE)
        make_free(s, i);
}

static uint32_t take(rl_slots *s, uint32_t cls, bool guess)
{
    uint32_t i = s->lists[cls].free;
    if (i != RL_NO_SLOT) {
        s->lists[cls].free = s->slots[i].next;
        return i;
    }
    i = s->lists[cls].cold;
    for (uint32_t look = 0; guess && i != RL_NO_SLOT && s->slots[i].pass == s->pass; i = s->slots[i].prev)
        if (++look == GUESS_LOOK) return RL_NO_SLOT;
    if (i == RL_NO_SLOT) return i;
    list_remove(s, i);
    forget(s, &s->slots[i]);
    s->evictions++;
    return i;
}

/* ---- Reads -----------------------------------------------------------------------------------------------------------------
 */

static void read_parts(rl_slots *s, uint32_t i, uint32_t key, bool urgent)
{
    rl_slot *slot = &s->slots[i];
    const uint32_t layer = key / s->layout.n_experts, expert = key % s->layout.n_experts;
    slot->key = key;
    slot->state = RL_SLOT_LOADING;
    slot->parts_left = 3;
    s->table[key] = i;
    s->used_bytes += s->layout.classes[slot->cls].slot_bytes;
    for (uint32_t p = 0; p < 3; p++) {
        const rl_expert_part *part = &s->layout.layers[layer].part[p];
        const uint64_t begin = part->offset + expert * part->stride, lead = begin % RL_IO_ALIGN;
        const uint64_t need = lead + part->bytes;
        slot->reads[p] = (rl_io_read){.dst = slot->data + part->at,
                                      .offset = begin - lead,
                                      .file = part->tensor->file,
                                      .span = (uint32_t)((need + RL_IO_ALIGN - 1) / RL_IO_ALIGN * RL_IO_ALIGN),
                                      .need = (uint32_t)need,
                                      .buffer = slot->buffer,
                                      .owner = slot};
        rl_io_queue(s->io, &slot->reads[p], urgent);
    }
}

uint32_t rl_slot_load(rl_slots *s, uint32_t key, bool urgent, bool guess)
{
    const uint32_t i = take(s, s->layout.layers[key / s->layout.n_experts].cls, guess);
    if (i == RL_NO_SLOT) return i;
    s->slots[i].pins = 1;
    read_parts(s, i, key, urgent);
    return i;
}

void rl_slot_reload(rl_slots *s, uint32_t i, uint32_t key)
{
    read_parts(s, i, key, true);
}

void rl_slot_hurry(rl_slots *s, uint32_t i)
{
    for (uint32_t p = 0; p < 3; p++)
        rl_io_hurry(s->io, &s->slots[i].reads[p]);
}

void rl_slot_give_up(rl_slots *s, uint32_t i)
{
    rl_slot *slot = &s->slots[i];
    if (slot->state != RL_SLOT_LOADING || slot->pins > 0) return;
    for (uint32_t p = 0; p < 3; p++)
        if (slot->reads[p].queue == 0) return;
    for (uint32_t p = 0; p < 3; p++)
        rl_io_cancel(s->io, &slot->reads[p]);
    forget(s, slot);
    make_free(s, i);
}

bool rl_slot_finish(rl_slots *s, rl_io_read *r, const rl_io_read **failed)
{
    rl_slot *slot = r->owner;
    *failed = NULL;
    s->bytes_read += r->done;
    if (--slot->parts_left > 0) return false;
    for (uint32_t p = 0; p < 3 && !*failed; p++)
        if (slot->reads[p].error != 0) *failed = &slot->reads[p];
    const uint32_t i = (uint32_t)(slot - s->slots);
    if (*failed) {
        forget(s, slot);
        slot->state = RL_SLOT_FREE;
        if (slot->pins == 0) make_free(s, i);
        return true;
    }
    s->loads++;
    slot->state = RL_SLOT_READY;
    if (slot->pins == 0) list_add(s, i);
    return true;
}
