/* What the files of gguf/ share: the parsed form of a model. Private to this folder. */
#ifndef RL_GGUF_INTERNAL_H
#define RL_GGUF_INTERNAL_H

#include "gguf/gguf.h"

/* Application limits, far above any published model: they bound memory and open files whatever a file announces. */
#define RL_GGUF_MAX_TENSORS (1u << 20)
#define RL_GGUF_MAX_KEYS    (1u << 20)
#define RL_GGUF_MAX_PARTS   512u
#define RL_GGUF_MAX_NAME    64u
#define RL_GGUF_MAX_KEY     65535u
#define RL_GGUF_MAX_DEPTH   4 /* of nested arrays */
#define RL_GGUF_ALIGNMENT   32u
#define RL_GGUF_MIN_HEADER  24u

#define RL_GGUF_LABEL 512

/* One encoded value inside a mapping. For arrays `data` is the first element; the type and count were taken off. */
struct rl_gguf_value {
    rl_slice key;
    rl_gguf_kind kind;
    rl_gguf_kind element; /* of an array, else equal to kind */
    uint64_t count;       /* of an array, else 1 */
    const uint8_t *data;  /* a string includes its length field, as array elements do */
    uint64_t bytes;
    uint32_t file;
};

/* Names sorted by content, so that lookups and the search for duplicates cost the same for chosen names as for random ones (a
 * hash table invites collisions). */
typedef struct rl_gguf_name {
    rl_slice text;
    uint32_t index;
} rl_gguf_name;

typedef struct rl_gguf_keys {
    rl_gguf_value *items;
    rl_gguf_name *sorted;
    uint32_t n, capacity;
} rl_gguf_keys;

/* The name is inside the record; tensor.name points to it once the table stops growing. */
typedef struct rl_gguf_entry {
    rl_gguf_tensor tensor;
    char name[RL_GGUF_MAX_NAME + 1];
    uint8_t name_size;
} rl_gguf_entry;

typedef struct rl_gguf_part {
    rl_mapping map;
    char *path;
    char label[RL_GGUF_LABEL]; /* the path, escaped, for messages */
} rl_gguf_part;

struct rl_gguf {
    rl_gguf_part *parts;
    uint32_t n_parts;
    bool owns_maps;
    uint32_t version;
    rl_gguf_keys keys; /* of the first part */
    rl_gguf_entry *tensors;
    rl_gguf_name *sorted;
    uint32_t n_tensors, tensor_capacity;
};

/* parse.c: reads part `file`, appends its tensors to g and its keys to `keys` (with their sorted index). */
rl_status rl_gguf_parse_part(rl_gguf *g, uint32_t file, rl_gguf_keys *keys, rl_error *err);
void rl_gguf_keys_free(rl_gguf_keys *keys);

/* names.c */
bool rl_gguf_valid_utf8(const char *text, size_t n);
/* Sorts; returns a position i with equal texts at i and i + 1, or -1. */
int64_t rl_gguf_names_sort(rl_gguf_name *names, uint32_t n);
/* Index belonging to the text, or -1. */
int64_t rl_gguf_names_find(const rl_gguf_name *names, uint32_t n, const char *text, size_t size);
/* An encoded unsigned number of `bytes` little-endian bytes. */
uint64_t rl_gguf_load(const uint8_t *p, unsigned bytes);

/* value.c */
const char *rl_gguf_kind_name(rl_gguf_kind kind);
unsigned rl_gguf_kind_bytes(rl_gguf_kind kind); /* encoded size of a number or bool, 0 for strings and arrays */
const rl_gguf_value *rl_gguf_keys_find(const rl_gguf_keys *keys, const char *key);
/* An integer of any width in [0, max]; the error names `label` and the key. */
rl_status rl_gguf_value_unsigned(const rl_gguf_value *v, const char *label, uint64_t max, uint64_t *out, rl_error *err);

#endif
