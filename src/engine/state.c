/* engine/state: sessions as bytes.
 *
 * Layout, little-endian: head, ids, checksum of both, logits, the backend's sequence (docs/engine.md), checksum of everything
 * before it. The head names what the state belongs to, so that a foreign file is told apart before anything large is read. */
#include "base/mem.h"
#include "engine/engine.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define STATE_MAGIC    "RLSTATE"
#define STATE_VERSION  1u
#define NAME_MAX_SHOWN 512

typedef struct state_head {
    char magic[8];
    uint32_t version;
    uint32_t n_ids;
    uint64_t fingerprint;
    uint32_t n_vocab;
    uint32_t precision, kv;
    char backend[20];
} state_head;
_Static_assert(sizeof(state_head) == 56, "the head has no padding on any target");

/* 64-bit checksum over a stream: words of eight bytes, each spread over the whole sum by a multiplication with an odd constant
 * and a rotation. It guards against damage, not against an attacker. */
typedef struct checksum {
    uint64_t sum, bytes;
    uint8_t tail[8];
    size_t n_tail;
} checksum;

static uint64_t sum_word(uint64_t sum, uint64_t w)
{
    sum ^= w * 0x9e3779b97f4a7c15ull;
    sum = sum << 29 | sum >> 35;
    return sum * 0xbf58476d1ce4e5b9ull + 0x94d049bb133111ebull;
}

static void sum_add(checksum *c, const void *data, size_t n)
{
    const uint8_t *p = data;
    c->bytes += n;
    while (n > 0) {
        if (c->n_tail == 0 && n >= 8) {
            uint64_t w;
            memcpy(&w, p, 8);
            c->sum = sum_word(c->sum, w);
            p += 8;
            n -= 8;
            continue;
        }
        c->tail[c->n_tail++] = *p++;
        n--;
        if (c->n_tail == 8) {
            uint64_t w;
            memcpy(&w, c->tail, 8);
            c->sum = sum_word(c->sum, w);
            c->n_tail = 0;
        }
    }
}

static uint64_t sum_value(const checksum *c)
{
    uint64_t w = 0;
    memcpy(&w, c->tail, c->n_tail);
    return sum_word(sum_word(c->sum, w), c->bytes);
}

/* A caller's stream with the checksum of what went through it. */
typedef struct summed {
    rl_put_fn put;
    rl_get_fn get;
    void *ctx;
    checksum sum;
} summed;

static rl_status put_summed(void *ctx, const void *data, size_t n, rl_error *err)
{
    summed *s = ctx;
    sum_add(&s->sum, data, n);
    return s->put(s->ctx, data, n, err);
}

static rl_status get_summed(void *ctx, void *data, size_t n, rl_error *err)
{
    summed *s = ctx;
    rl_status st = s->get(s->ctx, data, n, err);
    if (st == RL_OK) sum_add(&s->sum, data, n);
    return st;
}

static void fill_head(const rl_engine *e, uint32_t n_ids, state_head *h)
{
    memset(h, 0, sizeof *h);
    memcpy(h->magic, STATE_MAGIC, sizeof STATE_MAGIC);
    h->version = STATE_VERSION;
    h->n_ids = n_ids;
    h->fingerprint = e->info->fingerprint;
    h->n_vocab = e->model->hp.n_vocab;
    h->precision = e->precision;
    h->kv = e->kv;
    snprintf(h->backend, sizeof h->backend, "%s", e->backend->ops->name);
}

rl_status rl_session_write(rl_session *s, rl_put_fn put, void *ctx, rl_error *err)
{
    rl_status st = rl_session_extend(s, NULL, 0, NULL, NULL, err);
    if (st != RL_OK) return st;
    const rl_engine *e = s->engine;
    state_head h;
    fill_head(e, s->n, &h);
    summed out = {.put = put, .ctx = ctx};
    st = put_summed(&out, &h, sizeof h, err);
    if (st == RL_OK && s->n) st = put_summed(&out, s->ids, s->n * sizeof *s->ids, err);
    uint64_t sum = sum_value(&out.sum);
    if (st == RL_OK) st = put_summed(&out, &sum, sizeof sum, err);
    if (st == RL_OK && s->n) st = put_summed(&out, s->logits, h.n_vocab * sizeof(float), err);
    if (st == RL_OK) st = e->backend->ops->seq_export(s->seq, put_summed, &out, err);
    sum = sum_value(&out.sum);
    if (st == RL_OK) st = put(ctx, &sum, sizeof sum, err);
    return st;
}

