/* The GGUF reader: verdicts and messages on hostile files, typed lookups, truncation and mutation of valid files. */
#include "support/gguf_bytes.h"
#include "support/support.h"

#include <dirent.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- Tensor types ---------------------------------------------------------------------------------------------------- */

static void test_types(void **state)
{
    (void)state;
    static const struct {
        uint32_t id;
        const char *name;
        unsigned weights, bytes;
    } expected[] = {
        {0, "F32", 1, 4},         {1, "F16", 1, 2},         {2, "Q4_0", 32, 18},      {3, "Q4_1", 32, 20},
        {6, "Q5_0", 32, 22},      {7, "Q5_1", 32, 24},      {8, "Q8_0", 32, 34},      {9, "Q8_1", 32, 36},
        {10, "Q2_K", 256, 84},    {11, "Q3_K", 256, 110},   {12, "Q4_K", 256, 144},   {13, "Q5_K", 256, 176},
        {14, "Q6_K", 256, 210},   {15, "Q8_K", 256, 292},   {16, "IQ2_XXS", 256, 66}, {17, "IQ2_XS", 256, 74},
        {18, "IQ3_XXS", 256, 98}, {19, "IQ1_S", 256, 50},   {20, "IQ4_NL", 32, 18},   {21, "IQ3_S", 256, 110},
        {22, "IQ2_S", 256, 82},   {23, "IQ4_XS", 256, 136}, {24, "I8", 1, 1},         {25, "I16", 1, 2},
        {26, "I32", 1, 4},        {27, "I64", 1, 8},        {28, "F64", 1, 8},        {29, "IQ1_M", 256, 56},
        {30, "BF16", 1, 2},       {34, "TQ1_0", 256, 54},   {35, "TQ2_0", 256, 66},   {39, "MXFP4", 32, 17},
        {40, "NVFP4", 64, 36},    {41, "Q1_0", 128, 18},    {42, "Q2_0", 64, 18},
    };
    size_t n = sizeof expected / sizeof *expected, known = 0;
    for (size_t i = 0; i < n; i++) {
        const rl_type_info *info = rl_type_get(expected[i].id);
        assert_non_null(info);
        assert_string_equal(info->name, expected[i].name);
        assert_int_equal(info->block_weights, expected[i].weights);
        assert_int_equal(info->block_bytes, expected[i].bytes);
        assert_int_equal(rl_type_row_bytes((rl_type)expected[i].id, 3 * expected[i].weights), 3 * expected[i].bytes);
    }
    for (uint32_t id = 0; id < 300; id++)
        known += rl_type_get(id) != NULL;
    assert_int_equal(known, n);
    assert_null(rl_type_get(UINT32_MAX));
}

/* ---- Hostile files --------------------------------------------------------------------------------------------------- */

/* Reads everything the interface gives out, so that a sanitizer sees what a caller could touch. Returns a checksum. */
static uint64_t touch_all(const rl_gguf *g)
{
    uint64_t sum = rl_gguf_version(g) + rl_gguf_total_bytes(g);
    for (uint32_t i = 0; i < rl_gguf_n_tensors(g); i++) {
        const rl_gguf_tensor *t = rl_gguf_tensor_at(g, i);
        assert_ptr_equal(rl_gguf_find_tensor(g, t->name), t);
        sum += t->data[0] + t->data[t->bytes - 1];
    }
    for (uint32_t i = 0; i < rl_gguf_n_keys(g); i++) {
        const rl_gguf_value *v = rl_gguf_value_at(g, i);
        rl_gguf_array a;
        rl_gguf_value_view(v, &a);
        for (uint64_t k = 0; k < a.bytes; k++)
            sum += a.data[k];
        if (a.kind != RL_GGUF_STRING) continue;
        rl_slice text;
        uint64_t cursor = 0, n = 0;
        while (rl_gguf_array_next_string(&a, &cursor, &text)) {
            for (size_t k = 0; k < text.size; k++)
                sum += (uint8_t)text.data[k];
            n++;
        }
        assert_int_equal(n, a.count);
    }
    return sum;
}

