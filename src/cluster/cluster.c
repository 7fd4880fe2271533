#include "cluster/cluster.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

#include "graph/devname.h"

enum { MAX_TASKS = 100000, MAX_HOST = 253 };

typedef struct trn_cluster_entry {
    char *job;
    char *address;
    int32_t index;
} trn_cluster_entry;

/* ---- addresses ------------------------------------------------------------------------------------------------- */

trn_err trn_address_parse(char *host, size_t host_size, int *port, const char *address, size_t n, bool empty_ok)
{
    int show = (int)TRN_MIN(n, (size_t)200);
    const char *colon = memrchr(address, ':', n);
    if (!colon)
        return trn_errorf(TRN_INVALID_ARGUMENT, "address '%.*s' has no port: host:port is expected", show, address);

    const char *digits = colon + 1, *end = address + n;
    int64_t v = 0;
    bool ok = digits < end && end - digits <= 5;
    for (const char *q = digits; ok && q < end; q++) {
        ok = *q >= '0' && *q <= '9';
        v = v * 10 + (*q - '0');
    }
    if (!ok || v > 65535)
        return trn_errorf(TRN_INVALID_ARGUMENT,
                          "address '%.*s' has a bad port: a number up to 65535 is expected after the colon", show,
                          address);

    const char *h = address;
    size_t hn = (size_t)(colon - address);
    bool brackets = hn >= 2 && h[0] == '[' && h[hn - 1] == ']';
    if (brackets)
        h++, hn -= 2;
    if (hn == 0 && (!empty_ok || brackets))
        return trn_errorf(TRN_INVALID_ARGUMENT, "address '%.*s' has no host: host:port is expected", show, address);
    if (hn > MAX_HOST || hn >= host_size)
        return trn_errorf(TRN_INVALID_ARGUMENT, "address '%.*s…' has a host name of %zu characters; %d are possible",
                          40, address, hn, MAX_HOST);
    for (size_t i = 0; i < hn; i++) {
        if (h[i] == ':' && !brackets)
            return trn_errorf(
                TRN_INVALID_ARGUMENT,
                "address '%.*s' has several colons: write an IPv6 address as [::1]:2222, no scheme in front", show,
                address);
        if ((unsigned char)h[i] <= ' ' || h[i] == 127 || strchr("/,;[]\"'", h[i]))
            return trn_errorf(TRN_INVALID_ARGUMENT, "address '%.*s' has a character in its host that no host name has",
                              show, address);
    }
    memcpy(host, h, hn);
    host[hn] = 0;
    *port = (int)v;
    return TRN_OK;
}

char *trn_address_join(const char *host, int port)
{
    return trn_xasprintf(strchr(host, ':') ? "[%s]:%d" : "%s:%d", host, port);
}

/* ---- builder --------------------------------------------------------------------------------------------------- */

void trn_cluster_builder_fini(trn_cluster_builder *b)
{
    for (int i = 0; i < b->n; i++) {
        free(b->entries[i].job);
        free(b->entries[i].address);
    }
    free(b->entries);
    free(b->own_job);
    *b = (trn_cluster_builder){0};
}

static trn_err check_job(const char *job)
{
    if (!trn_devname_job_ok(job, strlen(job)))
        return trn_errorf(
            TRN_INVALID_ARGUMENT,
            "'%.80s' cannot be the name of a job: a letter, then letters, digits or '_' (at most %d) are expected", job,
            TRN_DEV_JOB_MAX);
    return TRN_OK;
}

