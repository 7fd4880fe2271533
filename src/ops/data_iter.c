/* Iterators, and the ops that run a dataset to its end. The iterator itself is in res/iter.h. */
#include <stdlib.h>

#include "ops/data.h"
#include "ops/resop.h"
#include "ops/variant.h"
#include "proto/pbw.h"
#include "res/iter.h"

/* ---- making --------------------------------------------------------------------------------------------------------- */

/* Attrs output_types and output_shapes; -1 when the node has no types. */
typedef struct elem_types {
    int n;
    trn_dtype *types;
    trn_shape *shapes;
} elem_types;

static void types_init(elem_types *e, const trn_node *n)
{
    const trn_attr *t = trn_node_attr(n, "output_types"), *s = trn_node_attr(n, "output_shapes");
    *e = (elem_types){.n = t && t->n ? t->n : -1};
    e->types = trn_xalloc(((size_t)TRN_MAX(e->n, 0) + 1) * sizeof *e->types);
    e->shapes = trn_xalloc(((size_t)TRN_MAX(e->n, 0) + 1) * sizeof *e->shapes);
    for (int i = 0; i < e->n; i++) {
        e->types[i] = t->list[i].type;
        e->shapes[i] = s && i < s->n ? *s->list[i].shape : trn_shape_unknown();
    }
}

static void types_fini(elem_types *e)
{
    free(e->types);
    free(e->shapes);
}

typedef struct making {
    const char *name;
    elem_types e;
} making;

static trn_err make_iter(trn_resource **out, void *arg)
{
    making *m = arg;
    *out = (trn_resource *)trn_iter_new(m->name, m->e.n, m->e.types, m->e.shapes);
    return TRN_OK;
}

/* The node's iterator: found by its shared name, or made; its handle becomes output 0. */
static trn_err node_iter(trn_iter **out, trn_kctx *k)
{
    making m = {.name = trn_resop_name(k)};
    types_init(&m.e, k->node);
    trn_iter *i;
    trn_err err = trn_resop(&i, k, &trn_iter_type, TRN_ITER_TYPE_NAME, make_iter, &m);
    if (!err && (err = trn_iter_match(i, m.e.n, m.e.types, m.e.shapes)))
        trn_resource_unref(i);
    types_fini(&m.e);
    if (!err)
        *out = i;
    return err;
}

static trn_err iterator(trn_kctx *k)
{
    trn_iter *i;
    TRN_TRY(node_iter(&i, k));
    trn_resource_unref(i);
    return TRN_OK;
}

static trn_err anonymous_iterator(trn_kctx *k)
{
    elem_types e;
    types_init(&e, k->node);
    trn_iter *i = trn_iter_new(k->node->name, e.n, e.types, e.shapes);
    types_fini(&e);
    return trn_data_anonymous(k, (trn_resource *)i, TRN_ITER_TYPE_NAME);
}

static trn_err make_iterator(trn_kctx *k)
{
    trn_ds *d;
    TRN_TRY(trn_ds_in(&d, trn_in(k, 0)));
    trn_iter *i;
    TRN_TRY(trn_k_resource(&i, k, 1, &trn_iter_type));
    trn_host host = trn_k_host(k);
    trn_err err = trn_iter_set(i, d, &host);
    trn_resource_unref(i);
    return err;
}

static trn_err nothing(trn_kctx *k) { return TRN_OK; }

/* ---- OneShotIterator: the dataset is made by a function, once ---------------------------------------------------------- */

typedef struct one_shot {
    trn_kctx *k;
    trn_iter *i;
    trn_func *f;
} one_shot;

static void one_shot_done(void *arg, trn_err err) { trn_k_done(arg, err); }

static void one_shot_end(one_shot *o, trn_err err)
{
    trn_iter_ready(o->i, err ? trn_err_copy(err) : TRN_OK);
    trn_resource_unref(o->i);
    trn_func_unref(o->f);
    trn_kctx *k = o->k;
    free(o);
    trn_k_done(k, err);
}

