/* tests/peer/llama_abi: the part of libllama's binary interface (release 0.5.0, x86-64 Linux) that the comparison calls.
 *
 * Only what crosses the border is declared: structs that are passed or returned by value, and opaque pointers. A struct that
 * comes by value must have its exact size, so peer.c checks version and well-known default values before it trusts any. */
#ifndef RL_PEER_LLAMA_ABI_H
#define RL_PEER_LLAMA_ABI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define LLAMA_ABI_VERSION "0.5.0"

/* A pass over tokens: arrays of n_tokens entries, unused ones NULL. */
typedef struct llama_abi_batch {
    int32_t n_tokens;
    int32_t *token;
    float *embeddings;
    int32_t *position;
    int32_t *n_sequences;
    int32_t **sequences;
    int8_t *want_logits;
} llama_abi_batch;

typedef struct llama_abi_model_params {
    void *devices, *buffer_overrides;
    int32_t n_gpu_layers, split_mode, load_mode, lazy_mode, main_gpu;
    float *tensor_split;
    void *progress, *progress_ctx, *key_overrides;
    bool vocab_only, check_tensors;
    bool extra_buffers; /* weights may be rearranged for faster kernels, which round differently */
    bool no_host, no_alloc, load_mtp;
} llama_abi_model_params;

typedef struct llama_abi_context_params {
    uint32_t n_ctx, n_batch, n_ubatch, n_seq_max, n_rs_seq, n_outputs_max, n_outputs_max_per_seq;
    int32_t n_threads, n_threads_batch;
    int32_t context_type, rope_scaling, pooling, attention;
    int32_t flash_attention; /* -1 automatic, 0 off, 1 on */
    float rope_base, rope_scale, yarn[4];
    uint32_t yarn_context;
    float defragment;
    void *observer, *observer_ctx;
    int32_t key_type, value_type; /* 0 F32, 1 F16 */
    void *abort_fn, *abort_ctx;
    bool embeddings, offload_kqv, no_perf, op_offload, swa_full, kv_unified;
    void *samplers;
    size_t n_samplers;
    void *other_context;
} llama_abi_context_params;

typedef struct llama_abi_quantize_params {
    int32_t n_threads, file_type, output_type, embedding_type;
    bool requantize, quantize_output, only_copy, pure, keep_split, dry_run;
    void *importance, *key_overrides, *type_overrides, *prune_layers;
    size_t buffer_limit;
} llama_abi_quantize_params;

/* Name of the exported function, its type, and the name it gets here. */
#define LLAMA_ABI_FUNCTIONS(F)                                                                                                 \
    F(llama_version, const char *, (void))                                                                                     \
    F(llama_backend_init, void, (void))                                                                                        \
    F(llama_log_set, void, (void (*)(int, const char *, void *), void *))                                                      \
    F(llama_model_default_params, llama_abi_model_params, (void))                                                              \
    F(llama_context_default_params, llama_abi_context_params, (void))                                                          \
    F(llama_model_quantize_default_params, llama_abi_quantize_params, (void))                                                  \
    F(llama_model_load_from_file, void *, (const char *, llama_abi_model_params))                                              \
    F(llama_model_free, void, (void *))                                                                                        \
    F(llama_init_from_model, void *, (void *, llama_abi_context_params))                                                       \
    F(llama_free, void, (void *))                                                                                              \
    F(llama_decode, int32_t, (void *, llama_abi_batch))                                                                        \
    F(llama_synchronize, void, (void *))                                                                                       \
    F(llama_get_logits_ith, float *, (void *, int32_t))                                                                        \
    F(llama_get_memory, void *, (const void *))                                                                                \
    F(llama_memory_clear, void, (void *, bool))                                                                                \
    F(llama_model_get_vocab, const void *, (const void *))                                                                     \
    F(llama_vocab_n_tokens, int32_t, (const void *))                                                                           \
    F(llama_tokenize, int32_t, (const void *, const char *, int32_t, int32_t *, int32_t, bool, bool))                          \
    F(llama_model_quantize, uint32_t, (const char *, const char *, const llama_abi_quantize_params *))

#endif
