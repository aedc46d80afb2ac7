/* backend/cpu/kernel_bench: speed of the matrix kernels alone, on one thread and in its CPU time. */
#ifndef RL_CPU_KERNEL_BENCH_H
#define RL_CPU_KERNEL_BENCH_H

#include "backend/cpu/matmul.h"

typedef struct rl_kernel_bench_case {
    rl_type type;
    rl_isa isa;
    rl_precision precision;
    bool repack;    /* ask for the re-encoded layout */
    uint32_t acts;  /* activation rows: 1 is decode */
    uint32_t rows;  /* of each matrix */
    uint32_t cols;  /* a multiple of 256 */
    uint64_t bytes; /* matrices are walked in turn until they add up to this in the file's layout; at least one */
    double seconds; /* lower bound of the measured time */
} rl_kernel_bench_case;

typedef struct rl_kernel_bench_result {
    bool repacked;           /* false when the type has no other layout */
    double bytes_per_weight; /* of the layout used */
    double bytes_per_second; /* of weights read */
    double weights_per_second;
    double macs_per_second; /* weights times activation rows */
} rl_kernel_bench_result;

rl_status rl_kernel_bench(const rl_kernel_bench_case *c, rl_kernel_bench_result *out, rl_error *err);

#endif
