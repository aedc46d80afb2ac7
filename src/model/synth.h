/* model/synth: model files with random weights at real shapes.
 *
 * Such a file opens, runs and costs what a real one of its shape costs, so that loading and speed can be measured and tested
 * without a download. Its text is noise and its routing near uniform. The same options give the same bytes on every machine
 * and for any number of threads. */
#ifndef RL_MODEL_SYNTH_H
#define RL_MODEL_SYNTH_H

#include "base/error.h"

#include <stdint.h>

typedef struct rl_synth_options {
    const char *preset; /* shape, a name of rl_synth_presets(); NULL = "80b" */
    /* Quantisation: "iq2_xxs", "iq3_xxs", "q4_k" mix types the way published files of that name do; any other weight type's
     * name in lower case ("q8_0", "bf16", "mxfp4", ...) gives every matrix that type. NULL = "iq2_xxs". */
    const char *mix;
    uint32_t n_layer; /* trunk layers; 0 = the preset's */
    bool mtp;         /* adds the MTP block */
    uint64_t seed;
    int threads; /* 0 = one per physical core */
    /* Called from the calling thread after every few MiB of data; returning false cancels with RL_ERR_CANCELLED
     * and leaves no file. May be NULL. */
    bool (*progress)(void *ctx, uint64_t done_bytes, uint64_t total_bytes);
    void *progress_ctx;
} rl_synth_options;

typedef struct rl_synth_info {
    uint32_t n_tensors;
    uint64_t n_weights;
    uint64_t tensor_bytes; /* the file adds metadata and padding, a few MiB for the 80b vocabulary */
} rl_synth_info;

/* NULL-terminated lists for help and completion: shapes, and the mixes that are more than one type's name. */
const char *const *rl_synth_presets(void);
const char *const *rl_synth_mixes(void);

/* What rl_synth would write, without writing. Checks the options. */
rl_status rl_synth_plan(const rl_synth_options *opt, rl_synth_info *out, rl_error *err);

/* Writes the file: checks the free disk space first, writes to a temporary neighbour, and renames at the end. `out` may be
 * NULL. */
rl_status rl_synth(const char *path, const rl_synth_options *opt, rl_synth_info *out, rl_error *err);

#endif
