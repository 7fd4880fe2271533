#include "worker/stats.h"

#include <stdlib.h>

#include "proto/pbw.h"
#include "worker/worker_int.h"

#define STATS_MAX ((size_t)512 << 20) /* bytes: names are a client's, and a loop says them again in each turn */

trn_trace *trn_trace_new(void)
{
    trn_trace *t = trn_xalloc(sizeof *t);
    trn_mutex_init(&t->mu, TRN_RANK_LEAF);
    return t;
}

void trn_trace_free(trn_trace *t)
{
    if (!t)
        return;
    trn_mutex_fini(&t->mu);
    free(t->v);
    free(t);
}

/* "name = Op(in1, in2)": the timeline draws its arrows from it. */
static void put_label(trn_sb *out, const trn_graph *g, const trn_gnode *gn, const trn_trace_node *n)
{
    trn_sb s = {0};
    trn_sb_addf(&s, "%s = %s(", n->name, n->op);
    for (int i = 0; gn && i < gn->n.n_in; i++) {
        const trn_gnode *src = g->node[gn->in[i].node];
        trn_sb_addf(&s, gn->in[i].slot ? "%s%s:%d" : "%s%s", i ? ", " : "", src->n.name, gn->in[i].slot);
    }
    for (int i = 0; gn && i < gn->n_ctl; i++)
        trn_sb_addf(&s, "%s^%s", i || gn->n.n_in ? ", " : "", g->node[gn->ctl[i]]->n.name);
    trn_sb_adds(&s, ")");
    trn_pbw_bytes(out, 8, s.p, s.n);
    trn_sb_fini(&s);
}

static void put_output(trn_sb *out, const trn_trace_node *n)
{
    trn_sb shape = {0}, desc = {0}, alloc = {0}, o = {0};
    for (int i = 0; i < n->shape.rank; i++) {
        trn_sb d = {0};
        trn_pbw_varint(&d, 1, (uint64_t)n->shape.dim[i]);
        trn_pbw_bytes(&shape, 2, d.p, d.n);
        trn_sb_fini(&d);
    }
    trn_pbw_varint(&desc, 1, (uint64_t)n->dtype);
    trn_pbw_bytes(&desc, 2, shape.p, shape.n);
    trn_pbw_varint(&alloc, 1, (uint64_t)n->out_bytes);
    trn_pbw_varint(&alloc, 2, (uint64_t)n->out_bytes);
    trn_pbw_str(&alloc, 3, "cpu");
    trn_pbw_bytes(&desc, 4, alloc.p, alloc.n);
    trn_pbw_bytes(&o, 3, desc.p, desc.n);
    trn_pbw_bytes(out, 7, o.p, o.n);
    trn_sb_fini(&shape);
    trn_sb_fini(&desc);
    trn_sb_fini(&alloc);
    trn_sb_fini(&o);
}

static void put_node(trn_sb *dev, const trn_graph *g, const trn_gnode *gn, const trn_trace_node *n, uint64_t ready_ns,
                     uint64_t wall_minus_mono_ns)
{
    uint64_t start = n->start_ns + wall_minus_mono_ns;
    uint64_t took = TRN_MAX(n->end_ns - n->start_ns, 1000); /* the timeline drops what took no time */
    trn_sb s = {0};
    trn_pbw_str(&s, 1, n->name);
    trn_pbw_varint(&s, 2, start / 1000);
    trn_pbw_varint(&s, 3, 1);
    trn_pbw_varint(&s, 4, took / 1000);
    trn_pbw_varint(&s, 5, took / 1000);
    if (n->dtype != TRN_INVALID)
        put_output(&s, n);
    put_label(&s, g, gn, n);
    trn_pbw_varint(&s, 9, (ready_ns + wall_minus_mono_ns) / 1000);
    trn_pbw_varint(&s, 10, n->thread);
    trn_pbw_varint(&s, 13, start);
    trn_pbw_varint(&s, 14, 1);
    trn_pbw_varint(&s, 15, took);
    trn_pbw_varint(&s, 16, took);
    trn_pbw_bytes(dev, 2, s.p, s.n);
    trn_sb_fini(&s);
}

/* When a node could have run: when the last of its inputs was there, or from the start. Who ends is noted before whoever waits for it begins, so the
 * inputs' ends (`ended`, by node) are known; of a loop they may be those of a later iteration. */
static uint64_t ready_at(const trn_gnode *gn, const trn_trace_node *n, const uint64_t *ended, uint64_t begin)
{
    uint64_t at = begin;
    for (int i = 0; gn && i < gn->n.n_in + gn->n_ctl; i++) {
        int from = i < gn->n.n_in ? gn->in[i].node : gn->ctl[i - gn->n.n_in];
        if (from >= 0 && ended[from] > at)
            at = ended[from];
    }
    return TRN_MIN(at, n->start_ns);
}

