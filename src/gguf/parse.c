/* Parser of one GGUF file in memory.
 *
 * Every number is taken for an attacker's choice: lengths are compared with what is left of the file before they are added to
 * anything, products are checked by division, tables grow as records are read, and nothing recurses deeper than
 * RL_GGUF_MAX_DEPTH. Tensor data is not touched. */
#include "base/mem.h"
#include "gguf/internal.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIN_PAIR_BYTES   14u /* key length, one key byte, value type, one value byte */
#define MIN_TENSOR_BYTES 33u /* name length, one name byte, n_dims, one size, type, offset */
#define MIN_ALIGNMENT    8u
#define MAX_ALIGNMENT    (1u << 20)

typedef struct cursor {
    const uint8_t *data;
    uint64_t size, pos;
    const char *label;
    /* What is being read, for messages: "key" or "tensor", its number, and its name once that is known. */
    const char *item;
    uint32_t index;
    rl_slice name;
    rl_error *err;
} cursor;

static rl_status fail_at(const cursor *c, rl_status status, const char *fmt, ...) RL_PRINTF(3, 4);

static rl_status fail_at(const cursor *c, rl_status status, const char *fmt, ...)
{
    char what[512], name[128];
    va_list args;
    va_start(args, fmt);
    vsnprintf(what, sizeof what, fmt, args);
    va_end(args);
    if (!c->item) return rl_fail(c->err, status, "%s: %s", c->label, what);
    if (!c->name.data) return rl_fail(c->err, status, "%s: %s %" PRIu32 ": %s", c->label, c->item, c->index, what);
    return rl_fail(c->err, status, "%s: %s '%s': %s", c->label, c->item,
                   rl_escape(name, sizeof name, c->name.data, c->name.size), what);
}

#if defined(__clang_analyzer__)
#define fail_at(c, status, ...) (fail_at(c, status, __VA_ARGS__), (status)) /* the reason is in base/error.h */
#endif

static uint64_t left(const cursor *c)
{
    return c->size - c->pos;
}

static rl_status take(cursor *c, uint64_t n, const char *what, const uint8_t **out)
{
    if (n > left(c))
        return fail_at(c, RL_ERR_FORMAT, "%s needs %" PRIu64 " bytes at offset %" PRIu64 ", but the file ends after %" PRIu64,
                       what, n, c->pos, left(c));
    *out = c->data + c->pos;
    c->pos += n;
    return RL_OK;
}

static rl_status take_u32(cursor *c, const char *what, uint32_t *out)
{
    const uint8_t *p = NULL;
    rl_status s = take(c, 4, what, &p);
    if (s == RL_OK) *out = (uint32_t)rl_gguf_load(p, 4);
    return s;
}

static rl_status take_u64(cursor *c, const char *what, uint64_t *out)
{
    const uint8_t *p = NULL;
    rl_status s = take(c, 8, what, &p);
    if (s == RL_OK) *out = rl_gguf_load(p, 8);
    return s;
}

static rl_status take_string(cursor *c, const char *what, rl_slice *out)
{
    uint64_t n = 0;
    const uint8_t *p = NULL;
    rl_status s = take_u64(c, what, &n);
    if (s != RL_OK) return s;
    if (n > left(c))
        return fail_at(c, RL_ERR_FORMAT, "%s has length %" PRIu64 ", but only %" PRIu64 " bytes of the file are left", what, n,
                       left(c));
    s = take(c, n, what, &p);
    if (s != RL_OK) return s;
    out->data = (const char *)p;
    out->size = (size_t)n;
    return RL_OK;
}

/* A key or tensor name: length within the format's bounds, no NUL, UTF-8. */
static rl_status take_name(cursor *c, const char *what, uint32_t max, rl_slice *out)
{
    uint64_t n = 0;
    const uint8_t *p = NULL;
    rl_status s = take_u64(c, what, &n);
    if (s != RL_OK) return s;
    if (n < 1 || n > max)
        return fail_at(c, RL_ERR_FORMAT, "%s has length %" PRIu64 ", expected 1 to %" PRIu32 " bytes", what, n, max);
    s = take(c, n, what, &p);
    if (s != RL_OK) return s;
    rl_slice name = {(const char *)p, (size_t)n};
    char text[128];
    if (memchr(p, 0, name.size) || !rl_gguf_valid_utf8(name.data, name.size))
        return fail_at(c, RL_ERR_FORMAT, "%s '%s' is not UTF-8 text without NUL bytes", what,
                       rl_escape(text, sizeof text, name.data, name.size));
    *out = name;
    return RL_OK;
}

