/* The reference backend on the source-precision model: every prompt, every given position, 64 greedy ids, layer outputs, named
 * stages, the recurrent state and the MTP block; and all that is given for the quantised ones. */
#include "backend/state.h"
#include "support/support.h"
#include "support/vectors.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define TOLERANCE 2e-4

static rl_model *model;
static rl_backend *backend;
static char dir[PATH_MAX];

static int setup(void **state)
{
    (void)state;
    char path[PATH_MAX];
    rl_error err;
    if (!rl_test_shared(path, "models/tiny-bf16.gguf") || !rl_test_shared(dir, "spec/vectors")) return 0;
    const rl_backend_options options = {.max_rows = 512};
    rl_assert_ok(rl_model_open(path, &model, &err), &err);
    rl_assert_ok(rl_backend_find("ref")->open(model, &options, &backend, &err), &err);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    if (backend) backend->ops->close(backend);
    rl_model_close(model);
    return 0;
}

#define REQUIRE_MODEL()                                                                                                        \
    do {                                                                                                                       \
        char path_[PATH_MAX];                                                                                                  \
        RL_REQUIRE_SHARED(path_, "models/tiny-bf16.gguf");                                                                     \
    } while (0)

static void check_prompt(rl_backend *b, const char *from, const char *name)
{
    vec_prompt p;
    vec_result r;
    vec_prompt_load(&p, from, name, b->model->hp.n_vocab);
    vec_judge(b, &p, 512, 64, &r);
    print_message("%s: %u rows, largest difference %.2e\n", name, r.rows, r.max_abs);
    assert_int_equal(r.rows, p.n_rows);
    assert_true(r.max_abs < TOLERANCE);
    assert_int_equal(r.argmax_differ, 0);
    assert_int_equal(r.n_greedy, 64);
    assert_int_equal(r.greedy_differ, 0);
    vec_prompt_free(&p);
}

