/* backend/cuda/graph: the end of recorded passes. */
#include "backend/cuda/decode.cuh"

void graphs_free(decode_graphs *g)
{
    if (!g) return;
    for (decode_graphs::entry &e : g->entries)
        if (e.exec) cudaGraphExecDestroy(e.exec);
    delete g;
}
