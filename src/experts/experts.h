/* experts: the routed experts of a model as a cache of the file, within a byte budget.
 *
 * A layer's experts in use are announced as a *set*; their weights are then handed out one by one as they arrive, hits first,
 * so that computing starts while the rest is being read. Large sets (prefill) are visited in *waves* of what can be held at
 * once, with the following experts read ahead.
 *
 * Threads: one member of the compute team is the leader. Only the leader calls begin, wave, release, predict and end, at points
 * where no other member is inside a wave; next and at may be called by every member between wave and release, poll by anyone
 * at any time. There is no thread of our own besides the readers of io.h: a member that must wait collects what has arrived.
 *
 * Layer n_layer of the model stands for its MTP block. */
#ifndef RL_EXPERTS_H
#define RL_EXPERTS_H

#include "experts/io.h"
#include "model/model.h"

typedef struct rl_experts_options {
    bool full;       /* every expert in a slot, all of them read by open; budget is ignored */
    uint64_t budget; /* bytes for slots, tables and reading: never exceeded */
    rl_io_options io;
    bool (*progress)(void *ctx, double fraction); /* of loading when full; may be NULL, false cancels */
    void *progress_ctx;
} rl_experts_options;

typedef struct rl_experts rl_experts;

/* RL_ERR_MEMORY when the budget cannot hold the experts of one token of every layer class, with the least that can. The model
 * must outlive the result. */
rl_status rl_experts_open(const rl_model *m, const rl_experts_options *opt, rl_experts **out, rl_error *err);
void rl_experts_close(rl_experts *x);

/* Bytes a cache needs: the least, and for all experts. */
rl_status rl_experts_bounds(const rl_model *m, uint64_t *least, uint64_t *all, rl_error *err);

/* ---- Use, in this order ----------------------------------------------------------------------------------------------------
 */

/* A new pass over the layers: its tokens' experts are safe from wrong predictions until the next pass. */
void rl_experts_begin_pass(rl_experts *x);

/* The set of a layer: ids in rising order without repetition, n <= the number of experts, valid until the set is done. */
void rl_experts_begin(rl_experts *x, uint32_t layer, const uint32_t *ids, uint32_t n);
/* Opens the next wave: experts [last end, result) of the set. Returns n after the last one, then the set is done. What was
 * not released is released. */
uint32_t rl_experts_wave(rl_experts *x);
/* Position `pos` of the wave in order of arrival (0, 1, ...): *index is its place in ids. Waits. False when an expert of the
 * wave could not be read; then every later call in this set fails too. */
bool rl_experts_next(rl_experts *x, uint32_t pos, uint32_t *index);
/* Weights of ids[index], which has arrived, in the file's layout: part 0 gate, 1 up, 2 down. Valid until release. */
const uint8_t *rl_experts_at(const rl_experts *x, uint32_t index, uint32_t part);
void rl_experts_release(rl_experts *x);

/* Experts that `layer` will probably want, most probable first: read when a slot is free for guesses. Call after the wave of
 * the layer before. */
void rl_experts_predict(rl_experts *x, uint32_t layer, const uint32_t *ids, uint32_t n);

/* flags[e] = expert e of the layer is in the cache or on its way. */
void rl_experts_resident(rl_experts *x, uint32_t layer, bool *flags);

/* Ends a pass, complete or not: nothing is pinned afterwards. */
void rl_experts_end(rl_experts *x);

/* Collects finished reads and starts more, without waiting. Cheap when there is nothing to do. */
void rl_experts_poll(rl_experts *x);

/* True after a wave in which next returned false. */
bool rl_experts_failed(const rl_experts *x);
/* Why; returns the status. */
rl_status rl_experts_error(rl_experts *x, rl_error *err);

/* ---- Accounting ------------------------------------------------------------------------------------------------------------
 */

typedef rl_cache_stats rl_experts_stats;
void rl_experts_get_stats(rl_experts *x, rl_experts_stats *out);
bool rl_experts_can_predict(const rl_experts *x); /* guesses may be useful: bounded, and not switched off */

#endif
