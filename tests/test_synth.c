/* Random models: sizes of the presets, contents of blocks, and files that the reader, the model's audit and the tokenizer take.
 */
#include "support/support.h"

#include "model/model.h"
#include "model/synth.h"
#include "model/synth_parts.h"
#include "quant/quant.h"
#include "text/text.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct place {
    char dir[PATH_MAX], a[PATH_MAX], b[PATH_MAX];
} place;

static int setup(void **state)
{
    place *p = malloc(sizeof *p);
    if (!p) return -1;
    rl_test_tmpdir(p->dir);
    rl_test_join(p->a, p->dir, "a.gguf");
    rl_test_join(p->b, p->dir, "b.gguf");
    *state = p;
    return 0;
}

static int teardown(void **state)
{
    place *p = *state;
    rl_test_rmdir(p->dir);
    free(p);
    return 0;
}

static rl_synth_info plan_of(const char *mix, bool mtp)
{
    rl_synth_info info;
    rl_error err = {0};
    const rl_synth_options opt = {.mix = mix, .mtp = mtp};
    rl_assert_ok(rl_synth_plan(&opt, &info, &err), &err);
    return info;
}

/* The published 80B files: 843 tensors, 863 with the MTP block, 79,674,391,296 weights and 1,650,471,424 more. */
static void test_full_size(void **state)
{
    (void)state;
    rl_synth_info info = plan_of(NULL, false);
    assert_int_equal(info.n_tensors, 843);
    assert_true(info.n_weights == UINT64_C(79674391296));
    assert_true(fabs((double)info.tensor_bytes / 1073741824 - 17.96) < 0.01);
    info = plan_of("iq2_xxs", true);
    assert_int_equal(info.n_tensors, 863);
    assert_true(info.n_weights == UINT64_C(79674391296) + UINT64_C(1650471424));
    assert_true(fabs((double)plan_of("iq3_xxs", false).tensor_bytes / 1073741824 - 28.9) < 0.1);
    assert_true(fabs((double)plan_of("q4_k", false).tensor_bytes / 1073741824 - 42.1) < 0.1);
}

static void test_options(void **state)
{
    place *p = *state;
    rl_synth_info info;
    rl_error err = {0};
    rl_synth_options opt = {.preset = "huge"};
    rl_assert_fails(rl_synth_plan(&opt, &info, &err), RL_ERR_ARGUMENT, &err, "preset 'huge'");
    opt = (rl_synth_options){.mix = "q8_k"};
    rl_assert_fails(rl_synth_plan(&opt, &info, &err), RL_ERR_ARGUMENT, &err, "mix 'q8_k'");
    opt = (rl_synth_options){.n_layer = RL_MAX_LAYERS};
    rl_assert_fails(rl_synth(p->a, &opt, &info, &err), RL_ERR_ARGUMENT, &err, "512 layers");
    opt = (rl_synth_options){.preset = "tiny"};
    rl_assert_fails(rl_synth("/nonexistent/a.gguf", &opt, &info, &err), RL_ERR_IO, &err, "a.gguf");
    opt = (rl_synth_options){.mix = "f32", .n_layer = 511};
    rl_assert_fails(rl_synth(p->a, &opt, &info, &err), RL_ERR_IO, &err, "MiB free");
    for (const char *const *name = rl_synth_presets(); *name; name++) {
        opt = (rl_synth_options){.preset = *name};
        rl_assert_ok(rl_synth_plan(&opt, &info, &err), &err);
    }
    for (const char *const *name = rl_synth_mixes(); *name; name++) {
        opt = (rl_synth_options){.mix = *name};
        rl_assert_ok(rl_synth_plan(&opt, &info, &err), &err);
    }
}

/* Every weight type: valid scales, the wanted deviation, a mean near zero. */
static void test_blocks(void **state)
{
    (void)state;
    enum { WEIGHTS = 1 << 16 };
    float *weights = malloc(WEIGHTS * sizeof *weights);
    uint8_t *blocks = malloc(WEIGHTS * 4);
    assert_true(weights && blocks);
    unsigned types = 0;
    for (uint32_t t = 0; t < RL_TYPE_END; t++) {
        const rl_quant_traits *traits = rl_quant_get((rl_type)t);
        assert_int_equal(rl_synth_can_fill((rl_type)t), traits != NULL);
        if (!traits) continue;
        const rl_type_info *info = rl_type_get(t);
        rl_synth_filler f;
        rl_synth_rng rng = rl_synth_rng_seed(7, t, 0);
        size_t n = WEIGHTS / info->block_weights;
        rl_synth_filler_init(&f, (rl_type)t, RL_SYNTH_MATRIX, 0.03f);
        rl_synth_fill(&f, &rng, blocks, n);
        assert_int_equal(rl_quant_find_invalid((rl_type)t, blocks, n), -1);
        traits->decode(blocks, weights, n);
        double sum = 0, squares = 0;
        for (size_t i = 0; i < WEIGHTS; i++)
            sum += weights[i], squares += (double)weights[i] * weights[i];
        double rms = sqrt(squares / WEIGHTS), mean = sum / WEIGHTS;
        /* MXFP4 has powers of two for scales, so up to a factor of the root of two off. */
        double slack = t == RL_MXFP4 ? 1.45 : t == RL_NVFP4 ? 1.2 : 1.1;
        if (!(rms < 0.03 * slack && rms > 0.03 / slack && fabs(mean) < 0.2 * rms))
            fail_msg("%s: deviation %g, mean %g", info->name, rms, mean);
        types++;
    }
    assert_int_equal(types, 28);
    free(weights);
    free(blocks);
}

