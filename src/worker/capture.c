#include "worker/capture.h"

#include <inttypes.h>
#include <stdlib.h>

#define CAPTURE_NODES 200000
#define CAPTURE_PARTS 10000

struct trn_capture {
    _Atomic bool on;
    trn_mutex mu;
    trn_sb json; /* parts, with commas between them */
    int parts, nodes, dropped;
    int want; /* parts; 0: no limit of its own */
    uint64_t until_ns;
};

trn_capture *trn_capture_new(void)
{
    trn_capture *c = trn_xalloc(sizeof *c);
    trn_mutex_init(&c->mu, TRN_RANK_LEAF);
    return c;
}

void trn_capture_free(trn_capture *c)
{
    if (!c)
        return;
    trn_sb_fini(&c->json);
    trn_mutex_fini(&c->mu);
    free(c);
}

void trn_capture_start(trn_capture *c, int parts, uint64_t for_ns)
{
    trn_lock(&c->mu);
    trn_sb_fini(&c->json);
    c->json = (trn_sb){0};
    c->parts = c->nodes = c->dropped = 0;
    c->want = parts;
    c->until_ns = trn_now_ns() + for_ns;
    trn_unlock(&c->mu);
    atomic_store(&c->on, true);
}

void trn_capture_stop(trn_capture *c)
{
    atomic_store(&c->on, false);
}

bool trn_capture_on(trn_capture *c)
{
    return TRN_UNLIKELY(atomic_load_explicit(&c->on, memory_order_relaxed));
}

int trn_capture_count(trn_capture *c, int *dropped)
{
    trn_lock(&c->mu);
    int n = c->parts;
    *dropped = c->dropped;
    if (trn_now_ns() > c->until_ns)
        atomic_store(&c->on, false);
    trn_unlock(&c->mu);
    return n;
}

/* Names come from a client: quotes, backslashes and control characters must not end the string. */
static void put_text(trn_sb *out, const char *text)
{
    trn_sb_adds(out, "\"");
    for (const unsigned char *p = (const unsigned char *)text; *p; p++) {
        if (*p == '"' || *p == '\\')
            trn_sb_addf(out, "\\%c", *p);
        else if (*p < 0x20 || *p >= 0x7f) /* node names are ASCII; what is not is only told to be there */
            trn_sb_adds(out, "?");
        else
            trn_sb_add(out, p, 1);
    }
    trn_sb_adds(out, "\"");
}

static const char *text_attr(const trn_node *n, const char *name)
{
    const trn_attr *a = trn_node_attr(n, name);
    return a && a->kind == TRN_ATTR_STRING && !a->is_list ? trn_attr_str(n, name) : NULL;
}

static void put_node(trn_sb *out, const trn_trace_node *n, const trn_graph *g, uint64_t wall_minus_mono_ns)
{
    trn_sb_adds(out, "{\"name\":");
    put_text(out, n->name);
    trn_sb_adds(out, ",\"op\":");
    put_text(out, n->op);
    trn_sb_addf(out, ",\"start_us\":%.3f,\"us\":%.3f,\"thread\":%u,\"bytes\":%" PRId64, (double)((n->start_ns + wall_minus_mono_ns) / 1000) + (double)(n->start_ns % 1000) / 1000,
                (double)(n->end_ns - n->start_ns) / 1000, n->thread, n->out_bytes);
    const trn_gnode *gn = trn_graph_find(g, n->name, strlen(n->name));
    const char *tensor = gn ? text_attr(&gn->n, "tensor_name") : NULL, *from = tensor ? text_attr(&gn->n, "send_device") : NULL, *to = from ? text_attr(&gn->n, "recv_device") : NULL;
    if (to) { /* the two ends of one edge have the same key */
        char *key = trn_xasprintf("%s;%s;%s", from, to, tensor);
        trn_sb_adds(out, ",\"key\":");
        put_text(out, key);
        free(key);
    }
    trn_sb_adds(out, "}");
}

void trn_capture_add(trn_capture *c, int64_t step_id, const trn_trace *t, const trn_graph *g, uint64_t start_ns, uint64_t end_ns)
{
    uint64_t offset = trn_wall_us() * 1000 - trn_now_ns();
    trn_sb part = {0};
    trn_sb_addf(&part, "{\"step\":\"%" PRId64 "\",\"start_us\":%" PRIu64 ",\"end_us\":%" PRIu64 ",\"nodes\":[", step_id, (start_ns + offset) / 1000, (end_ns + offset) / 1000);
    int n = TRN_MIN(t->n, CAPTURE_NODES);
    for (int i = 0; i < n; i++) {
        if (i)
            trn_sb_adds(&part, ",");
        put_node(&part, &t->v[i], g, offset);
    }
    trn_sb_adds(&part, "]}");
    trn_lock(&c->mu);
    if (!atomic_load(&c->on) || c->nodes + n > CAPTURE_NODES || c->parts == CAPTURE_PARTS || trn_now_ns() > c->until_ns) {
        c->dropped++;
        if (trn_now_ns() > c->until_ns)
            atomic_store(&c->on, false);
    } else {
        if (c->parts)
            trn_sb_adds(&c->json, ",");
        trn_sb_add(&c->json, part.p, part.n);
        c->parts++;
        c->nodes += n;
        if (c->want && c->parts >= c->want)
            atomic_store(&c->on, false);
    }
    trn_unlock(&c->mu);
    trn_sb_fini(&part);
}

void trn_capture_json(trn_capture *c, trn_sb *out)
{
    trn_lock(&c->mu);
    trn_sb_adds(out, "[");
    if (c->json.n)
        trn_sb_add(out, c->json.p, c->json.n);
    trn_sb_adds(out, "]");
    trn_unlock(&c->mu);
}