static void one_shot_made(void *arg, trn_err err, trn_tensor **rets, int n)
{
    one_shot *o = arg;
    trn_ds *d;
    if (!err && (n != 1 || rets[0]->dtype != TRN_VARIANT))
        err = TRN_BAD("The `dataset_factory` function must return a single scalar of dtype DT_VARIANT.");
    if (!err)
        err = trn_ds_in(&d, rets[0]);
    trn_host host = trn_k_host(o->k);
    if (!err)
        err = trn_iter_set(o->i, d, &host);
    one_shot_end(o, err);
}

static trn_err one_shot_iterator(trn_kctx *k)
{
    trn_iter *i;
    TRN_TRY(node_iter(&i, k));
    if (!trn_iter_first(i, trn_k_cancel(k), one_shot_done, k)) {
        trn_resource_unref(i);
        return TRN_OK;
    }
    one_shot *o = trn_xalloc(sizeof *o);
    *o = (one_shot){.k = k, .i = i};
    trn_err err = trn_k_func(&o->f, k, trn_attr_func(k->node, "dataset_factory"));
    if (err)
        one_shot_end(o, err);
    else
        trn_func_run(o->f, trn_k_cancel(k), NULL, 0, one_shot_made, o);
    return TRN_OK;
}

/* ---- DatasetFromGraph: the dataset that a graph makes, as DatasetToGraph has written it down on another task ----------------- */

typedef struct from_graph {
    trn_kctx *k;
    trn_func *f;
} from_graph;

static void graph_made(void *arg, trn_err err, trn_tensor **rets, int n)
{
    from_graph *g = arg;
    trn_ds *d;
    if (!err && (n != 1 || rets[0]->dtype != TRN_VARIANT))
        err = TRN_BAD("the graph of a dataset must have one result, a dataset");
    if (!err)
        err = trn_ds_in(&d, rets[0]);
    if (!err)
        trn_out_set(g->k, 0, trn_tensor_ref(rets[0]));
    trn_kctx *k = g->k;
    trn_func_unref(g->f);
    free(g);
    trn_k_done(k, err);
}

static trn_err dataset_from_graph(trn_kctx *k)
{
    const trn_tensor *t = trn_in(k, 0);
    TRN_CHECK_ARG(t->shape.rank == 0, "graph_def must be a scalar");
    const trn_str *s = TRN_DATA(t, trn_str);
    trn_func *f;
    TRN_TRY(trn_k_graph(&f, k, trn_str_p(s), s->len));
    from_graph *g = trn_xalloc(sizeof *g);
    *g = (from_graph){k, f};
    trn_func_run(f, trn_k_cancel(k), NULL, 0, graph_made, g);
    return TRN_OK;
}

enum { POLICY_WARN, POLICY_IGNORE, POLICY_FAIL }; /* external_state_policy; the dataset's options override the node's */
#define OPTIONS_POLICY 6                          /* Options.external_state_policy */

static trn_err graph_text(trn_kctx *k, int64_t policy)
{
    trn_sb s = {0};
    trn_err err = trn_data_options(&s, trn_in(k, 0));
    for (trn_pbr r = trn_pbr_init(s.p, s.n); !err && trn_pbr_next(&r);)
        if (r.field == OPTIONS_POLICY && r.type == TRN_PB_VARINT)
            policy = (int64_t)r.v;
    trn_sb_fini(&s);
    if (err)
        return err;
    void *p;
    size_t n;
    err = trn_k_graph_of(&p, &n, k, trn_in(k, 0), policy != POLICY_FAIL, trn_attr_bool(k->node, "strip_device_assignment"));
    if (err) {
        trn_err why = trn_errorf(TRN_FAILED_PRECONDITION, "Failed to serialize the input pipeline graph: %s", trn_err_msg(err));
        trn_err_free(err);
        return why;
    }
    trn_out_set(k, 0, trn_tensor_str(p, n));
    free(p);
    return TRN_OK;
}

