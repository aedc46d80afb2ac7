/* backend/cpu: what the files of this folder share.
 *
 * A pass is one run of the thread pool over the whole layer list: every member walks the same phases, takes its part of each
 * and meets the others at a barrier. Nothing in a pass allocates or locks. A phase is split by output, so results do not depend
 * on the number of members. Rows of activations lie one after another in the buffers of cpu_scratch. */
#ifndef RL_CPU_CPU_H
#define RL_CPU_CPU_H

#include "backend/cpu/matmul.h"
#include "backend/cpu/profile.h"
#include "backend/cpu/vec.h"
#include "backend/state.h"
#include "base/mem.h"

/* Key positions of an attention tile. Tiles start at multiples of it, so a row's result depends on its position alone. */
#define CPU_TILE 64
/* Segments shorter than this take the attention and the recurrence of decode, row by row; so a draft verified in one pass sees
 * the very numbers of token-by-token decoding. */
#define CPU_BATCH_MIN 9
/* Decode attention cuts a row's positions into splits of whole multiples of CPU_SPLIT_MIN, at most CPU_SPLITS of them. */
#define CPU_SPLIT_MIN  256
#define CPU_SPLITS     64
#define CPU_SPLIT_ROWS 32 /* rows of a pass whose splits may be spread over members */
/* (expert, token) pairs and output rows a member works on at once: its part of gate and up stays in the second-level cache. */
#define CPU_SLAB        128
#define CPU_EXPERT_ROWS 128

typedef struct cpu_layer {
    const rl_layer *src;
    uint32_t index; /* among the layers of its kind */
    rl_mm_matrix q, k, v, o;
    rl_mm_matrix qkv, gate, ba, out;
    float *conv; /* [cd / S][W][S]: head-wide slices, in them the taps apart */
    rl_mm_matrix router, gate_exps, up_exps, down_exps, gate_shared, up_shared, down_shared;
} cpu_layer;

/* The simple kernels behind the switches; true = the fast one. */
typedef struct cpu_switches {
    bool attn_tile; /* RL_PREFILL_ATTN_TILE: tiles of queries and keys, else row by row */
    bool expert_mm; /* RL_PREFILL_EXPERT_MM: all tokens of an expert in one product, else pair by pair */
    bool state_sg;  /* RL_PREFILL_STATE_SG: delta rule four tokens at a time, else one */
    bool gemm_tg;   /* RL_PREFILL_GEMM_TG: all rows in one product, else row by row */
} cpu_switches;

typedef struct cpu_seq {
    rl_seq base;
    uint32_t capacity, pos, mtp_pos;
    float *conv;  /* [recurrent layer][W - 1][cd], oldest first: raw projections */
    float *state; /* [recurrent layer][Hv][S key][S value] */
    uint8_t *kv;  /* [attention layer, MTP last][key, value][K][capacity][D] of the KV type */
} cpu_seq;

/* A segment of the running pass. */
typedef struct cpu_segment {
    cpu_seq *seq;
    const int32_t *ids;
    uint32_t row0, n, pos;
} cpu_segment;

/* Per member, allocated at open. */
typedef struct cpu_member {
    void *mm;                                        /* scratch of rl_mm_mul */
    float *panels, *scores, *out, *max, *sum, *corr; /* attention tile */
    float *keys, *values;                            /* a tile converted from f16 */
    float *partial;                                  /* splits of one (row, KV head) */
    float *delta;                                    /* stage of delta_chunk */
    float *gate, *up;                                /* slab of the experts */
} cpu_member;

