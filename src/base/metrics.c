/* Counters, histograms, gauges and their text page.
 *
 * Two locks: `reg_mu` guards the table and is held for a few instructions, so that anybody may register under locks of
 * their own; `page_mu` is held while gauges are asked (their `read` may take any lock) and keeps a gauge from being dropped
 * meanwhile. Counters and histograms live as long as the process.
 */
#include "base/base.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define PREFIX "trainera_"

typedef enum kind { COUNTER, HIST, GAUGE } kind;

typedef struct metric {
    kind kind;
    char *family; /* with the prefix, without labels */
    char *labels; /* what stood between the braces, or "" */
    char *help;
    trn_counter *counter;
    trn_hist *hist;
    double (*read)(void *);
    void *arg;
} metric;

static pthread_mutex_t page_mu = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t reg_mu = PTHREAD_MUTEX_INITIALIZER; /* inside page_mu */
static metric **all;                                       /* under reg_mu */
static size_t n_all, cap_all;

static metric *metric_new(kind k, const char *name, const char *help)
{
    metric *m = trn_xalloc(sizeof *m);
    const char *brace = strchr(name, '{');
    size_t n = brace ? (size_t)(brace - name) : strlen(name);
    bool has = strncmp(name, PREFIX, strlen(PREFIX)) == 0;
    m->kind = k;
    m->family = trn_xasprintf("%s%.*s", has ? "" : PREFIX, (int)n, name);
    size_t l = brace ? strlen(brace + 1) : 0;
    if (l && brace[l] == '}')
        l--;
    m->labels = trn_xstrndup(brace ? brace + 1 : "", l);
    m->help = trn_xstrdup(help ? help : "");
    return m;
}

static void metric_free(metric *m)
{
    free(m->family);
    free(m->labels);
    free(m->help);
    free(m->counter);
    free(m->hist);
    free(m);
}

/* Takes `m`; gives back the one that already has its name, or `m`. */
static metric *enroll(metric *m)
{
    pthread_mutex_lock(&reg_mu);
    for (size_t i = 0; m->kind != GAUGE && i < n_all; i++) {
        metric *o = all[i];
        if (o->kind == m->kind && strcmp(o->family, m->family) == 0 && strcmp(o->labels, m->labels) == 0) {
            pthread_mutex_unlock(&reg_mu);
            metric_free(m);
            return o;
        }
    }
    TRN_PUSH(all, n_all, cap_all, m);
    pthread_mutex_unlock(&reg_mu);
    return m;
}

trn_counter *trn_metric_counter(const char *name, const char *help)
{
    metric *m = metric_new(COUNTER, name, help);
    m->counter = trn_xalloc(sizeof *m->counter);
    return enroll(m)->counter;
}

trn_hist *trn_metric_hist(const char *name, const char *help)
{
    metric *m = metric_new(HIST, name, help);
    m->hist = trn_xalloc(sizeof *m->hist);
    return enroll(m)->hist;
}

void trn_metric_gauge(const char *name, const char *help, double (*read)(void *), void *arg)
{
    metric *m = metric_new(GAUGE, name, help);
    m->read = read;
    m->arg = arg;
    enroll(m);
}

void trn_metric_gauge_drop(void *arg)
{
    pthread_mutex_lock(&page_mu);
    pthread_mutex_lock(&reg_mu);
    size_t keep = 0;
    for (size_t i = 0; i < n_all; i++) {
        if (all[i]->kind == GAUGE && all[i]->arg == arg)
            metric_free(all[i]);
        else
            all[keep++] = all[i];
    }
    n_all = keep;
    pthread_mutex_unlock(&reg_mu);
    pthread_mutex_unlock(&page_mu);
}

void trn_hist_add(trn_hist *h, uint64_t ns)
{
    /* Bucket i counts what took at most 2^i us; the last one has no bound. */
    uint64_t us = (ns + 999) / 1000;
    int i = us <= 1 ? 0 : 64 - __builtin_clzll(us - 1);
    if (i >= TRN_HIST_BUCKETS)
        i = TRN_HIST_BUCKETS - 1;
    atomic_fetch_add_explicit(&h->bucket[i], 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&h->sum_us, (ns + 500) / 1000, memory_order_relaxed);
    atomic_fetch_add_explicit(&h->count, 1, memory_order_relaxed);
}

