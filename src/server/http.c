/* server/http: connections and requests, on libmicrohttpd.
 *
 * Its threads read requests and write what is ready; a connection whose answer is not ready is suspended, so that thousands
 * of waiting clients cost no thread. While it is suspended nobody watches its socket: the scheduler looks for clients that
 * left (scheduler.c), and a client that takes too long to send its request is cut off by srv_http_reap. */
#include "http.h"

#include <arpa/inet.h>
#include <microhttpd.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>

#define STREAM_BLOCK (32u << 10)
#define HTTP_THREADS 4

typedef struct srv_connection {
    struct srv_connection *next, **at;
    int fd;
    bool busy;    /* a whole request is here and its answer on the way */
    double since; /* the opening, or the end of the last answer */
} srv_connection;

/* ---- Answers ------------------------------------------------------------------------------------------------------------- */

static const char *header(const srv_exchange *x, const char *name)
{
    return MHD_lookup_connection_value(x->connection, MHD_HEADER_KIND, name);
}

static void add_headers(const srv_exchange *x, struct MHD_Response *r, const char *type)
{
    if (type) MHD_add_response_header(r, "Content-Type", type);
    MHD_add_response_header(r, "X-Content-Type-Options", "nosniff");
    const char *cors = x->server->o.cors;
    if (!cors) return;
    MHD_add_response_header(r, "Access-Control-Allow-Origin", cors);
    if (strcmp(cors, "*") != 0) MHD_add_response_header(r, "Vary", "Origin");
}

static enum MHD_Result queue(const srv_exchange *x, int status, struct MHD_Response *r)
{
    enum MHD_Result ok = r ? MHD_queue_response(x->connection, (unsigned)status, r) : MHD_NO;
    if (r) MHD_destroy_response(r);
    return ok;
}

/* Takes the text. */
static enum MHD_Result send_text(const srv_exchange *x, int status, const char *type, srv_buf *text, int retry_after)
{
    if (text->failed) {
        srv_buf_free(text);
        return MHD_NO; /* no memory even for the error: the connection closes */
    }
    struct MHD_Response *r = MHD_create_response_from_buffer(text->size, text->data, MHD_RESPMEM_MUST_FREE);
    if (!r) srv_buf_free(text);
    *text = (srv_buf){0};
    if (r) add_headers(x, r, type);
    if (r && retry_after > 0) {
        char seconds[16];
        snprintf(seconds, sizeof seconds, "%d", retry_after);
        MHD_add_response_header(r, "Retry-After", seconds);
    }
    return queue(x, status, r);
}

static enum MHD_Result send_error(const srv_exchange *x, const srv_error *e, bool close)
{
    const srv_api *api = x->route ? x->route->api : NULL;
    srv_buf text = {0};
    srv_put_json(&text, api && api->error ? api->error(e) : srv_openai_error(e));
    if (x->server->o.log_requests)
        rl_log(RL_LOG_INFO, "- %s %d %s", x->route ? x->route->path : "?", e->status, e->code ? e->code : e->type);
    if (!close) return send_text(x, e->status, "application/json", &text, e->retry_after);
    struct MHD_Response *r = MHD_create_response_from_buffer(text.size, text.data, MHD_RESPMEM_MUST_FREE);
    if (!r) srv_buf_free(&text);
    if (r) {
        add_headers(x, r, "application/json");
        MHD_add_response_header(r, "Connection", "close");
    }
    return queue(x, e->status, r);
}

static enum MHD_Result send_options(const srv_exchange *x)
{
    struct MHD_Response *r = MHD_create_response_from_buffer(0, (void *)"", MHD_RESPMEM_PERSISTENT);
    if (!r) return MHD_NO;
    add_headers(x, r, NULL);
    if (x->server->o.cors) {
        MHD_add_response_header(r, "Access-Control-Allow-Methods", "GET, POST, OPTIONS");
        MHD_add_response_header(r, "Access-Control-Allow-Headers", "*, Authorization, Content-Type");
        MHD_add_response_header(r, "Access-Control-Max-Age", "86400");
    }
    return queue(x, 204, r);
}

