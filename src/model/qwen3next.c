/* model/qwen3next: the keys and tensors of the Qwen3-Next architecture.
 *
 * Owns every key name, tensor name and shape of the architecture; docs/model.md gives the formulas they serve. A block is
 * attention or DeltaNet by the tensors it has: one signature, complete and unmixed. */
#include "base/mem.h"
#include "model/binder.h"
#include <inttypes.h>
#include <math.h>
#include <string.h>

/* Bounds on single numbers keep every product below within 32 bits. */
enum { MAX_EMBD = 1 << 16, MAX_HEADS = 1024, MAX_FF = 1 << 18, MAX_VOCAB = 1 << 24, MAX_CONTEXT = 1 << 30 };

static bool key_is(const rl_slice *s, const char *text)
{
    return s->size == strlen(text) && memcmp(s->data, text, s->size) == 0;
}

/* ---- Hyperparameters --------------------------------------------------------------------------------------------------- */

static void need_multiple(rl_binder *b, const char *what, uint32_t v, uint32_t of)
{
    if (v % of) rl_binder_fail(b, RL_ERR_UNSUPPORTED, "%s is %u, expected a multiple of %u", what, v, of);
}

static void read_rope(rl_binder *b, rl_hparams *hp)
{
    hp->rope_base = (double)rl_binder_f32_or(b, "rope.freq_base", 1e4F);
    hp->n_rot = rl_binder_u32_or(b, "rope.dimension_count", 2, RL_MAX_HEAD_DIM, hp->head_dim);
    hp->rope_factor = 1;
    hp->rope_original_context = hp->n_context_train;
    hp->rope_attn_factor = 1;
    if (b->status != RL_OK) return;
    if (!(hp->rope_base > 1 && hp->rope_base < 1e12)) {
        rl_binder_fail(b, RL_ERR_FORMAT, "key 'qwen3next.rope.freq_base' is %g, expected 1 to 1e12", hp->rope_base);
        return;
    }
    if (hp->n_rot % 2 || hp->n_rot > hp->head_dim) {
        rl_binder_fail(b, RL_ERR_FORMAT,
                       "key 'qwen3next.rope.dimension_count' is %u, expected an even number up to the head size %u", hp->n_rot,
                       hp->head_dim);
        return;
    }
    rl_slice type;
    bool found = false;
    b->status = rl_gguf_get_string(b->g, "qwen3next.rope.scaling.type", &type, &found, b->err);
    if (b->status != RL_OK || !found || key_is(&type, "none")) return;
    if (!key_is(&type, "yarn")) {
        char text[64];
        rl_binder_fail(b, RL_ERR_UNSUPPORTED, "key 'qwen3next.rope.scaling.type' is '%s', expected 'yarn' or 'none'",
                       rl_escape(text, sizeof text, type.data, type.size));
        return;
    }
    hp->rope_factor = rl_binder_f32_or(b, "rope.scaling.factor", 1);
    hp->rope_attn_factor = rl_binder_f32_or(b, "rope.scaling.attn_factor", 1);
    hp->rope_original_context =
        rl_binder_u32_or(b, "rope.scaling.original_context_length", 1, MAX_CONTEXT, hp->n_context_train);
    if (!(hp->rope_factor >= 1 && hp->rope_factor <= 1024))
        rl_binder_fail(b, RL_ERR_FORMAT, "key 'qwen3next.rope.scaling.factor' is %g, expected 1 to 1024",
                       (double)hp->rope_factor);
    if (!(hp->rope_attn_factor > 0 && hp->rope_attn_factor <= 100))
        rl_binder_fail(b, RL_ERR_FORMAT, "key 'qwen3next.rope.scaling.attn_factor' is %g, expected 0 to 100",
                       (double)hp->rope_attn_factor);
    /* The ramp's ends are fixed in our formula; a file that moves them would run with other angles. */
    if (rl_binder_f32_or(b, "rope.scaling.yarn_beta_fast", 32) != 32 ||
        rl_binder_f32_or(b, "rope.scaling.yarn_beta_slow", 1) != 1)
        rl_binder_fail(b, RL_ERR_UNSUPPORTED,
                       "keys 'qwen3next.rope.scaling.yarn_beta_*' differ from 32 and 1, expected the defaults");
}

