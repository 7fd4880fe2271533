/* The saver: nodes that save and restore, as TensorFlow's Saver makes them, and the run-time side that keeps a folder of checkpoints in order.
 *
 * One save, step by step (what a kill in between leaves is in brackets):
 *   1. the first save in a folder reads its state file and removes what interrupted saves left
 *   2. a checkpoint that is named by the state file and will be written again gets a second name, which the state file names from now on
 *   3. the session runs the save nodes: every task writes its variables, data before index      [temporary files, data without index]
 *   4. .meta and graph.pbtxt                                                                     [a checkpoint that nobody names; written again on resume]
 *   5. the state file
 *   6. files that the state file no longer names are deleted                                     [the state file's comments tell the next saver]
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "ckpt/bundle.h"
#include "ckpt/file.h"
#include "graph/builder.h"
#include "train/save_priv.h"

#define DEFAULT_KEEP 5
#define SAVER_KEY "trn.saver"

/* ---- nodes ------------------------------------------------------------------------------------------------------------- */

typedef struct saved_var {
    trn_variable *v;
    const char *key, *slice;
    const char *device;
} saved_var;

const char *trn_saver__slice(trn_builder *b, const trn_variable *v)
{
    if (!v->full_name)
        return "";
    trn_sb s = {0};
    for (int i = 0; i < v->full_shape.rank; i++)
        trn_sb_addf(&s, "%" PRId64 " ", v->full_shape.dim[i]);
    for (int i = 0; i < v->shape.rank; i++)
        trn_sb_addf(&s, "%s%" PRId64 ",%" PRId64, i ? ":" : "", v->offset[i], v->shape.dim[i]);
    const char *out = trn_builder_strdup(b, s.p ? s.p : "");
    trn_sb_fini(&s);
    return out;
}

static int by_name(const void *a, const void *b)
{
    const saved_var *x = a, *y = b;
    int c = strcmp(x->key, y->key);
    return c ? c : strcmp(x->v->name, y->v->name);
}

static int by_device(const void *a, const void *b)
{
    const saved_var *x = a, *y = b;
    int c = strcmp(x->device, y->device);
    return c ? c : by_name(a, b);
}

static trn_out strings(trn_builder *b, const char *name, const saved_var *v, int n, bool slices)
{
    const char **s = trn_xalloc((size_t)n * sizeof *s);
    for (int i = 0; i < n; i++)
        s[i] = slices ? v[i].slice : v[i].key;
    trn_out o = trn_const(trn_named(b, name), trn_tensor_from(TRN_STRING, 1, (int64_t[]){n}, s));
    free(s);
    return o;
}

/* "SaveV2_1" for the second shard: the names of a node and of its constants go together. */
static const char *numbered(trn_builder *b, const char *op, int i) { return i ? trn_builder_printf(b, "%s_%d", op, i) : op; }

/* Saves, then gives the file's name. */
static trn_out add_save(trn_builder *b, trn_out filename, const saved_var *v, int n, int shard)
{
    const char *name = numbered(b, "SaveV2", shard);
    trn_out *in = trn_xalloc((size_t)(n + 3) * sizeof *in);
    in[0] = filename;
    in[1] = strings(b, trn_builder_printf(b, "%s/tensor_names", name), v, n, false);
    in[2] = strings(b, trn_builder_printf(b, "%s/shape_and_slices", name), v, n, true);
    for (int i = 0; i < n; i++)
        in[i + 3] = v[i].v->flags & TRN_REF_VARIABLE ? v[i].v->handle : v[i].v->value;
    trn_out save = trn_out_node(trn_node_add(trn_named(b, name), "SaveV2", in, n + 3, NULL, 0));
    free(in);
    return trn_with_deps(b, filename, &save, 1);
}

/* The device's first CPU: strings live nowhere else. */
static const char *cpu_of(trn_builder *b, const char *device)
{
    return strstr(device, "/device:CPU:") || strstr(device, "/cpu:") ? device : trn_builder_printf(b, "%s/device:CPU:0", device);
}

