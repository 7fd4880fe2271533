/* Where a dataset comes from, and the way back: the graph that makes it (DatasetToGraph), or a part of it (AutoShardDataset). Each dataset keeps the node that made it with the node's
 * inputs; a graph of those nodes makes it again, here or on any other task, TensorFlow's included. */
#include <stdlib.h>

#include "exec/origin.h"
#include "exec/plan.h"
#include "exec/run.h"
#include "proto/pb.h"
#include "res/dataset.h"
#include "res/var.h"

static void origin_free(trn_origin *head)
{
    origin *o = (origin *)head;
    for (int i = 0; i < o->n_in; i++)
        trn_tensor_unref(o->in[i]);
    trn_funclib_unref(o->lib);
    trn_gstore_unref(o->store);
    free(o);
}

trn_origin *trn_exec__origin(const trn_kctx *k)
{
    const trn_graph *g = ((const run *)k->step)->plan->g;
    origin *o = trn_xalloc(sizeof *o + (size_t)k->n_in * sizeof *o->in);
    o->head.free = origin_free;
    o->store = trn_gstore_ref(g->store);
    o->lib = g->lib ? trn_funclib_ref(g->lib) : NULL;
    o->node = k->node;
    for (; o->n_in < k->n_in; o->n_in++)
        o->in[o->n_in] = trn_tensor_ref(trn_in(k, o->n_in));
    return &o->head;
}

/* ---- the graph of a dataset ------------------------------------------------------------------------------------ */

typedef struct writer {
    trn_graph *g;
    trn_map *made; /* trn_ds * → id of its node + 1: a dataset that two others stand on is made once */
    trn_resmgr *resmgr;
    bool stateful; /* what lies outside of the dataset may be lost */
    bool here;     /* for this task: inputs are arguments, as they are */
    trn_tensor **args;
    int n_args, cap_args;
} writer;

static trn_err add_dataset(int *id, writer *w, trn_ds *d);

static trn_err add_const(int *id, writer *w, trn_tensor *t)
{
    trn_attr attrs[] = {{.name = "value", .kind = TRN_ATTR_TENSOR, .v.tensor = t}, {.name = "dtype", .kind = TRN_ATTR_TYPE, .v.type = t->dtype}};
    trn_gnode *nd;
    TRN_TRY(trn_graph_add(&nd, w->g, "Const", trn_graph_unique_name(w->g, "Const"), "", attrs, 2, NULL, 0));
    *id = nd->id;
    return TRN_OK;
}

/* A variable with this value, that only the dataset will know. */
static trn_err add_variable(int *id, writer *w, trn_tensor *value)
{
    trn_graph *g = w->g;
    trn_edge in[2] = {{0}};
    TRN_TRY(add_const(&in[1].node, w, value));
    trn_attr attrs[] = {{.name = "dtype", .kind = TRN_ATTR_TYPE, .v.type = value->dtype},
                        {.name = "shape", .kind = TRN_ATTR_SHAPE, .v.shape = &value->shape},
                        {.name = "shared_name", .kind = TRN_ATTR_STRING, .v.s = {TRN_VAR_ANONYMOUS, sizeof TRN_VAR_ANONYMOUS - 1}}};
    trn_attr T = {.name = "T", .kind = TRN_ATTR_TYPE, .v.type = TRN_RESOURCE};
    trn_gnode *var, *assign, *out;
    TRN_TRY(trn_graph_add(&var, g, "VarHandleOp", trn_graph_unique_name(g, "VarHandleOp"), "", attrs, 3, NULL, 0));
    in[0].node = var->id;
    TRN_TRY(trn_graph_add(&assign, g, "AssignVariableOp", trn_graph_unique_name(g, "AssignVariableOp"), "", attrs, 1, in, 2));
    TRN_TRY(trn_graph_add(&out, g, "Identity", trn_graph_unique_name(g, "Identity"), "", &T, 1, in, 1));
    trn_graph_add_ctl(g, out, assign->id);
    *id = out->id;
    return TRN_OK;
}

/* NULL: a handle to something else. */
static trn_err variable_of(trn_var **out, const writer *w, const trn_handle *h)
{
    trn_resource *r = h->res;
    *out = r && r->type == &trn_var_type ? trn_resource_ref(r) : NULL;
    if (!r && strcmp(h->type_name, trn_var_type.handle) == 0)
        return trn_resmgr_get(out, w->resmgr, h->container, h->name, &trn_var_type);
    return TRN_OK;
}

