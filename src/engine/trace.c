/* engine/trace: recording which experts a model uses, by looking on at the router's stage. */
#include "engine/engine.h"
#include "experts/sim.h"

typedef struct recorder {
    rl_trace *trace;
    uint64_t first; /* token of row 0 of the running pass */
} recorder;

static rl_status record(void *ctx, rl_stage stage, uint32_t layer, uint32_t row0, uint32_t n_rows, uint32_t width, float *data)
{
    recorder *r = ctx;
    rl_trace *t = r->trace;
    if (stage != RL_STAGE_ROUTER_IDS) return RL_OK;
    while (t->n_tokens < r->first + row0 + n_rows)
        if (!rl_trace_add(t)) return RL_ERR_MEMORY;
    for (uint32_t row = 0; row < n_rows; row++)
        for (uint32_t i = 0; i < width; i++)
            t->ids[((r->first + row0 + row) * t->n_layer + layer) * t->n_used + i] = (uint16_t)data[(size_t)row * width + i];
    return RL_OK;
}

static int32_t greedy(const float *logits, uint32_t n)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++)
        if (logits[i] > logits[best]) best = i;
    return (int32_t)best;
}

rl_status rl_trace_record(rl_session *s, const int32_t *ids, size_t n, uint32_t generate, rl_progress_fn progress, void *ctx,
                          rl_trace *trace, rl_error *err)
{
    rl_engine *e = rl_session_engine(s);
    const rl_hparams *hp = &e->model->hp;
    if (trace->n_layer != hp->n_layer || trace->n_expert != hp->n_expert || trace->n_used != hp->n_expert_used)
        return rl_fail(err, RL_ERR_ARGUMENT, "the trace is for a model of another shape");
    recorder r = {.trace = trace};
    e->tap = record;
    e->tap_ctx = &r;
    rl_status st = RL_OK;
    const uint64_t total = n + generate;
    for (uint64_t done = 0; done < total && st == RL_OK;) {
        if (progress && !progress(ctx, done, total)) {
            st = rl_fail(err, RL_ERR_CANCELLED, "recording was cancelled after %llu tokens", (unsigned long long)done);
            break;
        }
        const int32_t next = done >= n && rl_session_logits(s) ? greedy(rl_session_logits(s), hp->n_vocab) : 0;
        const int32_t *from = done < n ? ids + done : &next;
        const size_t rows = done < n ? (n - done < e->batch ? n - done : e->batch) : 1;
        r.first = trace->n_tokens;
        st = rl_session_extend(s, from, rows, NULL, NULL, err);
        done += rows;
    }
    e->tap = NULL;
    e->tap_ctx = NULL;
    return st;
}
