/* backend/cuda/forward: one pass over some rows: the trunk or the MTP block. */
#ifndef RL_CUDA_FORWARD_CUH
#define RL_CUDA_FORWARD_CUH

#include "backend/cuda/common.cuh"

enum { MAX_SPLITS = 64, GRAPH_ROWS = 64, FLASH_ROWS = 65, FUSED_ROWS = 3 };

struct run {
    cuda_backend *b;
    uint32_t n, n_segments;
    uint32_t splits;   /* parts of an attention's positions */
    uint32_t expected; /* rows that usually meet the same expert */
    const dseg *segs;  /* the host's copy */
    bool flash;        /* attention on tensor cores */
    rl_tap_fn tap;
    void *tap_ctx;
    rl_error *err;
};

/* flash.cu: for one segment of n rows that ends at position `end`; buffer has room for its keys and values as f16 when the
 * cache holds floats. */
bool flash_takes(const dshape &d);
void launch_flash(const scratch &s, const dshape &d, uint32_t segment, uint32_t n, uint32_t end, uint32_t cache, __half *buffer,
                  cudaStream_t st);

uint32_t attention_splits(const cuda_backend *b, uint32_t n, uint32_t positions);

#endif
