/* base/clock: monotonic time. */
#ifndef RL_BASE_CLOCK_H
#define RL_BASE_CLOCK_H

#include <stdint.h>

double rl_now(void); /* seconds since an arbitrary start */
uint64_t rl_now_ns(void);

#endif
