/* tf.train.Example and SequenceExample, parsed into columns: ParseExample and its kin.
 *
 * Every key that a node asks for is a column. Parsing appends an example's values to its columns, whatever becomes of them; only then are the columns turned
 * into outputs: dense, padded, sparse or ragged. One pass over the bytes, one copy into the outputs; strings are referred to until then. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "op/kctx.h"
#include "ops/data.h"
#include "ops/kern.h"
#include "proto/pbw.h"

typedef enum col_kind { DENSE, PADDED, SPARSE, RAGGED } col_kind;

typedef struct bytes {
    const char *p;
    size_t n;
} bytes;

typedef struct col {
    bytes key;
    col_kind kind;
    trn_dtype type, splits;
    trn_shape shape; /* of a dense one: of one example, or (lists) of one row; a padded one's first dim is -1 */
    int64_t stride;  /* values per example or row; padded: the values must be a multiple of it */
    const trn_tensor *def;
    bool may_miss;   /* list: a missing one is empty */
    int64_t seen;    /* last example that has it, + 1 */
    /* values */
    int64_t n, cap;
    union {
        float *f;
        int64_t *i;
        bytes *s;
        void *any;
    };
    int64_t *end; /* per example: values (lists: rows) up to its end */
    int64_t n_rows, cap_rows;
    int64_t *row_end; /* lists: per row */
} col;

typedef struct cols {
    int n;
    col *c;
    trn_map *by_key; /* index + 1 */
} cols;

typedef struct entry {
    bytes key, value;
} entry;

typedef struct parser {
    cols ctx, lists;
    bool batch;      /* outputs have a dim of examples in front */
    bool sequence;   /* SequenceExample, else Example */
    int64_t n;       /* examples */
    const trn_tensor *names;
    int64_t at;      /* the example that is being parsed */
    int64_t row;     /* of its list; -1: not in one */
    int n_entries, cap_entries;
    entry *e;
} parser;

/* ---- columns -------------------------------------------------------------------------------------------------------- */

static void cols_fini(cols *s)
{
    for (int i = 0; i < s->n; i++) {
        free(s->c[i].any);
        free(s->c[i].end);
        free(s->c[i].row_end);
    }
    free(s->c);
    trn_map_free(s->by_key, NULL);
}

static void parser_fini(parser *p)
{
    cols_fini(&p->ctx);
    cols_fini(&p->lists);
    free(p->e);
}

static col *add_col(cols *s, bytes key, col_kind kind, trn_dtype type)
{
    col *c = &s->c[s->n++];
    c->key = key;
    c->kind = kind;
    c->type = type;
    c->stride = 1;
    return c;
}

static trn_err index_cols(cols *s)
{
    s->by_key = trn_map_new();
    for (int i = 0; i < s->n; i++)
        if (trn_map_put(s->by_key, s->c[i].key.p, s->c[i].key.n, (void *)(intptr_t)(i + 1)))
            return TRN_BAD("feature '%.*s' is asked for twice", (int)TRN_MIN(s->c[i].key.n, 200), s->c[i].key.p);
    for (int i = 0; i < s->n; i++)
        if (s->c[i].type != TRN_FLOAT && s->c[i].type != TRN_INT64 && s->c[i].type != TRN_STRING)
            return TRN_BAD("Invalid input dtype: %s", trn_dtype_name(s->c[i].type));
    return TRN_OK;
}

static size_t value_size(const col *c) { return c->type == TRN_FLOAT ? sizeof(float) : c->type == TRN_INT64 ? sizeof(int64_t) : sizeof(bytes); }

static void *room(col *c, int64_t more)
{
    if (c->n + more > c->cap) {
        c->cap = TRN_MAX(2 * c->cap, c->n + more + 8);
        c->any = trn_xrealloc(c->any, (size_t)c->cap * value_size(c));
    }
    return (char *)c->any + (size_t)c->n * value_size(c);
}

/* ---- features ------------------------------------------------------------------------------------------------------- */

static bool read_floats(col *c, trn_pbr *r)
{
    while (trn_pbr_next(r)) {
        if (r->field != 1)
            return false;
        if (r->type == TRN_PB_FIXED32) {
            uint32_t v = (uint32_t)r->v;
            memcpy(room(c, 1), &v, 4);
            c->n++;
        } else if (r->type == TRN_PB_BYTES) {
            int64_t n = (int64_t)(r->n / 4);
            if (n)
                memcpy(room(c, n), r->b, (size_t)n * 4);
            c->n += n;
        } else {
            return false;
        }
    }
    return !r->bad;
}

static bool read_ints(col *c, trn_pbr *r)
{
    while (trn_pbr_next(r)) {
        if (r->field != 1)
            return false;
        if (r->type == TRN_PB_VARINT) {
            *(int64_t *)room(c, 1) = (int64_t)r->v;
            c->n++;
        } else if (r->type == TRN_PB_BYTES) {
            trn_pbr in = trn_pbr_init(r->b, r->n);
            while (in.p < in.end) {
                uint64_t v;
                if (!trn_pbr_raw_varint(&in, &v))
                    return false;
                *(int64_t *)room(c, 1) = (int64_t)v;
                c->n++;
            }
        } else {
            return false;
        }
    }
    return !r->bad;
}

static bool read_strings(col *c, trn_pbr *r)
{
    while (trn_pbr_next(r)) {
        if (r->field != 1 || r->type != TRN_PB_BYTES)
            return false;
        *(bytes *)room(c, 1) = (bytes){(const char *)r->b, r->n};
        c->n++;
    }
    return !r->bad;
}

static void add_name(trn_sb *s, const parser *p)
{
    const trn_str *name = p->names && p->at < p->names->count ? &TRN_DATA(p->names, trn_str)[p->at] : NULL;
    trn_sb_addf(s, "Name: %.*s, ", name ? (int)TRN_MIN(name->len, 500) : 9, name ? trn_str_p(name) : "<unknown>");
}

static trn_err bad_feature(const parser *p, const col *c, const char *what)
{
    trn_sb s = {0};
    if (p->batch || p->sequence)
        add_name(&s, p);
    trn_sb_addf(&s, "Key: %.*s, Index: %" PRId64 ".  %s", (int)TRN_MIN(c->key.n, 500), c->key.p, p->row < 0 ? p->at : p->row, what);
    trn_err err = TRN_BAD("%s", s.p);
    trn_sb_fini(&s);
    return err;
}

