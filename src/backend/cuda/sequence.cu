/* backend/cuda/sequence: the state of a sequence on the device; copies, snapshots, export and import. */
#include "backend/cuda/common.cuh"

#include <new>

struct cuda_snapshot_data {
    uint32_t position;
    int device;
    float *recurrent;
};

static cuda_backend *backend_of(const rl_seq *s)
{
    return (cuda_backend *)s->backend;
}

static uint32_t n_caches(const cuda_backend *b)
{
    return b->base.model->n_attention + b->base.model->hp.n_mtp;
}

static uint64_t recurrent_bytes(const cuda_backend *b)
{
    return b->base.model->n_recurrent * b->shape.recurrent_layer * sizeof(float);
}

rl_status cuda_seq_create(rl_backend *backend, uint32_t capacity, rl_seq **out, rl_error *err)
{
    cuda_backend *b = (cuda_backend *)backend;
    const uint64_t fixed = recurrent_bytes(b), kv = n_caches(b) * cache_bytes(b, capacity);
    size_t free_bytes = 0, total = 0;
    CHECK_CUDA(cudaSetDevice(b->device));
    CHECK_CUDA(cudaMemGetInfo(&free_bytes, &total));
    if (fixed + kv > free_bytes)
        return host->fail(err, RL_ERR_MEMORY,
                          "a sequence of %u positions takes %.2f GiB of GPU memory, of which %.2f GiB are free", capacity,
                          (double)(fixed + kv) / (1 << 30), (double)free_bytes / (1 << 30));
    cuda_seq *s = new (std::nothrow) cuda_seq();
    if (!s) return host->fail(err, RL_ERR_MEMORY, "cannot allocate a sequence");
    s->base.backend = backend;
    s->capacity = capacity;
    cudaError_t code = cudaMalloc((void **)&s->recurrent, fixed ? fixed : 16);
    if (code == cudaSuccess) code = cudaMalloc((void **)&s->kv, kv ? kv : 16);
    if (code == cudaSuccess) code = cudaMemsetAsync(s->recurrent, 0, fixed, b->stream);
    if (code != cudaSuccess) {
        cuda_seq_free(&s->base);
        return host->fail(err, RL_ERR_MEMORY, "cannot allocate a sequence of %u positions on the GPU: %s", capacity,
                          cudaGetErrorString(code));
    }
    *out = &s->base;
    return RL_OK;
}

void cuda_seq_free(rl_seq *seq)
{
    cuda_seq *s = (cuda_seq *)seq;
    if (!s) return;
    cudaStreamSynchronize(backend_of(seq)->stream);
    cudaFree(s->recurrent);
    cudaFree(s->kv);
    delete s;
}

uint32_t cuda_seq_position(const rl_seq *s)
{
    return ((const cuda_seq *)s)->position;
}

uint32_t cuda_mtp_position(const rl_seq *s)
{
    return ((const cuda_seq *)s)->mtp_position;
}

void cuda_mtp_truncate(rl_seq *seq, uint32_t n)
{
    cuda_seq *s = (cuda_seq *)seq;
    if (n < s->mtp_position) s->mtp_position = n;
}

/* A device that fails here fails again in the next pass, which reports it. */
void cuda_seq_reset(rl_seq *seq)
{
    cuda_seq *s = (cuda_seq *)seq;
    const cuda_backend *b = backend_of(seq);
    s->position = s->mtp_position = 0;
    cudaMemsetAsync(s->recurrent, 0, recurrent_bytes(b), b->stream);
}

/* Positions that cache i holds. */
static uint32_t cache_rows(const cuda_seq *s, uint32_t i)
{
    const cuda_backend *b = backend_of(&s->base);
    return i < b->base.model->n_attention ? s->position : s->mtp_position;
}

static uint8_t *cache_part(const cuda_seq *s, uint32_t i, int values)
{
    const cuda_backend *b = backend_of(&s->base);
    return s->kv + (2ull * i + (values ? 1 : 0)) * (cache_bytes(b, s->capacity) / 2);
}

static uint64_t position_bytes(const cuda_backend *b)
{
    return (uint64_t)b->shape.K * b->shape.D * b->kv_bytes;
}

