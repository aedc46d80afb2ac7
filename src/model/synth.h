/* model/synth: model files with random weights at real shapes. The interface is public: rl_synth in redlite.h. */
#ifndef RL_MODEL_SYNTH_H
#define RL_MODEL_SYNTH_H

#include "base/error.h"

#endif
