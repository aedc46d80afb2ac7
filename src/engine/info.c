/* engine/info: a model described in numbers a person can act on. */
#include "base/mem.h"
#include "engine/engine.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_GROUPS = 96, FINGERPRINT_SAMPLES = 32, FINGERPRINT_BYTES = 64 };

/* The public struct with the arrays it points to. */
typedef struct info_box {
    rl_model_info info; /* first: the box is freed through it */
    rl_group_info groups[MAX_GROUPS];
    uint8_t recurrent[RL_MAX_LAYERS];
} info_box;

static void add(info_box *b, const char *group, const char *type, uint32_t tensors, uint64_t weights, uint64_t bytes)
{
    if (bytes == 0) return;
    rl_group_info *g = NULL;
    for (uint32_t i = 0; i < b->info.n_groups && !g; i++)
        if (b->groups[i].group == group && b->groups[i].type == type) g = &b->groups[i];
    if (!g) {
        if (b->info.n_groups == MAX_GROUPS) return; /* more than 10 roles times 9 types: not met, and only a table suffers */
        g = &b->groups[b->info.n_groups++];
        *g = (rl_group_info){.group = group, .type = type};
    }
    g->tensors += tensors;
    g->weights += weights;
    g->bytes += bytes;
}

/* Not matrix_bytes: in a fused tensor that is the distance to the next expert's part. */
static uint64_t part_bytes(const rl_matrix *m)
{
    return m->row_bytes * m->rows;
}

static void add_matrix(info_box *b, const char *group, const rl_matrix *m)
{
    if (!m->data) return;
    add(b, group, rl_type_get(m->type)->name, 1, (uint64_t)m->cols * m->rows * m->n, part_bytes(m) * m->n);
}

static void add_layer(info_box *b, const rl_layer *l, const char *mixer, const char *router, const char *experts,
                      const char *shared)
{
    const rl_matrix *mix[] = {&l->q, &l->k, &l->v, &l->o, &l->qkv, &l->gate, &l->ba, &l->out};
    for (size_t i = 0; i < sizeof mix / sizeof *mix; i++)
        add_matrix(b, mixer, mix[i]);
    add_matrix(b, router, &l->router);
    add_matrix(b, experts, &l->gate_exps);
    add_matrix(b, experts, &l->up_exps);
    add_matrix(b, experts, &l->down_exps);
    add_matrix(b, shared, &l->gate_shared);
    add_matrix(b, shared, &l->up_shared);
    add_matrix(b, shared, &l->down_shared);
}

/* Group names are compared by address: one constant each. */
static const char G_EMBED[] = "embedding", G_HEAD[] = "head", G_DELTANET[] = "deltanet", G_ATTENTION[] = "attention",
                  G_ROUTER[] = "router", G_EXPERTS[] = "experts", G_SHARED[] = "shared expert", G_NORMS[] = "norms and vectors",
                  G_MTP[] = "mtp";

static int rank(const char *group)
{
    const char *const order[] = {G_EMBED, G_DELTANET, G_ATTENTION, G_ROUTER, G_EXPERTS, G_SHARED, G_NORMS, G_HEAD, G_MTP};
    int i = 0;
    while (order[i] != group)
        i++;
    return i;
}

/* In the order of the data flow, the largest type of a group first. */
static int by_rank(const void *a, const void *b)
{
    const rl_group_info *x = a, *y = b;
    int d = rank(x->group) - rank(y->group);
    return d ? d : x->bytes < y->bytes ? 1 : x->bytes > y->bytes ? -1 : 0;
}

