/* tests/support/tiny_engine: see tiny_engine.h. */
#include "support/tiny_engine.h"
#include "support/support.h"
#include "support/tiny_model.h"

#include <limits.h>
#include <unistd.h>

void tiny_engine_path(char *out, size_t cap)
{
    tiny_params p = tiny_defaults();
    tiny_temp_path(out, cap);
    tiny_write(&p, out);
}

rl_engine *tiny_engine(uint32_t batch, uint32_t context)
{
    char path[PATH_MAX];
    tiny_engine_path(path, sizeof path);
    rl_engine_options o;
    rl_engine_options_init(&o);
    o.model = path;
    o.backend = "ref";
    o.threads = 2;
    o.batch = batch;
    o.context = context;
    rl_engine *e = NULL;
    rl_error err = {0};
    rl_status st = rl_engine_open(&o, &e, &err);
    unlink(path);
    rl_assert_ok(st, &err);
    tiny_engine_heal(e);
    return e;
}

static const rl_backend_ops *healthy;
static rl_backend_ops watched;
static int passes, fail_from;

static rl_status watched_forward(rl_backend *b, const rl_pass *pass, rl_error *err)
{
    passes++;
    if (fail_from == 0 || passes < fail_from) return healthy->forward(b, pass, err);
    rl_status st = healthy->forward(b, pass, err);
    if (st != RL_OK) return st;
    return rl_fail(err, RL_ERR_DEVICE, "the test's backend failed in pass %d", passes);
}

void tiny_engine_fail_at(rl_engine *e, int nth)
{
    if (e->backend->ops != &watched) {
        healthy = e->backend->ops;
        watched = *healthy;
        watched.forward = watched_forward;
        e->backend->ops = &watched;
    }
    passes = 0;
    fail_from = nth;
}

void tiny_engine_heal(rl_engine *e)
{
    tiny_engine_fail_at(e, 0);
}

int tiny_engine_passes(void)
{
    return passes;
}

void tiny_ids(int32_t *out, size_t n, uint32_t seed)
{
    rl_rng rng = rl_rng_seed(seed);
    for (size_t i = 0; i < n; i++)
        out[i] = (int32_t)rl_rng_below(&rng, 250);
}
