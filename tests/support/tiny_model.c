/* tests/support/tiny_model: random models. Weights are drawn per tensor from the model's seed and the tensor's name, so a
 * layout does not change them. */
#include "support/tiny_model.h"
#include "quant/quant.h"
#include "support/blocks.h"
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static RL_PRINTF(1, 2) _Noreturn void die(const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    fputs("tiny_model: ", stderr);
    vfprintf(stderr, fmt, args);
    fputc('\n', stderr);
    va_end(args);
    exit(99);
}

static void *need(void *p)
{
    if (!p) die("out of memory");
    return p;
}

/* ---- Parameters -------------------------------------------------------------------------------------------------------- */

tiny_params tiny_defaults(void)
{
    return (tiny_params){
        .layers = "RRRA",
        .n_embd = 64,
        .n_vocab = 320,
        .n_head = 4,
        .n_head_kv = 2,
        .head_dim = 32,
        .n_rot = 16,
        .dn_key_heads = 2,
        .dn_value_heads = 4,
        .dn_head_dim = 16,
        .dn_conv = 4,
        .n_expert = 8,
        .n_expert_used = 3,
        .n_ff_expert = 32,
        .n_ff_shared = 64,
        .seed = 1,
    };
}

void tiny_set_type(tiny_params *p, rl_type type)
{
    p->embed = p->head = p->dense = p->gate_exps = p->up_exps = p->down_exps = type;
    if (rl_type_get(type)->block_weights <= 32) return;
    p->n_embd = p->n_ff_expert = p->n_ff_shared = 256;
    p->head_dim = 64;
    p->dn_head_dim = 64;
}

/* ---- Keys -------------------------------------------------------------------------------------------------------------- */

static tiny_key *add_key(tiny_file *f, const char *name, rl_gguf_kind kind)
{
    f->keys = need(realloc(f->keys, (f->n_keys + 1) * sizeof *f->keys));
    tiny_key *k = &f->keys[f->n_keys++];
    memset(k, 0, sizeof *k);
    snprintf(k->name, sizeof k->name, "%s", name);
    k->kind = kind;
    return k;
}

void tiny_add_u32(tiny_file *f, const char *name, uint32_t v)
{
    add_key(f, name, RL_GGUF_U32)->u = v;
}

void tiny_add_f32(tiny_file *f, const char *name, float v)
{
    add_key(f, name, RL_GGUF_F32)->f = v;
}

void tiny_add_string(tiny_file *f, const char *name, const char *v)
{
    add_key(f, name, RL_GGUF_STRING)->text = need(strdup(v));
}

void tiny_add_ints(tiny_file *f, const char *name, const int32_t *v, size_t n)
{
    tiny_key *k = add_key(f, name, RL_GGUF_ARRAY);
    k->ints = need(malloc(n * sizeof *v));
    memcpy(k->ints, v, n * sizeof *v);
    k->n = n;
}

static void free_key(tiny_key *k)
{
    free(k->text);
    free(k->ints);
    for (size_t i = 0; k->strings && i < k->n; i++)
        free(k->strings[i]);
    free(k->strings);
}

tiny_key *tiny_key_at(tiny_file *f, const char *name)
{
    for (size_t i = 0; i < f->n_keys; i++)
        if (strcmp(f->keys[i].name, name) == 0) return &f->keys[i];
    die("no key '%s'", name);
}

void tiny_remove_key(tiny_file *f, const char *name)
{
    tiny_key *k = tiny_key_at(f, name);
    free_key(k);
    memmove(k, k + 1, (size_t)(f->keys + f->n_keys - (k + 1)) * sizeof *k);
    f->n_keys--;
}

