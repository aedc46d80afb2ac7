/* experts/trace: routing in memory, in files, and made up. A file is "RLTRACE1", three u32 (layers, experts, used), then u16
 * ids, all little-endian. */
#include "base/mem.h"
#include "experts/sim.h"
#include "redlite.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define HEADER    20
#define MAX_BYTES ((size_t)1 << 30)
/* Draws for a place before the next free expert is taken: when few have all of the popularity, drawing might never end. */
#define MAX_TRIES 64

static size_t row_ids(const rl_trace *t)
{
    return (size_t)t->n_layer * t->n_used;
}

static rl_status new_trace(uint32_t n_layer, uint32_t n_expert, uint32_t n_used, rl_trace **out, rl_error *err)
{
    if (n_layer < 1 || n_layer > 1024 || n_expert < 1 || n_expert > 65535 || n_used < 1 || n_used > n_expert)
        return rl_fail(err, RL_ERR_FORMAT, "a trace of %u layers, %u experts and %u used is not possible", n_layer, n_expert,
                       n_used);
    rl_trace *t = rl_calloc(1, sizeof *t);
    if (!t) return rl_fail(err, RL_ERR_MEMORY, "no memory for a trace");
    t->n_layer = n_layer;
    t->n_expert = n_expert;
    t->n_used = n_used;
    *out = t;
    return RL_OK;
}

rl_status rl_trace_create(uint32_t n_layer, uint32_t n_expert, uint32_t n_used, rl_trace **out, rl_error *err)
{
    return new_trace(n_layer, n_expert, n_used, out, err);
}

void rl_trace_free(rl_trace *t)
{
    if (!t) return;
    free(t->ids);
    free(t);
}

uint64_t rl_trace_tokens(const rl_trace *t)
{
    return t->n_tokens;
}

uint16_t *rl_trace_add(rl_trace *t)
{
    if (t->n_tokens == t->capacity) {
        const uint64_t more = t->capacity ? t->capacity * 2 : 64;
        uint16_t *ids = rl_realloc(t->ids, more * row_ids(t), sizeof *ids);
        if (!ids) return NULL;
        t->ids = ids;
        t->capacity = more;
    }
    uint16_t *row = t->ids + t->n_tokens++ * row_ids(t);
    memset(row, 0, row_ids(t) * sizeof *row);
    return row;
}

/* ---- Files -----------------------------------------------------------------------------------------------------------------
 */

static void put_u32(uint8_t *p, uint32_t v)
{
    for (int i = 0; i < 4; i++)
        p[i] = (uint8_t)(v >> 8 * i);
}

