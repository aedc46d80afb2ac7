/* backend/cuda/mma: products on tensor cores, weights decoded in registers.
 *
 * mma.m16n8k16 takes 16 weight rows (A) times 8 activation rows (B). Which column of a weight row stands at which place of k is
 * free as long as both operands agree, so lane (g, t) of a warp simply loads unit t of a block of 256 columns of rows g and g +
 * 8 and feeds its quad j in step j: 16 steps, no shared memory and no shuffles for weights. Activations are stored permuted to
 * match (half_place): the 16 bytes at (j/2, t) are quads j and j+1 of unit t. Their tile is shared by all warps of a block.
 *
 * Weights are rounded to f16 after a power of two per matrix, activations after one per row; sums are f32. Float weights (the
 * router's) and their activations are split into two f16 each and three of the four products taken, which keeps about 22 bits.
 * Blocks of few rows split the columns among WK warps and add the parts in a fixed order. */
#include "backend/cuda/format.cuh"

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

/* Offset formats round scale and offset apart; counting codes from the middle keeps both errors small. */
__host__ __device__ constexpr int center(int f)
{
    return f == WF_Q4K ? 8 : f == WF_Q5K ? 16 : f == WF_Q2K ? 2 : 0;
}

/* Scale and offset of 16 weights in f16. */
template <int F> struct half_group {
    __half2 scale, offset;
    __device__ __forceinline__ void get(const unit<F> &u, const dmat &m, uint64_t at, int g)
    {
        group_scale<F> s;
        s.get(u, m, at, g);
        scale = __float2half2_rn(s.scale * m.half_scale);
        if constexpr (has_offset(F)) offset = __float2half2_rn(fmaf(s.scale, (float)center(F), s.offset) * m.half_scale);
    }
};

/* Quad j of a unit as four f16: w[0] holds columns 0 and 1, w[1] columns 2 and 3. */
template <int F>
static __device__ __forceinline__ void quad_half(const unit<F> &u, const half_group<F> &s, float half_scale, int j, uint32_t *w)
{
    if constexpr (F == WF_F16) {
        const float4 v = quad_float<F>(u, group_scale<F>{}, j);
        w[0] = as_word(__floats2half2_rn(v.x * half_scale, v.y * half_scale));
        w[1] = as_word(__floats2half2_rn(v.z * half_scale, v.w * half_scale));
    } else if constexpr (F == WF_BF16) {
        const float4 v = quad_float<F>(u, group_scale<F>{}, j);
        w[0] = as_word(__floats2half2_rn(v.x * half_scale, v.y * half_scale));
        w[1] = as_word(__floats2half2_rn(v.z * half_scale, v.w * half_scale));
    } else {
        /* 0x6400 | b is 1024 + b as f16; the codes are biased by 128 to be unsigned. */
        const uint32_t q = quad<F, 128>(u, j);
        const __half2 bias = __float2half2_rn(1152.0f + (float)center(F));
        const __half2 lo = __hsub2(as_halves(permute(q, 0x64646464u, 0x4140)), bias);
        const __half2 hi = __hsub2(as_halves(permute(q, 0x64646464u, 0x4342)), bias);
        if constexpr (has_offset(F)) {
            w[0] = as_word(__hfma2(lo, s.scale, s.offset));
            w[1] = as_word(__hfma2(hi, s.scale, s.offset));
        } else {
            w[0] = as_word(__hmul2(lo, s.scale));
            w[1] = as_word(__hmul2(hi, s.scale));
        }
    }
}

/* Four floats as f16 and what rounding left. */
static __device__ __forceinline__ void split_half(float4 v, float scale, uint32_t *high, uint32_t *low)
{
    v.x *= scale, v.y *= scale, v.z *= scale, v.w *= scale;
    const __half2 a = __floats2half2_rn(v.x, v.y), b = __floats2half2_rn(v.z, v.w);
    const float2 fa = __half22float2(a), fb = __half22float2(b);
    high[0] = as_word(a), high[1] = as_word(b);
    low[0] = as_word(__floats2half2_rn(v.x - fa.x, v.y - fa.y));
    low[1] = as_word(__floats2half2_rn(v.z - fb.x, v.w - fb.y));
}

enum { X_STRIDE = 512 + 64 }; /* bytes of 256 activations in shared memory: eight lanes of a load meet eight bank groups */

struct product {
    dmat w;
    float *y;
    uint32_t ldy;
};

/* A product that prefetches the weights of the next columns keeps two sets of units in registers. */
template <int F, int MT> __host__ __device__ constexpr bool prefetches()
{
    return !is_plain(F) && MT * 2 * (code_bytes(F) + extra_bytes(F) + 8) <= 160;
}

