/* engine: opening, describing, generating and measuring, on a small random model. */
#include "support/support.h"
#include "support/tiny_engine.h"
#include "support/tiny_model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static rl_engine *e;
static char path[PATH_MAX];

static int setup(void **state)
{
    (void)state;
    e = tiny_engine(16, 128);
    tiny_engine_path(path, sizeof path);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    rl_engine_close(e);
    unlink(path);
    return 0;
}

/* ---- Opening --------------------------------------------------------------------------------------------------------- */

static void assert_open_fails(const rl_engine_options *o, rl_status status, const char *part)
{
    rl_engine *x = NULL;
    rl_error err = {0};
    rl_assert_fails(rl_engine_open(o, &x, &err), status, &err, part);
    assert_null(x);
}

static void test_options_are_checked(void **state)
{
    (void)state;
    rl_engine_options o, good;
    rl_engine_options_init(&good);
    assert_open_fails(&good, RL_ERR_ARGUMENT, "no model file");
    good.model = path;
    o = good;
    o.threads = -1;
    assert_open_fails(&o, RL_ERR_ARGUMENT, "threads is -1");
    o = good;
    o.context = 0;
    assert_open_fails(&o, RL_ERR_ARGUMENT, "context is 0");
    o = good;
    o.batch = RL_MAX_BATCH + 1;
    assert_open_fails(&o, RL_ERR_ARGUMENT, "batch is 8193");
    o = good;
    o.backend = "abacus\n";
    assert_open_fails(&o, RL_ERR_ARGUMENT, "no backend \"abacus\\x0a\"; expected one of: auto");
    o = good;
    o.isa = "mmx";
    assert_open_fails(&o, RL_ERR_ARGUMENT, "mmx");
    o = good;
    o.model = "/nonexistent/model.gguf";
    assert_open_fails(&o, RL_ERR_IO, "/nonexistent/model.gguf");
}

static void test_vocabulary_must_match_the_embedding(void **state)
{
    (void)state;
    tiny_params p = tiny_defaults();
    tiny_file *f = tiny_build(&p);
    tiny_tensor_at(f, "token_embd.weight")->ne[1] += 32;
    tiny_tensor_at(f, "output.weight")->ne[1] += 32;
    char odd[PATH_MAX];
    tiny_temp_path(odd, sizeof odd);
    tiny_save(f, odd);
    tiny_free(f);
    rl_engine_options o;
    rl_engine_options_init(&o);
    o.model = odd;
    o.backend = "ref";
    assert_open_fails(&o, RL_ERR_FORMAT, "expected 352, the rows of 'token_embd.weight'");
    unlink(odd);
}

static void test_model_without_vocabulary(void **state)
{
    (void)state;
    tiny_params p = tiny_defaults();
    tiny_file *f = tiny_build(&p);
    tiny_remove_key(f, "tokenizer.ggml.tokens");
    char bare[PATH_MAX];
    tiny_temp_path(bare, sizeof bare);
    tiny_save(f, bare);
    tiny_free(f);
    rl_engine_options o;
    rl_engine_options_init(&o);
    o.model = bare;
    o.backend = "ref";
    rl_engine *x = NULL;
    rl_error err = {0};
    rl_assert_ok(rl_engine_open(&o, &x, &err), &err);
    assert_null(rl_engine_tokenizer(x));
    rl_engine_close(x);
    unlink(bare);
}

/* ---- Description ----------------------------------------------------------------------------------------------------- */

