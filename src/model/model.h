/* model: hyperparameters and tensors of one architecture, checked.
 *
 * An rl_model is a GGUF file whose every number has been verified: backends index tensors without further checks. Structure
 * decides: a layer is recurrent or attention by the tensors it has, and metadata that contradicts them is an error. */
#ifndef RL_MODEL_H
#define RL_MODEL_H

#include "gguf/gguf.h"

#define RL_MAX_LAYERS       512
#define RL_MAX_EXPERTS      4096
#define RL_MAX_EXPERTS_USED 64
#define RL_MAX_HEAD_DIM     1024 /* D, a multiple of 16 */
#define RL_MAX_STATE        512  /* S, a multiple of 16 */
#define RL_MAX_CONV         16   /* W, at least 2 */
/* Every matrix has a multiple of 32 columns. */

/* Names as in docs/model.md, letters of the formulas in brackets. */
typedef struct rl_hparams {
    uint32_t n_embd;  /* [E] */
    uint32_t n_layer; /* [L] trunk layers, without MTP blocks */
    uint32_t n_mtp;   /* 0 or 1 */
    uint32_t n_vocab; /* [V] rows of token_embd */
    uint32_t n_context_train;
    float eps;
    /* full attention */
    uint32_t n_head, n_head_kv, head_dim, n_rot; /* [H K D R] */
    double rope_base;
    float rope_factor; /* YaRN factor, 1 = none */
    uint32_t rope_original_context;
    float rope_attn_factor;
    /* DeltaNet */
    uint32_t dn_key_heads, dn_value_heads, dn_head_dim; /* [Hk Hv S] */
    uint32_t dn_conv;                                   /* [W] kernel length */
    uint32_t dn_key_dim, dn_value_dim, dn_conv_dim;     /* kd, vd, 2*kd + vd */
    /* mixture of experts */
    uint32_t n_expert, n_expert_used, n_ff_expert, n_ff_shared; /* [NE k F Fs] */
} rl_hparams;

/* A matrix [cols -> rows]: `rows` rows of `cols` weights, or `n` of them one after another (experts). A part of a fused tensor
 * in the file looks like any other matrix. data == NULL: absent. */
typedef struct rl_matrix {
    rl_type type;
    uint32_t cols, rows, n;
    uint64_t row_bytes, matrix_bytes; /* of one row; from one of the n matrices to the next */
    const uint8_t *data;              /* in the mapping, or the model's own memory when `copied` */
    const rl_gguf_tensor *tensor; /* where it came from: name, file, offset (data - tensor->data inside it, unless copied) */
    bool copied;                  /* rows re-ordered on load (never the experts) */
} rl_matrix;

/* Small float tensors (norms, conv, decay): always F32 in memory, converted once if the file has F16/BF16. */
typedef const float *rl_vector;

typedef enum rl_layer_kind { RL_LAYER_RECURRENT, RL_LAYER_ATTENTION } rl_layer_kind;

typedef struct rl_layer {
    rl_layer_kind kind;
    rl_vector attn_norm, post_norm;
    /* attention */
    rl_matrix q, k, v, o; /* q rows: per head D query rows, then D gate rows */
    rl_vector q_norm, k_norm;
    /* DeltaNet. Files that fuse qkv and gate into ssm_in are presented in this form too. */
    rl_matrix qkv, gate, ba, out; /* qkv rows: q heads, k heads, v heads; ba rows per key head: r betas, then r alphas */
    rl_vector conv, dt_bias, a, ssm_norm; /* conv: per channel W numbers, the current token's last */
    /* MoE */
    rl_matrix router;                        /* F32, F16 or BF16 */
    rl_matrix gate_exps, up_exps, down_exps; /* n = n_expert */
    rl_vector shared_router;                 /* [E] */
    rl_matrix gate_shared, up_shared, down_shared;
} rl_layer;

typedef struct rl_mtp {
    rl_layer block;    /* attention kind */
    rl_matrix eh_proj; /* [2E -> E], embedding part first */
    rl_vector enorm, hnorm, head_norm;
    rl_matrix embed, head; /* own ones, or the trunk's */
} rl_mtp;

typedef struct rl_model {
    rl_gguf *gguf; /* owned */
    rl_hparams hp;
    rl_matrix embed, head; /* head == embed when tied */
    bool tied_head;
    rl_vector output_norm;
    rl_layer *layers; /* n_layer */
    rl_mtp mtp;       /* valid when hp.n_mtp == 1 */
    uint32_t n_recurrent, n_attention;
    void *owned; /* storage of converted vectors */
} rl_model;

/* Opens, binds and audits. Errors name the tensor or key, what was found and what was expected. */
rl_status rl_model_open(const char *path, rl_model **out, rl_error *err);
/* Takes ownership of g (closed on failure too). */
rl_status rl_model_bind(rl_gguf *g, rl_model **out, rl_error *err);
void rl_model_close(rl_model *m);

/* Rotation angle frequencies for position 1 (n_rot/2 doubles) with YaRN applied, and the factor on cos and sin. */
void rl_model_rope(const rl_hparams *hp, double *freq, double *scale);

/* Row r of matrix e (0 when n == 1) in the mapping. */
static inline const uint8_t *rl_matrix_row(const rl_matrix *m, uint32_t e, uint32_t r)
{
    return m->data + (uint64_t)e * m->matrix_bytes + (uint64_t)r * m->row_bytes;
}

#endif
