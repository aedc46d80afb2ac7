/* base/clock: monotonic time. rl_now (seconds) is public: redlite.h. */
#ifndef RL_BASE_CLOCK_H
#define RL_BASE_CLOCK_H

#include "redlite.h"

uint64_t rl_now_ns(void);

#endif
