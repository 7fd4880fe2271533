/* The log: one line, one write(2), so that lines of threads and processes on one pipe do not mix. */
#include "base/base.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static _Atomic int level = -1; /* -1: TRAINERA_LOG was not read yet */
static _Atomic int log_fd = STDERR_FILENO;
static pthread_mutex_t task_mu = PTHREAD_MUTEX_INITIALIZER;
static char task[128]; /* under task_mu */

static int level_from_env(void)
{
    static const char *const names[] = {"debug", "info", "warn", "error", "off"};
    const char *s = getenv("TRAINERA_LOG");
    for (size_t i = 0; s && i < TRN_COUNTOF(names); i++)
        if (strcasecmp(s, names[i]) == 0)
            return (int)i;
    return TRN_LOG_INFO;
}

static int current_level(void)
{
    int l = atomic_load_explicit(&level, memory_order_relaxed);
    if (TRN_UNLIKELY(l < 0)) {
        int unset = -1;
        l = level_from_env();
        if (!atomic_compare_exchange_strong(&level, &unset, l))
            l = unset;
    }
    return l;
}

bool trn_log_enabled(trn_log_level l) { return (int)l >= current_level() && l < TRN_LOG_OFF; }
void trn_log_set_level(trn_log_level l) { atomic_store_explicit(&level, (int)l, memory_order_relaxed); }
void trn_log_set_fd(int fd) { atomic_store_explicit(&log_fd, fd, memory_order_relaxed); }

void trn_log_set_task(const char *name)
{
    pthread_mutex_lock(&task_mu);
    snprintf(task, sizeof task, "%s", name ? name : "");
    pthread_mutex_unlock(&task_mu);
}

/* A peer's text may hold line ends and escapes: it must neither fake a line nor drive a terminal. */
static void make_one_line(char *p, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)p[i];
        if (c == '\n' || c == '\t')
            p[i] = ' ';
        else if (c < 0x20 || c == 0x7f)
            p[i] = '?';
    }
}

void trn_log(trn_log_level l, const char *module, const char *fmt, ...)
{
    if (!trn_log_enabled(l))
        return;
    int saved = errno; /* logging on an error path must not change what the caller reports next */
    char line[1024], *text = line;
    size_t cap = sizeof line;
    struct timespec ts;
    struct tm tm;
    clock_gettime(CLOCK_REALTIME, &ts);
    localtime_r(&ts.tv_sec, &tm);
    size_t n = strftime(line, cap, "%Y-%m-%dT%H:%M:%S", &tm);
    char who[sizeof task];
    pthread_mutex_lock(&task_mu);
    memcpy(who, task, sizeof who);
    pthread_mutex_unlock(&task_mu);
    n += (size_t)snprintf(line + n, cap - n, ".%03ld %c %s%s%.64s: ", ts.tv_nsec / 1000000, "DIWE"[l], who,
                          *who ? " " : "", module);

    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int m = vsnprintf(text + n, cap - n, fmt, ap);
    if (m < 0)
        m = 0;
    if (n + (size_t)m + 1 >= cap) {
        char *big = malloc(n + (size_t)m + 2);
        if (big) {
            memcpy(big, line, n);
            vsnprintf(big + n, (size_t)m + 1, fmt, again);
            text = big;
        } else {
            m = (int)(cap - n - 2); /* cut rather than lost */
        }
    }
    va_end(again);
    va_end(ap);
    while (m > 0 && text[n + (size_t)m - 1] == '\n')
        m--;
    make_one_line(text, n + (size_t)m);
    text[n + (size_t)m] = '\n';
    ssize_t ignored = write(atomic_load_explicit(&log_fd, memory_order_relaxed), text, n + (size_t)m + 1);
    (void)ignored;
    if (l >= TRN_LOG_WARN)
        trn_recent_note(l, module, text + n, (size_t)m);
    if (text != line)
        free(text);
    errno = saved;
}
