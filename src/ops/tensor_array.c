/* TensorArrays: what loops read from and write to by index, once each. They live as long as their handle (resource form) or the step (the
 * older forms, whose handle is the strings [container, name]).
 *
 * The array of gradients for a source ("gradients", "gradients_1", …) belongs to its forward array: whoever asks first makes it, with the
 * forward elements' shapes, so that what was never written to reads as zeros. Writes to it add up. */
#include "ops/kern.h"
#include "ops/resop.h"
#include "res/var.h"

#include <stdlib.h>

#define ARRAYS "_tensor_arrays"
#define GRADS "_tensor_array_grads"
#define MAX_SIZE (1 << 24) /* elements: sizes and indices are a peer's */

typedef struct element {
    trn_tensor *t;
    trn_shape *shape; /* when there is no tensor */
    bool written, read, cleared;
} element;

typedef struct array {
    trn_resource base;
    char *name;
    trn_dtype dtype;
    bool identical, clear_after_read, is_grad, on_step; /* on_step: found in the step's table */
    trn_var *strings;                                   /* ref form's handle */
    trn_mutex mu;                                       /* all below */
    bool closed, dynamic, no_grads;
    int32_t marked; /* size that a Split or Unpack has seen, -1: none */
    trn_shape shape;
    element *e;
    int64_t n, cap;
    struct grad {
        char *source;
        struct array *a;
    } * grads;
    int n_grads, cap_grads;
} array;

static void drop_elements(array *a)
{
    for (int64_t i = 0; i < a->n; i++) {
        trn_tensor_unref(a->e[i].t);
        free(a->e[i].shape);
    }
    free(a->e);
    a->e = NULL;
    a->n = a->cap = 0;
}

static void array_free(trn_resource *r)
{
    array *a = (array *)r;
    drop_elements(a);
    for (int i = 0; i < a->n_grads; i++) {
        free(a->grads[i].source);
        trn_resource_unref(a->grads[i].a);
    }
    free(a->grads);
    trn_resource_unref(a->strings);
    trn_mutex_fini(&a->mu);
    free(a->name);
    free(a);
}

static const trn_restype array_type = {.name = "TensorArray", .handle = "tensorflow::TensorArray", .free = array_free};

static trn_err resize_locked(array *a, int64_t n)
{
    if (n > MAX_SIZE)
        return trn_errorf(TRN_RESOURCE_EXHAUSTED, "TensorArray %s: %lld elements are more than the limit of %d",
                          a->name, (long long)n, MAX_SIZE);
    if (n > a->cap) {
        int64_t cap = n > 2 * a->cap ? n : 2 * a->cap;
        element *e = realloc(a->e, (size_t)cap * sizeof *e);
        if (!e)
            return trn_err_oom();
        a->e = e;
        a->cap = cap;
    }
    if (n > a->n)
        memset(a->e + a->n, 0, (size_t)(n - a->n) * sizeof *a->e);
    a->n = n > a->n ? n : a->n;
    return TRN_OK;
}

static trn_err array_new(array **out, TRN_OWN char *name, trn_dtype dtype, int64_t size)
{
    array *a = trn_xalloc(sizeof *a);
    trn_resource_init(&a->base, &array_type);
    trn_mutex_init(&a->mu, TRN_RANK_RES);
    a->name = name;
    a->dtype = dtype;
    a->marked = -1;
    a->shape = trn_shape_unknown();
    trn_err err = resize_locked(a, size);
    if (err)
        trn_resource_unref(a);
    else
        *out = a;
    return err;
}

/* ---- handles ------------------------------------------------------------------------------------------------------- */

static trn_tensor *string_pair(const char *container, const char *name)
{
    return trn_tensor_from(TRN_STRING, 1, (int64_t[]){2}, (const char *[]){container, name});
}

static trn_err give_strings(trn_kctx *k, array *a, const char *container)
{
    trn_tensor *t = string_pair(container, a->name);
    if (!t)
        return trn_err_oom();
    if (!trn_dtype_is_ref(k->node->out_types[0])) {
        trn_out_set(k, 0, t);
        return TRN_OK;
    }
    trn_lock(&a->mu);
    trn_err err = TRN_OK;
    if (!a->strings) {
        err = trn_var_new(&a->strings, a->name, TRN_STRING, &t->shape);
        if (!err)
            trn_var_assign(a->strings, trn_tensor_ref(t));
    }
    trn_unlock(&a->mu);
    trn_tensor_unref(t);
    if (!err)
        trn_out_var(k, 0, a->strings);
    return err;
}