/* ---- Streams ------------------------------------------------------------------------------------------------------------- */

static ssize_t read_stream(void *job, uint64_t position, char *out, size_t max)
{
    srv_job *j = job;
    (void)position;
    ssize_t n = 0;
    pthread_mutex_lock(&j->server->lock);
    if (j->out.size > 0) {
        n = (ssize_t)(j->out.size < max ? j->out.size : max);
        memcpy(out, j->out.data, (size_t)n);
        srv_drop(&j->out, (size_t)n);
    } else if (j->cancelled) {
        n = MHD_CONTENT_READER_END_WITH_ERROR;
    } else if (j->finished) {
        n = MHD_CONTENT_READER_END_OF_STREAM;
    } else if (j->connection) {
        j->suspended = true;
        MHD_suspend_connection(j->connection);
    }
    pthread_mutex_unlock(&j->server->lock);
    return n;
}

static void end_stream(void *job)
{
    srv_job_unref(job);
}

static enum MHD_Result send_stream(srv_exchange *x)
{
    srv_job *j = x->job;
    pthread_mutex_lock(&j->server->lock);
    j->refs++;
    pthread_mutex_unlock(&j->server->lock);
    struct MHD_Response *r = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, STREAM_BLOCK, read_stream, j, end_stream);
    if (!r) {
        srv_job_unref(j);
        return MHD_NO;
    }
    x->streaming = true;
    add_headers(x, r, "text/event-stream; charset=utf-8");
    MHD_add_response_header(r, "Cache-Control", "no-cache");
    MHD_add_response_header(r, "X-Accel-Buffering", "no"); /* proxies pass every event on at once */
    return queue(x, 200, r);
}

void srv_http_resume(srv_job *j)
{
    if (!j->suspended || !j->connection) return;
    j->suspended = false;
    MHD_resume_connection(j->connection);
}

/* What a job has so far: nothing (the connection sleeps), a stream, or a whole answer. */
static enum MHD_Result continue_job(srv_exchange *x)
{
    srv_job *j = x->job;
    srv_buf text = {0};
    pthread_mutex_lock(&j->server->lock);
    bool whole = j->finished && (!j->p.stream || j->status != 200), begun = j->p.stream && (j->out.size > 0 || j->finished);
    int status = j->status, retry_after = j->failure.retry_after;
    if (whole) {
        text = j->out;
        j->out = (srv_buf){0};
    } else if (!begun) {
        j->suspended = true;
        MHD_suspend_connection(x->connection);
    }
    bool cancelled = j->cancelled;
    pthread_mutex_unlock(&j->server->lock);
    if (cancelled && (whole || begun)) {
        srv_buf_free(&text);
        return MHD_NO;
    }
    if (whole) return send_text(x, status, "application/json", &text, retry_after);
    return begun ? send_stream(x) : MHD_YES;
}

/* ---- Requests ------------------------------------------------------------------------------------------------------------ */

static bool same_key(const char *given, const char *key)
{
    size_t n = strlen(key), m = given ? strlen(given) : 0;
    unsigned diff = n != m; /* time does not depend on where they differ */
    for (size_t i = 0; i < m; i++)
        diff |= (unsigned char)given[i] ^ (unsigned char)key[n ? i % n : 0];
    return diff == 0;
}

static bool check_key(const srv_exchange *x, srv_error *e)
{
    const char *key = x->server->o.api_key;
    if (!key || x->route->open) return true;
    const char *bearer = header(x, "Authorization"), *plain = header(x, "x-api-key");
    if (bearer && strncasecmp(bearer, "Bearer ", 7) == 0 && same_key(bearer + 7, key)) return true;
    if (plain && same_key(plain, key)) return true;
    return srv_refuse(e, 401, "authentication_error", "invalid_api_key",
                      bearer || plain ? "the API key is not the right one"
                                      : "an API key is needed: send it as 'Authorization: Bearer KEY'");
}