/* Variables go along with their value, as they do in TensorFlow. Of what else a handle names only the name does: what is reached by the handle alone would be gone. */
static trn_err add_resource(int *id, writer *w, const origin *o, trn_tensor *t)
{
    trn_handle *h = t->count == 1 ? ((trn_handle *const *)t->data)[0] : NULL;
    if (!w->stateful || !h)
        return trn_errorf(TRN_FAILED_PRECONDITION, "%s '%s' uses a resource", o->node->op, o->node->name);
    trn_var *v;
    TRN_TRY(variable_of(&v, w, h));
    if (v) {
        trn_tensor *value;
        trn_err err = trn_var_read(&value, v);
        if (!err)
            err = add_variable(id, w, value);
        else
            value = NULL;
        trn_tensor_unref(value);
        trn_resource_unref(v);
        return err;
    }
    if (h->res)
        return trn_errorf(TRN_FAILED_PRECONDITION, "%s '%s' uses a resource without a name (%s): give it a shared_name", o->node->op, o->node->name,
                          h->type_name);
    return add_const(id, w, t);
}

static trn_err add_arg(int *id, writer *w, trn_tensor *t)
{
    trn_attr attrs[] = {{.name = "T", .kind = TRN_ATTR_TYPE, .v.type = t->dtype}, {.name = "index", .kind = TRN_ATTR_INT, .v.i = w->n_args}};
    trn_gnode *nd;
    TRN_TRY(trn_graph_add(&nd, w->g, "_Arg", trn_graph_unique_name(w->g, "_Arg"), "", attrs, 2, NULL, 0));
    TRN_PUSH(w->args, w->n_args, w->cap_args, t);
    *id = nd->id;
    return TRN_OK;
}

static trn_err add_input(int *id, writer *w, const origin *o, trn_tensor *t)
{
    bool number = t->dtype == TRN_INT64 && t->count == 1; /* ShardDataset's hint is one, and those who divide look for it */
    if (w->here && !number)
        return add_arg(id, w, t);
    if (t->dtype == TRN_RESOURCE)
        return add_resource(id, w, o, t);
    if (t->dtype == TRN_VARIANT)
        return trn_errorf(TRN_FAILED_PRECONDITION, "%s '%s' has a variant for an input, which no graph can hold", o->node->op, o->node->name);
    return add_const(id, w, t);
}

static trn_err add_functions(writer *w, const origin *o)
{
    for (int i = 0; i < o->node->n_attrs; i++) {
        const trn_attr *a = &o->node->attrs[i];
        const char *bad = NULL;
        TRN_TRY(trn_funclib_add_called(w->g->lib, o->lib, a, w->stateful ? NULL : &bad));
        if (bad)
            return trn_errorf(TRN_FAILED_PRECONDITION, "a function of %s '%s' has the stateful op %s", o->node->op, o->node->name, bad);
    }
    return TRN_OK;
}

static bool is_dataset(const trn_variant *v) { return v && v->type == &trn_ds_type; }

/* A tensor of datasets: packed, dim by dim. */
static trn_err add_datasets(int *id, writer *w, trn_variant *const *v, const trn_shape *s, int dim)
{
    if (dim == s->rank)
        return add_dataset(id, w, (trn_ds *)v[0]);
    int64_t n = s->dim[dim], each = 1;
    for (int i = dim + 1; i < s->rank; i++)
        each *= s->dim[i];
    trn_edge *in = trn_xalloc((size_t)n * sizeof *in);
    trn_err err = TRN_OK;
    for (int64_t i = 0; !err && i < n; i++)
        err = add_datasets(&in[i].node, w, v + i * each, s, dim + 1);
    trn_attr attrs[] = {{.name = "T", .kind = TRN_ATTR_TYPE, .v.type = TRN_VARIANT}, {.name = "N", .kind = TRN_ATTR_INT, .v.i = n}};
    trn_gnode *nd;
    if (!err)
        err = trn_graph_add(&nd, w->g, "Pack", trn_graph_unique_name(w->g, "Pack"), "", attrs, 2, in, (int)n);
    if (!err)
        *id = nd->id;
    free(in);
    return err;
}

static bool all_datasets(const trn_tensor *t)
{
    bool all = t->dtype == TRN_VARIANT && t->count > 0;
    for (int64_t i = 0; all && i < t->count; i++)
        all = is_dataset(((trn_variant *const *)t->data)[i]);
    return all;
}

