/* backend/state: writing and reading the exported layout. */
#include "backend/state.h"
#include "quant/quant.h"
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "exported numbers and GGUF weights are used in place: little-endian hosts");

static const char magic[8] = {'R', 'L', 'S', 'E', 'Q', '0', '0', '1'};

enum { N_SHAPE = 10, N_FIELDS = 14 };

size_t rl_elem_bytes(rl_elem elem)
{
    return elem == RL_ELEM_F16 ? 2 : elem == RL_ELEM_F32 ? 4 : 8;
}

/* What must agree between writer and reader; the rest of the layout follows from it. */
static const char *const shape_names[N_SHAPE] = {
    "layers",          "MTP blocks", "DeltaNet key heads", "DeltaNet value heads", "DeltaNet head size", "convolution length",
    "key/value heads", "head size",  "hidden size",        "vocabulary size"};

static void shape(const rl_hparams *hp, uint32_t *v)
{
    const uint32_t now[N_SHAPE] = {hp->n_layer, hp->n_mtp,     hp->dn_key_heads, hp->dn_value_heads, hp->dn_head_dim,
                                   hp->dn_conv, hp->n_head_kv, hp->head_dim,     hp->n_embd,         hp->n_vocab};
    memcpy(v, now, sizeof now);
}

rl_status rl_state_put_header(const rl_hparams *hp, const rl_state_info *info, rl_put_fn put, void *ctx, rl_error *err)
{
    uint32_t v[N_FIELDS];
    shape(hp, v);
    v[N_SHAPE] = info->position;
    v[N_SHAPE + 1] = info->mtp_position;
    v[N_SHAPE + 2] = info->state;
    v[N_SHAPE + 3] = info->kv;
    rl_status status = put(ctx, magic, sizeof magic, err);
    return status == RL_OK ? put(ctx, v, sizeof v, err) : status;
}

static bool known_elem(uint32_t v)
{
    return v >= RL_ELEM_F16 && v <= RL_ELEM_F64;
}

rl_status rl_state_get_header(const rl_hparams *hp, uint32_t capacity, rl_state_info *info, rl_get_fn get, void *ctx,
                              rl_error *err)
{
    char found[sizeof magic];
    uint32_t v[N_FIELDS], want[N_SHAPE];
    rl_status status = get(ctx, found, sizeof found, err);
    if (status != RL_OK) return status;
    if (memcmp(found, magic, sizeof magic) != 0)
        return rl_fail(err, RL_ERR_FORMAT, "the saved sequence does not begin with RLSEQ001, expected the state of a sequence");
    status = get(ctx, v, sizeof v, err);
    if (status != RL_OK) return status;
    shape(hp, want);
    for (int i = 0; i < N_SHAPE; i++)
        if (v[i] != want[i])
            return rl_fail(err, RL_ERR_FORMAT, "the saved sequence is of another model: its %s is %u, expected %u",
                           shape_names[i], v[i], want[i]);
    if (v[N_SHAPE] > capacity || v[N_SHAPE + 1] > capacity)
        return rl_fail(err, RL_ERR_LIMIT, "the saved sequence has %u positions, expected at most the context of %u",
                       v[N_SHAPE] > v[N_SHAPE + 1] ? v[N_SHAPE] : v[N_SHAPE + 1], capacity);
    if (!known_elem(v[N_SHAPE + 2]) || !known_elem(v[N_SHAPE + 3]) || (v[N_SHAPE + 1] && !hp->n_mtp))
        return rl_fail(err, RL_ERR_FORMAT,
                       "the saved sequence has number kinds %u and %u and %u MTP positions, expected kinds 1 to 3",
                       v[N_SHAPE + 2], v[N_SHAPE + 3], v[N_SHAPE + 1]);
    *info = (rl_state_info){v[N_SHAPE], v[N_SHAPE + 1], (rl_elem)v[N_SHAPE + 2], (rl_elem)v[N_SHAPE + 3]};
    return RL_OK;
}

rl_status rl_state_put(rl_elem elem, const void *src, size_t n, rl_put_fn put, void *ctx, rl_error *err)
{
    return n ? put(ctx, src, n * rl_elem_bytes(elem), err) : RL_OK;
}

static double load(rl_elem elem, const uint8_t *src, size_t i)
{
    uint16_t h;
    float f;
    double d;
    switch (elem) {
    case RL_ELEM_F16:
        memcpy(&h, src + 2 * i, 2);
        return (double)rl_f16_to_f32(h);
    case RL_ELEM_F32:
        memcpy(&f, src + 4 * i, 4);
        return (double)f;
    default:
        memcpy(&d, src + 8 * i, 8);
        return d;
    }
}

static void store(rl_elem elem, uint8_t *dst, size_t i, double d)
{
    const float f = (float)d;
    const uint16_t h = elem == RL_ELEM_F16 ? rl_f32_to_f16(f) : 0;
    switch (elem) {
    case RL_ELEM_F16:
        memcpy(dst + 2 * i, &h, 2);
        break;
    case RL_ELEM_F32:
        memcpy(dst + 4 * i, &f, 4);
        break;
    default:
        memcpy(dst + 8 * i, &d, 8);
        break;
    }
}

rl_status rl_state_get(rl_elem from, rl_elem to, void *dst, size_t n, rl_get_fn get, void *ctx, rl_error *err)
{
    if (n == 0) return RL_OK;
    if (from == to) return get(ctx, dst, n * rl_elem_bytes(from), err);
    uint8_t part[8 * 1024];
    const size_t step = sizeof part / rl_elem_bytes(from);
    for (size_t done = 0; done < n; done += step) {
        const size_t count = n - done < step ? n - done : step;
        rl_status status = get(ctx, part, count * rl_elem_bytes(from), err);
        if (status != RL_OK) return status;
        for (size_t i = 0; i < count; i++)
            store(to, (uint8_t *)dst + done * rl_elem_bytes(to), i, load(from, part, i));
    }
    return RL_OK;
}
