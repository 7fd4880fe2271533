/* Where variables go: whole ones over the ps tasks (device setter), large ones cut in pieces, and rows looked up where the pieces are. */
#include "train/optim_int.h"

#include <string.h>

#include "base/base.h"
#include "cluster/cluster.h"
#include "graph/devname.h"
#include "train/monitor_int.h"

/* ---- device setter -------------------------------------------------------------------------------------------------- */

typedef struct placed {
    const char *name;
    int task; /* place in tasks[] */
    int64_t bytes;
} placed;

struct trn_setter {
    trn_strategy strategy;
    double (*load)(void *, const trn_node *, int64_t);
    void *load_arg;
    trn_devname ps, worker;
    int n_tasks; /* 0: nothing is set */
    int *task;   /* their numbers */
    double *cost;
    int next;    /* round robin */
    placed *at;
    int n_at, cap_at;
};

/* What lives on a ps: state that all workers share. */
#define SETTER "placement.setter" /* the builder's last one */

static bool is_ps_op(const char *op)
{
    static const char *const ops[] = {"Variable", "VariableV2", "AutoReloadVariable", "MutableHashTable", "MutableHashTableV2", "MutableHashTableOfTensors",
                                      "MutableHashTableOfTensorsV2", "MutableDenseHashTable", "MutableDenseHashTableV2", "VarHandleOp",
                                      "BoostedTreesEnsembleResourceHandleOp", "BoostedTreesQuantileStreamResourceHandleOp",
                                      "ResourceConditionalAccumulator", "DecisionTreeResource"};
    for (size_t i = 0; i < TRN_COUNTOF(ops); i++)
        if (strcmp(op, ops[i]) == 0)
            return true;
    return false;
}

static int64_t bytes_of(const trn_node *n)
{
    const trn_attr *s = trn_node_attr(n, "shape"), *d = trn_node_attr(n, "dtype");
    int64_t count, bytes;
    if (!s || !d || s->kind != TRN_ATTR_SHAPE || d->kind != TRN_ATTR_TYPE)
        return 0;
    trn_err err = trn_shape_count(&count, s->v.shape);
    if (err) {
        trn_err_free(err);
        return 0;
    }
    size_t each = trn_dtype_size(trn_dtype_base(d->v.type));
    return __builtin_mul_overflow(count, (int64_t)each, &bytes) ? INT64_MAX : bytes;
}

static int choose(trn_setter *s, trn_builder *b, const trn_node *n)
{
    int best = 0;
    if (s->strategy == TRN_ROUND_ROBIN) {
        best = s->next;
        s->next = (s->next + 1) % s->n_tasks;
    } else
        for (int i = 1; i < s->n_tasks; i++)
            if (s->cost[i] < s->cost[best])
                best = i;
    int64_t bytes = bytes_of(n);
    s->cost[best] += s->load ? s->load(s->load_arg, n, bytes) : (double)bytes;
    if (s->n_at == s->cap_at) {
        int cap = TRN_MAX(16, 2 * s->cap_at);
        placed *more = trn_builder_alloc(b, (size_t)cap * sizeof *more);
        if (s->n_at)
            memcpy(more, s->at, (size_t)s->n_at * sizeof *more);
        s->at = more;
        s->cap_at = cap;
    }
    s->at[s->n_at++] = (placed){trn_builder_strdup(b, n->name), best, bytes};
    return s->task[best];
}

static const char *set_device(void *arg, trn_builder *b, const trn_node *node, const char *asked)
{
    trn_setter *s = arg;
    trn_devname want, dev = s->worker;
    char text[TRN_DEVNAME_TEXT];
    if (!s->n_tasks)
        return asked;
    trn_err err = trn_devname_parse(&want, asked, strlen(asked));
    if (err) {
        trn_builder_fail(b, err);
        return asked;
    }
    if (is_ps_op(node->op)) {
        dev = s->ps;
        if (!*want.job || strcmp(want.job, s->ps.job) == 0)
            dev.task = choose(s, b, node);
    }
    trn_devname_override(&dev, &want);
    return trn_builder_strdup(b, trn_devname_text(text, &dev));
}

