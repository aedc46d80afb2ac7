/* Opening models: one file, a split model through its first part, or bytes in memory; and the accessors of the result. */
#include "base/mem.h"
#include "gguf/internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Room for "-NNNNN-of-NNNNN.gguf" whatever two numbers. */
#define SUFFIX_MAX 48

void rl_gguf_close(rl_gguf *g)
{
    if (!g) return;
    for (uint32_t i = 0; i < g->n_parts; i++) {
        if (g->owns_maps) rl_mapping_close(&g->parts[i].map);
        free(g->parts[i].path);
    }
    rl_gguf_keys_free(&g->keys);
    free(g->parts);
    free(g->tensors);
    free(g->sorted);
    free(g);
}

static rl_status no_memory(const char *name, rl_error *err)
{
    char label[RL_GGUF_LABEL];
    return rl_fail(err, RL_ERR_MEMORY, "%s: no memory for the table of the file",
                   rl_escape(label, sizeof label, name, strlen(name)));
}

static rl_status create(const char *name, bool owns_maps, rl_gguf **out, rl_error *err)
{
    rl_gguf *g = rl_calloc(1, sizeof *g);
    if (!g) return no_memory(name, err);
    g->owns_maps = owns_maps;
    *out = g;
    return RL_OK;
}

/* Takes the mapping over, on failure too. */
static rl_status add_part(rl_gguf *g, const char *path, rl_mapping map, rl_error *err)
{
    rl_gguf_part *parts = rl_realloc(g->parts, (size_t)g->n_parts + 1, sizeof *parts);
    char *copy = parts ? strdup(path) : NULL;
    if (parts) g->parts = parts;
    if (!copy) {
        if (g->owns_maps) rl_mapping_close(&map);
        return no_memory(path, err);
    }
    rl_gguf_part *part = &parts[g->n_parts++];
    *part = (rl_gguf_part){.map = map, .path = copy};
    rl_escape(part->label, sizeof part->label, path, strlen(path));
    return RL_OK;
}

static rl_status open_part(rl_gguf *g, const char *path, rl_error *err)
{
    rl_mapping map = {0};
    rl_status s = rl_mapping_open(path, &map, err);
    return s == RL_OK ? add_part(g, path, map, err) : s;
}

/* Names get their final addresses and an index; a name may appear once in all parts. */
static rl_status index_tensors(rl_gguf *g, rl_error *err)
{
    g->sorted = rl_alloc(g->n_tensors, sizeof *g->sorted);
    if (!g->sorted) return no_memory(g->parts[0].path, err);
    for (uint32_t i = 0; i < g->n_tensors; i++) {
        rl_gguf_entry *e = &g->tensors[i];
        e->tensor.name = e->name;
        g->sorted[i] = (rl_gguf_name){{e->name, e->name_size}, i};
    }
    int64_t twice = rl_gguf_names_sort(g->sorted, g->n_tensors);
    if (twice < 0) return RL_OK;
    char name[128];
    uint32_t i = g->sorted[twice].index, j = g->sorted[twice + 1].index;
    return rl_fail(err, RL_ERR_FORMAT,
                   "%s: tensor '%s' is repeated (tensors %" PRIu32 " and %" PRIu32 "), expected unique names",
                   g->parts[g->tensors[j].tensor.file].label,
                   rl_escape(name, sizeof name, g->sorted[twice].text.data, g->sorted[twice].text.size), i, j);
}

/* ---- Split models ---------------------------------------------------------------------------------------------------- */

/* A key of part `file` as an unsigned number; absent is -1. */
static rl_status split_key(const rl_gguf *g, const rl_gguf_keys *keys, uint32_t file, const char *key, int64_t *out,
                           rl_error *err)
{
    const rl_gguf_value *v = rl_gguf_keys_find(keys, key);
    uint64_t u = 0;
    *out = -1;
    if (!v) return RL_OK;
    rl_status s = rl_gguf_value_unsigned(v, g->parts[file].label, INT32_MAX, &u, err);
    if (s == RL_OK) *out = (int64_t)u;
    return s;
}

static void split_suffix(char out[SUFFIX_MAX], int64_t number, int64_t count)
{
    snprintf(out, SUFFIX_MAX, "-%05" PRId64 "-of-%05" PRId64 ".gguf", number, count);
}

/* Length of the path in front of the suffix of part 1: only the path the user gave says where the other parts are. */
static rl_status split_prefix(const rl_gguf *g, int64_t count, size_t *out, rl_error *err)
{
    const rl_gguf_part *part = &g->parts[0];
    char suffix[SUFFIX_MAX];
    split_suffix(suffix, 1, count);
    size_t n = strlen(part->path), m = strlen(suffix);
    if (n <= m || strcmp(part->path + n - m, suffix) != 0)
        return rl_fail(err, RL_ERR_FORMAT, "%s: split.count is %" PRId64 ", so the name of this first part must end in '%s'",
                       part->label, count, suffix);
    *out = n - m;
    return RL_OK;
}

static rl_status check_part(const rl_gguf *g, const rl_gguf_keys *keys, uint32_t file, int64_t count, rl_error *err)
{
    int64_t number = -1, own_count = -1;
    rl_status s = split_key(g, keys, file, "split.no", &number, err);
    if (s == RL_OK) s = split_key(g, keys, file, "split.count", &own_count, err);
    if (s != RL_OK) return s;
    if (number != file) {
        if (number < 0)
            return rl_fail(err, RL_ERR_FORMAT, "%s: key 'split.no' is missing, expected %u", g->parts[file].label, file);
        return rl_fail(err, RL_ERR_FORMAT, "%s: key 'split.no' is %" PRId64 ", expected %u (parts are counted from 0%s)",
                       g->parts[file].label, number, file, file == 0 ? "; open the first part" : "");
    }
    if (own_count >= 0 && own_count != count)
        return rl_fail(err, RL_ERR_FORMAT, "%s: key 'split.count' is %" PRId64 ", expected %" PRId64 " as in the first part",
                       g->parts[file].label, own_count, count);
    return RL_OK;
}

