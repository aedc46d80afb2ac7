/* gguf: the container format, read as hostile input and written as the reference expects.
 *
 * The reader parses versions 2 and 3 with one bounds-checked cursor over the mapped file(s), verifies every extent against the
 * file size, and only then hands out pointers. Split models are opened through their first part and look like one file. */
#ifndef RL_GGUF_H
#define RL_GGUF_H

#include "base/error.h"
#include "base/file.h"
#include <stdint.h>

/* Tensor element types by their number in the file. Numbers missing here are withdrawn or unassigned and refused. */
typedef enum rl_type {
    RL_F32 = 0,
    RL_F16 = 1,
    RL_Q4_0 = 2,
    RL_Q4_1 = 3,
    RL_Q5_0 = 6,
    RL_Q5_1 = 7,
    RL_Q8_0 = 8,
    RL_Q8_1 = 9,
    RL_Q2_K = 10,
    RL_Q3_K = 11,
    RL_Q4_K = 12,
    RL_Q5_K = 13,
    RL_Q6_K = 14,
    RL_Q8_K = 15,
    RL_IQ2_XXS = 16,
    RL_IQ2_XS = 17,
    RL_IQ3_XXS = 18,
    RL_IQ1_S = 19,
    RL_IQ4_NL = 20,
    RL_IQ3_S = 21,
    RL_IQ2_S = 22,
    RL_IQ4_XS = 23,
    RL_I8 = 24,
    RL_I16 = 25,
    RL_I32 = 26,
    RL_I64 = 27,
    RL_F64 = 28,
    RL_IQ1_M = 29,
    RL_BF16 = 30,
    RL_TQ1_0 = 34,
    RL_TQ2_0 = 35,
    RL_MXFP4 = 39,
    RL_NVFP4 = 40,
    RL_Q1_0 = 41,
    RL_Q2_0 = 42,
    RL_TYPE_END = 43
} rl_type;

typedef struct rl_type_info {
    const char *name;       /* upper case, as in the format's documentation */
    uint16_t block_weights; /* N */
    uint16_t block_bytes;   /* B */
} rl_type_info;

/* NULL for a number that is not in the table above. */
const rl_type_info *rl_type_get(uint32_t type);

/* Bytes of a row of n weights; n must be a multiple of the block (asserted). */
uint64_t rl_type_row_bytes(rl_type type, uint64_t n);

typedef struct rl_gguf_tensor {
    const char *name; /* NUL-terminated, owned by the rl_gguf */
    rl_type type;
    uint32_t n_dims;
    uint64_t ne[4]; /* ne[0] contiguous; missing dimensions are 1 */
    uint64_t bytes;
    uint32_t file;       /* index into the parts */
    uint64_t offset;     /* of the data from the start of that file */
    const uint8_t *data; /* into the mapping */
} rl_gguf_tensor;

typedef enum rl_gguf_kind {
    RL_GGUF_U8 = 0,
    RL_GGUF_I8,
    RL_GGUF_U16,
    RL_GGUF_I16,
    RL_GGUF_U32,
    RL_GGUF_I32,
    RL_GGUF_F32,
    RL_GGUF_BOOL,
    RL_GGUF_STRING,
    RL_GGUF_ARRAY,
    RL_GGUF_U64,
    RL_GGUF_I64,
    RL_GGUF_F64
} rl_gguf_kind;

/* Strings are handed out as rl_slice (redlite.h): bytes inside the mapping, no terminator, any content. */

typedef struct rl_gguf rl_gguf;
typedef struct rl_gguf_value rl_gguf_value; /* one metadata value, owned by the rl_gguf */

/* Opens a file (or, for a split model, all its parts; `path` names part 1). The error names the file, the field and the value.
 */
rl_status rl_gguf_open(const char *path, rl_gguf **out, rl_error *err);
void rl_gguf_close(rl_gguf *g);

/* The same parser over memory (fuzzing, tests): `name` appears in messages; data must outlive the result; never split. */
rl_status rl_gguf_parse(const void *data, size_t size, const char *name, rl_gguf **out, rl_error *err);

uint32_t rl_gguf_version(const rl_gguf *g);
uint32_t rl_gguf_n_files(const rl_gguf *g);
const char *rl_gguf_file_name(const rl_gguf *g, uint32_t file);
const rl_mapping *rl_gguf_mapping(const rl_gguf *g, uint32_t file);
uint64_t rl_gguf_total_bytes(const rl_gguf *g); /* of all parts */