/* ---- Header ---------------------------------------------------------------------------------------------------------- */

static rl_status parse_header(cursor *c, uint32_t *version, uint64_t *n_tensors, uint64_t *n_keys)
{
    if (c->size < RL_GGUF_MIN_HEADER)
        return fail_at(c, RL_ERR_FORMAT, "the file has %" PRIu64 " bytes, fewer than the %u of a GGUF header", c->size,
                       RL_GGUF_MIN_HEADER);
    if (memcmp(c->data, "GGUF", 4) != 0)
        return fail_at(c, RL_ERR_FORMAT, "not a GGUF file: it begins with bytes %02x %02x %02x %02x instead of 'GGUF'",
                       c->data[0], c->data[1], c->data[2], c->data[3]);
    uint32_t v = (uint32_t)rl_gguf_load(c->data + 4, 4);
    if (v != 0 && (v & 0xffff) == 0)
        return fail_at(c, RL_ERR_UNSUPPORTED, "version field 0x%08" PRIx32 ": the file is big-endian, expected little-endian",
                       v);
    if (v != 2 && v != 3) return fail_at(c, RL_ERR_UNSUPPORTED, "GGUF version %" PRIu32 ", expected 2 or 3", v);
    uint64_t tensors = rl_gguf_load(c->data + 8, 8), keys = rl_gguf_load(c->data + 16, 8);
    c->pos = RL_GGUF_MIN_HEADER;
    if (tensors > left(c) / MIN_TENSOR_BYTES)
        return fail_at(c, RL_ERR_FORMAT, "tensor count %" PRIu64 " cannot fit in a file of %" PRIu64 " bytes", tensors,
                       c->size);
    if (keys > left(c) / MIN_PAIR_BYTES)
        return fail_at(c, RL_ERR_FORMAT, "metadata pair count %" PRIu64 " cannot fit in a file of %" PRIu64 " bytes", keys,
                       c->size);
    if (tensors > RL_GGUF_MAX_TENSORS)
        return fail_at(c, RL_ERR_UNSUPPORTED, "tensor count %" PRIu64 " is above the limit of %u", tensors,
                       RL_GGUF_MAX_TENSORS);
    if (keys > RL_GGUF_MAX_KEYS)
        return fail_at(c, RL_ERR_UNSUPPORTED, "metadata pair count %" PRIu64 " is above the limit of %u", keys,
                       RL_GGUF_MAX_KEYS);
    *version = v;
    *n_tensors = tensors;
    *n_keys = keys;
    return RL_OK;
}

/* ---- Metadata -------------------------------------------------------------------------------------------------------- */

static rl_status take_kind(cursor *c, const char *what, rl_gguf_kind *out)
{
    uint32_t kind = 0;
    rl_status s = take_u32(c, what, &kind);
    if (s != RL_OK) return s;
    if (kind > RL_GGUF_F64) return fail_at(c, RL_ERR_FORMAT, "%s is %" PRIu32 ", expected 0 to 12", what, kind);
    *out = (rl_gguf_kind)kind;
    return RL_OK;
}

static rl_status check_bools(const cursor *c, const uint8_t *p, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        if (p[i] > 1) return fail_at(c, RL_ERR_FORMAT, "a bool is stored as %u, expected 0 or 1", p[i]);
    return RL_OK;
}

static rl_status skip_elements(cursor *c, rl_gguf_kind kind, uint64_t count, int depth);

/* Type and count of an array; the cursor is left at the first element. */
static rl_status take_array_head(cursor *c, int depth, rl_gguf_kind *kind, uint64_t *count)
{
    if (depth > RL_GGUF_MAX_DEPTH) return fail_at(c, RL_ERR_FORMAT, "arrays are nested more than %d deep", RL_GGUF_MAX_DEPTH);
    rl_status s = take_kind(c, "array element type", kind);
    if (s != RL_OK) return s;
    s = take_u64(c, "array count", count);
    if (s != RL_OK) return s;
    unsigned bytes = rl_gguf_kind_bytes(*kind);
    unsigned least = bytes ? bytes : *kind == RL_GGUF_STRING ? 8 : 12;
    if (*count > left(c) / least)
        return fail_at(c, RL_ERR_FORMAT, "array count %" PRIu64 " of %s cannot fit in the %" PRIu64 " bytes left of the file",
                       *count, rl_gguf_kind_name(*kind), left(c));
    return RL_OK;
}

