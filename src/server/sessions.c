/* server/sessions: the sessions a server holds, and reuse of what they computed.
 *
 * A state cannot be cut back, only found at marks; so a request takes the idle session that saves it the most work. When that
 * session belongs to another conversation (much of it would be lost) or is busy, its beginning is copied instead. */
#include "sessions.h"

#include <stdlib.h>
#include <string.h>

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

/* ---- The same text in other tokens --------------------------------------------------------------------------------------- */

/* A generated answer need not have the ids that its text is tokenised to when it comes back. Where both lists stand between
 * tokens after the same bytes (control tokens only match themselves), one may replace the other. Returns the last such place
 * behind `from`, where both are equal so far. */
static void align(const rl_tokenizer *t, const int32_t *a, size_t na, const int32_t *b, size_t nb, size_t from, size_t *ia,
                  size_t *ib)
{
    size_t i = from, j = from, oa = 0, ob = 0;
    *ia = *ib = from;
    while (i < na && j < nb) {
        if (oa == 0 && ob == 0 && a[i] == b[j]) {
            *ia = ++i;
            *ib = ++j;
            continue;
        }
        rl_slice x = rl_token_bytes(t, a[i], false), y = rl_token_bytes(t, b[j], false);
        if (x.size == 0 || y.size == 0) return;
        size_t n = x.size - oa < y.size - ob ? x.size - oa : y.size - ob;
        if (memcmp(x.data + oa, y.data + ob, n) != 0) return;
        oa += n;
        ob += n;
        if (oa == x.size) i++, oa = 0;
        if (ob == y.size) j++, ob = 0;
        if (oa == 0 && ob == 0) {
            *ia = i;
            *ib = j;
        }
    }
}

/* Makes the prompt begin with the first ia ids of the session instead of its own first ib. */
static bool adopt(srv_job *j, const rl_session *session, size_t ia, size_t ib)
{
    size_t n = ia + j->n_prompt - ib;
    int32_t *ids = n < rl_session_capacity(session) ? malloc((n + 1) * sizeof *ids) : NULL;
    if (!ids) return false;
    memcpy(ids, rl_session_tokens(session), ia * sizeof *ids);
    memcpy(ids + ia, j->prompt + ib, (j->n_prompt - ib) * sizeof *ids);
    uint32_t kept = 0;
    for (uint32_t i = 0; i < j->n_marks; i++)
        if (j->marks[i] >= ib) j->marks[kept++] = (uint32_t)(j->marks[i] + ia - ib);
    j->n_marks = kept;
    free(j->prompt);
    j->prompt = ids;
    j->n_prompt = n;
    return true;
}

static void adopt_best(rl_server *s, srv_job *j)
{
    enum { WORTH = 16 };
    uint32_t most = 0;
    for (uint32_t i = 0; i < s->n_slots; i++) {
        uint32_t r = s->slots[i].session ? rl_session_reusable_prefix(s->slots[i].session, j->prompt, j->n_prompt) : 0;
        if (r > most) most = r;
    }
    for (uint32_t i = 0; i < s->n_slots; i++) {
        const rl_session *session = s->slots[i].session;
        if (!session || s->slots[i].choice || rl_session_computed(session) <= most + WORTH) continue;
        uint32_t common = rl_session_common_prefix(session, j->prompt, j->n_prompt), computed = rl_session_computed(session);
        size_t ia, ib;
        if (common >= computed || common < computed / 4) continue;
        align(s->tokenizer, rl_session_tokens(session), rl_session_position(session), j->prompt, j->n_prompt, common, &ia, &ib);
        if (ia >= computed && adopt(j, session, ia, ib)) return;
    }
}

/* ---- Choosing ------------------------------------------------------------------------------------------------------------ */

static srv_slot *best_slot(rl_server *s, const srv_job *j, uint32_t *most)
{
    srv_slot *best = NULL;
    *most = 0;
    for (uint32_t i = 0; i < s->n_slots; i++) {
        srv_slot *slot = &s->slots[i];
        if (!slot->session) continue;
        uint32_t r = rl_session_reusable_prefix(slot->session, j->prompt, j->n_prompt);
        /* Of equals, an idle one, and of these the one used last. */
        bool better = r > *most || (r == *most && best && best->choice && !slot->choice) ||
                      (r == *most && best && !slot->choice && !best->choice && slot->used > best->used);
        if (r > 0 && better) {
            best = slot;
            *most = r;
        }
    }
    return best;
}

static srv_slot *from_disk(rl_server *s, srv_job *j, uint32_t most, rl_error *err)
{
    size_t which;
    uint32_t n = srv_checkpoint_find(s->checkpoints, j->prompt, j->n_prompt, &which);
    if (n < most + COPY_WORTH) return NULL;
    srv_slot *slot = empty_slot(s, err);
    if (!slot || !srv_checkpoint_load(s->checkpoints, which, slot->session)) return NULL;
    rl_session_mark(slot->session, NULL);
    j->n_reused = n;
    return slot;
}

srv_slot *srv_slot_take(rl_server *s, srv_job *j, rl_error *err)
{
    uint32_t most = 0;
    adopt_best(s, j);
    srv_slot *best = best_slot(s, j, &most), *other = from_disk(s, j, most, err);
    j->n_reused = other ? j->n_reused : 0;
    if (other) return other;
    if (!best) return empty_slot(s, err);
    uint32_t common = rl_session_common_prefix(best->session, j->prompt, j->n_prompt),
             held = rl_session_position(best->session);
    bool continues = !best->choice && (common >= held / 2 || most < COPY_WORTH);
    if (!continues) {
        srv_slot *copy = most >= COPY_WORTH ? srv_slot_copy(s, best, most, NULL) : NULL;
        if (copy) {
            rl_session_mark(copy->session, NULL);
            j->n_reused = most;
            return copy;
        }
        if (best->choice) return empty_slot(s, err);
    }
    if (rl_session_truncate(best->session, most, err) != RL_OK) return empty_slot(s, err);
    j->n_reused = most;
    return best;
}

void srv_slots_free(rl_server *s)
{
    for (uint32_t i = 0; s->slots && i < s->n_slots; i++)
        rl_session_free(s->slots[i].session);
    free(s->slots);
    s->slots = NULL;
}
