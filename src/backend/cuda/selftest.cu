/* backend/cuda/selftest: every kernel against plain host code on random shapes, outputs poisoned before each run. */
#include "backend/cuda/format.cuh"
#include "backend/cuda/rows.cuh"

#include <cmath>
#include <string.h>

struct rng {
    uint64_t s;
    uint32_t next()
    {
        s = s * 6364136223846793005ull + 1442695040888963407ull;
        return (uint32_t)(s >> 33);
    }
    uint32_t below(uint32_t n) { return next() % n; }
    float unit() { return (float)next() / 1073741824.0f - 1.0f; }
};

/* Device copy of a host vector. */
template <typename T> struct device_array {
    T *p = NULL;
    size_t n = 0;
    ~device_array() { cudaFree(p); }
    rl_status set(const std::vector<T> &v, rl_error *err)
    {
        TRY(poison(v.size(), err));
        CHECK_CUDA(cudaMemcpy(p, v.data(), n * sizeof(T), cudaMemcpyHostToDevice));
        return RL_OK;
    }
    /* Every byte set: a NaN in floats, so that a missed write shows. */
    rl_status poison(size_t count, rl_error *err)
    {
        if (p) cudaFree(p);
        p = NULL;
        n = count;
        CHECK_CUDA(cudaMalloc((void **)&p, n * sizeof(T) + 16));
        CHECK_CUDA(cudaMemset(p, 0xff, n * sizeof(T) + 16));
        return RL_OK;
    }
    rl_status get(std::vector<T> *out, rl_error *err) const
    {
        out->resize(n);
        CHECK_CUDA(cudaDeviceSynchronize());
        CHECK_CUDA(cudaMemcpy(out->data(), p, n * sizeof(T), cudaMemcpyDeviceToHost));
        return RL_OK;
    }
};

/* Relative distance in the sense of norms; NaN or infinity never passes. */
static double distance(const std::vector<float> &got, const std::vector<double> &want)
{
    double e = 0, w = 0;
    for (size_t i = 0; i < want.size(); i++) {
        if (!std::isfinite(got[i])) return INFINITY;
        e += (got[i] - want[i]) * (got[i] - want[i]);
        w += want[i] * want[i];
    }
    return std::sqrt(e / (w > 0 ? w : 1));
}

static rl_status judge(const char *what, double error, double bound, rl_error *err)
{
    host->log(RL_LOG_INFO, "  %-44s %9.2e (bound %.0e)", what, error, bound);
    if (error <= bound) return RL_OK;
    return host->fail(err, RL_ERR_INTERNAL, "kernel check failed: %s differs by %.3g, bound %.3g", what, error, bound);
}

/* ---- Weights: random blocks of a type, as the file has them -------------------------------------------------------------- */

struct weights {
    rl_type type;
    uint32_t rows, cols;
    uint64_t row_bytes;
    std::vector<uint8_t> raw;
    std::vector<float> values; /* by the portable decoder */
    device_array<uint8_t> staged, planes;
    dmat m;
};

/* Random bytes, with the 16-bit scales made ordinary numbers: any byte pattern of the rest is valid. */
static void fill_blocks(rng *g, rl_type type, const rl_type_info *info, std::vector<uint8_t> *raw)
{
    for (uint8_t &b : *raw)
        b = (uint8_t)g->next();
    for (size_t at = 0; at + info->block_bytes <= raw->size(); at += info->block_bytes) {
        uint8_t *b = raw->data() + at;
        auto half = [&](int offset, float v) {
            const uint16_t h = __half_as_ushort(__float2half(v));
            memcpy(b + offset, &h, 2);
        };
        const float d = 0.001f * (1.5f + g->unit());
        switch (type) {
        case RL_F32: {
            const float v = g->unit();
            memcpy(b, &v, 4);
            break;
        }
        case RL_F16:
            half(0, g->unit());
            break;
        case RL_BF16: {
            const float v = g->unit();
            memcpy(b, (const uint8_t *)&v + 2, 2);
            break;
        }
        case RL_Q2_K:
            half(80, d), half(82, d);
            break;
        case RL_Q3_K:
            half(108, d);
            break;
        case RL_Q4_1:
        case RL_Q5_1:
        case RL_Q4_K:
        case RL_Q5_K:
            half(0, d), half(2, d);
            break;
        case RL_Q6_K:
            half(208, d);
            break;
        case RL_TQ1_0:
            half(52, d);
            break;
        case RL_TQ2_0:
            half(64, d);
            break;
        case RL_IQ1_M: {
            const uint16_t h = __half_as_ushort(__float2half(d));
            for (int t = 0; t < 4; t++)
                b[49 + 2 * t] = (uint8_t)((b[49 + 2 * t] & 15) | (h >> (4 * t) & 15) << 4);
            break;
        }
        case RL_MXFP4:
            b[0] = (uint8_t)(118 + g->below(8));
            break;
        case RL_NVFP4:
            break;
        default:
            half(0, d);
        }
    }
}

