/* The Profiler hook: every now and then one step is traced, and written as a Chrome trace (one file per step), which chrome://tracing and Perfetto show.
 *
 * A device is a process of the trace; ops that overlap in time are put in different rows of it. */
#include "train/monitor_int.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/pb.h"
#include "proto/tensorflow.pb-c.h"

/* ---- the trace ------------------------------------------------------------------------------------------------------ */

static void add_json(trn_sb *s, const char *text, size_t n)
{
    trn_sb_adds(s, "\"");
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c == '"' || c == '\\')
            trn_sb_addf(s, "\\%c", c);
        else if (c < 0x20)
            trn_sb_addf(s, "\\u%04x", c);
        else
            trn_sb_add(s, &text[i], 1);
    }
    trn_sb_adds(s, "\"");
}

typedef struct span {
    const Tensorflow__NodeExecStats *st;
    int64_t from, to; /* us */
    int row;
} span;

static int by_start(const void *a, const void *b)
{
    const span *x = a, *y = b;
    return x->from != y->from ? (x->from < y->from ? -1 : 1) : x->to < y->to ? -1 : x->to > y->to;
}

/* The first row that is free at its start. */
static void give_rows(span *v, size_t n)
{
    int64_t *ends = NULL;
    int rows = 0, cap = 0;
    for (size_t i = 0; i < n; i++) {
        int r = 0;
        while (r < rows && ends[r] > v[i].from)
            r++;
        if (r == rows)
            TRN_PUSH(ends, rows, cap, 0);
        ends[r] = v[i].to;
        v[i].row = r;
    }
    free(ends);
}

/* "name = Op(inputs)" is what labels look like; else the node's name says what there is. */
static void add_event(trn_sb *s, const span *e, int pid)
{
    const char *label = e->st->timeline_label, *eq = strstr(label, " = ");
    const char *op = eq ? eq + 3 : e->st->node_name;
    size_t op_n = eq ? strcspn(op, "(") : strlen(op);
    if (!op_n) {
        op = "unknown";
        op_n = strlen(op);
    }
    trn_sb_adds(s, ",\n{\"ph\":\"X\",\"cat\":\"Op\",\"name\":");
    add_json(s, op, op_n);
    trn_sb_addf(s, ",\"pid\":%d,\"tid\":%d,\"ts\":%" PRId64 ",\"dur\":%" PRId64 ",\"args\":{\"name\":", pid, e->row, e->from, TRN_MAX(e->to - e->from, 1));
    add_json(s, e->st->node_name, strlen(e->st->node_name));
    trn_sb_adds(s, ",\"op\":");
    add_json(s, op, op_n);
    const char *in = eq ? strchr(op, '(') : NULL;
    const char *close = in ? strrchr(in, ')') : NULL;
    if (in && close && close > in + 1) {
        trn_sb_adds(s, ",\"inputs\":");
        add_json(s, in + 1, (size_t)(close - in - 1));
    }
    trn_sb_adds(s, "}}");
}

trn_err trn_chrome_trace(char **out, const void *run_metadata, size_t n)
{
    trn_arena *a = trn_arena_new();
    Tensorflow__RunMetadata *md = NULL;
    trn_err err = TRN_PB_UNPACK(&md, a, tensorflow__run_metadata__descriptor, run_metadata, n);
    if (err) {
        trn_arena_free(a);
        return err;
    }
    trn_sb s = {0};
    trn_sb_adds(&s, "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n{\"ph\":\"M\",\"name\":\"trace\",\"pid\":0,\"args\":{\"name\":\"trainera\"}}");
    size_t n_dev = md->step_stats ? md->step_stats->n_dev_stats : 0;
    for (size_t d = 0; d < n_dev; d++) {
        const Tensorflow__DeviceStepStats *ds = md->step_stats->dev_stats[d];
        trn_sb_addf(&s, ",\n{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":%d,\"args\":{\"name\":", (int)d);
        add_json(&s, ds->device, strlen(ds->device));
        trn_sb_adds(&s, "}}");
        span *v = trn_xalloc(sizeof *v * (ds->n_node_stats + 1));
        for (size_t i = 0; i < ds->n_node_stats; i++) {
            const Tensorflow__NodeExecStats *st = ds->node_stats[i];
            v[i] = (span){st, st->all_start_micros, st->all_start_micros + TRN_MAX(st->all_end_rel_micros, 0), 0};
        }
        qsort(v, ds->n_node_stats, sizeof *v, by_start);
        give_rows(v, ds->n_node_stats);
        for (size_t i = 0; i < ds->n_node_stats; i++)
            add_event(&s, &v[i], (int)d);
        free(v);
    }
    trn_sb_adds(&s, "\n]}\n");
    trn_arena_free(a);
    *out = s.p;
    return TRN_OK;
}

