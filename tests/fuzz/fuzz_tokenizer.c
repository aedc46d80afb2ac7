/* Fuzz target: tokenizer metadata and text. The first byte chooses: even, the rest is a GGUF file whose tokenizer is opened and
 * used; odd, the rest is text for a small built-in vocabulary of 256 bytes (checked: decoding gives well-formed text back). */
#include "text/text.h"
#include "text/unicode.h"
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void use(const rl_tokenizer *t, const char *text, size_t n, bool exact)
{
    for (int special = 0; special < 2; special++) {
        int32_t *ids = NULL;
        size_t n_ids = 0, at = 0;
        if (rl_tokenize(t, text, n, special, &ids, &n_ids, NULL) != RL_OK) continue;
        rl_utf8_stream stream = {0};
        for (size_t i = 0; i < n_ids; i++) {
            rl_slice b = rl_token_bytes(t, ids[i], true);
            if (exact && (at + b.size > n || memcmp(text + at, b.data, b.size) != 0)) abort();
            at += b.size;
            char *out = malloc(3 * b.size + 12);
            if (out == NULL) abort();
            size_t written = rl_utf8_stream_push(&stream, b.data, b.size, out);
            if (!rl_utf8_is_valid(out, written)) abort();
            free(out);
        }
        if (exact && at != n) abort();
        free(ids);
    }
}

static void put(uint8_t *out, size_t *n, const void *data, size_t size)
{
    memcpy(out + *n, data, size);
    *n += size;
}
static void put_u32(uint8_t *out, size_t *n, uint32_t v)
{
    put(out, n, &v, 4);
}
static void put_u64(uint8_t *out, size_t *n, uint64_t v)
{
    put(out, n, &v, 8);
}
static void put_string(uint8_t *out, size_t *n, const char *s)
{
    put_u64(out, n, strlen(s));
    put(out, n, s, strlen(s));
}
static void put_key(uint8_t *out, size_t *n, const char *key, uint32_t type)
{
    put_string(out, n, key);
    put_u32(out, n, type);
}

static rl_tokenizer *small_vocabulary(void)
{
    static uint8_t file[1 << 14];
    static const char *const extra[] = {"aa", "aaaa", "\xC4\xA0\xC4\xA0", "<|im_end|>", "<think>"};
    static const char *const merges[] = {"a a", "aa aa", "\xC4\xA0 \xC4\xA0"};
    size_t n = 0;
    put(file, &n, "GGUF", 4);
    put_u32(file, &n, 3);
    put_u64(file, &n, 0);
    put_u64(file, &n, 6);
    put_key(file, &n, "tokenizer.ggml.model", 8);
    put_string(file, &n, "gpt2");
    put_key(file, &n, "tokenizer.ggml.pre", 8);
    put_string(file, &n, "qwen2");
    put_key(file, &n, "tokenizer.ggml.tokens", 9);
    put_u32(file, &n, 8);
    put_u64(file, &n, 261);
    uint32_t next = 0x100;
    for (uint32_t b = 0; b < 256; b++) {
        char text[5] = {0};
        rl_utf8_encode((b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE ? b : next++, text);
        put_string(file, &n, text);
    }
    for (size_t i = 0; i < 5; i++)
        put_string(file, &n, extra[i]);
    put_key(file, &n, "tokenizer.ggml.token_type", 9);
    put_u32(file, &n, 5);
    put_u64(file, &n, 261);
    for (uint32_t i = 0; i < 261; i++)
        put_u32(file, &n, i < 259 ? 1 : i == 259 ? 3 : 4);
    put_key(file, &n, "tokenizer.ggml.merges", 9);
    put_u32(file, &n, 8);
    put_u64(file, &n, 3);
    for (size_t i = 0; i < 3; i++)
        put_string(file, &n, merges[i]);
    put_key(file, &n, "tokenizer.ggml.eos_token_id", 4);
    put_u32(file, &n, 259);
    rl_gguf *g = NULL;
    rl_tokenizer *t = NULL;
    if (rl_gguf_parse(file, n, "built-in", &g, NULL) != RL_OK || rl_tokenizer_create(g, &t, NULL) != RL_OK) abort();
    rl_gguf_close(g);
    return t;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static rl_tokenizer *small;
    if (small == NULL) small = small_vocabulary();
    if (size == 0) return 0;
    const char *rest = (const char *)data + 1;
    if (data[0] & 1) {
        use(small, rest, size - 1, rl_utf8_is_valid(rest, size - 1));
        return 0;
    }
    rl_gguf *g = NULL;
    rl_tokenizer *t = NULL;
    if (rl_gguf_parse(rest, size - 1, "fuzz", &g, NULL) != RL_OK) return 0;
    if (rl_tokenizer_create(g, &t, NULL) == RL_OK) use(t, rest, size - 1 < 4096 ? size - 1 : 4096, false);
    rl_tokenizer_free(t);
    rl_gguf_close(g);
    return 0;
}
