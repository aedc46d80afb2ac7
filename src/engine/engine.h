/* engine: what the files of this folder share. Front ends see none of it: their door is redlite.h.
 *
 * An engine owns the model, the backend and the buffers of a pass; a session owns one sequence of that backend and the ids it
 * stands for. All calls on one engine come from one thread at a time, so nothing here locks. */
#ifndef RL_ENGINE_H
#define RL_ENGINE_H

#include "backend/backend.h"
#include "base/cpu.h"
#include "text/text.h"

/* Rows a pass can always take, however small the prefill batch is: so many sessions decode together in one pass. */
#define RL_MIN_PASS_ROWS 64

/* Rows whose logits are held at once when every position is wanted: bounded by bytes, since a row of a large vocabulary is
 * more than half a megabyte. */
#define RL_LOGITS_BUFFER_BYTES (64u << 20)

struct rl_engine {
    rl_model *model;
    rl_tokenizer *tokenizer; /* NULL: the file has no vocabulary */
    rl_model_info *info;
    rl_backend *backend;
    rl_precision precision;
    rl_kv_type kv;
    rl_isa isa;
    int threads;
    uint32_t context, batch, max_rows;
    uint32_t n_sessions;
    rl_tap_fn tap; /* looks on at passes of one session; NULL but while a trace is recorded */
    void *tap_ctx;
    uint64_t *routed; /* n_layer x n_expert, see routing.c; NULL: never watched */
    /* One pass: never more segments than rows. */
    rl_segment *segments;
    rl_batch_item **pass_items;
    float *batch_logits; /* rows of a pass of several sessions; grows to what was needed */
    uint32_t batch_logits_rows;
};

typedef struct rl_mark {
    uint32_t position;
    rl_snapshot *snapshot;
    float *logits;
} rl_mark;

/* Invariants: computed <= n <= capacity; seq stands at `computed`; logits belong to position computed - 1 whenever computed >
 * 0; marks rise in position and none lies beyond computed. */
struct rl_session {
    rl_engine *engine;
    rl_seq *seq;
    uint32_t capacity;
    int32_t *ids;
    uint32_t n, computed;
    float *logits;
    rl_mark marks[RL_SESSION_MARKS];
    uint32_t n_marks;
    bool in_call;      /* finds a session named twice in one batch */
    uint32_t n_before; /* position when the running call began */
};

/* From model and file: rl_model_inspect without opening them again. tokenizer may be NULL. */
rl_status rl_info_create(const rl_model *m, const rl_tokenizer *t, const char *path, rl_model_info **out, rl_error *err);

/* The vocabulary of an open file; *out = NULL when it has none. */
rl_status rl_engine_load_tokenizer(const rl_gguf *g, rl_tokenizer **out, rl_error *err);

/* The plan for an open model; has_cache: the backend can hold experts in a cache. Filled also on RL_ERR_MEMORY. */
rl_status rl_plan_model(const rl_model *m, const rl_engine_options *o, bool has_cache, bool measure, rl_plan *out,
                        rl_error *err);

/* Options within their ranges; the backend they name. */
rl_status rl_engine_check_options(const rl_engine_options *o, rl_error *err);
rl_status rl_engine_find_backend(const rl_engine_options *o, const rl_backend_ops **out, rl_error *err);

/* Ids within the vocabulary, or the error that names the first that is not. */
rl_status rl_engine_check_ids(const rl_engine *e, const int32_t *ids, size_t n, rl_error *err);

/* Ids the sampler has been told. */
uint64_t rl_sampler_n_accepted(const rl_sampler *s);

/* Log probability of `id` in a row, in double: max and sum over finite logits. */
double rl_log_softmax_at(const float *logits, uint32_t n, int32_t id);

#endif