void trn_stats_put(trn_sb *out, const trn_trace *t, const trn_graph *g)
{
    uint64_t offset = trn_wall_us() * 1000 - trn_now_ns(), begin = UINT64_MAX;
    uint64_t *ended = trn_xalloc(sizeof *ended * (size_t)(g->n + 1));
    for (int i = 0; i < t->n; i++)
        begin = TRN_MIN(begin, t->v[i].start_ns);
    trn_map *devs = trn_map_new(); /* device → trn_sb */
    size_t bytes = 0;
    for (int i = 0; i < t->n && bytes < STATS_MAX; i++) {
        const trn_trace_node *n = &t->v[i];
        const trn_gnode *gn = trn_graph_find(g, n->name, strlen(n->name));
        const char *dev = gn && gn->n.device ? gn->n.device : "";
        trn_sb *s = trn_map_gets(devs, dev);
        if (!s) {
            s = trn_xalloc(sizeof *s);
            trn_map_puts(devs, dev, s);
            trn_pbw_str(s, 1, dev);
        }
        size_t before = s->n;
        put_node(s, g, gn, n, ready_at(gn, n, ended, begin), offset);
        bytes += s->n - before;
        if (gn)
            ended[gn->id] = n->end_ns;
    }
    free(ended);
    const char *key;
    size_t n;
    void *v;
    for (size_t it = 0; trn_map_next(devs, &it, &key, &n, &v);) {
        trn_sb *s = v;
        trn_pbw_bytes(out, 1, s->p, s->n);
        trn_sb_fini(s);
    }
    trn_map_free(devs, free);
}

void trn_costs_put(trn_sb *out, const trn_trace *t, const trn_graph *g)
{
    for (int i = 0; i < t->n; i++) {
        const trn_trace_node *n = &t->v[i];
        const trn_gnode *gn = trn_graph_find(g, n->name, strlen(n->name));
        trn_sb s = {0}, o = {0};
        trn_pbw_str(&s, 1, n->name);
        trn_pbw_str(&s, 2, gn && gn->n.device ? gn->n.device : "");
        trn_pbw_varint(&s, 3, gn ? (uint64_t)gn->id : (uint64_t)i);
        if (n->dtype != TRN_INVALID) {
            trn_pbw_varint(&o, 1, (uint64_t)n->out_bytes);
            trn_pbw_varint(&o, 2, UINT64_MAX); /* aliases no input */
            trn_pbw_varint(&o, 4, (uint64_t)n->dtype);
            trn_pbw_bytes(&s, 5, o.p, o.n);
        }
        trn_pbw_varint(&s, 9, (n->end_ns - n->start_ns) / 1000);
        trn_pbw_bytes(out, 1, s.p, s.n);
        trn_sb_fini(&s);
        trn_sb_fini(&o);
    }
}

/* ---- the RPC log -------------------------------------------------------------------------------------------------- */

#define LOG_MAX 65536

typedef struct log_entry {
    int64_t step_id;
    char *key;
    uint64_t start_us, end_us;
    size_t bytes;
} log_entry;

struct rpc_log {
    trn_mutex mu;
    _Atomic bool on;
    log_entry *v;
    int n, cap;
};

void trn_rpc_log_init(trn_worker *w)
{
    w->log = trn_xalloc(sizeof *w->log);
    trn_mutex_init(&w->log->mu, TRN_RANK_LEAF);
}

void trn_rpc_log_fini(trn_worker *w)
{
    trn_rpc_log_clear(w);
    free(w->log->v);
    trn_mutex_fini(&w->log->mu);
    free(w->log);
}

bool trn_rpc_log_on(const trn_worker *w)
{
    return atomic_load_explicit(&w->log->on, memory_order_relaxed);
}

void trn_rpc_log_enable(trn_worker *w, bool on)
{
    atomic_store(&w->log->on, on);
}

void trn_rpc_log_clear(trn_worker *w)
{
    trn_lock(&w->log->mu);
    for (int i = 0; i < w->log->n; i++)
        free(w->log->v[i].key);
    w->log->n = 0;
    trn_unlock(&w->log->mu);
}

void trn_rpc_log_add(trn_worker *w, int64_t step_id, const char *key, uint64_t start_us, uint64_t end_us, size_t bytes)
{
    trn_lock(&w->log->mu);
    if (w->log->n < LOG_MAX)
        TRN_PUSH(w->log->v, w->log->n, w->log->cap, (log_entry){step_id, trn_xstrdup(key), start_us, end_us, bytes});
    trn_unlock(&w->log->mu);
}

void trn_rpc_log_put(trn_sb *out, trn_worker *w, int64_t step_id)
{
    trn_sb dev = {0}, stats = {0}, step = {0};
    trn_pbw_str(&dev, 1, w->dev[0].name);
    trn_lock(&w->log->mu);
    for (int i = 0; i < w->log->n; i++) {
        const log_entry *e = &w->log->v[i];
        if (e->step_id != step_id)
            continue;
        trn_sb s = {0}, label = {0};
        trn_pbw_str(&s, 1, "RecvTensor");
        trn_pbw_varint(&s, 2, e->start_us);
        trn_pbw_varint(&s, 4, TRN_MAX(e->end_us - e->start_us, 1));
        trn_pbw_varint(&s, 5, TRN_MAX(e->end_us - e->start_us, 1));
        trn_sb_addf(&label, "[%zuB] %s", e->bytes, e->key);
        trn_pbw_bytes(&s, 8, label.p, label.n);
        trn_pbw_varint(&s, 9, e->start_us);
        trn_pbw_bytes(&dev, 2, s.p, s.n);
        trn_sb_fini(&s);
        trn_sb_fini(&label);
    }
    trn_unlock(&w->log->mu);
    trn_pbw_bytes(&stats, 1, dev.p, dev.n);
    trn_pbw_varint(&step, 1, (uint64_t)step_id);
    trn_pbw_bytes(&step, 2, stats.p, stats.n);
    trn_pbw_bytes(out, 1, step.p, step.n);
    trn_sb_fini(&dev);
    trn_sb_fini(&stats);
    trn_sb_fini(&step);
}
