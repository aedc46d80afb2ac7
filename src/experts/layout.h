/* experts/layout: where the experts lie in the file, and how a budget becomes slots.
 *
 * A slot holds the three matrices of one expert as they come from the disk: whole blocks around the bytes wanted. Layers of
 * equal bytes form a size class. Every class gets the same share of its experts, for routing is as likely in one layer as in
 * another, and at least what a token uses of one layer, twice: while one layer computes the next may load. */
#ifndef RL_EXPERTS_LAYOUT_H
#define RL_EXPERTS_LAYOUT_H

#include "model/model.h"

typedef struct rl_expert_part {
    const rl_gguf_tensor *tensor;
    uint64_t offset, stride; /* of expert 0 in the file; from one expert to the next */
    uint32_t bytes;
    uint32_t at; /* in the slot */
} rl_expert_part;

typedef struct rl_expert_layer {
    rl_expert_part part[3]; /* gate, up, down */
    uint32_t cls;
} rl_expert_layer;

typedef struct rl_expert_class {
    uint32_t slot_bytes;
    uint32_t n_experts; /* in all layers of the class */
    uint32_t n_slots;
} rl_expert_class;

typedef struct rl_expert_layout {
    uint32_t n_layers, n_experts, n_used; /* MTP block included; per layer; per token and layer */
    rl_expert_layer *layers;
    rl_expert_class *classes;
    uint32_t n_classes;
} rl_expert_layout;

rl_status rl_expert_layout_create(const rl_model *m, rl_expert_layout *out, rl_error *err);
void rl_expert_layout_free(rl_expert_layout *l);

/* Bytes of slots at the least and for all experts; `extra` is what a slot costs besides. */
uint64_t rl_expert_layout_least(const rl_expert_layout *l, uint64_t extra);
uint64_t rl_expert_layout_all(const rl_expert_layout *l, uint64_t extra);
/* Sets n_slots so that all slots with their extra fit in `bytes`, which is at least the least. */
void rl_expert_layout_divide(rl_expert_layout *l, uint64_t bytes, uint64_t extra);

#endif
