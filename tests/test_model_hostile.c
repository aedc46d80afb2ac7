/* Files that must be refused: each breaks one thing of a good file, and the error must name it. */
#include "backend/backend.h"
#include "support/support.h"
#include "support/tiny_model.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static rl_status save_and_open(tiny_file *f, rl_model **m, rl_error *err)
{
    char path[PATH_MAX];
    tiny_temp_path(path, sizeof path);
    tiny_save(f, path);
    rl_status status = rl_model_open(path, m, err);
    unlink(path);
    return status;
}

typedef enum breakage_kind {
    NO_TENSOR,  /* remove it */
    NO_KEY,     /* remove it */
    SET_U32,    /* key = value */
    SET_F32,    /* key = real */
    SET_STRING, /* key becomes the string `text` */
    ADD_U32,
    ADD_STRING,
    SHAPE,     /* dimension `value / 1000000` of the tensor becomes value % 1000000 */
    TYPE,      /* tensor's type */
    FILL,      /* tensor filled with `real` (F32) */
    ADD_TENSOR /* one F32 vector of `value` numbers */
} breakage_kind;

#define DIM(d, n) ((d)*1000000U + (n))

typedef struct breakage {
    breakage_kind kind;
    const char *name;
    uint32_t value;
    double real;
    const char *text;
    rl_status status;
    const char *says; /* part of the sentence, besides the name */
} breakage;

#define P "qwen3next."