typedef struct cpu_scratch {
    void *block; /* one allocation behind all pointers below */
    uint64_t bytes;
    float *x, *norm, *mix;           /* [n][E] residual stream, normed input, mixer output */
    float *raw;                      /* [n][max(cd, 2HD)] projections before conv / q with gates */
    float *conv;                     /* [n][max(cd, HD)] after conv / q */
    float *z, *ba, *beta, *decay;    /* [n][vd] [n][2Hv] [n][Hv] [n][Hv] */
    float *k, *v;                    /* [n][KD] */
    float *core;                     /* [n][max(vd, HD)] mixer before the output projection, gated in place */
    float *joined;                   /* [n][2E] MTP input */
    float *logits, *probs;           /* [n][NE] router */
    float *next_logits;              /* [n][NE] the next layer's router on this layer's input, to read its experts ahead */
    float *weights, *ids;            /* [n][k]; ids as floats, for the tap and as the selection */
    float *sgate, *sup, *sscale;     /* [n][Fs] [n][Fs] [n] shared expert */
    float *hidden;                   /* [n * k][F] silu(gate) * up of every pair */
    float *experts, *shared;         /* [n][E] */
    float *cosine, *sine;            /* [n][R / 2] */
    float *partial;                  /* [CPU_SPLIT_ROWS][H][CPU_SPLITS][D + 2] */
    float *tap;                      /* [n][kd], strided rows packed for the tap; allocated by the first pass with one */
    uint32_t *iota;                  /* 0, 1, 2, ... n * k */
    uint32_t *pair_token;            /* [n * k] sorted by expert, then token */
    float *pair_weight;              /* [n * k] */
    uint32_t *active, *active_begin; /* experts in use, ascending; their first pairs, one past the end */
    atomic_uint *done;               /* per active expert: finished blocks of gate and up */
    uint32_t *cursor;                /* [NE] */
    bool *resident;                  /* [NE] experts in the cache, for the route bias */
    uint32_t *row_segment, *wanted;  /* [n] segment of a row; rows that asked for logits */
    cpu_segment *segments;
    uint8_t *act_norm, *act_mix, *act_hidden, *act_shared, *act_joined;
} cpu_scratch;

typedef struct cpu_backend {
    rl_backend base;
    rl_precision precision;
    rl_kv_type kv;
    uint32_t max_rows, kv_bytes; /* bytes of one key or value element */
    cpu_switches on;
    rl_mm *mm;
    rl_pool *pool;
    int n_members;
    const rl_vec *vec;
    cpu_layer *layers;
    rl_mm_matrix embed, head; /* embed is only read row by row and stays in the file's layout, also when tied */
    cpu_layer mtp_layer;
    rl_mm_matrix eh_proj, mtp_embed;
    rl_mm_matrix mtp_own_head; /* empty when the MTP block uses the trunk's */
    const rl_mm_matrix *mtp_head;
    double *rope_freq, rope_scale;
    cpu_scratch s;
    cpu_member *members;
    float route_bias;
    rl_experts *experts;         /* NULL: used in place */
    atomic_uint *counters;       /* one per dynamic phase of a pass */
    atomic_uint expert_items[2]; /* of the two phases of a wave of experts */
    uint32_t n_counters;
    cpu_profile profile;
    bool profile_log; /* RL_PREFILL_PROFILE=1: logged when the backend closes */
} cpu_backend;

/* The running pass, seen by all members. */
typedef struct cpu_pass {
    cpu_backend *b;
    uint32_t n_rows, n_segments, n_wanted, n_active;
    uint32_t wave_begin, wave_end; /* of the active experts: those at hand together */
    bool mtp;
    const float *hidden_mtp; /* MTP: hidden states of the trunk */
    float *logits, *hidden;
    rl_tap_fn tap;
    void *tap_ctx;
    rl_status status;
    rl_mm_act a_norm, a_attn, a_delta, a_hidden, a_shared, a_joined;
} cpu_pass;

/* One member's view of the pass. */
typedef struct cpu_worker {
    cpu_pass *p;
    cpu_backend *b;
    int id, size;
    cpu_member *my;
    uint32_t next_counter;
} cpu_worker;

/* A product of the phase: y = w * rows. */
typedef struct cpu_product {
    const rl_mm_matrix *w;
    const rl_mm_act *a;
    const uint32_t *index; /* NULL: rows 0, 1, ... */
    uint32_t n;
    float *y;
    size_t ldy;
} cpu_product;

extern const rl_backend_ops rl_backend_cpu;

/* cpu_run.c */
/* End of a phase: barrier, and the clock when profiling. */
void cpu_sync(cpu_worker *w, cpu_phase phase);
/* Shows a stage to the tap, if there is one; all members call it, between barriers of its own. data: one row every `stride`
 * floats. False when the pass ends here. */