/* Runs when every resource variable has been read: from then on a step that saves has its values, whatever other steps do. */
static void add_snapshot(trn_builder *b, const saved_var *v, int n)
{
    trn_out *reads = trn_xalloc((size_t)n * sizeof *reads);
    int m = 0;
    for (int i = 0; i < n; i++)
        if (!(v[i].v->flags & TRN_REF_VARIABLE))
            reads[m++] = trn_out_node(v[i].v->value);
    if (m) {
        trn_name_scope(b, "snapshot");
        trn_out all = trn_group(trn_named(b, "reads"), reads, m);
        trn_control_scope(b, &all, 1);
        trn_const_bool(trn_named(b, "done"), true);
        trn_end(b);
        trn_end(b);
    }
    free(reads);
}

static trn_out add_restore(trn_builder *b, trn_out filename, const saved_var *v, int n, int shard, const char *device)
{
    const char *name = numbered(b, "RestoreV2", shard);
    trn_device_scope(b, device);
    trn_attr_val *types = trn_builder_alloc(b, (size_t)n * sizeof *types);
    for (int i = 0; i < n; i++)
        types[i].type = v[i].v->dtype;
    trn_out in[] = {filename, strings(b, trn_builder_printf(b, "%s/tensor_names", name), v, n, false),
                    strings(b, trn_builder_printf(b, "%s/shape_and_slices", name), v, n, true)};
    trn_attr at = {.name = "dtypes", .kind = TRN_ATTR_TYPE, .is_list = true, .n = n, .list = types};
    trn_out read = trn_node_add(trn_named(b, name), "RestoreV2", in, 3, &at, 1);
    trn_end(b);
    return read;
}

static trn_out add_assign(trn_builder *b, const saved_var *s, trn_out value)
{
    trn_variable *v = s->v;
    trn_attr check = trn_at_bool("validate_shape", true);
    if (v->flags & TRN_REF_VARIABLE) {
        trn_colocate_scope(b, v->handle);
        trn_attr at[] = {check, trn_at_bool("use_locking", true)};
        trn_out o = trn_node_add(b, "Assign", (trn_out[]){v->handle, value}, 2, at, 2);
        trn_end(b);
        return trn_out_node(o);
    }
    trn_device_scope(b, s->device);
    trn_out copy = trn_node_add(b, "Identity", &value, 1, NULL, 0);
    trn_out o = trn_node_add(b, "AssignVariableOp", (trn_out[]){v->handle, copy}, 2, &check, 1);
    trn_end(b);
    return trn_out_node(o);
}

static trn_out after(trn_builder *b, const char *name, const char *device, const trn_out *ops, int n)
{
    trn_device_scope(b, device);
    trn_control_scope(b, ops, n);
    trn_out o = trn_node_add(trn_named(b, name), "NoOp", NULL, 0, NULL, 0);
    trn_end(b);
    trn_end(b);
    return o;
}

static trn_out add_assigns(trn_builder *b, trn_out read, const saved_var *v, int n, const char *name, const char *device)
{
    trn_out *ops = trn_xalloc((size_t)n * sizeof *ops);
    for (int i = 0; i < n; i++)
        ops[i] = add_assign(b, &v[i], trn_out_nth(read, i));
    trn_out o = device ? after(b, name, device, ops, n) : trn_group(trn_named(b, name), ops, n);
    free(ops);
    return o;
}

/* The end of the run of variables on one device. */
static int same_device(const saved_var *v, int n, int first)
{
    int i = first;
    while (i < n && !strcmp(v[i].device, v[first].device))
        i++;
    return i;
}

