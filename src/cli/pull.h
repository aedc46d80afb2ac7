/* cli/pull: what the parts of the downloads share: where files are, HTTP, and one file fetched safely. */
#ifndef RL_CLI_PULL_H
#define RL_CLI_PULL_H

#include "cli.h"

/* ---- HTTP (libcurl) -------------------------------------------------------------------------------------------------- */

#define HTTP_TEXT_MAX 256

/* What a response's headers say. */
typedef struct http_head {
    long code;
    bool has_length, has_range;
    uint64_t length, range_from, range_total;
    char etag[HTTP_TEXT_MAX];
    /* Hugging Face's, on the response that redirects to the storage: the file's size, and its SHA-256 as the tag. */
    bool has_linked_size;
    uint64_t linked_size;
    char linked_etag[HTTP_TEXT_MAX];
} http_head;

typedef struct http_request {
    const char *url;
    bool head_only;
    uint64_t from;        /* first byte wanted */
    const char *if_range; /* strong tag the range is of, or NULL */
    /* Bytes of a response with code 200 or 206; others' are dropped. A status other than RL_OK ends the request with it. */
    rl_status (*body)(void *ctx, const http_head *head, const void *data, size_t n, rl_error *err);
    void *ctx;
} http_request;

bool http_open(void);
void http_close(void);
/* RL_OK: a response came whole, whatever its code. *again (may be NULL): the same request may succeed later. Only http and
 * https, redirects included; https is never left for http. Ends with RL_ERR_CANCELLED after Ctrl-C. */
rl_status http_run(const http_request *r, http_head *head, bool *again, rl_error *err);
/* A small document; a code other than 200 is RL_OK with *code set and no text. free(*text). */
rl_status http_text(const char *url, size_t limit, char **text, size_t *n, long *code, rl_error *err);
/* Where the Hugging Face API is: $HF_ENDPOINT or its public address. */
const char *http_hub(void);

/* ---- Sources --------------------------------------------------------------------------------------------------------- */

typedef struct pull_file {
    char *url;
    char name[HTTP_TEXT_MAX]; /* under which it is stored: no folder, no leading dot */
    bool has_size, has_sha256;
    uint64_t size;
    uint8_t sha256[32];
} pull_file;

typedef struct pull_files {
    pull_file *v;
    size_t n;
} pull_files;

/* The files that "OWNER/NAME", "OWNER/NAME:FILE" or a URL stands for, all parts of a split model. */
rl_status pull_resolve(const char *source, pull_files *out, rl_error *err);
void pull_files_free(pull_files *f);
bool pull_parse_sha256(const char *hex, size_t n, uint8_t out[32]);

/* ---- Fetching -------------------------------------------------------------------------------------------------------- */

/* Fetches into folder/name, going on where an earlier attempt ended; *path (PATH_MAX) is the file. After a failure that
 * may pass, NAME.part stays for the next attempt; what is wrong (size, hash) is removed. */
rl_status pull_fetch(const pull_file *f, const char *folder, uint32_t retries, char *path, rl_error *err);
/* Bytes still to be fetched into the folder, of the files whose size is known. */
uint64_t pull_missing(const pull_files *f, const char *folder);
/* RL_ERR_IO when the folder's file system has less than `bytes` free. */
rl_status pull_check_space(const char *folder, uint64_t bytes, rl_error *err);

/* "17.97 GiB" */
const char *pull_size(char out[32], uint64_t bytes);

#endif