/* Moves over `count` elements. Each costs at least a byte of file, so the work is bounded by its size. */
static rl_status skip_elements(cursor *c, rl_gguf_kind kind, uint64_t count, int depth)
{
    unsigned bytes = rl_gguf_kind_bytes(kind);
    if (bytes) {
        const uint8_t *p = NULL;
        /* Scalars come here unchecked; for arrays the head compared count with the file, so the product cannot wrap. */
        rl_status s = take(c, count * bytes, "value", &p);
        return s == RL_OK && kind == RL_GGUF_BOOL ? check_bools(c, p, count) : s;
    }
    for (uint64_t i = 0; i < count; i++) {
        rl_status s;
        if (kind == RL_GGUF_STRING) {
            rl_slice text;
            s = take_string(c, "string", &text);
        } else {
            rl_gguf_kind inner = RL_GGUF_U8;
            uint64_t inner_count = 0;
            s = take_array_head(c, depth + 1, &inner, &inner_count);
            if (s == RL_OK) s = skip_elements(c, inner, inner_count, depth + 1);
        }
        if (s != RL_OK) return s;
    }
    return RL_OK;
}

static rl_status take_value(cursor *c, rl_gguf_value *v)
{
    rl_status s = take_kind(c, "value type", &v->kind);
    if (s != RL_OK) return s;
    v->element = v->kind;
    v->count = 1;
    if (v->kind == RL_GGUF_ARRAY) {
        s = take_array_head(c, 1, &v->element, &v->count);
        if (s != RL_OK) return s;
    }
    uint64_t start = c->pos;
    s = skip_elements(c, v->element, v->count, 1);
    v->data = c->data + start;
    v->bytes = c->pos - start;
    return s;
}

static rl_status keys_reserve(const cursor *c, rl_gguf_keys *keys)
{
    if (keys->n < keys->capacity) return RL_OK;
    uint32_t capacity = keys->capacity ? keys->capacity * 2 : 64;
    rl_gguf_value *items = rl_realloc(keys->items, capacity, sizeof *items);
    if (!items) return fail_at(c, RL_ERR_MEMORY, "no memory for %" PRIu32 " metadata pairs", capacity);
    keys->items = items;
    keys->capacity = capacity;
    return RL_OK;
}

static rl_status keys_index(cursor *c, rl_gguf_keys *keys)
{
    keys->sorted = rl_alloc(keys->n, sizeof *keys->sorted);
    if (!keys->sorted) return fail_at(c, RL_ERR_MEMORY, "no memory for the index of %" PRIu32 " metadata pairs", keys->n);
    for (uint32_t i = 0; i < keys->n; i++)
        keys->sorted[i] = (rl_gguf_name){keys->items[i].key, i};
    int64_t twice = rl_gguf_names_sort(keys->sorted, keys->n);
    if (twice < 0) return RL_OK;
    c->item = "key";
    c->name = keys->sorted[twice].text;
    return fail_at(c, RL_ERR_FORMAT, "is repeated (metadata pairs %" PRIu32 " and %" PRIu32 "), expected unique keys",
                   keys->sorted[twice].index, keys->sorted[twice + 1].index);
}

static rl_status parse_keys(cursor *c, uint32_t file, uint64_t n, rl_gguf_keys *keys)
{
    for (uint64_t i = 0; i < n; i++) {
        c->item = "key";
        c->index = (uint32_t)i;
        c->name = (rl_slice){0};
        rl_status s = keys_reserve(c, keys);
        if (s != RL_OK) return s;
        rl_gguf_value *v = &keys->items[keys->n];
        *v = (rl_gguf_value){.file = file};
        s = take_name(c, "key", RL_GGUF_MAX_KEY, &v->key);
        if (s != RL_OK) return s;
        c->name = v->key;
        s = take_value(c, v);
        if (s != RL_OK) return s;
        keys->n++;
    }
    c->item = NULL;
    return keys_index(c, keys);
}

static rl_status get_alignment(const cursor *c, const rl_gguf_keys *keys, uint64_t *out)
{
    const rl_gguf_value *v = rl_gguf_keys_find(keys, "general.alignment");
    *out = RL_GGUF_ALIGNMENT;
    if (!v) return RL_OK;
    if (v->kind != RL_GGUF_U32)
        return fail_at(c, RL_ERR_FORMAT, "key 'general.alignment' has type %s, expected u32", rl_gguf_kind_name(v->kind));
    uint64_t a = rl_gguf_load(v->data, 4);
    if (a < MIN_ALIGNMENT || a > MAX_ALIGNMENT || (a & (a - 1)) != 0)
        return fail_at(c, RL_ERR_FORMAT, "key 'general.alignment' is %" PRIu64 ", expected a power of two from %u to %u", a,
                       MIN_ALIGNMENT, MAX_ALIGNMENT);
    *out = a;
    return RL_OK;
}