static trn_err bad_type(const parser *p, const col *c, trn_dtype got)
{
    trn_sb s = {0};
    if (p->batch || p->sequence)
        add_name(&s, p);
    int n = (int)TRN_MIN(c->key.n, 500);
    if (p->row >= 0)
        trn_sb_addf(&s, "Feature list: %.*s, Index: %" PRId64 ".  Data types don't match. Expected type: %s", n, c->key.p, p->row, trn_dtype_name(c->type));
    else if (p->sequence)
        trn_sb_addf(&s, "Context feature: %.*s.  Data types don't match. Expected type: %s", n, c->key.p, trn_dtype_name(c->type));
    else
        trn_sb_addf(&s, "Key: %.*s, Index: %" PRId64 ".  Data types don't match. Data type: %s but expected type: %s", n, c->key.p, p->at, trn_dtype_name(got),
                    trn_dtype_name(c->type));
    trn_err err = TRN_BAD("%s", s.p);
    trn_sb_fini(&s);
    return err;
}

/* Appends a Feature's values. *found is false for one that holds no list at all. */
static trn_err add_feature(bool *found, const parser *p, col *c, bytes f)
{
    static const trn_dtype kinds[] = {TRN_INVALID, TRN_STRING, TRN_FLOAT, TRN_INT64};
    *found = false;
    trn_pbr r = trn_pbr_init(f.p, f.n);
    if (!trn_pbr_next(&r))
        return r.bad ? bad_feature(p, c, "Can't parse serialized Example.") : TRN_OK;
    if (r.field > 3 || r.type != TRN_PB_BYTES)
        return TRN_BAD("Unsupported datatype.");
    if (kinds[r.field] != c->type)
        return bad_type(p, c, kinds[r.field]);
    *found = true;
    trn_pbr list = trn_pbr_init(r.b, r.n);
    bool ok = c->type == TRN_FLOAT ? read_floats(c, &list) : c->type == TRN_INT64 ? read_ints(c, &list) : read_strings(c, &list);
    return ok ? TRN_OK : bad_feature(p, c, "Can't parse serialized Example.");
}

static trn_err check_number(const parser *p, const col *c, int64_t got)
{
    if (c->kind == DENSE ? got == c->stride : c->kind != PADDED || (c->stride ? got % c->stride : got) == 0)
        return TRN_OK;
    char text[TRN_SHAPE_TEXT + 200], shape[TRN_SHAPE_TEXT];
    const char *also = p->batch || p->sequence ? "" : "Can't parse serialized Example. "; /* all that TensorFlow says of a single one */
    const char *type = c->type == TRN_STRING ? "bytes" : trn_dtype_name(c->type);
    if (c->kind == DENSE)
        snprintf(text, sizeof text, "%sNumber of %s values != expected.  %calues size: %" PRId64 " but output shape: %s", also, type, p->sequence ? 'v' : 'V', got,
                 trn_shape_text(shape, &c->shape));
    else
        snprintf(text, sizeof text, "%sNumber of %s values is not a multiple of stride length. Saw %" PRId64 " values but output shape is: %s",
                 also, type, got, trn_shape_text(shape, &c->shape));
    return bad_feature(p, c, text);
}

static trn_err add_context(parser *p, col *c, bytes f)
{
    int64_t before = c->n;
    bool found;
    TRN_TRY(add_feature(&found, p, c, f));
    if (!found && c->kind == DENSE)
        return TRN_OK; /* as if it were not there */
    c->seen = p->at + 1;
    return check_number(p, c, c->n - before);
}

static trn_err add_list(parser *p, col *c, bytes f)
{
    c->seen = p->at + 1;
    p->row = -1;
    trn_pbr r = trn_pbr_init(f.p, f.n);
    while (trn_pbr_next(&r)) {
        if (r.field != 1 || r.type != TRN_PB_BYTES)
            continue;
        p->row++;
        int64_t before = c->n;
        bool found;
        TRN_TRY(add_feature(&found, p, c, (bytes){(const char *)r.b, r.n}));
        TRN_TRY(check_number(p, c, c->n - before));
        TRN_PUSH(c->row_end, c->n_rows, c->cap_rows, c->n);
    }
    return r.bad ? bad_feature(p, c, "Can't parse serialized Example.") : TRN_OK;
}

static void add_default(col *c)
{
    int64_t n = c->def->count;
    if (n == 0)
        return;
    void *to = room(c, n);
    if (c->type == TRN_STRING)
        for (int64_t i = 0; i < n; i++) {
            const trn_str *s = &TRN_DATA(c->def, trn_str)[i];
            ((bytes *)to)[i] = (bytes){trn_str_p(s), s->len};
        }
    else
        memcpy(to, c->def->data, (size_t)n * value_size(c));
    c->n += n;
}

static trn_err missing(const parser *p, const col *c, bool list)
{
    const trn_str *name = p->names && p->at < p->names->count ? &TRN_DATA(p->names, trn_str)[p->at] : NULL;
    int n = name ? (int)TRN_MIN(name->len, 500) : 9;
    const char *who = name ? trn_str_p(name) : "<unknown>";
    if (list)
        return TRN_BAD("Name: %.*s, Feature list '%.*s' is required but could not be found.  Did you mean to include it in "
                       "feature_list_dense_missing_assumed_empty or feature_list_dense_defaults?",
                       n, who, (int)TRN_MIN(c->key.n, 500), c->key.p);
    return TRN_BAD("Name: %.*s, Feature: %.*s (data type: %s) is required but could not be found.", n, who, (int)TRN_MIN(c->key.n, 500), c->key.p,
                   trn_dtype_name(c->type));
}

/* ---- examples ------------------------------------------------------------------------------------------------------- */

/* Features and FeatureLists: both map names to messages. */
static bool collect(parser *p, const uint8_t *b, size_t n)
{
    trn_pbr r = trn_pbr_init(b, n);
    while (trn_pbr_next(&r)) {
        if (r.field != 1 || r.type != TRN_PB_BYTES)
            continue;
        entry e = {{"", 0}, {"", 0}};
        trn_pbr m = trn_pbr_init(r.b, r.n);
        while (trn_pbr_next(&m))
            if (m.type == TRN_PB_BYTES && m.field <= 2)
                *(m.field == 1 ? &e.key : &e.value) = (bytes){(const char *)m.b, m.n};
        if (m.bad)
            return false;
        TRN_PUSH(p->e, p->n_entries, p->cap_entries, e);
    }
    return !r.bad;
}

