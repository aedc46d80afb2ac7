/* engine/cgroup: the memory that control groups leave to this process. */
#ifndef RL_ENGINE_CGROUP_H
#define RL_ENGINE_CGROUP_H

#include <stdint.h>

/* The smallest limit on the way from this process's group to the root, and the smallest room left under one (page cache counts
 * as room: it is given back). Both 0 when there is no limit. `root` is where cgroup file systems are mounted, `proc_cgroup` the
 * text of /proc/self/cgroup. */
void rl_cgroup_memory(const char *root, const char *proc_cgroup, uint64_t *limit, uint64_t *left);

#endif
