/* engine/kernel: the speed of single kernels, for programs that know types by name. */
#include "backend/cpu/kernel_bench.h"
#include "engine/engine.h"

#include <string.h>
#include <strings.h>

static rl_status find_type(const char *name, rl_type *out, rl_error *err)
{
    for (uint32_t t = 0; t < RL_TYPE_END; t++) {
        const rl_type_info *info = rl_type_get(t);
        if (info && name && strcasecmp(info->name, name) == 0) {
            *out = (rl_type)t;
            return RL_OK;
        }
    }
    char shown[64];
    return rl_fail(err, RL_ERR_ARGUMENT, "there is no weight type \"%s\"",
                   rl_escape(shown, sizeof shown, name ? name : "", name ? strlen(name) : 0));
}

rl_status rl_kernel_measure(const rl_kernel_options *o, rl_kernel_speed *out, rl_error *err)
{
    rl_kernel_bench_case c = {.precision = o->precision,
                              .repack = o->repack,
                              .acts = o->tokens,
                              .rows = o->rows,
                              .cols = o->cols,
                              .bytes = o->bytes,
                              .seconds = o->seconds};
    rl_kernel_bench_result r = {0};
    rl_status st = find_type(o->type, &c.type, err);
    if (st == RL_OK) st = rl_isa_parse(o->isa ? o->isa : "auto", &c.isa, err);
    if (st == RL_OK) st = rl_kernel_bench(&c, &r, err);
    if (st != RL_OK) return st;
    *out = (rl_kernel_speed){.repacked = r.repacked,
                             .bytes_per_weight = r.bytes_per_weight,
                             .bytes_per_second = r.bytes_per_second,
                             .weights_per_second = r.weights_per_second,
                             .macs_per_second = r.macs_per_second};
    return RL_OK;
}
