/* Reading answers: every vector is fed whole, byte by byte, cut in two at every place, and in random pieces, with the same
 * events each time. Arguments are judged by jansson. */
#include "support/support.h"
#include "text/tools.h"
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

static const char XML[] = "{{ '<function=' }}";
static const char MAY[] = "{% add_generation_prompt %}{{ '<think>\\n\\n</think>\\n\\n' }}";
static const char ALWAYS[] = "{% add_generation_prompt %}{{ '<|im_start|>assistant\\n<think>\\n' }}";

static const char TOOL[] =
    "{\"type\": \"function\", \"function\": {\"name\": \"f\", \"parameters\": {\"type\": \"object\", \"properties\": {"
    "\"s\": {\"type\": \"string\"}, \"i\": {\"type\": \"integer\"}, \"b\": {\"type\": \"boolean\"}, \"o\": {\"type\": "
    "\"object\"}, "
    "\"l\": {\"type\": [\"array\", \"null\"]}, \"n\": {\"anyOf\": [{\"type\": \"string\"}, {\"type\": \"null\"}]}, \"u\": "
    "{}}}}}";

/* ---- Events as one line: C(content) R(reasoning) name(arguments)W|U|D ---------------------------------------------------- */

typedef struct record {
    char line[1 << 14];
    size_t n;
    rl_answer_kind last;
    bool open; /* a bracket is open */
    char arguments[1 << 13];
    size_t n_arguments;
    size_t limit; /* events before cancelling, 0 = none */
    size_t events, calls;
    bool in_call;
} record;

static void put(record *r, const char *text, size_t n)
{
    assert_true(r->n + n < sizeof r->line);
    memcpy(r->line + r->n, text, n);
    r->n += n;
    r->line[r->n] = '\0';
}

static void close_text(record *r)
{
    if (r->open) put(r, ")", 1);
    r->open = false;
}

static void end_call(record *r, rl_call_end end)
{
    json_error_t why;
    json_t *v = json_loadb(r->arguments, r->n_arguments, 0, &why);
    if (v == NULL) fail_msg("%s in %.*s", why.text, (int)r->n_arguments, r->arguments);
    assert_true(json_is_object(v));
    json_decref(v);
    close_text(r);
    put(r, end == RL_CALL_WHOLE ? "W" : end == RL_CALL_UNCLOSED ? "U" : "D", 1);
    r->in_call = false;
}

static bool on_event(void *ctx, const rl_answer_event *e)
{
    record *r = ctx;
    bool text = e->kind == RL_ANSWER_CONTENT || e->kind == RL_ANSWER_REASONING;
    r->events++;
    assert_int_equal(r->in_call, !text && e->kind != RL_ANSWER_CALL_START);
    if (text && (!r->open || r->last != e->kind)) {
        close_text(r);
        put(r, e->kind == RL_ANSWER_CONTENT ? "C(" : "R(", 2);
        r->open = true;
    }
    if (e->kind == RL_ANSWER_CALL_START) {
        close_text(r);
        put(r, e->text.data, e->text.size);
        put(r, "(", 1);
        r->open = true;
        r->n_arguments = 0;
        r->in_call = true;
        assert_int_equal(e->call, r->calls++);
    } else if (e->kind == RL_ANSWER_CALL_END) {
        assert_int_equal(e->call, r->calls - 1);
        end_call(r, e->end);
    } else {
        assert_true(e->text.size > 0);
        put(r, e->text.data, e->text.size);
    }
    if (e->kind == RL_ANSWER_CALL_ARGUMENTS) {
        assert_true(r->n_arguments + e->text.size <= sizeof r->arguments);
        memcpy(r->arguments + r->n_arguments, e->text.data, e->text.size);
        r->n_arguments += e->text.size;
    }
    r->last = e->kind;
    return r->limit == 0 || r->events < r->limit;
}

typedef struct setting {
    rl_chat_format *format;
    rl_chat_request request;
} setting;