/* The last one of a name counts. */
static trn_err take_entries(parser *p, cols *s, bool list)
{
    for (int i = p->n_entries - 1; i >= 0; i--) {
        intptr_t at = (intptr_t)trn_map_get(s->by_key, p->e[i].key.p, p->e[i].key.n);
        if (!at || s->c[at - 1].seen == p->at + 1)
            continue;
        TRN_TRY(list ? add_list(p, &s->c[at - 1], p->e[i].value) : add_context(p, &s->c[at - 1], p->e[i].value));
    }
    for (int i = 0; i < s->n; i++) {
        col *c = &s->c[i];
        if (c->seen != p->at + 1) {
            if (!list && c->kind == DENSE && (!c->def || c->def->count == 0) && c->stride != 0)
                return missing(p, c, false);
            if (list && c->kind == DENSE && !c->may_miss)
                return missing(p, c, true);
            if (!list && c->kind == DENSE && c->stride != 0)
                add_default(c);
        }
        c->end[p->at] = list ? c->n_rows : c->n;
    }
    return TRN_OK;
}

static trn_err parse_one(parser *p, const trn_str *s)
{
    for (int list = 0; list <= p->sequence; list++) {
        p->n_entries = 0;
        p->row = -1;
        trn_pbr r = trn_pbr_init(trn_str_p(s), s->len);
        bool ok = true;
        while (ok && trn_pbr_next(&r))
            if (r.field == (uint32_t)list + 1 && r.type == TRN_PB_BYTES)
                ok = collect(p, r.b, r.n);
        if (!ok || r.bad)
            return TRN_BAD("Could not parse example input, value: '%.*s'", (int)TRN_MIN(s->len, 200), trn_str_p(s));
        TRN_TRY(take_entries(p, list ? &p->lists : &p->ctx, list));
    }
    return TRN_OK;
}

static trn_err parse_all(parser *p, const trn_tensor *serialized)
{
    TRN_TRY(index_cols(&p->ctx));
    TRN_TRY(index_cols(&p->lists));
    p->n = serialized->count;
    for (int i = 0; i < p->ctx.n + p->lists.n; i++) {
        col *c = i < p->ctx.n ? &p->ctx.c[i] : &p->lists.c[i - p->ctx.n];
        c->end = trn_xalloc(((size_t)p->n + 1) * sizeof *c->end);
    }
    for (p->at = 0; p->at < p->n; p->at++)
        TRN_TRY(parse_one(p, &TRN_DATA(serialized, trn_str)[p->at]));
    return TRN_OK;
}

/* ---- outputs -------------------------------------------------------------------------------------------------------- */

static trn_err copy_values(trn_tensor *t, int64_t to, const col *c, int64_t from, int64_t n)
{
    if (c->type == TRN_STRING) {
        for (int64_t i = 0; i < n; i++)
            TRN_TRY(trn_str_set(&TRN_DATA_MUT(t, trn_str)[to + i], c->s[from + i].p, c->s[from + i].n));
    } else if (n) {
        memcpy((char *)t->data + (size_t)to * value_size(c), (char *)c->any + (size_t)from * value_size(c), (size_t)n * value_size(c));
    }
    return TRN_OK;
}

static trn_err out_values(trn_kctx *k, int i, const col *c, const trn_shape *s)
{
    trn_tensor *t;
    TRN_TRY(trn_out_new(&t, k, i, c->type, s));
    return copy_values(t, 0, c, 0, TRN_MIN(c->n, t->count));
}

static trn_shape in_front(const trn_shape *s, int64_t dim)
{
    trn_shape r = {.rank = s->rank + 1};
    r.dim[0] = dim;
    memcpy(r.dim + 1, s->dim, (size_t)s->rank * sizeof *s->dim);
    return r;
}

static int64_t start_of(const col *c, int64_t e) { return e ? c->end[e - 1] : 0; }

static trn_err out_dense(const parser *p, trn_kctx *k, int i, const col *c)
{
    trn_shape s = p->batch ? in_front(&c->shape, p->n) : c->shape;
    return out_values(k, i, c, &s);
}

/* As long as the longest example's; the rest is the default (lists: zeros). */
static trn_err out_padded(const parser *p, trn_kctx *k, int i, const col *c)
{
    int64_t longest = 0, stride = TRN_MAX(c->stride, 1);
    for (int64_t e = 0; e < p->n; e++)
        longest = TRN_MAX(longest, (c->end[e] - start_of(c, e)) / stride);
    trn_shape one = c->shape;
    one.dim[0] = longest;
    trn_shape s = p->batch ? in_front(&one, p->n) : one;
    trn_tensor *t;
    TRN_TRY(trn_out_new(&t, k, i, c->type, &s));
    if (p->batch && c->def && c->def->count)
        TRN_TRY(trn_fill_elems(t, 0, t->count, c->def, 0));
    for (int64_t e = 0; e < p->n; e++)
        TRN_TRY(copy_values(t, e * longest * stride, c, start_of(c, e), c->end[e] - start_of(c, e)));
    return TRN_OK;
}

static trn_err out_list_dense(const parser *p, trn_kctx *k, int i, int lengths, const col *c)
{
    int64_t longest = 0;
    for (int64_t e = 0; e < p->n; e++)
        longest = TRN_MAX(longest, c->end[e] - start_of(c, e));
    trn_shape s = in_front(&c->shape, longest);
    if (p->batch)
        s = in_front(&s, p->n);
    trn_tensor *t, *len;
    TRN_TRY(trn_out_new(&t, k, i, c->type, &s));
    trn_zero_elems(t, 0, t->count);
    for (int64_t e = 0; e < p->n; e++) {
        int64_t rows = c->end[e] - start_of(c, e);
        TRN_TRY(copy_values(t, e * longest * c->stride, c, start_of(c, e) * c->stride, rows * c->stride));
    }
    if (lengths < 0)
        return TRN_OK;
    trn_shape ls = p->batch ? trn_shape_vector(p->n) : trn_shape_scalar();
    TRN_TRY(trn_out_new(&len, k, lengths, TRN_INT64, &ls));
    for (int64_t e = 0; e < p->n; e++)
        TRN_DATA_MUT(len, int64_t)[e] = c->end[e] - start_of(c, e);
    return TRN_OK;
}