static trn_err dataset_to_graph(trn_kctx *k) { return graph_text(k, trn_attr_bool(k->node, "allow_stateful") ? POLICY_WARN : POLICY_FAIL); }

static trn_err dataset_to_graph_v2(trn_kctx *k) { return graph_text(k, trn_attr_int(k->node, "external_state_policy")); }

/* ---- the next element --------------------------------------------------------------------------------------------------- */

trn_err trn_data_set_outputs(trn_kctx *k, trn_elem *e)
{
    const trn_attr *s = trn_node_attr(k->node, "output_shapes");
    TRN_CHECK_ARG(e->n == k->n_out, "Number of components does not match: expected %d types but got %d.", k->n_out, e->n);
    for (int i = 0; i < e->n; i++) {
        char a[TRN_SHAPE_TEXT], b[TRN_SHAPE_TEXT];
        TRN_CHECK_ARG(e->t[i]->dtype == k->node->out_types[i], "Data type mismatch at component %d: expected %s but got %s.", i,
                      trn_dtype_name(k->node->out_types[i]), trn_dtype_name(e->t[i]->dtype));
        TRN_CHECK_ARG(!s || i >= s->n || trn_shape_compatible(s->list[i].shape, &e->t[i]->shape),
                      "Incompatible shapes at component %d: expected %s but got %s.", i, trn_shape_text(a, s->list[i].shape),
                      trn_shape_text(b, &e->t[i]->shape));
    }
    for (int i = 0; i < e->n; i++) {
        trn_out_set(k, i, e->t[i]);
        e->t[i] = NULL;
    }
    return TRN_OK;
}

static void got_next(void *arg, trn_err err, trn_elem *e)
{
    trn_kctx *k = arg;
    if (!err && !e)
        err = trn_errorf(TRN_OUT_OF_RANGE, "End of sequence");
    if (!err)
        err = trn_data_set_outputs(k, e);
    trn_elem_free(e);
    trn_k_done(k, err);
}

static trn_err get_next_with(trn_kctx *k, trn_iter_done done)
{
    trn_iter *i;
    TRN_TRY(trn_k_resource(&i, k, 0, &trn_iter_type));
    trn_iter_next(i, trn_k_cancel(k), done, k);
    trn_resource_unref(i);
    return TRN_OK;
}

static trn_err iterator_get_next(trn_kctx *k) { return get_next_with(k, got_next); }

trn_err trn_sh_elements(trn_shctx *s)
{
    const trn_attr *shapes = trn_node_attr(s->node, "output_shapes");
    for (int i = 0; shapes && i < s->n_out && i < shapes->n; i++)
        s->out[i] = *shapes->list[i].shape;
    return TRN_OK;
}

/* ---- … or none ------------------------------------------------------------------------------------------------------------- */

static void got_optional(void *arg, trn_err err, trn_elem *e)
{
    trn_kctx *k = arg;
    const trn_attr *types = trn_node_attr(k->node, "output_types"), *shapes = trn_node_attr(k->node, "output_shapes");
    if (!err && e && types && e->n != types->n)
        err = TRN_BAD("The given optional has %d components, expected %d.", e->n, types->n);
    for (int i = 0; !err && e && types && i < e->n; i++) {
        if (e->t[i]->dtype != types->list[i].type)
            err = TRN_BAD("The given optional does not match the expected type for component %d. Expected: %s. Actual: %s.", i,
                          trn_dtype_name(types->list[i].type), trn_dtype_name(e->t[i]->dtype));
        else if (shapes && i < shapes->n && !trn_shape_compatible(shapes->list[i].shape, &e->t[i]->shape))
            err = TRN_BAD("The given optional does not match the expected shape for component %d.", i);
    }
    trn_shape scalar = trn_shape_scalar();
    trn_tensor *t;
    if (!err && !(err = trn_out_new(&t, k, 0, TRN_VARIANT, &scalar)))
        TRN_DATA_MUT(t, trn_variant *)[0] = trn_optional_of(e ? e->t : NULL, e ? e->n : 0);
    trn_elem_free(e);
    trn_k_done(k, err);
}

