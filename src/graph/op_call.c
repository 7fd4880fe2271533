/* List attrs, and what the generated op functions share. */
#include "graph/op_call.h"

#include <limits.h>
#include <string.h>

#define MAX_LIST (1 << 24) /* more tensors or values than any node has; keeps sizes far from overflow */

static bool bad_length(trn_builder *b, const char *name, int64_t n, const void *at)
{
    if (n < 0 || n > MAX_LIST)
        (void)trn_builder_fail(b, trn_errorf(TRN_INVALID_ARGUMENT, "list %s has length %lld", name, (long long)n));
    else if (n && !at)
        (void)trn_builder_fail(b, trn_errorf(TRN_INVALID_ARGUMENT, "list %s has length %lld but is NULL", name, (long long)n));
    else
        return false;
    return true;
}

static trn_attr list_attr(trn_builder *b, const char *name, trn_attr_kind kind, int n, const void *at, trn_attr_val **v)
{
    if (bad_length(b, name, n, at))
        n = 0;
    *v = n ? trn_builder_alloc(b, sizeof **v * (size_t)n) : NULL;
    return (trn_attr){.name = name, .kind = kind, .is_list = true, .n = n, .list = *v};
}

trn_attr trn_at_ints(trn_builder *b, const char *name, trn_ints v)
{
    trn_attr_val *to;
    trn_attr a = list_attr(b, name, TRN_ATTR_INT, v.n, v.at, &to);
    for (int i = 0; i < a.n; i++)
        to[i].i = v.at[i];
    return a;
}

trn_attr trn_at_floats(trn_builder *b, const char *name, trn_floats v)
{
    trn_attr_val *to;
    trn_attr a = list_attr(b, name, TRN_ATTR_FLOAT, v.n, v.at, &to);
    for (int i = 0; i < a.n; i++)
        to[i].f = v.at[i];
    return a;
}

trn_attr trn_at_types(trn_builder *b, const char *name, trn_types v)
{
    trn_attr_val *to;
    trn_attr a = list_attr(b, name, TRN_ATTR_TYPE, v.n, v.at, &to);
    for (int i = 0; i < a.n; i++)
        to[i].type = v.at[i];
    return a;
}

trn_attr trn_at_strs(trn_builder *b, const char *name, trn_strs v)
{
    trn_attr_val *to;
    trn_attr a = list_attr(b, name, TRN_ATTR_STRING, v.n, v.at, &to);
    for (int i = 0; i < a.n; i++) {
        to[i].s.p = trn_builder_strdup(b, v.at[i] ? v.at[i] : "");
        to[i].s.n = strlen(to[i].s.p);
    }
    return a;
}

trn_attr trn_at_shapes(trn_builder *b, const char *name, trn_shapes v)
{
    trn_attr_val *to;
    trn_attr a = list_attr(b, name, TRN_ATTR_SHAPE, v.n, v.at, &to);
    for (int i = 0; i < a.n; i++) {
        trn_shape *s = trn_builder_alloc(b, sizeof *s);
        *s = v.at[i];
        to[i].shape = s;
    }
    return a;
}

trn_attr trn_at_funcs(trn_builder *b, const char *name, trn_funcs v)
{
    trn_attr_val *to;
    trn_attr a = list_attr(b, name, TRN_ATTR_FUNC, v.n, v.at, &to);
    for (int i = 0; i < a.n; i++)
        to[i].func = &v.at[i];
    return a;
}

const trn_out *trn_op__join(int *n, trn_builder *b, const trn_op__list *lists, int n_lists)
{
    int64_t total = 0;
    for (int i = 0; i < n_lists; i++) {
        if (bad_length(b, "of inputs", lists[i].n, lists[i].at)) {
            *n = 0; /* trn_node_add does nothing any more */
            return NULL;
        }
        total += lists[i].n;
    }
    if (bad_length(b, "of inputs", total, lists)) {
        *n = 0;
        return NULL;
    }
    trn_out *all = total ? trn_builder_alloc(b, sizeof *all * (size_t)total) : NULL;
    int k = 0;
    for (int i = 0; i < n_lists; i++)
        for (int j = 0; j < lists[i].n; j++)
            all[k++] = lists[i].at[j];
    *n = k;
    return all;
}

trn_attr trn_op__types(trn_builder *b, const char *name, const trn_out *xs, int n)
{
    trn_attr_val *to;
    trn_attr a = list_attr(b, name, TRN_ATTR_TYPE, n, xs, &to);
    for (int i = 0; i < a.n; i++)
        to[i].type = trn_out_dtype(b, xs[i]);
    return a;
}

void trn_op__need(trn_builder *b, const char *op, const char *attr, const void *v)
{
    if (!v)
        (void)trn_builder_fail(b, trn_errorf(TRN_INVALID_ARGUMENT, "%s: attr %s must be given, it is NULL", op, attr));
}

void trn_op__same_length(trn_builder *b, const char *op, const char *one, int n, const char *other, int m)
{
    if (n != m)
        (void)trn_builder_fail(b, trn_errorf(TRN_INVALID_ARGUMENT, "%s: %s has %d tensors, %s has %d; both must have the same number", op, one, n, other, m));
}

trn_outs trn_op__outs(trn_builder *b, trn_out first, int *slot, int64_t n)
{
    if (n <= 0 || n > MAX_LIST) /* too many: the node was not made */
        return (trn_outs){0, NULL};
    trn_outs out = {(int)n, trn_builder_alloc(b, sizeof(trn_out) * (size_t)n)};
    for (int i = 0; i < out.n; i++)
        out.at[i] = trn_op__nth(first, *slot + i);
    *slot += out.n;
    return out;
}
