/* text/buffer: a growing run of bytes. Failure is sticky: the code that writes reads straight through and asks at the end. */
#ifndef RL_TEXT_BUFFER_H
#define RL_TEXT_BUFFER_H

#include "redlite.h"

typedef struct rl_buffer {
    char *data; /* NUL-terminated once anything was written (the NUL is not counted) */
    size_t size, capacity;
    bool failed; /* memory ran short: later writes do nothing */
} rl_buffer;

void rl_buffer_put(rl_buffer *b, const char *data, size_t n); /* data may be NULL when n is 0 */
void rl_buffer_text(rl_buffer *b, const char *text);
void rl_buffer_slice(rl_buffer *b, rl_slice s);
void rl_buffer_char(rl_buffer *b, char c);
void rl_buffer_drop_front(rl_buffer *b, size_t n); /* the first n bytes go */
void rl_buffer_free(rl_buffer *b);

static inline void rl_buffer_clear(rl_buffer *b)
{
    b->size = 0;
}
static inline rl_slice rl_buffer_view(const rl_buffer *b)
{
    return (rl_slice){b->size > 0 ? b->data : "", b->size};
}
static inline rl_slice rl_slice_of(const char *text)
{
    return (rl_slice){text, __builtin_strlen(text)};
}
bool rl_slice_equals(rl_slice s, const char *text);
bool rl_slice_starts(rl_slice s, const char *prefix);
/* Offset of the first occurrence at or after `from`, SIZE_MAX when there is none. */
size_t rl_slice_find(rl_slice s, size_t from, const char *text);

#endif
