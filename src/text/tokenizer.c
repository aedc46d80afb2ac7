/* text/tokenizer: text to ids and ids to text, over the tables of text/vocab.
 *
 * A text is cut at special tokens; what lies between is decoded, split into pieces and merged. Control tokens are recognised
 * only inside the spans the caller trusts, while pieces may reach across the borders of spans: a chat prompt gets the ids of
 * its text as a whole, yet nothing in an untrusted part can become a control token. */
#include "base/error.h"
#include "base/mem.h"
#include "text/split.h"
#include "text/unicode.h"
#include "text/vocab.h"
#include <stdlib.h>
#include <string.h>

/* Ill-formed input may grow threefold, and positions inside a piece are 32 bits wide. */
#define TEXT_MAX ((size_t)512 << 20)

uint32_t rl_tokenizer_n_vocab(const rl_tokenizer *t)
{
    return t->n_vocab;
}
static bool in_range(const rl_tokenizer *t, int32_t id)
{
    return id >= 0 && (uint32_t)id < t->n_vocab;
}
rl_token_kind rl_token_kind_of(const rl_tokenizer *t, int32_t id)
{
    return in_range(t, id) ? (rl_token_kind)t->kind[id] : RL_TOKEN_UNUSED;
}
int32_t rl_token_eos(const rl_tokenizer *t)
{
    return t->eos;
}
int32_t rl_token_im_start(const rl_tokenizer *t)
{
    return t->im_start;
}
int32_t rl_token_im_end(const rl_tokenizer *t)
{
    return t->im_end;
}
bool rl_token_is_eog(const rl_tokenizer *t, int32_t id)
{
    return in_range(t, id) && t->eog[id];
}
bool rl_token_is_samplable(const rl_tokenizer *t, int32_t id)
{
    return in_range(t, id) && t->kind[id] != RL_TOKEN_UNUSED;
}

rl_slice rl_token_bytes(const rl_tokenizer *t, int32_t id, bool show_special)
{
    rl_token_kind kind = rl_token_kind_of(t, id);
    bool hidden = kind == RL_TOKEN_UNUSED || (!show_special && (kind == RL_TOKEN_CONTROL || kind == RL_TOKEN_UNKNOWN));
    return hidden ? (rl_slice){"", 0} : rl_vocab_bytes(t, id);
}

/* Among special[lo..hi), whose first `depth` bytes agree, those with byte b next: narrows the range. */
static void narrow(const rl_tokenizer *t, uint32_t *lo, uint32_t *hi, size_t depth, uint8_t b)
{
    for (int end = 0; end < 2; end++) {
        uint32_t from = *lo, to = *hi;
        while (from < to) {
            uint32_t mid = from + (to - from) / 2;
            rl_slice s = rl_vocab_bytes(t, t->special[mid]);
            int byte = depth < s.size ? (uint8_t)s.data[depth] : -1;
            if (byte < b + end)
                from = mid + 1;
            else
                to = mid;
        }
        if (end == 0)
            *lo = from;
        else
            *hi = from;
    }
}

/* The longest special token at the start of text; control and unknown ones only up to `trusted` bytes. -1 = none. */
static int32_t match_special(const rl_tokenizer *t, const char *text, size_t n, size_t trusted)
{
    uint8_t first = (uint8_t)text[0];
    uint32_t lo = t->special_from[first], hi = t->special_from[first + 1];
    int32_t best = -1;
    for (size_t depth = 1; lo < hi; depth++) {
        /* Sorted order puts the one that ends here, if any, first. */
        if (rl_vocab_bytes(t, t->special[lo]).size == depth) {
            int32_t id = t->special[lo];
            if (t->kind[id] == RL_TOKEN_USER || depth <= trusted) best = id;
        }
        if (depth >= n) break;
        narrow(t, &lo, &hi, depth, (uint8_t)text[depth]);
    }
    return best;
}

int32_t rl_token_find_special(const rl_tokenizer *t, const char *text, size_t n)
{
    if (n == 0) return -1;
    int32_t id = match_special(t, text, n, n);
    return id >= 0 && rl_vocab_bytes(t, id).size == n ? id : -1;
}

typedef struct encoder {
    const rl_tokenizer *t;
    int32_t *ids;
    size_t n, capacity;
    rl_bpe_scratch scratch;
    rl_error *err;
} encoder;

static rl_status reserve(encoder *e, size_t more)
{
    if (more <= e->capacity - e->n) return RL_OK;
    size_t capacity = e->capacity + more > 2 * e->capacity ? e->capacity + more : 2 * e->capacity;
    int32_t *ids = rl_realloc(e->ids, capacity, sizeof *ids);
    if (ids == NULL) return rl_fail(e->err, RL_ERR_MEMORY, "no memory for %zu token ids", capacity);
    e->ids = ids;
    e->capacity = capacity;
    return RL_OK;
}

/* The reference's lenient decoding: a lead byte with its continuation bytes is a character even if over-long or a surrogate
 * (written back in shortest form); any other byte becomes U+FFFD. out has room for 3 * n. */
