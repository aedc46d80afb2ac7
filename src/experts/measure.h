/* experts/measure: how fast this file's experts can be read at random, by reading some. */
#ifndef RL_EXPERTS_MEASURE_H
#define RL_EXPERTS_MEASURE_H

#include "model/model.h"

/* Reads expert matrices at random places for about `seconds`; bytes per second, and how they were read ("io_uring, direct").
 * What is cached by the system counts as fast as it comes. */
rl_status rl_experts_measure(const rl_model *m, double seconds, double *bytes_per_second, char how[48], rl_error *err);

#endif