trn_err trn_cluster_builder_add(trn_cluster_builder *b, const char *job, int64_t index, const char *address)
{
    TRN_TRY(check_job(job));
    if (index < 0 || index > INT32_MAX)
        return trn_errorf(TRN_INVALID_ARGUMENT, "job '%s' has a task %lld: a number from 0 to %d is expected", job,
                          (long long)index, INT32_MAX);
    char host[MAX_HOST + 1];
    int port;
    trn_err err = trn_address_parse(host, sizeof host, &port, address, strlen(address), b->lenient);
    if (err)
        return trn_err_wrap(err, "/job:%s/task:%d", job, (int)index);
    if (b->n == MAX_TASKS)
        return trn_errorf(TRN_INVALID_ARGUMENT, "more than %d tasks in the cluster", MAX_TASKS);
    trn_cluster_entry e = {.job = trn_xstrdup(job), .index = (int32_t)index};
    e.address = host[0] ? trn_xstrdup(address) : trn_address_join("localhost", port);
    TRN_PUSH(b->entries, b->n, b->cap, e);
    return TRN_OK;
}

trn_err trn_cluster_builder_list(trn_cluster_builder *b, const char *job, const char *hosts)
{
    int64_t index = 0;
    for (const char *p = hosts;; index++) {
        const char *comma = strchrnul(p, ',');
        const char *q = comma;
        while (p < q && *p == ' ')
            p++;
        while (p < q && q[-1] == ' ')
            q--;
        if (p == q)
            return trn_errorf(TRN_INVALID_ARGUMENT, "job '%.80s': the address of task %lld is empty in '%.200s'", job,
                              (long long)index, hosts);
        char *address = trn_xstrndup(p, (size_t)(q - p));
        trn_err err = trn_cluster_builder_add(b, job, index, address);
        free(address);
        TRN_TRY(err);
        if (!*comma)
            return TRN_OK;
        p = comma + 1;
    }
}

trn_err trn_cluster_builder_own(trn_cluster_builder *b, const char *job, int64_t task)
{
    if (job)
        TRN_TRY(check_job(job));
    if (task < 0 || task > INT32_MAX)
        return trn_errorf(TRN_INVALID_ARGUMENT, "task index %lld is out of range: a number from 0 is expected",
                          (long long)task);
    free(b->own_job);
    b->own_job = trn_xstrdup(job ? job : "");
    b->own_task = (int32_t)task;
    return TRN_OK;
}

static int by_job_and_index(const void *va, const void *vb)
{
    const trn_cluster_entry *a = va, *b = vb;
    int c = strcmp(a->job, b->job);
    return c ? c : (a->index > b->index) - (a->index < b->index);
}

static int by_address(const void *va, const void *vb)
{
    const trn_cluster_entry *a = va, *b = vb;
    int c = strcmp(a->address, b->address);
    return c ? c : by_job_and_index(a, b);
}

static bool picks_port(const char *address)
{
    size_t n = strlen(address);
    return n >= 2 && strcmp(address + n - 2, ":0") == 0;
}

static trn_err check_entries(trn_cluster_builder *b)
{
    if (b->n == 0)
        return TRN_OK;
    qsort(b->entries, (size_t)b->n, sizeof *b->entries, by_address);
    for (int i = 1; i < b->n; i++) {
        const trn_cluster_entry *p = &b->entries[i - 1], *q = &b->entries[i];
        if (strcmp(p->address, q->address) != 0 || picks_port(q->address))
            continue;
        if (!b->lenient)
            return trn_errorf(TRN_INVALID_ARGUMENT,
                              "address '%s' is given twice: for /job:%s/task:%d and for /job:%s/task:%d", p->address,
                              p->job, p->index, q->job, q->index);
        TRN_WARN("cluster", "address %s is given twice: for /job:%s/task:%d and for /job:%s/task:%d", p->address,
                 p->job, p->index, q->job, q->index);
    }
    qsort(b->entries, (size_t)b->n, sizeof *b->entries, by_job_and_index);
    for (int i = 1; i < b->n; i++)
        if (by_job_and_index(&b->entries[i - 1], &b->entries[i]) == 0)
            return trn_errorf(TRN_INVALID_ARGUMENT, "/job:%s/task:%d is given twice: as '%s' and as '%s'",
                              b->entries[i].job, b->entries[i].index, b->entries[i - 1].address, b->entries[i].address);
    return TRN_OK;
}

