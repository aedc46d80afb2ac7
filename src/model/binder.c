/* model/binder: checked access to keys and tensors. Assumes the gguf reader has verified every extent; decides shapes and
 * types. */
#include "model/binder.h"
#include "base/mem.h"
#include "quant/quant.h"
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Header of an owned block; a cache line, so that what follows stays aligned. */
typedef union owned_block {
    union owned_block *next;
    char line[RL_CACHE_LINE];
} owned_block;

void rl_binder_init(rl_binder *b, const rl_gguf *g, rl_model *m, rl_error *err)
{
    memset(b, 0, sizeof *b);
    b->g = g;
    b->m = m;
    b->err = err;
    const char *name = rl_gguf_file_name(g, 0);
    rl_escape(b->file, sizeof b->file, name, strlen(name));
}

void rl_binder_free(rl_binder *b)
{
    free(b->claimed);
    b->claimed = NULL;
}

void rl_model_close(rl_model *m)
{
    if (!m) return;
    for (owned_block *o = m->owned, *next; o; o = next) {
        next = o->next;
        rl_aligned_free(o);
    }
    free(m->layers);
    rl_gguf_close(m->gguf);
    free(m);
}

rl_status rl_binder_fail(rl_binder *b, rl_status status, const char *fmt, ...)
{
    if (b->status != RL_OK) return b->status;
    char text[RL_ERROR_TEXT_MAX];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    b->status = rl_fail(b->err, status, "%s: %s", b->file, text);
    return b->status;
}

void *rl_binder_own(rl_binder *b, size_t bytes)
{
    if (b->status != RL_OK) return NULL;
    size_t total;
    owned_block *o = NULL;
    if (rl_add_size(bytes, sizeof *o, &total)) o = rl_aligned_alloc(RL_CACHE_LINE, total, 1);
    if (!o) {
        rl_binder_fail(b, RL_ERR_MEMORY, "cannot allocate %zu bytes for converted tensors", bytes);
        return NULL;
    }
    o->next = b->m->owned;
    b->m->owned = o;
    return o + 1;
}

/* ---- Keys -------------------------------------------------------------------------------------------------------------- */

static void full_key(const rl_binder *b, const char *key, char *out, size_t cap)
{
    snprintf(out, cap, "%s.%s", b->prefix, key);
}

bool rl_binder_has_key(const rl_binder *b, const char *key)
{
    char name[128];
    full_key(b, key, name, sizeof name);
    return rl_gguf_find(b->g, name) != NULL;
}

/* Some writers give per-block values; we run only models where they agree. */
static rl_status get_uniform(rl_binder *b, const char *name, uint32_t *out, bool *found)
{
    const rl_gguf_value *v = rl_gguf_find(b->g, name);
    *found = v != NULL;
    if (!v) return RL_OK;
    if (rl_gguf_value_kind(v) != RL_GGUF_ARRAY) return b->status = rl_gguf_get_u32(b->g, name, out, found, b->err);
    rl_gguf_array a;
    if (rl_gguf_get_array(b->g, name, &a, NULL, b->err) != RL_OK || a.count == 0 || a.kind == RL_GGUF_STRING ||
        a.kind == RL_GGUF_ARRAY || a.kind == RL_GGUF_F32 || a.kind == RL_GGUF_F64)
        return rl_binder_fail(b, RL_ERR_FORMAT, "key '%s' holds an array without numbers, expected an unsigned integer", name);
    int64_t first = rl_gguf_array_int(&a, 0);
    for (uint64_t i = 1; i < a.count; i++)
        if (rl_gguf_array_int(&a, i) != first)
            return rl_binder_fail(b, RL_ERR_UNSUPPORTED,
                                  "key '%s' differs between blocks (%" PRId64 " and %" PRId64 "), expected one value for all",
                                  name, first, rl_gguf_array_int(&a, i));
    if (first < 0 || first > UINT32_MAX)
        return rl_binder_fail(b, RL_ERR_FORMAT, "key '%s' is %" PRId64 ", expected an unsigned 32-bit integer", name, first);
    *out = (uint32_t)first;
    return RL_OK;
}