static void add_arch_keys(tiny_file *f, const tiny_params *p)
{
    tiny_add_string(f, "general.architecture", "qwen3next");
    tiny_add_string(f, "general.name", "random test model");
    const struct {
        const char *name;
        uint32_t v;
    } keys[] = {
        {"block_count", (uint32_t)strlen(p->layers) + p->mtp},
        {"context_length", 4096},
        {"embedding_length", p->n_embd},
        {"attention.head_count", p->n_head},
        {"attention.head_count_kv", p->n_head_kv},
        {"attention.key_length", p->head_dim},
        {"attention.value_length", p->head_dim},
        {"rope.dimension_count", p->n_rot},
        {"expert_count", p->n_expert},
        {"expert_used_count", p->n_expert_used},
        {"expert_feed_forward_length", p->n_ff_expert},
        {"expert_shared_feed_forward_length", p->n_ff_shared},
        {"ssm.conv_kernel", p->dn_conv},
        {"ssm.state_size", p->dn_head_dim},
        {"ssm.group_count", p->dn_key_heads},
        {"ssm.time_step_rank", p->dn_value_heads},
        {"ssm.inner_size", p->dn_value_heads * p->dn_head_dim},
        {"nextn_predict_layers", p->mtp},
    };
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        char name[96];
        snprintf(name, sizeof name, "qwen3next.%s", keys[i].name);
        tiny_add_u32(f, name, keys[i].v);
    }
    tiny_add_f32(f, "qwen3next.attention.layer_norm_rms_epsilon", 1e-6F);
    tiny_add_f32(f, "qwen3next.rope.freq_base", 1e6F);
    int32_t recurrent[RL_MAX_LAYERS];
    size_t n = strlen(p->layers);
    for (size_t i = 0; i < n + p->mtp; i++)
        recurrent[i] = i < n && p->layers[i] == 'R';
    tiny_add_ints(f, "qwen3next.attention.recurrent_layers", recurrent, n + p->mtp);
}

/* ---- Vocabulary -------------------------------------------------------------------------------------------------------- */

/* Pairs in UTF-8 of the byte-level alphabet; \304\240 stands for the space. */
static const char *const merges[] = {
    "\304\240 t", "h e",        "\304\240 a",  "i n",         "\304\240t he", "r e",          "o n",  "\304\240 w",
    "e r",        "n d",        "o u",         "\304\240 s",  "l l",          "\304\240a nd", "in g", "s t",
    "a t",        "\304\240 o", "\304\240o f", "\304\240 in", "i t",          "o r",
};
enum { N_MERGES = sizeof merges / sizeof *merges };

/* The letter that stands for byte b in byte-level vocabularies: itself when printable, else the next one from U+0100 on. */
static uint32_t byte_letter(unsigned b)
{
    uint32_t next = 256;
    for (unsigned i = 0; i < 256; i++) {
        bool printable = (i >= 33 && i <= 126) || (i >= 161 && i <= 172) || i >= 174;
        if (i == b) return printable ? i : next;
        next += !printable;
    }
    return 0;
}

