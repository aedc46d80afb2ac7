/* experts: sets, waves and reading ahead. What is resident and how it got there is slots.c's.
 *
 * One lock guards everything; arrivals are published through an atomic counter, so that a member that finds its expert there
 * takes no lock. A set that visits most of a layer (prefill) streams: what it loads goes to the cold end when released, so that
 * a sweep over all layers recycles a few slots and leaves the rest of the cache to the next sweep. */
#include "experts/experts.h"
#include "base/clock.h"
#include "base/mem.h"
#include "experts/slots.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* A guess is read when guesses of its rank have come true in this share of cases. On a busy disk a wrong one costs what a right
 * one gains; ranks far down the list are right half of the time. */
#define GUESS_WORTH  0.65f
#define GUESS_MEMORY 256 /* layers over which that share is remembered */

/* Experts of a wave when streaming: long enough to hide its two barriers, short against the cache. */
#define STREAM_WAVE 64

typedef struct expert_set {
    bool active, stream;
    uint32_t layer, n;
    const uint32_t *ids;
    uint32_t issued;     /* experts [0, issued) have a slot or had one */
    uint32_t begin, end; /* the wave */
    uint32_t *slot;      /* of every issued expert */
    uint32_t *order;     /* of arrival in the wave */
    atomic_uint n_arrived;
} expert_set;

struct rl_experts {
    const rl_model *model;
    rl_slots s;
    bool full, predicts;
    uint64_t budget, overhead;
    pthread_mutex_t lock;
    pthread_cond_t arrived;
    bool waiting; /* a member is in rl_io_wait: it alone collects */
    atomic_bool busy;
    expert_set set;
    struct {
        uint32_t layer, n, ids[RL_MAX_EXPERTS_USED];
        float came_true[RL_MAX_EXPERTS_USED]; /* by rank */
    } guess;                                  /* the last prediction */
    uint32_t *held, n_held;                   /* slots pinned for the next layer, by guess or ahead */
    uint32_t ahead_layer, ahead_next;         /* streaming: the next expert to read ahead of its layer's set */
    atomic_bool failed;                       /* next returned false in this set */
    rl_status status;
    rl_error error;
    rl_experts_stats stats;
};

/* ---- Opening ---------------------------------------------------------------------------------------------------------------
 */

static uint64_t fixed_bytes(const rl_expert_layout *l, const rl_io_options *io)
{
    return sizeof(rl_experts) + rl_slots_overhead(l) + rl_io_overhead(io) + 4ull * l->n_experts * sizeof(uint32_t);
}

rl_status rl_experts_bounds(const rl_model *m, uint64_t *least, uint64_t *all, rl_error *err)
{
    rl_expert_layout l;
    const rl_status st = rl_expert_layout_create(m, &l, err);
    if (st != RL_OK) return st;
    const uint64_t fixed = fixed_bytes(&l, &(rl_io_options){0});
    *least = fixed + rl_expert_layout_least(&l, sizeof(rl_slot));
    *all = fixed + rl_expert_layout_all(&l, sizeof(rl_slot));
    rl_expert_layout_free(&l);
    return RL_OK;
}

static double mib(uint64_t bytes)
{
    return (double)bytes / 1048576.0;
}

