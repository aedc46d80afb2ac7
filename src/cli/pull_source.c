/* cli/pull_source: which files a name or an address stands for.
 *
 * Sizes and hashes come from the server that has the files: the list of a repository on Hugging Face carries both, an address
 * is asked with HEAD. */
#include "pull.h"

#include <curl/curl.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define LIST_LIMIT (16u << 20) /* bytes of a repository's list */
enum { PARTS_MAX = 512, CHOICES_SHOWN = 40 };

/* ---- Lists of files -------------------------------------------------------------------------------------------------- */

void pull_files_free(pull_files *f)
{
    for (size_t i = 0; i < f->n; i++)
        free(f->v[i].url);
    free(f->v);
    *f = (pull_files){0};
}

static pull_file *add_file(pull_files *f)
{
    pull_file *grown = realloc(f->v, (f->n + 1) * sizeof *grown);
    if (!grown) return NULL;
    f->v = grown;
    grown[f->n] = (pull_file){0};
    return &grown[f->n++];
}

bool pull_parse_sha256(const char *hex, size_t n, uint8_t out[32])
{
    if (n != 64) return false;
    for (size_t i = 0; i < 64; i++) {
        char c = hex[i];
        int v = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
        if (v < 0) return false;
        out[i / 2] = (uint8_t)(i % 2 ? out[i / 2] | v : v << 4);
    }
    return true;
}

/* A name becomes a file: it must not leave the folder, hide, or carry control characters. */
static bool set_name(pull_file *f, const char *path, size_t n)
{
    const char *name = path;
    for (size_t i = 0; i < n; i++)
        if (path[i] == '/' || path[i] == '\\') name = path + i + 1;
    n -= (size_t)(name - path);
    if (n == 0 || n > 200 || name[0] == '.') return false;
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)name[i] < 0x20 || name[i] == 0x7F) return false;
    memcpy(f->name, name, n);
    f->name[n] = 0;
    return true;
}

/* ---- Split models ---------------------------------------------------------------------------------------------------- */

/* PREFIX-00001-of-00003.gguf; *prefix = length of PREFIX. */
static bool split_name(const char *name, size_t *prefix, unsigned *part, unsigned *parts)
{
    static const char tail_form[] = "-00001-of-00003.gguf";
    size_t n = strlen(name), tail = sizeof tail_form - 1;
    int used = 0;
    if (n <= tail || sscanf(name + n - tail, "-%5u-of-%5u.gguf%n", part, parts, &used) != 2 || (size_t)used != tail)
        return false;
    *prefix = n - tail;
    return *part >= 1 && *part <= *parts;
}

/* ---- Addresses ------------------------------------------------------------------------------------------------------- */

/* A server that does not answer HEAD is asked again by the download itself. */
static rl_status probe(pull_file *f, rl_error *err)
{
    http_request r = {.url = f->url, .head_only = true};
    http_head h;
    char shown[300];
    rl_status st = http_run(&r, &h, NULL, err);
    if (st != RL_OK) return st;
    if (h.code == 404 || h.code == 410)
        return cli_fail(err, RL_ERR_IO, "%s: there is no such file (%ld)",
                        rl_escape(shown, sizeof shown, f->url, strlen(f->url)), h.code);
    if (h.code != 200) return RL_OK;
    f->has_size = h.has_linked_size || h.has_length;
    f->size = h.has_linked_size ? h.linked_size : h.length;
    size_t n = strlen(h.linked_etag);
    if (n == 66 && h.linked_etag[0] == '"') f->has_sha256 = pull_parse_sha256(h.linked_etag + 1, 64, f->sha256);
    return RL_OK;
}

static rl_status add_url(pull_files *out, const char *url, size_t n, rl_error *err)
{
    char shown[300];
    pull_file *f = add_file(out);
    if (!f || !(f->url = strndup(url, n))) return cli_fail(err, RL_ERR_MEMORY, "no memory for a list of files");
    size_t path = strcspn(f->url, "?#");
    int len = 0;
    char *plain = curl_easy_unescape(NULL, f->url, (int)path, &len);
    bool ok = plain && strlen(plain) == (size_t)len && set_name(f, plain, (size_t)len);
    curl_free(plain);
    if (!ok)
        return cli_fail(err, RL_ERR_ARGUMENT, "%s does not end in the name of a file",
                        rl_escape(shown, sizeof shown, url, strlen(url)));
    return probe(f, err);
}