/* Pieces end where cut() says; returns the line. */
static void feed(const setting *s, const char *text, size_t n, size_t first, size_t step, rl_rng *rng, record *r)
{
    rl_error err;
    rl_answer_parser *p = NULL;
    *r = (record){0};
    rl_assert_ok(rl_answer_parser_create(s->format, &s->request, on_event, r, &p, &err), &err);
    for (size_t at = 0, part = first; at < n; at += part, part = step) {
        if (rng != NULL) part = 1 + rl_rng_below(rng, 12);
        if (part > n - at || part == 0) part = n - at;
        rl_assert_ok(rl_answer_parser_push(p, text + at, part, &err), &err);
    }
    rl_assert_ok(rl_answer_parser_finish(p, &err), &err);
    assert_false(r->in_call);
    assert_int_equal(rl_answer_parser_calls(p), r->calls);
    close_text(r);
    rl_answer_parser_free(p);
}

static setting make(const char *template, bool tools)
{
    static const rl_slice tool = {TOOL, sizeof TOOL - 1};
    rl_error err;
    setting s = {.request = {.tools = &tool, .n_tools = tools}};
    rl_assert_ok(rl_chat_format_parse(template, strlen(template), &s.format, &err), &err);
    return s;
}

static void check_splits(const setting *s, const char *text, size_t n, const char *want)
{
    static record whole, other;
    feed(s, text, n, n, n, NULL, &whole);
    if (want != NULL) assert_string_equal(whole.line, want);
    feed(s, text, n, 1, 1, NULL, &other);
    assert_string_equal(other.line, whole.line);
    for (size_t cut = 1; cut < n; cut++) {
        feed(s, text, n, cut, n, NULL, &other);
        assert_string_equal(other.line, whole.line);
    }
    rl_rng rng = rl_rng_seed(n);
    for (int i = 0; i < 20; i++) {
        feed(s, text, n, 1, 1, &rng, &other);
        assert_string_equal(other.line, whole.line);
    }
}

typedef struct vector {
    const char *in, *out;
} vector;

static void check(const char *template, bool tools, const vector *v, size_t n)
{
    setting s = make(template, tools);
    for (size_t i = 0; i < n; i++)
        check_splits(&s, v[i].in, strlen(v[i].in), v[i].out);
    rl_chat_format_free(s.format);
}
#define CHECK(template, tools, vectors) check(template, tools, vectors, sizeof vectors / sizeof vectors[0])

/* ---- Content and reasoning -------------------------------------------------------------------------------------------------
 */

static void test_plain(void **state)
{
    (void)state;
    static const vector v[] = {
        {"", ""},
        {"hello", "C(hello)"},
        {" \n x \n", "C( \n x \n)"},
        {"a < b <tool <tool_cal", "C(a < b <tool <tool_cal)"},
        {"<think>no</think>", "C(<think>no</think>)"},
        {"\xF0\x9F\x98\x80 \xC3\xA9\xFF", "C(\xF0\x9F\x98\x80 \xC3\xA9\xEF\xBF\xBD)"},
        {"</tool_call> x", "C(</tool_call> x)"},
    };
    CHECK("", true, v);
    static const vector off[] = {{"<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>",
                                  "C(<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>)"}};
    CHECK("", false, off);
}

static void test_reasoning(void **state)
{
    (void)state;
    static const vector always[] = {
        {"\nhm\n\nso\n</think>\n\nanswer", "R(hm\n\nso)C(answer)"},
        {"never ends\n", "R(never ends)"},
        {"<think>\nagain</think>x", "R(again)C(x)"},
        {"</think>\n\nx</think>y", "C(x</think>y)"},
        {"a<b </thin </think>", "R(a<b </thin )"},
        {"look: <tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>\n</think>\n\n<tool_call>\n{\"name\": \"f\", "
         "\"arguments\": {}}\n</tool_call>",
         "R(look: <tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>)f({})W"},
        {"", ""},
    };
    CHECK(ALWAYS, true, always);
    static const vector may[] = {
        {"\n<think>\nr\n</think>\n\nc", "R(r)C(c)"},
        {"c <think>x</think>", "C(c <think>x</think>)"},
        {" <thin", "C( <thin)"},
        {"  ", "C(  )"},
        {"<think></think>", ""},
    };
    CHECK(MAY, true, may);
}

/* ---- JSON style ------------------------------------------------------------------------------------------------------------
 */