static const breakage breakages[] = {
    /* every tensor is needed */
    {.kind = NO_TENSOR, .name = "token_embd.weight", .says = "missing"},
    {.kind = NO_TENSOR, .name = "output_norm.weight", .says = "missing, expected it with shape [64]"},
    {.kind = NO_TENSOR, .name = "blk.0.attn_norm.weight", .says = "missing, expected it with shape [64]"},
    {.kind = NO_TENSOR, .name = "blk.1.post_attention_norm.weight", .says = "missing"},
    {.kind = NO_TENSOR, .name = "blk.0.attn_qkv.weight", .says = "missing, expected it with shape [64, 128]"},
    {.kind = NO_TENSOR, .name = "blk.0.attn_gate.weight", .says = "missing, expected it with shape [64, 64]"},
    {.kind = NO_TENSOR, .name = "blk.2.ssm_ba.weight", .says = "missing, expected it with shape [64, 8]"},
    {.kind = NO_TENSOR, .name = "blk.1.ssm_conv1d.weight", .says = "missing, expected it with shape [4, 128]"},
    {.kind = NO_TENSOR, .name = "blk.0.ssm_dt.bias", .says = "missing, expected it with shape [4]"},
    {.kind = NO_TENSOR, .name = "blk.0.ssm_a", .says = "missing, expected it with shape [4]"},
    {.kind = NO_TENSOR, .name = "blk.0.ssm_norm.weight", .says = "missing, expected it with shape [16]"},
    {.kind = NO_TENSOR, .name = "blk.0.ssm_out.weight", .says = "missing, expected it with shape [64, 64]"},
    {.kind = NO_TENSOR, .name = "blk.3.attn_q.weight", .says = "missing, expected it with shape [64, 256]"},
    {.kind = NO_TENSOR, .name = "blk.3.attn_k.weight", .says = "missing"},
    {.kind = NO_TENSOR, .name = "blk.3.attn_v.weight", .says = "missing"},
    {.kind = NO_TENSOR, .name = "blk.3.attn_output.weight", .says = "missing, expected it with shape [128, 64]"},
    {.kind = NO_TENSOR, .name = "blk.3.attn_q_norm.weight", .says = "missing, expected it with shape [32]"},
    {.kind = NO_TENSOR, .name = "blk.3.attn_k_norm.weight", .says = "missing"},
    {.kind = NO_TENSOR, .name = "blk.1.ffn_gate_inp.weight", .says = "missing, expected it with shape [64, 8]"},
    {.kind = NO_TENSOR, .name = "blk.1.ffn_gate_exps.weight", .says = "missing, expected it with shape [64, 32, 8]"},
    {.kind = NO_TENSOR, .name = "blk.1.ffn_up_exps.weight", .says = "missing"},
    {.kind = NO_TENSOR, .name = "blk.1.ffn_down_exps.weight", .says = "missing, expected it with shape [32, 64, 8]"},
    {.kind = NO_TENSOR, .name = "blk.1.ffn_gate_inp_shexp.weight", .says = "missing"},
    {.kind = NO_TENSOR, .name = "blk.1.ffn_gate_shexp.weight", .says = "missing"},
    {.kind = NO_TENSOR, .name = "blk.0.ffn_up_shexp.weight", .says = "missing"},
    {.kind = NO_TENSOR, .name = "blk.1.ffn_down_shexp.weight", .says = "missing"},
    {.kind = NO_TENSOR, .name = "blk.4.nextn.eh_proj.weight", .says = "missing, expected it with shape [128, 64]"},
    {.kind = NO_TENSOR, .name = "blk.4.nextn.enorm.weight", .says = "missing"},
    {.kind = NO_TENSOR, .name = "blk.4.nextn.hnorm.weight", .says = "missing"},
    {.kind = NO_TENSOR, .name = "blk.4.attn_q.weight", .says = "missing"},
    /* shapes */
    {.kind = SHAPE, .name = "token_embd.weight", .value = DIM(0, 96), .says = "has shape [96, 320], expected [64, 320]"},
    {.kind = SHAPE, .name = "token_embd.weight", .value = DIM(1, 319), .says = "319, the rows of 'token_embd.weight'"},
    {.kind = SHAPE, .name = "output.weight", .value = DIM(1, 321), .says = "has shape [64, 321], expected [64, 320]"},
    {.kind = SHAPE, .name = "output_norm.weight", .value = DIM(0, 63), .says = "has shape [63], expected [64]"},
    {.kind = SHAPE, .name = "blk.0.attn_norm.weight", .value = DIM(1, 2), .says = "has shape [64, 2], expected [64]"},
    {.kind = SHAPE, .name = "blk.0.ssm_conv1d.weight", .value = DIM(0, 3), .says = "has shape [3, 128], expected [4, 128]"},
    {.kind = SHAPE, .name = "blk.0.ssm_ba.weight", .value = DIM(1, 4), .says = "has shape [64, 4], expected [64, 8]"},
    {.kind = SHAPE, .name = "blk.2.ssm_a", .value = DIM(0, 8), .says = "has shape [8], expected [4]"},
    {.kind = SHAPE, .name = "blk.3.attn_q.weight", .value = DIM(1, 128), .says = "has shape [64, 128], expected [64, 256]"},
    {.kind = SHAPE, .name = "blk.3.attn_k.weight", .value = DIM(1, 32), .says = "has shape [64, 32], expected [64, 64]"},
    {.kind = SHAPE, .name = "blk.3.attn_output.weight", .value = DIM(1, 65), .says = "has shape [128, 65], expected [128, 64]"},
    {.kind = SHAPE, .name = "blk.2.ffn_gate_inp.weight", .value = DIM(1, 7), .says = "has shape [64, 7], expected [64, 8]"},
    {.kind = SHAPE,
     .name = "blk.2.ffn_gate_exps.weight",
     .value = DIM(2, 7),
     .says = "has shape [64, 32, 7], expected [64, 32, 8]"},
    {.kind = SHAPE, .name = "blk.2.ffn_down_exps.weight", .value = DIM(0, 64), .says = "[64, 64, 8], expected [32, 64, 8]"},
    {.kind = SHAPE, .name = "blk.2.ffn_up_exps.weight", .value = DIM(3, 2), .says = "has shape [64, 32, 8, 2], expected"},
    {.kind = SHAPE, .name = "blk.2.ffn_down_shexp.weight", .value = DIM(1, 1), .says = "has shape [64], expected [64, 64]"},
    {.kind = SHAPE,
     .name = "blk.4.nextn.eh_proj.weight",
     .value = DIM(0, 64),
     .says = "has shape [64, 64], expected [128, 64]"},
    /* types and values */
    {.kind = TYPE,
     .name = "blk.0.attn_qkv.weight",
     .value = RL_Q8_1,
     .status = RL_ERR_UNSUPPORTED,
     .says = "type Q8_1, expected"},
    {.kind = TYPE,
     .name = "blk.0.ffn_up_exps.weight",
     .value = RL_I32,
     .status = RL_ERR_UNSUPPORTED,
     .says = "type I32, expected"},
    {.kind = TYPE, .name = "token_embd.weight", .value = RL_I8, .status = RL_ERR_UNSUPPORTED, .says = "type I8, expected"},
    {.kind = TYPE,
     .name = "blk.0.ffn_gate_inp.weight",
     .value = RL_Q8_0,
     .status = RL_ERR_UNSUPPORTED,
     .says = "type Q8_0, expected F32"},
    {.kind = TYPE,
     .name = "blk.0.attn_norm.weight",
     .value = RL_Q8_0,
     .status = RL_ERR_UNSUPPORTED,
     .says = "type Q8_0, expected F32"},
    {.kind = FILL, .name = "blk.0.attn_norm.weight", .real = NAN, .says = "expected finite numbers"},
    {.kind = FILL, .name = "blk.1.ssm_conv1d.weight", .real = INFINITY, .says = "expected finite numbers"},
    {.kind = FILL, .name = "blk.1.ssm_a", .real = 0.5, .says = "holds 0.5 at index 0"},
    /* tensors nobody would use */
    {.kind = ADD_TENSOR, .name = "blk.0.attn_q.weight", .value = 64, .says = "(attention)"},
    {.kind = ADD_TENSOR, .name = "blk.3.ssm_out.weight", .value = 64, .says = "(DeltaNet)"},
    {.kind = ADD_TENSOR, .name = "blk.0.ssm_in.weight", .value = 64, .says = "has shape [64], expected [64, 192]"},
    {.kind = ADD_TENSOR, .name = "blk.3.attn_qkv.weight", .value = 64, .says = "has shape [64], expected [64, 384]"},
    {.kind = ADD_TENSOR,
     .name = "blk.0.attn_qkv.bias",
     .value = 128,
     .status = RL_ERR_UNSUPPORTED,
     .says = "no place in this model"},
    {.kind = ADD_TENSOR, .name = "blk.1.ffn_gate_exps.scale", .value = 8, .status = RL_ERR_UNSUPPORTED, .says = "no place"},
    {.kind = ADD_TENSOR, .name = "blk.9.attn_norm.weight", .value = 64, .status = RL_ERR_UNSUPPORTED, .says = "no place"},
    {.kind = ADD_TENSOR, .name = "rope_freqs.weight", .value = 8, .status = RL_ERR_UNSUPPORTED, .says = "no place"},
    {.kind = ADD_TENSOR, .name = "blk.1.nextn.enorm.weight", .value = 64, .says = "makes block 1 an MTP block"},
    /* keys */
    {.kind = NO_KEY, .name = "general.architecture", .says = "missing"},
    {.kind = SET_STRING,
     .name = "general.architecture",
     .text = "llama",
     .status = RL_ERR_UNSUPPORTED,
     .says = "'llama', expected 'qwen3next'"},
    {.kind = SET_U32, .name = "general.architecture", .value = 1, .says = ""},
    {.kind = NO_KEY, .name = P "block_count", .says = "missing"},
    {.kind = NO_KEY, .name = P "embedding_length", .says = "missing"},
    {.kind = NO_KEY, .name = P "context_length", .says = "missing"},
    {.kind = NO_KEY, .name = P "attention.head_count", .says = "missing"},
    {.kind = NO_KEY, .name = P "attention.layer_norm_rms_epsilon", .says = "is 0, expected 0 to 1"},
    {.kind = NO_KEY, .name = P "expert_count", .says = "missing"},
    {.kind = NO_KEY, .name = P "expert_used_count", .says = "missing"},
    {.kind = NO_KEY, .name = P "expert_feed_forward_length", .says = "missing"},
    {.kind = NO_KEY, .name = P "ssm.conv_kernel", .says = "missing"},
    {.kind = NO_KEY, .name = P "ssm.state_size", .says = "missing"},
    {.kind = NO_KEY, .name = P "ssm.group_count", .says = "missing"},
    {.kind = NO_KEY, .name = P "ssm.time_step_rank", .says = "missing"},
    {.kind = NO_KEY, .name = P "ssm.inner_size", .says = "missing"},
    {.kind = SET_STRING, .name = P "embedding_length", .text = "64", .says = ""},
    {.kind = SET_U32, .name = P "block_count", .value = 0, .says = "is 0, expected 1 to 512"},
    {.kind = SET_U32, .name = P "block_count", .value = 513, .says = "is 513, expected 1 to 512"},
    {.kind = SET_U32, .name = P "block_count", .value = 1, .says = "is 1, expected more than nextn_predict_layers"},
    {.kind = SET_U32, .name = P "embedding_length", .value = 0, .says = "is 0, expected 32"},
    {.kind = SET_U32,
     .name = P "embedding_length",
     .value = 63,
     .status = RL_ERR_UNSUPPORTED,
     .says = "is 63, expected a multiple of 32"},
    {.kind = SET_U32, .name = P "embedding_length", .value = 0xFFFFFFFFU, .says = "is 4294967295, expected 32"},
    {.kind = SET_U32, .name = P "nextn_predict_layers", .value = 2, .says = "is 2, expected 0 to 1"},
    {.kind = SET_U32, .name = P "attention.head_count", .value = 0, .says = "is 0, expected 1"},
    {.kind = SET_U32, .name = P "attention.head_count", .value = 3, .says = "is 3, expected a multiple of head_count_kv (2)"},
    {.kind = SET_U32,
     .name = P "attention.value_length",
     .value = 64,
     .status = RL_ERR_UNSUPPORTED,
     .says = "is 64, expected key_length (32)"},
    {.kind = SET_U32, .name = P "attention.key_length", .value = 0x80000000U, .says = "is 2147483648, expected 1 to 1024"},
    {.kind = SET_U32,
     .name = P "rope.dimension_count",
     .value = 15,
     .says = "is 15, expected an even number up to the head size 32"},
    {.kind = SET_U32,
     .name = P "rope.dimension_count",
     .value = 34,
     .says = "is 34, expected an even number up to the head size 32"},
    {.kind = SET_F32, .name = P "rope.freq_base", .real = 0, .says = "is 0, expected"},
    {.kind = SET_F32, .name = P "rope.freq_base", .real = NAN, .says = "is nan, expected"},
    {.kind = ADD_STRING,
     .name = P "rope.scaling.type",
     .text = "linear",
     .status = RL_ERR_UNSUPPORTED,
     .says = "'linear', expected 'yarn'"},
    {.kind = SET_F32, .name = P "attention.layer_norm_rms_epsilon", .real = NAN, .says = "is nan, expected"},
    {.kind = SET_U32, .name = P "expert_count", .value = 0, .says = "is 0, expected 1 to 4096"},
    {.kind = SET_U32, .name = P "expert_count", .value = 4097, .says = "is 4097, expected 1 to 4096"},
    {.kind = SET_U32, .name = P "expert_used_count", .value = 0, .says = "is 0, expected 1 to 64"},
    {.kind = SET_U32, .name = P "expert_used_count", .value = 9, .says = "is 9, expected at most expert_count (8)"},
    {.kind = SET_U32, .name = P "expert_used_count", .value = 65, .says = "is 65, expected 1 to 64"},
    {.kind = SET_U32, .name = P "expert_feed_forward_length", .value = 0, .says = "is 0, expected 32"},
    {.kind = SET_U32,
     .name = P "expert_feed_forward_length",
     .value = 48,
     .status = RL_ERR_UNSUPPORTED,
     .says = "a multiple of 32"},
    {.kind = SET_U32, .name = P "ssm.conv_kernel", .value = 1, .says = "is 1, expected 2 to 16"},
    {.kind = SET_U32, .name = P "ssm.conv_kernel", .value = 17, .says = "is 17, expected 2 to 16"},
    {.kind = SET_U32, .name = P "ssm.state_size", .value = 0, .says = "is 0, expected 16"},
    {.kind = SET_U32, .name = P "ssm.state_size", .value = 8192, .says = "is 8192, expected 16 to 512"},
    {.kind = SET_U32, .name = P "ssm.group_count", .value = 0, .says = "is 0, expected 1"},
    {.kind = SET_U32, .name = P "ssm.time_step_rank", .value = 3, .says = "is 3, expected a multiple of ssm.group_count (2)"},
    {.kind = SET_U32, .name = P "ssm.inner_size", .value = 65, .says = "is 65, expected time_step_rank * state_size = 64"},
    {.kind = ADD_U32, .name = P "vocab_size", .value = 321, .says = "is 321, expected 320"},
    {.kind = ADD_U32,
     .name = P "full_attention_interval",
     .value = 0,
     .says = ""}, /* with recurrent_layers gone: see the code */
};