static rl_status make_weights(weights *w, rng *g, rl_type type, uint32_t rows, uint32_t cols, rl_error *err)
{
    const rl_type_info *info = host->type_get(type);
    w->type = type, w->rows = rows, w->cols = cols;
    w->row_bytes = (uint64_t)cols / info->block_weights * info->block_bytes;
    w->raw.resize(rows * w->row_bytes);
    fill_blocks(g, type, info, &w->raw);
    w->values.resize((size_t)rows * cols);
    host->quant_get(type)->decode(w->raw.data(), w->values.data(), (size_t)rows * cols / info->block_weights);
    const wformat f = format_of(type);
    const uint64_t units = (uint64_t)rows * (pad256(cols) / 64);
    TRY(w->staged.set(w->raw, err));
    TRY(w->planes.poison(dmat_bytes(f, rows, cols), err));
    w->m = dmat_at(w->planes.p, f, rows, rows, cols, 1);
    if (scale_bytes(f)) CHECK_CUDA(cudaMemset((void *)w->m.scales, 0, units * scale_bytes(f)));
    device_array<uint32_t> largest;
    std::vector<uint32_t> found;
    TRY(largest.set({0}, err));
    TRY(repack(w->staged.p, type, w->row_bytes, rows, &w->m, 0, largest.p, 0, err));
    TRY(largest.get(&found, err));
    w->m.half_scale = half_scale_of(found[0]);
    return RL_OK;
}

static const rl_type all_types[] = {RL_F32,   RL_F16,     RL_BF16,  RL_Q4_0,   RL_Q4_1,   RL_Q5_0,    RL_Q5_1,
                                    RL_Q8_0,  RL_Q1_0,    RL_Q2_0,  RL_Q2_K,   RL_Q3_K,   RL_Q4_K,    RL_Q5_K,
                                    RL_Q6_K,  RL_TQ1_0,   RL_TQ2_0, RL_IQ1_S,  RL_IQ1_M,  RL_IQ2_XXS, RL_IQ2_XS,
                                    RL_IQ2_S, RL_IQ3_XXS, RL_IQ3_S, RL_IQ4_NL, RL_IQ4_XS, RL_MXFP4,   RL_NVFP4};

/* Every weight bit for bit (as values: the sign of a zero may differ). */
static rl_status check_decode(rng *g, rl_type type, rl_error *err)
{
    const rl_type_info *info = host->type_get(type);
    const uint32_t cols = info->block_weights * (1 + g->below(5)) * (info->block_weights < 32 ? 32 / info->block_weights : 1);
    weights w;
    TRY(make_weights(&w, g, type, 40, cols, err));
    std::vector<drow> rows(w.rows);
    for (uint32_t i = 0; i < w.rows; i++)
        rows[i].id = (int32_t)i;
    device_array<drow> drows;
    device_array<float> x;
    std::vector<float> got;
    TRY(drows.set(rows, err));
    TRY(x.poison((size_t)w.rows * cols, err));
    launch_embed(w.m, drows.p, w.rows, x.p, cols, 0);
    CHECK_CUDA(cudaGetLastError());
    TRY(x.get(&got, err));
    uint32_t wrong = 0;
    for (size_t i = 0; i < got.size(); i++)
        wrong += !(got[i] == w.values[i]);
    char what[64];
    snprintf(what, sizeof what, "decode %s (%u columns)", info->name, cols);
    return judge(what, wrong, 0, err);
}

/* ---- Products ------------------------------------------------------------------------------------------------------------ */

static rl_status check_product(rng *g, rl_type type, uint32_t n, bool fast, rl_error *err)
{
    const rl_type_info *info = host->type_get(type);
    const uint32_t step = info->block_weights < 32 ? 32 : info->block_weights;
    const uint32_t cols = step * (1 + g->below(2048 / step)), rows = 17 + g->below(90);
    weights w;
    TRY(make_weights(&w, g, type, rows, cols, err));
    std::vector<float> x((size_t)n * cols), got;
    for (float &v : x)
        v = g->unit() * 3;
    device_array<float> dx, dy, scale;
    device_array<__half> hx, low;
    const uint32_t ldy = rows + g->below(9);
    TRY(dx.set(x, err));
    TRY(dy.poison((size_t)n * ldy, err));
    TRY(hx.poison((size_t)n * pad256(cols), err));
    TRY(scale.poison(n, err));
    TRY(low.poison((size_t)n * pad256(cols), err));
    const hrows h = {hx.p, type == RL_F32 ? low.p : NULL, scale.p, pad256(cols)};
    if (fast) {
        launch_prep(dx.p, cols, cols, n, h, 0);
        product_mma(w.m, h, n, NULL, n, dy.p, ldy, 0);
    } else {
        product_exact(w.m, dx.p, cols, n, NULL, dy.p, ldy, 0);
    }
    CHECK_CUDA(cudaGetLastError());
    TRY(dy.get(&got, err));
    std::vector<double> want;
    std::vector<float> used;
    for (uint32_t t = 0; t < n; t++)
        for (uint32_t r = 0; r < rows; r++) {
            double sum = 0;
            for (uint32_t c = 0; c < cols; c++)
                sum += (double)w.values[(size_t)r * cols + c] * x[(size_t)t * cols + c];
            want.push_back(sum);
            used.push_back(got[(size_t)t * ldy + r]);
        }
    char what[96];
    snprintf(what, sizeof what, "%s %s %ux%u, %u rows", fast ? "mma" : "exact", info->name, rows, cols, n);
    return judge(what, distance(used, want), !fast ? 2e-6 : type == RL_F32 ? 1e-5 : 1e-3, err);
}

