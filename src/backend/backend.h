/* backend: the stage interface between the engine and what computes.
 *
 * The unit is the *stage over rows*. A row is one token of one sequence at its next position. A forward pass takes rows of one
 * or several sequences: decode is one row per sequence, prefill a chunk of one sequence, verification draft + 1 rows. The
 * backend walks the stages below for every layer; how it fuses and schedules them is its own affair, but each stage it
 * materialises is shown to the tap, which is how parity compares backends stage by stage. */
#ifndef RL_BACKEND_H
#define RL_BACKEND_H

#include "base/pool.h"
#include "experts/experts.h"
#include "model/model.h"

/* Stages in the order data flows. Width per row in brackets (letters of rl_hparams). The formulas are in docs/model.md. */
typedef enum rl_stage {
    RL_STAGE_EMBED,          /* [E] */
    RL_STAGE_ATTN_NORM,      /* [E] */
    RL_STAGE_DN_QKV,         /* [cd] raw projection, order q | k | v */
    RL_STAGE_DN_Z,           /* [vd] */
    RL_STAGE_DN_BETA,        /* [Hv] after the sigmoid */
    RL_STAGE_DN_DECAY,       /* [Hv] g, natural log of the decay */
    RL_STAGE_DN_CONV,        /* [cd] after convolution and SiLU */
    RL_STAGE_DN_Q,           /* [kd] l2-normalised, without 1/sqrt(S) */
    RL_STAGE_DN_K,           /* [kd] l2-normalised */
    RL_STAGE_DN_CORE,        /* [vd] delta-rule output before its norm */
    RL_STAGE_DN_GATED,       /* [vd] after norm and SiLU gate */
    RL_STAGE_AT_QGATE,       /* [2HD] raw q projection with gates */
    RL_STAGE_AT_Q,           /* [HD] normed and rotated */
    RL_STAGE_AT_K,           /* [KD] normed and rotated */
    RL_STAGE_AT_V,           /* [KD] */
    RL_STAGE_AT_CORE,        /* [HD] attention output before the gate */
    RL_STAGE_AT_GATED,       /* [HD] */
    RL_STAGE_MIX_OUT,        /* [E] output projection of the token mixer */
    RL_STAGE_MIX_RESIDUAL,   /* [E] x after the mixer */
    RL_STAGE_FFN_NORM,       /* [E] */
    RL_STAGE_ROUTER_LOGITS,  /* [NE] */
    RL_STAGE_ROUTER_IDS,     /* [k] selected experts as floats, in order of decreasing probability, ties to the lower index */
    RL_STAGE_ROUTER_WEIGHTS, /* [k] renormalised, in the same order */
    RL_STAGE_EXPERTS,        /* [E] weighted sum of the routed experts */
    RL_STAGE_SHARED,         /* [E] shared expert times its sigmoid gate */
    RL_STAGE_LAYER_OUT,      /* [E] x after the layer */
    RL_STAGE_FINAL_NORM,     /* [E] h, also the MTP input */
    RL_STAGE_LOGITS,         /* [V] only rows that asked for logits */
    RL_STAGE_COUNT
} rl_stage;

const char *rl_stage_name(rl_stage s);
uint32_t rl_stage_width(const rl_hparams *hp, rl_stage s);

/* Called with n_rows x width floats after a stage. `rows` starts at row0 of the pass. What the function writes into data is
 * what the next stages read (the judge's values can be forced on a backend so that errors do not accumulate).
 * RL_STAGE_ROUTER_LOGITS may be observed but rewriting ids and weights is done at their own stages. layer is the trunk layer,
 * or 0 for stages outside layers. A return other than RL_OK ends the pass with that status. Backends that do not materialise a
 * stage skip it. */
typedef rl_status (*rl_tap_fn)(void *ctx, rl_stage stage, uint32_t layer, uint32_t row0, uint32_t n_rows, uint32_t width,
                               float *data);

typedef struct rl_backend_options {
    rl_precision precision;
    rl_kv_type kv;
    int threads;       /* 0 = one per physical core */
    const char *isa;   /* "auto" or a name of base/cpu.h */
    uint32_t max_rows; /* largest n_rows of a pass: sizes scratch memory */
    /* Progress of loading, 0..1, may be NULL; returning false cancels with RL_ERR_CANCELLED. */
    bool (*progress)(void *ctx, double fraction);
    void *progress_ctx;
    bool profile; /* collect rl_profile (also RL_PREFILL_PROFILE=1) */
    /* Where the routed experts come from: NULL uses them in place in the mapped file, else from this cache; everything else is
     * then copied out of the mapping, whose pages a busy disk would push out of memory. Backends without a cache ignore it. */
    const rl_experts_options *experts;
    float route_bias;    /* added to the router logits of cached experts when few rows choose; 0 = off */
    bool repack_experts; /* re-encode the experts for the kernels too: faster, a copy of them in memory */
} rl_backend_options;