bool cpu_show(cpu_worker *w, rl_stage stage, uint32_t layer, float *data, size_t stride);
/* As cpu_show, called by member 0 alone while the others are held at a barrier. */
void cpu_show_alone(cpu_worker *w, rl_stage stage, uint32_t layer, float *data, size_t stride);
/* All products of a phase, their rows cut into items that members take in turn. */
void cpu_multiply(cpu_worker *w, cpu_phase phase, const cpu_product *products, int n);
/* Counter of the next dynamic phase (all members call it equally often). */
atomic_uint *cpu_counter(cpu_worker *w);
/* The rows of this member. */
static inline void cpu_my_rows(const cpu_worker *w, uint32_t *begin, uint32_t *end)
{
    rl_pool_part(w->p->n_rows, 1, w->id, w->size, begin, end);
}

/* Token mixers and MoE: read s.norm (and its prepared form), leave s.mix (mixers), s.experts and s.shared (MoE). False when a
 * tap ended the pass. */
bool cpu_attention(cpu_worker *w, const cpu_layer *l, uint32_t layer);
bool cpu_deltanet(cpu_worker *w, const cpu_layer *l, uint32_t layer);
bool cpu_moe(cpu_worker *w, const cpu_layer *l, uint32_t layer);

/* cpu_moe.c: the k largest of n numbers in decreasing order, ties to the lower index. */
void cpu_largest(const float *x, uint32_t n, uint32_t k, uint32_t *best);

/* cpu_cache.c: the experts in use. Member 0 opens and closes, alone between barriers. */
void cpu_open_set(cpu_worker *w, uint32_t layer); /* and its first wave */
void cpu_open_wave(cpu_worker *w);
void cpu_resident(cpu_worker *w, uint32_t layer); /* fills s.resident */
void cpu_close_set(cpu_worker *w);
/* The expert that arrived as number `pos` of the wave: *i is its place among the active ones. Waits for it. False when it could
 * not be read: the pass ends after this phase, see cpu_wave_failed. */
bool cpu_wave_next(cpu_worker *w, uint32_t pos, uint32_t *i);
bool cpu_wave_failed(cpu_worker *w); /* after a barrier */
/* Part 0 gate, 1 up, 2 down of active expert i: matrix e of `matrix`. */
typedef struct cpu_expert {
    rl_mm_matrix matrix;
    uint32_t e;
} cpu_expert;
cpu_expert cpu_expert_at(const cpu_worker *w, const rl_mm_matrix *all, uint32_t part, uint32_t i);
/* The router to apply for a prediction, NULL when there is none to make. */
const rl_mm_matrix *cpu_next_router(const cpu_worker *w, uint32_t layer);

/* cpu_attn.c: query rows of an attention tile, for its buffers. */
uint32_t cpu_attention_rows(const cpu_backend *b);

/* cpu_pass.c */
rl_status cpu_forward(rl_backend *b, const rl_pass *pass, rl_error *err);
rl_status cpu_mtp(rl_backend *b, rl_seq *s, const int32_t *ids, const float *hidden, uint32_t n, float *logits,
                  float *hidden_out, rl_error *err);

/* cpu_seq.c */
rl_status cpu_seq_create(rl_backend *b, uint32_t capacity, rl_seq **out, rl_error *err);
void cpu_seq_free(rl_seq *s);
uint32_t cpu_seq_position(const rl_seq *s);
void cpu_seq_reset(rl_seq *s);
rl_status cpu_seq_copy(rl_seq *to, const rl_seq *from, rl_error *err);
rl_status cpu_snapshot(const rl_seq *s, rl_snapshot **out, rl_error *err);
rl_status cpu_restore(rl_seq *s, const rl_snapshot *snap, rl_error *err);
void cpu_snapshot_free(rl_snapshot *snap);
uint64_t cpu_snapshot_bytes(const rl_backend *b);
rl_status cpu_seq_export(const rl_seq *s, rl_put_fn put, void *ctx, rl_error *err);
rl_status cpu_seq_import(rl_seq *s, rl_get_fn get, void *ctx, rl_error *err);
uint32_t cpu_mtp_position(const rl_seq *s);
void cpu_mtp_truncate(rl_seq *s, uint32_t n);

/* Keys (what = 0) or values (1) of one head: `capacity` rows of D elements. */
static inline uint8_t *cpu_kv(const cpu_backend *b, const cpu_seq *s, uint32_t layer, uint32_t what, uint32_t head)
{
    const rl_hparams *hp = &b->base.model->hp;
    return s->kv + (((size_t)layer * 2 + what) * hp->n_head_kv + head) * s->capacity * hp->head_dim * b->kv_bytes;
}

#endif
