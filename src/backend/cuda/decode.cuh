/* backend/cuda/decode: one row, fused. */
#ifndef RL_CUDA_DECODE_CUH
#define RL_CUDA_DECODE_CUH

#include "backend/cuda/forward.cuh"

/* The model's formats and shape suit the fused kernels. */
bool decode_suits(const cuda_backend *b);
/* Launches a token of the sequence in the descriptors. With `logits` they end in s.logits and the normed row in s.hidden. */
void decode_step(cuda_backend *b, uint32_t splits, bool logits);
/* From s.raw (q with gates), s.k and s.v to s.core; appends to the cache. */
void decode_attention(cuda_backend *b, const dlayer &l, uint32_t splits);
uint32_t decode_splits(const cuda_backend *b, uint32_t positions);

bool decode_attention_takes(const dshape &d);

/* A launch that may begin before its predecessor on the stream has ended (gemv.cuh). */
template <typename... P, typename... A>
void launch_early(const cuda_backend *b, void (*kernel)(P...), dim3 grid, uint32_t threads, size_t smem, const A &...args)
{
    cudaLaunchConfig_t c = {};
    cudaLaunchAttribute early = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    c.gridDim = grid;
    c.blockDim = dim3(threads);
    c.dynamicSmemBytes = smem;
    c.stream = b->stream;
    c.attrs = &early;
    c.numAttrs = b->cc >= 90 ? 1 : 0;
    cudaLaunchKernelEx(&c, kernel, P(args)...);
}

/* ---- graph.cu: recorded passes ------------------------------------------------------------------------------------------- */

struct graph_key {
    uint32_t rows, segments, splits;
    int kind; /* 0 staged, 1 fused, 2 fused with logits */
    bool operator==(const graph_key &o) const
    {
        return rows == o.rows && segments == o.segments && splits == o.splits && kind == o.kind;
    }
};

struct decode_graphs {
    struct entry {
        graph_key key;
        cudaGraphExec_t exec;
        uint64_t used;
    };
    std::vector<entry> entries;
    uint64_t clock;
};

/* Replays the graph of a key. The first pass of a key is launched plainly (kernels are loaded then), the second is recorded. */
template <typename BODY> rl_status replay(cuda_backend *b, const graph_key &key, BODY body, rl_error *err);
void graphs_free(decode_graphs *g);

enum { MAX_GRAPHS = 48 };

template <typename BODY> static rl_status record(cuda_backend *b, cudaGraphExec_t *exec, BODY body, rl_error *err)
{
    cudaGraph_t graph = NULL;
    CHECK_CUDA(cudaStreamBeginCapture(b->stream, cudaStreamCaptureModeThreadLocal));
    const rl_status status = body();
    const cudaError_t ended = cudaStreamEndCapture(b->stream, &graph);
    if (status != RL_OK) {
        if (graph) cudaGraphDestroy(graph);
        return status;
    }
    CHECK_CUDA(ended);
    const cudaError_t made = cudaGraphInstantiate(exec, graph, 0);
    cudaGraphDestroy(graph);
    CHECK_CUDA(made);
    return RL_OK;
}

template <typename BODY> rl_status replay(cuda_backend *b, const graph_key &key, BODY body, rl_error *err)
{
    decode_graphs *g = b->graphs;
    for (decode_graphs::entry &e : g->entries)
        if (e.key == key) {
            e.used = ++g->clock;
            if (!e.exec) TRY(record(b, &e.exec, body, err));
            CHECK_CUDA(cudaGraphLaunch(e.exec, b->stream));
            return RL_OK;
        }
    if (g->entries.size() >= MAX_GRAPHS) {
        size_t oldest = 0;
        for (size_t i = 1; i < g->entries.size(); i++)
            if (g->entries[i].used < g->entries[oldest].used) oldest = i;
        if (g->entries[oldest].exec) CHECK_CUDA(cudaGraphExecDestroy(g->entries[oldest].exec));
        g->entries.erase(g->entries.begin() + (long)oldest);
    }
    g->entries.push_back({key, NULL, ++g->clock});
    return body();
}

#endif