/* Divides the budget and allocates. */
static rl_status open_parts(rl_experts *x, const rl_experts_options *opt, rl_error *err)
{
    rl_expert_layout *l = &x->s.layout;
    rl_status st = rl_expert_layout_create(x->model, l, err);
    if (st != RL_OK) return st;
    x->overhead = fixed_bytes(l, &opt->io);
    const uint64_t least = x->overhead + rl_expert_layout_least(l, sizeof(rl_slot));
    const uint64_t all = x->overhead + rl_expert_layout_all(l, sizeof(rl_slot));
    x->budget = opt->full ? all : opt->budget;
    if (x->budget < least)
        return rl_fail(err, RL_ERR_MEMORY,
                       "an expert cache of %.1f MiB is too small for this model: it needs at least %.1f MiB, and %.1f MiB "
                       "would hold every expert",
                       mib(x->budget), mib(least), mib(all));
    rl_expert_layout_divide(l, x->budget - x->overhead, sizeof(rl_slot));
    x->set.slot = rl_calloc(l->n_experts, sizeof *x->set.slot);
    x->set.order = rl_calloc(l->n_experts, sizeof *x->set.order);
    x->held = rl_calloc(l->n_experts, sizeof *x->held);
    if (!x->set.slot || !x->set.order || !x->held)
        return rl_fail(err, RL_ERR_MEMORY, "no memory for the tables of the expert cache");
    st = rl_slots_open(&x->s, x->model, &opt->io, err);
    if (st != RL_OK) return st;
    x->overhead += x->s.n_slots * sizeof(rl_slot);
    const char *prefetch = getenv("RL_ENGINE_PREFETCH");
    x->predicts = !opt->full && x->budget < all && !(prefetch && strcmp(prefetch, "0") == 0);
    return RL_OK;
}

/* Every expert once, in the order of the file. */
static rl_status load_all(rl_experts *x, const rl_experts_options *opt, rl_error *err)
{
    const rl_expert_layout *l = &x->s.layout;
    uint32_t *ids = rl_alloc(l->n_experts, sizeof *ids);
    if (!ids) return rl_fail(err, RL_ERR_MEMORY, "no memory to load the experts");
    for (uint32_t e = 0; e < l->n_experts; e++)
        ids[e] = e;
    rl_status st = RL_OK;
    for (uint32_t layer = 0; layer < l->n_layers && st == RL_OK; layer++) {
        rl_experts_begin(x, layer, ids, l->n_experts);
        for (uint32_t first = 0, end; first < l->n_experts && st == RL_OK; first = end) {
            uint32_t index;
            end = rl_experts_wave(x);
            for (uint32_t pos = 0; pos < end - first && st == RL_OK; pos++)
                if (!rl_experts_next(x, pos, &index)) st = rl_experts_error(x, err);
        }
        if (st == RL_OK && opt->progress && !opt->progress(opt->progress_ctx, (layer + 1.0) / l->n_layers))
            st = rl_fail(err, RL_ERR_CANCELLED, "loading was cancelled");
    }
    rl_experts_end(x);
    x->stats.hits = x->stats.misses = 0;
    free(ids);
    return st;
}

rl_status rl_experts_open(const rl_model *m, const rl_experts_options *opt, rl_experts **out, rl_error *err)
{
    rl_experts *x = rl_calloc(1, sizeof *x);
    if (!x) return rl_fail(err, RL_ERR_MEMORY, "no memory for the expert cache");
    x->model = m;
    x->full = opt->full;
    x->guess.layer = UINT32_MAX;
    for (uint32_t i = 0; i < RL_MAX_EXPERTS_USED; i++)
        x->guess.came_true[i] = 1;
    pthread_mutex_init(&x->lock, NULL);
    pthread_cond_init(&x->arrived, NULL);
    rl_status st = open_parts(x, opt, err);
    if (st == RL_OK && opt->full) st = load_all(x, opt, err);
    if (st != RL_OK) {
        rl_experts_close(x);
        return st;
    }
    *out = x;
    return RL_OK;
}

void rl_experts_close(rl_experts *x)
{
    if (!x) return;
    rl_slots_close(&x->s);
    pthread_mutex_destroy(&x->lock);
    pthread_cond_destroy(&x->arrived);
    free(x->set.slot);
    free(x->set.order);
    free(x->held);
    free(x);
}

/* ---- Completions (lock held) -----------------------------------------------------------------------------------------------
 */

