/* backend/cuda/flash: attention of many rows on tensor cores.
 *
 * A block takes 128 (row, query head) pairs that share a key/value head and walks the positions 32 at a time with a running
 * maximum; queries stay in registers, tiles of keys and values arrive in shared memory while the last ones are used. Operands
 * are f16, sums f32. A float cache is converted into a buffer first: once per layer and pass, for all blocks. */
#include "backend/cuda/forward.cuh"

enum { WARPS = 8, THREADS = WARPS * 32, ROWS = WARPS * 16, KEYS = 32 };

static __device__ __forceinline__ void mma(float *c, const uint32_t *a, uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

template <bool TRANSPOSED> static __device__ __forceinline__ void load_matrices(uint32_t *r, const void *shared)
{
    const uint32_t at = (uint32_t)__cvta_generic_to_shared(shared);
    if (TRANSPOSED)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                     : "r"(at));
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                     : "r"(at));
}

static __device__ __forceinline__ void copy16(void *shared, const void *global)
{
    const uint32_t to = (uint32_t)__cvta_generic_to_shared(shared);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(global));
}

static __device__ __forceinline__ uint32_t pack(float a, float b)
{
    const __half2 h = __floats2half2_rn(a, b);
    return *(const uint32_t *)&h;
}

/* Keys and values of positions below `end` of one cache of a segment, as f16. */
__global__ void k_cache_half(const dseg *segs, uint32_t segment, dshape d, uint32_t cache, uint32_t end, __half *keys,
                             __half *values)
{
    const dseg g = segs[segment];
    const uint64_t width = (uint64_t)d.K * d.D, n = end * width;
    const float *k = (const float *)(g.kv + 2ull * cache * g.capacity * width * 4), *v = k + g.capacity * width;
    for (uint64_t i = 4 * ((uint64_t)blockIdx.x * blockDim.x + threadIdx.x); i < n; i += 4ull * gridDim.x * blockDim.x) {
        const float4 a = *(const float4 *)(k + i), b = *(const float4 *)(v + i);
        *(uint2 *)(keys + i) = make_uint2(pack(a.x, a.y), pack(a.z, a.w));
        *(uint2 *)(values + i) = make_uint2(pack(b.x, b.y), pack(b.z, b.w));
    }
}

