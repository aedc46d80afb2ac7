/* base/cpu_cores: cores and caches as the system reports them. A file that is missing or odd means "unknown", never failure: a
 * wrong count costs speed only. */
#include "base/cpu_cores.h"
#include "base/file.h"
#include "base/mem.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#if defined(__linux__)
#include <sched.h>
#endif
#if defined(__APPLE__)
#include <sys/sysctl.h>
#endif

#define SMALL_FILE 65536

/* The text of a small system file, or NULL. free() it. */
static char *slurp(const char *path)
{
    char *text;
    size_t n;
    return rl_read_file(path, SMALL_FILE, &text, &n, NULL) == RL_OK ? text : NULL;
}

/* ---- cgroups ------------------------------------------------------------------------------------------------------------ */

/* Half a processor is rounded to one, one and a half down to one: a team that meets at barriers loses more to a throttled
 * member than it gains from one more. */
static int whole_cpus(long long quota, long long period)
{
    if (quota <= 0 || period <= 0) return 0;
    long long n = quota / period;
    return n < 1 ? 1 : n > INT_MAX ? INT_MAX : (int)n;
}

static int quota_v2(const char *dir)
{
    char path[PATH_MAX];
    long long quota, period;
    if (snprintf(path, sizeof path, "%s/cpu.max", dir) >= (int)sizeof path) return 0;
    char *text = slurp(path);
    int n = text && sscanf(text, "%lld %lld", &quota, &period) == 2 ? whole_cpus(quota, period) : 0;
    free(text);
    return n;
}

static int quota_v1(const char *dir)
{
    char path[PATH_MAX];
    long long quota = 0, period = 0;
    if (snprintf(path, sizeof path, "%s/cpu.cfs_quota_us", dir) >= (int)sizeof path) return 0;
    char *text = slurp(path);
    if (text) quota = strtoll(text, NULL, 10);
    free(text);
    snprintf(path, sizeof path, "%s/cpu.cfs_period_us", dir);
    text = slurp(path);
    if (text) period = strtoll(text, NULL, 10);
    free(text);
    return whole_cpus(quota, period);
}

static int smaller_limit(int a, int b)
{
    return a == 0 ? b : b == 0 || a < b ? a : b;
}

/* Every group on the way up to the root limits its children. */
static int limit_along(const char *mount, const char *group, int (*quota)(const char *dir))
{
    char dir[PATH_MAX];
    int limit = 0;
    size_t base = strlen(mount);
    if (snprintf(dir, sizeof dir, "%s%s", mount, group) >= (int)sizeof dir) return 0;
    for (;;) {
        limit = smaller_limit(limit, quota(dir));
        char *slash = strrchr(dir + base, '/');
        if (!slash) return limit;
        *slash = 0;
    }
}

static bool lists_cpu(const char *controllers, size_t n)
{
    while (n > 0) {
        const char *comma = memchr(controllers, ',', n);
        size_t word = comma ? (size_t)(comma - controllers) : n;
        if (word == 3 && memcmp(controllers, "cpu", 3) == 0) return true;
        if (!comma) return false;
        controllers += word + 1;
        n -= word + 1;
    }
    return false;
}

/* One line is "number:controllers:path"; version 2 has number 0 and no controllers. */
static int limit_of_line(const char *root, const char *line, size_t n)
{
    char group[PATH_MAX], mount[PATH_MAX];
    const char *first = memchr(line, ':', n);
    const char *second = first ? memchr(first + 1, ':', (size_t)(line + n - first - 1)) : NULL;
    if (!second) return 0;
    size_t length = (size_t)(line + n - second - 1);
    if (length >= sizeof group) return 0;
    memcpy(group, second + 1, length);
    group[length] = 0;
    size_t controllers = (size_t)(second - first - 1);
    if (controllers == 0) return limit_along(root, group, quota_v2);
    if (!lists_cpu(first + 1, controllers)) return 0;
    if (snprintf(mount, sizeof mount, "%s/%.*s", root, (int)controllers, first + 1) >= (int)sizeof mount) return 0;
    int limit = limit_along(mount, group, quota_v1);
    snprintf(mount, sizeof mount, "%s/cpu", root); /* the usual link, whatever the order of the controllers */
    return smaller_limit(limit, limit_along(mount, group, quota_v1));
}

int rl_cgroup_cpus(const char *root, const char *proc_cgroup)
{
    int limit = 0;
    for (const char *line = proc_cgroup; *line;) {
        size_t n = strcspn(line, "\n");
        limit = smaller_limit(limit, limit_of_line(root, line, n));
        line += n;
        if (*line) line++;
    }
    return limit;
}

/* ---- cores -------------------------------------------------------------------------------------------------------------- */

