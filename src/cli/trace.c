/* trainera trace: the next steps of a running job, node by node on every task, as a file that Perfetto and chrome://tracing read.
 *
 * The tasks record (GET /trace?start), each with its own clock. How far the clocks are apart is estimated from the fastest of some requests: a task's
 * time lies in the middle of a short round trip. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "cli/look.h"
#include "obs/json.h"

typedef struct options {
    int64_t steps, timeout;
    const char *out;
    bool json;
} options;

#define ROW(field) offsetof(options, field)
static const cli_flag flags[] = {
    {"steps", "N", "How many steps; 5 when left out.", CLI_INT, ROW(steps), 1, 1000},
    {"o", "FILE", "Where to; trace.json when left out.", CLI_TEXT, ROW(out)},
    {"timeout", "SECONDS", "How long to wait for so many steps; 30 when left out.", CLI_INT, ROW(timeout), 1, 3600},
    {"json", NULL, "What was recorded, as JSON on standard output.", CLI_BOOL, ROW(json)},
    {0},
};

typedef struct task {
    char *name, *address;
    double offset_us; /* its clock minus ours */
    double round_trip_us;
    json_t *doc; /* what it recorded */
    int parts, nodes;
} task;

typedef struct job {
    task *v;
    int n, cap;
    trn_sb left_out; /* tasks that could not be traced, and why */
} job;

static trn_err ask(json_t **out, const char *address, const char *path)
{
    trn_sb body = {0};
    trn_err err = cli_get(&body, address, path, 10);
    if (!err) {
        json_error_t e;
        *out = json_loadb(body.p ? body.p : "", body.n, 0, &e);
        if (!*out)
            err = trn_errorf(TRN_UNAVAILABLE, "%s: what came is not what was asked for: %s", address, e.text);
    }
    trn_sb_fini(&body);
    return err;
}

static trn_err find_clock(task *t)
{
    t->round_trip_us = INFINITY;
    for (int i = 0; i < 8; i++) {
        json_t *d;
        uint64_t before = trn_now_ns();
        double wall = (double)trn_wall_us();
        TRN_TRY(ask(&d, t->address, "/trace"));
        double took = (double)(trn_now_ns() - before) / 1e3;
        if (took < t->round_trip_us) {
            t->round_trip_us = took;
            t->offset_us = cli_jn(d, "time_us") - (wall + took / 2);
        }
        json_decref(d);
    }
    return TRN_OK;
}

static void add_task(job *j, const char *name, const char *address)
{
    task t = {.name = trn_xstrdup(name), .address = trn_xstrdup(address)};
    trn_err err = find_clock(&t);
    if (!err) {
        TRN_PUSH(j->v, j->n, j->cap, t);
        return;
    }
    trn_sb_addf(&j->left_out, "%s%s (%s)", j->left_out.n ? ", " : "", name, trn_err_msg(err));
    trn_err_free(err);
    free(t.name);
    free(t.address);
}

static trn_err find_tasks(job *j, const char *address)
{
    json_t *doc, *c;
    TRN_TRY(cli_look(&doc, NULL, address, 5));
    size_t i;
    add_task(j, cli_js(json_object_get(doc, "task"), "name"), address); /* the first */
    json_array_foreach(json_object_get(json_object_get(doc, "cluster"), "tasks"), i, c) {
        if (json_is_true(json_object_get(c, "self")))
            continue;
        if (json_object_get(c, "task"))
            add_task(j, cli_js(c, "name"), cli_js(c, "address"));
        else
            trn_sb_addf(&j->left_out, "%s%s (%s)", j->left_out.n ? ", " : "", cli_js(c, "name"), strcmp(cli_js(c, "state"), "up") == 0 ? "not a Trainera task" : cli_js(c, "state"));
    }
    json_decref(doc);
    return j->n ? TRN_OK : trn_errorf(TRN_UNAVAILABLE, "%s", j->left_out.p);
}

