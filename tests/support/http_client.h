/* tests/support/http_client: a server in this process, and raw sockets to talk to it. */
#ifndef TESTS_SUPPORT_HTTP_CLIENT_H
#define TESTS_SUPPORT_HTTP_CLIENT_H

#include "server/server.h"

#include <jansson.h>

/* The bundled model behind a server on a free port; change may adapt the options (NULL = none). Logs are off. */
typedef struct test_server {
    rl_engine *engine;
    rl_server *server;
    uint32_t port;
} test_server;
void test_server_start(test_server *t, void (*change)(rl_server_options *o));
void test_server_stop(test_server *t);
/* The same on an engine that is open. */
void test_server_serve(test_server *t, void (*change)(rl_server_options *o));

int http_connect(const test_server *t);
void http_write(int fd, const char *text, size_t n);
/* A request with "Connection: close"; extra = more header lines, each with \r\n (NULL = none). */
int http_begin(const test_server *t, const char *method, const char *path, const char *extra, const char *body);

typedef struct http_reply {
    int status; /* 0: the connection ended without an answer */
    char *head; /* NUL-terminated */
    char *body; /* chunks joined; NUL-terminated */
    size_t size;
} http_reply;
http_reply http_finish(int fd); /* reads to the end and closes */
http_reply http_request(const test_server *t, const char *method, const char *path, const char *extra, const char *body);
void http_free(http_reply *r);

/* POST with a JSON answer of the expected status; json_decref it. */
json_t *http_json(const test_server *t, const char *path, int status, const char *body);
/* POST of a stream: its data events as an array, "[DONE]" as a string; comments are counted in *comments (may be NULL). */
json_t *http_events(const test_server *t, const char *path, const char *body, int *comments);

/* A path into JSON: "choices.0.message.content". NULL when there is nothing. */
json_t *json_at(json_t *o, const char *path);
const char *json_text(json_t *o, const char *path); /* "" when it is no string */

#endif