trn_setter *trn_replica_device_setter(trn_builder *b, const trn_setter_opts *opts)
{
    trn_setter *s = trn_builder_alloc(b, sizeof *s);
    const char *job = opts->ps_job ? opts->ps_job : "ps", *worker = opts->worker_device ? opts->worker_device : "/job:worker";
    s->strategy = opts->strategy;
    s->load = opts->load;
    s->load_arg = opts->load_arg;
    s->ps = trn_devname_any();
    trn_err err = trn_devname_parse(&s->worker, worker, strlen(worker));
    if (!err && (opts->ps_tasks < 0 || !trn_devname_job_ok(job, strlen(job))))
        err = trn_errorf(TRN_INVALID_ARGUMENT, "device setter: %d tasks of job \"%s\"", opts->ps_tasks, job);
    if (err)
        trn_builder_fail(b, err);
    else {
        memcpy(s->ps.job, job, strlen(job) + 1);
        const trn_cluster_job *j = opts->cluster ? trn_cluster_job_find(opts->cluster, job) : NULL;
        s->n_tasks = opts->cluster ? (j ? j->n_tasks : 0) : opts->ps_tasks;
        s->task = trn_builder_alloc(b, (size_t)TRN_MAX(s->n_tasks, 1) * sizeof *s->task);
        s->cost = trn_builder_alloc(b, (size_t)TRN_MAX(s->n_tasks, 1) * sizeof *s->cost);
        for (int i = 0; i < s->n_tasks; i++)
            s->task[i] = j ? j->tasks[i].index : i;
    }
    trn_device_fn_scope(b, set_device, s);
    trn_builder_put(b, SETTER, s);
    return s;
}

void trn_setter__log_plan(trn_builder *b)
{
    const trn_setter *s = trn_builder_get(b, SETTER);
    if (!s || s->n_tasks < 2) /* one ps has everything */
        return;
    const char *p = trn_setter_plan(b, s), *end;
    for (; *p; p = end + 1) {
        end = strchr(p, '\n');
        if (*p == ' ')
            TRN_DEBUG("placement", "%.*s", (int)(end - p), p);
        else
            TRN_INFO("placement", "%.*s", (int)(end - p), p);
    }
}

const char *trn_setter_plan(trn_builder *b, const trn_setter *s)
{
    trn_sb sb = {0};
    int64_t total = 0;
    for (int i = 0; i < s->n_at; i++)
        total += s->at[i].bytes;
    for (int t = 0; t < s->n_tasks; t++) {
        int n = 0;
        int64_t bytes = 0;
        for (int i = 0; i < s->n_at; i++)
            if (s->at[i].task == t) {
                n++;
                bytes += s->at[i].bytes;
            }
        trn_sb_addf(&sb, "/job:%s/task:%d: %d variable%s, %lld bytes (%.0f%%)\n", s->ps.job, s->task[t], n, n == 1 ? "" : "s", (long long)bytes,
                      total ? 100.0 * (double)bytes / (double)total : 0.0);
        for (int i = 0; i < s->n_at; i++)
            if (s->at[i].task == t)
                trn_sb_addf(&sb, "    %s  %lld\n", s->at[i].name, (long long)s->at[i].bytes);
    }
    if (!s->n_tasks)
        trn_sb_addf(&sb, "no ps tasks: variables are where the other nodes are\n");
    const char *text = trn_builder_strdup(b, sb.p ? sb.p : "");
    trn_sb_fini(&sb);
    return text;
}

/* ---- pieces --------------------------------------------------------------------------------------------------------- */

trn_partitioner trn_fixed_partitioner(int parts, int axis) { return (trn_partitioner){.kind = TRN_PART_FIXED, .axis = axis, .max_parts = parts}; }