static trn_err get_next_as_optional(trn_kctx *k) { return get_next_with(k, got_optional); }

/* ---- handles as strings: a ResourceHandleProto ------------------------------------------------------------------------------ */

enum { HANDLE_DEVICE = 1, HANDLE_CONTAINER = 2, HANDLE_NAME = 3, HANDLE_HASH = 4, HANDLE_TYPE = 5 };

static trn_err to_string_handle(trn_kctx *k)
{
    const trn_tensor *t = trn_in(k, 0);
    TRN_CHECK_ARG(t->shape.rank == 0, "resource_handle must be a scalar");
    trn_iter *i;
    TRN_TRY(trn_k_resource(&i, k, 0, &trn_iter_type));
    trn_resource_unref(i);
    const trn_handle *h = ((trn_handle *const *)t->data)[0];
    TRN_CHECK_ARG(!h->res, "an anonymous iterator has no string handle");
    trn_sb s = {0};
    trn_pbw_str(&s, HANDLE_DEVICE, h->device);
    trn_pbw_str(&s, HANDLE_CONTAINER, h->container);
    trn_pbw_str(&s, HANDLE_NAME, h->name);
    trn_pbw_str(&s, HANDLE_TYPE, h->type_name);
    trn_tensor *out = trn_tensor_str(s.p, s.n);
    trn_sb_fini(&s);
    if (!out)
        return trn_err_oom();
    trn_out_set(k, 0, out);
    return TRN_OK;
}

static trn_err check_string_types(trn_kctx *k)
{
    trn_iter *i;
    trn_kctx sub = *k; /* the same look-up as everybody's, on the handle that was just made */
    trn_value v = {.t = k->out[0].t};
    sub.in = &v;
    sub.n_in = 1;
    TRN_TRY(trn_k_resource(&i, &sub, 0, &trn_iter_type));
    elem_types e;
    types_init(&e, k->node);
    trn_err err = trn_iter_match(i, e.n, e.types, e.shapes);
    types_fini(&e);
    trn_resource_unref(i);
    return err;
}

static trn_err from_string_handle(trn_kctx *k)
{
    const trn_tensor *t = trn_in(k, 0);
    TRN_CHECK_ARG(t->shape.rank == 0, "string_handle must be a scalar");
    const trn_str *s = TRN_DATA(t, trn_str);
    char *part[HANDLE_TYPE + 1] = {0};
    trn_pbr r = trn_pbr_init(trn_str_p(s), s->len);
    while (trn_pbr_next(&r))
        if (r.field <= HANDLE_TYPE && r.type == TRN_PB_BYTES) {
            free(part[r.field]);
            part[r.field] = trn_xstrndup((const char *)r.b, r.n);
        }
    trn_err err = TRN_OK;
    trn_tensor *out = NULL;
    if (r.bad || !part[HANDLE_NAME])
        err = TRN_BAD("Could not parse string_handle as a valid ResourceHandle");
    if (!err)
        err = trn_res_handle(&out, k->node, part[HANDLE_CONTAINER] ? part[HANDLE_CONTAINER] : "", part[HANDLE_NAME], TRN_ITER_TYPE_NAME, TRN_INVALID, NULL);
    if (!err && part[HANDLE_DEVICE] && strstr(k->node->device, "/device:") && strcmp(part[HANDLE_DEVICE], k->node->device) != 0)
        err = TRN_BAD("Attempted create an iterator on device \"%s\" from handle defined on device \"%s\"", k->node->device, part[HANDLE_DEVICE]);
    if (!err && part[HANDLE_DEVICE]) {
        trn_handle *h = TRN_DATA_MUT(out, trn_handle *)[0];
        free(h->device);
        h->device = part[HANDLE_DEVICE];
        part[HANDLE_DEVICE] = NULL;
    }
    for (int i = 0; i <= HANDLE_TYPE; i++)
        free(part[i]);
    if (err) {
        trn_tensor_unref(out);
        return err;
    }
    trn_out_set(k, 0, out);
    return check_string_types(k);
}