static size_t sanitise(const char *text, size_t n, char *out)
{
    size_t written = 0;
    for (size_t i = 0; i < n;) {
        uint8_t lead = (uint8_t)text[i];
        size_t len = lead < 0x80 ? 1 : (lead & 0xE0) == 0xC0 ? 2 : (lead & 0xF0) == 0xE0 ? 3 : (lead & 0xF8) == 0xF0 ? 4 : 0;
        uint32_t cp = len == 1 ? lead : len == 2 ? lead & 0x1Fu : len == 3 ? lead & 0x0Fu : lead & 0x07u;
        if (len > n - i) len = 0;
        for (size_t k = 1; k < len; k++) {
            uint8_t c = (uint8_t)text[i + k];
            if ((c & 0xC0) != 0x80) len = 0;
            cp = cp << 6 | (c & 0x3Fu);
        }
        if (len == 0 || cp > 0x10FFFF) {
            cp = 0xFFFD;
            len = 1;
        }
        written += rl_utf8_encode(cp, out + written);
        i += len;
    }
    return written;
}

static rl_status encode_pieces(encoder *e, const char *text, size_t n)
{
    rl_status s = RL_OK;
    for (size_t p = 0, q; s == RL_OK && p < n; p = q) {
        q = rl_split_next(text, n, p);
        size_t len = q - p;
        s = reserve(e, len);
        if (s != RL_OK) break;
        int32_t *ids = e->ids + e->n;
        for (size_t i = 0; i < len; i++)
            ids[i] = e->t->byte_id[(uint8_t)text[p + i]];
        size_t count = rl_bpe_merge(&e->t->merges, &e->scratch, ids, len);
        if (count == 0) s = rl_fail(e->err, RL_ERR_MEMORY, "no memory to merge a word of %zu bytes", len);
        e->n += count;
    }
    return s;
}

static rl_status encode_fragment(encoder *e, const char *text, size_t n)
{
    if (rl_utf8_is_valid(text, n)) return encode_pieces(e, text, n);
    char *clean = rl_alloc(n, 3);
    if (clean == NULL) return rl_fail(e->err, RL_ERR_MEMORY, "no memory for a text of %zu bytes", n);
    rl_status s = encode_pieces(e, clean, sanitise(text, n, clean));
    free(clean);
    return s;
}

static rl_status encode(encoder *e, const char *text, size_t n, const rl_text_span *spans, size_t n_spans)
{
    const rl_tokenizer *t = e->t;
    rl_status s = RL_OK;
    size_t start = 0, span = 0;
    for (size_t p = 0; s == RL_OK && p < n;) {
        uint8_t first = (uint8_t)text[p];
        if (t->special_from[first] == t->special_from[first + 1]) {
            p++;
            continue;
        }
        while (span < n_spans && spans[span].end <= p)
            span++;
        size_t trusted = span < n_spans && spans[span].start <= p ? spans[span].end - p : 0;
        int32_t id = match_special(t, text + p, n - p, trusted);
        if (id < 0) {
            p++;
            continue;
        }
        s = encode_fragment(e, text + start, p - start);
        if (s == RL_OK) s = reserve(e, 1);
        if (s == RL_OK) e->ids[e->n++] = id;
        p += rl_vocab_bytes(t, id).size;
        start = p;
    }
    return s == RL_OK ? encode_fragment(e, text + start, n - start) : s;
}

rl_status rl_tokenize_spans(const rl_tokenizer *t, const char *text, size_t n, const rl_text_span *spans, size_t n_spans,
                            int32_t **ids, size_t *n_ids, rl_error *err)
{
    if (n > TEXT_MAX)
        return rl_fail(err, RL_ERR_LIMIT, "the text has %zu bytes, at most %zu can be tokenised at once", n, TEXT_MAX);
    for (size_t i = 0; i < n_spans; i++)
        if (spans[i].start > spans[i].end || spans[i].end > n || (i > 0 && spans[i].start < spans[i - 1].end))
            return rl_fail(err, RL_ERR_ARGUMENT, "span %zu of the text is out of order or range", i);
    encoder e = {.t = t, .capacity = n / 3 + 16, .err = err};
    e.ids = rl_alloc(e.capacity, sizeof *e.ids);
    if (e.ids == NULL) return rl_fail(err, RL_ERR_MEMORY, "no memory for %zu token ids", e.capacity);
    rl_status s = encode(&e, text, n, spans, n_spans);
    rl_bpe_scratch_free(&e.scratch);
    if (s != RL_OK) {
        free(e.ids);
        return s;
    }
    *ids = e.ids;
    *n_ids = e.n;
    return RL_OK;
}

rl_status rl_tokenize(const rl_tokenizer *t, const char *text, size_t n, bool parse_special, int32_t **ids, size_t *n_ids,
                      rl_error *err)
{
    rl_text_span all = {0, n};
    return rl_tokenize_spans(t, text, n, &all, parse_special ? 1 : 0, ids, n_ids, err);
}
