/* server/sessions: which session continues which request. Used by the scheduler thread only. */
#ifndef RL_SERVER_SESSIONS_H
#define RL_SERVER_SESSIONS_H

#include "internal.h"

/* A session that holds the longest computed beginning of the job's prompt it can get, cut to it; j->n_reused = its length. The
 * prompt's ids may be changed to others of the same text (see sessions.c). NULL and an error when no session can be made. */
srv_slot *srv_slot_take(rl_server *s, srv_job *j, rl_error *err);
/* A copy of a session at a position where it stands or has a mark. */
srv_slot *srv_slot_copy(rl_server *s, const srv_slot *from, uint32_t position, rl_error *err);
void srv_slots_free(rl_server *s);

/* Checkpoints (checkpoint.c): states of prompts on disk. */
struct srv_checkpoints *srv_checkpoints_open(rl_server *s); /* reads the folder; NULL when there is none */
void srv_checkpoints_free(struct srv_checkpoints *c);
/* The longest saved state that the ids begin with: how many, and its number for load. */
uint32_t srv_checkpoint_find(const struct srv_checkpoints *c, const int32_t *ids, size_t n, size_t *which);
/* Into a session; a file that turns out to be damaged is removed with a warning. */
bool srv_checkpoint_load(struct srv_checkpoints *c, size_t which, rl_session *session);
/* Saves the marks of an idle session that are not on disk yet. */
void srv_checkpoint_save(struct srv_checkpoints *c, rl_session *session);
#endif