/* ---- Tensor table ---------------------------------------------------------------------------------------------------- */

static rl_status take_shape(cursor *c, rl_gguf_tensor *t, uint64_t *elements)
{
    rl_status s = take_u32(c, "n_dims", &t->n_dims);
    if (s != RL_OK) return s;
    if (t->n_dims < 1 || t->n_dims > 4) return fail_at(c, RL_ERR_FORMAT, "n_dims is %" PRIu32 ", expected 1 to 4", t->n_dims);
    *elements = 1;
    for (uint32_t d = 0; d < 4; d++) {
        t->ne[d] = 1;
        if (d >= t->n_dims) continue;
        s = take_u64(c, "dimension", &t->ne[d]);
        if (s != RL_OK) return s;
        if (t->ne[d] < 1 || t->ne[d] > INT64_MAX)
            return fail_at(c, RL_ERR_FORMAT, "ne[%" PRIu32 "] is %" PRIu64 ", expected 1 to 2^63-1", d, t->ne[d]);
        if (t->ne[d] > (uint64_t)INT64_MAX / *elements)
            return fail_at(c, RL_ERR_FORMAT, "ne[%" PRIu32 "] = %" PRIu64 " makes more than 2^63-1 elements", d, t->ne[d]);
        *elements *= t->ne[d];
    }
    return RL_OK;
}

static rl_status take_type(cursor *c, rl_gguf_tensor *t, uint64_t elements)
{
    uint32_t type = 0;
    rl_status s = take_u32(c, "type", &type);
    if (s != RL_OK) return s;
    const rl_type_info *info = rl_type_get(type);
    if (!info) return fail_at(c, RL_ERR_UNSUPPORTED, "type number %" PRIu32 " is withdrawn or unassigned", type);
    if (t->ne[0] % info->block_weights != 0)
        return fail_at(c, RL_ERR_FORMAT, "ne[0] is %" PRIu64 ", expected a multiple of the %u weights of a %s block", t->ne[0],
                       info->block_weights, info->name);
    uint64_t blocks = elements / info->block_weights;
    if (blocks > (uint64_t)INT64_MAX / info->block_bytes)
        return fail_at(c, RL_ERR_FORMAT, "%" PRIu64 " blocks of %s are more than 2^63-1 bytes", blocks, info->name);
    t->type = (rl_type)type;
    t->bytes = blocks * info->block_bytes;
    return RL_OK;
}

/* The offset is left relative to the data section, whose start is known only after the whole table. */
static rl_status take_tensor(cursor *c, uint32_t file, rl_gguf_entry *e)
{
    *e = (rl_gguf_entry){.tensor.file = file};
    rl_slice name;
    rl_status s = take_name(c, "name", RL_GGUF_MAX_NAME, &name);
    if (s != RL_OK) return s;
    c->name = name;
    memcpy(e->name, name.data, name.size);
    e->name_size = (uint8_t)name.size;
    uint64_t elements = 0;
    s = take_shape(c, &e->tensor, &elements);
    if (s == RL_OK) s = take_type(c, &e->tensor, elements);
    if (s == RL_OK) s = take_u64(c, "offset", &e->tensor.offset);
    return s;
}

static rl_status parse_tensors(cursor *c, rl_gguf *g, uint32_t file, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        c->item = "tensor";
        c->index = (uint32_t)i;
        c->name = (rl_slice){0};
        if (g->n_tensors == RL_GGUF_MAX_TENSORS)
            return fail_at(c, RL_ERR_UNSUPPORTED, "all parts have more than %u tensors", RL_GGUF_MAX_TENSORS);
        if (g->n_tensors == g->tensor_capacity) {
            uint32_t capacity = g->tensor_capacity ? g->tensor_capacity * 2 : 256;
            rl_gguf_entry *tensors = rl_realloc(g->tensors, capacity, sizeof *tensors);
            if (!tensors) return fail_at(c, RL_ERR_MEMORY, "no memory for %" PRIu32 " tensors", capacity);
            g->tensors = tensors;
            g->tensor_capacity = capacity;
        }
        rl_status s = take_tensor(c, file, &g->tensors[g->n_tensors]);
        if (s != RL_OK) return s;
        g->n_tensors++;
    }
    c->item = NULL;
    return RL_OK;
}

