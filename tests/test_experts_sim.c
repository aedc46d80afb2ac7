/* Routing traces and replacement policies: values that can be counted by hand, files damaged on purpose. */
#include "experts/sim.h"
#include "support/support.h"

#include <stdlib.h>
#include <string.h>

/* One layer, one expert a token, in the given order. */
static rl_trace *sequence(uint32_t n_expert, const char *experts)
{
    rl_trace *t;
    rl_error err = {0};
    rl_assert_ok(rl_trace_create(1, n_expert, 1, &t, &err), &err);
    for (const char *p = experts; *p; p++)
        *rl_trace_add(t) = (uint16_t)(*p - 'a');
    return t;
}

static void expect(const char *experts, uint32_t slots, uint64_t lru, uint64_t frequency, uint64_t segmented, uint64_t optimal)
{
    rl_trace *t = sequence(8, experts);
    rl_sim_result r[RL_SIM_POLICIES];
    rl_error err = {0};
    rl_assert_ok(rl_cache_sim(t, slots / 8.0, r, &err), &err);
    const uint64_t want[] = {lru, frequency, segmented, optimal};
    for (int p = 0; p < RL_SIM_POLICIES; p++) {
        assert_int_equal(r[p].uses, strlen(experts));
        if (r[p].misses != want[p])
            fail_msg("%s with %u slots, %s: %llu misses, expected %llu", experts, slots, rl_sim_policy_name(r[p].policy),
                     (unsigned long long)r[p].misses, (unsigned long long)want[p]);
    }
    rl_trace_free(t);
}

static void counts_by_hand(void **state)
{
    (void)state;
    expect("aaaa", 1, 1, 1, 1, 1);
    expect("abcabc", 3, 3, 3, 3, 3);
    /* A loop one longer than the cache: the least recently used is always the next one wanted; the
     * optimum keeps two and lets the third pass. */
    expect("abcabcabc", 2, 9, 9, 9, 5);
    /* A popular expert between passers-by. */
    expect("aabacadaea", 2, 5, 5, 5, 5);
    expect("aabcadeafg", 2, 9, 7, 7, 7);
}

static void the_optimum_is_a_bound(void **state)
{
    (void)state;
    rl_error err = {0};
    for (uint64_t seed = 0; seed < 6; seed++) {
        rl_trace *t;
        rl_assert_ok(rl_trace_synth(4, 32, 4, 200, (double)(seed % 3), seed > 2 ? 0.4 : 0, seed, &t, &err), &err);
        assert_int_equal(rl_trace_tokens(t), 200);
        uint64_t before[RL_SIM_POLICIES];
        for (uint32_t quarters = 1; quarters <= 4; quarters++) {
            rl_sim_result r[RL_SIM_POLICIES];
            rl_assert_ok(rl_cache_sim(t, quarters / 4.0, r, &err), &err);
            for (int p = 0; p < RL_SIM_POLICIES; p++) {
                assert_true(r[p].misses >= r[RL_SIM_OPTIMAL].misses);
                assert_true(quarters < 4 || r[p].misses == r[RL_SIM_LRU].misses);
                /* A larger cache of these never misses more (a heap of changing values may). */
                if (quarters > 1 && (p == RL_SIM_LRU || p == RL_SIM_OPTIMAL)) assert_true(r[p].misses <= before[p]);
                before[p] = r[p].misses;
            }
        }
        rl_trace_free(t);
    }
}

