/* pull: downloads from a server in this process that cuts, lies and redirects. */
#include "support/program.h"
#include "support/support.h"
#include "support/tiny_model.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <netinet/in.h>
#include <nettle/sha2.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FILE_BYTES = 300000, REQUESTS_MAX = 64, SERVED_MAX = 4 };

/* ---- The server ---------------------------------------------------------------------------------------------------------- */

typedef struct served {
    const char *path;
    const char *data;
    size_t size;
} served;

/* How it behaves; set while no client runs. */
static struct {
    served files[SERVED_MAX];
    const char *etag;
    size_t cut_after; /* bytes of a body after which the connection ends; 0 = never */
    bool no_ranges, no_head;
    int status;              /* instead of 200 */
    const char *redirect;    /* Location of every request under /away */
    const char *list;        /* JSON of any repository */
    const char *linked_etag; /* of files under /acme */
    char requests[REQUESTS_MAX][1024];
    atomic_int n_requests;
} server;

static int listener;
static char base[64], dir[PATH_MAX], content[FILE_BYTES], sha_hex[65];

static void reply(int fd, const char *text)
{
    (void)send(fd, text, strlen(text), MSG_NOSIGNAL);
}

static bool header_of(const char *request, const char *name, char *out, size_t cap)
{
    const char *found = strcasestr(request, name);
    if (!found) return false;
    found += strlen(name);
    size_t n = strcspn(found, "\r\n");
    snprintf(out, cap, "%.*s", (int)n, found);
    return true;
}

