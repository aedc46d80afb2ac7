/* The planner: control groups read from a made-up tree, what is chosen, what is refused, and an engine that runs by it. */
#include "engine/cgroup.h"
#include "engine/engine.h"
#include "support/support.h"
#include "support/tiny_model.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void write_in(const char *root, const char *dir, const char *file, const char *text)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/", root);
    for (const char *p = dir; *p;) { /* every directory on the way */
        const size_t n = strcspn(p, "/"), used = strlen(path);
        snprintf(path + used, sizeof path - used, "%.*s/", (int)n, p);
        mkdir(path, 0777);
        p += n + (p[n] == '/');
    }
    const size_t used = strlen(path);
    snprintf(path + used, sizeof path - used, "%s", file);
    rl_test_write(path, text, strlen(text));
}

static void reads_groups_of_both_versions(void **state)
{
    (void)state;
    char root[PATH_MAX];
    uint64_t limit, left;
    rl_test_tmpdir(root);
    rl_cgroup_memory(root, "0::/\n", &limit, &left);
    assert_int_equal(limit, 0);
    assert_int_equal(left, 0);

    write_in(root, "a", "memory.max", "1000000\n");
    write_in(root, "a", "memory.current", "600000\n");
    write_in(root, "a", "memory.stat", "anon 1\ninactive_file 100000\nactive_file 50000\n");
    write_in(root, "a/b", "memory.max", "max\n");
    rl_cgroup_memory(root, "0::/a/b\n", &limit, &left);
    assert_int_equal(limit, 1000000);
    assert_int_equal(left, 550000); /* the cache can be given back */

    write_in(root, "a/b", "memory.max", "2000000\n");
    write_in(root, "a/b", "memory.current", "1900000\n");
    rl_cgroup_memory(root, "0::/a/b\n", &limit, &left);
    assert_int_equal(limit, 1000000);
    assert_int_equal(left, 100000);

    write_in(root, "memory/x", "memory.limit_in_bytes", "800000\n");
    write_in(root, "memory/x", "memory.usage_in_bytes", "900000\n");
    write_in(root, "memory", "memory.limit_in_bytes", "9223372036854771712\n");
    rl_cgroup_memory(root, "7:cpu:/x\n4:memory:/x\n0::/\n", &limit, &left);
    assert_int_equal(limit, 800000);
    assert_int_equal(left, 1); /* none, and not "no limit" */
    rl_cgroup_memory(root, "nonsense", &limit, &left);
    assert_int_equal(limit, 0);
    rl_test_rmdir(root);
}

static rl_engine_options options(const char *path)
{
    rl_engine_options o;
    rl_engine_options_init(&o);
    o.model = path;
    o.backend = "cpu";
    o.context = 64;
    o.threads = 1;
    return o;
}

static void plans_by_size(void **state)
{
    (void)state;
    tiny_params p = tiny_defaults();
    p.n_expert = 32;
    rl_model *m = tiny_open(&p);
    rl_engine_options o = options("");
    rl_plan plan;
    rl_error err = {0};
    rl_assert_ok(rl_plan_model(m, &o, true, false, &plan, &err), &err);
    assert_int_equal(plan.residency, RL_RESIDENCY_MAPPED); /* a file this small fits anywhere */
    assert_true(plan.fits);
    assert_int_equal(plan.batch, 2048);
    assert_true(plan.dense_bytes > 0 && plan.dense_bytes < plan.file_bytes);
    assert_true(plan.token_disk_bytes == 0);

    o.residency = RL_RESIDENCY_BOUNDED;
    o.cache_bytes = plan.cache_all / 2;
    rl_assert_ok(rl_plan_model(m, &o, true, true, &plan, &err), &err);
    assert_int_equal(plan.residency, RL_RESIDENCY_BOUNDED);
    assert_int_equal(plan.cache_bytes, o.cache_bytes);
    assert_true(plan.disk_bytes_per_second > 0);
    assert_true(plan.token_disk_bytes > 0);

    o.residency = RL_RESIDENCY_FULL;
    rl_assert_ok(rl_plan_model(m, &o, true, false, &plan, &err), &err);
    assert_int_equal(plan.cache_bytes, plan.cache_all);
    assert_true(plan.token_disk_bytes == 0);

    /* A session that no machine holds. */
    o.context = RL_MAX_CONTEXT;
    o.residency = RL_RESIDENCY_BOUNDED;
    o.batch = 8192;
    rl_machine_info machine;
    rl_machine(&machine);
    if (machine.memory_available_bytes > 0 && machine.memory_available_bytes < 1ull << 40) {
        rl_status st = rl_plan_model(m, &o, true, false, &plan, &err);
        if (plan.need_bytes > machine.memory_available_bytes) {
            rl_assert_fails(st, RL_ERR_MEMORY, &err, "does not fit");
            assert_false(plan.fits);
            o.force = true;
            rl_assert_ok(rl_plan_model(m, &o, true, false, &plan, &err), &err);
        }
    }
    rl_model_close(m);
}