static void apply(tiny_file *f, const breakage *x)
{
    tiny_tensor *t;
    switch (x->kind) {
    case NO_TENSOR:
        tiny_remove_tensor(f, x->name);
        break;
    case NO_KEY:
        tiny_remove_key(f, x->name);
        break;
    case SET_U32:
    case ADD_U32:
        if (x->kind == SET_U32) tiny_remove_key(f, x->name);
        if (strstr(x->name, "full_attention_interval")) tiny_remove_key(f, P "attention.recurrent_layers");
        tiny_add_u32(f, x->name, x->value);
        break;
    case SET_F32:
        tiny_key_at(f, x->name)->f = (float)x->real;
        break;
    case SET_STRING:
        tiny_remove_key(f, x->name); /* fall through */
    case ADD_STRING:
        tiny_add_string(f, x->name, x->text);
        break;
    case SHAPE:
        t = tiny_tensor_at(f, x->name);
        t->ne[x->value / 1000000] = x->value % 1000000;
        free(t->data);
        t->data = NULL;
        break;
    case TYPE:
        t = tiny_tensor_at(f, x->name);
        t->type = (rl_type)x->value;
        free(t->data);
        t->data = NULL;
        break;
    case FILL:
        t = tiny_tensor_at(f, x->name);
        t->center = (float)x->real;
        t->spread = 0;
        break;
    case ADD_TENSOR:
        tiny_add_tensor(f, x->name, RL_F32, x->value, 1, 1);
        break;
    }
}

