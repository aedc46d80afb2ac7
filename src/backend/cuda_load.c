/* backend/cuda_load: dlopen of the CUDA library and the table of what it may call. */
#include "backend/cuda_load.h"
#include "base/clock.h"
#include "base/error.h"
#include "quant/quant.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_PATH 4096

static pthread_once_t once = PTHREAD_ONCE_INIT;
static rl_cuda_library library;
static bool usable;
static char reason[512];

static const rl_cuda_host *host_table(void)
{
    static const rl_cuda_host table = {
        .abi = RL_CUDA_ABI,
        .size_model = sizeof(rl_model),
        .size_ops = sizeof(rl_backend_ops),
        .size_pass = sizeof(rl_pass),
        .size_options = sizeof(rl_backend_options),
        .fail = rl_fail,
        .log = rl_log,
        .stage_width = rl_stage_width,
        .stage_name = rl_stage_name,
        .rope = rl_model_rope,
        .type_get = rl_type_get,
        .quant_get = rl_quant_get,
        .put_header = rl_state_put_header,
        .get_header = rl_state_get_header,
        .put = rl_state_put,
        .get = rl_state_get,
        .now = rl_now,
        .grids = {rl_iq1s_grid, rl_iq2xxs_grid, rl_iq2xs_grid, rl_iq2s_grid, rl_iq3xxs_grid, rl_iq3s_grid, rl_iq4nl_values,
                  rl_fp4_values, rl_ksigns},
    };
    return &table;
}

/* Folder of the running executable followed by `tail`; false when unknown. */
static bool beside_executable(const char *tail, char *path)
{
    const ssize_t n = readlink("/proc/self/exe", path, MAX_PATH - 64);
    if (n <= 0) return false;
    path[n] = '\0';
    char *slash = strrchr(path, '/');
    if (!slash) return false;
    snprintf(slash + 1, (size_t)(path + MAX_PATH - slash - 1), "%s", tail);
    return access(path, R_OK) == 0;
}

static void *open_library(void)
{
    char path[MAX_PATH];
    const char *set = getenv("REDLITE_CUDA_LIBRARY");
    if (set && *set) return dlopen(set, RTLD_NOW | RTLD_LOCAL);
    if (beside_executable(RL_CUDA_LIBRARY, path) || beside_executable("../lib/" RL_CUDA_LIBRARY, path) ||
        beside_executable("../" RL_CUDA_LIBRARY, path))
        return dlopen(path, RTLD_NOW | RTLD_LOCAL);
    return dlopen(RL_CUDA_LIBRARY, RTLD_NOW | RTLD_LOCAL);
}

static void load(void)
{
    void *handle = open_library();
    if (!handle) {
        const char *text = dlerror();
        snprintf(reason, sizeof reason, "the CUDA library was not loaded (%s); `make cuda` builds it where nvcc is installed",
                 text ? text : "unknown error");
        return;
    }
    rl_cuda_entry_fn entry;
    *(void **)&entry = dlsym(handle, RL_CUDA_ENTRY);
    if (!entry) {
        snprintf(reason, sizeof reason, "%s has no %s", RL_CUDA_LIBRARY, RL_CUDA_ENTRY);
        dlclose(handle);
        return;
    }
    usable = entry(host_table(), &library, reason, sizeof reason);
}

const rl_cuda_library *rl_cuda_load(const char **why)
{
    pthread_once(&once, load);
    if (why) *why = usable ? "" : reason;
    return usable ? &library : NULL;
}

bool rl_gpu_describe(char *out, size_t cap)
{
    const char *why;
    const rl_cuda_library *gpu = rl_cuda_load(&why);
    snprintf(out, cap, "%s", gpu ? gpu->device : why);
    return gpu != NULL;
}

rl_status rl_gpu_selftest(uint64_t seed, rl_error *err)
{
    const char *why;
    const rl_cuda_library *gpu = rl_cuda_load(&why);
    if (!gpu) return rl_fail(err, RL_ERR_DEVICE, "no GPU can be used: %s", why);
    return gpu->selftest(seed, err);
}
