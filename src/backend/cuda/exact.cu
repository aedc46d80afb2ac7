/* backend/cuda/exact: products in float32 throughout, for exact precision and for the small float matrices of any precision.
 *
 * A warp owns an output row; its lanes take units of 64 weights in turn and each keeps a partial sum per activation row, so a
 * sum has 32 parts added in a fixed order whatever the number of rows. */
#include "backend/cuda/format.cuh"

enum { ROWS = 8, WARPS = 8 };

template <int F>
__global__ void __launch_bounds__(WARPS * 32) k_exact(dmat w, const float *__restrict__ x, uint32_t ldx, uint32_t n, grouping g,
                                                      bool grouped, float *__restrict__ y, uint32_t ldy)
{
    const uint32_t lane = threadIdx.x % 32, row = blockIdx.x * WARPS + threadIdx.x / 32;
    uint32_t expert = 0, start = blockIdx.y * ROWS, count = n - start;
    if (grouped) {
        if (blockIdx.y >= *g.n_tiles) return;
        const dtile t = g.tiles[blockIdx.y];
        expert = t.expert, start = t.start, count = t.count;
    } else if (count > ROWS) {
        count = ROWS;
    }
    if (row >= w.rows) return;
    const uint64_t at0 = ((uint64_t)expert * w.rows + row) * w.units;
    for (uint32_t first = 0; first < count; first += ROWS) {
        const float *in[ROWS];
        uint32_t out[ROWS];
        float sum[ROWS];
#pragma unroll
        for (int t = 0; t < ROWS; t++) {
            const uint32_t i = start + (first + t < count ? first + t : count - 1);
            const uint32_t p = grouped ? g.pairs[i] : i;
            in[t] = x + (uint64_t)(grouped ? p / g.divisor : p) * ldx;
            out[t] = p;
            sum[t] = 0;
        }
        for (uint32_t u = lane; u < (w.cols + 63) / 64; u += 32) {
            unit<F> un;
            un.load(w, at0 + u);
#pragma unroll
            for (int q = 0; q < 4; q++) {
                if (64 * u + 16 * q >= w.cols) break;
                group_scale<F> s = {};
                if constexpr (!is_plain(F)) s.get(un, w, at0 + u, q);
#pragma unroll
                for (int j = 4 * q; j < 4 * q + 4; j++) {
                    const float4 v = quad_float<F>(un, s, j);
#pragma unroll
                    for (int t = 0; t < ROWS; t++) {
                        if (first + t >= count) break;
                        const float4 a = *(const float4 *)(in[t] + 64 * u + 4 * j);
                        sum[t] = fmaf(v.x, a.x, fmaf(v.y, a.y, fmaf(v.z, a.z, fmaf(v.w, a.w, sum[t]))));
                    }
                }
            }
        }
#pragma unroll
        for (int t = 0; t < ROWS; t++) {
#pragma unroll
            for (int d = 16; d; d /= 2)
                sum[t] += __shfl_xor_sync(~0u, sum[t], d);
            if (lane == 0 && first + t < count) y[(uint64_t)out[t] * ldy + row] = sum[t];
        }
    }
}

void product_exact(const dmat &w, const float *x, uint32_t ldx, uint32_t n, const grouping *g, float *y, uint32_t ldy,
                   cudaStream_t st)
{
    const grouping none = {};
    const dim3 grid(div_up(w.rows, WARPS), g ? g->max_tiles : div_up(n, ROWS));
    FOR_FORMAT(w.format, (k_exact<FMT><<<grid, WARPS * 32, 0, st>>>(w, x, ldx, n, g ? *g : none, g != NULL, y, ldy)))
}
