/* backend/cuda/load: weights to the device, once.
 *
 * Every matrix is cut into chunks of rows. A few threads copy chunks from the mapping into pinned memory (that is where the
 * disk or page cache is read), send them on a stream of their own and start the re-encoding there; two buffers per thread keep
 * copy and transfer apart. */
#include "backend/cuda/format.cuh"

#include <atomic>
#include <chrono>
#include <mutex>
#include <string.h>
#include <thread>

enum { CHUNK_BYTES = 16 << 20, MAX_LOADERS = 8 };

struct job {
    const rl_matrix *src;
    const dmat *dst;
    uint32_t *largest; /* device: of the whole tensor's weights */
    uint64_t row0;     /* over all n matrices */
    uint32_t rows;
};

struct loader {
    cuda_backend *b;
    std::vector<job> jobs;
    std::atomic<size_t> next{0};
    std::atomic<uint64_t> done{0};
    std::atomic<bool> stop{false};
    std::atomic<int> running{0};
    std::mutex lock;
    rl_status status = RL_OK;
    rl_error error = {};
};

static const uint8_t *matrix_row(const rl_matrix *m, uint64_t row)
{
    return m->data + row / m->rows * m->matrix_bytes + row % m->rows * m->row_bytes;
}

static rl_status load_one(loader *l, const job *j, uint8_t *pinned, uint8_t *staged, cudaEvent_t free_event, cudaStream_t st,
                          rl_error *err)
{
    const uint64_t bytes = j->src->row_bytes;
    CHECK_CUDA(cudaEventSynchronize(free_event));
    /* Rows of one matrix are contiguous; a chunk may span several matrices with gaps between them. */
    for (uint32_t r = 0; r < j->rows;) {
        const uint64_t at = j->row0 + r;
        const uint64_t left = j->src->rows - at % j->src->rows;
        const uint32_t run = left < j->rows - r ? (uint32_t)left : j->rows - r;
        memcpy(pinned + r * bytes, matrix_row(j->src, at), run * bytes);
        r += run;
    }
    CHECK_CUDA(cudaMemcpyAsync(staged, pinned, j->rows * bytes, cudaMemcpyHostToDevice, st));
    TRY(repack(staged, j->src->type, bytes, j->rows, j->dst, j->row0, j->largest, st, err));
    CHECK_CUDA(cudaEventRecord(free_event, st));
    l->done += j->rows * bytes;
    return RL_OK;
}

static rl_status run_loader(loader *l, rl_error *err)
{
    uint8_t *pinned[2] = {}, *staged[2] = {};
    cudaEvent_t events[2] = {};
    cudaStream_t st = NULL;
    size_t room = 0;
    for (const job &j : l->jobs)
        room = j.rows * j.src->row_bytes > room ? j.rows * j.src->row_bytes : room;
    auto run = [&]() -> rl_status {
        CHECK_CUDA(cudaSetDevice(l->b->device));
        CHECK_CUDA(cudaStreamCreateWithFlags(&st, cudaStreamNonBlocking));
        for (int i = 0; i < 2; i++) {
            CHECK_CUDA(cudaHostAlloc((void **)&pinned[i], room, cudaHostAllocDefault));
            CHECK_CUDA(cudaMalloc((void **)&staged[i], room));
            CHECK_CUDA(cudaEventCreateWithFlags(&events[i], cudaEventDisableTiming));
        }
        int turn = 0;
        for (size_t i; !l->stop && (i = l->next++) < l->jobs.size(); turn ^= 1)
            TRY(load_one(l, &l->jobs[i], pinned[turn], staged[turn], events[turn], st, err));
        CHECK_CUDA(cudaStreamSynchronize(st));
        return RL_OK;
    };
    const rl_status status = run();
    for (int i = 0; i < 2; i++) {
        if (events[i]) cudaEventDestroy(events[i]);
        cudaFree(staged[i]);
        cudaFreeHost(pinned[i]);
    }
    if (st) cudaStreamDestroy(st);
    return status;
}

static void loader_main(loader *l)
{
    rl_error error = {};
    const rl_status status = run_loader(l, &error);
    if (status != RL_OK) {
        std::lock_guard<std::mutex> hold(l->lock);
        l->stop = true;
        if (l->status == RL_OK) l->status = status, l->error = error;
    }
    l->running--;
}

/* ---- What goes where ----------------------------------------------------------------------------------------------------- */