/* The resource handle holds the array itself: nothing to look up, nothing left behind. */
static trn_err give_handle(trn_kctx *k, array *a, const char *container)
{
    trn_shape scalar = trn_shape_scalar();
    trn_tensor *t;
    TRN_TRY(trn_out_new(&t, k, 0, TRN_RESOURCE, &scalar));
    char *name = trn_xasprintf("%s%s", container, a->name);
    trn_handle *h = trn_handle_new(k->node->device, container, name, "tensorflow::TensorArray");
    free(name);
    h->res = trn_resource_ref(a);
    h->res_unref = trn_resource_unref;
    TRN_DATA_MUT(t, trn_handle *)[0] = h;
    return TRN_OK;
}

static trn_err give(trn_kctx *k, array *a, const char *container)
{
    TRN_TRY(k->node->out_types[0] == TRN_RESOURCE ? give_handle(k, a, container) : give_strings(k, a, container));
    if (k->n_out == 2)
        trn_out_set(k, 1, trn_tensor_f32(0));
    return TRN_OK;
}

static trn_err by_strings(array **out, trn_kctx *k, const trn_tensor *t)
{
    char text[TRN_SHAPE_TEXT];
    TRN_CHECK_ARG(t->dtype == TRN_STRING && t->count == 2,
                  "Tensor array handle must be 2-element vector, but had shape: %s", trn_shape_text(text, &t->shape));
    const trn_str *s = TRN_DATA(t, trn_str);
    char *container = trn_xstrndup(trn_str_p(&s[0]), s[0].len), *name = trn_xstrndup(trn_str_p(&s[1]), s[1].len);
    trn_err err = trn_resmgr_get(out, trn_k_step_resmgr(k), container, name, &array_type);
    free(container);
    free(name);
    return err;
}

static trn_err find(array **out, trn_kctx *k)
{
    if (trn_in(k, 0) && trn_in(k, 0)->dtype == TRN_RESOURCE)
        return trn_k_resource(out, k, 0, &array_type);
    if (trn_in(k, 0))
        return by_strings(out, k, trn_in(k, 0));
    trn_tensor *t;
    TRN_TRY(trn_var_read(&t, k->in[0].var));
    trn_err err = by_strings(out, k, t);
    trn_tensor_unref(t);
    return err;
}

static trn_err make(trn_kctx *k)
{
    static _Atomic uint64_t counter;
    const trn_node *n = k->node;
    const trn_tensor *size = trn_in(k, 0);
    char text[TRN_SHAPE_TEXT];
    TRN_CHECK_ARG(trn_is_scalar(size), "TensorArray size must be scalar, but had shape: %s",
                  trn_shape_text(text, &size->shape));
    int32_t count = TRN_DATA(size, int32_t)[0];
    TRN_CHECK_ARG(count >= 0, "Size should be >= 0.");
    const char *name = trn_attr_str(n, "tensor_array_name");
    array *a;
    TRN_TRY(array_new(
        &a, trn_xasprintf("%s_%llu", *name ? name : n->name, (unsigned long long)atomic_fetch_add(&counter, 1)),
        trn_attr_type(n, "dtype"), count));
    a->identical = trn_attr_bool(n, "identical_element_shapes");
    a->clear_after_read = trn_attr_bool(n, "clear_after_read");
    a->dynamic = trn_attr_bool(n, "dynamic_size");
    a->shape = *trn_attr_shape(n, "element_shape");
    trn_err err = TRN_OK;
    if (n->out_types[0] != TRN_RESOURCE) {
        a->on_step = true;
        err = trn_resmgr_put(trn_k_step_resmgr(k), ARRAYS, a->name, trn_resource_ref(a));
    }
    if (!err)
        err = give(k, a, ARRAYS);
    trn_resource_unref(a);
    return err;
}

/* ---- gradients ----------------------------------------------------------------------------------------------------- */

static trn_err closed(const array *a)
{
    TRN_CHECK_ARG(!a->closed, "TensorArray %s has already been closed.", a->name);
    return TRN_OK;
}

static trn_err prepend(trn_shape *out, const trn_shape *front, const trn_shape *s)
{
    trn_shape r = *s;
    if (s->rank >= 0 && front->rank > 0) {
        TRN_CHECK_ARG(front->rank + s->rank <= TRN_MAX_RANK, "an element would have %d dimensions",
                      front->rank + s->rank);
        r = *front;
        for (int i = 0; i < s->rank; i++)
            r.dim[r.rank++] = s->dim[i];
    }
    *out = r;
    return TRN_OK;
}

static trn_err copy_shapes(array *g, const array *a, const trn_shape *front)
{
    for (int64_t i = 0; i < a->n; i++) {
        if (!a->e[i].written)
            continue;
        trn_shape s;
        TRN_TRY(prepend(&s, front, a->e[i].t ? &a->e[i].t->shape : a->e[i].shape));
        g->e[i].shape = malloc(sizeof s);
        if (!g->e[i].shape)
            return trn_err_oom();
        *g->e[i].shape = s;
        g->e[i].written = true;
    }
    return TRN_OK;
}

