/* The JSON reader and writer of text/: canonical text, rejection, incremental closing, walking. jansson judges. */
#include "support/support.h"
#include "text/json.h"
#include <jansson.h>
#include <string.h>

static void test_canonical(void **state)
{
    (void)state;
    static const struct {
        const char *in, *out;
    } cases[] = {
        {"{\"b\":1,\"a\":[1,2.50,-0e+10]}", "{\"b\": 1, \"a\": [1, 2.50, -0e+10]}"},
        {" [ ] ", "[]"},
        {"{ }\n", "{}"},
        {"\"\\u00e9\\/\\\"\\\\\\n\\u0001\\u007f\"", "\"\xC3\xA9/\\\"\\\\\\n\\u0001\x7F\""},
        {"\"\\ud83d\\ude00\"", "\"\xF0\x9F\x98\x80\""},
        {"\"\\ud83dx\\ude00\"", "\"\xEF\xBF\xBDx\xEF\xBF\xBD\""},
        {"\"\\ud83d\\ud83d\\ude00\"", "\"\xEF\xBF\xBD\xF0\x9F\x98\x80\""},
        {"true", "true"},
        {"12345678901234567890123", "12345678901234567890123"},
        {"[[[{}]],null]", "[[[{}]], null]"},
        {"\"<>&'\"", "\"<>&'\""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        rl_buffer out = {0};
        assert_true(rl_json_normalise(rl_slice_of(cases[i].in), &out));
        assert_string_equal(out.data, cases[i].out);
        rl_buffer again = {0};
        assert_true(rl_json_normalise(rl_buffer_view(&out), &again));
        assert_string_equal(again.data, out.data);
        rl_buffer_free(&out);
        rl_buffer_free(&again);
    }
}

static void test_refused(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "",
        " ",
        "{",
        "[1,]",
        "{\"a\":1,}",
        "{\"a\"}",
        "{a:1}",
        "01",
        "1.",
        ".5",
        "+1",
        "1e",
        "--1",
        "nul",
        "True",
        "\"a",
        "\"\\x\"",
        "\"\\u12g4\"",
        "\"\n\"",
        "\"\xFF\"",
        "1 2",
        "[1 2]",
        "{\"a\":1 \"b\":2}",
        "]",
        "{]",
        "[}",
        "[,1]",
        "{,}",
        "{\"a\"::1}",
        "{1:2}",
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        rl_buffer out = {0};
        if (rl_json_normalise(rl_slice_of(bad[i]), &out)) fail_msg("accepted %s", bad[i]);
        rl_buffer_free(&out);
    }
    char deep[2 * RL_JSON_DEPTH + 4];
    for (int extra = 0; extra < 2; extra++) {
        size_t n = RL_JSON_DEPTH + (size_t)extra;
        memset(deep, '[', n);
        memset(deep + n, ']', n);
        rl_buffer out = {0};
        assert_int_equal(rl_json_normalise((rl_slice){deep, 2 * n}, &out), extra == 0);
        rl_buffer_free(&out);
    }
}

/* Cut anywhere, and spoilt anywhere, what was written closes into valid JSON. */
static void test_close(void **state)
{
    (void)state;
    static const char text[] =
        "{\"a\": [1, 2.5, {\"k\": \"v\\n\\u00e9\\ud83d\\ude00\"}], \"b\": {\"c\": [true, null, []]}, \"d\": -1e5}";
    for (size_t cut = 1; cut <= sizeof text - 1; cut++) {
        for (int spoil = 0; spoil < 12; spoil++) {
            rl_json_stream j = {.lenient = true};
            rl_buffer out = {0};
            for (size_t i = 0; i < cut; i++)
                rl_json_push(&j, text[i], &out);
            if (spoil > 0) rl_json_push(&j, "x{}[],:\"\\1\n"[spoil - 1], &out);
            rl_json_close(&j, &out);
            json_error_t why;
            json_t *v = json_loadb(out.data, out.size, 0, &why);
            if (v == NULL) fail_msg("%s: %s", why.text, out.data);
            json_decref(v);
            rl_json_free(&j);
            rl_buffer_free(&out);
        }
    }
}

static void test_lenient(void **state)
{
    (void)state;
    static const char in[] = "{\"re\": \"\\d+\\u1z\nx\", \"t\": True, \"l\": [1,], }";
    rl_json_stream j = {.lenient = true};
    rl_buffer out = {0};
    for (size_t i = 0; i < sizeof in - 1; i++)
        rl_json_push(&j, in[i], &out);
    assert_int_equal(j.state, RL_JSON_DONE);
    assert_string_equal(out.data, "{\"re\": \"\\\\d+\\\\u1z\\nx\", \"t\": true, \"l\": [1]}");
    rl_json_free(&j);
    rl_buffer_free(&out);
}

static void test_walk(void **state)
{
    (void)state;
    rl_buffer doc = {0}, text = {0};
    assert_true(
        rl_json_normalise(rl_slice_of("{\"a\\\"}\":[1,\"],{\",{\"x\":{}}],\"b\":\"q\\u0007\\\\\",\"c\":{},\"d\":[]}"), &doc));
    rl_slice all = rl_buffer_view(&doc), key, value, e = {"", 0};
    size_t cursor = 0;
    assert_true(rl_json_next(all, &cursor, &key, &value));
    assert_true(rl_slice_equals(key, "\"a\\\"}\""));
    size_t inner = 0;
    assert_true(rl_json_next(value, &inner, NULL, &e));
    assert_true(rl_slice_equals(e, "1"));
    assert_true(rl_json_next(value, &inner, NULL, &e));
    assert_true(rl_slice_equals(e, "\"],{\""));
    assert_true(rl_json_next(value, &inner, NULL, &e));
    assert_true(rl_slice_equals(rl_json_member(e, "x"), "{}"));
    assert_false(rl_json_next(value, &inner, NULL, &e));
    assert_true(rl_json_next(all, &cursor, &key, &value));
    rl_json_decode(value, &text);
    assert_string_equal(text.data, "q\a\\");
    assert_true(rl_slice_equals(rl_json_member(all, "d"), "[]"));
    assert_int_equal(rl_json_member(all, "e").size, 0);
    cursor = 0;
    assert_false(rl_json_next(rl_json_member(all, "c"), &cursor, &key, &value));
    rl_buffer_free(&doc);
    rl_buffer_free(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_canonical), cmocka_unit_test(test_refused), cmocka_unit_test(test_close),
        cmocka_unit_test(test_lenient),   cmocka_unit_test(test_walk),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
