/* engine/random: the Mersenne twister MT19937 (Matsumoto and Nishimura 1998), seeded and read as C++'s std::mt19937 is, so that
 * a seed draws the same numbers here and in llama.cpp. */
#ifndef RL_ENGINE_RANDOM_H
#define RL_ENGINE_RANDOM_H

#include <stdint.h>

#define RL_MT_WORDS 624

typedef struct rl_random {
    uint32_t word[RL_MT_WORDS];
    uint32_t next; /* index of the next word, RL_MT_WORDS = make new ones */
} rl_random;

void rl_random_seed(rl_random *r, uint32_t seed);
uint32_t rl_random_u32(rl_random *r);

/* In [0, 1): the first output is the low half and the second the high half of a 64-bit number, rounded to double and divided by
 * 2^64, as std::uniform_real_distribution<double> does with the common standard libraries. */
double rl_random_unit(rl_random *r);

#endif
