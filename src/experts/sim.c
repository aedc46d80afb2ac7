/* experts/sim: the replay. Every policy is an order of eviction: a heap of the resident experts by value, the least goes. */
#include "experts/sim.h"
#include "base/mem.h"
#include "redlite.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Uses of an expert lose half of their weight in so many tokens. */
#define HALF_LIFE 128.0
/* Share of the cache that segmented LRU keeps for experts used more than once. */
#define PROTECTED_SHARE 0.8
#define NEVER           UINT64_MAX

/* ---- A heap by value, least on top, that knows where every key is -----------------------------------------------------------
 */

typedef struct heap {
    uint32_t *keys, n;
    uint32_t *at; /* place of a key, UINT32_MAX = not here */
    double *value;
} heap;

static void place(heap *h, uint32_t i, uint32_t key)
{
    h->keys[i] = key;
    h->at[key] = i;
}

static void sift(heap *h, uint32_t i)
{
    const uint32_t key = h->keys[i];
    while (i > 0 && h->value[h->keys[(i - 1) / 2]] > h->value[key]) {
        place(h, i, h->keys[(i - 1) / 2]);
        i = (i - 1) / 2;
    }
    for (;;) {
        uint32_t child = 2 * i + 1;
        if (child + 1 < h->n && h->value[h->keys[child + 1]] < h->value[h->keys[child]]) child++;
        if (child >= h->n || h->value[h->keys[child]] >= h->value[key]) break;
        place(h, i, h->keys[child]);
        i = child;
    }
    place(h, i, key);
}

static void heap_put(heap *h, uint32_t key, double value)
{
    h->value[key] = value;
    if (h->at[key] == UINT32_MAX) place(h, h->n++, key);
    sift(h, h->at[key]);
}

static void heap_remove(heap *h, uint32_t key)
{
    const uint32_t i = h->at[key];
    h->at[key] = UINT32_MAX;
    const uint32_t last = h->keys[--h->n];
    if (last == key) return;
    place(h, i, last);
    sift(h, i);
}

static bool heap_has(const heap *h, uint32_t key)
{
    return h->at[key] != UINT32_MAX;
}

static bool heap_init(heap *h, uint32_t n_keys)
{
    h->keys = rl_alloc(n_keys, sizeof *h->keys);
    h->at = rl_alloc(n_keys, sizeof *h->at);
    h->value = rl_calloc(n_keys, sizeof *h->value);
    if (!h->keys || !h->at || !h->value) return false;
    memset(h->at, 0xff, n_keys * sizeof *h->at);
    return true;
}

static void heap_free(heap *h)
{
    free(h->keys);
    free(h->at);
    free(h->value);
}

/* ---- Policies --------------------------------------------------------------------------------------------------------------
 */

typedef struct replay {
    const rl_trace *t;
    uint32_t n_keys, slots;
    heap main, protected;
    double *score; /* decayed uses, as of the token `scored` */
    uint64_t *scored;
    const uint64_t *next_use; /* of every request: the request that uses the same expert next */
} replay;

/* The decayed number of uses grows by one and is compared at different times; so it is kept as the logarithm of what it would
 * be worth at token 0, which does not change while nothing happens. */
static double frequency(replay *r, uint32_t key, uint64_t token)
{
    const double decay = log(2) / HALF_LIFE;
    r->score[key] = r->score[key] * exp(-decay * (double)(token - r->scored[key])) + 1;
    r->scored[key] = token;
    return log(r->score[key]) + decay * (double)token;
}

static void evict_least(heap *h)
{
    heap_remove(h, h->keys[0]);
}

/* Segmented LRU: a second use moves an expert to the protected part, whose least recent member falls back when it is full. */
static bool use_segmented(replay *r, uint32_t key, double now)
{
    const uint32_t most = (uint32_t)(PROTECTED_SHARE * r->slots);
    if (heap_has(&r->protected, key)) {
        heap_put(&r->protected, key, now);
        return true;
    }
    const bool hit = heap_has(&r->main, key);
    if (!hit) {
        if (r->main.n + r->protected.n == r->slots) evict_least(r->main.n > 0 ? &r->main : &r->protected);
        heap_put(&r->main, key, now);
        return false;
    }
    heap_remove(&r->main, key);
    if (most == 0 || r->protected.n < most) {
        heap_put(most ? &r->protected : &r->main, key, now);
        return true;
    }
    const uint32_t demoted = r->protected.keys[0];
    heap_remove(&r->protected, demoted);
    heap_put(&r->main, demoted, now);
    heap_put(&r->protected, key, now);
    return true;
}

