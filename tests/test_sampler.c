/* engine/sampler and engine/random against values worked out by hand. */
#include "engine/engine.h"
#include "engine/random.h"
#include "support/support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A sampler needs only the size of the vocabulary from an engine. */
static rl_model model;
static rl_engine engine = {.model = &model};

static rl_sampling neutral(float temperature)
{
    rl_sampling p;
    rl_sampling_init(&p, NULL);
    p.temperature = temperature;
    p.top_k = 0;
    p.top_p = 1;
    p.seed = 42;
    return p;
}

static rl_sampler *create(uint32_t n_vocab, const rl_sampling *p)
{
    rl_sampler *s = NULL;
    rl_error err = {0};
    model.hp.n_vocab = n_vocab;
    rl_assert_ok(rl_sampler_create(&engine, p, &s, &err), &err);
    return s;
}

static int32_t sample(rl_sampler *s, const float *logits)
{
    int32_t id = -1;
    rl_error err = {0};
    rl_assert_ok(rl_sampler_sample(s, logits, &id, &err), &err);
    return id;
}

static int32_t sample_once(uint32_t n_vocab, const rl_sampling *p, const float *logits)
{
    rl_sampler *s = create(n_vocab, p);
    int32_t id = sample(s, logits);
    rl_sampler_free(s);
    return id;
}

/* ---- The generator --------------------------------------------------------------------------------------------------- */

static void test_mersenne_twister(void **state)
{
    (void)state;
    rl_random r;
    rl_random_seed(&r, 5489); /* the C++ standard states the 10000th output of the default seed */
    uint32_t v = rl_random_u32(&r);
    assert_int_equal(v, 3499211612u);
    for (int i = 1; i < 10000; i++)
        v = rl_random_u32(&r);
    assert_int_equal(v, 4123659995u);
    rl_random_seed(&r, 42); /* outputs 1608637542 and 3421126067 */
    assert_true(fabs(rl_random_unit(&r) - (1608637542.0 / 4294967296.0 + 3421126067.0) / 4294967296.0) < 1e-15);
}

/* ---- Greedy, bias and penalties -------------------------------------------------------------------------------------- */

static void test_greedy_takes_largest_and_lower_id_of_equals(void **state)
{
    (void)state;
    const float logits[] = {1, 3, 2, 3, -INFINITY};
    rl_sampling p = neutral(0);
    assert_int_equal(sample_once(5, &p, logits), 1);
}

static void test_bias(void **state)
{
    (void)state;
    const float logits[] = {1, 3, 2, 0};
    const rl_logit_bias bias[] = {{1, -INFINITY}, {3, 2.5f}};
    rl_sampling p = neutral(0);
    p.bias = bias;
    p.n_bias = 1;
    assert_int_equal(sample_once(4, &p, logits), 2);
    p.n_bias = 2; /* 0 + 2.5 is above 2 */
    assert_int_equal(sample_once(4, &p, logits), 3);
}

/* repeat 2, frequency 0.5, presence 0.25; id 0 seen twice, id 1 once:
 *   l0 = 2/2 - (2*0.5 + 0.25) = -0.25     l1 = -2*2 - (0.5 + 0.25) = -4.75     l2 = x as it is
 * so id 2 wins exactly while x is above -0.25. */
static void test_penalties(void **state)
{
    (void)state;
    rl_sampling p = neutral(0);
    p.repeat_penalty = 2;
    p.frequency_penalty = 0.5f;
    p.presence_penalty = 0.25f;
    for (int above = 0; above < 2; above++) {
        const float logits[] = {2, -2, above ? -0.2499f : -0.2501f};
        rl_sampler *s = create(3, &p);
        rl_sampler_accept(s, 0);
        rl_sampler_accept(s, 1);
        rl_sampler_accept(s, 0);
        assert_int_equal(sample(s, logits), above ? 2 : 0);
        rl_sampler_reset(s); /* forgets them: 2 is largest again */
        assert_int_equal(sample(s, logits), 0);
        rl_sampler_free(s);
    }
}