static tiny_params with_mtp(void)
{
    tiny_params p = tiny_defaults();
    p.mtp = true;
    return p;
}

static void each_breakage_is_named(void **state)
{
    (void)state;
    const tiny_params p = with_mtp();
    for (size_t i = 0; i < sizeof breakages / sizeof *breakages; i++) {
        const breakage *x = &breakages[i];
        tiny_file *f = tiny_build(&p);
        apply(f, x);
        rl_model *m = NULL;
        rl_error err = {RL_OK, ""};
        rl_status status = save_and_open(f, &m, &err);
        rl_status want = x->status ? x->status : RL_ERR_FORMAT;
        if (status != want || err.status != want || m != NULL || !strstr(err.text, x->says) || !strstr(err.text, x->name))
            fail_msg("breakage %zu (%s): status %s, '%s'; expected %s with '%s'", i, x->name, rl_status_name(status),
                     status == RL_OK ? "" : err.text, rl_status_name(want), x->says);
        tiny_free(f);
    }
}

/* ---- Breakages that take more than one change ------------------------------------------------------------------------------
 */

static void expect(tiny_file *f, rl_status want, const char *says)
{
    rl_model *m = NULL;
    rl_error err = {RL_OK, ""};
    rl_status status = save_and_open(f, &m, &err);
    rl_assert_fails(status, want, &err, says);
    assert_null(m);
    tiny_free(f);
}

