/* text/vocab: a GGUF file's tokenizer metadata, checked and turned into tables.
 *
 * Token texts of a byte-level BPE are written in an alphabet that gives every byte a printable character; they are converted to
 * raw bytes here, once, and the rest of the folder knows only bytes. Everything a later step relies on is verified: every byte
 * has a token, every merge joins two tokens into a third, every id is below the vocabulary size. */
#include "text/vocab.h"
#include "base/error.h"
#include "base/mem.h"
#include "text/unicode.h"
#include <stdlib.h>
#include <string.h>

#define ALPHABET_END 0x144

/* The character of each byte: itself if printable in Latin-1, the others in order from U+0100. -1 = not in the alphabet. */
static void fill_alphabet(int16_t byte_of[ALPHABET_END])
{
    uint32_t next = 0x100;
    for (uint32_t c = 0; c < ALPHABET_END; c++)
        byte_of[c] = -1;
    for (uint32_t b = 0; b < 256; b++) {
        bool printable = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
        byte_of[printable ? b : next++] = (int16_t)b;
    }
}

/* Raw bytes of a text in the alphabet (never longer than the text); -1 when it contains anything else. */
static ptrdiff_t to_bytes(const int16_t byte_of[ALPHABET_END], rl_slice text, char *out)
{
    size_t n = 0;
    for (size_t i = 0; i < text.size;) {
        uint32_t cp = (uint8_t)text.data[i++];
        if (cp >= 0xC0 && cp < 0xE0 && i < text.size && ((uint8_t)text.data[i] & 0xC0) == 0x80)
            cp = (cp & 0x1F) << 6 | ((uint8_t)text.data[i++] & 0x3Fu);
        else if (cp >= 0x80)
            return -1;
        if (cp >= ALPHABET_END || byte_of[cp] < 0) return -1;
        out[n++] = (char)byte_of[cp];
    }
    return (ptrdiff_t)n;
}

/* Bytes of normal tokens -> id; needed only while loading. */
typedef struct text_index {
    int32_t *slots; /* -1 = empty */
    size_t mask;
} text_index;

static int32_t *index_slot(const rl_tokenizer *t, const text_index *x, const char *text, size_t n)
{
    uint64_t h = UINT64_C(0xCBF29CE484222325);
    for (size_t i = 0; i < n; i++)
        h = (h ^ (uint8_t)text[i]) * UINT64_C(0x100000001B3);
    for (size_t i = (h ^ h >> 29) & x->mask;; i = (i + 1) & x->mask) {
        if (x->slots[i] < 0) return &x->slots[i];
        rl_slice have = rl_vocab_bytes(t, x->slots[i]);
        if (have.size == n && memcmp(have.data, text, n) == 0) return &x->slots[i];
    }
}

static rl_status get_array(const rl_gguf *g, const char *key, rl_gguf_kind kind, const char *what, rl_gguf_array *out,
                           rl_error *err)
{
    bool found = false;
    rl_status s = rl_gguf_get_array(g, key, out, &found, err);
    if (s != RL_OK) return s;
    if (!found) return rl_fail(err, RL_ERR_FORMAT, "the file has no %s: it carries no tokenizer of a kind known here", key);
    if (out->kind != kind)
        return rl_fail(err, RL_ERR_FORMAT, "%s has elements of type %d, expected %s", key, (int)out->kind, what);
    if (out->count > INT32_MAX)
        return rl_fail(err, RL_ERR_FORMAT, "%s has %llu entries, more than ids can number", key,
                       (unsigned long long)out->count);
    return RL_OK;
}

static rl_status check_name(const rl_gguf *g, const char *key, const char *expected, rl_error *err)
{
    rl_slice v = {"", 0};
    bool found = false;
    char shown[64];
    rl_status s = rl_gguf_get_string(g, key, &v, &found, err);
    if (s != RL_OK) return s;
    if (found && v.size == strlen(expected) && memcmp(v.data, expected, v.size) == 0) return RL_OK;
    if (!found) return rl_fail(err, RL_ERR_FORMAT, "the file has no %s, expected \"%s\"", key, expected);
    return rl_fail(err, RL_ERR_UNSUPPORTED, "%s is \"%s\", only \"%s\" is supported", key,
                   rl_escape(shown, sizeof shown, v.data, v.size), expected);
}