/* keys == NULL: the cache itself is f16. */
template <int D>
__global__ void __launch_bounds__(THREADS, 1)
    k_flash(const float *q, const dseg *segs, uint32_t segment, dshape d, uint32_t cache, const __half *keys,
            const __half *values, uint32_t G, float *core)
{
    constexpr int STRIDE = D + 8, TILE = KEYS * STRIDE; /* halves; the pad spreads eight rows over all banks */
    extern __shared__ __align__(16) __half tiles[];     /* [2][keys, values][KEYS][STRIDE] */
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const dseg s = segs[segment];
    const uint32_t per = d.H / d.K, groups = per / G, j = blockIdx.y / groups, head0 = j * per + blockIdx.y % groups * G;
    const uint64_t width = (uint64_t)d.K * D;
    const uint32_t tokens = ROWS / G, token0 = (gridDim.x - 1 - blockIdx.x) * tokens; /* long blocks first */
    if (!keys) {
        keys = (const __half *)(s.kv + 2ull * cache * s.capacity * width * 2);
        values = keys + s.capacity * width;
    }
    const uint32_t last = token0 + tokens < s.n ? token0 + tokens : s.n,
                   end = s.position + last; /* positions seen by the block */
    /* This lane's two rows of the tile. */
    uint32_t token[2];
    uint64_t out[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const uint32_t r = warp * 16 + h * 8 + g;
        token[h] = token0 + r / G;
        const uint32_t safe = token[h] < s.n ? token[h] : s.n - 1;
        out[h] = ((uint64_t)(s.row0 + safe) * d.H + head0 + r % G) * D;
    }
    auto stage = [&](uint32_t u0, int b) {
        __half *to = tiles + b * 2 * TILE;
#pragma unroll
        for (int i = 0; i < KEYS * D / 8 / THREADS; i++) {
            const uint32_t at = i * THREADS + threadIdx.x, row = at / (D / 8), c = at % (D / 8) * 8;
            const uint64_t u = u0 + row < end ? u0 + row : end - 1;
            copy16(to + row * STRIDE + c, keys + u * width + j * D + c);
            copy16(to + TILE + row * STRIDE + c, values + u * width + j * D + c);
        }
        asm volatile("cp.async.commit_group;");
    };
    stage(0, 0);
    uint32_t a[D / 16][4];
    const float scale = 1.4426950408889634f / sqrtf((float)D); /* scores in units of log2 */
#pragma unroll
    for (int k = 0; k < D / 16; k++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const float2 x = *(const float2 *)(q + out[h] + 16 * k + 2 * t),
                         y = *(const float2 *)(q + out[h] + 16 * k + 8 + 2 * t);
            a[k][h] = pack(x.x * scale, x.y * scale);
            a[k][2 + h] = pack(y.x * scale, y.y * scale);
        }
    float acc[D / 8][4] = {}, top[2] = {-INFINITY, -INFINITY}, sum[2] = {};
    int b = 0;
    for (uint32_t u0 = 0; u0 < end; u0 += KEYS, b ^= 1) {
        asm volatile("cp.async.wait_group 0;");
        __syncthreads();
        if (u0 + KEYS < end) stage(u0 + KEYS, b ^ 1);
        const __half *kt = tiles + b * 2 * TILE, *vt = kt + TILE;
        float score[KEYS / 8][4] = {};
#pragma unroll
        for (int k = 0; k < D / 32; k++)
#pragma unroll
            for (int n = 0; n < KEYS / 8; n++) {
                uint32_t m[4];
                load_matrices<false>(m, kt + (n * 8 + lane % 8) * STRIDE + k * 32 + lane / 8 * 8);
                mma(score[n], a[2 * k], m[0], m[1]);
                mma(score[n], a[2 * k + 1], m[2], m[3]);
            }
        if (u0 + KEYS > s.position + token0) { /* some row does not see all of the tile */
#pragma unroll
            for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
                for (int c = 0; c < 4; c++)
                    if (u0 + n * 8 + 2 * t + c % 2 > s.position + token[c / 2]) score[n][c] = -INFINITY;
        }
        float correction[2];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float m = top[h];
#pragma unroll
            for (int n = 0; n < KEYS / 8; n++)
                m = fmaxf(m, fmaxf(score[n][2 * h], score[n][2 * h + 1]));
            m = fmaxf(m, __shfl_xor_sync(~0u, m, 1));
            m = fmaxf(m, __shfl_xor_sync(~0u, m, 2));
            /* The first tile holds position 0, which every row sees, so m is a number from there on. */
            correction[h] = exp2f(top[h] - m);
            top[h] = m;
            float add = 0;
#pragma unroll
            for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
                for (int c = 0; c < 2; c++)
                    add += score[n][2 * h + c] = exp2f(score[n][2 * h + c] - m);
            sum[h] = sum[h] * correction[h] + add;
        }
#pragma unroll
        for (int n = 0; n < D / 8; n++) {
            acc[n][0] *= correction[0], acc[n][1] *= correction[0];
            acc[n][2] *= correction[1], acc[n][3] *= correction[1];
        }
#pragma unroll
        for (int k = 0; k < KEYS / 16; k++) {
            const uint32_t p[4] = {pack(score[2 * k][0], score[2 * k][1]), pack(score[2 * k][2], score[2 * k][3]),
                                   pack(score[2 * k + 1][0], score[2 * k + 1][1]),
                                   pack(score[2 * k + 1][2], score[2 * k + 1][3])};
#pragma unroll
            for (int n = 0; n < D / 16; n++) {
                uint32_t m[4];
                load_matrices<true>(m, vt + (k * 16 + lane % 16) * STRIDE + n * 16 + lane / 16 * 8);
                mma(acc[2 * n], p, m[0], m[1]);
                mma(acc[2 * n + 1], p, m[2], m[3]);
            }
        }
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        sum[h] += __shfl_xor_sync(~0u, sum[h], 1);
        sum[h] += __shfl_xor_sync(~0u, sum[h], 2);
        if (token[h] >= s.n) continue;
        const float inverse = 1.0f / sum[h];
#pragma unroll
        for (int n = 0; n < D / 8; n++)
            *(float2 *)(core + out[h] + n * 8 + 2 * t) = make_float2(acc[n][2 * h] * inverse, acc[n][2 * h + 1] * inverse);
    }
}

bool flash_takes(const dshape &d)
{
    return d.D == 128 || d.D == 256;
}

template <int D>
static void launch_d(const scratch &s, const dshape &d, uint32_t segment, uint32_t n, uint32_t cache, const __half *keys,
                     const __half *values, cudaStream_t st)
{
    const uint32_t per = d.H / d.K, G = per % 8 == 0 ? 8 : per % 4 == 0 ? 4 : per % 2 == 0 ? 2 : 1;
    const size_t smem = 4ull * KEYS * (D + 8) * sizeof(__half);
    cudaFuncSetAttribute(k_flash<D>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)smem);
    k_flash<D>
        <<<dim3(div_up(n, ROWS / G), d.H / G), THREADS, smem, st>>>(s.q, s.segs, segment, d, cache, keys, values, G, s.core);
}

void launch_flash(const scratch &s, const dshape &d, uint32_t segment, uint32_t n, uint32_t end, uint32_t cache, __half *buffer,
                  cudaStream_t st)
{
    __half *keys = NULL, *values = NULL;
    if (!d.kv_f16) {
        keys = buffer;
        values = keys + (uint64_t)end * d.K * d.D;
        k_cache_half<<<512, 256, 0, st>>>(s.segs, segment, d, cache, end, keys, values);
    }
    if (d.D == 256)
        launch_d<256>(s, d, segment, n, cache, keys, values, st);
    else
        launch_d<128>(s, d, segment, n, cache, keys, values, st);
}