static uint32_t get_u32(rl_binder *b, const char *key, uint32_t min, uint32_t max, const uint32_t *absent)
{
    if (b->status != RL_OK) return 0;
    char name[128];
    full_key(b, key, name, sizeof name);
    uint32_t v = 0;
    bool found = false;
    if (get_uniform(b, name, &v, &found) != RL_OK) return 0;
    if (!found && absent) return *absent;
    if (!found) {
        rl_binder_fail(b, RL_ERR_FORMAT, "key '%s' is missing, expected an integer from %u to %u", name, min, max);
        return 0;
    }
    if (v < min || v > max) {
        rl_binder_fail(b, RL_ERR_FORMAT, "key '%s' is %u, expected %u to %u", name, v, min, max);
        return 0;
    }
    return v;
}

uint32_t rl_binder_u32(rl_binder *b, const char *key, uint32_t min, uint32_t max)
{
    return get_u32(b, key, min, max, NULL);
}

uint32_t rl_binder_u32_or(rl_binder *b, const char *key, uint32_t min, uint32_t max, uint32_t absent)
{
    return get_u32(b, key, min, max, &absent);
}

float rl_binder_f32_or(rl_binder *b, const char *key, float absent)
{
    if (b->status != RL_OK) return absent;
    char name[128];
    full_key(b, key, name, sizeof name);
    float v = absent;
    b->status = rl_gguf_get_f32(b->g, name, &v, NULL, b->err);
    return v;
}

/* ---- Tensors ----------------------------------------------------------------------------------------------------------- */

static void tensor_name(int block, const char *suffix, char *out, size_t cap)
{
    if (block < 0)
        snprintf(out, cap, "%s", suffix);
    else
        snprintf(out, cap, "blk.%d.%s", block, suffix);
}

const rl_gguf_tensor *rl_binder_find(const rl_binder *b, int block, const char *suffix)
{
    char name[128];
    tensor_name(block, suffix, name, sizeof name);
    return rl_gguf_find_tensor(b->g, name);
}

const char *rl_binder_first_of(const rl_binder *b, int block, const char *const *suffixes)
{
    for (; *suffixes; suffixes++)
        if (rl_binder_find(b, block, *suffixes)) return *suffixes;
    return NULL;
}

/* "[2048, 512]", with as many dimensions as matter. */
static const char *shape_text(char *out, size_t cap, const uint64_t *ne)
{
    int n = 4;
    while (n > 1 && ne[n - 1] == 1)
        n--;
    size_t at = 0;
    for (int i = 0; i < n && at < cap; i++)
        at += (size_t)snprintf(out + at, cap - at, "%s%" PRIu64, i ? ", " : "[", ne[i]);
    if (at < cap) snprintf(out + at, cap - at, "]");
    return out;
}

static const rl_gguf_tensor *claim(rl_binder *b, int block, const char *suffix, uint32_t ne0, uint32_t ne1, uint32_t ne2)
{
    if (b->status != RL_OK) return NULL;
    char name[128], found[96], expected[96];
    tensor_name(block, suffix, name, sizeof name);
    uint64_t want[4] = {ne0, ne1, ne2, 1};
    shape_text(expected, sizeof expected, want);
    const rl_gguf_tensor *t = rl_gguf_find_tensor(b->g, name);
    if (!t) {
        rl_binder_fail(b, RL_ERR_FORMAT, "tensor '%s' is missing, expected it with shape %s", name, expected);
        return NULL;
    }
    if (memcmp(t->ne, want, sizeof want) != 0) {
        rl_binder_fail(b, RL_ERR_FORMAT, "tensor '%s' has shape %s, expected %s", name, shape_text(found, sizeof found, t->ne),
                       expected);
        return NULL;
    }
    if (b->n_claimed == b->cap_claimed) {
        size_t cap = b->cap_claimed ? 2 * b->cap_claimed : 256;
        const rl_gguf_tensor **p = rl_realloc(b->claimed, cap, sizeof *p);
        if (!p) {
            rl_binder_fail(b, RL_ERR_MEMORY, "cannot allocate a list of %zu tensors", cap);
            return NULL;
        }
        b->claimed = p;
        b->cap_claimed = cap;
    }
    b->claimed[b->n_claimed++] = t;
    return t;
}