static rl_status open_one_more(rl_gguf *g, uint32_t file, size_t prefix, int64_t count, rl_error *err)
{
    char suffix[SUFFIX_MAX];
    split_suffix(suffix, (int64_t)file + 1, count);
    char *path = rl_alloc(prefix + sizeof suffix, 1);
    if (!path) return no_memory(g->parts[0].path, err);
    memcpy(path, g->parts[0].path, prefix);
    memcpy(path + prefix, suffix, sizeof suffix);
    rl_status s = open_part(g, path, err);
    free(path);
    if (s != RL_OK) return s;
    rl_gguf_keys keys = {0};
    s = rl_gguf_parse_part(g, file, &keys, err);
    if (s == RL_OK) s = check_part(g, &keys, file, count, err);
    rl_gguf_keys_free(&keys);
    return s;
}

static rl_status open_rest(rl_gguf *g, rl_error *err)
{
    int64_t count = 0, tensors = -1;
    rl_status s = split_key(g, &g->keys, 0, "split.count", &count, err);
    if (s != RL_OK || count <= 1) return s;
    if (count > RL_GGUF_MAX_PARTS)
        return rl_fail(err, RL_ERR_UNSUPPORTED, "%s: key 'split.count' is %" PRId64 ", above the limit of %u parts",
                       g->parts[0].label, count, RL_GGUF_MAX_PARTS);
    size_t prefix = 0;
    s = check_part(g, &g->keys, 0, count, err);
    if (s == RL_OK) s = split_prefix(g, count, &prefix, err);
    if (s == RL_OK) s = split_key(g, &g->keys, 0, "split.tensors.count", &tensors, err);
    for (uint32_t file = 1; s == RL_OK && file < count; file++)
        s = open_one_more(g, file, prefix, count, err);
    if (s != RL_OK || tensors == g->n_tensors) return s;
    if (tensors < 0) return rl_fail(err, RL_ERR_FORMAT, "%s: key 'split.tensors.count' is missing", g->parts[0].label);
    return rl_fail(err, RL_ERR_FORMAT,
                   "%s: key 'split.tensors.count' is %" PRId64 ", but the %" PRId64 " parts have %" PRIu32 " tensors",
                   g->parts[0].label, tensors, count, g->n_tensors);
}

static rl_status finish(rl_gguf *g, rl_status s, rl_gguf **out, rl_error *err)
{
    if (s == RL_OK) s = index_tensors(g, err);
    if (s == RL_OK)
        *out = g;
    else
        rl_gguf_close(g);
    return s;
}

rl_status rl_gguf_open(const char *path, rl_gguf **out, rl_error *err)
{
    rl_gguf *g = NULL;
    rl_status s = create(path, true, &g, err);
    if (s != RL_OK) return s;
    s = open_part(g, path, err);
    if (s == RL_OK) s = rl_gguf_parse_part(g, 0, &g->keys, err);
    if (s == RL_OK) s = open_rest(g, err);
    return finish(g, s, out, err);
}

rl_status rl_gguf_parse(const void *data, size_t size, const char *name, rl_gguf **out, rl_error *err)
{
    rl_gguf *g = NULL;
    rl_status s = create(name, false, &g, err);
    if (s != RL_OK) return s;
    s = add_part(g, name, (rl_mapping){.data = data, .size = size, .fd = -1}, err);
    if (s == RL_OK) s = rl_gguf_parse_part(g, 0, &g->keys, err);
    return finish(g, s, out, err);
}

/* ---- Accessors ------------------------------------------------------------------------------------------------------- */

uint32_t rl_gguf_version(const rl_gguf *g)
{
    return g->version;
}

uint32_t rl_gguf_n_files(const rl_gguf *g)
{
    return g->n_parts;
}

const char *rl_gguf_file_name(const rl_gguf *g, uint32_t file)
{
    return g->parts[file].path;
}

const rl_mapping *rl_gguf_mapping(const rl_gguf *g, uint32_t file)
{
    return &g->parts[file].map;
}

uint64_t rl_gguf_total_bytes(const rl_gguf *g)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < g->n_parts; i++)
        bytes += g->parts[i].map.size;
    return bytes;
}

uint32_t rl_gguf_n_tensors(const rl_gguf *g)
{
    return g->n_tensors;
}

const rl_gguf_tensor *rl_gguf_tensor_at(const rl_gguf *g, uint32_t i)
{
    return &g->tensors[i].tensor;
}

const rl_gguf_tensor *rl_gguf_find_tensor(const rl_gguf *g, const char *name)
{
    int64_t i = rl_gguf_names_find(g->sorted, g->n_tensors, name, strlen(name));
    return i < 0 ? NULL : &g->tensors[i].tensor;
}

uint32_t rl_gguf_n_keys(const rl_gguf *g)
{
    return g->keys.n;
}

rl_slice rl_gguf_key_at(const rl_gguf *g, uint32_t i)
{
    return g->keys.items[i].key;
}

const rl_gguf_value *rl_gguf_value_at(const rl_gguf *g, uint32_t i)
{
    return &g->keys.items[i];
}
