/* cli/pull_http: requests through libcurl. */
#include "pull.h"

#include <curl/curl.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { CONNECT_SECONDS = 20, STALL_SECONDS = 60, REDIRECTS_MAX = 10 };

static CURL *handle; /* one, so that connections are used again */

bool http_open(void)
{
    if (curl_global_init(CURL_GLOBAL_DEFAULT) != 0) return false;
    handle = curl_easy_init();
    return handle != NULL;
}

void http_close(void)
{
    curl_easy_cleanup(handle);
    curl_global_cleanup();
}

const char *http_hub(void)
{
    const char *hub = getenv("HF_ENDPOINT");
    return hub && *hub ? hub : "https://huggingface.co";
}

/* ---- Responses ------------------------------------------------------------------------------------------------------- */

typedef struct exchange {
    const http_request *request;
    http_head *head;
    rl_status status; /* of the reader of the body */
    rl_error *err;
} exchange;

static bool parse_number(const char *text, uint64_t *out)
{
    char *end = NULL;
    if (*text < '0' || *text > '9') return false;
    unsigned long long v = strtoull(text, &end, 10);
    if (v == UINT64_MAX || (*end && *end != ' ' && *end != '-' && *end != '/')) return false;
    *out = v;
    return true;
}

/* "bytes FROM-TO/TOTAL" */
static bool parse_range(const char *text, http_head *h)
{
    const char *total = strchr(text, '/');
    return strncasecmp(text, "bytes ", 6) == 0 && total && parse_number(text + 6, &h->range_from) &&
           parse_number(total + 1, &h->range_total);
}

static void take_header(http_head *h, const char *name, const char *value)
{
    if (strcasecmp(name, "content-length") == 0)
        h->has_length = parse_number(value, &h->length);
    else if (strcasecmp(name, "content-range") == 0)
        h->has_range = parse_range(value, h);
    else if (strcasecmp(name, "etag") == 0)
        snprintf(h->etag, sizeof h->etag, "%s", value);
    else if (strcasecmp(name, "x-linked-etag") == 0)
        snprintf(h->linked_etag, sizeof h->linked_etag, "%s", value);
    else if (strcasecmp(name, "x-linked-size") == 0)
        h->has_linked_size = parse_number(value, &h->linked_size);
}

static size_t on_header(char *data, size_t size, size_t n, void *ctx)
{
    exchange *x = ctx;
    char line[1024];
    size_t len = size * n;
    if (len >= sizeof line) return len; /* none of ours is that long */
    memcpy(line, data, len);
    while (len > 0 && (line[len - 1] == '\r' || line[len - 1] == '\n' || line[len - 1] == ' '))
        len--;
    line[len] = 0;
    if (strncmp(line, "HTTP/", 5) == 0) { /* a further response: what the last one said of its own body is over */
        http_head *h = x->head;
        h->has_length = h->has_range = false;
        h->etag[0] = 0;
        return size * n;
    }
    char *colon = strchr(line, ':');
    if (colon) {
        *colon = 0;
        take_header(x->head, line, colon + 1 + strspn(colon + 1, " \t"));
    }
    return size * n;
}

static size_t on_body(char *data, size_t size, size_t n, void *ctx)
{
    exchange *x = ctx;
    (void)curl_easy_getinfo(handle, CURLINFO_RESPONSE_CODE, &x->head->code);
    if ((x->head->code != 200 && x->head->code != 206) || !x->request->body) return size * n;
    x->status = x->request->body(x->request->ctx, x->head, data, size * n, x->err);
    return x->status == RL_OK ? size * n : 0;
}

static int on_progress(void *ctx, curl_off_t a, curl_off_t b, curl_off_t c, curl_off_t d)
{
    (void)ctx, (void)a, (void)b, (void)c, (void)d;
    return cli_interrupted();
}

/* ---- Requests -------------------------------------------------------------------------------------------------------- */