static trn_err iterator_get_device(trn_kctx *k)
{
    const char *d = k->node->device ? k->node->device : "";
    trn_out_set(k, 0, trn_tensor_str(d, strlen(d)));
    return TRN_OK;
}

/* ---- where an iterator stands, as a variant: what checkpoints keep ------------------------------------------------------------ */

typedef struct position {
    trn_variant base;
    trn_sb s;
} position;

static void position_free(void *v)
{
    trn_sb_fini(&((position *)v)->s);
    free(v);
}

static trn_err position_pack(trn_sb *meta, trn_tensor ***t, int *n, const trn_variant *v)
{
    trn_sb_add(meta, ((const position *)v)->s.p, ((const position *)v)->s.n);
    *t = NULL;
    *n = 0;
    return TRN_OK;
}

static trn_err position_unpack(trn_variant **out, const void *meta, size_t n, trn_tensor *const *t, int n_t);
static const trn_variant_type position_type = {.name = "trainera::IteratorPosition", .free = position_free, .pack = position_pack, .unpack = position_unpack};

static position *position_new(void)
{
    position *p = trn_xalloc(sizeof *p);
    atomic_init(&p->base.ref, 1);
    p->base.type = &position_type;
    return p;
}

static trn_err position_unpack(trn_variant **out, const void *meta, size_t n, trn_tensor *const *t, int n_t)
{
    position *p = position_new();
    trn_sb_add(&p->s, meta, n);
    *out = &p->base;
    return TRN_OK;
}

__attribute__((constructor)) static void make_known(void) { trn_variant_type_add(&position_type); }

enum { FAIL_ON_STATE = 2 }; /* of ExternalStatePolicy: warn, ignore, fail */

static trn_err serialize_iterator(trn_kctx *k)
{
    TRN_CHECK_ARG(trn_in(k, 0)->shape.rank == 0, "resource_handle must be a scalar");
    trn_iter *i;
    TRN_TRY(trn_k_resource(&i, k, 0, &trn_iter_type));
    position *p = position_new();
    trn_err err = trn_iter_save(&p->s, i, trn_attr_int(k->node, "external_state_policy") == FAIL_ON_STATE);
    trn_resource_unref(i);
    trn_shape one = trn_shape_vector(1);
    trn_tensor *t;
    if (!err)
        err = trn_out_new(&t, k, 0, TRN_VARIANT, &one);
    if (err)
        trn_variant_unref(&p->base);
    else
        TRN_DATA_MUT(t, trn_variant *)[0] = &p->base;
    return err;
}

static void restored(void *arg, trn_err err, trn_elem *e)
{
    trn_elem_free(e);
    trn_k_done(arg, err);
}

static trn_err deserialize_iterator(trn_kctx *k)
{
    const trn_tensor *t = trn_in(k, 1);
    const trn_variant *v = t->count == 1 ? TRN_DATA(t, trn_variant *)[0] : NULL;
    TRN_CHECK_ARG(v && v->type == &position_type, "serialized holds no position of an iterator of Trainera");
    trn_iter *i;
    TRN_TRY(trn_k_resource(&i, k, 0, &trn_iter_type));
    trn_host host = trn_k_host(k);
    const trn_sb *s = &((const position *)v)->s;
    trn_iter_load(i, s->p, s->n, &host, trn_k_cancel(k), restored, k);
    trn_resource_unref(i);
    return TRN_OK;
}

static trn_err sh_position(trn_shctx *s)
{
    s->out[0] = trn_shape_vector(-1);
    return TRN_OK;
}

/* ---- ReduceDataset: an operator whose only element is the last state ---------------------------------------------------------- */

typedef struct reduce {
    trn_ds d;
    trn_elem *first;
} reduce;

