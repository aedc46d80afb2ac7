/* engine/engine: opening a model for a backend, and what can be asked about it. */
#include "engine/engine.h"
#include "base/cpu.h"
#include "base/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *rl_version(void)
{
    return REDLITE_VERSION;
}

const char *rl_build_info(void)
{
    static const char text[] = "Red Lite " REDLITE_VERSION
#if defined(__clang__)
                               ", clang " __clang_version__
#elif defined(__GNUC__)
                               ", gcc " __VERSION__
#endif
#if defined(__x86_64__)
                               ", x86-64";
#elif defined(__aarch64__)
                               ", AArch64";
#else
                               "";
#endif
    return text;
}

const char *rl_precision_name(rl_precision p)
{
    return p == RL_PRECISION_EXACT ? "exact" : "fast";
}

const char *rl_kv_name(rl_kv_type kv)
{
    return kv == RL_KV_F16 ? "f16" : "f32";
}

const char *const *rl_backend_names(void)
{
    enum { MAX = 16 };
    static const char *names[MAX + 1]; /* the same pointers every time, so a race writes equal values */
    const rl_backend_ops *const *list = rl_backend_list();
    for (size_t i = 0; i < MAX && list[i]; i++)
        names[i] = list[i]->name;
    return names;
}

rl_status rl_engine_load_tokenizer(const rl_gguf *g, rl_tokenizer **out, rl_error *err)
{
    *out = NULL;
    if (!rl_gguf_find(g, "tokenizer.ggml.tokens")) return RL_OK;
    return rl_tokenizer_create(g, out, err);
}

void rl_engine_options_init(rl_engine_options *o)
{
    *o = (rl_engine_options){
        .backend = "auto", .isa = "auto", .precision = RL_PRECISION_FAST, .kv = RL_KV_F32, .context = RL_DEFAULT_CONTEXT};
}

rl_status rl_engine_check_options(const rl_engine_options *o, rl_error *err)
{
    if (!o->model || !*o->model) return rl_fail(err, RL_ERR_ARGUMENT, "no model file was named");
    if (o->threads < 0 || o->threads > RL_MAX_THREADS)
        return rl_fail(err, RL_ERR_ARGUMENT, "threads is %d; expected 0 (automatic) to %d", o->threads, RL_MAX_THREADS);
    if (o->context < 1 || o->context > RL_MAX_CONTEXT)
        return rl_fail(err, RL_ERR_ARGUMENT, "context is %u; expected 1 to %u", o->context, RL_MAX_CONTEXT);
    if (o->batch > RL_MAX_BATCH)
        return rl_fail(err, RL_ERR_ARGUMENT, "batch is %u; expected 0 (automatic) to %d", o->batch, RL_MAX_BATCH);
    if (o->precision != RL_PRECISION_EXACT && o->precision != RL_PRECISION_FAST)
        return rl_fail(err, RL_ERR_ARGUMENT, "precision is %d, which is not one of rl_precision", (int)o->precision);
    if (o->kv != RL_KV_F32 && o->kv != RL_KV_F16)
        return rl_fail(err, RL_ERR_ARGUMENT, "kv is %d, which is not one of rl_kv_type", (int)o->kv);
    if (!(o->route_bias >= 0 && o->route_bias <= 1000))
        return rl_fail(err, RL_ERR_ARGUMENT, "route_bias is %g; expected 0 (off) to 1000", (double)o->route_bias);
    if (o->residency > RL_RESIDENCY_BOUNDED)
        return rl_fail(err, RL_ERR_ARGUMENT, "residency is %d, which is not one of rl_residency", (int)o->residency);
    if (o->residency == RL_RESIDENCY_BOUNDED && o->cache_bytes == 0)
        return rl_fail(err, RL_ERR_ARGUMENT, "a bounded expert cache needs its size in bytes");
    return RL_OK;
}

static rl_status load_model(rl_engine *e, const char *path, rl_error *err)
{
    rl_status st = rl_model_open(path, &e->model, err);
    if (st != RL_OK) return st;
    st = rl_engine_load_tokenizer(e->model->gguf, &e->tokenizer, err);
    if (st != RL_OK) return st;
    return rl_info_create(e->model, e->tokenizer, path, &e->info, err);
}

