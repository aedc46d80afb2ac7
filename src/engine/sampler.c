/* engine/sampler: from a row of logits to an id.
 *
 * The chain and its arithmetic (float32 where llama.cpp has float32, its order of summation) are described in redlite.h. The
 * candidates start in the order of ids; top-k and top-p leave them sorted by falling logit. What is drawn depends on that
 * order, so it is kept as the reference has it. All memory is taken at creation. */
#include "base/clock.h"
#include "base/error.h"
#include "base/mem.h"
#include "engine/engine.h"
#include "engine/random.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

typedef struct candidate {
    int32_t id;
    float logit;
    float p;
} candidate;

struct rl_sampler {
    rl_sampling p;
    rl_logit_bias *bias;
    rl_constraint constraint;
    uint32_t seed, n_vocab;
    rl_random random;
    uint64_t *samplable; /* bit per id */
    uint64_t *allowed;   /* what a constraint's mask leaves */
    candidate *c;
    uint32_t n;
    bool sorted;
    /* Accepted ids: how often each was seen in the window, and the window itself as a ring (none when it is unlimited). */
    uint32_t *count;
    int32_t *ring;
    uint64_t n_accepted;
};

/* ---- Settings -------------------------------------------------------------------------------------------------------- */

void rl_sampling_init(rl_sampling *p, const rl_engine *e)
{
    *p = (rl_sampling){.temperature = 0.7f,
                       .top_k = 20,
                       .top_p = 0.8f,
                       .min_p = 0.0f,
                       .repeat_penalty = 1.0f,
                       .penalty_last_n = 64,
                       .seed = RL_SEED_RANDOM};
    if (!e) return;
    const rl_model_info *m = e->info;
    if (m->sampling_temperature >= 0 && m->sampling_temperature <= 100) p->temperature = m->sampling_temperature;
    if (m->sampling_top_k >= 0) p->top_k = m->sampling_top_k;
    if (m->sampling_top_p >= 0 && m->sampling_top_p <= 1) p->top_p = m->sampling_top_p;
    if (m->sampling_min_p >= 0 && m->sampling_min_p <= 1) p->min_p = m->sampling_min_p;
}

static rl_status check_range(const char *name, double v, double lo, double hi, rl_error *err)
{
    if (v >= lo && v <= hi) return RL_OK; /* false for NaN */
    return rl_fail(err, RL_ERR_ARGUMENT, "%s is %g; expected %g to %g", name, v, lo, hi);
}

rl_status rl_sampling_check(const rl_sampling *p, rl_error *err)
{
    rl_status st = check_range("temperature", p->temperature, 0, 100, err);
    if (st == RL_OK) st = check_range("top_k", p->top_k, 0, INT32_MAX, err);
    if (st == RL_OK) st = check_range("top_p", p->top_p, 0, 1, err);
    if (st == RL_OK) st = check_range("min_p", p->min_p, 0, 1, err);
    if (st == RL_OK) st = check_range("repeat_penalty", p->repeat_penalty, 0.01, 100, err);
    if (st == RL_OK) st = check_range("presence_penalty", p->presence_penalty, -100, 100, err);
    if (st == RL_OK) st = check_range("frequency_penalty", p->frequency_penalty, -100, 100, err);
    if (st == RL_OK) st = check_range("penalty_last_n", p->penalty_last_n, -1, RL_MAX_CONTEXT, err);
    for (size_t i = 0; i < p->n_bias && st == RL_OK; i++)
        if (isnan(p->bias[i].bias) || p->bias[i].bias == INFINITY)
            st = rl_fail(err, RL_ERR_ARGUMENT, "the bias of token %d is not a number", p->bias[i].id);
    return st;
}

static bool penalties_on(const rl_sampling *p)
{
    return p->penalty_last_n != 0 && (p->repeat_penalty != 1.0f || p->presence_penalty != 0.0f || p->frequency_penalty != 0.0f);
}

static uint32_t draw_seed(void)
{
    uint32_t seed = 0;
    if (getrandom(&seed, sizeof seed, GRND_NONBLOCK) != (ssize_t)sizeof seed) seed = (uint32_t)rl_now_ns();
    return seed == RL_SEED_RANDOM ? 0 : seed;
}