static void send_file(int fd, const char *request, const served *f)
{
    char head[512], range[64], condition[128];
    size_t from = 0;
    bool partial = !server.no_ranges && header_of(request, "\nRange: bytes=", range, sizeof range) &&
                   (!header_of(request, "\nIf-Range: ", condition, sizeof condition) || strcmp(condition, server.etag) == 0);
    if (partial) from = strtoull(range, NULL, 10);
    if (partial && from >= f->size) {
        reply(fd, "HTTP/1.1 416 Range Not Satisfiable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        return;
    }
    int n = snprintf(head, sizeof head, "HTTP/1.1 %s\r\nContent-Length: %zu\r\nETag: %s\r\nConnection: close\r\n",
                     partial ? "206 Partial Content" : "200 OK", f->size - from, server.etag);
    if (partial)
        n += snprintf(head + n, sizeof head - (size_t)n, "Content-Range: bytes %zu-%zu/%zu\r\n", from, f->size - 1, f->size);
    snprintf(head + n, sizeof head - (size_t)n, "\r\n");
    reply(fd, head);
    size_t left = f->size - from;
    if (server.cut_after && left > server.cut_after) left = server.cut_after;
    if (strncmp(request, "HEAD", 4) != 0) (void)send(fd, f->data + from, left, MSG_NOSIGNAL);
}

static void answer(int fd, const char *request)
{
    char path[512] = "", head[1024];
    (void)sscanf(request, "%*s %511s", path);
    if (server.no_head && strncmp(request, "HEAD", 4) == 0) {
        reply(fd, "HTTP/1.1 405 Method Not Allowed\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        return;
    }
    if (strncmp(path, "/away", 5) == 0 || strncmp(path, "/acme/", 6) == 0) {
        bool away = path[1] == 'a' && path[2] == 'w';
        snprintf(head, sizeof head,
                 "HTTP/1.1 302 Found\r\nLocation: %s%s\r\nX-Linked-Size: %d\r\nX-Linked-ETag: \"%s\"\r\nContent-Length: "
                 "0\r\nConnection: close\r\n\r\n",
                 away ? server.redirect : "/cdn", away ? "" : strrchr(path, '/'), FILE_BYTES,
                 server.linked_etag ? server.linked_etag : "none");
        reply(fd, head);
        return;
    }
    if (server.list && strncmp(path, "/api/models/", 12) == 0) {
        snprintf(head, sizeof head, "HTTP/1.1 200 OK\r\nContent-Length: %zu\r\nConnection: close\r\n\r\n", strlen(server.list));
        reply(fd, head);
        reply(fd, server.list);
        return;
    }
    for (int i = 0; i < SERVED_MAX; i++)
        if (server.files[i].path && strcmp(path, server.files[i].path) == 0 && !server.status) {
            send_file(fd, request, &server.files[i]);
            return;
        }
    snprintf(head, sizeof head, "HTTP/1.1 %d Nothing\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
             server.status ? server.status : 404);
    reply(fd, head);
}

static void *serve(void *unused)
{
    (void)unused;
    for (;;) {
        int fd = accept(listener, NULL, NULL);
        if (fd < 0) return NULL;
        char request[1024] = "";
        size_t n = 0;
        while (n < sizeof request - 1 && !strstr(request, "\r\n\r\n")) {
            ssize_t r = recv(fd, request + n, sizeof request - 1 - n, 0);
            if (r <= 0) break;
            n += (size_t)r;
        }
        int at = atomic_load(&server.n_requests);
        if (at < REQUESTS_MAX) memcpy(server.requests[at], request, sizeof request);
        atomic_store(&server.n_requests, at + 1);
        answer(fd, request);
        shutdown(fd, SHUT_WR);
        while (recv(fd, request, sizeof request, 0) > 0) /* closing with unread input would reset the connection */
            ;
        close(fd);
    }
}

/* How many requests so far have `text` in them. */
static int requests_with(const char *text)
{
    int n = 0;
    for (int i = 0; i < server.n_requests && i < REQUESTS_MAX; i++)
        n += strstr(server.requests[i], text) != NULL;
    return n;
}

/* ---- Files --------------------------------------------------------------------------------------------------------------- */

static int behave(void **state) /* as a good server, before every test, and with an empty folder */
{
    (void)state;
    memset(&server, 0, sizeof server);
    server.files[0] = (served){"/m.gguf", content, FILE_BYTES};
    server.etag = "\"first\"";
    rl_test_rmdir(dir);
    return mkdir(dir, 0700);
}

static int setup(void **state)
{
    (void)state;
    rl_test_tmpdir(dir);
    rl_rng rng = rl_rng_seed(1);
    rl_rng_fill_bytes(&rng, content, sizeof content);
    memcpy(content, "GGUF", 4);
    struct sha256_ctx sha;
    uint8_t digest[32];
    sha256_init(&sha);
    sha256_update(&sha, sizeof content, (const uint8_t *)content);
    sha256_digest(&sha, sizeof digest, digest);
    for (int i = 0; i < 32; i++)
        snprintf(sha_hex + 2 * i, 3, "%02x", digest[i]);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t n = sizeof address;
    pthread_t thread;
    listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(listener, (struct sockaddr *)&address, n) != 0 || listen(listener, 16) != 0) return -1;
    if (getsockname(listener, (struct sockaddr *)&address, &n) != 0) return -1;
    snprintf(base, sizeof base, "http://127.0.0.1:%d", ntohs(address.sin_port));
    setenv("HF_ENDPOINT", base, 1);
    setenv("no_proxy", "*", 1);
    unsetenv("HF_TOKEN");
    setenv("XDG_DATA_HOME", dir, 1);
    return pthread_create(&thread, NULL, serve, NULL) || pthread_detach(thread);
}

static int teardown(void **state)
{
    (void)state;
    shutdown(listener, SHUT_RDWR);
    rl_test_rmdir(dir);
    return 0;
}

static const char *url(const char *path)
{
    static char out[4][256];
    static int next;
    char *u = out[next++ % 4];
    snprintf(u, sizeof out[0], "%s%s", base, path);
    return u;
}

static const char *in_dir(const char *name)
{
    static char path[PATH_MAX];
    return rl_test_join(path, dir, name);
}

static void assert_file(const char *name, const char *data, size_t size)
{
    size_t n = 0;
    char *got = rl_test_read(in_dir(name), &n);
    assert_int_equal(n, size);
    assert_memory_equal(got, data, size);
    free(got);
}

static void assert_only(const char *name) /* nothing else lies in the folder; NULL: nothing at all */
{
    DIR *d = opendir(dir);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d)) != NULL;)
        if (e->d_name[0] != '.' && (!name || strcmp(e->d_name, name) != 0)) fail_msg("%s was left behind", e->d_name);
    closedir(d);
}

