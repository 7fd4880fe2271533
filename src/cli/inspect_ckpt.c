/* trainera inspect: checkpoints, of both versions. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "ckpt/bundle.h"
#include "ckpt/file.h"
#include "ckpt/v1.h"
#include "cli/inspect.h"
#include "cli/look.h"

typedef struct one {
    char *name;
    trn_dtype dtype;
    trn_shape shape;
    trn_bundle_place at;
} one;

/* Either version, open. */
typedef struct ckpt {
    trn_bundle *v2;
    trn_v1 *v1;
    one *v;
    int n, cap;
    uint64_t bytes;
} ckpt;

static trn_err add(void *arg, const char *name, size_t n, trn_dtype dtype, const trn_shape *shape)
{
    ckpt *c = arg;
    TRN_PUSH(c->v, c->n, c->cap, (one){trn_xstrndup(name, n), dtype, *shape, {0}});
    return TRN_OK;
}

static int by_name(const void *a, const void *b) { return strcmp(((const one *)a)->name, ((const one *)b)->name); }

static void ckpt_close(ckpt *c)
{
    if (c->v2)
        trn_bundle_close(c->v2);
    if (c->v1)
        trn_v1_close(c->v1);
    for (int i = 0; i < c->n; i++)
        free(c->v[i].name);
    free(c->v);
}

static trn_err ckpt_open(ckpt *c, const char *prefix)
{
    *c = (ckpt){0};
    char *index = trn_bundle_index_name(prefix);
    bool v2 = trn_path_exists(index);
    free(index);
    trn_err err = v2 ? trn_bundle_open(&c->v2, prefix) : trn_v1_open(&c->v1, prefix, NULL, NULL);
    if (!err)
        err = v2 ? trn_bundle_each(c->v2, add, c) : trn_v1_each(c->v1, add, c);
    for (int i = 0; i < c->n && !err; i++) {
        int64_t n = 0;
        if (v2) {
            err = trn_bundle_where(&c->v[i].at, c->v2, c->v[i].name, strlen(c->v[i].name));
        } else {
            err = trn_shape_count(&n, &c->v[i].shape);
            c->v[i].at.bytes = (uint64_t)n * trn_dtype_size(c->v[i].dtype);
        }
        c->bytes += c->v[i].at.bytes;
    }
    if (err)
        ckpt_close(c);
    else if (c->n)
        qsort(c->v, (size_t)c->n, sizeof *c->v, by_name);
    return err;
}

static trn_err read_tensor(trn_tensor **out, ckpt *c, const one *v)
{
    if (c->v2)
        return trn_bundle_read(out, c->v2, v->name, strlen(v->name));
    trn_slicespec all = trn_slicespec_full(v->shape.rank);
    return trn_v1_read(out, c->v1, v->name, strlen(v->name), &all);
}

static bool wanted(const inspect_opts *o, const char *name) { return !o->match || strstr(name, o->match); }

static bool to_print(const inspect_opts *o, const char *name)
{
    for (int i = 0; i < o->print.n; i++)
        if (strcmp(o->print.v[i], name) == 0)
            return true;
    return false;
}

static void put_shape(trn_json *j, const trn_shape *shape)
{
    trn_json_open(j, "shape", '[');
    for (int k = 0; k < shape->rank; k++)
        trn_json_int(j, NULL, shape->dim[k]);
    trn_json_close(j);
}

/* "float[2,3] 1 2 3 …", without control characters. */
static void value_text(trn_sb *out, const trn_tensor *t, int64_t max)
{
    trn_tensor_text(out, t, (int)TRN_MIN(max, (int64_t)INT32_MAX));
    for (size_t i = 0; i < out->n; i++)
        if ((unsigned char)out->p[i] < 0x20 || out->p[i] == 0x7f)
            out->p[i] = '?';
}