/* A page of another site must not be able to use a server on this machine through its visitor's browser. */
static bool check_origin(const srv_exchange *x, srv_error *e)
{
    const char *origin = header(x, "Origin"), *host = header(x, "Host"), *cors = x->server->o.cors;
    if (!origin || (cors && (strcmp(cors, "*") == 0 || strcmp(cors, origin) == 0))) return true;
    const char *name = strstr(origin, "://");
    if (name && host && strcasecmp(name + 3, host) == 0) return true;
    return srv_refuse(e, 403, "permission_error", "origin_not_allowed",
                      "requests from pages of this origin are not allowed (--cors allows them)");
}

static bool path_matches(const char *pattern, const char *url)
{
    size_t n = strlen(pattern);
    return pattern[n - 1] == '*' ? strncmp(pattern, url, n - 1) == 0 : strcmp(pattern, url) == 0;
}

static bool find_route(srv_exchange *x, const char *method, srv_error *e)
{
    bool path_known = false;
    if (strcmp(method, "HEAD") == 0) method = "GET";
    for (const srv_route *r = srv_routes; r->path; r++) {
        if (!path_matches(r->path, x->url)) continue;
        path_known = true;
        if (strcmp(r->method, method) != 0) continue;
        x->route = r;
        return true;
    }
    char shown[128];
    rl_escape(shown, sizeof shown, x->url, strlen(x->url));
    if (path_known)
        return srv_refuse(e, 405, "invalid_request_error", "method_not_allowed", "%s does not take this method", shown);
    return srv_refuse(e, 404, "invalid_request_error", "not_found", "there is nothing at %s", shown);
}

static bool check_size(const srv_exchange *x, uint64_t size, srv_error *e)
{
    if (size <= (uint64_t)x->server->o.body_mib << 20) return true;
    return srv_refuse(e, 413, "invalid_request_error", "request_too_large", "the body is larger than %u MiB (--body-mib)",
                      x->server->o.body_mib);
}

static bool check_head(srv_exchange *x, const char *method, srv_error *e)
{
    const char *length = header(x, "Content-Length");
    return find_route(x, method, e) && check_key(x, e) && check_origin(x, e) &&
           check_size(x, length ? strtoull(length, NULL, 10) : 0, e);
}

static bool parse_body(srv_exchange *x, json_t **out, srv_error *e)
{
    json_error_t why;
    if (strcmp(x->route->method, "POST") != 0) return true;
    rl_slice text = srv_view(&x->body);
    if (x->body.failed) return srv_refuse(e, 500, "server_error", NULL, "no memory for the body");
    *out = json_loadb(text.data, text.size, JSON_ALLOW_NUL, &why);
    if (json_is_object(*out)) return true;
    if (*out) {
        json_decref(*out);
        *out = NULL;
        return srv_bad(e, NULL, "the body must be a JSON object");
    }
    char shown[160];
    return srv_bad(e, NULL, "the body is not valid JSON: %s (line %d, column %d)",
                   rl_escape(shown, sizeof shown, why.text, strlen(why.text)), why.line, why.column);
}