static int by_letter(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static char *token_text(uint32_t id, uint32_t n_vocab)
{
    static const char *const special[] = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
    char text[32];
    if (id >= n_vocab - 3) return need(strdup(special[id - (n_vocab - 3)]));
    if (id < 256) {
        uint32_t letters[256];
        for (unsigned b = 0; b < 256; b++)
            letters[b] = byte_letter(b);
        qsort(letters, 256, sizeof *letters, by_letter);
        uint32_t c = letters[id];
        if (c < 128)
            snprintf(text, sizeof text, "%c", (int)c);
        else
            snprintf(text, sizeof text, "%c%c", (int)(0xC0 | c >> 6), (int)(0x80 | (c & 63)));
    } else if (id < 256 + N_MERGES) {
        const char *pair = merges[id - 256], *space = strchr(pair, ' ');
        snprintf(text, sizeof text, "%.*s%s", (int)(space - pair), pair, space + 1);
    } else {
        snprintf(text, sizeof text, "<unused%u>", id);
    }
    return need(strdup(text));
}

static void add_vocabulary(tiny_file *f, uint32_t n)
{
    if (n < TINY_MIN_VOCAB) die("n_vocab %u is below %d", n, TINY_MIN_VOCAB);
    tiny_add_string(f, "tokenizer.ggml.model", "gpt2");
    tiny_add_string(f, "tokenizer.ggml.pre", "qwen2");
    tiny_key *k = add_key(f, "tokenizer.ggml.tokens", RL_GGUF_ARRAY);
    k->strings = need(calloc(n, sizeof *k->strings));
    k->n = n;
    int32_t *types = need(malloc(n * sizeof *types));
    for (uint32_t i = 0; i < n; i++) {
        k->strings[i] = token_text(i, n);
        types[i] = i >= n - 3 ? 3 : i < 256 + N_MERGES ? 1 : 5; /* control, normal, unused */
    }
    tiny_add_ints(f, "tokenizer.ggml.token_type", types, n);
    free(types);
    k = add_key(f, "tokenizer.ggml.merges", RL_GGUF_ARRAY);
    k->strings = need(calloc(N_MERGES, sizeof *k->strings));
    k->n = N_MERGES;
    for (size_t i = 0; i < N_MERGES; i++)
        k->strings[i] = need(strdup(merges[i]));
    tiny_add_u32(f, "tokenizer.ggml.eos_token_id", n - 1);
    tiny_add_u32(f, "tokenizer.ggml.padding_token_id", n - 3);
    tiny_add_u32(f, "tokenizer.ggml.bos_token_id", n - 3);
    add_key(f, "tokenizer.ggml.add_bos_token", RL_GGUF_BOOL);
    tiny_add_string(f, "tokenizer.chat_template",
                    "{%- for m in messages %}{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{%- endfor %}"
                    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}");
}

/* ---- Tensors ----------------------------------------------------------------------------------------------------------- */

tiny_tensor *tiny_add_tensor(tiny_file *f, const char *name, rl_type type, uint64_t ne0, uint64_t ne1, uint64_t ne2)
{
    f->tensors = need(realloc(f->tensors, (f->n_tensors + 1) * sizeof *f->tensors));
    tiny_tensor *t = &f->tensors[f->n_tensors++];
    memset(t, 0, sizeof *t);
    snprintf(t->name, sizeof t->name, "%s", name);
    t->type = type;
    t->ne[0] = ne0;
    t->ne[1] = ne1;
    t->ne[2] = ne2;
    t->ne[3] = 1;
    t->spread = 1;
    return t;
}

tiny_tensor *tiny_tensor_at(tiny_file *f, const char *name)
{
    for (size_t i = 0; i < f->n_tensors; i++)
        if (strcmp(f->tensors[i].name, name) == 0) return &f->tensors[i];
    die("no tensor '%s'", name);
}

void tiny_remove_tensor(tiny_file *f, const char *name)
{
    tiny_tensor *t = tiny_tensor_at(f, name);
    free(t->data);
    memmove(t, t + 1, (size_t)(f->tensors + f->n_tensors - (t + 1)) * sizeof *t);
    f->n_tensors--;
}

static size_t tensor_bytes(const tiny_tensor *t)
{
    return rl_type_row_bytes(t->type, t->ne[0]) * t->ne[1] * t->ne[2] * t->ne[3];
}

static void fill_plain(const tiny_tensor *t, rl_rng *rng, uint8_t *dst, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        float v = t->center + t->spread * rl_rng_uniform(rng);
        uint16_t h = t->type == RL_F16 ? rl_f32_to_f16(v) : rl_f32_to_bf16(v);
        if (t->type == RL_F32)
            memcpy(dst + 4 * i, &v, 4);
        else
            memcpy(dst + 2 * i, &h, 2);
    }
}

/* Random contents: a function of the seed, the name, the type and the shape. */
static uint8_t *tensor_random(const tiny_tensor *t, uint64_t seed)
{
    size_t bytes = tensor_bytes(t);
    uint8_t *data = need(calloc(bytes ? bytes : 1, 1));
    rl_rng rng = rl_rng_seed(seed * 0x9E3779B97F4A7C15U);
    for (const char *c = t->name; *c; c++)
        rng.state = (rng.state ^ (uint8_t)*c) * 0x100000001B3U;
    const size_t n = t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3];
    if (t->type == RL_F32 || t->type == RL_F16 || t->type == RL_BF16)
        fill_plain(t, &rng, data, n);
    else if (rl_quant_get(t->type))
        rl_test_random_blocks(t->type, &rng, data, n / rl_type_get(t->type)->block_weights);
    return data;
}