static bool use(replay *r, rl_sim_policy policy, uint32_t key, uint64_t request, uint64_t token)
{
    if (policy == RL_SIM_SEGMENTED) return use_segmented(r, key, (double)request);
    const bool hit = heap_has(&r->main, key);
    double value = (double)request;
    if (policy == RL_SIM_FREQUENCY) value = frequency(r, key, token);
    if (policy == RL_SIM_OPTIMAL) value = r->next_use[request] == NEVER ? -INFINITY : -(double)r->next_use[request];
    if (!hit && r->main.n == r->slots) {
        /* The optimum may also leave out what is asked for: it is read, used and not kept. */
        if (policy == RL_SIM_OPTIMAL && r->main.value[r->main.keys[0]] >= value) return false;
        evict_least(&r->main);
    }
    heap_put(&r->main, key, value);
    return hit;
}

static uint32_t key_of(const rl_trace *t, uint64_t request)
{
    return (uint32_t)(request / t->n_used % t->n_layer) * t->n_expert + t->ids[request];
}

static rl_status replay_policy(const rl_trace *t, rl_sim_policy policy, uint32_t slots, const uint64_t *next_use,
                               rl_sim_result *out, rl_error *err)
{
    replay r = {.t = t, .n_keys = t->n_layer * t->n_expert, .slots = slots, .next_use = next_use};
    r.score = rl_calloc(r.n_keys, sizeof *r.score);
    r.scored = rl_calloc(r.n_keys, sizeof *r.scored);
    const bool ready = heap_init(&r.main, r.n_keys) && heap_init(&r.protected, r.n_keys) && r.score && r.scored;
    const uint64_t row = (uint64_t)t->n_layer * t->n_used;
    *out = (rl_sim_result){.policy = policy, .uses = t->n_tokens * row};
    for (uint64_t i = 0; ready && i < out->uses; i++)
        if (!use(&r, policy, key_of(t, i), i, i / row)) out->misses++;
    heap_free(&r.main);
    heap_free(&r.protected);
    free(r.score);
    free(r.scored);
    return ready ? RL_OK : rl_fail(err, RL_ERR_MEMORY, "no memory to simulate %u experts", r.n_keys);
}

static uint64_t *find_next_uses(const rl_trace *t)
{
    const uint64_t n = t->n_tokens * t->n_layer * t->n_used;
    const uint32_t n_keys = t->n_layer * t->n_expert;
    uint64_t *next = rl_alloc(n + 1, sizeof *next), *seen = rl_alloc(n_keys, sizeof *seen);
    if (next && seen) {
        memset(seen, 0xff, n_keys * sizeof *seen);
        for (uint64_t i = n; i-- > 0;) {
            next[i] = seen[key_of(t, i)];
            seen[key_of(t, i)] = i;
        }
    } else {
        free(next);
        next = NULL;
    }
    free(seen);
    return next;
}

const char *rl_sim_policy_name(rl_sim_policy p)
{
    static const char *const names[RL_SIM_POLICIES] = {"LRU", "decayed frequency", "segmented LRU", "optimal (Belady)"};
    return p < RL_SIM_POLICIES ? names[p] : "?";
}

rl_status rl_cache_sim(const rl_trace *t, double share, rl_sim_result out[RL_SIM_POLICIES], rl_error *err)
{
    const double slots = share * t->n_layer * t->n_expert;
    if (!(share > 0 && share <= 1) || slots < t->n_used)
        return rl_fail(err, RL_ERR_ARGUMENT,
                       "a cache of %g of the experts cannot be simulated; expected a share up to 1 that "
                       "holds the %u of one layer",
                       share, t->n_used);
    uint64_t *next_use = find_next_uses(t);
    if (!next_use) return rl_fail(err, RL_ERR_MEMORY, "no memory to simulate %llu tokens", (unsigned long long)t->n_tokens);
    rl_status st = RL_OK;
    for (int p = 0; p < RL_SIM_POLICIES && st == RL_OK; p++)
        st = replay_policy(t, (rl_sim_policy)p, (uint32_t)slots, next_use, &out[p], err);
    free(next_use);
    return st;
}
