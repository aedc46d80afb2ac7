/* text/bpe: byte-pair merging.
 *
 * Short pieces, nearly all there are, are scanned: finding the lowest rank among a few dozen neighbours is cheaper than any
 * structure. Long ones (a run of a million spaces is one piece) use a heap over a linked list. A heap entry is stale when the
 * rank remembered in it is no longer the rank of the pair at its position; a rank names one pair of ids, so no more is needed.
 */
#include "text/bpe.h"
#include "base/mem.h"
#include <stdlib.h>
#include <string.h>

#define SCAN_MAX 40 /* symbols up to which scanning is used */

typedef struct rl_bpe_symbol {
    int32_t id;
    uint32_t rank; /* of the pair (this, next), RL_NO_RANK when it is not in the table or this symbol was merged away */
    uint32_t prev, next;
} rl_bpe_symbol;

#define NONE UINT32_MAX

static size_t hash_pair(uint64_t pair)
{
    pair *= UINT64_C(0x9E3779B97F4A7C15);
    return (size_t)(pair ^ pair >> 32);
}

bool rl_merge_table_init(rl_merge_table *t, size_t n)
{
    size_t slots = 16;
    while (slots / 3 * 2 < n && slots < SIZE_MAX / 4)
        slots *= 2;
    t->slots = rl_alloc(slots, sizeof *t->slots);
    if (t->slots == NULL) return false;
    memset(t->slots, 0xFF, slots * sizeof *t->slots);
    t->mask = slots - 1;
    return true;
}

void rl_merge_table_free(rl_merge_table *t)
{
    free(t->slots);
    t->slots = NULL;
}

static rl_merge *find_slot(const rl_merge_table *t, int32_t left, int32_t right)
{
    uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    for (size_t i = hash_pair(pair) & t->mask;; i = (i + 1) & t->mask) {
        rl_merge *m = &t->slots[i];
        if (m->pair == pair || m->pair == UINT64_MAX) return m;
    }
}

void rl_merge_table_add(rl_merge_table *t, int32_t left, int32_t right, uint32_t rank, int32_t result)
{
    rl_merge *m = find_slot(t, left, right);
    if (m->pair != UINT64_MAX) return;
    m->pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    m->rank = rank;
    m->result = result;
}

/* An empty slot's rank is RL_NO_RANK, so a miss needs no test. */
static uint32_t rank_of(const rl_merge_table *t, int32_t left, int32_t right)
{
    return find_slot(t, left, right)->rank;
}

static size_t merge_by_scan(const rl_merge_table *t, int32_t *ids, size_t n)
{
    uint32_t ranks[SCAN_MAX];
    for (size_t i = 0; i + 1 < n; i++)
        ranks[i] = rank_of(t, ids[i], ids[i + 1]);
    ranks[n - 1] = RL_NO_RANK;
    for (;;) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++)
            if (ranks[i] < ranks[best]) best = i;
        if (ranks[best] == RL_NO_RANK) return n;
        ids[best] = find_slot(t, ids[best], ids[best + 1])->result;
        n--;
        memmove(ids + best + 1, ids + best + 2, (n - best - 1) * sizeof *ids);
        memmove(ranks + best, ranks + best + 1, (n - best) * sizeof *ranks);
        ranks[best] = best + 1 < n ? rank_of(t, ids[best], ids[best + 1]) : RL_NO_RANK;
        if (best > 0) ranks[best - 1] = rank_of(t, ids[best - 1], ids[best]);
    }
}

/* A heap of rank << 32 | position with four children per node: half as deep as a binary one, children in one cache line. */
static void sift_down(uint64_t *heap, size_t n, size_t i)
{
    uint64_t moving = heap[i];
    for (;;) {
        size_t child = 4 * i + 1;
        if (child >= n) break;
        size_t end = child + 4 < n ? child + 4 : n, least = child;
        for (size_t c = child + 1; c < end; c++)
            if (heap[c] < heap[least]) least = c;
        if (heap[least] >= moving) break;
        heap[i] = heap[least];
        i = least;
    }
    heap[i] = moving;
}

static void heap_push(uint64_t *heap, size_t *n, uint64_t entry)
{
    size_t i = (*n)++;
    while (i > 0 && heap[(i - 1) / 4] > entry) {
        heap[i] = heap[(i - 1) / 4];
        i = (i - 1) / 4;
    }
    heap[i] = entry;
}

static bool reserve(rl_bpe_scratch *s, size_t n)
{
    if (n <= s->capacity) return true;
    rl_bpe_scratch_free(s);
    s->symbols = rl_alloc(n, sizeof *s->symbols);
    /* n - 1 entries at the start and at most two more for each of the n - 1 merges. */
    s->heap = rl_alloc(n, 3 * sizeof *s->heap);
    if (s->symbols == NULL || s->heap == NULL) {
        rl_bpe_scratch_free(s);
        return false;
    }
    s->capacity = n;
    return true;
}

static void renew_rank(const rl_merge_table *t, rl_bpe_symbol *sym, uint32_t i, uint64_t *heap, size_t *n_heap)
{
    sym[i].rank = sym[i].next == NONE ? RL_NO_RANK : rank_of(t, sym[i].id, sym[sym[i].next].id);
    if (sym[i].rank != RL_NO_RANK) heap_push(heap, n_heap, (uint64_t)sym[i].rank << 32 | i);
}

static size_t merge_by_heap(const rl_merge_table *t, rl_bpe_scratch *s, int32_t *ids, size_t n)
{
    if (!reserve(s, n)) return 0;
    rl_bpe_symbol *sym = s->symbols;
    uint64_t *heap = s->heap;
    size_t n_heap = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t rank = i + 1 < n ? rank_of(t, ids[i], ids[i + 1]) : RL_NO_RANK;
        sym[i] = (rl_bpe_symbol){ids[i], rank, i > 0 ? (uint32_t)i - 1 : NONE, i + 1 < n ? (uint32_t)i + 1 : NONE};
        if (rank != RL_NO_RANK) heap[n_heap++] = (uint64_t)rank << 32 | i;
    }
    for (size_t i = n_heap / 4 + 1; i-- > 0;)
        if (i < n_heap) sift_down(heap, n_heap, i);

    while (n_heap > 0) {
        uint64_t top = heap[0];
        heap[0] = heap[--n_heap];
        if (n_heap > 0) sift_down(heap, n_heap, 0);
        uint32_t i = (uint32_t)top;
        if (sym[i].rank != (uint32_t)(top >> 32)) continue;
        uint32_t gone = sym[i].next;
        sym[i].id = find_slot(t, sym[i].id, sym[gone].id)->result;
        sym[i].next = sym[gone].next;
        sym[gone].rank = RL_NO_RANK;
        if (sym[i].next != NONE) sym[sym[i].next].prev = i;
        renew_rank(t, sym, i, heap, &n_heap);
        if (sym[i].prev != NONE) renew_rank(t, sym, sym[i].prev, heap, &n_heap);
    }
    size_t count = 0;
    for (uint32_t i = 0; i != NONE; i = sym[i].next)
        ids[count++] = sym[i].id;
    return count;
}

void rl_bpe_scratch_free(rl_bpe_scratch *s)
{
    free(s->symbols);
    free(s->heap);
    *s = (rl_bpe_scratch){0};
}

size_t rl_bpe_merge(const rl_merge_table *t, rl_bpe_scratch *scratch, int32_t *ids, size_t n)
{
    if (n < 2) return n;
    return n <= SCAN_MAX ? merge_by_scan(t, ids, n) : merge_by_heap(t, scratch, ids, n);
}
