/* text/grammar: what generated text may look like, byte by byte.
 *
 * A grammar is a program for a small machine with calls, as regular expression engines have them, so that nesting needs no
 * limit: BYTE and SET consume, SPLIT tries both ways, CALL and RETURN nest. A matcher is the set of all places where the
 * machine may stand after the text so far. Programs are built by grammar_schema.c (JSON) and grammar_calls.c (tool calls). */
#ifndef RL_TEXT_GRAMMAR_H
#define RL_TEXT_GRAMMAR_H

#include "text/buffer.h"

typedef enum rl_gop { RL_G_BYTE, RL_G_SET, RL_G_SPLIT, RL_G_JUMP, RL_G_CALL, RL_G_RETURN } rl_gop;

typedef struct rl_ginstr {
    rl_gop op;
    uint32_t a, b; /* BYTE: a; SET: number a; SPLIT: a and b; JUMP, CALL: a */
} rl_ginstr;

struct rl_grammar {
    rl_ginstr *code;
    uint32_t n, room;
    uint64_t (*sets)[4];
    uint32_t n_sets, sets_room;
    uint32_t start;
    bool failed; /* no memory, or larger than RL_GRAMMAR_MAX */
};

#define RL_GRAMMAR_MAX (1u << 18) /* instructions */

/* ---- Building: code is written front to back -------------------------------------------------------------------------------
 */

uint32_t rl_g_emit(rl_grammar *g, rl_gop op, uint32_t a, uint32_t b); /* its place */
void rl_g_text(rl_grammar *g, rl_slice text);
void rl_g_literal(rl_grammar *g, const char *text);
/* Bytes of `chars` and of the ranges (pairs of bytes). */
void rl_g_set(rl_grammar *g, const char *chars, const char *ranges);
static inline uint32_t rl_g_here(const rl_grammar *g)
{
    return g->n;
}
static inline void rl_g_patch(rl_grammar *g, uint32_t at, uint32_t a)
{
    if (at < g->n) g->code[at].a = a;
}
static inline void rl_g_patch_b(rl_grammar *g, uint32_t at, uint32_t b)
{
    if (at < g->n) g->code[at].b = b;
}
/* Any text up to and with `end`, whose first byte does not occur in it again: the first occurrence ends it. */
void rl_g_until(rl_grammar *g, const char *end);

/* The rules of JSON, written once into a grammar: addresses to CALL. */
typedef struct rl_g_json {
    uint32_t space, value, object, array, string, number, integer, chr; /* chr: one character inside a string */
} rl_g_json;
void rl_g_json_rules(rl_grammar *g, rl_g_json *r);

/* Code for one value of a JSON schema (canonical text), in line, and afterwards the rules it refers to. lenient: keywords that
 * cannot be followed are passed over instead of refused. */
rl_status rl_g_schema(rl_grammar *g, const rl_g_json *r, rl_slice schema, bool lenient, rl_error *err);

rl_grammar *rl_g_new(rl_error *err);
/* Takes g: it becomes *out, or is freed when building failed. */
rl_status rl_g_finish(rl_grammar *g, rl_status st, rl_grammar **out, rl_error *err);

#endif