static trn_err grad_locked(array **out, array *a, const char *source, const trn_shape *front)
{
    a->dynamic = false; /* the gradients have one element each for those that are there now */
    TRN_TRY(closed(a));
    TRN_CHECK_ARG(!a->no_grads,
                  "Unable to create a gradients TensorArray for %s: several writes to one index were added up, which "
                  "has no gradient",
                  a->name);
    for (int i = 0; i < a->n_grads; i++)
        if (!strcmp(a->grads[i].source, source)) {
            *out = trn_resource_ref(a->grads[i].a);
            return TRN_OK;
        }
    trn_shape shape;
    TRN_TRY(prepend(&shape, front, &a->shape));
    array *g;
    TRN_TRY(array_new(&g, trn_xasprintf("%s@%s", a->name, source), a->dtype, a->n));
    g->shape = shape;
    g->identical = a->identical;
    g->is_grad = g->clear_after_read = true;
    g->marked = a->marked;
    trn_err err = copy_shapes(g, a, front);
    if (err) {
        trn_resource_unref(g);
        return err;
    }
    TRN_PUSH(a->grads, a->n_grads, a->cap_grads, (struct grad){trn_xstrdup(source), trn_resource_ref(g)});
    *out = g;
    return TRN_OK;
}

static trn_err grad(trn_kctx *k)
{
    trn_shape front = trn_shape_scalar();
    if (k->n_in > 2)
        TRN_TRY(trn_shape_from(&front, trn_in(k, 2), true));
    array *a, *g = NULL;
    TRN_TRY(find(&a, k));
    trn_err err;
    bool register_it = false;
    if (a->is_grad) {
        err = TRN_BAD("TensorArray %s holds gradients; gradients of those are not supported", a->name);
    } else {
        trn_lock(&a->mu);
        err = grad_locked(&g, a, trn_attr_str(k->node, "source"), &front);
        if (!err && k->node->out_types[0] != TRN_RESOURCE && !g->on_step)
            register_it = g->on_step = true;
        trn_unlock(&a->mu);
    }
    if (register_it) /* nobody can have its handle before we give it out, except another TensorArrayGrad that is as early as this */
        err = trn_resmgr_put(trn_k_step_resmgr(k), GRADS, g->name, trn_resource_ref(g));
    if (!err)
        err = give(k, g, GRADS);
    trn_resource_unref(g);
    trn_resource_unref(a);
    return err;
}

/* ---- one element --------------------------------------------------------------------------------------------------- */

static trn_err check_dtype(const array *a, trn_dtype t, const char *what)
{
    TRN_CHECK_ARG(a->dtype == t, "TensorArray dtype is %s but Op %s dtype %s.", trn_dtype_name(a->dtype), what,
                  trn_dtype_name(t));
    return TRN_OK;
}

static trn_err add_up(array *a, element *e, const trn_tensor *v, int64_t i)
{
    char was[TRN_SHAPE_TEXT], now[TRN_SHAPE_TEXT];
    const trn_shape *s = e->t ? &e->t->shape : e->shape;
    TRN_CHECK_ARG(trn_shape_eq(s, &v->shape),
                  "TensorArray %s: Could not aggregate to TensorArray index %lld because the existing shape is %s but "
                  "the new input shape is %s.",
                  a->name, (long long)i, trn_shape_text(was, s), trn_shape_text(now, &v->shape));
    if (!e->t || e->t->count == 0) {
        trn_tensor_unref(e->t);
        e->t = trn_tensor_ref(v);
        return TRN_OK;
    }
    TRN_CHECK_ARG(trn_accum_has(TRN_ACC_ADD, a->dtype), "TensorArray %s: values of %s cannot be added up", a->name,
                  trn_dtype_name(a->dtype));
    if (!trn_tensor_sole(e->t)) {
        trn_tensor *own;
        TRN_TRY(trn_tensor_copy(&own, e->t));
        trn_tensor_unref(e->t);
        e->t = own;
    }
    trn_accum(TRN_ACC_ADD, a->dtype, e->t->data, v->data, v->count);
    a->no_grads = true;
    return TRN_OK;
}