typedef struct builder {
    tiny_file *f;
    const tiny_params *p;
    int block;
} builder;

static tiny_tensor *add(builder *b, const char *suffix, rl_type type, uint64_t ne0, uint64_t ne1, uint64_t ne2)
{
    char name[96];
    if (b->block < 0)
        snprintf(name, sizeof name, "%s", suffix);
    else
        snprintf(name, sizeof name, "blk.%d.%s", b->block, suffix);
    return tiny_add_tensor(b->f, name, type, ne0, ne1, ne2);
}

static void add_vector(builder *b, const char *suffix, uint64_t n, float center, float spread)
{
    tiny_tensor *t = add(b, suffix, b->p->vectors, n, 1, 1);
    t->center = center;
    t->spread = spread;
}

/* Matrices hold numbers up to 1, so norms before them shrink a row to keep products of the order of 1. */
static void add_norm(builder *b, const char *suffix)
{
    const float c = 2 / sqrtf((float)b->p->n_embd);
    add_vector(b, suffix, b->p->n_embd, c, c / 4);
}

/* Joins the rows of the last `n` tensors into one called `suffix`, in the order of `take`: pairs of (which of the n, rows),
 * repeated until every row of each is used. This is how legacy and fused layouts are made from the usual one. */
static void fuse(builder *b, const char *suffix, int n, const uint32_t (*take)[2], int n_take)
{
    tiny_file *f = b->f;
    tiny_tensor *part = f->tensors + f->n_tensors - n;
    const size_t row = rl_type_row_bytes(part[0].type, part[0].ne[0]);
    size_t total = 0, done = 0, used[4] = {0};
    uint64_t rows = 0, ne0 = part[0].ne[0], ne2 = part[0].ne[2];
    for (int i = 0; i < n; i++) {
        part[i].data = tensor_random(&part[i], f->seed);
        total += tensor_bytes(&part[i]);
        rows += part[i].ne[1];
    }
    uint8_t *data = need(malloc(total));
    while (done < total)
        for (int i = 0; i < n_take; i++) {
            const uint32_t which = take[i][0];
            const size_t bytes = take[i][1] * row;
            memcpy(data + done, part[which].data + used[which], bytes);
            done += bytes;
            used[which] += bytes;
        }
    rl_type type = part[0].type;
    for (int i = 0; i < n; i++)
        free(part[i].data);
    f->n_tensors -= (size_t)n;
    add(b, suffix, type, ne0, rows, ne2)->data = data;
}

static void add_attention(builder *b)
{
    const tiny_params *p = b->p;
    const uint32_t q = 2 * p->n_head * p->head_dim, kv = p->n_head_kv * p->head_dim;
    add(b, "attn_q.weight", p->dense, p->n_embd, q, 1);
    add(b, "attn_k.weight", p->dense, p->n_embd, kv, 1);
    add(b, "attn_v.weight", p->dense, p->n_embd, kv, 1);
    if (p->fused_attention) fuse(b, "attn_qkv.weight", 3, (const uint32_t[][2]){{0, q}, {1, kv}, {2, kv}}, 3);
    add(b, "attn_output.weight", p->dense, p->n_head * p->head_dim, p->n_embd, 1);
    add_vector(b, "attn_q_norm.weight", p->head_dim, 1, 0.25F);
    add_vector(b, "attn_k_norm.weight", p->head_dim, 1, 0.25F);
}

