/* trainera status: what a running task and its cluster do right now, once. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "cli/look.h"

typedef struct options {
    bool json;
    int64_t timeout;
} options;

#define ROW(field) offsetof(options, field)
static const cli_flag flags[] = {
    {"json", NULL, "The whole document, as /status.json has it.", CLI_BOOL, ROW(json)},
    {"timeout", "SECONDS", "How long to wait for an answer; 5 when left out.", CLI_INT, ROW(timeout), 1, 3600},
    {0},
};

static int run(int argc, char **argv)
{
    options o = {.timeout = 5};
    char *address;
    trn_err err = cli_parse_target(&o, &cli_status, argc, argv, &address);
    if (err)
        return cli_fail(err, CLI_USAGE);
    json_t *doc;
    err = cli_look(&doc, NULL, address, (double)o.timeout);
    free(address);
    if (err)
        return cli_fail(err, CLI_FAILED);
    if (o.json) {
        json_dumpf(doc, stdout, JSON_INDENT(2));
        printf("\n");
    } else {
        trn_sb text = {0};
        struct winsize w = {0};
        bool tty = isatty(1);
        cli_look_text(&text, doc, tty && ioctl(1, TIOCGWINSZ, &w) == 0 ? w.ws_col : 0, 1000, tty);
        fwrite(text.p, 1, text.n, stdout);
        trn_sb_fini(&text);
    }
    json_decref(doc);
    return CLI_OK;
}

const cli_command cli_status = {
    .name = "status",
    .usage = "HOST:PORT",
    .summary = "what a running task and its cluster do right now",
    .details = "TARGET is any task of the job: grpc://host:port, host:port, or a port of this machine. It shows the cluster with each task's state and\n"
               "load, who waits for whom, variables, queues and recent errors; http://HOST:PORT/ shows the same as a page.\n"
               "\n"
               "Exit code: 0 it answered, 1 it did not, 2 wrong flags.\n",
    .flags = flags,
    .run = run,
};
