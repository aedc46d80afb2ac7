/* cli/info: a model in numbers: shape, layers, types, and what it needs in memory. */
#include "cli.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct {
    bool json;
} opt;

static const cli_option info_options[] = {{.name = "json", .kind = CLI_FLAG, .value = &opt.json, .help = "everything as JSON"},
                                          {0}};
static const cli_table tables[] = {
    {"Model:", cli_model_options}, {"Output:", info_options}, {"Other:", cli_output_options}, {0}};

static const uint32_t contexts[] = {4096, 32768, 262144};
enum { N_CONTEXTS = sizeof contexts / sizeof *contexts };

/* "17.96 GiB", "44.0 MiB", "512 B" */
static const char *bytes_text(uint64_t n, char *out, size_t cap)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double v = (double)n;
    int u = 0;
    while (v >= 1024 && u < 4) {
        v /= 1024;
        u++;
    }
    snprintf(out, cap, u == 0 ? "%.0f %s" : v < 100 ? "%.2f %s" : "%.1f %s", v, units[u]);
    return out;
}

static void print_layers(const rl_model_info *m)
{
    cli_outf("layers      %u: %u DeltaNet (d), %u attention (A)%s\n            ", m->n_layer, m->n_recurrent, m->n_attention,
             m->n_mtp ? ", and an MTP block" : "");
    for (uint32_t i = 0; i < m->n_layer; i++)
        cli_outf("%s%c", i && i % 4 == 0 ? " " : "", m->recurrent[i] ? 'd' : 'A');
    cli_out_text("\n");
}

static void print_text(const rl_model_info *m)
{
    char a[32], b[32];
    cli_outf("model       %s\n", m->name[0] ? m->name : "(no name)");
    cli_outf("file        %s, %s%s\n", m->path, bytes_text(m->file_bytes, a, sizeof a),
             m->n_files > 1 ? " in several parts" : "");
    bool large = m->parameters >= 1000000000;
    cli_outf("parameters  %.2f %s, %.2f bits each (architecture %s)\n", (double)m->parameters / (large ? 1e9 : 1e6),
             large ? "G" : "M", 8.0 * (double)m->file_bytes / (double)m->parameters, m->architecture);
    print_layers(m);
    cli_outf("hidden      %u; vocabulary %u; trained for %u positions\n", m->n_embd, m->n_vocab, m->n_context_train);
    cli_outf("attention   %u query heads, %u key/value heads of %u, %u rotary (base %g)\n", m->n_head, m->n_head_kv,
             m->head_dim, m->n_rot, m->rope_base);
    cli_outf("DeltaNet    %u key heads, %u value heads of %u, convolution %u\n", m->dn_key_heads, m->dn_value_heads,
             m->dn_head_dim, m->dn_conv);
    cli_outf("experts     %u, %u used per token, width %u; shared expert %u\n", m->n_expert, m->n_expert_used, m->n_ff_expert,
             m->n_ff_shared);
    cli_outf("\n%-18s %-8s %8s %12s %12s %8s\n", "weights of", "type", "tensors", "millions", "size", "of file");
    for (uint32_t i = 0; i < m->n_groups; i++) {
        const rl_group_info *g = &m->groups[i];
        cli_outf("%-18s %-8s %8u %12.2f %12s %6.1f %%\n", g->group, g->type, g->tensors, (double)g->weights / 1e6,
                 bytes_text(g->bytes, a, sizeof a), 100.0 * (double)g->bytes / (double)m->file_bytes);
    }
    cli_outf("\none token reads      %s of weights\n", bytes_text(m->bytes_per_token, a, sizeof a));
    cli_outf("one expert           %s at most; %u in all\n", bytes_text(m->expert_bytes, a, sizeof a),
             m->n_expert * m->n_layer);
    cli_outf("cache for every one  %s\n", bytes_text(m->all_experts_bytes, a, sizeof a));
    cli_outf("state of a sequence  %s, any length\n", bytes_text(m->state_bytes, a, sizeof a));
    for (int i = 0; i < N_CONTEXTS; i++)
        cli_outf("KV of %6u tokens   %s as f32, %s as f16\n", contexts[i],
                 bytes_text(m->kv_bytes_per_token * contexts[i], a, sizeof a),
                 bytes_text(m->kv_bytes_per_token / 2 * contexts[i], b, sizeof b));
}

static json_t *real_or_null(double v)
{
    return isfinite(v) ? json_real(v) : json_null();
}

static void set_int(json_t *o, const char *key, uint64_t v)
{
    json_object_set_new(o, key, json_integer((json_int_t)v));
}

static json_t *memory_json(const rl_model_info *m)
{
    json_t *o = json_object(), *kv = json_array();
    set_int(o, "bytes_per_token", m->bytes_per_token);
    set_int(o, "expert_bytes", m->expert_bytes);
    set_int(o, "all_experts_bytes", m->all_experts_bytes);
    set_int(o, "state_bytes", m->state_bytes);
    set_int(o, "kv_f32_bytes_per_token", m->kv_bytes_per_token);
    for (int i = 0; i < N_CONTEXTS; i++) {
        json_t *c = json_object();
        set_int(c, "context", contexts[i]);
        set_int(c, "f32_bytes", m->kv_bytes_per_token * contexts[i]);
        set_int(c, "f16_bytes", m->kv_bytes_per_token / 2 * contexts[i]);
        json_array_append_new(kv, c);
    }
    json_object_set_new(o, "kv", kv);
    return o;
}