template <int F, int NT, int MT, int WM, int WK>
__global__ void __launch_bounds__(WM *WK * 32)
    k_mma(product first, product second, hrows x, uint32_t n, grouping g, bool grouped)
{
    constexpr bool SPLIT = F == WF_F32;
    constexpr int THREADS = WM * WK * 32, BN = NT * 8, TILE = WK * BN * X_STRIDE, STAGE = TILE * (SPLIT ? 2 : 1);
    constexpr int NG = NT < 4 ? NT : 4; /* tiles of 8 rows whose activations are loaded together */
    extern __shared__ __align__(16) uint8_t smem[];
    __shared__ uint32_t out_rows[BN], in_rows[BN];
    /* Field by field: a reference that depends on the block would put the arguments into local memory. */
    const bool other = blockIdx.z;
    dmat w = first.w;
    w.codes = other ? second.w.codes : first.w.codes;
    w.extra = other ? second.w.extra : first.w.extra;
    w.scales = other ? second.w.scales : first.w.scales;
    w.heads = other ? second.w.heads : first.w.heads;
    w.rows = other ? second.w.rows : first.w.rows;
    w.half_scale = other ? second.w.half_scale : first.w.half_scale;
    float *const y = other ? second.y : first.y;
    const uint32_t ldy = other ? second.ldy : first.ldy;
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, wm = warp % WM, wk = warp / WM;
    const uint32_t gr = lane / 4, t = lane % 4;
    if (blockIdx.x * WM * MT * 16 >= w.rows) return;
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
    const uint32_t kblocks = w.units / 4, iterations = (kblocks + WK - 1) / WK;
    const uint32_t row0 = (blockIdx.x * WM + wm) * MT * 16;
    const uint32_t rows_used = (count + 8 * NG - 1) / (8 * NG) * (8 * NG);

    auto stage = [&](uint32_t it) {
        uint8_t *to = smem + (it & 1) * STAGE;
#pragma unroll
        for (uint32_t i = 0; i < WK * BN * 32 / THREADS; i++) {
            const uint32_t at = i * THREADS + threadIdx.x, chunk = at % 32, r = at / 32 % BN, kk = at / 32 / BN;
            const uint32_t kb = it * WK + kk;
            if (r >= rows_used || kb >= kblocks) continue;
            const uint64_t from = (uint64_t)in_rows[r] * x.width + kb * 256 + chunk * 8;
            copy16(to + (kk * BN + r) * X_STRIDE + chunk * 16, x.x + from);
            if constexpr (SPLIT) copy16(to + TILE + (kk * BN + r) * X_STRIDE + chunk * 16, x.low + from);
        }
        asm volatile("cp.async.commit_group;");
    };
    uint64_t base[MT][2]; /* units before this lane's of each row */
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            uint32_t row = row0 + m * 16 + h * 8 + gr;
            row = row < w.rows ? row : w.rows - 1;
            base[m][h] = ((uint64_t)expert * w.rows + row) * w.units + t;
        }
    auto load = [&](unit<SPLIT ? (int)WF_Q8 : F>(&un)[MT][2], uint32_t kb) {
        if constexpr (!SPLIT) {
            if (kb >= kblocks || row0 >= w.rows) return;
#pragma unroll
            for (int m = 0; m < MT; m++)
#pragma unroll
                for (int h = 0; h < 2; h++)
                    un[m][h].load(w, base[m][h] + kb * 4);
        }
    };

    float acc[MT][NT][4] = {};
    unit<SPLIT ? (int)WF_Q8 : F> un[MT][2], next[MT][2];
    load(un, wk);
    __syncthreads();
    stage(0);
    for (uint32_t it = 0; it < iterations; it++) {
        const uint32_t kb = it * WK + wk;
        if constexpr (!prefetches<F, MT>()) {
            if (it) load(un, kb);
        }
        asm volatile("cp.async.wait_group 0;");
        __syncthreads();
        if (it + 1 < iterations) stage(it + 1);
        if constexpr (prefetches<F, MT>()) load(next, kb + WK);
        if (kb >= kblocks || row0 >= w.rows) continue;
        const uint8_t *tile = smem + (it & 1) * STAGE + wk * BN * X_STRIDE + gr * X_STRIDE + t * 16;
#pragma unroll
        for (int jj = 0; jj < 8; jj++) {
            uint32_t a[2][MT][4], low[2][MT][4];
#pragma unroll
            for (int m = 0; m < MT; m++)
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    if constexpr (SPLIT) {
                        const float4 *p = (const float4 *)(w.codes + (base[m][h] + kb * 4) * 256);
#pragma unroll
                        for (int j = 0; j < 2; j++) {
                            uint32_t q[2], r[2];
                            split_half(__ldg(p + 2 * jj + j), w.half_scale, q, r);
                            a[j][m][h] = q[0], a[j][m][2 + h] = q[1];
                            low[j][m][h] = r[0], low[j][m][2 + h] = r[1];
                        }
                    } else {
                        half_group<F> s;
                        if constexpr (!is_plain(F)) s.get(un[m][h], w, base[m][h] + kb * 4, jj / 2);
#pragma unroll
                        for (int j = 0; j < 2; j++) {
                            uint32_t q[2];
                            quad_half<F>(un[m][h], s, w.half_scale, 2 * jj + j, q);
                            a[j][m][h] = q[0], a[j][m][2 + h] = q[1];
                        }
                    }
                }
#pragma unroll
            for (int n0 = 0; n0 < NT; n0 += NG) {
                if (n0 * 8 >= count) break;
                uint4 b[NG];
#pragma unroll
                for (int i = 0; i < NG; i++)
                    b[i] = *(const uint4 *)(tile + (n0 + i) * 8 * X_STRIDE + jj * 64);
#pragma unroll
                for (int m = 0; m < MT; m++)
#pragma unroll
                    for (int i = 0; i < NG; i++)
                        mma16816(acc[m][n0 + i], a[0][m], b[i].x, b[i].y);
#pragma unroll
                for (int m = 0; m < MT; m++)
#pragma unroll
                    for (int i = 0; i < NG; i++)
                        mma16816(acc[m][n0 + i], a[1][m], b[i].z, b[i].w);
                if constexpr (SPLIT) {
#pragma unroll
                    for (int i = 0; i < NG; i++) {
                        const uint4 c = *(const uint4 *)(tile + TILE + (n0 + i) * 8 * X_STRIDE + jj * 64);
#pragma unroll
                        for (int m = 0; m < MT; m++) {
                            mma16816(acc[m][n0 + i], low[0][m], b[i].x, b[i].y);
                            mma16816(acc[m][n0 + i], low[1][m], b[i].z, b[i].w);
                            mma16816(acc[m][n0 + i], a[0][m], c.x, c.y);
                            mma16816(acc[m][n0 + i], a[1][m], c.z, c.w);
                        }
                    }
                }
            }
        }
        if constexpr (prefetches<F, MT>()) {
#pragma unroll
            for (int m = 0; m < MT; m++)
#pragma unroll
                for (int h = 0; h < 2; h++)
                    un[m][h] = next[m][h];
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
    const float unscale = 1.0f / w.half_scale;
#pragma unroll
    for (int nt = 0; nt < NT; nt++) {
        if (nt * 8 >= count) break;
#pragma unroll
        for (int c = 0; c < 2; c++) {
            const uint32_t i = nt * 8 + 2 * t + c;
            if (i >= count) continue;
            const float s = x.scale[in_rows[i]] * unscale;
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

bool mma_takes(const dmat &w, const hrows &x)
{
    return w.format != WF_F32 || x.low;
}

/* Rows of a tile by how many rows usually meet the same matrix. */
uint32_t mma_tile_rows(uint32_t expected)
{
    return expected <= 8 ? 8 : expected <= 32 ? 32 : 64;
}

struct call {
    product first, second;
    bool two;
    hrows x;
    uint32_t n;
    const grouping *g;
    cudaStream_t st;
};

template <int F, int NT, int MT, int WM, int WK> static void launch(const call &c)
{
    const grouping none = {};
    constexpr size_t stages = 2 * WK * NT * 8 * X_STRIDE * (F == WF_F32 ? 2 : 1);
    constexpr size_t parts = (WK - 1) * WM * MT * NT * 4 * 32 * sizeof(float), smem = stages > parts ? stages : parts;
    static bool set; /* the attribute stays with the kernel */
    if (!set) {
        cudaFuncSetAttribute(k_mma<F, NT, MT, WM, WK>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)smem);
        set = true;
    }
    const uint32_t rows = c.two && c.second.w.rows > c.first.w.rows ? c.second.w.rows : c.first.w.rows;
    const dim3 grid(div_up(rows, WM * MT * 16), c.g ? c.g->max_tiles : div_up(c.n, NT * 8), c.two ? 2 : 1);
    k_mma<F, NT, MT, WM, WK><<<grid, WM * WK * 32, smem, c.st>>>(c.first, c.second, c.x, c.n, c.g ? *c.g : none, c.g != NULL);
}

/* Few rows leave time only for a few turns over the columns: warps split them. */
template <int F> static void product_f(const call &c, uint32_t tile_rows)
{
    const bool narrow = c.first.w.units <= 8; /* two blocks of columns */
    if (tile_rows == 8) {
        if (narrow)
            launch<F, 1, 1, 2, 2>(c);
        else
            launch<F, 1, 1, 1, 4>(c);
    } else if constexpr (F == WF_F32) {
        if (!c.g && c.n <= 64)
            launch<F, 2, 1, 1, 4>(c);
        else
            launch<F, 4, 1, 4, 1>(c);
    } else if (tile_rows == 32) {
        launch<F, 4, 1, 4, 2>(c);
    } else {
        launch<F, 8, 2, 4, 1>(c);
    }
}

static void run(const call &c, uint32_t expected)
{
    const uint32_t tile_rows = mma_tile_rows(expected);
    FOR_FORMAT(c.first.w.format, product_f<FMT>(c, tile_rows))
}

void product_mma(const dmat &w, const hrows &x, uint32_t n, const grouping *g, uint32_t expected, float *y, uint32_t ldy,
                 cudaStream_t st)
{
    run({{w, y, ldy}, {}, false, x, n, g, st}, expected);
}

void product_mma2(const dmat &w, float *y, uint32_t ldy, const dmat &w2, float *y2, uint32_t ldy2, const hrows &x, uint32_t n,
                  const grouping *g, uint32_t expected, cudaStream_t st)
{
    run({{w, y, ldy}, {w2, y2, ldy2}, true, x, n, g, st}, expected);
}
