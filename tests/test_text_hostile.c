/* Tokenizer metadata that breaks the rules: every case is refused with a sentence that names the culprit. */
#include "support/support.h"
#include "text/text.h"
#include <stdlib.h>
#include <string.h>

#define N_BYTES 256
#define N_MAX   300

/* A small good vocabulary: all bytes, "ab", "abc", a control, a user-defined and an unused token. Cases spoil it. */
typedef struct vocabulary {
    const char *model, *pre;
    char byte_text[N_BYTES][4];
    rl_slice tokens[N_MAX];
    int32_t types[N_MAX];
    size_t n_tokens, n_types;
    rl_slice merges[8];
    size_t n_merges;
    uint32_t eos, bos;
    bool without_eos, without_types, without_merges, types_as_strings, add_bos, with_bos;
} vocabulary;

static rl_slice slice(const char *text)
{
    return (rl_slice){text, strlen(text)};
}

static void add_token(vocabulary *v, const char *text, int32_t type)
{
    v->tokens[v->n_tokens++] = slice(text);
    v->types[v->n_types++] = type;
}

static void fill(vocabulary *v)
{
    *v = (vocabulary){.model = "gpt2", .pre = "qwen2", .eos = 258};
    uint32_t next = 0x100;
    for (uint32_t b = 0; b < N_BYTES; b++) {
        uint32_t cp = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE ? b : next++;
        char *text = v->byte_text[b];
        text[0] = (char)(cp < 0x80 ? cp : 0xC0 | cp >> 6);
        text[1] = (char)(cp < 0x80 ? 0 : 0x80 | (cp & 0x3F));
        add_token(v, text, 1);
    }
    add_token(v, "ab", 1);
    add_token(v, "abc", 1);
    add_token(v, "<|im_end|>", 3);
    add_token(v, "<x>", 4);
    add_token(v, "[PAD]", 5);
    v->merges[0] = slice("a b");
    v->merges[1] = slice("ab c");
    v->n_merges = 2;
}

static rl_status load(const vocabulary *v, rl_tokenizer **out, rl_error *err)
{
    char dir[PATH_MAX], path[PATH_MAX];
    rl_error werr;
    rl_gguf_writer *w = NULL;
    rl_test_tmpdir(dir);
    rl_test_join(path, dir, "vocab.gguf");
    rl_assert_ok(rl_gguf_writer_open(path, &w, &werr), &werr);
    rl_gguf_write_string(w, "general.architecture", "qwen3next", 9, &werr);
    rl_gguf_write_string(w, "tokenizer.ggml.model", v->model, strlen(v->model), &werr);
    rl_gguf_write_string(w, "tokenizer.ggml.pre", v->pre, strlen(v->pre), &werr);
    rl_gguf_write_strings(w, "tokenizer.ggml.tokens", v->tokens, v->n_tokens, &werr);
    if (v->types_as_strings)
        rl_gguf_write_strings(w, "tokenizer.ggml.token_type", v->tokens, v->n_tokens, &werr);
    else if (!v->without_types)
        rl_gguf_write_i32s(w, "tokenizer.ggml.token_type", v->types, v->n_types, &werr);
    if (!v->without_merges) rl_gguf_write_strings(w, "tokenizer.ggml.merges", v->merges, v->n_merges, &werr);
    if (!v->without_eos) rl_gguf_write_u32(w, "tokenizer.ggml.eos_token_id", v->eos, &werr);
    if (v->with_bos) rl_gguf_write_u32(w, "tokenizer.ggml.bos_token_id", v->bos, &werr);
    rl_gguf_write_bool(w, "tokenizer.ggml.add_bos_token", v->add_bos, &werr);
    rl_assert_ok(rl_gguf_writer_commit(w, &werr), &werr);
    rl_status s = rl_tokenizer_open(path, out, err);
    rl_test_rmdir(dir);
    return s;
}

static void refuse(const vocabulary *v, rl_status status, const char *part)
{
    rl_error err;
    rl_tokenizer *t = NULL;
    rl_assert_fails(load(v, &t, &err), status, &err, part);
    assert_null(t);
}

