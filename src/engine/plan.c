/* engine/plan: what will run on this machine, and whether it fits. The planner behind `redlite plan`, `redlite doctor` and
 * every opening of an engine. */
#include "engine/engine.h"
#include "experts/measure.h"

#include <string.h>

/* The system, other programs and what nobody counts. */
#define RESERVE (256ull << 20)
/* A file is used in place when it fits, with everything else and without pushing anything out, into this share of what can be
 * used: a warm file starts at once, and one copy of it is enough. Beyond that, page cache which every token needs would be what
 * the system gives away first. */
#define MAPPED_SHARE 0.95

static const uint32_t batches[] = {2048, 1024, 512, 256, 128};

/* Working memory of a row of a pass: the buffers of all stages. */
static uint64_t row_bytes(const rl_hparams *hp)
{
    const uint64_t hd = (uint64_t)hp->n_head * hp->head_dim, kd = (uint64_t)hp->n_head_kv * hp->head_dim;
    const uint64_t e = hp->n_embd, cd = hp->dn_conv_dim, vd = hp->dn_value_dim, k = hp->n_expert_used;
    const uint64_t raw = cd > 2 * hd ? cd : 2 * hd, conv = cd > hd ? cd : hd, core = vd > hd ? vd : hd;
    const uint64_t floats = 5 * e + raw + conv + vd + 4ull * hp->dn_value_heads + 2 * kd + 2 * core + 3ull * hp->n_expert +
                            6 * k + 2ull * hp->n_ff_shared + k * hp->n_ff_expert + hp->n_rot;
    return floats * 4 + (e + core + k * hp->n_ff_expert + hp->n_ff_shared) * 5 / 4;
}

static uint64_t dense_bytes(const rl_model *m)
{
    uint64_t all = 0, experts = 0;
    for (uint32_t i = 0; i < rl_gguf_n_tensors(m->gguf); i++)
        all += rl_gguf_tensor_at(m->gguf, i)->bytes;
    for (uint32_t i = 0; i < m->hp.n_layer + m->hp.n_mtp; i++) {
        const rl_layer *l = i < m->hp.n_layer ? &m->layers[i] : &m->mtp.block;
        const rl_matrix *const parts[] = {&l->gate_exps, &l->up_exps, &l->down_exps};
        for (int p = 0; p < 3; p++)
            experts += parts[p]->rows * parts[p]->row_bytes * parts[p]->n;
    }
    return all > experts ? all - experts : 0;
}

/* Everything but experts and the working memory of a batch. */
static uint64_t fixed_bytes(const rl_plan *p)
{
    return p->dense_bytes + p->session_bytes + RESERVE;
}

static rl_status check_explicit(const rl_engine_options *o, rl_plan *p, rl_error *err)
{
    const double mib = 1048576.0;
    p->cache_bytes = o->residency == RL_RESIDENCY_FULL ? p->cache_all : o->cache_bytes;
    if (p->cache_bytes > p->cache_all) p->cache_bytes = p->cache_all;
    p->need_bytes = fixed_bytes(p) + p->scratch_bytes + p->cache_bytes;
    p->fits = p->usable_bytes == 0 || p->need_bytes <= p->usable_bytes;
    if (p->fits || o->force) return RL_OK;
    return rl_fail(
        err, RL_ERR_MEMORY,
        "this does not fit: %.0f MiB are needed (expert cache %.0f, other weights %.0f, a session of %u tokens %.0f, "
        "working memory of %u rows %.0f, reserve %.0f) and %.0f MiB can be used; a smaller cache, context or batch "
        "helps, --force goes ahead",
        (double)p->need_bytes / mib, (double)p->cache_bytes / mib, (double)p->dense_bytes / mib, p->context,
        (double)p->session_bytes / mib, p->batch, (double)p->scratch_bytes / mib, (double)RESERVE / mib,
        (double)p->usable_bytes / mib);
}

static void choose_batch(const rl_engine_options *o, const rl_hparams *hp, uint64_t room, rl_plan *p)
{
    const uint64_t row = row_bytes(hp);
    p->batch = o->batch;
    for (size_t i = 0; p->batch == 0; i++)
        if (i + 1 == sizeof batches / sizeof *batches || room == 0 || row * batches[i] <= room / 8) p->batch = batches[i];
    p->scratch_bytes = row * (p->batch > RL_MIN_PASS_ROWS ? p->batch : RL_MIN_PASS_ROWS);
}