static void read_attention(rl_binder *b, rl_hparams *hp)
{
    hp->n_head = rl_binder_u32(b, "attention.head_count", 1, MAX_HEADS);
    hp->n_head_kv = rl_binder_u32_or(b, "attention.head_count_kv", 1, MAX_HEADS, hp->n_head);
    if (b->status != RL_OK) return;
    if (hp->n_head % hp->n_head_kv) {
        rl_binder_fail(b, RL_ERR_FORMAT,
                       "key 'qwen3next.attention.head_count' is %u, expected a multiple of head_count_kv (%u)", hp->n_head,
                       hp->n_head_kv);
        return;
    }
    hp->head_dim = rl_binder_u32_or(b, "attention.key_length", 1, RL_MAX_HEAD_DIM, hp->n_embd / hp->n_head);
    uint32_t value = rl_binder_u32_or(b, "attention.value_length", 1, RL_MAX_HEAD_DIM, hp->n_embd / hp->n_head);
    if (b->status != RL_OK) return;
    if (value != hp->head_dim)
        rl_binder_fail(b, RL_ERR_UNSUPPORTED, "key 'qwen3next.attention.value_length' is %u, expected key_length (%u)", value,
                       hp->head_dim);
    if (hp->head_dim == 0 || hp->head_dim > RL_MAX_HEAD_DIM)
        rl_binder_fail(b, RL_ERR_FORMAT, "the attention head size is %u, expected 1 to %d", hp->head_dim, RL_MAX_HEAD_DIM);
    need_multiple(b, "the attention head size", hp->head_dim, 16);
    if (b->status == RL_OK) need_multiple(b, "the attention output (heads times head size)", hp->n_head * hp->head_dim, 32);
}

static void read_deltanet(rl_binder *b, rl_hparams *hp)
{
    hp->dn_conv = rl_binder_u32(b, "ssm.conv_kernel", 2, RL_MAX_CONV);
    hp->dn_head_dim = rl_binder_u32(b, "ssm.state_size", 16, RL_MAX_STATE);
    hp->dn_key_heads = rl_binder_u32(b, "ssm.group_count", 1, MAX_HEADS);
    hp->dn_value_heads = rl_binder_u32(b, "ssm.time_step_rank", 1, MAX_HEADS);
    uint32_t inner = rl_binder_u32(b, "ssm.inner_size", 1, UINT32_MAX);
    if (b->status != RL_OK) return;
    hp->dn_key_dim = hp->dn_key_heads * hp->dn_head_dim;
    hp->dn_value_dim = hp->dn_value_heads * hp->dn_head_dim;
    hp->dn_conv_dim = 2 * hp->dn_key_dim + hp->dn_value_dim;
    if (hp->dn_value_heads % hp->dn_key_heads)
        rl_binder_fail(b, RL_ERR_FORMAT,
                       "key 'qwen3next.ssm.time_step_rank' is %u, expected a multiple of ssm.group_count (%u)",
                       hp->dn_value_heads, hp->dn_key_heads);
    if (inner != hp->dn_value_dim)
        rl_binder_fail(b, RL_ERR_FORMAT, "key 'qwen3next.ssm.inner_size' is %u, expected time_step_rank * state_size = %u",
                       inner, hp->dn_value_dim);
    need_multiple(b, "key 'qwen3next.ssm.state_size'", hp->dn_head_dim, 16);
    need_multiple(b, "key 'qwen3next.ssm.inner_size'", hp->dn_value_dim, 32);
}