/* What the sentence must contain besides the file's name: the field and the offending value. */
static const struct {
    const char *file, *part;
} sentences[] = {
    {"empty", "the file has 0 bytes"},
    {"short-header", "the file has 23 bytes"},
    {"bad-magic", "47 47 4d 4c"},
    {"version-1", "version 1"},
    {"big-endian", "big-endian"},
    {"kv-count-negative", "pair count 18446744073709551615"},
    {"tensor-count-huge", "tensor count 1152921504606846976"},
    {"key-length-wraps", "key 0: key has length 18446744073709551592"},
    {"key-65536", "length 65536"},
    {"key-nul", "'general.alignment\\x00x'"},
    {"key-not-utf8", "'a.\\xff\\xfe'"},
    {"key-duplicate", "key 'a.b': is repeated"},
    {"value-type-13", "key 'a.b': value type is 13"},
    {"value-truncated", "needs 8 bytes at offset 39"},
    {"bool-2", "key 'a.b': a bool is stored as 2"},
    {"string-length-huge", "length 4611686018427387904"},
    {"array-count-huge", "array count 2305843009213693952 of u64"},
    {"array-nested-2000", "nested more than 4 deep"},
    {"array-type-13", "element type is 13"},
    {"alignment-2pow31", "'general.alignment' is 2147483648"},
    {"alignment-string", "'general.alignment' has type string"},
    {"name-65", "tensor 0: name has length 65"},
    {"name-nul", "'a\\x00b'"},
    {"name-duplicate", "tensor 'a' is repeated"},
    {"dims-5", "tensor 'a': n_dims is 5"},
    {"ne1-zero", "ne[1] is 0"},
    {"ne-product-wraps-to-valid", "ne[1] = 2147483648"},
    {"bytes-wrap", "more than 2^63-1 bytes"},
    {"row-not-multiple-total-ok", "ne[0] is 128, expected a multiple of the 256 weights of a Q4_K block"},
    {"type-31", "type number 31"},
    {"type-negative", "type number 4294967295"},
    {"offset-unaligned", "offset 33 is not a multiple of the alignment 32"},
    {"offset-wraps", "offset 18446744073709551584"},
    {"offset-overlap", "tensor 'b': its data at byte 192 overlaps tensor 'a'"},
    {"data-truncated", "128 bytes at offset 0 do not fit in the 127 bytes"},
    {"padding-missing", "ends at byte 102, before the data section at 128"},
};

static const char *sentence_of(const char *file)
{
    for (size_t i = 0; i < sizeof sentences / sizeof *sentences; i++) {
        size_t n = strlen(sentences[i].file);
        if (strncmp(file, sentences[i].file, n) == 0 && strcmp(file + n, ".gguf") == 0) return sentences[i].part;
    }
    return file;
}

static void check_verdict(const char *file, bool accept)
{
    char name[512], path[PATH_MAX];
    snprintf(name, sizeof name, "gguf/hostile/%s", file);
    rl_gguf *g = NULL;
    rl_error err = {0};
    rl_status s = rl_gguf_open(rl_test_data(path, name), &g, &err);
    if (accept) {
        rl_assert_ok(s, &err);
        touch_all(g);
        rl_gguf_close(g);
        return;
    }
    if (s == RL_OK) fail_msg("%s was accepted", file);
    assert_true(s == RL_ERR_FORMAT || s == RL_ERR_UNSUPPORTED);
    assert_null(g);
    if (!strstr(err.text, file) || !strstr(err.text, sentence_of(file)))
        fail_msg("%s: the sentence '%s' lacks '%s'", file, err.text, sentence_of(file));
}

static void test_hostile_verdicts(void **state)
{
    (void)state;
    char path[PATH_MAX];
    char *text = rl_test_read(rl_test_data(path, "gguf/hostile/index.txt"), NULL), *rest = text, *line;
    unsigned accepted = 0, rejected = 0;
    while ((line = strsep(&rest, "\n"))) {
        if (*line == '#' || *line == 0) continue;
        char *file = strsep(&line, "\t"), *verdict = strsep(&line, "\t");
        bool accept = strcmp(verdict, "accept") == 0;
        accepted += accept;
        rejected += !accept;
        check_verdict(file, accept);
    }
    free(text);
    assert_int_equal(accepted, 9);
    assert_int_equal(rejected, 78);
}

