/* The GGUF writer, read back by the reader; and split models made with it. */
#include "support/gguf_bytes.h"
#include "support/support.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct place {
    char dir[PATH_MAX], path[PATH_MAX];
} place;

static int setup(void **state)
{
    place *p = malloc(sizeof *p);
    if (!p) return -1;
    rl_test_tmpdir(p->dir);
    rl_test_join(p->path, p->dir, "out.gguf");
    *state = p;
    return 0;
}

static int teardown(void **state)
{
    place *p = *state;
    rl_test_rmdir(p->dir);
    free(p);
    return 0;
}

static rl_gguf_writer *open_writer(const char *path)
{
    rl_gguf_writer *w = NULL;
    rl_error err = {0};
    rl_assert_ok(rl_gguf_writer_open(path, &w, &err), &err);
    return w;
}

static rl_gguf *open_reader(const char *path)
{
    rl_gguf *g = NULL;
    rl_error err = {0};
    rl_assert_ok(rl_gguf_open(path, &g, &err), &err);
    return g;
}

static void put_pattern(uint8_t *data, size_t n, uint64_t seed)
{
    rl_rng rng = rl_rng_seed(seed);
    rl_rng_fill_bytes(&rng, data, n);
}

static void test_round_trip(void **state)
{
    place *p = *state;
    rl_error err = {0};
    rl_gguf_writer *w = open_writer(p->path);
    static const rl_slice words[] = {{"a", 1}, {"", 0}, {"\xff\0z", 3}};
    static const int32_t ids[] = {-1, 0, INT32_MAX};
    rl_assert_ok(rl_gguf_write_u32(w, "u", 0xfedcba98u, &err), &err);
    rl_assert_ok(rl_gguf_write_f32(w, "f", -1.25f, &err), &err);
    rl_assert_ok(rl_gguf_write_bool(w, "b", true, &err), &err);
    rl_assert_ok(rl_gguf_write_string(w, "s", "text", 4, &err), &err);
    rl_assert_ok(rl_gguf_write_strings(w, "words", words, 3, &err), &err);
    rl_assert_ok(rl_gguf_write_i32s(w, "ids", ids, 3, &err), &err);
    static const struct {
        const char *name;
        rl_type type;
        uint32_t n_dims;
        uint64_t ne[4];
        size_t bytes;
    } tensors[] = {{"odd", RL_I8, 1, {5}, 5}, {"q", RL_IQ1_M, 3, {512, 3, 2}, 672}, {"x", RL_F32, 4, {1, 2, 3, 4}, 96}};
    for (size_t i = 0; i < 3; i++)
        rl_assert_ok(rl_gguf_declare(w, tensors[i].name, tensors[i].type, tensors[i].n_dims, tensors[i].ne, &err), &err);
    uint8_t data[1024];
    for (size_t i = 0; i < 3; i++) {
        put_pattern(data, tensors[i].bytes, i + 1);
        rl_assert_ok(rl_gguf_write_data(w, data, 3, &err), &err); /* in two pieces */
        rl_assert_ok(rl_gguf_write_data(w, data + 3, tensors[i].bytes - 3, &err), &err);
    }
    assert_int_equal(access(p->path, F_OK), -1); /* nothing under the name before commit */
    rl_assert_ok(rl_gguf_writer_commit(w, &err), &err);

    rl_gguf *g = open_reader(p->path);
    assert_int_equal(rl_gguf_version(g), 3);
    assert_int_equal(rl_gguf_n_keys(g), 6);
    assert_int_equal(rl_gguf_total_bytes(g) % 32, 0); /* padded after the last tensor */
    uint32_t u = 0;
    float f = 0;
    bool flag = false;
    rl_slice text = {0};
    rl_gguf_array a = {0};
    rl_assert_ok(rl_gguf_get_u32(g, "u", &u, NULL, &err), &err);
    rl_assert_ok(rl_gguf_get_f32(g, "f", &f, NULL, &err), &err);
    rl_assert_ok(rl_gguf_get_bool(g, "b", &flag, NULL, &err), &err);
    rl_assert_ok(rl_gguf_get_string(g, "s", &text, NULL, &err), &err);
    assert_int_equal(u, 0xfedcba98u);
    assert_true(f == -1.25f && flag && text.size == 4 && memcmp(text.data, "text", 4) == 0);
    rl_assert_ok(rl_gguf_get_array(g, "words", &a, NULL, &err), &err);
    uint64_t cursor = 0;
    for (size_t i = 0; i < 3; i++) {
        assert_true(rl_gguf_array_next_string(&a, &cursor, &text));
        assert_int_equal(text.size, words[i].size);
        assert_memory_equal(text.data, words[i].data, text.size);
    }
    rl_assert_ok(rl_gguf_get_array(g, "ids", &a, NULL, &err), &err);
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(rl_gguf_array_int(&a, i), ids[i]);
    assert_int_equal(rl_gguf_n_tensors(g), 3);
    for (uint32_t i = 0; i < 3; i++) {
        const rl_gguf_tensor *t = rl_gguf_tensor_at(g, i);
        assert_string_equal(t->name, tensors[i].name);
        assert_int_equal(t->type, tensors[i].type);
        assert_int_equal(t->n_dims, tensors[i].n_dims);
        assert_int_equal(t->bytes, tensors[i].bytes);
        for (uint32_t d = 0; d < 4; d++)
            assert_int_equal(t->ne[d], d < t->n_dims ? tensors[i].ne[d] : 1);
        put_pattern(data, tensors[i].bytes, i + 1);
        assert_memory_equal(t->data, data, tensors[i].bytes);
    }
    rl_gguf_close(g);
}