static bool forward_progress(void *ctx, double fraction)
{
    const rl_engine_options *o = ctx;
    return o->progress(o->progress_ctx, (uint64_t)(fraction * 1000.0), 1000);
}

#define PAGE_IN_STEP (64ull << 20)

/* The whole model in memory before the first token, with progress over all of its files. */
static rl_status page_in(const rl_engine *e, const rl_engine_options *o, rl_error *err)
{
    const rl_gguf *g = e->model->gguf;
    const uint64_t total = rl_gguf_total_bytes(g);
    uint64_t done = 0;
    for (uint32_t f = 0; f < rl_gguf_n_files(g); f++) {
        const rl_mapping *m = rl_gguf_mapping(g, f);
        for (uint64_t at = 0; at < m->size; at += PAGE_IN_STEP) {
            const rl_status st = rl_mapping_load(m, at, PAGE_IN_STEP, o->lock, err);
            if (st != RL_OK) return rl_error_prefix(err, "%s", rl_gguf_file_name(g, f));
            done += m->size - at < PAGE_IN_STEP ? m->size - at : PAGE_IN_STEP;
            if (o->progress && !o->progress(o->progress_ctx, done, total))
                return rl_fail(err, RL_ERR_CANCELLED, "loading was cancelled");
        }
    }
    return RL_OK;
}

rl_status rl_engine_find_backend(const rl_engine_options *o, const rl_backend_ops **out, rl_error *err)
{
    const char *name = o->backend ? o->backend : "auto";
    const rl_backend_ops *ops = rl_backend_find(name);
    if (!ops) {
        char list[256] = "auto", shown[64];
        for (const char *const *n = rl_backend_names(); *n; n++) {
            size_t used = strlen(list);
            snprintf(list + used, sizeof list - used, ", %s", *n);
        }
        return rl_fail(err, RL_ERR_ARGUMENT, "there is no backend \"%s\"; expected one of: %s",
                       rl_escape(shown, sizeof shown, name, strlen(name)), list);
    }
    *out = ops;
    return RL_OK;
}

/* The planner's choices become the engine's; buffers of a pass follow from its rows. */
static rl_status plan(rl_engine *e, const rl_engine_options *o, const rl_backend_ops *ops, rl_plan *p, rl_error *err)
{
    const rl_status st = rl_plan_model(e->model, o, ops->cache != NULL, false, p, err);
    if (st != RL_OK) return st;
    e->batch = p->batch;
    e->max_rows = e->batch > RL_MIN_PASS_ROWS ? e->batch : RL_MIN_PASS_ROWS;
    e->segments = rl_calloc(e->max_rows, sizeof *e->segments);
    e->pass_items = rl_calloc(e->max_rows, sizeof(rl_batch_item *));
    if (!e->segments || !e->pass_items) return rl_fail(err, RL_ERR_MEMORY, "no memory for a pass of %u rows", e->max_rows);
    return RL_OK;
}

static rl_status open_backend(rl_engine *e, const rl_engine_options *o, rl_error *err)
{
    const rl_backend_ops *ops = NULL;
    rl_plan p;
    rl_status st = rl_engine_find_backend(o, &ops, err);
    if (st == RL_OK) st = plan(e, o, ops, &p, err);
    if (st != RL_OK) return st;
    const rl_experts_options experts = {.full = p.residency == RL_RESIDENCY_FULL, .budget = p.cache_bytes};
    rl_backend_options bo = {.precision = o->precision,
                             .kv = o->kv,
                             .threads = o->threads,
                             .isa = o->isa ? o->isa : "auto",
                             .max_rows = e->max_rows,
                             .profile = o->profile,
                             .route_bias = o->route_bias,
                             .experts = p.residency == RL_RESIDENCY_MAPPED ? NULL : &experts,
                             .progress = o->progress ? forward_progress : NULL,
                             .progress_ctx = (void *)o};
    st = rl_isa_parse(bo.isa, &e->isa, err);
    if (st != RL_OK) return st;
    if (strcmp(ops->name, "ref") == 0) { /* plain C in double precision whatever is asked: say so */
        e->precision = RL_PRECISION_EXACT;
        e->isa = RL_ISA_SCALAR;
    }
    if (o->page_in || o->lock) {
        if (p.residency != RL_RESIDENCY_MAPPED)
            return rl_fail(err, RL_ERR_ARGUMENT,
                           "page-in and lock are for a file that is used in place; here experts have a cache "
                           "of their own (--cache-mib mapped uses the file in place)");
        st = page_in(e, o, err);
        if (st != RL_OK) return st;
    }
    return ops->open(e->model, &bo, &e->backend, err);
}