static rl_status take_memory(rl_sampler *s, rl_error *err)
{
    size_t words = (s->n_vocab + 63) / 64;
    s->c = rl_alloc(s->n_vocab, sizeof *s->c);
    s->samplable = rl_calloc(words, sizeof *s->samplable);
    s->allowed = rl_calloc(words, sizeof *s->allowed);
    bool ok = s->c && s->samplable && s->allowed;
    if (ok && penalties_on(&s->p)) {
        s->count = rl_calloc(s->n_vocab, sizeof *s->count);
        if (s->p.penalty_last_n > 0) s->ring = rl_alloc((size_t)s->p.penalty_last_n, sizeof *s->ring);
        ok = s->count && (s->p.penalty_last_n < 0 || s->ring);
    }
    if (ok && s->p.n_bias) {
        s->bias = rl_alloc(s->p.n_bias, sizeof *s->bias);
        ok = s->bias != NULL;
    }
    return ok ? RL_OK : rl_fail(err, RL_ERR_MEMORY, "no memory for a sampler over %u tokens", s->n_vocab);
}

rl_status rl_sampler_create(const rl_engine *e, const rl_sampling *p, rl_sampler **out, rl_error *err)
{
    rl_status st = rl_sampling_check(p, err);
    if (st != RL_OK) return st;
    uint32_t n_vocab = e->model->hp.n_vocab;
    for (size_t i = 0; i < p->n_bias; i++)
        if (p->bias[i].id < 0 || (uint32_t)p->bias[i].id >= n_vocab)
            return rl_fail(err, RL_ERR_ARGUMENT, "a bias names token %d, which is not in the vocabulary (0 to %u)",
                           p->bias[i].id, n_vocab - 1);
    rl_sampler *s = rl_calloc(1, sizeof *s);
    if (!s) return rl_fail(err, RL_ERR_MEMORY, "no memory for a sampler");
    s->p = *p;
    s->n_vocab = n_vocab;
    s->seed = p->seed == RL_SEED_RANDOM ? draw_seed() : p->seed;
    st = take_memory(s, err);
    if (st != RL_OK) {
        rl_sampler_free(s);
        return st;
    }
    if (p->n_bias) memcpy(s->bias, p->bias, p->n_bias * sizeof *s->bias);
    s->p.bias = s->bias;
    for (uint32_t i = 0; i < n_vocab; i++)
        if (!e->tokenizer || rl_token_is_samplable(e->tokenizer, (int32_t)i)) s->samplable[i / 64] |= 1ull << i % 64;
    rl_random_seed(&s->random, s->seed);
    *out = s;
    return RL_OK;
}

void rl_sampler_free(rl_sampler *s)
{
    if (!s) return;
    free(s->bias);
    free(s->c);
    free(s->samplable);
    free(s->allowed);
    free(s->count);
    free(s->ring);
    free(s);
}

void rl_sampler_reset(rl_sampler *s)
{
    if (s->count) memset(s->count, 0, s->n_vocab * sizeof *s->count);
    s->n_accepted = 0;
    rl_random_seed(&s->random, s->seed);
}

uint32_t rl_sampler_seed(const rl_sampler *s)
{
    return s->seed;
}

uint64_t rl_sampler_n_accepted(const rl_sampler *s)
{
    return s->n_accepted;
}

void rl_sampler_accept(rl_sampler *s, int32_t id)
{
    if (id < 0 || (uint32_t)id >= s->n_vocab) return;
    if (s->count) {
        if (s->ring) {
            int32_t *slot = &s->ring[s->n_accepted % (uint64_t)s->p.penalty_last_n];
            if (s->n_accepted >= (uint64_t)s->p.penalty_last_n) s->count[*slot]--;
            *slot = id;
        }
        s->count[id]++;
    }
    s->n_accepted++;
}

void rl_sampler_set_constraint(rl_sampler *s, const rl_constraint *c)
{
    s->constraint = c ? *c : (rl_constraint){0};
}

/* ---- The chain ------------------------------------------------------------------------------------------------------- */

/* Sorting order: falling logit, ties to the lower id. */
static bool before(const candidate *a, const candidate *b)
{
    return a->logit > b->logit || (a->logit == b->logit && a->id < b->id);
}

static int compare(const void *a, const void *b)
{
    return before(a, b) ? -1 : before(b, a) ? 1 : 0;
}

static void gather(rl_sampler *s, const float *logits, const uint64_t *mask)
{
    s->n = 0;
    s->sorted = false;
    for (uint32_t i = 0; i < s->n_vocab; i++)
        if (mask[i / 64] >> i % 64 & 1 && isfinite(logits[i])) s->c[s->n++] = (candidate){.id = (int32_t)i, .logit = logits[i]};
}