/* From sorted, checked entries. */
static trn_cluster *build(const trn_cluster_builder *b)
{
    trn_arena *a = trn_arena_new();
    trn_cluster *c = trn_arena_alloc(a, sizeof *c);
    atomic_init(&c->ref, 1);
    c->arena = a;
    c->own_task = -1;
    c->n_tasks = b->n;
    for (int i = 0; i < b->n; i++)
        c->n_jobs += i == 0 || strcmp(b->entries[i - 1].job, b->entries[i].job) != 0;
    c->jobs = trn_arena_alloc(a, (size_t)c->n_jobs * sizeof *c->jobs + 1);
    trn_cluster_task *tasks = trn_arena_alloc(a, (size_t)b->n * sizeof *tasks + 1);
    trn_cluster_job *j = c->jobs - 1;
    for (int i = 0; i < b->n; i++) {
        const trn_cluster_entry *e = &b->entries[i];
        if (i == 0 || strcmp(b->entries[i - 1].job, e->job) != 0) {
            j++;
            j->name = trn_arena_strdup(a, e->job);
            j->tasks = &tasks[i];
        }
        j->n_tasks++;
        char host[MAX_HOST + 1];
        trn_cluster_task *t = &tasks[i];
        trn_err_free(trn_address_parse(host, sizeof host, &t->port, e->address, strlen(e->address),
                                       false)); /* was checked when added */
        t->index = e->index;
        t->address = trn_arena_strdup(a, e->address);
        t->host = trn_arena_strdup(a, host);
    }
    return c;
}

static void join_names(trn_sb *out, const trn_cluster *c)
{
    for (int i = 0; i < c->n_jobs; i++)
        trn_sb_addf(out, "%s%s", i ? ", " : "", c->jobs[i].name);
    if (c->n_jobs == 0)
        trn_sb_adds(out, "no job");
}

/* TensorFlow's server says INTERNAL for a self that is not in its ServerDef; so do we when we stand in for it. */
static trn_err set_own(trn_cluster *c, const char *job, int32_t task, bool lenient)
{
    trn_code code = lenient ? TRN_INTERNAL : TRN_INVALID_ARGUMENT;
    if (!*job) {
        if (c->n_jobs != 1)
            return trn_errorf(code, "which job this task belongs to must be said: the cluster has %d jobs", c->n_jobs);
        job = c->jobs[0].name;
    }
    const trn_cluster_job *j = trn_cluster_job_find(c, job);
    if (!j) {
        trn_sb names = {0};
        join_names(&names, c);
        trn_err err = trn_errorf(code, "job \"%s\" was not defined in cluster, which has %s", job, names.p);
        trn_sb_fini(&names);
        return err;
    }
    if (!trn_cluster_task_find(c, job, task))
        return trn_errorf(code, "task %d was not defined in job \"%s\", which has %d task%s, the last being %d", task,
                          job, j->n_tasks, j->n_tasks == 1 ? "" : "s", j->tasks[j->n_tasks - 1].index);
    c->own_job = j->name;
    c->own_task = task;
    return TRN_OK;
}

trn_err trn_cluster_builder_finish(trn_cluster **out, trn_cluster_builder *b)
{
    trn_err err = check_entries(b);
    if (!err) {
        trn_cluster *c = build(b);
        if (b->own_job)
            err = set_own(c, b->own_job, b->own_task, b->lenient);
        if (err)
            trn_cluster_unref(c);
        else
            *out = c;
    }
    trn_cluster_builder_fini(b);
    return err;
}

/* ---- the spec -------------------------------------------------------------------------------------------------- */

trn_cluster *trn_cluster_ref(const trn_cluster *c)
{
    trn_cluster *m = (trn_cluster *)c;
    atomic_fetch_add_explicit(&m->ref, 1, memory_order_relaxed);
    return m;
}

void trn_cluster_unref(trn_cluster *c)
{
    if (c && atomic_fetch_sub_explicit(&c->ref, 1, memory_order_acq_rel) == 1)
        trn_arena_free(c->arena);
}