/* Every value type through read, copy, read: the encoded values are the same. */
static void test_copy_values(void **state)
{
    place *p = *state;
    static const char *const files[] = {"gguf/hostile/valid-all-kv-types.gguf", "gguf/hostile/valid-nested-array.gguf"};
    for (size_t k = 0; k < 2; k++) {
        char path[PATH_MAX];
        rl_error err = {0};
        rl_gguf *from = open_reader(rl_test_data(path, files[k]));
        rl_gguf_writer *w = open_writer(p->path);
        for (uint32_t i = 0; i < rl_gguf_n_keys(from); i++)
            rl_assert_ok(rl_gguf_write_value(w, rl_gguf_key_at(from, i), rl_gguf_value_at(from, i), &err), &err);
        rl_assert_ok(rl_gguf_writer_commit(w, &err), &err);
        rl_gguf *to = open_reader(p->path);
        assert_int_equal(rl_gguf_n_keys(to), rl_gguf_n_keys(from));
        for (uint32_t i = 0; i < rl_gguf_n_keys(from); i++) {
            rl_gguf_array a, b;
            rl_gguf_value_view(rl_gguf_value_at(from, i), &a);
            rl_gguf_value_view(rl_gguf_value_at(to, i), &b);
            assert_int_equal(rl_gguf_value_kind(rl_gguf_value_at(from, i)), rl_gguf_value_kind(rl_gguf_value_at(to, i)));
            assert_true(a.kind == b.kind && a.count == b.count && a.bytes == b.bytes);
            assert_int_equal(memcmp(a.data, b.data, (size_t)a.bytes), 0);
        }
        rl_gguf_close(to);
        rl_gguf_close(from);
    }
}

/* A tensor of 4 F32, declared on a fresh writer. */
static rl_gguf_writer *writer_with_tensor(const place *p)
{
    rl_error err = {0};
    rl_gguf_writer *w = open_writer(p->path);
    rl_assert_ok(rl_gguf_declare(w, "t", RL_F32, 1, (const uint64_t[]){4}, &err), &err);
    return w;
}