static trn_out add_sharded_save(trn_builder *b, trn_out filename, const saved_var *v, int n, int shards)
{
    trn_device_scope(b, "/device:CPU:*");
    trn_out temp = trn_node_add(b, "StringJoin", (trn_out[]){filename, trn_const_str(b, "_temp/part")}, 2, NULL, 0);
    trn_end(b);
    trn_out count = trn_const_i32(trn_named(b, "num_shards"), shards);
    trn_out *prefix = trn_xalloc((size_t)shards * sizeof *prefix), *done = trn_xalloc((size_t)shards * sizeof *done);
    const char *cpu = "";
    for (int at = 0, i = 0, end; at < n; at = end, i++) {
        end = same_device(v, n, at);
        cpu = cpu_of(b, v[at].device);
        trn_device_scope(b, cpu);
        const char *name = numbered(b, "ShardedFilename", i);
        trn_out number = trn_const_i32(trn_named(b, trn_builder_printf(b, "%s/shard", name)), i);
        prefix[i] = trn_node_add(trn_named(b, name), "ShardedFilename", (trn_out[]){temp, number, count}, 3, NULL, 0);
        done[i] = trn_out_node(add_save(b, prefix[i], v + at, end - at, i));
        trn_end(b);
    }
    trn_device_scope(b, cpu);
    trn_control_scope(b, done, shards);
    trn_out all = trn_node_add(trn_named(b, "MergeV2Checkpoints/checkpoint_prefixes"), "Pack", prefix, shards, NULL, 0);
    trn_out merge = trn_out_node(trn_node_add(b, "MergeV2Checkpoints", (trn_out[]){all, filename}, 2, NULL, 0));
    trn_control_scope(b, &merge, 1);
    trn_out o = trn_node_add(b, "Identity", &filename, 1, NULL, 0);
    trn_end(b);
    trn_end(b);
    trn_end(b);
    free(prefix);
    free(done);
    return o;
}

static trn_out add_sharded_restore(trn_builder *b, trn_out filename, const saved_var *v, int n, int shards)
{
    trn_out *part = trn_xalloc((size_t)shards * sizeof *part);
    for (int at = 0, i = 0, end; at < n; at = end, i++) {
        end = same_device(v, n, at);
        trn_out read = add_restore(b, filename, v + at, end - at, i, cpu_of(b, v[at].device));
        part[i] = add_assigns(b, read, v + at, end - at, numbered(b, "restore_shard", i), v[at].device);
    }
    trn_out o = trn_group(trn_named(b, "restore_all"), part, shards);
    free(part);
    return o;
}

static trn_out with_default(trn_builder *b, const char *name, trn_out value)
{
    trn_shape scalar = trn_shape_scalar();
    trn_attr at = trn_at_shape("shape", &scalar);
    return trn_node_add(trn_named(b, name), "PlaceholderWithDefault", &value, 1, &at, 1);
}

/* ---- the object ---------------------------------------------------------------------------------------------------------- */

static void saver_fini(void *arg)
{
    trn_saver *s = arg;
    trn_err err = trn_saver_wait(s);
    if (err) {
        TRN_WARN("saver", "the last save failed, and nobody asked: %s", trn_err_msg(err));
        trn_err_free(err);
    }
    trn_ckpt_dir__fini(&s->dir);
    free(s->meta);
    free(s->graph_text);
    pthread_mutex_destroy(&s->mu);
    pthread_cond_destroy(&s->changed);
}