#define PULL(...)                PROGRAM_RUN("", "pull", "-o", dir, __VA_ARGS__)
#define CHECK(r, want, err_part) check(&(r), want, err_part, __LINE__)
static void check(program_result *r, int status, const char *err_part, int line)
{
    bool ok = r->status == status && (!err_part || strstr(r->err, err_part));
    if (!ok)
        print_error("line %d: status %d (expected %d), stdout \"%.300s\", stderr \"%.900s\" (expected \"%s\")\n", line,
                    r->status, status, r->out, r->err, err_part ? err_part : "");
    assert_true(ok);
    program_free(r);
}

/* ---- Whole downloads ----------------------------------------------------------------------------------------------------- */

static void test_plain(void **state)
{
    (void)state;
    program_result r = PULL(url("/m.gguf"));
    char want[PATH_MAX + 1];
    snprintf(want, sizeof want, "%s\n", in_dir("m.gguf"));
    assert_string_equal(r.out, want);
    CHECK(r, 0, "m.gguf (292.97 KiB, no SHA-256 to check)");
    assert_file("m.gguf", content, FILE_BYTES);
    assert_only("m.gguf");
    int before = requests_with("GET /m.gguf");
    r = PULL(url("/m.gguf"), "--sha256", sha_hex, "-q"); /* it is there: nothing is fetched */
    assert_string_equal(r.err, "");
    CHECK(r, 0, NULL);
    assert_int_equal(requests_with("GET /m.gguf"), before);
    static const char other[] = "GGUF and something else";
    rl_test_write(in_dir("m.gguf"), other, sizeof other - 1);
    r = PULL(url("/m.gguf"));
    CHECK(r, 1, "is there but is not the file that was asked for");
    assert_file("m.gguf", other, sizeof other - 1);
}

static void test_no_head(void **state)
{
    (void)state;
    server.no_head = true;
    program_result r = PULL(url("/m.gguf?x=1"), "--sha256", sha_hex);
    CHECK(r, 1, "404"); /* the address with its query is another file here */
    r = PULL(url("/m.gguf"), "--sha256", sha_hex);
    CHECK(r, 0, "size unknown");
    assert_file("m.gguf", content, FILE_BYTES);
}

/* ---- Cut connections ----------------------------------------------------------------------------------------------------- */

static void test_cuts(void **state)
{
    (void)state;
    server.cut_after = 100000;
    program_result r = PULL(url("/m.gguf"), "--sha256", sha_hex, "--retries", "1");
    CHECK(r, 0, "trying again");
    assert_file("m.gguf", content, FILE_BYTES);
    assert_only("m.gguf");
    assert_int_equal(requests_with("GET /m.gguf"), 3);
    assert_int_equal(requests_with("Range: bytes=100000-\r\n"), 1);
    assert_int_equal(requests_with("Range: bytes=200000-\r\n"), 1);
    assert_int_equal(requests_with("If-Range: \"first\""), 2);
}

static void leave_part(void) /* an attempt that ends after 100000 bytes */
{
    server.cut_after = 100000;
    program_result r = PULL(url("/m.gguf"), "--retries", "0");
    CHECK(r, 1, "127.0.0.1");
    assert_file("m.gguf.part", content, 100000);
    server.cut_after = 0;
    server.n_requests = 0;
}

static void test_resume(void **state)
{
    (void)state;
    leave_part();
    program_result r = PULL(url("/m.gguf"), "--sha256", sha_hex);
    CHECK(r, 0, NULL);
    assert_file("m.gguf", content, FILE_BYTES);
    assert_only("m.gguf");
    assert_int_equal(requests_with("Range: bytes=100000-\r\n"), 1);
    assert_int_equal(requests_with("GET"), 1);
}

