/* experts/measure: a short measured read, with the depth and the way of reading that the cache uses. */
#include "experts/measure.h"
#include "base/mem.h"
#include "experts/io.h"
#include "experts/layout.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

typedef struct meter {
    rl_expert_layout layout;
    rl_io *io;
    rl_io_read reads[RL_IO_DEPTH];
    uint64_t random, bytes;
} meter;

static void queue_one(meter *t, rl_io_read *r)
{
    /* A linear congruence jumps about enough for a disk; its top bits are the good ones. */
    t->random = t->random * 6364136223846793005u + 1442695040888963407u;
    const uint32_t key = (uint32_t)(t->random >> 33);
    const rl_expert_layer *l = &t->layout.layers[key % t->layout.n_layers];
    const rl_expert_part *part = &l->part[key % 3];
    const uint64_t begin = part->offset + key / 3 % t->layout.n_experts * part->stride, lead = begin % RL_IO_ALIGN;
    uint8_t *dst = r->dst;
    *r = (rl_io_read){.dst = dst,
                      .offset = begin - lead,
                      .file = part->tensor->file,
                      .need = (uint32_t)(lead + part->bytes),
                      .span = (uint32_t)((lead + part->bytes + RL_IO_ALIGN - 1) / RL_IO_ALIGN * RL_IO_ALIGN)};
    rl_io_queue(t->io, r, true);
}

static rl_status read_failed(const rl_model *m, const rl_io_read *r, rl_error *err)
{
    char file[512];
    const unsigned long long at = r->offset + r->done;
    rl_escape_str(file, sizeof file, rl_gguf_file_name(m->gguf, r->file));
    if (r->error == RL_IO_ENDED)
        return rl_fail(err, RL_ERR_IO, "%s ends at or before byte %llu; the file has become shorter since it was opened", file,
                       at);
    return rl_fail_errno(err, RL_ERR_IO, r->error, "%s: reading at byte %llu", file, at);
}

static rl_status read_for(meter *t, const rl_model *m, double seconds, double *bytes_per_second, rl_error *err)
{
    const double start = rl_now();
    double now = start;
    for (uint32_t i = 0; i < RL_IO_DEPTH; i++)
        queue_one(t, &t->reads[i]);
    rl_io_kick(t->io);
    while (rl_io_pending(t->io) > 0) {
        rl_io_wait(t->io);
        now = rl_now();
        for (rl_io_read *r = rl_io_reap(t->io), *next; r; r = next) {
            next = r->next;
            if (r->error != 0) return read_failed(m, r, err);
            t->bytes += r->need;
            if (now - start < seconds) queue_one(t, r);
        }
        rl_io_kick(t->io);
    }
    *bytes_per_second = (double)t->bytes / (now - start > 1e-6 ? now - start : 1e-6);
    return RL_OK;
}

rl_status rl_experts_measure(const rl_model *m, double seconds, double *bytes_per_second, char how[48], rl_error *err)
{
    meter t = {.random = 1};
    rl_status st = rl_expert_layout_create(m, &t.layout, err);
    if (st != RL_OK) return st;
    uint32_t most = 0;
    for (uint32_t c = 0; c < t.layout.n_classes; c++)
        if (t.layout.classes[c].slot_bytes > most) most = t.layout.classes[c].slot_bytes;
    rl_io_buffer buffer = {.bytes = (size_t)most * RL_IO_DEPTH};
    uint8_t *memory = rl_aligned_alloc(RL_IO_ALIGN, RL_IO_DEPTH, most);
    if (!memory || buffer.bytes > RL_IO_MAX_CHUNK)
        st = rl_fail(err, RL_ERR_MEMORY, "no memory for a measured read of %zu bytes", buffer.bytes);
    buffer.data = memory;
    for (uint32_t i = 0; i < RL_IO_DEPTH && memory; i++)
        t.reads[i].dst = memory + (size_t)i * most;
    if (st == RL_OK) st = rl_io_open(m->gguf, &(rl_io_options){0}, &buffer, 1, &t.io, err);
    if (st == RL_OK) st = read_for(&t, m, seconds, bytes_per_second, err);
    if (st == RL_OK) snprintf(how, 48, "%s", rl_io_describe(t.io));
    rl_io_close(t.io);
    rl_aligned_free(memory);
    rl_expert_layout_free(&t.layout);
    return st;
}