static trn_err record(job *j, const options *o)
{
    char path[128];
    json_t *d;
    for (int i = j->n - 1; i >= 0; i--) { /* the one that counts the steps last: the others must see all of them */
        snprintf(path, sizeof path, "/trace?start&parts=%d&seconds=%d", i == 0 ? (int)o->steps : 0, (int)o->timeout + 10);
        TRN_TRY(ask(&d, j->v[i].address, path));
        json_decref(d);
    }
    uint64_t end = trn_now_ns() + (uint64_t)o->timeout * UINT64_C(1000000000);
    for (bool on = true; on && trn_now_ns() < end;) {
        nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
        TRN_TRY(ask(&d, j->v[0].address, "/trace"));
        on = json_is_true(json_object_get(d, "recording"));
        json_decref(d);
    }
    nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL); /* the other parts of the last step end */
    trn_err first = TRN_OK;
    for (int i = 0; i < j->n; i++) {
        trn_err err = ask(&j->v[i].doc, j->v[i].address, "/trace?stop");
        if (err && !first)
            first = err;
        else
            trn_err_free(err);
    }
    if (!first && json_array_size(json_object_get(j->v[0].doc, "parts")) == 0)
        first = trn_errorf(TRN_DEADLINE_EXCEEDED, "%s ran no step within %d s", j->v[0].name, (int)o->timeout);
    return first;
}

/* ---- the file -------------------------------------------------------------------------------------------------------- */

enum { LANES = 1000000 }; /* thread numbers above it are lanes for what waits */

typedef struct span {
    double start, end;
    uint32_t thread;
    bool waits;
    json_t *node;
    const char *step;
} span;

static int by_start(const void *a, const void *b)
{
    const span *x = a, *y = b;
    return x->start != y->start ? (x->start < y->start ? -1 : 1) : x->end > y->end ? -1 : x->end < y->end;
}

static bool op_waits(const char *op)
{
    return strstr(op, "Recv") || strstr(op, "Dequeue") || strstr(op, "Enqueue") || strstr(op, "TakeGradient") || strstr(op, "TakeMany") || strstr(op, "Unstage") || strstr(op, "IteratorGetNext") ||
           strstr(op, "Call") || strcmp(op, "While") == 0 || strcmp(op, "If") == 0;
}

static void meta(trn_json *w, const char *what, int pid, uint32_t tid, const char *name)
{
    trn_json_open(w, NULL, '{');
    trn_json_str(w, "ph", "M");
    trn_json_str(w, "name", what);
    trn_json_int(w, "pid", pid);
    trn_json_uint(w, "tid", tid);
    trn_json_open(w, "args", '{');
    trn_json_str(w, "name", name);
    trn_json_close(w);
    trn_json_close(w);
}

static void begin_event(trn_json *w, const char *ph, const char *name, int pid, uint32_t tid, double ts)
{
    trn_json_open(w, NULL, '{');
    trn_json_str(w, "ph", ph);
    trn_json_str(w, "name", name);
    trn_json_int(w, "pid", pid);
    trn_json_uint(w, "tid", tid);
    char text[40];
    int n = snprintf(text, sizeof text, "%.3f", ts);
    trn_json_raw(w, "ts", text, (size_t)n);
}

static void put_span(trn_json *w, const span *s, int pid, uint32_t tid)
{
    const char *op = cli_js(s->node, "op"), *key = cli_js(s->node, "key");
    begin_event(w, "X", op, pid, tid, s->start);
    trn_json_num(w, "dur", s->end - s->start);
    trn_json_str(w, "cat", s->waits ? "wait" : "op");
    trn_json_open(w, "args", '{');
    trn_json_str(w, "node", cli_js(s->node, "name"));
    trn_json_str(w, "step", s->step);
    trn_json_num(w, "bytes", cli_jn(s->node, "bytes"));
    if (*key)
        trn_json_str(w, "key", key);
    trn_json_close(w);
    trn_json_close(w);
    if (!*key)
        return;
    bool send = strstr(op, "Send") != NULL; /* an arrow from the sender to the receiver */
    trn_sb id = {0};
    trn_sb_addf(&id, "%s;%s", s->step, key);
    begin_event(w, send ? "s" : "f", "tensor", pid, tid, send ? s->start : s->end);
    trn_json_str(w, "cat", "tensor");
    trn_json_strf(w, "id", "%016" PRIx64, trn_hash(id.p, id.n));
    if (!send)
        trn_json_str(w, "bp", "e");
    trn_json_close(w);
    trn_sb_fini(&id);
}