static rl_status resolve_url(const char *url, pull_files *out, rl_error *err)
{
    size_t path = strcspn(url, "?#"), prefix = 0;
    unsigned part = 0, parts = 0;
    char *base = strndup(url, path), *one = NULL;
    if (!base) return cli_fail(err, RL_ERR_MEMORY, "no memory for an address");
    rl_status st = RL_OK;
    if (!split_name(base, &prefix, &part, &parts) || url[path])
        st = add_url(out, url, strlen(url), err);
    else if (parts > PARTS_MAX)
        st = cli_fail(err, RL_ERR_LIMIT, "a model of %u parts; at most %d are expected", parts, PARTS_MAX);
    else if (!(one = malloc(path + 1)))
        st = cli_fail(err, RL_ERR_MEMORY, "no memory for an address");
    for (unsigned i = 1; st == RL_OK && one && i <= parts; i++) {
        snprintf(one, path + 1, "%.*s-%05u-of-%05u.gguf", (int)prefix, base, i, parts);
        st = add_url(out, one, path, err);
    }
    free(one);
    free(base);
    return st;
}

/* ---- Repositories ---------------------------------------------------------------------------------------------------- */

/* BASE/api/models/REPO/tree/main?recursive=true, or the address of a file. Every segment of a path is escaped. */
static char *hub_url(const char *before, const char *repo, const char *after, const char *path)
{
    size_t cap = strlen(http_hub()) + strlen(before) + strlen(repo) + strlen(after) + 3 * strlen(path) + 8;
    char *url = malloc(cap);
    if (!url) return NULL;
    size_t n = (size_t)snprintf(url, cap, "%s%s%s%s", http_hub(), before, repo, after);
    for (const char *p = path; *p;) {
        size_t len = strcspn(p, "/");
        char *segment = len ? curl_easy_escape(NULL, p, (int)len) : NULL;
        n += (size_t)snprintf(url + n, cap - n, "%s%s", segment ? segment : "", p[len] ? "/" : "");
        curl_free(segment);
        p += len + (p[len] != 0);
    }
    return url;
}

/* A row of the list; folders, files of other kinds and names that cannot be stored are passed over. */
static rl_status take_entry(const json_t *row, const char *repo, pull_files *all, rl_error *err)
{
    const char *path = json_string_value(json_object_get(row, "path")), *type = json_string_value(json_object_get(row, "type"));
    const json_t *lfs = json_object_get(row, "lfs"), *size = json_object_get(lfs ? lfs : row, "size");
    size_t n = path ? strlen(path) : 0;
    if (!path || !type || strcmp(type, "file") != 0 || n < 5 || strcasecmp(path + n - 5, ".gguf") != 0) return RL_OK;
    pull_file *f = add_file(all);
    if (!f) return cli_fail(err, RL_ERR_MEMORY, "no memory for a list of files");
    if (!set_name(f, path, n)) {
        all->n--;
        return RL_OK;
    }
    f->url = hub_url("/", repo, "/resolve/main/", path);
    if (!f->url) return cli_fail(err, RL_ERR_MEMORY, "no memory for a list of files");
    f->has_size = json_is_integer(size) && json_integer_value(size) >= 0;
    if (f->has_size) f->size = (uint64_t)json_integer_value(size);
    const char *oid = json_string_value(json_object_get(lfs, "oid"));
    if (oid) f->has_sha256 = pull_parse_sha256(oid, strlen(oid), f->sha256);
    return RL_OK;
}

static rl_status list_repository(const char *repo, pull_files *all, rl_error *err)
{
    char *url = hub_url("/api/models/", repo, "/tree/main?recursive=true", ""), *text = NULL;
    size_t n = 0;
    long code = 0;
    if (!url) return cli_fail(err, RL_ERR_MEMORY, "no memory for an address");
    rl_status st = http_text(url, LIST_LIMIT, &text, &n, &code, err);
    free(url);
    if (st != RL_OK) return st;
    if (code == 401 || code == 403 || code == 404)
        return cli_fail(err, RL_ERR_IO, "%s has no repository %s, or it is private: then set HF_TOKEN (%ld)", http_hub(), repo,
                        code);
    if (code != 200) return cli_fail(err, RL_ERR_IO, "%s answers %ld to the question for %s", http_hub(), code, repo);
    json_t *list = json_loadb(text, n, 0, NULL);
    free(text);
    if (!json_is_array(list))
        st = cli_fail(err, RL_ERR_FORMAT, "%s sent a list of %s that is not in the expected form", http_hub(), repo);
    for (size_t i = 0; st == RL_OK && i < json_array_size(list); i++)
        st = take_entry(json_array_get(list, i), repo, all, err);
    json_decref(list);
    return st;
}

/* Whether b is a part of the same model as a. */
static bool same_model(const pull_file *a, const pull_file *b)
{
    size_t na = 0, nb = 0;
    unsigned part, parts_a = 0, parts_b = 0;
    bool split_a = split_name(a->name, &na, &part, &parts_a), split_b = split_name(b->name, &nb, &part, &parts_b);
    if (!split_a || !split_b) return strcmp(a->name, b->name) == 0;
    return na == nb && parts_a == parts_b && memcmp(a->name, b->name, na) == 0;
}

