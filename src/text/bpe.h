/* text/bpe: byte-pair merging of one piece. */
#ifndef RL_TEXT_BPE_H
#define RL_TEXT_BPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RL_NO_RANK UINT32_MAX

/* Merge table: (left id, right id) -> rank and resulting id. Open addressing, at most 2/3 full. */
typedef struct rl_merge {
    uint64_t pair; /* left << 32 | right, UINT64_MAX = empty */
    uint32_t rank;
    int32_t result;
} rl_merge;
typedef struct rl_merge_table {
    rl_merge *slots;
    size_t mask;
} rl_merge_table;

/* Room for n merges; false when memory is short. */
bool rl_merge_table_init(rl_merge_table *t, size_t n);
void rl_merge_table_free(rl_merge_table *t);
/* Adds a pair; one that is already there keeps its first rank. */
void rl_merge_table_add(rl_merge_table *t, int32_t left, int32_t right, uint32_t rank, int32_t result);

/* Scratch memory, reused from piece to piece. Start with all zeros. */
typedef struct rl_bpe_scratch {
    struct rl_bpe_symbol *symbols;
    uint64_t *heap;
    size_t capacity; /* symbols; the heap holds three times as many */
} rl_bpe_scratch;
void rl_bpe_scratch_free(rl_bpe_scratch *s);

/* Merges ids[0..n) (one id per byte at the start, n < 2^31) in place: the pair of lowest rank first, the leftmost of equals.
 * Returns the new count, or 0 when memory is short. Takes O(n log n). */
size_t rl_bpe_merge(const rl_merge_table *t, rl_bpe_scratch *scratch, int32_t *ids, size_t n);

#endif