typedef struct rl_backend rl_backend;
typedef struct rl_seq rl_seq;           /* state of one sequence: conv, recurrent state, KV rows, position */
typedef struct rl_snapshot rl_snapshot; /* copy of a sequence's recurrent part at one position */

typedef enum rl_logits_want { RL_LOGITS_NONE, RL_LOGITS_LAST, RL_LOGITS_ALL } rl_logits_want;

/* Consecutive tokens of one sequence, starting at its position. A sequence appears at most once in a pass. */
typedef struct rl_segment {
    rl_seq *seq;
    const int32_t *ids;
    uint32_t n;
    rl_logits_want want;
} rl_segment;

typedef struct rl_pass {
    const rl_segment *segments;
    uint32_t n_segments;
    float *logits; /* out: one row of V per wanted position, in order of segments and positions; NULL when none is wanted */
    float *hidden; /* out, may be NULL: n_rows x E, h after the final norm for every row (MTP input) */
    rl_tap_fn tap; /* may be NULL */
    void *tap_ctx;
} rl_pass;

/* Bytes a backend holds, for info and planning. */
typedef struct rl_backend_memory {
    uint64_t weights; /* copies made besides the mapping */
    uint64_t scratch;
    uint64_t seq_fixed; /* per sequence, independent of length */
    uint64_t seq_per_token;
} rl_backend_memory;

typedef struct rl_backend_ops {
    const char *name; /* "ref", "cpu", ... */
    /* model must outlive the backend. */
    rl_status (*open)(const rl_model *model, const rl_backend_options *opt, rl_backend **out, rl_error *err);
    void (*close)(rl_backend *b);
    void (*memory)(const rl_backend *b, rl_backend_memory *out);

    /* A sequence that can hold `capacity` positions, at position 0. */
    rl_status (*seq_create)(rl_backend *b, uint32_t capacity, rl_seq **out, rl_error *err);
    void (*seq_free)(rl_seq *s);
    uint32_t (*seq_position)(const rl_seq *s);
    void (*seq_reset)(rl_seq *s);
    /* dst (same backend, capacity >= src's position) becomes a copy of src. */
    rl_status (*seq_copy)(rl_seq *dst, const rl_seq *src, rl_error *err);

    /* The recurrent part at the current position. Restoring rewinds the same sequence (or a copy that shares its first
     * positions) to that position: KV rows beyond it are dropped, those before it are used as they are. */
    rl_status (*snapshot)(const rl_seq *s, rl_snapshot **out, rl_error *err);
    rl_status (*restore)(rl_seq *s, const rl_snapshot *snap, rl_error *err);
    void (*snapshot_free)(rl_snapshot *snap);
    uint64_t (*snapshot_bytes)(const rl_backend *b);

    /* The whole state as bytes in a backend-independent little-endian layout (backend/state.h): export writes through put,
     * import reads through get (exactly the bytes asked for). Import checks the shape and leaves the sequence reset on failure.
     */
    rl_status (*seq_export)(const rl_seq *s, rl_status (*put)(void *ctx, const void *data, size_t n, rl_error *err), void *ctx,
                            rl_error *err);
    rl_status (*seq_import)(rl_seq *s, rl_status (*get)(void *ctx, void *data, size_t n, rl_error *err), void *ctx,
                            rl_error *err);

    /* One pass over the layers. Ids and capacities were checked by the engine. On failure the sequences named in the pass are
     * undefined until reset or restored (the engine does that). */
    rl_status (*forward)(rl_backend *b, const rl_pass *pass, rl_error *err);

    /* MTP block (model has one): pairs (ids[i], hidden row i) for i < n at consecutive positions of the sequence's MTP cache,
     * which starts empty; logits out n x V (NULL = only extend the cache), hidden_out n x E after the head norm (may be NULL).
     */
    rl_status (*mtp)(rl_backend *b, rl_seq *s, const int32_t *ids, const float *hidden, uint32_t n, float *logits,
                     float *hidden_out, rl_error *err);
    uint32_t (*mtp_position)(const rl_seq *s);
    void (*mtp_truncate)(rl_seq *s, uint32_t n); /* keeps the first n entries */

    /* Optional (NULL in backends without it): what was collected since open, of single-row passes or of the others. False when
     * profiling is off. */
    bool (*profile)(const rl_backend *b, bool decode, rl_profile *out);

    /* Of the expert cache; false when experts are used in place. NULL: the backend has none. */
    bool (*cache)(const rl_backend *b, rl_experts_stats *out);
} rl_backend_ops;

/* Every backend's objects begin with this. */
struct rl_backend {
    const rl_backend_ops *ops;
    const rl_model *model;
};
struct rl_seq {
    rl_backend *backend;
};

/* By name, or NULL. "auto" picks the best that can run here. */
const rl_backend_ops *rl_backend_find(const char *name);
/* The backends of this build, NULL-terminated. */
const rl_backend_ops *const *rl_backend_list(void);

#endif
