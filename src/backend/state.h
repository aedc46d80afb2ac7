/* backend/state: the bytes of an exported sequence, the same for every backend.
 *
 * A header of 64 bytes (magic and fourteen 32-bit numbers), then per trunk layer in order
 *   DeltaNet : W-1 raw convolution inputs of cd numbers, oldest first; then Hv states of S x S, [value index][key index]
 *   attention: position keys of K*D numbers, normed and rotated; then as many values
 * and, when the model has an MTP block, its mtp_position keys and values. Numbers are little-endian floats of the two kinds
 * that the header names: each backend writes what it holds and reads any of them, rounding to its own. */
#ifndef RL_BACKEND_STATE_H
#define RL_BACKEND_STATE_H

#include "model/model.h"

typedef enum rl_elem { RL_ELEM_F16 = 1, RL_ELEM_F32 = 2, RL_ELEM_F64 = 3 } rl_elem;

typedef rl_status (*rl_put_fn)(void *ctx, const void *data, size_t n, rl_error *err);
typedef rl_status (*rl_get_fn)(void *ctx, void *data, size_t n, rl_error *err);

typedef struct rl_state_info {
    uint32_t position, mtp_position;
    rl_elem state, kv; /* of the recurrent part (convolution and states), of keys and values */
} rl_state_info;

size_t rl_elem_bytes(rl_elem elem);

rl_status rl_state_put_header(const rl_hparams *hp, const rl_state_info *info, rl_put_fn put, void *ctx, rl_error *err);
/* Refuses another shape than the model's and more positions than `capacity`, with the numbers. */
rl_status rl_state_get_header(const rl_hparams *hp, uint32_t capacity, rl_state_info *info, rl_get_fn get, void *ctx,
                              rl_error *err);

rl_status rl_state_put(rl_elem elem, const void *src, size_t n, rl_put_fn put, void *ctx, rl_error *err);
/* n numbers stored as `from`, into dst as `to`. */
rl_status rl_state_get(rl_elem from, rl_elem to, void *dst, size_t n, rl_get_fn get, void *ctx, rl_error *err);

#endif