static trn_err add_made(int *id, writer *w, const origin *o)
{
    TRN_TRY(add_functions(w, o));
    trn_edge *in = trn_xalloc(((size_t)o->n_in + 1) * sizeof *in);
    trn_err err = TRN_OK;
    for (int i = 0; !err && i < o->n_in; i++) {
        trn_tensor *t = o->in[i];
        if (all_datasets(t) && !(w->here && t->shape.rank > 0))
            err = add_datasets(&in[i].node, w, t->data, &t->shape, 0);
        else
            err = add_input(&in[i].node, w, o, t);
    }
    trn_gnode *nd;
    if (!err)
        err = trn_graph_add(&nd, w->g, o->node->op, trn_graph_unique_name(w->g, o->node->op), "", o->node->attrs, o->node->n_attrs, in, o->n_in);
    if (!err)
        *id = nd->id;
    free(in);
    return err;
}

static trn_err add_dataset(int *id, writer *w, trn_ds *d)
{
    intptr_t at = (intptr_t)trn_map_get(w->made, &d, sizeof d);
    if (at) {
        *id = (int)at - 1;
        return TRN_OK;
    }
    if (!d->made)
        return trn_errorf(TRN_FAILED_PRECONDITION, "a %s that another dataset gave as an element cannot be written as a graph", d->op->name);
    TRN_TRY(add_made(id, w, (const origin *)d->made));
    trn_map_put(w->made, &d, sizeof d, (void *)(intptr_t)(*id + 1));
    return TRN_OK;
}

/* In a copy: the functions are the library's. */
static void strip_devices(Tensorflow__FunctionDefLibrary *l, trn_arena *a)
{
    for (size_t i = 0; l && i < l->n_function; i++) {
        Tensorflow__FunctionDef *f = trn_arena_alloc(a, sizeof *f);
        *f = *l->function[i];
        f->node_def = trn_arena_alloc(a, TRN_MAX(f->n_node_def, 1) * sizeof *f->node_def);
        for (size_t k = 0; k < f->n_node_def; k++) {
            Tensorflow__NodeDef *n = f->node_def[k] = trn_arena_alloc(a, sizeof *n);
            *n = *l->function[i]->node_def[k];
            char *local = strstr(n->device, "/device:");
            n->device = local ? local : (char *)(uintptr_t)"";
        }
        l->function[i] = f;
    }
}

static trn_err write_graph(trn_gnode **sink, writer *w, const trn_tensor *t)
{
    trn_ds *d;
    TRN_TRY(trn_ds_in(&d, t));
    trn_attr attrs[] = {{.name = "T", .kind = TRN_ATTR_TYPE, .v.type = TRN_VARIANT}, {.name = "index", .kind = TRN_ATTR_INT, .v.i = 0}};
    trn_edge in = {0};
    trn_funclib *lib = trn_funclib_new();
    w->g = trn_graph_new(lib);
    w->made = trn_map_new();
    trn_funclib_unref(lib);
    trn_err err = add_dataset(&in.node, w, d);
    trn_map_free(w->made, NULL);
    if (!err)
        err = trn_graph_add(sink, w->g, "_Retval", trn_graph_unique_name(w->g, "dataset"), "", attrs, 2, &in, 1);
    w->g->producer = TRN_GRAPH_PRODUCER;
    if (err)
        trn_graph_free(w->g);
    return err;
}

trn_err trn_exec__graph_of(void **bytes, size_t *n, const trn_kctx *k, const trn_tensor *t, bool stateful, bool strip)
{
    writer w = {.resmgr = k->step->resmgr, .stateful = stateful};
    trn_gnode *sink;
    TRN_TRY(write_graph(&sink, &w, t));
    trn_arena *a = trn_arena_new();
    Tensorflow__GraphDef *gd = trn_graph_export(a, w.g);
    if (strip)
        strip_devices(gd->library, a);
    *n = tensorflow__graph_def__get_packed_size(gd);
    *bytes = trn_xalloc(*n + 1);
    tensorflow__graph_def__pack(gd, *bytes);
    trn_arena_free(a);
    trn_graph_free(w.g);
    return TRN_OK;
}

trn_err trn_exec__shard(trn_func **out, trn_tensor ***args, trn_kctx *k, const trn_tensor *t, const trn_shard *s)
{
    writer w = {.resmgr = k->step->resmgr, .stateful = true, .here = true};
    trn_gnode *sink;
    trn_err err = write_graph(&sink, &w, t);
    if (!err && (err = trn_graph_shard(w.g, sink, s)))
        trn_graph_free(w.g);
    if (!err)
        err = trn_exec__graph_func(out, k, w.g);
    if (err)
        free(w.args);
    else
        *args = w.args;
    return err;
}