static void test_not_a_file(void **state)
{
    (void)state;
    rl_gguf *g = NULL;
    rl_error err = {0};
    rl_assert_fails(rl_gguf_open("/nonexistent/model.gguf", &g, &err), RL_ERR_IO, &err, "model.gguf");
    rl_assert_fails(rl_gguf_open("/", &g, &err), RL_ERR_IO, &err, "/");
    assert_null(g);
}

/* ---- Lookups --------------------------------------------------------------------------------------------------------- */

static rl_gguf *parse(const rl_bytes *b)
{
    rl_gguf *g = NULL;
    rl_error err = {0};
    rl_assert_ok(rl_gguf_parse(b->data, b->size, "memory", &g, &err), &err);
    return g;
}

static void put_kind(rl_bytes *b, rl_gguf_kind kind, uint64_t v, unsigned bytes)
{
    char key[8];
    snprintf(key, sizeof key, "k%d", (int)kind);
    rl_bytes_key(b, key, kind);
    rl_bytes_number(b, v, bytes);
}

static void test_integer_lookups(void **state)
{
    (void)state;
    rl_bytes b = {0};
    rl_bytes_header(&b, 0, 9);
    put_kind(&b, RL_GGUF_U8, 200, 1);
    put_kind(&b, RL_GGUF_I8, 100, 1);
    put_kind(&b, RL_GGUF_U16, 60000, 2);
    put_kind(&b, RL_GGUF_I16, (uint64_t)-2, 2);
    put_kind(&b, RL_GGUF_U32, 4000000000u, 4);
    put_kind(&b, RL_GGUF_I32, 7, 4);
    put_kind(&b, RL_GGUF_U64, UINT64_MAX, 8);
    put_kind(&b, RL_GGUF_I64, (uint64_t)INT64_MIN, 8);
    put_kind(&b, RL_GGUF_BOOL, 1, 1);
    rl_gguf *g = parse(&b);
    rl_error err = {0};
    static const struct {
        const char *key;
        uint32_t value;
    } good[] = {{"k0", 200}, {"k1", 100}, {"k2", 60000}, {"k4", 4000000000u}, {"k5", 7}};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        uint32_t v = 0;
        bool found = false;
        rl_assert_ok(rl_gguf_get_u32(g, good[i].key, &v, &found, &err), &err);
        assert_true(found);
        assert_int_equal(v, good[i].value);
    }
    uint32_t v = 5;
    uint64_t wide = 0;
    bool found = true, flag = false;
    rl_assert_fails(rl_gguf_get_u32(g, "k3", &v, NULL, &err), RL_ERR_FORMAT, &err, "memory: key 'k3' is -2");
    rl_assert_fails(rl_gguf_get_u64(g, "k11", &wide, NULL, &err), RL_ERR_FORMAT, &err, "is -9223372036854775808");
    rl_assert_fails(rl_gguf_get_u32(g, "k10", &v, NULL, &err), RL_ERR_FORMAT, &err,
                    "18446744073709551615, expected 0 to 4294967295");
    rl_assert_fails(rl_gguf_get_u32(g, "k7", &v, NULL, &err), RL_ERR_FORMAT, &err, "has type bool, expected an integer");
    rl_assert_fails(rl_gguf_get_bool(g, "k0", &flag, NULL, &err), RL_ERR_FORMAT, &err, "has type u8, expected bool");
    rl_assert_ok(rl_gguf_get_u64(g, "k10", &wide, NULL, &err), &err);
    assert_true(wide == UINT64_MAX);
    rl_assert_ok(rl_gguf_get_bool(g, "k7", &flag, NULL, &err), &err);
    assert_true(flag);
    rl_assert_ok(rl_gguf_get_u32(g, "absent", &v, &found, &err), &err);
    assert_false(found);
    assert_int_equal(v, 5);
    rl_gguf_array view;
    rl_gguf_value_view(rl_gguf_find(g, "k3"), &view);
    assert_int_equal(view.count, 1);
    assert_int_equal(rl_gguf_array_int(&view, 0), -2);
    rl_gguf_value_view(rl_gguf_find(g, "k10"), &view);
    assert_int_equal(rl_gguf_array_int(&view, 0), INT64_MAX);
    rl_gguf_close(g);
    rl_bytes_free(&b);
}

static void put_f64(rl_bytes *b, const char *key, double d)
{
    uint64_t bits;
    memcpy(&bits, &d, sizeof bits);
    rl_bytes_key(b, key, RL_GGUF_F64);
    rl_bytes_number(b, bits, 8);
}