static trn_err write_locked(array *a, int64_t i, const trn_tensor *v)
{
    char want[TRN_SHAPE_TEXT], got[TRN_SHAPE_TEXT];
    TRN_TRY(closed(a));
    TRN_CHECK_ARG(i >= 0 && (a->dynamic || i < a->n),
                  "TensorArray %s: Tried to write to index %lld but array is not resizeable and size is: %lld", a->name,
                  (long long)i, (long long)a->n);
    TRN_TRY(resize_locked(a, i + 1));
    TRN_CHECK_ARG(trn_shape_compatible(&a->shape, &v->shape),
                  "TensorArray %s: Could not write to TensorArray index %lld because the value shape is %s which is "
                  "incompatible with the "
                  "TensorArray's inferred element shape: %s (consider setting infer_shape=False).",
                  a->name, (long long)i, trn_shape_text(got, &v->shape), trn_shape_text(want, &a->shape));
    if (a->identical && !trn_shape_is_full(&a->shape))
        a->shape = v->shape;
    element *e = &a->e[i];
    TRN_CHECK_ARG(!e->read,
                  "TensorArray %s: Could not write to TensorArray index %lld because it has already been read.",
                  a->name, (long long)i);
    TRN_CHECK_ARG(a->is_grad || !e->written,
                  "TensorArray %s: Could not write to TensorArray index %lld because it has already been written to.",
                  a->name, (long long)i);
    if (e->written)
        return add_up(a, e, v, i);
    e->t = trn_tensor_ref(v);
    e->written = true;
    return TRN_OK;
}

/* What was not written reads as zeros, if it is known how many. */
static trn_err assume_zeros(array *a, int64_t i)
{
    char text[TRN_SHAPE_TEXT];
    TRN_CHECK_ARG(trn_shape_is_full(&a->shape),
                  "TensorArray %s: Could not read from TensorArray index %lld.  Furthermore, the element shape is not "
                  "fully defined: %s.  "
                  "Nothing was written there, perhaps because stop_gradients kept gradients from it; with the full "
                  "element_shape set on the "
                  "forward TensorArray this reads as zeros.",
                  a->name, (long long)i, trn_shape_text(text, &a->shape));
    int64_t from = i < a->n ? i : a->n;
    TRN_TRY(resize_locked(a, i + 1));
    for (int64_t j = from; j <= i; j++) {
        if (a->e[j].written)
            continue;
        trn_shape *s = malloc(sizeof *s);
        if (!s)
            return trn_err_oom();
        *s = a->shape;
        a->e[j].shape = s;
        a->e[j].written = true;
    }
    return TRN_OK;
}

static trn_err read_locked(trn_tensor **out, array *a, int64_t i)
{
    TRN_TRY(closed(a));
    TRN_CHECK_ARG(i >= 0 && (a->is_grad || i < a->n), "Tried to read from index %lld but array size is: %lld",
                  (long long)i, (long long)a->n);
    if (i >= a->n || !a->e[i].written)
        TRN_TRY(assume_zeros(a, i));
    element *e = &a->e[i];
    TRN_CHECK_ARG(!e->cleared,
                  "TensorArray %s: Could not read index %lld twice because it was cleared after a previous read "
                  "(perhaps try setting "
                  "clear_after_read = false?).",
                  a->name, (long long)i);
    if (!e->t) {
        trn_tensor *z;
        TRN_TRY(trn_tensor_new(&z, a->dtype, e->shape));
        if (z->count && !trn_dtype_is_plain(a->dtype)) {
            trn_tensor_unref(z);
            return TRN_BAD("TensorArray %s: there are no zeros of %s for index %lld", a->name, trn_dtype_name(a->dtype),
                           (long long)i);
        }
        trn_zero_elems(z, 0, z->count);
        e->t = z;
    }
    if (a->clear_after_read) {
        e->shape = e->shape ? e->shape : malloc(sizeof *e->shape);
        if (!e->shape)
            return trn_err_oom();
        *e->shape = e->t->shape;
        *out = e->t;
        e->t = NULL;
        e->cleared = true;
    } else {
        *out = trn_tensor_ref(e->t);
    }
    e->read = true;
    return TRN_OK;
}

static trn_err one_index(int64_t *out, const trn_kctx *k)
{
    const trn_tensor *t = trn_in(k, 1);
    char text[TRN_SHAPE_TEXT];
    TRN_CHECK_ARG(trn_is_scalar(t), "TensorArray index must be scalar, but had shape: %s",
                  trn_shape_text(text, &t->shape));
    *out = TRN_DATA(t, int32_t)[0];
    return TRN_OK;
}

static trn_err write_one(trn_kctx *k)
{
    const trn_tensor *v = trn_in(k, 2);
    int64_t i;
    TRN_TRY(one_index(&i, k));
    array *a;
    TRN_TRY(find(&a, k));
    trn_err err = check_dtype(a, v->dtype, "is trying to write");
    if (!err) {
        trn_lock(&a->mu);
        err = write_locked(a, i, v);
        trn_unlock(&a->mu);
    }
    trn_resource_unref(a);
    if (!err)
        trn_out_set(k, 0, trn_tensor_ref(trn_in(k, 3)));
    return err;
}

