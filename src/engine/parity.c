/* engine/parity: one backend judged by another, stage by stage.
 *
 * The ids run in chunks. For each chunk the judge runs first and its values of every stage are kept; then the tested backend
 * runs, each of its stages is compared and overwritten with the judge's values, so that the next stage is judged on the judge's
 * input. A third sequence runs the tested backend untouched, and its logits are compared as they come. */
#include "base/cpu.h"
#include "base/mem.h"
#include "engine/engine.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RECORD_BYTES (256u << 20) /* of the judge's values held at once */

typedef struct report_box {
    rl_parity_report report; /* first: freed through it */
    rl_parity_stage stages[RL_STAGE_COUNT];
    rl_parity_layer layers[RL_MAX_LAYERS];
    char judge[32], tested[32];
} report_box;

typedef struct parity {
    const rl_parity_options *o;
    rl_model *model;
    report_box *box;
    rl_backend *judge, *tested;
    rl_seq *judge_seq, *forced_seq, *free_seq;
    uint32_t chunk, row_base; /* rows of a pass, and the first row of the running one */
    float **record;           /* [stage * n_layer + layer]: chunk x width; NULL = the judge does not show it */
    uint8_t *compared;        /* same index */
    uint8_t *other_order;     /* chunk: the tested ids of the running layer came in another order than the judge's */
    float *logits_judge, *logits_free;
    double sum_squares[RL_STAGE_COUNT], sum_error[RL_STAGE_COUNT];
    double kl_sum, logits_squares;
    rl_error *err;
} parity;

static size_t slot(const parity *p, rl_stage stage, uint32_t layer)
{
    return (size_t)stage * p->model->hp.n_layer + layer;
}

static rl_status check_rows(parity *p, const char *who, uint32_t layer, uint32_t row0, uint32_t n_rows)
{
    if (layer < p->model->hp.n_layer && (uint64_t)row0 + n_rows <= p->chunk) return RL_OK;
    return rl_fail(p->err, RL_ERR_INTERNAL, "backend %s shows rows %u to %u of layer %u, which were not asked for", who, row0,
                   row0 + n_rows, layer);
}

/* ---- The judge's tap: keep ------------------------------------------------------------------------------------------- */

static rl_status keep(void *ctx, rl_stage stage, uint32_t layer, uint32_t row0, uint32_t n_rows, uint32_t width, float *data)
{
    parity *p = ctx;
    rl_status st = check_rows(p, p->box->judge, layer, row0, n_rows);
    if (st != RL_OK) return st;
    float **r = &p->record[slot(p, stage, layer)];
    if (!*r) *r = rl_alloc((size_t)p->chunk * width, sizeof(float));
    if (!*r) return rl_fail(p->err, RL_ERR_MEMORY, "no memory for the judge's values of stage %s", rl_stage_name(stage));
    memcpy(*r + (size_t)row0 * width, data, (size_t)n_rows * width * sizeof(float));
    return RL_OK;
}

/* ---- The tested backend's tap: compare and force --------------------------------------------------------------------- */

/* A difference that is not a number must not pass for agreement. */
static double difference(float got, float want)
{
    double d = fabs((double)got - (double)want);
    return isnan(d) ? INFINITY : d;
}

static void compare_row(parity *p, rl_stage stage, uint32_t layer, uint32_t row, const float *want, const float *got,
                        uint32_t width)
{
    rl_parity_stage *st = &p->box->stages[stage];
    double worst = 0;
    for (uint32_t i = 0; i < width; i++) {
        double d = difference(got[i], want[i]);
        if (d > worst) worst = d;
        p->sum_squares[stage] += (double)want[i] * want[i];
        p->sum_error[stage] += d * d;
    }
    st->values += width;
    if (worst > st->max_abs) {
        st->max_abs = worst;
        st->layer = layer;
        st->row = row;
    }
    if (stage == RL_STAGE_LAYER_OUT && worst > p->box->layers[layer].max_abs) p->box->layers[layer].max_abs = worst;
}

static bool same_set(const float *a, const float *b, uint32_t k)
{
    for (uint32_t i = 0; i < k; i++) {
        uint32_t j = 0;
        while (j < k && a[i] != b[j])
            j++;
        if (j == k) return false;
    }
    return true;
}

