/* Gradients of a stretch of a graph, from its results back to where it starts. Each op has a row (rows.h); this file finds the nodes between the xs and
 * the ys, takes them users first, adds up what came for their outputs and lets their rows say what goes to their inputs.
 *
 * Two callers: builders (gradients.c), and the lowering of SymbolicGradient (trn_gradient_of, below). */
#include <pthread.h>
#include <stdlib.h>

#include "grad/rows.h"

/* ---- rows ------------------------------------------------------------------------------------------------------------------- */

static const trn_grad_row *const families[] = {trn_grads_math, trn_grads_nn, trn_grads_array, trn_grads_state, trn_grads_flow, trn_grads_control, trn_grads_call,
                                                trn_grads_special, trn_grads_linalg, trn_grads_space, trn_grads_sparse, trn_grads_decomp,
                                                trn_grads_signal, trn_grads_ragged, trn_grads_csr};

static struct {
    pthread_once_t once;
    trn_map *rows;
    pthread_mutex_t mu;
    trn_map *users; /* op → struct holding the function; under mu */
} reg = {PTHREAD_ONCE_INIT, NULL, PTHREAD_MUTEX_INITIALIZER, NULL};

static void make_map(void)
{
    static const trn_grad_row ends = {.flags = TRN_GRAD_FLAT};
    reg.rows = trn_map_new();
    for (const char *const *op = trn_grad_ends; *op; op++)
        trn_map_puts(reg.rows, *op, (void *)&ends);
    for (size_t f = 0; f < TRN_COUNTOF(families); f++)
        for (const trn_grad_row *r = families[f]; r->op; r++)
            trn_map_puts(reg.rows, r->op, (void *)r);
}

const trn_grad_row *trn_grad__row(const char *op)
{
    pthread_once(&reg.once, make_map);
    return trn_map_gets(reg.rows, op);
}

const trn_grad_row *trn_grad__row_at(int i)
{
    for (size_t f = 0; f < TRN_COUNTOF(families); f++)
        for (const trn_grad_row *r = families[f]; r->op; r++)
            if (i-- == 0)
                return r;
    return NULL;
}

typedef struct user_row {
    trn_gradient_fn fn;
} user_row;

void trn_gradient_register(const char *op, trn_gradient_fn fn)
{
    pthread_mutex_lock(&reg.mu);
    if (!reg.users)
        reg.users = trn_map_new();
    user_row *u = NULL;
    if (fn) {
        u = trn_xalloc(sizeof *u);
        u->fn = fn;
    }
    free(u ? trn_map_puts(reg.users, op, u) : trn_map_dels(reg.users, op));
    pthread_mutex_unlock(&reg.mu);
}

static trn_gradient_fn user_fn(const char *op)
{
    pthread_mutex_lock(&reg.mu);
    const user_row *u = reg.users ? trn_map_gets(reg.users, op) : NULL;
    trn_gradient_fn fn = u ? u->fn : NULL;
    pthread_mutex_unlock(&reg.mu);
    return fn;
}

bool trn_gradient_known(const char *op) { return user_fn(op) || trn_grad__row(op); }

/* ---- what a row's function sees ---------------------------------------------------------------------------------------------- */

trn_builder *trn_grad_builder(trn_grad_ctx *c) { return c->h->b; }
const trn_node *trn_grad_node(const trn_grad_ctx *c) { return c->n; }
trn_out trn_grad_in(const trn_grad_ctx *c, int i) { return i >= 0 && i < c->n->n_in ? c->h->input(c->h->arg, c->id, i) : TRN_NONE; }
trn_out trn_grad_out(const trn_grad_ctx *c, int i) { return (trn_out){c->id, i}; }
bool trn_grad_has_dy(const trn_grad_ctx *c, int i) { return i >= 0 && i < c->n->n_out && trn_grad_is(c->dy[i]); }
trn_grad trn_grad_dy_any(trn_grad_ctx *c, int i) { return i >= 0 && i < c->n->n_out ? c->dy[i] : TRN_NO_GRAD; }
bool trn_grad_wanted(const trn_grad_ctx *c, int i) { return i >= 0 && i < c->n->n_in && c->want[i]; }

trn_out trn_grad_dy(trn_grad_ctx *c, int i)
{
    if (i < 0 || i >= c->n->n_out)
        return TRN_NONE;
    if (!trn_grad_is(c->dy[i]))
        return trn_g_zeros_like(c, trn_grad_out(c, i));
    return trn_g_dense(c, c->dy[i]);
}

