/* text/grammar_match: following a grammar while text is generated.
 *
 * The matcher holds every place the machine may stand: pairs of an instruction that consumes and a frame, which is a return
 * address with its own caller's frame. Frames are interned, so that equal stacks are equal numbers and a set of places can be
 * compared and remembered. Which tokens may follow is found by walking the vocabulary in the order of its bytes: a beginning
 * that leads nowhere rules out all tokens that share it; the last answers are kept, since places such as "inside a string"
 * come again and again. */
#include "base/error.h"
#include "base/mem.h"
#include "text/grammar.h"

#include <stdlib.h>
#include <string.h>

#define FRAMES_MAX (1u << 20)
#define PLACES_MAX 4096
#define MASKS      16
#define NO_FRAME   UINT32_MAX

typedef struct place {
    uint32_t pc, frame;
} place;

typedef struct places {
    place *p;
    uint32_t n, room;
    bool whole; /* the text may end here */
} places;

typedef struct frame {
    uint32_t back, caller;
} frame;

/* The vocabulary by bytes, and how many leading bytes each token shares with the one before. */
struct rl_token_order {
    const rl_tokenizer *tokenizer;
    uint32_t n, n_vocab, longest;
    int32_t *ids;
    uint32_t *shared;
};

typedef struct kept_mask {
    places at;
    uint64_t *bits;
} kept_mask;

struct rl_matcher {
    const rl_grammar *g;
    const rl_token_order *order;
    places now, work;
    places *depth; /* longest + 1 */
    frame *frames;
    uint32_t n_frames, frames_room;
    uint32_t *table, table_size; /* of frames, power of two */
    kept_mask masks[MASKS];
    uint32_t next_mask;
    bool failed;
};

/* ---- The vocabulary in order -----------------------------------------------------------------------------------------------
 */

static int compare_bytes(rl_slice a, rl_slice b)
{
    size_t n = a.size < b.size ? a.size : b.size;
    int c = memcmp(a.data, b.data, n);
    return c ? c : a.size < b.size ? -1 : a.size > b.size;
}

typedef struct keyed {
    rl_slice bytes;
    int32_t id;
} keyed;

static int compare_keyed(const void *a, const void *b)
{
    const keyed *x = a, *y = b;
    int c = compare_bytes(x->bytes, y->bytes);
    return c ? c : (x->id > y->id) - (x->id < y->id);
}

rl_status rl_token_order_create(const rl_tokenizer *t, rl_token_order **out, rl_error *err)
{
    rl_token_order *o = rl_calloc(1, sizeof *o);
    uint32_t n_vocab = rl_tokenizer_n_vocab(t);
    keyed *list = rl_alloc(n_vocab, sizeof *list);
    if (o) {
        o->ids = rl_alloc(n_vocab, sizeof *o->ids);
        o->shared = rl_alloc(n_vocab, sizeof *o->shared);
    }
    if (!o || !list || !o->ids || !o->shared) {
        rl_token_order_free(o);
        free(list);
        return rl_fail(err, RL_ERR_MEMORY, "no memory to sort a vocabulary of %u tokens", n_vocab);
    }
    o->tokenizer = t;
    o->n_vocab = n_vocab;
    for (uint32_t i = 0; i < n_vocab; i++) {
        rl_slice bytes = rl_token_bytes(t, (int32_t)i, false);
        if (bytes.size > 0 && rl_token_is_samplable(t, (int32_t)i)) list[o->n++] = (keyed){bytes, (int32_t)i};
    }
    qsort(list, o->n, sizeof *list, compare_keyed);
    for (uint32_t i = 0; i < o->n; i++) {
        uint32_t k = 0;
        while (i > 0 && k < list[i].bytes.size && k < list[i - 1].bytes.size &&
               list[i].bytes.data[k] == list[i - 1].bytes.data[k])
            k++;
        o->ids[i] = list[i].id;
        o->shared[i] = k;
        if (list[i].bytes.size > o->longest) o->longest = (uint32_t)list[i].bytes.size;
    }
    free(list);
    *out = o;
    return RL_OK;
}

void rl_token_order_free(rl_token_order *o)
{
    if (!o) return;
    free(o->ids);
    free(o->shared);
    free(o);
}

/* ---- Frames ----------------------------------------------------------------------------------------------------------------
 */

static uint32_t hash_frame(frame f)
{
    uint64_t h = ((uint64_t)f.back << 32 | f.caller) * 0x9e3779b97f4a7c15ull;
    return (uint32_t)(h >> 32);
}

