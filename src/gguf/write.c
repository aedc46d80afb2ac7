/* Writer: metadata and tensor table are collected in memory, since the counts stand at the head of the file; the first data
 * byte (or commit) sends them out, and data follows in the declared order with zero padding to the alignment after each tensor.
 */
#include "base/mem.h"
#include "gguf/internal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

typedef struct buffer {
    uint8_t *data;
    size_t size, capacity;
} buffer;

typedef struct declared {
    char name[RL_GGUF_MAX_NAME + 1];
    rl_type type;
    uint32_t n_dims;
    uint64_t ne[4], bytes, offset;
} declared;

typedef struct key_span {
    size_t offset, size; /* in the buffer of encoded pairs */
} key_span;

struct rl_gguf_writer {
    rl_out_file *file;
    char label[RL_GGUF_LABEL];
    rl_error failed; /* status RL_OK until a call fails */
    buffer pairs;
    key_span *keys;
    uint32_t n_keys, key_capacity;
    declared *tensors;
    uint32_t n_tensors, tensor_capacity;
    uint64_t data_bytes; /* of all declared tensors, padded */
    bool header_sent;
    uint32_t current; /* tensor that receives data */
    uint64_t given;   /* bytes it has so far */
};

/* Remembers the first failure, and gives it out. */
static rl_status keep(rl_gguf_writer *w, rl_error *err)
{
    if (err) *err = w->failed;
    return w->failed.status;
}

#define FAIL(w, err, ...) (rl_fail(&(w)->failed, __VA_ARGS__), keep((w), (err)))

/* Appends n bytes. An allocation failure is remembered in w and makes the rest of the appends no-ops. */
static void append(rl_gguf_writer *w, buffer *b, const void *data, size_t n)
{
    if (w->failed.status != RL_OK || n == 0) return;
    size_t need;
    if (!rl_add_size(b->size, n, &need)) need = SIZE_MAX;
    if (need > b->capacity || !b->data) {
        size_t capacity = need > SIZE_MAX / 2 ? need : need * 2;
        uint8_t *grown = rl_realloc(b->data, capacity, 1);
        if (!grown) {
            rl_fail(&w->failed, RL_ERR_MEMORY, "%s: no memory for %zu bytes of metadata", w->label, capacity);
            return;
        }
        b->data = grown;
        b->capacity = capacity;
    }
    memcpy(b->data + b->size, data, n);
    b->size += n;
}

static void append_number(rl_gguf_writer *w, buffer *b, uint64_t v, unsigned bytes)
{
    uint8_t p[8];
    for (unsigned i = 0; i < bytes; i++)
        p[i] = (uint8_t)(v >> (8 * i));
    append(w, b, p, bytes);
}

static void append_string(rl_gguf_writer *w, buffer *b, const char *text, size_t n)
{
    append_number(w, b, n, 8);
    append(w, b, text, n);
}

rl_status rl_gguf_writer_open(const char *path, rl_gguf_writer **out, rl_error *err)
{
    rl_gguf_writer *w = rl_calloc(1, sizeof *w);
    char label[RL_GGUF_LABEL];
    rl_escape(label, sizeof label, path, strlen(path));
    if (!w) return rl_fail(err, RL_ERR_MEMORY, "%s: no memory for a writer", label);
    memcpy(w->label, label, sizeof label);
    rl_status s = rl_out_open(path, &w->file, err);
    if (s != RL_OK) {
        free(w);
        return s;
    }
    *out = w;
    return RL_OK;
}

static void release(rl_gguf_writer *w)
{
    free(w->pairs.data);
    free(w->keys);
    free(w->tensors);
    free(w);
}

void rl_gguf_writer_abort(rl_gguf_writer *w)
{
    if (!w) return;
    rl_out_abort(w->file);
    release(w);
}

/* ---- Metadata -------------------------------------------------------------------------------------------------------- */