/* Experts of near-equal probability may come in another order: only the set decides what is computed. */
static void compare_ids(parity *p, uint32_t layer, uint32_t row, const float *want, const float *got, uint32_t k)
{
    rl_parity_stage *st = &p->box->stages[RL_STAGE_ROUTER_IDS];
    st->values += k;
    p->other_order[row - p->row_base] = memcmp(want, got, k * sizeof *want) != 0;
    if (same_set(want, got, k)) return;
    if (p->box->report.router_mismatches++ == 0) {
        st->max_abs = 1;
        st->layer = layer;
        st->row = row;
    }
    p->box->layers[layer].router_mismatches++;
}

static int falling(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return x < y ? 1 : x > y ? -1 : 0;
}

/* How close the judge's choice was: softmax probabilities of the last chosen and the first refused expert. */
static void note_gap(parity *p, const float *logits, uint32_t n, uint32_t k)
{
    if (k >= n || n > RL_MAX_EXPERTS) return;
    float sorted[RL_MAX_EXPERTS];
    memcpy(sorted, logits, n * sizeof *sorted);
    qsort(sorted, n, sizeof *sorted, falling);
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += exp((double)sorted[i] - sorted[0]);
    double gap = (exp((double)sorted[k - 1] - sorted[0]) - exp((double)sorted[k] - sorted[0])) / sum;
    if (gap < p->box->report.router_gap) p->box->report.router_gap = gap;
}

static rl_status compare(void *ctx, rl_stage stage, uint32_t layer, uint32_t row0, uint32_t n_rows, uint32_t width, float *data)
{
    parity *p = ctx;
    rl_status st = check_rows(p, p->box->tested, layer, row0, n_rows);
    if (st != RL_OK) return st;
    const float *record = p->record[slot(p, stage, layer)];
    if (!record) return RL_OK;
    p->compared[slot(p, stage, layer)] = 1;
    for (uint32_t i = 0; i < n_rows; i++) {
        const float *want = record + (size_t)(row0 + i) * width, *got = data + (size_t)i * width;
        uint32_t row = p->row_base + row0 + i;
        if (stage == RL_STAGE_ROUTER_IDS) {
            compare_ids(p, layer, row, want, got, width);
        } else if (stage != RL_STAGE_ROUTER_WEIGHTS || !p->other_order[row0 + i]) {
            compare_row(p, stage, layer, row, want, got, width); /* weights stand in the order of the ids */
        }
        if (stage == RL_STAGE_ROUTER_LOGITS) note_gap(p, want, width, p->model->hp.n_expert_used);
    }
    if (stage != RL_STAGE_ROUTER_LOGITS) /* observed only: choosing happens at the ids */
        memcpy(data, record + (size_t)row0 * width, (size_t)n_rows * width * sizeof(float));
    return RL_OK;
}

/* ---- Free run: logits ------------------------------------------------------------------------------------------------ */

static uint32_t argmax(const float *x, uint32_t n)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++)
        if (x[i] > x[best]) best = i;
    return best;
}

static double kl_divergence(const float *judge, const float *tested, uint32_t n)
{
    double nj = judge[0] - rl_log_softmax_at(judge, n, 0), nt = tested[0] - rl_log_softmax_at(tested, n, 0), kl = 0;
    for (uint32_t i = 0; i < n; i++) {
        double lj = judge[i] - nj, lt = tested[i] - nt;
        kl += exp(lj) * (lj - lt);
    }
    return isnan(kl) ? INFINITY : kl > 0 ? kl : 0;
}

static void compare_logits(parity *p, const float *judge, const float *tested)
{
    rl_parity_report *r = &p->box->report;
    uint32_t n = p->model->hp.n_vocab;
    for (uint32_t i = 0; i < n; i++) {
        double d = difference(tested[i], judge[i]);
        if (d > r->logits_max_abs) r->logits_max_abs = d;
        p->logits_squares += (double)judge[i] * judge[i];
    }
    double kl = kl_divergence(judge, tested, n);
    p->kl_sum += kl;
    if (kl > r->kl_max) r->kl_max = kl;
    r->positions++;
    uint32_t want = argmax(judge, n), got = argmax(tested, n);
    if (want == got) return;
    r->argmax_mismatches++;
    double gap = (double)judge[want] - judge[got];
    if (gap > r->argmax_gap) r->argmax_gap = gap;
}

