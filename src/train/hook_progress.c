/* The Progress hook: a bar on a terminal, plain lines anywhere else.
 *
 *     [#########.....................]  31%  3100/10000  812 steps/s  loss 0.2231  8 s left
 */
#include "train/monitor_int.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

typedef struct progress {
    trn_hook hook;
    int64_t total;
    bool has_loss, tty, drawn;
    trn_out loss;
    const char *loss_name, *step_name;
    int fd;
    uint64_t every_ns, shown_ns, start_ns;
    int64_t start_step, step, own_steps;
    double value, rate; /* steps per second, smoothed */
    int64_t rate_step;
    uint64_t rate_ns;
    bool asked;
} progress;

static trn_err progress_begin(trn_hook *h, trn_monitored *m, trn_builder *b)
{
    progress *p = (progress *)h;
    if (p->has_loss)
        p->loss_name = trn_out_name(b, p->loss);
    trn_err err = trn_monitored__step_name(&p->step_name, m);
    if (err) { /* then the steps of this program are counted */
        trn_err_free(err);
        p->step_name = NULL;
    }
    return trn_builder_check(b);
}

static trn_err progress_created(trn_hook *h, trn_monitored *m)
{
    progress *p = (progress *)h;
    if (p->step_name)
        TRN_TRY(trn_monitored_global_step(&p->step, m));
    p->start_step = p->rate_step = p->step;
    p->start_ns = p->rate_ns = trn_now_ns();
    p->rate = 0;
    return TRN_OK;
}

static trn_err progress_before(trn_hook *h, trn_monitored *m, trn_step_ask *ask)
{
    progress *p = (progress *)h;
    p->asked = trn_now_ns() - p->shown_ns >= p->every_ns;
    if (p->loss_name) /* always: nobody knows which step is the last, and the last line shall have its loss */
        trn_ask_fetch(ask, p->loss_name);
    if (p->asked && p->step_name)
        trn_ask_fetch(ask, p->step_name);
    return TRN_OK;
}

static void add_time(trn_sb *s, double secs)
{
    int64_t t = (int64_t)(secs + 0.5);
    if (t >= 3600)
        trn_sb_addf(s, "%" PRId64 " h %02d min", t / 3600, (int)(t / 60 % 60));
    else if (t >= 60)
        trn_sb_addf(s, "%d min %02d s", (int)(t / 60), (int)(t % 60));
    else
        trn_sb_addf(s, "%d s", (int)t);
}

static void add_bar(trn_sb *s, double part, int width)
{
    int full = (int)(part * width);
    trn_sb_adds(s, "[");
    for (int i = 0; i < width; i++)
        trn_sb_adds(s, i < full ? "#" : ".");
    trn_sb_adds(s, "] ");
}

static int terminal_width(int fd)
{
    struct winsize w;
    return ioctl(fd, TIOCGWINSZ, &w) == 0 && w.ws_col > 20 ? w.ws_col : 80;
}

static void put(int fd, const char *p, size_t n)
{
    while (n > 0) {
        ssize_t k = write(fd, p, n);
        if (k <= 0)
            return; /* nobody looks */
        p += k;
        n -= (size_t)k;
    }
}

static void show(progress *p, bool last)
{
    uint64_t now = trn_now_ns();
    double secs = (double)(now - p->rate_ns) / 1e9;
    if (secs > 0.05) {
        double r = (double)(p->step - p->rate_step) / secs;
        p->rate = p->rate > 0 ? 0.7 * p->rate + 0.3 * r : r;
        p->rate_ns = now;
        p->rate_step = p->step;
    }
    trn_sb s = {0};
    double part = p->total > 0 ? TRN_MIN((double)p->step / (double)p->total, 1.0) : 0;
    if (p->tty) {
        trn_sb_adds(&s, "\r");
        if (p->total > 0)
            add_bar(&s, part, TRN_MAX(10, TRN_MIN(40, terminal_width(p->fd) - 70)));
    }
    if (p->total > 0)
        trn_sb_addf(&s, "%3.0f%%  step %" PRId64 "/%" PRId64, part * 100, p->step, p->total);
    else
        trn_sb_addf(&s, "step %" PRId64, p->step);
    if (p->rate > 0)
        trn_sb_addf(&s, "  %.*f steps/s", p->rate < 10 ? 2 : 0, p->rate);
    if (p->has_loss)
        trn_sb_addf(&s, "  loss %.4g", p->value);
    if (last) {
        trn_sb_adds(&s, "  in ");
        add_time(&s, (double)(now - p->start_ns) / 1e9);
    } else if (p->total > p->step && p->rate > 0) {
        trn_sb_adds(&s, "  ");
        add_time(&s, (double)(p->total - p->step) / p->rate);
        trn_sb_adds(&s, " left");
    }
    if (p->tty)
        trn_sb_adds(&s, "\x1b[K"); /* what is left of a longer line */
    if (!p->tty || last)
        trn_sb_adds(&s, "\n");
    put(p->fd, s.p, s.n);
    trn_sb_fini(&s);
    p->drawn = !last;
    p->shown_ns = now;
}

static trn_err progress_after(trn_hook *h, trn_monitored *m, const trn_step_got *got)
{
    progress *p = (progress *)h;
    p->own_steps++;
    int i = 0;
    if (p->loss_name)
        p->value = trn_scalar_f64(got->fetched[i++], 0);
    if (!p->asked)
        return TRN_OK;
    p->step = p->step_name ? trn_scalar_i64(got->fetched[i]) + 1 : p->own_steps;
    show(p, false);
    return TRN_OK;
}

static trn_err progress_end(trn_hook *h, trn_monitored *m)
{
    progress *p = (progress *)h;
    if (p->step_name)
        TRN_TRY(trn_monitored_global_step(&p->step, m));
    else
        p->step = p->own_steps;
    double secs = (double)(trn_now_ns() - p->start_ns) / 1e9;
    p->rate = secs > 0 ? (double)(p->step - p->start_step) / secs : 0; /* of the whole */
    p->rate_ns = trn_now_ns();
    show(p, true);
    return TRN_OK;
}

static void progress_free(trn_hook *h)
{
    progress *p = (progress *)h;
    if (p->drawn && p->tty) /* what comes next does not stand behind the bar */
        put(p->fd, "\n", 1);
    free(p);
}

trn_hook *trn_hook_progress(const trn_progress_opts *o)
{
    static const trn_hook_table table = {"Progress", progress_begin, progress_created, progress_before, progress_after, progress_end, progress_free};
    progress *p = trn_xalloc(sizeof *p);
    p->hook.table = &table;
    p->total = o->total_steps;
    p->has_loss = o->loss != NULL;
    if (o->loss)
        p->loss = *o->loss;
    p->fd = o->fd > 0 ? o->fd : 2;
    p->tty = isatty(p->fd);
    double every = o->every_secs > 0 ? o->every_secs : p->tty ? 0.2 : 10;
    p->every_ns = (uint64_t)(every * 1e9);
    return &p->hook;
}
