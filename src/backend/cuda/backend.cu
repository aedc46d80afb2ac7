/* backend/cuda/backend: opening and closing, the operations table, and the library's entry. */
#include "backend/cuda/decode.cuh"
#include "backend/cuda/profile.cuh"

#include <new>
#include <string.h>

const rl_cuda_host *host;

/* ---- Scratch ------------------------------------------------------------------------------------------------------------- */

/* Lays out the buffers of a pass: called once to count and once to place. */
struct arena {
    uint8_t *base;
    uint64_t used;
};

template <typename T> static void take(arena *a, T **p, uint64_t n)
{
    *p = a->base ? (T *)(a->base + a->used) : NULL;
    a->used += (n * sizeof(T) + 255) / 256 * 256;
}

static void take_halves(arena *a, hrows *h, uint64_t n, uint32_t width)
{
    h->width = pad256(width);
    take(a, &h->x, n * h->width);
    take(a, &h->scale, n);
}

static uint64_t widest(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static void layout(cuda_backend *b, arena *a)
{
    const dshape &d = b->shape;
    scratch *s = &b->s;
    const uint64_t R = b->max_rows, P = R * d.k, HD = (uint64_t)d.H * d.D, KD = (uint64_t)d.K * d.D;
    take(a, &s->x, R * d.E);
    take(a, &s->norm, R * d.E);
    take(a, &s->mix, R * d.E);
    take(a, &s->raw, R * widest(d.cd, 2 * HD));
    take(a, &s->z, R * d.vd);
    take(a, &s->ba, R * 2 * d.Hv);
    take(a, &s->beta, R * d.Hv);
    take(a, &s->decay, R * d.Hv);
    take(a, &s->conv, R * d.cd);
    take(a, &s->dq, R * d.kd);
    take(a, &s->dk, R * d.kd);
    take(a, &s->core, R * widest(d.vd, HD));
    take(a, &s->gated, R * widest(d.vd, HD));
    take(a, &s->q, R * HD);
    take(a, &s->k, R * KD);
    take(a, &s->v, R * KD);
    take(a, &s->router, R * d.NE);
    take(a, &s->weights, P);
    take(a, &s->ids, P);
    take(a, &s->pairs, P);
    take(a, &s->tiles, d.NE + P / 8 + 1);
    take(a, &s->n_tiles, 1);
    take(a, &s->gate_up, P * 2 * d.F);
    take(a, &s->down, P * d.E);
    take(a, &s->shared_gu, R * 2 * d.Fs);
    take(a, &s->shared, R * d.E);
    take(a, &s->experts, R * d.E);
    take(a, &s->hidden, R * d.E);
    take(a, &s->join, R * 2 * d.E);
    /* Splits are used only as far as rows leave the device idle. */
    take(a, &s->partial, (uint64_t)(R + 2 * b->sm_count + MAX_SPLITS) * d.H * (d.D + 2));
    take(a, &s->logits, (uint64_t)b->logits_rows * b->shape_vocab);
    take(a, &s->rows, R);
    take(a, &s->segs, R);
    take(a, &s->wanted, R);
    take(a, &s->rope, R * d.R);
    if (!b->fast) return;
    take(a, &s->step_x, pad256(d.E) / 64 * 80);
    take(a, &s->step_shared, pad256(d.Fs) / 64 * 80);
    take(a, &s->step_inner, (uint64_t)d.k * (pad256(d.F) / 64 * 80));
    take(a, &s->step_gate, 1);
    take_halves(a, &s->h_norm, R, d.E);
    take(a, &s->h_norm.low, R * pad256(d.E)); /* the router's weights are floats */
    take_halves(a, &s->h_mix, R, (uint32_t)widest(d.vd, HD));
    take_halves(a, &s->h_ff, P, d.F);
    take_halves(a, &s->h_sff, R, d.Fs);
    take_halves(a, &s->h_join, R, 2 * d.E);
}

static rl_status create_scratch(cuda_backend *b, rl_error *err)
{
    const rl_hparams *hp = &b->base.model->hp;
    arena a = {};
    layout(b, &a);
    size_t free_bytes, total;
    CHECK_CUDA(cudaMemGetInfo(&free_bytes, &total));
    if (a.used > free_bytes)
        return host->fail(
            err, RL_ERR_MEMORY,
            "the buffers of a pass of %u rows take %.2f GiB of GPU memory, of which %.2f GiB are free; use a smaller "
            "batch",
            b->max_rows, (double)a.used / (1 << 30), (double)free_bytes / (1 << 30));
    CHECK_CUDA(cudaMalloc((void **)&a.base, a.used));
    b->owned.push_back(a.base);
    b->scratch_bytes = a.used;
    CHECK_CUDA(cudaMemset(a.base, 0, a.used));
    a.used = 0;
    layout(b, &a);
    b->pinned_bytes = b->max_rows * (sizeof(drow) + sizeof(dseg) + sizeof(uint32_t));
    CHECK_CUDA(cudaHostAlloc((void **)&b->pinned, b->pinned_bytes, cudaHostAllocDefault));
    CHECK_CUDA(cudaHostAlloc((void **)&b->pinned_logits, (size_t)b->logits_rows * b->shape_vocab * sizeof(float),
                             cudaHostAllocDefault));
    std::vector<double> freq(hp->n_rot / 2 + 1);
    double scale = 1;
    host->rope(hp, freq.data(), &scale);
    b->shape.rope_scale = (float)scale;
    CHECK_CUDA(cudaMalloc((void **)&b->rope_freq, freq.size() * sizeof(double)));
    b->owned.push_back(b->rope_freq);
    CHECK_CUDA(cudaMemcpy(b->rope_freq, freq.data(), freq.size() * sizeof(double), cudaMemcpyHostToDevice));
    return RL_OK;
}

static void set_shape(cuda_backend *b, rl_kv_type kv)
{
    const rl_hparams *hp = &b->base.model->hp;
    dshape *d = &b->shape;
    d->E = hp->n_embd, d->H = hp->n_head, d->K = hp->n_head_kv, d->D = hp->head_dim, d->R = hp->n_rot;
    d->Hk = hp->dn_key_heads, d->Hv = hp->dn_value_heads, d->S = hp->dn_head_dim, d->W = hp->dn_conv;
    d->kd = hp->dn_key_dim, d->vd = hp->dn_value_dim, d->cd = hp->dn_conv_dim;
    d->NE = hp->n_expert, d->k = hp->n_expert_used, d->F = hp->n_ff_expert, d->Fs = hp->n_ff_shared;
    d->eps = hp->eps;
    d->kv_f16 = kv == RL_KV_F16;
    d->recurrent_layer = (uint64_t)(d->W - 1) * d->cd + (uint64_t)d->Hv * d->S * d->S;
    b->kv_bytes = d->kv_f16 ? 2 : 4;
    b->shape_vocab = hp->n_vocab;
}

/* ---- Open and close ------------------------------------------------------------------------------------------------------ */

static void cuda_close(rl_backend *backend)
{
    cuda_backend *b = (cuda_backend *)backend;
    if (!b) return;
    if (b->stream) cudaStreamSynchronize(b->stream);
    cudaFree(b->cache_half);
    graphs_free(b->graphs);
    profile_free(b->profile);
    delete b->profile;
    for (void *p : b->owned)
        cudaFree(p);
    cudaFreeHost(b->pinned);
    cudaFreeHost(b->pinned_logits);
    if (b->stream) cudaStreamDestroy(b->stream);
    delete b;
}

static rl_status open_on(cuda_backend *b, const rl_backend_options *opt, rl_error *err)
{
    cudaDeviceProp prop;
    CHECK_CUDA(cudaGetDevice(&b->device));
    CHECK_CUDA(cudaGetDeviceProperties(&prop, b->device));
    b->sm_count = prop.multiProcessorCount;
    b->cc = prop.major * 10 + prop.minor;
    CHECK_CUDA(cudaStreamCreateWithFlags(&b->stream, cudaStreamNonBlocking));
    TRY(load_weights(b, opt, err));
    TRY(create_scratch(b, err));
    b->fused = decode_suits(b);
    CHECK_CUDA(cudaDeviceSynchronize());
    return RL_OK;
}

static rl_status cuda_open(const rl_model *model, const rl_backend_options *opt, rl_backend **out, rl_error *err);

static void cuda_memory(const rl_backend *backend, rl_backend_memory *out)
{
    const cuda_backend *b = (const cuda_backend *)backend;
    const rl_model *m = backend->model;
    out->weights = b->weight_bytes;
    out->scratch = b->scratch_bytes;
    out->seq_fixed = m->n_recurrent * b->shape.recurrent_layer * sizeof(float);
    out->seq_per_token = (m->n_attention + m->hp.n_mtp) * cache_bytes(b, 1);
}

static const rl_backend_ops cuda_ops = {
    "cuda",        cuda_open,          cuda_close,          cuda_memory,       cuda_seq_create,
    cuda_seq_free, cuda_seq_position,  cuda_seq_reset,      cuda_seq_copy,     cuda_snapshot,
    cuda_restore,  cuda_snapshot_free, cuda_snapshot_bytes, cuda_seq_export,   cuda_seq_import,
    cuda_forward,  cuda_mtp,           cuda_mtp_position,   cuda_mtp_truncate,
};

static rl_status cuda_open(const rl_model *model, const rl_backend_options *opt, rl_backend **out, rl_error *err)
{
    cuda_backend *b = new (std::nothrow) cuda_backend();
    if (!b) return host->fail(err, RL_ERR_MEMORY, "cannot allocate a backend");
    b->base.ops = &cuda_ops;
    b->base.model = model;
    b->precision = opt->precision;
    b->fast = opt->precision == RL_PRECISION_FAST;
    b->max_rows = opt->max_rows ? opt->max_rows : 1;
    b->graphs = new decode_graphs();
    b->profile = new profiler();
    profile_init(b->profile, opt->profile);
    set_shape(b, opt->kv);
    b->logits_rows = b->max_rows < 64 ? b->max_rows : 64;
    const rl_status status = open_on(b, opt, err);
    if (status != RL_OK) {
        cuda_close(&b->base);
        return status;
    }
    *out = &b->base;
    return RL_OK;
}

/* ---- Entry --------------------------------------------------------------------------------------------------------------- */

/* False with the reason when no GPU can run this. */
static bool find_device(rl_cuda_library *out, char *why, size_t size)
{
    int n = 0, driver = 0, runtime = 0;
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    if (driver == 0) {
        snprintf(why, size, "no NVIDIA driver is installed or running");
        return false;
    }
    const cudaError_t code = cudaGetDeviceCount(&n);
    if (code == cudaErrorInsufficientDriver) {
        snprintf(why, size, "the NVIDIA driver supports CUDA %d.%d, this build needs %d.%d or newer", driver / 1000,
                 driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
        return false;
    }
    if (code != cudaSuccess || n == 0) {
        snprintf(why, size, "no GPU was found: %s", cudaGetErrorString(code == cudaSuccess ? cudaErrorNoDevice : code));
        return false;
    }
    cudaDeviceProp prop;
    int device = 0;
    if (cudaGetDevice(&device) != cudaSuccess || cudaGetDeviceProperties(&prop, device) != cudaSuccess) {
        snprintf(why, size, "the GPU did not answer");
        return false;
    }
    if (prop.major < 8) {
        snprintf(why, size, "%s has compute capability %d.%d, expected 8.0 or newer", prop.name, prop.major, prop.minor);
        return false;
    }
    snprintf(out->device, sizeof out->device, "%.100s, %.1f GiB, compute capability %d.%d, driver for CUDA %d.%d", prop.name,
             (double)prop.totalGlobalMem / (1 << 30), prop.major, prop.minor, driver / 1000, driver % 1000 / 10);
    return true;
}

extern "C" __attribute__((visibility("default"))) bool rl_cuda_entry(const rl_cuda_host *h, rl_cuda_library *out, char *why,
                                                                     size_t why_size)
{
    if (h->abi != RL_CUDA_ABI || h->size_model != sizeof(rl_model) || h->size_ops != sizeof(rl_backend_ops) ||
        h->size_pass != sizeof(rl_pass) || h->size_options != sizeof(rl_backend_options)) {
        snprintf(why, why_size, "%s belongs to another build of this program", RL_CUDA_LIBRARY);
        return false;
    }
    host = h;
    out->ops = &cuda_ops;
    out->selftest = cuda_selftest;
    return find_device(out, why, why_size);
}
