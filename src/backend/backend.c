/* backend: the list of backends in this build, and the names and widths of the stages. */
#include "backend/backend.h"
#include "backend/cpu/cpu.h"
#include "backend/cuda_load.h"
#include "backend/ref/ref.h"
#include <string.h>

/* Best first: "auto" takes the head of the list. ref is last, being the judge and not the runner. A GPU that can be used comes
 * before all. */
static const rl_backend_ops *const with_gpu_absent[] = {&rl_backend_cpu, &rl_backend_ref, NULL};
static const rl_backend_ops *with_gpu[] = {NULL, &rl_backend_cpu, &rl_backend_ref, NULL};

const rl_backend_ops *const *rl_backend_list(void)
{
    const rl_cuda_library *gpu = rl_cuda_load(NULL);
    if (!gpu) return with_gpu_absent;
    with_gpu[0] = gpu->ops;
    return with_gpu;
}

const rl_backend_ops *rl_backend_find(const char *name)
{
    const rl_backend_ops *const *list = rl_backend_list();
    if (strcmp(name, "auto") == 0) return list[0];
    for (const rl_backend_ops *const *b = list; *b; b++)
        if (strcmp((*b)->name, name) == 0) return *b;
    return NULL;
}

const char *rl_stage_name(rl_stage s)
{
    static const char *const names[RL_STAGE_COUNT] = {
        [RL_STAGE_EMBED] = "embed",
        [RL_STAGE_ATTN_NORM] = "attn_norm",
        [RL_STAGE_DN_QKV] = "dn_qkv",
        [RL_STAGE_DN_Z] = "dn_z",
        [RL_STAGE_DN_BETA] = "dn_beta",
        [RL_STAGE_DN_DECAY] = "dn_decay",
        [RL_STAGE_DN_CONV] = "dn_conv",
        [RL_STAGE_DN_Q] = "dn_q",
        [RL_STAGE_DN_K] = "dn_k",
        [RL_STAGE_DN_CORE] = "dn_core",
        [RL_STAGE_DN_GATED] = "dn_gated",
        [RL_STAGE_AT_QGATE] = "at_qgate",
        [RL_STAGE_AT_Q] = "at_q",
        [RL_STAGE_AT_K] = "at_k",
        [RL_STAGE_AT_V] = "at_v",
        [RL_STAGE_AT_CORE] = "at_core",
        [RL_STAGE_AT_GATED] = "at_gated",
        [RL_STAGE_MIX_OUT] = "mix_out",
        [RL_STAGE_MIX_RESIDUAL] = "mix_residual",
        [RL_STAGE_FFN_NORM] = "ffn_norm",
        [RL_STAGE_ROUTER_LOGITS] = "router_logits",
        [RL_STAGE_ROUTER_IDS] = "router_ids",
        [RL_STAGE_ROUTER_WEIGHTS] = "router_weights",
        [RL_STAGE_EXPERTS] = "experts",
        [RL_STAGE_SHARED] = "shared",
        [RL_STAGE_LAYER_OUT] = "layer_out",
        [RL_STAGE_FINAL_NORM] = "final_norm",
        [RL_STAGE_LOGITS] = "logits",
    };
    return (unsigned)s < RL_STAGE_COUNT ? names[s] : "unknown";
}

uint32_t rl_stage_width(const rl_hparams *hp, rl_stage s)
{
    switch (s) {
    case RL_STAGE_DN_QKV:
    case RL_STAGE_DN_CONV:
        return hp->dn_conv_dim;
    case RL_STAGE_DN_Z:
    case RL_STAGE_DN_CORE:
    case RL_STAGE_DN_GATED:
        return hp->dn_value_dim;
    case RL_STAGE_DN_BETA:
    case RL_STAGE_DN_DECAY:
        return hp->dn_value_heads;
    case RL_STAGE_DN_Q:
    case RL_STAGE_DN_K:
        return hp->dn_key_dim;
    case RL_STAGE_AT_QGATE:
        return 2 * hp->n_head * hp->head_dim;
    case RL_STAGE_AT_Q:
    case RL_STAGE_AT_CORE:
    case RL_STAGE_AT_GATED:
        return hp->n_head * hp->head_dim;
    case RL_STAGE_AT_K:
    case RL_STAGE_AT_V:
        return hp->n_head_kv * hp->head_dim;
    case RL_STAGE_ROUTER_LOGITS:
        return hp->n_expert;
    case RL_STAGE_ROUTER_IDS:
    case RL_STAGE_ROUTER_WEIGHTS:
        return hp->n_expert_used;
    case RL_STAGE_LOGITS:
        return hp->n_vocab;
    default:
        return hp->n_embd;
    }
}