static void set_common(const http_request *r, exchange *x, char *reason)
{
    bool secure = strncasecmp(r->url, "https:", 6) == 0;
    const char *token = getenv("HF_TOKEN"), *hub = http_hub();
    curl_easy_reset(handle);
    curl_easy_setopt(handle, CURLOPT_URL, r->url);
    curl_easy_setopt(handle, CURLOPT_ERRORBUFFER, reason);
    curl_easy_setopt(handle, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(handle, CURLOPT_USERAGENT, "redlite/" REDLITE_VERSION);
    curl_easy_setopt(handle, CURLOPT_FOLLOWLOCATION, 1L);
    curl_easy_setopt(handle, CURLOPT_MAXREDIRS, (long)REDIRECTS_MAX);
#if LIBCURL_VERSION_NUM >= 0x075500
    curl_easy_setopt(handle, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(handle, CURLOPT_REDIR_PROTOCOLS_STR, secure ? "https" : "http,https");
#else
    curl_easy_setopt(handle, CURLOPT_PROTOCOLS, (long)(CURLPROTO_HTTP | CURLPROTO_HTTPS));
    curl_easy_setopt(handle, CURLOPT_REDIR_PROTOCOLS, (long)(secure ? CURLPROTO_HTTPS : CURLPROTO_HTTP | CURLPROTO_HTTPS));
#endif
    curl_easy_setopt(handle, CURLOPT_CONNECTTIMEOUT, (long)CONNECT_SECONDS);
    curl_easy_setopt(handle, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl_easy_setopt(handle, CURLOPT_LOW_SPEED_TIME, (long)STALL_SECONDS);
    curl_easy_setopt(handle, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(handle, CURLOPT_HEADERDATA, x);
    curl_easy_setopt(handle, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(handle, CURLOPT_WRITEDATA, x);
    curl_easy_setopt(handle, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(handle, CURLOPT_XFERINFOFUNCTION, on_progress);
    if (r->head_only) curl_easy_setopt(handle, CURLOPT_NOBODY, 1L);
    if (token && *token && strncmp(r->url, hub, strlen(hub)) == 0) { /* libcurl does not pass it on to another host */
        curl_easy_setopt(handle, CURLOPT_HTTPAUTH, (long)CURLAUTH_BEARER);
        curl_easy_setopt(handle, CURLOPT_XOAUTH2_BEARER, token);
    }
}

static rl_status explain(CURLcode code, const char *url, const char *reason, bool *again, rl_error *err)
{
    char shown[300];
    rl_escape(shown, sizeof shown, url, strlen(url));
    const char *why = *reason ? reason : curl_easy_strerror(code);
    *again = false;
    switch (code) {
    case CURLE_ABORTED_BY_CALLBACK:
        return cli_fail(err, RL_ERR_CANCELLED, "stopped");
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_RESOLVE_PROXY:
    case CURLE_COULDNT_CONNECT:
        *again = true;
        return cli_fail(err, RL_ERR_IO,
                        "cannot reach %s: %s. Is the machine online? A proxy is set with https_proxy; a file fetched "
                        "elsewhere can be copied here and named with -m FILE",
                        shown, why);
    case CURLE_TOO_MANY_REDIRECTS:
        return cli_fail(err, RL_ERR_IO, "%s redirects more than %d times", shown, REDIRECTS_MAX);
    case CURLE_UNSUPPORTED_PROTOCOL:
        return cli_fail(err, RL_ERR_UNSUPPORTED, "%s leads to an address that is not allowed: %s", shown, why);
    case CURLE_URL_MALFORMAT:
        return cli_fail(err, RL_ERR_ARGUMENT, "%s is not a valid address", shown);
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
        return cli_fail(err, RL_ERR_IO, "%s cannot prove who it is: %s", shown, why);
    default:
        *again = true;
        return cli_fail(err, RL_ERR_IO, "the connection to %s failed: %s", shown, why);
    }
}

rl_status http_run(const http_request *r, http_head *head, bool *again, rl_error *err)
{
    char reason[CURL_ERROR_SIZE] = "", range[32], condition[HTTP_TEXT_MAX + 16];
    bool ignored;
    if (!again) again = &ignored;
    *again = false;
    *head = (http_head){0};
    exchange x = {.request = r, .head = head, .err = err};
    set_common(r, &x, reason);
    struct curl_slist *headers = NULL;
    if (r->from > 0) {
        snprintf(range, sizeof range, "%llu-", (unsigned long long)r->from);
        curl_easy_setopt(handle, CURLOPT_RANGE, range);
        if (r->if_range) {
            snprintf(condition, sizeof condition, "If-Range: %s", r->if_range);
            headers = curl_slist_append(NULL, condition);
            if (!headers) return cli_fail(err, RL_ERR_MEMORY, "no memory for a request");
            curl_easy_setopt(handle, CURLOPT_HTTPHEADER, headers);
        }
    }
    CURLcode code = curl_easy_perform(handle);
    (void)curl_easy_getinfo(handle, CURLINFO_RESPONSE_CODE, &head->code);
    curl_slist_free_all(headers);
    if (x.status != RL_OK) return x.status;
    return code == CURLE_OK ? RL_OK : explain(code, r->url, reason, again, err);
}

/* ---- Documents ------------------------------------------------------------------------------------------------------- */

typedef struct document {
    char *text;
    size_t n, limit;
} document;

static rl_status add_text(void *ctx, const http_head *head, const void *data, size_t n, rl_error *err)
{
    document *d = ctx;
    (void)head;
    if (n > d->limit - d->n) return cli_fail(err, RL_ERR_LIMIT, "the server's answer is longer than %zu bytes", d->limit);
    char *grown = realloc(d->text, d->n + n + 1);
    if (!grown) return cli_fail(err, RL_ERR_MEMORY, "no memory for the server's answer");
    memcpy(grown + d->n, data, n);
    d->text = grown;
    d->n += n;
    grown[d->n] = 0;
    return RL_OK;
}

rl_status http_text(const char *url, size_t limit, char **text, size_t *n, long *code, rl_error *err)
{
    document d = {.limit = limit};
    http_request r = {.url = url, .body = add_text, .ctx = &d};
    http_head head;
    rl_status st = http_run(&r, &head, NULL, err);
    *code = head.code;
    *text = NULL;
    *n = 0;
    if (st == RL_OK && head.code == 200) {
        *text = d.text ? d.text : calloc(1, 1);
        *n = d.n;
        return *text ? RL_OK : cli_fail(err, RL_ERR_MEMORY, "no memory for the server's answer");
    }
    free(d.text);
    return st;
}
