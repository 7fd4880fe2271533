/* trainera inspect: event files; scalars as plots in the terminal. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "ckpt/record.h"
#include "cli/inspect.h"
#include "proto/pb.h"
#include "proto/pbw.h"
#include "tensor/tensor_pb.h"

#define MAX_RECORD ((size_t)1 << 30)

typedef struct point {
    int64_t step;
    double wall, value;
} point;

typedef struct tag {
    char *name;
    point *v;
    int n, cap;
} tag;

typedef struct events {
    trn_map *by_name;
    tag **tags;
    int n, cap;
    uint64_t records, graphs, others;
    double first_wall, last_wall;
} events;

static void add_point(events *e, const char *name, size_t n, point p)
{
    tag *t = trn_map_get(e->by_name, name, n);
    if (!t) {
        t = trn_xalloc(sizeof *t);
        t->name = trn_xstrndup(name, n);
        trn_map_put(e->by_name, name, n, t);
        TRN_PUSH(e->tags, e->n, e->cap, t);
    }
    TRN_PUSH(t->v, t->n, t->cap, p);
}

/* tf.summary of TensorFlow 2 writes scalars as tensors. */
static bool scalar_of(double *out, const uint8_t *p, size_t n)
{
    trn_arena *a = trn_arena_new();
    Tensorflow__TensorProto *pb = NULL;
    trn_tensor *t = NULL;
    trn_err err = TRN_PB_UNPACK(&pb, a, tensorflow__tensor_proto__descriptor, p, n);
    if (!err)
        err = trn_tensor_from_pb(&t, pb);
    bool ok = !err && t->count == 1 && t->shape.rank == 0;
    if (ok && t->dtype == TRN_FLOAT)
        *out = (double)TRN_DATA(t, float)[0];
    else if (ok && t->dtype == TRN_DOUBLE)
        *out = TRN_DATA(t, double)[0];
    else if (ok && t->dtype == TRN_INT64)
        *out = (double)TRN_DATA(t, int64_t)[0];
    else if (ok && t->dtype == TRN_INT32)
        *out = (double)TRN_DATA(t, int32_t)[0];
    else
        ok = false;
    trn_tensor_unref(t);
    trn_err_free(err);
    trn_arena_free(a);
    return ok;
}

static void take_value(events *e, const uint8_t *p, size_t n, point at)
{
    const char *name = NULL;
    size_t n_name = 0;
    bool has = false;
    trn_pbr r = trn_pbr_init(p, n);
    while (trn_pbr_next(&r)) {
        if (r.field == 1 && r.type == TRN_PB_BYTES) {
            name = (const char *)r.b;
            n_name = r.n;
        } else if (r.field == 2 && r.type == TRN_PB_FIXED32) {
            float f;
            uint32_t u = (uint32_t)r.v;
            memcpy(&f, &u, 4);
            at.value = (double)f;
            has = true;
        } else if (r.field == 8 && r.type == TRN_PB_BYTES) {
            has = scalar_of(&at.value, r.b, r.n);
        }
    }
    if (has && name && n_name)
        add_point(e, name, n_name, at);
    else
        e->others++;
}

static void take_event(events *e, const uint8_t *p, size_t n)
{
    point at = {0};
    const uint8_t *summary = NULL;
    size_t n_summary = 0;
    trn_pbr r = trn_pbr_init(p, n);
    while (trn_pbr_next(&r)) {
        if (r.field == 1 && r.type == TRN_PB_FIXED64)
            memcpy(&at.wall, &r.v, 8);
        else if (r.field == 2 && r.type == TRN_PB_VARINT)
            at.step = (int64_t)r.v;
        else if ((r.field == 4 || r.field == 9) && r.type == TRN_PB_BYTES)
            e->graphs++;
        else if (r.field == 5 && r.type == TRN_PB_BYTES) {
            summary = r.b;
            n_summary = r.n;
        }
    }
    e->records++;
    if (!e->first_wall)
        e->first_wall = at.wall;
    e->last_wall = at.wall;
    r = trn_pbr_init(summary, n_summary);
    while (trn_pbr_next(&r))
        if (r.field == 1 && r.type == TRN_PB_BYTES)
            take_value(e, r.b, r.n, at);
}

static trn_err read_file(events *e, const char *path, bool *unfinished)
{
    trn_infile f;
    TRN_TRY(trn_infile_open(&f, path));
    trn_err err = TRN_OK;
    for (uint64_t at = 0; !err;) {
        uint8_t *p;
        size_t n;
        bool found;
        err = trn_record_read(&p, &n, &found, &f, &at, MAX_RECORD);
        if (err && strncmp(trn_err_msg(err), "truncated", 9) == 0) { /* its writer is at work, or was killed: what is there is good */
            trn_err_free(err);
            err = TRN_OK;
            *unfinished = true;
            break;
        }
        if (err || !found)
            break;
        take_event(e, p, n);
        free(p);
    }
    trn_infile_close(&f);
    return err;
}

/* ---- the plot ------------------------------------------------------------------------------------------------------- */