/* Where a value is: example (when there are several), row (in lists), place. */
static trn_err out_sparse(const parser *p, trn_kctx *k, int indices, int values, int shapes, const col *c, bool list)
{
    int dims = p->batch + list + 1;
    trn_shape is = trn_shape_of(2, c->n, (int64_t)dims), vs = trn_shape_vector(c->n), ss = trn_shape_vector(dims);
    trn_tensor *ind, *shape;
    TRN_TRY(trn_out_new(&ind, k, indices, TRN_INT64, &is));
    TRN_TRY(out_values(k, values, c, &vs));
    TRN_TRY(trn_out_new(&shape, k, shapes, TRN_INT64, &ss));
    int64_t *x = TRN_DATA_MUT(ind, int64_t), rows = 0, width = 0, value = 0, row = 0;
    for (int64_t e = 0; e < p->n; e++) {
        int64_t n_rows = list ? c->end[e] - start_of(c, e) : 1;
        rows = TRN_MAX(rows, n_rows);
        for (int64_t r = 0; r < n_rows; r++) {
            int64_t stop = list ? c->row_end[row++] : c->end[e], n = stop - value;
            width = TRN_MAX(width, n);
            for (int64_t i = 0; i < n; i++) {
                if (p->batch)
                    *x++ = e;
                if (list)
                    *x++ = r;
                *x++ = i;
            }
            value = stop;
        }
    }
    int64_t *s = TRN_DATA_MUT(shape, int64_t);
    if (p->batch)
        *s++ = p->n;
    if (list)
        *s++ = rows;
    *s = width;
    return TRN_OK;
}

static trn_err out_splits(trn_kctx *k, int i, trn_dtype type, const int64_t *end, int64_t n)
{
    trn_shape s = trn_shape_vector(n + 1);
    trn_tensor *t;
    TRN_TRY(trn_out_new(&t, k, i, type, &s));
    trn_int_put(t, 0, 0);
    for (int64_t e = 0; e < n; e++)
        trn_int_put(t, e + 1, end[e]);
    return TRN_OK;
}

/* Without a batch there are no splits of it: TensorFlow gives an empty vector (Example) or a scalar (SequenceExample). */
static trn_err out_no_splits(const parser *p, trn_kctx *k, int i, trn_dtype type)
{
    trn_shape s = p->sequence ? trn_shape_scalar() : trn_shape_vector(0);
    trn_tensor *t;
    TRN_TRY(trn_out_new(&t, k, i, type, &s));
    trn_zero_elems(t, 0, t->count);
    return TRN_OK;
}

static trn_err out_ragged(const parser *p, trn_kctx *k, int values, int outer, int inner, const col *c)
{
    trn_shape s = trn_shape_vector(c->n);
    TRN_TRY(out_values(k, values, c, &s));
    TRN_TRY(p->batch ? out_splits(k, outer, c->splits, c->end, p->n) : out_no_splits(p, k, outer, c->splits));
    return inner < 0 ? TRN_OK : out_splits(k, inner, c->splits, c->row_end, c->n_rows);
}

/* ---- what the nodes say --------------------------------------------------------------------------------------------- */

static int out_arg(const trn_kctx *k, const char *name)
{
    int first = 0, n = 0;
    return trn_node_out_arg(k->node, name, strlen(name), &first, &n) ? first : -1;
}

static int attr_len(const trn_kctx *k, const char *name)
{
    const trn_attr *a = trn_node_attr(k->node, name);
    return a ? a->n : 0;
}

static trn_dtype attr_type(const trn_kctx *k, const char *name, int i) { return trn_node_attr(k->node, name)->list[i].type; }

/* Keys come as a list attr, as one vector, or as N scalars. */
static trn_err get_keys(bytes **out, trn_kctx *k, const char *name, int want)
{
    const trn_attr *a = trn_node_attr(k->node, name);
    int n_in = 0, first = a ? 0 : trn_in_arg(k, name, &n_in), n = 0;
    bytes *v = trn_xalloc(((size_t)want + 1) * sizeof *v);
    trn_err err = TRN_OK;
    bool scalars = !a && (n_in != 1 || (want == 1 && trn_in(k, first)->shape.rank == 0));
    n = a ? a->n : scalars ? n_in : (int)TRN_MIN(trn_in(k, first)->count, INT32_MAX);
    if (n != want)
        err = TRN_BAD("Expected len(%s) == %d but got: %d", name, want, n);
    for (int i = 0; !err && i < n; i++) {
        if (a) {
            v[i] = (bytes){a->list[i].s.p, a->list[i].s.n};
            continue;
        }
        const trn_tensor *t = trn_in(k, scalars ? first + i : first);
        if (scalars && t->shape.rank != 0) {
            err = TRN_BAD("Expected %s[%d] to be a scalar", name, i);
            break;
        }
        const trn_str *s = &TRN_DATA(t, trn_str)[scalars ? 0 : i];
        v[i] = (bytes){trn_str_p(s), s->len};
    }
    if (err)
        free(v);
    else
        *out = v;
    return err;
}

/* One group of columns: keys argument, types attr, how they are shaped. */
typedef struct group {
    col_kind kind;
    const char *keys, *types, *shapes, *defaults, *splits;
} group;

static trn_err dense_shape(col *c, const trn_shape *s, int i, bool list)
{
    char text[TRN_SHAPE_TEXT];
    bool ok = s->rank >= 0 && s->rank < TRN_MAX_RANK - 2;
    for (int d = list ? 0 : 1; ok && d < s->rank; d++)
        ok = s->dim[d] >= 0;
    TRN_CHECK_ARG(ok, "dense_shapes[%d] has unknown rank or unknown inner dimensions: %s", i, trn_shape_text(text, s));
    c->shape = *s;
    trn_shape rest = *s;
    if (!list && s->rank > 0 && s->dim[0] < 0) {
        c->kind = PADDED;
        rest.dim[0] = 1;
    }
    TRN_TRY(trn_count_checked(&c->stride, &rest));
    TRN_CHECK_ARG(c->stride <= INT32_MAX, "dense_shapes[%d] is %s: too large", i, trn_shape_text(text, s));
    return TRN_OK;
}