static void describe_failure(rl_experts *x, const rl_slot *slot, const rl_io_read *r, uint32_t key)
{
    const rl_expert_layout *l = &x->s.layout;
    const uint32_t expert = key % l->n_experts;
    const rl_expert_part *part = &l->layers[key / l->n_experts].part[r - slot->reads];
    char file[512], tensor[96];
    rl_escape_str(file, sizeof file, rl_gguf_file_name(x->model->gguf, r->file));
    const unsigned long long begin = part->offset + expert * part->stride, at = r->offset + r->done;
    rl_escape_str(tensor, sizeof tensor, part->tensor->name);
    if (r->error == RL_IO_ENDED)
        x->status = rl_fail(&x->error, RL_ERR_IO,
                            "%s ends at or before byte %llu: expert %u of %s was expected at %llu to %llu; the file has become "
                            "shorter since it was opened",
                            file, at, expert, tensor, begin, begin + part->bytes);
    else
        x->status =
            rl_fail_errno(&x->error, RL_ERR_IO, r->error, "%s: reading expert %u of %s at byte %llu", file, expert, tensor, at);
}

static void arrive(rl_experts *x, uint32_t index)
{
    const uint32_t n = atomic_load_explicit(&x->set.n_arrived, memory_order_relaxed);
    x->set.order[n] = index;
    atomic_store_explicit(&x->set.n_arrived, n + 1, memory_order_release);
}

static void collect(rl_experts *x)
{
    const expert_set *set = &x->set;
    for (rl_io_read *r = rl_io_reap(x->s.io), *next; r; r = next) {
        next = r->next;
        const rl_io_read *failed;
        rl_slot *slot = r->owner;
        const uint32_t index = slot->set_index, key = slot->key;
        if (!rl_slot_finish(&x->s, r, &failed)) continue;
        if (!set->active || index < set->begin || index >= set->end) continue; /* nobody waits for it, also not for its error */
        if (!failed) {
            arrive(x, index);
        } else if (!slot->asked) { /* read for another purpose, perhaps before the fault was mended */
            rl_slot_reload(&x->s, set->slot[index], key);
            slot->asked = true;
        } else if (x->status == RL_OK)
            describe_failure(x, slot, failed, key);
    }
}

/* Waits for reads without holding the lock; returns with it. */
static void wait_for_reads(rl_experts *x)
{
    if (x->waiting) {
        pthread_cond_wait(&x->arrived, &x->lock);
        return;
    }
    x->waiting = true;
    pthread_mutex_unlock(&x->lock);
    const uint64_t t = rl_now_ns();
    rl_io_wait(x->s.io);
    const uint64_t waited = rl_now_ns() - t;
    pthread_mutex_lock(&x->lock);
    x->waiting = false;
    x->stats.wait_seconds += (double)waited * 1e-9;
    collect(x);
    pthread_cond_broadcast(&x->arrived);
}

/* ---- Slots for the set, and ahead of it (lock held) -------------------------------------------------------------------------
 */

static uint32_t key_of(const rl_experts *x, uint32_t layer, uint32_t expert)
{
    return layer * x->s.layout.n_experts + expert;
}

static const rl_expert_class *class_of(const rl_experts *x, uint32_t layer)
{
    return &x->s.layout.classes[x->s.layout.layers[layer].cls];
}

/* Experts a wave may hold, and how many of those that follow may be read ahead: together never all slots of a class. */
static uint32_t wave_size(const rl_experts *x)
{
    const rl_expert_class *c = class_of(x, x->set.layer);
    if (c->n_slots == c->n_experts) return x->set.n;
    return x->set.stream && c->n_slots / 2 > STREAM_WAVE ? STREAM_WAVE : c->n_slots / 2;
}

static uint32_t ahead_size(const rl_experts *x, uint32_t layer)
{
    const rl_expert_class *c = class_of(x, layer);
    const uint32_t n = c->n_slots / 4 ? c->n_slots / 4 : 1;
    return n < x->s.layout.n_experts ? n : x->s.layout.n_experts;
}