/* Another file under the same address: what there is of the old one is given up. */
static void test_changed(void **state)
{
    (void)state;
    leave_part();
    static char changed[FILE_BYTES];
    memcpy(changed, content, sizeof changed);
    memset(changed + 50000, 7, 1000);
    server.files[0].data = changed;
    server.etag = "\"second\"";
    program_result r = PULL(url("/m.gguf"));
    CHECK(r, 0, NULL);
    assert_file("m.gguf", changed, FILE_BYTES);
    assert_int_equal(requests_with("If-Range: \"first\""), 1);
}

/* A weak tag does not prove that bytes are the same: without a hash the download begins again. */
static void test_weak_tag(void **state)
{
    (void)state;
    server.etag = "W/\"weak\"";
    leave_part();
    program_result r = PULL(url("/m.gguf"));
    CHECK(r, 0, NULL);
    assert_int_equal(requests_with("Range:"), 0);
    assert_file("m.gguf", content, FILE_BYTES);
}

static void test_no_ranges(void **state)
{
    (void)state;
    server.no_ranges = true;
    leave_part();
    program_result r = PULL(url("/m.gguf"), "--sha256", sha_hex);
    CHECK(r, 0, NULL);
    assert_file("m.gguf", content, FILE_BYTES);
    rl_test_rmdir(dir);
    assert_int_equal(mkdir(dir, 0700), 0);
    server.cut_after = 100000;
    server.n_requests = 0;
    r = PULL(url("/m.gguf"), "--retries", "2");
    CHECK(r, 1, "trying again");
    assert_int_equal(requests_with("GET"), 3);
}

static void test_range_refused(void **state)
{
    (void)state;
    leave_part();
    server.files[0].size = 90000; /* less than there is */
    program_result r = PULL(url("/m.gguf"));
    CHECK(r, 0, NULL);
    assert_file("m.gguf", content, 90000);
    rl_test_rmdir(dir);
    assert_int_equal(mkdir(dir, 0700), 0);
    server.files[0].size = FILE_BYTES;
    leave_part();
    server.no_head = true; /* the smaller size shows only by 416 */
    server.files[0].size = 90000;
    r = PULL(url("/m.gguf"));
    CHECK(r, 0, "no such range; trying again");
    assert_file("m.gguf", content, 90000);
}

/* ---- Wrong contents and refusals ----------------------------------------------------------------------------------------- */

static void test_wrong(void **state)
{
    (void)state;
    char wrong[65];
    snprintf(wrong, sizeof wrong, "%s", sha_hex);
    wrong[0] = wrong[0] == '0' ? '1' : '0';
    program_result r = PULL(url("/m.gguf"), "--sha256", wrong);
    CHECK(r, 1, "its SHA-256 is not the one announced");
    assert_only(NULL);
    static const char page[] = "<html>Please log in</html>";
    server.files[0] = (served){"/m.gguf", page, sizeof page - 1};
    r = PULL(url("/m.gguf"));
    CHECK(r, 1, "is not a GGUF file");
    assert_only(NULL);
    server.list = "[{\"type\": \"file\", \"path\": \"m.gguf\", \"size\": 26}]";
    server.files[1] = (served){"/cdn/m.gguf", content, FILE_BYTES};
    r = PULL("acme/small");
    CHECK(r, 1, "has 300000 bytes on the server, 26 were expected");
    assert_only(NULL);
}

