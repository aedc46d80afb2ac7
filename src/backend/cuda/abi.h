/* backend/cuda/abi: the border between the program and the CUDA library, which is built by another compiler and loaded when
 * present. The library calls nothing of the program by name: what it needs comes in this table, so that it links against the
 * CUDA runtime alone. Both sides are built from the same sources; the sizes tell when they were not. */
#ifndef RL_CUDA_ABI_H
#define RL_CUDA_ABI_H

#include "backend/backend.h"
#include "backend/state.h"
#include "quant/quant.h"

#define RL_CUDA_ABI     3
#define RL_CUDA_LIBRARY "libredlite_cuda.so"
#define RL_CUDA_ENTRY   "rl_cuda_entry"

typedef struct rl_cuda_grids {
    const uint64_t *iq1s, *iq2xxs, *iq2xs, *iq2s;
    const uint32_t *iq3xxs, *iq3s;
    const int8_t *iq4nl, *fp4;
    const uint8_t *ksigns;
} rl_cuda_grids;

typedef struct rl_cuda_host {
    uint32_t abi, size_model, size_ops, size_pass, size_options;
    rl_status (*fail)(rl_error *err, rl_status status, const char *fmt, ...);
    void (*log)(rl_log_level level, const char *fmt, ...);
    uint32_t (*stage_width)(const rl_hparams *hp, rl_stage s);
    const char *(*stage_name)(rl_stage s);
    void (*rope)(const rl_hparams *hp, double *freq, double *scale);
    const rl_type_info *(*type_get)(uint32_t type);
    const rl_quant_traits *(*quant_get)(rl_type type);
    rl_status (*put_header)(const rl_hparams *hp, const rl_state_info *info, rl_put_fn put, void *ctx, rl_error *err);
    rl_status (*get_header)(const rl_hparams *hp, uint32_t capacity, rl_state_info *info, rl_get_fn get, void *ctx,
                            rl_error *err);
    rl_status (*put)(rl_elem elem, const void *src, size_t n, rl_put_fn put, void *ctx, rl_error *err);
    rl_status (*get)(rl_elem from, rl_elem to, void *dst, size_t n, rl_get_fn get, void *ctx, rl_error *err);
    double (*now)(void);
    rl_cuda_grids grids;
} rl_cuda_host;

/* What the library offers. */
typedef struct rl_cuda_library {
    const rl_backend_ops *ops;
    /* Every kernel against plain host code on random shapes; prints a line per kernel through host->log. */
    rl_status (*selftest)(uint64_t seed, rl_error *err);
    char device[256]; /* one line about the GPU that will be used */
} rl_cuda_library;

/* False with a sentence in `why` when no GPU can be used here. */
typedef bool (*rl_cuda_entry_fn)(const rl_cuda_host *host, rl_cuda_library *out, char *why, size_t why_size);

#endif