static void collect_groups(info_box *b, const rl_model *m)
{
    add_matrix(b, G_EMBED, &m->embed);
    if (!m->tied_head) add_matrix(b, G_HEAD, &m->head);
    for (uint32_t i = 0; i < m->hp.n_layer; i++) {
        const rl_layer *l = &m->layers[i];
        add_layer(b, l, l->kind == RL_LAYER_RECURRENT ? G_DELTANET : G_ATTENTION, G_ROUTER, G_EXPERTS, G_SHARED);
    }
    if (m->hp.n_mtp) {
        add_layer(b, &m->mtp.block, G_MTP, G_MTP, G_MTP, G_MTP);
        add_matrix(b, G_MTP, &m->mtp.eh_proj);
        if (m->mtp.embed.data != m->embed.data) add_matrix(b, G_MTP, &m->mtp.embed);
        if (m->mtp.head.data != m->head.data) add_matrix(b, G_MTP, &m->mtp.head);
    }
    /* What is left are norms, convolutions and decays, held as plain floats. */
    uint64_t bytes = 0, weights = 0;
    uint32_t tensors = 0;
    for (uint32_t i = 0; i < b->info.n_groups; i++) {
        bytes += b->groups[i].bytes;
        weights += b->groups[i].weights;
        tensors += b->groups[i].tensors;
    }
    uint64_t all_bytes = 0, all_weights = 0;
    uint32_t n = rl_gguf_n_tensors(m->gguf);
    for (uint32_t i = 0; i < n; i++) {
        const rl_gguf_tensor *t = rl_gguf_tensor_at(m->gguf, i);
        all_bytes += t->bytes;
        all_weights += t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3];
    }
    b->info.parameters = all_weights;
    if (all_bytes > bytes && all_weights > weights)
        add(b, G_NORMS, "F32", n > tensors ? n - tensors : 0, all_weights - weights, all_bytes - bytes);
    qsort(b->groups, b->info.n_groups, sizeof *b->groups, by_rank);
}

static uint64_t one_expert(const rl_layer *l)
{
    return part_bytes(&l->gate_exps) + part_bytes(&l->up_exps) + part_bytes(&l->down_exps);
}

static void collect_sizes(info_box *b, const rl_model *m)
{
    rl_model_info *o = &b->info;
    const rl_hparams *hp = &m->hp;
    uint64_t routed = 0, dense = 0;
    for (uint32_t i = 0; i < hp->n_layer; i++) {
        uint64_t bytes = one_expert(&m->layers[i]);
        if (bytes > o->expert_bytes) o->expert_bytes = bytes;
        o->all_experts_bytes += bytes * hp->n_expert;
        routed += bytes * hp->n_expert_used;
    }
    for (uint32_t i = 0; i < o->n_groups; i++) {
        const char *g = b->groups[i].group;
        if (g != G_EMBED && g != G_EXPERTS && g != G_MTP) dense += b->groups[i].bytes;
    }
    if (m->tied_head) dense += m->embed.matrix_bytes;
    o->bytes_per_token = dense + routed + m->embed.row_bytes;
    uint64_t state = (uint64_t)hp->dn_value_heads * hp->dn_head_dim * hp->dn_head_dim +
                     (uint64_t)(hp->dn_conv ? hp->dn_conv - 1 : 0) * hp->dn_conv_dim;
    o->state_bytes = state * sizeof(float) * m->n_recurrent;
    o->kv_bytes_per_token = 2ull * hp->n_head_kv * hp->head_dim * sizeof(float) * m->n_attention;
}

static uint64_t mix(uint64_t h, const void *data, size_t n)
{
    const uint8_t *p = data;
    for (size_t i = 0; i < n; i++)
        h = (h ^ p[i]) * 0x100000001b3ull; /* FNV-1a */
    return h;
}

/* Names, shapes and types of every tensor, and samples of bytes spread over the file: quick on a file of any size, and it tells
 * two fine-tunes of one shape apart. */
static uint64_t fingerprint(const rl_gguf *g)
{
    uint64_t h = 0xcbf29ce484222325ull;
    uint32_t n = rl_gguf_n_tensors(g);
    for (uint32_t i = 0; i < n; i++) {
        const rl_gguf_tensor *t = rl_gguf_tensor_at(g, i);
        uint32_t type = t->type;
        h = mix(h, t->name, strlen(t->name) + 1);
        h = mix(h, &type, sizeof type);
        h = mix(h, t->ne, sizeof t->ne);
    }
    for (uint32_t k = 0; k < FINGERPRINT_SAMPLES && n > 0; k++) {
        const rl_gguf_tensor *t = rl_gguf_tensor_at(g, (uint32_t)((uint64_t)k * n / FINGERPRINT_SAMPLES));
        uint64_t size = t->bytes < FINGERPRINT_BYTES ? t->bytes : FINGERPRINT_BYTES;
        h = mix(h, t->data + (t->bytes - size) / 2, (size_t)size);
    }
    return h;
}