static const char *type_name(rl_type type)
{
    const rl_type_info *info = rl_type_get(type);
    return info ? info->name : "unknown";
}

rl_matrix rl_binder_matrix(rl_binder *b, int block, const char *suffix, uint32_t cols, uint32_t rows, uint32_t n)
{
    rl_matrix m = {0};
    const rl_gguf_tensor *t = claim(b, block, suffix, cols, rows, n);
    if (!t) return m;
    const rl_quant_traits *traits = rl_quant_get(t->type);
    if (!traits || !traits->decode) {
        rl_binder_fail(b, RL_ERR_UNSUPPORTED, "tensor '%s' has type %s, expected a weight type that can be decoded", t->name,
                       type_name(t->type));
        return m;
    }
    m.type = t->type;
    m.cols = cols;
    m.rows = rows;
    m.n = n;
    m.row_bytes = rl_type_row_bytes(t->type, cols);
    m.matrix_bytes = m.row_bytes * rows;
    m.data = t->data;
    m.tensor = t;
    return m;
}

rl_matrix rl_matrix_rows(const rl_matrix *m, uint32_t first, uint32_t rows)
{
    rl_matrix part = *m;
    if (part.data) part.data += first * m->row_bytes;
    part.rows = rows;
    return part;
}

rl_vector rl_binder_vector(rl_binder *b, int block, const char *suffix, uint32_t n, uint32_t rows)
{
    const rl_gguf_tensor *t = claim(b, block, suffix, n, rows, 1);
    if (!t) return NULL;
    if (t->type != RL_F32 && t->type != RL_F16 && t->type != RL_BF16) {
        rl_binder_fail(b, RL_ERR_UNSUPPORTED, "tensor '%s' has type %s, expected F32, F16 or BF16", t->name,
                       type_name(t->type));
        return NULL;
    }
    size_t count = (size_t)n * rows;
    float *v = rl_binder_own(b, count * sizeof *v);
    if (!v) return NULL;
    rl_quant_get(t->type)->decode(t->data, v, count);
    for (size_t i = 0; i < count; i++)
        if (!isfinite(v[i])) {
            rl_binder_fail(b, RL_ERR_FORMAT, "tensor '%s' holds %f at index %zu, expected finite numbers", t->name,
                           (double)v[i], i);
            return NULL;
        }
    return v;
}

/* The first tensor that is in the file but not in the list. It is among the first n_claimed + 1, so hostile files cost little.
 */
static const rl_gguf_tensor *first_unclaimed(const rl_binder *b)
{
    for (uint32_t i = 0; i < rl_gguf_n_tensors(b->g); i++) {
        const rl_gguf_tensor *t = rl_gguf_tensor_at(b->g, i);
        size_t k = 0;
        while (k < b->n_claimed && b->claimed[k] != t)
            k++;
        if (k == b->n_claimed) return t;
    }
    return NULL;
}

rl_status rl_binder_finish(rl_binder *b)
{
    if (b->status != RL_OK || rl_gguf_n_tensors(b->g) == b->n_claimed) return b->status;
    const rl_gguf_tensor *t = first_unclaimed(b);
    if (!t) return rl_binder_fail(b, RL_ERR_INTERNAL, "a tensor was bound twice");
    char name[256], found[96];
    return rl_binder_fail(
        b, RL_ERR_UNSUPPORTED, "tensor '%s' with shape %s has no place in this model, expected %zu known tensors",
        rl_escape(name, sizeof name, t->name, strlen(t->name)), shape_text(found, sizeof found, t->ne), b->n_claimed);
}
