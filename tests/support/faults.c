#include "support/faults.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

static bool one_in(faults *f, uint32_t n)
{
    return n > 0 && rl_rng_below(&f->rng, n) == 0;
}

int64_t inject_faults(void *ctx, const rl_io_read *r, int64_t result)
{
    faults *f = ctx;
    if (one_in(f, f->delay)) usleep(rl_rng_below(&f->rng, 300));
    if (one_in(f, f->fail)) {
        f->n_failed++;
        return -f->error;
    }
    if (one_in(f, f->interrupt)) return -EINTR;
    if (result > 1 && one_in(f, f->shorten)) {
        const int64_t less = 1 + (int64_t)rl_rng_below(&f->rng, (uint32_t)(result - 1));
        memset(r->dst + r->done + less, 0xee, (size_t)(result - less));
        return less;
    }
    return result;
}