rl_status cuda_seq_copy(rl_seq *dst_, const rl_seq *src_, rl_error *err)
{
    cuda_seq *dst = (cuda_seq *)dst_;
    const cuda_seq *src = (const cuda_seq *)src_;
    const cuda_backend *b = backend_of(src_);
    if (dst == src) return RL_OK;
    if (dst->capacity < src->position || dst->capacity < src->mtp_position)
        return host->fail(err, RL_ERR_LIMIT, "a copy of %u positions does not fit a context of %u", src->position,
                          dst->capacity);
    for (uint32_t i = 0; i < n_caches(b); i++)
        for (int v = 0; v < 2; v++)
            CHECK_CUDA(cudaMemcpyAsync(cache_part(dst, i, v), cache_part(src, i, v), cache_rows(src, i) * position_bytes(b),
                                       cudaMemcpyDeviceToDevice, b->stream));
    CHECK_CUDA(cudaMemcpyAsync(dst->recurrent, src->recurrent, recurrent_bytes(b), cudaMemcpyDeviceToDevice, b->stream));
    dst->position = src->position;
    dst->mtp_position = src->mtp_position;
    return RL_OK;
}

uint64_t cuda_snapshot_bytes(const rl_backend *b)
{
    return sizeof(cuda_snapshot_data) + recurrent_bytes((const cuda_backend *)b);
}

rl_status cuda_snapshot(const rl_seq *seq, rl_snapshot **out, rl_error *err)
{
    const cuda_seq *s = (const cuda_seq *)seq;
    const cuda_backend *b = backend_of(seq);
    cuda_snapshot_data *snap = new (std::nothrow) cuda_snapshot_data();
    if (!snap) return host->fail(err, RL_ERR_MEMORY, "cannot allocate a snapshot");
    snap->position = s->position;
    cudaError_t code = cudaMalloc((void **)&snap->recurrent, recurrent_bytes(b) + 16);
    if (code == cudaSuccess)
        code = cudaMemcpyAsync(snap->recurrent, s->recurrent, recurrent_bytes(b), cudaMemcpyDeviceToDevice, b->stream);
    if (code != cudaSuccess) {
        cuda_snapshot_free((rl_snapshot *)snap);
        return host->fail(err, RL_ERR_MEMORY, "cannot keep a snapshot of %.1f MiB on the GPU: %s",
                          (double)recurrent_bytes(b) / (1 << 20), cudaGetErrorString(code));
    }
    *out = (rl_snapshot *)snap;
    return RL_OK;
}

rl_status cuda_restore(rl_seq *seq, const rl_snapshot *snapshot, rl_error *err)
{
    cuda_seq *s = (cuda_seq *)seq;
    const cuda_snapshot_data *snap = (const cuda_snapshot_data *)snapshot;
    const cuda_backend *b = backend_of(seq);
    if (s->position < snap->position)
        return host->fail(err, RL_ERR_ARGUMENT, "a snapshot of position %u cannot be restored to a sequence at position %u",
                          snap->position, s->position);
    CHECK_CUDA(cudaMemcpyAsync(s->recurrent, snap->recurrent, recurrent_bytes(b), cudaMemcpyDeviceToDevice, b->stream));
    s->position = snap->position;
    return RL_OK;
}

/* cudaFree waits for the device, so a copy out of the snapshot has ended. */
void cuda_snapshot_free(rl_snapshot *snapshot)
{
    cuda_snapshot_data *snap = (cuda_snapshot_data *)snapshot;
    if (!snap) return;
    cudaFree(snap->recurrent);
    delete snap;
}

/* ---- Export and import: the layout is that of backend/state.h, which is also ours ---------------------------------------- */

enum { PART = 1 << 20 };

static rl_status put_device(const cuda_backend *b, rl_elem elem, const void *src, uint64_t n, size_t elem_bytes, rl_put_fn put,
                            void *ctx, rl_error *err)
{
    std::vector<uint8_t> part(PART);
    for (uint64_t done = 0; done < n;) {
        const uint64_t count = n - done < PART / elem_bytes ? n - done : PART / elem_bytes;
        CHECK_CUDA(cudaMemcpyAsync(part.data(), (const uint8_t *)src + done * elem_bytes, count * elem_bytes,
                                   cudaMemcpyDeviceToHost, b->stream));
        CHECK_CUDA(cudaStreamSynchronize(b->stream));
        TRY(host->put(elem, part.data(), count, put, ctx, err));
        done += count;
    }
    return RL_OK;
}