trn_partitioner trn_axis_size_partitioner(int64_t max_bytes, int axis, int max_parts)
{
    return (trn_partitioner){.kind = TRN_PART_AXIS_SIZE, .axis = axis, .max_parts = max_parts, .bytes = max_bytes, .bytes_per_string = 16};
}

trn_partitioner trn_min_max_partitioner(int max_parts, int axis, int64_t min_bytes)
{
    return (trn_partitioner){.kind = TRN_PART_MIN_MAX, .axis = axis, .max_parts = max_parts, .bytes = min_bytes, .bytes_per_string = 16};
}

static int64_t up(int64_t a, int64_t b) { return a / b + (a % b != 0); }

/* How many pieces the partitioner makes of it. */
static trn_err count_parts(int64_t *out, const trn_partitioner *p, const char *name, trn_dtype dtype, const trn_shape *s)
{
    int64_t count, bytes;
    TRN_TRY(trn_shape_count(&count, s));
    if (p->axis < 0 || p->axis >= s->rank)
        return trn_errorf(TRN_INVALID_ARGUMENT, "partitioned variable '%s': axis %d of rank %d", name, p->axis, s->rank);
    if (p->kind != TRN_PART_AXIS_SIZE ? p->max_parts < 1 : p->max_parts < 0)
        return trn_errorf(TRN_INVALID_ARGUMENT, "partitioned variable '%s': %d pieces", name, p->max_parts);
    if (p->kind != TRN_PART_FIXED && p->bytes < 1)
        return trn_errorf(TRN_INVALID_ARGUMENT, "partitioned variable '%s': pieces of %lld bytes", name, (long long)p->bytes);
    int64_t dim = s->dim[p->axis], each = dtype == TRN_STRING ? p->bytes_per_string : (int64_t)trn_dtype_size(dtype), parts = 0;
    if (count < 1)
        return trn_errorf(TRN_INVALID_ARGUMENT, "partitioned variable '%s' has no elements", name);
    if (__builtin_mul_overflow(count, each, &bytes))
        return trn_errorf(TRN_INVALID_ARGUMENT, "partitioned variable '%s' is too large", name);
    switch (p->kind) {
    case TRN_PART_FIXED: parts = p->max_parts; break;
    case TRN_PART_AXIS_SIZE: {
        int64_t slice = TRN_MAX(bytes / dim, 1);
        parts = up(dim, TRN_MAX(p->bytes / slice, 1));
        if (p->max_parts)
            parts = TRN_MIN(parts, p->max_parts);
        break;
    }
    case TRN_PART_MIN_MAX: parts = TRN_MIN(up(bytes, p->bytes), p->max_parts); break;
    }
    *out = TRN_MAX(TRN_MIN(parts, dim), 1);
    return TRN_OK;
}

