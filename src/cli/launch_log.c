/* The lines of all tasks on one terminal, each behind the name of its task, and in a file per task. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "cli/launch.h"

enum { MAX_LINE = 16 << 10 }; /* longer ones are cut in pieces */
enum { TAIL_BYTES = 32 << 10, TAIL_LINES = 20 };

static void put(int fd, const char *p, size_t n)
{
    while (n > 0) {
        ssize_t w = write(fd, p, n);
        if (w < 0 && errno == EINTR)
            continue;
        if (w <= 0)
            return; /* nobody reads any more; the job goes on */
        p += w;
        n -= (size_t)w;
    }
}

/* Tasks are told apart by colour; red is left to the launcher. */
static void prefix(trn_sb *out, const launch_job *j, const char *name, int n_color)
{
    static const int colors[] = {36, 33, 32, 35, 34, 96, 93, 92, 95, 94};
    if (j->color)
        trn_sb_addf(out, "\033[%dm%-*s |\033[0m ", n_color < 0 ? 31 : colors[n_color % (int)TRN_COUNTOF(colors)],
                    j->name_width, name);
    else
        trn_sb_addf(out, "%-*s | ", j->name_width, name);
}

void launch_say(const launch_job *j, const char *fmt, ...)
{
    trn_sb line = {0};
    if (j->quiet && isatty(2))
        trn_sb_adds(&line, "\r\033[K"); /* over a progress bar, which draws itself again */
    prefix(&line, j, "launch", -1);
    va_list ap;
    va_start(ap, fmt);
    trn_sb_addv(&line, fmt, ap);
    va_end(ap);
    trn_sb_adds(&line, "\n");
    put(2, line.p, line.n);
    trn_sb_fini(&line);
}

static void keep_tail(launch_task *t, const char *p, size_t n)
{
    if (t->tail.n + n + 1 > TAIL_BYTES) {
        size_t drop = TRN_MIN(t->tail.n, TRN_MAX(n + 1, (size_t)TAIL_BYTES / 2));
        const char *nl = drop < t->tail.n ? memchr(t->tail.p + drop, '\n', t->tail.n - drop) : NULL;
        drop = nl ? (size_t)(nl - t->tail.p) + 1 : t->tail.n;
        memmove(t->tail.p, t->tail.p + drop, t->tail.n - drop);
        t->tail.n -= drop;
    }
    trn_sb_add(&t->tail, p, n);
    trn_sb_adds(&t->tail, "\n");
}

static void show(launch_job *j, launch_task *t, int to, const char *p, size_t n)
{
    trn_sb line = {0};
    if (j->quiet && isatty(to))
        trn_sb_adds(&line, "\r\033[K");
    prefix(&line, j, t->name, (int)(t - j->tasks));
    trn_sb_add(&line, p, n);
    trn_sb_adds(&line, "\n");
    put(to, line.p, line.n);
    trn_sb_fini(&line);
}

static void emit(launch_job *j, launch_task *t, int to, const char *p, size_t n)
{
    if (j->quiet && !t->server)
        keep_tail(t, p, n);
    else
        show(j, t, to, p, n);
}

void launch_log_tail(launch_job *j, launch_task *t)
{
    const char *end = t->tail.p + t->tail.n, *p = end;
    if (t->tail.n == 0)
        return;
    for (int lines = 0; p > t->tail.p && (p[-1] != '\n' || lines++ < TAIL_LINES);)
        p--;
    for (const char *nl; p < end && (nl = memchr(p, '\n', (size_t)(end - p))); p = nl + 1)
        show(j, t, 2, p, (size_t)(nl - p));
    t->tail.n = 0;
}

bool launch_log_read(launch_job *j, launch_task *t, launch_stream *s)
{
    char buf[65536];
    ssize_t got = read(s->fd, buf, sizeof buf);
    if (got < 0)
        return errno == EAGAIN || errno == EINTR;
    if (got == 0)
        return false;
    if (t->log_fd >= 0)
        put(t->log_fd, buf, (size_t)got);
    const char *p = buf, *end = buf + got;
    while (p < end) {
        const char *nl = memchr(p, '\n', (size_t)(end - p));
        trn_sb_add(&s->line, p, (size_t)((nl ? nl : end) - p));
        if (nl || s->line.n > MAX_LINE) {
            emit(j, t, s->to, s->line.p ? s->line.p : "", s->line.n);
            s->line.n = 0;
        }
        p = nl ? nl + 1 : end;
    }
    return true;
}

void launch_log_end(launch_job *j, launch_task *t)
{
    for (int i = 0; i < 2; i++) {
        launch_stream *s = &t->out[i];
        if (s->fd >= 0) {
            /* What it has written before it ended; a descendant that still holds the pipe may write no more. */
            for (int k = 0; k < 1024; k++) {
                int before = (int)s->line.n;
                if (!launch_log_read(j, t, s) || (errno == EAGAIN && (int)s->line.n == before))
                    break;
                errno = 0;
            }
            close(s->fd);
            s->fd = -1;
        }
        if (s->line.n > 0)
            emit(j, t, s->to, s->line.p, s->line.n);
        trn_sb_fini(&s->line);
        s->line = (trn_sb){0};
    }
}

static trn_err make_folders(const char *path)
{
    char *p = trn_xstrdup(path);
    for (char *q = p + 1;; q++)
        if (*q == '/' || !*q) {
            char c = *q;
            *q = 0;
            if (mkdir(p, 0777) != 0 && errno != EEXIST) {
                trn_err err = trn_err_errno(errno, "cannot make the log folder %s", p);
                free(p);
                return err;
            }
            *q = c;
            if (!c)
                break;
        }
    free(p);
    return TRN_OK;
}

trn_err launch_log_open(launch_job *j)
{
    const launch_options *o = j->o;
    const char *no_color = getenv("NO_COLOR");
    j->color = isatty(1) && isatty(2) && !(no_color && *no_color);
    if (o->color && strcmp(o->color, "auto") != 0) {
        if (strcmp(o->color, "always") != 0 && strcmp(o->color, "never") != 0)
            return trn_errorf(TRN_INVALID_ARGUMENT, "--color=%s: auto, always or never is expected", o->color);
        j->color = o->color[0] == 'a';
    }
    j->name_width = 6;
    for (int i = 0; i < j->n; i++)
        j->name_width = TRN_MAX(j->name_width, (int)strlen(j->tasks[i].name));
    if (o->log_dir && !*o->log_dir)
        return TRN_OK;
    if (o->log_dir) {
        j->log_dir = trn_xstrdup(o->log_dir);
    } else {
        char stamp[32];
        time_t now = time(NULL);
        struct tm tm;
        localtime_r(&now, &tm);
        strftime(stamp, sizeof stamp, "%Y%m%d-%H%M%S", &tm);
        j->log_dir = j->alone ? trn_xasprintf("trainera-logs/%s-%d", stamp, (int)getpid())
                              : trn_xasprintf("trainera-logs/%s", j->id);
    }
    TRN_TRY(make_folders(j->log_dir));
    for (int i = 0; i < j->n; i++) {
        launch_task *t = &j->tasks[i];
        if (!t->mine || t->terminal)
            continue;
        char *path = trn_xasprintf("%s/%s-%d.log", j->log_dir, t->job, t->index);
        t->log_fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
        trn_err err = t->log_fd < 0 ? trn_err_errno(errno, "cannot write %s", path) : TRN_OK;
        free(path);
        TRN_TRY(err);
    }
    return TRN_OK;
}
