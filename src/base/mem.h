/* base/mem: checked and aligned allocation. */
#ifndef RL_BASE_MEM_H
#define RL_BASE_MEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RL_CACHE_LINE 64

/* a*b and a+b without wrapping; false (and *out untouched) on overflow. */
bool rl_mul_size(size_t a, size_t b, size_t *out);
bool rl_add_size(size_t a, size_t b, size_t *out);

/* Array of n elements of `size` bytes: malloc/calloc with the multiplication checked. NULL on failure or overflow; n*size == 0
 * gives a valid pointer to free. */
void *rl_alloc(size_t n, size_t size);
void *rl_calloc(size_t n, size_t size);
void *rl_realloc(void *p, size_t n, size_t size);

/* As rl_alloc, at a multiple of `align` (a power of two >= sizeof(void *)). Release with rl_aligned_free. Not zeroed.
 * Allocations of 2 MiB and more ask for huge pages. */
void *rl_aligned_alloc(size_t align, size_t n, size_t size);
void rl_aligned_free(void *p);

#endif
