/* base/pool: a fixed team of threads that runs one function on all members and meets at barriers.
 *
 * The caller is member 0 and works too. Between runs members spin for a few tens of microseconds, then sleep, so that
 * back-to-back runs (one per token) cost microseconds and an idle program costs nothing. Spinning is shortened when there are
 * more members than cores. Results must not depend on the number of members: split work by output, never by reduction. */
#ifndef RL_BASE_POOL_H
#define RL_BASE_POOL_H

#include "base/error.h"
#include <stdatomic.h>

typedef struct rl_pool rl_pool;

/* n >= 1 members; 0 means one per physical core this process may use. At most RL_POOL_MAX. */
#define RL_POOL_MAX 512
rl_status rl_pool_create(int n, rl_pool **out, rl_error *err);
void rl_pool_free(rl_pool *pool);
int rl_pool_size(const rl_pool *pool);

/* Runs fn(ctx, member) on every member, 0 <= member < size, and returns when all have returned. One run at a time; not
 * reentrant. */
typedef void (*rl_pool_fn)(void *ctx, int member);
void rl_pool_run(rl_pool *pool, rl_pool_fn fn, void *ctx);

/* Inside a run: waits until every member has arrived. What members wrote before is visible after. All members must call it
 * equally often. */
void rl_pool_barrier(rl_pool *pool);

/* Members take ranges [*begin, *end) of at most `grain` from a shared counter until it reaches n. Reset the counter (to 0) by
 * one member before a barrier that precedes its use. Returns false when nothing is left. grain >= 1, and
 * n + RL_POOL_MAX * grain must fit in 32 bits: members that come late push the counter beyond n. */
bool rl_pool_next(atomic_uint *counter, uint32_t n, uint32_t grain, uint32_t *begin, uint32_t *end);

/* Static split of [0, n) into contiguous parts that are multiples of `unit` (but the last): the part of `member` of `size`. */
void rl_pool_part(uint32_t n, uint32_t unit, int member, int size, uint32_t *begin, uint32_t *end);

#endif