static uint32_t get_u32(const uint8_t *p)
{
    return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

rl_status rl_trace_save(const rl_trace *t, const char *path, rl_error *err)
{
    uint8_t head[HEADER] = "RLTRACE1", two[2];
    put_u32(head + 8, t->n_layer);
    put_u32(head + 12, t->n_expert);
    put_u32(head + 16, t->n_used);
    rl_out_file *f;
    rl_status st = rl_out_open(path, &f, err);
    if (st != RL_OK) return st;
    st = rl_out_write(f, head, sizeof head, err);
    for (size_t i = 0; i < t->n_tokens * row_ids(t) && st == RL_OK; i++) {
        two[0] = (uint8_t)t->ids[i];
        two[1] = (uint8_t)(t->ids[i] >> 8);
        st = rl_out_write(f, two, 2, err);
    }
    if (st == RL_OK) return rl_out_commit(f, err);
    rl_out_abort(f);
    return st;
}

static rl_status parse(const char *path, const uint8_t *data, size_t size, rl_trace **out, rl_error *err)
{
    if (size < HEADER || memcmp(data, "RLTRACE1", 8) != 0)
        return rl_fail(err, RL_ERR_FORMAT, "%s is not a routing trace", path);
    rl_trace *t = NULL;
    rl_status st = new_trace(get_u32(data + 8), get_u32(data + 12), get_u32(data + 16), &t, err);
    if (st != RL_OK) return rl_error_prefix(err, "%s", path);
    const size_t row = row_ids(t) * 2;
    if ((size - HEADER) % row != 0)
        st = rl_fail(err, RL_ERR_FORMAT, "%s ends in the middle of a token: %zu bytes of ids, %zu a token", path, size - HEADER,
                     row);
    for (const uint8_t *p = data + HEADER; st == RL_OK && p < data + size; p += row) {
        uint16_t *ids = rl_trace_add(t);
        if (!ids) st = rl_fail(err, RL_ERR_MEMORY, "no memory for the trace %s", path);
        for (size_t i = 0; st == RL_OK && i < row / 2; i++) {
            ids[i] = (uint16_t)(p[2 * i] | p[2 * i + 1] << 8);
            if (ids[i] >= t->n_expert)
                st = rl_fail(err, RL_ERR_FORMAT, "%s: expert %u of %u at byte %zu", path, ids[i], t->n_expert,
                             (size_t)(p - data) + 2 * i);
        }
    }
    if (st != RL_OK) {
        rl_trace_free(t);
        return st;
    }
    *out = t;
    return RL_OK;
}

rl_status rl_trace_load(const char *path, rl_trace **out, rl_error *err)
{
    char *data;
    size_t size;
    rl_status st = rl_read_file(path, MAX_BYTES, &data, &size, err);
    if (st != RL_OK) return st;
    char shown[512];
    st = parse(rl_escape_str(shown, sizeof shown, path), (const uint8_t *)data, size, out, err);
    free(data);
    return st;
}

/* ---- Made-up routing -------------------------------------------------------------------------------------------------------
 */

static double uniform(uint64_t *state)
{
    *state += UINT64_C(0x9e3779b97f4a7c15);
    uint64_t z = *state;
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return (double)((z ^ z >> 31) >> 11) * 0x1p-53;
}

/* The rank with cumulative weight above u. */
static uint32_t pick(const double *cumulative, uint32_t n, double u)
{
    uint32_t low = 0, high = n - 1;
    while (low < high) {
        const uint32_t mid = (low + high) / 2;
        if (cumulative[mid] > u)
            high = mid;
        else
            low = mid + 1;
    }
    return low;
}

static bool among(const uint16_t *ids, uint32_t n, uint16_t id)
{
    for (uint32_t i = 0; i < n; i++)
        if (ids[i] == id) return true;
    return false;
}

rl_status rl_trace_synth(uint32_t n_layer, uint32_t n_expert, uint32_t n_used, uint64_t tokens, double zipf, double reuse,
                         uint64_t seed, rl_trace **out, rl_error *err)
{
    if (!(zipf >= 0 && zipf <= 10) || !(reuse >= 0 && reuse < 1))
        return rl_fail(err, RL_ERR_ARGUMENT, "zipf is %g and reuse %g; expected 0 to 10, and 0 to less than 1", zipf, reuse);
    rl_trace *t = NULL;
    rl_status st = new_trace(n_layer, n_expert, n_used, &t, err);
    if (st != RL_OK) return st;
    double *cumulative = rl_alloc(n_expert, sizeof *cumulative), sum = 0;
    if (!cumulative) {
        rl_trace_free(t);
        return rl_fail(err, RL_ERR_MEMORY, "no memory for a trace");
    }
    for (uint32_t e = 0; e < n_expert; e++)
        cumulative[e] = sum += pow(e + 1.0, -zipf);
    for (uint64_t token = 0; token < tokens && st == RL_OK; token++) {
        uint16_t *row = rl_trace_add(t);
        if (!row) {
            st = rl_fail(err, RL_ERR_MEMORY, "no memory for a trace of %llu tokens", (unsigned long long)tokens);
            break;
        }
        for (uint32_t layer = 0; layer < n_layer; layer++, row += n_used)
            for (uint32_t i = 0; i < n_used; i++) {
                const uint16_t *before = row - row_ids(t);
                uint32_t tries = 0;
                do {
                    /* An odd stride spreads the popular ones over the layer, differently in each. */
                    const uint32_t rank = pick(cumulative, n_expert, uniform(&seed) * sum);
                    row[i] = token > 0 && uniform(&seed) < reuse ? before[(uint32_t)(uniform(&seed) * n_used)]
                                                                 : (uint16_t)((rank + (uint64_t)layer * 7919) % n_expert);
                } while (among(row, i, row[i]) && ++tries < MAX_TRIES);
                while (among(row, i, row[i]))
                    row[i] = (uint16_t)((row[i] + 1u) % n_expert);
            }
    }
    free(cumulative);
    if (st != RL_OK) {
        rl_trace_free(t);
        return st;
    }
    *out = t;
    return RL_OK;
}