static rl_status load_kinds(rl_tokenizer *t, const rl_gguf *g, rl_error *err)
{
    rl_gguf_array types;
    rl_status s = get_array(g, "tokenizer.ggml.token_type", RL_GGUF_I32, "32-bit integers", &types, err);
    if (s != RL_OK) return s;
    if (types.count != t->n_vocab)
        return rl_fail(err, RL_ERR_FORMAT, "tokenizer.ggml.token_type has %llu entries, tokenizer.ggml.tokens has %u",
                       (unsigned long long)types.count, t->n_vocab);
    for (uint32_t i = 0; i < t->n_vocab; i++) {
        int64_t kind = rl_gguf_array_int(&types, i);
        if (kind < RL_TOKEN_NORMAL || kind > RL_TOKEN_BYTE)
            return rl_fail(err, RL_ERR_FORMAT, "token %u has type %lld, expected 1 to 6", i, (long long)kind);
        t->kind[i] = (uint8_t)kind;
    }
    return RL_OK;
}

static bool is_special_kind(uint8_t kind)
{
    return kind == RL_TOKEN_CONTROL || kind == RL_TOKEN_USER || kind == RL_TOKEN_UNKNOWN;
}

static rl_status load_tokens(rl_tokenizer *t, const rl_gguf_array *tokens, const int16_t *alphabet, rl_error *err)
{
    uint64_t cursor = 0;
    rl_slice text;
    size_t used = 0;
    char shown[96];
    for (uint32_t i = 0; i < t->n_vocab; i++) {
        if (!rl_gguf_array_next_string(tokens, &cursor, &text))
            return rl_fail(err, RL_ERR_FORMAT, "tokenizer.ggml.tokens ends at entry %u of %u", i, t->n_vocab);
        t->offset[i] = used;
        if (is_special_kind(t->kind[i])) {
            if (text.size > RL_SPECIAL_MAX)
                return rl_fail(err, RL_ERR_FORMAT, "special token %u is %zu bytes long, at most %d are supported", i, text.size,
                               RL_SPECIAL_MAX);
            memcpy(t->bytes + used, text.data, text.size);
            used += text.size;
        } else if (t->kind[i] != RL_TOKEN_UNUSED) {
            ptrdiff_t n = to_bytes(alphabet, text, t->bytes + used);
            if (n <= 0)
                return rl_fail(err, RL_ERR_FORMAT, "token %u \"%s\" is %s", i,
                               rl_escape(shown, sizeof shown, text.data, text.size),
                               n == 0 ? "empty" : "not written in the byte-level alphabet");
            used += (size_t)n;
        }
    }
    t->offset[t->n_vocab] = used;
    return RL_OK;
}

static rl_status index_tokens(rl_tokenizer *t, text_index *x, rl_error *err)
{
    size_t slots = 16;
    while (slots / 2 < t->n_vocab)
        slots *= 2;
    x->slots = rl_alloc(slots, sizeof *x->slots);
    if (x->slots == NULL) return rl_fail(err, RL_ERR_MEMORY, "no memory to index %u tokens", t->n_vocab);
    x->mask = slots - 1;
    memset(x->slots, 0xFF, slots * sizeof *x->slots);
    for (uint32_t i = 0; i < t->n_vocab; i++) {
        if (t->kind[i] != RL_TOKEN_NORMAL && t->kind[i] != RL_TOKEN_BYTE) continue;
        rl_slice b = rl_vocab_bytes(t, (int32_t)i);
        int32_t *slot = index_slot(t, x, b.data, b.size);
        char shown[96];
        if (*slot >= 0)
            return rl_fail(err, RL_ERR_FORMAT, "tokens %d and %u are the same (\"%s\")", *slot, i,
                           rl_escape(shown, sizeof shown, b.data, b.size));
        *slot = (int32_t)i;
    }
    for (int b = 0; b < 256; b++) {
        char byte = (char)b;
        t->byte_id[b] = *index_slot(t, x, &byte, 1);
        if (t->byte_id[b] < 0) return rl_fail(err, RL_ERR_FORMAT, "the vocabulary has no token for byte 0x%02X", (unsigned)b);
    }
    return RL_OK;
}

/* Cuts "left right" at the first space after the first byte, converts both parts; out holds the joined bytes. */
static bool cut_merge(const int16_t *alphabet, rl_slice m, char *out, size_t *left, size_t *total)
{
    const char *space = m.size > 1 ? memchr(m.data + 1, ' ', m.size - 1) : NULL;
    if (space == NULL) return false;
    size_t at = (size_t)(space - m.data);
    ptrdiff_t l = to_bytes(alphabet, (rl_slice){m.data, at}, out);
    if (l <= 0) return false;
    ptrdiff_t r = to_bytes(alphabet, (rl_slice){space + 1, m.size - at - 1}, out + l);
    if (r <= 0) return false;
    *left = (size_t)l;
    *total = (size_t)l + (size_t)r;
    return true;
}