static void read_experts(rl_binder *b, rl_hparams *hp)
{
    hp->n_expert = rl_binder_u32(b, "expert_count", 1, RL_MAX_EXPERTS);
    hp->n_expert_used = rl_binder_u32(b, "expert_used_count", 1, RL_MAX_EXPERTS_USED);
    hp->n_ff_expert = rl_binder_u32(b, "expert_feed_forward_length", 32, MAX_FF);
    /* Optional in files: the shared expert's own rows tell. */
    const rl_gguf_tensor *up = rl_binder_find(b, 0, "ffn_up_shexp.weight");
    uint32_t from_tensor = up && up->ne[1] <= MAX_FF ? (uint32_t)up->ne[1] : 0;
    hp->n_ff_shared = rl_binder_u32_or(b, "expert_shared_feed_forward_length", 32, MAX_FF, from_tensor);
    if (b->status != RL_OK) return;
    if (hp->n_expert_used > hp->n_expert)
        rl_binder_fail(b, RL_ERR_FORMAT, "key 'qwen3next.expert_used_count' is %u, expected at most expert_count (%u)",
                       hp->n_expert_used, hp->n_expert);
    if (hp->n_ff_shared == 0)
        rl_binder_fail(b, RL_ERR_FORMAT,
                       "tensor 'blk.0.ffn_up_shexp.weight' is missing, expected the shared expert of block 0");
    need_multiple(b, "key 'qwen3next.expert_feed_forward_length'", hp->n_ff_expert, 32);
    need_multiple(b, "key 'qwen3next.expert_shared_feed_forward_length'", hp->n_ff_shared, 32);
}

/* V is what the embedding says; a tokenizer of another size would index outside it. */
static void read_vocabulary(rl_binder *b, rl_hparams *hp)
{
    const rl_gguf_tensor *t = rl_binder_find(b, -1, "token_embd.weight");
    if (!t) {
        rl_binder_fail(b, RL_ERR_FORMAT, "tensor 'token_embd.weight' is missing, expected the embedding [%u, vocabulary]",
                       hp->n_embd);
        return;
    }
    if (t->ne[1] < 1 || t->ne[1] > MAX_VOCAB) {
        rl_binder_fail(b, RL_ERR_FORMAT, "tensor 'token_embd.weight' has %" PRIu64 " rows, expected 1 to %d", t->ne[1],
                       MAX_VOCAB);
        return;
    }
    hp->n_vocab = (uint32_t)t->ne[1];
    uint32_t declared = rl_binder_u32_or(b, "vocab_size", 1, MAX_VOCAB, hp->n_vocab);
    if (b->status != RL_OK) return;
    if (declared != hp->n_vocab) {
        rl_binder_fail(b, RL_ERR_FORMAT, "key 'qwen3next.vocab_size' is %u, expected %u, the rows of 'token_embd.weight'",
                       declared, hp->n_vocab);
        return;
    }
    rl_gguf_array tokens;
    bool found = false;
    b->status = rl_gguf_get_array(b->g, "tokenizer.ggml.tokens", &tokens, &found, b->err);
    if (b->status == RL_OK && found && tokens.count != hp->n_vocab)
        rl_binder_fail(b, RL_ERR_FORMAT,
                       "key 'tokenizer.ggml.tokens' has %" PRIu64 " entries, expected %u, the rows of 'token_embd.weight'",
                       tokens.count, hp->n_vocab);
}