static rl_status get_device(const cuda_backend *b, rl_elem from, rl_elem to, void *dst, uint64_t n, size_t elem_bytes,
                            rl_get_fn get, void *ctx, rl_error *err)
{
    std::vector<uint8_t> part(PART);
    for (uint64_t done = 0; done < n;) {
        const uint64_t count = n - done < PART / elem_bytes ? n - done : PART / elem_bytes;
        TRY(host->get(from, to, part.data(), count, get, ctx, err));
        CHECK_CUDA(cudaMemcpyAsync((uint8_t *)dst + done * elem_bytes, part.data(), count * elem_bytes, cudaMemcpyHostToDevice,
                                   b->stream));
        CHECK_CUDA(cudaStreamSynchronize(b->stream));
        done += count;
    }
    return RL_OK;
}

static rl_elem kv_elem(const cuda_backend *b)
{
    return b->shape.kv_f16 ? RL_ELEM_F16 : RL_ELEM_F32;
}

rl_status cuda_seq_export(const rl_seq *seq, rl_put_fn put, void *ctx, rl_error *err)
{
    const cuda_seq *s = (const cuda_seq *)seq;
    const cuda_backend *b = backend_of(seq);
    const rl_model *m = b->base.model;
    const rl_state_info info = {s->position, s->mtp_position, RL_ELEM_F32, kv_elem(b)};
    TRY(host->put_header(&m->hp, &info, put, ctx, err));
    uint32_t recurrent = 0, cache = 0;
    for (uint32_t i = 0; i < m->hp.n_layer + m->hp.n_mtp; i++) {
        if (i < m->hp.n_layer && m->layers[i].kind == RL_LAYER_RECURRENT) {
            const uint64_t size = b->shape.recurrent_layer;
            TRY(put_device(b, RL_ELEM_F32, s->recurrent + recurrent++ * size, size, 4, put, ctx, err));
            continue;
        }
        const uint64_t n = (uint64_t)cache_rows(s, cache) * b->shape.K * b->shape.D;
        for (int v = 0; v < 2; v++)
            TRY(put_device(b, kv_elem(b), cache_part(s, cache, v), n, b->kv_bytes, put, ctx, err));
        cache++;
    }
    return RL_OK;
}

static rl_status import_all(cuda_seq *s, rl_get_fn get, void *ctx, rl_error *err)
{
    const cuda_backend *b = backend_of(&s->base);
    const rl_model *m = b->base.model;
    rl_state_info info;
    TRY(host->get_header(&m->hp, s->capacity, &info, get, ctx, err));
    s->position = info.position;
    s->mtp_position = info.mtp_position;
    uint32_t recurrent = 0, cache = 0;
    for (uint32_t i = 0; i < m->hp.n_layer + m->hp.n_mtp; i++) {
        if (i < m->hp.n_layer && m->layers[i].kind == RL_LAYER_RECURRENT) {
            const uint64_t size = b->shape.recurrent_layer;
            TRY(get_device(b, info.state, RL_ELEM_F32, s->recurrent + recurrent++ * size, size, 4, get, ctx, err));
            continue;
        }
        const uint64_t n = (uint64_t)cache_rows(s, cache) * b->shape.K * b->shape.D;
        for (int v = 0; v < 2; v++)
            TRY(get_device(b, info.kv, kv_elem(b), cache_part(s, cache, v), n, b->kv_bytes, get, ctx, err));
        cache++;
    }
    return RL_OK;
}

rl_status cuda_seq_import(rl_seq *seq, rl_get_fn get, void *ctx, rl_error *err)
{
    cuda_seq_reset(seq);
    const rl_status status = import_all((cuda_seq *)seq, get, ctx, err);
    if (status != RL_OK) cuda_seq_reset(seq);
    return status;
}
