/* model: opening a file as a model of one of the known architectures, and the rotary frequencies. */
#include "model/model.h"
#include "base/mem.h"
#include "model/binder.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct architecture {
    const char *name; /* value of general.architecture and prefix of its keys */
    rl_status (*bind)(rl_binder *b);
} architecture;

static const architecture architectures[] = {{"qwen3next", rl_qwen3next_bind}};

static const architecture *find_architecture(rl_binder *b)
{
    rl_slice name;
    bool found = false;
    b->status = rl_gguf_get_string(b->g, "general.architecture", &name, &found, b->err);
    if (b->status != RL_OK) return NULL;
    if (!found) {
        rl_binder_fail(b, RL_ERR_FORMAT, "key 'general.architecture' is missing, expected 'qwen3next'");
        return NULL;
    }
    for (size_t i = 0; i < sizeof architectures / sizeof *architectures; i++)
        if (strlen(architectures[i].name) == name.size && memcmp(architectures[i].name, name.data, name.size) == 0)
            return &architectures[i];
    char text[64];
    rl_binder_fail(b, RL_ERR_UNSUPPORTED, "key 'general.architecture' is '%s', expected 'qwen3next'",
                   rl_escape(text, sizeof text, name.data, name.size));
    return NULL;
}

rl_status rl_model_bind(rl_gguf *g, rl_model **out, rl_error *err)
{
    rl_model *m = rl_calloc(1, sizeof *m);
    if (!m) {
        rl_gguf_close(g);
        return rl_fail(err, RL_ERR_MEMORY, "cannot allocate a model");
    }
    m->gguf = g;
    rl_binder b;
    rl_binder_init(&b, g, m, err);
    const architecture *arch = find_architecture(&b);
    if (arch) {
        b.prefix = arch->name;
        arch->bind(&b);
        rl_binder_finish(&b);
    }
    rl_status status = b.status;
    rl_binder_free(&b);
    if (status != RL_OK) {
        rl_model_close(m);
        return status;
    }
    *out = m;
    return RL_OK;
}

rl_status rl_model_open(const char *path, rl_model **out, rl_error *err)
{
    rl_gguf *g;
    rl_status status = rl_gguf_open(path, &g, err);
    return status == RL_OK ? rl_model_bind(g, out, err) : status;
}

/* YaRN's ramp: the pair index at which a wave makes `turns` turns within the original context. */
static double yarn_dim(const rl_hparams *hp, double turns)
{
    const double pi = 3.14159265358979323846;
    return hp->n_rot * log(hp->rope_original_context / (turns * 2 * pi)) / (2 * log(hp->rope_base));
}

void rl_model_rope(const rl_hparams *hp, double *freq, double *scale)
{
    const bool yarn = hp->rope_factor > 1;
    const double factor = hp->rope_factor;
    double lo = 0, hi = 0;
    *scale = 1;
    if (yarn) {
        lo = fmax(0, floor(yarn_dim(hp, 32)));
        hi = fmin(hp->n_rot - 1.0, ceil(yarn_dim(hp, 1)));
        *scale = (1 + 0.1 * log(factor)) * hp->rope_attn_factor;
    }
    for (uint32_t i = 0; i < hp->n_rot / 2; i++) {
        freq[i] = pow(hp->rope_base, -2.0 * i / hp->n_rot);
        if (!yarn) continue;
        /* Fast waves keep their angle, slow ones are stretched by the factor. */
        double ramp = (i - lo) / fmax(0.001, hi - lo);
        double keep = 1 - fmin(1, fmax(0, ramp));
        freq[i] *= (1 - keep) / factor + keep;
    }
}