static void test_good(void **state)
{
    (void)state;
    vocabulary v;
    rl_error err;
    rl_tokenizer *t = NULL;
    fill(&v);
    v.merges[2] = slice("a b"); /* again: the first rank counts */
    v.n_merges = 3;
    rl_assert_ok(load(&v, &t, &err), &err);
    int32_t *ids = NULL;
    size_t n = 0;
    rl_assert_ok(rl_tokenize(t, "abcab<x>[PAD]<|im_end|>", 23, true, &ids, &n, &err), &err);
    const int32_t want[] = {257, 256, 259, '[', 'P', 'A', 'D', ']', 258};
    assert_int_equal(n, 9);
    assert_memory_equal(ids, want, sizeof want);
    assert_int_equal(rl_token_im_start(t), -1);
    free(ids);
    const rl_chat_message m = {RL_ROLE_USER, "x", 1};
    rl_assert_fails(rl_chat_tokenize(t, &m, 1, true, &ids, &n, &err), RL_ERR_UNSUPPORTED, &err, "cannot chat");
    assert_false(rl_token_is_samplable(t, 260));
    assert_int_equal(rl_token_bytes(t, 260, true).size, 0);
    rl_tokenizer_free(t);
}

static void test_keys(void **state)
{
    (void)state;
    vocabulary v;
    fill(&v), v.model = "llama";
    refuse(&v, RL_ERR_UNSUPPORTED, "\"llama\"");
    fill(&v), v.pre = "gpt-4o";
    refuse(&v, RL_ERR_UNSUPPORTED, "\"gpt-4o\"");
    fill(&v), v.without_types = true;
    refuse(&v, RL_ERR_FORMAT, "token_type");
    fill(&v), v.types_as_strings = true;
    refuse(&v, RL_ERR_FORMAT, "token_type");
    fill(&v), v.without_merges = true;
    refuse(&v, RL_ERR_FORMAT, "merges");
    fill(&v), v.without_eos = true;
    refuse(&v, RL_ERR_FORMAT, "eos_token_id");
    fill(&v), v.eos = 261;
    refuse(&v, RL_ERR_FORMAT, "261");
    fill(&v), v.with_bos = true, v.bos = UINT32_MAX;
    refuse(&v, RL_ERR_FORMAT, "4294967295");
    fill(&v), v.add_bos = true;
    refuse(&v, RL_ERR_UNSUPPORTED, "add_bos_token");
}

static void test_tokens(void **state)
{
    (void)state;
    vocabulary v;
    fill(&v), v.n_types--;
    refuse(&v, RL_ERR_FORMAT, "260 entries");
    fill(&v), v.types[3] = 7;
    refuse(&v, RL_ERR_FORMAT, "token 3 has type 7");
    fill(&v), v.types[4] = INT32_MIN;
    refuse(&v, RL_ERR_FORMAT, "token 4");
    fill(&v), v.tokens[257] = slice("ab");
    refuse(&v, RL_ERR_FORMAT, "tokens 256 and 257");
    fill(&v), v.tokens[259] = slice("<|im_end|>");
    refuse(&v, RL_ERR_FORMAT, "are the same");
    fill(&v), v.tokens[65] = slice("xy");
    refuse(&v, RL_ERR_FORMAT, "byte 0x41");
    fill(&v), v.tokens[257] = slice("");
    refuse(&v, RL_ERR_FORMAT, "token 257 \"\" is empty");
    fill(&v), v.tokens[257] = slice("a b");
    refuse(&v, RL_ERR_FORMAT, "byte-level alphabet");
    fill(&v), v.tokens[257] = slice("a\xC4");
    refuse(&v, RL_ERR_FORMAT, "byte-level alphabet");
    fill(&v), v.tokens[257] = slice("a\xE4\xB8\xAD");
    refuse(&v, RL_ERR_FORMAT, "byte-level alphabet");
    fill(&v), v.n_tokens = v.n_types = 0;
    refuse(&v, RL_ERR_FORMAT, "no token for byte 0x00");
    char longest[600];
    memset(longest, 'x', sizeof longest);
    fill(&v), v.tokens[259] = (rl_slice){longest, sizeof longest};
    refuse(&v, RL_ERR_FORMAT, "600 bytes");
}

static void test_merges(void **state)
{
    (void)state;
    static const struct {
        const char *merge, *part;
    } cases[] = {
        {"ab", "merge 1 \"ab\""}, {"", "merge 1"},        {" ab", "merge 1"}, {"ab ", "merge 1"},    {"a b c", "merge 1"},
        {"zz c", "left part"},    {"a zz", "right part"}, {"b c", "result"},  {"a \xFF", "merge 1"}, {"  ", "merge 1"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        vocabulary v;
        fill(&v);
        v.merges[1] = slice(cases[i].merge);
        refuse(&v, RL_ERR_FORMAT, cases[i].part);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good),
        cmocka_unit_test(test_keys),
        cmocka_unit_test(test_tokens),
        cmocka_unit_test(test_merges),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
