/* tests/support/tiny_engine: an engine on a small random model, and a backend that fails on demand. */
#ifndef TESTS_SUPPORT_TINY_ENGINE_H
#define TESTS_SUPPORT_TINY_ENGINE_H

#include "engine/engine.h"

/* Backend "ref", the given prefill batch (0 = default) and context. Ends the test when it cannot. */
rl_engine *tiny_engine(uint32_t batch, uint32_t context);
void tiny_engine_path(char *out, size_t cap); /* a model file for rl_engine_open: the caller unlinks */

/* From the nth forward pass after this call on (1 = the next), passes of e fail until tiny_engine_heal. A failing pass leaves
 * the sequences it named in disorder first, as a real failure may. Returns nothing to free. */
void tiny_engine_fail_at(rl_engine *e, int nth);
void tiny_engine_heal(rl_engine *e);
int tiny_engine_passes(void); /* forward passes since tiny_engine_fail_at or tiny_engine_heal */

/* n ids that differ from call to call only by seed. */
void tiny_ids(int32_t *out, size_t n, uint32_t seed);

#endif
