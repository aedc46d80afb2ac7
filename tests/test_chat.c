/* chat: the conversation through a pipe and at a terminal. */
#include "support/program.h"
#include "support/support.h"
#include "support/tiny_model.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define GREEDY "--temp", "0", "-n", "6"
/* The bundled model's two end tokens, forbidden: an answer that only Ctrl-C or -n ends. */
#define ENDLESS "--logit-bias", "4093=-inf,4095=-inf", "-n", "-1"

/* What a terminal shows last before an answer. A line that is typed before the editor is ready is shown twice. */
#ifdef REDLITE_HAVE_EDIT
#define LINE_TAKEN "\033[?2004l"
#else
#define LINE_TAKEN "\r\n"
#endif

static char dir[PATH_MAX];

static int setup(void **state)
{
    (void)state;
    rl_test_tmpdir(dir);
    return chdir(dir); /* /save takes names of the working folder */
}

static int teardown(void **state)
{
    (void)state;
    rl_test_rmdir(dir);
    return 0;
}

#define CHECK(r, want, out_part, err_part) check(&(r), want, out_part, err_part, __LINE__)
static void check(program_result *r, int status, const char *out_part, const char *err_part, int line)
{
    bool ok = r->status == status && (!out_part || strstr(r->out, out_part)) && (!err_part || strstr(r->err, err_part));
    if (!ok)
        print_error(
            "line %d: status %d (expected %d)\nstdout \"%.500s\" (expected \"%s\")\nstderr \"%.900s\" (expected \"%s\")\n",
            line, r->status, status, r->out, out_part ? out_part : "", r->err, err_part ? err_part : "");
    assert_true(ok);
    program_free(r);
}

static json_t *saved(const char *name)
{
    json_t *top = json_load_file(name, 0, NULL);
    assert_non_null(top);
    json_t *list = json_incref(json_object_get(top, "messages"));
    json_decref(top);
    assert_true(json_is_array(list));
    return list;
}

static const char *content(const json_t *list, size_t i)
{
    return json_string_value(json_object_get(json_array_get(list, i), "content"));
}

/* ---- Pipes --------------------------------------------------------------------------------------------------------------- */

static void test_pipe(void **state)
{
    (void)state;
    program_result chat = PROGRAM_RUN("Who lives in the forest?\n", "chat", GREEDY),
                   once = PROGRAM_RUN("", "generate", "--chat", "-p", "Who lives in the forest?", GREEDY);
    assert_int_equal(once.status, 0);
    assert_true(once.n_out > 0);
    assert_int_equal(chat.n_out, once.n_out + 1); /* the same answer and a line's end */
    assert_memory_equal(chat.out, once.out, once.n_out);
    program_free(&once);
    CHECK(chat, 0, "\n", NULL);
    program_result r = PROGRAM_RUN("", "chat");
    assert_int_equal(r.n_out, 0);
    CHECK(r, 0, NULL, NULL);
    r = PROGRAM_RUN("\n\n", "chat"); /* empty lines are no messages */
    assert_int_equal(r.n_out, 0);
    CHECK(r, 0, NULL, NULL);
    r = PROGRAM_RUN("no line's end", "chat", GREEDY, "--stats");
    CHECK(r, 0, NULL, "answer    6 tokens");
}

static void test_quiet(void **state)
{
    (void)state;
    program_result r = PROGRAM_RUN("Hello\n/system Be kind.\n/quit\nnot read\n", "chat", GREEDY, "-q");
    assert_string_equal(r.err, "");
    CHECK(r, 0, NULL, NULL);
}

static void test_messages(void **state)
{
    (void)state;
    program_result r = PROGRAM_RUN(
        "one \\\ntwo\n\"\"\"three\n\nfour\\\n\"\"\"\n\"\"\"five\"\"\"\n//six\n/usr/bin is a path\ncr\r\n/save a.json\n", "chat",
        "-n", "1");
    CHECK(r, 0, NULL, "Saved 12 turns to a.json");
    json_t *list = saved("a.json");
    assert_string_equal(content(list, 0), "one \ntwo");
    assert_string_equal(content(list, 2), "three\n\nfour\\");
    assert_string_equal(content(list, 4), "five");
    assert_string_equal(content(list, 6), "/six");
    assert_string_equal(content(list, 8), "/usr/bin is a path");
    assert_string_equal(content(list, 10), "cr");
    json_decref(list);
    static const char bytes[] = "nul \0 bad \xff\xc3 e \xc3\xa9\n/save b.json\n";
    r = PROGRAM_RUN(bytes, "chat", "-n", "1");
    CHECK(r, 0, NULL, "Saved 2 turns");
    char *text = rl_test_read("b.json", NULL);
    assert_non_null(strstr(text, "nul \\u0000 bad \xef\xbf\xbd\xef\xbf\xbd e \xc3\xa9"));
    free(text);
}

