/* Lookup tables (res/table.h): making them, filling them from tensors and text files, and what is done with them. */
#include "ops/kern.h"
#include "ops/resop.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "res/table.h"

#define TYPE_NAME "tensorflow::lookup::LookupInterface"

/* ---- making ---------------------------------------------------------------------------------------------------------- */

static trn_err new_table(trn_table **out, const trn_kctx *k, trn_table_kind kind)
{
    const trn_node *n = k->node;
    trn_dtype key = trn_attr_type(n, "key_dtype"), value = trn_attr_type(n, "value_dtype");
    const trn_shape *shape = trn_attr_shape(n, "value_shape");
    char text[TRN_SHAPE_TEXT];
    if (key != TRN_STRING && key != TRN_INT64 && (key != TRN_INT32 && kind == TRN_TABLE_DENSE))
        return trn_errorf(TRN_UNIMPLEMENTED, "keys of %s are not supported", trn_dtype_name(key));
    if (!trn_dtype_is_plain(key) && key != TRN_STRING)
        return trn_errorf(TRN_UNIMPLEMENTED, "keys of %s are not supported", trn_dtype_name(key));
    if (kind == TRN_TABLE_DENSE)
        return trn_table_new_dense(out, trn_in(k, 0), k->n_in > 1 ? trn_in(k, 1) : NULL, value, shape,
                                   trn_attr_int(n, "initial_num_buckets"), trn_attr_float(n, "max_load_factor"));
    TRN_CHECK_ARG(kind != TRN_TABLE_TENSORS || (shape->rank == 1 && shape->dim[0] >= 0),
                  "Default value must be a vector, got shape %s", trn_shape_text(text, shape));
    *out = trn_table_new(kind, key, value, shape);
    return TRN_OK;
}

static trn_table_kind kind_of(const trn_kctx *k)
{
    const char *op = k->node->op;
    return strstr(op, "Dense")       ? TRN_TABLE_DENSE
           : strstr(op, "OfTensors") ? TRN_TABLE_TENSORS
           : strstr(op, "Mutable")   ? TRN_TABLE_SCALARS
                                     : TRN_TABLE_STATIC;
}

static trn_err make_table(trn_resource **out, void *arg)
{
    trn_kctx *k = arg;
    return new_table((trn_table **)out, k, kind_of(k));
}

static trn_err table(trn_kctx *k)
{
    trn_table *t;
    TRN_TRY(trn_resop(&t, k, &trn_table_type, TYPE_NAME, make_table, k));
    trn_dtype key = trn_attr_type(k->node, "key_dtype"), value = trn_attr_type(k->node, "value_dtype");
    trn_err err = TRN_OK;
    if (trn_table_key(t) != key || trn_table_value(t) != value)
        err = TRN_BAD("Conflicting key/value dtypes %s->%s with %s-%s for table %s", trn_dtype_name(key),
                      trn_dtype_name(value), trn_dtype_name(trn_table_key(t)), trn_dtype_name(trn_table_value(t)),
                      trn_resop_name(k));
    trn_resource_unref(t);
    return err;
}

/* Belongs to its handle: no name, no container. */
static trn_err anonymous(trn_kctx *k)
{
    static _Atomic uint64_t counter;
    trn_shape scalar = trn_shape_scalar();
    trn_table *t;
    trn_tensor *y;
    TRN_TRY(new_table(&t, k, kind_of(k)));
    trn_err err = trn_out_new(&y, k, 0, TRN_RESOURCE, &scalar);
    if (err) {
        trn_resource_unref(t);
        return err;
    }
    char *name = trn_xasprintf("anonymous_table_%llu", (unsigned long long)atomic_fetch_add(&counter, 1));
    trn_handle *h = trn_handle_new(k->node->device, "", name, TYPE_NAME);
    free(name);
    h->res = t;
    h->res_unref = trn_resource_unref;
    TRN_DATA_MUT(y, trn_handle *)[0] = h;
    return TRN_OK;
}

/* ---- using ----------------------------------------------------------------------------------------------------------- */

static trn_err find_in(trn_kctx *k, trn_table *t)
{
    trn_shape s;
    trn_tensor *y;
    TRN_TRY(trn_table_check_find(&s, t, trn_in(k, 1), trn_in(k, 2)));
    TRN_TRY(trn_out_new(&y, k, 0, trn_table_value(t), &s));
    return trn_table_find(t, y, trn_in(k, 1), trn_in(k, 2));
}

