/* tests/support/faults: a disk with a temper, for the reads of experts/io. */
#ifndef TESTS_SUPPORT_FAULTS_H
#define TESTS_SUPPORT_FAULTS_H

#include "experts/io.h"
#include "support/support.h"

typedef struct faults {
    rl_rng rng;
    uint32_t shorten, interrupt, fail, delay; /* one read in so many; 0 never */
    int error;                                /* of those that fail */
    uint32_t n_failed;
} faults;

/* An rl_io_fault_fn; ctx is a faults. What a shortened read brought beyond its new end is overwritten. */
int64_t inject_faults(void *ctx, const rl_io_read *r, int64_t result);

#endif
