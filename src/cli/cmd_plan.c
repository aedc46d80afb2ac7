/* cli/plan: what will run here, and what stands in the way: the commands plan and doctor; and what the expert cache did. */
#include "cli.h"

#include <string.h>
#include <sys/resource.h>

static const cli_table tables[] = {{"Model:", cli_engine_options}, {"Other:", cli_output_options}, {0}};

static double mib(uint64_t bytes)
{
    return (double)bytes / 1048576.0;
}

void cli_print_cache(const rl_engine *e, uint64_t tokens, double seconds)
{
    rl_cache_stats c;
    if (!rl_engine_cache_stats(e, &c)) {
        fprintf(stderr, "experts   in place in the mapped file\n");
        return;
    }
    const double uses = (double)(c.hits + c.misses), per = tokens ? 1.0 / (double)tokens : 0;
    fprintf(stderr, "experts   %s, %.1f of %.1f MiB, %u of %u experts, %s\n", rl_residency_name(c.residency), mib(c.used),
            mib(c.budget), c.slots, c.experts, c.reading);
    fprintf(stderr, "          %.1f %% hits, %.1f MB and %.1f ms of waiting per token, %.0f MB/s while running\n",
            uses > 0 ? 100.0 * (double)c.hits / uses : 0, (double)c.bytes_read * 1e-6 * per, c.wait_seconds * 1e3 * per,
            seconds > 0 ? (double)c.bytes_read * 1e-6 / seconds : 0);
    if (c.guesses)
        fprintf(stderr, "          %llu experts read ahead, %.1f %% of them used\n", (unsigned long long)c.guesses,
                100.0 * (double)c.guesses_used / (double)c.guesses);
}

static void print_plan(const rl_plan *p)
{
    cli_outf("memory        %.0f MiB, of which %.0f can be used\n", mib(p->machine.memory_bytes), mib(p->usable_bytes));
    cli_outf("model         %.0f MiB: routed experts %.0f, the rest %.0f\n", mib(p->file_bytes),
             mib(p->file_bytes - p->dense_bytes), mib(p->dense_bytes));
    if (p->disk_bytes_per_second > 0)
        cli_outf("disk          %.0f MB/s for experts at random places (%s)\n", p->disk_bytes_per_second * 1e-6, p->disk);
    cli_outf("experts       %s", rl_residency_name(p->residency));
    if (p->residency == RL_RESIDENCY_MAPPED)
        cli_outf(": used in place in the mapped file\n");
    else
        cli_outf(": a cache of %.0f MiB (%.0f would hold all, %.1f is the least)\n", mib(p->cache_bytes), mib(p->cache_all),
                 mib(p->cache_least));
    cli_outf("session       %u tokens, %.0f MiB; prefill in passes of %u, %.0f MiB\n", p->context, mib(p->session_bytes),
             p->batch, mib(p->scratch_bytes));
    cli_outf("together      %.0f MiB with a reserve for the system: %s\n", mib(p->need_bytes),
             p->fits ? "fits" : "does not fit");
    if (p->token_disk_bytes > 0)
        cli_outf(
            "decode        reads about %.0f MB a token if all experts are equally likely: at most %.1f tok/s from this disk;\n"
            "              text that keeps to fewer experts reads less\n",
            p->token_disk_bytes * 1e-6, p->disk_tokens_per_second);
}

/* What would make it faster, in order of effect. */
static void print_advice(const rl_plan *p)
{
    if (p->residency == RL_RESIDENCY_MAPPED) {
        if (!p->fits)
            cli_outf("advice        the file is more than 70 %% of the memory: in place it will be read again and again; "
                     "--cache-mib auto\n              uses a cache instead\n");
        return;
    }
    if (p->residency == RL_RESIDENCY_BOUNDED && p->usable_bytes > p->need_bytes + p->cache_bytes / 4)
        cli_outf("advice        --cache-mib %.0f would fit and miss less\n",
                 mib(p->cache_bytes + (p->usable_bytes - p->need_bytes) / 10 * 9));
    if (strstr(p->disk, "page cache"))
        cli_outf("advice        this file system refuses direct reads; a local ext4 or XFS disk would be faster\n");
    if (strstr(p->disk, "threads"))
        cli_outf("advice        io_uring is not available here (kernel, container policy or build); threads read instead\n");
    if (p->residency == RL_RESIDENCY_BOUNDED && p->disk_bytes_per_second < 1e9)
        cli_outf("advice        the disk sets the speed: a faster one, or more memory for the cache\n");
}

static int run_plan(const char *command, const char *about, bool doctor, int argc, char **argv)
{
    cli_command_line cl = {.command = command, .usage = "[-m FILE] [OPTIONS]", .about = about, .tables = tables};
    int status = cli_parse(&cl, argc, argv);
    if (status != CLI_GO_ON) return status;
    rl_engine_options o;
    if (!cli_engine_options_from(&o, &status)) return status;
    rl_plan p;
    rl_error err = {0};
    const rl_status st = rl_plan_make(&o, &p, &err);
    if (st != RL_OK && (st != RL_ERR_MEMORY || p.file_bytes == 0)) return cli_error(&err);
    if (doctor) {
        struct rlimit locked = {0};
        getrlimit(RLIMIT_MEMLOCK, &locked);
        cli_outf("%s\n", rl_build_info());
        cli_outf("processor     %s, %d cores (%d physical), kernels up to %s\n", p.machine.cpu, p.machine.logical_cores,
                 p.machine.physical_cores, p.machine.best_isa);
        if (locked.rlim_cur != RLIM_INFINITY)
            cli_outf("locked memory %.0f MiB allowed%s\n", mib(locked.rlim_cur),
                     locked.rlim_cur < p.cache_bytes ? " (less than the cache: without the right to lock more, reads pin pages "
                                                       "one by one)"
                                                     : "");
    }
    print_plan(&p);
    print_advice(&p);
    status = cli_out_status();
    return st == RL_OK ? status : cli_error(&err);
}

int cmd_plan(int argc, char **argv)
{
    return run_plan(
        "plan",
        "Says what a model will need and how it will run on this machine: memory, where the experts are, the size of\n"
        "their cache, the passes of prefill, and the speed that the disk allows. Reads a little to time the disk.",
        false, argc, argv);
}

int cmd_doctor(int argc, char **argv)
{
    return run_plan("doctor", "The plan, with what this machine offers and what would make it faster.", true, argc, argv);
}