static void test_penalty_window(void **state)
{
    (void)state;
    const float logits[] = {2, 1, 0};
    rl_sampling p = neutral(0);
    p.presence_penalty = 10;
    p.penalty_last_n = 2;
    rl_sampler *s = create(3, &p);
    rl_sampler_accept(s, 0);
    assert_int_equal(sample(s, logits), 1);
    rl_sampler_accept(s, 1);
    assert_int_equal(sample(s, logits), 2);
    rl_sampler_accept(s, 2); /* 0 has left the window */
    assert_int_equal(sample(s, logits), 0);
    rl_sampler_free(s);
    p.penalty_last_n = -1; /* never leaves */
    s = create(3, &p);
    for (int i = 0; i < 3; i++)
        rl_sampler_accept(s, i == 0 ? 0 : 1);
    assert_int_equal(sample(s, logits), 2);
    rl_sampler_free(s);
    p.penalty_last_n = 0; /* off */
    s = create(3, &p);
    rl_sampler_accept(s, 0);
    assert_int_equal(sample(s, logits), 0);
    rl_sampler_free(s);
}

/* ---- Cuts and draws -------------------------------------------------------------------------------------------------- */

/* Ids that are ever drawn, as bits, over many draws. */
static uint32_t support_of(const rl_sampling *p, uint32_t n, const float *logits)
{
    rl_sampler *s = create(n, p);
    uint32_t seen = 0;
    for (int i = 0; i < 4000; i++)
        seen |= 1u << sample(s, logits);
    rl_sampler_free(s);
    return seen;
}

/* Probabilities 0.4, 0.3, 0.2, 0.1 for ids 2, 0, 3, 1. */
static const float spread[] = {-1.2039728f, -2.3025851f, -0.9162907f, -1.6094379f};

static void test_top_k(void **state)
{
    (void)state;
    rl_sampling p = neutral(1);
    assert_int_equal(support_of(&p, 4, spread), 0xf);
    p.top_k = 1;
    assert_int_equal(support_of(&p, 4, spread), 1u << 2);
    p.top_k = 3;
    assert_int_equal(support_of(&p, 4, spread), 1u << 2 | 1u << 0 | 1u << 3);
    p.top_k = 100;
    assert_int_equal(support_of(&p, 4, spread), 0xf);
    const float ties[] = {1, 1, 1, 1}; /* the lower ids stay */
    p.top_k = 2;
    assert_int_equal(support_of(&p, 4, ties), 3);
}

static void test_top_p(void **state)
{
    (void)state;
    rl_sampling p = neutral(1);
    p.top_p = 0.39f; /* the first one already reaches it */
    assert_int_equal(support_of(&p, 4, spread), 1u << 2);
    p.top_p = 0.41f;
    assert_int_equal(support_of(&p, 4, spread), 1u << 2 | 1u << 0);
    p.top_p = 0.71f;
    assert_int_equal(support_of(&p, 4, spread), 1u << 2 | 1u << 0 | 1u << 3);
    p.top_p = 0.41f; /* after top-k 2 the two have 4/7 and 3/7: one is enough */
    p.top_k = 2;
    assert_int_equal(support_of(&p, 4, spread), 1u << 2);
    p.top_k = 0;
    p.top_p = 0; /* always keeps one */
    assert_int_equal(support_of(&p, 4, spread), 1u << 2);
}

static void test_min_p(void **state)
{
    (void)state;
    rl_sampling p = neutral(1);
    p.min_p = 0.49f; /* at least 0.196 */
    assert_int_equal(support_of(&p, 4, spread), 1u << 2 | 1u << 0 | 1u << 3);
    p.min_p = 0.51f;
    assert_int_equal(support_of(&p, 4, spread), 1u << 2 | 1u << 0);
    p.min_p = 1;
    assert_int_equal(support_of(&p, 4, spread), 1u << 2);
    p.min_p = 0.51f; /* the cut comes before the temperature, so heat does not widen it */
    p.temperature = 10;
    assert_int_equal(support_of(&p, 4, spread), 1u << 2 | 1u << 0);
}

/* Seed 42 gives u = 0.79654. Cumulative in falling order 0.4 0.7 0.9 1: id 3. In the order of ids (nothing sorts): 0.3 0.4 0.8:
 * id 2. */
static void test_draw_follows_the_order_of_candidates(void **state)
{
    (void)state;
    rl_sampling p = neutral(1);
    assert_int_equal(sample_once(4, &p, spread), 2);
    p.top_k = 4;
    assert_int_equal(sample_once(4, &p, spread), 3);
    p.temperature = 0.5f; /* squares: 16 9 4 1 of 30: 0.533 0.833: id 0 */
    assert_int_equal(sample_once(4, &p, spread), 0);
}

/* The generator moves even where there is nothing to choose: u is 0.18343 the second time, within id 0's 0.3. */
static void test_draw_from_one_candidate_counts(void **state)
{
    (void)state;
    const float one[] = {-INFINITY, -INFINITY, 1, -INFINITY};
    rl_sampling p = neutral(1);
    rl_sampler *s = create(4, &p);
    assert_int_equal(sample(s, one), 2);
    assert_int_equal(sample(s, spread), 0);
    rl_sampler_free(s);
}