/* gather leaves candidates by rising id, but holes where ids are forbidden: find by bisection. */
static candidate *find(rl_sampler *s, int32_t id)
{
    uint32_t lo = 0, hi = s->n;
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        if (s->c[mid].id < id)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < s->n && s->c[lo].id == id ? &s->c[lo] : NULL;
}

static void apply_bias(rl_sampler *s)
{
    bool forbidden = false;
    for (size_t i = 0; i < s->p.n_bias; i++) {
        candidate *c = find(s, s->bias[i].id);
        if (!c) continue;
        c->logit += s->bias[i].bias;
        if (!isfinite(c->logit)) forbidden = true;
    }
    if (!forbidden) return;
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->n; i++)
        if (isfinite(s->c[i].logit)) s->c[n++] = s->c[i];
    s->n = n;
}

static void apply_penalties(rl_sampler *s)
{
    if (!s->count) return;
    for (uint32_t i = 0; i < s->n; i++) {
        candidate *c = &s->c[i];
        uint32_t seen = s->count[c->id];
        if (seen == 0) continue;
        /* Dividing a negative logit would make it likelier. */
        if (c->logit <= 0)
            c->logit *= s->p.repeat_penalty;
        else
            c->logit /= s->p.repeat_penalty;
        c->logit -= (float)seen * s->p.frequency_penalty + s->p.presence_penalty;
    }
}

static void sift_down(candidate *heap, uint32_t n, uint32_t i)
{
    for (;;) {
        uint32_t last = i, left = 2 * i + 1; /* the root is the one that sorts last */
        if (left < n && before(&heap[last], &heap[left])) last = left;
        if (left + 1 < n && before(&heap[last], &heap[left + 1])) last = left + 1;
        if (last == i) return;
        candidate t = heap[i];
        heap[i] = heap[last];
        heap[last] = t;
        i = last;
    }
}

/* Brings the k first in sorting order to the front, sorted; the rest follows in any order. */
static void sort_first(candidate *c, uint32_t n, uint32_t k)
{
    if (k >= n) {
        qsort(c, n, sizeof *c, compare);
        return;
    }
    for (uint32_t i = k / 2; i-- > 0;)
        sift_down(c, k, i);
    for (uint32_t i = k; i < n; i++) {
        if (!before(&c[i], &c[0])) continue;
        candidate t = c[0];
        c[0] = c[i];
        c[i] = t;
        sift_down(c, k, 0);
    }
    qsort(c, k, sizeof *c, compare);
}

static void apply_top_k(rl_sampler *s)
{
    if (s->p.top_k <= 0) return;
    uint32_t k = (uint32_t)s->p.top_k < s->n ? (uint32_t)s->p.top_k : s->n;
    sort_first(s->c, s->n, k);
    s->n = k;
    s->sorted = true;
}

static float largest(const rl_sampler *s)
{
    float max = s->c[0].logit;
    if (!s->sorted)
        for (uint32_t i = 1; i < s->n; i++)
            if (s->c[i].logit > max) max = s->c[i].logit;
    return max;
}

static void apply_top_p(rl_sampler *s)
{
    if (s->p.top_p >= 1.0f) return;
    float max = largest(s), sum = 0.0f;
    for (uint32_t i = 0; i < s->n; i++) {
        s->c[i].p = expf(s->c[i].logit - max);
        sum += s->c[i].p;
    }
    for (uint32_t i = 0; i < s->n; i++)
        s->c[i].p /= sum;
    /* The run is short as a rule: sort only as far as it may reach, and further when it does not end there. */
    uint32_t sorted = s->sorted ? s->n : 0, keep = s->n;
    float run = 0.0f;
    for (uint32_t i = 0; i < s->n; i++) {
        if (i == sorted) {
            uint32_t more = sorted ? sorted * 3 : 256;
            if (more > s->n - sorted) more = s->n - sorted;
            sort_first(s->c + sorted, s->n - sorted, more);
            sorted += more;
        }
        run += s->c[i].p;
        if (run >= s->p.top_p) {
            keep = i + 1;
            break;
        }
    }
    s->n = keep;
    s->sorted = true;
}

