/* backend/cpu: opening and closing. Matrices are prepared, small tensors rearranged and every byte a pass will need is
 * allocated here. */
#include "backend/cpu/cpu.h"
#include <stdlib.h>
#include <string.h>

/* Dynamic phases of a layer and outside layers, rounded up. */
#define COUNTERS_PER_LAYER 8

static bool switch_on(const char *name)
{
    const char *v = getenv(name);
    return !v || strcmp(v, "0") != 0;
}

/* ---- Matrices ---------------------------------------------------------------------------------------------------------- */

/* Progress counts bytes of matrices; done in the order of the layers. */
typedef struct loading {
    cpu_backend *b;
    const rl_backend_options *opt;
    uint64_t done, total; /* total 0: the counting round */
    rl_error *err;
} loading;

/* A copy in memory of our own, in the file's layout. */
static rl_status own_matrix(const rl_matrix *src, rl_mm_matrix *out, rl_error *err)
{
    const size_t bytes = (size_t)(src->rows * src->row_bytes);
    out->owned = rl_aligned_alloc(RL_CACHE_LINE, bytes, 1);
    if (!out->owned) return rl_fail(err, RL_ERR_MEMORY, "no memory for a copy of %zu bytes", bytes);
    memcpy(out->owned, src->data, bytes);
    out->owned_bytes = bytes;
    out->data = out->owned;
    return RL_OK;
}

static rl_status load_matrix(loading *l, const rl_matrix *src, bool repack, rl_mm_matrix *out)
{
    if (!src->data) return RL_OK;
    const uint64_t bytes = src->matrix_bytes * (repack ? src->n : 1);
    if (l->total == 0) {
        l->done += bytes;
        /* All of it is wanted soon: one long read instead of faults page by page. */
        if (src->n == 1 && src->tensor && !src->copied)
            rl_mapping_advise(rl_gguf_mapping(l->b->base.model->gguf, src->tensor->file),
                              src->tensor->offset + (uint64_t)(src->data - src->tensor->data), src->matrix_bytes,
                              RL_ADVICE_WILLNEED);
        return RL_OK;
    }
    rl_status st = rl_mm_matrix_init(l->b->mm, src, repack, l->b->pool, out, l->err);
    /* Beside an expert cache the page cache is nobody's: what every token reads must not depend on it. */
    if (st == RL_OK && l->opt->experts && !out->owned && src->n == 1) st = own_matrix(src, out, l->err);
    if (st != RL_OK) return rl_error_prefix(l->err, "%s", src->tensor ? src->tensor->name : "a matrix");
    l->done += bytes;
    if (l->opt->progress && !l->opt->progress(l->opt->progress_ctx, (double)l->done / (double)l->total))
        return rl_fail(l->err, RL_ERR_CANCELLED, "loading was cancelled");
    return RL_OK;
}

/* Dense matrices are read by every token and re-encoded; experts are not, unless asked for. */
static rl_status load_layer(loading *l, const rl_layer *src, cpu_layer *out)
{
    const bool experts = l->opt->repack_experts;
    const struct {
        const rl_matrix *from;
        rl_mm_matrix *to;
        bool repack;
    } list[] = {{&src->q, &out->q, true},
                {&src->k, &out->k, true},
                {&src->v, &out->v, true},
                {&src->o, &out->o, true},
                {&src->qkv, &out->qkv, true},
                {&src->gate, &out->gate, true},
                {&src->ba, &out->ba, true},
                {&src->out, &out->out, true},
                {&src->router, &out->router, true},
                {&src->gate_shared, &out->gate_shared, true},
                {&src->up_shared, &out->up_shared, true},
                {&src->down_shared, &out->down_shared, true},
                {&src->gate_exps, &out->gate_exps, experts},
                {&src->up_exps, &out->up_exps, experts},
                {&src->down_exps, &out->down_exps, experts}};
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        const rl_status st = load_matrix(l, list[i].from, list[i].repack, list[i].to);
        if (st != RL_OK) return st;
    }
    return RL_OK;
}

