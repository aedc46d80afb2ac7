/* engine/perplexity: how well the model predicts a text, by llama-perplexity's definition so that figures compare. */
#include "base/error.h"
#include "base/mem.h"
#include "engine/engine.h"

#include <math.h>
#include <stdlib.h>

typedef struct scorer {
    const int32_t *ids; /* of the chunk */
    uint32_t n_vocab;
    double sum, sum_squares;
    uint64_t n;
} scorer;

/* The row at a position judges the id after it. */
static rl_status score(void *ctx, uint32_t position, const float *row, rl_error *err)
{
    scorer *s = ctx;
    double nll = -rl_log_softmax_at(row, s->n_vocab, s->ids[position + 1]);
    if (!isfinite(nll)) return rl_fail(err, RL_ERR_INTERNAL, "the logits at position %u are not finite", position);
    s->sum += nll;
    s->sum_squares += nll * nll;
    s->n++;
    return RL_OK;
}

static void summarise(const scorer *s, uint32_t chunks, double start, rl_perplexity_result *out)
{
    double mean = s->sum / (double)s->n, variance = s->sum_squares / (double)s->n - mean * mean;
    double deviation = variance > 0 && s->n > 1 ? sqrt(variance / (double)(s->n - 1)) : 0;
    *out = (rl_perplexity_result){.perplexity = exp(mean),
                                  .error = exp(mean) * deviation,
                                  .nll = mean,
                                  .n_chunks = chunks,
                                  .n_scored = s->n,
                                  .seconds = rl_now() - start};
}

rl_status rl_perplexity(rl_engine *e, const int32_t *ids, size_t n, uint32_t n_ctx, uint32_t max_chunks, rl_perplexity_fn fn,
                        void *ctx, rl_perplexity_result *out, rl_error *err)
{
    if (n_ctx < 4 || n_ctx > RL_MAX_CONTEXT)
        return rl_fail(err, RL_ERR_ARGUMENT, "a chunk of %u tokens; expected 4 to %u", n_ctx, RL_MAX_CONTEXT);
    if (n < n_ctx) return rl_fail(err, RL_ERR_ARGUMENT, "the text has %zu tokens; expected at least one chunk of %u", n, n_ctx);
    size_t whole = n / n_ctx;
    uint32_t chunks = whole > UINT32_MAX ? UINT32_MAX : (uint32_t)whole;
    if (max_chunks && max_chunks < chunks) chunks = max_chunks;
    rl_session *s = NULL;
    rl_status st = rl_session_create(e, n_ctx, &s, err);
    if (st != RL_OK) return st;
    double start = rl_now();
    scorer sc = {.n_vocab = e->model->hp.n_vocab};
    uint32_t first = n_ctx / 2; /* the first half is only read: every scored id has a context behind it */
    for (uint32_t c = 0; c < chunks && st == RL_OK; c++) {
        sc.ids = ids + (size_t)c * n_ctx;
        rl_session_reset(s);
        st = rl_session_extend(s, sc.ids, first, NULL, NULL, err);
        if (st == RL_OK) st = rl_session_extend_logits(s, sc.ids + first, n_ctx - 1 - first, score, &sc, err);
        if (st != RL_OK) break;
        summarise(&sc, c + 1, start, out);
        if (fn && !fn(ctx, out, chunks)) st = rl_fail(err, RL_ERR_CANCELLED, "cancelled after %u of %u chunks", c + 1, chunks);
    }
    rl_session_free(s);
    return st;
}