static trn_err read_one(trn_kctx *k)
{
    int64_t i;
    TRN_TRY(one_index(&i, k));
    array *a;
    TRN_TRY(find(&a, k));
    trn_tensor *t = NULL;
    trn_err err = check_dtype(a, trn_attr_type(k->node, "dtype"), "requested");
    if (!err) {
        trn_lock(&a->mu);
        err = read_locked(&t, a, i);
        trn_unlock(&a->mu);
    }
    trn_resource_unref(a);
    if (!err)
        trn_out_set(k, 0, t);
    return err;
}

/* ---- many elements -------------------------------------------------------------------------------------------------- */

typedef struct many {
    trn_tensor **t;
    int64_t n;
} many;

static void many_free(many *m)
{
    for (int64_t i = 0; i < m->n; i++)
        trn_tensor_unref(m->t[i]);
    free(m->t);
}

/* index NULL: the first n. */
static trn_err read_many(many *m, array *a, const int32_t *index, int64_t n)
{
    *m = (many){.t = calloc((size_t)(n ? n : 1), sizeof *m->t)};
    if (!m->t)
        return trn_err_oom();
    trn_err err = TRN_OK;
    trn_lock(&a->mu);
    for (; m->n < n && !err; m->n += !err)
        err = read_locked(&m->t[m->n], a, index ? index[m->n] : m->n);
    trn_unlock(&a->mu);
    return err;
}

static trn_err empty_stack(trn_kctx *k, const trn_shape *elem, const char *what, const char *doing)
{
    char text[TRN_SHAPE_TEXT];
    if (!trn_shape_is_full(elem))
        return trn_errorf(TRN_UNIMPLEMENTED,
                          "TensorArray has size zero, but %s %s is not fully defined. Currently only static shapes are supported when %s zero-size TensorArrays.",
                          what, trn_shape_text(text, elem), doing);
    trn_shape s, zero = trn_shape_vector(0);
    trn_tensor *y;
    TRN_TRY(prepend(&s, &zero, elem));
    return trn_out_new(&y, k, 0, trn_attr_type(k->node, "dtype"), &s);
}

static trn_err put_together(trn_kctx *k, const many *m, const trn_shape *shape)
{
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, 0, m->t[0]->dtype, shape));
    int64_t at = 0;
    for (int64_t i = 0; i < m->n; i++) {
        TRN_TRY(trn_tensor_copy_elems(y, at, m->t[i], 0, m->t[i]->count));
        at += m->t[i]->count;
    }
    return TRN_OK;
}

static trn_err stack_up(trn_kctx *k, const many *m, const trn_shape *elem)
{
    char a[TRN_SHAPE_TEXT], b[TRN_SHAPE_TEXT];
    const trn_shape *first = &m->t[0]->shape;
    TRN_CHECK_ARG(trn_shape_compatible(elem, first),
                  "TensorArray was passed element_shape %s which does not match the Tensor at index 0: %s",
                  trn_shape_text(a, elem), trn_shape_text(b, first));
    for (int64_t i = 1; i < m->n; i++)
        TRN_CHECK_ARG(trn_shape_eq(first, &m->t[i]->shape),
                      "TensorArray has inconsistent shapes.  Index 0 has shape: %s but index %lld has shape: %s",
                      trn_shape_text(a, first), (long long)i, trn_shape_text(b, &m->t[i]->shape));
    trn_shape s, front = trn_shape_vector(m->n);
    TRN_TRY(prepend(&s, &front, first));
    return put_together(k, m, &s);
}

static trn_err pack_size(int64_t *out, array *a)
{
    trn_lock(&a->mu);
    trn_err err = closed(a);
    *out = a->is_grad ? (a->marked < 0 ? 0 : a->marked) : a->n;
    trn_unlock(&a->mu);
    return err;
}

static trn_err meet_shape(array *a, const trn_shape *s)
{
    trn_lock(&a->mu);
    trn_err err = trn_sh_meet(&a->shape, &a->shape, s);
    trn_unlock(&a->mu);
    return err;
}

static trn_err gather_from(trn_kctx *k, array *a)
{
    const trn_shape *elem = trn_attr_shape(k->node, "element_shape");
    const int32_t *index = NULL;
    int64_t n;
    TRN_TRY(check_dtype(a, trn_attr_type(k->node, "dtype"), "requested"));
    TRN_TRY(meet_shape(a, elem));
    if (k->n_in == 3) {
        char text[TRN_SHAPE_TEXT];
        TRN_CHECK_ARG(trn_is_vector(trn_in(k, 1)), "Expected indices to be a vector, but received shape: %s",
                      trn_shape_text(text, &trn_in(k, 1)->shape));
        index = TRN_DATA(trn_in(k, 1), int32_t);
        n = trn_in(k, 1)->count;
    } else {
        TRN_TRY(pack_size(&n, a));
    }
    if (!n)
        return empty_stack(k, elem, "element shape", "packing");
    many m;
    trn_err err = read_many(&m, a, index, n);
    if (!err)
        err = stack_up(k, &m, elem);
    many_free(&m);
    return err;
}

