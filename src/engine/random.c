/* engine/random: see random.h. */
#include "engine/random.h"

#include <math.h>

enum { MIDDLE = 397 };

void rl_random_seed(rl_random *r, uint32_t seed)
{
    r->word[0] = seed;
    for (uint32_t i = 1; i < RL_MT_WORDS; i++) {
        uint32_t w = r->word[i - 1];
        r->word[i] = 1812433253u * (w ^ w >> 30) + i;
    }
    r->next = RL_MT_WORDS;
}

static void make_words(rl_random *r)
{
    for (uint32_t i = 0; i < RL_MT_WORDS; i++) {
        uint32_t y = (r->word[i] & 0x80000000u) | (r->word[(i + 1) % RL_MT_WORDS] & 0x7fffffffu);
        r->word[i] = r->word[(i + MIDDLE) % RL_MT_WORDS] ^ y >> 1 ^ (y & 1 ? 0x9908b0dfu : 0);
    }
    r->next = 0;
}

uint32_t rl_random_u32(rl_random *r)
{
    if (r->next == RL_MT_WORDS) make_words(r);
    uint32_t y = r->word[r->next++];
    y ^= y >> 11;
    y ^= y << 7 & 0x9d2c5680u;
    y ^= y << 15 & 0xefc60000u;
    return y ^ y >> 18;
}

double rl_random_unit(rl_random *r)
{
    double low = rl_random_u32(r), high = rl_random_u32(r);
    double u = (low + high * 4294967296.0) / 18446744073709551616.0;
    return u < 1.0 ? u : nextafter(1.0, 0.0);
}