static void apply_min_p(rl_sampler *s)
{
    if (s->p.min_p <= 0.0f) return;
    float least = largest(s) + logf(s->p.min_p);
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->n; i++)
        if (s->c[i].logit >= least || (s->sorted && i == 0)) s->c[n++] = s->c[i];
    s->n = n;
}

static int32_t most_likely(const rl_sampler *s)
{
    const candidate *best = &s->c[0];
    for (uint32_t i = 1; i < s->n; i++)
        if (s->c[i].logit > best->logit) best = &s->c[i];
    return best->id;
}

static int32_t draw(rl_sampler *s)
{
    float max = largest(s);
    double sum = 0;
    for (uint32_t i = 0; i < s->n; i++) {
        s->c[i].p = expf(s->c[i].logit - max);
        sum += s->c[i].p;
    }
    double target = sum * rl_random_unit(&s->random), run = 0;
    for (uint32_t i = 0; i < s->n; i++) {
        run += s->c[i].p;
        if (run >= target) return s->c[i].id;
    }
    return s->c[s->n - 1].id;
}

/* One walk along the chain over the ids in mask; -1 when there is no candidate. */
static int32_t walk(rl_sampler *s, const float *logits, const uint64_t *mask)
{
    gather(s, logits, mask);
    apply_bias(s);
    if (s->n == 0) return -1;
    apply_penalties(s);
    if (s->p.temperature <= 0.0f) return most_likely(s);
    apply_top_k(s);
    apply_top_p(s);
    apply_min_p(s);
    if (!isfinite(largest(s) / s->p.temperature)) return most_likely(s); /* so cold that only differences could be divided */
    for (uint32_t i = 0; i < s->n; i++)
        s->c[i].logit /= s->p.temperature;
    return draw(s);
}

rl_status rl_sampler_sample(rl_sampler *s, const float *logits, int32_t *id, rl_error *err)
{
    const rl_constraint *k = &s->constraint;
    if (!k->mask || k->allows) {
        int32_t free_choice = walk(s, logits, s->samplable);
        if (free_choice < 0)
            return rl_fail(err, RL_ERR_INTERNAL, "the logits hold no finite number for any of the %u tokens", s->n_vocab);
        if (!k->allows || k->allows(k->ctx, free_choice)) {
            *id = free_choice;
            return RL_OK;
        }
    }
    size_t words = (s->n_vocab + 63) / 64;
    memset(s->allowed, 0xff, words * sizeof *s->allowed);
    if (k->mask) k->mask(k->ctx, s->allowed, s->n_vocab);
    for (size_t i = 0; i < words; i++)
        s->allowed[i] &= s->samplable[i];
    int32_t chosen = walk(s, logits, s->allowed);
    if (chosen < 0) return rl_fail(err, RL_ERR_LIMIT, "the constraint leaves no token to choose from");
    *id = chosen;
    return RL_OK;
}

/* ---- Log probabilities ----------------------------------------------------------------------------------------------- */

/* ln of the sum of exponentials, with the maximum taken out. */
static double log_sum_exp(const float *logits, uint32_t n)
{
    float max = -INFINITY;
    for (uint32_t i = 0; i < n; i++)
        if (logits[i] > max) max = logits[i];
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += exp((double)logits[i] - max);
    return max + log(sum);
}

double rl_log_softmax_at(const float *logits, uint32_t n, int32_t id)
{
    return logits[id] - log_sum_exp(logits, n);
}

float rl_logprob_of(const float *logits, uint32_t n_vocab, int32_t id)
{
    if (id < 0 || (uint32_t)id >= n_vocab) return -INFINITY;
    return (float)rl_log_softmax_at(logits, n_vocab, id);
}

uint32_t rl_logprobs_top(const float *logits, uint32_t n_vocab, rl_logprob *out, uint32_t n)
{
    if (n > n_vocab) n = n_vocab;
    double norm = log_sum_exp(logits, n_vocab);
    uint32_t held = 0;
    for (uint32_t i = 0; i < n_vocab && n > 0; i++) { /* insertion: n is small */
        if (held == n && logits[i] <= out[n - 1].logprob) continue;
        uint32_t at = held < n ? held++ : n - 1;
        for (; at > 0 && out[at - 1].logprob < logits[i]; at--)
            out[at] = out[at - 1];
        out[at] = (rl_logprob){.id = (int32_t)i, .logprob = logits[i]};
    }
    for (uint32_t i = 0; i < held; i++)
        out[i].logprob = (float)(out[i].logprob - norm);
    return held;
}