trn_partitioned *trn_partitioned_variable(trn_builder *b, const char *name, trn_dtype dtype, trn_shape shape, trn_partitioner how, trn_piece_fn init,
                                          void *arg, unsigned flags)
{
    trn_partitioned *v = trn_builder_alloc(b, sizeof *v);
    int64_t n = 0;
    trn_err err = trn_builder_ok(b) ? count_parts(&n, &how, name, dtype, &shape) : TRN_OK;
    if (err)
        trn_builder_fail(b, err);
    const char *scope = trn_scope_name(b);
    v->name = *scope ? trn_builder_printf(b, "%s/%s", scope, name) : trn_builder_strdup(b, name);
    if (trn_builder_ok(b) && trn_variable_find(b, trn_builder_printf(b, "%s/part_0", v->name)))
        trn_builder_fail(b, trn_errorf(TRN_ALREADY_EXISTS, "there is a partitioned variable '%s' already: its pieces would be mixed up in checkpoints", v->name));
    v->dtype = dtype;
    v->shape = shape;
    v->axis = how.axis;
    v->parts = trn_builder_alloc(b, (size_t)TRN_MAX(n, 1) * sizeof *v->parts);
    int64_t at[TRN_MAX_RANK] = {0};
    for (int i = 0; i < n && trn_builder_ok(b); i++) {
        trn_shape piece = shape;
        piece.dim[how.axis] = shape.dim[how.axis] / n + (i < shape.dim[how.axis] % n); /* the first ones are one longer */
        trn_out value;
        TRN_SCOPE(trn_control_scope(b, NULL, 0), b)
        {
            TRN_SCOPE(trn_name_scope(b, trn_builder_printf(b, "%s/part_%d/Initializer", name, i)), b)
            value = init ? init(arg, b, dtype, &piece, &shape, at) : trn_fill(b, dtype, piece, 0);
            v->parts[i] = trn_variable_new(b, trn_builder_printf(b, "%s/part_%d", name, i), value, flags);
        }
        if (!trn_builder_ok(b))
            break;
        if (!trn_shape_eq(&v->parts[i]->shape, &piece) || v->parts[i]->dtype != dtype) {
            char x[TRN_SHAPE_TEXT], y[TRN_SHAPE_TEXT];
            trn_builder_fail(b, trn_errorf(TRN_INVALID_ARGUMENT, "partitioned variable '%s': the initial value of piece %d is %s %s, not %s %s", name, i,
                                           trn_dtype_name(v->parts[i]->dtype), trn_shape_text(x, &v->parts[i]->shape), trn_dtype_name(dtype),
                                           trn_shape_text(y, &piece)));
            break;
        }
        v->parts[i]->full_name = v->name;
        v->parts[i]->full_shape = shape;
        memcpy(v->parts[i]->offset, at, sizeof at);
        at[how.axis] += piece.dim[how.axis];
        v->n = i + 1;
    }
    return v;
}

trn_out trn_partitioned_value(trn_builder *b, trn_partitioned *v)
{
    if (!trn_builder_ok(b))
        return TRN_NONE;
    if (v->n == 1)
        return v->parts[0]->value;
    trn_out *in = trn_builder_alloc(b, (size_t)(v->n + 1) * sizeof *in), all = TRN_NONE;
    TRN_SCOPE(trn_name_scope(b, trn_builder_printf(b, "%s/ConcatPartitions", v->name)), b)
    {
        for (int i = 0; i < v->n; i++)
            in[i] = v->parts[i]->value;
        in[v->n] = trn_const_i32(trn_named(b, "concat/axis"), v->axis);
        all = trn_node_add(trn_named(b, "concat"), "ConcatV2", in, v->n + 1, (trn_attr[]){trn_at_int("N", v->n)}, 1);
    }
    return all;
}

/* ---- lookup --------------------------------------------------------------------------------------------------------- */

/* Where the piece is: rows travel, not the table. */
static trn_out gather(trn_builder *b, trn_variable *v, trn_out rows)
{
    trn_out out = TRN_NONE;
    TRN_SCOPE(trn_colocate_scope(b, v->handle), b)
    if (trn_optim__is_ref(b, v))
        out = TRN_OP(b, "embedding_lookup", "GatherV2", v->value, rows, trn_const_i32(trn_named(b, "axis"), 0));
    else
        out = trn_node_add(trn_named(b, "embedding_lookup"), "ResourceGather", TRN_OUTS(v->handle, rows), (trn_attr[]){trn_at_type("dtype", v->dtype)}, 1);
    return out;
}

/* Row shape as a vector of the ids' shape and it: what the stitched rows are folded to. */
static trn_out fold(trn_builder *b, trn_out rows, trn_out ids, const trn_shape *table)
{
    const trn_shape *s = trn_out_shape(b, ids);
    int32_t dim[TRN_MAX_RANK];
    for (int i = 1; i < table->rank; i++)
        dim[i - 1] = (int32_t)table->dim[i];
    if (s->rank == 1)
        return rows;
    trn_out row = trn_const_i32s(b, dim, table->rank - 1);
    trn_out to = TRN_OP(b, "concat", "ConcatV2", TRN_OP(b, NULL, "Shape", ids), row, trn_const_i32(b, 0));
    return TRN_OP(b, NULL, "Reshape", rows, to);
}