/* Spans of one thread nest or follow each other; what waits, and what would cross another, gets a lane of its own. */
static void put_spans(trn_json *w, span *v, size_t n, int pid)
{
    double lane[64] = {0};
    int lanes = 0;
    trn_map *threads = trn_map_new(); /* tid → end of what is open there */
    if (n)
        qsort(v, n, sizeof *v, by_start);
    for (size_t i = 0; i < n; i++) {
        double *open = trn_map_geti(threads, v[i].thread);
        if (!open) {
            open = trn_xalloc(sizeof *open);
            trn_map_puti(threads, v[i].thread, open);
        }
        bool apart = v[i].waits || (v[i].start < *open && v[i].end > *open);
        if (!apart) {
            *open = TRN_MAX(*open, v[i].end);
            put_span(w, &v[i], pid, v[i].thread);
            continue;
        }
        int k = 0;
        while (k < lanes && lane[k] > v[i].start)
            k++;
        if (k == TRN_COUNTOF(lane))
            k = TRN_COUNTOF(lane) - 1;
        else if (k == lanes)
            lanes++;
        lane[k] = v[i].end;
        put_span(w, &v[i], pid, LANES + (uint32_t)k);
    }
    for (int k = 0; k < lanes; k++)
        meta(w, "thread_name", pid, LANES + (uint32_t)k, "waiting");
    trn_map_free(threads, free);
}

static void put_task(trn_json *w, task *t, int pid, double from_us, double to_us)
{
    json_t *part, *node;
    size_t i, k, n = 0, cap = 0;
    span *v = NULL;
    char *title = trn_xasprintf("%s (%s)", t->name, t->address);
    meta(w, "process_name", pid, 0, title);
    meta(w, "thread_name", pid, 1, "steps");
    free(title);
    json_array_foreach(json_object_get(t->doc, "parts"), i, part) {
        double start = cli_jn(part, "start_us") - t->offset_us, end = cli_jn(part, "end_us") - t->offset_us;
        if (end < from_us || start > to_us)
            continue;
        t->parts++;
        begin_event(w, "b", "step", pid, 1, start); /* steps overlap: async events */
        trn_json_str(w, "cat", "step");
        trn_json_strf(w, "id", "%d.%zu", pid, i);
        trn_json_open(w, "args", '{');
        trn_json_str(w, "step", cli_js(part, "step"));
        trn_json_close(w);
        trn_json_close(w);
        begin_event(w, "e", "step", pid, 1, end);
        trn_json_str(w, "cat", "step");
        trn_json_strf(w, "id", "%d.%zu", pid, i);
        trn_json_close(w);
        json_array_foreach(json_object_get(part, "nodes"), k, node) {
            double at = cli_jn(node, "start_us") - t->offset_us;
            TRN_PUSH(v, n, cap, (span){at, at + cli_jn(node, "us"), (uint32_t)cli_jn(node, "thread"), op_waits(cli_js(node, "op")), node, cli_js(part, "step")});
            t->nodes++;
        }
    }
    put_spans(w, v, n, pid);
    free(v);
}