static rl_status begin_pair(rl_gguf_writer *w, rl_slice key, rl_gguf_kind kind, rl_error *err)
{
    char name[128];
    if (w->failed.status != RL_OK) return keep(w, err);
    rl_escape(name, sizeof name, key.data, key.size);
    if (w->header_sent)
        return FAIL(w, err, RL_ERR_ARGUMENT, "%s: key '%s' is written after tensor data, expected before", w->label, name);
    if (key.size < 1 || key.size > RL_GGUF_MAX_KEY || memchr(key.data, 0, key.size) || !rl_gguf_valid_utf8(key.data, key.size))
        return FAIL(w, err, RL_ERR_ARGUMENT, "%s: key '%s' has %zu bytes, expected 1 to %u bytes of UTF-8 without NUL",
                    w->label, name, key.size, RL_GGUF_MAX_KEY);
    if (w->n_keys == RL_GGUF_MAX_KEYS)
        return FAIL(w, err, RL_ERR_ARGUMENT, "%s: more than %u keys", w->label, RL_GGUF_MAX_KEYS);
    if (w->n_keys == w->key_capacity) {
        uint32_t capacity = w->key_capacity ? w->key_capacity * 2 : 64;
        key_span *keys = rl_realloc(w->keys, capacity, sizeof *keys);
        if (!keys) return FAIL(w, err, RL_ERR_MEMORY, "%s: no memory for %" PRIu32 " keys", w->label, capacity);
        w->keys = keys;
        w->key_capacity = capacity;
    }
    w->keys[w->n_keys++] = (key_span){w->pairs.size + 8, key.size};
    append_string(w, &w->pairs, key.data, key.size);
    append_number(w, &w->pairs, kind, 4);
    return RL_OK;
}

static rl_slice slice_of(const char *text)
{
    return (rl_slice){text, strlen(text)};
}

static rl_status write_number(rl_gguf_writer *w, const char *key, rl_gguf_kind kind, uint64_t v, rl_error *err)
{
    rl_status s = begin_pair(w, slice_of(key), kind, err);
    if (s != RL_OK) return s;
    append_number(w, &w->pairs, v, rl_gguf_kind_bytes(kind));
    return keep(w, err);
}

rl_status rl_gguf_write_u32(rl_gguf_writer *w, const char *key, uint32_t v, rl_error *err)
{
    return write_number(w, key, RL_GGUF_U32, v, err);
}

rl_status rl_gguf_write_f32(rl_gguf_writer *w, const char *key, float v, rl_error *err)
{
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    return write_number(w, key, RL_GGUF_F32, bits, err);
}

rl_status rl_gguf_write_bool(rl_gguf_writer *w, const char *key, bool v, rl_error *err)
{
    return write_number(w, key, RL_GGUF_BOOL, v ? 1 : 0, err);
}

rl_status rl_gguf_write_string(rl_gguf_writer *w, const char *key, const char *data, size_t n, rl_error *err)
{
    rl_status s = begin_pair(w, slice_of(key), RL_GGUF_STRING, err);
    if (s != RL_OK) return s;
    append_string(w, &w->pairs, data, n);
    return keep(w, err);
}

static rl_status begin_array(rl_gguf_writer *w, rl_slice key, rl_gguf_kind element, uint64_t n, rl_error *err)
{
    rl_status s = begin_pair(w, key, RL_GGUF_ARRAY, err);
    if (s != RL_OK) return s;
    append_number(w, &w->pairs, element, 4);
    append_number(w, &w->pairs, n, 8);
    return keep(w, err);
}

rl_status rl_gguf_write_strings(rl_gguf_writer *w, const char *key, const rl_slice *v, size_t n, rl_error *err)
{
    rl_status s = begin_array(w, slice_of(key), RL_GGUF_STRING, n, err);
    if (s != RL_OK) return s;
    for (size_t i = 0; i < n; i++)
        append_string(w, &w->pairs, v[i].data, v[i].size);
    return keep(w, err);
}

rl_status rl_gguf_write_i32s(rl_gguf_writer *w, const char *key, const int32_t *v, size_t n, rl_error *err)
{
    rl_status s = begin_array(w, slice_of(key), RL_GGUF_I32, n, err);
    if (s != RL_OK) return s;
    for (size_t i = 0; i < n; i++)
        append_number(w, &w->pairs, (uint32_t)v[i], 4);
    return keep(w, err);
}

rl_status rl_gguf_write_value(rl_gguf_writer *w, rl_slice key, const rl_gguf_value *v, rl_error *err)
{
    rl_status s = v->kind == RL_GGUF_ARRAY ? begin_array(w, key, v->element, v->count, err) : begin_pair(w, key, v->kind, err);
    if (s != RL_OK) return s;
    append(w, &w->pairs, v->data, (size_t)v->bytes);
    return keep(w, err);
}

