/* A number for what a dataset is made of: ops, their attrs, tensors, functions. Names of nodes and functions do not count, nor do devices and the seeds of shuffling, so
 * that a program that runs again finds the snapshot that it made. The number is the same on all machines and in all versions: folders are called by it. */
#include <stdlib.h>

#include "exec/origin.h"
#include "exec/plan.h"
#include "res/dataset.h"
#include "tensor/tensor_pb.h"

#define MAX_DEPTH 100 /* functions in functions */
#define MAX_NODES 1000000

typedef struct hasher {
    trn_map *done; /* trn_ds *, or library and name of a function → uint64_t * */
    int depth, nodes;
} hasher;

static uint64_t with(uint64_t h, uint64_t v) { return trn_hash64_tf_combine(h, v); }
static uint64_t with_bytes(uint64_t h, const void *p, size_t n) { return with(h, trn_hash64_tf(n ? p : "", n)); }
static uint64_t with_str(uint64_t h, const char *s) { return with_bytes(h, s, strlen(s)); }

/* ---- attrs ------------------------------------------------------------------------------------------------------------ */

static trn_err hash_function(uint64_t *h, hasher *w, trn_funclib *lib, const trn_func_ref *f);

static uint64_t with_shape(uint64_t h, const trn_shape *s)
{
    h = with(h, (uint64_t)(int64_t)s->rank);
    for (int i = 0; i < s->rank; i++)
        h = with(h, (uint64_t)s->dim[i]);
    return h;
}

static uint64_t with_tensor(uint64_t h, const trn_tensor *t)
{
    h = with_shape(with(h, (uint64_t)t->dtype), &t->shape);
    if (trn_dtype_is_plain(t->dtype))
        return with_bytes(h, t->data, trn_tensor_bytes(t));
    for (int64_t i = 0; t->dtype == TRN_STRING && i < t->count; i++) {
        const trn_str *s = &TRN_DATA(t, trn_str)[i];
        h = with_bytes(h, trn_str_p(s), s->len);
    }
    return h; /* what handles and variants stand for may be another thing each time */
}

static trn_err with_value(uint64_t *h, hasher *w, trn_funclib *lib, trn_attr_kind kind, const trn_attr_val *v)
{
    uint32_t bits;
    switch (kind) {
    case TRN_ATTR_STRING:
        *h = with_bytes(*h, v->s.p, v->s.n);
        break;
    case TRN_ATTR_INT:
        *h = with(*h, (uint64_t)v->i);
        break;
    case TRN_ATTR_FLOAT:
        memcpy(&bits, &v->f, sizeof bits);
        *h = with(*h, bits);
        break;
    case TRN_ATTR_BOOL:
        *h = with(*h, v->b);
        break;
    case TRN_ATTR_TYPE:
        *h = with(*h, (uint64_t)v->type);
        break;
    case TRN_ATTR_SHAPE:
        *h = with_shape(*h, v->shape);
        break;
    case TRN_ATTR_TENSOR:
        *h = with_tensor(*h, v->tensor);
        break;
    case TRN_ATTR_FUNC:
        return hash_function(h, w, lib, v->func);
    default:
        break;
    }
    return TRN_OK;
}

static trn_err with_attr(uint64_t *h, hasher *w, trn_funclib *lib, const trn_attr *a)
{
    *h = with(with_str(*h, a->name), a->is_list ? (uint64_t)a->n + 1 : 0);
    for (int i = 0; i < (a->is_list ? a->n : 1); i++)
        TRN_TRY(with_value(h, w, lib, a->kind, a->is_list ? &a->list[i] : &a->v));
    return TRN_OK;
}

/* Their order is nobody's business: the numbers are added up. */
static trn_err with_attrs(uint64_t *h, hasher *w, trn_funclib *lib, const trn_attr *a, int n)
{
    uint64_t sum = 0;
    for (int i = 0; i < n; i++) {
        uint64_t one = 0;
        if (a[i].name[0] == '_' || strcmp(a[i].name, "metadata") == 0)
            continue;
        TRN_TRY(with_attr(&one, w, lib, &a[i]));
        sum += one;
    }
    *h = with(*h, sum);
    return TRN_OK;
}

