/* text/buffer: growing by half again, so that n writes cost O(n). */
#include "text/buffer.h"
#include "base/mem.h"
#include <stdlib.h>
#include <string.h>

void rl_buffer_put(rl_buffer *b, const char *data, size_t n)
{
    size_t need;
    if (b->failed || !rl_add_size(b->size, n, &need) || !rl_add_size(need, 1, &need)) {
        b->failed = true;
        return;
    }
    if (need > b->capacity) {
        size_t capacity = need + need / 2;
        char *grown = rl_realloc(b->data, capacity, 1);
        if (grown == NULL) {
            b->failed = true;
            return;
        }
        b->data = grown;
        b->capacity = capacity;
    }
    if (n > 0) memcpy(b->data + b->size, data, n);
    b->size += n;
    b->data[b->size] = '\0';
}

void rl_buffer_text(rl_buffer *b, const char *text)
{
    rl_buffer_put(b, text, strlen(text));
}
void rl_buffer_slice(rl_buffer *b, rl_slice s)
{
    rl_buffer_put(b, s.data, s.size);
}
void rl_buffer_char(rl_buffer *b, char c)
{
    rl_buffer_put(b, &c, 1);
}

void rl_buffer_drop_front(rl_buffer *b, size_t n)
{
    if (n == 0) return;
    b->size -= n;
    memmove(b->data, b->data + n, b->size + 1);
}

void rl_buffer_free(rl_buffer *b)
{
    free(b->data);
    *b = (rl_buffer){0};
}

bool rl_slice_equals(rl_slice s, const char *text)
{
    return s.size == strlen(text) && memcmp(s.data, text, s.size) == 0;
}

bool rl_slice_starts(rl_slice s, const char *prefix)
{
    size_t n = strlen(prefix);
    return s.size >= n && memcmp(s.data, prefix, n) == 0;
}

size_t rl_slice_find(rl_slice s, size_t from, const char *text)
{
    if (from > s.size) return SIZE_MAX;
    const char *hit = memmem(s.data + from, s.size - from, text, strlen(text));
    return hit != NULL ? (size_t)(hit - s.data) : SIZE_MAX;
}