/* What the RestoreV2 nodes behind the file's name read, and which variable gets it. */
static void find_items(trn_saver *s, trn_out filename)
{
    trn_builder *b = s->b;
    int n_nodes = trn_builder_node_count(b), cap = 0;
    trn_saver_item *items = NULL;
    for (int id = filename.node; id < n_nodes; id++) {
        trn_out node = {id, 0};
        const trn_node *op = trn_out_op(b, node);
        if (!op || strcmp(op->op, "RestoreV2") != 0 || trn_out_input(b, node, 0).node != filename.node)
            continue;
        const trn_tensor *names = trn_out_const(b, trn_out_input(b, node, 1)), *slices = trn_out_const(b, trn_out_input(b, node, 2));
        for (int i = 0; names && slices && i < op->n_out && i < names->count && i < slices->count; i++) {
            size_t n_key, n_slice;
            const char *key = trn_tensor_str_at(names, i, &n_key), *slice = trn_tensor_str_at(slices, i, &n_slice);
            if (!key || !slice)
                break; /* a graph that will not run */
            trn_saver_item it = {.key = trn_builder_printf(b, "%.*s", (int)n_key, key), .slice = trn_builder_printf(b, "%.*s", (int)n_slice, slice),
                                 .tensor = trn_out_name(b, trn_out_nth(node, i)), .dtype = op->out_types[i], .shape = trn_shape_unknown()};
            TRN_PUSH(items, s->n_items, cap, it);
        }
    }
    if (s->n_items) {
        s->items = trn_builder_alloc(b, (size_t)s->n_items * sizeof *items);
        memcpy(s->items, items, (size_t)s->n_items * sizeof *items);
    }
    free(items);
}

trn_saver *trn_saver__adopt(trn_builder *b, const char *filename_tensor, const char *save_tensor, const char *restore_op, bool sharded, int max_to_keep, double keep_every_hours)
{
    trn_out filename = trn_find(b, filename_tensor);
    trn_find(b, save_tensor);
    trn_find(b, restore_op);
    if (!trn_builder_ok(b))
        return NULL;
    trn_saver *s = trn_builder_alloc(b, sizeof *s);
    *s = (trn_saver){.b = b, .sharded = sharded, .max_to_keep = max_to_keep, .keep_every_hours = keep_every_hours, .state_file = "checkpoint",
                     .start = (double)trn_wall_us() / 1e6, .meta_nodes = -1};
    s->filename_tensor = trn_builder_strdup(b, filename_tensor);
    s->save_tensor = trn_builder_strdup(b, save_tensor);
    s->restore_op = trn_builder_strdup(b, restore_op);
    pthread_mutex_init(&s->mu, NULL);
    pthread_cond_init(&s->changed, NULL);
    find_items(s, filename);
    const char *slash = strrchr(filename_tensor, '/');
    const char *snapshot = trn_builder_printf(b, "%.*ssnapshot/done:0", slash ? (int)(slash + 1 - filename_tensor) : 0, filename_tensor);
    if (trn_out_is(trn_meta__find(b, snapshot)))
        s->snapshot_tensor = snapshot;
    trn_builder_on_free(b, saver_fini, s);
    if (!trn_builder_get(b, SAVER_KEY))
        trn_builder_put(b, SAVER_KEY, s);
    return s;
}

/* Which variables, under which names; NULL latches. */
static saved_var *choose(int *n_out, trn_builder *b, const trn_saver_opts *o)
{
    int n = o->n_vars;
    trn_variable *const *vars = o->vars;
    if (!vars)
        vars = trn_variables(&n, b, TRN_VARS_GLOBAL);
    saved_var *v = trn_xalloc((size_t)(n + 1) * sizeof *v);
    int m = 0;
    for (int i = 0; i < n; i++) {
        if (!vars[i] || !trn_out_is(vars[i]->handle) || (!o->vars && (vars[i]->flags & TRN_NOT_SAVED)))
            continue;
        const char *own = vars[i]->full_name ? vars[i]->full_name : vars[i]->name;
        v[m++] = (saved_var){vars[i], o->vars && o->names && o->names[i] ? trn_builder_strdup(b, o->names[i]) : own, trn_saver__slice(b, vars[i]), trn_out_op(b, vars[i]->handle)->device};
    }
    if (m) {
        qsort(v, (size_t)m, sizeof *v, by_name);
        for (int i = 1; i < m; i++)
            if (!strcmp(v[i].key, v[i - 1].key) && (!*v[i].slice || !strcmp(v[i].slice, v[i - 1].slice)))
                trn_builder_fail(b, trn_errorf(TRN_INVALID_ARGUMENT, "saver: the variables '%s' and '%s' would both be saved as '%s'", v[i - 1].v->name, v[i].v->name, v[i].key));
    } else {
        trn_builder_fail(b, trn_errorf(TRN_INVALID_ARGUMENT, "saver: there are no variables to save; make it after the model"));
    }
    *n_out = m;
    return v;
}

