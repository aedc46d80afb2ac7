/* The cpu backend on the trained test model against values of the reference implementation. */
#include "support/passes.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { V = 4096, ROWS_MAX = 64 };

typedef struct vector {
    int32_t *ids;
    uint32_t n, n_rows; /* of logits: the last n_rows positions */
    float *logits;
    int32_t greedy[64];
} vector;

static int32_t *read_ids(const char *name, const char *ending, uint32_t *n)
{
    char file[128], path[PATH_MAX];
    snprintf(file, sizeof file, "spec/vectors/%s.%s", name, ending);
    assert_non_null(rl_test_shared(path, file));
    char *text = rl_test_read(path, NULL);
    int32_t *ids = malloc((strlen(text) + 1) * sizeof *ids);
    assert_non_null(ids);
    *n = 0;
    for (char *p = text, *end;; p = end) {
        const long id = strtol(p, &end, 10);
        if (end == p) break;
        ids[(*n)++] = (int32_t)id;
    }
    free(text);
    return ids;
}

static vector read_vector(const char *name)
{
    vector v = {0};
    v.ids = read_ids(name, "ids", &v.n);
    uint32_t n;
    int32_t *greedy = read_ids(name, "greedy", &n);
    assert_int_equal(n, 64);
    memcpy(v.greedy, greedy, sizeof v.greedy);
    free(greedy);
    char file[128], path[PATH_MAX];
    snprintf(file, sizeof file, "spec/vectors/%s.logits.f32", name);
    assert_non_null(rl_test_shared(path, file));
    size_t bytes;
    v.logits = (float *)(void *)rl_test_read(path, &bytes);
    v.n_rows = (uint32_t)(bytes / sizeof(float) / V);
    assert_true(v.n_rows > 0 && v.n_rows <= v.n);
    return v;
}

static void free_vector(vector *v)
{
    free(v->ids);
    free(v->logits);
}

static rl_model *open_model(void)
{
    char path[PATH_MAX];
    rl_error err = {0};
    rl_model *m = NULL;
    if (!rl_test_shared(path, "models/tiny-bf16.gguf")) return NULL;
    rl_assert_ok(rl_model_open(path, &m, &err), &err);
    return m;
}

/* The prompt in one pass, then `steps` greedy steps. */
static void check(rl_model *m, const char *name, pass_options o, double bound, uint32_t steps)
{
    vector v = read_vector(name);
    o.threads = 2;
    o.max_rows = v.n;
    rl_backend *b = pass_open(m, o);
    rl_seq *s = pass_seq(b, v.n + 64);
    float *out = malloc((size_t)v.n_rows * V * sizeof *out);
    assert_non_null(out);
    if (v.n > v.n_rows) pass_run(s, v.ids, v.n - v.n_rows, v.n, NULL);
    pass_run(s, v.ids + v.n - v.n_rows, v.n_rows, v.n, out);
    const double worst = rl_max_abs_diff(out, v.logits, (size_t)v.n_rows * V);
    if (!(worst < bound)) fail_msg("%s: logits differ by %g, bound %g", name, worst, bound);
    for (uint32_t r = 0; r < v.n_rows && o.precision == RL_PRECISION_EXACT; r++)
        assert_int_equal(pass_argmax(out + (size_t)r * V, V), pass_argmax(v.logits + (size_t)r * V, V));
    memmove(out, out + (size_t)(v.n_rows - 1) * V, V * sizeof *out);
    for (uint32_t i = 0; i < steps; i++) {
        const int32_t id = (int32_t)pass_argmax(out, V);
        assert_int_equal(id, v.greedy[i]);
        pass_last(s, &id, 1, out);
    }
    free(out);
    free_vector(&v);
    b->ops->seq_free(s);
    b->ops->close(b);
}

#define REQUIRE_MODEL(m)                                                                                                       \
    rl_model *m;                                                                                                               \
    do {                                                                                                                       \
        char need_[PATH_MAX];                                                                                                  \
        RL_REQUIRE_SHARED(need_, "models/tiny-bf16.gguf");                                                                     \
        RL_REQUIRE_SHARED(need_, "spec/vectors/story.ids");                                                                    \
        m = open_model();                                                                                                      \
    } while (0)

static void test_prompts_exact(void **state)
{
    (void)state;
    REQUIRE_MODEL(m);
    check(m, "story", (pass_options){0}, 2e-3, 64);
    check(m, "chat", (pass_options){0}, 2e-3, 16);
    rl_model_close(m);
}

static void test_long_prompt_exact(void **state)
{
    (void)state;
    REQUIRE_MODEL(m);
    check(m, "long1100", (pass_options){0}, 2e-3, 8);
    rl_model_close(m);
}

/* The file's weights are BF16 and multiplied as floats in both precisions; keys and values rounded to half stay close. */
static void test_kv_f16(void **state)
{
    (void)state;
    REQUIRE_MODEL(m);
    check(m, "story", (pass_options){.kv = RL_KV_F16}, 0.1, 64);
    rl_model_close(m);
}

static void test_mtp(void **state)
{
    (void)state;
    REQUIRE_MODEL(m);
    vector v = read_vector("story");
    char path[PATH_MAX];
    RL_REQUIRE_SHARED(path, "spec/vectors/story.mtp.f32");
    size_t bytes;
    float *want = (float *)(void *)rl_test_read(path, &bytes);
    assert_int_equal(bytes, (v.n - 1) * V * sizeof(float));
    rl_backend *b = pass_open(m, (pass_options){.threads = 2, .max_rows = v.n});
    rl_seq *s = pass_seq(b, v.n);
    float *hidden = malloc((size_t)v.n * m->hp.n_embd * sizeof *hidden), *got = malloc(bytes);
    const rl_segment g = {s, v.ids, v.n, RL_LOGITS_NONE};
    const rl_pass p = {.segments = &g, .n_segments = 1, .hidden = hidden};
    rl_error err = {0};
    rl_assert_ok(b->ops->forward(b, &p, &err), &err);
    rl_assert_ok(b->ops->mtp(b, s, v.ids + 1, hidden, v.n - 1, got, NULL, &err), &err);
    rl_assert_close(got, want, bytes / sizeof(float), 2e-3, 0);
    free(hidden);
    free(got);
    free(want);
    free_vector(&v);
    b->ops->seq_free(s);
    b->ops->close(b);
    rl_model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prompts_exact),
        cmocka_unit_test(test_long_prompt_exact),
        cmocka_unit_test(test_kv_f16),
        cmocka_unit_test(test_mtp),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