static bool grow_frames(rl_matcher *m)
{
    uint32_t room = m->frames_room ? m->frames_room * 2 : 256, size = room * 2;
    frame *frames = room > FRAMES_MAX ? NULL : rl_realloc(m->frames, room, sizeof *frames);
    if (!frames) return false;
    m->frames = frames;
    uint32_t *table = rl_alloc(size, sizeof *table);
    if (!table) return false;
    memset(table, 0xff, size * sizeof *table);
    for (uint32_t i = 0; i < m->n_frames; i++) {
        uint32_t h = hash_frame(frames[i]) & (size - 1);
        while (table[h] != NO_FRAME)
            h = (h + 1) & (size - 1);
        table[h] = i;
    }
    free(m->table);
    m->table = table;
    m->table_size = size;
    m->frames_room = room;
    return true;
}

static uint32_t intern(rl_matcher *m, uint32_t back, uint32_t caller)
{
    frame f = {back, caller};
    if (m->n_frames == m->frames_room && !grow_frames(m)) {
        m->failed = true;
        return NO_FRAME;
    }
    uint32_t h = hash_frame(f) & (m->table_size - 1);
    for (; m->table[h] != NO_FRAME; h = (h + 1) & (m->table_size - 1))
        if (m->frames[m->table[h]].back == back && m->frames[m->table[h]].caller == caller) return m->table[h];
    m->frames[m->n_frames] = f;
    m->table[h] = m->n_frames;
    return m->n_frames++;
}

/* ---- Places ----------------------------------------------------------------------------------------------------------------
 */

static bool push(rl_matcher *m, places *s, place p)
{
    for (uint32_t i = 0; i < s->n; i++)
        if (s->p[i].pc == p.pc && s->p[i].frame == p.frame) return false;
    if (s->n == s->room) {
        uint32_t room = s->room ? s->room * 2 : 16;
        place *grown = s->n >= PLACES_MAX ? NULL : rl_realloc(s->p, room, sizeof *grown);
        if (!grown) {
            m->failed = true;
            return false;
        }
        s->p = grown;
        s->room = room;
    }
    s->p[s->n++] = p;
    return true;
}

/* Adds the places that are reached from p without consuming. `work` is the list of what was seen on the way. */
static void reach(rl_matcher *m, places *out, place from)
{
    places *w = &m->work;
    w->n = 0;
    push(m, w, from);
    for (uint32_t i = 0; i < w->n && !m->failed; i++) {
        place p = w->p[i];
        const rl_ginstr *c = &m->g->code[p.pc];
        switch (c->op) {
        case RL_G_BYTE:
        case RL_G_SET:
            push(m, out, p);
            break;
        case RL_G_JUMP:
            push(m, w, (place){c->a, p.frame});
            break;
        case RL_G_SPLIT:
            push(m, w, (place){c->a, p.frame});
            push(m, w, (place){c->b, p.frame});
            break;
        case RL_G_CALL: {
            uint32_t f = intern(m, p.pc + 1, p.frame);
            if (f != NO_FRAME) push(m, w, (place){c->a, f});
            break;
        }
        case RL_G_RETURN:
            if (p.frame == NO_FRAME)
                out->whole = true;
            else
                push(m, w, (place){m->frames[p.frame].back, m->frames[p.frame].caller});
            break;
        }
    }
}

static bool takes(const rl_matcher *m, place p, unsigned char c)
{
    const rl_ginstr *i = &m->g->code[p.pc];
    if (i->op == RL_G_BYTE) return i->a == c;
    return m->g->sets[i->a][c / 64] >> c % 64 & 1;
}

/* Places after one byte; false when there are none. */
static bool step(rl_matcher *m, const places *from, unsigned char c, places *to)
{
    to->n = 0;
    to->whole = false;
    for (uint32_t i = 0; i < from->n; i++)
        if (takes(m, from->p[i], c)) reach(m, to, (place){from->p[i].pc + 1, from->p[i].frame});
    return !m->failed && (to->n > 0 || to->whole);
}

static bool copy_places(places *to, const places *from)
{
    if (to->room < from->n) {
        place *grown = rl_realloc(to->p, from->n, sizeof *grown);
        if (!grown) return false;
        to->p = grown;
        to->room = from->n;
    }
    if (from->n) memcpy(to->p, from->p, from->n * sizeof *to->p);
    to->n = from->n;
    to->whole = from->whole;
    return true;
}

/* ---- The matcher -----------------------------------------------------------------------------------------------------------
 */