static void test_info(void **state)
{
    (void)state;
    tiny_params p = tiny_defaults();
    rl_model_info *m = NULL;
    rl_error err = {0};
    rl_assert_ok(rl_model_inspect(path, &m, &err), &err);
    assert_int_equal(m->n_layer, strlen(p.layers));
    assert_int_equal(m->n_recurrent, 3);
    assert_int_equal(m->n_attention, 1);
    for (uint32_t i = 0; i < m->n_layer; i++)
        assert_int_equal(m->recurrent[i], p.layers[i] == 'R');
    assert_int_equal(m->n_vocab, p.n_vocab);
    uint64_t expert = 3ull * p.n_embd * p.n_ff_expert * 4; /* gate, up and down in F32 */
    assert_int_equal(m->expert_bytes, expert);
    assert_int_equal(m->all_experts_bytes, expert * p.n_expert * 4);
    assert_int_equal(m->kv_bytes_per_token, 2ull * p.n_head_kv * p.head_dim * 4);
    uint64_t s = p.dn_head_dim, conv = 2ull * p.dn_key_heads * s + p.dn_value_heads * s;
    assert_int_equal(m->state_bytes, 3 * 4 * (p.dn_value_heads * s * s + (p.dn_conv - 1) * conv));
    uint64_t weights = 0, bytes = 0;
    for (uint32_t i = 0; i < m->n_groups; i++) {
        weights += m->groups[i].weights;
        bytes += m->groups[i].bytes;
        if (strcmp(m->groups[i].group, "experts") == 0) assert_int_equal(m->groups[i].bytes, m->all_experts_bytes);
    }
    assert_int_equal(weights, m->parameters);
    assert_in_range(bytes, m->file_bytes / 2, m->file_bytes);
    assert_true(m->bytes_per_token < bytes);
    assert_int_equal(m->fingerprint, rl_engine_info(e)->fingerprint); /* the same weights in another file */
    rl_model_info_free(m);

    p.seed++;
    char other[PATH_MAX];
    tiny_temp_path(other, sizeof other);
    tiny_write(&p, other);
    rl_assert_ok(rl_model_inspect(other, &m, &err), &err);
    assert_int_not_equal(m->fingerprint, rl_engine_info(e)->fingerprint);
    rl_model_info_free(m);
    unlink(other);
}

static void test_machine(void **state)
{
    (void)state;
    rl_machine_info m;
    rl_machine(&m);
    assert_true(m.physical_cores >= 1 && m.logical_cores >= m.physical_cores);
    assert_true(m.memory_bytes >= 64u << 20);
    assert_true(m.memory_available_bytes <= m.memory_bytes);
}

static void huge_memory(const rl_backend *b, rl_backend_memory *out)
{
    (void)b;
    *out = (rl_backend_memory){.seq_fixed = 1, .seq_per_token = 1ull << 40};
}

static void test_memory_is_asked_for_before_it_is_taken(void **state)
{
    (void)state;
    rl_engine_memory mem;
    rl_engine_memory_info(e, &mem);
    assert_true(mem.session_per_token > 0 && mem.session_fixed > 0 && mem.mark > 0);
    const rl_backend_ops *ops = e->backend->ops;
    rl_backend_ops huge = *ops;
    huge.memory = huge_memory;
    e->backend->ops = &huge;
    rl_session *s = NULL;
    rl_error err = {0};
    rl_status st = rl_session_create(e, 100, &s, &err);
    e->backend->ops = ops;
    rl_assert_fails(st, RL_ERR_MEMORY, &err, "a session of 100 positions needs 104857600.");
    assert_null(s);
}

/* ---- Generation ------------------------------------------------------------------------------------------------------ */

typedef struct heard {
    int32_t ids[256];
    uint32_t n, stop_at;
} heard;

static bool hear(void *ctx, int32_t id, const float *logits)
{
    heard *h = ctx;
    uint32_t best = 0;
    for (uint32_t i = 1; i < rl_engine_vocab_size(e); i++)
        if (rl_token_is_samplable(rl_engine_tokenizer(e), (int32_t)i) && logits[i] > logits[best]) best = i;
    assert_int_equal(best, id); /* the row shown is the one it was drawn from */
    h->ids[h->n++] = id;
    return h->n != h->stop_at;
}