static trn_err dense_default(col *c, const trn_tensor *def, int i)
{
    char a[TRN_SHAPE_TEXT], b[TRN_SHAPE_TEXT];
    if (c->kind == PADDED)
        TRN_CHECK_ARG(def->count == 1, "dense_shape[%d] is a variable length shape: %s, therefore def_value[%d] must contain a single element (the padding "
                                       "element).  But its shape is: %s",
                      i, trn_shape_text(a, &c->shape), i, trn_shape_text(b, &def->shape));
    else
        TRN_CHECK_ARG(def->count == 0 || trn_shape_compatible(&c->shape, &def->shape), "def_value[%d].shape() == %s is not compatible with dense_shapes_[%d] == %s",
                      i, trn_shape_text(a, &def->shape), i, trn_shape_text(b, &c->shape));
    c->def = def;
    return TRN_OK;
}

static trn_err add_group(cols *s, trn_kctx *k, const group *g, bool list)
{
    int n = attr_len(k, g->types);
    if (!n && !trn_node_attr(k->node, g->types))
        return TRN_OK; /* this op has no such columns */
    bytes *keys;
    TRN_TRY(get_keys(&keys, k, g->keys, n));
    s->c = trn_xrealloc(s->c, ((size_t)s->n + (size_t)n + 1) * sizeof *s->c);
    memset(s->c + s->n, 0, ((size_t)n + 1) * sizeof *s->c);
    trn_err err = TRN_OK;
    const trn_attr *shapes = g->shapes ? trn_node_attr(k->node, g->shapes) : NULL;
    int n_def = 0, def = g->defaults ? trn_in_arg(k, g->defaults, &n_def) : 0;
    if (g->kind == DENSE && (!shapes || shapes->n != n))
        err = TRN_BAD("len(%s) != len(%s)", g->shapes, g->keys);
    if (g->defaults && n_def != n)
        err = TRN_BAD("Expected len(%s) == len(%s) but got: %d vs. %d", g->defaults, g->keys, n_def, n);
    if (g->splits && attr_len(k, g->splits) != n)
        err = TRN_BAD("len(%s) != len(%s)", g->splits, g->keys);
    for (int i = 0; !err && i < n; i++) {
        col *c = add_col(s, keys[i], g->kind, attr_type(k, g->types, i));
        if (g->kind == DENSE)
            err = dense_shape(c, shapes->list[i].shape, i, list);
        if (!err && g->defaults)
            err = dense_default(c, trn_in(k, def + i), i);
        if (g->splits)
            c->splits = attr_type(k, g->splits, i);
    }
    free(keys);
    return err;
}

/* ---- Example ---------------------------------------------------------------------------------------------------------- */

static trn_err write_columns(const parser *p, trn_kctx *k, const cols *s, const char *prefix)
{
    bool list = s == &p->lists;
    char name[64];
#define OUT(x) (snprintf(name, sizeof name, "%s%s", prefix, x), out_arg(k, name))
    int si = OUT("sparse_indices"), sv = OUT("sparse_values"), ss = OUT("sparse_shapes"), dv = OUT("dense_values"), rv = OUT("ragged_values"),
        rs = list ? OUT("ragged_outer_splits") : OUT("ragged_row_splits"), ri = list ? OUT("ragged_inner_splits") : -1,
        dl = list ? OUT("dense_lengths") : -1;
#undef OUT
    for (int i = 0; i < s->n; i++) {
        const col *c = &s->c[i];
        switch (c->kind) {
        case SPARSE:
            TRN_TRY(out_sparse(p, k, si++, sv++, ss++, c, list));
            break;
        case RAGGED:
            TRN_TRY(out_ragged(p, k, rv++, rs++, ri < 0 ? -1 : ri++, c));
            break;
        case PADDED:
            TRN_TRY(out_padded(p, k, dv++, c));
            break;
        case DENSE:
            TRN_TRY(list ? out_list_dense(p, k, dv++, dl < 0 ? -1 : dl++, c) : out_dense(p, k, dv++, c));
            break;
        }
    }
    return TRN_OK;
}

static const group example_groups[] = {
    {SPARSE, "sparse_keys", "sparse_types", NULL, NULL, NULL},
    {RAGGED, "ragged_keys", "ragged_value_types", NULL, NULL, "ragged_split_types"},
    {DENSE, "dense_keys", "Tdense", "dense_shapes", "dense_defaults", NULL},
};

static trn_err run_example(parser *p, trn_kctx *k, const trn_tensor *serialized)
{
    for (size_t i = 0; i < TRN_COUNTOF(example_groups); i++)
        TRN_TRY(add_group(&p->ctx, k, &example_groups[i], false));
    if (trn_node_attr(k->node, "num_sparse"))
        TRN_CHECK_ARG(trn_attr_int(k->node, "num_sparse") == attr_len(k, "sparse_types"), "num_sparse is not len(sparse_types)");
    TRN_TRY(parse_all(p, serialized));
    return write_columns(p, k, &p->ctx, "");
}

static trn_err parse_example(trn_kctx *k)
{
    const trn_tensor *serialized = trn_in(k, 0), *names = NULL;
    char a[TRN_SHAPE_TEXT], b[TRN_SHAPE_TEXT];
    bool single = !strcmp(k->node->op, "ParseSingleExample"), v2 = !strcmp(k->node->op, "ParseExampleV2");
    if (single)
        TRN_CHECK_ARG(serialized->shape.rank == 0, "Expected serialized to be a scalar, got shape: %s", trn_shape_text(a, &serialized->shape));
    else
        TRN_CHECK_ARG(serialized->shape.rank == 1 || (v2 && serialized->shape.rank == 0), "Expected serialized to be a %svector, got shape: %s",
                      v2 ? "scalar or " : "", trn_shape_text(a, &serialized->shape));
    if (!single) {
        names = trn_in(k, 1);
        TRN_CHECK_ARG(names->count == 0 || trn_shape_eq(&names->shape, &serialized->shape),
                      "Expected names have the same shape as serialized: name.shape=%s, serialized.shape=%s", trn_shape_text(a, &names->shape),
                      trn_shape_text(b, &serialized->shape));
    }
    parser p = {.batch = serialized->shape.rank == 1, .names = names && names->count ? names : NULL};
    trn_err err = run_example(&p, k, serialized);
    parser_fini(&p);
    return err;
}