static rl_status read_hparams(rl_binder *b)
{
    rl_hparams *hp = &b->m->hp;
    uint32_t blocks = rl_binder_u32(b, "block_count", 1, RL_MAX_LAYERS);
    hp->n_mtp = rl_binder_u32_or(b, "nextn_predict_layers", 0, 1, 0);
    hp->n_embd = rl_binder_u32(b, "embedding_length", 32, MAX_EMBD);
    hp->n_context_train = rl_binder_u32(b, "context_length", 1, MAX_CONTEXT);
    hp->eps = rl_binder_f32_or(b, "attention.layer_norm_rms_epsilon", 0);
    if (b->status != RL_OK) return b->status;
    if (blocks <= hp->n_mtp)
        return rl_binder_fail(b, RL_ERR_FORMAT,
                              "key 'qwen3next.block_count' is %u, expected more than nextn_predict_layers (%u)", blocks,
                              hp->n_mtp);
    hp->n_layer = blocks - hp->n_mtp;
    if (!(hp->eps > 0 && hp->eps < 1))
        return rl_binder_fail(b, RL_ERR_FORMAT,
                              "key 'qwen3next.attention.layer_norm_rms_epsilon' is %g, expected 0 to 1 (exclusive)",
                              (double)hp->eps);
    need_multiple(b, "key 'qwen3next.embedding_length'", hp->n_embd, 32);
    read_attention(b, hp);
    if (b->status == RL_OK) read_rope(b, hp);
    if (b->status == RL_OK) read_deltanet(b, hp);
    if (b->status == RL_OK) read_experts(b, hp);
    if (b->status == RL_OK) read_vocabulary(b, hp);
    return b->status;
}

/* ---- Blocks ------------------------------------------------------------------------------------------------------------ */

/* Tensors that tell the kinds apart. attn_qkv.weight is missing here: DeltaNet has it, and attention in its fused form. */
static const char *const attention_only[] = {
    "attn_q.weight", "attn_k.weight", "attn_v.weight", "attn_output.weight", "attn_q_norm.weight", "attn_k_norm.weight", NULL};
static const char *const deltanet_only[] = {"attn_gate.weight",  "ssm_in.weight",  "ssm_ba.weight",
                                            "ssm_conv1d.weight", "ssm_dt.bias",    "ssm_a",
                                            "ssm_norm.weight",   "ssm_out.weight", NULL};

static rl_layer_kind layer_kind(rl_binder *b, int il)
{
    const char *attention = rl_binder_first_of(b, il, attention_only);
    const char *deltanet = rl_binder_first_of(b, il, deltanet_only);
    if (attention && deltanet)
        rl_binder_fail(b, RL_ERR_FORMAT,
                       "block %d has 'blk.%d.%s' (attention) and 'blk.%d.%s' (DeltaNet), expected one kind only", il, il,
                       attention, il, deltanet);
    else if (!attention && !deltanet)
        rl_binder_fail(b, RL_ERR_FORMAT,
                       "block %d has no token mixer, expected 'blk.%d.attn_q.weight' or 'blk.%d.attn_qkv.weight' "
                       "with their companions",
                       il, il, il);
    return attention ? RL_LAYER_ATTENTION : RL_LAYER_RECURRENT;
}

static void bind_attention(rl_binder *b, int il, rl_layer *l)
{
    const rl_hparams *hp = &b->m->hp;
    const uint32_t e = hp->n_embd, q = 2 * hp->n_head * hp->head_dim, kv = hp->n_head_kv * hp->head_dim;
    if (rl_binder_find(b, il, "attn_qkv.weight")) {
        rl_matrix fused = rl_binder_matrix(b, il, "attn_qkv.weight", e, q + 2 * kv, 1);
        l->q = rl_matrix_rows(&fused, 0, q);
        l->k = rl_matrix_rows(&fused, q, kv);
        l->v = rl_matrix_rows(&fused, q + kv, kv);
    } else {
        l->q = rl_binder_matrix(b, il, "attn_q.weight", e, q, 1);
        l->k = rl_binder_matrix(b, il, "attn_k.weight", e, kv, 1);
        l->v = rl_binder_matrix(b, il, "attn_v.weight", e, kv, 1);
    }
    l->o = rl_binder_matrix(b, il, "attn_output.weight", hp->n_head * hp->head_dim, e, 1);
    l->q_norm = rl_binder_vector(b, il, "attn_q_norm.weight", hp->head_dim, 1);
    l->k_norm = rl_binder_vector(b, il, "attn_k_norm.weight", hp->head_dim, 1);
}