static void test_float_lookups(void **state)
{
    (void)state;
    rl_bytes b = {0};
    rl_bytes_header(&b, 0, 5);
    rl_bytes_key(&b, "single", RL_GGUF_F32);
    rl_bytes_number(&b, 0x3fc00000, 4);
    rl_bytes_key(&b, "nan", RL_GGUF_F32);
    rl_bytes_number(&b, 0x7fc00000, 4);
    put_f64(&b, "double", 0.25);
    put_f64(&b, "large", 1e300);
    rl_bytes_u32(&b, "integer", 1);
    rl_gguf *g = parse(&b);
    rl_error err = {0};
    float f = 0;
    rl_assert_ok(rl_gguf_get_f32(g, "single", &f, NULL, &err), &err);
    assert_true(f == 1.5f);
    rl_assert_ok(rl_gguf_get_f32(g, "double", &f, NULL, &err), &err);
    assert_true(f == 0.25f);
    rl_assert_fails(rl_gguf_get_f32(g, "nan", &f, NULL, &err), RL_ERR_FORMAT, &err, "key 'nan' is");
    rl_assert_fails(rl_gguf_get_f32(g, "large", &f, NULL, &err), RL_ERR_FORMAT, &err, "key 'large' is 1e+300");
    rl_assert_fails(rl_gguf_get_f32(g, "integer", &f, NULL, &err), RL_ERR_FORMAT, &err, "has type u32, expected f32");
    assert_true(f == 0.25f);
    rl_gguf_close(g);
    rl_bytes_free(&b);
}

static void test_strings_and_arrays(void **state)
{
    (void)state;
    rl_bytes b = {0};
    rl_bytes_header(&b, 0, 4);
    rl_bytes_key(&b, "text", RL_GGUF_STRING);
    rl_bytes_string(&b, "hello");
    rl_bytes_key(&b, "words", RL_GGUF_ARRAY);
    rl_bytes_number(&b, RL_GGUF_STRING, 4);
    rl_bytes_number(&b, 3, 8);
    rl_bytes_string(&b, "one");
    rl_bytes_string(&b, "");
    rl_bytes_string(&b, "three");
    rl_bytes_key(&b, "numbers", RL_GGUF_ARRAY);
    rl_bytes_number(&b, RL_GGUF_I16, 4);
    rl_bytes_number(&b, 2, 8);
    rl_bytes_number(&b, 0x8000, 2);
    rl_bytes_number(&b, 12, 2);
    rl_bytes_key(&b, "none", RL_GGUF_ARRAY);
    rl_bytes_number(&b, RL_GGUF_STRING, 4);
    rl_bytes_number(&b, 0, 8);
    rl_gguf *g = parse(&b);
    rl_error err = {0};
    rl_slice text = {0};
    rl_assert_ok(rl_gguf_get_string(g, "text", &text, NULL, &err), &err);
    assert_int_equal(text.size, 5);
    assert_memory_equal(text.data, "hello", 5);
    rl_assert_fails(rl_gguf_get_string(g, "words", &text, NULL, &err), RL_ERR_FORMAT, &err, "has type array, expected string");
    rl_gguf_array a;
    rl_assert_fails(rl_gguf_get_array(g, "text", &a, NULL, &err), RL_ERR_FORMAT, &err, "has type string, expected array");
    rl_assert_ok(rl_gguf_get_array(g, "words", &a, NULL, &err), &err);
    uint64_t cursor = 0;
    static const char *const words[] = {"one", "", "three"};
    for (size_t i = 0; i < 3; i++) {
        assert_true(rl_gguf_array_next_string(&a, &cursor, &text));
        assert_int_equal(text.size, strlen(words[i]));
        assert_memory_equal(text.data, words[i], text.size);
    }
    assert_false(rl_gguf_array_next_string(&a, &cursor, &text));
    rl_assert_ok(rl_gguf_get_array(g, "numbers", &a, NULL, &err), &err);
    assert_int_equal(a.count, 2);
    assert_int_equal(rl_gguf_array_int(&a, 0), -32768);
    assert_int_equal(rl_gguf_array_int(&a, 1), 12);
    rl_assert_ok(rl_gguf_get_array(g, "none", &a, NULL, &err), &err);
    assert_int_equal(a.count, 0);
    cursor = 0;
    assert_false(rl_gguf_array_next_string(&a, &cursor, &text));
    rl_gguf_close(g);
    rl_bytes_free(&b);
}