void trn_grad_set(trn_grad_ctx *c, int i, trn_out dx) { trn_grad_set_any(c, i, (trn_grad){dx, TRN_NONE, TRN_NONE}); }

void trn_grad_set_any(trn_grad_ctx *c, int i, trn_grad dx)
{
    if (i >= 0 && i < c->n->n_in)
        c->dx[i] = dx;
}

/* ---- the walk ---------------------------------------------------------------------------------------------------------------- */

typedef struct sums {
    trn_grad *g;
    int n, cap;
} sums;

typedef struct info {
    bool seen;     /* the ys need it */
    bool reached;  /* it needs an x */
    bool has_x;    /* an output of it is an x, or is to stop */
    bool has_stop;
    sums *acc;     /* one per output; NULL when nothing has come yet */
} info;

typedef struct walk {
    trn_ghost *h;
    trn_arena *tmp;
    info *at; /* by node - first */
    const trn_out *xs, *stop;
    int n_xs, n_stop;
} walk;

static bool inside(const walk *w, int id) { return id >= w->h->first && id < w->h->end; }
static info *info_of(const walk *w, int id) { return &w->at[id - w->h->first]; }

static bool among(const trn_out *list, int n, trn_out o)
{
    for (int i = 0; i < n; i++)
        if (list[i].node == o.node && list[i].slot == o.slot)
            return true;
    return false;
}

/* Somebody wants what comes for this tensor. */
static bool wanted(const walk *w, trn_out e)
{
    if (!inside(w, e.node))
        return false;
    const info *in = info_of(w, e.node);
    const trn_node *n = w->h->node(w->h->arg, e.node);
    if (e.slot < 0 || e.slot >= n->n_out || (!w->h->any_type && !trn_g_trainable(trn_dtype_base(n->out_types[e.slot]))))
        return false;
    if (in->has_x && among(w->xs, w->n_xs, e))
        return true;
    return in->reached && !(in->has_stop && among(w->stop, w->n_stop, e));
}

/* Inputs first, from the ys back. Edges that close a loop are not followed twice. Returns how many. */
static int inputs_first(int *order, walk *w, const trn_out *ys, int n_ys)
{
    typedef struct frame {
        int id, next;
    } frame;
    int total = w->h->end - w->h->first, k = 0, depth = 0;
    frame *stack = trn_arena_alloc(w->tmp, ((size_t)total + 1) * sizeof *stack);
    for (int y = 0; y < n_ys; y++) {
        if (!inside(w, ys[y].node) || info_of(w, ys[y].node)->seen)
            continue;
        info_of(w, ys[y].node)->seen = true;
        stack[depth++] = (frame){ys[y].node, 0};
        while (depth) {
            frame *f = &stack[depth - 1];
            const trn_node *n = w->h->node(w->h->arg, f->id);
            if (f->next >= n->n_in) {
                order[k++] = f->id;
                depth--;
                continue;
            }
            trn_out from = w->h->input(w->h->arg, f->id, f->next++);
            if (inside(w, from.node) && w->h->node(w->h->arg, from.node) && !info_of(w, from.node)->seen) {
                info_of(w, from.node)->seen = true;
                stack[depth++] = (frame){from.node, 0};
            }
        }
    }
    return k;
}

static void come(walk *w, trn_out to, trn_grad d)
{
    if (!inside(w, to.node) || !trn_grad_is(d))
        return;
    info *in = info_of(w, to.node);
    const trn_node *n = w->h->node(w->h->arg, to.node);
    if (to.slot < 0 || to.slot >= n->n_out)
        return;
    if (!in->acc)
        in->acc = trn_arena_alloc(w->tmp, (size_t)n->n_out * sizeof *in->acc);
    sums *s = &in->acc[to.slot];
    if (s->n == s->cap) {
        int cap = TRN_MAX(4, 2 * s->cap);
        trn_grad *g = trn_arena_alloc(w->tmp, (size_t)cap * sizeof *g);
        if (s->n)
            memcpy(g, s->g, (size_t)s->n * sizeof *g);
        s->g = g;
        s->cap = cap;
    }
    s->g[s->n++] = d;
}

static trn_out concat(trn_grad_ctx *c, trn_out *part, int n)
{
    part[n] = trn_g_i32(c, 0);
    return trn_g_node(c, "ConcatV2", part, n + 1, NULL, 0);
}

