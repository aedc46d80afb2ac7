/* tests/support: see gguf_bytes.h. */
#include "support/gguf_bytes.h"

#include "support/support.h"

#include <stdlib.h>
#include <string.h>

void rl_bytes_free(rl_bytes *b)
{
    free(b->data);
    *b = (rl_bytes){0};
}

void rl_bytes_put(rl_bytes *b, const void *data, size_t n)
{
    if (b->size + n > b->capacity) {
        b->capacity = (b->size + n) * 2;
        b->data = realloc(b->data, b->capacity);
        assert_non_null(b->data);
    }
    if (n) memcpy(b->data + b->size, data, n);
    b->size += n;
}

void rl_bytes_number(rl_bytes *b, uint64_t v, unsigned bytes)
{
    uint8_t p[8];
    for (unsigned i = 0; i < bytes; i++)
        p[i] = (uint8_t)(v >> (8 * i));
    rl_bytes_put(b, p, bytes);
}

void rl_bytes_string(rl_bytes *b, const char *text)
{
    rl_bytes_number(b, strlen(text), 8);
    rl_bytes_put(b, text, strlen(text));
}

void rl_bytes_header(rl_bytes *b, uint64_t n_tensors, uint64_t n_keys)
{
    rl_bytes_put(b, "GGUF", 4);
    rl_bytes_number(b, 3, 4);
    rl_bytes_number(b, n_tensors, 8);
    rl_bytes_number(b, n_keys, 8);
}

void rl_bytes_key(rl_bytes *b, const char *key, rl_gguf_kind kind)
{
    rl_bytes_string(b, key);
    rl_bytes_number(b, kind, 4);
}

void rl_bytes_u32(rl_bytes *b, const char *key, uint32_t v)
{
    rl_bytes_key(b, key, RL_GGUF_U32);
    rl_bytes_number(b, v, 4);
}

void rl_bytes_tensor(rl_bytes *b, const char *name, rl_type type, uint32_t n_dims, const uint64_t *ne, uint64_t offset)
{
    rl_bytes_string(b, name);
    rl_bytes_number(b, n_dims, 4);
    for (uint32_t d = 0; d < n_dims; d++)
        rl_bytes_number(b, ne[d], 8);
    rl_bytes_number(b, type, 4);
    rl_bytes_number(b, offset, 8);
}

void rl_bytes_zeros(rl_bytes *b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        rl_bytes_number(b, 0, 1);
}

void rl_bytes_pad(rl_bytes *b, size_t alignment)
{
    rl_bytes_zeros(b, (alignment - b->size % alignment) % alignment);
}