enum { COLUMNS = 64, LINES = 10 };

static void plot(const tag *t)
{
    double sum[COLUMNS] = {0}, lo = INFINITY, hi = -INFINITY;
    int count[COLUMNS] = {0};
    int64_t from = t->v[0].step, to = from;
    for (int i = 0; i < t->n; i++) {
        from = TRN_MIN(from, t->v[i].step);
        to = TRN_MAX(to, t->v[i].step);
    }
    for (int i = 0; i < t->n; i++) {
        double at = to > from ? ((double)t->v[i].step - (double)from) / ((double)to - (double)from) : 0;
        int c = TRN_MIN((int)(at * COLUMNS), COLUMNS - 1);
        if (!isfinite(t->v[i].value))
            continue;
        sum[c] += t->v[i].value;
        count[c]++;
    }
    for (int c = 0; c < COLUMNS; c++)
        if (count[c]) {
            lo = fmin(lo, sum[c] / count[c]);
            hi = fmax(hi, sum[c] / count[c]);
        }
    if (!isfinite(lo))
        return;
    for (int row = 0; row < LINES; row++) {
        char line[COLUMNS + 1];
        for (int c = 0; c < COLUMNS; c++) {
            double y = count[c] && hi > lo ? (sum[c] / count[c] - lo) / (hi - lo) : .5;
            line[c] = count[c] && (int)((1 - y) * (LINES - 1) + .5) == row ? '*' : ' ';
        }
        line[COLUMNS] = 0;
        char label[24] = "";
        if (row == 0 || row == LINES - 1)
            snprintf(label, sizeof label, "%.5g", row == 0 ? hi : lo);
        printf("%12s |%s\n", label, line);
    }
    printf("%12s +%.*s\n%12s  step %" PRId64 " to %" PRId64 "\n", "", COLUMNS, "----------------------------------------------------------------", "", from, to);
}

static int by_step(const void *a, const void *b)
{
    const point *x = a, *y = b;
    return x->step < y->step ? -1 : x->step > y->step;
}

static int by_tag(const void *a, const void *b) { return strcmp((*(tag *const *)a)->name, (*(tag *const *)b)->name); }

static void put_tag(trn_json *j, const tag *t)
{
    const point *last = &t->v[t->n - 1];
    if (!j) {
        printf("\n%s: %d values, last %.6g at step %" PRId64 "\n", t->name, t->n, last->value, last->step);
        plot(t);
        return;
    }
    trn_json_open(j, NULL, '{');
    trn_json_str(j, "tag", t->name);
    trn_json_open(j, "points", '[');
    for (int i = 0; i < t->n; i++) {
        trn_json_open(j, NULL, '{');
        trn_json_int(j, "step", t->v[i].step);
        trn_json_num(j, "value", t->v[i].value);
        trn_json_uint(j, "wall_us", t->v[i].wall > 0 && t->v[i].wall < 1e13 ? (uint64_t)(t->v[i].wall * 1e6) : 0);
        trn_json_close(j);
    }
    trn_json_close(j);
    trn_json_close(j);
}

trn_err inspect_events(trn_json *j, char *const *paths, int n, const inspect_opts *o, bool *bad)
{
    events e = {.by_name = trn_map_new()};
    trn_err err = TRN_OK;
    bool unfinished = false;
    for (int i = 0; i < n && !err; i++)
        err = read_file(&e, paths[i], &unfinished);
    if (e.n)
        qsort(e.tags, (size_t)e.n, sizeof *e.tags, by_tag);
    if (j) {
        trn_json_open(j, "events", '{');
        trn_json_int(j, "files", n);
        trn_json_uint(j, "records", e.records);
        trn_json_uint(j, "graphs", e.graphs);
        trn_json_uint(j, "other_summaries", e.others);
        trn_json_bool(j, "ends_inside_a_record", unfinished);
        trn_json_open(j, "scalars", '[');
    } else {
        printf("%s%s: %" PRIu64 " events over %.0f s, %" PRIu64 " graphs, %d scalars, %" PRIu64 " other summaries%s\n", paths[0], n > 1 ? " …" : "", e.records,
               e.last_wall > e.first_wall ? e.last_wall - e.first_wall : 0, e.graphs, e.n, e.others, unfinished ? "; ends inside a record: it is being written, or its writer was killed" : "");
    }
    for (int i = 0; i < e.n; i++) {
        qsort(e.tags[i]->v, (size_t)e.tags[i]->n, sizeof *e.tags[i]->v, by_step);
        if (!o->match || strstr(e.tags[i]->name, o->match))
            put_tag(j, e.tags[i]);
    }
    if (j) {
        trn_json_close(j);
        trn_json_close(j);
    }
    for (int i = 0; i < e.n; i++) {
        free(e.tags[i]->v);
        free(e.tags[i]->name);
        free(e.tags[i]);
    }
    free(e.tags);
    trn_map_free(e.by_name, NULL);
    *bad |= err != TRN_OK;
    return err;
}