/* Older converters kept the four DeltaNet inputs in one matrix, grouped per key head: S rows of q, S of k, r*S of v, r*S of z.
 * We present them as newer files have them, so nobody else needs to know: a copy of the rows, in the order of qkv and gate. */
static void bind_legacy_input(rl_binder *b, int il, rl_layer *l)
{
    const rl_hparams *hp = &b->m->hp;
    const uint32_t s = hp->dn_head_dim, rs = hp->dn_value_dim / hp->dn_key_heads, rows = hp->dn_conv_dim + hp->dn_value_dim;
    rl_matrix in = rl_binder_matrix(b, il, "ssm_in.weight", hp->n_embd, rows, 1);
    uint8_t *copy = rl_binder_own(b, in.matrix_bytes);
    if (!copy) return;
    const uint8_t *from = in.data;
    for (uint32_t j = 0; j < hp->dn_key_heads; j++) {
        const uint32_t first[4] = {j * s, hp->dn_key_dim + j * s, 2 * hp->dn_key_dim + j * rs, hp->dn_conv_dim + j * rs};
        const uint32_t count[4] = {s, s, rs, rs};
        for (int part = 0; part < 4; part++) {
            memcpy(copy + first[part] * in.row_bytes, from, count[part] * in.row_bytes);
            from += count[part] * in.row_bytes;
        }
    }
    in.data = copy;
    in.copied = true;
    l->qkv = rl_matrix_rows(&in, 0, hp->dn_conv_dim);
    l->gate = rl_matrix_rows(&in, hp->dn_conv_dim, hp->dn_value_dim);
}

static void bind_deltanet(rl_binder *b, int il, rl_layer *l)
{
    const rl_hparams *hp = &b->m->hp;
    const uint32_t e = hp->n_embd, hv = hp->dn_value_heads;
    if (rl_binder_find(b, il, "ssm_in.weight")) {
        bind_legacy_input(b, il, l);
    } else {
        l->qkv = rl_binder_matrix(b, il, "attn_qkv.weight", e, hp->dn_conv_dim, 1);
        l->gate = rl_binder_matrix(b, il, "attn_gate.weight", e, hp->dn_value_dim, 1);
    }
    l->ba = rl_binder_matrix(b, il, "ssm_ba.weight", e, 2 * hv, 1);
    l->conv = rl_binder_vector(b, il, "ssm_conv1d.weight", hp->dn_conv, hp->dn_conv_dim);
    l->dt_bias = rl_binder_vector(b, il, "ssm_dt.bias", hv, 1);
    l->a = rl_binder_vector(b, il, "ssm_a", hv, 1);
    l->ssm_norm = rl_binder_vector(b, il, "ssm_norm.weight", hp->dn_head_dim, 1);
    l->out = rl_binder_matrix(b, il, "ssm_out.weight", hp->dn_value_dim, e, 1);
    for (uint32_t h = 0; b->status == RL_OK && h < hv; h++)
        if (l->a[h] > 0) /* would make the state grow without bound */
            rl_binder_fail(b, RL_ERR_FORMAT,
                           "tensor 'blk.%d.ssm_a' holds %g at index %u, expected -exp(A_log), which is negative", il,
                           (double)l->a[h], h);
}