static void logits_and_greedy(void **state)
{
    (void)state;
    REQUIRE_MODEL();
    static const char *const names[] = {"story", "chat", "unicode", "numbers", "code", "layout", "long1100", "long4000"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        check_prompt(backend, dir, names[i]);
}

static void check_model(const char *path, const char *from, const char *const *names)
{
    rl_model *m;
    rl_backend *b;
    rl_error err;
    const rl_backend_options options = {.max_rows = 512};
    rl_assert_ok(rl_model_open(path, &m, &err), &err);
    rl_assert_ok(rl_backend_find("ref")->open(m, &options, &b, &err), &err);
    for (; *names; names++)
        check_prompt(b, from, *names);
    b->ops->close(b);
    rl_model_close(m);
}

static void bundled_model(void **state)
{
    (void)state;
    static const char *const names[] = {"story", "chat", "code", NULL};
    check_model(REDLITE_SOURCE_DIR "/models/tiny-q4_k_m.gguf", REDLITE_TEST_DATA "/model/tiny-q4_k_m", names);
}

static void two_bit_mix(void **state)
{
    (void)state;
    char path[PATH_MAX];
    static const char *const names[] = {"story", "chat", NULL};
    RL_REQUIRE_SHARED(path, "models/tiny-IQ2_MIX.gguf");
    check_model(path, REDLITE_TEST_DATA "/model/tiny-iq2_mix", names);
}

static void mtp_logits(void **state)
{
    (void)state;
    REQUIRE_MODEL();
    static const char *const names[] = {"story", "chat", "long1100"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        vec_prompt p;
        vec_result r;
        vec_prompt_load(&p, dir, names[i], model->hp.n_vocab);
        vec_judge_mtp(backend, &p, dir, 512, &r);
        print_message("%s: %u MTP rows, largest difference %.2e\n", names[i], r.rows, r.max_abs);
        assert_true(r.rows >= 64);
        assert_true(r.max_abs < TOLERANCE);
        assert_int_equal(r.argmax_differ, 0);
        vec_prompt_free(&p);
    }
}

typedef struct layer_outputs {
    const float *want;
    uint32_t n_positions;
    double max_abs;
    uint32_t layers;
} layer_outputs;

static rl_status layer_tap(void *ctx, rl_stage stage, uint32_t layer, uint32_t row0, uint32_t n_rows, uint32_t width,
                           float *data)
{
    layer_outputs *o = ctx;
    if (stage != RL_STAGE_LAYER_OUT) return RL_OK;
    const float *want = o->want + ((size_t)layer * o->n_positions + row0) * width;
    o->max_abs = fmax(o->max_abs, rl_max_abs_diff(data, want, (size_t)n_rows * width));
    o->layers++;
    return RL_OK;
}

static void outputs_of_every_layer(void **state)
{
    (void)state;
    REQUIRE_MODEL();
    vec_prompt p;
    rl_seq *s;
    rl_error err;
    char path[PATH_MAX];
    size_t size;
    vec_prompt_load(&p, dir, "story", model->hp.n_vocab);
    float *want = (float *)rl_test_read(rl_test_join(path, dir, "story.l_out.f32"), &size);
    assert_int_equal(size, (size_t)model->hp.n_layer * p.n_ids * model->hp.n_embd * sizeof(float));
    layer_outputs o = {.want = want, .n_positions = p.n_ids};
    rl_assert_ok(backend->ops->seq_create(backend, p.n_ids, &s, &err), &err);
    const rl_segment segment = {s, p.ids, p.n_ids, RL_LOGITS_NONE};
    const rl_pass pass = {.segments = &segment, .n_segments = 1, .tap = layer_tap, .tap_ctx = &o};
    rl_assert_ok(backend->ops->forward(backend, &pass, &err), &err);
    assert_int_equal(o.layers, model->hp.n_layer);
    print_message("layer outputs: largest difference %.2e\n", o.max_abs);
    assert_true(o.max_abs < TOLERANCE);
    backend->ops->seq_free(s);
    free(want);
    vec_prompt_free(&p);
}

typedef struct bytes {
    uint8_t *data;
    size_t n, cap;
} bytes;

static rl_status keep_bytes(void *ctx, const void *data, size_t n, rl_error *err)
{
    bytes *b = ctx;
    (void)err;
    if (b->n + n > b->cap) {
        b->cap = 2 * (b->n + n);
        b->data = realloc(b->data, b->cap);
        assert_non_null(b->data);
    }
    memcpy(b->data + b->n, data, n);
    b->n += n;
    return RL_OK;
}

/* The exported state of layer 0 is the one the vectors hold, [value head][value index][key index]. */
static void named_stages_and_state(void **state)
{
    (void)state;
    REQUIRE_MODEL();
    vec_prompt p;
    vec_stages stages;
    double max_abs;
    char worst[32];
    vec_prompt_load(&p, dir, "story", model->hp.n_vocab);
    vec_stages_load(&stages, dir, model->hp.n_embd);
    assert_true(vec_judge_stages(backend, &stages, &p, &max_abs, worst) >= 40);
    print_message("stages: largest difference %.2e at %s\n", max_abs, worst);
    assert_true(max_abs < TOLERANCE);

    rl_seq *s;
    rl_error err;
    bytes b = {0};
    rl_assert_ok(backend->ops->seq_create(backend, 16, &s, &err), &err);
    const rl_segment segment = {s, p.ids, (uint32_t)stages.n_ids, RL_LOGITS_NONE};
    const rl_pass pass = {.segments = &segment, .n_segments = 1};
    rl_assert_ok(backend->ops->forward(backend, &pass, &err), &err);
    rl_assert_ok(backend->ops->seq_export(s, keep_bytes, &b, &err), &err);
    size_t count;
    const float *want = vec_stage(&stages, "L0.state", &count);
    const uint8_t *at = b.data + 64 + (size_t)(model->hp.dn_conv - 1) * model->hp.dn_conv_dim * sizeof(double);
    assert_non_null(want);
    assert_true((size_t)(at - b.data) + count * sizeof(double) <= b.n);
    double worst_state = 0;
    for (size_t i = 0; i < count; i++) {
        double v;
        memcpy(&v, at + i * sizeof v, sizeof v);
        worst_state = fmax(worst_state, fabs(v - (double)want[i]));
    }
    assert_true(worst_state < 1e-5);
    free(b.data);
    backend->ops->seq_free(s);
    vec_stages_free(&stages);
    vec_prompt_free(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bundled_model),          cmocka_unit_test(two_bit_mix), cmocka_unit_test(named_stages_and_state),
        cmocka_unit_test(outputs_of_every_layer), cmocka_unit_test(mtp_logits),  cmocka_unit_test(logits_and_greedy),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
