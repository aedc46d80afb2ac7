/* model/binder: finding, checking and claiming the keys and tensors of a file, for the architecture files of this folder.
 *
 * Errors are sticky: after the first failure every call returns an empty value and keeps the first error, so that an
 * architecture reads as a list of what it expects and looks at `status` where it needs the values. */
#ifndef RL_MODEL_BINDER_H
#define RL_MODEL_BINDER_H

#include "model/model.h"

typedef struct rl_binder {
    const rl_gguf *g;
    rl_model *m;
    const char *prefix; /* of the architecture's keys */
    char file[256];     /* escaped, for messages */
    rl_status status;
    rl_error *err;
    const rl_gguf_tensor **claimed; /* every tensor that found its place, once */
    size_t n_claimed, cap_claimed;
} rl_binder;

void rl_binder_init(rl_binder *b, const rl_gguf *g, rl_model *m, rl_error *err);
void rl_binder_free(rl_binder *b);

/* Records the first failure, with the file's name in front; returns the sticky status. */
rl_status rl_binder_fail(rl_binder *b, rl_status status, const char *fmt, ...) RL_PRINTF(3, 4);

/* Keys are given without the architecture's prefix. An array whose entries are all equal stands for the number. */
bool rl_binder_has_key(const rl_binder *b, const char *key);
uint32_t rl_binder_u32(rl_binder *b, const char *key, uint32_t min, uint32_t max);
uint32_t rl_binder_u32_or(rl_binder *b, const char *key, uint32_t min, uint32_t max, uint32_t absent);
float rl_binder_f32_or(rl_binder *b, const char *key, float absent);

/* `name` of a block tensor is "blk.<block>.<suffix>"; block < 0 means a global tensor. */
const rl_gguf_tensor *rl_binder_find(const rl_binder *b, int block, const char *suffix);
/* The first of a NULL-terminated list of suffixes that the block has, or NULL. */
const char *rl_binder_first_of(const rl_binder *b, int block, const char *const *suffixes);

/* Claims a tensor of exactly [cols, rows, n] (missing dimensions count as 1) in a type that can be decoded. */
rl_matrix rl_binder_matrix(rl_binder *b, int block, const char *suffix, uint32_t cols, uint32_t rows, uint32_t n);
/* Rows [first, first + rows) of each of a matrix's n. */
rl_matrix rl_matrix_rows(const rl_matrix *m, uint32_t first, uint32_t rows);
/* Claims a float tensor of exactly [n, rows] and returns finite F32 values owned by the model, aligned to a cache line. */
rl_vector rl_binder_vector(rl_binder *b, int block, const char *suffix, uint32_t n, uint32_t rows);

/* Memory that lives as long as the model, aligned to a cache line. */
void *rl_binder_own(rl_binder *b, size_t bytes);

/* Fails when a tensor of the file was not claimed: what is not understood would silently change results. */
rl_status rl_binder_finish(rl_binder *b);

/* Architectures. */
rl_status rl_qwen3next_bind(rl_binder *b);

#endif