static rl_status load_merges(rl_tokenizer *t, const rl_gguf *g, const text_index *x, const int16_t *alphabet, rl_error *err)
{
    rl_gguf_array merges;
    rl_status s = get_array(g, "tokenizer.ggml.merges", RL_GGUF_STRING, "strings", &merges, err);
    if (s != RL_OK) return s;
    char *joined = rl_alloc(merges.bytes + 1, 1); /* no merge is longer than all of them */
    if (joined == NULL || !rl_merge_table_init(&t->merges, (size_t)merges.count)) {
        free(joined);
        return rl_fail(err, RL_ERR_MEMORY, "no memory for %llu merges", (unsigned long long)merges.count);
    }
    uint64_t cursor = 0;
    rl_slice m;
    for (uint32_t rank = 0; s == RL_OK && rank < merges.count && rl_gguf_array_next_string(&merges, &cursor, &m); rank++) {
        size_t left = 0, total = 0;
        char shown[96];
        if (!cut_merge(alphabet, m, joined, &left, &total)) {
            s = rl_fail(err, RL_ERR_FORMAT, "merge %u \"%s\" is not two texts of the byte-level alphabet with a space between",
                        rank, rl_escape(shown, sizeof shown, m.data, m.size));
            break;
        }
        int32_t l = *index_slot(t, x, joined, left), r = *index_slot(t, x, joined + left, total - left);
        int32_t whole = *index_slot(t, x, joined, total);
        if (l < 0 || r < 0 || whole < 0)
            s = rl_fail(err, RL_ERR_FORMAT, "merge %u \"%s\": its %s is not in the vocabulary", rank,
                        rl_escape(shown, sizeof shown, m.data, m.size),
                        l < 0 ? "left part" : (r < 0 ? "right part" : "result"));
        else
            rl_merge_table_add(&t->merges, l, r, rank, whole);
    }
    free(joined);
    return s;
}

static int compare_bytes(rl_slice a, rl_slice b)
{
    int c = memcmp(a.data, b.data, a.size < b.size ? a.size : b.size);
    return c != 0 ? c : (a.size > b.size) - (a.size < b.size);
}

static int compare_special(const void *a, const void *b, void *t)
{
    return compare_bytes(rl_vocab_bytes(t, *(const int32_t *)a), rl_vocab_bytes(t, *(const int32_t *)b));
}

static rl_status load_specials(rl_tokenizer *t, rl_error *err)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < t->n_vocab; i++)
        n += is_special_kind(t->kind[i]) && t->offset[i + 1] > t->offset[i];
    t->special = rl_alloc(n, sizeof *t->special);
    if (t->special == NULL) return rl_fail(err, RL_ERR_MEMORY, "no memory for %u special tokens", n);
    for (uint32_t i = 0; i < t->n_vocab; i++)
        if (is_special_kind(t->kind[i]) && t->offset[i + 1] > t->offset[i]) t->special[t->n_special++] = (int32_t)i;
    qsort_r(t->special, n, sizeof *t->special, compare_special, t);
    for (uint32_t i = 1; i < n; i++) {
        char shown[96];
        rl_slice b = rl_vocab_bytes(t, t->special[i]);
        if (compare_bytes(rl_vocab_bytes(t, t->special[i - 1]), b) == 0)
            return rl_fail(err, RL_ERR_FORMAT, "special tokens %d and %d are the same (\"%s\")", t->special[i - 1],
                           t->special[i], rl_escape(shown, sizeof shown, b.data, b.size));
    }
    uint32_t at = 0;
    for (uint32_t b = 0; b <= 256; b++) {
        while (at < n && (uint8_t)rl_vocab_bytes(t, t->special[at]).data[0] < b)
            at++;
        t->special_from[b] = at;
    }
    return RL_OK;
}

/* Tokens that end generation whatever eos_token_id says: the turn and document ends and the padding and file borders of the
 * fill-in-the-middle format. */
static const char *const END_NAMES[] = {"<|im_end|>", "<|endoftext|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"};