/* Pins the next expert of the set, reading it when it is not there. False when no slot can be had. */
static bool issue(rl_experts *x, bool urgent)
{
    expert_set *set = &x->set;
    const uint32_t key = key_of(x, set->layer, set->ids[set->issued]);
    uint32_t i = x->s.table[key];
    if (i != RL_NO_SLOT) {
        rl_slot *slot = &x->s.slots[i];
        rl_slot_pin(&x->s, i);
        if (slot->guessed) x->stats.guesses_used++;
        if (urgent && slot->state == RL_SLOT_LOADING) rl_slot_hurry(&x->s, i);
        /* A stream that meets an expert again keeps it warm, unless it read it for itself just now. */
        slot->cold = set->stream && slot->guessed;
        slot->guessed = slot->asked = false;
        x->stats.hits++;
    } else {
        i = rl_slot_load(&x->s, key, urgent, false);
        if (i == RL_NO_SLOT) return false;
        x->s.slots[i].cold = set->stream;
        x->s.slots[i].guessed = false;
        x->s.slots[i].asked = urgent;
        x->stats.misses++;
    }
    x->s.slots[i].pass = x->s.pass;
    x->s.slots[i].set_index = set->issued;
    set->slot[set->issued++] = i;
    return true;
}

static bool hold(rl_experts *x, uint32_t layer, uint32_t expert, bool guess)
{
    const uint32_t key = key_of(x, layer, expert);
    uint32_t i = x->s.table[key];
    if (i != RL_NO_SLOT) {
        rl_slot_pin(&x->s, i);
    } else {
        i = rl_slot_load(&x->s, key, false, guess);
        if (i == RL_NO_SLOT) return false;
        x->s.slots[i].cold = x->s.slots[i].guessed = true;
        x->s.slots[i].set_index = UINT32_MAX;
        x->stats.guesses++;
    }
    x->held[x->n_held++] = i;
    return true;
}

static void drop_held(rl_experts *x)
{
    for (uint32_t i = 0; i < x->n_held; i++) {
        rl_slot_unpin(&x->s, x->held[i]);
        rl_slot_give_up(&x->s, x->held[i]);
    }
    x->n_held = 0;
}

static void release_wave(rl_experts *x)
{
    expert_set *set = &x->set;
    for (uint32_t i = set->begin; i < set->end; i++) {
        x->s.slots[set->slot[i]].set_index = UINT32_MAX;
        rl_slot_unpin(&x->s, set->slot[i]);
    }
    set->begin = set->end;
}

/* The set's pins beyond the wave, after a pass that ended early. */
static void drop_set(rl_experts *x)
{
    expert_set *set = &x->set;
    if (!set->active) return;
    release_wave(x);
    set->end = set->issued;
    release_wave(x);
    set->active = false;
}

/* Streaming: reads ahead of the wave, and after the set's last expert ahead of the next layer's set. That set is not known yet;
 * it is taken to be the whole layer if this one used nearly all of its experts, so that little is read in vain. */
static void read_ahead(rl_experts *x)
{
    expert_set *set = &x->set;
    if (!set->active || !set->stream || x->full) return;
    while (set->issued < set->n && set->issued - set->end < ahead_size(x, set->layer))
        if (!issue(x, false)) return;
    if (set->issued < set->n || x->ahead_layer >= x->model->hp.n_layer || !x->predicts) return;
    const uint32_t most = ahead_size(x, x->ahead_layer), mine = set->issued - set->end;
    while (x->n_held + mine < most && x->ahead_next < x->s.layout.n_experts)
        if (hold(x, x->ahead_layer, x->ahead_next, false))
            x->ahead_next++;
        else
            return;
}

static void unlock(rl_experts *x)
{
    rl_io_kick(x->s.io);
    atomic_store_explicit(&x->busy, rl_io_pending(x->s.io) > 0, memory_order_relaxed);
    pthread_mutex_unlock(&x->lock);
}

/* ---- The door --------------------------------------------------------------------------------------------------------------
 */

void rl_experts_begin_pass(rl_experts *x)
{
    pthread_mutex_lock(&x->lock);
    x->s.pass++;
    x->stats.passes++;
    x->status = RL_OK;
    atomic_store_explicit(&x->failed, false, memory_order_relaxed);
    unlock(x);
}