/* ---- the hook ------------------------------------------------------------------------------------------------------- */

typedef struct profiler {
    trn_hook hook;
    trn_every every;
    char *dir;
    int64_t next;
    bool asked;
} profiler;

static trn_err profiler_begin(trn_hook *h, trn_monitored *m, trn_builder *b)
{
    const char *name;
    return trn_monitored__step_name(&name, m);
}

static trn_err profiler_created(trn_hook *h, trn_monitored *m)
{
    profiler *p = (profiler *)h;
    p->next = -1;
    if (mkdir(p->dir, 0777) && errno != EEXIST)
        return trn_err_errno(errno, "folder for traces %s", p->dir);
    return TRN_OK;
}

static trn_err profiler_before(trn_hook *h, trn_monitored *m, trn_step_ask *ask)
{
    profiler *p = (profiler *)h;
    const char *name;
    TRN_TRY(trn_monitored__step_name(&name, m));
    trn_ask_fetch(ask, name);
    p->asked = p->next >= 0 && trn_every_due(&p->every, p->next); /* not the first step: that one builds the graph */
    if (p->asked)
        trn_ask_trace(ask);
    return TRN_OK;
}

static trn_err write_file(const char *path, const char *text)
{
    char *tmp = trn_xasprintf("%s.tmp%d", path, (int)getpid());
    FILE *f = fopen(tmp, "wb");
    bool ok = f && fputs(text, f) >= 0;
    if (f)
        ok = fclose(f) == 0 && ok;
    ok = ok && rename(tmp, path) == 0;
    trn_err err = ok ? TRN_OK : trn_err_errno(errno, "%s", path);
    if (!ok)
        unlink(tmp);
    free(tmp);
    return err;
}

static trn_err profiler_after(trn_hook *h, trn_monitored *m, const trn_step_got *got)
{
    profiler *p = (profiler *)h;
    int64_t now = trn_scalar_i64(got->fetched[0]) + 1;
    trn_err err = TRN_OK;
    if (p->next < 0) {
        trn_every_mark(&p->every, now - 1, NULL, NULL);
    } else if (p->asked) {
        TRN_TRY(trn_monitored_global_step(&now, m));
        trn_every_mark(&p->every, now, NULL, NULL);
        char *text;
        err = trn_chrome_trace(&text, got->metadata ? got->metadata : "", got->metadata_len);
        if (!err) {
            char *path = trn_xasprintf("%s/timeline-%" PRId64 ".json", p->dir, now);
            err = write_file(path, text);
            if (!err)
                TRN_INFO("monitor", "trace of step %" PRId64 " in %s: open it in chrome://tracing or ui.perfetto.dev", now, path);
            free(path);
            free(text);
        }
    }
    p->next = now + 1;
    return err;
}

static void profiler_free(trn_hook *h)
{
    free(((profiler *)h)->dir);
    free(h);
}

trn_hook *trn_hook_profiler(const trn_profiler_opts *o)
{
    static const trn_hook_table table = {"Profiler", profiler_begin, profiler_created, profiler_before, profiler_after, NULL, profiler_free};
    profiler *p = trn_xalloc(sizeof *p);
    p->hook.table = &table;
    p->every = trn_every_of(o->every_steps, o->every_secs, 1000, 0);
    p->dir = trn_xstrdup(o->dir ? o->dir : ".");
    p->next = -1;
    return &p->hook;
}
