/* model/summary: what a model is and costs, as numbers: for `info`, for planning budgets, and for people. */
#ifndef RL_MODEL_SUMMARY_H
#define RL_MODEL_SUMMARY_H

#include "model/model.h"

typedef enum rl_group {
    RL_GROUP_EMBED,
    RL_GROUP_HEAD, /* empty when tied to the embedding */
    RL_GROUP_ATTENTION,
    RL_GROUP_DELTANET,
    RL_GROUP_ROUTER,
    RL_GROUP_EXPERTS, /* routed */
    RL_GROUP_SHARED,
    RL_GROUP_MTP,   /* every matrix of the MTP block */
    RL_GROUP_SMALL, /* norms, convolutions, decays */
    RL_GROUP_COUNT
} rl_group;

const char *rl_group_name(rl_group g);

typedef struct rl_group_size {
    uint64_t weights, bytes;
    uint64_t bytes_of_type[RL_TYPE_END]; /* matrices only */
} rl_group_size;

typedef struct rl_summary {
    char architecture[32], name[128]; /* name: general.name, escaped; empty when absent */
    uint32_t n_files;
    uint64_t file_bytes;
    rl_hparams hp;
    char layer_map[RL_MAX_LAYERS + 2]; /* one letter per block: D DeltaNet, A attention, M MTP */
    rl_group_size group[RL_GROUP_COUNT];
    uint64_t weights;         /* of the whole file */
    uint64_t weights_active;  /* of the trunk that one token uses: everything but the experts it is not sent to */
    double bits_per_weight;   /* tensor bytes over weights */
    uint32_t n_expert_blocks; /* blocks with experts: trunk layers and the MTP block */
    uint64_t expert_bytes_min, expert_bytes_max; /* one expert: gate, up and down, over the blocks */
    uint64_t experts_bytes;                      /* all experts of all blocks: the cache that would hold every one */
    uint64_t dense_bytes;                        /* tensors that are not routed experts */
    uint64_t token_expert_bytes;                 /* routed weights a trunk token reads */
    uint64_t state_bytes;                        /* convolution and recurrent state of a sequence in F32 */
    uint64_t kv_numbers_per_token, mtp_kv_numbers_per_token;
} rl_summary;

void rl_summary_make(const rl_model *m, rl_summary *out);

/* Bytes of one sequence with room for `context` positions, keys and values of `kv_number_bytes` (2 or 4) each. */
uint64_t rl_summary_sequence_bytes(const rl_summary *s, uint32_t context, uint32_t kv_number_bytes);

#endif
