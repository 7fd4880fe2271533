#include "ops/data.h"

#include <stdlib.h>

/* ---- inputs ------------------------------------------------------------------------------------------------------- */

static trn_err scalar(const trn_kctx *k, int i, const char *name)
{
    TRN_CHECK_ARG(trn_in(k, i)->shape.rank == 0, "%s must be a scalar", name);
    return TRN_OK;
}

trn_err trn_data_i64(int64_t *out, const trn_kctx *k, int i, const char *name)
{
    TRN_TRY(scalar(k, i, name));
    *out = trn_int_at(trn_in(k, i), 0);
    return TRN_OK;
}

trn_err trn_data_bool(bool *out, const trn_kctx *k, int i, const char *name)
{
    TRN_TRY(scalar(k, i, name));
    *out = TRN_DATA(trn_in(k, i), bool)[0];
    return TRN_OK;
}

trn_err trn_data_str(char **out, const trn_kctx *k, int i, const char *name)
{
    TRN_TRY(scalar(k, i, name));
    const trn_str *s = TRN_DATA(trn_in(k, i), trn_str);
    *out = trn_xstrndup(trn_str_p(s), s->len);
    return TRN_OK;
}

/* ---- making ------------------------------------------------------------------------------------------------------- */

trn_err trn_data_on(void *out, trn_kctx *k, const trn_ds_op *op, size_t size)
{
    trn_ds *in;
    TRN_TRY(trn_ds_in(&in, trn_in(k, 0)));
    return trn_ds_new(out, op, size, &in, 1);
}

trn_err trn_data_source(void *out, trn_kctx *k, const trn_ds_op *op, size_t size)
{
    TRN_TRY(trn_ds_new(out, op, size, NULL, 0));
    if (trn_node_attr(k->node, "output_types"))
        trn_data_elem_attrs(*(trn_ds **)out, k->node);
    return TRN_OK;
}

void trn_data_elem_attrs(trn_ds *d, const trn_node *n)
{
    const trn_attr *types = trn_node_attr(n, "output_types"), *shapes = trn_node_attr(n, "output_shapes");
    int c = types ? types->n : 0;
    trn_dtype *t = trn_xalloc(((size_t)c + 1) * sizeof *t);
    trn_shape *s = trn_xalloc(((size_t)c + 1) * sizeof *s);
    for (int i = 0; i < c; i++) {
        t[i] = types->list[i].type;
        s[i] = shapes && i < shapes->n ? *shapes->list[i].shape : trn_shape_unknown();
    }
    trn_ds_elem_is(d, c, t, s);
    free(t);
    free(s);
}

trn_err trn_data_func(trn_ds *d, trn_kctx *k, const char *attr, const char *captured)
{
    TRN_TRY(trn_k_func(&d->f, k, trn_attr_func(k->node, attr)));
    int n = 0, first = captured ? trn_in_arg(k, captured, &n) : 0;
    d->cap = trn_xalloc(((size_t)n + 1) * sizeof *d->cap);
    for (int i = 0; i < n; i++)
        d->cap[d->n_cap++] = trn_tensor_ref(trn_in(k, first + i));
    return TRN_OK;
}

trn_err trn_data_out(trn_kctx *k, void *ds, trn_err err)
{
    trn_tensor *t;
    for (int i = 0; !err && i < k->n_in; i++)
        err = trn_ds_keeps(ds, trn_in(k, i));
    if (!err) {
        ((trn_ds *)ds)->made = trn_k_origin(k);
        err = trn_ds_tensor(&t, ds);
    } else
        trn_ds_unref(ds);
    if (!err)
        trn_out_set(k, 0, t);
    return err;
}

trn_err trn_it_start_in(trn_it *it) { return trn_it_new_in(&it->in, it, 0); }

trn_err trn_sh_dataset(trn_shctx *s)
{
    for (int i = 0; i < s->n_out; i++)
        s->out[i] = trn_shape_scalar();
    return TRN_OK;
}

int64_t trn_data_count_same(const trn_ds *d) { return trn_ds_count(d->in[0]); }

trn_ds_do trn_data_pass(trn_it *it, trn_act *a, trn_ds_why why)
{
    if (why == TRN_DS_START)
        return trn_act_pull_on(a, it->in);
    return why == TRN_DS_GOT ? TRN_DS_GIVE : TRN_DS_END;
}

/* ---- anonymous resources --------------------------------------------------------------------------------------------- */

static void unref_resource(void *r) { trn_resource_unref(r); }