/* The sum of what came for an output. It is kept: an x on the way is asked twice. */
static trn_grad total(walk *w, trn_grad_ctx *c, trn_out of)
{
    const info *in = info_of(w, of.node);
    sums *s = in->acc ? &in->acc[of.slot] : NULL;
    if (!s || !s->n)
        return TRN_NO_GRAD;
    if (s->n == 1)
        return s->g[0];
    bool sparse = true;
    trn_out *v = trn_arena_alloc(w->tmp, ((size_t)s->n + 1) * sizeof *v), *at = trn_arena_alloc(w->tmp, ((size_t)s->n + 1) * sizeof *at);
    for (int i = 0; i < s->n; i++)
        sparse &= trn_grad_is_sparse(s->g[i]);
    trn_grad sum = TRN_NO_GRAD;
    if (sparse) {
        trn_dtype t = trn_g_type(c, s->g[0].indices);
        for (int i = 1; i < s->n; i++)
            if (trn_g_type(c, s->g[i].indices) != t)
                t = TRN_INT64;
        for (int i = 0; i < s->n; i++) {
            v[i] = s->g[i].values;
            at[i] = trn_g_cast(c, s->g[i].indices, t);
        }
        sum = (trn_grad){concat(c, v, s->n), concat(c, at, s->n), s->g[0].dense_shape};
    } else {
        for (int i = 0; i < s->n; i++)
            v[i] = trn_g_dense(c, s->g[i]);
        sum.values = trn_g_node(c, "AddN", v, s->n, NULL, 0);
    }
    s->g[0] = sum;
    s->n = 1;
    return sum;
}

static void by_text(trn_grad_ctx *c, const trn_grad_row *r)
{
    for (int k = 0; k < 4 && k < c->n->n_in; k++) {
        if (!r->in[k] || !c->want[k])
            continue;
        trn_out d = trn_g_eval(c, r->in[k], &TRN_NONE);
        if (r->flags & TRN_GRAD_SPREADS && k < 2)
            d = trn_g_sum_to(c, d, trn_grad_in(c, k), trn_grad_in(c, 1 - k));
        trn_grad_set(c, k, d);
    }
}

static void backward(trn_grad_ctx *c)
{
    const trn_node *n = c->n;
    const char *op = n->op;
    const trn_attr *other = trn_node_attr(n, "_gradient_op_type");
    if (other && other->kind == TRN_ATTR_STRING && !other->is_list)
        op = other->v.s.p;
    trn_gradient_fn fn = c->h->b ? user_fn(op) : NULL;
    if (fn) {
        fn(c);
        return;
    }
    if (op != n->op && !trn_grad__row(op)) {
        /* TensorFlow gives calls a name of this kind always. Any other is somebody's own gradient, and ours would be silently wrong instead of it. */
        if (c->h->b && strncmp(op, "PartitionedCall-", 16) != 0) {
            trn_g_fail(c, trn_errorf(TRN_NOT_FOUND, "the gradient of %s '%s' is to be '%s' (attr _gradient_op_type), which nobody has registered here: say with trn_gradient_register what it is",
                                     n->op, n->name, op));
            return;
        }
        op = n->op;
    }
    const trn_grad_row *r = trn_grad__row(op);
    if (!r && !n->def)
        r = trn_grad__row("PartitionedCall"); /* a function's name as an op */
    if (!r) {
        if (c->h->b)
            trn_g_fail(c, trn_errorf(TRN_NOT_FOUND, "No gradient defined for op: %s (node '%s'). If none is meant to pass here, put trn_stop_gradient behind it; "
                                                    "if it has one, say so with trn_gradient_register", op, n->name));
        else
            trn_g_fail(c, trn_errorf(TRN_NOT_FOUND, "No gradient defined for op: %s (node '%s')", op, n->name));
        return;
    }
    if (r->flags & TRN_GRAD_FLAT)
        return;
    if (r->fn)
        r->fn(c);
    else
        by_text(c, r);
}

/* The nodes that the ys need, inputs first, with those marked that need an x. */
static int prepare(int **order, walk *w, const trn_out *ys, int n_ys)
{
    const trn_ghost *h = w->h;
    int n = h->end - h->first;
    w->at = trn_arena_alloc(w->tmp, ((size_t)n + 1) * sizeof *w->at);
    *order = trn_arena_alloc(w->tmp, ((size_t)n + 1) * sizeof **order);
    for (int i = 0; i < w->n_xs; i++)
        if (inside(w, w->xs[i].node))
            info_of(w, w->xs[i].node)->has_x = true;
    for (int i = 0; i < w->n_stop; i++)
        if (inside(w, w->stop[i].node))
            info_of(w, w->stop[i].node)->has_stop = true;
    int k = inputs_first(*order, w, ys, n_ys);
    for (int i = 0; i < k; i++) {
        int id = (*order)[i];
        const trn_node *nd = h->node(h->arg, id);
        for (int j = 0; j < nd->n_in && !info_of(w, id)->reached; j++)
            info_of(w, id)->reached = wanted(w, h->input(h->arg, id, j));
    }
    return k;
}

