/* base/cpu: what the processor offers. Asks the processor (x86) or the system (AArch64) for instruction sets; the cores we may
 * use are in cpu_cores.c. */
#include "base/cpu.h"
#include "base/cpu_cores.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif
#if defined(__APPLE__)
#include <sys/sysctl.h>
#endif

static rl_cpu_info info;
static pthread_once_t once = PTHREAD_ONCE_INIT;

#if defined(__x86_64__)
static bool bit(uint32_t word, int n)
{
    return (word >> n & 1) != 0;
}

static void read_brand(char out[64])
{
    uint32_t r[12] = {0};
    unsigned most, b, c, d;
    if (!__get_cpuid(0x80000000u, &most, &b, &c, &d) || most < 0x80000004u) return;
    for (unsigned i = 0; i < 3; i++)
        if (!__get_cpuid(0x80000002u + i, &r[4 * i], &r[4 * i + 1], &r[4 * i + 2], &r[4 * i + 3])) return;
    const char *text = (const char *)r;
    size_t n = 48;
    while (n > 0 && *text == ' ') {
        text++;
        n--;
    }
    n = strnlen(text, n);
    while (n > 0 && text[n - 1] == ' ')
        n--;
    rl_escape(out, 64, text, n);
}

/* The registers that the system saves on a context switch: a feature without them must not be used. */
static uint64_t saved_state(void)
{
    uint32_t lo, hi;
    __asm__ __volatile__("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
    return (uint64_t)hi << 32 | lo;
}

static void detect_isa(rl_cpu_info *c)
{
    unsigned eax, ebx, ecx, edx, ext = 0;
    read_brand(c->brand);
    if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx) || !bit(ecx, 27)) return; /* no XGETBV */
    const unsigned leaf1 = ecx;
    uint64_t state = saved_state();
    if ((state & 0x6) != 0x6 || !bit(leaf1, 28)) return;
    if (__get_cpuid(0x80000001u, &eax, &ebx, &ecx, &edx)) ext = ecx;
    if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) return;
    const unsigned subleaves = eax, b7 = ebx, c7 = ecx;
    unsigned a71 = 0;
    if (subleaves >= 1 && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx)) a71 = eax;

    c->fma = bit(leaf1, 12);
    c->f16c = bit(leaf1, 29);
    c->avx2 = bit(b7, 5);
    c->avx_vnni = bit(a71, 4);
    bool bmi = bit(b7, 3) && bit(b7, 8) && bit(ext, 5) && bit(leaf1, 23); /* BMI1, BMI2, LZCNT, POPCNT */
    bool level_avx2 = c->avx2 && c->fma && c->f16c && bmi;
    if (level_avx2) c->best = RL_ISA_AVX2;

    if ((state & 0xe0) != 0xe0) return; /* mask registers and the upper parts of ZMM */
    c->avx512 = bit(b7, 16) && bit(b7, 17) && bit(b7, 28) && bit(b7, 30) && bit(b7, 31); /* F DQ CD BW VL */
    c->avx512_vbmi = bit(c7, 1) && bit(c7, 6);
    c->avx512_vnni = bit(c7, 11);
    c->avx512_bf16 = bit(a71, 5);
    bool bit_counts = bit(c7, 12) && bit(c7, 14); /* BITALG, VPOPCNTDQ */
    if (level_avx2 && c->avx512 && c->avx512_vbmi && c->avx512_vnni && bit_counts) c->best = RL_ISA_AVX512;
}
#elif defined(__aarch64__)
static void detect_isa(rl_cpu_info *c)
{
#if defined(__APPLE__)
    int dot = 0;
    size_t n = sizeof dot;
    c->neon_dot = sysctlbyname("hw.optional.arm.FEAT_DotProd", &dot, &n, NULL, 0) == 0 && dot;
    n = sizeof c->brand;
    if (sysctlbyname("machdep.cpu.brand_string", c->brand, &n, NULL, 0) != 0) c->brand[0] = 0;
    c->brand[sizeof c->brand - 1] = 0;
#elif defined(__linux__)
    c->neon_dot = (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
#endif
    if (c->neon_dot) c->best = RL_ISA_NEON;
}
#else
static void detect_isa(rl_cpu_info *c)
{
    (void)c;
}
#endif

static void detect(void)
{
    info.best = RL_ISA_SCALAR;
    detect_isa(&info);
    if (!info.brand[0]) snprintf(info.brand, sizeof info.brand, "unknown processor");
    rl_cpu_count_cores(&info);
}

const rl_cpu_info *rl_cpu(void)
{
    pthread_once(&once, detect);
    return &info;
}

const char *rl_isa_name(rl_isa isa)
{
    switch (isa) {
    case RL_ISA_SCALAR:
        return "scalar";
    case RL_ISA_AVX2:
        return "avx2";
    case RL_ISA_AVX512:
        return "avx512";
    case RL_ISA_NEON:
        return "neon";
    }
    return "unknown";
}

static bool runs_here(rl_isa isa)
{
    rl_isa best = rl_cpu()->best;
    if (isa == RL_ISA_SCALAR) return true;
    if (isa == RL_ISA_NEON || best == RL_ISA_NEON) return isa == best;
    return isa <= best;
}

static const char *missing_for(rl_isa isa)
{
    switch (isa) {
    case RL_ISA_AVX2:
        return "AVX2, FMA, F16C, BMI2, LZCNT and POPCNT";
    case RL_ISA_AVX512:
        return "AVX-512 F, BW, DQ, VL, CD, VNNI, VBMI, VBMI2, BITALG and VPOPCNTDQ";
    case RL_ISA_NEON:
        return "AArch64 with the dot product instructions";
    case RL_ISA_SCALAR:
        break;
    }
    return "nothing";
}

rl_status rl_isa_parse(const char *name, rl_isa *out, rl_error *err)
{
    char shown[64];
    if (strcmp(name, "auto") == 0) {
        *out = rl_cpu()->best;
        return RL_OK;
    }
    for (int i = RL_ISA_SCALAR; i <= RL_ISA_NEON; i++) {
        if (strcmp(name, rl_isa_name((rl_isa)i)) != 0) continue;
        if (!runs_here((rl_isa)i))
            return rl_fail(err, RL_ERR_UNSUPPORTED, "instruction set %s needs %s, which this processor (%s) lacks", name,
                           missing_for((rl_isa)i), rl_cpu()->brand);
        *out = (rl_isa)i;
        return RL_OK;
    }
    return rl_fail(err, RL_ERR_ARGUMENT, "unknown instruction set '%s', expected auto, scalar, avx2, avx512 or neon",
                   rl_escape(shown, sizeof shown, name, strlen(name)));
}
