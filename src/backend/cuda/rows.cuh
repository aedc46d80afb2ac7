/* backend/cuda/rows: pieces that kernels over rows share. */
#ifndef RL_CUDA_ROWS_CUH
#define RL_CUDA_ROWS_CUH

#include "backend/cuda/common.cuh"

static __device__ __forceinline__ float warp_sum(float v)
{
#pragma unroll
    for (int d = 16; d; d /= 2)
        v += __shfl_xor_sync(~0u, v, d);
    return v;
}

static __device__ __forceinline__ float warp_max(float v)
{
#pragma unroll
    for (int d = 16; d; d /= 2)
        v = fmaxf(v, __shfl_xor_sync(~0u, v, d));
    return v;
}

/* Sum and maximum over a block of whole warps (at most 32); `shared` has 64 floats. Every thread gets the result. */
static __device__ __forceinline__ void block_sum_max(float &sum, float &max, float *shared)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, n = blockDim.x / 32;
    sum = warp_sum(sum);
    max = warp_max(max);
    __syncthreads();
    if (lane == 0) shared[warp] = sum, shared[32 + warp] = max;
    __syncthreads();
    sum = lane < n ? shared[lane] : 0.0f;
    max = lane < n ? shared[32 + lane] : 0.0f;
    sum = warp_sum(sum);
    max = warp_max(max);
}

static __device__ __forceinline__ float sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

static __device__ __forceinline__ float silu(float x)
{
    return x / (1.0f + expf(-x));
}

/* Place of column k among the activations of its 256 (mma.cu). */
static __device__ __forceinline__ uint32_t half_place(uint32_t k)
{
    const uint32_t t = (k % 256) / 64, j = (k % 64) / 4, i = k % 4;
    return k / 256 * 256 + (j / 2) * 32 + t * 8 + (j % 2) * 4 + i;
}

/* A power of two that brings `max` to 256 .. 512, where f16 has room on both sides. */
static __device__ __forceinline__ float row_scale(float max)
{
    if (!(max > 0.0f) || isinf(max)) return 1.0f;
    int e = ilogbf(max) - 8;
    return ldexpf(1.0f, e < -120 ? -120 : e);
}

#endif