/* ---- SequenceExample --------------------------------------------------------------------------------------------------- */

static const group context_groups[] = {
    {SPARSE, "context_sparse_keys", "context_sparse_types", NULL, NULL, NULL},
    {RAGGED, "context_ragged_keys", "context_ragged_value_types", NULL, NULL, "context_ragged_split_types"},
    {DENSE, "context_dense_keys", "Tcontext_dense", "context_dense_shapes", "context_dense_defaults", NULL},
};
static const group list_groups[] = {
    {SPARSE, "feature_list_sparse_keys", "feature_list_sparse_types", NULL, NULL, NULL},
    {RAGGED, "feature_list_ragged_keys", "feature_list_ragged_value_types", NULL, NULL, "feature_list_ragged_split_types"},
    {DENSE, "feature_list_dense_keys", "feature_list_dense_types", "feature_list_dense_shapes", NULL, NULL},
};

static void may_miss(cols *s, const char *p, size_t n)
{
    for (int i = 0; i < s->n; i++)
        if (s->c[i].kind == DENSE && s->c[i].key.n == n && !memcmp(s->c[i].key.p, p, n))
            s->c[i].may_miss = true;
}

/* Which lists may be missing: names (an attr or a string vector), or one bool per dense list. */
static trn_err set_may_miss(parser *p, trn_kctx *k)
{
    static const char name[] = "feature_list_dense_missing_assumed_empty";
    const trn_attr *a = trn_node_attr(k->node, name);
    for (int i = 0; a && i < a->n; i++)
        may_miss(&p->lists, a->list[i].s.p, a->list[i].s.n);
    if (a)
        return TRN_OK;
    const trn_tensor *t = trn_in(k, trn_in_arg(k, name, NULL));
    TRN_CHECK_ARG(t->shape.rank == 1, "Expected %s to be a vector", name);
    if (t->dtype == TRN_STRING) {
        for (int64_t i = 0; i < t->count; i++)
            may_miss(&p->lists, trn_str_p(&TRN_DATA(t, trn_str)[i]), TRN_DATA(t, trn_str)[i].len);
        return TRN_OK;
    }
    TRN_CHECK_ARG(t->count == attr_len(k, "feature_list_dense_types"), "Expected len(%s) to match Nfeature_list_dense", name);
    int64_t i = 0;
    for (int j = 0; j < p->lists.n; j++)
        if (p->lists.c[j].kind == DENSE)
            p->lists.c[j].may_miss = TRN_DATA(t, bool)[i++];
    return TRN_OK;
}

static trn_err run_sequence(parser *p, trn_kctx *k, const trn_tensor *serialized)
{
    for (size_t i = 0; i < TRN_COUNTOF(context_groups); i++) {
        TRN_TRY(add_group(&p->ctx, k, &context_groups[i], false));
        TRN_TRY(add_group(&p->lists, k, &list_groups[i], true));
    }
    static const char *const counts[][2] = {{"Ncontext_sparse", "context_sparse_types"},
                                            {"Ncontext_dense", "Tcontext_dense"},
                                            {"Nfeature_list_sparse", "feature_list_sparse_types"},
                                            {"Nfeature_list_dense", "feature_list_dense_types"}};
    for (size_t i = 0; i < TRN_COUNTOF(counts); i++)
        if (trn_node_attr(k->node, counts[i][0]))
            TRN_CHECK_ARG(trn_attr_int(k->node, counts[i][0]) == attr_len(k, counts[i][1]), "len(%s) != %s", counts[i][1], counts[i][0]);
    for (int i = 0; i < p->ctx.n; i++)
        TRN_CHECK_ARG(p->ctx.c[i].kind != PADDED, "context_dense_shapes must be known");
    TRN_TRY(set_may_miss(p, k));
    TRN_TRY(parse_all(p, serialized));
    TRN_TRY(write_columns(p, k, &p->ctx, "context_"));
    return write_columns(p, k, &p->lists, "feature_list_");
}

static trn_err parse_sequence_example(trn_kctx *k)
{
    const trn_tensor *serialized = trn_in(k, 0), *names = trn_in(k, trn_in_arg(k, "debug_name", NULL));
    char a[TRN_SHAPE_TEXT];
    bool single = !strcmp(k->node->op, "ParseSingleSequenceExample");
    TRN_CHECK_ARG(serialized->shape.rank <= (single ? 0 : 1), "Expected serialized to be a scalar%s, got shape: %s", single ? "" : " or vector",
                  trn_shape_text(a, &serialized->shape));
    TRN_CHECK_ARG(names->count == 0 || single || names->count == serialized->count, "debug_name must be empty or have the correct number of elements");
    parser p = {.batch = serialized->shape.rank == 1, .sequence = true, .names = names->count ? names : NULL};
    trn_err err = run_sequence(&p, k, serialized);
    parser_fini(&p);
    return err;
}

/* ---- ParseExampleDataset: batches of serialized examples, parsed ---------------------------------------------------------- */

typedef struct parsed {
    trn_ds d;     /* captured: the defaults */
    cols shape;   /* columns without values; keys are the dataset's own */
    int *place;   /* per column: its component. Components are in the order of their keys */
} parsed;

static void parsed_free(trn_ds *d)
{
    parsed *s = (parsed *)d;
    for (int i = 0; i < s->shape.n; i++)
        free((char *)s->shape.c[i].key.p);
    cols_fini(&s->shape);
    free(s->place);
}