static void test_json_calls(void **state)
{
    (void)state;
    static const vector v[] = {
        {"<tool_call>\n{\"name\": \"tide\", \"arguments\": {\"port\": \"Brest\", \"hours\": 3}}\n</tool_call>",
         "tide({\"port\": \"Brest\", \"hours\": 3})W"},
        {"I "
         "look.\n\n<tool_call>\n{\"name\":\"f\",\"arguments\":{\"a\":[1,{\"b\":null}]}}</"
         "tool_call>\n<tool_call>{\"name\":\"g\","
         "\"arguments\":{}}</tool_call>\n",
         "C(I look.\n)f({\"a\": [1, {\"b\": null}]})Wg({})W"},
        {"x\n<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>\nAnd so.", "C(x)f({})WC(\nAnd so.)"},
        /* other orders and shapes */
        {"<tool_call>{\"arguments\": {\"a\": 1}, \"name\": \"f\"}</tool_call>", "f({\"a\": 1})W"},
        {"<tool_call>{\"id\": 7, \"name\": \"f\", \"arguments\": \"{\\\"a\\\":\\\"\\u00e9\\\"}\"}</tool_call>",
         "f({\"a\": \"\xC3\xA9\"})W"},
        {"<tool_call>{\"name\": \"f\"}</tool_call>", "f({})W"},
        {"<tool_call>{\"name\": \"f\", \"parameters\": {\"a\": 1}}</tool_call>", "f({\"a\": 1})W"},
        {"<tool_call>{\"name\": \"f\", \"arguments\": {}, \"id\": 3}</tool_call>tail", "f({})WC(tail)"},
        {"<tool_call>\n<function=f>\n<parameter=s>\nx\n</parameter>\n</function>\n</tool_call>", "f({\"s\": \"x\"})W"},
        /* tags inside strings */
        {"<tool_call>{\"name\": \"f\", \"arguments\": {\"s\": \"</tool_call><tool_call>\"}}</tool_call>",
         "f({\"s\": \"</tool_call><tool_call>\"})W"},
        {"<tool_call>{\"arguments\": {\"s\": \"</tool_call>\"}, \"name\": \"f\"}</tool_call>", "f({\"s\": \"</tool_call>\"})W"},
    };
    CHECK("", true, v);
}

