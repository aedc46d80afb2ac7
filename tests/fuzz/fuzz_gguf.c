/* libFuzzer target of the GGUF reader: whatever parses must be safe to read through every accessor. */
#include "gguf/gguf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void require(bool condition)
{
    if (!condition) abort();
}

/* Reads a byte so that the sanitizers see the access. */
static void touch(const void *p)
{
    volatile uint8_t seen = *(const volatile uint8_t *)p;
    (void)seen;
}

static void visit_elements(const rl_gguf_value *v)
{
    rl_gguf_array a;
    rl_gguf_value_view(v, &a);
    if (a.kind == RL_GGUF_STRING) {
        uint64_t cursor = 0, n = 0;
        rl_slice text;
        while (rl_gguf_array_next_string(&a, &cursor, &text)) {
            if (text.size) touch(text.data), touch(text.data + text.size - 1);
            n++;
        }
        require(n == a.count && cursor == a.bytes);
        return;
    }
    if (a.kind == RL_GGUF_ARRAY || a.count == 0) return;
    const uint64_t ends[2] = {0, a.count - 1};
    for (int i = 0; i < 2; i++) {
        if (a.kind == RL_GGUF_F32 || a.kind == RL_GGUF_F64)
            (void)rl_gguf_array_float(&a, ends[i]);
        else
            (void)rl_gguf_array_int(&a, ends[i]);
    }
}

/* Every typed getter on a key that exists: the error, if any, is a sentence. */
static void visit_key(const rl_gguf *g, uint32_t i)
{
    char key[256];
    rl_slice name = rl_gguf_key_at(g, i);
    visit_elements(rl_gguf_value_at(g, i));
    if (name.size >= sizeof key) return;
    memcpy(key, name.data, name.size);
    key[name.size] = 0;
    require(rl_gguf_find(g, key) == rl_gguf_value_at(g, i));
    rl_error err;
    uint32_t u;
    uint64_t w;
    float f;
    bool b, found = false;
    rl_slice text;
    rl_gguf_array a;
    err.text[0] = 0;
    if (rl_gguf_get_u32(g, key, &u, &found, &err) != RL_OK) require(err.text[0] && err.status == RL_ERR_FORMAT);
    require(found);
    (void)rl_gguf_get_u64(g, key, &w, NULL, &err);
    (void)rl_gguf_get_f32(g, key, &f, NULL, &err);
    (void)rl_gguf_get_bool(g, key, &b, NULL, &err);
    (void)rl_gguf_get_string(g, key, &text, NULL, &err);
    (void)rl_gguf_get_array(g, key, &a, NULL, &err);
}

static void visit_tensor(const rl_gguf *g, uint32_t i, size_t size)
{
    const rl_gguf_tensor *t = rl_gguf_tensor_at(g, i);
    require(rl_gguf_find_tensor(g, t->name) == t);
    require(rl_type_get(t->type) != NULL && t->bytes > 0 && t->offset <= size && t->bytes <= size - t->offset);
    require(rl_type_row_bytes(t->type, t->ne[0]) * t->ne[1] * t->ne[2] * t->ne[3] == t->bytes);
    touch(t->data);
    touch(t->data + t->bytes - 1);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    rl_gguf *g = NULL;
    rl_error err = {0};
    rl_status s = rl_gguf_parse(data, size, "input", &g, &err);
    if (s != RL_OK) {
        require(g == NULL && err.status == s && strncmp(err.text, "input: ", 7) == 0);
        return 0;
    }
    for (uint32_t i = 0; i < rl_gguf_n_keys(g); i++)
        visit_key(g, i);
    for (uint32_t i = 0; i < rl_gguf_n_tensors(g); i++)
        visit_tensor(g, i, size);
    rl_gguf_close(g);
    return 0;
}