static rl_status load_all(loading *l)
{
    cpu_backend *b = l->b;
    const rl_model *m = b->base.model;
    rl_status st = load_matrix(l, &m->embed, false, &b->embed);
    if (st == RL_OK) st = load_matrix(l, &m->head, true, &b->head);
    for (uint32_t i = 0; i < m->hp.n_layer && st == RL_OK; i++)
        st = load_layer(l, &m->layers[i], &b->layers[i]);
    if (st != RL_OK || m->hp.n_mtp == 0) return st;
    st = load_layer(l, &m->mtp.block, &b->mtp_layer);
    if (st == RL_OK) st = load_matrix(l, &m->mtp.eh_proj, true, &b->eh_proj);
    if (st == RL_OK) st = load_matrix(l, &m->mtp.embed, false, &b->mtp_embed);
    b->mtp_head = m->mtp.head.data == m->head.data ? &b->head : &b->mtp_own_head;
    if (st == RL_OK && b->mtp_head != &b->head) st = load_matrix(l, &m->mtp.head, true, &b->mtp_own_head);
    return st;
}

static void free_layer(cpu_layer *l)
{
    rl_mm_matrix *const list[] = {&l->q,       &l->k,         &l->v,           &l->o,         &l->qkv,
                                  &l->gate,    &l->ba,        &l->out,         &l->router,    &l->gate_exps,
                                  &l->up_exps, &l->down_exps, &l->gate_shared, &l->up_shared, &l->down_shared};
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        rl_mm_matrix_free(list[i]);
    rl_aligned_free(l->conv);
}

static uint64_t layer_bytes(const cpu_layer *l)
{
    return l->q.owned_bytes + l->k.owned_bytes + l->v.owned_bytes + l->o.owned_bytes + l->qkv.owned_bytes +
           l->gate.owned_bytes + l->ba.owned_bytes + l->out.owned_bytes + l->router.owned_bytes + l->gate_exps.owned_bytes +
           l->up_exps.owned_bytes + l->down_exps.owned_bytes + l->gate_shared.owned_bytes + l->up_shared.owned_bytes +
           l->down_shared.owned_bytes;
}

/* Convolution weights with the taps apart, so that channels are vector lanes, in slices, so that taps do not fall on each
 * other in the cache; and the layer's number among its kind. */
static rl_status prepare_layers(cpu_backend *b, rl_error *err)
{
    const rl_model *m = b->base.model;
    const uint32_t cd = m->hp.dn_conv_dim, taps = m->hp.dn_conv, d = m->hp.dn_head_dim;
    uint32_t recurrent = 0, attention = 0;
    for (uint32_t i = 0; i < m->hp.n_layer; i++) {
        cpu_layer *l = &b->layers[i];
        l->src = &m->layers[i];
        l->index = l->src->kind == RL_LAYER_ATTENTION ? attention++ : recurrent++;
        if (l->src->kind == RL_LAYER_ATTENTION) continue;
        l->conv = rl_aligned_alloc(RL_CACHE_LINE, (size_t)cd * taps, sizeof(float));
        if (!l->conv) return rl_fail(err, RL_ERR_MEMORY, "no memory for the convolution of layer %u", i);
        for (uint32_t c = 0; c < cd; c++)
            for (uint32_t t = 0; t < taps; t++)
                l->conv[((size_t)(c / d) * taps + t) * d + c % d] = l->src->conv[(size_t)c * taps + t];
    }
    b->mtp_layer.src = &m->mtp.block;
    b->mtp_layer.index = m->n_attention;
    return RL_OK;
}

/* ---- Scratch ----------------------------------------------------------------------------------------------------------- */

/* Hands out parts of one allocation: the first round, without a base, measures. */
typedef struct carver {
    uint8_t *base;
    size_t used;
    bool overflow;
} carver;

static void *carve(carver *c, size_t count, size_t size)
{
    size_t bytes, next;
    if (!rl_mul_size(count, size, &bytes) || !rl_add_size(bytes, 2 * RL_CACHE_LINE - 1, &bytes)) bytes = SIZE_MAX;
    bytes &= ~(size_t)(RL_CACHE_LINE - 1);
    if (!rl_add_size(c->used, bytes, &next)) {
        c->overflow = true;
        return NULL;
    }
    void *p = c->base ? c->base + c->used : NULL;
    c->used = next;
    return p;
}

static size_t max_size(size_t a, size_t b)
{
    return a > b ? a : b;
}