/* The four inputs apart, so that the legacy layout can be made by joining them. */
static void add_deltanet_input(builder *b)
{
    const tiny_params *p = b->p;
    const uint32_t s = p->dn_head_dim, kd = p->dn_key_heads * s, vd = p->dn_value_heads * s, rs = vd / p->dn_key_heads;
    add(b, "q", p->dense, p->n_embd, kd, 1);
    add(b, "k", p->dense, p->n_embd, kd, 1);
    add(b, "v", p->dense, p->n_embd, vd, 1);
    if (!p->legacy_ssm_in) fuse(b, "attn_qkv.weight", 3, (const uint32_t[][2]){{0, kd}, {1, kd}, {2, vd}}, 3);
    add(b, "attn_gate.weight", p->dense, p->n_embd, vd, 1);
    if (p->legacy_ssm_in) fuse(b, "ssm_in.weight", 4, (const uint32_t[][2]){{0, s}, {1, s}, {2, rs}, {3, rs}}, 4);
}

static void add_deltanet(builder *b)
{
    const tiny_params *p = b->p;
    const uint32_t kd = p->dn_key_heads * p->dn_head_dim, vd = p->dn_value_heads * p->dn_head_dim;
    add_deltanet_input(b);
    add(b, "ssm_ba.weight", p->dense, p->n_embd, 2 * p->dn_value_heads, 1);
    tiny_tensor *conv = add(b, "ssm_conv1d.weight", p->vectors, p->dn_conv, 2 * kd + vd, 1);
    conv->spread = 0.5F;
    add_vector(b, "ssm_dt.bias", p->dn_value_heads, -2, 1);
    add_vector(b, "ssm_a", p->dn_value_heads, -1, 0.9F);
    add_vector(b, "ssm_norm.weight", p->dn_head_dim, 1, 0.25F);
    add(b, "ssm_out.weight", p->dense, vd, p->n_embd, 1);
}

static void add_moe(builder *b)
{
    const tiny_params *p = b->p;
    const uint32_t e = p->n_embd, f = p->n_ff_expert, fs = p->n_ff_shared, n = p->n_expert;
    add(b, "ffn_gate_inp.weight", p->router, e, n, 1);
    add(b, "ffn_gate_exps.weight", p->gate_exps, e, f, n);
    add(b, "ffn_up_exps.weight", p->fused_gate_up ? p->gate_exps : p->up_exps, e, f, n);
    if (p->fused_gate_up) fuse(b, "ffn_gate_up_exps.weight", 2, (const uint32_t[][2]){{0, f}, {1, f}}, 2);
    add(b, "ffn_down_exps.weight", p->down_exps, f, e, n);
    add_vector(b, "ffn_gate_inp_shexp.weight", e, 0, 1);
    add(b, "ffn_gate_shexp.weight", p->dense, e, fs, 1);
    add(b, "ffn_up_shexp.weight", p->dense, e, fs, 1);
    add(b, "ffn_down_shexp.weight", p->dense, fs, e, 1);
}

static void add_block(builder *b, bool recurrent)
{
    add_norm(b, "attn_norm.weight");
    add_norm(b, "post_attention_norm.weight");
    if (recurrent)
        add_deltanet(b);
    else
        add_attention(b);
    add_moe(b);
}

static void add_mtp(builder *b)
{
    const tiny_params *p = b->p;
    add_block(b, false);
    add(b, "nextn.eh_proj.weight", p->dense, 2 * p->n_embd, p->n_embd, 1);
    add_norm(b, "nextn.enorm.weight");
    add_norm(b, "nextn.hnorm.weight");
    if (!p->mtp_own_tables) return;
    add_norm(b, "nextn.shared_head_norm.weight");
    add(b, "nextn.embed_tokens.weight", p->embed, p->n_embd, p->n_vocab, 1);
    add(b, "nextn.shared_head_head.weight", p->head, p->n_embd, p->n_vocab, 1);
}

/* ---- Files ------------------------------------------------------------------------------------------------------------- */

tiny_file *tiny_build(const tiny_params *p)
{
    tiny_file *f = need(calloc(1, sizeof *f));
    f->seed = p->seed;
    add_arch_keys(f, p);
    add_vocabulary(f, p->n_vocab);
    builder b = {f, p, -1};
    add(&b, "token_embd.weight", p->embed, p->n_embd, p->n_vocab, 1);
    add_norm(&b, "output_norm.weight");
    if (!p->tied_head) add(&b, "output.weight", p->head, p->n_embd, p->n_vocab, 1);
    for (b.block = 0; p->layers[b.block]; b.block++)
        add_block(&b, p->layers[b.block] == 'R');
    if (p->mtp) add_mtp(&b);
    return f;
}

