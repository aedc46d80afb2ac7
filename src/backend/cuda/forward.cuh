/* backend/cuda/forward: one pass over some rows: the trunk or the MTP block. */
#ifndef RL_CUDA_FORWARD_CUH
#define RL_CUDA_FORWARD_CUH

#include "backend/cuda/common.cuh"

enum { MAX_SPLITS = 64, GRAPH_ROWS = 64 };

struct run {
    cuda_backend *b;
    uint32_t n, n_segments;
    uint32_t splits;   /* parts of an attention's positions */
    uint32_t expected; /* rows that usually meet the same expert */
    rl_tap_fn tap;
    void *tap_ctx;
    rl_error *err;
};

uint32_t attention_splits(const cuda_backend *b, uint32_t n, uint32_t positions);

#endif
