/* The reference backend against values computed by another program: the bundled model, and others where they are at hand. */
#include "support/support.h"
#include "support/vectors.h"
#include <stdlib.h>

/* Largest difference of a logit or stage. Both sides see the same weights: theirs in float32, ours in double. */
#define TOLERANCE 2e-4

typedef struct session {
    rl_model *model;
    rl_backend *backend;
} session;

static session open_model(const char *path)
{
    session s;
    rl_error err;
    const rl_backend_options options = {.max_rows = 128};
    rl_assert_ok(rl_model_open(path, &s.model, &err), &err);
    rl_assert_ok(rl_backend_find("ref")->open(s.model, &options, &s.backend, &err), &err);
    return s;
}

static void close_model(session *s)
{
    s->backend->ops->close(s->backend);
    rl_model_close(s->model);
}

static void check_prompt(const session *s, const char *dir, const char *name, uint32_t n_greedy)
{
    vec_prompt p;
    vec_result r;
    vec_prompt_load(&p, dir, name, s->model->hp.n_vocab);
    vec_judge(s->backend, &p, 128, n_greedy, &r);
    print_message("%s: %u rows, largest difference %.2e; %u greedy ids\n", name, r.rows, r.max_abs, r.n_greedy);
    assert_int_equal(r.rows, p.n_rows);
    assert_true(r.max_abs < TOLERANCE);
    assert_int_equal(r.argmax_differ, 0);
    assert_int_equal(r.n_greedy, n_greedy);
    assert_int_equal(r.greedy_differ, 0);
    vec_prompt_free(&p);
}

static void check_stages(const session *s, const char *dir, uint32_t at_least)
{
    vec_prompt p;
    vec_stages stages;
    double max_abs;
    char worst[32];
    vec_prompt_load(&p, dir, "story", s->model->hp.n_vocab);
    vec_stages_load(&stages, dir, s->model->hp.n_embd);
    uint32_t n = vec_judge_stages(s->backend, &stages, &p, &max_abs, worst);
    print_message("%u comparisons of stages, largest difference %.2e at %s\n", n, max_abs, worst);
    assert_true(n >= at_least);
    assert_true(max_abs < TOLERANCE);
    vec_stages_free(&stages);
    vec_prompt_free(&p);
}

static void bundled_model(void **state)
{
    (void)state;
    const char *dir = REDLITE_TEST_DATA "/model/tiny-q4_k_m";
    session s = open_model(REDLITE_SOURCE_DIR "/models/tiny-q4_k_m.gguf");
    check_stages(&s, dir, 40);
    check_prompt(&s, dir, "story", 32);
    check_prompt(&s, dir, "chat", 12);
    close_model(&s);
}

static void two_bit_mix(void **state)
{
    (void)state;
    char path[PATH_MAX];
    RL_REQUIRE_SHARED(path, "models/tiny-IQ2_MIX.gguf");
    const char *dir = REDLITE_TEST_DATA "/model/tiny-iq2_mix";
    session s = open_model(path);
    check_stages(&s, dir, 40);
    check_prompt(&s, dir, "story", 4);
    check_prompt(&s, dir, "chat", 4);
    close_model(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bundled_model),
        cmocka_unit_test(two_bit_mix),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
