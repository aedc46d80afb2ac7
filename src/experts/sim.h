/* experts/sim: replacement policies replayed over recorded or made-up routing, so that the choice of one comes from data. The
 * interface is public: rl_trace_* and rl_cache_sim in redlite.h. */
#ifndef RL_EXPERTS_SIM_H
#define RL_EXPERTS_SIM_H

#include "base/error.h"

/* Which experts a model used: for every token and layer the ids, in the order of the router. */
struct rl_trace {
    uint32_t n_layer, n_expert, n_used;
    uint64_t n_tokens, capacity;
    uint16_t *ids; /* [token][layer][used] */
};

/* Room for one more token's n_layer * n_used ids, zeroed and counted; NULL when there is no memory. */
uint16_t *rl_trace_add(rl_trace *t);

#endif
