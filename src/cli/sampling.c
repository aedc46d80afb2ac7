/* cli/sampling: see sampling.h. */
#include "sampling.h"

#include <math.h>

/* Marks of options that were not given; no option takes these values. */
#define UNSET_INT   INT32_MIN
#define UNSET_FLOAT (-INFINITY)

static struct {
    float temperature, top_p, min_p, repeat, presence, frequency;
    int32_t top_k, last_n;
    uint32_t seed;
    cli_biases biases;
} v = {.temperature = UNSET_FLOAT,
       .top_p = UNSET_FLOAT,
       .min_p = UNSET_FLOAT,
       .repeat = 1,
       .top_k = UNSET_INT,
       .last_n = 64,
       .seed = RL_SEED_RANDOM};

const cli_option cli_sampling_options[] = {
    {.name = "temp",
     .kind = CLI_FLOAT,
     .value = &v.temperature,
     .max = 100,
     .arg = "T",
     .help = "0 = always the likeliest token; default: the model's\nrecommendation, else 0.7"},
    {.name = "top-k",
     .kind = CLI_INT,
     .value = &v.top_k,
     .max = INT32_MAX,
     .arg = "K",
     .help = "of the K likeliest only; 0 = all (default 20)"},
    {.name = "top-p",
     .kind = CLI_FLOAT,
     .value = &v.top_p,
     .max = 1,
     .arg = "P",
     .help = "of the likeliest that together have P (default 0.8)"},
    {.name = "min-p",
     .kind = CLI_FLOAT,
     .value = &v.min_p,
     .max = 1,
     .arg = "P",
     .help = "at least P times as likely as the likeliest (default 0)"},
    {.name = "seed",
     .letter = 's',
     .kind = CLI_UINT,
     .value = &v.seed,
     .max = UINT32_MAX,
     .arg = "N",
     .help = "repeats a draw; default: a new one every time"},
    {.name = "repeat-penalty",
     .kind = CLI_FLOAT,
     .value = &v.repeat,
     .min = 0.01,
     .max = 100,
     .arg = "X",
     .help = "divides the logits of recent tokens (default 1)"},
    {.name = "presence-penalty",
     .kind = CLI_FLOAT,
     .value = &v.presence,
     .min = -100,
     .max = 100,
     .arg = "X",
     .help = "subtracted once from recent tokens (default 0)"},
    {.name = "frequency-penalty",
     .kind = CLI_FLOAT,
     .value = &v.frequency,
     .min = -100,
     .max = 100,
     .arg = "X",
     .help = "subtracted per occurrence (default 0)"},
    {.name = "repeat-last-n",
     .kind = CLI_INT,
     .value = &v.last_n,
     .min = -1,
     .max = RL_MAX_CONTEXT,
     .arg = "N",
     .help = "tokens the penalties look back; -1 = all (default 64)"},
    {.name = "logit-bias",
     .kind = CLI_BIASES,
     .value = &v.biases,
     .arg = "ID=B,...",
     .help = "added to logits; -inf forbids a token"},
    {0}};

void cli_fill_sampling(const rl_engine *e, rl_sampling *p, rl_logit_bias *bias)
{
    rl_sampling_init(p, e);
    if (v.temperature != UNSET_FLOAT) p->temperature = v.temperature;
    if (v.top_p != UNSET_FLOAT) p->top_p = v.top_p;
    if (v.min_p != UNSET_FLOAT) p->min_p = v.min_p;
    if (v.top_k != UNSET_INT) p->top_k = v.top_k;
    p->repeat_penalty = v.repeat;
    p->presence_penalty = v.presence;
    p->frequency_penalty = v.frequency;
    p->penalty_last_n = v.last_n;
    p->seed = v.seed;
    for (uint32_t i = 0; i < v.biases.n; i++)
        bias[i] = (rl_logit_bias){.id = v.biases.id[i], .bias = v.biases.bias[i]};
    p->bias = bias;
    p->n_bias = v.biases.n;
}