static int devices(const saved_var *v, int n)
{
    int k = 0;
    for (int at = 0; at < n; at = same_device(v, n, at))
        k++;
    return k;
}

trn_saver *trn_saver_new(trn_builder *b, const trn_saver_opts *opts)
{
    static const trn_saver_opts none;
    const trn_saver_opts *o = opts ? opts : &none;
    if (!trn_builder_ok(b))
        return NULL;
    int n;
    saved_var *v = choose(&n, b, o);
    if (!trn_builder_ok(b)) {
        free(v);
        return NULL;
    }
    qsort(v, (size_t)n, sizeof *v, by_device);
    int shards = devices(v, n);
    bool sharded = o->sharded.given ? o->sharded.v : shards > 1;
    if (!sharded)
        qsort(v, (size_t)n, sizeof *v, by_name);
    trn_control_scope(b, NULL, 0);
    trn_name_scope(b, o->name ? o->name : "save");
    trn_out filename = with_default(b, "Const", with_default(b, "filename", trn_const_str(trn_named(b, "filename/input"), "model")));
    trn_out save, restore;
    add_snapshot(b, v, n);
    if (sharded) {
        save = add_sharded_save(b, filename, v, n, shards);
        restore = add_sharded_restore(b, filename, v, n, shards);
    } else {
        save = add_save(b, filename, v, n, 0);
        restore = add_assigns(b, add_restore(b, filename, v, n, 0, "/device:CPU:0"), v, n, "restore_all", NULL);
    }
    trn_end(b);
    trn_end(b);
    trn_saver *s = NULL;
    if (trn_builder_ok(b))
        s = trn_saver__adopt(b, trn_out_name(b, filename), trn_out_name(b, save), trn_out_name(b, trn_out_node(restore)), sharded,
                             o->max_to_keep < 0 ? 0 : o->max_to_keep ? o->max_to_keep : DEFAULT_KEEP, o->keep_every_hours);
    if (s) {
        s->no_meta = o->no_meta;
        s->no_graph = o->no_graph;
        s->pad_step = o->pad_step;
        if (o->state_file)
            s->state_file = trn_builder_strdup(b, o->state_file);
        for (int i = 0; i < s->n_items; i++) /* in the order of v: nodes and outputs were made that way */
            s->items[i].shape = v[i].v->shape;
    }
    free(v);
    return s;
}

trn_saver *trn_saver_default(trn_builder *b)
{
    trn_saver *s = trn_builder_get(b, SAVER_KEY);
    return s ? s : trn_saver_new(b, NULL);
}

const char *trn_saver_filename_tensor(const trn_saver *s) { return s->filename_tensor; }
const char *trn_saver_save_tensor(const trn_saver *s) { return s->save_tensor; }
const char *trn_saver_restore_op(const trn_saver *s) { return s->restore_op; }

void trn_saver_on_saved(trn_saver *s, void (*fn)(void *arg, const char *path, int64_t step), void *arg)
{
    pthread_mutex_lock(&s->mu);
    s->saved = fn;
    s->saved_arg = arg;
    pthread_mutex_unlock(&s->mu);
}

/* ---- saving ---------------------------------------------------------------------------------------------------------------- */

/* Whoever has the saver has its folder, too. */
static void take(trn_saver *s)
{
    pthread_mutex_lock(&s->mu);
    while (s->busy)
        pthread_cond_wait(&s->changed, &s->mu);
    s->busy = true;
    bool join = s->joinable;
    s->joinable = false;
    pthread_mutex_unlock(&s->mu);
    if (join)
        pthread_join(s->thread, NULL); /* it has nothing left to do */
}