static rl_status load_ends(rl_tokenizer *t, const rl_gguf *g, rl_error *err)
{
    static const char *const keys[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.bos_token_id",
                                       "tokenizer.ggml.padding_token_id"};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        uint32_t id = 0;
        bool found = false;
        rl_status s = rl_gguf_get_u32(g, keys[i], &id, &found, err);
        if (s != RL_OK) return s;
        if (!found && i == 0) return rl_fail(err, RL_ERR_FORMAT, "the file has no %s: generation would never end", keys[i]);
        if (found && id >= t->n_vocab)
            return rl_fail(err, RL_ERR_FORMAT, "%s is %u, the vocabulary has %u tokens", keys[i], id, t->n_vocab);
        if (i == 0) t->eos = (int32_t)id;
    }
    static const char *const flags[] = {"tokenizer.ggml.add_bos_token", "tokenizer.ggml.add_eos_token"};
    for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++) {
        bool add = false;
        rl_status s = rl_gguf_get_bool(g, flags[i], &add, NULL, err);
        if (s != RL_OK) return s;
        if (add) return rl_fail(err, RL_ERR_UNSUPPORTED, "%s is true; models of this family add no such token", flags[i]);
    }
    t->im_start = rl_token_find_special(t, "<|im_start|>", strlen("<|im_start|>"));
    t->im_end = rl_token_find_special(t, "<|im_end|>", strlen("<|im_end|>"));
    t->eog[t->eos] = true;
    for (size_t i = 0; i < sizeof END_NAMES / sizeof END_NAMES[0]; i++) {
        int32_t id = rl_token_find_special(t, END_NAMES[i], strlen(END_NAMES[i]));
        if (id >= 0) t->eog[id] = true;
    }
    return RL_OK;
}

static rl_status load(rl_tokenizer *t, const rl_gguf *g, rl_error *err)
{
    rl_gguf_array tokens;
    int16_t alphabet[ALPHABET_END];
    fill_alphabet(alphabet);
    rl_status s = check_name(g, "tokenizer.ggml.model", "gpt2", err);
    if (s == RL_OK) s = check_name(g, "tokenizer.ggml.pre", "qwen2", err);
    if (s == RL_OK) s = get_array(g, "tokenizer.ggml.tokens", RL_GGUF_STRING, "strings", &tokens, err);
    if (s != RL_OK) return s;
    t->n_vocab = (uint32_t)tokens.count;
    t->kind = rl_alloc(t->n_vocab, sizeof *t->kind);
    t->eog = rl_calloc(t->n_vocab, sizeof *t->eog);
    t->offset = rl_alloc((size_t)t->n_vocab + 1, sizeof *t->offset);
    t->bytes = rl_alloc((size_t)tokens.bytes + 1, 1);
    if (t->kind == NULL || t->eog == NULL || t->offset == NULL || t->bytes == NULL)
        return rl_fail(err, RL_ERR_MEMORY, "no memory for a vocabulary of %u tokens", t->n_vocab);

    text_index index = {0};
    s = load_kinds(t, g, err);
    if (s == RL_OK) s = load_tokens(t, &tokens, alphabet, err);
    if (s == RL_OK) s = index_tokens(t, &index, err);
    if (s == RL_OK) s = load_merges(t, g, &index, alphabet, err);
    free(index.slots);
    if (s == RL_OK) s = load_specials(t, err);
    return s == RL_OK ? load_ends(t, g, err) : s;
}

rl_status rl_tokenizer_create(const rl_gguf *g, rl_tokenizer **out, rl_error *err)
{
    rl_tokenizer *t = rl_calloc(1, sizeof *t);
    if (t == NULL) return rl_fail(err, RL_ERR_MEMORY, "no memory for a tokenizer");
    rl_status s = load(t, g, err);
    if (s != RL_OK) {
        rl_tokenizer_free(t);
        return s;
    }
    *out = t;
    return RL_OK;
}

rl_status rl_tokenizer_open(const char *model_path, rl_tokenizer **out, rl_error *err)
{
    rl_gguf *g = NULL;
    rl_status s = rl_gguf_open(model_path, &g, err);
    if (s != RL_OK) return s;
    s = rl_tokenizer_create(g, out, err);
    if (s != RL_OK) rl_error_prefix(err, "%s", rl_gguf_file_name(g, 0));
    rl_gguf_close(g);
    return s;
}

void rl_tokenizer_free(rl_tokenizer *t)
{
    if (t == NULL) return;
    free(t->kind);
    free(t->eog);
    free(t->bytes);
    free(t->offset);
    free(t->special);
    rl_merge_table_free(&t->merges);
    free(t);
}
