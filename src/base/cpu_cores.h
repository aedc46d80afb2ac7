/* base/cpu_cores: how many cores this process may use, and the sizes of their caches. For cpu.c and its tests. */
#ifndef RL_BASE_CPU_CORES_H
#define RL_BASE_CPU_CORES_H

#include "base/cpu.h"

/* Fills the core counts and cache sizes. */
void rl_cpu_count_cores(rl_cpu_info *c);

/* Whole processors that the cgroups of this process allow, at least 1; 0 when there is no limit. `proc_cgroup` is the text of
 * /proc/self/cgroup, `root` the place where cgroup file systems are mounted. */
int rl_cgroup_cpus(const char *root, const char *proc_cgroup);

#endif