static trn_err insert_in(trn_kctx *k, trn_table *t) { return trn_table_insert(t, trn_in(k, 1), trn_in(k, 2)); }
static trn_err remove_in(trn_kctx *k, trn_table *t) { return trn_table_remove(t, trn_in(k, 1)); }
static trn_err import_in(trn_kctx *k, trn_table *t) { return trn_table_import(t, trn_in(k, 1), trn_in(k, 2)); }

static trn_err size_in(trn_kctx *k, trn_table *t)
{
    trn_out_set(k, 0, trn_tensor_i64(trn_table_size(t)));
    return TRN_OK;
}

static trn_err export_in(trn_kctx *k, trn_table *t)
{
    TRN_CHECK_ARG(trn_table_key(t) == k->node->out_types[0] && trn_table_value(t) == k->node->out_types[1],
                  "the table holds %s->%s, not %s->%s", trn_dtype_name(trn_table_key(t)),
                  trn_dtype_name(trn_table_value(t)), trn_dtype_name(k->node->out_types[0]),
                  trn_dtype_name(k->node->out_types[1]));
    trn_tensor *keys, *values;
    TRN_TRY(trn_table_export(t, &keys, &values));
    trn_out_set(k, 0, keys);
    trn_out_set(k, 1, values);
    return TRN_OK;
}

static trn_err on_table(trn_kctx *k, trn_err (*fn)(trn_kctx *, trn_table *))
{
    trn_table *t;
    TRN_TRY(trn_k_resource(&t, k, 0, &trn_table_type));
    trn_err err = fn(k, t);
    trn_resource_unref(t);
    return err;
}

static trn_err find(trn_kctx *k) { return on_table(k, find_in); }
static trn_err insert(trn_kctx *k) { return on_table(k, insert_in); }
static trn_err remove_keys(trn_kctx *k) { return on_table(k, remove_in); }
static trn_err import(trn_kctx *k) { return on_table(k, import_in); }
static trn_err size(trn_kctx *k) { return on_table(k, size_in); }
static trn_err export(trn_kctx *k) { return on_table(k, export_in); }

/* ---- filling --------------------------------------------------------------------------------------------------------- */

static trn_err can_be_filled(const trn_table *t)
{
    TRN_CHECK_ARG(trn_table_kind_of(t) == TRN_TABLE_STATIC, "the table is not initializable");
    return TRN_OK;
}

static trn_err fill(trn_kctx *k, trn_table *t)
{
    const trn_tensor *keys = trn_in(k, 1), *values = trn_in(k, 2);
    char text[TRN_SHAPE_TEXT];
    TRN_TRY(can_be_filled(t));
    TRN_CHECK_ARG(trn_is_vector(keys), "Keys must be a vector, but received shape %s",
                  trn_shape_text(text, &keys->shape));
    TRN_CHECK_ARG(trn_is_vector(values), "Values must be a vector, but received shape %s",
                  trn_shape_text(text, &values->shape));
    TRN_CHECK_ARG(keys->count == values->count, "Keys and values must have the same size %lld vs %lld",
                  (long long)keys->count, (long long)values->count);
    return trn_table_import(t, keys, values);
}

static trn_err initialize(trn_kctx *k) { return on_table(k, fill); }

enum { LINE_NUMBER = -1, WHOLE_LINE = -2 };

/* One column of a text file, on its way to becoming a tensor. */
typedef struct column {
    trn_dtype dtype;
    int64_t index; /* or LINE_NUMBER, WHOLE_LINE */
    trn_tensor *t;
    int64_t n;
} column;

static trn_err column_grow(column *c)
{
    trn_shape s = trn_shape_vector(c->t ? 2 * c->n : 256);
    trn_tensor *t;
    TRN_TRY(trn_tensor_new(&t, c->dtype, &s));
    trn_err err = c->n ? trn_tensor_copy_elems(t, 0, c->t, 0, c->n) : TRN_OK;
    if (err) {
        trn_tensor_unref(t);
        return err;
    }
    trn_tensor_unref(c->t);
    c->t = t;
    return TRN_OK;
}

static trn_err not_valid(const char *p, size_t n, int64_t line, trn_dtype t)
{
    return TRN_BAD("Field %.*s in line %lld is not a valid %s.", (int)TRN_MIN(n, 200), p, (long long)line,
                   trn_dtype_name(t));
}