static void made_up_routing_is_as_asked(void **state)
{
    (void)state;
    rl_error err = {0};
    rl_trace *t;
    rl_assert_ok(rl_trace_synth(3, 64, 8, 500, 0, 0.5, 1, &t, &err), &err);
    uint64_t again = 0;
    for (uint64_t token = 1; token < 500; token++)
        for (uint32_t layer = 0; layer < 3; layer++) {
            const uint16_t *now = t->ids + (token * 3 + layer) * 8, *before = now - 24;
            for (uint32_t i = 0; i < 8; i++) {
                assert_true(now[i] < 64);
                for (uint32_t j = 0; j < i; j++)
                    assert_int_not_equal(now[i], now[j]);
                for (uint32_t j = 0; j < 8; j++)
                    again += now[i] == before[j];
            }
        }
    const double share = (double)again / (499.0 * 24);
    assert_true(share > 0.45 && share < 0.65);
    rl_trace_free(t);
    /* One expert has nearly all of the popularity and every one is wanted: drawing alone would not end. */
    rl_assert_ok(rl_trace_synth(2, 64, 64, 3, 10, 0.9, 1, &t, &err), &err);
    for (uint32_t i = 0; i < 64; i++)
        for (uint32_t j = 0; j < i; j++)
            assert_int_not_equal(t->ids[i], t->ids[j]);
    rl_trace_free(t);
    rl_assert_fails(rl_trace_synth(3, 64, 8, 5, -1, 0, 1, &t, &err), RL_ERR_ARGUMENT, &err, "zipf");
    rl_assert_fails(rl_trace_synth(3, 64, 65, 5, 0, 0, 1, &t, &err), RL_ERR_FORMAT, &err, "not possible");
}

static void files_keep_traces(void **state)
{
    (void)state;
    char dir[PATH_MAX], path[PATH_MAX];
    rl_test_tmpdir(dir);
    rl_test_join(path, dir, "trace");
    rl_error err = {0};
    rl_trace *t, *u;
    rl_assert_ok(rl_trace_synth(3, 300, 5, 40, 1, 0.2, 7, &t, &err), &err);
    rl_assert_ok(rl_trace_save(t, path, &err), &err);
    rl_assert_ok(rl_trace_load(path, &u, &err), &err);
    assert_int_equal(u->n_layer, 3);
    assert_int_equal(u->n_expert, 300);
    assert_int_equal(u->n_used, 5);
    assert_int_equal(u->n_tokens, 40);
    assert_memory_equal(u->ids, t->ids, 40 * 15 * 2);
    rl_trace_free(u);
    rl_trace_free(t);

    size_t size;
    char *data = rl_test_read(path, &size);
    assert_int_equal(size, 20 + 40 * 15 * 2);
    rl_test_write(path, data, size - 1);
    rl_assert_fails(rl_trace_load(path, &u, &err), RL_ERR_FORMAT, &err, "middle of a token");
    data[21] = (char)0xff; /* an expert beyond the last */
    rl_test_write(path, data, size);
    rl_assert_fails(rl_trace_load(path, &u, &err), RL_ERR_FORMAT, &err, "of 300 at byte 20");
    memset(data + 8, 0xff, 4);
    rl_test_write(path, data, size);
    rl_assert_fails(rl_trace_load(path, &u, &err), RL_ERR_FORMAT, &err, "not possible");
    rl_test_write(path, "RLTRACE0xxxxxxxxxxxxxxxx", 24);
    rl_assert_fails(rl_trace_load(path, &u, &err), RL_ERR_FORMAT, &err, "not a routing trace");
    free(data);
    rl_test_rmdir(dir);
}

static void refuses_impossible_caches(void **state)
{
    (void)state;
    rl_trace *t = sequence(8, "ab");
    rl_sim_result r[RL_SIM_POLICIES];
    rl_error err = {0};
    rl_assert_fails(rl_cache_sim(t, 0, r, &err), RL_ERR_ARGUMENT, &err, "expected a share");
    rl_assert_fails(rl_cache_sim(t, 1.5, r, &err), RL_ERR_ARGUMENT, &err, "expected a share");
    rl_assert_fails(rl_cache_sim(t, 0.1, r, &err), RL_ERR_ARGUMENT, &err, "expected a share");
    rl_trace_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counts_by_hand),
        cmocka_unit_test(the_optimum_is_a_bound),
        cmocka_unit_test(made_up_routing_is_as_asked),
        cmocka_unit_test(files_keep_traces),
        cmocka_unit_test(refuses_impossible_caches),
    };
    return cmocka_run_group_tests_name("cache simulation", tests, NULL, NULL);
}
