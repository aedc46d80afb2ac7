/* base/mem: allocation whose sizes cannot wrap. */
#include "base/mem.h"

#include <stdlib.h>
#if defined(__linux__)
#include <sys/mman.h>
#endif

#define HUGE_PAGE ((size_t)2 << 20)

bool rl_mul_size(size_t a, size_t b, size_t *out)
{
    if (b != 0 && a > SIZE_MAX / b) return false;
    *out = a * b;
    return true;
}

bool rl_add_size(size_t a, size_t b, size_t *out)
{
    if (a > SIZE_MAX - b) return false;
    *out = a + b;
    return true;
}

/* The bytes to ask for: at least one, since malloc(0) may give NULL, which callers take for failure. */
static bool request(size_t n, size_t size, size_t *bytes)
{
    if (!rl_mul_size(n, size, bytes)) return false;
    if (*bytes == 0) *bytes = 1;
    return true;
}

void *rl_alloc(size_t n, size_t size)
{
    size_t bytes;
    return request(n, size, &bytes) ? malloc(bytes) : NULL;
}

void *rl_calloc(size_t n, size_t size)
{
    size_t bytes;
    return request(n, size, &bytes) ? calloc(1, bytes) : NULL;
}

void *rl_realloc(void *p, size_t n, size_t size)
{
    size_t bytes;
    return request(n, size, &bytes) ? realloc(p, bytes) : NULL;
}

void *rl_aligned_alloc(size_t align, size_t n, size_t size)
{
    size_t bytes;
    void *p = NULL;
    if (!request(n, size, &bytes)) return NULL;
    bool huge = bytes >= HUGE_PAGE;
    if (huge && align < HUGE_PAGE) align = HUGE_PAGE; /* only whole aligned 2 MiB pieces can become huge pages */
    if (posix_memalign(&p, align, bytes) != 0) return NULL;
#if defined(__linux__)
    if (huge) madvise(p, bytes & ~(HUGE_PAGE - 1), MADV_HUGEPAGE); /* a hint: refusal changes nothing but speed */
#endif
    return p;
}

void rl_aligned_free(void *p)
{
    free(p);
}