static trn_err join(trn_kctx *k, const many *m, const trn_shape *except0)
{
    char a[TRN_SHAPE_TEXT], b[TRN_SHAPE_TEXT];
    trn_shape lengths = trn_shape_vector(m->n), all = {0}, rest0 = {0};
    trn_tensor *len;
    TRN_TRY(trn_out_new(&len, k, 1, TRN_INT64, &lengths));
    for (int64_t i = 0; i < m->n; i++) {
        const trn_shape *s = &m->t[i]->shape;
        TRN_CHECK_ARG(
            s->rank > 0,
            "Concat saw a scalar shape at index %lld but requires at least vectors.  Did you mean to call pack?",
            (long long)i);
        trn_shape rest = {.rank = s->rank - 1};
        memcpy(rest.dim, s->dim + 1, (size_t)rest.rank * sizeof *rest.dim);
        TRN_DATA_MUT(len, int64_t)[i] = s->dim[0];
        if (i == 0) {
            all = *s;
            rest0 = rest;
            TRN_CHECK_ARG(
                trn_shape_compatible(except0, &rest),
                "TensorArray was passed element_shape_except0 %s but index 0 has (excepting dimension 0) shape: %s",
                trn_shape_text(a, except0), trn_shape_text(b, &rest));
            continue;
        }
        TRN_CHECK_ARG(
            trn_shape_eq(&rest0, &rest),
            "TensorArray has inconsistent shapes.  Index 0 has (excepting dimension 0) shape: %s but index %lld has %s",
            trn_shape_text(a, &rest0), (long long)i, trn_shape_text(b, &rest));
        TRN_CHECK_ARG(!__builtin_add_overflow(all.dim[0], s->dim[0], &all.dim[0]), "the concatenation is too large");
    }
    return put_together(k, m, &all);
}

static trn_err concat_from(trn_kctx *k, array *a)
{
    const trn_shape *except0 = trn_attr_shape(k->node, "element_shape_except0");
    TRN_TRY(check_dtype(a, trn_attr_type(k->node, "dtype"), "requested"));
    int64_t n;
    TRN_TRY(pack_size(&n, a));
    if (!n) {
        trn_shape none = trn_shape_vector(0);
        trn_tensor *len;
        TRN_TRY(empty_stack(k, except0, "element_shape_except0", "concatenating"));
        return trn_out_new(&len, k, 1, TRN_INT64, &none);
    }
    many m;
    trn_err err = read_many(&m, a, NULL, n);
    if (!err)
        err = join(k, &m, except0);
    many_free(&m);
    return err;
}

/* Rows [from, from+n) of v as one tensor: of shape [n, …], or without the first dim. */
static trn_err rows(trn_tensor **out, const trn_tensor *v, int64_t from, int64_t n, bool keep_dim)
{
    trn_shape s = v->shape;
    int64_t per_row = v->shape.dim[0] ? v->count / v->shape.dim[0] : 0;
    if (keep_dim) {
        s.dim[0] = n;
    } else {
        s.rank--;
        memmove(s.dim, s.dim + 1, (size_t)s.rank * sizeof *s.dim);
    }
    return trn_tensor_view(out, v, from * per_row, &s);
}

typedef struct pieces {
    const int32_t *index;  /* NULL: 0, 1, … */
    const int64_t *length; /* NULL: single rows */
    int64_t n;
    bool mark;
} pieces;

static trn_err write_pieces(array *a, const trn_tensor *v, const pieces *p)
{
    trn_err err = TRN_OK;
    int64_t from = 0;
    trn_lock(&a->mu);
    if (p->mark && !(err = closed(a)) && !a->is_grad)
        a->marked = (int32_t)p->n;
    for (int64_t i = 0; i < p->n && !err; i++) {
        trn_tensor *t = NULL;
        int64_t n = p->length ? p->length[i] : 1;
        err = rows(&t, v, from, n, p->length != NULL);
        if (!err)
            err = write_locked(a, p->index ? p->index[i] : i, t);
        trn_tensor_unref(t);
        from += n;
    }
    trn_unlock(&a->mu);
    return err;
}

static void size_now(array *a, int64_t *n, bool *dynamic)
{
    trn_lock(&a->mu);
    *n = a->n;
    *dynamic = a->dynamic;
    trn_unlock(&a->mu);
}

static trn_err is_closed(array *a)
{
    trn_lock(&a->mu);
    trn_err err = closed(a);
    trn_unlock(&a->mu);
    return err;
}