static rl_generate_result generate(rl_session *s, uint32_t max, bool ignore_eog, const rl_logit_bias *bias, heard *h)
{
    rl_sampling p;
    rl_sampling_init(&p, NULL);
    p.temperature = 0;
    p.bias = bias;
    p.n_bias = bias ? 1 : 0;
    rl_sampler *sampler = NULL;
    rl_error err = {0};
    rl_generate_result r;
    rl_assert_ok(rl_sampler_create(e, &p, &sampler, &err), &err);
    rl_generate_options o = {.max_tokens = max, .ignore_eog = ignore_eog, .on_token = h ? hear : NULL, .ctx = h};
    rl_assert_ok(rl_generate(s, sampler, &o, &r, &err), &err);
    rl_sampler_free(sampler);
    return r;
}

static rl_session *prompted(uint32_t n)
{
    int32_t ids[128];
    rl_session *s = NULL;
    rl_error err = {0};
    tiny_ids(ids, n, 5);
    rl_assert_ok(rl_session_create(e, 0, &s, &err), &err);
    rl_assert_ok(rl_session_extend(s, ids, n, NULL, NULL, &err), &err);
    return s;
}

static void test_generate_length_and_continue(void **state)
{
    (void)state;
    heard whole = {0}, parts = {0};
    rl_session *a = prompted(9), *b = prompted(9);
    rl_generate_result r = generate(a, 12, true, NULL, &whole);
    assert_int_equal(r.finish, RL_FINISH_LENGTH);
    assert_int_equal(r.n_generated, 12);
    assert_int_equal(whole.n, 12);
    assert_int_equal(r.eog, -1);
    assert_int_equal(rl_session_position(a), 21);
    assert_int_equal(rl_session_computed(a), 20); /* the last one is not needed yet */
    assert_memory_equal(rl_session_tokens(a) + 9, whole.ids, 12 * sizeof(int32_t));
    (void)generate(b, 5, true, NULL, &parts);
    (void)generate(b, 7, true, NULL, &parts); /* going on is the same as not having stopped */
    assert_int_equal(parts.n, 12);
    assert_memory_equal(parts.ids, whole.ids, 12 * sizeof(int32_t));
    r = generate(b, 0, true, NULL, &parts);
    assert_int_equal(r.finish, RL_FINISH_LENGTH);
    assert_int_equal(r.n_generated, 0);
    rl_session_free(a);
    rl_session_free(b);
}

static void test_generate_stops(void **state)
{
    (void)state;
    heard h = {.stop_at = 3};
    rl_session *s = prompted(9);
    rl_generate_result r = generate(s, 50, true, NULL, &h);
    assert_int_equal(r.finish, RL_FINISH_CANCELLED);
    assert_int_equal(r.n_generated, 3);
    assert_int_equal(rl_session_position(s), 12);
    r = generate(s, 500, true, NULL, NULL);
    assert_int_equal(r.finish, RL_FINISH_CONTEXT);
    assert_int_equal(rl_session_position(s), 128);
    rl_session_free(s);

    s = prompted(9);
    int32_t end = rl_token_im_end(rl_engine_tokenizer(e));
    assert_true(end >= 0 && rl_token_is_eog(rl_engine_tokenizer(e), end));
    const rl_logit_bias wanted = {end, 1000};
    r = generate(s, 50, false, &wanted, NULL);
    assert_int_equal(r.finish, RL_FINISH_EOG);
    assert_int_equal(r.eog, end);
    assert_int_equal(r.n_generated, 0);
    assert_int_equal(rl_session_position(s), 9); /* the end token is not part of the session */
    r = generate(s, 3, true, &wanted, NULL);
    assert_int_equal(r.finish, RL_FINISH_LENGTH);
    assert_int_equal(rl_session_tokens(s)[10], end);
    rl_session_free(s);
}

