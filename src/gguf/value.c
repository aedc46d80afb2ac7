/* Metadata lookups: typed getters over the parsed table and access to array elements. */
#include "gguf/internal.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

static const struct {
    const char *name;
    uint8_t bytes;
} kinds[] = {
    [RL_GGUF_U8] = {"u8", 1},         [RL_GGUF_I8] = {"i8", 1},       [RL_GGUF_U16] = {"u16", 2}, [RL_GGUF_I16] = {"i16", 2},
    [RL_GGUF_U32] = {"u32", 4},       [RL_GGUF_I32] = {"i32", 4},     [RL_GGUF_F32] = {"f32", 4}, [RL_GGUF_BOOL] = {"bool", 1},
    [RL_GGUF_STRING] = {"string", 0}, [RL_GGUF_ARRAY] = {"array", 0}, [RL_GGUF_U64] = {"u64", 8}, [RL_GGUF_I64] = {"i64", 8},
    [RL_GGUF_F64] = {"f64", 8},
};

const char *rl_gguf_kind_name(rl_gguf_kind kind)
{
    return kinds[kind].name;
}

unsigned rl_gguf_kind_bytes(rl_gguf_kind kind)
{
    return kinds[kind].bytes;
}

rl_gguf_kind rl_gguf_value_kind(const rl_gguf_value *v)
{
    return v->kind;
}

const rl_gguf_value *rl_gguf_keys_find(const rl_gguf_keys *keys, const char *key)
{
    int64_t i = rl_gguf_names_find(keys->sorted, keys->n, key, strlen(key));
    return i < 0 ? NULL : &keys->items[i];
}

const rl_gguf_value *rl_gguf_find(const rl_gguf *g, const char *key)
{
    return rl_gguf_keys_find(&g->keys, key);
}

static const char *escaped_key(const rl_gguf_value *v, char out[128])
{
    return rl_escape(out, 128, v->key.data, v->key.size);
}

static rl_status wrong_kind(const rl_gguf_value *v, const char *label, const char *expected, rl_error *err)
{
    char key[128];
    return rl_fail(err, RL_ERR_FORMAT, "%s: key '%s' has type %s, expected %s", label, escaped_key(v, key),
                   rl_gguf_kind_name(v->kind), expected);
}

static bool is_integer(rl_gguf_kind kind)
{
    return kind <= RL_GGUF_I32 || kind == RL_GGUF_U64 || kind == RL_GGUF_I64;
}

static bool is_signed(rl_gguf_kind kind)
{
    return kind == RL_GGUF_I8 || kind == RL_GGUF_I16 || kind == RL_GGUF_I32 || kind == RL_GGUF_I64;
}

/* Bits of an integer, sign-extended to 64 when its kind is signed. */
static uint64_t load_integer(rl_gguf_kind kind, const uint8_t *p)
{
    unsigned bytes = rl_gguf_kind_bytes(kind);
    uint64_t u = rl_gguf_load(p, bytes);
    uint64_t sign = UINT64_C(1) << (8 * bytes - 1);
    return is_signed(kind) && (u & sign) ? u | ~(sign - 1) : u;
}

rl_status rl_gguf_value_unsigned(const rl_gguf_value *v, const char *label, uint64_t max, uint64_t *out, rl_error *err)
{
    char key[128];
    if (!is_integer(v->kind)) return wrong_kind(v, label, "an integer", err);
    uint64_t u = load_integer(v->kind, v->data);
    if (is_signed(v->kind) && u >> 63)
        return rl_fail(err, RL_ERR_FORMAT, "%s: key '%s' is %" PRId64 ", expected 0 to %" PRIu64, label, escaped_key(v, key),
                       -(int64_t)(~u) - 1, max);
    if (u > max)
        return rl_fail(err, RL_ERR_FORMAT, "%s: key '%s' is %" PRIu64 ", expected 0 to %" PRIu64, label, escaped_key(v, key), u,
                       max);
    *out = u;
    return RL_OK;
}

static const char *label_of(const rl_gguf *g, const rl_gguf_value *v)
{
    return g->parts[v->file].label;
}

/* The value, or NULL with *found set. */
static const rl_gguf_value *lookup(const rl_gguf *g, const char *key, bool *found)
{
    const rl_gguf_value *v = rl_gguf_find(g, key);
    if (found) *found = v != NULL;
    return v;
}