/* ---- Tensors --------------------------------------------------------------------------------------------------------- */

static uint64_t padding_after(uint64_t n)
{
    return (RL_GGUF_ALIGNMENT - n % RL_GGUF_ALIGNMENT) % RL_GGUF_ALIGNMENT;
}

/* Checks a shape by the reader's rules and fills ne and bytes. */
static rl_status check_shape(rl_gguf_writer *w, declared *t, const rl_type_info *info, const uint64_t *ne, rl_error *err)
{
    uint64_t elements = 1;
    for (uint32_t d = 0; d < t->n_dims; d++) {
        if (ne[d] < 1 || ne[d] > (uint64_t)INT64_MAX / elements)
            return FAIL(w, err, RL_ERR_ARGUMENT, "%s: tensor '%s': ne[%" PRIu32 "] = %" PRIu64 " is zero or too large",
                        w->label, t->name, d, ne[d]);
        elements *= ne[d];
        t->ne[d] = ne[d];
    }
    if (ne[0] % info->block_weights != 0)
        return FAIL(w, err, RL_ERR_ARGUMENT,
                    "%s: tensor '%s': ne[0] = %" PRIu64 " is not a multiple of the %u weights of a %s block", w->label, t->name,
                    ne[0], info->block_weights, info->name);
    uint64_t blocks = elements / info->block_weights, room = INT64_MAX - RL_GGUF_ALIGNMENT - w->data_bytes;
    if (blocks > room / info->block_bytes)
        return FAIL(w, err, RL_ERR_ARGUMENT, "%s: tensor '%s' makes more than 2^63-1 bytes", w->label, t->name);
    t->bytes = blocks * info->block_bytes;
    return RL_OK;
}

rl_status rl_gguf_declare(rl_gguf_writer *w, const char *name, rl_type type, uint32_t n_dims, const uint64_t *ne, rl_error *err)
{
    if (w->failed.status != RL_OK) return keep(w, err);
    char shown[128];
    size_t n = strlen(name);
    rl_escape(shown, sizeof shown, name, n);
    const rl_type_info *info = rl_type_get((uint32_t)type);
    if (w->header_sent)
        return FAIL(w, err, RL_ERR_ARGUMENT, "%s: tensor '%s' is declared after tensor data, expected before", w->label, shown);
    /* One byte below the format's limit: the reference reads at most 63. */
    if (n < 1 || n >= RL_GGUF_MAX_NAME || !rl_gguf_valid_utf8(name, n))
        return FAIL(w, err, RL_ERR_ARGUMENT, "%s: tensor name '%s' has %zu bytes, expected 1 to %u bytes of UTF-8", w->label,
                    shown, n, RL_GGUF_MAX_NAME - 1);
    if (!info || n_dims < 1 || n_dims > 4 || w->n_tensors == RL_GGUF_MAX_TENSORS)
        return FAIL(w, err, RL_ERR_ARGUMENT,
                    "%s: tensor '%s' has type %d and %" PRIu32 " dimensions, expected a known type and 1 to 4", w->label, shown,
                    (int)type, n_dims);
    if (w->n_tensors == w->tensor_capacity) {
        uint32_t capacity = w->tensor_capacity ? w->tensor_capacity * 2 : 256;
        declared *tensors = rl_realloc(w->tensors, capacity, sizeof *tensors);
        if (!tensors) return FAIL(w, err, RL_ERR_MEMORY, "%s: no memory for %" PRIu32 " tensors", w->label, capacity);
        w->tensors = tensors;
        w->tensor_capacity = capacity;
    }
    declared *t = &w->tensors[w->n_tensors];
    *t = (declared){.type = type, .n_dims = n_dims, .offset = w->data_bytes};
    memcpy(t->name, name, n);
    rl_status s = check_shape(w, t, info, ne, err);
    if (s != RL_OK) return s;
    w->data_bytes += t->bytes + padding_after(t->bytes);
    w->n_tensors++;
    return RL_OK;
}

static void put(rl_gguf_writer *w, const void *data, size_t n)
{
    if (w->failed.status == RL_OK) rl_out_write(w->file, data, n, &w->failed);
}

static void put_padding(rl_gguf_writer *w, uint64_t n)
{
    static const uint8_t zeros[RL_GGUF_ALIGNMENT];
    put(w, zeros, (size_t)n);
}