static json_t *shape_json(const rl_model_info *m)
{
    const struct {
        const char *key;
        uint64_t v;
    } fields[] = {{"layers", m->n_layer},
                  {"recurrent_layers", m->n_recurrent},
                  {"attention_layers", m->n_attention},
                  {"mtp_blocks", m->n_mtp},
                  {"hidden", m->n_embd},
                  {"vocabulary", m->n_vocab},
                  {"context_trained", m->n_context_train},
                  {"heads", m->n_head},
                  {"kv_heads", m->n_head_kv},
                  {"head_dim", m->head_dim},
                  {"rotary", m->n_rot},
                  {"deltanet_key_heads", m->dn_key_heads},
                  {"deltanet_value_heads", m->dn_value_heads},
                  {"deltanet_head_dim", m->dn_head_dim},
                  {"convolution", m->dn_conv},
                  {"experts", m->n_expert},
                  {"experts_used", m->n_expert_used},
                  {"expert_width", m->n_ff_expert},
                  {"shared_width", m->n_ff_shared}};
    json_t *o = json_object(), *map = json_array();
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        set_int(o, fields[i].key, fields[i].v);
    json_object_set_new(o, "rope_base", json_real(m->rope_base));
    json_object_set_new(o, "tied_head", json_boolean(m->tied_head));
    for (uint32_t i = 0; i < m->n_layer; i++)
        json_array_append_new(map, json_string(m->recurrent[i] ? "deltanet" : "attention"));
    json_object_set_new(o, "layer_map", map);
    return o;
}

static json_t *groups_json(const rl_model_info *m)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < m->n_groups; i++) {
        const rl_group_info *g = &m->groups[i];
        json_t *o = json_object();
        json_object_set_new(o, "group", json_string(g->group));
        json_object_set_new(o, "type", json_string(g->type));
        set_int(o, "tensors", g->tensors);
        set_int(o, "weights", g->weights);
        set_int(o, "bytes", g->bytes);
        json_array_append_new(list, o);
    }
    return list;
}

static json_t *model_json(const rl_model_info *m)
{
    json_t *o = json_object(), *sampling = json_object();
    char fingerprint[20];
    snprintf(fingerprint, sizeof fingerprint, "%016llx", (unsigned long long)m->fingerprint);
    json_object_set_new(o, "path", json_string(m->path));
    json_object_set_new(o, "name", json_string(m->name));
    json_object_set_new(o, "architecture", json_string(m->architecture));
    json_object_set_new(o, "fingerprint", json_string(fingerprint));
    set_int(o, "files", m->n_files);
    set_int(o, "file_bytes", m->file_bytes);
    set_int(o, "parameters", m->parameters);
    json_object_set_new(o, "shape", shape_json(m));
    json_object_set_new(o, "groups", groups_json(m));
    json_object_set_new(o, "memory", memory_json(m));
    json_object_set_new(sampling, "temperature", real_or_null(m->sampling_temperature));
    json_object_set_new(sampling, "top_p", real_or_null(m->sampling_top_p));
    json_object_set_new(sampling, "min_p", real_or_null(m->sampling_min_p));
    json_object_set_new(sampling, "top_k", m->sampling_top_k >= 0 ? json_integer(m->sampling_top_k) : json_null());
    json_object_set_new(o, "recommended_sampling", sampling);
    json_object_set_new(o, "chat_template", json_boolean(m->has_chat_template));
    return o;
}

int cmd_info(int argc, char **argv)
{
    cli_command_line cl = {.command = "info",
                           .usage = "[-m FILE | FILE] [--json]",
                           .about = "Describes a model: shape, layer map, types and bytes, and the memory it needs.",
                           .tables = tables,
                           .max_positional = 1};
    int status = cli_parse(&cl, argc, argv);
    if (status != CLI_GO_ON) return status;
    if (cl.n_positional && cli_engine.model) return cli_usage_error("info", "name the model once");
    if (cl.n_positional) cli_engine.model = cl.positional[0];
    if (cli_engine.quiet) rl_log_set_level(RL_LOG_ERROR);
    const char *path = cli_model_path();
    if (!path) return CLI_EXIT_FAILURE;
    rl_model_info *m = NULL;
    rl_error err = {0};
    if (rl_model_inspect(path, &m, &err) != RL_OK) return cli_error(&err);
    if (opt.json) {
        json_t *o = model_json(m);
        char *text = json_dumps(o, JSON_INDENT(2) | JSON_REAL_PRECISION(9));
        json_decref(o);
        if (text) {
            cli_out_text(text);
            cli_out_text("\n");
        }
        free(text);
    } else {
        print_text(m);
    }
    rl_model_info_free(m);
    return cli_out_status();
}