struct plan {
    cuda_backend *b;
    std::vector<std::pair<const rl_matrix *, dmat *>> matrices;
    std::vector<std::pair<std::pair<const float *, size_t>, float **>> vectors;
};

static void add_matrix(plan *p, const rl_matrix *m, dmat *d)
{
    if (m->data) p->matrices.push_back({m, d});
}

static void add_vector(plan *p, const float *v, size_t n, float **d)
{
    if (v) p->vectors.push_back({{v, n}, d});
}

static void plan_layer(plan *p, const rl_layer *l, dlayer *d)
{
    const rl_hparams *hp = &p->b->base.model->hp;
    const uint32_t E = hp->n_embd;
    d->src = l;
    d->recurrent = l->kind == RL_LAYER_RECURRENT;
    add_vector(p, l->attn_norm, E, &d->attn_norm);
    add_vector(p, l->post_norm, E, &d->post_norm);
    if (d->recurrent) {
        add_matrix(p, &l->qkv, &d->qkv);
        add_matrix(p, &l->gate, &d->gate);
        add_matrix(p, &l->ba, &d->ba);
        add_matrix(p, &l->out, &d->out);
        add_vector(p, l->conv, (size_t)hp->dn_conv * hp->dn_conv_dim, &d->conv);
        add_vector(p, l->dt_bias, hp->dn_value_heads, &d->dt_bias);
        add_vector(p, l->a, hp->dn_value_heads, &d->a);
        add_vector(p, l->ssm_norm, hp->dn_head_dim, &d->ssm_norm);
    } else {
        add_matrix(p, &l->q, &d->q);
        add_matrix(p, &l->k, &d->k);
        add_matrix(p, &l->v, &d->v);
        add_matrix(p, &l->o, &d->o);
        add_vector(p, l->q_norm, hp->head_dim, &d->q_norm);
        add_vector(p, l->k_norm, hp->head_dim, &d->k_norm);
    }
    add_matrix(p, &l->router, &d->router);
    add_matrix(p, &l->gate_exps, &d->gate_exps);
    add_matrix(p, &l->up_exps, &d->up_exps);
    add_matrix(p, &l->down_exps, &d->down_exps);
    add_vector(p, l->shared_router, E, &d->shared_router);
    add_matrix(p, &l->gate_shared, &d->gate_shared);
    add_matrix(p, &l->up_shared, &d->up_shared);
    add_matrix(p, &l->down_shared, &d->down_shared);
}

static void plan_model(plan *p)
{
    cuda_backend *b = p->b;
    const rl_model *m = b->base.model;
    const uint32_t E = m->hp.n_embd;
    uint32_t attention = 0, recurrent = 0;
    add_matrix(p, &m->embed, &b->embed);
    if (!m->tied_head) add_matrix(p, &m->head, &b->head);
    add_vector(p, m->output_norm, E, &b->output_norm);
    b->layers.resize(m->hp.n_layer);
    for (uint32_t i = 0; i < m->hp.n_layer; i++) {
        plan_layer(p, &m->layers[i], &b->layers[i]);
        b->layers[i].index = b->layers[i].recurrent ? recurrent++ : attention++;
    }
    if (!m->hp.n_mtp) return;
    plan_layer(p, &m->mtp.block, &b->mtp_layer);
    b->mtp_layer.index = attention;
    add_matrix(p, &m->mtp.eh_proj, &b->eh_proj);
    add_vector(p, m->mtp.enorm, E, &b->enorm);
    add_vector(p, m->mtp.hnorm, E, &b->hnorm);
    add_vector(p, m->mtp.head_norm, E, &b->head_norm);
    if (m->mtp.embed.data != m->embed.data) add_matrix(p, &m->mtp.embed, &b->mtp_embed);
    if (m->mtp.head.data != m->head.data) add_matrix(p, &m->mtp.head, &b->mtp_head);
}

static rl_status device_alloc(cuda_backend *b, void **out, uint64_t bytes, rl_error *err)
{
    CHECK_CUDA(cudaMalloc(out, bytes ? bytes : 16));
    b->owned.push_back(*out);
    return RL_OK;
}

