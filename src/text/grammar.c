/* text/grammar: building blocks of programs, see grammar.h. */
#include "text/grammar.h"
#include "base/error.h"
#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

rl_grammar *rl_g_new(rl_error *err)
{
    rl_grammar *g = rl_calloc(1, sizeof *g);
    if (!g) rl_fail(err, RL_ERR_MEMORY, "no memory for a grammar");
    return g;
}

void rl_grammar_free(rl_grammar *g)
{
    if (!g) return;
    free(g->code);
    free(g->sets);
    free(g);
}

rl_status rl_g_finish(rl_grammar *g, rl_status st, rl_grammar **out, rl_error *err)
{
    if (st == RL_OK && g->failed) st = rl_fail(err, RL_ERR_LIMIT, "the grammar is larger than %u steps", RL_GRAMMAR_MAX);
    if (st == RL_OK)
        *out = g;
    else
        rl_grammar_free(g);
    return st;
}

uint32_t rl_g_emit(rl_grammar *g, rl_gop op, uint32_t a, uint32_t b)
{
    if (g->n == RL_GRAMMAR_MAX) g->failed = true;
    if (g->failed) return 0;
    if (g->n == g->room) {
        uint32_t room = g->room ? g->room * 2 : 256;
        rl_ginstr *grown = rl_realloc(g->code, room, sizeof *grown);
        if (!grown) {
            g->failed = true;
            return 0;
        }
        g->code = grown;
        g->room = room;
    }
    g->code[g->n] = (rl_ginstr){op, a, b};
    return g->n++;
}

void rl_g_text(rl_grammar *g, rl_slice text)
{
    for (size_t i = 0; i < text.size; i++)
        rl_g_emit(g, RL_G_BYTE, (unsigned char)text.data[i], 0);
}

void rl_g_literal(rl_grammar *g, const char *text)
{
    rl_g_text(g, rl_slice_of(text));
}

static void emit_set(rl_grammar *g, const uint64_t bits[4])
{
    for (uint32_t i = 0; i < g->n_sets; i++)
        if (memcmp(g->sets[i], bits, sizeof g->sets[i]) == 0) {
            rl_g_emit(g, RL_G_SET, i, 0);
            return;
        }
    if (g->n_sets == g->sets_room) {
        uint32_t room = g->sets_room ? g->sets_room * 2 : 16;
        uint64_t(*grown)[4] = rl_realloc(g->sets, room, sizeof *grown);
        if (!grown) {
            g->failed = true;
            return;
        }
        g->sets = grown;
        g->sets_room = room;
    }
    memcpy(g->sets[g->n_sets], bits, sizeof g->sets[0]);
    rl_g_emit(g, RL_G_SET, g->n_sets++, 0);
}

static void add_byte(uint64_t bits[4], unsigned char c)
{
    bits[c / 64] |= 1ull << c % 64;
}

void rl_g_set(rl_grammar *g, const char *chars, const char *ranges)
{
    uint64_t bits[4] = {0};
    for (const unsigned char *c = (const unsigned char *)chars; *c; c++)
        add_byte(bits, *c);
    for (const unsigned char *c = (const unsigned char *)ranges; *c; c += 2)
        for (unsigned v = c[0]; v <= c[1]; v++)
            add_byte(bits, (unsigned char)v);
    emit_set(g, bits);
}

/* States 0..n of the search for `end`, one after the other: at k bytes matched the next one leads to k + 1, the first byte of
 * `end` back to 1, every other byte to 0. */
void rl_g_until(rl_grammar *g, const char *end)
{
    enum { MAX = 64 };
    uint32_t state[MAX] = {0};
    size_t n = strlen(end);
    for (size_t k = 0; k < n && k < MAX; k++) {
        uint64_t rest[4] = {~0ull, ~0ull, ~0ull, ~0ull};
        unsigned char next = (unsigned char)end[k], first = (unsigned char)end[0];
        rest[next / 64] &= ~(1ull << next % 64);
        rest[first / 64] &= ~(1ull << first % 64);
        state[k] = rl_g_here(g);
        uint32_t split = rl_g_emit(g, RL_G_SPLIT, 0, 0);
        rl_g_patch(g, split, rl_g_here(g));
        emit_set(g, rest);
        rl_g_emit(g, RL_G_JUMP, state[0], 0);
        rl_g_patch_b(g, split, rl_g_here(g));
        if (k > 0) { /* its first byte again */
            split = rl_g_emit(g, RL_G_SPLIT, 0, 0);
            rl_g_patch(g, split, rl_g_here(g));
            rl_g_emit(g, RL_G_BYTE, first, 0);
            rl_g_emit(g, RL_G_JUMP, state[1 < n ? 1 : 0], 0);
            rl_g_patch_b(g, split, rl_g_here(g));
        }
        rl_g_emit(g, RL_G_BYTE, next, 0); /* falls through to the next state */
    }
}