static rl_model *open_model(const char *path)
{
    rl_model *m = NULL;
    rl_error err = {0};
    rl_assert_ok(rl_model_open(path, &m, &err), &err);
    return m;
}

static void check_finite(const rl_gguf *g)
{
    for (uint32_t i = 0; i < rl_gguf_n_tensors(g); i++) {
        const rl_gguf_tensor *t = rl_gguf_tensor_at(g, i);
        const rl_type_info *info = rl_type_get(t->type);
        if (rl_quant_find_invalid(t->type, t->data, (size_t)(t->bytes / info->block_bytes)) >= 0) fail_msg("%s", t->name);
    }
}

/* Router weights are bfloat16 numbers and rows differ. */
static void check_router(const rl_matrix *router)
{
    assert_int_equal(router->type, RL_F32);
    size_t n = (size_t)router->cols * router->rows;
    for (size_t i = 0; i < n; i++)
        assert_int_equal(router->data[4 * i] | router->data[4 * i + 1], 0);
    assert_int_not_equal(memcmp(rl_matrix_row(router, 0, 0), rl_matrix_row(router, 0, 1), router->row_bytes), 0);
}

static void test_model_opens(void **state)
{
    place *p = *state;
    static const char *const mixes[] = {"iq2_xxs", "iq3_xxs", "q4_k", "q8_0", "bf16", "f32", "mxfp4", "tq2_0"};
    for (size_t i = 0; i < sizeof mixes / sizeof *mixes; i++) {
        rl_synth_info info;
        rl_error err = {0};
        const rl_synth_options opt = {.preset = "tiny", .mix = mixes[i], .mtp = i % 2 == 0, .seed = i, .threads = 2};
        rl_assert_ok(rl_synth(p->a, &opt, &info, &err), &err);
        rl_model *m = open_model(p->a);
        assert_int_equal(rl_gguf_n_tensors(m->gguf), info.n_tensors);
        assert_int_equal(m->hp.n_layer, 4);
        assert_int_equal(m->hp.n_mtp, opt.mtp);
        assert_int_equal(m->n_attention, 1);
        assert_int_equal(m->layers[3].kind, RL_LAYER_ATTENTION);
        check_finite(m->gguf);
        check_router(&m->layers[0].router);
        rl_model_close(m);
    }
}

/* general.file_type, -1 when absent. */
static int64_t file_type_of(const char *path)
{
    rl_gguf *g = NULL;
    rl_error err = {0};
    uint32_t v = 0;
    bool found = false;
    rl_assert_ok(rl_gguf_open(path, &g, &err), &err);
    rl_assert_ok(rl_gguf_get_u32(g, "general.file_type", &v, &found, &err), &err);
    rl_gguf_close(g);
    return found ? (int64_t)v : -1;
}

