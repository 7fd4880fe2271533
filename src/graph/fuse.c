/* MatMul or Conv2D, a bias and perhaps an activation become one node, which keeps the last one's name. So do, on the way back, the gradients of max pooling and of a Relu whose result
 * was pooled: a MaxPoolGrad with the attr _relu, in the Relu's place.
 *
 * The nodes in between must have no other users: not a fetch, not a gradient, nobody who waits for them. Who only asks for their shape is content
 * with the fused node, whose shape is the same. All of them must be on one device, of this task. What they waited for, the fused node waits for.
 * Its kernel does the same sums in the same order, so the result keeps its bits. */
#include "graph/optimise_priv.h"

#include <stdlib.h>

typedef struct chain {
    trn_gnode *product, *bias, *act; /* act NULL: none */
    int product_in;                  /* which input of `bias` is the product */
} chain;

static bool only_reads_shape(const trn_gnode *nd)
{
    return (trn_gnode__is(nd, "Shape") || trn_gnode__is(nd, "ShapeN") || trn_gnode__is(nd, "Size") || trn_gnode__is(nd, "Rank")) && trn_opt__is_pure(nd);
}

/* Is `user` the only one that needs the values of nd? */
static bool only_used_by(const trn_opt *p, const trn_gusers *u, const trn_gnode *nd, const trn_gnode *user)
{
    int uses = 0;
    for (int i = u->first[nd->id]; i < u->first[nd->id + 1]; i++) {
        const trn_gnode *to = p->g->node[u->use[i].to];
        if (!to || u->use[i].input < 0)
            return false;
        if (to->in[u->use[i].input].node != nd->id) /* a shape that was moved to a fused node */
            continue;
        if (to == user)
            uses++;
        else if (!only_reads_shape(to) || to->dev != nd->dev)
            return false;
    }
    return uses == 1;
}

bool trn_fuse__same_place(const trn_gnode *a, const trn_gnode *b) { return a->dev == b->dev && strcmp(a->n.device, b->n.device) == 0; }

bool trn_fuse__is_value(const trn_gnode *nd) { return trn_opt__is_pure(nd) && nd->n.n_out == 1 && nd->n.out_types[0] == TRN_FLOAT; }

static bool may_go(const trn_opt *p, const trn_gnode *nd) { return trn_fuse__is_value(nd) && !p->pinned[nd->id]; }

/* On this task? A device is named "/job:…/task:N/device:…". */
bool trn_fuse__is_ours(const trn_opt *p, const trn_gnode *nd)
{
    size_t n = p->o->fuse_task ? strlen(p->o->fuse_task) : 0;
    return !n || (strncmp(nd->n.device, p->o->fuse_task, n) == 0 && nd->n.device[n] == '/');
}

static const char *format_of(const trn_gnode *nd)
{
    const trn_attr *f = trn_node_attr(&nd->n, "data_format");
    return f && f->kind == TRN_ATTR_STRING ? f->v.s.p : "";
}

/* A variable's shape is what its handle says. */
static const trn_shape *value_shape(const trn_opt *p, trn_edge e, trn_shape *tmp)
{
    const trn_gnode *nd = p->g->node[e.node];
    if (trn_gnode__is(nd, "ReadVariableOp")) {
        const trn_gnode *var = p->g->node[nd->in[0].node];
        const trn_attr *s = trn_gnode__is(var, "VarHandleOp") ? trn_node_attr(&var->n, "shape") : NULL;
        if (s && s->kind == TRN_ATTR_SHAPE && !s->is_list) {
            *tmp = *trn_attr_shape(&var->n, "shape");
            return tmp;
        }
    }
    return trn_opt__shape(p, e);
}

/* Channels of a product are its last dimension, and as many as its second operand has columns or filters; -1: not known. */
static int64_t channels(const trn_opt *p, const trn_gnode *product)
{
    trn_shape tmp;
    const trn_shape *w = value_shape(p, product->in[1], &tmp);
    bool conv = trn_gnode__is(product, "Conv2D");
    if (w->rank != (conv ? 4 : 2))
        return -1;
    return w->dim[conv ? 3 : trn_attr_bool(&product->n, "transpose_b") ? 0 : 1];
}

static trn_gnode *product_of(const trn_opt *p, trn_edge e)
{
    trn_gnode *nd = p->g->node[e.node];
    if (trn_gnode__is(nd, "MatMul"))
        return nd;
    return trn_gnode__is(nd, "Conv2D") && (!format_of(nd)[0] || strcmp(format_of(nd), "NHWC") == 0) ? nd : NULL;
}

