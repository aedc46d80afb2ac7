/* tests/support/passes: see the header. */
#include "support/passes.h"
#include <stdlib.h>
#include <string.h>

rl_backend *pass_open(const rl_model *m, pass_options o)
{
    const rl_backend_ops *ops = rl_backend_find(o.backend ? o.backend : "cpu");
    assert_non_null(ops);
    const rl_backend_options opt = {.precision = o.precision,
                                    .kv = o.kv,
                                    .threads = o.threads ? o.threads : 1,
                                    .isa = o.isa ? o.isa : "auto",
                                    .max_rows = o.max_rows ? o.max_rows : 64,
                                    .profile = o.profile,
                                    .repack_experts = o.repack_experts,
                                    .experts = o.experts};
    rl_backend *b = NULL;
    rl_error err = {0};
    rl_assert_ok(ops->open(m, &opt, &b, &err), &err);
    return b;
}

rl_seq *pass_seq(rl_backend *b, uint32_t capacity)
{
    rl_seq *s = NULL;
    rl_error err = {0};
    rl_assert_ok(b->ops->seq_create(b, capacity, &s, &err), &err);
    return s;
}

void pass_run(rl_seq *s, const int32_t *ids, uint32_t n, uint32_t chunk, float *logits)
{
    rl_backend *b = s->backend;
    const size_t v = b->model->hp.n_vocab;
    for (uint32_t at = 0; at < n; at += chunk) {
        const uint32_t rows = n - at < chunk ? n - at : chunk;
        const rl_segment g = {s, ids + at, rows, logits ? RL_LOGITS_ALL : RL_LOGITS_NONE};
        const rl_pass p = {.segments = &g, .n_segments = 1, .logits = logits ? logits + at * v : NULL};
        rl_error err = {0};
        rl_assert_ok(b->ops->forward(b, &p, &err), &err);
    }
}

void pass_last(rl_seq *s, const int32_t *ids, uint32_t n, float *logits)
{
    rl_backend *b = s->backend;
    const rl_segment g = {s, ids, n, RL_LOGITS_LAST};
    const rl_pass p = {.segments = &g, .n_segments = 1, .logits = logits};
    rl_error err = {0};
    rl_assert_ok(b->ops->forward(b, &p, &err), &err);
}

uint32_t pass_argmax(const float *logits, uint32_t n)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++)
        if (logits[i] > logits[best]) best = i;
    return best;
}

void pass_ids(const rl_model *m, uint64_t seed, int32_t *ids, uint32_t n)
{
    rl_rng rng = rl_rng_seed(seed);
    for (uint32_t i = 0; i < n; i++)
        ids[i] = (int32_t)rl_rng_below(&rng, m->hp.n_vocab);
}

rl_status pass_put(void *ctx, const void *data, size_t n, rl_error *err)
{
    (void)err;
    pass_bytes *b = ctx;
    if (b->size + n > b->capacity) {
        b->capacity = 2 * (b->size + n);
        b->data = realloc(b->data, b->capacity);
        assert_non_null(b->data);
    }
    memcpy(b->data + b->size, data, n);
    b->size += n;
    return RL_OK;
}

rl_status pass_get(void *ctx, void *data, size_t n, rl_error *err)
{
    pass_bytes *b = ctx;
    if (n > b->size - b->at) return rl_fail(err, RL_ERR_FORMAT, "the bytes end early");
    memcpy(data, b->data + b->at, n);
    b->at += n;
    return RL_OK;
}