void tiny_free(tiny_file *f)
{
    if (!f) return;
    for (size_t i = 0; i < f->n_keys; i++)
        free_key(&f->keys[i]);
    for (size_t i = 0; i < f->n_tensors; i++)
        free(f->tensors[i].data);
    free(f->keys);
    free(f->tensors);
    free(f);
}

static rl_status save_strings(rl_gguf_writer *w, const tiny_key *k, rl_error *err)
{
    rl_slice *v = need(malloc(k->n * sizeof *v));
    for (size_t i = 0; i < k->n; i++)
        v[i] = (rl_slice){k->strings[i], strlen(k->strings[i])};
    rl_status status = rl_gguf_write_strings(w, k->name, v, k->n, err);
    free(v);
    return status;
}

static rl_status save_key(rl_gguf_writer *w, const tiny_key *k, rl_error *err)
{
    switch (k->kind) {
    case RL_GGUF_U32:
        return rl_gguf_write_u32(w, k->name, k->u, err);
    case RL_GGUF_F32:
        return rl_gguf_write_f32(w, k->name, k->f, err);
    case RL_GGUF_BOOL:
        return rl_gguf_write_bool(w, k->name, k->u != 0, err);
    case RL_GGUF_STRING:
        return rl_gguf_write_string(w, k->name, k->text, strlen(k->text), err);
    default:
        return k->strings ? save_strings(w, k, err) : rl_gguf_write_i32s(w, k->name, k->ints, k->n, err);
    }
}

static uint32_t used_dims(const tiny_tensor *t)
{
    uint32_t n = 4;
    while (n > 1 && t->ne[n - 1] == 1)
        n--;
    return n;
}

void tiny_save(const tiny_file *f, const char *path)
{
    rl_error err;
    rl_gguf_writer *w;
    rl_status status = rl_gguf_writer_open(path, &w, &err);
    if (status != RL_OK) die("%s", err.text);
    for (size_t i = 0; status == RL_OK && i < f->n_keys; i++)
        status = save_key(w, &f->keys[i], &err);
    for (size_t i = 0; status == RL_OK && i < f->n_tensors; i++) {
        const tiny_tensor *t = &f->tensors[i];
        status = rl_gguf_declare(w, t->name, t->type, used_dims(t), t->ne, &err);
    }
    for (size_t i = 0; status == RL_OK && i < f->n_tensors; i++) {
        const tiny_tensor *t = &f->tensors[i];
        uint8_t *random = t->data ? NULL : tensor_random(t, f->seed);
        status = rl_gguf_write_data(w, random ? random : t->data, tensor_bytes(t), &err);
        free(random);
    }
    if (status == RL_OK)
        status = rl_gguf_writer_commit(w, &err);
    else
        rl_gguf_writer_abort(w);
    if (status != RL_OK) die("%s", err.text);
}

void tiny_write(const tiny_params *p, const char *path)
{
    tiny_file *f = tiny_build(p);
    tiny_save(f, path);
    tiny_free(f);
}

void tiny_temp_path(char *out, size_t cap)
{
    const char *dir = getenv("TMPDIR");
    snprintf(out, cap, "%s/redlite-test-XXXXXX", dir ? dir : "/tmp");
    int fd = mkstemp(out);
    if (fd < 0) die("cannot create %s", out);
    close(fd);
}

rl_model *tiny_open(const tiny_params *p)
{
    char path[512];
    tiny_temp_path(path, sizeof path);
    tiny_write(p, path);
    rl_model *m = NULL;
    rl_error err;
    rl_status status = rl_model_open(path, &m, &err);
    unlink(path);
    if (status != RL_OK) die("%s", err.text);
    return m;
}