/* Is nd the addition of a bias? BiasAdd always is; a sum when one operand is a vector of as many elements as the product has channels. */
static bool match_bias(chain *c, const trn_opt *p, trn_gnode *nd)
{
    bool add = trn_gnode__is(nd, "AddV2") || trn_gnode__is(nd, "Add");
    if (!add && !(trn_gnode__is(nd, "BiasAdd") && (!format_of(nd)[0] || strcmp(format_of(nd), "NHWC") == 0)) && !trn_gnode__is(nd, "BiasAddV1"))
        return false;
    for (int i = 0; i < (add ? 2 : 1); i++) {
        trn_gnode *product = product_of(p, nd->in[i]);
        trn_shape tmp;
        if (!product)
            continue;
        if (add) {
            const trn_shape *b = value_shape(p, nd->in[1 - i], &tmp);
            int64_t n = channels(p, product);
            if (b->rank != 1 || b->dim[0] < 1 || b->dim[0] != n)
                continue;
        }
        *c = (chain){.product = product, .bias = nd, .product_in = i};
        return true;
    }
    return false;
}

static bool is_activation(const trn_gnode *nd)
{
    static const char *const ops[] = {"Relu", "Relu6", "Elu", "LeakyRelu", "Tanh", "Sigmoid"};
    for (size_t i = 0; i < TRN_COUNTOF(ops); i++)
        if (trn_gnode__is(nd, ops[i]))
            return true;
    return false;
}

static bool match(chain *c, const trn_opt *p, const trn_gusers *u, trn_gnode *nd)
{
    bool act = is_activation(nd);
    if (!trn_opt__is_pure(nd) || nd->n.n_out != 1 || nd->n.out_types[0] != TRN_FLOAT || !trn_fuse__is_ours(p, nd))
        return false;
    trn_gnode *bias = act ? p->g->node[nd->in[0].node] : nd;
    if (!match_bias(c, p, bias) || !may_go(p, c->product) || !trn_fuse__same_place(c->product, nd) || !only_used_by(p, u, c->product, bias))
        return false;
    if (!act) { /* an activation behind it may take it later, and has not come yet in the order of nodes */
        for (int i = u->first[nd->id]; i < u->first[nd->id + 1]; i++) {
            trn_gnode *to = p->g->node[u->use[i].to];
            chain longer;
            if (to && u->use[i].input == 0 && is_activation(to) && match(&longer, p, u, to))
                return false;
        }
        return true;
    }
    c->act = nd;
    return may_go(p, bias) && trn_fuse__same_place(bias, nd) && only_used_by(p, u, bias, nd);
}

static trn_err rewrite(trn_opt *p, const trn_gusers *u, const chain *c)
{
    trn_graph *g = p->g;
    trn_arena *a = g->arena;
    trn_gnode *last = c->act ? c->act : c->bias;
    bool conv = trn_gnode__is(c->product, "Conv2D");
    trn_edge in[3] = {c->product->in[0], c->product->in[1], c->bias->in[1 - c->product_in]};
    /* The product's own attrs, and what follows it. */
    int n = 0;
    trn_attr *attrs = trn_arena_alloc(a, (size_t)(c->product->n.n_attrs + 6) * sizeof *attrs);
    for (int i = 0; i < c->product->n.n_attrs; i++)
        if (strcmp(c->product->n.attrs[i].name, "_class") != 0 && strncmp(c->product->n.attrs[i].name, "grad_", 5) != 0)
            attrs[n++] = c->product->n.attrs[i]; /* grad_a, grad_b: hints that the fused op does not know */
    trn_attr_val ops[2] = {{.s = {"BiasAdd", 7}}, {.s = {c->act ? c->act->n.op : "", c->act ? strlen(c->act->n.op) : 0}}}, type = {.type = TRN_FLOAT};
    trn_attr fused = {.name = "fused_ops", .kind = TRN_ATTR_STRING, .is_list = true, .n = c->act ? 2 : 1, .list = ops};
    trn_attr targs = {.name = "TArgs", .kind = TRN_ATTR_TYPE, .is_list = true, .n = 1, .list = &type};
    trn_attr num = trn_attr__int("num_args", 1);
    trn_attr__copy(&attrs[n++], a, &fused);
    trn_attr__copy(&attrs[n++], a, &num);
    if (conv)
        trn_attr__copy(&attrs[n++], a, &targs);
    if (c->act && trn_gnode__is(c->act, "LeakyRelu")) {
        trn_attr alpha = {.name = "leakyrelu_alpha", .kind = TRN_ATTR_FLOAT, .v.f = trn_attr_float(&c->act->n, "alpha")};
        trn_attr__copy(&attrs[n++], a, &alpha);
    }
    const trn_attr *cls = trn_node_attr(&last->n, "_class");
    if (cls)
        attrs[n++] = *cls;
    /* Tried on a copy: a graph may lack what the fused op demands, and is left as it is then. */
    trn_node was = last->n;
    last->n.op = conv ? "_FusedConv2D" : "_FusedMatMul";
    last->n.attrs = attrs;
    last->n.n_attrs = n;
    trn_err err = trn_gnode__resolve(last, a, NULL, 3, NULL);
    if (err || last->n.n_out != 1 || last->n.n_in != 3) {
        trn_err_free(err);
        last->n = was;
        return TRN_OK;
    }
    last->in = trn_arena_dup(a, in, sizeof in);
    const trn_gnode *gone[] = {c->product, c->act ? c->bias : NULL};
    for (size_t i = 0; i < TRN_COUNTOF(gone); i++) {
        if (!gone[i])
            continue;
        for (int k = 0; k < gone[i]->n_ctl; k++)
            trn_graph_add_ctl(g, last, gone[i]->ctl[k]);
        for (int k = u->first[gone[i]->id]; k < u->first[gone[i]->id + 1]; k++) {
            trn_gnode *to = g->node[u->use[k].to];
            if (to && to != last && u->use[k].input >= 0 && only_reads_shape(to) && to->in[u->use[k].input].node == gone[i]->id)
                to->in[u->use[k].input] = (trn_edge){last->id, 0};
        }
    }
    return TRN_OK;
}