static void test_file_type(void **state)
{
    place *p = *state;
    static const struct {
        const char *mix;
        int64_t file_type;
    } cases[] = {{"iq2_xxs", 19}, {"iq3_xxs", 23}, {"q4_k", 15}, {"q8_0", 7}, {"f32", 0}, {"iq2_xs", -1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        rl_error err = {0};
        const rl_synth_options opt = {.preset = "tiny", .mix = cases[i].mix, .n_layer = 1, .threads = 1};
        rl_assert_ok(rl_synth(p->a, &opt, NULL, &err), &err);
        assert_int_equal(file_type_of(p->a), cases[i].file_type);
    }
}

/* The layers whose experts the published quantiser gives the larger type. */
static void test_expert_types(void **state)
{
    place *p = *state;
    rl_error err = {0};
    const rl_synth_options opt = {.preset = "tiny", .n_layer = 13, .threads = 2};
    rl_assert_ok(rl_synth(p->a, &opt, NULL, &err), &err);
    rl_model *m = open_model(p->a);
    for (uint32_t l = 0; l < 13; l++) {
        rl_type expected = l < 6 || l >= 8 ? RL_IQ2_XS : RL_IQ1_M;
        assert_int_equal(m->layers[l].gate_exps.type, expected);
        assert_int_equal(m->layers[l].down_exps.type, expected);
    }
    rl_model_close(m);
}

static void check_text(const rl_tokenizer *t, const char *text, bool special)
{
    int32_t *ids = NULL;
    size_t n = 0, at = 0;
    rl_error err = {0};
    rl_assert_ok(rl_tokenize(t, text, strlen(text), special, &ids, &n, &err), &err);
    assert_true(n > 0 && n < strlen(text));
    for (size_t i = 0; i < n; i++) {
        rl_slice s = rl_token_bytes(t, ids[i], true);
        assert_true(at + s.size <= strlen(text));
        assert_memory_equal(text + at, s.data, s.size);
        at += s.size;
    }
    assert_int_equal(at, strlen(text));
    free(ids);
}

static void check_tokenizer(const char *path, uint32_t n_vocab, int32_t eos, int32_t think)
{
    rl_gguf *g = NULL;
    rl_tokenizer *t = NULL;
    rl_error err = {0};
    rl_assert_ok(rl_gguf_open(path, &g, &err), &err);
    rl_assert_ok(rl_tokenizer_create(g, &t, &err), &err);
    rl_gguf_close(g);
    assert_int_equal(rl_tokenizer_n_vocab(t), n_vocab);
    assert_int_equal(rl_token_eos(t), eos);
    assert_int_equal(rl_token_im_start(t), eos - 1);
    assert_int_equal(rl_token_im_end(t), eos);
    assert_true(rl_token_is_eog(t, eos - 2));
    assert_int_equal(rl_token_find_special(t, "<think>", 7), think);
    assert_int_equal(rl_token_is_samplable(t, (int32_t)n_vocab - 1), think < 0);
    check_text(t, "The weather is fine; naïve Ωmega \xe2\x82\xac 12.5!\n", false);
    check_text(t, "<|im_start|>user\nhello<|im_end|>\n", true);
    rl_tokenizer_free(t);
}

/* The full vocabulary, on one layer of a small shape, is written straight through the vocabulary's door. */
static void test_vocabulary(void **state)
{
    place *p = *state;
    rl_error err = {0};
    const rl_synth_options opt = {.preset = "tiny", .threads = 1};
    rl_assert_ok(rl_synth(p->a, &opt, NULL, &err), &err);
    check_tokenizer(p->a, 512, 511, -1);
    rl_gguf_writer *w = NULL;
    rl_assert_ok(rl_gguf_writer_open(p->b, &w, &err), &err);
    rl_assert_ok(rl_synth_write_vocab(w, RL_SYNTH_FULL_VOCAB, &err), &err);
    rl_assert_ok(rl_gguf_writer_commit(w, &err), &err);
    check_tokenizer(p->b, 151936, 151645, 151667);
}

/* The same options give the same bytes for any number of threads; another seed gives others. */
static void test_deterministic(void **state)
{
    place *p = *state;
    rl_error err = {0};
    size_t na, nb;
    for (int round = 0; round < 2; round++) {
        rl_synth_options opt = {.preset = "small", .n_layer = 1, .mix = "iq1_m", .threads = 1, .seed = 3};
        rl_assert_ok(rl_synth(p->a, &opt, NULL, &err), &err);
        opt.threads = 3;
        opt.seed += (uint64_t)round;
        rl_assert_ok(rl_synth(p->b, &opt, NULL, &err), &err);
        char *a = rl_test_read(p->a, &na), *b = rl_test_read(p->b, &nb);
        assert_int_equal(na, nb);
        assert_int_equal(memcmp(a, b, na) != 0, round);
        free(a);
        free(b);
    }
}

typedef struct watch {
    uint64_t calls, last, total, stop_at;
} watch;

static bool on_progress(void *ctx, uint64_t done, uint64_t total)
{
    watch *w = ctx;
    assert_true(done >= w->last && done <= total);
    w->calls++;
    w->last = done;
    w->total = total;
    return w->calls != w->stop_at;
}

static void test_progress_and_cancel(void **state)
{
    place *p = *state;
    rl_error err = {0};
    watch w = {0};
    rl_synth_info info;
    rl_synth_options opt = {.preset = "tiny", .mix = "q8_0", .threads = 1, .progress = on_progress, .progress_ctx = &w};
    rl_assert_ok(rl_synth(p->a, &opt, &info, &err), &err);
    assert_true(w.calls > 2 && w.last == w.total && w.total == info.tensor_bytes);
    w = (watch){.stop_at = 2};
    rl_assert_fails(rl_synth(p->b, &opt, &info, &err), RL_ERR_CANCELLED, &err, "cancelled");
    assert_int_equal(w.calls, 2);
    assert_int_equal(access(p->b, F_OK), -1);
    assert_int_equal(unlink(p->a), 0);
    assert_int_equal(rmdir(p->dir), 0); /* no temporary was left behind */
    assert_int_equal(mkdir(p->dir, 0700), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_full_size),
        cmocka_unit_test_setup_teardown(test_options, setup, teardown),
        cmocka_unit_test(test_blocks),
        cmocka_unit_test_setup_teardown(test_model_opens, setup, teardown),
        cmocka_unit_test_setup_teardown(test_file_type, setup, teardown),
        cmocka_unit_test_setup_teardown(test_expert_types, setup, teardown),
        cmocka_unit_test_setup_teardown(test_vocabulary, setup, teardown),
        cmocka_unit_test_setup_teardown(test_deterministic, setup, teardown),
        cmocka_unit_test_setup_teardown(test_progress_and_cancel, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