static void a_block_without_mixer(void **state)
{
    (void)state;
    const tiny_params p = tiny_defaults();
    static const char *const names[] = {"q", "k", "v", "output", "q_norm", "k_norm"};
    tiny_file *f = tiny_build(&p);
    for (int i = 0; i < 6; i++) {
        char name[96];
        snprintf(name, sizeof name, "blk.3.attn_%s.weight", names[i]);
        tiny_remove_tensor(f, name);
    }
    expect(f, RL_ERR_FORMAT, "block 3 has no token mixer");
}

static void kinds_that_contradict_the_metadata(void **state)
{
    (void)state;
    const tiny_params p = tiny_defaults();
    const int32_t wrong[] = {1, 0, 1, 0}, few[] = {1, 1, 1};
    const char *key = P "attention.recurrent_layers";

    tiny_file *f = tiny_build(&p);
    tiny_remove_key(f, key);
    tiny_add_ints(f, key, wrong, 4);
    expect(f, RL_ERR_FORMAT, "makes block 1 attention, expected DeltaNet");

    f = tiny_build(&p);
    tiny_remove_key(f, key);
    tiny_add_ints(f, key, few, 3);
    expect(f, RL_ERR_FORMAT, "has 3 entries, expected 4 booleans");

    f = tiny_build(&p);
    tiny_remove_key(f, key);
    tiny_add_u32(f, P "full_attention_interval", 2);
    expect(f, RL_ERR_FORMAT, "'qwen3next.full_attention_interval' makes block 1 attention, expected DeltaNet");
}