/* ---- Truncation, mutation, size -------------------------------------------------------------------------------------- */

/* Parses a copy of exactly n bytes, so that a sanitizer sees every byte read beyond them. */
static rl_status parse_exact(const void *data, size_t n, rl_error *err)
{
    uint8_t *copy = malloc(n ? n : 1);
    assert_non_null(copy);
    if (n) memcpy(copy, data, n);
    rl_gguf *g = NULL;
    rl_status s = rl_gguf_parse(copy, n, "copy", &g, err);
    if (s == RL_OK) touch_all(g);
    rl_gguf_close(g);
    free(copy);
    return s;
}

static const char *const valid_files[] = {"valid-minimal", "valid-all-kv-types", "valid-nested-array",  "valid-no-tensors",
                                          "valid-align64", "valid-unordered",    "valid-trailing-bytes"};

static char *read_valid(size_t i, size_t *n)
{
    char name[128], path[PATH_MAX];
    snprintf(name, sizeof name, "gguf/hostile/%s.gguf", valid_files[i]);
    return rl_test_read(rl_test_data(path, name), n);
}

static void test_truncation(void **state)
{
    (void)state;
    for (size_t i = 0; i < 6; i++) {
        size_t size;
        char *data = read_valid(i, &size);
        rl_error err = {0};
        rl_assert_ok(parse_exact(data, size, &err), &err);
        for (size_t n = 0; n < size; n++) {
            err.text[0] = 0;
            rl_assert_fails(parse_exact(data, n, &err), RL_ERR_FORMAT, &err, "copy");
        }
        free(data);
    }
}

static void test_mutations(void **state)
{
    (void)state;
    static const uint8_t values[] = {0x00, 0x01, 0x05, 0x09, 0x0d, 0x20, 0x7f, 0x80, 0xfe, 0xff};
    unsigned refused = 0;
    for (size_t i = 0; i < sizeof valid_files / sizeof *valid_files; i++) {
        size_t size;
        char *data = read_valid(i, &size);
        for (size_t at = 0; at < size; at++) {
            char kept = data[at];
            for (size_t k = 0; k < sizeof values; k++) {
                data[at] = (char)values[k];
                rl_error err = {0};
                if (parse_exact(data, size, &err) == RL_OK) continue;
                assert_int_equal(strncmp(err.text, "copy: ", 6), 0);
                refused++;
            }
            data[at] = kept;
        }
        free(data);
    }
    assert_true(refused > 1000);
}

/* What the fuzzer found interesting, and everything that ever made it fail. */
static void test_fuzz_corpus(void **state)
{
    (void)state;
    static const char *const dirs[] = {REDLITE_SOURCE_DIR "/tests/fuzz/corpus/gguf",
                                       REDLITE_SOURCE_DIR "/tests/fuzz/regressions/gguf"};
    unsigned files = 0;
    for (size_t i = 0; i < 2; i++) {
        DIR *dir = opendir(dirs[i]);
        if (!dir) continue; /* no failure was found yet */
        for (struct dirent *e; (e = readdir(dir));) {
            if (e->d_name[0] == '.') continue;
            char path[PATH_MAX];
            size_t size;
            rl_error err = {0};
            char *data = rl_test_read(rl_test_join(path, dirs[i], e->d_name), &size);
            rl_status s = parse_exact(data, size, &err);
            assert_true(s == RL_OK || (s == err.status && err.text[0]));
            free(data);
            files++;
        }
        closedir(dir);
    }
    assert_true(files >= 9);
}