/* One number and nothing else but blanks around it. */
static trn_err add_number(column *c, const char *p, size_t n, int64_t line, int64_t offset)
{
    char text[128], *end;
    if (n == 0 || n >= sizeof text || memchr(p, 0, n))
        return not_valid(p, n, line, c->dtype);
    memcpy(text, p, n);
    text[n] = 0;
    errno = 0;
    bool is_float = c->dtype == TRN_FLOAT || c->dtype == TRN_DOUBLE, is_single = c->dtype == TRN_FLOAT;
    float f = is_single ? strtof(text, &end) : 0;
    double d = is_float && !is_single ? strtod(text, &end) : 0;
    long long i = is_float ? 0 : strtoll(text, &end, 10);
    bool bad =
        end == text || (!is_float && errno == ERANGE) || (c->dtype == TRN_INT32 && (i > INT32_MAX || i < INT32_MIN));
    while (*end == ' ' || (*end >= '\t' && *end <= '\r'))
        end++;
    if (bad || *end)
        return not_valid(p, n, line, c->dtype);
    switch (c->dtype) {
    case TRN_FLOAT:
        TRN_DATA_MUT(c->t, float)[c->n] = f;
        break;
    case TRN_DOUBLE:
        TRN_DATA_MUT(c->t, double)[c->n] = d;
        break;
    case TRN_INT32:
        TRN_DATA_MUT(c->t, int32_t)[c->n] = (int32_t)((uint32_t)i + (uint32_t)offset);
        break;
    default:
        TRN_DATA_MUT(c->t, int64_t)[c->n] = i;
        break; /* TensorFlow adds the offset to 32-bit fields only */
    }
    return TRN_OK;
}

static trn_err add_field(column *c, const char *p, size_t n, int64_t line, int64_t offset)
{
    if (!c->t || c->n == c->t->count)
        TRN_TRY(column_grow(c));
    switch (c->dtype) {
    case TRN_STRING:
        TRN_TRY(trn_tensor_str_put(c->t, c->n, p, n));
        break;
    case TRN_INT32:
    case TRN_INT64:
    case TRN_FLOAT:
    case TRN_DOUBLE:
        if (c->index == LINE_NUMBER)
            TRN_DATA_MUT(c->t, int64_t)[c->n] = (int64_t)((uint64_t)line + (uint64_t)offset);
        else
            TRN_TRY(add_number(c, p, n, line, offset));
        break;
    default:
        return TRN_BAD("Data type %s not supported.", trn_dtype_name(c->dtype));
    }
    c->n++;
    return TRN_OK;
}

/* Field i of a line. */
static bool field(const char **p, size_t *n, const char *line, size_t len, char delimiter, int64_t i)
{
    const char *end = line + len, *next;
    for (; i > 0; i--, line = next + 1)
        if (!(next = memchr(line, delimiter, (size_t)(end - line))))
            return false;
    next = memchr(line, delimiter, (size_t)(end - line));
    *p = line;
    *n = (size_t)((next ? next : end) - line);
    return true;
}

static trn_err add_line(column c[2], const trn_node *nd, const char *file, const char *line, size_t len, int64_t number)
{
    char delimiter = trn_attr_str(nd, "delimiter")[0];
    int64_t most = TRN_MAX(c[0].index, c[1].index), offset = trn_attr_int(nd, "offset");
    TRN_CHECK_ARG(len, "Invalid content in %s: empty line found at line %lld.", file, (long long)number);
    const char *p;
    size_t n;
    TRN_CHECK_ARG(most < 0 || field(&p, &n, line, len, delimiter, most),
                  "Invalid number of columns in %s line %lld: expected at least %lld", file, (long long)number,
                  (long long)most + 1);
    for (int i = 0; i < 2; i++) {
        p = line;
        n = len;
        if (c[i].index >= 0)
            field(&p, &n, line, len, delimiter, c[i].index);
        TRN_TRY(add_field(&c[i], p, n, number, offset));
    }
    return TRN_OK;
}

/* TensorFlow's readers of lines drop every carriage return. */
static size_t without_cr(char *line, size_t n)
{
    size_t m = 0;
    for (size_t i = 0; i < n; i++)
        if (line[i] != '\r')
            line[m++] = line[i];
    return m;
}

static trn_err read_lines(column c[2], const trn_node *nd, const char *path, FILE *f)
{
    int64_t limit = trn_attr_int(nd, "vocab_size"), n = 0;
    char *line = NULL;
    size_t cap = 0;
    ssize_t len;
    trn_err err = TRN_OK;
    errno = 0;
    while (!err && (limit < 0 || n < limit) && (len = getline(&line, &cap, f)) >= 0) {
        if (len && line[len - 1] == '\n')
            len--;
        err = add_line(c, nd, path, line, without_cr(line, (size_t)len), n++);
    }
    if (!err && ferror(f))
        err = trn_err_errno(errno, "%s", path);
    if (!err && limit >= 0 && n < limit)
        err = TRN_BAD("Invalid vocab_size in %s: expected %lld but got %lld", path, (long long)limit, (long long)n);
    if (!err && n == 0)
        err = trn_errorf(TRN_OUT_OF_RANGE, "%s has no lines", path);
    free(line);
    return err;
}