static void bind_moe(rl_binder *b, int il, rl_layer *l)
{
    const rl_hparams *hp = &b->m->hp;
    const uint32_t e = hp->n_embd, f = hp->n_ff_expert, fs = hp->n_ff_shared, n = hp->n_expert;
    l->router = rl_binder_matrix(b, il, "ffn_gate_inp.weight", e, n, 1);
    if (b->status == RL_OK && l->router.type != RL_F32 && l->router.type != RL_F16 && l->router.type != RL_BF16)
        rl_binder_fail(b, RL_ERR_UNSUPPORTED,
                       "tensor '%s' has type %s, expected F32, F16 or BF16: routing needs full precision",
                       l->router.tensor->name, rl_type_get(l->router.type)->name);
    if (rl_binder_find(b, il, "ffn_gate_up_exps.weight")) {
        rl_matrix fused = rl_binder_matrix(b, il, "ffn_gate_up_exps.weight", e, 2 * f, n);
        l->gate_exps = rl_matrix_rows(&fused, 0, f);
        l->up_exps = rl_matrix_rows(&fused, f, f);
    } else {
        l->gate_exps = rl_binder_matrix(b, il, "ffn_gate_exps.weight", e, f, n);
        l->up_exps = rl_binder_matrix(b, il, "ffn_up_exps.weight", e, f, n);
    }
    l->down_exps = rl_binder_matrix(b, il, "ffn_down_exps.weight", f, e, n);
    l->shared_router = rl_binder_vector(b, il, "ffn_gate_inp_shexp.weight", e, 1);
    l->gate_shared = rl_binder_matrix(b, il, "ffn_gate_shexp.weight", e, fs, 1);
    l->up_shared = rl_binder_matrix(b, il, "ffn_up_shexp.weight", e, fs, 1);
    l->down_shared = rl_binder_matrix(b, il, "ffn_down_shexp.weight", fs, e, 1);
}

static void bind_block(rl_binder *b, int il, rl_layer *l)
{
    l->kind = layer_kind(b, il);
    l->attn_norm = rl_binder_vector(b, il, "attn_norm.weight", b->m->hp.n_embd, 1);
    l->post_norm = rl_binder_vector(b, il, "post_attention_norm.weight", b->m->hp.n_embd, 1);
    if (l->kind == RL_LAYER_ATTENTION)
        bind_attention(b, il, l);
    else
        bind_deltanet(b, il, l);
    bind_moe(b, il, l);
}

static void bind_mtp(rl_binder *b)
{
    rl_model *m = b->m;
    rl_mtp *t = &m->mtp;
    const uint32_t e = m->hp.n_embd;
    const int il = (int)m->hp.n_layer;
    bind_block(b, il, &t->block);
    if (b->status == RL_OK && t->block.kind != RL_LAYER_ATTENTION)
        rl_binder_fail(b, RL_ERR_FORMAT, "block %d is the MTP block but has DeltaNet tensors, expected attention", il);
    t->eh_proj = rl_binder_matrix(b, il, "nextn.eh_proj.weight", 2 * e, e, 1);
    t->enorm = rl_binder_vector(b, il, "nextn.enorm.weight", e, 1);
    t->hnorm = rl_binder_vector(b, il, "nextn.hnorm.weight", e, 1);
    t->head_norm = rl_binder_find(b, il, "nextn.shared_head_norm.weight")
                       ? rl_binder_vector(b, il, "nextn.shared_head_norm.weight", e, 1)
                       : m->output_norm;
    t->embed = rl_binder_find(b, il, "nextn.embed_tokens.weight")
                   ? rl_binder_matrix(b, il, "nextn.embed_tokens.weight", e, m->hp.n_vocab, 1)
                   : m->embed;
    t->head = rl_binder_find(b, il, "nextn.shared_head_head.weight")
                  ? rl_binder_matrix(b, il, "nextn.shared_head_head.weight", e, m->hp.n_vocab, 1)
                  : m->head;
}

/* ---- Metadata against structure ---------------------------------------------------------------------------------------- */

static void check_kind(rl_binder *b, uint32_t il, bool recurrent, const char *key)
{
    static const char *const names[] = {"DeltaNet", "attention"};
    if (b->status != RL_OK || (b->m->layers[il].kind == RL_LAYER_RECURRENT) == recurrent) return;
    rl_binder_fail(b, RL_ERR_FORMAT, "key '%s' makes block %u %s, expected %s, which is what its tensors are", key, il,
                   names[!recurrent], names[recurrent]);
}