static void test_commands(void **state)
{
    (void)state;
    program_result r = PROGRAM_RUN("/hlep\n", "chat");
    CHECK(r, 1, NULL, "unknown command /hlep; did you mean /help?");
    r = PROGRAM_RUN("/undo\n", "chat");
    CHECK(r, 1, NULL, "no message to take back");
    r = PROGRAM_RUN("/retry\n", "chat");
    CHECK(r, 1, NULL, "no message to answer again");
    r = PROGRAM_RUN("/save\n", "chat");
    CHECK(r, 1, NULL, "/save needs the name of a file");
    r = PROGRAM_RUN("/save no/such/folder/x.json\n", "chat");
    CHECK(r, 1, NULL, "no/such/folder/x.json");
    r = PROGRAM_RUN("/temp warm\n", "chat");
    CHECK(r, 1, NULL, "/temp: expected a number");
    r = PROGRAM_RUN("/temp -1\n", "chat");
    CHECK(r, 1, NULL, "temperature");
    r = PROGRAM_RUN("/quit now\n", "chat");
    CHECK(r, 1, NULL, "/quit takes nothing after it");
    r = PROGRAM_RUN("/temp 0.25\n/temp\n/system Be brief.\n/system\n/system none\n/tokens\n/stats\n/help\n", "chat");
    assert_non_null(strstr(r.err, "Temperature 0.25\nTemperature 0.25\n"));
    assert_non_null(strstr(r.err, "System message: Be brief.\nSystem message: Be brief.\nSystem message: none\n"));
    assert_non_null(strstr(r.err, "0 tokens in 0 turns"));
    assert_non_null(strstr(r.err, "answer    none yet"));
    assert_int_equal(r.n_out, 0);
    CHECK(r, 0, NULL, "/retry");
}

/* What was computed is kept: the next message, another answer and going back cost only what is new. */
static void test_reuse(void **state)
{
    (void)state;
    program_result r =
        PROGRAM_RUN("Who lives in the forest?\n/stats\nAnd then?\n/stats\n/retry\n/stats\n/undo\n/retry\n/stats\n", "chat",
                    "--temp", "1", "--seed", "5", "-n", "12");
    assert_int_equal(r.status, 0);
    unsigned prompt[4], kept[4], n = 0;
    for (const char *p = r.err; n < 4 && (p = strstr(p, "prompt ")) != NULL; p++, n++)
        assert_int_equal(sscanf(p, "prompt %u tokens: %u kept", &prompt[n], &kept[n]), 2);
    assert_int_equal(n, 4);
    unsigned opening = 3; /* of an answer: <|im_start|>, assistant, line's end */
    assert_int_equal(kept[0], 0);
    assert_in_range(kept[1], prompt[0], prompt[0] + 12); /* all of the first prompt and answer, as it was drawn */
    assert_int_equal(kept[2], prompt[1] - opening);
    assert_int_equal(prompt[2], prompt[1]);
    assert_int_equal(prompt[3], prompt[0]);
    assert_int_equal(kept[3], prompt[0] - opening);
    program_free(&r);
}

static void test_seed(void **state)
{
    (void)state;
    program_result a = PROGRAM_RUN("Once upon a time\n/retry\n", "chat", "--temp", "1.5", "--seed", "7", "-n", "8"),
                   b = PROGRAM_RUN("Once upon a time\n/retry\n", "chat", "--temp", "1.5", "--seed", "7", "-n", "8");
    assert_string_equal(a.out, b.out);
    char *middle = strchr(a.out, '\n');
    assert_non_null(middle);
    *middle = 0;
    assert_string_not_equal(a.out, middle + 1); /* another draw, not the same once more */
    program_free(&a);
    program_free(&b);
}