static trn_err parse_elem(trn_elem **out, const parsed *s, const trn_tensor *serialized)
{
    TRN_CHECK_ARG(serialized->shape.rank == 1, "Expected serialized to be a vector");
    parser p = {.batch = true};
    p.ctx.n = s->shape.n;
    p.ctx.c = trn_xalloc(((size_t)p.ctx.n + 1) * sizeof *p.ctx.c);
    memcpy(p.ctx.c, s->shape.c, (size_t)p.ctx.n * sizeof *p.ctx.c);
    trn_elem *e = trn_elem_new(s->d.n);
    trn_err err = parse_all(&p, serialized);
    for (int i = 0; !err && i < p.ctx.n; i++) {
        trn_value v[3] = {0};
        trn_kctx k = {.out = v, .n_out = 3};
        const col *c = &p.ctx.c[i];
        err = c->kind == SPARSE   ? out_sparse(&p, &k, 0, 1, 2, c, false)
              : c->kind == RAGGED ? out_ragged(&p, &k, 0, 1, -1, c)
              : c->kind == PADDED ? out_padded(&p, &k, 0, c)
                                  : out_dense(&p, &k, 0, c);
        if (!err && c->kind == RAGGED) {
            err = trn_box_ragged(&e->t[s->place[i]], v[1].t, v[0].t);
        } else if (!err && c->kind == SPARSE) {
            err = trn_box_sparse(&e->t[s->place[i]], (trn_tensor *[]){v[0].t, v[1].t, v[2].t});
        } else if (!err) {
            e->t[s->place[i]] = v[0].t;
            v[0].t = NULL;
        }
        for (int j = 0; j < 3; j++)
            trn_tensor_unref(v[j].t);
    }
    parser_fini(&p);
    if (err)
        trn_elem_free(e);
    else
        *out = e;
    return err;
}

static trn_ds_do parsed_next(trn_it *it, trn_act *a, trn_ds_why why)
{
    if (why != TRN_DS_GOT)
        return trn_data_pass(it, a, why);
    trn_elem *e;
    trn_err err = parse_elem(&e, (parsed *)it->d, a->elem->t[0]);
    return err ? trn_act_fail(a, err) : trn_act_give(a, e);
}

static const trn_ds_op parsed_op = {"ParseExampleDataset", sizeof(trn_it), parsed_free, trn_it_start_in, parsed_next, .count = trn_data_count_same};

static int compare_keys(const bytes *a, const bytes *b)
{
    int r = memcmp(a->p, b->p, TRN_MIN(a->n, b->n));
    return r ? r : a->n < b->n ? -1 : a->n > b->n;
}

static trn_err parsed_args(parsed *s, trn_kctx *k)
{
    TRN_CHECK_ARG(s->d.in[0]->n == 1 && s->d.in[0]->types[0] == TRN_STRING, "the input must be a dataset of string vectors");
    trn_err err = TRN_OK;
    for (size_t i = 0; !err && i < TRN_COUNTOF(example_groups); i++)
        if (example_groups[i].kind != RAGGED || attr_len(k, "ragged_keys")) /* the first of these ops has no such attr */
            err = add_group(&s->shape, k, &example_groups[i], false);
    for (int i = 0; i < s->shape.n; i++) { /* from here on the keys and defaults are ours, also for parsed_free */
        col *c = &s->shape.c[i];
        c->key.p = trn_xstrndup(c->key.p, c->key.n);
    }
    TRN_TRY(err);
    int n, first = trn_in_arg(k, "dense_defaults", &n);
    s->d.cap = trn_xalloc(((size_t)n + 1) * sizeof *s->d.cap);
    for (int i = 0; i < n; i++)
        s->d.cap[s->d.n_cap++] = trn_tensor_ref(trn_in(k, first + i));
    s->place = trn_xalloc(((size_t)s->shape.n + 1) * sizeof *s->place);
    for (int i = 0; i < s->shape.n; i++)
        for (int j = 0; j < s->shape.n; j++) {
            int order = compare_keys(&s->shape.c[j].key, &s->shape.c[i].key);
            TRN_CHECK_ARG(i == j || order, "Duplicate key not allowed: %.*s", (int)TRN_MIN(s->shape.c[i].key.n, 200), s->shape.c[i].key.p);
            s->place[i] += order < 0;
        }
    TRN_CHECK_ARG(s->d.n == s->shape.n, "output_types has %d entries for %d features", s->d.n, s->shape.n);
    for (int i = 0; i < s->shape.n; i++) {
        trn_dtype want = s->shape.c[i].kind == SPARSE || s->shape.c[i].kind == RAGGED ? TRN_VARIANT : s->shape.c[i].type;
        TRN_CHECK_ARG(s->d.types[s->place[i]] == want, "Got wrong type for FastParseExample return value %d (expected %s, got %s).", i,
                      trn_dtype_name(s->d.types[s->place[i]]), trn_dtype_name(want));
    }
    return TRN_OK;
}

static trn_err parse_example_dataset(trn_kctx *k)
{
    parsed *s;
    TRN_TRY(trn_data_on(&s, k, &parsed_op, sizeof *s));
    trn_data_elem_attrs(&s->d, k->node);
    return trn_data_out(k, s, parsed_args(s, k));
}

/* ---- rows ----------------------------------------------------------------------------------------------------------------- */

#define CTX_OUT                                                                                                        \
    "context_sparse_indices:Ncontext_sparse*i64, context_sparse_values:context_sparse_types, "                         \
    "context_sparse_shapes:Ncontext_sparse*i64, context_dense_values:Tcontext_dense"
#define LIST_OUT                                                                                                       \
    "feature_list_sparse_indices:Nfeature_list_sparse*i64, feature_list_sparse_values:feature_list_sparse_types, "     \
    "feature_list_sparse_shapes:Nfeature_list_sparse*i64, feature_list_dense_values:feature_list_dense_types"
#define SPARSE_OUT(n) "sparse_indices:" n "*i64, sparse_values:sparse_types, sparse_shapes:" n "*i64, dense_values:Tdense"

#define DS_KEYS                                                                                                        \
    "sparse_keys:list(string)>=0, dense_keys:list(string)>=0, sparse_types:list(f32|i64|str)>=0, Tdense:list(f32|i64|str)>=0, " \
    "dense_shapes:list(shape)>=0, " DS_OUT
#define DS_RAGGED ", ragged_keys:list(string)>=0=[], ragged_value_types:list(f32|i64|str)>=0=[], ragged_split_types:list(i32|i64)>=0=[]"