/* ---- page ----------------------------------------------------------------------------------------------------- */

static void put_head(trn_sb *out, const metric *m)
{
    static const char *const types[] = {"counter", "histogram", "gauge"};
    if (*m->help) {
        trn_sb_addf(out, "# HELP %s ", m->family);
        for (const char *p = m->help; *p; p++) {
            if (*p == '\n')
                trn_sb_adds(out, "\\n");
            else if (*p == '\\')
                trn_sb_adds(out, "\\\\");
            else
                trn_sb_add(out, p, 1);
        }
        trn_sb_adds(out, "\n");
    }
    trn_sb_addf(out, "# TYPE %s %s\n", m->family, types[m->kind]);
}

static void put_name(trn_sb *out, const metric *m, const char *suffix, const char *le)
{
    trn_sb_addf(out, "%s%s", m->family, suffix);
    if (*m->labels || le) {
        trn_sb_addf(out, "{%s", m->labels);
        if (le)
            trn_sb_addf(out, "%sle=\"%s\"", *m->labels ? "," : "", le);
        trn_sb_adds(out, "}");
    }
    trn_sb_adds(out, " ");
}

static void put_hist(trn_sb *out, const metric *m)
{
    uint64_t sum = 0;
    for (int i = 0; i < TRN_HIST_BUCKETS; i++) {
        char le[32];
        if (i + 1 < TRN_HIST_BUCKETS)
            snprintf(le, sizeof le, "%.9g", (double)((uint64_t)1 << i) * 1e-6);
        else
            strcpy(le, "+Inf");
        sum += atomic_load_explicit(&m->hist->bucket[i], memory_order_relaxed);
        put_name(out, m, "_bucket", le);
        trn_sb_addf(out, "%llu\n", (unsigned long long)sum);
    }
    put_name(out, m, "_sum", NULL);
    trn_sb_addf(out, "%.9g\n", (double)atomic_load_explicit(&m->hist->sum_us, memory_order_relaxed) * 1e-6);
    /* The buckets' own sum: a reader rejects a page whose +Inf bucket and count differ, and writers go on meanwhile. */
    put_name(out, m, "_count", NULL);
    trn_sb_addf(out, "%llu\n", (unsigned long long)sum);
}

static void put_metric(trn_sb *out, const metric *m)
{
    switch (m->kind) {
    case COUNTER:
        put_name(out, m, "", NULL);
        trn_sb_addf(out, "%llu\n", (unsigned long long)atomic_load_explicit(&m->counter->v, memory_order_relaxed));
        break;
    case HIST:
        put_hist(out, m);
        break;
    case GAUGE: {
        double v = m->read(m->arg);
        put_name(out, m, "", NULL);
        if (isnan(v))
            trn_sb_adds(out, "NaN\n");
        else if (isinf(v))
            trn_sb_adds(out, v > 0 ? "+Inf\n" : "-Inf\n");
        else
            trn_sb_addf(out, "%.17g\n", v);
        break;
    }
    }
}

void trn_metrics_text(trn_sb *out)
{
    pthread_mutex_lock(&page_mu);
    pthread_mutex_lock(&reg_mu);
    size_t n = n_all;
    metric **list = trn_xalloc(n * sizeof *list);
    if (n)
        memcpy(list, all, n * sizeof *list);
    pthread_mutex_unlock(&reg_mu);
    /* Families in the order of their first member, members together. */
    for (size_t i = 0; i < n; i++) {
        if (!list[i])
            continue;
        const metric *first = list[i];
        put_head(out, first);
        for (size_t j = i; j < n; j++) {
            if (!list[j] || list[j]->kind != first->kind || strcmp(list[j]->family, first->family) != 0)
                continue;
            put_metric(out, list[j]);
            list[j] = NULL;
        }
    }
    free(list);
    pthread_mutex_unlock(&page_mu);
}
