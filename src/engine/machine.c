/* engine/machine: the processor and the memory this process may use. */
#include "base/cpu.h"
#include "engine/cgroup.h"
#include "redlite.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Value in bytes of a line "Name:   123 kB" of /proc/meminfo; 0 when there is none. */
static uint64_t field(const char *path, const char *name, uint64_t unit)
{
    FILE *f = fopen(path, "re");
    if (!f) return 0;
    char line[256];
    uint64_t value = 0, result = 0;
    size_t n = strlen(name);
    while (fgets(line, sizeof line, f))
        if (strncmp(line, name, n) == 0 && sscanf(line + n, " %" SCNu64, &value) == 1) {
            result = value * unit;
            break;
        }
    fclose(f);
    return result;
}

void rl_machine(rl_machine_info *out)
{
    const rl_cpu_info *cpu = rl_cpu();
    memset(out, 0, sizeof *out);
    snprintf(out->cpu, sizeof out->cpu, "%s", cpu->brand);
    out->logical_cores = cpu->logical_cores;
    out->physical_cores = cpu->physical_cores;
    out->best_isa = rl_isa_name(cpu->best);
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    if (pages > 0 && page > 0) out->memory_bytes = (uint64_t)pages * (uint64_t)page;
    out->memory_available_bytes = field("/proc/meminfo", "MemAvailable:", 1024);
    char *groups = NULL;
    size_t size;
    uint64_t limit, left;
    if (rl_read_file("/proc/self/cgroup", 65536, &groups, &size, NULL) != RL_OK) return;
    rl_cgroup_memory("/sys/fs/cgroup", groups, &limit, &left);
    free(groups);
    if (!limit) return;
    if (!out->memory_bytes || limit < out->memory_bytes) out->memory_bytes = limit;
    if (!out->memory_available_bytes || left < out->memory_available_bytes) out->memory_available_bytes = left;
}
