#include <malloc.h>
#include <signal.h>
#include <stdio.h>

#include "cli/cli.h"

static const cli_command *const commands[] = {&cli_serve, &cli_local, &cli_launch, &cli_init, &cli_check, &cli_ops, &cli_status, &cli_top, &cli_trace, &cli_inspect, &cli_completion, &cli_man};

static const char *command_name(const void *table, int i)
{
    return i < (int)TRN_COUNTOF(commands) ? commands[i]->name : NULL;
}

const cli_command *cli_at(int i) { return i >= 0 && i < (int)TRN_COUNTOF(commands) ? commands[i] : NULL; }

const cli_command *cli_find(const char *name, size_t n)
{
    for (size_t i = 0; i < TRN_COUNTOF(commands); i++)
        if (strlen(commands[i]->name) == n && memcmp(commands[i]->name, name, n) == 0)
            return commands[i];
    return NULL;
}

static void overview(FILE *f)
{
    fprintf(f, "trainera %s: parameter-server training, served to unchanged TensorFlow programs\n\n", TRAINERA_VERSION);
    for (size_t i = 0; i < TRN_COUNTOF(commands); i++)
        fprintf(f, "  trainera %-10s %s\n", commands[i]->name, commands[i]->summary);
    fprintf(f, "  trainera %-10s %s\n", "help", "what a command does and which flags it has: trainera help serve");
    fprintf(f, "\n  trainera --version, trainera --help\n");
}

static int unknown(const char *word)
{
    const char *near = cli_nearest(word, strlen(word), command_name, NULL);
    if (near)
        return cli_fail(trn_errorf(TRN_INVALID_ARGUMENT, "unknown command '%s'; did you mean '%s'?", word, near),
                        CLI_USAGE);
    return cli_fail(
        trn_errorf(TRN_INVALID_ARGUMENT, "unknown command '%s'; trainera --help shows those there are", word),
        CLI_USAGE);
}

static bool is_help(const char *arg)
{
    return strcmp(arg, "--help") == 0 || strcmp(arg, "-h") == 0 || strcmp(arg, "-help") == 0;
}

int main(int argc, char **argv)
{
    signal(SIGPIPE, SIG_IGN);
    /* What a step frees the next one needs again: giving it back to the kernel each time costs a page fault per 4 KiB. */
    mallopt(M_TRIM_THRESHOLD, 64 << 20);
    mallopt(M_MMAP_THRESHOLD, 4 << 20);
    if (argc < 2) {
        overview(stderr);
        return CLI_USAGE;
    }
    const char *word = argv[1];
    if (strcmp(word, "--version") == 0 || strcmp(word, "version") == 0) {
        printf("trainera %s\n", TRAINERA_VERSION);
        return CLI_OK;
    }
    if (strcmp(word, "help") == 0 || is_help(word)) {
        if (argc == 2 || is_help(word)) {
            overview(stdout);
            return CLI_OK;
        }
        const cli_command *c = cli_find(argv[2], strlen(argv[2]));
        if (!c)
            return unknown(argv[2]);
        cli_help(stdout, c);
        return CLI_OK;
    }
    const cli_command *c = cli_find(word, strlen(word));
    if (!c)
        return unknown(word);
    for (int i = 2; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (is_help(argv[i])) {
            cli_help(stdout, c);
            return CLI_OK;
        }
    return c->run(argc - 2, argv + 2);
}