static void check_layer_kinds(rl_binder *b)
{
    const char *key = "qwen3next.attention.recurrent_layers";
    const rl_hparams *hp = &b->m->hp;
    rl_gguf_array a;
    bool found = false;
    if (b->status != RL_OK) return;
    b->status = rl_gguf_get_array(b->g, key, &a, &found, b->err);
    if (b->status != RL_OK) return;
    if (found) {
        if (a.kind == RL_GGUF_STRING || a.kind == RL_GGUF_ARRAY || a.kind == RL_GGUF_F32 || a.kind == RL_GGUF_F64 ||
            a.count != hp->n_layer + hp->n_mtp) {
            rl_binder_fail(b, RL_ERR_FORMAT, "key '%s' has %" PRIu64 " entries, expected %u booleans", key, a.count,
                           hp->n_layer + hp->n_mtp);
            return;
        }
        for (uint32_t il = 0; il < hp->n_layer; il++)
            check_kind(b, il, rl_gguf_array_int(&a, il) != 0, key);
        return;
    }
    if (!rl_binder_has_key(b, "full_attention_interval")) return;
    uint32_t interval = rl_binder_u32(b, "full_attention_interval", 1, UINT32_MAX);
    for (uint32_t il = 0; b->status == RL_OK && il < hp->n_layer; il++)
        check_kind(b, il, (il + 1) % interval != 0, "qwen3next.full_attention_interval");
}

static void check_mtp_declared(rl_binder *b)
{
    static const char *const nextn[] = {"nextn.eh_proj.weight", "nextn.enorm.weight", "nextn.hnorm.weight", NULL};
    for (uint32_t il = 0; il < b->m->hp.n_layer; il++) {
        const char *name = rl_binder_first_of(b, (int)il, nextn);
        if (name)
            rl_binder_fail(b, RL_ERR_FORMAT,
                           "tensor 'blk.%u.%s' makes block %u an MTP block, expected key "
                           "'qwen3next.nextn_predict_layers' to count it among the last blocks",
                           il, name, il);
    }
}

rl_status rl_qwen3next_bind(rl_binder *b)
{
    rl_model *m = b->m;
    if (!rl_binder_find(b, 0, "attn_norm.weight") && rl_binder_find(b, -1, "token_embd.weight") &&
        !rl_binder_first_of(b, 0, attention_only) && !rl_binder_first_of(b, 0, deltanet_only))
        return rl_binder_fail(
            b, RL_ERR_UNSUPPORTED,
            "tensor 'blk.0.attn_norm.weight' is missing with the rest of block 0: a draft file with the MTP block only, "
            "expected a whole model");
    if (read_hparams(b) != RL_OK) return b->status;
    const uint32_t e = m->hp.n_embd, v = m->hp.n_vocab;
    m->layers = rl_calloc(m->hp.n_layer, sizeof *m->layers);
    if (!m->layers) return rl_binder_fail(b, RL_ERR_MEMORY, "cannot allocate %u layers", m->hp.n_layer);
    check_mtp_declared(b);
    m->embed = rl_binder_matrix(b, -1, "token_embd.weight", e, v, 1);
    m->output_norm = rl_binder_vector(b, -1, "output_norm.weight", e, 1);
    m->tied_head = !rl_binder_find(b, -1, "output.weight");
    m->head = m->tied_head ? m->embed : rl_binder_matrix(b, -1, "output.weight", e, v, 1);
    for (uint32_t il = 0; b->status == RL_OK && il < m->hp.n_layer; il++) {
        bind_block(b, (int)il, &m->layers[il]);
        *(m->layers[il].kind == RL_LAYER_ATTENTION ? &m->n_attention : &m->n_recurrent) += 1;
    }
    if (m->hp.n_mtp) bind_mtp(b);
    check_layer_kinds(b);
    return b->status;
}