typedef struct reduce_it {
    trn_it it;
    trn_elem *state;
} reduce_it;

static void reduce_free(trn_ds *d) { trn_elem_free(((reduce *)d)->first); }
static void reduce_stop(trn_it *it) { trn_elem_free(((reduce_it *)it)->state); }

static trn_err reduce_start(trn_it *it)
{
    ((reduce_it *)it)->state = trn_elem_copy(((reduce *)it->d)->first);
    return trn_it_start_in(it);
}

static trn_ds_do reduce_next(trn_it *it_, trn_act *a, trn_ds_why why)
{
    reduce_it *it = (reduce_it *)it_;
    switch (why) {
    case TRN_DS_GOT: {
        trn_elem *args = trn_elem_new(it->state->n + a->elem->n);
        for (int i = 0; i < args->n; i++)
            args->t[i] = trn_tensor_ref(i < it->state->n ? it->state->t[i] : a->elem->t[i - it->state->n]);
        trn_elem_free(a->elem);
        a->elem = args;
        return TRN_DS_CALL;
    }
    case TRN_DS_CALLED:
        if (a->elem->n != it->state->n)
            return trn_act_fail(a, TRN_BAD("the function gave %d values, the state has %d", a->elem->n, it->state->n));
        trn_elem_free(it->state);
        it->state = trn_act_take(a);
        break;
    case TRN_DS_ENDED:
        return trn_act_give(a, trn_elem_copy(it->state));
    default:
        break;
    }
    return trn_act_pull_on(a, it_->in);
}

static const trn_ds_op reduce_op = {"ReduceDataset", sizeof(reduce_it), reduce_free, reduce_start, reduce_next, .stop = reduce_stop};

/* A walk that belongs to one run of one node. */
typedef struct walking {
    trn_kctx *k;
    trn_it *it;
    trn_elem *e;
    int64_t at;
} walking;

static void walk_end(walking *w, trn_err err)
{
    if (!err)
        err = trn_data_set_outputs(w->k, w->e);
    trn_elem_free(w->e);
    trn_it_drop(w->it);
    trn_kctx *k = w->k;
    free(w);
    trn_k_done(k, err);
}

static bool reduced(void *arg, trn_err err, trn_elem *e)
{
    walking *w = arg;
    w->e = e;
    walk_end(w, err);
    return false;
}

static trn_err walk(trn_kctx *k, trn_ds *d, trn_act_done done)
{
    trn_host host = trn_k_host(k);
    walking *w = trn_xalloc(sizeof *w);
    w->k = k;
    trn_err err = trn_it_make(&w->it, d, &host);
    if (err) {
        free(w);
        return err;
    }
    trn_act_pull(w->it, trn_k_cancel(k), done, w);
    return TRN_OK;
}

trn_err trn_data_only(trn_kctx *k, trn_ds *d) { return walk(k, d, reduced); }

static trn_err reduce_dataset(trn_kctx *k)
{
    reduce *r;
    TRN_TRY(trn_data_on(&r, k, &reduce_op, sizeof *r));
    int n, first = trn_in_arg(k, "initial_state", &n);
    trn_dtype *types = trn_xalloc(((size_t)n + 1) * sizeof *types);
    r->first = trn_elem_new(n);
    for (int i = 0; i < n; i++) {
        r->first->t[i] = trn_tensor_ref(trn_in(k, first + i));
        types[i] = trn_in(k, first + i)->dtype;
    }
    trn_ds_elem_is(&r->d, n, types, NULL);
    free(types);
    trn_err err = trn_data_func(&r->d, k, "f", "other_arguments");
    if (!err)
        err = walk(k, &r->d, reduced);
    trn_ds_unref(&r->d); /* the walk has its own reference */
    return err;
}

/* ---- DatasetToSingleElement ---------------------------------------------------------------------------------------------------- */