static rl_status check_head(const rl_engine *e, const state_head *h, rl_error *err)
{
    state_head want;
    fill_head(e, h->n_ids, &want);
    if (memcmp(h->magic, want.magic, sizeof h->magic) != 0)
        return rl_fail(err, RL_ERR_FORMAT, "this is not a saved session (it does not begin with " STATE_MAGIC ")");
    if (h->version != STATE_VERSION)
        return rl_fail(err, RL_ERR_UNSUPPORTED, "the saved session has version %u; this program reads version %u", h->version,
                       STATE_VERSION);
    if (h->fingerprint != want.fingerprint || h->n_vocab != want.n_vocab)
        return rl_fail(err, RL_ERR_UNSUPPORTED, "the saved session belongs to another model");
    if (memcmp(h->backend, want.backend, sizeof h->backend) != 0 || h->precision != want.precision || h->kv != want.kv)
        return rl_fail(err, RL_ERR_UNSUPPORTED,
                       "the saved session was made with other settings; this engine is backend %s, precision %s, kv %s",
                       want.backend, rl_precision_name(e->precision), rl_kv_name(e->kv));
    if (h->n_ids > RL_MAX_CONTEXT)
        return rl_fail(err, RL_ERR_FORMAT, "the saved session claims %u tokens; expected at most %u", h->n_ids, RL_MAX_CONTEXT);
    return RL_OK;
}

/* Ids arrive in pieces, so a false count fails at the end of the file before much is allocated. */
static rl_status read_ids(const rl_engine *e, summed *in, uint32_t n, int32_t **out, rl_error *err)
{
    enum { PIECE = 65536 };
    int32_t *ids = NULL;
    rl_status st = RL_OK;
    for (uint32_t at = 0; at < n && st == RL_OK;) {
        uint32_t count = n - at < PIECE ? n - at : PIECE;
        int32_t *grown = rl_realloc(ids, at + count, sizeof *ids);
        if (!grown) {
            st = rl_fail(err, RL_ERR_MEMORY, "no memory for the %u tokens of a saved session", n);
            break;
        }
        ids = grown;
        st = get_summed(in, ids + at, count * sizeof *ids, err);
        at += count;
    }
    uint64_t want = sum_value(&in->sum), sum = 0;
    if (st == RL_OK) st = get_summed(in, &sum, sizeof sum, err);
    if (st == RL_OK && sum != want) st = rl_fail(err, RL_ERR_FORMAT, "the saved session is damaged (checksum of its head)");
    if (st == RL_OK) st = rl_engine_check_ids(e, ids, n, err);
    if (st != RL_OK) {
        free(ids);
        return st;
    }
    *out = ids;
    return RL_OK;
}

static rl_status read_head(const rl_engine *e, summed *in, state_head *h, int32_t **ids, rl_error *err)
{
    rl_status st = get_summed(in, h, sizeof *h, err);
    if (st == RL_OK) st = check_head(e, h, err);
    if (st == RL_OK) st = read_ids(e, in, h->n_ids, ids, err);
    return st;
}