static bool contains(const uint32_t *ids, uint32_t n, uint32_t id)
{
    uint32_t low = 0;
    while (n > 0) {
        const uint32_t half = n / 2;
        if (ids[low + half] < id) {
            low += half + 1;
            n -= half + 1;
        } else {
            if (ids[low + half] == id) return true;
            n = half;
        }
    }
    return false;
}

/* How the prediction for the layer that begins came true, also where nothing was read for it. */
static void judge_guess(rl_experts *x, uint32_t layer, const uint32_t *ids, uint32_t n)
{
    for (uint32_t i = 0; x->guess.layer == layer && i < x->guess.n; i++)
        x->guess.came_true[i] += (contains(ids, n, x->guess.ids[i]) - x->guess.came_true[i]) / GUESS_MEMORY;
    x->guess.layer = UINT32_MAX;
}

void rl_experts_begin(rl_experts *x, uint32_t layer, const uint32_t *ids, uint32_t n)
{
    pthread_mutex_lock(&x->lock);
    drop_set(x);
    judge_guess(x, layer, ids, n);
    expert_set *set = &x->set;
    set->active = true;
    set->layer = layer;
    set->ids = ids;
    set->n = n;
    set->issued = set->begin = set->end = 0;
    set->stream = n > class_of(x, layer)->n_slots / 2 || (n >= x->s.layout.n_experts / 2 && n > 2 * x->s.layout.n_used);
    x->ahead_layer = (uint64_t)n * 8 >= 7ull * x->s.layout.n_experts ? layer + 1 : UINT32_MAX;
    x->ahead_next = 0;
    rl_io_set_deep(x->s.io, set->stream);
    x->status = RL_OK;
    atomic_store_explicit(&x->failed, false, memory_order_relaxed);
    atomic_store_explicit(&set->n_arrived, 0, memory_order_relaxed);
    unlock(x);
}

/* Gives every expert of the wave a slot. A class always has enough for a wave once what is held for guesses and what is still
 * loading for an abandoned pass is out of the way. */
static void issue_wave(rl_experts *x)
{
    expert_set *set = &x->set;
    while (set->issued < set->end) {
        if (issue(x, true)) continue;
        if (x->n_held > 0) {
            drop_held(x);
        } else if (rl_io_pending(x->s.io) > 0) {
            rl_io_kick(x->s.io);
            wait_for_reads(x);
        } else {
            x->status = rl_fail(&x->error, RL_ERR_INTERNAL, "the expert cache has no slot for a wave");
            set->end = set->issued;
        }
    }
}

uint32_t rl_experts_wave(rl_experts *x)
{
    pthread_mutex_lock(&x->lock);
    expert_set *set = &x->set;
    release_wave(x);
    const uint32_t begin = set->begin, size = wave_size(x);
    const uint32_t end = set->n - begin < size ? set->n : begin + size;
    /* Until the wave has all its slots nobody waits for its experts, so arrivals are entered below. */
    atomic_store_explicit(&set->n_arrived, 0, memory_order_relaxed);
    set->begin = set->end = end;
    issue_wave(x);
    for (uint32_t i = begin; i < set->issued && i < end; i++) {
        const uint32_t slot = set->slot[i];
        if (x->s.slots[slot].state == RL_SLOT_FREE) { /* it was read ahead of its wave, and failed; now it counts */
            rl_slot_reload(&x->s, slot, key_of(x, set->layer, set->ids[i]));
            x->s.slots[slot].asked = true;
        }
        rl_slot_hurry(&x->s, slot);
        if (x->s.slots[slot].state == RL_SLOT_READY) arrive(x, i);
    }
    set->begin = begin;
    if (begin == 0) drop_held(x);
    read_ahead(x);
    unlock(x);
    return end;
}

