/* Binding of good files: numbers, kinds, data, optional tensors, layouts, conversions, rotary frequencies, sizes. */
#include "quant/quant.h"
#include "support/support.h"
#include "support/tiny_model.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static rl_model *open_file(tiny_file *f)
{
    char path[PATH_MAX];
    rl_model *m = NULL;
    rl_error err;
    tiny_temp_path(path, sizeof path);
    tiny_save(f, path);
    rl_status status = rl_model_open(path, &m, &err);
    unlink(path);
    rl_assert_ok(status, &err);
    tiny_free(f);
    return m;
}

static void numbers_and_kinds(void **state)
{
    (void)state;
    rl_model *m = rl_model_open(REDLITE_SOURCE_DIR "/models/tiny-q4_k_m.gguf", &m, NULL) == RL_OK ? m : NULL;
    assert_non_null(m);
    const rl_hparams *hp = &m->hp;
    const uint32_t found[] = {hp->n_embd,         hp->n_layer,     hp->n_mtp,         hp->n_vocab,     hp->n_context_train,
                              hp->n_head,         hp->n_head_kv,   hp->head_dim,      hp->n_rot,       hp->dn_key_heads,
                              hp->dn_value_heads, hp->dn_head_dim, hp->dn_conv,       hp->dn_key_dim,  hp->dn_value_dim,
                              hp->dn_conv_dim,    hp->n_expert,    hp->n_expert_used, hp->n_ff_expert, hp->n_ff_shared};
    const uint32_t want[] = {512, 8, 1, 4096, 32768, 2, 1, 256, 64, 2, 4, 128, 4, 256, 512, 1024, 16, 4, 256, 256};
    assert_memory_equal(found, want, sizeof want);
    assert_true(hp->eps == 1e-6F && hp->rope_base == 1e6 && hp->rope_factor == 1);
    for (uint32_t i = 0; i < 8; i++)
        assert_int_equal(m->layers[i].kind, i % 4 == 3 ? RL_LAYER_ATTENTION : RL_LAYER_RECURRENT);
    assert_int_equal(m->n_recurrent, 6);
    assert_int_equal(m->n_attention, 2);
    assert_int_equal(m->mtp.block.kind, RL_LAYER_ATTENTION);
    assert_false(m->tied_head);
    rl_model_close(m);
}

static void matrices_point_at_their_tensors(void **state)
{
    (void)state;
    tiny_params p = tiny_defaults();
    p.dense = RL_Q8_0;
    p.gate_exps = RL_Q4_0;
    p.down_exps = RL_IQ4_NL;
    rl_model *m = tiny_open(&p);
    const rl_layer *l = &m->layers[1];
    const rl_gguf_tensor *t = rl_gguf_find_tensor(m->gguf, "blk.1.ffn_gate_exps.weight");
    assert_ptr_equal(l->gate_exps.tensor, t);
    assert_ptr_equal(l->gate_exps.data, t->data);
    assert_int_equal(l->gate_exps.type, RL_Q4_0);
    assert_int_equal(l->gate_exps.cols, 64);
    assert_int_equal(l->gate_exps.rows, 32);
    assert_int_equal(l->gate_exps.n, 8);
    assert_int_equal(l->gate_exps.row_bytes, 64 / 32 * 18);
    assert_int_equal(l->gate_exps.matrix_bytes, 32 * 64 / 32 * 18);
    assert_ptr_equal(rl_matrix_row(&l->gate_exps, 7, 31), t->data + t->bytes - 36);
    assert_ptr_equal(rl_matrix_row(&l->down_exps, 7, 63), l->down_exps.tensor->data + l->down_exps.tensor->bytes - 18);
    assert_int_equal(l->qkv.rows, m->hp.dn_conv_dim);
    assert_null(l->q.data);
    assert_null(m->layers[3].qkv.data);
    assert_int_equal(m->layers[3].q.rows, 2 * 4 * 32);
    assert_memory_equal(l->ssm_norm, rl_gguf_find_tensor(m->gguf, "blk.1.ssm_norm.weight")->data, 16 * sizeof(float));
    rl_model_close(m);
}