static bool start_job(srv_exchange *x, json_t *body, srv_error *e)
{
    srv_job *j = calloc(1, sizeof *j);
    if (!j) return srv_refuse(e, 500, "server_error", NULL, "no memory for the request");
    j->server = x->server;
    j->api = x->route->api;
    j->refs = 1;
    j->body = json_incref(body);
    j->created = time(NULL);
    j->p.n = 1;
    srv_make_id(j->id, sizeof j->id, j->api->id_prefix);
    const union MHD_ConnectionInfo *fd = MHD_get_connection_info(x->connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    j->fd = fd ? fd->connect_fd : -1;
    j->connection = x->connection;
    if (!j->api->parse(j, body, e) || !srv_prepare(j, e) || !srv_submit(j, e)) {
        srv_job_unref(j);
        return false;
    }
    x->job = j;
    return true;
}

/* The whole request is here. */
static enum MHD_Result handle(srv_exchange *x)
{
    srv_error e = {0};
    json_t *body = NULL;
    srv_answer a = {.status = 200, .type = "application/json"};
    bool ok = parse_body(x, &body, &e);
    srv_buf_free(&x->body);
    if (ok) ok = x->route->api ? start_job(x, body, &e) : x->route->answer(x, body, &a, &e);
    json_decref(body);
    if (!ok) {
        srv_buf_free(&a.text);
        return send_error(x, &e, false);
    }
    if (x->job) return continue_job(x);
    if (!a.constant) return send_text(x, a.status, a.type, &a.text, 0);
    struct MHD_Response *r = MHD_create_response_from_buffer(a.constant_size, (void *)a.constant, MHD_RESPMEM_PERSISTENT);
    if (r) add_headers(x, r, a.type);
    return queue(x, a.status, r);
}

static srv_connection *connection_of(const srv_exchange *x)
{
    const union MHD_ConnectionInfo *i = MHD_get_connection_info(x->connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return i ? i->socket_context : NULL;
}

static void set_busy(const srv_exchange *x, bool busy)
{
    srv_connection *c = connection_of(x);
    if (!c) return;
    pthread_mutex_lock(&x->server->lock);
    c->busy = busy;
    c->since = rl_now();
    pthread_mutex_unlock(&x->server->lock);
}

static enum MHD_Result begin_exchange(rl_server *s, struct MHD_Connection *c, const char *url, const char *method, void **con)
{
    srv_exchange *x = calloc(1, sizeof *x);
    if (!x) return MHD_NO;
    *con = x;
    x->server = s;
    x->connection = c;
    x->url = url;
    if (strcmp(method, "OPTIONS") == 0) {
        x->complete = true;
        return send_options(x);
    }
    if (check_head(x, method, &x->error)) return MHD_YES;
    /* The body is not wanted: answering now closes the connection behind the answer. */
    x->complete = true;
    return send_error(x, &x->error, strcmp(method, "POST") == 0);
}

static enum MHD_Result on_request(void *server, struct MHD_Connection *c, const char *url, const char *method,
                                  const char *version, const char *data, size_t *size, void **con)
{
    (void)version;
    srv_exchange *x = *con;
    if (!x) return begin_exchange(server, c, url, method, con);
    if (*size > 0) {
        if (!x->error.status && check_size(x, (uint64_t)x->body.size + *size, &x->error)) srv_put(&x->body, data, *size);
        *size = 0;
        return MHD_YES;
    }
    if (x->job) return continue_job(x);
    if (x->complete) return MHD_YES;
    x->complete = true;
    set_busy(x, true);
    return x->error.status ? send_error(x, &x->error, true) : handle(x);
}

static void on_completed(void *server, struct MHD_Connection *c, void **con, enum MHD_RequestTerminationCode why)
{
    (void)server;
    (void)c;
    (void)why;
    srv_exchange *x = *con;
    if (!x) return;
    *con = NULL;
    set_busy(x, false);
    if (x->job) {
        pthread_mutex_lock(&x->server->lock);
        if (!x->job->finished) x->job->cancelled = true;
        x->job->connection = NULL;
        pthread_cond_signal(&x->server->work);
        pthread_mutex_unlock(&x->server->lock);
        srv_job_unref(x->job);
    }
    srv_buf_free(&x->body);
    free(x);
}

/* ---- Connections --------------------------------------------------------------------------------------------------------- */

static void on_connection(void *server, struct MHD_Connection *c, void **context, enum MHD_ConnectionNotificationCode code)
{
    rl_server *s = server;
    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        srv_connection *n = calloc(1, sizeof *n);
        const union MHD_ConnectionInfo *fd = MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
        if (!n || !fd) {
            free(n);
            return;
        }
        n->fd = fd->connect_fd;
        n->since = rl_now();
        *context = n;
        pthread_mutex_lock(&s->lock);
        n->next = s->connections;
        n->at = &s->connections;
        if (n->next) n->next->at = &n->next;
        s->connections = n;
        pthread_mutex_unlock(&s->lock);
    } else if (*context) {
        srv_connection *n = *context;
        pthread_mutex_lock(&s->lock);
        *n->at = n->next;
        if (n->next) n->next->at = n->at;
        pthread_mutex_unlock(&s->lock);
        free(n);
        *context = NULL;
    }
}

/* The daemon's own time limit counts silence only; a client that sends a byte now and then would stay for ever. Shutting the
 * socket down makes the daemon close the connection. */
void srv_http_reap(rl_server *s)
{
    double now = rl_now();
    for (srv_connection *c = s->connections; c; c = c->next)
        if (!c->busy && now - c->since > s->o.read_seconds) shutdown(c->fd, SHUT_RDWR);
}

/* ---- Start and stop ------------------------------------------------------------------------------------------------------ */

static void on_log(void *server, const char *fmt, va_list ap)
{
    char text[512];
    (void)server;
    vsnprintf(text, sizeof text, fmt, ap);
    text[strcspn(text, "\n")] = 0;
    rl_log(RL_LOG_DEBUG, "http: %s", text);
}

static rl_status resolve(const rl_server *s, struct addrinfo **out, rl_error *err)
{
    char port[16];
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    snprintf(port, sizeof port, "%u", s->o.port);
    int rc = getaddrinfo(s->o.host, port, &hints, out);
    if (rc == 0) return RL_OK;
    char shown[128];
    *err = (rl_error){.status = RL_ERR_ARGUMENT};
    snprintf(err->text, sizeof err->text, "\"%s\" is not an address to listen on: %s",
             rl_escape(shown, sizeof shown, s->o.host, strlen(s->o.host)), gai_strerror(rc));
    return err->status;
}

rl_status srv_http_start(rl_server *s, rl_error *err)
{
    struct addrinfo *address = NULL;
    rl_status st = resolve(s, &address, err);
    if (st != RL_OK) return st;
    unsigned flags = MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG;
    if (address->ai_family == AF_INET6) flags |= MHD_USE_IPv6;
    /* Threads share the connections among them evenly, so each gets a little more than its part. */
    s->daemon =
        MHD_start_daemon(flags, 0, NULL, NULL, on_request, s, MHD_OPTION_EXTERNAL_LOGGER, on_log, s, MHD_OPTION_SOCK_ADDR,
                         address->ai_addr, MHD_OPTION_NOTIFY_COMPLETED, on_completed, s, MHD_OPTION_NOTIFY_CONNECTION,
                         on_connection, s, MHD_OPTION_THREAD_POOL_SIZE, (unsigned)HTTP_THREADS, MHD_OPTION_CONNECTION_LIMIT,
                         (unsigned)s->o.connections, MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)s->o.read_seconds,
                         MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)s->o.head_kib << 10, MHD_OPTION_END);
    freeaddrinfo(address);
    if (!s->daemon) {
        *err = (rl_error){.status = RL_ERR_IO};
        char shown[128];
        snprintf(err->text, sizeof err->text, "cannot listen on %s port %u; is another server running there?",
                 rl_escape(shown, sizeof shown, s->o.host, strlen(s->o.host)), s->o.port);
        return err->status;
    }
    const union MHD_DaemonInfo *port = MHD_get_daemon_info(s->daemon, MHD_DAEMON_INFO_BIND_PORT);
    s->port = port && port->port ? port->port : s->o.port;
    return RL_OK;
}

void srv_http_stop(rl_server *s)
{
    if (s->daemon) MHD_stop_daemon(s->daemon);
    s->daemon = NULL;
}
