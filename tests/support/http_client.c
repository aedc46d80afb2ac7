/* tests/support/http_client: see http_client.h. */
#include "support/http_client.h"
#include "support/support.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#define MODEL REDLITE_SOURCE_DIR "/models/tiny-q4_k_m.gguf"

void test_server_serve(test_server *t, void (*change)(rl_server_options *o))
{
    rl_server_options o;
    rl_error err = {0};
    rl_server_options_init(&o);
    o.port = 0;
    o.model_path = MODEL;
    o.log_requests = false;
    if (change) change(&o);
    rl_assert_ok(rl_server_start(t->engine, &o, &t->server, &err), &err);
    t->port = rl_server_port(t->server);
}

void test_server_start(test_server *t, void (*change)(rl_server_options *o))
{
    rl_engine_options e;
    rl_error err = {0};
    rl_engine_options_init(&e);
    e.model = MODEL;
    e.context = 2048;
    e.precision = RL_PRECISION_EXACT;
    rl_assert_ok(rl_engine_open(&e, &t->engine, &err), &err);
    test_server_serve(t, change);
}

void test_server_stop(test_server *t)
{
    rl_server_stop(t->server);
    rl_engine_close(t->engine);
    *t = (test_server){0};
}

/* ---- Sockets ------------------------------------------------------------------------------------------------------------- */

int http_connect(const test_server *t)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in a = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)t->port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct timeval limit = {.tv_sec = 60}; /* a hang fails instead of hanging the test */
    assert_true(fd >= 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
    return fd;
}

void http_write(int fd, const char *text, size_t n)
{
    while (n > 0) {
        ssize_t w = send(fd, text, n, MSG_NOSIGNAL);
        if (w <= 0) return; /* the server may have closed: what it said tells */
        text += w;
        n -= (size_t)w;
    }
}

int http_begin(const test_server *t, const char *method, const char *path, const char *extra, const char *body)
{
    char head[2048];
    int n =
        snprintf(head, sizeof head, "%s %s HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Length: %zu\r\n%s\r\n",
                 method, path, body ? strlen(body) : 0, extra ? extra : "");
    assert_true(n > 0 && (size_t)n < sizeof head);
    int fd = http_connect(t);
    http_write(fd, head, (size_t)n);
    if (body) http_write(fd, body, strlen(body));
    return fd;
}

/* ---- Answers ------------------------------------------------------------------------------------------------------------- */

static char *read_all(int fd, size_t *size)
{
    size_t n = 0, room = 1 << 16;
    char *data = malloc(room + 1);
    for (;;) {
        assert_non_null(data);
        ssize_t r = recv(fd, data + n, room - n, 0);
        if (r < 0) assert_int_not_equal(errno, EAGAIN);
        if (r <= 0) break;
        n += (size_t)r;
        if (n == room) data = realloc(data, (room *= 2) + 1);
    }
    data[n] = 0;
    *size = n;
    return data;
}

/* Joins chunks in place. */
static size_t join_chunks(char *body, size_t size)
{
    size_t out = 0, at = 0;
    while (at < size) {
        char *end;
        size_t n = strtoul(body + at, &end, 16);
        at = (size_t)(end - body) + 2;
        if (n == 0) break;
        assert_true(at + n <= size);
        memmove(body + out, body + at, n);
        out += n;
        at += n + 2;
    }
    body[out] = 0;
    return out;
}

http_reply http_finish(int fd)
{
    http_reply r = {0};
    size_t n;
    r.head = read_all(fd, &n);
    close(fd);
    char *end = strstr(r.head, "\r\n\r\n");
    if (!end) return r;
    *end = 0;
    r.body = end + 4;
    r.size = n - (size_t)(r.body - r.head);
    assert_int_equal(sscanf(r.head, "HTTP/1.1 %d", &r.status), 1);
    if (strcasestr(r.head, "Transfer-Encoding: chunked")) r.size = join_chunks(r.body, r.size);
    return r;
}

http_reply http_request(const test_server *t, const char *method, const char *path, const char *extra, const char *body)
{
    return http_finish(http_begin(t, method, path, extra, body));
}

void http_free(http_reply *r)
{
    free(r->head);
    *r = (http_reply){0};
}

json_t *http_json(const test_server *t, const char *path, int status, const char *body)
{
    http_reply r = http_request(t, body ? "POST" : "GET", path, NULL, body);
    if (r.status != status) print_error("%s: %d, body: %s\n", path, r.status, r.body ? r.body : "");
    assert_int_equal(r.status, status);
    json_t *o = json_loadb(r.body, r.size, 0, NULL);
    if (!o) print_error("not JSON: %s\n", r.body);
    assert_non_null(o);
    http_free(&r);
    return o;
}

json_t *http_events(const test_server *t, const char *path, const char *body, int *comments)
{
    http_reply r = http_request(t, "POST", path, NULL, body);
    if (r.status != 200) print_error("%s: %d, body: %s\n", path, r.status, r.body ? r.body : "");
    assert_int_equal(r.status, 200);
    assert_non_null(strcasestr(r.head, "Content-Type: text/event-stream"));
    json_t *list = json_array();
    if (comments) *comments = 0;
    for (char *line = r.body, *end; (end = strstr(line, "\n\n")) != NULL; line = end + 2) {
        *end = 0;
        if (strncmp(line, ":", 1) == 0) {
            if (comments) ++*comments;
            continue;
        }
        char *data = strncmp(line, "data: ", 6) == 0 ? line + 6 : strstr(line, "\ndata: ");
        assert_non_null(data);
        if (*data == '\n') data += 7;
        json_t *event = strcmp(data, "[DONE]") == 0 ? json_string(data) : json_loads(data, 0, NULL);
        if (!event) print_error("not JSON: %s\n", data);
        assert_non_null(event);
        json_array_append_new(list, event);
    }
    http_free(&r);
    return list;
}

json_t *json_at(json_t *o, const char *path)
{
    while (o && *path) {
        char part[128];
        size_t n = strcspn(path, ".");
        snprintf(part, sizeof part, "%.*s", (int)n, path);
        o = json_is_array(o) ? json_array_get(o, strtoul(part, NULL, 10)) : json_object_get(o, part);
        path += n + (path[n] == '.');
    }
    return o;
}

const char *json_text(json_t *o, const char *path)
{
    const char *text = json_string_value(json_at(o, path));
    return text ? text : "";
}