uint32_t rl_gguf_n_tensors(const rl_gguf *g);
const rl_gguf_tensor *rl_gguf_tensor_at(const rl_gguf *g, uint32_t i);
const rl_gguf_tensor *rl_gguf_find_tensor(const rl_gguf *g, const char *name); /* NULL when absent */

uint32_t rl_gguf_n_keys(const rl_gguf *g);
rl_slice rl_gguf_key_at(const rl_gguf *g, uint32_t i);
const rl_gguf_value *rl_gguf_value_at(const rl_gguf *g, uint32_t i);
const rl_gguf_value *rl_gguf_find(const rl_gguf *g, const char *key); /* NULL when absent */

rl_gguf_kind rl_gguf_value_kind(const rl_gguf_value *v);

/* Typed lookups. Any integer width is taken when the value fits, either float width when the value is finite. *found (may be
 * NULL) tells absence from presence; an absent key leaves *out alone and is RL_OK; a key of the wrong type is RL_ERR_FORMAT
 * naming file, key, what was found and expected.
 */
rl_status rl_gguf_get_u32(const rl_gguf *g, const char *key, uint32_t *out, bool *found, rl_error *err);
rl_status rl_gguf_get_u64(const rl_gguf *g, const char *key, uint64_t *out, bool *found, rl_error *err);
rl_status rl_gguf_get_f32(const rl_gguf *g, const char *key, float *out, bool *found, rl_error *err);
rl_status rl_gguf_get_bool(const rl_gguf *g, const char *key, bool *out, bool *found, rl_error *err);
rl_status rl_gguf_get_string(const rl_gguf *g, const char *key, rl_slice *out, bool *found, rl_error *err);

/* Arrays. Element access is O(1) for numbers; strings are read in order with an iterator (no per-element memory). */
typedef struct rl_gguf_array {
    rl_gguf_kind kind; /* of the elements */
    uint64_t count;
    const uint8_t *data; /* first element, unaligned */
    uint64_t bytes;      /* of all elements */
} rl_gguf_array;
rl_status rl_gguf_get_array(const rl_gguf *g, const char *key, rl_gguf_array *out, bool *found, rl_error *err);
/* Any value as an array: a scalar is an array of one. */
void rl_gguf_value_view(const rl_gguf_value *v, rl_gguf_array *out);
/* Element i of an array of integers or bools, sign-extended (u64 above INT64_MAX gives that); the caller has checked kind and
 * i.
 */
int64_t rl_gguf_array_int(const rl_gguf_array *a, uint64_t i);
double rl_gguf_array_float(const rl_gguf_array *a, uint64_t i);
/* For arrays of strings. *cursor starts at 0; returns false at the end. */
bool rl_gguf_array_next_string(const rl_gguf_array *a, uint64_t *cursor, rl_slice *out);

/* Writer: keys first, then tensors declared in order, then their data in the same order. Version 3, alignment 32, padded as the
 * reference wants. Any failing call makes later ones fail with the same error. */
typedef struct rl_gguf_writer rl_gguf_writer;
rl_status rl_gguf_writer_open(const char *path, rl_gguf_writer **out, rl_error *err);
rl_status rl_gguf_write_u32(rl_gguf_writer *w, const char *key, uint32_t v, rl_error *err);
rl_status rl_gguf_write_f32(rl_gguf_writer *w, const char *key, float v, rl_error *err);
rl_status rl_gguf_write_bool(rl_gguf_writer *w, const char *key, bool v, rl_error *err);
rl_status rl_gguf_write_string(rl_gguf_writer *w, const char *key, const char *data, size_t n, rl_error *err);
rl_status rl_gguf_write_strings(rl_gguf_writer *w, const char *key, const rl_slice *v, size_t n, rl_error *err);
rl_status rl_gguf_write_i32s(rl_gguf_writer *w, const char *key, const int32_t *v, size_t n, rl_error *err);
rl_status rl_gguf_write_value(rl_gguf_writer *w, rl_slice key, const rl_gguf_value *v,
                              rl_error *err); /* copies one from a reader */
rl_status rl_gguf_declare(rl_gguf_writer *w, const char *name, rl_type type, uint32_t n_dims, const uint64_t *ne,
                          rl_error *err);
/* Appends bytes of the current tensor; it is complete when all its declared bytes were given. */
rl_status rl_gguf_write_data(rl_gguf_writer *w, const void *data, size_t n, rl_error *err);
rl_status rl_gguf_writer_commit(rl_gguf_writer *w, rl_error *err); /* frees w in every case */
void rl_gguf_writer_abort(rl_gguf_writer *w);

#endif