/* ---- functions -------------------------------------------------------------------------------------------------------- */

static trn_err with_node(uint64_t *h, hasher *w, const trn_graph *g, const trn_gnode *nd)
{
    trn_func_ref called = {.name = nd->n.op, .n_attrs = nd->n.n_attrs, .attrs = nd->n.attrs};
    if (trn_funclib_has(g->lib, nd->n.op))
        return hash_function(h, w, g->lib, &called);
    *h = with_str(*h, nd->n.op);
    return with_attrs(h, w, g->lib, nd->n.attrs, nd->n.n_attrs);
}

typedef struct body {
    const trn_graph *g;
    int n, *order; /* inputs first; but at a loop's beginning one comes later, the value of the next round */
    int *at;       /* by id: where in it */
    uint64_t *of;
    bool *used;
    int loops;
} body;

static trn_err hash_one(hasher *w, body *b, int i)
{
    const trn_gnode *nd = b->g->node[b->order[i]];
    uint64_t ctl = 0, one = 0;
    if (++w->nodes > MAX_NODES)
        return trn_errorf(TRN_RESOURCE_EXHAUSTED, "the functions of the pipeline have more than %d nodes", MAX_NODES);
    TRN_TRY(with_node(&one, w, b->g, nd));
    for (int j = 0; j < nd->n.n_in; j++) {
        int from = nd->in[j].node;
        bool next_round = b->at[from] > i;
        one = with(with(one, next_round ? (uint64_t)++b->loops : b->of[from]), (uint64_t)nd->in[j].slot);
        b->used[from] |= !next_round;
    }
    for (int j = 0; j < nd->n_ctl; j++) {
        ctl += b->of[nd->ctl[j]];
        b->used[nd->ctl[j]] = true;
    }
    b->of[b->order[i]] = with(one, ctl);
    return TRN_OK;
}

/* Results, what has effects, and what goes from one round of a loop to the next. */
static uint64_t sum_up(const body *b)
{
    uint64_t all = 0;
    for (int i = 0; i < b->n; i++) {
        const trn_gnode *nd = b->g->node[b->order[i]];
        uint64_t one = b->of[b->order[i]];
        if (!b->used[b->order[i]] && strcmp(nd->n.op, "_Arg") != 0)
            all += one;
        for (int j = 0; j < nd->n.n_in; j++)
            if (b->at[nd->in[j].node] > i)
                all += with(one, b->of[nd->in[j].node]);
    }
    return all;
}

/* Each node by its own op and the numbers of its inputs. */
static trn_err hash_body(uint64_t *h, hasher *w, const trn_graph *g)
{
    size_t n = (size_t)g->n + 1;
    body b = {.g = g, .order = trn_xalloc(n * sizeof *b.order), .at = trn_xalloc(n * sizeof *b.at), .of = trn_xalloc(n * sizeof *b.of), .used = trn_xalloc(n)};
    trn_err err = TRN_OK;
    b.n = trn_graph_topo(g, b.order);
    for (int i = 0; i < b.n; i++)
        b.at[b.order[i]] = i;
    for (int i = 0; !err && i < b.n; i++)
        err = hash_one(w, &b, i);
    if (!err)
        *h = with(*h, sum_up(&b));
    free(b.used);
    free(b.of);
    free(b.at);
    free(b.order);
    return err;
}

static void keep(hasher *w, const void *key, size_t n, uint64_t h)
{
    uint64_t *v = trn_xalloc(sizeof *v);
    *v = h;
    free(trn_map_put(w->done, key, n, v));
}

/* A function's attrs may make it another one in each call. */
static bool is_whole(const trn_func_ref *f)
{
    for (int i = 0; i < f->n_attrs; i++)
        if (f->attrs[i].name[0] != '_')
            return false;
    return true;
}

