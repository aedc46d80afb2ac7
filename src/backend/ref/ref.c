/* backend/ref: opening and closing, memory, and the table of operations. */
#include "backend/ref/ref.h"
#include "base/mem.h"
#include <stdlib.h>
#include <string.h>

static uint32_t max_of(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

/* Gives every scratch array its place in one block, or counts the bytes when base is NULL. */
static size_t lay_out(const rl_hparams *hp, uint32_t rows, ref_scratch *s, uint8_t *base)
{
    const uint32_t e = hp->n_embd, hv = hp->dn_value_heads, at = hp->n_head * hp->head_dim, kv = hp->n_head_kv * hp->head_dim;
    const uint32_t mixer = max_of(at, hp->dn_value_dim), ff = max_of(hp->n_ff_expert, hp->n_ff_shared);
    const struct {
        double **array;
        uint64_t width;
    } arrays[] = {
        {&s->x, e},
        {&s->norm, e},
        {&s->mix, e},
        {&s->qkv, hp->dn_conv_dim},
        {&s->z, hp->dn_value_dim},
        {&s->ba, 2 * hv},
        {&s->beta, hv},
        {&s->decay, hv},
        {&s->conv, hp->dn_conv_dim},
        {&s->dq, hp->dn_key_dim},
        {&s->dk, hp->dn_key_dim},
        {&s->qgate, 2 * at},
        {&s->q, at},
        {&s->k, kv},
        {&s->v, kv},
        {&s->core, mixer},
        {&s->gated, mixer},
        {&s->logits, hp->n_expert},
        {&s->ids, hp->n_expert_used},
        {&s->weights, hp->n_expert_used},
        {&s->experts, e},
        {&s->shared, e},
        {&s->gather, e},
        {&s->ff_gate, ff},
        {&s->ff_up, ff},
        {&s->ff_out, e},
        {&s->hidden, 2 * e},
    };
    uint32_t widest = e;
    for (int stage = 0; stage < RL_STAGE_LOGITS; stage++)
        widest = max_of(widest, rl_stage_width(hp, (rl_stage)stage));
    size_t at_byte = 0;
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) {
        if (base) *arrays[i].array = (double *)(base + at_byte);
        at_byte += arrays[i].width * rows * sizeof(double);
    }
    if (base) s->head = (double *)(base + at_byte);
    at_byte += (size_t)REF_HEAD_ROWS * hp->n_vocab * sizeof(double);
    if (base) s->shown = (float *)(base + at_byte);
    at_byte += (size_t)widest * rows * sizeof(float);
    if (base) s->rows = (uint32_t *)(base + at_byte);
    return at_byte + rows * sizeof(uint32_t);
}

static uint32_t widest_matrix(const rl_hparams *hp)
{
    uint32_t cols = max_of(2 * hp->n_embd, max_of(hp->n_head * hp->head_dim, hp->dn_value_dim));
    return max_of(cols, max_of(hp->n_ff_expert, hp->n_ff_shared));
}

static void ref_close(rl_backend *backend)
{
    ref_backend *b = ref_backend_of(backend);
    if (!b) return;
    rl_pool_free(b->pool);
    free(b->freq);
    free(b->tiles);
    free(b->decoded);
    free(b->scores);
    rl_aligned_free(b->scratch);
    free(b);
}

static rl_status ref_open(const rl_model *model, const rl_backend_options *opt, rl_backend **out, rl_error *err)
{
    const rl_hparams *hp = &model->hp;
    if (opt->max_rows == 0) return rl_fail(err, RL_ERR_ARGUMENT, "max_rows is 0, expected at least 1");
    ref_backend *b = rl_calloc(1, sizeof *b);
    if (!b) return rl_fail(err, RL_ERR_MEMORY, "cannot allocate a backend");
    b->base.ops = &rl_backend_ref;
    b->base.model = model;
    b->max_rows = opt->max_rows;
    b->max_cols = widest_matrix(hp);
    rl_status status = rl_pool_create(opt->threads, &b->pool, err);
    if (status == RL_OK) {
        b->scratch_bytes = lay_out(hp, b->max_rows, &b->s, NULL);
        b->scratch = rl_aligned_alloc(RL_CACHE_LINE, b->scratch_bytes, 1);
        b->freq = rl_alloc(hp->n_rot / 2, sizeof *b->freq);
        b->tiles = rl_alloc((size_t)rl_pool_size(b->pool) * REF_TILE, b->max_cols * sizeof *b->tiles);
        b->decoded = rl_alloc((size_t)rl_pool_size(b->pool), b->max_cols * sizeof *b->decoded);
        if (!b->scratch || !b->freq || !b->tiles || !b->decoded)
            status = rl_fail(err, RL_ERR_MEMORY, "cannot allocate scratch memory for %u rows", b->max_rows);
    }
    if (status != RL_OK) {
        ref_close(&b->base);
        return status;
    }
    lay_out(hp, b->max_rows, &b->s, b->scratch);
    rl_model_rope(hp, b->freq, &b->rope_scale);
    *out = &b->base;
    return RL_OK;
}

static void ref_memory(const rl_backend *backend, rl_backend_memory *out)
{
    const ref_backend *b = (const ref_backend *)backend;
    const rl_model *m = backend->model;
    const uint64_t tiles = (uint64_t)rl_pool_size(b->pool) * b->max_cols * (REF_TILE * sizeof *b->tiles + sizeof *b->decoded);
    const uint64_t kv = 2ULL * m->hp.n_head_kv * m->hp.head_dim * sizeof(double);
    *out = (rl_backend_memory){.weights = 0,
                               .scratch = b->scratch_bytes + tiles,
                               .seq_fixed = m->n_recurrent * ref_recurrent_size(&m->hp) * sizeof(double),
                               .seq_per_token = (m->n_attention + m->hp.n_mtp) * kv};
}

const rl_backend_ops rl_backend_ref = {
    .name = "ref",
    .open = ref_open,
    .close = ref_close,
    .memory = ref_memory,
    .seq_create = ref_seq_create,
    .seq_free = ref_seq_free,
    .seq_position = ref_seq_position,
    .seq_reset = ref_seq_reset,
    .seq_copy = ref_seq_copy,
    .snapshot = ref_snapshot_take,
    .restore = ref_restore,
    .snapshot_free = ref_snapshot_free,
    .snapshot_bytes = ref_snapshot_bytes,
    .seq_export = ref_seq_export,
    .seq_import = ref_seq_import,
    .forward = ref_forward,
    .mtp = ref_mtp,
    .mtp_position = ref_mtp_position,
    .mtp_truncate = ref_mtp_truncate,
};
