/* engine/machine: the processor and the memory this process may use. */
#include "base/cpu.h"
#include "redlite.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Value in bytes of a line "Name:   123 kB" of /proc/meminfo or "name 123" of a cgroup file; 0 when there is none. */
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

static uint64_t number_in(const char *path)
{
    return field(path, "", 1); /* "max" (no limit) does not parse: 0 */
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
    /* A container's limit; what its page cache holds can be given back. */
    uint64_t limit = number_in("/sys/fs/cgroup/memory.max");
    if (limit && (!out->memory_bytes || limit < out->memory_bytes)) {
        out->memory_bytes = limit;
        uint64_t used = number_in("/sys/fs/cgroup/memory.current");
        uint64_t cache =
            field("/sys/fs/cgroup/memory.stat", "inactive_file", 1) + field("/sys/fs/cgroup/memory.stat", "active_file", 1);
        used -= cache < used ? cache : used;
        uint64_t left = used < limit ? limit - used : 0;
        if (!out->memory_available_bytes || left < out->memory_available_bytes) out->memory_available_bytes = left;
    }
}