static void vectors_become_f32(void **state)
{
    (void)state;
    const rl_type types[] = {RL_F16, RL_BF16};
    for (int i = 0; i < 2; i++) {
        tiny_params p = tiny_defaults();
        p.vectors = p.router = types[i];
        rl_model *m = tiny_open(&p);
        const rl_gguf_tensor *t = rl_gguf_find_tensor(m->gguf, "blk.2.ssm_conv1d.weight");
        assert_int_equal(t->type, types[i]);
        float want[4 * 128];
        rl_quant_get(types[i])->decode(t->data, want, 4 * 128);
        rl_assert_same_bits(m->layers[2].conv, want, 4 * 128);
        assert_int_equal((uintptr_t)m->layers[2].conv % 64, 0);
        rl_model_close(m);
    }
}

/* A layout only moves rows: what is bound must be the same weights. */
static void assert_same_rows(const rl_matrix *a, const rl_matrix *b)
{
    assert_true(a->data && b->data);
    assert_int_equal(a->rows, b->rows);
    assert_int_equal(a->n, b->n);
    assert_int_equal(a->row_bytes, b->row_bytes);
    for (uint32_t e = 0; e < a->n; e++)
        for (uint32_t r = 0; r < a->rows; r++)
            assert_memory_equal(rl_matrix_row(a, e, r), rl_matrix_row(b, e, r), a->row_bytes);
}

static void legacy_and_fused_layouts(void **state)
{
    (void)state;
    tiny_params p = tiny_defaults(), q = p;
    p.dense = q.dense = p.gate_exps = q.gate_exps = p.up_exps = q.up_exps = RL_Q5_0;
    q.legacy_ssm_in = q.fused_gate_up = q.fused_attention = true;
    rl_model *a = tiny_open(&p), *b = tiny_open(&q);
    assert_non_null(rl_gguf_find_tensor(b->gguf, "blk.0.ssm_in.weight"));
    assert_null(rl_gguf_find_tensor(b->gguf, "blk.0.attn_qkv.weight"));
    assert_non_null(rl_gguf_find_tensor(b->gguf, "blk.3.attn_qkv.weight"));
    assert_non_null(rl_gguf_find_tensor(b->gguf, "blk.3.ffn_gate_up_exps.weight"));
    for (int i = 0; i < 4; i++) {
        const rl_layer *x = &a->layers[i], *y = &b->layers[i];
        assert_same_rows(&x->gate_exps, &y->gate_exps);
        assert_same_rows(&x->up_exps, &y->up_exps);
        if (i == 3) {
            assert_same_rows(&x->q, &y->q);
            assert_same_rows(&x->k, &y->k);
            assert_same_rows(&x->v, &y->v);
        } else {
            assert_same_rows(&x->qkv, &y->qkv);
            assert_same_rows(&x->gate, &y->gate);
            assert_true(y->qkv.copied && y->gate.copied && !x->qkv.copied);
        }
    }
    rl_model_close(a);
    rl_model_close(b);
}

static void optional_tensors(void **state)
{
    (void)state;
    tiny_params p = tiny_defaults();
    p.tied_head = p.mtp = true;
    rl_model *m = tiny_open(&p);
    assert_true(m->tied_head);
    assert_ptr_equal(m->head.data, m->embed.data);
    assert_ptr_equal(m->mtp.head.data, m->embed.data);
    assert_ptr_equal(m->mtp.head_norm, m->output_norm);
    assert_int_equal(m->mtp.eh_proj.cols, 128);
    rl_model_close(m);
    p.tied_head = false;
    p.mtp_own_tables = true;
    m = tiny_open(&p);
    assert_ptr_not_equal(m->mtp.head.data, m->head.data);
    assert_ptr_not_equal(m->mtp.embed.data, m->embed.data);
    assert_ptr_not_equal(m->mtp.head_norm, m->output_norm);
    rl_model_close(m);
}