static void put_one(trn_json *j, ckpt *c, const one *v, const inspect_opts *o, bool *bad, int name_width)
{
    char shape[TRN_SHAPE_TEXT], bytes[32];
    trn_tensor *t = NULL;
    trn_err err = o->verify || to_print(o, v->name) ? read_tensor(&t, c, v) : TRN_OK;
    *bad |= err != TRN_OK;
    trn_sb value = {0};
    if (t && to_print(o, v->name))
        value_text(&value, t, o->values);
    if (j) {
        trn_json_open(j, NULL, '{');
        trn_json_str(j, "name", v->name);
        trn_json_str(j, "dtype", trn_dtype_name(v->dtype));
        put_shape(j, &v->shape);
        trn_json_uint(j, "bytes", v->at.bytes);
        if (c->v2 && v->at.shard >= 0)
            trn_json_int(j, "shard", v->at.shard);
        if (v->at.pieces)
            trn_json_int(j, "pieces", v->at.pieces);
        if (o->verify)
            trn_json_bool(j, "ok", !err);
        if (err)
            trn_json_str(j, "error", trn_err_msg(err));
        if (value.n)
            trn_json_strn(j, "value", value.p, value.n);
        trn_json_close(j);
    } else {
        printf("%-*s %-8s %-18s %10s", name_width, v->name, trn_dtype_name(v->dtype), trn_shape_text(shape, &v->shape), cli_bytes_text(bytes, (double)v->at.bytes));
        if (c->v2 && trn_bundle_shards(c->v2) > 1) {
            if (v->at.shard >= 0)
                printf("  shard %d", v->at.shard);
            else
                printf("  several shards");
        }
        if (v->at.pieces)
            printf("  %d pieces", v->at.pieces);
        if (o->verify)
            printf("  %s", err ? trn_err_msg(err) : "ok");
        printf("\n");
        if (value.n)
            printf("    %s\n", value.p);
        if (err && !o->verify)
            printf("    %s\n", trn_err_msg(err));
    }
    trn_sb_fini(&value);
    trn_err_free(err);
    trn_tensor_unref(t);
}

static void put_shards(trn_json *j, const ckpt *c)
{
    int n = c->v2 ? TRN_MIN(trn_bundle_shards(c->v2), 100000) : 0;
    uint64_t *bytes = trn_xalloc(sizeof *bytes * (size_t)(n + 1));
    int *tensors = trn_xalloc(sizeof *tensors * (size_t)(n + 1));
    for (int i = 0; i < c->n; i++)
        if (c->v[i].at.shard >= 0 && c->v[i].at.shard < n) {
            bytes[c->v[i].at.shard] += c->v[i].at.bytes;
            tensors[c->v[i].at.shard]++;
        }
    char text[32];
    if (j)
        trn_json_open(j, "shards", '[');
    for (int i = 0; i < n; i++) {
        if (!j) {
            if (n > 1)
                printf("shard %d: %d tensors, %s\n", i, tensors[i], cli_bytes_text(text, (double)bytes[i]));
            continue;
        }
        trn_json_open(j, NULL, '{');
        trn_json_int(j, "tensors", tensors[i]);
        trn_json_uint(j, "bytes", bytes[i]);
        trn_json_close(j);
    }
    if (j)
        trn_json_close(j);
    free(bytes);
    free(tensors);
}

trn_err inspect_checkpoint(trn_json *j, const char *prefix, const inspect_opts *o, bool *bad)
{
    ckpt c;
    TRN_TRY(ckpt_open(&c, prefix));
    char bytes[32];
    int width = 4;
    for (int i = 0; i < c.n; i++)
        if (wanted(o, c.v[i].name))
            width = TRN_MAX(width, TRN_MIN((int)strlen(c.v[i].name), 60));
    if (j) {
        trn_json_open(j, "checkpoint", '{');
        trn_json_str(j, "prefix", prefix);
        trn_json_int(j, "version", c.v2 ? 2 : 1);
        trn_json_int(j, "tensors", c.n);
        trn_json_uint(j, "bytes", c.bytes);
        put_shards(j, &c);
        trn_json_open(j, "list", '[');
    } else {
        printf("%s: checkpoint of version %d, %d tensors, %s\n", prefix, c.v2 ? 2 : 1, c.n, cli_bytes_text(bytes, (double)c.bytes));
        put_shards(NULL, &c);
        printf("\n");
    }
    bool damaged = false;
    for (int i = 0; i < c.n; i++)
        if (wanted(o, c.v[i].name))
            put_one(j, &c, &c.v[i], o, &damaged, width);
    if (j) {
        trn_json_close(j);
        if (o->verify)
            trn_json_bool(j, "ok", !damaged);
        trn_json_close(j);
    } else if (o->verify) {
        printf("\n%s\n", damaged ? "damaged: see above" : "every checksum is right");
    }
    trn_err err = TRN_OK;
    for (int i = 0; i < o->print.n && !err; i++) {
        one key = {.name = (char *)o->print.v[i]};
        if (!c.n || !bsearch(&key, c.v, (size_t)c.n, sizeof *c.v, by_name))
            err = trn_errorf(TRN_NOT_FOUND, "%s: there is no %s in it", prefix, o->print.v[i]);
    }
    *bad |= damaged;
    ckpt_close(&c);
    return err;
}