static void carve_scratch(cpu_backend *b, carver *c)
{
    const rl_hparams *hp = &b->base.model->hp;
    cpu_scratch *s = &b->s;
    const size_t n = b->max_rows, e = hp->n_embd, pairs = n * hp->n_expert_used, f = sizeof(float);
    const size_t hd = (size_t)hp->n_head * hp->head_dim, kd = (size_t)hp->n_head_kv * hp->head_dim;
    const size_t cd = hp->dn_conv_dim, vd = hp->dn_value_dim, hv = hp->dn_value_heads, ne = hp->n_expert, k = hp->n_expert_used;
    s->x = carve(c, n * e, f);
    s->norm = carve(c, n * e, f);
    s->mix = carve(c, n * e, f);
    s->raw = carve(c, n * max_size(cd, 2 * hd), f);
    s->conv = carve(c, n * max_size(cd, hd), f);
    s->z = carve(c, n * vd, f);
    s->ba = carve(c, n * 2 * hv, f);
    s->beta = carve(c, n * hv, f);
    s->decay = carve(c, n * hv, f);
    s->k = carve(c, n * kd, f);
    s->v = carve(c, n * kd, f);
    s->core = carve(c, n * max_size(vd, hd), f);
    s->joined = carve(c, hp->n_mtp ? n * 2 * e : 0, f);
    s->logits = carve(c, n * ne, f);
    s->probs = carve(c, n * ne, f);
    s->next_logits = carve(c, n * ne, f);
    s->weights = carve(c, n * k, f);
    s->ids = carve(c, n * k, f);
    s->sgate = carve(c, n * hp->n_ff_shared, f);
    s->sup = carve(c, n * hp->n_ff_shared, f);
    s->sscale = carve(c, n, f);
    s->hidden = carve(c, pairs * hp->n_ff_expert, f);
    s->experts = carve(c, n * e, f);
    s->shared = carve(c, n * e, f);
    s->cosine = carve(c, n * (hp->n_rot / 2), f);
    s->sine = carve(c, n * (hp->n_rot / 2), f);
    s->partial = carve(c, (size_t)CPU_SPLIT_ROWS * hp->n_head * CPU_SPLITS * (hp->head_dim + 2), f);
    s->iota = carve(c, pairs + 1, sizeof *s->iota);
    s->pair_token = carve(c, pairs, sizeof *s->pair_token);
    s->pair_weight = carve(c, pairs, sizeof *s->pair_weight);
    s->active = carve(c, ne, sizeof *s->active);
    s->active_begin = carve(c, ne + 1, sizeof *s->active_begin);
    s->done = carve(c, ne, sizeof *s->done);
    s->cursor = carve(c, ne, sizeof *s->cursor);
    s->resident = carve(c, ne, sizeof *s->resident);
    s->row_segment = carve(c, n, sizeof *s->row_segment);
    s->wanted = carve(c, n, sizeof *s->wanted);
    s->segments = carve(c, n, sizeof *s->segments);
    s->act_norm = carve(c, rl_mm_act_bytes(b->mm, hp->n_embd, b->max_rows), 1);
    s->act_mix = carve(
        c,
        max_size(rl_mm_act_bytes(b->mm, (uint32_t)hd, b->max_rows), vd ? rl_mm_act_bytes(b->mm, (uint32_t)vd, b->max_rows) : 0),
        1);
    s->act_hidden = carve(c, rl_mm_act_bytes(b->mm, hp->n_ff_expert, (uint32_t)pairs), 1);
    s->act_shared = carve(c, rl_mm_act_bytes(b->mm, hp->n_ff_shared, b->max_rows), 1);
    s->act_joined = carve(c, hp->n_mtp ? rl_mm_act_bytes(b->mm, 2 * hp->n_embd, b->max_rows) : 0, 1);
    const size_t rows = cpu_attention_rows(b), d = hp->head_dim, g = hp->n_head / hp->n_head_kv;
    const uint32_t widest = (uint32_t)max_size(max_size(2 * e, max_size(hd, vd)), max_size(hp->n_ff_expert, hp->n_ff_shared));
    for (int i = 0; i < b->n_members; i++) {
        cpu_member unused, *m = c->base ? &b->members[i] : &unused;
        m->mm = carve(c, rl_mm_scratch_bytes(b->mm, widest), 1);
        m->panels = carve(c, rows * d, f);
        m->scores = carve(c, rows * CPU_TILE, f);
        m->out = carve(c, rows * d, f);
        m->max = carve(c, rows, f);
        m->sum = carve(c, rows, f);
        m->corr = carve(c, rows, f);
        m->keys = carve(c, CPU_TILE * d, f);
        m->values = carve(c, CPU_TILE * d, f);
        m->partial = carve(c, g * CPU_SPLITS * (d + 2), f);
        m->delta = carve(c, rl_delta_stage_floats(hp->dn_head_dim), f);
        m->gate = carve(c, (size_t)CPU_SLAB * CPU_EXPERT_ROWS, f);
        m->up = carve(c, (size_t)CPU_SLAB * CPU_EXPERT_ROWS, f);
    }
}