static void put_trace(trn_sb *out, job *j)
{
    double from = INFINITY, to = -INFINITY;
    json_t *part;
    size_t i;
    json_array_foreach(json_object_get(j->v[0].doc, "parts"), i, part) {
        from = fmin(from, cli_jn(part, "start_us") - j->v[0].offset_us);
        to = fmax(to, cli_jn(part, "end_us") - j->v[0].offset_us);
    }
    trn_json w = {.out = out};
    trn_json_open(&w, NULL, '{');
    trn_json_str(&w, "displayTimeUnit", "ms");
    trn_json_open(&w, "traceEvents", '[');
    for (int k = 0; k < j->n; k++)
        put_task(&w, &j->v[k], k + 1, from, to);
    trn_json_close(&w);
    trn_json_open(&w, "otherData", '{');
    trn_json_str(&w, "made_by", "trainera " TRAINERA_VERSION);
    for (int k = 0; k < j->n; k++)
        trn_json_strf(&w, j->v[k].name, "clock %+.0f us, by a round trip of %.0f us", j->v[k].offset_us, j->v[k].round_trip_us);
    trn_json_close(&w);
    trn_json_close(&w);
    trn_sb_adds(out, "\n");
}

static void tell(const job *j, const options *o)
{
    if (!o->json) {
        for (int k = 0; k < j->n; k++)
            printf("%-12s %d parts of steps, %d nodes, clock %+.3f ms\n", j->v[k].name, j->v[k].parts, j->v[k].nodes, j->v[k].offset_us / 1e3);
        if (j->left_out.n)
            printf("left out: %s\n", j->left_out.p);
        printf("written to %s; open it in https://ui.perfetto.dev or chrome://tracing\n", o->out);
        return;
    }
    trn_sb text = {0};
    trn_json w = {.out = &text, .pretty = true};
    trn_json_open(&w, NULL, '{');
    trn_json_str(&w, "file", o->out);
    trn_json_open(&w, "tasks", '[');
    for (int k = 0; k < j->n; k++) {
        trn_json_open(&w, NULL, '{');
        trn_json_str(&w, "name", j->v[k].name);
        trn_json_str(&w, "address", j->v[k].address);
        trn_json_int(&w, "parts", j->v[k].parts);
        trn_json_int(&w, "nodes", j->v[k].nodes);
        trn_json_num(&w, "clock_offset_us", j->v[k].offset_us);
        trn_json_num(&w, "round_trip_us", j->v[k].round_trip_us);
        trn_json_close(&w);
    }
    trn_json_close(&w);
    trn_json_str(&w, "left_out", j->left_out.p);
    trn_json_close(&w);
    fwrite(text.p, 1, text.n, stdout);
    trn_sb_fini(&text);
}

static int run(int argc, char **argv)
{
    options o = {.steps = 5, .timeout = 30, .out = "trace.json"};
    char *address;
    trn_err err = cli_parse_target(&o, &cli_trace, argc, argv, &address);
    if (err)
        return cli_fail(err, CLI_USAGE);
    job j = {0};
    err = find_tasks(&j, address);
    if (!err)
        err = record(&j, &o);
    if (!err) {
        trn_sb text = {0};
        put_trace(&text, &j);
        err = cli_write_file(o.out, text.p);
        trn_sb_fini(&text);
    }
    if (!err)
        tell(&j, &o);
    for (int i = 0; i < j.n; i++) {
        json_decref(j.v[i].doc);
        free(j.v[i].name);
        free(j.v[i].address);
    }
    free(j.v);
    trn_sb_fini(&j.left_out);
    free(address);
    return err ? cli_fail(err, CLI_FAILED) : CLI_OK;
}

const cli_command cli_trace = {
    .name = "trace",
    .usage = "HOST:PORT --steps=5 -o trace.json",
    .summary = "the next steps of a running job on all its tasks, as a Perfetto trace",
    .details = "Records the next steps of that task, and what every other Trainera task does meanwhile: each op with its thread, time and bytes, waits, and\n"
               "arrows from a tensor's sender to its receiver. Clocks of different machines are lined up by the fastest of some round trips. It costs\n"
               "the job something like a tenth while it records.\n"
               "\n"
               "Exit code: 0 written, 1 no step ran or a task did not answer, 2 wrong flags.\n",
    .flags = flags,
    .run = run,
};