static rl_status read_body(rl_session *s, summed *in, uint32_t n, rl_error *err)
{
    const rl_engine *e = s->engine;
    rl_status st = n ? get_summed(in, s->logits, e->model->hp.n_vocab * sizeof(float), err) : RL_OK;
    if (st == RL_OK) st = e->backend->ops->seq_import(s->seq, get_summed, in, err);
    uint64_t want = sum_value(&in->sum), sum = 0;
    if (st == RL_OK) st = in->get(in->ctx, &sum, sizeof sum, err);
    if (st == RL_OK && sum != want) st = rl_fail(err, RL_ERR_FORMAT, "the saved session is damaged (checksum)");
    if (st == RL_OK && e->backend->ops->seq_position(s->seq) != n)
        st = rl_fail(err, RL_ERR_FORMAT, "the saved session has %u tokens but its state stands at %u", n,
                     e->backend->ops->seq_position(s->seq));
    return st;
}

rl_status rl_session_read(rl_session *s, rl_get_fn get, void *ctx, rl_error *err)
{
    rl_session_reset(s);
    summed in = {.get = get, .ctx = ctx};
    state_head h;
    int32_t *ids = NULL;
    rl_status st = read_head(s->engine, &in, &h, &ids, err);
    if (st != RL_OK) return st;
    if (h.n_ids > s->capacity)
        st = rl_fail(err, RL_ERR_LIMIT, "the saved session has %u tokens; this one holds %u", h.n_ids, s->capacity);
    if (st == RL_OK) st = read_body(s, &in, h.n_ids, err);
    if (st == RL_OK) {
        if (h.n_ids) memcpy(s->ids, ids, h.n_ids * sizeof *ids);
        s->n = s->computed = h.n_ids;
    } else {
        rl_session_reset(s);
    }
    free(ids);
    return st;
}

/* ---- Files ----------------------------------------------------------------------------------------------------------- */

static rl_status put_file(void *ctx, const void *data, size_t n, rl_error *err)
{
    return rl_out_write(ctx, data, n, err);
}

rl_status rl_session_save(rl_session *s, const char *path, rl_error *err)
{
    rl_out_file *f = NULL;
    rl_status st = rl_out_open(path, &f, err);
    if (st != RL_OK) return st;
    st = rl_session_write(s, put_file, f, err);
    if (st == RL_OK) return rl_out_commit(f, err);
    rl_out_abort(f);
    return st;
}

typedef struct input_file {
    int fd;
    uint64_t at;
    const char *path;
} input_file;

static rl_status get_file(void *ctx, void *data, size_t n, rl_error *err)
{
    input_file *f = ctx;
    rl_status st = rl_pread_all(f->fd, data, n, f->at, f->path, err);
    if (st == RL_OK) f->at += n;
    return st;
}

static rl_status open_input(const char *path, input_file *f, rl_error *err)
{
    char shown[NAME_MAX_SHOWN];
    /* O_NONBLOCK: opening a pipe must not wait for its writer; regular files ignore it. */
    *f = (input_file){.fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK), .path = path};
    if (f->fd >= 0) return RL_OK;
    return rl_fail_errno(err, RL_ERR_IO, errno, "cannot open '%s'", rl_escape_str(shown, sizeof shown, path));
}

/* Ends the reading of a file: says which one failed. */
static rl_status close_input(input_file *f, rl_status st, rl_error *err)
{
    char shown[NAME_MAX_SHOWN];
    close(f->fd);
    if (st != RL_OK) rl_error_prefix(err, "%s", rl_escape_str(shown, sizeof shown, f->path));
    return st;
}

rl_status rl_session_load(rl_session *s, const char *path, rl_error *err)
{
    input_file f;
    rl_status st = open_input(path, &f, err);
    if (st != RL_OK) {
        rl_session_reset(s);
        return st;
    }
    return close_input(&f, rl_session_read(s, get_file, &f, err), err);
}

rl_status rl_state_tokens(const rl_engine *e, const char *path, int32_t **ids, uint32_t *n, rl_error *err)
{
    input_file f;
    rl_status st = open_input(path, &f, err);
    if (st != RL_OK) return st;
    summed in = {.get = get_file, .ctx = &f};
    state_head h;
    int32_t *list = NULL;
    st = close_input(&f, read_head(e, &in, &h, &list, err), err);
    if (st != RL_OK) return st;
    *ids = list;
    *n = h.n_ids;
    return RL_OK;
}