static trn_err check_column(const column *c, const char *what)
{
    TRN_CHECK_ARG(c->index != LINE_NUMBER || c->dtype == TRN_INT64,
                  "%s index for line number requires table %s dtype of int64, got %s", what, what,
                  trn_dtype_name(c->dtype));
    TRN_CHECK_ARG(c->index != WHOLE_LINE || c->dtype == TRN_STRING || c->dtype == TRN_INT64 || c->dtype == TRN_INT32,
                  "%s index for whole line requires string or integer table %s, got %s", what, what,
                  trn_dtype_name(c->dtype));
    return TRN_OK;
}

static trn_err column_tensor(trn_tensor **out, const column *c)
{
    trn_shape s = trn_shape_vector(c->n);
    return trn_tensor_view(out, c->t, 0, &s);
}

static trn_err fill_from(trn_table *t, const column c[2])
{
    trn_tensor *keys, *values;
    TRN_TRY(column_tensor(&keys, &c[0]));
    trn_err err = column_tensor(&values, &c[1]);
    if (!err) {
        err = trn_table_import(t, keys, values);
        if (trn_err_code(err) == TRN_FAILED_PRECONDITION &&
            trn_table_is_set(t)) { /* another step was quicker: that is fine for files */
            trn_err_free(err);
            err = TRN_OK;
        }
        trn_tensor_unref(values);
    }
    trn_tensor_unref(keys);
    return err;
}

static trn_err read_file(trn_kctx *k, trn_table *t, const char *path)
{
    const trn_node *n = k->node;
    column c[2] = {{.dtype = trn_table_key(t), .index = trn_attr_int(n, "key_index")},
                   {.dtype = trn_table_value(t), .index = trn_attr_int(n, "value_index")}};
    TRN_TRY(check_column(&c[0], "key"));
    TRN_TRY(check_column(&c[1], "value"));
    TRN_TRY(trn_k_check_path(k, path));
    FILE *f = fopen(trn_local_path(path), "rbe");
    if (!f)
        return trn_err_errno(errno, "%s", path);
    trn_err err = trn_table_is_set(t) ? TRN_OK : read_lines(c, n, path, f);
    fclose(f);
    if (!err && c[0].t)
        err = fill_from(t, c);
    trn_tensor_unref(c[0].t);
    trn_tensor_unref(c[1].t);
    return err;
}

static trn_err fill_from_file(trn_kctx *k, trn_table *t)
{
    const trn_tensor *name = trn_in(k, 1);
    char text[TRN_SHAPE_TEXT];
    TRN_TRY(can_be_filled(t));
    TRN_CHECK_ARG(strlen(trn_attr_str(k->node, "delimiter")) == 1, "delimiter should be only 1 char");
    TRN_CHECK_ARG(trn_is_scalar(name), "filename should be a single string, but got %s",
                  trn_shape_text(text, &name->shape));
    const trn_str *s = TRN_DATA(name, trn_str);
    TRN_CHECK_ARG(s->len, "filename cannot be empty.");
    TRN_CHECK_ARG(!memchr(trn_str_p(s), 0, s->len), "the file name has a zero byte in it");
    char *path = trn_xstrndup(trn_str_p(s), s->len);
    trn_err err = read_file(k, t, path);
    free(path);
    return err;
}

static trn_err initialize_from_file(trn_kctx *k) { return on_table(k, fill_from_file); }

/* ---- rows ------------------------------------------------------------------------------------------------------------ */

static trn_err sh_find(trn_shctx *s)
{
    (void)s; /* keys may be vectors, values too: only the table knows */
    return TRN_OK;
}

#define NAMED "container:string=\"\", shared_name:string=\"\", use_node_name_sharing:bool=false, "
#define KV "key_dtype:type, value_dtype:type"
#define KV_KEYED "key_dtype:any, value_dtype:type"
#define VECTOR ", value_shape:shape=[]"
#define DENSE VECTOR ", initial_num_buckets:int=131072, max_load_factor:float=0.8"
#define PAIRS "; Tin:any, Tout:any"
#define MAKES trn_sh_handle, table, TRN_OP_CHEAP | TRN_OP_STATEFUL, trn_resop_init, trn_resop_fini
#define COLUMNS "key_index:int>=-2, value_index:int>=-2, vocab_size:int>=-1=-1, delimiter:string=\"\t\", offset:int=0"