const trn_cluster_job *trn_cluster_job_find(const trn_cluster *c, const char *job)
{
    int lo = 0, hi = c->n_jobs;
    while (lo < hi) {
        int mid = lo + (hi - lo) / 2, cmp = strcmp(c->jobs[mid].name, job);
        if (cmp == 0)
            return &c->jobs[mid];
        if (cmp < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return NULL;
}

const trn_cluster_task *trn_cluster_task_find(const trn_cluster *c, const char *job, int32_t index)
{
    const trn_cluster_job *j = trn_cluster_job_find(c, job);
    int lo = 0, hi = j ? j->n_tasks : 0;
    while (lo < hi) {
        int mid = lo + (hi - lo) / 2;
        if (j->tasks[mid].index == index)
            return &j->tasks[mid];
        if (j->tasks[mid].index < index)
            lo = mid + 1;
        else
            hi = mid;
    }
    return NULL;
}

/* A copy with one address replaced (task NULL: none) and the same self. Order and checks hold already. */
static trn_err copy(trn_cluster **out, const trn_cluster *c, const trn_cluster_task *task, const char *address)
{
    trn_cluster_builder b = {.lenient = true};
    trn_err err = TRN_OK;
    for (int i = 0; !err && i < c->n_jobs; i++)
        for (int k = 0; !err && k < c->jobs[i].n_tasks; k++) {
            const trn_cluster_task *t = &c->jobs[i].tasks[k];
            err = trn_cluster_builder_add(&b, c->jobs[i].name, t->index, t == task ? address : t->address);
        }
    trn_cluster *d = err ? NULL : build(&b);
    if (!err && c->own_job)
        err = set_own(d, c->own_job, c->own_task, false);
    trn_cluster_builder_fini(&b);
    if (err)
        trn_cluster_unref(d);
    else
        *out = d;
    return err;
}

trn_err trn_cluster_as(trn_cluster **out, const trn_cluster *c, const char *job, int32_t task)
{
    trn_cluster *d;
    TRN_TRY(copy(&d, c, NULL, NULL));
    trn_err err = set_own(d, job, task, false);
    if (err)
        trn_cluster_unref(d);
    else
        *out = d;
    return err;
}

trn_err trn_cluster_with_address(trn_cluster **out, const trn_cluster *c, const char *job, int32_t task,
                                 const char *address)
{
    const trn_cluster_task *t = trn_cluster_task_find(c, job, task);
    if (!t)
        return trn_errorf(TRN_INTERNAL, "there is no /job:%s/task:%d in the cluster", job, task);
    return copy(out, c, t, address);
}

bool trn_cluster_eq(const trn_cluster *a, const trn_cluster *b)
{
    if (a->n_jobs != b->n_jobs || a->n_tasks != b->n_tasks)
        return false;
    for (int i = 0; i < a->n_jobs; i++) {
        const trn_cluster_job *p = &a->jobs[i], *q = &b->jobs[i];
        if (strcmp(p->name, q->name) != 0 || p->n_tasks != q->n_tasks)
            return false;
        for (int k = 0; k < p->n_tasks; k++)
            if (p->tasks[k].index != q->tasks[k].index || strcmp(p->tasks[k].address, q->tasks[k].address) != 0)
                return false;
    }
    return true;
}

void trn_cluster_text(trn_sb *out, const trn_cluster *c)
{
    enum { SHOWN = 8 };
    for (int i = 0; i < c->n_jobs; i++) {
        const trn_cluster_job *j = &c->jobs[i];
        trn_sb_addf(out, "%s%s[", i ? " " : "", j->name);
        for (int k = 0; k < j->n_tasks && k < SHOWN; k++)
            trn_sb_addf(out, "%s%d %s", k ? ", " : "", j->tasks[k].index, j->tasks[k].address);
        if (j->n_tasks > SHOWN)
            trn_sb_addf(out, ", … %d tasks", j->n_tasks);
        trn_sb_adds(out, "]");
    }
    if (c->n_jobs == 0)
        trn_sb_adds(out, "nobody");
}