static rl_status check_grouped(rng *g, uint32_t n, rl_error *err)
{
    const uint32_t NE = 24, k = 4, F = 48, cols = 512, P = n * k;
    weights w;
    TRY(make_weights(&w, g, RL_IQ2_XS, F * NE, cols, err));
    w.m.rows = F, w.m.n = NE;
    std::vector<float> x((size_t)n * cols), got, logits((size_t)n * NE);
    for (float &v : x)
        v = g->unit();
    for (float &v : logits)
        v = 4 * g->unit();
    device_array<float> dx, dy, dl, dw, scale;
    device_array<__half> hx;
    device_array<uint32_t> ids, pairs, n_tiles;
    device_array<dtile> tiles;
    TRY(dx.set(x, err));
    TRY(dl.set(logits, err));
    TRY(dw.poison(P, err));
    TRY(dy.poison((size_t)P * F, err));
    TRY(hx.poison((size_t)n * cols, err));
    TRY(scale.poison(n, err));
    TRY(ids.poison(P, err));
    TRY(pairs.poison(P, err));
    TRY(n_tiles.poison(1, err));
    TRY(tiles.poison(NE + P, err));
    dshape d = {};
    d.NE = NE, d.k = k;
    launch_route(dl.p, n, d, ids.p, dw.p, 0);
    const uint32_t expected = (P + NE - 1) / NE, tile_rows = mma_tile_rows(expected);
    scratch s = {};
    s.pairs = pairs.p, s.tiles = tiles.p, s.n_tiles = n_tiles.p;
    launch_sort(ids.p, P, NE, tile_rows, s, 0);
    const hrows h = {hx.p, NULL, scale.p, cols};
    launch_prep(dx.p, cols, cols, n, h, 0);
    const grouping gr = {pairs.p, tiles.p, n_tiles.p, k, (P < NE ? P : NE) + P / tile_rows};
    product_mma(w.m, h, 0, &gr, expected, dy.p, F, 0);
    CHECK_CUDA(cudaGetLastError());
    TRY(dy.get(&got, err));
    std::vector<uint32_t> chosen;
    std::vector<float> weight;
    TRY(ids.get(&chosen, err));
    TRY(dw.get(&weight, err));
    std::vector<double> want;
    double route_error = 0;
    for (uint32_t t = 0; t < n; t++) {
        double sum = 0;
        std::vector<uint8_t> taken(NE);
        for (uint32_t i = 0; i < k; i++) {
            uint32_t best = NE;
            for (uint32_t e = 0; e < NE; e++)
                if (!taken[e] && (best == NE || logits[t * NE + e] > logits[t * NE + best])) best = e;
            taken[best] = 1;
            sum += std::exp((double)logits[t * NE + best]);
            if (chosen[t * k + i] != best) return host->fail(err, RL_ERR_INTERNAL, "kernel check failed: routing of row %u", t);
        }
        for (uint32_t i = 0; i < k; i++) {
            const uint32_t e = chosen[t * k + i];
            route_error = std::fmax(route_error, std::fabs(weight[t * k + i] - std::exp((double)logits[t * NE + e]) / sum));
            for (uint32_t r = 0; r < F; r++) {
                double dot = 0;
                for (uint32_t c = 0; c < cols; c++)
                    dot += (double)w.values[((size_t)e * F + r) * cols + c] * x[(size_t)t * cols + c];
                want.push_back(dot);
            }
        }
    }
    char what[96];
    snprintf(what, sizeof what, "route, %u rows", n);
    TRY(judge(what, route_error, 1e-6, err));
    snprintf(what, sizeof what, "grouped mma, %u rows of %u experts", n, k);
    return judge(what, distance(got, want), 1e-3, err);
}

rl_status cuda_selftest(uint64_t seed, rl_error *err)
{
    rng g = {seed * 2654435761u + 12345};
    for (int i = 0; i < 8; i++)
        g.next();
    TRY(upload_grids(err));
    for (rl_type type : all_types)
        TRY(check_decode(&g, type, err));
    for (rl_type type : all_types)
        TRY(check_product(&g, type, 1 + g.below(20), false, err));
    for (rl_type type : all_types)
        for (uint32_t n : {1u, 1 + g.below(8), 9 + g.below(16), 25 + g.below(100)})
            TRY(check_product(&g, type, n, true, err));
    for (uint32_t n : {1u, 7u, 40u, 150u, 700u})
        TRY(check_grouped(&g, n, err));
    return RL_OK;
}