int trn_grad__between(int **out, trn_ghost *h, trn_arena *tmp, const char *op, const trn_out *xs, int n_xs, const trn_out *ys, int n_ys)
{
    walk w = {.h = h, .tmp = tmp, .xs = xs, .n_xs = n_xs};
    int *order, n = 0, k = prepare(&order, &w, ys, n_ys);
    for (int i = 0; i < k; i++)
        if (info_of(&w, order[i])->reached && strcmp(h->node(h->arg, order[i])->op, op) == 0)
            order[n++] = order[i];
    *out = order;
    return n;
}

void trn_grad__run(trn_grad *dx, trn_ghost *h, trn_arena *tmp, const trn_out *xs, int n_xs, const trn_out *ys, const trn_grad *dys, int n_ys,
                   const trn_out *stop, int n_stop)
{
    walk w = {.h = h, .tmp = tmp, .xs = xs, .n_xs = n_xs, .stop = stop, .n_stop = n_stop};
    int *order, k = prepare(&order, &w, ys, n_ys);
    for (int i = 0; i < n_ys; i++)
        if (wanted(&w, ys[i]))
            come(&w, ys[i], dys[i]);
    trn_grad_ctx none = {.h = h, .tmp = tmp, .args = &TRN_NONE, .spread = {TRN_NONE, TRN_NONE, TRN_NONE}};
    for (int i = k - 1; i >= 0 && h->ok(h->arg); i--) {
        info *in = info_of(&w, order[i]);
        const trn_node *nd = h->node(h->arg, order[i]);
        if (!in->acc || !in->reached)
            continue;
        int n_in = nd->n_in; /* a loop may get more while its gradient is made */
        trn_grad *dy = trn_arena_alloc(tmp, (size_t)TRN_MAX(nd->n_out, 1) * sizeof *dy), *out = trn_arena_alloc(tmp, (size_t)n_in * sizeof *out);
        bool *want = trn_arena_alloc(tmp, (size_t)n_in * sizeof *want), any = false;
        for (int j = 0; j < nd->n_out; j++) {
            trn_out o = {order[i], j};
            dy[j] = in->has_stop && among(stop, n_stop, o) ? TRN_NO_GRAD : total(&w, &none, o);
            any |= trn_grad_is(dy[j]);
        }
        for (int j = 0; j < nd->n_in; j++) {
            want[j] = wanted(&w, h->input(h->arg, order[i], j));
            out[j] = TRN_NO_GRAD;
        }
        if (!any)
            continue;
        trn_grad_ctx c = none;
        c.id = order[i];
        c.n = nd;
        c.dy = dy;
        c.dx = out;
        c.want = want;
        h->enter(h->arg, order[i]);
        backward(&c);
        h->enter(h->arg, -1);
        for (int j = 0; j < n_in; j++)
            if (want[j])
                come(&w, h->input(h->arg, order[i], j), out[j]);
    }
    for (int i = 0; i < n_xs; i++)
        dx[i] = inside(&w, xs[i].node) && h->ok(h->arg) ? total(&w, &none, xs[i]) : TRN_NO_GRAD;
}

/* ---- lowering of SymbolicGradient --------------------------------------------------------------------------------------------- */

typedef struct low {
    const trn_gradient *q;
    trn_err err;
} low;

static bool low_ok(void *arg) { return !((low *)arg)->err; }

static void low_fail(void *arg, trn_err err)
{
    low *l = arg;
    if (l->err)
        trn_err_free(err);
    else
        l->err = err;
}

static const trn_node *low_node(void *arg, int id)
{
    const trn_gnode *nd = ((low *)arg)->q->g->node[id];
    return nd ? &nd->n : NULL;
}

static trn_out low_input(void *arg, int id, int i)
{
    trn_edge e = ((low *)arg)->q->g->node[id]->in[i];
    return (trn_out){e.node, e.slot};
}

static const trn_shape *low_shape(void *arg, trn_out o) { return NULL; }
static void low_enter(void *arg, int id) {}

static bool low_has_function(void *arg, const char *name)
{
    const trn_graph *g = ((low *)arg)->q->g;
    return g->lib && trn_funclib_has(g->lib, name);
}