/* ReluGrad(MaxPoolGrad(y, …), y): a window's largest element gets its gradient if it is above 0, the others get 0 anyway. */
static trn_gnode *match_pool(const trn_opt *p, const trn_gusers *u, const trn_gnode *nd)
{
    if (!trn_gnode__is(nd, "ReluGrad") || !trn_fuse__is_value(nd) || !trn_fuse__is_ours(p, nd))
        return NULL;
    trn_gnode *pool = p->g->node[nd->in[0].node];
    bool same = trn_gnode__is(pool, "MaxPoolGrad") && pool->in[0].node == nd->in[1].node && pool->in[0].slot == nd->in[1].slot;
    return same && may_go(p, pool) && trn_fuse__same_place(pool, nd) && only_used_by(p, u, pool, nd) ? pool : NULL;
}

static void rewrite_pool(trn_opt *p, trn_gnode *nd, const trn_gnode *pool)
{
    trn_arena *a = p->g->arena;
    int n = 0;
    trn_attr *attrs = trn_arena_alloc(a, (size_t)(pool->n.n_attrs + 2) * sizeof *attrs), relu = trn_attr__bool("_relu", true);
    const trn_attr *cls = trn_node_attr(&nd->n, "_class");
    for (int i = 0; i < pool->n.n_attrs; i++)
        if (strcmp(pool->n.attrs[i].name, "_class") != 0)
            attrs[n++] = pool->n.attrs[i];
    trn_attr__copy(&attrs[n++], a, &relu);
    if (cls)
        attrs[n++] = *cls;
    trn_node was = nd->n;
    nd->n.op = pool->n.op;
    nd->n.attrs = attrs;
    nd->n.n_attrs = n;
    trn_err err = trn_gnode__resolve(nd, a, NULL, 3, NULL);
    if (err) {
        trn_err_free(err);
        nd->n = was;
        return;
    }
    nd->in = trn_arena_dup(a, pool->in, 3 * sizeof *pool->in);
    for (int i = 0; i < pool->n_ctl; i++)
        trn_graph_add_ctl(p->g, nd, pool->ctl[i]);
}

trn_err trn_opt__fuse(trn_opt *p)
{
    trn_gusers u;
    trn_gusers__init(&u, p->g);
    trn_err err = TRN_OK;
    int n = p->g->n;
    for (int i = 0; i < n && !err; i++) {
        chain c;
        trn_gnode *nd = p->g->node[i], *pool;
        if (!nd || !nd->n.def || i >= p->n0)
            continue;
        if (match(&c, p, &u, nd))
            err = rewrite(p, &u, &c);
        else if ((pool = match_pool(p, &u, nd)))
            rewrite_pool(p, nd, pool);
    }
    trn_gusers__fini(&u);
    return err ? err : trn_fuse__updates(p);
}
