#include "master/status.h"

#include <inttypes.h>
#include <jansson.h>
#include <malloc.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include "graph/devname.h"
#include "obs/json.h"
#include "obs/pages.h"
#include "res/var.h"
#include "wire/stats.h"
#include "worker/capture.h"

#define SECOND UINT64_C(1000000000)
#define PATH_STATUS "/trainera.Worker/Status"
#define MAX_ANSWER (64 << 10) /* of a peer's short form */
#define WAIT_SHOWN SECOND     /* shorter waits are normal life */
#define ROUND_MAX 512         /* tasks asked in one round */

/* How much of each list is told. */
typedef struct limits {
    int waits, variables, resources, errors, scalars, sessions, peers, points;
} limits;
static const limits full = {100, 500, 200, 64, 64, 64, 500, TRN_SERIES_BINS};
static const limits brief = {8, 24, 8, 3, 8, 4, 0, 60}; /* for the page of another task */
static const limits small = {4, 16, 4, 1, 4, 0, 0, 0};  /* the same in a large cluster */

enum { UNKNOWN, UP, DOWN };

typedef struct peer {
    trn_status *st;
    const char *job;
    int index;
    const char *address;
    bool self;
    /* under mu */
    bool asked; /* a call is under way */
    int state;
    uint64_t asked_ns, heard_ns, rtt_ns;
    bool ours;
    char *error;
    char *json; /* valid JSON, or NULL */
    size_t json_n;
} peer;

typedef struct samples {
    uint64_t at_ns, parts, steps, in, out, cpu_us;
    trn_series part_rate, step_rate, in_rate, out_rate, cpu, rss;
} samples;

struct trn_status {
    trn_status_opts o;
    char *address;
    uint64_t start_ns, start_wall_us;
    trn_timer timer;
    char host[128];
    peer *peers;
    int n_peers;
    trn_mutex mu; /* peers, samples, last_round */
    uint64_t last_round_ns;
    int round_from;
    samples s;
};

/* ---- small things ----------------------------------------------------------------------------------------------- */

static double ago(uint64_t now, uint64_t then)
{
    return now > then ? (double)(now - then) / 1e9 : 0;
}

/* "/job:ps/replica:0/task:1/device:CPU:0" → "ps/1"; what is none stays as it is. */
static void short_task(char *out, size_t cap, const char *name)
{
    trn_devname d;
    trn_err err = trn_devname_parse(&d, name, strlen(name));
    if (!err && trn_devname_has_task(&d))
        snprintf(out, cap, "%s/%d", d.job, (int)d.task);
    else
        snprintf(out, cap, "%s", name);
    trn_err_free(err);
}

static const char *address_of(const trn_status *s, const char *task)
{
    for (int i = 0; i < s->n_peers; i++) {
        size_t n = strlen(s->peers[i].job);
        if (strncmp(task, s->peers[i].job, n) == 0 && task[n] == '/' && atoi(task + n + 1) == s->peers[i].index)
            return s->peers[i].address;
    }
    return NULL;
}