/* Attrs that follow from the inputs, in front of those that were given. */
static trn_attr *complete(int *n_out, low *l, const trn_opdef *def, const trn_out *in, int n_in, const trn_attr *attrs, int n_attrs)
{
    trn_attr *all = trn_arena_alloc(l->q->tmp, ((size_t)n_attrs + (size_t)def->n_attrs + 1) * sizeof *all);
    int k = n_attrs, at = 0;
    if (n_attrs)
        memcpy(all, attrs, (size_t)n_attrs * sizeof *all);
    for (int i = 0; i < def->n_in; i++) {
        const trn_argdef *a = &def->in[i];
        int count = 1, rest = n_in - at, after = 0;
        for (int j = i + 1; j < def->n_in; j++)
            after += def->in[j].number_attr >= 0 && def->in[j].number_attr == a->number_attr ? 0 : 1;
        int twins = 1;
        for (int j = i + 1; j < def->n_in; j++)
            twins += a->number_attr >= 0 && def->in[j].number_attr == a->number_attr;
        if (a->number_attr >= 0 || a->type_list_attr >= 0)
            count = (rest - after) / twins;
        const trn_attr say[] = {a->number_attr >= 0 ? trn_attr__int(def->attrs[a->number_attr].name, count) : (trn_attr){0},
                                a->type_attr >= 0 && at < n_in ? trn_attr__type(def->attrs[a->type_attr].name, trn_dtype_base(low_node(l, in[at].node)->out_types[in[at].slot]))
                                                               : (trn_attr){0}};
        for (size_t s = 0; s < 2; s++) {
            bool there = !say[s].name;
            for (int j = 0; j < k; j++)
                there |= say[s].name && strcmp(all[j].name, say[s].name) == 0;
            if (!there)
                all[k++] = say[s];
        }
        at += count;
    }
    *n_out = k;
    return all;
}

static trn_out low_add(void *arg, const char *op, const trn_out *in, int n_in, const trn_attr *attrs, int n_attrs)
{
    low *l = arg;
    const trn_opdef *def = trn_op_find(op);
    trn_gnode *nd;
    if (!def) {
        low_fail(l, trn_errorf(TRN_INTERNAL, "a gradient needs op %s, which is not there", op));
        return TRN_NONE;
    }
    trn_edge *e = trn_arena_alloc(l->q->tmp, ((size_t)n_in + 1) * sizeof *e);
    for (int i = 0; i < n_in; i++)
        e[i] = (trn_edge){in[i].node, in[i].slot};
    trn_attr *all = complete(&n_attrs, l, def, in, n_in, attrs, n_attrs);
    trn_err err = l->q->add(l->q->ctx, &nd, op, all, n_attrs, e, n_in);
    if (err) {
        low_fail(l, err);
        return TRN_NONE;
    }
    if (n_in == 0)
        l->q->wait(l->q->ctx, nd, l->q->anchor); /* so that it lies in the loop that the others are in */
    return (trn_out){nd->id, 0};
}

trn_err trn_gradient_of(trn_edge *dx, const trn_gradient *q, const trn_edge *x, int n_x, const trn_edge *y, const trn_edge *dy, int n_y)
{
    low l = {.q = q};
    trn_ghost h = {.arg = &l, .add = low_add, .node = low_node, .input = low_input, 
                   .shape = low_shape, .has_function = low_has_function, .ok = low_ok, .fail = low_fail, .enter = low_enter,
                   .any_type = true, .first = q->first, .end = q->end};
    trn_out *xs = trn_arena_alloc(q->tmp, ((size_t)n_x + 1) * sizeof *xs), *ys = trn_arena_alloc(q->tmp, ((size_t)n_y + 1) * sizeof *ys);
    trn_grad *d = trn_arena_alloc(q->tmp, ((size_t)n_x + 1) * sizeof *d), *dys = trn_arena_alloc(q->tmp, ((size_t)n_y + 1) * sizeof *dys);
    for (int i = 0; i < n_x; i++)
        xs[i] = (trn_out){x[i].node, x[i].slot};
    for (int i = 0; i < n_y; i++) {
        ys[i] = (trn_out){y[i].node, y[i].slot};
        dys[i] = (trn_grad){{dy[i].node, dy[i].slot}, TRN_NONE, TRN_NONE};
    }
    trn_grad__run(d, &h, q->tmp, xs, n_x, ys, dys, n_y, NULL, 0);
    trn_grad_ctx c = {.h = &h, .tmp = q->tmp, .args = &TRN_NONE};
    for (int i = 0; i < n_x; i++) {
        trn_out o = trn_grad_is(d[i]) ? trn_g_dense(&c, d[i]) : trn_g_zeros_like(&c, xs[i]);
        dx[i] = (trn_edge){o.node, o.slot};
    }
    return l.err;
}
