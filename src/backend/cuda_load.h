/* backend/cuda_load: finds the CUDA library beside the program. The program itself never needs CUDA to be installed. */
#ifndef RL_CUDA_LOAD_H
#define RL_CUDA_LOAD_H

#include "backend/cuda/abi.h"

/* NULL when no GPU can be used; *why (may be NULL) then points at a sentence. Looked up once per process. The library is looked
 * for at $REDLITE_CUDA_LIBRARY, beside the executable, in ../lib from there, and where the system looks. */
const rl_cuda_library *rl_cuda_load(const char **why);

#endif