/* ---- The run --------------------------------------------------------------------------------------------------------- */

static rl_status forward(parity *p, rl_backend *b, rl_seq *seq, uint32_t n, float *logits, rl_tap_fn tap)
{
    rl_segment seg = {.seq = seq, .ids = p->o->ids + p->row_base, .n = n, .want = RL_LOGITS_ALL};
    rl_pass pass = {.segments = &seg, .n_segments = 1, .logits = logits, .tap = tap, .tap_ctx = p};
    return b->ops->forward(b, &pass, p->err);
}

static rl_status run(parity *p)
{
    const rl_parity_options *o = p->o;
    size_t v = p->model->hp.n_vocab;
    for (p->row_base = 0; p->row_base < o->n;) {
        if (o->progress && !o->progress(o->progress_ctx, p->row_base, o->n))
            return rl_fail(p->err, RL_ERR_CANCELLED, "cancelled after %u of %u positions", p->row_base, o->n);
        uint32_t n = o->n - p->row_base < p->chunk ? o->n - p->row_base : p->chunk;
        rl_status st = forward(p, p->judge, p->judge_seq, n, p->logits_judge, keep);
        if (st == RL_OK) st = forward(p, p->tested, p->forced_seq, n, p->logits_free, compare);
        if (st == RL_OK) st = forward(p, p->tested, p->free_seq, n, p->logits_free, NULL);
        if (st != RL_OK) return st;
        for (uint32_t i = 0; i < n; i++)
            compare_logits(p, p->logits_judge + i * v, p->logits_free + i * v);
        p->row_base += n;
    }
    if (o->progress) o->progress(o->progress_ctx, o->n, o->n);
    return RL_OK;
}

static void summarise(parity *p)
{
    report_box *b = p->box;
    const rl_hparams *hp = &p->model->hp;
    for (int s = 0; s < RL_STAGE_COUNT; s++) {
        rl_parity_stage *st = &b->stages[s];
        for (uint32_t l = 0; l < hp->n_layer; l++)
            st->layers += p->compared[slot(p, (rl_stage)s, l)];
        if (st->values) {
            st->rms = sqrt(p->sum_squares[s] / (double)st->values);
            st->rms_error = sqrt(p->sum_error[s] / (double)st->values);
        }
    }
    for (uint32_t l = 0; l < hp->n_layer; l++)
        b->layers[l].recurrent = p->model->layers[l].kind == RL_LAYER_RECURRENT;
    rl_parity_report *r = &b->report;
    r->stages = b->stages;
    r->n_stages = RL_STAGE_COUNT;
    r->layers = b->layers;
    r->n_layers = hp->n_layer;
    r->judge = b->judge;
    r->tested = b->tested;
    r->logits_rms = sqrt(p->logits_squares / ((double)r->positions * hp->n_vocab));
    r->kl_mean = p->kl_sum / r->positions;
}

/* As many rows as the judge's values of all stages leave room for. */
static uint32_t choose_chunk(const parity *p)
{
    const rl_hparams *hp = &p->model->hp;
    uint64_t row = 0;
    for (int s = 0; s < RL_STAGE_COUNT; s++) {
        bool once = s == RL_STAGE_EMBED || s == RL_STAGE_FINAL_NORM || s == RL_STAGE_LOGITS;
        row += (uint64_t)rl_stage_width(hp, (rl_stage)s) * sizeof(float) * (once ? 1 : hp->n_layer);
    }
    uint64_t rows = RECORD_BYTES / (row ? row : 1);
    uint32_t most = p->o->batch ? p->o->batch : RL_MAX_BATCH;
    if (rows > most) rows = most;
    if (rows > p->o->n) rows = p->o->n;
    return rows ? (uint32_t)rows : 1;
}

static rl_status open_backend(parity *p, const char *name, bool judge, rl_backend **out)
{
    const rl_backend_ops *ops = rl_backend_find(name);
    if (!ops) return rl_fail(p->err, RL_ERR_ARGUMENT, "there is no backend \"%s\"", name);
    rl_backend_options bo = {.precision = judge ? RL_PRECISION_EXACT : p->o->precision,
                             .kv = judge ? RL_KV_F32 : p->o->kv,
                             .threads = p->o->threads,
                             .isa = p->o->isa ? p->o->isa : "auto",
                             .max_rows = p->chunk};
    snprintf(judge ? p->box->judge : p->box->tested, sizeof p->box->judge, "%s", ops->name);
    return ops->open(p->model, &bo, out, p->err);
}