static void test_json_malformed(void **state)
{
    (void)state;
    static const vector v[] = {
        /* no call at all: text */
        {"<tool_call>nothing</tool_call>", "C(<tool_call>nothing</tool_call>)"},
        {"<tool_call>", "C(<tool_call>)"},
        {"<tool_call>\n{\"name", "C(<tool_call>\n{\"name)"},
        {"<tool_call>{\"name\": \"\", \"arguments\": {}}</tool_call>",
         "C(<tool_call>{\"name\": \"\", \"arguments\": {}}</tool_call>)"},
        {"<tool_call>{\"name\": 3, \"arguments\": {}}</tool_call>",
         "C(<tool_call>{\"name\": 3, \"arguments\": {}}</tool_call>)"},
        {"<tool_call>{\"name\": \"f\", \"arguments\": [1]}</tool_call>",
         "C(<tool_call>{\"name\": \"f\", \"arguments\": [1]}</tool_call>)"},
        {"<tool_call>{\"name\": \"f\", \"arguments\": \"x\"}</tool_call>",
         "C(<tool_call>{\"name\": \"f\", \"arguments\": \"x\"}</tool_call>)"},
        {"<tool_call>{\"a\" 1}<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>", "C(<tool_call>{\"a\" 1})f({})W"},
        {"<tool_call>{\"a\": \"open<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>",
         "C(<tool_call>{\"a\": \"open)f({})W"},
        /* brackets and tags missing or doubled */
        {"<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":1}</tool_call>", "f({\"a\": 1})W"},
        {"<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":1</tool_call>x", "f({\"a\": 1})UC(x)"},
        {"<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":[1</tool_call>", "f({\"a\": [1]})U"},
        {"<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":1}}}</tool_call></tool_call>y", "f({\"a\": 1})WC(y)"},
        {"<tool_call>{\"name\":\"f\",\"arguments\":{}}\n<tool_call>{\"name\":\"g\",\"arguments\":{}}", "f({})Ug({})U"},
        {"<tool_call>{\"name\":\"f\",\"arguments\":{}} words", "f({})UC(words)"},
        {"<tool_call>{\"arguments\":{},\"name\":\"f\"</tool_call>", "f({})W"},
        /* cut off */
        {"<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":\"rm -rf /tm", "f({\"a\": \"rm -rf /tm\"})D"},
        {"<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":12", "f({})D"},
        {"<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":1, \"b", "f({\"a\": 1})D"},
        {"<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":1}", "f({\"a\": 1})U"},
        {"<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":{\"b\":[1", "f({\"a\": {\"b\": []}})D"},
        /* wrong JSON */
        {"<tool_call>{\"name\":\"f\",\"arguments\":{\"a\": oops}}</tool_call>z", "f({})DC(z)"},
        {"<tool_call>{\"name\":\"f\",\"arguments\":{a: 1}}</tool_call>", "f({})D"},
        {"<tool_call>{\"name\":\"f\",\"arguments\":{\"a\": 1 \"b\": 2}}</tool_call>", "f({\"a\": 1})D"},
        {"<tool_call>{\"name\":\"f\",\"arguments\":{\"re\": \"\\d\", \"t\": True, \"x\": \"a\nb\",}}</tool_call>",
         "f({\"re\": \"\\\\d\", \"t\": true, \"x\": \"a\\nb\"})W"},
        {"<tool_call>{\"name\":\"f\",\"arguments\":{\"a\": \"\\ud83d\"}}</tool_call>", "f({\"a\": \"\xEF\xBF\xBD\"})W"},
    };
    CHECK("", true, v);
}

/* ---- XML style -------------------------------------------------------------------------------------------------------------
 */

static void test_xml_calls(void **state)
{
    (void)state;
    static const vector v[] = {
        {"Checking.\n\n<tool_call>\n<function=f>\n<parameter=s>\nBrest\n</parameter>\n<parameter=i>\n3\n</parameter>\n</"
         "function>\n"
         "</tool_call>",
         "C(Checking.)f({\"s\": \"Brest\", \"i\": 3})W"},
        {"<tool_call>\n<function=f>\n</function>\n</tool_call>\n<tool_call>\n<function=unknown>\n<parameter=x>\n[1,2]\n</"
         "parameter>\n"
         "</function>\n</tool_call>",
         "f({})Wunknown({\"x\": [1, 2]})W"},
        /* exactly one newline goes at each end */
        {"<tool_call><function=f><parameter=s>\n\n  a\n b \n\n</parameter></function></tool_call>",
         "f({\"s\": \"\\n  a\\n b \\n\"})W"},
        {"<tool_call><function=f><parameter=s>inline</parameter></function></tool_call>", "f({\"s\": \"inline\"})W"},
        {"<tool_call><function=f><parameter=s>\n</parameter></function></tool_call>", "f({\"s\": \"\"})W"},
        {"<tool_call><function=f><parameter=s></parameter></function></tool_call>", "f({\"s\": \"\"})W"},
        {"<tool_call><function=f><parameter=s>\n\n</parameter></function></tool_call>", "f({\"s\": \"\"})W"},
        /* types */
        {"<tool_call><function=f><parameter=s>\n42\n</parameter><parameter=i>\n 42 "
         "\n</parameter><parameter=b>\nTRUE\n</parameter>"
         "<parameter=o>\n{\"a\":[1]}\n</parameter><parameter=l>\nnull\n</parameter><parameter=n>\nnull\n</"
         "parameter><parameter=u>\n"
         "1.50\n</parameter></function></tool_call>",
         "f({\"s\": \"42\", \"i\": 42, \"b\": true, \"o\": {\"a\": [1]}, \"l\": null, \"n\": null, \"u\": 1.50})W"},
        {"<tool_call><function=f><parameter=i>\nmany\n</parameter><parameter=b>\nyes\n</parameter><parameter=o>\n[1]\n</"
         "parameter>"
         "<parameter=l>\n[1\n</parameter><parameter=n>\n\"q\"\n</parameter><parameter=u>\nplain\n</parameter></function></"
         "tool_call>",
         "f({\"i\": \"many\", \"b\": \"yes\", \"o\": \"[1]\", \"l\": \"[1\", \"n\": \"\\\"q\\\"\", \"u\": \"plain\"})W"},
        /* the opening tag left out, for declared functions */
        {"So:\n<function=f>\n<parameter=i>\n1\n</parameter>\n</function>\n</tool_call>", "C(So:)f({\"i\": 1})W"},
        {"<function=f>\n</function> done", "f({})WC(done)"},
        {"<function=other>\n</function>", "C(<function=other>\n</function>)"},
        /* tags in values */
        {"<tool_call><function=f><parameter=s>\n<b>\n</function>\n<tool_call> "
         "</tool_call>\n<parameter=s>\n<parameter=zz>\n</parameter>"
         "</function></tool_call>",
         "f({\"s\": \"<b>\\n</function>\\n<tool_call> </tool_call>\\n<parameter=s>\\n<parameter=zz>\"})W"},
        {"<tool_call>\n{\"name\": \"f\", \"arguments\": {\"i\": 1}}\n</tool_call>", "f({\"i\": 1})W"},
    };
    CHECK(XML, true, v);
}

static void test_xml_malformed(void **state)
{
    (void)state;
    static const vector v[] = {
        {"<tool_call>\n<function=>\n</function></tool_call>", "C(<tool_call>\n<function=>\n</function></tool_call>)"},
        {"<tool_call>\n<function=f", "C(<tool_call>\n<function=f)"},
        {"<tool_call>\n<function=a\nb>", "C(<tool_call>\n<function=a\nb>)"},
        {"<tool_call> <fun>", "C(<tool_call> <fun>)"},
        /* closing tags missing */
        {"<tool_call>\n<function=f>\n<parameter=s>\nx\n</parameter>\n</tool_call>y", "f({\"s\": \"x\"})WC(y)"},
        {"<tool_call>\n<function=f>\n<parameter=s>\nx\n</function>\n</tool_call>y", "f({\"s\": \"x\"})WC(y)"},
        {"<tool_call>\n<function=f>\n<parameter=s>\nx\n</function>", "f({\"s\": \"x\"})W"},
        {"<tool_call>\n<function=f>\n<parameter=s>\nx\n<parameter=i>\n5\n</parameter>\n</function>\n</tool_call>",
         "f({\"s\": \"x\", \"i\": 5})W"},
        {"<tool_call>\n<function=f>\n<parameter=s>\nx\n</parameter>\n<tool_call>\n<function=f>\n", "f({\"s\": \"x\"})Uf({})U"},
        {"<tool_call>\n<function=f>\n<parameter=s>\nx\n</parameter>", "f({\"s\": \"x\"})U"},
        /* doubled */
        {"<tool_call>\n<function=f>\n<parameter=s>\nx\n</parameter>\n</parameter>\n</function>\n</function>\n</tool_call></"
         "tool_call>.",
         "f({\"s\": \"x\"})WC(.)"},
        {"<tool_call>\n<function=f>\n<parameter=s>\nx\n</parameter>\n<parameter=s>\ny\n</parameter>\n</function></tool_call>",
         "f({\"s\": \"x\", \"s\": \"y\"})W"},
        /* without a name, or text where none belongs */
        {"<tool_call><function=f><parameter=>\nx\n</parameter><parameter=i>1</parameter></function></tool_call>",
         "f({\"i\": 1})D"},
        {"<tool_call><function=f><parameter>\nx\n</parameter></function></tool_call>", "f({})D"},
        {"<tool_call><function=f>what <i> <parameter=i>1</parameter></function></tool_call>", "f({\"i\": 1})D"},
        /* cut off */
        {"<tool_call><function=f><parameter=s>\nrm -rf /tm", "f({\"s\": \"rm -rf /tm\"})D"},
        {"<tool_call><function=f><parameter=i>\n12", "f({\"i\": 12})D"},
        {"<tool_call><function=f><parameter=s>\nx\n</param", "f({\"s\": \"x\\n</param\"})D"},
        {"<tool_call><function=f><parameter=o>\n{\"a\": ", "f({\"o\": \"{\\\"a\\\": \"})D"},
        {"<tool_call><function=f><parameter=s", "f({})D"},
        {"<tool_call><function=f>", "f({})U"},
    };
    CHECK(XML, true, v);
}

/* ---- Limits and random text ------------------------------------------------------------------------------------------------
 */

static void test_limits(void **state)
{
    (void)state;
    setting s = make(XML, true);
    static char text[8000];
    memset(text, ' ', 400); /* more white space than is held back */
    memcpy(text, "word", 4);
    strcpy(text + 400, "<tool_call><function=f></function></tool_call>");
    check_splits(&s, text, strlen(text), NULL);
    memset(text, 'n', 400); /* a name that is too long */
    memcpy(text, "<tool_call><function=", 21);
    strcpy(text + 400, "></function></tool_call>");
    check_splits(&s, text, strlen(text), NULL);
    memset(text, ' ', 3000); /* a JSON head that does not end */
    memcpy(text, "<tool_call>{\"name\":", 19);
    strcpy(text + 1500, "\"f\",\"arguments\":{}}</tool_call>");
    check_splits(&s, text, strlen(text), "f({})W");
    size_t n = 0; /* openings that never become calls */
    for (int i = 0; i < 100; i++)
        n += (size_t)sprintf(text + n, "<tool_call>{\"%d\":\"", i);
    static record r;
    feed(&s, text, n, 7, 7, NULL, &r);
    assert_int_equal(r.n, n + 3);
    assert_int_equal(r.calls, 0);
    rl_chat_format_free(s.format);
}

/* Any sequence of fragments gives the same events however it is cut, and valid arguments. */
static void test_random(void **state)
{
    (void)state;
    static const char *const parts[] = {
        "<tool_call>",
        "</tool_call>",
        "<function=f>",
        "</function>",
        "<parameter=s>",
        "<parameter=i>",
        "<parameter=",
        "</parameter>",
        "{\"name\": \"f\", \"arguments\": {",
        "}",
        "\"a\": ",
        "\"x\"",
        "1",
        ",",
        "[",
        "]",
        "\\",
        "\"",
        "\n",
        " ",
        "text",
        "<",
        "</think>",
        "<think>",
        "\xC3\xA9",
        "\xF0\x9F",
        "{",
        ":",
        "true",
        "\"name\"",
        "\"arguments\"",
        "\"f\"",
    };
    static const char *const templates[] = {"", XML, MAY, ALWAYS};
    rl_rng rng = rl_rng_seed(11);
    for (int round = 0; round < 4000; round++) {
        setting s = make(templates[round % 4], true);
        static char text[2000];
        static record whole, other;
        size_t n = 0;
        for (uint32_t k = rl_rng_below(&rng, 30); k > 0; k--) {
            const char *part = parts[rl_rng_below(&rng, sizeof parts / sizeof parts[0])];
            memcpy(text + n, part, strlen(part));
            n += strlen(part);
        }
        feed(&s, text, n, n, n, NULL, &whole);
        feed(&s, text, n, 1, 1, NULL, &other);
        assert_string_equal(other.line, whole.line);
        feed(&s, text, n, 1, 1, &rng, &other);
        assert_string_equal(other.line, whole.line);
        rl_chat_format_free(s.format);
    }
}

static void test_cancel(void **state)
{
    (void)state;
    setting s = make("", true);
    static record r;
    rl_error err;
    rl_answer_parser *p = NULL;
    r = (record){.limit = 2};
    rl_assert_ok(rl_answer_parser_create(s.format, &s.request, on_event, &r, &p, &err), &err);
    rl_assert_ok(rl_answer_parser_push(p, "one", 3, &err), &err);
    rl_assert_fails(rl_answer_parser_push(p, "two", 3, &err), RL_ERR_CANCELLED, &err, "asked to stop");
    rl_assert_fails(rl_answer_parser_push(p, "three", 5, &err), RL_ERR_CANCELLED, &err, "asked to stop");
    assert_int_equal(r.events, 2);
    rl_answer_parser_free(p);
    r = (record){0};
    rl_assert_ok(rl_answer_parser_create(s.format, &s.request, on_event, &r, &p, &err), &err);
    rl_assert_ok(rl_answer_parser_finish(p, &err), &err);
    rl_assert_fails(rl_answer_parser_push(p, "x", 1, &err), RL_ERR_ARGUMENT, &err, "finished");
    rl_answer_parser_free(p);
    rl_answer_parser_free(NULL);
    rl_chat_format_free(s.format);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain),          cmocka_unit_test(test_reasoning), cmocka_unit_test(test_json_calls),
        cmocka_unit_test(test_json_malformed), cmocka_unit_test(test_xml_calls), cmocka_unit_test(test_xml_malformed),
        cmocka_unit_test(test_limits),         cmocka_unit_test(test_random),    cmocka_unit_test(test_cancel),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