static rl_status allocate(cpu_backend *b, rl_error *err)
{
    const rl_hparams *hp = &b->base.model->hp;
    carver c = {0};
    carve_scratch(b, &c);
    b->n_counters = (hp->n_layer + 3) * COUNTERS_PER_LAYER;
    b->counters = rl_calloc(b->n_counters, sizeof *b->counters);
    b->members = rl_calloc((size_t)b->n_members, sizeof *b->members);
    if (!c.overflow) b->s.block = rl_aligned_alloc(RL_CACHE_LINE, c.used, 1);
    if (!b->s.block || !b->counters || !b->members)
        return rl_fail(err, RL_ERR_MEMORY, "no memory for the working buffers of %u rows (%zu bytes)", b->max_rows, c.used);
    b->s.bytes = c.used;
    c = (carver){.base = b->s.block};
    carve_scratch(b, &c);
    for (size_t i = 0; i <= (size_t)b->max_rows * hp->n_expert_used; i++)
        b->s.iota[i] = (uint32_t)i;
    for (uint32_t i = 0; i < hp->n_expert; i++)
        atomic_init(&b->s.done[i], 0);
    for (uint32_t i = 0; i < b->n_counters; i++)
        atomic_init(&b->counters[i], 0);
    return RL_OK;
}

/* ---- The door ---------------------------------------------------------------------------------------------------------- */

static void cpu_close(rl_backend *backend)
{
    if (!backend) return;
    cpu_backend *b = (cpu_backend *)backend;
    if (b->profile_log) cpu_profile_log(&b->profile);
    for (uint32_t i = 0; b->layers && i < backend->model->hp.n_layer; i++)
        free_layer(&b->layers[i]);
    free(b->layers);
    free_layer(&b->mtp_layer);
    rl_mm_matrix *const list[] = {&b->embed, &b->head, &b->eh_proj, &b->mtp_embed, &b->mtp_own_head};
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        rl_mm_matrix_free(list[i]);
    free(b->rope_freq);
    free(b->s.tap);
    rl_aligned_free(b->s.block);
    rl_experts_close(b->experts);
    free(b->members);
    free((void *)b->counters);
    rl_pool_free(b->pool);
    rl_mm_free(b->mm);
    free(b);
}

static rl_status open_parts(cpu_backend *b, const rl_backend_options *opt, rl_error *err)
{
    const rl_model *m = b->base.model;
    rl_isa isa;
    rl_status st = rl_isa_parse(opt->isa ? opt->isa : "auto", &isa, err);
    if (st == RL_OK) st = rl_mm_create(isa, opt->precision, &b->mm, err);
    if (st == RL_OK) st = rl_pool_create(opt->threads > 0 ? opt->threads : 0, &b->pool, err);
    if (st != RL_OK) return st;
    b->n_members = rl_pool_size(b->pool);
    b->vec = rl_vec_get(isa);
    b->layers = rl_calloc(m->hp.n_layer, sizeof *b->layers);
    b->rope_freq = rl_calloc(m->hp.n_rot / 2 + 1, sizeof *b->rope_freq);
    if (!b->layers || !b->rope_freq) return rl_fail(err, RL_ERR_MEMORY, "no memory for the layers");
    rl_model_rope(&m->hp, b->rope_freq, &b->rope_scale);
    st = prepare_layers(b, err);
    if (st == RL_OK) st = allocate(b, err);
    if (st != RL_OK) return st;
    loading l = {.b = b, .opt = opt, .err = err};
    load_all(&l);
    l.total = l.done + 1;
    l.done = 1;
    st = load_all(&l);
    if (st != RL_OK || !opt->experts) return st;
    /* The mapping has served. Its pages count against a container's limit until they are given back. */
    for (uint32_t i = 0; i < rl_gguf_n_files(m->gguf); i++)
        rl_mapping_advise(rl_gguf_mapping(m->gguf, i), 0, rl_gguf_mapping(m->gguf, i)->size, RL_ADVICE_DONTNEED);
    return rl_experts_open(m, opt->experts, &b->experts, err);
}