static void test_history(void **state)
{
    (void)state;
    program_result r =
        PROGRAM_RUN("Who lives in the forest?\nIs it kind?\n/save c.json\n", "chat", GREEDY, "--system", "Be brief.");
    char *second = strchr(r.out, '\n');
    assert_non_null(second);
    char *answer = strdup(second + 1);
    CHECK(r, 0, NULL, "Saved 4 turns");
    json_t *list = saved("c.json");
    assert_int_equal(json_array_size(list), 5);
    assert_string_equal(content(list, 0), "Be brief.");
    assert_string_equal(content(list, 3), "Is it kind?");
    json_decref(list);
    /* The same question after the same history has the same answer. */
    r = PROGRAM_RUN("/undo\nIs it kind?\n", "chat", GREEDY, "--history", "c.json");
    assert_string_equal(r.out, answer);
    CHECK(r, 0, NULL, "Took back: Is it kind?");
    r = PROGRAM_RUN("/load c.json\n/undo\nIs it kind?\n/save\n", "chat", GREEDY);
    assert_string_equal(r.out, answer);
    CHECK(r, 0, NULL, "Saved 4 turns to c.json");
    free(answer);
}

static void test_bad_history(void **state)
{
    (void)state;
    const struct {
        const char *json, *says;
    } bad[] = {
        {"", "is not a conversation: line 1"},
        {"{\"messages\": [", "is not a conversation"},
        {"{}", "there is no array \"messages\""},
        {"[1]", "message 1 has no \"role\""},
        {"[{\"role\": \"user\"}]", "message 1: \"content\" is missing"},
        {"[{\"role\": \"user\", \"content\": 5}]", "message 1: \"content\" is not a string"},
        {"[{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"king\", \"content\": \"b\"}]",
         "message 2 has the role \"king\""},
        {"[{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"system\", \"content\": \"b\"}]",
         "message 2 is a system message"},
        {"[{\"role\": \"assistant\", \"content\": \"a\", \"reasoning_content\": []}]", "\"reasoning_content\" is not a string"},
        {"[{\"role\": \"user\", \"content\": \"\xff\"}]", "is not a conversation"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        rl_test_write("bad.json", bad[i].json, strlen(bad[i].json));
        program_result r = PROGRAM_RUN("", "chat", "--history", "bad.json");
        CHECK(r, 1, NULL, bad[i].says);
    }
    /* A file that cannot be taken changes nothing. */
    program_result r = PROGRAM_RUN("Hello\n/load bad.json\n/tokens\n", "chat", GREEDY);
    CHECK(r, 1, NULL, "in 2 turns");
    r = PROGRAM_RUN("", "chat", "--history", "none.json");
    CHECK(r, 1, NULL, "none.json");
    r = PROGRAM_RUN("", "chat", "--history", "-");
    CHECK(r, 2, NULL, "standard input is the chat itself");
    static const char extra[] = "[{\"role\": \"user\", \"content\": null, \"name\": \"x\"}]";
    rl_test_write("odd.json", extra, sizeof extra - 1);
    r = PROGRAM_RUN("/tokens\n", "chat", "--history", "odd.json");
    CHECK(r, 0, NULL, "in 1 turns");
}

static void test_context(void **state)
{
    (void)state;
    program_result r = PROGRAM_RUN("Tell me a story.\n/tokens\n", "chat", "--context", "32", ENDLESS);
    CHECK(r, 0, NULL, "the context of 32 tokens is full");
    r = PROGRAM_RUN("Tell me a story.\nAnd more\n/undo\nHello\n", "chat", "--context", "32", ENDLESS);
    CHECK(r, 1, NULL, "and the context holds 32: shorten it with /undo");
}

/* ---- A terminal ---------------------------------------------------------------------------------------------------------- */

static void test_terminal(void **state)
{
    (void)state;
    program_pty p;
    PROGRAM_PTY_START(&p, "chat", GREEDY);
    program_pty_await(&p, "/help lists the commands");
    program_pty_await(&p, "> ");
    program_pty_type(&p, "Who lives in the forest?\r");
    program_pty_await(&p, "[ended after 6 tokens");
    program_pty_await(&p, "> ");
    program_pty_type(&p, "/tokens\r");
    program_pty_await(&p, "in 2 turns");
    program_pty_await(&p, "> ");
    program_pty_type(&p, "\004");
    assert_int_equal(program_pty_end(&p), 0);
}

static void test_interrupt(void **state)
{
    (void)state;
    program_pty p;
    PROGRAM_PTY_START(&p, "chat", ENDLESS, "--context", "32768");
    program_pty_await(&p, "> ");
    program_pty_type(&p, "Tell me a story.\r");
    program_pty_await(&p, LINE_TAKEN);
    program_pty_await(&p, " "); /* the answer has begun */
    program_pty_await(&p, " ");
    program_pty_type(&p, "\003");
    program_pty_await(&p, "[stopped]");
    program_pty_await(&p, "> ");
    program_pty_type(&p, "/tokens\r");
    program_pty_await(&p, "in 2 turns"); /* the part of the answer is kept */
    program_pty_await(&p, "> ");
    program_pty_type(&p, "half a line\003");
    program_pty_await(&p, "Ctrl-C again or /quit leaves");
    program_pty_await(&p, "> ");
    program_pty_type(&p, "/tokens\r");
    program_pty_await(&p, "in 2 turns"); /* what was typed is dropped, and the warning forgotten */
    program_pty_await(&p, "> ");
    program_pty_type(&p, "\003");
    program_pty_await(&p, "Ctrl-C again");
    program_pty_await(&p, "> ");
    program_pty_type(&p, "\003");
    assert_int_equal(program_pty_end(&p), 130);
}

/* Keys of line editing, characters of several bytes in the C locale, and a paste of several lines. */
static void test_editing(void **state)
{
    (void)state;
#ifndef REDLITE_HAVE_EDIT
    skip();
#endif
    program_pty p;
    PROGRAM_PTY_START(&p, "chat", "-n", "1");
    program_pty_await(&p, "> ");
    program_pty_type(&p, "caf\303\251s\177\177e\303\251\r");
    program_pty_await(&p, "[ended");
    program_pty_await(&p, "> ");
    program_pty_type(&p, "world\001hello \005!\r");
    program_pty_await(&p, "[ended");
    program_pty_await(&p, "> ");
    program_pty_type(&p, "see: \033[200~line one\rline two\r\rline four\r\033[201~ ok?\r");
    program_pty_await(&p, "[pasted text 1, 4 lines]");
    program_pty_await(&p, "[ended");
    program_pty_await(&p, "> ");
    program_pty_type(&p, "\020\020\r"); /* back in the history, twice: hello world! */
    program_pty_await(&p, "[ended");
    program_pty_await(&p, "> ");
    program_pty_type(&p, "/save d.json\r");
    program_pty_await(&p, "Saved 8 turns");
    program_pty_type(&p, "/quit\r");
    assert_int_equal(program_pty_end(&p), 0);
    json_t *list = saved("d.json");
    assert_string_equal(content(list, 0), "cafe\303\251");
    assert_string_equal(content(list, 2), "hello world!");
    assert_string_equal(content(list, 4), "see: line one\nline two\n\nline four ok?");
    assert_string_equal(content(list, 6), "hello world!");
    json_decref(list);
}

/* Reasoning is dimmed at a terminal, left out of a pipe, and kept in the conversation. */
static void test_reasoning(void **state)
{
    (void)state;
    tiny_params params = tiny_defaults();
    tiny_file *f = tiny_build(&params);
    tiny_key *template = tiny_key_at(f, "tokenizer.chat_template");
    free(template->text);
    template->text = strdup("{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n<think>\\n' }}{%- endif %}");
    tiny_save(f, "thinking.gguf");
    tiny_free(f);
    program_result r = PROGRAM_RUN("Hello\n/save e.json\n", "chat", "-m", "thinking.gguf", "--temp", "0", "-n", "9");
    assert_int_equal(r.n_out, 0);
    CHECK(r, 0, NULL, "Saved 2 turns");
    json_t *list = saved("e.json");
    const char *reasoning = json_string_value(json_object_get(json_array_get(list, 1), "reasoning_content"));
    assert_non_null(reasoning);
    assert_true(strlen(reasoning) > 0);
    assert_string_equal(content(list, 1), "");
    json_decref(list);
    program_pty p;
    PROGRAM_PTY_START(&p, "chat", "-m", "thinking.gguf", "--temp", "0", "-n", "9");
    program_pty_await(&p, "> ");
    program_pty_type(&p, "Hello\r");
    program_pty_await(&p, "\033[2m");
    program_pty_await(&p, "\033[0m");
    program_pty_await(&p, "[ended after 9 tokens");
    program_pty_await(&p, "> ");
    program_pty_type(&p, "/quit\r");
    assert_int_equal(program_pty_end(&p), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pipe),      cmocka_unit_test(test_quiet),       cmocka_unit_test(test_messages),
        cmocka_unit_test(test_commands),  cmocka_unit_test(test_reuse),       cmocka_unit_test(test_seed),
        cmocka_unit_test(test_history),   cmocka_unit_test(test_bad_history), cmocka_unit_test(test_context),
        cmocka_unit_test(test_terminal),  cmocka_unit_test(test_interrupt),   cmocka_unit_test(test_editing),
        cmocka_unit_test(test_reasoning),
    };
    return cmocka_run_group_tests_name("chat", tests, setup, teardown);
}
