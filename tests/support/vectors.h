/* tests/support/vectors: reference values of a model (ids, logits, greedy continuations, stages) and the judging of a backend
 * by them. The formats are described in tests/data/model/README.md. Loading fails the running test when a file is missing. */
#ifndef TESTS_SUPPORT_VECTORS_H
#define TESTS_SUPPORT_VECTORS_H

#include "backend/backend.h"

typedef struct vec_prompt {
    char name[64];
    int32_t *ids;
    uint32_t n_ids;
    float *logits; /* the last n_rows positions */
    uint32_t n_rows, n_vocab;
    int32_t *greedy;
    uint32_t n_greedy;
} vec_prompt;

void vec_prompt_load(vec_prompt *p, const char *dir, const char *name, uint32_t n_vocab);
void vec_prompt_free(vec_prompt *p);

typedef struct vec_result {
    double max_abs;          /* over all rows given */
    uint32_t argmax_differ;  /* rows */
    uint32_t greedy_differ;  /* ids, our own continuation against the given one */
    uint32_t rows, n_greedy; /* how many were compared */
} vec_result;

/* Runs the prompt in chunks of `chunk` rows and the greedy continuation (its first `n_greedy` ids). */
void vec_judge(rl_backend *b, const vec_prompt *p, uint32_t chunk, uint32_t n_greedy, vec_result *out);

/* The MTP block over the whole prompt (pairs t = 0 .. n-2) against the rows of dir/NAME.mtp.f32, which are the last ones. */
void vec_judge_mtp(rl_backend *b, const vec_prompt *p, const char *dir, uint32_t chunk, vec_result *out);

/* Named intermediate values of the first ids of `story`. */
typedef struct vec_stages {
    float *values;
    size_t n_values, n_ids; /* ids: the number of rows of "embed" */
    struct {
        char name[32];
        size_t first, count;
    } entry[64];
    size_t n;
} vec_stages;

void vec_stages_load(vec_stages *s, const char *dir, uint32_t n_embd);
void vec_stages_free(vec_stages *s);
/* NULL when the file has no such stage; *count (may be NULL) numbers. */
const float *vec_stage(const vec_stages *s, const char *name, size_t *count);

/* Runs the ids and compares every stage that the backend shows and the file has. Returns how many were compared and the largest
 * absolute difference, with the name of its stage. */
uint32_t vec_judge_stages(rl_backend *b, const vec_stages *s, const vec_prompt *story, double *max_abs, char worst[32]);

#endif