trn_err trn_data_anonymous(trn_kctx *k, trn_resource *r, const char *type_name)
{
    trn_shape s = trn_shape_scalar();
    trn_tensor *t;
    trn_err err = trn_res_handle(&t, k->node, "", k->node->name, type_name, TRN_INVALID, NULL);
    if (err) {
        trn_resource_unref(r);
        return err;
    }
    trn_handle *h = TRN_DATA_MUT(t, trn_handle *)[0];
    h->res = r;
    h->res_unref = unref_resource;
    trn_out_set(k, 0, t);
    if (k->n_out > 1)
        return trn_out_new(&t, k, 1, TRN_VARIANT, &s);
    return TRN_OK;
}

/* ---- stacking and slicing ----------------------------------------------------------------------------------------- */

trn_err trn_data_stack(trn_tensor **out, trn_elem *const *e, int64_t n, int c)
{
    const trn_tensor *first = e[0]->t[c];
    trn_shape s = first->shape;
    if (s.rank >= TRN_MAX_RANK)
        return TRN_BAD("component %d has %d dimensions: too many to batch", c, s.rank);
    memmove(s.dim + 1, s.dim, (size_t)s.rank * sizeof *s.dim);
    s.dim[0] = n;
    s.rank++;
    trn_tensor *t;
    TRN_TRY(trn_tensor_new(&t, first->dtype, &s));
    trn_err err = TRN_OK;
    for (int64_t i = 0; !err && i < n; i++) {
        const trn_tensor *x = e[i]->t[c];
        char a[TRN_SHAPE_TEXT], b[TRN_SHAPE_TEXT];
        if (!trn_shape_eq(&x->shape, &first->shape))
            err = TRN_BAD("Cannot batch tensors with different shapes in component %d. First element had shape %s and element %lld had shape %s.", c,
                          trn_shape_text(a, &first->shape), (long long)i, trn_shape_text(b, &x->shape));
        else
            err = trn_tensor_copy_elems(t, i * first->count, x, 0, first->count);
    }
    if (err)
        trn_tensor_unref(t);
    else
        *out = t;
    return err;
}

trn_err trn_data_batch(trn_elem **out, trn_elem *const *e, int64_t n)
{
    trn_elem *b = trn_elem_new(e[0]->n);
    for (int c = 0; c < b->n; c++) {
        trn_err err = trn_data_stack(&b->t[c], e, n, c);
        if (err) {
            trn_elem_free(b);
            return err;
        }
    }
    *out = b;
    return TRN_OK;
}

trn_err trn_data_slice(trn_tensor **out, const trn_tensor *t, int64_t i)
{
    trn_shape s = t->shape;
    s.rank--;
    memmove(s.dim, s.dim + 1, (size_t)s.rank * sizeof *s.dim);
    int64_t n = t->shape.dim[0] ? t->count / t->shape.dim[0] : 0;
    return trn_tensor_view(out, t, i * n, &s);
}

/* ---- elements in memory ------------------------------------------------------------------------------------------- */

typedef struct memory {
    trn_ds d;
    int64_t n;
    trn_elem **e;
} memory;

typedef struct memory_it {
    trn_it it;
    int64_t at;
} memory_it;

static void memory_free(trn_ds *d)
{
    memory *m = (memory *)d;
    for (int64_t i = 0; i < m->n; i++)
        trn_elem_free(m->e[i]);
    free(m->e);
}

static trn_ds_do memory_next(trn_it *it_, trn_act *a, trn_ds_why why)
{
    memory_it *it = (memory_it *)it_;
    memory *m = (memory *)it_->d;
    return it->at < m->n ? trn_act_give(a, trn_elem_copy(m->e[it->at++])) : TRN_DS_END;
}

static int64_t memory_count(const trn_ds *d) { return ((const memory *)d)->n; }

static const trn_ds_op memory_op = {"WindowDataset", sizeof(memory_it), memory_free, NULL, memory_next, .count = memory_count};

static const trn_ds_op list_op = {"ListDataset", sizeof(memory_it), memory_free, NULL, memory_next, .count = memory_count};
void trn_data_is_list(trn_ds *d) { d->op = &list_op; }

trn_err trn_data_memory(trn_ds **out, trn_elem **e, int64_t n, int n_components, const trn_dtype *types, const trn_shape *shapes)
{
    memory *m;
    trn_err err = trn_ds_new(&m, &memory_op, sizeof *m, NULL, 0);
    if (err) {
        for (int64_t i = 0; i < n; i++)
            trn_elem_free(e[i]);
        free(e);
        return err;
    }
    m->e = e;
    m->n = n;
    trn_ds_elem_is(&m->d, n_components, types, shapes);
    *out = &m->d;
    return TRN_OK;
}