static void a_vocabulary_of_another_size(void **state)
{
    (void)state;
    const tiny_params p = tiny_defaults();
    tiny_file *f = tiny_build(&p);
    tiny_key *k = tiny_key_at(f, "tokenizer.ggml.tokens");
    free(k->strings[--k->n]);
    expect(f, RL_ERR_FORMAT, "'tokenizer.ggml.tokens' has 319 entries, expected 320");
}

static void per_block_values_that_differ(void **state)
{
    (void)state;
    const tiny_params p = tiny_defaults();
    const int32_t differ[] = {3, 3, 2, 3}, negative[] = {-1, -1, -1, -1};
    tiny_file *f = tiny_build(&p);
    tiny_remove_key(f, P "expert_used_count");
    tiny_add_ints(f, P "expert_used_count", differ, 4);
    expect(f, RL_ERR_UNSUPPORTED, "differs between blocks (3 and 2)");
    f = tiny_build(&p);
    tiny_remove_key(f, P "expert_used_count");
    tiny_add_ints(f, P "expert_used_count", negative, 4);
    expect(f, RL_ERR_FORMAT, "is -1, expected an unsigned 32-bit integer");
}

static void an_undeclared_mtp_block(void **state)
{
    (void)state;
    const tiny_params p = with_mtp();
    tiny_file *f = tiny_build(&p);
    tiny_key_at(f, P "nextn_predict_layers")->u = 0;
    expect(f, RL_ERR_FORMAT, "makes block 4 an MTP block");
    f = tiny_build(&p);
    tiny_key_at(f, P "nextn_predict_layers")->u = 0;
    tiny_key_at(f, P "block_count")->u = 4;
    tiny_remove_key(f, P "attention.recurrent_layers");
    expect(f, RL_ERR_UNSUPPORTED, "no place in this model");
}

static void a_recurrent_mtp_block(void **state)
{
    (void)state;
    tiny_params p = tiny_defaults();
    p.layers = "RRAR";
    tiny_file *f = tiny_build(&p);
    tiny_key_at(f, P "nextn_predict_layers")->u = 1;
    expect(f, RL_ERR_FORMAT, "block 3 is the MTP block but has DeltaNet tensors");
}

static void a_draft_file(void **state)
{
    (void)state;
    const tiny_params p = with_mtp();
    tiny_file *f = tiny_build(&p);
    for (size_t i = f->n_tensors; i-- > 0;)
        if (strncmp(f->tensors[i].name, "blk.", 4) == 0 && f->tensors[i].name[4] != '4')
            tiny_remove_tensor(f, f->tensors[i].name);
    expect(f, RL_ERR_UNSUPPORTED, "draft file");
}

static void yarn_out_of_range(void **state)
{
    (void)state;
    const tiny_params p = tiny_defaults();
    tiny_file *f = tiny_build(&p);
    tiny_add_string(f, P "rope.scaling.type", "yarn");
    tiny_add_f32(f, P "rope.scaling.factor", 0);
    expect(f, RL_ERR_FORMAT, "'qwen3next.rope.scaling.factor' is 0, expected 1 to 1024");
    f = tiny_build(&p);
    tiny_add_string(f, P "rope.scaling.type", "yarn");
    tiny_add_f32(f, P "rope.scaling.factor", 4);
    tiny_add_f32(f, P "rope.scaling.yarn_beta_fast", 64);
    expect(f, RL_ERR_UNSUPPORTED, "expected the defaults");
}

/* Any number in any integer key: an error or a model, never a crash, and a model only with the tensors' own numbers. */
static void any_number_anywhere(void **state)
{
    (void)state;
    static const uint32_t values[] = {0, 1, 2, 7, 31, 64, 320, 65536, 0x7FFFFFFFU, 0x80000000U, 0xFFFFFFFFU};
    const tiny_params p = with_mtp();
    tiny_file *probe = tiny_build(&p);
    uint32_t refused = 0;
    for (size_t k = 0; k < probe->n_keys; k++) {
        if (probe->keys[k].kind != RL_GGUF_U32 || strncmp(probe->keys[k].name, P, strlen(P)) != 0) continue;
        const uint32_t good = probe->keys[k].u;
        for (size_t v = 0; v < sizeof values / sizeof *values; v++) {
            rl_model *m = NULL;
            rl_error err = {RL_OK, ""};
            probe->keys[k].u = values[v];
            rl_status status = save_and_open(probe, &m, &err);
            assert_true((status == RL_OK) == (m != NULL));
            if (m) assert_int_equal(m->hp.n_embd, 64);
            refused += status != RL_OK && err.text[0] != 0;
            rl_model_close(m);
        }
        probe->keys[k].u = good;
    }
    assert_true(refused > 100);
    tiny_free(probe);
}

