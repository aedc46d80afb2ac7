/* backend/cuda/mma: products on tensor cores, weights decoded in registers.
 *
 * mma.m16n8k16 takes 16 weight rows (A) times 8 activation rows (B). Which column of a weight row stands at which place of k is
 * free as long as both operands agree, so lane (g, t) of a warp simply loads unit t of a block of 256 columns of rows g and g +
 * 8 and feeds its quad j in step j: 16 steps, no shared memory and no shuffles for weights. Activations are stored permuted to
 * match (half_place): the 16 bytes at (j/2, t) are quads j and j+1 of unit t. Their tile is shared by all warps of a block.
 *
 * Weights are rounded to f16 times 256 (small scales stay normal numbers), activations to f16 after a power of two per row was
 * taken out; sums are f32. Blocks of few rows split the columns among WK warps and add the parts in a fixed order. */
#include "backend/cuda/format.cuh"

#define WEIGHT_SCALE 256.0f

static __device__ __forceinline__ void mma16816(float *c, const uint32_t *a, uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

static __device__ __forceinline__ uint32_t as_word(__half2 h)
{
    return *(uint32_t *)&h;
}

static __device__ __forceinline__ __half2 as_halves(uint32_t w)
{
    return *(__half2 *)&w;
}

static __device__ __forceinline__ void copy16(void *shared, const void *global)
{
    const uint32_t to = (uint32_t)__cvta_generic_to_shared(shared);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(global));
}

/* Quad j of a unit as four f16: w[0] holds columns 0 and 1, w[1] columns 2 and 3. */
template <int F>
static __device__ __forceinline__ void quad_half(const unit<F> &u, __half2 scale, __half2 offset, int j, uint32_t *w)
{
    if constexpr (F == WF_F16) {
        w[0] = as_word(__hmul2(as_halves(u.c[2 * j]), scale));
        w[1] = as_word(__hmul2(as_halves(u.c[2 * j + 1]), scale));
    } else if constexpr (F == WF_BF16) {
        const uint32_t a = u.c[2 * j], b = u.c[2 * j + 1];
        w[0] = as_word(
            __floats2half2_rn(__uint_as_float(a << 16) * WEIGHT_SCALE, __uint_as_float(a & 0xffff0000u) * WEIGHT_SCALE));
        w[1] = as_word(
            __floats2half2_rn(__uint_as_float(b << 16) * WEIGHT_SCALE, __uint_as_float(b & 0xffff0000u) * WEIGHT_SCALE));
    } else {
        /* 0x6400 | b is 1024 + b as f16; the codes are biased by 128 to be unsigned. */
        const uint32_t q = quad<F, 128>(u, j);
        const __half2 bias = __float2half2_rn(1152.0f);
        const __half2 lo = __hsub2(as_halves(permute(q, 0x64646464u, 0x4140)), bias);
        const __half2 hi = __hsub2(as_halves(permute(q, 0x64646464u, 0x4342)), bias);
        if constexpr (has_offset(F)) {
            w[0] = as_word(__hfma2(lo, scale, offset));
            w[1] = as_word(__hfma2(hi, scale, offset));
        } else {
            w[0] = as_word(__hmul2(lo, scale));
            w[1] = as_word(__hmul2(hi, scale));
        }
    }
}

enum { X_STRIDE = 512 + 64 }; /* bytes of 256 activations in shared memory: eight lanes of a load meet eight bank groups */