static void test_misuse(void **state)
{
    place *p = *state;
    rl_error err = {0};
    static const uint8_t zeros[64];
    rl_gguf_writer *w = writer_with_tensor(p);
    rl_assert_fails(rl_gguf_write_data(w, zeros, 17, &err), RL_ERR_ARGUMENT, &err, "given 17 bytes where 16 of its 16");
    err.text[0] = 0; /* the first failure is repeated by everything after it */
    rl_assert_fails(rl_gguf_write_u32(w, "k", 1, &err), RL_ERR_ARGUMENT, &err, "given 17 bytes");
    rl_assert_fails(rl_gguf_writer_commit(w, &err), RL_ERR_ARGUMENT, &err, "given 17 bytes");

    w = writer_with_tensor(p);
    rl_assert_ok(rl_gguf_write_data(w, zeros, 10, &err), &err);
    rl_assert_fails(rl_gguf_writer_commit(w, &err), RL_ERR_ARGUMENT, &err, "tensor 't' has 10 of its 16 bytes");

    w = writer_with_tensor(p);
    rl_assert_ok(rl_gguf_write_data(w, zeros, 16, &err), &err);
    rl_assert_fails(rl_gguf_write_data(w, zeros, 1, &err), RL_ERR_ARGUMENT, &err, "after the last tensor");
    rl_gguf_writer_abort(w);

    w = writer_with_tensor(p);
    rl_assert_ok(rl_gguf_write_data(w, zeros, 1, &err), &err);
    rl_assert_fails(rl_gguf_write_bool(w, "k", true, &err), RL_ERR_ARGUMENT, &err, "key 'k' is written after tensor data");
    rl_gguf_writer_abort(w);

    w = writer_with_tensor(p);
    rl_assert_ok(rl_gguf_declare(w, "t", RL_F32, 1, (const uint64_t[]){4}, &err), &err);
    rl_assert_fails(rl_gguf_writer_commit(w, &err), RL_ERR_ARGUMENT, &err, "tensor 't' is written twice");

    w = open_writer(p->path);
    rl_assert_ok(rl_gguf_write_u32(w, "k", 1, &err), &err);
    rl_assert_ok(rl_gguf_write_u32(w, "k", 2, &err), &err);
    rl_assert_fails(rl_gguf_writer_commit(w, &err), RL_ERR_ARGUMENT, &err, "key 'k' is written twice");

    w = open_writer(p->path);
    rl_assert_fails(rl_gguf_declare(w, "t", RL_Q4_K, 1, (const uint64_t[]){128}, &err), RL_ERR_ARGUMENT, &err,
                    "multiple of the 256");
    rl_gguf_writer_abort(w);
    w = open_writer(p->path);
    const uint64_t huge[] = {UINT64_C(1) << 40, UINT64_C(1) << 30};
    rl_assert_fails(rl_gguf_declare(w, "t", RL_F32, 2, huge, &err), RL_ERR_ARGUMENT, &err, "too large");
    rl_gguf_writer_abort(w);
    w = open_writer(p->path);
    rl_assert_fails(rl_gguf_write_u32(w, "", 1, &err), RL_ERR_ARGUMENT, &err, "key '' has 0 bytes");
    rl_gguf_writer_abort(w);
    assert_int_equal(access(p->path, F_OK), -1); /* no failed file appeared */
    rl_assert_fails(rl_gguf_writer_open("/nonexistent/x.gguf", &w, &err), RL_ERR_IO, &err, "x.gguf");
}

/* ---- Split models ---------------------------------------------------------------------------------------------------- */

typedef struct part {
    const char *file;
    int no, count, total; /* -1: the key is left out */
    const char *tensor;   /* NULL: none */
    uint8_t content;
} part;

static void write_part(const place *p, const part *d)
{
    char path[PATH_MAX];
    rl_error err = {0};
    rl_gguf_writer *w = open_writer(rl_test_join(path, p->dir, d->file));
    if (d->no >= 0) rl_assert_ok(rl_gguf_write_u32(w, "split.no", (uint32_t)d->no, &err), &err);
    if (d->count >= 0) rl_assert_ok(rl_gguf_write_u32(w, "split.count", (uint32_t)d->count, &err), &err);
    if (d->total >= 0) rl_assert_ok(rl_gguf_write_u32(w, "split.tensors.count", (uint32_t)d->total, &err), &err);
    if (d->no == 0) rl_assert_ok(rl_gguf_write_string(w, "general.name", "split", 5, &err), &err);
    if (d->tensor) {
        rl_assert_ok(rl_gguf_declare(w, d->tensor, RL_I8, 1, (const uint64_t[]){1}, &err), &err);
        rl_assert_ok(rl_gguf_write_data(w, &d->content, 1, &err), &err);
    }
    rl_assert_ok(rl_gguf_writer_commit(w, &err), &err);
}

#define NAME(i) "m-0000" #i "-of-00003.gguf"
static const part good[3] = {{NAME(1), 0, 3, 2, NULL, 0}, {NAME(2), 1, 3, 2, "first", 11}, {NAME(3), 2, -1, -1, "second", 22}};