static void give(trn_saver *s)
{
    pthread_mutex_lock(&s->mu);
    s->busy = false;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->mu);
}

/* The error of a save in the background that is over, once. By the one who has the saver. */
static trn_err late(trn_saver *s)
{
    trn_err err = s->late;
    s->late = TRN_OK;
    return err;
}

bool trn_saver_busy(trn_saver *s)
{
    pthread_mutex_lock(&s->mu);
    bool busy = s->busy;
    pthread_mutex_unlock(&s->mu);
    return busy;
}

trn_err trn_saver_wait(trn_saver *s)
{
    take(s);
    trn_err err = late(s);
    give(s);
    return err;
}

/* On the caller's thread: the builder is his. */
static trn_err make_meta(trn_saver *s)
{
    int nodes = trn_builder_node_count(s->b);
    if (nodes == s->meta_nodes)
        return TRN_OK;
    if (!s->no_meta) {
        free(s->meta);
        s->meta = NULL;
        TRN_TRY(trn_meta_graph_export(&s->meta, &s->n_meta, s->b, s));
    }
    if (!s->no_graph) {
        free(s->graph_text);
        s->graph_text = NULL;
        TRN_TRY(trn_builder_export_text(&s->graph_text, s->b));
        s->graph_written = false;
    }
    s->meta_nodes = nodes;
    return TRN_OK;
}

typedef struct job {
    trn_saver *s;
    trn_session *session;
    char *path, *aside; /* the checkpoint; its second name while it is written again */
    char *dir, *base;
    int64_t step;
    char handle[17]; /* of a step that has read the variables and waits for the file's name; "": none */
} job;

static void job_free(job *j)
{
    free(j->path);
    free(j->aside);
    free(j->dir);
    free(j->base);
    free(j);
}

static trn_err job_new(job **out, trn_saver *s, trn_session *session, const char *prefix, int64_t step)
{
    const char *slash = strrchr(prefix, '/'), *base = slash ? slash + 1 : prefix;
    if (!*base)
        return trn_errorf(TRN_INVALID_ARGUMENT, "saver: '%s' is a folder; give it with a name, as in %smodel.ckpt", prefix, prefix);
    if (step < 0 && !strcmp(base, s->state_file))
        return trn_errorf(TRN_INVALID_ARGUMENT, "saver: '%s' is the name of the state file", prefix);
    job *j = trn_xalloc(sizeof *j);
    *j = (job){.s = s, .session = session, .step = step, .dir = trn_path_dir(prefix), .base = trn_xstrdup(base)};
    char number[32] = "";
    if (step >= 0)
        snprintf(number, sizeof number, s->pad_step ? "-%08" PRId64 : "-%" PRId64, step);
    j->path = trn_xasprintf("%s%s", prefix, number);
    j->aside = trn_xasprintf("%s.old%s", prefix, number);
    *out = j;
    return TRN_OK;
}

/* Tells the step where to write, and waits for it. */
static trn_err run_save(job *j, const char *path)
{
    trn_tensor *name = trn_tensor_str(path, strlen(path)), *got = NULL;
    if (!name)
        return trn_err_oom();
    trn_run run = {.n_feeds = 1, .feed_names = &j->s->filename_tensor, .feeds = &name, .n_fetches = 1, .fetches = &j->s->save_tensor, .out = &got};
    char handle[sizeof j->handle];
    memcpy(handle, j->handle, sizeof handle);
    j->handle[0] = 0;
    trn_err err = *handle ? trn_session_partial_run(j->session, handle, &run) : trn_session_run(j->session, &run);
    trn_tensor_unref(name);
    if (!err)
        trn_tensor_unref(got);
    return err;
}