static void test_refusals(void **state)
{
    (void)state;
    program_result r = PULL(url("/none.gguf"));
    CHECK(r, 1, "there is no such file (404)");
    server.status = 503;
    r = PULL(url("/m.gguf"), "--retries", "1");
    CHECK(r, 1, "the server answers 503; trying again");
    server.status = 403;
    r = PULL(url("/m.gguf"));
    CHECK(r, 1, "HF_TOKEN");
    server.redirect = "/away/again";
    r = PULL(url("/away/m.gguf"));
    CHECK(r, 1, "redirects more than 10 times");
    server.redirect = "file:///etc/passwd";
    r = PULL(url("/away/m.gguf"));
    CHECK(r, 1, "not allowed");
    r = PULL("http://127.0.0.1:1/m.gguf");
    CHECK(r, 1, "Is the machine online?");
    r = PULL("acme/none");
    CHECK(r, 1, "has no repository acme/none");
    r = PULL("ftp://127.0.0.1/m.gguf");
    CHECK(r, 1, "neither an http nor an https address");
    const char *const bad[] = {"name", "a/b/c", "../x", "a/..", "a/b:", "a b/c", "/a", ""};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        r = PULL(bad[i]);
        CHECK(r, 1, "is not OWNER/NAME, OWNER/NAME:FILE or an address");
    }
    r = PULL(url("/"));
    CHECK(r, 1, "does not end in the name of a file");
    r = PULL(url("/..%2f.hidden"));
    CHECK(r, 1, "does not end in the name of a file");
    r = PULL(url("/m.gguf"), "--sha256", "abc");
    CHECK(r, 2, "64 hexadecimal digits");
    r = PROGRAM_RUN("", "pull");
    CHECK(r, 2, "name what to fetch");
    assert_only(NULL);
}

static void test_space(void **state)
{
    (void)state;
    server.list = "[{\"type\": \"file\", \"path\": \"m.gguf\", \"size\": 1125899906842624}]";
    program_result r = PULL("acme/huge");
    CHECK(r, 1, "not enough space");
    assert_int_equal(requests_with("GET /acme"), 0);
    assert_only(NULL);
}

/* ---- Repositories -------------------------------------------------------------------------------------------------------- */

static void test_repository(void **state)
{
    (void)state;
    static char list[2048];
    snprintf(list, sizeof list,
             "[{\"type\": \"directory\", \"path\": \"sub\"}, {\"type\": \"file\", \"path\": \"README.md\", \"size\": 5},"
             "{\"type\": \"file\", \"path\": \"sub/m-IQ2_XXS.gguf\", \"size\": 132, \"lfs\": {\"oid\": \"%s\", \"size\": %d}},"
             "{\"type\": \"file\", \"path\": \"m-IQ2_XS.gguf\", \"size\": 9},"
             "{\"type\": \"file\", \"path\": \"two-00001-of-00002.gguf\", \"size\": %d},"
             "{\"type\": \"file\", \"path\": \"two-00002-of-00002.gguf\", \"size\": 100000}, 7, {\"path\": 1}]",
             sha_hex, FILE_BYTES, FILE_BYTES);
    server.list = list;
    server.linked_etag = sha_hex;
    server.files[1] = (served){"/cdn/m-IQ2_XXS.gguf", content, FILE_BYTES};
    server.files[2] = (served){"/cdn/two-00001-of-00002.gguf", content, FILE_BYTES};
    server.files[3] = (served){"/cdn/two-00002-of-00002.gguf", content, 100000};
    program_result r = PULL("acme/models");
    assert_non_null(strstr(r.err, "292.97 KiB  m-IQ2_XXS.gguf"));
    assert_non_null(strstr(r.err, "390.62 KiB  two-00001-of-00002.gguf"));
    assert_null(strstr(r.err, "two-00002"));
    CHECK(r, 1, "name one of them: redlite pull acme/models:FILE");
    r = PULL("acme/models:Q4_K");
    CHECK(r, 1, "none of these is \"Q4_K\"");
    r = PULL("acme/models:IQ2");
    CHECK(r, 1, "none of these is \"IQ2\""); /* a word is meant whole: IQ2_XS is one, IQ2 is none */
    r = PULL("acme/models:iq2_xxs");
    CHECK(r, 0, "m-IQ2_XXS.gguf (292.97 KiB)");
    assert_file("m-IQ2_XXS.gguf", content, FILE_BYTES);
    assert_int_equal(requests_with("GET /acme/models/resolve/main/sub/m-IQ2_XXS.gguf"), 1);
    r = PULL("acme/models:two");
    CHECK(r, 0, "of a split model");
    assert_file("two-00001-of-00002.gguf", content, FILE_BYTES);
    assert_file("two-00002-of-00002.gguf", content, 100000);
    /* The hash that the hub announces for an address is checked too. */
    server.linked_etag = "0000000000000000000000000000000000000000000000000000000000000000";
    unlink(in_dir("m-IQ2_XXS.gguf"));
    r = PULL(url("/acme/models/resolve/main/m-IQ2_XXS.gguf"));
    CHECK(r, 1, "its SHA-256 is not the one announced");
    server.list = "{\"error\": 1}";
    r = PULL("acme/models:two");
    CHECK(r, 1, "not in the expected form");
    server.list = "[]";
    r = PULL("acme/models");
    CHECK(r, 1, "has no GGUF file");
}

