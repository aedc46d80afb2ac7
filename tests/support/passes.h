/* tests/support/passes: running passes of a backend in one line each. Failures fail the test. */
#ifndef TESTS_SUPPORT_PASSES_H
#define TESTS_SUPPORT_PASSES_H

#include "backend/backend.h"
#include "support/support.h"

typedef struct pass_options {
    const char *backend; /* NULL = "cpu" */
    rl_precision precision;
    rl_kv_type kv;
    int threads;     /* 0 = 1 */
    const char *isa; /* NULL = "auto" */
    uint32_t max_rows;
    bool profile, repack_experts;
    const rl_experts_options *experts; /* NULL: in place */
} pass_options;

rl_backend *pass_open(const rl_model *m, pass_options o);
rl_seq *pass_seq(rl_backend *b, uint32_t capacity);

/* Extends the sequence by n ids in chunks of at most `chunk` rows; logits (n x V) may be NULL. */
void pass_run(rl_seq *s, const int32_t *ids, uint32_t n, uint32_t chunk, float *logits);
/* Logits of the last of the n ids. */
void pass_last(rl_seq *s, const int32_t *ids, uint32_t n, float *logits);
uint32_t pass_argmax(const float *logits, uint32_t n);
/* Random ids below the vocabulary size. */
void pass_ids(const rl_model *m, uint64_t seed, int32_t *ids, uint32_t n);

/* A growing buffer for export, and reading it back for import. */
typedef struct pass_bytes {
    uint8_t *data;
    size_t size, capacity, at;
} pass_bytes;
rl_status pass_put(void *ctx, const void *data, size_t n, rl_error *err);
rl_status pass_get(void *ctx, void *data, size_t n, rl_error *err);

#endif