static void test_generate_failures(void **state)
{
    (void)state;
    rl_session *s = NULL;
    rl_sampler *sampler = NULL;
    rl_sampling p;
    rl_error err = {0};
    rl_generate_result r;
    rl_generate_options o = {.max_tokens = 8, .ignore_eog = true};
    rl_sampling_init(&p, e);
    p.temperature = 0;
    rl_assert_ok(rl_sampler_create(e, &p, &sampler, &err), &err);
    rl_assert_ok(rl_session_create(e, 0, &s, &err), &err);
    rl_assert_fails(rl_generate(s, sampler, &o, &r, &err), RL_ERR_ARGUMENT, &err, "prompt is empty");
    rl_session_free(s);
    s = prompted(4);
    tiny_engine_fail_at(e, 3);
    rl_assert_fails(rl_generate(s, sampler, &o, &r, &err), RL_ERR_DEVICE, &err, "pass 3");
    tiny_engine_heal(e);
    assert_int_equal(r.n_generated, 3);
    assert_int_equal(rl_session_position(s), 7); /* what was shown is kept */
    rl_assert_ok(rl_generate(s, sampler, &o, &r, &err), &err);
    assert_int_equal(r.n_generated, 8);
    rl_session *whole = prompted(4);
    heard h = {0};
    generate(whole, 11, true, NULL, &h);
    assert_memory_equal(rl_session_tokens(s), rl_session_tokens(whole), 15 * sizeof(int32_t));
    rl_session_free(whole);
    rl_session_free(s);
    rl_sampler_free(sampler);
}

/* ---- Measures -------------------------------------------------------------------------------------------------------- */

static bool count_chunks(void *ctx, const rl_perplexity_result *so_far, uint32_t total)
{
    assert_int_equal(total, 3);
    return so_far->n_chunks != *(uint32_t *)ctx;
}

/* The definition again, from logits of single steps. */
static void test_perplexity(void **state)
{
    (void)state;
    enum { CHUNK = 12, N = 3 * CHUNK + 5 };
    int32_t ids[N];
    tiny_ids(ids, N, 21);
    double sum = 0, squares = 0;
    int scored = 0;
    rl_error err = {0};
    for (int c = 0; c < 3; c++) {
        rl_session *s = NULL;
        rl_assert_ok(rl_session_create(e, 0, &s, &err), &err);
        for (int i = 0; i + 1 < CHUNK; i++) {
            rl_assert_ok(rl_session_extend(s, ids + c * CHUNK + i, 1, NULL, NULL, &err), &err);
            if (i < CHUNK / 2) continue;
            double nll = -rl_logprob_of(rl_session_logits(s), rl_engine_vocab_size(e), ids[c * CHUNK + i + 1]);
            sum += nll;
            squares += nll * nll;
            scored++;
        }
        rl_session_free(s);
    }
    rl_perplexity_result r = {0};
    rl_assert_ok(rl_perplexity(e, ids, N, CHUNK, 0, NULL, NULL, &r, &err), &err);
    assert_int_equal(r.n_chunks, 3);
    assert_int_equal(r.n_scored, 3 * (CHUNK - CHUNK / 2 - 1));
    assert_int_equal(r.n_scored, scored);
    double mean = sum / scored, deviation = sqrt((squares / scored - mean * mean) / (scored - 1));
    assert_true(fabs(r.perplexity / exp(mean) - 1) < 1e-5);
    assert_true(fabs(r.error / (exp(mean) * deviation) - 1) < 1e-4);
    rl_assert_ok(rl_perplexity(e, ids, N, CHUNK, 2, NULL, NULL, &r, &err), &err);
    assert_int_equal(r.n_chunks, 2);
    uint32_t stop = 1;
    rl_assert_fails(rl_perplexity(e, ids, N, CHUNK, 0, count_chunks, &stop, &r, &err), RL_ERR_CANCELLED, &err, "1 of 3");
    rl_assert_fails(rl_perplexity(e, ids, CHUNK - 1, CHUNK, 0, NULL, NULL, &r, &err), RL_ERR_ARGUMENT, &err, "11 tokens");
    rl_assert_fails(rl_perplexity(e, ids, N, 3, 0, NULL, NULL, &r, &err), RL_ERR_ARGUMENT, &err, "expected 4");
}

