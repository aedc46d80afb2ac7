/* experts/slots: the slots of a cache, their order of eviction and the reads that fill them. Private to experts.c.
 *
 * A slot is free, loading or ready. Pinned slots and loading ones are on no list; ready ones without a pin are on the list of
 * their class, warmest first, and are taken from its cold end. */
#ifndef RL_EXPERTS_SLOTS_H
#define RL_EXPERTS_SLOTS_H

#include "experts/io.h"
#include "experts/layout.h"

#define RL_NO_SLOT UINT32_MAX
#define RL_NO_KEY  UINT32_MAX

typedef enum rl_slot_state { RL_SLOT_FREE, RL_SLOT_LOADING, RL_SLOT_READY } rl_slot_state;

typedef struct rl_slot {
    uint8_t *data;
    uint32_t buffer, cls;
    uint32_t key; /* layer * n_experts + expert, or RL_NO_KEY */
    uint32_t prev, next;
    uint32_t set_index; /* place in the announced set */
    uint16_t pins;
    uint8_t state, parts_left;
    bool listed, cold, guessed;
    bool asked;    /* for the wave that waits for it: its failure is the wave's */
    uint64_t pass; /* the last that used it */
    rl_io_read reads[3];
} rl_slot;

typedef struct rl_slots {
    rl_expert_layout layout;
    rl_slot *slots;
    uint32_t n_slots;
    uint32_t *table; /* slot of a key, or RL_NO_SLOT */
    struct {
        uint32_t warm, cold, free; /* ends of the list; first free slot */
    } * lists;                     /* per class */
    rl_io_buffer *buffers;
    uint32_t n_buffers;
    rl_io *io;
    uint64_t pass;
    uint64_t used_bytes, evictions, loads, bytes_read;
} rl_slots;

/* layout is taken over, with its slots divided. */
rl_status rl_slots_open(rl_slots *s, const rl_model *m, const rl_io_options *io, rl_error *err);
void rl_slots_close(rl_slots *s);
/* Bytes besides slots and reading. */
uint64_t rl_slots_overhead(const rl_expert_layout *l);

void rl_slot_pin(rl_slots *s, uint32_t i);
void rl_slot_unpin(rl_slots *s, uint32_t i);
/* Takes a slot of the class for `key` and starts to read, pinned once. RL_NO_SLOT when all are in use; with `guess` also when
 * what would go belongs to this pass. */
uint32_t rl_slot_load(rl_slots *s, uint32_t key, bool urgent, bool guess);
/* Reads once more into a slot whose reads failed. */
void rl_slot_reload(rl_slots *s, uint32_t i, uint32_t key);
void rl_slot_hurry(rl_slots *s, uint32_t i);
/* A slot that is loading and not pinned goes free if no read of it has started. */
void rl_slot_give_up(rl_slots *s, uint32_t i);
/* Enters a finished read. True when it was the slot's last; *failed is the read that failed (this or an earlier one), NULL
 * when the slot is ready now. */
bool rl_slot_finish(rl_slots *s, rl_io_read *r, const rl_io_read **failed);

#endif
