/* tests/support: GGUF files built byte by byte, well-formed or not. Failing to allocate fails the test. */
#ifndef RL_TEST_GGUF_BYTES_H
#define RL_TEST_GGUF_BYTES_H

#include "gguf/gguf.h"

typedef struct rl_bytes {
    uint8_t *data;
    size_t size, capacity;
} rl_bytes;

void rl_bytes_free(rl_bytes *b);
void rl_bytes_put(rl_bytes *b, const void *data, size_t n);
void rl_bytes_number(rl_bytes *b, uint64_t v, unsigned bytes); /* little-endian */
void rl_bytes_string(rl_bytes *b, const char *text);           /* u64 length and content */
void rl_bytes_header(rl_bytes *b, uint64_t n_tensors, uint64_t n_keys);
void rl_bytes_key(rl_bytes *b, const char *key, rl_gguf_kind kind);
void rl_bytes_u32(rl_bytes *b, const char *key, uint32_t v);
void rl_bytes_tensor(rl_bytes *b, const char *name, rl_type type, uint32_t n_dims, const uint64_t *ne, uint64_t offset);
void rl_bytes_pad(rl_bytes *b, size_t alignment);
void rl_bytes_zeros(rl_bytes *b, size_t n);

#endif