static void copy_string(const rl_gguf *g, const char *key, char *out, size_t cap)
{
    rl_slice v = {0};
    bool found = false;
    if (rl_gguf_get_string(g, key, &v, &found, NULL) == RL_OK && found) rl_escape(out, cap, v.data, v.size);
}

static void collect_metadata(rl_model_info *o, const rl_gguf *g)
{
    copy_string(g, "general.architecture", o->architecture, sizeof o->architecture);
    copy_string(g, "general.name", o->name, sizeof o->name);
    o->has_chat_template = rl_gguf_find(g, "tokenizer.chat_template") != NULL;
    o->sampling_temperature = o->sampling_top_p = o->sampling_min_p = NAN;
    /* Recommendations are hints: one of a wrong type is as good as none. */
    rl_gguf_get_f32(g, "general.sampling.temp", &o->sampling_temperature, NULL, NULL);
    rl_gguf_get_f32(g, "general.sampling.top_p", &o->sampling_top_p, NULL, NULL);
    rl_gguf_get_f32(g, "general.sampling.min_p", &o->sampling_min_p, NULL, NULL);
    uint32_t k = 0;
    bool found = false;
    o->sampling_top_k = -1;
    if (rl_gguf_get_u32(g, "general.sampling.top_k", &k, &found, NULL) == RL_OK && found && k <= INT32_MAX)
        o->sampling_top_k = (int32_t)k;
}

rl_status rl_info_create(const rl_model *m, const rl_tokenizer *t, const char *path, rl_model_info **out, rl_error *err)
{
    info_box *b = rl_calloc(1, sizeof *b);
    if (!b) return rl_fail(err, RL_ERR_MEMORY, "no memory for the description of a model");
    rl_model_info *o = &b->info;
    const rl_hparams *hp = &m->hp;
    rl_escape(o->path, sizeof o->path, path, strlen(path));
    o->n_files = rl_gguf_n_files(m->gguf);
    o->file_bytes = rl_gguf_total_bytes(m->gguf);
    o->n_layer = hp->n_layer;
    o->n_recurrent = m->n_recurrent;
    o->n_attention = m->n_attention;
    o->n_mtp = hp->n_mtp;
    for (uint32_t i = 0; i < hp->n_layer; i++)
        b->recurrent[i] = m->layers[i].kind == RL_LAYER_RECURRENT;
    o->recurrent = b->recurrent;
    o->n_embd = hp->n_embd;
    o->n_vocab = hp->n_vocab;
    o->n_tokens = t ? rl_tokenizer_n_vocab(t) : 0;
    o->n_context_train = hp->n_context_train;
    o->n_head = hp->n_head;
    o->n_head_kv = hp->n_head_kv;
    o->head_dim = hp->head_dim;
    o->n_rot = hp->n_rot;
    o->rope_base = hp->rope_base;
    o->dn_key_heads = hp->dn_key_heads;
    o->dn_value_heads = hp->dn_value_heads;
    o->dn_head_dim = hp->dn_head_dim;
    o->dn_conv = hp->dn_conv;
    o->n_expert = hp->n_expert;
    o->n_expert_used = hp->n_expert_used;
    o->n_ff_expert = hp->n_ff_expert;
    o->n_ff_shared = hp->n_ff_shared;
    o->tied_head = m->tied_head;
    o->groups = b->groups;
    collect_metadata(o, m->gguf);
    collect_groups(b, m);
    collect_sizes(b, m);
    o->fingerprint = fingerprint(m->gguf);
    *out = o;
    return RL_OK;
}

rl_status rl_model_inspect(const char *path, rl_model_info **out, rl_error *err)
{
    if (!path || !out) return rl_fail(err, RL_ERR_ARGUMENT, "no model file was named");
    rl_model *m = NULL;
    rl_status st = rl_model_open(path, &m, err);
    if (st != RL_OK) return st;
    rl_tokenizer *t = NULL;
    st = rl_engine_load_tokenizer(m->gguf, &t, err);
    if (st == RL_OK) st = rl_info_create(m, t, path, out, err);
    rl_tokenizer_free(t);
    rl_model_close(m);
    return st;
}

void rl_model_info_free(rl_model_info *info)
{
    free(info); /* the box begins with it */
}
