/* backend/cuda/common: what the files of this folder share: error handling, matrices, sequences, the backend.
 *
 * All work of a pass goes to one stream in order, so buffers need no other synchronisation. Kernels read what changes from pass
 * to pass (rows, positions, states) from the descriptors in device memory, never from launch arguments, so that a recorded
 * graph can be replayed. */
#ifndef RL_CUDA_COMMON_CUH
#define RL_CUDA_COMMON_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <stdint.h>
#include <stdio.h>
#include <vector>

/* The thread pool's header is C11 with atomics and is not needed here. */
#define RL_BASE_POOL_H
extern "C" {
typedef struct rl_pool rl_pool;
#include "backend/cuda/abi.h"
}

extern const rl_cuda_host *host; /* set once by rl_cuda_entry */

#define CHECK_CUDA(call)                                                                                                       \
    do {                                                                                                                       \
        cudaError_t code_ = (call);                                                                                            \
        if (code_ != cudaSuccess)                                                                                              \
            return host->fail(err, code_ == cudaErrorMemoryAllocation ? RL_ERR_MEMORY : RL_ERR_DEVICE,                         \
                              "the GPU failed in %s: %s", #call, cudaGetErrorString(code_));                                   \
    } while (0)

#define TRY(call)                                                                                                              \
    do {                                                                                                                       \
        rl_status status_ = (call);                                                                                            \
        if (status_ != RL_OK) return status_;                                                                                  \
    } while (0)

static inline uint32_t div_up(uint64_t a, uint32_t b)
{
    return (uint32_t)((a + b - 1) / b);
}

/* ---- Matrices on the device ---------------------------------------------------------------------------------------------- */

/* How a matrix lies in device memory; format.cuh says what the planes hold. */
enum wformat : int {
    WF_F32,
    WF_F16,
    WF_BF16,
    WF_G8, /* any block type: a byte per code, a scale and an offset per 16 */
    WF_Q8,
    WF_IQ1,
    WF_IQ2,
    WF_IQ3X,
    WF_IQ3S,
    WF_Q2K,
    WF_Q4K,
    WF_Q5K,
    WF_Q6K,
    WF_COUNT
};

/* A unit is 64 consecutive weights of a row; rows are padded with zero weights to whole quadruples of units (256 weights). */
struct dmat {
    const uint8_t *codes, *extra; /* two planes of codes */
    const uint8_t *scales, *heads;
    int format;
    uint32_t rows, cols, units, n;
    uint16_t code_bytes, extra_bytes, scale_bytes; /* of a unit */
    float half_scale;                              /* power of two that brings the weights into the range of f16 (mma.cu) */
};

/* Lays the planes of `rows` rows out at p. */
dmat dmat_at(uint8_t *p, int format, uint64_t all_rows, uint32_t rows, uint32_t cols, uint32_t n);

/* ---- Rows of a pass ------------------------------------------------------------------------------------------------------ */

struct drow {
    int32_t id;
    uint32_t position, segment, t; /* place in its sequence, its segment, and its index inside the segment */
};

struct dseg {
    float *recurrent; /* per DeltaNet layer: W-1 convolution inputs, then Hv states [value index][key index] */
    uint8_t *kv;      /* per cache: capacity keys of K*D, then as many values */
    uint32_t row0, n, position, capacity;
};

/* What the mixers need to know of the shape, by value. */
struct dshape {
    uint32_t E, H, K, D, R, Hk, Hv, S, W, kd, vd, cd, NE, k, F, Fs;
    float eps, rope_scale;
    int kv_f16;
    uint64_t recurrent_layer; /* floats of one DeltaNet layer of a sequence */
};

/* A tile of rows that meet the same matrix: an expert's part of the sorted pairs. */
struct dtile {
    uint32_t expert, start, count;
};

/* The rows a product reads and where its results go. Dense: row i reads input row i. Grouped: entry i of `pairs` is p, reads
 * input row p / divisor and writes output row p. */
struct grouping {
    const uint32_t *pairs;
    const dtile *tiles;
    const uint32_t *n_tiles;
    uint32_t divisor, max_tiles;
};

/* Activations as tensor cores take them (mma.cu): f16, permuted inside each 256, and a power of two per row taken out. */
struct hrows {
    __half *x, *low; /* low: what rounding left, or NULL; products with float weights need it */
    float *scale;
    uint32_t width; /* padded to 256 */
};

struct dlayer {
    const rl_layer *src;
    bool recurrent;
    uint32_t index; /* among the layers of its kind */
    dmat q, k, v, o, qkv, gate, ba, out, router, gate_exps, up_exps, down_exps, gate_shared, up_shared, down_shared;
    float *attn_norm, *post_norm, *q_norm, *k_norm, *conv, *dt_bias, *a, *ssm_norm, *shared_router;
};

struct scratch {
    float *x, *norm, *mix, *raw, *z, *ba, *beta, *decay, *conv, *dq, *dk, *core, *gated, *q, *k, *v;
    float *router, *weights, *gate_up, *down, *shared_gu, *shared, *experts, *hidden, *join, *partial, *logits, *shown;
    float *shared_gate;
    uint32_t *ids, *pairs, *n_tiles, *counts;
    dtile *tiles;
    hrows h_norm, h_mix, h_ff, h_sff, h_join;
    drow *rows;
    dseg *segs;
    float *rope; /* per row: R/2 cosines, R/2 sines */
    uint32_t *wanted;
    /* of a fused decode step */
    uint8_t *step_x, *step_shared, *step_inner;
    float *step_gate;
};

struct cuda_backend {
    rl_backend base;
    rl_precision precision;
    bool fast;
    uint32_t max_rows, kv_bytes;
    uint32_t logits_rows; /* rows of logits held on the device */
    int device, sm_count, cc;
    dshape shape;
    uint32_t shape_vocab;
    cudaStream_t stream;
    std::vector<dlayer> layers;
    dlayer mtp_layer;
    dmat embed, head, eh_proj, mtp_embed, mtp_head;
    float *output_norm, *enorm, *hnorm, *head_norm;
    double *rope_freq;
    scratch s;
    std::vector<void *> owned;
    uint64_t weight_bytes, scratch_bytes;
    /* pinned: descriptors of a pass, then logits */
    uint8_t *pinned;
    size_t pinned_bytes;
    float *pinned_logits;
    struct profiler *profile;
    struct decode_graphs *graphs;
    __half *cache_half; /* keys and values of a sequence as f16, grown when a longer one comes */
    uint64_t cache_half_bytes;
    bool fused;
};

struct cuda_seq {
    rl_seq base;
    uint32_t capacity, position, mtp_position;
    float *recurrent;
    uint8_t *kv;
};

__host__ __device__ static inline uint32_t pad256(uint32_t n)
{
    return (n + 255) / 256 * 256;
}

static inline uint64_t cache_bytes(const cuda_backend *b, uint32_t capacity)
{
    return 2ull * capacity * b->shape.K * b->shape.D * b->kv_bytes;
}

/* ---- load.cu ------------------------------------------------------------------------------------------------------------- */
rl_status load_weights(cuda_backend *b, const rl_backend_options *opt, rl_error *err);
uint64_t dmat_bytes(wformat f, uint64_t rows, uint32_t cols);
wformat format_of(rl_type type);
rl_status repack(const uint8_t *raw, rl_type type, uint64_t raw_row_bytes, uint32_t rows, const dmat *dst, uint64_t row0,
                 uint32_t *largest, cudaStream_t stream, rl_error *err);
/* From the largest magnitude (its bits as a float). */
float half_scale_of(uint32_t largest);
rl_status upload_grids(rl_error *err);

/* ---- products ------------------------------------------------------------------------------------------------------------ */
/* y[out row * ldy + r] = W[e][r] . x, float32 throughout. */
void product_exact(const dmat &w, const float *x, uint32_t ldx, uint32_t n, const grouping *g, float *y, uint32_t ldy,
                   cudaStream_t st);
/* The same on tensor cores, f16 operands and f32 sums; `expected` is the usual number of rows of a tile. */
void product_mma(const dmat &w, const hrows &x, uint32_t n, const grouping *g, uint32_t expected, float *y, uint32_t ldy,
                 cudaStream_t st);
/* Two products of the same rows in one launch. */
void product_mma2(const dmat &w, float *y, uint32_t ldy, const dmat &w2, float *y2, uint32_t ldy2, const hrows &x, uint32_t n,
                  const grouping *g, uint32_t expected, cudaStream_t st);
/* F32 weights need x.low. */
bool mma_takes(const dmat &w, const hrows &x);
uint32_t mma_tile_rows(uint32_t expected);

/* ---- rows.cu: everything that is not a product or a mixer ---------------------------------------------------------------- */
void launch_embed(const dmat &w, const drow *rows, uint32_t n, float *x, uint32_t E, cudaStream_t st);
/* out = rms(x [+ add]) * w; x is updated when add is given. h may be {}. */
void launch_norm(float *x, const float *add, const float *w, uint32_t n, uint32_t E, float eps, float *out, uint32_t ld_out,
                 const hrows &h, uint32_t h_offset, cudaStream_t st);
void launch_prep(const float *x, uint32_t ldx, uint32_t width, uint32_t n, const hrows &h, cudaStream_t st);
void launch_add(float *x, const float *a, const float *b, uint64_t n, cudaStream_t st);
void launch_silu_mul(float *gu, uint32_t F, uint32_t n, const hrows &h, cudaStream_t st);
void launch_route(const float *logits, uint32_t n, const dshape &d, uint32_t *ids, float *weights, cudaStream_t st);
void launch_sort(const uint32_t *ids, uint32_t n_pairs, uint32_t NE, uint32_t tile_rows, scratch &s, cudaStream_t st);
void launch_combine(const float *down, const float *weights, uint32_t n, uint32_t k, uint32_t E, float *out, cudaStream_t st);
void launch_gather(const float *x, const uint32_t *index, uint32_t n, uint32_t E, float *out, cudaStream_t st);
void launch_shared_scale(const float *norm, const float *w, float *shared, uint32_t n, uint32_t E, cudaStream_t st);

/* ---- attention.cu, delta.cu ---------------------------------------------------------------------------------------------- */
void launch_rope_table(const scratch &s, const double *freq, uint32_t n, const dshape &d, cudaStream_t st);
void launch_q_norm_rope(const float *qgate, const float *w, const scratch &s, uint32_t n, const dshape &d, float *q,
                        cudaStream_t st);
void launch_k_norm_rope(float *k, const float *w, const scratch &s, uint32_t n, const dshape &d, cudaStream_t st);
void launch_kv_append(const scratch &s, uint32_t n, const dshape &d, uint32_t cache, cudaStream_t st);
void launch_attention(const scratch &s, uint32_t n, const dshape &d, uint32_t cache, uint32_t splits, cudaStream_t st);
void launch_attention_gate(const float *qgate, const float *core, float *gated, uint32_t n, const dshape &d, cudaStream_t st);
void launch_beta_decay(const dlayer &l, const scratch &s, uint32_t n, const dshape &d, cudaStream_t st);
void launch_conv(const dlayer &l, const scratch &s, uint32_t n, uint32_t n_segments, const dshape &d, cudaStream_t st);
void launch_l2(const scratch &s, uint32_t n, const dshape &d, cudaStream_t st);
void launch_delta(const dlayer &l, const scratch &s, uint32_t n_segments, const dshape &d, cudaStream_t st);
void launch_gated_norm(const dlayer &l, const scratch &s, uint32_t n, const dshape &d, cudaStream_t st);

/* ---- forward.cu, sequence.cu, selftest.cu -------------------------------------------------------------------------------- */
rl_status cuda_forward(rl_backend *b, const rl_pass *pass, rl_error *err);
rl_status cuda_mtp(rl_backend *b, rl_seq *s, const int32_t *ids, const float *hidden, uint32_t n, float *logits,
                   float *hidden_out, rl_error *err);
rl_status cuda_seq_create(rl_backend *b, uint32_t capacity, rl_seq **out, rl_error *err);
void cuda_seq_free(rl_seq *s);
uint32_t cuda_seq_position(const rl_seq *s);
void cuda_seq_reset(rl_seq *s);
rl_status cuda_seq_copy(rl_seq *dst, const rl_seq *src, rl_error *err);
rl_status cuda_snapshot(const rl_seq *s, rl_snapshot **out, rl_error *err);
rl_status cuda_restore(rl_seq *s, const rl_snapshot *snap, rl_error *err);
void cuda_snapshot_free(rl_snapshot *snap);
uint64_t cuda_snapshot_bytes(const rl_backend *b);
rl_status cuda_seq_export(const rl_seq *s, rl_put_fn put, void *ctx, rl_error *err);
rl_status cuda_seq_import(rl_seq *s, rl_get_fn get, void *ctx, rl_error *err);
uint32_t cuda_mtp_position(const rl_seq *s);
void cuda_mtp_truncate(rl_seq *s, uint32_t n);
rl_status cuda_selftest(uint64_t seed, rl_error *err);

#endif
