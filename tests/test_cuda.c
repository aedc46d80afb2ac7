/* CUDA backend: its loader everywhere; kernels and parity where there is a GPU. */
#include "backend/backend.h"
#include "support/support.h"

#include <string.h>

static bool gpu_or_skip(const char *test)
{
    char why[512];
    if (rl_gpu_describe(why, sizeof why)) return true;
    print_message("[ SKIP     ] %s: %s\n", test, why);
    return false;
}

static void without_gpu_says_why(void **state)
{
    (void)state;
    char text[512] = "";
    const bool usable = rl_gpu_describe(text, sizeof text);
    assert_true(strlen(text) > 10);
    assert_true((rl_backend_find("cuda") != NULL) == usable);
    assert_non_null(rl_backend_find("auto"));
    if (usable) return;
    rl_error err = {0};
    assert_int_equal(rl_gpu_selftest(1, &err), RL_ERR_DEVICE);
    assert_non_null(strstr(err.text, text));
}

static void kernels_agree(void **state)
{
    (void)state;
    if (!gpu_or_skip(__func__)) skip();
    rl_error err = {0};
    for (uint64_t seed = 1; seed <= 2; seed++)
        rl_assert_ok(rl_gpu_selftest(seed, &err), &err);
}

static void parity_on_bundled_model(void **state)
{
    (void)state;
    if (!gpu_or_skip(__func__)) skip();
    static const int32_t ids[] = {12, 100, 7, 2000, 3071, 55, 55, 901, 17, 4000, 3, 1234, 88, 2047, 610, 5};
    /* Batch 1 goes through the fused decode kernels where no tap watches, that is in the free run. */
    for (int variant = 0; variant < 4; variant++) {
        const bool fast = variant & 1;
        const rl_parity_options o = {.model = REDLITE_SOURCE_DIR "/models/tiny-q4_k_m.gguf",
                                     .judge = "ref",
                                     .tested = "cuda",
                                     .isa = "auto",
                                     .precision = fast ? RL_PRECISION_FAST : RL_PRECISION_EXACT,
                                     .kv = RL_KV_F32,
                                     .batch = variant & 2 ? 1 : 0,
                                     .ids = ids,
                                     .n = sizeof ids / sizeof *ids};
        rl_parity_report *report;
        rl_error err = {0};
        rl_assert_ok(rl_parity(&o, &report, &err), &err);
        for (uint32_t i = 0; i < report->n_stages; i++) {
            const rl_parity_stage *st = &report->stages[i];
            assert_true(st->rms_error <= (fast ? 2e-3 : 1e-6) * st->rms);
        }
        /* A router's near-tie may fall the other way when activations are rounded; float32 has no such excuse. */
        assert_true(report->kl_mean < (fast ? 0.1 : 1e-6));
        if (!fast) {
            assert_true(report->logits_max_abs < 1e-3);
            assert_int_equal(report->argmax_mismatches, 0);
            assert_int_equal(report->router_mismatches, 0);
        }
        rl_parity_report_free(report);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_gpu_says_why),
        cmocka_unit_test(kernels_agree),
        cmocka_unit_test(parity_on_bundled_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
