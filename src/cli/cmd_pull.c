/* cli/pull: fetches model files. */
#include "pull.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static struct {
    bool list;
    const char *output, *sha256;
    uint32_t retries;
} opt = {.retries = 5};

static const cli_option pull_options[] = {
    {.name = "output",
     .letter = 'o',
     .kind = CLI_TEXT,
     .value = &opt.output,
     .arg = "DIR",
     .help = "folder; default: the one where -m NAME looks\n(~/.local/share/redlite/models)"},
    {.name = "sha256",
     .kind = CLI_TEXT,
     .value = &opt.sha256,
     .arg = "HEX",
     .help = "SHA-256 that the (one) file must have; default: what the\nserver announces"},
    {.name = "retries",
     .kind = CLI_UINT,
     .value = &opt.retries,
     .max = 1000,
     .arg = "N",
     .help = "attempts after failures in a row (default 5)"},
    {.name = "list", .kind = CLI_FLAG, .value = &opt.list, .help = "files that are known to be good, by memory"},
    {0}};
static const cli_table tables[] = {{"Download:", pull_options}, {"Other:", cli_output_options}, {0}};

/* A file is held whole when it takes at most 70 % of the memory. */
static int print_list(void)
{
    cli_out_text("memory          what to fetch                                                size\n"
                 "below 32 GiB    bartowski/Qwen_Qwen3-Next-80B-A3B-Instruct-GGUF:IQ2_XXS      17.97 GiB\n"
                 "                experts are read from the disk as they are needed\n"
                 "32 GiB or more  the same file, held in memory\n"
                 "48 GiB or more  bartowski/Qwen_Qwen3-Next-80B-A3B-Instruct-GGUF:IQ3_XXS      29.55 GiB\n"
                 "                better answers, held in memory\n"
                 "any             unsloth/Qwen3-Coder-Next-GGUF                                several files\n"
                 "                for programming\n"
                 "\n"
                 "redlite pull NAME:FILE fetches one; without :FILE it lists what there is, with sizes.\n");
    return cli_out_status();
}

#ifdef REDLITE_HAVE_PULL

/* The folder and those above it. */
static rl_status make_folder(char *path, rl_error *err)
{
    char shown[300];
    for (char *p = path + 1;; p++) {
        if (*p && *p != '/') continue;
        char end = *p;
        *p = 0;
        int failed = mkdir(path, 0777) != 0 && errno != EEXIST;
        int cause = errno;
        *p = end;
        if (failed)
            return cli_fail(err, RL_ERR_IO, "cannot create the folder '%s': %s",
                            rl_escape(shown, sizeof shown, path, strlen(path)), strerror(cause));
        if (!end) break;
    }
    struct stat st;
    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode)) return RL_OK;
    return cli_fail(err, RL_ERR_IO, "'%s' is not a folder", rl_escape(shown, sizeof shown, path, strlen(path)));
}

static rl_status choose_folder(char folder[PATH_MAX], rl_error *err)
{
    if (opt.output && (!*opt.output || strlen(opt.output) >= PATH_MAX))
        return cli_fail(err, RL_ERR_ARGUMENT, "--output needs the name of a folder");
    if (opt.output)
        snprintf(folder, PATH_MAX, "%s", opt.output);
    else if (!cli_models_folder(folder, PATH_MAX))
        return cli_fail(err, RL_ERR_IO, "neither XDG_DATA_HOME nor HOME is set: name a folder with --output");
    for (size_t n = strlen(folder); n > 1 && folder[n - 1] == '/'; n--)
        folder[n - 1] = 0;
    return RL_OK;
}

static rl_status fetch_all(const pull_files *files, const char *folder, rl_error *err)
{
    char path[PATH_MAX], size[32];
    rl_status st = pull_check_space(folder, pull_missing(files, folder), err);
    for (size_t i = 0; st == RL_OK && i < files->n; i++) {
        const pull_file *f = &files->v[i];
        if (!cli_engine.quiet)
            fprintf(stderr, "%s (%s%s)%s\n", f->name, f->has_size ? pull_size(size, f->size) : "size unknown",
                    f->has_sha256 ? "" : ", no SHA-256 to check", i + 1 < files->n || i ? " of a split model" : "");
        st = pull_fetch(f, folder, opt.retries, path, err);
        if (st == RL_OK && i == 0) cli_outf("%s\n", path);
    }
    if (st == RL_OK && !cli_engine.quiet && !opt.output) fprintf(stderr, "try: redlite chat -m %s\n", files->v[0].name);
    return st;
}

static rl_status pull(const char *source, rl_error *err)
{
    char folder[PATH_MAX];
    pull_files files = {0};
    rl_status st = choose_folder(folder, err);
    if (st == RL_OK) st = pull_resolve(source, &files, err);
    if (st == RL_OK && opt.sha256) {
        if (files.n != 1)
            st = cli_fail(err, RL_ERR_ARGUMENT, "--sha256 is of one file; %s has %zu parts", source, files.n);
        else
            files.v[0].has_sha256 = pull_parse_sha256(opt.sha256, strlen(opt.sha256), files.v[0].sha256);
    }
    if (st == RL_OK) st = make_folder(folder, err);
    if (st == RL_OK) st = fetch_all(&files, folder, err);
    pull_files_free(&files);
    return st;
}

static int run_pull(const char *source)
{
    rl_error err = {0};
    uint8_t ignored[32];
    if (opt.sha256 && !pull_parse_sha256(opt.sha256, strlen(opt.sha256), ignored))
        return cli_usage_error("pull", "--sha256 needs 64 hexadecimal digits");
    if (!http_open()) {
        fprintf(stderr, "redlite: libcurl cannot start\n");
        return CLI_EXIT_FAILURE;
    }
    cli_set_patience(2);
    rl_status st = pull(source, &err);
    http_close();
    int status = st == RL_OK ? cli_out_status() : cli_error(&err);
    if (status == CLI_EXIT_INTERRUPTED && !cli_engine.quiet)
        fprintf(stderr, "redlite: stopped; the same command goes on from here\n");
    return status;
}

#else

static int run_pull(const char *source)
{
    (void)source;
    fprintf(stderr, "redlite: this build cannot fetch files: libcurl and nettle were not there when it was built. A file "
                    "fetched otherwise is named with -m FILE\n");
    return CLI_EXIT_FAILURE;
}

#endif

int cmd_pull(int argc, char **argv)
{
    cli_command_line cl = {
        .command = "pull",
        .usage = "OWNER/NAME[:FILE] | URL [OPTIONS]",
        .about = "Fetches a model from Hugging Face or an address, all parts of a split one, and prints where it is. FILE is\n"
                 "a file of the repository or a word of its name, IQ2_XXS for example; without it, what there is is listed.\n"
                 "An interrupted download goes on where it was. Size and SHA-256 are checked. -m NAME then finds the file.\n"
                 "Environment: HF_TOKEN (private files), HF_ENDPOINT (mirror), https_proxy.",
        .tables = tables,
        .max_positional = 1};
    int status = cli_parse(&cl, argc, argv);
    if (status != CLI_GO_ON) return status;
    if (opt.list) return print_list();
    if (cl.n_positional == 0) return cli_usage_error("pull", "name what to fetch; redlite pull --list names some");
    return run_pull(cl.positional[0]);
}