/* True when a key or tensor name occurs twice; the failure names it. */
static bool has_duplicates(rl_gguf_writer *w)
{
    uint32_t n = w->n_keys > w->n_tensors ? w->n_keys : w->n_tensors;
    rl_gguf_name *names = rl_alloc(n, sizeof *names);
    if (!names) {
        rl_fail(&w->failed, RL_ERR_MEMORY, "%s: no memory to compare %" PRIu32 " names", w->label, n);
        return true;
    }
    const char *what = "key";
    for (uint32_t i = 0; i < w->n_keys; i++)
        names[i] = (rl_gguf_name){{(const char *)w->pairs.data + w->keys[i].offset, w->keys[i].size}, i};
    int64_t twice = rl_gguf_names_sort(names, w->n_keys);
    if (twice < 0) {
        what = "tensor";
        for (uint32_t i = 0; i < w->n_tensors; i++)
            names[i] = (rl_gguf_name){slice_of(w->tensors[i].name), i};
        twice = rl_gguf_names_sort(names, w->n_tensors);
    }
    char shown[128];
    if (twice >= 0)
        rl_fail(&w->failed, RL_ERR_ARGUMENT, "%s: %s '%s' is written twice", w->label, what,
                rl_escape(shown, sizeof shown, names[twice].text.data, names[twice].text.size));
    free(names);
    return twice >= 0;
}

static rl_status send_header(rl_gguf_writer *w, rl_error *err)
{
    if (has_duplicates(w)) return keep(w, err);
    buffer head = {0}, table = {0};
    append(w, &head, "GGUF", 4);
    append_number(w, &head, 3, 4);
    append_number(w, &head, w->n_tensors, 8);
    append_number(w, &head, w->n_keys, 8);
    for (uint32_t i = 0; i < w->n_tensors; i++) {
        const declared *t = &w->tensors[i];
        append_string(w, &table, t->name, strlen(t->name));
        append_number(w, &table, t->n_dims, 4);
        for (uint32_t d = 0; d < t->n_dims; d++)
            append_number(w, &table, t->ne[d], 8);
        append_number(w, &table, t->type, 4);
        append_number(w, &table, t->offset, 8);
    }
    put(w, head.data, head.size);
    put(w, w->pairs.data, w->pairs.size);
    put(w, table.data, table.size);
    put_padding(w, padding_after(head.size + w->pairs.size + table.size));
    free(head.data);
    free(table.data);
    w->header_sent = true;
    return keep(w, err);
}

rl_status rl_gguf_write_data(rl_gguf_writer *w, const void *data, size_t n, rl_error *err)
{
    if (w->failed.status != RL_OK) return keep(w, err);
    if (!w->header_sent && send_header(w, err) != RL_OK) return w->failed.status;
    if (n == 0) return RL_OK;
    if (w->current == w->n_tensors)
        return FAIL(w, err, RL_ERR_ARGUMENT, "%s: %zu bytes of data after the last tensor", w->label, n);
    const declared *t = &w->tensors[w->current];
    if (n > t->bytes - w->given)
        return FAIL(w, err, RL_ERR_ARGUMENT,
                    "%s: tensor '%s' is given %zu bytes where %" PRIu64 " of its %" PRIu64 " are missing", w->label, t->name, n,
                    t->bytes - w->given, t->bytes);
    put(w, data, n);
    w->given += n;
    if (w->given == t->bytes) {
        put_padding(w, padding_after(t->bytes));
        w->current++;
        w->given = 0;
    }
    return keep(w, err);
}

rl_status rl_gguf_writer_commit(rl_gguf_writer *w, rl_error *err)
{
    if (w->failed.status == RL_OK && !w->header_sent) send_header(w, NULL);
    if (w->failed.status == RL_OK && w->current < w->n_tensors) {
        const declared *t = &w->tensors[w->current];
        rl_fail(&w->failed, RL_ERR_ARGUMENT, "%s: tensor '%s' has %" PRIu64 " of its %" PRIu64 " bytes", w->label, t->name,
                w->given, t->bytes);
    }
    rl_status s = w->failed.status;
    if (s == RL_OK) {
        s = rl_out_commit(w->file, err);
    } else {
        keep(w, err);
        rl_out_abort(w->file);
    }
    release(w);
    return s;
}