static uint64_t rss_bytes(void)
{
    unsigned long long size, resident = 0;
    FILE *f = fopen("/proc/self/statm", "re");
    if (f && fscanf(f, "%llu %llu", &size, &resident) != 2)
        resident = 0;
    if (f)
        fclose(f);
    return (uint64_t)resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

static uint64_t cpu_us(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (uint64_t)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1000000u + (uint64_t)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

static uint64_t hist_count(const trn_hist *h)
{
    return atomic_load_explicit(&h->count, memory_order_relaxed);
}

/* Means of `points` equal spans, null where nothing came. */
static void put_series(trn_json *j, const char *key, const trn_series *s, int points, uint64_t now)
{
    if (points <= 0)
        return;
    trn_json_open(j, key, '{');
    int step = s->n > points ? (s->n + points - 1) / points : 1;
    trn_json_num(j, "begin_s", s->start_ns ? -ago(now, s->start_ns) : 0);
    trn_json_num(j, "span_s", (double)s->bin_ns * step / 1e9);
    trn_json_open(j, "mean", '[');
    for (int i = 0; i < s->n; i += step) {
        double sum = 0;
        uint64_t count = 0;
        for (int k = i; k < i + step && k < s->n; k++) {
            sum += s->sum[k];
            count += s->count[k];
        }
        trn_json_num(j, NULL, count ? sum / (double)count : NAN);
    }
    trn_json_close(j);
    trn_json_close(j);
}

/* The time by which a share of the steps was over, from the histogram: between the bounds of its bucket, as if evenly spread. */
static double quantile_us(const uint64_t *bucket, uint64_t total, double q)
{
    double want = q * (double)total, sum = 0;
    for (int i = 0; i < TRN_HIST_BUCKETS; i++) {
        if (bucket[i] && sum + (double)bucket[i] >= want) {
            double low = i ? (double)(UINT64_C(1) << (i - 1)) : 0, high = (double)(UINT64_C(1) << i);
            return low + (high - low) * (want - sum) / (double)bucket[i];
        }
        sum += (double)bucket[i];
    }
    return 0;
}

static void put_hist(trn_json *j, const char *key, const trn_hist *h)
{
    uint64_t bucket[TRN_HIST_BUCKETS], total = 0;
    int last = -1;
    for (int i = 0; i < TRN_HIST_BUCKETS; i++) {
        bucket[i] = atomic_load_explicit(&h->bucket[i], memory_order_relaxed);
        total += bucket[i];
        if (bucket[i])
            last = i;
    }
    trn_json_open(j, key, '{');
    trn_json_uint(j, "count", total);
    trn_json_num(j, "mean_us", total ? (double)atomic_load_explicit(&h->sum_us, memory_order_relaxed) / (double)total : 0);
    trn_json_num(j, "p50_us", quantile_us(bucket, total, .5));
    trn_json_num(j, "p90_us", quantile_us(bucket, total, .9));
    trn_json_num(j, "p99_us", quantile_us(bucket, total, .99));
    trn_json_open(j, "buckets", '[');
    for (int i = 0; i <= last; i++)
        trn_json_uint(j, NULL, bucket[i]);
    trn_json_close(j);
    trn_json_close(j);
}

/* ---- samples ---------------------------------------------------------------------------------------------------- */

static void add_traffic(void *arg, const trn_traffic *t)
{
    uint64_t *sum = arg;
    sum[0] += atomic_load_explicit(&t->in, memory_order_relaxed);
    sum[1] += atomic_load_explicit(&t->out, memory_order_relaxed);
}

static double rate(uint64_t now, uint64_t before, double over)
{
    return now > before && over > 0 ? (double)(now - before) / over : 0;
}

static void sample(void *arg) /* [loop] */
{
    trn_status *s = arg;
    uint64_t now = trn_now_ns(), sum[2] = {0, 0};
    trn_traffic_each(add_traffic, sum);
    samples *p = &s->s;
    uint64_t parts = hist_count(trn_worker_part_time(s->o.worker)), steps = hist_count(trn_master_step_time(s->o.master)), cpu = cpu_us();
    uint64_t rss = rss_bytes();
    trn_lock(&s->mu);
    double over = ago(now, p->at_ns);
    if (p->at_ns) {
        trn_series_add(&p->part_rate, now, rate(parts, p->parts, over));
        trn_series_add(&p->step_rate, now, rate(steps, p->steps, over));
        trn_series_add(&p->in_rate, now, rate(sum[0], p->in, over));
        trn_series_add(&p->out_rate, now, rate(sum[1], p->out, over));
        trn_series_add(&p->cpu, now, rate(cpu, p->cpu_us, over) / 1e4);
        trn_series_add(&p->rss, now, (double)rss);
    }
    p->at_ns = now;
    p->parts = parts;
    p->steps = steps;
    p->in = sum[0];
    p->out = sum[1];
    p->cpu_us = cpu;
    trn_unlock(&s->mu);
    trn_timer_start(s->o.loop, &s->timer, now + SECOND, sample, s);
}

/* ---- waits ------------------------------------------------------------------------------------------------------- */

typedef struct one_wait {
    int64_t step;
    uint64_t since_ns;
    char op[48], node[200], key[240], peer[120], state[160];
} one_wait;

typedef struct wait_list {
    const trn_status *s;
    uint64_t now;
    int n, max;
    one_wait *v;
    int total;
} wait_list;

static one_wait *keep_wait(wait_list *l, uint64_t since_ns)
{
    if (since_ns + WAIT_SHOWN > l->now)
        return NULL;
    l->total++;
    if (l->n < l->max)
        return &l->v[l->n++];
    int newest = 0;
    for (int i = 1; i < l->n; i++)
        if (l->v[i].since_ns > l->v[newest].since_ns)
            newest = i;
    return l->v[newest].since_ns > since_ns ? &l->v[newest] : NULL;
}

static const char *text_attr(const trn_node *n, const char *name)
{
    const trn_attr *a = trn_node_attr(n, name);
    return a && a->kind == TRN_ATTR_STRING && !a->is_list ? trn_attr_str(n, name) : NULL;
}

static void see_wait(void *arg, const trn_parked *p)
{
    wait_list *l = arg;
    const char *op = p->node->op;
    if (strstr(op, "Call") || strcmp(op, "If") == 0 || strcmp(op, "While") == 0 || strcmp(op, "Case") == 0 || strncmp(op, "Stateless", 9) == 0)
        return; /* what waits is inside them */
    one_wait *w = keep_wait(l, p->since_ns);
    if (!w)
        return;
    *w = (one_wait){.step = p->step_id, .since_ns = p->since_ns};
    snprintf(w->op, sizeof w->op, "%s", op);
    snprintf(w->node, sizeof w->node, "%s", p->node->name);
    const char *from = text_attr(p->node, "send_device"), *tensor = text_attr(p->node, "tensor_name");
    if (from && tensor) {
        short_task(w->peer, sizeof w->peer, from);
        snprintf(w->key, sizeof w->key, "%s", tensor);
        return;
    }
    /* It waits for whoever fills or empties what its first input names. */
    const trn_gnode *gn = TRN_CONTAINER(p->node, trn_gnode, n);
    if (gn->n.n_in > 0 && gn->in[0].node >= 0) {
        const trn_node *what = &p->graph->node[gn->in[0].node]->n;
        const char *shared = text_attr(what, "shared_name"); /* by which other programs know it, and the list of queues */
        snprintf(w->key, sizeof w->key, "%s", shared && *shared ? shared : what->name);
    }
}

static void see_create(void *arg, const char *task, const char *address, uint64_t since_ns, const char *state)
{
    one_wait *w = keep_wait(arg, since_ns);
    if (!w)
        return;
    *w = (one_wait){.step = -1, .since_ns = since_ns};
    snprintf(w->op, sizeof w->op, "CreateSession");
    short_task(w->peer, sizeof w->peer, task);
    snprintf(w->state, sizeof w->state, "%s", state);
}

static int longest_first(const void *a, const void *b)
{
    const one_wait *x = a, *y = b;
    return x->since_ns < y->since_ns ? -1 : x->since_ns > y->since_ns;
}

static void put_waits(trn_json *j, const trn_status *s, int max, uint64_t now)
{
    wait_list l = {.s = s, .now = now, .max = max, .v = trn_xalloc(sizeof *l.v * (size_t)max)};
    trn_waits_each(s->o.waits, 4096, see_wait, &l);
    trn_master_each_wait(s->o.master, see_create, &l);
    qsort(l.v, (size_t)l.n, sizeof *l.v, longest_first);
    trn_json_int(j, "n_waits", l.total);
    trn_json_open(j, "waits", '[');
    for (int i = 0; i < l.n; i++) {
        const one_wait *w = &l.v[i];
        trn_json_open(j, NULL, '{');
        trn_json_str(j, "op", w->op);
        if (*w->node)
            trn_json_str(j, "node", w->node);
        if (*w->key)
            trn_json_str(j, "key", w->key);
        if (*w->peer) {
            const char *address = address_of(s, w->peer);
            trn_json_str(j, "peer", w->peer);
            if (address)
                trn_json_str(j, "address", address);
        }
        if (w->step >= 0)
            trn_json_strf(j, "step", "%" PRId64, w->step);
        if (*w->state)
            trn_json_str(j, "state", w->state);
        trn_json_num(j, "for_s", ago(now, w->since_ns));
        trn_json_close(j);
    }
    trn_json_close(j);
    free(l.v);
}

/* ---- variables and what is filled --------------------------------------------------------------------------------- */

typedef struct one_var {
    char name[160], container[64];
    trn_var_look look;
    bool ref;
} one_var;

typedef struct one_fill {
    char name[160];
    trn_res_fill f;
} one_fill;

typedef struct res_list {
    int n_var, max_var, n_fill, max_fill;
    one_var *var; /* a heap, the smallest on top */
    one_fill *fill;
    size_t vars, bytes, fills;
} res_list;

static bool smaller(const one_var *a, const one_var *b)
{
    return a->look.bytes < b->look.bytes;
}

static void sift_down(one_var *v, int n, int i)
{
    for (int child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && smaller(&v[child + 1], &v[child]))
            child++;
        if (!smaller(&v[child], &v[i]))
            return;
        one_var t = v[i];
        v[i] = v[child];
        v[child] = t;
    }
}

static void see_variable(res_list *l, const char *container, const char *name, trn_resource *r)
{
    trn_var_look look;
    trn_var_peek(&look, (trn_var *)r);
    l->vars++;
    l->bytes += look.bytes;
    /* Scalars that count steps matter more than their size says. */
    bool full_list = l->n_var == l->max_var;
    if (l->max_var == 0 || (full_list && look.bytes <= l->var[0].look.bytes))
        return;
    one_var *v = full_list ? &l->var[0] : &l->var[l->n_var++];
    v->look = look;
    v->ref = r->type == &trn_refvar_type;
    snprintf(v->name, sizeof v->name, "%s", name);
    snprintf(v->container, sizeof v->container, "%s", container);
    if (l->n_var == l->max_var)
        for (int i = full_list ? 0 : l->n_var / 2; i >= 0; i--)
            sift_down(l->var, l->n_var, i);
}

static void see_resource(void *arg, const char *container, const char *name, trn_resource *r)
{
    res_list *l = arg;
    if (r->type == &trn_var_type || r->type == &trn_refvar_type) {
        see_variable(l, container, name, r);
    } else if (r->type->fill) {
        l->fills++;
        if (l->n_fill == l->max_fill)
            return;
        one_fill *f = &l->fill[l->n_fill++];
        snprintf(f->name, sizeof f->name, "%s", name);
        if (!r->type->fill(r, &f->f))
            f->f = (trn_res_fill){.kind = r->type->name, .count = -1, .capacity = -1, .step = -1};
    }
}

static int largest_first(const void *a, const void *b)
{
    const one_var *x = a, *y = b;
    if (x->look.bytes != y->look.bytes)
        return x->look.bytes > y->look.bytes ? -1 : 1;
    return strcmp(x->name, y->name);
}

static void put_shape(trn_json *j, const char *key, const trn_shape *shape)
{
    if (shape->rank < 0) {
        trn_json_null(j, key);
        return;
    }
    trn_json_open(j, key, '[');
    for (int i = 0; i < shape->rank; i++)
        trn_json_int(j, NULL, shape->dim[i]);
    trn_json_close(j);
}

static void put_fill(trn_json *j, const one_fill *f)
{
    trn_json_open(j, NULL, '{');
    trn_json_str(j, "kind", f->f.kind);
    trn_json_str(j, "name", f->name);
    if (f->f.count < 0) {
        trn_json_bool(j, "busy", true);
    } else {
        trn_json_int(j, "count", f->f.count);
        if (f->f.capacity >= 0)
            trn_json_int(j, "capacity", f->f.capacity);
        if (f->f.incomplete)
            trn_json_int(j, "incomplete", f->f.incomplete);
        if (f->f.step >= 0)
            trn_json_int(j, "step", f->f.step);
        trn_json_int(j, "waiting_to_put", f->f.putters);
        trn_json_int(j, "waiting_to_take", f->f.takers);
        if (f->f.closed)
            trn_json_bool(j, "closed", true);
    }
    trn_json_close(j);
}

static void put_resources(trn_json *j, const trn_status *s, const limits *lim)
{
    res_list l = {.max_var = lim->variables, .max_fill = lim->resources};
    l.var = trn_xalloc(sizeof *l.var * (size_t)lim->variables);
    l.fill = trn_xalloc(sizeof *l.fill * (size_t)lim->resources);
    trn_resmgr_each(trn_worker_resmgr(s->o.worker), see_resource, &l);
    qsort(l.var, (size_t)l.n_var, sizeof *l.var, largest_first);
    trn_json_open(j, "variables", '{');
    trn_json_uint(j, "count", l.vars);
    trn_json_uint(j, "bytes", l.bytes);
    trn_json_open(j, "list", '[');
    for (int i = 0; i < l.n_var; i++) {
        const one_var *v = &l.var[i];
        trn_json_open(j, NULL, '{');
        trn_json_str(j, "name", v->name);
        if (*v->container && strcmp(v->container, "localhost") != 0)
            trn_json_str(j, "container", v->container);
        trn_json_str(j, "dtype", trn_dtype_name(v->look.dtype));
        put_shape(j, "shape", &v->look.shape);
        trn_json_uint(j, "bytes", v->look.bytes);
        if (!v->look.initialised)
            trn_json_bool(j, "initialised", false);
        if (v->look.has_number)
            trn_json_num(j, "value", v->look.number);
        trn_json_close(j);
    }
    trn_json_close(j);
    trn_json_close(j);
    trn_json_open(j, "resources", '{');
    trn_json_uint(j, "count", l.fills);
    trn_json_open(j, "list", '[');
    for (int i = 0; i < l.n_fill; i++)
        put_fill(j, &l.fill[i]);
    trn_json_close(j);
    trn_json_close(j);
    free(l.var);
    free(l.fill);
}

/* ---- traffic ------------------------------------------------------------------------------------------------------- */

typedef struct flow {
    char who[80];
    uint64_t in, out;
    int connections;
} flow;

typedef struct flow_list {
    const trn_status *s;
    flow *v;
    int n, cap;
} flow_list;

static void see_traffic(void *arg, const trn_traffic *t)
{
    flow_list *l = arg;
    flow f = {.in = atomic_load_explicit(&t->in, memory_order_relaxed), .out = atomic_load_explicit(&t->out, memory_order_relaxed),
              .connections = atomic_load_explicit(&t->connections, memory_order_relaxed)};
    if (!f.in && !f.out)
        return;
    snprintf(f.who, sizeof f.who, "%s", t->peer);
    for (int i = 0; !t->inbound && i < l->s->n_peers; i++)
        if (strcmp(l->s->peers[i].address, t->peer) == 0)
            snprintf(f.who, sizeof f.who, "%.60s/%d", l->s->peers[i].job, l->s->peers[i].index);
    for (int i = 0; i < l->n; i++)
        if (strcmp(l->v[i].who, f.who) == 0) {
            l->v[i].in += f.in;
            l->v[i].out += f.out;
            l->v[i].connections += f.connections;
            return;
        }
    TRN_PUSH(l->v, l->n, l->cap, f);
}

static int busiest_first(const void *a, const void *b)
{
    const flow *x = a, *y = b;
    uint64_t p = x->in + x->out, q = y->in + y->out;
    return p > q ? -1 : p < q;
}

static void put_traffic(trn_json *j, trn_status *s, const limits *lim, uint64_t now)
{
    uint64_t sum[2] = {0, 0};
    trn_traffic_each(add_traffic, sum);
    trn_json_open(j, "traffic", '{');
    trn_lock(&s->mu);
    trn_json_uint(j, "in_bytes", sum[0]);
    trn_json_uint(j, "out_bytes", sum[1]);
    trn_json_num(j, "in_per_s", s->s.in_rate.last);
    trn_json_num(j, "out_per_s", s->s.out_rate.last);
    put_series(j, "in_history", &s->s.in_rate, lim->points, now);
    put_series(j, "out_history", &s->s.out_rate, lim->points, now);
    trn_unlock(&s->mu);
    if (lim->peers) {
        flow_list l = {.s = s};
        trn_traffic_each(see_traffic, &l);
        if (l.n)
            qsort(l.v, (size_t)l.n, sizeof *l.v, busiest_first);
        trn_json_open(j, "peers", '[');
        for (int i = 0; i < l.n && i < lim->peers; i++) {
            trn_json_open(j, NULL, '{');
            trn_json_str(j, "peer", l.v[i].who);
            trn_json_uint(j, "in_bytes", l.v[i].in);
            trn_json_uint(j, "out_bytes", l.v[i].out);
            trn_json_int(j, "connections", l.v[i].connections);
            trn_json_close(j);
        }
        trn_json_close(j);
        free(l.v);
    }
    trn_json_close(j);
}

/* ---- this task ------------------------------------------------------------------------------------------------------ */

typedef struct put_ctx {
    trn_json *j;
    uint64_t now;
    int points;
} put_ctx;

static void put_error(void *arg, const trn_recent *r)
{
    static const char *const levels[] = {"debug", "info", "warning", "error"};
    put_ctx *c = arg;
    trn_json_open(c->j, NULL, '{');
    trn_json_str(c->j, "level", levels[TRN_MIN(r->level, TRN_LOG_ERROR)]);
    trn_json_str(c->j, "from", r->module);
    trn_json_str(c->j, "text", r->text);
    trn_json_uint(c->j, "count", r->count);
    trn_json_num(c->j, "ago_s", ago(c->now, r->last_ns));
    trn_json_close(c->j);
}

static void put_scalar(void *arg, const char *tag, const trn_series *s)
{
    put_ctx *c = arg;
    trn_json_open(c->j, NULL, '{');
    trn_json_str(c->j, "tag", tag);
    trn_json_num(c->j, "last", s->last);
    trn_json_uint(c->j, "count", s->total);
    put_series(c->j, "history", s, c->points, c->now);
    trn_json_close(c->j);
}

static void put_steps(trn_json *j, trn_status *s, const limits *lim, const trn_worker_stats *ws, uint64_t now)
{
    trn_json_open(j, "steps", '{');
    trn_json_uint(j, "live", ws->steps);
    put_hist(j, "part_time", trn_worker_part_time(s->o.worker));
    put_hist(j, "step_time", trn_master_step_time(s->o.master));
    trn_lock(&s->mu);
    trn_json_num(j, "parts_per_s", s->s.part_rate.last);
    trn_json_num(j, "steps_per_s", s->s.step_rate.last);
    put_series(j, "part_history", &s->s.part_rate, lim->points, now);
    put_series(j, "step_history", &s->s.step_rate, lim->points, now);
    trn_unlock(&s->mu);
    trn_json_close(j);
}

static void put_process(trn_json *j, trn_status *s, const limits *lim, uint64_t now)
{
    trn_json_open(j, "process", '{');
    trn_json_int(j, "pid", getpid());
    trn_json_str(j, "host", s->host);
    trn_json_uint(j, "rss_bytes", rss_bytes());
    trn_json_num(j, "cpu_s", (double)cpu_us() / 1e6);
    trn_json_int(j, "cores", sysconf(_SC_NPROCESSORS_ONLN));
    trn_lock(&s->mu);
    trn_json_num(j, "cpu_percent", s->s.cpu.last);
    put_series(j, "cpu_history", &s->s.cpu, lim->points, now);
    put_series(j, "rss_history", &s->s.rss, lim->points, now);
    trn_unlock(&s->mu);
    trn_buf_stats b = trn_buf_pool_stats();
    trn_json_uint(j, "buffers_live_bytes", b.live_bytes);
    trn_json_uint(j, "buffers_cached_bytes", b.cached_bytes);
    trn_json_close(j);
}

static void put_sessions(trn_json *j, trn_status *s, int max, uint64_t now)
{
    trn_session_look v[64];
    size_t total = trn_master_look(s->o.master, v, (size_t)max), n = TRN_MIN(total, (size_t)max);
    trn_json_open(j, "sessions", '{');
    trn_json_uint(j, "count", total);
    trn_json_open(j, "list", '[');
    for (size_t i = 0; i < n; i++) {
        trn_json_open(j, NULL, '{');
        trn_json_str(j, "handle", v[i].handle);
        trn_json_num(j, "age_s", ago(now, v[i].born_ns));
        trn_json_uint(j, "steps", v[i].steps);
        if (v[i].running >= 0) {
            trn_json_int(j, "running", v[i].running);
            trn_json_int(j, "nodes", v[i].nodes);
        }
        trn_json_int(j, "tasks", v[i].tasks);
        trn_json_close(j);
    }
    trn_json_close(j);
    trn_json_close(j);
}

static void put_task(trn_json *j, const char *key, trn_status *s, const limits *lim)
{
    uint64_t now = trn_now_ns();
    trn_worker_stats ws = trn_worker_count(s->o.worker);
    put_ctx c = {j, now, lim->points};
    trn_json_open(j, key, '{');
    trn_json_strf(j, "name", "%s/%d", s->o.job, s->o.task);
    trn_json_str(j, "job", s->o.job);
    trn_json_int(j, "index", s->o.task);
    trn_json_str(j, "address", s->address);
    trn_json_str(j, "version", TRAINERA_VERSION);
    trn_json_strf(j, "incarnation", "%016" PRIx64, trn_worker_incarnation(s->o.worker));
    trn_json_num(j, "uptime_s", ago(now, s->start_ns));
    if (s->o.stand_in)
        trn_json_bool(j, "stand_in", true);
    put_process(j, s, lim, now);
    put_steps(j, s, lim, &ws, now);
    put_traffic(j, s, lim, now);
    put_waits(j, s, lim->waits, now);
    put_resources(j, s, lim);
    put_sessions(j, s, lim->sessions, now);
    trn_json_uint(j, "worker_sessions", ws.sessions);
    trn_json_uint(j, "graphs", ws.graphs);
    trn_json_open(j, "errors", '[');
    trn_recent_each(lim->errors, put_error, &c);
    trn_json_close(j);
    trn_json_open(j, "scalars", '[');
    trn_scalar_each(lim->scalars, put_scalar, &c);
    trn_json_close(j);
    trn_json_close(j);
}

/* ---- the others ------------------------------------------------------------------------------------------------------ */

static void peer_down(peer *p, const char *why)
{
    p->state = DOWN;
    free(p->error);
    p->error = trn_xstrdup(why);
    free(p->json);
    p->json = NULL;
}

/* Text that goes into our document must be JSON, whatever a peer says; control characters and HTML are the page's business. */
static bool is_json_object(const uint8_t *p, size_t n)
{
    if (n > MAX_ANSWER)
        return false;
    json_t *v = json_loadb((const char *)p, n, 0, NULL);
    bool ok = v && json_is_object(v);
    json_decref(v);
    return ok;
}

static void peer_answered(void *arg, trn_err err, const trn_msg *msg)
{
    peer *p = arg;
    uint64_t now = trn_now_ns();
    bool good = !err && is_json_object(msg->p, msg->n);
    trn_lock(&p->st->mu);
    p->asked = false;
    if (err && trn_err_code(err) != TRN_UNIMPLEMENTED) {
        peer_down(p, trn_err_msg(err));
    } else { /* UNIMPLEMENTED is an answer too: TensorFlow's own server */
        p->state = UP;
        p->heard_ns = now;
        p->rtt_ns = now - p->asked_ns;
        p->ours = good;
        free(p->error);
        p->error = NULL;
        free(p->json);
        p->json = good ? trn_xstrndup((const char *)msg->p, msg->n) : NULL;
        p->json_n = good ? msg->n : 0;
    }
    trn_unlock(&p->st->mu);
    trn_err_free(err);
}

/* Asks everybody, if that was not done just now: while somebody looks, about once a second. */
static void ask_peers(trn_status *s)
{
    uint64_t now = trn_now_ns(), every = TRN_MAX(SECOND * 9 / 10, SECOND / 100 * (uint64_t)s->n_peers);
    trn_lock(&s->mu);
    bool due = s->last_round_ns == 0 || now - s->last_round_ns >= every;
    if (due)
        s->last_round_ns = now;
    int from = s->round_from;
    if (due && s->n_peers > ROUND_MAX)
        s->round_from = (from + ROUND_MAX) % s->n_peers;
    trn_unlock(&s->mu);
    for (int k = 0; due && k < TRN_MIN(s->n_peers, ROUND_MAX); k++) {
        peer *p = &s->peers[(from + k) % s->n_peers];
        trn_lock(&s->mu);
        bool ask = !p->self && !p->asked;
        if (ask) {
            p->asked = true;
            p->asked_ns = now;
        }
        trn_unlock(&s->mu);
        if (!ask)
            continue;
        trn_out_msg m = {0};
        trn_out_bytes(&m, s->n_peers > 24 ? "s" : "b", 1);
        trn_channel *ch = trn_peers_get(trn_worker_peers(s->o.worker), p->address);
        p->asked_ns = trn_now_ns();
        trn_channel_call(NULL, ch, PATH_STATUS, &m, &(trn_call_opts){.deadline_ns = now + 3 * SECOND}, peer_answered, p);
        trn_channel_unref(ch);
    }
}

static void put_cluster(trn_json *j, trn_status *s)
{
    static const char *const states[] = {"unknown", "up", "down"};
    uint64_t now = trn_now_ns();
    trn_json_open(j, "cluster", '{');
    trn_json_int(j, "n_tasks", s->n_peers);
    trn_json_open(j, "tasks", '[');
    trn_lock(&s->mu);
    for (int i = 0; i < s->n_peers; i++) {
        const peer *p = &s->peers[i];
        trn_json_open(j, NULL, '{');
        trn_json_strf(j, "name", "%s/%d", p->job, p->index);
        trn_json_str(j, "job", p->job);
        trn_json_int(j, "index", p->index);
        trn_json_str(j, "address", p->self && s->address ? s->address : p->address);
        trn_json_str(j, "state", p->self ? "up" : states[p->state]);
        if (p->self)
            trn_json_bool(j, "self", true);
        if (!p->self && p->state == UP)
            trn_json_str(j, "kind", p->ours ? "trainera" : "other");
        if (p->rtt_ns)
            trn_json_num(j, "round_trip_ms", (double)p->rtt_ns / 1e6);
        if (p->heard_ns)
            trn_json_num(j, "heard_s", ago(now, p->heard_ns));
        if (p->error)
            trn_json_str(j, "error", p->error);
        if (p->json)
            trn_json_raw(j, "task", p->json, p->json_n);
        trn_json_close(j);
    }
    trn_unlock(&s->mu);
    trn_json_close(j);
    trn_json_close(j);
}

/* ---- on the wire ------------------------------------------------------------------------------------------------------ */

void trn_status_json(trn_status *s, trn_sb *out)
{
    trn_json j = {.out = out};
    trn_json_open(&j, NULL, '{');
    trn_json_int(&j, "schema", 1);
    trn_json_uint(&j, "time_us", trn_wall_us());
    put_task(&j, "task", s, &full);
    put_cluster(&j, s);
    trn_json_close(&j);
    trn_sb_adds(out, "\n");
}

static void get_status(void *svc, const char *path, const char *query, trn_http_reply *out) /* [loop] */
{
    trn_status *s = svc;
    ask_peers(s);
    out->content_type = "application/json";
    trn_status_json(s, &out->body);
}

static int number_in(const char *query, const char *name, int max)
{
    const char *at = strstr(query, name);
    long v = at && (at == query || at[-1] == '&') ? strtol(at + strlen(name), NULL, 10) : 0;
    return v < 0 ? 0 : v > max ? max : (int)v;
}

/* /trace?start&parts=N&seconds=S, /trace?stop gives what was recorded, /trace says how it stands. */
static void get_trace(void *svc, const char *path, const char *query, trn_http_reply *out) /* [loop] */
{
    trn_status *s = svc;
    trn_capture *c = trn_worker_capture(s->o.worker);
    bool stop = strncmp(query, "stop", 4) == 0;
    if (strncmp(query, "start", 5) == 0) {
        int seconds = number_in(query, "seconds=", 4000);
        trn_capture_start(c, number_in(query, "parts=", 10000), (uint64_t)(seconds ? seconds : 60) * SECOND);
    } else if (stop) {
        trn_capture_stop(c);
    }
    int dropped, parts = trn_capture_count(c, &dropped);
    out->content_type = "application/json";
    trn_json j = {.out = &out->body};
    trn_json_open(&j, NULL, '{');
    trn_json_strf(&j, "task", "%s/%d", s->o.job, s->o.task);
    trn_json_uint(&j, "time_us", trn_wall_us());
    trn_json_bool(&j, "recording", trn_capture_on(c));
    trn_json_int(&j, "n_parts", parts);
    trn_json_int(&j, "dropped", dropped);
    if (stop) {
        trn_sb all = {0};
        trn_capture_json(c, &all);
        trn_json_raw(&j, "parts", all.p, all.n);
        trn_sb_fini(&all);
    }
    trn_json_close(&j);
    trn_sb_adds(&out->body, "\n");
}

/* What another task asks for: one letter says how much of it. */
static void tell_peer(void *svc, trn_call *call) /* [loop] */
{
    trn_sb text = {0};
    const trn_msg *q = trn_call_request(call);
    trn_json j = {.out = &text};
    put_task(&j, NULL, svc, q->n > 0 && q->p[0] == 's' ? &small : &brief);
    trn_out_msg m = {0};
    trn_out_bytes(&m, text.p, text.n);
    trn_sb_fini(&text);
    trn_call_reply(call, TRN_OK, &m);
}

void trn_status_serve(trn_status *s, trn_rpc_server *rpc)
{
    static const trn_rpc_method methods[] = {{PATH_STATUS, tell_peer, NULL, 16}, {NULL}};
    trn_rpc_server_add(rpc, methods, s);
    trn_rpc_server_route(rpc, &trn_page_root);
    trn_rpc_server_route(rpc, &(trn_http_route){"/status.json", get_status, s});
    trn_rpc_server_route(rpc, &(trn_http_route){"/trace", get_trace, s});
}

/* ---- life ---------------------------------------------------------------------------------------------------------------- */

trn_status *trn_status_new(const trn_status_opts *o)
{
    trn_status *s = trn_xalloc(sizeof *s);
    s->o = *o;
    s->start_ns = trn_now_ns();
    trn_mutex_init(&s->mu, TRN_RANK_LEAF);
    gethostname(s->host, sizeof s->host - 1);
    const trn_cluster *c = trn_worker_cluster(o->worker);
    s->peers = trn_xalloc(sizeof *s->peers * (size_t)(c->n_tasks + 1));
    for (int i = 0; i < c->n_jobs; i++)
        for (int k = 0; k < c->jobs[i].n_tasks; k++) {
            const trn_cluster_task *t = &c->jobs[i].tasks[k];
            s->peers[s->n_peers++] = (peer){.st = s, .job = c->jobs[i].name, .index = t->index, .address = t->address,
                                            .self = strcmp(c->jobs[i].name, o->job) == 0 && t->index == o->task};
        }
    samples *p = &s->s;
    p->part_rate.bin_ns = p->step_rate.bin_ns = p->in_rate.bin_ns = p->out_rate.bin_ns = p->cpu.bin_ns = p->rss.bin_ns = SECOND;
    return s;
}

void trn_status_listens(trn_status *s, const char *address)
{
    s->address = trn_xstrdup(address);
    trn_loop_post(s->o.loop, sample, s);
}

void trn_status_free(trn_status *s)
{
    if (!s)
        return;
    for (int i = 0; i < s->n_peers; i++) {
        free(s->peers[i].error);
        free(s->peers[i].json);
    }
    free(s->peers);
    free(s->address);
    trn_mutex_fini(&s->mu);
    free(s);
}