template <int F, int NT, int MT, int WM, int WK>
__global__ void __launch_bounds__(WM *WK * 32)
    k_mma(dmat w, hrows x, uint32_t n, grouping g, bool grouped, float *__restrict__ y, uint32_t ldy)
{
    constexpr int THREADS = WM * WK * 32, BN = NT * 8, STAGE = WK * BN * X_STRIDE;
    extern __shared__ __align__(16) uint8_t smem[];
    __shared__ uint32_t out_rows[BN], in_rows[BN];
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, wm = warp % WM, wk = warp / WM;
    const uint32_t gr = lane / 4, t = lane % 4;
    uint32_t expert = 0, start = blockIdx.y * BN, count = n - start;
    if (grouped) {
        if (blockIdx.y >= *g.n_tiles) return;
        const dtile tile = g.tiles[blockIdx.y];
        expert = tile.expert, start = tile.start, count = tile.count;
    } else if (count > BN) {
        count = BN;
    }
    for (uint32_t i = threadIdx.x; i < BN; i += THREADS) {
        const uint32_t at = start + (i < count ? i : count - 1), p = grouped ? g.pairs[at] : at;
        out_rows[i] = p;
        in_rows[i] = grouped ? p / g.divisor : p;
    }
    __syncthreads();
    const uint32_t kblocks = w.units / 4, iterations = (kblocks + WK - 1) / WK;
    const uint32_t row0 = (blockIdx.x * WM + wm) * MT * 16;
    const uint32_t rows_used = (count + 7) / 8 * 8;

    auto stage = [&](uint32_t it) {
        uint8_t *to = smem + (it & 1) * STAGE;
        for (uint32_t i = threadIdx.x; i < WK * rows_used * 32; i += THREADS) {
            const uint32_t chunk = i % 32, r = i / 32 % rows_used, kk = i / 32 / rows_used, kb = it * WK + kk;
            if (kb < kblocks)
                copy16(to + (kk * BN + r) * X_STRIDE + chunk * 16, x.x + (uint64_t)in_rows[r] * x.width + kb * 256 + chunk * 8);
        }
        asm volatile("cp.async.commit_group;");
    };

    float acc[MT][NT][4] = {};
    stage(0);
    for (uint32_t it = 0; it < iterations; it++) {
        const uint32_t kb = it * WK + wk;
        const bool live = kb < kblocks && row0 < w.rows;
        unit<F> un[MT][2];
        uint64_t at[MT][2];
        if (live) {
#pragma unroll
            for (int m = 0; m < MT; m++)
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    uint32_t row = row0 + m * 16 + h * 8 + gr;
                    row = row < w.rows ? row : w.rows - 1;
                    at[m][h] = ((uint64_t)expert * w.rows + row) * w.units + kb * 4 + t;
                    un[m][h].load(w, at[m][h]);
                }
        }
        asm volatile("cp.async.wait_group 0;");
        __syncthreads();
        if (it + 1 < iterations) stage(it + 1);
        if (!live) continue;
        const uint8_t *tile = smem + (it & 1) * STAGE + wk * BN * X_STRIDE + gr * X_STRIDE + t * 16;
#pragma unroll
        for (int jj = 0; jj < 8; jj++) {
            uint32_t a[2][MT][4];
#pragma unroll
            for (int m = 0; m < MT; m++)
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    __half2 scale, offset;
                    if constexpr (is_plain(F)) {
                        scale = __float2half2_rn(WEIGHT_SCALE);
                        offset = scale;
                    } else {
                        group_scale<F> s;
                        s.get(un[m][h], w, at[m][h], jj / 2);
                        scale = __float2half2_rn(s.scale * WEIGHT_SCALE);
                        offset = __float2half2_rn(s.offset * WEIGHT_SCALE);
                    }
#pragma unroll
                    for (int j = 0; j < 2; j++) {
                        uint32_t q[2];
                        quad_half<F>(un[m][h], scale, offset, 2 * jj + j, q);
                        a[j][m][h] = q[0];
                        a[j][m][2 + h] = q[1];
                    }
                }
#pragma unroll
            for (int nt = 0; nt < NT; nt++) {
                if (nt * 8 >= count) break;
                const uint4 b = *(const uint4 *)(tile + nt * 8 * X_STRIDE + jj * 64);
#pragma unroll
                for (int m = 0; m < MT; m++) {
                    mma16816(acc[m][nt], a[0][m], b.x, b.y);
                    mma16816(acc[m][nt], a[1][m], b.z, b.w);
                }
            }
        }
    }

    if constexpr (WK > 1) { /* parts of the columns meet in shared memory, added in the order of wk */
        float *parts = (float *)smem;
        constexpr int EACH = MT * NT * 4;
        __syncthreads();
        if (wk > 0)
#pragma unroll
            for (int i = 0; i < EACH; i++)
                parts[(((wk - 1) * WM + wm) * EACH + i) * 32 + lane] = acc[i / (NT * 4)][i / 4 % NT][i % 4];
        __syncthreads();
        if (wk > 0) return;
#pragma unroll
        for (int k = 0; k < WK - 1; k++)
#pragma unroll
            for (int i = 0; i < EACH; i++)
                acc[i / (NT * 4)][i / 4 % NT][i % 4] += parts[((k * WM + wm) * EACH + i) * 32 + lane];
    }