static void optional_keys(void **state)
{
    (void)state;
    const tiny_params p = tiny_defaults();
    const int32_t same[] = {3, 3, 3, 3};
    tiny_file *f = tiny_build(&p);
    tiny_remove_key(f, "qwen3next.expert_shared_feed_forward_length");
    tiny_remove_key(f, "qwen3next.attention.recurrent_layers");
    tiny_remove_key(f, "qwen3next.nextn_predict_layers");
    tiny_remove_key(f, "qwen3next.expert_used_count");
    tiny_add_ints(f, "qwen3next.expert_used_count", same, 4);
    tiny_add_u32(f, "qwen3next.full_attention_interval", 4);
    tiny_add_u32(f, "qwen3next.vocab_size", 320);
    tiny_add_u32(f, "qwen3next.feed_forward_length", 12345); /* not used by any layer */
    rl_model *m = open_file(f);
    assert_int_equal(m->hp.n_ff_shared, 64);
    assert_int_equal(m->hp.n_expert_used, 3);
    assert_int_equal(m->hp.n_mtp, 0);
    rl_model_close(m);
    /* Structure decides when the metadata is silent. */
    f = tiny_build(&p);
    tiny_remove_key(f, "qwen3next.attention.recurrent_layers");
    m = open_file(f);
    assert_int_equal(m->layers[3].kind, RL_LAYER_ATTENTION);
    rl_model_close(m);
}

static void any_pattern_and_type(void **state)
{
    (void)state;
    static const char *const patterns[] = {"A", "R", "AARR", "RARARA"};
    for (size_t i = 0; i < 4; i++) {
        tiny_params p = tiny_defaults();
        p.layers = patterns[i];
        rl_model *m = tiny_open(&p);
        for (size_t l = 0; patterns[i][l]; l++)
            assert_int_equal(m->layers[l].kind, patterns[i][l] == 'A' ? RL_LAYER_ATTENTION : RL_LAYER_RECURRENT);
        rl_model_close(m);
    }
    for (int type = 0; type < RL_TYPE_END; type++) {
        if (!rl_type_get((uint32_t)type) || !rl_quant_get((rl_type)type)) continue;
        tiny_params p = tiny_defaults();
        p.layers = "RA";
        p.n_expert = 2;
        p.n_expert_used = 1;
        tiny_set_type(&p, (rl_type)type);
        rl_model *m = tiny_open(&p);
        assert_int_equal(m->layers[1].down_exps.type, type);
        rl_model_close(m);
    }
}

static void rotary_frequencies(void **state)
{
    (void)state;
    rl_hparams hp = {.n_rot = 64, .rope_base = 1e7, .rope_factor = 1, .rope_attn_factor = 1};
    double freq[32], plain[32], scale;
    rl_model_rope(&hp, plain, &scale);
    assert_true(scale == 1 && plain[0] == 1);
    assert_true(fabs(plain[16] / pow(1e7, -0.5) - 1) < 1e-15);
    /* YaRN, factor 4 over 262144 positions: dim(b) = 64 ln(262144 / (2 pi b)) / (2 ln 1e7). Fast pairs keep their angle, the
     * slowest are divided by 4, and between lo and hi the mixture moves linearly. */
    hp.rope_factor = 4;
    hp.rope_original_context = 262144;
    rl_model_rope(&hp, freq, &scale);
    assert_true(fabs(scale - (1 + 0.1 * log(4))) < 1e-15);
    const double lo = floor(32 * log(262144 / (2 * M_PI * 32)) / log(1e7)), hi = ceil(32 * log(262144 / (2 * M_PI)) / log(1e7));
    assert_true(lo == 14 && hi == 22);
    for (int i = 0; i < 32; i++) {
        const double ramp = i <= 14 ? 0 : i >= 22 ? 1 : (i - 14) / 8.0;
        assert_true(fabs(freq[i] / plain[i] - (ramp / 4 + 1 - ramp)) < 1e-14);
    }
}