rl_status rl_gguf_get_u64(const rl_gguf *g, const char *key, uint64_t *out, bool *found, rl_error *err)
{
    const rl_gguf_value *v = lookup(g, key, found);
    return v ? rl_gguf_value_unsigned(v, label_of(g, v), UINT64_MAX, out, err) : RL_OK;
}

rl_status rl_gguf_get_u32(const rl_gguf *g, const char *key, uint32_t *out, bool *found, rl_error *err)
{
    const rl_gguf_value *v = lookup(g, key, found);
    if (!v) return RL_OK;
    uint64_t u = 0;
    rl_status s = rl_gguf_value_unsigned(v, label_of(g, v), UINT32_MAX, &u, err);
    if (s == RL_OK) *out = (uint32_t)u;
    return s;
}

static double load_float(rl_gguf_kind kind, const uint8_t *p)
{
    if (kind == RL_GGUF_F32) {
        uint32_t bits = (uint32_t)rl_gguf_load(p, 4);
        float f;
        memcpy(&f, &bits, sizeof f);
        return f;
    }
    uint64_t bits = rl_gguf_load(p, 8);
    double d;
    memcpy(&d, &bits, sizeof d);
    return d;
}

rl_status rl_gguf_get_f32(const rl_gguf *g, const char *key, float *out, bool *found, rl_error *err)
{
    const rl_gguf_value *v = lookup(g, key, found);
    if (!v) return RL_OK;
    if (v->kind != RL_GGUF_F32 && v->kind != RL_GGUF_F64) return wrong_kind(v, label_of(g, v), "f32", err);
    char name[128];
    double d = load_float(v->kind, v->data);
    if (!isfinite(d) || !isfinite((float)d))
        return rl_fail(err, RL_ERR_FORMAT, "%s: key '%s' is %g, expected a finite f32", label_of(g, v), escaped_key(v, name),
                       d);
    *out = (float)d;
    return RL_OK;
}

rl_status rl_gguf_get_bool(const rl_gguf *g, const char *key, bool *out, bool *found, rl_error *err)
{
    const rl_gguf_value *v = lookup(g, key, found);
    if (!v) return RL_OK;
    if (v->kind != RL_GGUF_BOOL) return wrong_kind(v, label_of(g, v), "bool", err);
    *out = v->data[0] != 0;
    return RL_OK;
}

rl_status rl_gguf_get_string(const rl_gguf *g, const char *key, rl_slice *out, bool *found, rl_error *err)
{
    const rl_gguf_value *v = lookup(g, key, found);
    if (!v) return RL_OK;
    if (v->kind != RL_GGUF_STRING) return wrong_kind(v, label_of(g, v), "string", err);
    *out = (rl_slice){(const char *)v->data + 8, (size_t)(v->bytes - 8)};
    return RL_OK;
}

void rl_gguf_value_view(const rl_gguf_value *v, rl_gguf_array *out)
{
    *out = (rl_gguf_array){v->element, v->count, v->data, v->bytes};
}

rl_status rl_gguf_get_array(const rl_gguf *g, const char *key, rl_gguf_array *out, bool *found, rl_error *err)
{
    const rl_gguf_value *v = lookup(g, key, found);
    if (!v) return RL_OK;
    if (v->kind != RL_GGUF_ARRAY) return wrong_kind(v, label_of(g, v), "array", err);
    rl_gguf_value_view(v, out);
    return RL_OK;
}

int64_t rl_gguf_array_int(const rl_gguf_array *a, uint64_t i)
{
    uint64_t u = load_integer(a->kind, a->data + i * rl_gguf_kind_bytes(a->kind));
    if (!is_signed(a->kind)) return u > INT64_MAX ? INT64_MAX : (int64_t)u;
    return u >> 63 ? -(int64_t)(~u) - 1 : (int64_t)u;
}

double rl_gguf_array_float(const rl_gguf_array *a, uint64_t i)
{
    return load_float(a->kind, a->data + i * rl_gguf_kind_bytes(a->kind));
}

bool rl_gguf_array_next_string(const rl_gguf_array *a, uint64_t *cursor, rl_slice *out)
{
    if (*cursor >= a->bytes) return false;
    size_t n = (size_t)rl_gguf_load(a->data + *cursor, 8);
    *out = (rl_slice){(const char *)a->data + *cursor + 8, n};
    *cursor += 8 + n;
    return true;
}
