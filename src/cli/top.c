/* trainera top: the same as trainera status, again and again. */
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include "cli/look.h"

typedef struct options {
    bool json;
    int64_t interval_ms, count, timeout;
} options;

#define ROW(field) offsetof(options, field)
static const cli_flag flags[] = {
    {"interval_ms", "N", "Time between two looks in milliseconds; 1000 when left out.", CLI_INT, ROW(interval_ms), 100, 3600000},
    {"count", "N", "End after so many looks; left out: until q or Ctrl-C.", CLI_INT, ROW(count), 1, INT64_MAX},
    {"json", NULL, "One line of JSON per look.", CLI_BOOL, ROW(json)},
    {"timeout", "SECONDS", "How long to wait for an answer; 5 when left out.", CLI_INT, ROW(timeout), 1, 3600},
    {0},
};

static volatile sig_atomic_t ended;
static void on_signal(int sig) { ended = sig; }

static struct termios before;
static bool raw_mode;

static void restore(void)
{
    if (!raw_mode)
        return;
    tcsetattr(0, TCSANOW, &before);
    printf("\x1b[?25h\x1b[?1049l");
    fflush(stdout);
    raw_mode = false;
}

static void take_terminal(void)
{
    if (!isatty(1) || !isatty(0) || tcgetattr(0, &before) != 0)
        return;
    struct termios t = before;
    t.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
    tcsetattr(0, TCSANOW, &t);
    raw_mode = true;
    printf("\x1b[?1049h\x1b[?25l");
}

/* True: q was pressed or a signal came. */
static bool pause_until(uint64_t at_ns)
{
    while (!ended) {
        uint64_t now = trn_now_ns();
        if (now >= at_ns)
            return false;
        struct pollfd p = {.fd = raw_mode ? 0 : -1, .events = POLLIN};
        if (poll(&p, 1, (int)((at_ns - now) / 1000000 + 1)) > 0) {
            char c;
            if (read(0, &c, 1) != 1 || c == 'q' || c == 'Q' || c == 27)
                return true;
        }
    }
    return true;
}

/* Not a terminal: a line per look and task, for a log. */
static void plain(json_t *doc)
{
    json_t *c, *me = json_object_get(doc, "task");
    size_t i;
    char a[32], b[32], d[32];
    json_array_foreach(json_object_get(json_object_get(doc, "cluster"), "tasks"), i, c) {
        json_t *t = json_is_true(json_object_get(c, "self")) ? me : json_object_get(c, "task"), *st = json_object_get(t, "steps");
        bool whole = cli_jn(json_object_get(st, "step_time"), "count") > 0;
        printf("%s %s", cli_js(c, "name"), cli_js(c, "state"));
        if (t)
            printf(" steps/s %.1f in %s/s out %s/s cpu %.0f%% memory %s waits %.0f", cli_jn(st, whole ? "steps_per_s" : "parts_per_s"),
                   cli_bytes_text(a, cli_jn(json_object_get(t, "traffic"), "in_per_s")), cli_bytes_text(b, cli_jn(json_object_get(t, "traffic"), "out_per_s")),
                   cli_jn(json_object_get(t, "process"), "cpu_percent"), cli_bytes_text(d, cli_jn(json_object_get(t, "process"), "rss_bytes")), cli_jn(t, "n_waits"));
        printf("\n");
    }
}

static void show(json_t *doc, trn_err err, const options *o)
{
    if (!raw_mode) {
        if (err)
            fprintf(stderr, "%s\n", trn_err_msg(err));
        else if (o->json) {
            json_dumpf(doc, stdout, JSON_COMPACT);
            printf("\n");
        } else
            plain(doc);
        fflush(stdout);
        return;
    }
    struct winsize w = {0};
    ioctl(1, TIOCGWINSZ, &w);
    if (!w.ws_row || !w.ws_col) /* a terminal that does not know its size */
        w = (struct winsize){.ws_col = 80, .ws_row = 24};
    trn_sb text = {0};
    if (err)
        trn_sb_addf(&text, "%s; asking again\n", trn_err_msg(err));
    else
        cli_look_text(&text, doc, w.ws_col, TRN_MAX(4, w.ws_row / 3), true);
    printf("\x1b[H");
    const char *p = text.p;
    for (int row = 1; row < w.ws_row && p && *p; row++) { /* no more lines than the screen has: it would scroll */
        const char *end = strchr(p, '\n');
        size_t n = end ? (size_t)(end - p) : strlen(p);
        printf("%.*s\x1b[K\n", (int)n, p);
        p = end ? end + 1 : NULL;
    }
    printf("\x1b[J\x1b[2mq ends\x1b[0m");
    fflush(stdout);
    trn_sb_fini(&text);
}

static int run(int argc, char **argv)
{
    options o = {.timeout = 5, .interval_ms = 1000};
    char *address;
    trn_err err = cli_parse_target(&o, &cli_top, argc, argv, &address);
    if (err)
        return cli_fail(err, CLI_USAGE);
    struct sigaction sa = {.sa_handler = on_signal};
    sigaction(SIGINT, &sa, NULL);
    sigaction(SIGTERM, &sa, NULL);
    bool once = false;
    for (int64_t i = 0; !ended && (o.count == 0 || i < o.count); i++) {
        uint64_t next = trn_now_ns() + (uint64_t)o.interval_ms * 1000000u;
        json_t *doc = NULL;
        err = cli_look(&doc, NULL, address, (double)o.timeout);
        if (err && !once) /* nobody is there: a wrong address, most likely */
            break;
        if (!once && !o.json)
            take_terminal();
        once = true;
        show(doc, err, &o);
        json_decref(doc);
        trn_err_free(err);
        err = TRN_OK;
        if ((o.count == 0 || i + 1 < o.count) && pause_until(next))
            break;
    }
    restore();
    free(address);
    return err ? cli_fail(err, CLI_FAILED) : CLI_OK;
}

const cli_command cli_top = {
    .name = "top",
    .usage = "HOST:PORT",
    .summary = "the same, live, until q is pressed",
    .details = "Takes what trainera status takes. Where the output is no terminal, every look prints one line per task.\n"
               "\n"
               "Exit code: 0 ended as asked, 1 the task never answered, 2 wrong flags.\n",
    .flags = flags,
    .run = run,
};