const trn_op trn_ops_lookup[] = {
    {"HashTable", " -> table_handle:&str; " NAMED KV, MAKES},
    {"HashTableV2", " -> table_handle:res; " NAMED KV, MAKES},
    {"AnonymousHashTable", " -> table_handle:res; " KV, trn_sh_scalar, anonymous, TRN_OP_STATEFUL},
    {"MutableHashTable", " -> table_handle:&str; " NAMED KV, MAKES},
    {"MutableHashTableV2", " -> table_handle:res; " NAMED KV, MAKES},
    {"AnonymousMutableHashTable", " -> table_handle:res; " KV, trn_sh_scalar, anonymous, TRN_OP_STATEFUL},
    {"MutableHashTableOfTensors", " -> table_handle:&str; " NAMED KV VECTOR, MAKES},
    {"MutableHashTableOfTensorsV2", " -> table_handle:res; " NAMED KV VECTOR, MAKES},
    {"AnonymousMutableHashTableOfTensors", " -> table_handle:res; " KV VECTOR, trn_sh_scalar, anonymous,
     TRN_OP_STATEFUL},
    {"MutableDenseHashTable", "empty_key:key_dtype -> table_handle:&str; " NAMED KV_KEYED DENSE, MAKES},
    {"MutableDenseHashTableV2", "empty_key:key_dtype, deleted_key:key_dtype -> table_handle:res; " NAMED KV_KEYED DENSE,
     MAKES},
    {"AnonymousMutableDenseHashTable",
     "empty_key:key_dtype, deleted_key:key_dtype -> table_handle:res; " KV_KEYED DENSE, trn_sh_scalar, anonymous,
     TRN_OP_STATEFUL},
    {"InitializeTable", "table_handle:&str, keys:Tkey, values:Tval -> ; Tkey:any, Tval:any", trn_sh_none, initialize,
     0},
    {"InitializeTableV2", "table_handle:res, keys:Tkey, values:Tval -> ; Tkey:any, Tval:any", trn_sh_none, initialize,
     TRN_OP_STATEFUL},
    {"InitializeTableFromTextFile", "table_handle:&str, filename:str -> ; " COLUMNS, trn_sh_none, initialize_from_file,
     TRN_OP_DISK},
    {"InitializeTableFromTextFileV2", "table_handle:res, filename:str -> ; " COLUMNS, trn_sh_none, initialize_from_file,
     TRN_OP_DISK | TRN_OP_STATEFUL},
    {"LookupTableFind", "table_handle:&str, keys:Tin, default_value:Tout -> values:Tout" PAIRS, sh_find, find, 0},
    {"LookupTableFindV2", "table_handle:res, keys:Tin, default_value:Tout -> values:Tout" PAIRS, sh_find, find,
     TRN_OP_STATEFUL},
    {"LookupTableInsert", "table_handle:&str, keys:Tin, values:Tout -> " PAIRS, trn_sh_none, insert, 0},
    {"LookupTableInsertV2", "table_handle:res, keys:Tin, values:Tout -> " PAIRS, trn_sh_none, insert, TRN_OP_STATEFUL},
    {"LookupTableRemoveV2", "table_handle:res, keys:Tin -> ; Tin:any", trn_sh_none, remove_keys, TRN_OP_STATEFUL},
    {"LookupTableImport", "table_handle:&str, keys:Tin, values:Tout -> " PAIRS, trn_sh_none, import, 0},
    {"LookupTableImportV2", "table_handle:res, keys:Tin, values:Tout -> " PAIRS, trn_sh_none, import, TRN_OP_STATEFUL},
    {"LookupTableSize", "table_handle:&str -> size:i64", trn_sh_scalar, size, TRN_OP_CHEAP},
    {"LookupTableSizeV2", "table_handle:res -> size:i64", trn_sh_scalar, size, TRN_OP_CHEAP | TRN_OP_STATEFUL},
    {"LookupTableExport", "table_handle:&str -> keys:Tkeys, values:Tvalues; Tkeys:any, Tvalues:any", trn_sh_unknown,
     export, 0},
    {"LookupTableExportV2", "table_handle:res -> keys:Tkeys, values:Tvalues; Tkeys:any, Tvalues:any", trn_sh_unknown,
     export, TRN_OP_STATEFUL},
    {0},
};