rl_status rl_matcher_create(const rl_grammar *g, const rl_token_order *order, rl_matcher **out, rl_error *err)
{
    rl_matcher *m = rl_calloc(1, sizeof *m);
    if (!m) return rl_fail(err, RL_ERR_MEMORY, "no memory to follow a grammar");
    m->g = g;
    m->order = order;
    m->depth = rl_calloc((size_t)order->longest + 1, sizeof *m->depth);
    if (m->depth) reach(m, &m->now, (place){g->start, NO_FRAME});
    if (!m->depth || m->failed) {
        rl_matcher_free(m);
        return rl_fail(err, RL_ERR_MEMORY, "no memory to follow a grammar");
    }
    *out = m;
    return RL_OK;
}

void rl_matcher_free(rl_matcher *m)
{
    if (!m) return;
    for (uint32_t i = 0; m->depth && i <= m->order->longest; i++)
        free(m->depth[i].p);
    for (uint32_t i = 0; i < MASKS; i++) {
        free(m->masks[i].at.p);
        free(m->masks[i].bits);
    }
    free(m->depth);
    free(m->now.p);
    free(m->work.p);
    free(m->frames);
    free(m->table);
    free(m);
}

bool rl_matcher_may_end(const rl_matcher *m)
{
    return m->now.whole;
}

bool rl_matcher_must_end(const rl_matcher *m)
{
    return m->now.n == 0;
}

/* Follows bytes through the sets of depth[]; false at the first that does not fit. */
static bool follow(rl_matcher *m, rl_slice bytes)
{
    const places *at = &m->now;
    for (size_t i = 0; i < bytes.size; i++) {
        places *to = &m->depth[i & 1]; /* two suffice when nothing is shared */
        if (!step(m, at, (unsigned char)bytes.data[i], to)) return false;
        at = to;
    }
    return at != &m->now;
}

bool rl_matcher_allows(rl_matcher *m, int32_t id)
{
    if (rl_token_is_eog(m->order->tokenizer, id)) return m->now.whole;
    return follow(m, rl_token_bytes(m->order->tokenizer, id, false));
}

bool rl_matcher_accept(rl_matcher *m, int32_t id)
{
    rl_slice bytes = rl_token_bytes(m->order->tokenizer, id, false);
    if (!follow(m, bytes)) return false;
    return copy_places(&m->now, &m->depth[(bytes.size - 1) & 1]);
}

static bool same_places(const places *a, const places *b)
{
    return a->n == b->n && a->whole == b->whole && (a->n == 0 || memcmp(a->p, b->p, a->n * sizeof *a->p) == 0);
}

/* Allowed tokens as bits. depth[k] = places after k bytes of the token at hand, valid up to `live`. */
static void find_allowed(rl_matcher *m, uint64_t *bits)
{
    const rl_token_order *o = m->order;
    uint32_t dead = UINT32_MAX, live = 0; /* tokens that share more than `dead` bytes with the last are dead too */
    if (!copy_places(&m->depth[0], &m->now)) m->failed = true;
    for (uint32_t i = 0; i < o->n && !m->failed; i++) {
        if (dead != UINT32_MAX && o->shared[i] > dead) continue;
        dead = UINT32_MAX;
        rl_slice bytes = rl_token_bytes(o->tokenizer, o->ids[i], false);
        uint32_t k = o->shared[i] < live ? o->shared[i] : live;
        for (; k < bytes.size; k++)
            if (!step(m, &m->depth[k], (unsigned char)bytes.data[k], &m->depth[k + 1])) break;
        live = k;
        if (k < bytes.size)
            dead = k;
        else
            bits[o->ids[i] / 64] |= 1ull << o->ids[i] % 64;
    }
}

static const uint64_t *mask_here(rl_matcher *m, size_t words)
{
    for (uint32_t i = 0; i < MASKS; i++)
        if (m->masks[i].bits && same_places(&m->masks[i].at, &m->now)) return m->masks[i].bits;
    kept_mask *k = &m->masks[m->next_mask];
    m->next_mask = (m->next_mask + 1) % MASKS;
    if (!k->bits) k->bits = rl_alloc(words, sizeof *k->bits);
    if (!k->bits || !copy_places(&k->at, &m->now)) {
        m->failed = true;
        return NULL;
    }
    memset(k->bits, 0, words * sizeof *k->bits);
    find_allowed(m, k->bits);
    for (uint32_t id = 0; m->now.whole && id < m->order->n_vocab; id++)
        if (rl_token_is_eog(m->order->tokenizer, (int32_t)id)) k->bits[id / 64] |= 1ull << id % 64;
    return k->bits;
}

void rl_matcher_mask(rl_matcher *m, uint64_t *bits, uint32_t n_vocab)
{
    size_t words = (m->order->n_vocab + 63) / 64, all = (n_vocab + 63) / 64;
    const uint64_t *allowed = mask_here(m, words);
    for (size_t i = 0; i < all; i++)
        bits[i] &= allowed && i < words ? allowed[i] : 0;
}
