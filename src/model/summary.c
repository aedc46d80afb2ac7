/* model/summary: adds up what the binding found. Assumes a bound model. */
#include "model/summary.h"
#include <string.h>

const char *rl_group_name(rl_group g)
{
    static const char *const names[RL_GROUP_COUNT] = {"embedding",      "head",          "attention", "deltanet",     "router",
                                                      "routed experts", "shared expert", "mtp block", "small tensors"};
    return (unsigned)g < RL_GROUP_COUNT ? names[g] : "unknown";
}

static uint64_t matrix_bytes(const rl_matrix *m)
{
    return (uint64_t)m->rows * m->row_bytes * m->n;
}

static void add(rl_group_size *g, const rl_matrix *m)
{
    if (!m->data) return;
    g->weights += (uint64_t)m->cols * m->rows * m->n;
    g->bytes += matrix_bytes(m);
    g->bytes_of_type[m->type] += matrix_bytes(m);
}

static uint64_t expert_bytes(const rl_layer *l)
{
    return (matrix_bytes(&l->gate_exps) + matrix_bytes(&l->up_exps) + matrix_bytes(&l->down_exps)) / l->gate_exps.n;
}

/* Matrices of a block; with `all` set every one of them goes there instead. */
static void add_block(rl_summary *s, const rl_layer *l, rl_group_size *all)
{
    rl_group_size *g = s->group;
    rl_group_size *mixer = all ? all : &g[l->kind == RL_LAYER_ATTENTION ? RL_GROUP_ATTENTION : RL_GROUP_DELTANET];
    const rl_matrix *const mixers[] = {&l->q, &l->k, &l->v, &l->o, &l->qkv, &l->gate, &l->ba, &l->out};
    const rl_matrix *const experts[] = {&l->gate_exps, &l->up_exps, &l->down_exps};
    const rl_matrix *const shared[] = {&l->gate_shared, &l->up_shared, &l->down_shared};
    for (size_t i = 0; i < sizeof mixers / sizeof *mixers; i++)
        add(mixer, mixers[i]);
    add(all ? all : &g[RL_GROUP_ROUTER], &l->router);
    for (size_t i = 0; i < 3; i++) {
        add(all ? all : &g[RL_GROUP_EXPERTS], experts[i]);
        add(all ? all : &g[RL_GROUP_SHARED], shared[i]);
    }
    const uint64_t one = expert_bytes(l);
    if (s->n_expert_blocks++ == 0 || one < s->expert_bytes_min) s->expert_bytes_min = one;
    if (one > s->expert_bytes_max) s->expert_bytes_max = one;
    s->experts_bytes += one * l->gate_exps.n;
    if (!all) s->token_expert_bytes += one * s->hp.n_expert_used;
}

static void add_matrices(rl_summary *s, const rl_model *m)
{
    rl_group_size *g = s->group, *mtp = &g[RL_GROUP_MTP];
    add(&g[RL_GROUP_EMBED], &m->embed);
    if (!m->tied_head) add(&g[RL_GROUP_HEAD], &m->head);
    for (uint32_t i = 0; i < m->hp.n_layer; i++)
        add_block(s, &m->layers[i], NULL);
    if (!m->hp.n_mtp) return;
    add_block(s, &m->mtp.block, mtp);
    add(mtp, &m->mtp.eh_proj);
    if (m->mtp.embed.tensor != m->embed.tensor) add(mtp, &m->mtp.embed);
    if (m->mtp.head.tensor != m->head.tensor) add(mtp, &m->mtp.head);
}

static void add_layer_map(rl_summary *s, const rl_model *m)
{
    uint32_t i = 0;
    for (; i < m->hp.n_layer; i++)
        s->layer_map[i] = m->layers[i].kind == RL_LAYER_ATTENTION ? 'A' : 'D';
    if (m->hp.n_mtp) s->layer_map[i] = 'M';
}

static void add_strings(rl_summary *s, const rl_gguf *g)
{
    rl_slice text;
    bool found = false;
    if (rl_gguf_get_string(g, "general.architecture", &text, &found, NULL) == RL_OK && found)
        rl_escape(s->architecture, sizeof s->architecture, text.data, text.size);
    if (rl_gguf_get_string(g, "general.name", &text, &found, NULL) == RL_OK && found)
        rl_escape(s->name, sizeof s->name, text.data, text.size);
}

void rl_summary_make(const rl_model *m, rl_summary *out)
{
    memset(out, 0, sizeof *out);
    const rl_hparams *hp = &m->hp;
    out->hp = *hp;
    out->n_files = rl_gguf_n_files(m->gguf);
    out->file_bytes = rl_gguf_total_bytes(m->gguf);
    add_strings(out, m->gguf);
    add_layer_map(out, m);
    add_matrices(out, m);

    /* Small tensors are what the file has besides the matrices. */
    uint64_t bytes = 0, matrices = 0, matrix_weights = 0;
    for (uint32_t i = 0; i < rl_gguf_n_tensors(m->gguf); i++) {
        const rl_gguf_tensor *t = rl_gguf_tensor_at(m->gguf, i);
        bytes += t->bytes;
        out->weights += t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3];
    }
    for (int g = 0; g < RL_GROUP_SMALL; g++) {
        matrices += out->group[g].bytes;
        matrix_weights += out->group[g].weights;
    }
    out->group[RL_GROUP_SMALL].bytes = bytes - matrices;
    out->group[RL_GROUP_SMALL].weights = out->weights - matrix_weights;
    out->bits_per_weight = 8.0 * (double)bytes / (double)out->weights;
    out->dense_bytes = bytes - out->experts_bytes;

    const uint64_t expert_weights = 3ULL * hp->n_embd * hp->n_ff_expert;
    out->weights_active =
        out->weights - out->group[RL_GROUP_MTP].weights - expert_weights * (hp->n_expert - hp->n_expert_used) * hp->n_layer;
    const uint64_t conv = (uint64_t)(hp->dn_conv - 1) * hp->dn_conv_dim;
    out->state_bytes =
        m->n_recurrent * (conv + (uint64_t)hp->dn_value_heads * hp->dn_head_dim * hp->dn_head_dim) * sizeof(float);
    const uint64_t kv = 2ULL * hp->n_head_kv * hp->head_dim;
    out->kv_numbers_per_token = m->n_attention * kv;
    out->mtp_kv_numbers_per_token = hp->n_mtp * kv;
}

uint64_t rl_summary_sequence_bytes(const rl_summary *s, uint32_t context, uint32_t kv_number_bytes)
{
    return s->state_bytes + (s->kv_numbers_per_token + s->mtp_kv_numbers_per_token) * context * kv_number_bytes;
}