static void test_frequencies(void **state)
{
    (void)state;
    rl_sampling p = neutral(1);
    rl_sampler *s = create(4, &p);
    int count[4] = {0}, n = 40000;
    for (int i = 0; i < n; i++)
        count[sample(s, spread)]++;
    const double want[] = {0.3, 0.1, 0.4, 0.2};
    for (int i = 0; i < 4; i++) /* five standard deviations */
        assert_true(fabs(count[i] / (double)n - want[i]) < 5 * sqrt(want[i] * (1 - want[i]) / n));
    rl_sampler_free(s);
}

/* A long tail, so that top-p has to sort further than its first piece: equal logits, of which ceil(p * n) stay, the lower ids.
 */
static void test_top_p_over_a_large_flat_vocabulary(void **state)
{
    (void)state;
    enum { N = 8192 };
    float *logits = calloc(N, sizeof *logits);
    assert_non_null(logits);
    rl_sampling p = neutral(1);
    p.top_p = 0.5f;
    rl_sampler *s = create(N, &p);
    int32_t most = 0;
    for (int i = 0; i < 20000; i++) {
        int32_t id = sample(s, logits);
        if (id > most) most = id;
    }
    assert_in_range(most, N / 2 - 50, N / 2 - 1);
    rl_sampler_free(s);
    free(logits);
}

/* Logits divided by a denormal number overflow: the draw must still be the likeliest, whatever cuts are on. */
static void test_temperatures_near_zero(void **state)
{
    (void)state;
    const float rising[] = {1, 3, 2, -4}, below[] = {-1, -3, -2, -4};
    for (int cuts = 0; cuts < 2; cuts++) {
        rl_sampling p = neutral(1e-40f);
        p.top_k = cuts ? 3 : 0;
        assert_int_equal(sample_once(4, &p, rising), 1);
        assert_int_equal(sample_once(4, &p, below), 0);
    }
}

static void test_seed_repeats(void **state)
{
    (void)state;
    rl_sampling p = neutral(1);
    p.seed = RL_SEED_RANDOM;
    rl_sampler *a = create(4, &p);
    assert_int_not_equal(rl_sampler_seed(a), RL_SEED_RANDOM);
    p.seed = rl_sampler_seed(a);
    rl_sampler *b = create(4, &p);
    int32_t first[64];
    for (int i = 0; i < 64; i++) {
        first[i] = sample(a, spread);
        assert_int_equal(first[i], sample(b, spread));
    }
    rl_sampler_reset(a);
    for (int i = 0; i < 64; i++)
        assert_int_equal(sample(a, spread), first[i]);
    rl_sampler_free(a);
    rl_sampler_free(b);
}

/* ---- Constraints ----------------------------------------------------------------------------------------------------- */

typedef struct rule {
    uint32_t bits;
    int asked, masked;
} rule;

static bool rule_allows(void *ctx, int32_t id)
{
    rule *r = ctx;
    r->asked++;
    return r->bits >> id & 1;
}

static void rule_mask(void *ctx, uint64_t *bits, uint32_t n_vocab)
{
    rule *r = ctx;
    r->masked++;
    for (uint32_t i = 0; i < n_vocab; i++)
        if (!(r->bits >> i & 1)) bits[i / 64] &= ~(1ull << i % 64);
}

static void test_constraint(void **state)
{
    (void)state;
    const float logits[] = {1, 4, 2, 3};
    rule r = {.bits = 0x5};
    rl_constraint c = {rule_allows, rule_mask, &r};
    rl_sampling p = neutral(0);
    rl_sampler *s = create(4, &p);
    rl_sampler_set_constraint(s, &c);
    assert_int_equal(sample(s, logits), 2); /* 1 is refused, 2 is the largest allowed */
    assert_int_equal(r.masked, 1);
    r = (rule){.bits = 0x2};
    assert_int_equal(sample(s, logits), 1); /* allowed at once: no mask is asked for */
    assert_int_equal(r.masked, 0);
    c.allows = NULL;
    r.bits = 0x8;
    rl_sampler_set_constraint(s, &c);
    assert_int_equal(sample(s, logits), 3);
    r.bits = 0;
    rl_error err = {0};
    int32_t id = -7;
    rl_assert_fails(rl_sampler_sample(s, logits, &id, &err), RL_ERR_LIMIT, &err, "leaves no token");
    assert_int_equal(id, -7);
    rl_sampler_set_constraint(s, NULL);
    assert_int_equal(sample(s, logits), 1);
    rl_sampler_free(s);
}

