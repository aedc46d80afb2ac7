/* experts/budget: names of residencies, and the value of --cache-mib. */
#include "base/error.h"

#include <string.h>

#define MAX_MIB (1u << 24)

const char *rl_residency_name(rl_residency r)
{
    static const char *const names[] = {"auto", "mapped", "full", "bounded"};
    return names[r <= RL_RESIDENCY_BOUNDED ? r : RL_RESIDENCY_AUTO];
}

rl_status rl_cache_parse(const char *text, rl_residency *residency, uint64_t *bytes, rl_error *err)
{
    for (rl_residency r = RL_RESIDENCY_AUTO; r < RL_RESIDENCY_BOUNDED; r++)
        if (strcmp(text, rl_residency_name(r)) == 0) {
            *residency = r;
            *bytes = 0;
            return RL_OK;
        }
    uint64_t mib = 0;
    const char *p = text;
    for (; *p >= '0' && *p <= '9' && mib <= MAX_MIB; p++)
        mib = mib * 10 + (uint64_t)(*p - '0');
    char shown[64];
    if (p == text || *p != '\0' || mib < 1 || mib > MAX_MIB)
        return rl_fail(err, RL_ERR_ARGUMENT, "the cache is \"%s\"; expected auto, full, mapped or 1 to %u MiB",
                       rl_escape_str(shown, sizeof shown, text), MAX_MIB);
    *residency = RL_RESIDENCY_BOUNDED;
    *bytes = mib << 20;
    return RL_OK;
}