static trn_err scatter_to(trn_kctx *k, array *a)
{
    bool unpack = k->n_in == 3, dynamic;
    const trn_tensor *v = trn_in(k, unpack ? 1 : 2);
    char text[TRN_SHAPE_TEXT];
    TRN_TRY(check_dtype(a, v->dtype, "is trying to write"));
    TRN_CHECK_ARG(v->shape.rank > 0, "Input value for unpack must be at least a vector but received shape: %s",
                  trn_shape_text(text, &v->shape));
    TRN_CHECK_ARG(v->shape.dim[0] < INT32_MAX, "tensor dim0 too large to unpack");
    TRN_TRY(is_closed(a));
    pieces p = {.n = v->shape.dim[0], .mark = unpack};
    int64_t size, max = p.n - 1;
    size_now(a, &size, &dynamic);
    if (!unpack) {
        const trn_tensor *ix = trn_in(k, 1);
        TRN_CHECK_ARG(trn_is_vector(ix), "Expected indices to be a vector, but received shape: %s",
                      trn_shape_text(text, &ix->shape));
        TRN_CHECK_ARG(ix->count == p.n, "Expected len(indices) == values.shape[0], but saw: %lld vs. %lld",
                      (long long)ix->count, (long long)p.n);
        p.index = TRN_DATA(ix, int32_t);
        max = -1;
        for (int64_t i = 0; i < p.n; i++)
            max = p.index[i] > max ? p.index[i] : max;
    }
    if (dynamic && size < max + 1)
        size = max + 1;
    if (unpack)
        TRN_CHECK_ARG(p.n == size, "Input value must have first dimension equal to the array size (%lld vs. %lld)",
                      (long long)p.n, (long long)size);
    else
        TRN_CHECK_ARG(max < size, "Max scatter index must be < array size (%lld vs. %lld)", (long long)max,
                      (long long)size);
    return write_pieces(a, v, &p);
}

static trn_err split_to(trn_kctx *k, array *a)
{
    const trn_tensor *v = trn_in(k, 1), *len = trn_in(k, 2);
    char text[TRN_SHAPE_TEXT];
    TRN_CHECK_ARG(trn_is_vector(len), "Expected lengths to be a vector, received shape: %s",
                  trn_shape_text(text, &len->shape));
    TRN_CHECK_ARG(len->count < INT32_MAX, "Expected lengths to have < max int32 entries");
    TRN_CHECK_ARG(v->shape.rank > 0, "Expected value to be at least a vector, but received shape: %s",
                  trn_shape_text(text, &v->shape));
    int64_t total = 0, size;
    bool dynamic;
    for (int64_t i = 0; i < len->count; i++) {
        int64_t n = TRN_DATA(len, int64_t)[i];
        TRN_CHECK_ARG(n >= 0, "lengths[%lld] is %lld; a length cannot be negative", (long long)i, (long long)n);
        TRN_CHECK_ARG(!__builtin_add_overflow(total, n, &total), "the sum of lengths is too large");
    }
    TRN_CHECK_ARG(
        total == v->shape.dim[0],
        "Expected sum of lengths to be equal to values.shape[0], but sum of lengths is %lld and value's shape is: %s",
        (long long)total, trn_shape_text(text, &v->shape));
    TRN_TRY(is_closed(a));
    size_now(a, &size, &dynamic);
    if (dynamic && size < len->count)
        size = len->count;
    TRN_CHECK_ARG(size == len->count,
                  "TensorArray's size is not equal to the size of lengths (%lld vs. %lld), and the TensorArray is not "
                  "marked as dynamically "
                  "resizeable",
                  (long long)size, (long long)len->count);
    TRN_TRY(check_dtype(a, v->dtype, "is trying to write"));
    return write_pieces(a, v, &(pieces){.length = TRN_DATA(len, int64_t), .n = len->count, .mark = true});
}

static trn_err on_array(trn_kctx *k, trn_err (*fn)(trn_kctx *, array *))
{
    array *a;
    TRN_TRY(find(&a, k));
    trn_err err = fn(k, a);
    trn_resource_unref(a);
    return err;
}

/* For ops whose last input is the flow, which they pass on. */
static trn_err with_flow(trn_kctx *k, trn_err err)
{
    if (!err)
        trn_out_set(k, 0, trn_tensor_ref(trn_in(k, k->n_in - 1)));
    return err;
}

static trn_err gather(trn_kctx *k) { return on_array(k, gather_from); }
static trn_err concat(trn_kctx *k) { return on_array(k, concat_from); }
static trn_err scatter(trn_kctx *k) { return with_flow(k, on_array(k, scatter_to)); }
static trn_err split(trn_kctx *k) { return with_flow(k, on_array(k, split_to)); }