#if defined(__linux__)
/* The lowest numbered hardware thread of the core that `cpu` belongs to; cpu itself when the system does not say. */
static int core_leader(int cpu)
{
    char path[128];
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu);
    char *text = slurp(path);
    int leader = cpu;
    if (text && sscanf(text, "%d", &leader) != 1) leader = cpu;
    free(text);
    return leader;
}

static void read_caches(rl_cpu_info *c, int cpu)
{
    for (int index = 0; index < 8; index++) {
        char path[128], unit = 0;
        int level = 0;
        unsigned size = 0;
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/cache/index%d/level", cpu, index);
        char *text = slurp(path);
        if (!text) return;
        level = (int)strtol(text, NULL, 10);
        free(text);
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/cache/index%d/type", cpu, index);
        text = slurp(path);
        bool data = text && strncmp(text, "Instruction", 11) != 0;
        free(text);
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/cache/index%d/size", cpu, index);
        text = slurp(path);
        if (text && sscanf(text, "%u%c", &size, &unit) == 2 && size < 1u << 20) size *= unit == 'K' ? 1u << 10 : 1;
        if (text && unit == 'M' && size < 1u << 12) size <<= 20;
        free(text);
        if (!data) continue;
        if (level == 1) c->l1d_bytes = size;
        if (level == 2) c->l2_bytes = size;
        if (level == 3) c->l3_bytes = size;
    }
}

/* The affinity mask, grown until the kernel's fits. NULL when the system refuses. */
static cpu_set_t *affinity(int *cpus)
{
    for (int n = 1024; n <= 1 << 16; n *= 4) {
        cpu_set_t *set = CPU_ALLOC((size_t)n);
        if (!set) return NULL;
        CPU_ZERO_S(CPU_ALLOC_SIZE((size_t)n), set);
        if (sched_getaffinity(0, CPU_ALLOC_SIZE((size_t)n), set) == 0) {
            *cpus = n;
            return set;
        }
        CPU_FREE(set);
    }
    return NULL;
}

static void count_allowed(rl_cpu_info *c)
{
    int n = 0, first = -1;
    cpu_set_t *set = affinity(&n);
    bool *leaders = rl_calloc((size_t)n, sizeof *leaders);
    for (int cpu = 0; set && leaders && cpu < n; cpu++) {
        if (!CPU_ISSET_S((size_t)cpu, CPU_ALLOC_SIZE((size_t)n), set)) continue;
        if (first < 0) first = cpu;
        c->logical_cores++;
        int leader = core_leader(cpu);
        if (leader < 0 || leader >= n) leader = cpu;
        if (!leaders[leader]) c->physical_cores++;
        leaders[leader] = true;
    }
    free(leaders);
    if (set) CPU_FREE(set);
    if (first >= 0) read_caches(c, first);
}

void rl_cpu_count_cores(rl_cpu_info *c)
{
    count_allowed(c);
    if (c->logical_cores < 1) c->logical_cores = (int)sysconf(_SC_NPROCESSORS_ONLN);
    if (c->logical_cores < 1) c->logical_cores = 1;
    if (c->physical_cores < 1) c->physical_cores = c->logical_cores;
    char *groups = slurp("/proc/self/cgroup");
    int limit = groups ? rl_cgroup_cpus("/sys/fs/cgroup", groups) : 0;
    free(groups);
    if (limit > 0 && limit < c->logical_cores) c->logical_cores = limit;
    if (limit > 0 && limit < c->physical_cores) c->physical_cores = limit;
}
#elif defined(__APPLE__)
static int sysctl_int(const char *name)
{
    int64_t wide = 0;
    size_t n = sizeof wide;
    if (sysctlbyname(name, &wide, &n, NULL, 0) != 0) return 0;
    return n == sizeof(int32_t) ? (int)(int32_t)wide : (int)wide;
}

void rl_cpu_count_cores(rl_cpu_info *c)
{
    c->logical_cores = sysctl_int("hw.logicalcpu");
    /* Efficiency cores would hold a team up at every barrier. */
    c->physical_cores = sysctl_int("hw.perflevel0.physicalcpu");
    if (c->physical_cores < 1) c->physical_cores = sysctl_int("hw.physicalcpu");
    if (c->logical_cores < 1) c->logical_cores = 1;
    if (c->physical_cores < 1) c->physical_cores = c->logical_cores;
    c->l1d_bytes = (uint32_t)sysctl_int("hw.l1dcachesize");
    c->l2_bytes = (uint32_t)sysctl_int("hw.l2cachesize");
    c->l3_bytes = (uint32_t)sysctl_int("hw.l3cachesize");
}
#else
void rl_cpu_count_cores(rl_cpu_info *c)
{
    c->logical_cores = (int)sysconf(_SC_NPROCESSORS_ONLN);
    if (c->logical_cores < 1) c->logical_cores = 1;
    c->physical_cores = c->logical_cores;
}
#endif