static void write_good(const place *p)
{
    for (size_t i = 0; i < 3; i++)
        write_part(p, &good[i]);
}

static void test_split(void **state)
{
    place *p = *state;
    char path[PATH_MAX];
    write_good(p);
    rl_gguf *g = open_reader(rl_test_join(path, p->dir, NAME(1)));
    assert_int_equal(rl_gguf_n_files(g), 3);
    assert_int_equal(rl_gguf_n_tensors(g), 2);
    assert_int_equal(rl_gguf_n_keys(g), 4); /* the first part's */
    const rl_gguf_tensor *t = rl_gguf_find_tensor(g, "second");
    assert_int_equal(t->file, 2);
    assert_int_equal(t->data[0], 22);
    assert_int_equal(rl_gguf_find_tensor(g, "first")->data[0], 11);
    assert_string_equal(rl_gguf_file_name(g, 2), rl_test_join(path, p->dir, NAME(3)));
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < 3; i++)
        bytes += rl_gguf_mapping(g, i)->size;
    assert_int_equal(rl_gguf_total_bytes(g), bytes);
    rl_gguf_close(g);
}

static void test_split_errors(void **state)
{
    place *p = *state;
    char path[PATH_MAX], other[PATH_MAX];
    rl_gguf *g = NULL;
    rl_error err = {0};
    write_good(p);
    rl_test_join(path, p->dir, NAME(2));
    rl_assert_fails(rl_gguf_open(path, &g, &err), RL_ERR_FORMAT, &err, "'split.no' is 1, expected 0");
    rl_test_join(path, p->dir, NAME(1));
    static const struct {
        part changed;
        const char *sentence;
    } cases[] = {
        {{NAME(2), 2, 3, 2, "first", 0}, "00002-of-00003.gguf: key 'split.no' is 2, expected 1"},
        {{NAME(2), -1, 3, 2, "first", 0}, "00002-of-00003.gguf: key 'split.no' is missing, expected 1"},
        {{NAME(3), 2, 4, 2, "second", 0}, "00003-of-00003.gguf: key 'split.count' is 4, expected 3"},
        {{NAME(3), 2, 3, 2, "first", 0}, "00003-of-00003.gguf: tensor 'first' is repeated"},
        {{NAME(3), 2, 3, 2, NULL, 0}, "'split.tensors.count' is 2, but the 3 parts have 1 tensors"},
        {{NAME(1), 0, 3, -1, NULL, 0}, "'split.tensors.count' is missing"},
        {{NAME(1), 0, 2, 2, NULL, 0}, "must end in '-00001-of-00002.gguf'"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_part(p, &cases[i].changed);
        rl_assert_fails(rl_gguf_open(path, &g, &err), RL_ERR_FORMAT, &err, cases[i].sentence);
        write_good(p);
    }
    write_part(p, &(part){NAME(1), 0, 60000, 2, NULL, 0});
    rl_assert_fails(rl_gguf_open(path, &g, &err), RL_ERR_UNSUPPORTED, &err, "'split.count' is 60000, above the limit");
    write_good(p);
    rl_test_join(other, p->dir, NAME(3));
    assert_int_equal(unlink(other), 0);
    rl_assert_fails(rl_gguf_open(path, &g, &err), RL_ERR_IO, &err, NAME(3));
    assert_null(g);
}

/* Counts of 0 and 1 mean a file that is not split, whatever its name. */
static void test_not_split(void **state)
{
    place *p = *state;
    for (int count = 0; count < 2; count++) {
        write_part(p, &(part){"out.gguf", 0, count, 1, "t", 1});
        rl_gguf *g = open_reader(p->path);
        assert_int_equal(rl_gguf_n_files(g), 1);
        rl_gguf_close(g);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_round_trip, setup, teardown),
        cmocka_unit_test_setup_teardown(test_copy_values, setup, teardown),
        cmocka_unit_test_setup_teardown(test_misuse, setup, teardown),
        cmocka_unit_test_setup_teardown(test_split, setup, teardown),
        cmocka_unit_test_setup_teardown(test_split_errors, setup, teardown),
        cmocka_unit_test_setup_teardown(test_not_split, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