static bool single(void *arg, trn_err err, trn_elem *e)
{
    walking *w = arg;
    bool second = w->e != NULL;
    if (!err && !second && e) {
        w->e = e;
        return true;
    }
    if (!err && !second)
        err = TRN_BAD("Dataset was empty.");
    if (!err && e)
        err = TRN_BAD("Dataset had more than one element.");
    trn_elem_free(e);
    walk_end(w, err);
    return false;
}

static trn_err dataset_to_single_element(trn_kctx *k)
{
    trn_ds *d;
    TRN_TRY(trn_ds_in(&d, trn_in(k, 0)));
    return walk(k, d, single);
}

/* ---- GetElementAtIndex --------------------------------------------------------------------------------------------------------- */

static bool at_index(void *arg, trn_err err, trn_elem *e)
{
    walking *w = arg;
    int64_t want = TRN_DATA(trn_in(w->k, 1), int64_t)[0];
    if (!err && e && w->at < want) {
        w->at++;
        trn_elem_free(e);
        return true;
    }
    if (!err && !e)
        err = trn_errorf(TRN_OUT_OF_RANGE, "Index out of range [0, %lld): %lld", (long long)w->at, (long long)want);
    w->e = e;
    walk_end(w, err);
    return false;
}

static bool is_cached(const trn_ds *d) { return !strcmp(d->op->name, "CacheDataset"); }

/* Those whose elements TensorFlow finds by number, in the order of a walk. (Shuffle it can, too, but in another order.) */
static trn_err check_indexed(const trn_ds *d, int *left)
{
    static const char *const names[] = {"BatchDataset", "CacheDataset",   "ConcatenateDataset", "ListDataset", "MapDataset",         "OptionsDataset", "ParallelMapDataset", "PrefetchDataset",
                                        "RangeDataset", "RepeatDataset", "ShardDataset",       "TensorSliceDataset", "SkipDataset",    "TakeDataset",        "TensorDataset",
                                        "ZipDataset"};
    bool known = false;
    for (size_t i = 0; i < TRN_COUNTOF(names) && !known; i++)
        known = !strcmp(names[i], d->op->name);
    if (known && is_cached(d))
        return TRN_OK; /* what it reads is walked, once */
    if (!known || --*left < 0) /* some may be reached on very many ways */
        return trn_errorf(TRN_UNIMPLEMENTED, "Random access is not implemented for this dataset (%s).", d->op->name);
    for (int i = 0; i < d->n_in; i++)
        TRN_TRY(check_indexed(d->in[i], left));
    return TRN_OK;
}

static trn_err get_element_at_index(trn_kctx *k)
{
    trn_ds *d;
    int64_t want;
    int left = 10000;
    TRN_TRY(trn_ds_in(&d, trn_in(k, 0)));
    TRN_TRY(trn_data_i64(&want, k, 1, "index"));
    TRN_TRY(check_indexed(d, &left));
    int64_t count = trn_ds_count(d);
    while (d->op->alias)
        d = d->in[0];
    if (count < 0 && !is_cached(d))
        return trn_errorf(TRN_FAILED_PRECONDITION, "%s has %s cardinality, which does not support random access.", d->op->name, count == TRN_DS_INFINITE ? "infinite" : "unknown");
    if (want < 0 || (count >= 0 && want >= count)) /* of a cached one whose end is not known: as far as it goes */
        return trn_errorf(TRN_OUT_OF_RANGE, "Index out of range [0, %lld): %lld", (long long)count, (long long)want);
    return walk(k, d, at_index);
}

#define MAKES (TRN_OP_STATEFUL), trn_resop_init, trn_resop_fini
#define WAITS (TRN_OP_STATEFUL | TRN_OP_ASYNC)