const trn_op trn_ops_example[] = {
    {"ParseExampleDataset",
     "input_dataset:var, num_parallel_calls:i64, dense_defaults:Tdense -> handle:var; " DS_KEYS ", sloppy:bool=false" DS_RAGGED, trn_sh_dataset,
     parse_example_dataset, DS_FLAGS},
    {"ExperimentalParseExampleDataset", "input_dataset:var, num_parallel_calls:i64, dense_defaults:Tdense -> handle:var; " DS_KEYS ", sloppy:bool=false",
     trn_sh_dataset, parse_example_dataset, DS_FLAGS},
    {"ParseExampleDatasetV2",
     "input_dataset:var, num_parallel_calls:i64, dense_defaults:Tdense -> handle:var; " DS_KEYS ", deterministic:string=\"default\"" DS_RAGGED,
     trn_sh_dataset, parse_example_dataset, DS_FLAGS},
    {"ParseExample",
     "serialized:str, names:str, sparse_keys:Nsparse*str, dense_keys:Ndense*str, dense_defaults:Tdense -> " SPARSE_OUT("Nsparse")
     "; Nsparse:int>=0, Ndense:int>=0, sparse_types:list(f32|i64|str)>=0, Tdense:list(f32|i64|str)>=0, dense_shapes:list(shape)>=0",
     trn_sh_unknown, parse_example, TRN_OP_HEAVY},
    {"ParseExampleV2",
     "serialized:str, names:str, sparse_keys:str, dense_keys:str, ragged_keys:str, dense_defaults:Tdense -> " SPARSE_OUT("num_sparse")
     ", ragged_values:ragged_value_types, ragged_row_splits:ragged_split_types; Tdense:list(f32|i64|str)>=0, num_sparse:int>=0, sparse_types:list(f32|i64|str)>=0, "
     "ragged_value_types:list(f32|i64|str)>=0, ragged_split_types:list(i32|i64)>=0, dense_shapes:list(shape)>=0",
     trn_sh_unknown, parse_example, TRN_OP_HEAVY},
    {"ParseSingleExample",
     "serialized:str, dense_defaults:Tdense -> " SPARSE_OUT("num_sparse")
     "; num_sparse:int>=0, sparse_keys:list(string)>=0, dense_keys:list(string)>=0, sparse_types:list(f32|i64|str)>=0, Tdense:list(f32|i64|str)>=0, "
     "dense_shapes:list(shape)>=0",
     trn_sh_unknown, parse_example, 0},
    {"ParseSequenceExample",
     "serialized:str, debug_name:str, context_dense_defaults:Tcontext_dense -> " CTX_OUT ", " LIST_OUT
     ", feature_list_dense_lengths:Nfeature_list_dense*i64; feature_list_dense_missing_assumed_empty:list(string)>=0, context_sparse_keys:list(string)>=0, "
     "context_dense_keys:list(string)>=0, feature_list_sparse_keys:list(string)>=0, feature_list_dense_keys:list(string)>=0, Ncontext_sparse:int>=0=0, "
     "Ncontext_dense:int>=0=0, Nfeature_list_sparse:int>=0=0, Nfeature_list_dense:int>=0=0, context_sparse_types:list(f32|i64|str)>=0=[], "
     "Tcontext_dense:list(f32|i64|str)>=0=[], feature_list_dense_types:list(f32|i64|str)>=0=[], context_dense_shapes:list(shape)>=0=[], "
     "feature_list_sparse_types:list(f32|i64|str)>=0=[], feature_list_dense_shapes:list(shape)>=0=[]",
     trn_sh_unknown, parse_sequence_example, TRN_OP_HEAVY},
    {"ParseSequenceExampleV2",
     "serialized:str, debug_name:str, context_sparse_keys:str, context_dense_keys:str, context_ragged_keys:str, feature_list_sparse_keys:str, "
     "feature_list_dense_keys:str, feature_list_ragged_keys:str, feature_list_dense_missing_assumed_empty:bool, context_dense_defaults:Tcontext_dense -> " CTX_OUT
     ", context_ragged_values:context_ragged_value_types, context_ragged_row_splits:context_ragged_split_types, " LIST_OUT
     ", feature_list_dense_lengths:Nfeature_list_dense*i64, feature_list_ragged_values:feature_list_ragged_value_types, "
     "feature_list_ragged_outer_splits:feature_list_ragged_split_types, feature_list_ragged_inner_splits:feature_list_ragged_split_types; "
     "Ncontext_sparse:int>=0=0, Tcontext_dense:list(f32|i64|str)>=0=[], context_sparse_types:list(f32|i64|str)>=0=[], context_ragged_value_types:list(f32|i64|str)>=0=[], "
     "context_ragged_split_types:list(i32|i64)>=0=[], context_dense_shapes:list(shape)>=0=[], Nfeature_list_sparse:int>=0=0, Nfeature_list_dense:int>=0=0, "
     "feature_list_dense_types:list(f32|i64|str)>=0=[], feature_list_sparse_types:list(f32|i64|str)>=0=[], feature_list_ragged_value_types:list(f32|i64|str)>=0=[], "
     "feature_list_ragged_split_types:list(i32|i64)>=0=[], feature_list_dense_shapes:list(shape)>=0=[]",
     trn_sh_unknown, parse_sequence_example, TRN_OP_HEAVY},
    {"ParseSingleSequenceExample",
     "serialized:str, feature_list_dense_missing_assumed_empty:str, context_sparse_keys:Ncontext_sparse*str, context_dense_keys:Ncontext_dense*str, "
     "feature_list_sparse_keys:Nfeature_list_sparse*str, feature_list_dense_keys:Nfeature_list_dense*str, context_dense_defaults:Tcontext_dense, "
     "debug_name:str -> " CTX_OUT ", " LIST_OUT
     "; Ncontext_sparse:int>=0=0, Ncontext_dense:int>=0=0, Nfeature_list_sparse:int>=0=0, Nfeature_list_dense:int>=0=0, "
     "context_sparse_types:list(f32|i64|str)>=0=[], Tcontext_dense:list(f32|i64|str)>=0=[], feature_list_dense_types:list(f32|i64|str)>=0=[], "
     "context_dense_shapes:list(shape)>=0=[], feature_list_sparse_types:list(f32|i64|str)>=0=[], feature_list_dense_shapes:list(shape)>=0=[]",
     trn_sh_unknown, parse_sequence_example, 0},
    {0},
};