/* Begins the step that saves and returns when it has the variables. A master that cannot do it gets a plain step later. */
static void take_snapshot(job *j)
{
    const char *fetches[] = {j->s->snapshot_tensor, j->s->save_tensor};
    if (!fetches[0])
        return;
    trn_tensor *got;
    trn_err err = trn_session_partial_setup(j->handle, j->session, &(trn_run){.n_feeds = 1, .feed_names = &j->s->filename_tensor, .n_fetches = 2, .fetches = fetches});
    if (!err) {
        err = trn_session_partial_run(j->session, j->handle, &(trn_run){.n_fetches = 1, .fetches = fetches, .out = &got});
        if (!err)
            trn_tensor_unref(got);
    }
    if (err)
        j->handle[0] = 0; /* if something is wrong with the variables, the plain step will say so */
    trn_err_free(err);
}

static trn_err save_now(job *j)
{
    trn_saver *s = j->s;
    TRN_TRY(trn_path_mkdirs(j->dir));
    if (!s->dir.dir || strcmp(s->dir.dir, j->dir) != 0) {
        trn_ckpt_dir__fini(&s->dir);
        trn_ckpt_dir__open(&s->dir, j->dir, s->state_file, j->base, s->start);
        s->graph_written = false;
    }
    TRN_TRY(trn_ckpt_dir__set_aside(&s->dir, j->path, j->aside));
    char *full = trn_train__absolute(j->path);
    trn_err ran = run_save(j, full);
    free(full);
    TRN_TRY(ran);
    if (!s->no_meta) {
        char *meta = trn_xasprintf("%s.meta", j->path);
        trn_err err = trn_train__write_file(meta, s->meta, s->n_meta);
        free(meta);
        TRN_TRY(err);
    }
    if (s->graph_text && !s->graph_written) {
        char *graph = trn_xasprintf("%s/graph.pbtxt", j->dir);
        trn_err err = trn_train__write_file(graph, s->graph_text, strlen(s->graph_text));
        free(graph);
        TRN_TRY(err);
        s->graph_written = true;
    }
    TRN_TRY(trn_ckpt_dir__record(&s->dir, j->path, j->aside, s->max_to_keep, s->keep_every_hours));
    if (s->saved)
        s->saved(s->saved_arg, j->path, j->step);
    return TRN_OK;
}

static trn_err save_job(job *j)
{
    trn_err err = save_now(j);
    if (*j->handle) /* no name makes the step that waits for it fail, and go */
        trn_err_free(run_save(j, ""));
    return err ? trn_err_wrap(err, "saving %s", j->path) : TRN_OK;
}

/* Takes the saver; gives it back when there is an error. */
static trn_err prepare(job **out, trn_saver *s, trn_session *session, const char *prefix, int64_t step)
{
    take(s);
    trn_err err = late(s);
    if (!err)
        err = make_meta(s);
    if (!err)
        err = job_new(out, s, session, prefix, step);
    if (err)
        give(s);
    return err;
}

trn_err trn_saver_save(char **path, trn_saver *s, trn_session *session, const char *prefix, int64_t step)
{
    job *j;
    TRN_TRY(prepare(&j, s, session, prefix, step));
    trn_err err = save_job(j);
    if (!err && path)
        *path = trn_xstrdup(j->path);
    job_free(j);
    give(s);
    return err;
}

static void *save_thread(void *arg)
{
    job *j = arg;
    trn_saver *s = j->s;
    s->late = save_job(j);
    job_free(j);
    give(s);
    return NULL;
}

trn_err trn_saver_save_async(trn_saver *s, trn_session *session, const char *prefix, int64_t step)
{
    job *j;
    TRN_TRY(prepare(&j, s, session, prefix, step));
    take_snapshot(j);
    pthread_mutex_lock(&s->mu); /* `thread` is there before anybody joins it */
    int rc = pthread_create(&s->thread, NULL, save_thread, j);
    s->joinable = !rc;
    pthread_mutex_unlock(&s->mu);
    if (!rc)
        return TRN_OK;
    if (*j->handle)
        trn_err_free(run_save(j, ""));
    job_free(j);
    give(s);
    return trn_err_errno(rc, "a thread to save in");
}