#pragma unroll
    for (int nt = 0; nt < NT; nt++) {
        if (nt * 8 >= count) break;
#pragma unroll
        for (int c = 0; c < 2; c++) {
            const uint32_t i = nt * 8 + 2 * t + c;
            if (i >= count) continue;
            const float s = x.scale[in_rows[i]] * (1.0f / WEIGHT_SCALE);
            float *out = y + (uint64_t)out_rows[i] * ldy;
#pragma unroll
            for (int m = 0; m < MT; m++) {
                const uint32_t row = row0 + m * 16 + gr;
                if (row < w.rows) out[row] = acc[m][nt][c] * s;
                if (row + 8 < w.rows) out[row + 8] = acc[m][nt][2 + c] * s;
            }
        }
    }
}

bool mma_takes(int format)
{
    return format != WF_F32;
}

/* Rows of a tile by how many rows usually meet the same matrix. */
uint32_t mma_tile_rows(uint32_t expected)
{
    return expected <= 8 ? 8 : expected <= 24 ? 32 : 64;
}

template <int F, int NT, int MT, int WM, int WK>
static void launch(const dmat &w, const hrows &x, uint32_t n, const grouping *g, float *y, uint32_t ldy, cudaStream_t st)
{
    const grouping none = {};
    constexpr size_t stages = 2 * WK * NT * 8 * X_STRIDE, parts = (WK - 1) * WM * MT * NT * 4 * 32 * sizeof(float);
    constexpr size_t smem = stages > parts ? stages : parts;
    static bool set; /* the attribute stays with the kernel */
    if (!set) {
        cudaFuncSetAttribute(k_mma<F, NT, MT, WM, WK>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)smem);
        set = true;
    }
    const dim3 grid(div_up(w.rows, WM * MT * 16), g ? g->max_tiles : div_up(n, NT * 8));
    k_mma<F, NT, MT, WM, WK><<<grid, WM * WK * 32, smem, st>>>(w, x, n, g ? *g : none, g != NULL, y, ldy);
}

template <int F>
static void product_f(const dmat &w, const hrows &x, uint32_t n, const grouping *g, uint32_t expected, float *y, uint32_t ldy,
                      cudaStream_t st)
{
    switch (mma_tile_rows(expected)) {
    case 8:
        launch<F, 1, 1, 1, 4>(w, x, n, g, y, ldy, st);
        break;
    case 32:
        launch<F, 4, 1, 4, 2>(w, x, n, g, y, ldy, st);
        break;
    default:
        launch<F, 8, 2, 4, 1>(w, x, n, g, y, ldy, st);
    }
}

void product_mma(const dmat &w, const hrows &x, uint32_t n, const grouping *g, uint32_t expected, float *y, uint32_t ldy,
                 cudaStream_t st)
{
    switch (w.format) {
#define CASE(f)                                                                                                                \
    case f:                                                                                                                    \
        product_f<f>(w, x, n, g, expected, y, ldy, st);                                                                        \
        break;
        CASE(WF_F16)
        CASE(WF_BF16)
        CASE(WF_G8)
        CASE(WF_Q8)
        CASE(WF_IQ1)
        CASE(WF_IQ2)
        CASE(WF_IQ3X)
        CASE(WF_IQ3S)
        CASE(WF_Q2K)
        CASE(WF_Q4K)
        CASE(WF_Q5K)
        CASE(WF_Q6K)
    }
}