rl_status rl_engine_open(const rl_engine_options *options, rl_engine **out, rl_error *err)
{
    if (!options || !out) return rl_fail(err, RL_ERR_ARGUMENT, "rl_engine_open needs options and a place for the engine");
    rl_status st = rl_engine_check_options(options, err);
    if (st != RL_OK) return st;
    rl_engine *e = rl_calloc(1, sizeof *e);
    if (!e) return rl_fail(err, RL_ERR_MEMORY, "no memory for an engine");
    e->precision = options->precision;
    e->kv = options->kv;
    e->threads = options->threads > 0 ? options->threads : rl_cpu()->physical_cores;
    e->context = options->context;
    st = load_model(e, options->model, err);
    if (st == RL_OK) st = open_backend(e, options, err);
    if (st != RL_OK) {
        rl_engine_close(e);
        return st;
    }
    *out = e;
    return RL_OK;
}

void rl_engine_close(rl_engine *e)
{
    if (!e) return;
    if (e->backend) e->backend->ops->close(e->backend);
    rl_model_info_free(e->info);
    rl_tokenizer_free(e->tokenizer);
    rl_model_close(e->model);
    free(e->segments);
    free(e->pass_items);
    free(e->batch_logits);
    free(e->routed);
    free(e);
}

const rl_tokenizer *rl_engine_tokenizer(const rl_engine *e)
{
    return e->tokenizer;
}

const rl_model_info *rl_engine_info(const rl_engine *e)
{
    return e->info;
}

uint32_t rl_engine_vocab_size(const rl_engine *e)
{
    return e->model->hp.n_vocab;
}

uint32_t rl_engine_context(const rl_engine *e)
{
    return e->context;
}

uint32_t rl_engine_prefill_batch(const rl_engine *e)
{
    return e->batch;
}

const char *rl_engine_backend(const rl_engine *e)
{
    return e->backend->ops->name;
}

const char *rl_engine_isa(const rl_engine *e)
{
    return rl_isa_name(e->isa);
}

int rl_engine_threads(const rl_engine *e)
{
    return e->threads;
}

rl_precision rl_engine_precision(const rl_engine *e)
{
    return e->precision;
}

rl_kv_type rl_engine_kv(const rl_engine *e)
{
    return e->kv;
}

void rl_engine_memory_info(const rl_engine *e, rl_engine_memory *out)
{
    rl_backend_memory m = {0};
    e->backend->ops->memory(e->backend, &m);
    *out = (rl_engine_memory){.mapped = rl_gguf_total_bytes(e->model->gguf),
                              .weights = m.weights,
                              .scratch = m.scratch,
                              .session_fixed = m.seq_fixed + (uint64_t)e->model->hp.n_vocab * sizeof(float),
                              .session_per_token = m.seq_per_token + sizeof(int32_t),
                              .mark =
                                  e->backend->ops->snapshot_bytes(e->backend) + (uint64_t)e->model->hp.n_vocab * sizeof(float)};
}

bool rl_engine_profile(const rl_engine *e, bool decode, rl_profile *out)
{
    const rl_backend_ops *ops = e->backend->ops;
    return ops->profile && ops->profile(e->backend, decode, out) && out->passes > 0;
}

bool rl_engine_cache_stats(const rl_engine *e, rl_cache_stats *out)
{
    *out = (rl_cache_stats){.residency = RL_RESIDENCY_MAPPED};
    return e->backend->ops->cache && e->backend->ops->cache(e->backend, out);
}

rl_status rl_engine_check_ids(const rl_engine *e, const int32_t *ids, size_t n, rl_error *err)
{
    uint32_t n_vocab = e->model->hp.n_vocab;
    for (size_t i = 0; i < n; i++)
        if (ids[i] < 0 || (uint32_t)ids[i] >= n_vocab)
            return rl_fail(err, RL_ERR_ARGUMENT, "token %zu is %d, which is not in the vocabulary (0 to %u)", i, ids[i],
                           n_vocab - 1);
    return RL_OK;
}