static trn_err hash_new_function(uint64_t *h, hasher *w, trn_funclib *lib, const trn_func_ref *f)
{
    trn_graph *g;
    TRN_TRY(trn_funclib_body(&g, lib, f));
    w->depth++;
    trn_err err = hash_body(h, w, g);
    w->depth--;
    trn_graph_free(g);
    return err;
}

/* However often it is called, its body is looked at once. */
static trn_err hash_function(uint64_t *h, hasher *w, trn_funclib *lib, const trn_func_ref *f)
{
    if (!trn_funclib_has(lib, f->name)) {
        *h = with_str(*h, f->name);
        return TRN_OK;
    }
    if (w->depth == MAX_DEPTH) { /* one that calls itself */
        *h = with(*h, MAX_DEPTH);
        return TRN_OK;
    }
    trn_sb key = {0};
    uint64_t one = 0, *old;
    trn_sb_add(&key, &lib, sizeof lib);
    trn_sb_adds(&key, f->name);
    trn_err err = TRN_OK;
    if (!is_whole(f))
        err = hash_new_function(&one, w, lib, f);
    else if ((old = trn_map_get(w->done, key.p, key.n)))
        one = *old;
    else if (!(err = hash_new_function(&one, w, lib, f)))
        keep(w, key.p, key.n, one);
    *h = with(*h, one);
    trn_sb_fini(&key);
    return err;
}

/* ---- datasets --------------------------------------------------------------------------------------------------------- */

static trn_err hash_dataset(uint64_t *out, hasher *w, trn_ds *d);

/* Shuffling in another order is the same dataset. */
static bool is_seed(const trn_node *n, int input)
{
    static const char *const seeds[] = {"seed", "seed2", "seed_generator"};
    int first, count;
    if (!strncmp(n->op, "Shuffle", 7))
        for (size_t i = 0; i < TRN_COUNTOF(seeds); i++)
            if (trn_node_in_arg(n, seeds[i], strlen(seeds[i]), &first, &count) && first == input)
                return true;
    return false;
}

static trn_err with_input(uint64_t *h, hasher *w, const trn_tensor *t)
{
    *h = with_tensor(*h, t);
    for (int64_t i = 0; t->dtype == TRN_VARIANT && i < t->count; i++) {
        const trn_variant *v = TRN_DATA(t, trn_variant *)[i];
        uint64_t one = 0;
        if (v && v->type == &trn_ds_type)
            TRN_TRY(hash_dataset(&one, w, (trn_ds *)(uintptr_t)v));
        *h = with(*h, one);
    }
    return TRN_OK;
}

static trn_err hash_made(uint64_t *h, hasher *w, const origin *o)
{
    *h = with_str(0, o->node->op);
    TRN_TRY(with_attrs(h, w, o->lib, o->node->attrs, o->node->n_attrs));
    for (int i = 0; i < o->n_in; i++)
        if (!is_seed(o->node, i))
            TRN_TRY(with_input(h, w, o->in[i]));
    return TRN_OK;
}

static trn_err hash_dataset(uint64_t *out, hasher *w, trn_ds *d)
{
    uint64_t *old = trn_map_get(w->done, &d, sizeof d);
    if (old) {
        *out = *old;
        return TRN_OK;
    }
    if (!d->made)
        return trn_errorf(TRN_FAILED_PRECONDITION, "nobody knows how a %s that another dataset gave as an element was made", d->op->name);
    TRN_TRY(hash_made(out, w, (const origin *)d->made));
    keep(w, &d, sizeof d, *out);
    return TRN_OK;
}

trn_err trn_exec__hash_of(uint64_t *out, const trn_kctx *k, const trn_tensor *t)
{
    trn_ds *d;
    TRN_TRY(trn_ds_in(&d, t));
    hasher w = {.done = trn_map_new()};
    trn_err err = hash_dataset(out, &w, d);
    trn_map_free(w.done, free);
    return err;
}