static void test_parity_of_a_backend_with_itself(void **state)
{
    (void)state;
    int32_t ids[21];
    tiny_ids(ids, 21, 4);
    rl_parity_options o = {.model = path, .judge = "ref", .tested = "ref", .threads = 2, .batch = 8, .ids = ids, .n = 21};
    rl_parity_report *r = NULL;
    rl_error err = {0};
    rl_assert_ok(rl_parity(&o, &r, &err), &err);
    assert_int_equal(r->positions, 21);
    assert_int_equal(r->router_mismatches, 0);
    assert_int_equal(r->argmax_mismatches, 0);
    assert_true(r->router_gap > 0 && r->router_gap < 1);
    assert_true(r->logits_max_abs < 1e-6);
    assert_int_equal(r->n_layers, 4);
    assert_int_equal(r->n_stages, RL_STAGE_COUNT);
    for (uint32_t i = 0; i < r->n_stages; i++) {
        const rl_parity_stage *s = &r->stages[i];
        bool outside = i == RL_STAGE_EMBED || i == RL_STAGE_FINAL_NORM || i == RL_STAGE_LOGITS;
        bool recurrent = i >= RL_STAGE_DN_QKV && i <= RL_STAGE_DN_GATED,
             attention = i >= RL_STAGE_AT_QGATE && i <= RL_STAGE_AT_GATED;
        assert_int_equal(s->layers, outside || attention ? 1 : recurrent ? 3 : 4);
        assert_true(s->values > 0);
        assert_true(s->max_abs <= 1e-5 * (1 + s->rms)); /* forced values are the judge's, rounded to float32 */
    }
    rl_parity_report_free(r);
    ids[3] = -1;
    rl_assert_fails(rl_parity(&o, &r, &err), RL_ERR_ARGUMENT, &err, "token 3 is -1");
    o.n = 0;
    rl_assert_fails(rl_parity(&o, &r, &err), RL_ERR_ARGUMENT, &err, "at least one token");
    o.n = 3;
    o.tested = "none";
    rl_assert_fails(rl_parity(&o, &r, &err), RL_ERR_ARGUMENT, &err, "no backend \"none\"");
}

static void test_bench(void **state)
{
    (void)state;
    double seconds[2] = {0};
    rl_error err = {0};
    rl_bench_case c = {.prompt = 20, .generate = 3, .depth = 7, .sessions = 2};
    tiny_engine_heal(e);
    rl_assert_ok(rl_bench_run(e, &c, 2, true, seconds, NULL, NULL, &err), &err);
    assert_int_equal(tiny_engine_passes(),
                     1 + 3 * (2 * 2 + 3)); /* depth; then three runs of two prompts of two passes, three steps */
    assert_true(seconds[0] > 0 && seconds[1] > 0);
    c.sessions = 0;
    rl_assert_fails(rl_bench_run(e, &c, 2, true, seconds, NULL, NULL, &err), RL_ERR_ARGUMENT, &err, "0 sessions");
    c = (rl_bench_case){.depth = 7, .sessions = 1};
    rl_assert_fails(rl_bench_run(e, &c, 2, true, seconds, NULL, NULL, &err), RL_ERR_ARGUMENT, &err, "neither");
    assert_int_equal(e->n_sessions, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_options_are_checked),
        cmocka_unit_test(test_vocabulary_must_match_the_embedding),
        cmocka_unit_test(test_model_without_vocabulary),
        cmocka_unit_test(test_info),
        cmocka_unit_test(test_machine),
        cmocka_unit_test(test_memory_is_asked_for_before_it_is_taken),
        cmocka_unit_test(test_generate_length_and_continue),
        cmocka_unit_test(test_generate_stops),
        cmocka_unit_test(test_generate_failures),
        cmocka_unit_test(test_perplexity),
        cmocka_unit_test(test_parity_of_a_backend_with_itself),
        cmocka_unit_test(test_bench),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
