/* engine/cgroup: memory limits of version 1 and version 2 groups. What cannot be read sets no limit. */
#include "engine/cgroup.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

/* The names of the same three facts in both versions. */
typedef struct version {
    const char *limit, *used, *stat;
    const char *cache[2]; /* lines of stat that can be given back */
} version;

static const version v1 = {
    "memory.limit_in_bytes", "memory.usage_in_bytes", "memory.stat", {"total_inactive_file ", "total_active_file "}};
static const version v2 = {"memory.max", "memory.current", "memory.stat", {"inactive_file ", "active_file "}};

/* The number after `name` at the start of a line of dir/file; "" takes the first line. 0 when there is none. */
static uint64_t number(const char *dir, const char *file, const char *name)
{
    char path[PATH_MAX], line[256];
    uint64_t value = 0;
    if (snprintf(path, sizeof path, "%s/%s", dir, file) >= (int)sizeof path) return 0;
    FILE *f = fopen(path, "re");
    if (!f) return 0;
    const size_t n = strlen(name);
    while (fgets(line, sizeof line, f))
        if (strncmp(line, name, n) == 0 && sscanf(line + n, "%" SCNu64, &value) == 1) break;
    fclose(f);
    return value;
}

static uint64_t smaller(uint64_t a, uint64_t b)
{
    return a == 0 ? b : b == 0 || a < b ? a : b;
}

static void look_at(const char *dir, const version *v, uint64_t *limit, uint64_t *left)
{
    const uint64_t max = number(dir, v->limit, ""); /* "max" is no number; version 1 writes nearly 2^63 for no limit */
    if (max == 0 || max > UINT64_C(1) << 60) return;
    uint64_t used = number(dir, v->used, "");
    const uint64_t cache = number(dir, v->stat, v->cache[0]) + number(dir, v->stat, v->cache[1]);
    used -= cache < used ? cache : used;
    *limit = smaller(*limit, max);
    *left = smaller(*left, used < max ? max - used : 1);
}

/* Every group on the way up to the mount limits its children. */
static void walk(const char *mount, const char *group, const version *v, uint64_t *limit, uint64_t *left)
{
    char dir[PATH_MAX];
    if (snprintf(dir, sizeof dir, "%s%s", mount, group) >= (int)sizeof dir) return;
    const size_t base = strlen(mount);
    for (;;) {
        look_at(dir, v, limit, left);
        char *slash = strrchr(dir + base, '/');
        if (!slash) return;
        *slash = 0;
    }
}

void rl_cgroup_memory(const char *root, const char *proc_cgroup, uint64_t *limit, uint64_t *left)
{
    *limit = *left = 0;
    for (const char *line = proc_cgroup; line && *line;) {
        const char *end = strchr(line, '\n');
        char text[PATH_MAX], mount[PATH_MAX];
        const size_t n = end ? (size_t)(end - line) : strlen(line);
        if (n < sizeof text) {
            memcpy(text, line, n);
            text[n] = 0;
            char *controllers = strchr(text, ':'), *group = controllers ? strchr(controllers + 1, ':') : NULL;
            if (group) {
                *group++ = 0;
                controllers++;
                if (strcmp(group, "/") == 0) group = "";
                if (*controllers == 0)
                    walk(root, group, &v2, limit, left);
                else if (strcmp(controllers, "memory") == 0 &&
                         snprintf(mount, sizeof mount, "%s/memory", root) < (int)sizeof mount)
                    walk(mount, group, &v1, limit, left);
            }
        }
        line = end ? end + 1 : NULL;
    }
}