static rl_status cpu_open(const rl_model *model, const rl_backend_options *opt, rl_backend **out, rl_error *err)
{
    if (opt->max_rows == 0) return rl_fail(err, RL_ERR_ARGUMENT, "max_rows is 0, expected the largest pass");
    cpu_backend *b = rl_calloc(1, sizeof *b);
    if (!b) return rl_fail(err, RL_ERR_MEMORY, "no memory for the backend");
    b->base.ops = &rl_backend_cpu;
    b->base.model = model;
    b->precision = opt->precision;
    b->kv = opt->kv;
    b->kv_bytes = opt->kv == RL_KV_F16 ? 2 : 4;
    b->max_rows = opt->max_rows;
    b->route_bias = opt->experts && !opt->experts->full ? opt->route_bias : 0;
    b->on = (cpu_switches){.attn_tile = switch_on("RL_PREFILL_ATTN_TILE"),
                           .expert_mm = switch_on("RL_PREFILL_EXPERT_MM"),
                           .state_sg = switch_on("RL_PREFILL_STATE_SG"),
                           .gemm_tg = switch_on("RL_PREFILL_GEMM_TG")};
    const char *profile = getenv("RL_PREFILL_PROFILE");
    b->profile_log = profile && strcmp(profile, "1") == 0;
    cpu_profile_init(&b->profile, opt->profile || b->profile_log);
    const rl_status st = open_parts(b, opt, err);
    if (st != RL_OK) {
        cpu_close(&b->base);
        return st;
    }
    *out = &b->base;
    return RL_OK;
}

static void cpu_memory(const rl_backend *backend, rl_backend_memory *out)
{
    const cpu_backend *b = (const cpu_backend *)backend;
    const rl_model *m = backend->model;
    uint64_t weights = b->embed.owned_bytes + b->mtp_embed.owned_bytes + b->head.owned_bytes + b->eh_proj.owned_bytes +
                       b->mtp_own_head.owned_bytes + layer_bytes(&b->mtp_layer);
    for (uint32_t i = 0; i < m->hp.n_layer; i++)
        weights += layer_bytes(&b->layers[i]);
    *out = (rl_backend_memory){.weights = weights,
                               .scratch = b->s.bytes,
                               .seq_fixed = cpu_snapshot_bytes(backend),
                               .seq_per_token =
                                   2ull * (m->n_attention + m->hp.n_mtp) * m->hp.n_head_kv * m->hp.head_dim * b->kv_bytes};
}

static bool cpu_get_profile(const rl_backend *backend, bool decode, rl_profile *out)
{
    const cpu_backend *b = (const cpu_backend *)backend;
    if (b->profile.on) *out = b->profile.kinds[decode];
    return b->profile.on;
}

static bool cpu_cache_stats(const rl_backend *backend, rl_experts_stats *out)
{
    const cpu_backend *b = (const cpu_backend *)backend;
    if (b->experts) rl_experts_get_stats(b->experts, out);
    return b->experts != NULL;
}

const rl_backend_ops rl_backend_cpu = {
    .name = "cpu",
    .open = cpu_open,
    .close = cpu_close,
    .memory = cpu_memory,
    .seq_create = cpu_seq_create,
    .seq_free = cpu_seq_free,
    .seq_position = cpu_seq_position,
    .seq_reset = cpu_seq_reset,
    .seq_copy = cpu_seq_copy,
    .snapshot = cpu_snapshot,
    .restore = cpu_restore,
    .snapshot_free = cpu_snapshot_free,
    .snapshot_bytes = cpu_snapshot_bytes,
    .seq_export = cpu_seq_export,
    .seq_import = cpu_seq_import,
    .forward = cpu_forward,
    .mtp = cpu_mtp,
    .mtp_position = cpu_mtp_position,
    .mtp_truncate = cpu_mtp_truncate,
    .profile = cpu_get_profile,
    .cache = cpu_cache_stats,
};