/* ---- two of them --------------------------------------------------------------------------------------------------- */

/* The largest difference of two tensors of one dtype and shape; -1: differ, but there is no distance (strings); NaN beside a number is infinite. */
static double distance(const trn_tensor *a, const trn_tensor *b)
{
    double most = 0;
#define EACH(T)                                                                                                        \
    for (int64_t i = 0; i < a->count; i++) {                                                                           \
        double x = (double)TRN_DATA(a, T)[i], y = (double)TRN_DATA(b, T)[i], d = x == y ? 0 : fabs(x - y);             \
        if (isnan(d))                                                                                                  \
            d = isnan(x) && isnan(y) ? 0 : INFINITY;                                                                   \
        most = d > most ? d : most;                                                                                    \
    }
    switch (a->dtype) {
    case TRN_FLOAT:
        EACH(float);
        return most;
    case TRN_DOUBLE:
        EACH(double);
        return most;
    case TRN_INT32:
        EACH(int32_t);
        return most;
    case TRN_INT64:
        EACH(int64_t);
        return most;
    default: {
        trn_sb x = {0}, y = {0};
        trn_tensor_text(&x, a, INT32_MAX);
        trn_tensor_text(&y, b, INT32_MAX);
        bool same = x.n == y.n && memcmp(x.p, y.p, x.n) == 0;
        trn_sb_fini(&x);
        trn_sb_fini(&y);
        return same ? 0 : -1;
    }
    }
#undef EACH
}

static void put_difference(trn_json *j, const char *name, const char *what, double d)
{
    if (!j) {
        printf("%s: %s", name, what);
        if (d > 0)
            printf(", by up to %.6g", d);
        printf("\n");
        return;
    }
    trn_json_open(j, NULL, '{');
    trn_json_str(j, "name", name);
    trn_json_str(j, "what", what);
    if (d > 0)
        trn_json_num(j, "by", d);
    trn_json_close(j);
}

static trn_err compare_one(trn_json *j, ckpt *a, ckpt *b, const one *x, const one *y, int *differ)
{
    if (x->dtype != y->dtype || !trn_shape_eq(&x->shape, &y->shape)) {
        char p[TRN_SHAPE_TEXT], q[TRN_SHAPE_TEXT];
        char *what = trn_xasprintf("%s%s and %s%s", trn_dtype_name(x->dtype), trn_shape_text(p, &x->shape), trn_dtype_name(y->dtype), trn_shape_text(q, &y->shape));
        put_difference(j, x->name, what, 0);
        free(what);
        ++*differ;
        return TRN_OK;
    }
    trn_tensor *s, *t;
    TRN_TRY(read_tensor(&s, a, x));
    trn_err err = read_tensor(&t, b, y);
    if (!err) {
        double d = distance(s, t);
        if (d != 0) {
            put_difference(j, x->name, "values differ", d);
            ++*differ;
        }
        trn_tensor_unref(t);
    }
    trn_tensor_unref(s);
    return err;
}

trn_err inspect_compare(trn_json *j, const char *first, const char *second, const inspect_opts *o, bool *bad)
{
    ckpt a, b;
    TRN_TRY(ckpt_open(&a, first));
    trn_err err = ckpt_open(&b, second);
    if (err) {
        ckpt_close(&a);
        return err;
    }
    if (j) {
        trn_json_str(j, "first", first);
        trn_json_str(j, "second", second);
        trn_json_open(j, "differences", '[');
    }
    int same = 0, differ = 0;
    for (int i = 0, k = 0; !err && (i < a.n || k < b.n);) {
        int order = i == a.n ? 1 : k == b.n ? -1 : strcmp(a.v[i].name, b.v[k].name);
        const char *name = order <= 0 ? a.v[i].name : b.v[k].name;
        int before = differ;
        if (!wanted(o, name)) {
            ;
        } else if (order != 0) {
            put_difference(j, name, order < 0 ? "only in the first" : "only in the second", 0);
            differ++;
        } else {
            err = compare_one(j, &a, &b, &a.v[i], &b.v[k], &differ);
            same += differ == before;
        }
        i += order <= 0;
        k += order >= 0;
    }
    if (j) {
        trn_json_close(j);
        trn_json_int(j, "same", same);
        trn_json_int(j, "different", differ);
    } else if (!err) {
        printf("%d tensors are the same, %d are not\n", same, differ);
    }
    *bad |= differ > 0;
    ckpt_close(&a);
    ckpt_close(&b);
    return err;
}