static trn_err size_of(trn_kctx *k, array *a)
{
    int64_t n;
    bool dynamic;
    TRN_TRY(is_closed(a));
    size_now(a, &n, &dynamic);
    trn_out_set(k, 0, trn_tensor_i32((int32_t)n));
    return TRN_OK;
}

static trn_err size(trn_kctx *k) { return on_array(k, size_of); }

static trn_err close_it(trn_kctx *k, array *a)
{
    (void)k;
    trn_lock(&a->mu);
    a->closed = true;
    drop_elements(a);
    trn_unlock(&a->mu);
    return TRN_OK;
}

static trn_err close_array(trn_kctx *k) { return on_array(k, close_it); }

/* ---- rows ------------------------------------------------------------------------------------------------------------ */

static trn_err sh_make(trn_shctx *s)
{
    s->out[0] = s->node->out_types[0] == TRN_RESOURCE ? trn_shape_scalar() : trn_shape_vector(2);
    if (s->n_out == 2)
        s->out[1] = trn_shape_scalar();
    return TRN_OK;
}

#define CHEAP (TRN_OP_CHEAP | TRN_OP_STATEFUL)
#define DTYPE "dtype:any"
#define ELEM ", element_shape:shape=?"
#define REST ", element_shape_except0:shape=?"
#define DYN ", dynamic_size:bool=false, clear_after_read:bool=true"

const trn_op trn_ops_tensor_array[] = {
    {"TensorArrayV3",
     "size:i32 -> handle:res, flow:f32; dtype:type, element_shape:shape=?, dynamic_size:bool=false, "
     "clear_after_read:bool=true, "
     "identical_element_shapes:bool=false, tensor_array_name:string=\"\"",
     sh_make, make, CHEAP},
    {"TensorArrayV2", "size:i32 -> handle:str; dtype:type" ELEM DYN ", tensor_array_name:string=\"\"", sh_make, make,
     CHEAP},
    {"TensorArray", "size:i32 -> handle:&str; dtype:type" DYN ", tensor_array_name:string=\"\"" ELEM, sh_make, make,
     CHEAP},
    {"TensorArrayGradV3", "handle:res, flow_in:f32 -> grad_handle:res, flow_out:f32; source:string", sh_make, grad,
     CHEAP},
    {"TensorArrayGradWithShape",
     "handle:res, flow_in:f32, shape_to_prepend:i32 -> grad_handle:res, flow_out:f32; source:string", sh_make, grad,
     CHEAP},
    {"TensorArrayGradV2", "handle:str, flow_in:f32 -> grad_handle:str; source:string", sh_make, grad, CHEAP},
    {"TensorArrayGrad", "handle:str, flow_in:f32 -> grad_handle:&str; source:string", sh_make, grad, CHEAP},
#define FORMS(V, H, F)                                                                                                 \
    {"TensorArrayWrite" V, "handle:" H ", index:i32, value:T, flow_in:f32 -> flow_out:f32; T:any", trn_sh_scalar,      \
     write_one, F},                                                                                                    \
        {"TensorArrayRead" V, "handle:" H ", index:i32, flow_in:f32 -> value:dtype; " DTYPE, trn_sh_unknown, read_one, \
         F},                                                                                                           \
        {"TensorArrayGather" V, "handle:" H ", indices:i32, flow_in:f32 -> value:dtype; " DTYPE ELEM, trn_sh_unknown,  \
         gather, F},                                                                                                   \
        {"TensorArrayScatter" V, "handle:" H ", indices:i32, value:T, flow_in:f32 -> flow_out:f32; T:any",             \
         trn_sh_scalar, scatter, F},                                                                                   \
        {"TensorArrayConcat" V, "handle:" H ", flow_in:f32 -> value:dtype, lengths:i64; " DTYPE REST, trn_sh_unknown,  \
         concat, F},                                                                                                   \
        {"TensorArraySplit" V, "handle:" H ", value:T, lengths:i64, flow_in:f32 -> flow_out:f32; T:any",               \
         trn_sh_scalar, split, F},                                                                                     \
        {"TensorArraySize" V, "handle:" H ", flow_in:f32 -> size:i32", trn_sh_scalar, size, (F) | TRN_OP_CHEAP},       \
    {                                                                                                                  \
        "TensorArrayClose" V, "handle:" H " -> ", trn_sh_none, close_array, (F) | TRN_OP_CHEAP                         \
    }
    FORMS("V3", "res", TRN_OP_STATEFUL),
    FORMS("V2", "str", 0),
    FORMS("", "&str", 0),
    {"TensorArrayPack", "handle:&str, flow_in:f32 -> value:dtype; " DTYPE ELEM, trn_sh_unknown, gather, 0},
    {"TensorArrayUnpack", "handle:&str, value:T, flow_in:f32 -> flow_out:f32; T:any", trn_sh_scalar, scatter, 0},
    {0},
};
