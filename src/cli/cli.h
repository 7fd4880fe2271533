/* The one program `trainera`: a table of commands, a table of flags per command, a file per command.
 *
 * A flag is one row: name, argument, help, where it goes. '-' and '_' are the same in its name, "--flag=value" and "--flag value" too, one
 * dash is as good as two. The help texts are made from the rows, so they cannot lag behind.
 *
 * Exit codes: 0 ended as asked (also by SIGINT, SIGTERM), 1 could not do it, 2 wrong flags. Whatever failed is the last line on stderr:
 * "trainera: CODE MESSAGE" with gRPC's code, which programs that start us can read.
 */
#ifndef TRN_CLI_H
#define TRN_CLI_H

#include <stdio.h>

#include "base/base.h"

enum { CLI_OK = 0, CLI_FAILED = 1, CLI_USAGE = 2 };

typedef enum cli_kind {
    CLI_BOOL, /* bool: --flag, --flag=true|false, --noflag */
    CLI_TEXT, /* const char *: into argv */
    CLI_INT,  /* int64_t in [min, max] */
    CLI_LIST, /* cli_list: may be given several times */
} cli_kind;

typedef struct cli_list {
    const char **v; /* into argv */
    int n, cap;
} cli_list;

typedef struct cli_flag {
    const char *name; /* as shown in the help; NULL ends the table */
    const char *arg;  /* what its value is called there */
    const char *help; /* NULL: for our own use, not shown */
    cli_kind kind;
    size_t offset; /* of its place in the command's options struct */
    int64_t min, max;
} cli_flag;

typedef struct cli_command {
    const char *name;
    const char *usage;   /* what follows the name: "--ps_hosts=… --job_name=ps" */
    const char *summary; /* one line */
    const char *details; /* below the flags in `trainera help NAME` */
    const cli_flag *flags;
    int (*run)(int argc, char **argv); /* without program and command name; returns the exit code */
} cli_command;

extern const cli_command cli_serve, cli_local, cli_launch, cli_init, cli_check, cli_ops, cli_status, cli_top, cli_trace, cli_inspect, cli_completion, cli_man;
const cli_command *cli_at(int i); /* the i-th of all; NULL: no more */
const cli_command *cli_find(const char *name, size_t n);

/* Reads argv into the struct at `options`. What is no flag goes to rest (NULL: is an error). "--" ends the flags. */
trn_err cli_parse(void *options, const cli_flag *flags, int argc, char **argv, cli_list *rest) TRN_MUST_USE;
void cli_help(FILE *f, const cli_command *c);
/* The nearest of the names that `next` gives (NULL ends), or NULL when none is near. */
const char *cli_nearest(const char *word, size_t n, const char *(*next)(const void *table, int i), const void *table);

/* Prints "trainera: CODE MESSAGE" as the last line on stderr, frees the error; returns `exit_code`. */
int cli_fail(TRN_OWN trn_err err, int exit_code);

trn_err cli_read_file(trn_sb *out, const char *path, size_t max) TRN_MUST_USE;
/* Readers never see half a file: written beside it, then renamed. */
trn_err cli_write_file(const char *path, const char *text) TRN_MUST_USE;
/* GET of a page of a task, "host:port"; blocks for at most timeout_ns. Never through a proxy. UNAVAILABLE: nobody there; INVALID_ARGUMENT: no HTTP answer. */
trn_err cli_http_get(trn_sb *body, int *status, const char *address, const char *path, uint64_t timeout_ns) TRN_MUST_USE;
/* "pid 123 (python trainer.py)" of who listens on a port of this machine; false: nobody does. */
bool cli_port_owner(trn_sb *out, int port);
trn_err cli_log_level(trn_log_level *out, const char *word) TRN_MUST_USE;

#endif