const trn_op trn_ops_data_iter[] = {
    {"Iterator", "-> handle:res; shared_name:string, container:string, " DS_OUT, trn_sh_handle, iterator, MAKES},
    {"IteratorV2", "-> handle:res; shared_name:string, container:string, " DS_OUT, trn_sh_handle, iterator, MAKES},
    {"OneShotIterator", "-> handle:res; dataset_factory:func, " DS_OUT ", container:string=\"\", shared_name:string=\"\"", trn_sh_handle, one_shot_iterator,
     WAITS, trn_resop_init, trn_resop_fini},
    {"AnonymousIterator", "-> handle:res; " DS_OUT, trn_sh_dataset, anonymous_iterator, TRN_OP_STATEFUL},
    {"AnonymousIteratorV2", "-> handle:res, deleter:var; " DS_OUT, trn_sh_dataset, anonymous_iterator, TRN_OP_STATEFUL},
    {"AnonymousIteratorV3", "-> handle:res; " DS_OUT, trn_sh_dataset, anonymous_iterator, TRN_OP_STATEFUL},
    {"MakeIterator", "dataset:var, iterator:res ->", trn_sh_dataset, make_iterator, TRN_OP_STATEFUL},
    {"DeleteIterator", "handle:res, deleter:var ->", trn_sh_dataset, nothing, TRN_OP_STATEFUL},
    {"IteratorGetNext", "iterator:res -> components:output_types; " DS_OUT, trn_sh_elements, iterator_get_next, WAITS},
    {"IteratorGetNextSync", "iterator:res -> components:output_types; " DS_OUT, trn_sh_elements, iterator_get_next, WAITS},
    {"IteratorGetNextAsOptional", "iterator:res -> optional:var; " DS_OUT, trn_sh_dataset, get_next_as_optional, WAITS},
    {"IteratorToStringHandle", "resource_handle:res -> string_handle:str", trn_sh_dataset, to_string_handle, TRN_OP_STATEFUL},
    {"IteratorFromStringHandle", "string_handle:str -> resource_handle:res; output_types:list(type)>=0=[], output_shapes:list(shape)>=0=[]",
     trn_sh_dataset, from_string_handle, TRN_OP_STATEFUL},
    {"IteratorFromStringHandleV2", "string_handle:str -> resource_handle:res; output_types:list(type)>=0=[], output_shapes:list(shape)>=0=[]",
     trn_sh_dataset, from_string_handle, TRN_OP_STATEFUL},
    {"SerializeIterator", "resource_handle:res -> serialized:var; external_state_policy:int=0", sh_position, serialize_iterator, TRN_OP_STATEFUL},
    {"DeserializeIterator", "resource_handle:res, serialized:var ->", trn_sh_none, deserialize_iterator, WAITS},
    {"IteratorGetDevice", "resource:res -> device:str", trn_sh_dataset, iterator_get_device, TRN_OP_STATEFUL},
    {"ReduceDataset",
     "input_dataset:var, initial_state:Tstate, other_arguments:Targuments -> components:output_types; f:func, Tstate:list(type)>=1, "
     "Targuments:list(type)>=0, " DS_OUT ", use_inter_op_parallelism:bool=true" DS_META,
     trn_sh_elements, reduce_dataset, WAITS},
    {"DatasetToGraph", "input_dataset:var -> graph:str; stateful_whitelist:list(string)>=0=[], allow_stateful:bool=false, strip_device_assignment:bool=false",
     trn_sh_dataset, dataset_to_graph, 0},
    {"DatasetToGraphV2", "input_dataset:var -> graph:str; external_state_policy:int=0, strip_device_assignment:bool=false", trn_sh_dataset,
     dataset_to_graph_v2, 0},
    {"DatasetFromGraph", "graph_def:str -> handle:var", trn_sh_dataset, dataset_from_graph, TRN_OP_ASYNC | TRN_OP_BACK},
    {"GetElementAtIndex", "dataset:var, index:i64 -> components:output_types; " DS_OUT, trn_sh_elements, get_element_at_index, TRN_OP_ASYNC | TRN_OP_BACK},
    {"DatasetToSingleElement", "dataset:var -> components:output_types; " DS_OUT DS_META, trn_sh_elements, dataset_to_single_element, WAITS},
    {0},
};