bool rl_experts_next(rl_experts *x, uint32_t pos, uint32_t *index)
{
    expert_set *set = &x->set;
    if (pos >= atomic_load_explicit(&set->n_arrived, memory_order_acquire)) {
        pthread_mutex_lock(&x->lock);
        while (x->status == RL_OK && pos >= atomic_load_explicit(&set->n_arrived, memory_order_relaxed)) {
            rl_io_kick(x->s.io);
            if (!x->waiting && rl_io_pending(x->s.io) == 0)
                x->status = rl_fail(&x->error, RL_ERR_INTERNAL, "an expert is waited for that nobody reads");
            else
                wait_for_reads(x);
        }
        const bool ok = pos < atomic_load_explicit(&set->n_arrived, memory_order_relaxed);
        if (!ok) atomic_store_explicit(&x->failed, true, memory_order_relaxed);
        read_ahead(x);
        unlock(x);
        if (!ok) return false;
    }
    *index = set->order[pos];
    return true;
}

const uint8_t *rl_experts_at(const rl_experts *x, uint32_t index, uint32_t part)
{
    const rl_slot *slot = &x->s.slots[x->set.slot[index]];
    const rl_io_read *r = &slot->reads[part];
    return r->dst + (r->need - x->s.layout.layers[x->set.layer].part[part].bytes);
}

void rl_experts_release(rl_experts *x)
{
    pthread_mutex_lock(&x->lock);
    release_wave(x);
    read_ahead(x);
    unlock(x);
}

void rl_experts_predict(rl_experts *x, uint32_t layer, const uint32_t *ids, uint32_t n)
{
    if (!x->predicts || layer >= x->s.layout.n_layers) return;
    pthread_mutex_lock(&x->lock);
    const uint32_t most = ahead_size(x, layer);
    if (n > RL_MAX_EXPERTS_USED) n = RL_MAX_EXPERTS_USED;
    x->guess.layer = layer;
    x->guess.n = n;
    memcpy(x->guess.ids, ids, n * sizeof *ids);
    for (uint32_t i = 0; i < n && !x->set.stream && x->n_held < most; i++)
        if (x->guess.came_true[i] >= GUESS_WORTH && !hold(x, layer, ids[i], true)) break;
    unlock(x);
}

void rl_experts_resident(rl_experts *x, uint32_t layer, bool *flags)
{
    pthread_mutex_lock(&x->lock);
    for (uint32_t e = 0; e < x->s.layout.n_experts; e++)
        flags[e] = x->s.table[key_of(x, layer, e)] != RL_NO_SLOT;
    pthread_mutex_unlock(&x->lock);
}

void rl_experts_end(rl_experts *x)
{
    pthread_mutex_lock(&x->lock);
    drop_set(x);
    drop_held(x);
    unlock(x);
}

void rl_experts_poll(rl_experts *x)
{
    if (!atomic_load_explicit(&x->busy, memory_order_relaxed) || pthread_mutex_trylock(&x->lock) != 0) return;
    if (!x->waiting) {
        collect(x);
        read_ahead(x);
    }
    unlock(x);
}

bool rl_experts_failed(const rl_experts *x)
{
    return atomic_load_explicit(&x->failed, memory_order_relaxed);
}

rl_status rl_experts_error(rl_experts *x, rl_error *err)
{
    pthread_mutex_lock(&x->lock);
    const rl_status st = x->status;
    if (err && st != RL_OK) *err = x->error;
    pthread_mutex_unlock(&x->lock);
    return st;
}

bool rl_experts_can_predict(const rl_experts *x)
{
    return x->predicts;
}

void rl_experts_get_stats(rl_experts *x, rl_experts_stats *out)
{
    pthread_mutex_lock(&x->lock);
    *out = x->stats;
    out->residency = x->full ? RL_RESIDENCY_FULL : RL_RESIDENCY_BOUNDED;
    out->reading = rl_io_describe(x->s.io);
    out->budget = x->budget;
    out->overhead = x->overhead;
    out->used = x->overhead + x->s.used_bytes;
    out->loads = x->s.loads;
    out->evictions = x->s.evictions;
    out->bytes_read = x->s.bytes_read;
    out->slots = x->s.n_slots;
    out->experts = x->s.layout.n_layers * x->s.layout.n_experts;
    pthread_mutex_unlock(&x->lock);
}