/* The same greedy text from an engine with its experts in place, all in slots, and in a cache. */
/* The plan is of what opening would run: the same options are refused, and a backend without a cache gets none. */
static void plans_what_would_open(void **state)
{
    (void)state;
    tiny_params p = tiny_defaults();
    char path[PATH_MAX];
    tiny_temp_path(path, sizeof path);
    tiny_write(&p, path);
    rl_error err = {0};
    rl_plan plan;
    rl_engine_options o = options(NULL);
    rl_assert_fails(rl_plan_make(&o, &plan, &err), RL_ERR_ARGUMENT, &err, "no model file");
    o.model = path;
    o.context = 0;
    rl_assert_fails(rl_plan_make(&o, &plan, &err), RL_ERR_ARGUMENT, &err, "context is 0");
    o.context = 64;
    o.backend = "abacus";
    rl_assert_fails(rl_plan_make(&o, &plan, &err), RL_ERR_ARGUMENT, &err, "no backend \"abacus\"");
    o.backend = "ref";
    o.residency = RL_RESIDENCY_FULL;
    rl_assert_ok(rl_plan_make(&o, &plan, &err), &err);
    assert_int_equal(plan.residency, RL_RESIDENCY_MAPPED);
    o.backend = "cpu";
    rl_assert_ok(rl_plan_make(&o, &plan, &err), &err);
    assert_int_equal(plan.residency, RL_RESIDENCY_FULL);
    unlink(path);
}

static void engines_run_by_their_plan(void **state)
{
    (void)state;
    tiny_params p = tiny_defaults();
    p.n_expert = 32;
    char path[PATH_MAX];
    tiny_temp_path(path, sizeof path);
    tiny_write(&p, path);
    const int32_t prompt[] = {3, 1, 4, 1, 5, 9, 2, 6};
    float *logits[3];
    rl_error err = {0};
    static const rl_residency kinds[] = {RL_RESIDENCY_MAPPED, RL_RESIDENCY_FULL, RL_RESIDENCY_BOUNDED};
    size_t vocab = 0;
    for (int i = 0; i < 3; i++) {
        rl_engine_options o = options(path);
        o.residency = kinds[i];
        o.cache_bytes = 1 << 20;
        rl_engine *e;
        rl_session *s;
        rl_assert_ok(rl_engine_open(&o, &e, &err), &err);
        rl_cache_stats c;
        assert_int_equal(rl_engine_cache_stats(e, &c), kinds[i] != RL_RESIDENCY_MAPPED);
        assert_int_equal(c.residency, kinds[i]);
        rl_assert_ok(rl_session_create(e, 0, &s, &err), &err);
        rl_assert_ok(rl_session_extend(s, prompt, 8, NULL, NULL, &err), &err);
        for (int32_t id = 10; id < 20; id++)
            rl_assert_ok(rl_session_extend(s, &id, 1, NULL, NULL, &err), &err);
        vocab = rl_engine_vocab_size(e);
        logits[i] = malloc(vocab * sizeof(float));
        assert_non_null(logits[i]);
        memcpy(logits[i], rl_session_logits(s), vocab * sizeof(float));
        rl_session_free(s);
        rl_engine_close(e);
    }
    rl_assert_same_bits(logits[1], logits[0], vocab);
    rl_assert_same_bits(logits[2], logits[0], vocab);
    for (int i = 0; i < 3; i++)
        free(logits[i]);
    unlink(path);
}

static void records_routing(void **state)
{
    (void)state;
    tiny_params p = tiny_defaults();
    char path[PATH_MAX];
    tiny_temp_path(path, sizeof path);
    tiny_write(&p, path);
    rl_error err = {0};
    rl_engine_options o = options(path);
    rl_engine *e;
    rl_session *s;
    rl_trace *t;
    rl_assert_ok(rl_engine_open(&o, &e, &err), &err);
    const rl_model_info *info = rl_engine_info(e);
    rl_assert_ok(rl_session_create(e, 0, &s, &err), &err);
    rl_assert_ok(rl_trace_create(info->n_layer, info->n_expert, info->n_expert_used, &t, &err), &err);
    const int32_t ids[] = {5, 6, 7, 8, 9};
    rl_assert_ok(rl_trace_record(s, ids, 5, 3, NULL, NULL, t, &err), &err);
    assert_int_equal(rl_trace_tokens(t), 8);
    assert_int_equal(rl_session_position(s), 8);
    rl_sim_result r[RL_SIM_POLICIES];
    rl_assert_ok(rl_cache_sim(t, 1, r, &err), &err);
    assert_int_equal(r[RL_SIM_LRU].uses, 8 * info->n_layer * info->n_expert_used);
    assert_true(r[RL_SIM_LRU].misses <= info->n_layer * info->n_expert);
    rl_trace_free(t);
    rl_assert_ok(rl_trace_create(1, 8, 3, &t, &err), &err);
    rl_assert_fails(rl_trace_record(s, ids, 5, 3, NULL, NULL, t, &err), RL_ERR_ARGUMENT, &err, "another shape");
    rl_trace_free(t);
    rl_session_free(s);
    rl_engine_close(e);
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_groups_of_both_versions),
        cmocka_unit_test(plans_by_size),
        cmocka_unit_test(plans_what_would_open),
        cmocka_unit_test(engines_run_by_their_plan),
        cmocka_unit_test(records_routing),
    };
    return cmocka_run_group_tests_name("planner", tests, NULL, NULL);
}