trn_out trn_embedding_lookup_pieces(trn_builder *b, trn_variable *const *pieces, int n, trn_out ids, trn_spread spread)
{
    const char *name = trn_take_name(b, "embedding_lookup");
    if (!trn_builder_ok(b))
        return TRN_NONE;
    trn_dtype t = trn_out_dtype(b, ids);
    if (n < 1 || (t != TRN_INT32 && t != TRN_INT64))
        return trn_builder_fail(b, trn_errorf(TRN_INVALID_ARGUMENT, "%s: %d pieces, ids of %s (int32 or int64 are wanted)", name, n, trn_dtype_name(t)));
    int64_t total = 0;
    for (int i = 0; i < n; i++) {
        const trn_shape *s = &pieces[i]->shape, *first = &pieces[0]->shape;
        bool same = s->rank >= 1 && s->rank == first->rank && pieces[i]->dtype == pieces[0]->dtype;
        for (int k = 1; same && k < s->rank; k++)
            same = s->dim[k] == first->dim[k] && s->dim[k] <= INT32_MAX;
        if (!same)
            return trn_builder_fail(b, trn_errorf(TRN_INVALID_ARGUMENT, "%s: rows of '%s' and '%s' differ", name, pieces[0]->name, pieces[i]->name));
        total += s->dim[0];
    }
    trn_out out = TRN_NONE;
    TRN_SCOPE(trn_name_scope(b, name), b)
    if (n == 1)
        out = TRN_OP(b, "Identity", "Identity", gather(b, pieces[0], ids));
    else {
        trn_out flat = TRN_OP(b, NULL, "Reshape", ids, trn_const_i32s(b, (int32_t[]){-1}, 1)), piece, row;
        trn_out pos = TRN_OP(b, "range", "Range", trn_const_i32(b, 0), TRN_OP(b, NULL, "Size", flat), trn_const_i32(b, 1));
        if (spread == TRN_MOD) {
            trn_out k = trn_const_num(b, t, n);
            piece = TRN_OP(b, "FloorMod", "FloorMod", flat, k);
            row = TRN_OP(b, "FloorDiv", "FloorDiv", flat, k);
        } else {
            /* The first `extra` pieces have `per` + 1 rows, the others `per`. */
            int64_t per = total / n, extra = total % n;
            trn_out longer = trn_const_num(b, t, (double)(per + 1)), more = trn_const_num(b, t, (double)extra);
            trn_out shorter = trn_const_num(b, t, (double)TRN_MAX(per, 1));
            trn_out rest = TRN_OP(b, "sub", "Sub", flat, more);
            piece = TRN_OP(b, NULL, "Maximum", TRN_OP(b, "floordiv", "FloorDiv", flat, longer), TRN_OP(b, "floordiv", "FloorDiv", rest, shorter));
            row = TRN_OP(b, NULL, "SelectV2", TRN_OP(b, NULL, "Less", piece, more), TRN_OP(b, "mod", "FloorMod", flat, longer),
                         TRN_OP(b, "mod", "FloorMod", rest, shorter));
        }
        piece = trn_optim__cast(b, piece, TRN_INT32);
        trn_attr num = trn_at_int("num_partitions", n);
        trn_out rows = trn_node_add(b, "DynamicPartition", TRN_OUTS(row, piece), &num, 1);
        trn_out where = trn_node_add(b, "DynamicPartition", TRN_OUTS(pos, piece), &num, 1);
        trn_out *in = trn_builder_alloc(b, 2 * (size_t)n * sizeof *in);
        for (int i = 0; i < n && trn_builder_ok(b); i++) {
            in[i] = trn_out_nth(where, i);
            in[n + i] = gather(b, pieces[i], trn_out_nth(rows, i));
        }
        out = trn_node_add(b, "ParallelDynamicStitch", in, 2 * n, NULL, 0);
        out = fold(b, out, ids, &pieces[0]->shape);
    }
    return out;
}