/* A file is meant by its name, by the name of its model, or by a word of it, such as the kind of quantisation. */
static int match(const pull_file *f, const char *wanted)
{
    size_t n = strlen(wanted), prefix = 0;
    unsigned part = 0, parts = 0;
    if (strcmp(f->name, wanted) == 0) return 2;
    if (split_name(f->name, &prefix, &part, &parts) && prefix == n && memcmp(f->name, wanted, n) == 0) return 2;
    for (const char *p = f->name; *p; p++)
        if (strncasecmp(p, wanted, n) == 0) {
            bool starts = p == f->name || strchr("-._", p[-1]),
                 ends = p[n] == 0 || strchr("-.", p[n]); /* IQ2 is no word of IQ2_XS */
            if (starts && ends) return 1;
        }
    return 0;
}

/* Sizes of the models among the files that match, for a person to choose from. */
static rl_status ask_to_choose(const char *repo, const pull_files *all, const char *wanted, int best, rl_error *err)
{
    char size[32];
    fprintf(stderr, "%s has:\n", repo);
    unsigned shown = 0;
    for (size_t i = 0; i < all->n && shown < CHOICES_SHOWN; i++) {
        size_t first = 0;
        while (!same_model(&all->v[first], &all->v[i]))
            first++;
        if (first < i || (wanted && best && match(&all->v[i], wanted) < best)) continue;
        uint64_t bytes = 0;
        for (size_t k = i; k < all->n; k++)
            if (same_model(&all->v[i], &all->v[k])) bytes += all->v[k].size;
        fprintf(stderr, "  %12s  %s\n", pull_size(size, bytes), all->v[i].name);
        shown++;
    }
    if (wanted && !best) return cli_fail(err, RL_ERR_ARGUMENT, "none of these is \"%s\"", wanted);
    return cli_fail(err, RL_ERR_ARGUMENT, "name one of them: redlite pull %s:FILE, or a word of its name", repo);
}

static rl_status choose(const char *repo, const char *wanted, pull_files *all, pull_files *out, rl_error *err)
{
    if (all->n == 0) return cli_fail(err, RL_ERR_ARGUMENT, "%s has no GGUF file", repo);
    int best = wanted ? 0 : 1;
    for (size_t i = 0; wanted && i < all->n; i++)
        if (match(&all->v[i], wanted) > best) best = match(&all->v[i], wanted);
    const pull_file *one = NULL;
    for (size_t i = 0; best && i < all->n; i++) {
        if (wanted && match(&all->v[i], wanted) < best) continue;
        if (one && !same_model(one, &all->v[i])) return ask_to_choose(repo, all, wanted, best, err);
        if (!one) one = &all->v[i];
    }
    if (!one) return ask_to_choose(repo, all, wanted, 0, err);
    const pull_file model = *one;
    unsigned part = 0, parts = 1;
    size_t prefix = 0;
    (void)split_name(model.name, &prefix, &part, &parts);
    for (size_t i = 0; i < all->n; i++) {
        if (!same_model(&model, &all->v[i])) continue;
        pull_file *f = add_file(out);
        if (!f) return cli_fail(err, RL_ERR_MEMORY, "no memory for a list of files");
        *f = all->v[i];
        all->v[i].url = NULL; /* it has a new owner */
    }
    if (out->n == (parts ? parts : 1)) return RL_OK;
    return cli_fail(err, RL_ERR_FORMAT, "%s has %zu of the %u parts of %s", repo, out->n, parts, model.name);
}

/* OWNER/NAME: letters, digits and -._ on both sides of one slash. */
static bool is_repository(const char *text, size_t n)
{
    size_t slashes = 0;
    for (size_t i = 0; i < n; i++) {
        char c = text[i];
        bool plain =
            (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' || c == '.';
        if (c == '/')
            slashes++;
        else if (!plain)
            return false;
        if (c == '.' && (i == 0 || text[i - 1] == '/' || text[i - 1] == '.')) return false;
    }
    return slashes == 1 && n > 2 && text[0] != '/' && text[n - 1] != '/';
}

rl_status pull_resolve(const char *source, pull_files *out, rl_error *err)
{
    char shown[300];
    if (strncasecmp(source, "http://", 7) == 0 || strncasecmp(source, "https://", 8) == 0) return resolve_url(source, out, err);
    rl_escape(shown, sizeof shown, source, strlen(source));
    if (strstr(source, "://")) return cli_fail(err, RL_ERR_UNSUPPORTED, "%s is neither an http nor an https address", shown);
    size_t n = strcspn(source, ":");
    const char *wanted = source[n] ? source + n + 1 : NULL;
    if (!is_repository(source, n) || n > 200 || (wanted && !*wanted))
        return cli_fail(err, RL_ERR_ARGUMENT, "\"%s\" is not OWNER/NAME, OWNER/NAME:FILE or an address", shown);
    char *repo = strndup(source, n);
    if (!repo) return cli_fail(err, RL_ERR_MEMORY, "no memory for a name");
    pull_files all = {0};
    rl_status st = list_repository(repo, &all, err);
    if (st == RL_OK) st = choose(repo, wanted, &all, out, err);
    pull_files_free(&all);
    free(repo);
    return st;
}