static rl_status choose(const rl_engine_options *o, const rl_model *m, rl_plan *p, rl_error *err)
{
    const uint64_t fixed = fixed_bytes(p);
    choose_batch(o, &m->hp, p->usable_bytes, p);
    if (p->residency == RL_RESIDENCY_BOUNDED || p->residency == RL_RESIDENCY_FULL) return check_explicit(o, p, err);
    /* Weights that have a copy of their own (counted in fixed) leave the page cache first. */
    const uint64_t mapped = p->file_bytes - p->dense_bytes + fixed + p->scratch_bytes;
    const bool fits = p->usable_bytes == 0 || (double)mapped <= MAPPED_SHARE * (double)p->usable_bytes;
    if (p->residency == RL_RESIDENCY_MAPPED || fits) {
        p->residency = RL_RESIDENCY_MAPPED;
        p->need_bytes = mapped;
        p->fits = fits;
        return RL_OK;
    }
    p->residency = RL_RESIDENCY_BOUNDED;
    const uint64_t taken = fixed + p->scratch_bytes;
    const uint64_t left = p->usable_bytes > taken ? (p->usable_bytes - taken) / 10 * 9 : 0;
    p->cache_bytes = left < p->cache_all ? left : p->cache_all;
    if (p->cache_bytes < p->cache_least) p->cache_bytes = p->cache_least;
    rl_engine_options bounded = *o;
    bounded.cache_bytes = p->cache_bytes;
    bounded.residency = RL_RESIDENCY_BOUNDED;
    return check_explicit(&bounded, p, err);
}

/* Misses of a token when every expert is as likely as any other: what a cache saves at least. */
static void expect(const rl_model *m, rl_plan *p)
{
    uint64_t token = 0;
    for (uint32_t i = 0; i < m->hp.n_layer; i++) {
        const rl_layer *l = &m->layers[i];
        token += m->hp.n_expert_used * (l->gate_exps.rows * l->gate_exps.row_bytes + l->up_exps.rows * l->up_exps.row_bytes +
                                        l->down_exps.rows * l->down_exps.row_bytes);
    }
    const double share = p->cache_all ? (double)p->cache_bytes / (double)p->cache_all : 1;
    p->token_disk_bytes = p->residency == RL_RESIDENCY_BOUNDED && share < 1 ? (double)token * (1 - share) : 0;
    p->disk_tokens_per_second = p->token_disk_bytes > 0 ? p->disk_bytes_per_second / p->token_disk_bytes : 0;
}

rl_status rl_plan_model(const rl_model *m, const rl_engine_options *o, bool has_cache, bool measure, rl_plan *out,
                        rl_error *err)
{
    rl_plan p = {.residency = has_cache ? o->residency : RL_RESIDENCY_MAPPED, .context = o->context};
    rl_machine(&p.machine);
    p.usable_bytes = p.machine.memory_available_bytes;
    p.file_bytes = rl_gguf_total_bytes(m->gguf);
    p.dense_bytes = dense_bytes(m);
    const rl_hparams *hp = &m->hp;
    p.session_bytes =
        ((uint64_t)hp->dn_value_heads * hp->dn_head_dim * hp->dn_head_dim +
         (uint64_t)(hp->dn_conv ? hp->dn_conv - 1 : 0) * hp->dn_conv_dim) *
            sizeof(float) * m->n_recurrent +
        2ull * hp->n_head_kv * hp->head_dim * (o->kv == RL_KV_F16 ? 2 : 4) * (m->n_attention + hp->n_mtp) * o->context;
    rl_status st = rl_experts_bounds(m, &p.cache_least, &p.cache_all, err);
    if (st == RL_ERR_UNSUPPORTED && p.residency <= RL_RESIDENCY_MAPPED) { /* experts too large for slots are used in place */
        p.residency = RL_RESIDENCY_MAPPED;
        measure = false;
        st = RL_OK;
    }
    if (st == RL_OK && measure) st = rl_experts_measure(m, 0.5, &p.disk_bytes_per_second, p.disk, err);
    if (st == RL_OK) st = choose(o, m, &p, err);
    expect(m, &p);
    *out = p;
    return st;
}

rl_status rl_plan_make(const rl_engine_options *options, rl_plan *out, rl_error *err)
{
    rl_model *m;
    const rl_backend_ops *ops = NULL;
    rl_status st = rl_engine_check_options(options, err);
    if (st == RL_OK) st = rl_engine_find_backend(options, &ops, err);
    if (st == RL_OK) st = rl_model_open(options->model, &m, err);
    if (st != RL_OK) return st;
    memset(out, 0, sizeof *out);
    st = rl_plan_model(m, options, ops->cache != NULL, true, out, err);
    rl_model_close(m);
    return st;
}