static rl_status prepare(parity *p)
{
    const rl_parity_options *o = p->o;
    rl_status st = rl_model_open(o->model, &p->model, p->err);
    if (st != RL_OK) return st;
    const rl_hparams *hp = &p->model->hp;
    for (uint32_t i = 0; i < o->n; i++)
        if (o->ids[i] < 0 || (uint32_t)o->ids[i] >= hp->n_vocab)
            return rl_fail(p->err, RL_ERR_ARGUMENT, "token %u is %d, which is not in the vocabulary (0 to %u)", i, o->ids[i],
                           hp->n_vocab - 1);
    rl_isa isa;
    st = rl_isa_parse(o->isa ? o->isa : "auto", &isa, p->err);
    if (st != RL_OK) return st;
    p->box->report.isa = rl_isa_name(isa);
    p->box->report.router_gap = 1;
    for (int s = 0; s < RL_STAGE_COUNT; s++)
        p->box->stages[s].name = rl_stage_name((rl_stage)s);
    p->chunk = choose_chunk(p);
    size_t slots = (size_t)RL_STAGE_COUNT * hp->n_layer, logits = (size_t)p->chunk * hp->n_vocab;
    p->record = rl_calloc(slots, sizeof *p->record);
    p->compared = rl_calloc(slots, 1);
    p->other_order = rl_calloc(p->chunk, 1);
    p->logits_judge = rl_alloc(logits, sizeof(float));
    p->logits_free = rl_alloc(logits, sizeof(float));
    if (!p->record || !p->compared || !p->other_order || !p->logits_judge || !p->logits_free)
        return rl_fail(p->err, RL_ERR_MEMORY, "no memory to compare passes of %u rows", p->chunk);
    st = open_backend(p, o->judge ? o->judge : "ref", true, &p->judge);
    if (st == RL_OK) st = open_backend(p, o->tested ? o->tested : "auto", false, &p->tested);
    if (st == RL_OK) st = p->judge->ops->seq_create(p->judge, o->n, &p->judge_seq, p->err);
    if (st == RL_OK) st = p->tested->ops->seq_create(p->tested, o->n, &p->forced_seq, p->err);
    if (st == RL_OK) st = p->tested->ops->seq_create(p->tested, o->n, &p->free_seq, p->err);
    return st;
}

static void release(parity *p)
{
    if (p->judge_seq) p->judge->ops->seq_free(p->judge_seq);
    if (p->forced_seq) p->tested->ops->seq_free(p->forced_seq);
    if (p->free_seq) p->tested->ops->seq_free(p->free_seq);
    if (p->judge) p->judge->ops->close(p->judge);
    if (p->tested) p->tested->ops->close(p->tested);
    size_t slots = p->record ? (size_t)RL_STAGE_COUNT * p->model->hp.n_layer : 0;
    for (size_t i = 0; i < slots; i++)
        free(p->record[i]);
    free(p->record);
    free(p->compared);
    free(p->other_order);
    free(p->logits_judge);
    free(p->logits_free);
    rl_model_close(p->model);
}

rl_status rl_parity(const rl_parity_options *o, rl_parity_report **out, rl_error *err)
{
    if (!o || !out || !o->model) return rl_fail(err, RL_ERR_ARGUMENT, "parity needs a model file");
    if (o->n == 0 || !o->ids) return rl_fail(err, RL_ERR_ARGUMENT, "parity needs at least one token");
    if (o->n > RL_MAX_CONTEXT)
        return rl_fail(err, RL_ERR_LIMIT, "parity of %u tokens; expected at most %u", o->n, RL_MAX_CONTEXT);
    report_box *box = rl_calloc(1, sizeof *box);
    if (!box) return rl_fail(err, RL_ERR_MEMORY, "no memory for a report");
    parity p = {.o = o, .box = box, .err = err};
    rl_status st = prepare(&p);
    if (st == RL_OK) st = run(&p);
    if (st == RL_OK) summarise(&p);
    release(&p);
    if (st != RL_OK) {
        free(box);
        return st;
    }
    *out = &box->report;
    return RL_OK;
}

void rl_parity_report_free(rl_parity_report *r)
{
    free(r); /* the box begins with it */
}