static rl_status place_matrix(cuda_backend *b, const rl_matrix *m, dmat *d, rl_error *err)
{
    const wformat f = format_of(m->type);
    const uint64_t units = (uint64_t)m->rows * m->n * (pad256(m->cols) / 64);
    const uint64_t codes = units * code_bytes(f), extra = units * extra_bytes(f), scales = units * scale_bytes(f),
                   heads = units / 4 * head_bytes(f);
    uint8_t *p;
    TRY(device_alloc(b, (void **)&p, codes + extra + scales + heads, err));
    *d = dmat_at(p, f, (uint64_t)m->rows * m->n, m->rows, m->cols, m->n);
    b->weight_bytes += codes + extra + scales + heads;
    if (scales) CHECK_CUDA(cudaMemset((void *)d->scales, 0, scales)); /* IQ1's words are put together by or */
    return RL_OK;
}

static rl_status check_room(const plan *p, rl_error *err)
{
    uint64_t need = 0;
    for (const auto &m : p->matrices)
        need += dmat_bytes(format_of(m.first->type), (uint64_t)m.first->rows * m.first->n, m.first->cols);
    size_t free_bytes, total;
    CHECK_CUDA(cudaMemGetInfo(&free_bytes, &total));
    if (need + (512u << 20) > free_bytes)
        return host->fail(
            err, RL_ERR_MEMORY,
            "the weights take %.2f GiB of GPU memory, of which %.2f GiB of %.2f GiB are free; use --backend cpu or a "
            "smaller quantisation",
            (double)need / (1 << 30), (double)free_bytes / (1 << 30), (double)total / (1 << 30));
    return RL_OK;
}

static rl_status run_jobs(loader *l, const rl_backend_options *opt, uint64_t total, rl_error *err)
{
    const unsigned cores = std::thread::hardware_concurrency();
    const int n = cores > MAX_LOADERS ? MAX_LOADERS : cores > 1 ? (int)cores : 1;
    std::vector<std::thread> threads;
    l->running = n;
    for (int i = 0; i < n; i++)
        threads.emplace_back(loader_main, l);
    bool cancelled = false;
    while (l->running > 0) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
        if (!cancelled && opt->progress && !opt->progress(opt->progress_ctx, total ? (double)l->done / (double)total : 1.0))
            cancelled = true, l->stop = true;
    }
    for (std::thread &t : threads)
        t.join();
    if (l->status != RL_OK) return host->fail(err, l->status, "%s", l->error.text);
    if (cancelled) return host->fail(err, RL_ERR_CANCELLED, "loading was cancelled");
    return RL_OK;
}

rl_status load_weights(cuda_backend *b, const rl_backend_options *opt, rl_error *err)
{
    plan p = {b, {}, {}};
    plan_model(&p);
    TRY(check_room(&p, err));
    TRY(upload_grids(err));
    for (const auto &v : p.vectors) {
        TRY(device_alloc(b, (void **)v.second, v.first.second * sizeof(float), err));
        CHECK_CUDA(cudaMemcpy(*v.second, v.first.first, v.first.second * sizeof(float), cudaMemcpyHostToDevice));
    }
    loader l;
    l.b = b;
    uint64_t total = 0;
    uint32_t *largest;
    std::vector<uint32_t> found(p.matrices.size());
    TRY(device_alloc(b, (void **)&largest, found.size() * sizeof(uint32_t), err));
    CHECK_CUDA(cudaMemset(largest, 0, found.size() * sizeof(uint32_t)));
    for (const auto &m : p.matrices) {
        TRY(place_matrix(b, m.first, m.second, err));
        const uint64_t rows = (uint64_t)m.first->rows * m.first->n, fit = CHUNK_BYTES / m.first->row_bytes,
                       step = fit ? fit : 1;
        total += rows * m.first->row_bytes;
        for (uint64_t r = 0; r < rows; r += step)
            l.jobs.push_back(
                {m.first, m.second, largest + (&m - p.matrices.data()), r, (uint32_t)(rows - r < step ? rows - r : step)});
    }
    CHECK_CUDA(cudaDeviceSynchronize());
    TRY(run_jobs(&l, opt, total, err));
    CHECK_CUDA(cudaMemcpy(found.data(), largest, found.size() * sizeof(uint32_t), cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < found.size(); i++)
        p.matrices[i].second->half_scale = half_scale_of(found[i]);
    const rl_model *m = b->base.model;
    if (m->tied_head) b->head = b->embed;
    if (m->hp.n_mtp && m->mtp.embed.data == m->embed.data) b->mtp_embed = b->embed;
    if (m->hp.n_mtp && m->mtp.head.data == m->head.data) b->mtp_head = b->head;
    return RL_OK;
}