static void test_split_address(void **state)
{
    (void)state;
    server.files[1] = (served){"/s-00001-of-00002.gguf", content, FILE_BYTES};
    server.files[2] = (served){"/s-00002-of-00002.gguf", content, 5000};
    program_result r = PULL(url("/s-00002-of-00002.gguf"));
    char want[PATH_MAX + 1];
    snprintf(want, sizeof want, "%s\n", in_dir("s-00001-of-00002.gguf")); /* the part that is opened */
    assert_string_equal(r.out, want);
    CHECK(r, 0, NULL);
    assert_file("s-00001-of-00002.gguf", content, FILE_BYTES);
    assert_file("s-00002-of-00002.gguf", content, 5000);
    r = PULL(url("/s-00001-of-00002.gguf"), "--sha256", sha_hex);
    CHECK(r, 1, "--sha256 is of one file");
}

/* Where -m looks for a name. */
static void test_models_folder(void **state)
{
    (void)state;
    char path[PATH_MAX];
    size_t n = 0;
    tiny_params p = tiny_defaults();
    tiny_write(&p, rl_test_join(path, dir, "t.gguf"));
    char *model = rl_test_read(path, &n);
    server.files[0] = (served){"/tiny.gguf", model, n};
    program_result r = PROGRAM_RUN("", "pull", url("/tiny.gguf"));
    CHECK(r, 0, "try: redlite chat -m tiny.gguf");
    r = PROGRAM_RUN("", "info", "-m", "tiny.gguf");
    CHECK(r, 0, NULL);
    r = PROGRAM_RUN("", "info", "-m", "tiny");
    CHECK(r, 0, NULL);
    r = PROGRAM_RUN("", "info", "-m", "tin");
    CHECK(r, 1, "tin");
    free(model);
}

static void test_list(void **state)
{
    (void)state;
    program_result r = PROGRAM_RUN("", "pull", "--list");
    assert_non_null(strstr(r.out, "IQ2_XXS"));
    CHECK(r, 0, NULL);
    assert_int_equal(server.n_requests, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_plain, behave),         cmocka_unit_test_setup(test_no_head, behave),
        cmocka_unit_test_setup(test_cuts, behave),          cmocka_unit_test_setup(test_resume, behave),
        cmocka_unit_test_setup(test_changed, behave),       cmocka_unit_test_setup(test_weak_tag, behave),
        cmocka_unit_test_setup(test_no_ranges, behave),     cmocka_unit_test_setup(test_range_refused, behave),
        cmocka_unit_test_setup(test_wrong, behave),         cmocka_unit_test_setup(test_refusals, behave),
        cmocka_unit_test_setup(test_space, behave),         cmocka_unit_test_setup(test_repository, behave),
        cmocka_unit_test_setup(test_split_address, behave), cmocka_unit_test_setup(test_models_folder, behave),
        cmocka_unit_test_setup(test_list, behave),
    };
    return cmocka_run_group_tests_name("pull", tests, setup, teardown);
}
