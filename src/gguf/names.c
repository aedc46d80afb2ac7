/* Names of keys and tensors: validity, order, lookup; and the one function that loads numbers from a file. */
#include "gguf/internal.h"

#include <stdlib.h>
#include <string.h>

/* Length of the well-formed UTF-8 sequence at p (n >= 1 bytes left), 0 when there is none: no over-long forms, no surrogates,
 * nothing above U+10FFFF. */
static size_t utf8_sequence(const uint8_t *p, size_t n)
{
    uint8_t c = p[0];
    if (c < 0x80) return 1;
    size_t length = c >= 0xc2 && c <= 0xdf ? 2 : (c & 0xf0) == 0xe0 ? 3 : c >= 0xf0 && c <= 0xf4 ? 4 : 0;
    if (length == 0 || length > n) return 0;
    for (size_t i = 1; i < length; i++)
        if ((p[i] & 0xc0) != 0x80) return 0;
    if ((c == 0xe0 && p[1] < 0xa0) || (c == 0xed && p[1] > 0x9f) || (c == 0xf0 && p[1] < 0x90) || (c == 0xf4 && p[1] > 0x8f))
        return 0;
    return length;
}

bool rl_gguf_valid_utf8(const char *text, size_t n)
{
    for (size_t i = 0; i < n;) {
        size_t length = utf8_sequence((const uint8_t *)text + i, n - i);
        if (length == 0) return false;
        i += length;
    }
    return true;
}

static int compare_text(rl_slice a, const char *text, size_t size)
{
    size_t shorter = a.size < size ? a.size : size;
    int order = shorter ? memcmp(a.data, text, shorter) : 0;
    if (order) return order;
    return a.size < size ? -1 : a.size > size;
}

static int compare_names(const void *a, const void *b)
{
    const rl_gguf_name *x = a, *y = b;
    int order = compare_text(x->text, y->text.data, y->text.size);
    if (order) return order;
    return x->index < y->index ? -1 : x->index > y->index;
}

int64_t rl_gguf_names_sort(rl_gguf_name *names, uint32_t n)
{
    if (n < 2) return -1;
    qsort(names, n, sizeof *names, compare_names);
    for (uint32_t i = 0; i + 1 < n; i++)
        if (compare_text(names[i].text, names[i + 1].text.data, names[i + 1].text.size) == 0) return i;
    return -1;
}

int64_t rl_gguf_names_find(const rl_gguf_name *names, uint32_t n, const char *text, size_t size)
{
    uint32_t low = 0, high = n;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        int order = compare_text(names[middle].text, text, size);
        if (order == 0) return names[middle].index;
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return -1;
}

uint64_t rl_gguf_load(const uint8_t *p, unsigned bytes)
{
    uint64_t v = 0;
    for (unsigned i = 0; i < bytes; i++)
        v |= (uint64_t)p[i] << (8 * i);
    return v;
}