/* What was bound can be run without further checks. */
static void run_one_token(rl_model *m)
{
    rl_backend *b;
    rl_seq *s;
    rl_error err;
    const int32_t id = 1;
    const rl_backend_options options = {.max_rows = 1, .threads = 1};
    float *logits = malloc(m->hp.n_vocab * sizeof *logits);
    assert_non_null(logits);
    rl_assert_ok(rl_backend_find("ref")->open(m, &options, &b, &err), &err);
    rl_assert_ok(b->ops->seq_create(b, 1, &s, &err), &err);
    const rl_segment segment = {s, &id, 1, RL_LOGITS_LAST};
    const rl_pass pass = {.segments = &segment, .n_segments = 1, .logits = logits};
    rl_assert_ok(b->ops->forward(b, &pass, &err), &err);
    b->ops->seq_free(s);
    b->ops->close(b);
    free(logits);
}

/* Bytes of the metadata and the tensor table changed at random: refused with a sentence, or a model that runs. */
static void random_bytes_in_the_header(void **state)
{
    (void)state;
    char path[PATH_MAX];
    size_t size;
    tiny_params p = tiny_defaults();
    p.layers = "RA";
    p.n_vocab = TINY_MIN_VOCAB;
    tiny_file *f = tiny_build(&p);
    tiny_remove_key(f, "tokenizer.ggml.merges"); /* leaves more of the changes to the keys we read */
    tiny_temp_path(path, sizeof path);
    tiny_save(f, path);
    tiny_free(f);
    uint8_t *bytes = (uint8_t *)rl_test_read(path, &size);
    unlink(path);
    rl_gguf *g;
    rl_error err;
    rl_assert_ok(rl_gguf_parse(bytes, size, "good", &g, &err), &err);
    const size_t header = (size_t)rl_gguf_tensor_at(g, 0)->offset;
    rl_gguf_close(g);
    rl_rng rng = rl_rng_seed(3);
    uint32_t ran = 0, refused = 0;
    for (int i = 0; i < 3000; i++) {
        size_t at[3];
        uint8_t old[3];
        const uint32_t n = 1 + rl_rng_below(&rng, 3);
        for (uint32_t k = 0; k < n; k++) {
            at[k] = rl_rng_below(&rng, (uint32_t)header);
            old[k] = bytes[at[k]];
            bytes[at[k]] = (uint8_t)rl_rng_u64(&rng);
        }
        rl_model *m = NULL;
        err.text[0] = 0;
        rl_status status = rl_gguf_parse(bytes, size, "changed", &g, &err);
        if (status == RL_OK) status = rl_model_bind(g, &m, &err);
        assert_true((status == RL_OK) == (m != NULL));
        if (m)
            run_one_token(m);
        else
            assert_true(err.text[0] != 0);
        ran += m != NULL;
        refused += m == NULL;
        rl_model_close(m);
        for (uint32_t k = n; k-- > 0;) /* in reverse, since places may repeat */
            bytes[at[k]] = old[k];
    }
    assert_true(ran > 100 && refused > 100);
    free(bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_breakage_is_named),
        cmocka_unit_test(a_block_without_mixer),
        cmocka_unit_test(kinds_that_contradict_the_metadata),
        cmocka_unit_test(a_vocabulary_of_another_size),
        cmocka_unit_test(per_block_values_that_differ),
        cmocka_unit_test(an_undeclared_mtp_block),
        cmocka_unit_test(a_recurrent_mtp_block),
        cmocka_unit_test(a_draft_file),
        cmocka_unit_test(yarn_out_of_range),
        cmocka_unit_test(any_number_anywhere),
        cmocka_unit_test(random_bytes_in_the_header),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