static uint64_t group_bytes(const rl_model_info *info, const char *group, const char *type)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < info->n_groups; i++)
        if (strcmp(info->groups[i].group, group) == 0 && (!type || strcmp(info->groups[i].type, type) == 0))
            bytes += info->groups[i].bytes;
    return bytes;
}

/* Sizes follow from the shapes and types of the model card. */
static void sizes_of_the_bundled_model(void **state)
{
    (void)state;
    rl_model_info *info;
    rl_error err;
    rl_assert_ok(rl_model_inspect(REDLITE_SOURCE_DIR "/models/tiny-q4_k_m.gguf", &info, &err), &err);
    assert_int_equal(info->file_bytes, 46207584);
    assert_int_equal(group_bytes(info, "embedding", "Q4_K"), 512 * 4096 / 256 * 144);
    assert_int_equal(group_bytes(info, "router", NULL), 8 * 16 * 512 * 4);
    /* gate and up Q4_K; down Q6_K in layers 0, 3, 6 and 7, else Q4_K */
    const uint64_t matrix = 16 * 512 * 256 / 256;
    assert_int_equal(group_bytes(info, "experts", "Q4_K"), (2 * 8 + 4) * matrix * 144);
    assert_int_equal(group_bytes(info, "experts", "Q6_K"), 4 * matrix * 210);
    assert_int_equal(info->all_experts_bytes, group_bytes(info, "experts", NULL));
    assert_int_equal(info->expert_bytes, 512 * 256 / 256 * (144 + 144 + 210));
    assert_int_equal(info->state_bytes, 6 * (3 * 1024 + 4 * 128 * 128) * 4);
    assert_int_equal(info->kv_bytes_per_token, 2 * 2 * 256 * 4);
    rl_model_info_free(info);
}

/* Parts of fused tensors are counted once. */
static void sizes_do_not_depend_on_the_layout(void **state)
{
    (void)state;
    char path[PATH_MAX];
    tiny_params p = tiny_defaults();
    rl_model_info *info[2];
    rl_error err;
    tiny_temp_path(path, sizeof path);
    for (int i = 0; i < 2; i++) {
        p.legacy_ssm_in = p.fused_gate_up = p.fused_attention = i;
        tiny_write(&p, path);
        rl_assert_ok(rl_model_inspect(path, &info[i], &err), &err);
    }
    unlink(path);
    static const char *const groups[] = {"embedding", "head", "deltanet", "attention", "router", "experts", "shared expert"};
    for (size_t g = 0; g < sizeof groups / sizeof *groups; g++)
        assert_int_equal(group_bytes(info[0], groups[g], NULL), group_bytes(info[1], groups[g], NULL));
    assert_int_equal(group_bytes(info[0], "experts", NULL), 4 * 3 * 8 * 64 * 32 * 4);
    assert_int_equal(info[0]->all_experts_bytes, info[1]->all_experts_bytes);
    assert_int_equal(info[0]->bytes_per_token, info[1]->bytes_per_token);
    rl_model_info_free(info[0]);
    rl_model_info_free(info[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_and_kinds),          cmocka_unit_test(matrices_point_at_their_tensors),
        cmocka_unit_test(vectors_become_f32),         cmocka_unit_test(legacy_and_fused_layouts),
        cmocka_unit_test(optional_tensors),           cmocka_unit_test(optional_keys),
        cmocka_unit_test(any_pattern_and_type),       cmocka_unit_test(rotary_frequencies),
        cmocka_unit_test(sizes_of_the_bundled_model), cmocka_unit_test(sizes_do_not_depend_on_the_layout),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