/* Many keys that share a long prefix and many tensors: cost must stay near linear. Nesting at the limit is read. */
static void test_large_tables(void **state)
{
    (void)state;
    enum { KEYS = 100000, TENSORS = 50000 };
    rl_bytes b = {0};
    char name[64];
    rl_bytes_header(&b, TENSORS, KEYS);
    for (uint32_t i = 0; i < KEYS; i++) {
        snprintf(name, sizeof name, "a.long.common.prefix.%08x", (unsigned)(i * 2654435761u));
        rl_bytes_u32(&b, name, i);
    }
    for (uint32_t i = 0; i < TENSORS; i++) {
        snprintf(name, sizeof name, "blk.%u.weight", i);
        rl_bytes_tensor(&b, name, RL_F32, 1, (const uint64_t[]){8}, (uint64_t)i * 32);
    }
    rl_bytes_pad(&b, 32);
    rl_bytes_zeros(&b, (size_t)TENSORS * 32);
    rl_gguf *g = parse(&b);
    assert_int_equal(rl_gguf_n_keys(g), KEYS);
    assert_int_equal(rl_gguf_n_tensors(g), TENSORS);
    for (uint32_t i = 0; i < KEYS; i += 977) {
        uint32_t v = 0;
        rl_error err = {0};
        snprintf(name, sizeof name, "a.long.common.prefix.%08x", (unsigned)(i * 2654435761u));
        rl_assert_ok(rl_gguf_get_u32(g, name, &v, NULL, &err), &err);
        assert_int_equal(v, i);
    }
    assert_string_equal(rl_gguf_find_tensor(g, "blk.49999.weight")->name, "blk.49999.weight");
    assert_null(rl_gguf_find_tensor(g, "blk.50000.weight"));
    rl_gguf_close(g);
    rl_bytes_free(&b);
}

static rl_status parse_nested(int depth, rl_error *err)
{
    rl_bytes b = {0};
    rl_bytes_header(&b, 0, 1);
    rl_bytes_key(&b, "deep", RL_GGUF_ARRAY);
    for (int i = 1; i < depth; i++) {
        rl_bytes_number(&b, RL_GGUF_ARRAY, 4);
        rl_bytes_number(&b, 1, 8);
    }
    rl_bytes_number(&b, RL_GGUF_U8, 4);
    rl_bytes_number(&b, 1, 8);
    rl_bytes_number(&b, 9, 1);
    rl_status s = parse_exact(b.data, b.size, err);
    rl_bytes_free(&b);
    return s;
}

static void test_nesting_limit(void **state)
{
    (void)state;
    rl_error err = {0};
    rl_assert_ok(parse_nested(4, &err), &err);
    rl_assert_fails(parse_nested(5, &err), RL_ERR_FORMAT, &err, "nested");
}

/* ---- A real model ---------------------------------------------------------------------------------------------------- */

static void test_real_model(void **state)
{
    (void)state;
    rl_gguf *g = NULL;
    rl_error err = {0};
    rl_assert_ok(rl_gguf_open(REDLITE_SOURCE_DIR "/models/tiny-q4_k_m.gguf", &g, &err), &err);
    rl_slice arch = {0};
    rl_assert_ok(rl_gguf_get_string(g, "general.architecture", &arch, NULL, &err), &err);
    assert_int_equal(arch.size, 9);
    assert_memory_equal(arch.data, "qwen3next", 9);
    rl_gguf_array tokens;
    rl_assert_ok(rl_gguf_get_array(g, "tokenizer.ggml.tokens", &tokens, NULL, &err), &err);
    assert_int_equal(tokens.count, 4096);
    assert_int_equal(rl_gguf_n_tensors(g), 163);
    const rl_gguf_tensor *t = rl_gguf_find_tensor(g, "blk.0.ffn_gate_exps.weight");
    assert_non_null(t);
    assert_int_equal(t->n_dims, 3);
    assert_int_equal(t->ne[0], 512);
    assert_int_equal(t->ne[1], 256);
    assert_int_equal(t->ne[2], 16);
    assert_int_equal(t->ne[3], 1);
    assert_int_equal(t->bytes, rl_type_row_bytes(t->type, 512) * 256 * 16);
    assert_ptr_equal(t->data, rl_gguf_mapping(g, t->file)->data + t->offset);
    touch_all(g);
    rl_gguf_close(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_types),         cmocka_unit_test(test_hostile_verdicts),
        cmocka_unit_test(test_not_a_file),    cmocka_unit_test(test_integer_lookups),
        cmocka_unit_test(test_float_lookups), cmocka_unit_test(test_strings_and_arrays),
        cmocka_unit_test(test_truncation),    cmocka_unit_test(test_mutations),
        cmocka_unit_test(test_large_tables),  cmocka_unit_test(test_nesting_limit),
        cmocka_unit_test(test_real_model),    cmocka_unit_test(test_fuzz_corpus),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