/* ---- Log probabilities and bad input --------------------------------------------------------------------------------- */

static void test_logprobs(void **state)
{
    (void)state;
    rl_logprob top[8];
    assert_int_equal(rl_logprobs_top(spread, 4, top, 8), 4);
    const int32_t ids[] = {2, 0, 3, 1};
    const double p[] = {0.4, 0.3, 0.2, 0.1};
    for (int i = 0; i < 4; i++) {
        assert_int_equal(top[i].id, ids[i]);
        assert_true(fabs(top[i].logprob - log(p[i])) < 1e-6);
        assert_true(fabs(rl_logprob_of(spread, 4, ids[i]) - log(p[i])) < 1e-6);
    }
    assert_int_equal(rl_logprobs_top(spread, 4, top, 2), 2);
    assert_int_equal(top[1].id, 0);
    assert_int_equal(rl_logprobs_top(spread, 4, top, 0), 0);
    const float shifted[] = {1000, 1000, -INFINITY};
    assert_true(fabs(rl_logprob_of(shifted, 3, 1) - log(0.5)) < 1e-6);
    assert_true(isinf(rl_logprob_of(shifted, 3, 2)));
    assert_true(isinf(rl_logprob_of(shifted, 3, 3)));
    const float ties[] = {0, 5, 5, 5};
    rl_logprobs_top(ties, 4, top, 2);
    assert_int_equal(top[0].id, 1);
    assert_int_equal(top[1].id, 2);
}

static void test_rows_without_numbers(void **state)
{
    (void)state;
    rl_sampling p = neutral(1);
    rl_sampler *s = create(3, &p);
    rl_error err = {0};
    int32_t id;
    const float bad[] = {NAN, -INFINITY, NAN}, one[] = {NAN, 2, -INFINITY};
    rl_assert_fails(rl_sampler_sample(s, bad, &id, &err), RL_ERR_INTERNAL, &err, "no finite number");
    assert_int_equal(sample(s, one), 1);
    rl_sampler_free(s);
}

static void test_ranges(void **state)
{
    (void)state;
    rl_error err = {0};
    rl_sampling p = neutral(-1);
    rl_assert_fails(rl_sampling_check(&p, &err), RL_ERR_ARGUMENT, &err, "temperature is -1; expected 0 to 100");
    p = neutral(NAN);
    rl_assert_fails(rl_sampling_check(&p, &err), RL_ERR_ARGUMENT, &err, "temperature");
    p = neutral(1);
    p.top_p = 1.5f;
    rl_assert_fails(rl_sampling_check(&p, &err), RL_ERR_ARGUMENT, &err, "top_p is 1.5");
    p = neutral(1);
    p.repeat_penalty = 0;
    rl_assert_fails(rl_sampling_check(&p, &err), RL_ERR_ARGUMENT, &err, "repeat_penalty");
    p = neutral(1);
    const rl_logit_bias outside = {4, 1}, bad = {0, NAN};
    p.bias = &outside;
    p.n_bias = 1;
    rl_sampler *s = NULL;
    model.hp.n_vocab = 4;
    rl_assert_fails(rl_sampler_create(&engine, &p, &s, &err), RL_ERR_ARGUMENT, &err, "token 4");
    p.bias = &bad;
    rl_assert_fails(rl_sampler_create(&engine, &p, &s, &err), RL_ERR_ARGUMENT, &err, "not a number");
    assert_null(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mersenne_twister),
        cmocka_unit_test(test_greedy_takes_largest_and_lower_id_of_equals),
        cmocka_unit_test(test_bias),
        cmocka_unit_test(test_penalties),
        cmocka_unit_test(test_penalty_window),
        cmocka_unit_test(test_top_k),
        cmocka_unit_test(test_top_p),
        cmocka_unit_test(test_min_p),
        cmocka_unit_test(test_draw_follows_the_order_of_candidates),
        cmocka_unit_test(test_draw_from_one_candidate_counts),
        cmocka_unit_test(test_frequencies),
        cmocka_unit_test(test_top_p_over_a_large_flat_vocabulary),
        cmocka_unit_test(test_temperatures_near_zero),
        cmocka_unit_test(test_seed_repeats),
        cmocka_unit_test(test_constraint),
        cmocka_unit_test(test_logprobs),
        cmocka_unit_test(test_rows_without_numbers),
        cmocka_unit_test(test_ranges),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
