/* server/sessions: which session continues which request. Used by the scheduler thread only. */
#ifndef RL_SERVER_SESSIONS_H
#define RL_SERVER_SESSIONS_H

#include "internal.h"

/* A session that holds the longest computed beginning of the ids it can get, cut to it; *reused = its length. NULL and an error
 * when no session can be made. */
srv_slot *srv_slot_take(rl_server *s, const int32_t *ids, size_t n, uint32_t *reused, rl_error *err);
/* A copy of a session at a position where it stands or has a mark. */
srv_slot *srv_slot_copy(rl_server *s, const srv_slot *from, uint32_t position, rl_error *err);
void srv_slots_free(rl_server *s);

#endif