static void name_entry(cursor *c, const rl_gguf_entry *e)
{
    c->item = "tensor";
    c->name = (rl_slice){e->name, e->name_size};
}

static rl_status place_tensors(cursor *c, rl_gguf *g, uint32_t first, uint64_t alignment)
{
    if (first == g->n_tensors) return RL_OK;
    uint64_t padding = (alignment - c->pos % alignment) % alignment;
    if (padding > left(c))
        return fail_at(c, RL_ERR_FORMAT, "the file ends at byte %" PRIu64 ", before the data section at %" PRIu64, c->size,
                       c->pos + padding);
    uint64_t start = c->pos + padding, room = c->size - start;
    for (uint32_t i = first; i < g->n_tensors; i++) {
        rl_gguf_tensor *t = &g->tensors[i].tensor;
        name_entry(c, &g->tensors[i]);
        if (t->offset % alignment != 0)
            return fail_at(c, RL_ERR_FORMAT, "offset %" PRIu64 " is not a multiple of the alignment %" PRIu64, t->offset,
                           alignment);
        if (t->offset > room || t->bytes > room - t->offset)
            return fail_at(c, RL_ERR_FORMAT,
                           "%" PRIu64 " bytes at offset %" PRIu64 " do not fit in the %" PRIu64
                           " bytes of the data section (is the file truncated?)",
                           t->bytes, t->offset, room);
        t->offset += start;
        t->data = c->data + t->offset;
    }
    return RL_OK;
}

typedef struct extent {
    uint64_t offset, bytes;
    uint32_t index;
} extent;

static int compare_extents(const void *a, const void *b)
{
    const extent *x = a, *y = b;
    if (x->offset != y->offset) return x->offset < y->offset ? -1 : 1;
    return x->index < y->index ? -1 : x->index > y->index;
}

static rl_status check_overlap(cursor *c, const rl_gguf *g, uint32_t first)
{
    uint32_t n = g->n_tensors - first;
    if (n < 2) return RL_OK;
    extent *extents = rl_alloc(n, sizeof *extents);
    if (!extents) return fail_at(c, RL_ERR_MEMORY, "no memory to order %" PRIu32 " tensors", n);
    for (uint32_t i = 0; i < n; i++) {
        const rl_gguf_tensor *t = &g->tensors[first + i].tensor;
        extents[i] = (extent){t->offset, t->bytes, first + i};
    }
    qsort(extents, n, sizeof *extents, compare_extents);
    rl_status s = RL_OK;
    for (uint32_t i = 0; i + 1 < n && s == RL_OK; i++) {
        if (extents[i + 1].offset - extents[i].offset >= extents[i].bytes) continue;
        char other[128];
        const rl_gguf_entry *e = &g->tensors[extents[i].index];
        name_entry(c, &g->tensors[extents[i + 1].index]);
        s = fail_at(c, RL_ERR_FORMAT, "its data at byte %" PRIu64 " overlaps tensor '%s' (%" PRIu64 " bytes at %" PRIu64 ")",
                    extents[i + 1].offset, rl_escape(other, sizeof other, e->name, e->name_size), extents[i].bytes,
                    extents[i].offset);
    }
    free(extents);
    return s;
}

rl_status rl_gguf_parse_part(rl_gguf *g, uint32_t file, rl_gguf_keys *keys, rl_error *err)
{
    const rl_gguf_part *part = &g->parts[file];
    cursor c = {.data = part->map.data, .size = part->map.size, .label = part->label, .err = err};
    uint32_t version = 0, first = g->n_tensors;
    uint64_t n_tensors = 0, n_keys = 0, alignment = RL_GGUF_ALIGNMENT;
    rl_status s = parse_header(&c, &version, &n_tensors, &n_keys);
    if (s == RL_OK) s = parse_keys(&c, file, n_keys, keys);
    if (s == RL_OK) s = get_alignment(&c, keys, &alignment);
    if (s == RL_OK) s = parse_tensors(&c, g, file, n_tensors);
    if (s == RL_OK) s = place_tensors(&c, g, first, alignment);
    if (s == RL_OK) s = check_overlap(&c, g, first);
    if (s == RL_OK && file == 0) g->version = version;
    return s;
}

void rl_gguf_keys_free(rl_gguf_keys *keys)
{
    free(keys->items);
    free(keys->sorted);
    *keys = (rl_gguf_keys){0};
}
