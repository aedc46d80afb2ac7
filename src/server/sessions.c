/* server/sessions: the sessions a server holds, and reuse of what they computed.
 *
 * A state cannot be cut back, only found at marks; so a request takes the idle session that saves it the most work. When that
 * session belongs to another conversation (much of it would be lost) or is busy, its beginning is copied instead. */
#include "sessions.h"

#include <stdlib.h>

#define COPY_WORTH 32 /* reused ids that are worth the copy of a session */

static srv_slot *new_slot(rl_server *s)
{
    for (uint32_t i = 0; i < s->n_slots; i++)
        if (!s->slots[i].session && !s->slots[i].choice) return &s->slots[i];
    return NULL;
}

static srv_slot *oldest_idle(rl_server *s, const srv_slot *except)
{
    srv_slot *best = NULL;
    for (uint32_t i = 0; i < s->n_slots; i++) {
        srv_slot *slot = &s->slots[i];
        if (!slot->session || slot->choice || slot == except) continue;
        if (!best || slot->used < best->used) best = slot;
    }
    return best;
}

/* A slot with a session that may be overwritten, or without one when there is room for another. */
static srv_slot *spare(rl_server *s, const srv_slot *except)
{
    srv_slot *slot = new_slot(s);
    return slot ? slot : oldest_idle(s, except);
}

static srv_slot *empty_slot(rl_server *s, rl_error *err)
{
    srv_slot *slot = spare(s, NULL);
    if (slot && !slot->session && rl_session_create(s->engine, 0, &slot->session, err) != RL_OK) {
        slot = oldest_idle(s, NULL); /* no memory for one more: an older one goes */
        if (!slot) return NULL;
    }
    if (slot) rl_session_reset(slot->session);
    return slot;
}

srv_slot *srv_slot_copy(rl_server *s, const srv_slot *from, uint32_t position, rl_error *err)
{
    srv_slot *slot = spare(s, from);
    if (!slot) return NULL;
    rl_session_free(slot->session);
    slot->session = NULL;
    if (rl_session_fork_at(from->session, position, 0, &slot->session, err) != RL_OK) return NULL;
    return slot;
}

srv_slot *srv_slot_take(rl_server *s, const int32_t *ids, size_t n, uint32_t *reused, rl_error *err)
{
    srv_slot *best = NULL;
    uint32_t most = 0;
    for (uint32_t i = 0; i < s->n_slots; i++) {
        srv_slot *slot = &s->slots[i];
        if (!slot->session) continue;
        uint32_t r = rl_session_reusable_prefix(slot->session, ids, n);
        /* Of equals, an idle one, and of these the one used last. */
        bool better = r > most || (r == most && best && best->choice && !slot->choice) ||
                      (r == most && best && !slot->choice && !best->choice && slot->used > best->used);
        if (r > 0 && better) {
            best = slot;
            most = r;
        }
    }
    *reused = 0;
    if (!best) return empty_slot(s, err);
    uint32_t common = rl_session_common_prefix(best->session, ids, n), held = rl_session_position(best->session);
    bool continues = !best->choice && (common >= held / 2 || most < COPY_WORTH);
    if (!continues) {
        srv_slot *copy = most >= COPY_WORTH ? srv_slot_copy(s, best, most, NULL) : NULL;
        if (copy) {
            *reused = most;
            return copy;
        }
        if (best->choice) return empty_slot(s, err);
    }
    if (rl_session_truncate(best->session, most, err) != RL_OK) return empty_slot(s, err);
    *reused = most;
    return best;
}

void srv_slots_free(rl_server *s)
{
    for (uint32_t i = 0; s->slots && i < s->n_slots; i++)
        rl_session_free(s->slots[i].session);
    free(s->slots);
    s->slots = NULL;
}
