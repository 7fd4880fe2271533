/* Reading checkpoints of both versions without a session, and putting them into variables. */
#include <inttypes.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "ckpt/bundle.h"
#include "ckpt/file.h"
#include "ckpt/v1.h"
#include "graph/builder.h"
#include "proto/pb.h"
#include "proto/tensorflow.pb-c.h"
#include "train/save_priv.h"

#define OBJECT_GRAPH "_CHECKPOINTABLE_OBJECT_GRAPH"
#define NAMED_MAX 5 /* names in a message */

typedef struct entry {
    char *name;
    trn_dtype dtype;
    trn_shape shape;
} entry;

struct trn_checkpoint {
    char *path;
    trn_bundle *v2;
    trn_v1 *v1;
    entry *at; /* sorted */
    int n, cap;
    bool objects_read;
    trn_map *key_of, *name_of; /* full name ↔ key, of an object graph; the strings are ours */
};

static trn_err add_entry(void *arg, const char *name, size_t n, trn_dtype dtype, const trn_shape *shape)
{
    trn_checkpoint *c = arg;
    TRN_PUSH(c->at, c->n, c->cap, (entry){trn_xstrndup(name, n), dtype, *shape});
    return TRN_OK;
}

static int by_name(const void *a, const void *b) { return strcmp(((const entry *)a)->name, ((const entry *)b)->name); }

static trn_err open_file(trn_checkpoint *c)
{
    char *index = trn_bundle_index_name(c->path);
    bool v2 = trn_path_exists(index);
    free(index);
    if (v2) {
        TRN_TRY(trn_bundle_open(&c->v2, c->path));
        return trn_bundle_each(c->v2, add_entry, c);
    }
    trn_err err = trn_v1_open(&c->v1, c->path, NULL, NULL);
    if (err && trn_err_code(err) == TRN_NOT_FOUND) { /* shards of a version 1 checkpoint under their common name */
        trn_err_free(err);
        char *pattern = trn_xasprintf("%s-?\?\?\?\?-of-?\?\?\?\?", c->path);
        err = trn_v1_open(&c->v1, pattern, NULL, NULL);
        free(pattern);
        if (err && trn_err_code(err) == TRN_NOT_FOUND) {
            trn_err_free(err);
            return trn_errorf(TRN_NOT_FOUND, "%s: there is no checkpoint (neither %s.index nor a version 1 file)", c->path, c->path);
        }
    }
    return err ? err : trn_v1_each(c->v1, add_entry, c);
}

trn_err trn_checkpoint_open(trn_checkpoint **out, const char *path)
{
    struct stat st;
    char *latest = !stat(path, &st) && S_ISDIR(st.st_mode) ? trn_latest_checkpoint(path) : NULL;
    trn_checkpoint *c = trn_xalloc(sizeof *c);
    c->path = latest ? latest : trn_xstrdup(path);
    trn_err err = open_file(c);
    if (err) {
        trn_checkpoint_close(c);
        return err;
    }
    if (c->n)
        qsort(c->at, (size_t)c->n, sizeof *c->at, by_name);
    *out = c;
    return TRN_OK;
}

void trn_checkpoint_close(trn_checkpoint *c)
{
    if (!c)
        return;
    trn_bundle_close(c->v2);
    trn_v1_close(c->v1);
    for (int i = 0; i < c->n; i++)
        free(c->at[i].name);
    free(c->at);
    trn_map_free(c->key_of, free);
    trn_map_free(c->name_of, free);
    free(c->path);
    free(c);
}

int trn_checkpoint_count(const trn_checkpoint *c) { return c->n; }
const char *trn_checkpoint_name(const trn_checkpoint *c, int i) { return i >= 0 && i < c->n ? c->at[i].name : NULL; }

static const entry *lookup(const trn_checkpoint *c, const char *name)
{
    entry key = {.name = (char *)name};
    return c->n ? bsearch(&key, c->at, (size_t)c->n, sizeof *c->at, by_name) : NULL;
}

trn_err trn_checkpoint_find(trn_dtype *dtype, trn_shape *shape, trn_checkpoint *c, const char *name)
{
    const entry *e = lookup(c, name);
    if (!e)
        return trn_errorf(TRN_NOT_FOUND, "%s has no tensor '%s'", c->path, name);
    if (dtype)
        *dtype = e->dtype;
    if (shape)
        *shape = e->shape;
    return TRN_OK;
}

static trn_err read_box(trn_tensor **out, trn_checkpoint *c, const char *name, const trn_slicespec *box)
{
    size_t n = strlen(name);
    return c->v2 ? trn_bundle_read_slice(out, c->v2, name, n, box) : trn_v1_read(out, c->v1, name, n, box);
}

trn_err trn_checkpoint_read(trn_tensor **out, trn_checkpoint *c, const char *name)
{
    trn_shape shape;
    TRN_TRY(trn_checkpoint_find(NULL, &shape, c, name));
    trn_slicespec all = trn_slicespec_full(shape.rank);
    return read_box(out, c, name, &all);
}

trn_err trn_checkpoint_read_slice(trn_tensor **out, trn_checkpoint *c, const char *name, const int64_t *start, const int64_t *size)
{
    trn_shape shape;
    TRN_TRY(trn_checkpoint_find(NULL, &shape, c, name));
    trn_slicespec box = {.rank = shape.rank};
    for (int i = 0; i < shape.rank; i++) {
        int64_t n = size[i] < 0 ? shape.dim[i] - start[i] : size[i];
        if (start[i] < 0 || n < 0 || start[i] > shape.dim[i] || n > shape.dim[i] - start[i]) {
            char text[TRN_SHAPE_TEXT];
            return trn_errorf(TRN_INVALID_ARGUMENT, "%s: [%" PRId64 ", +%" PRId64 ") of dimension %d does not lie inside %s", name, start[i], n, i, trn_shape_text(text, &shape));
        }
        bool whole = !start[i] && n == shape.dim[i];
        box.start[i] = start[i];
        box.length[i] = whole ? -1 : n;
    }
    return read_box(out, c, name, &box);
}

trn_err trn_checkpoint_verify(const char *path)
{
    trn_checkpoint *c;
    TRN_TRY(trn_checkpoint_open(&c, path));
    trn_err err = TRN_OK;
    for (int i = 0; !err && i < c->n; i++) {
        trn_tensor *t;
        err = trn_checkpoint_read(&t, c, c->at[i].name);
        if (err)
            err = trn_err_wrap(err, "tensor '%s' of %s", c->at[i].name, c->path);
        else
            trn_tensor_unref(t);
    }
    trn_checkpoint_close(c);
    return err;
}

/* ---- object graphs -------------------------------------------------------------------------------------------------------- */

static void read_objects(trn_checkpoint *c)
{
    if (c->objects_read)
        return;
    c->objects_read = true;
    c->key_of = trn_map_new();
    c->name_of = trn_map_new();
    if (!lookup(c, OBJECT_GRAPH))
        return;
    trn_tensor *t = NULL;
    trn_arena *a = trn_arena_new();
    Tensorflow__TrackableObjectGraph *g = NULL;
    size_t n = 0;
    trn_err err = trn_checkpoint_read(&t, c, OBJECT_GRAPH);
    const char *p = err ? NULL : trn_tensor_str_at(t, 0, &n);
    if (!err)
        err = p ? TRN_PB_UNPACK(&g, a, tensorflow__trackable_object_graph__descriptor, (const uint8_t *)p, n)
                : trn_errorf(TRN_DATA_LOSS, "it is not a string");
    for (size_t i = 0; g && i < g->n_nodes; i++)
        for (size_t j = 0; j < g->nodes[i]->n_attributes; j++) {
            const char *full = g->nodes[i]->attributes[j]->full_name, *key = g->nodes[i]->attributes[j]->checkpoint_key;
            if (!*full || !lookup(c, key))
                continue;
            free(trn_map_puts(c->key_of, full, trn_xstrdup(key)));
            free(trn_map_puts(c->name_of, key, trn_xstrdup(full)));
        }
    if (err)
        TRN_WARN("saver", "the object graph of %s cannot be read: %s", c->path, trn_err_msg(err));
    trn_err_free(err);
    trn_tensor_unref(t);
    trn_arena_free(a);
}

const char *trn_checkpoint_key(trn_checkpoint *c, const char *full_name)
{
    const entry *e = lookup(c, full_name);
    if (e)
        return e->name;
    read_objects(c);
    return trn_map_gets(c->key_of, full_name);
}

const char *trn_checkpoint_full_name(trn_checkpoint *c, const char *key)
{
    read_objects(c);
    return trn_map_gets(c->name_of, key);
}

/* ---- into variables of a session --------------------------------------------------------------------------------------------- */

/* What fits, before any variable is touched: an error names them all. *by_key: some are there under the key of an object only. */
static trn_err check_items(bool *by_key, const trn_saver *s, trn_checkpoint *c)
{
    trn_sb missing = {0}, wrong = {0};
    int n_missing = 0, n_wrong = 0;
    *by_key = false;
    for (int i = 0; i < s->n_items; i++) {
        const trn_saver_item *it = &s->items[i];
        const char *key = trn_checkpoint_key(c, it->key);
        if (!key) {
            if (n_missing++ < NAMED_MAX)
                trn_sb_addf(&missing, "%s%s", missing.n ? ", " : "", it->key);
            continue;
        }
        *by_key |= strcmp(key, it->key) != 0;
        const entry *e = lookup(c, key);
        trn_shape want = it->shape;
        trn_slicespec box;
        if (*it->slice && trn_shape_is_full(&it->shape)) {
            trn_err err = trn_slicespec_parse(&want, &box, it->slice, strlen(it->slice));
            trn_err_free(err);
        }
        if (e->dtype != it->dtype || !trn_shape_compatible(&e->shape, &want)) {
            char x[TRN_SHAPE_TEXT], y[TRN_SHAPE_TEXT];
            if (n_wrong++ < NAMED_MAX)
                trn_sb_addf(&wrong, "%s%s is %s %s in the graph, %s %s in the checkpoint", wrong.n ? "; " : "", it->key, trn_dtype_name(it->dtype), trn_shape_text(x, &want),
                            trn_dtype_name(e->dtype), trn_shape_text(y, &e->shape));
        }
    }
    trn_err err = TRN_OK;
    if (n_missing)
        err = trn_errorf(TRN_NOT_FOUND, "%s has no value for %d of the graph's %d variables: %s%s. The graph has changed since it was written; a saver of only the others, or trn_init_from_checkpoint, can read it", c->path, n_missing, s->n_items,
                         missing.p, n_missing > NAMED_MAX ? ", …" : "");
    else if (n_wrong)
        err = trn_errorf(TRN_INVALID_ARGUMENT, "%s does not fit the graph: %s%s", c->path, wrong.p, n_wrong > NAMED_MAX ? "; …" : "");
    trn_sb_fini(&missing);
    trn_sb_fini(&wrong);
    return err;
}

static trn_err read_item(trn_tensor **out, trn_checkpoint *c, const trn_saver_item *it)
{
    const char *key = trn_checkpoint_key(c, it->key);
    if (!*it->slice)
        return trn_checkpoint_read(out, c, key);
    trn_shape full;
    trn_slicespec box;
    TRN_TRY(trn_slicespec_parse(&full, &box, it->slice, strlen(it->slice)));
    return read_box(out, c, key, &box);
}

/* Values read here take the place of what RestoreV2 would have read. */
static trn_err restore_fed(const trn_saver *s, trn_session *session, trn_checkpoint *c)
{
    size_t n = (size_t)s->n_items;
    trn_tensor **t = trn_xalloc((n + 1) * sizeof *t);
    const char **name = trn_xalloc((n + 1) * sizeof *name);
    trn_err err = TRN_OK;
    for (size_t i = 0; !err && i < n; i++) {
        name[i] = s->items[i].tensor;
        err = read_item(&t[i], c, &s->items[i]);
    }
    if (!err)
        err = trn_session_run(session, &(trn_run){.n_feeds = (int)n, .feed_names = name, .feeds = t, .n_targets = 1, .targets = &s->restore_op});
    for (size_t i = 0; i < n; i++)
        trn_tensor_unref(t[i]);
    free(t);
    free(name);
    return err;
}

static trn_err restore_run(const trn_saver *s, trn_session *session, const char *path)
{
    char *full = trn_train__absolute(path);
    trn_tensor *name = trn_tensor_str(full, strlen(full));
    free(full);
    if (!name)
        return trn_err_oom();
    trn_err err = trn_session_run(session, &(trn_run){.n_feeds = 1, .feed_names = &s->filename_tensor, .feeds = &name, .n_targets = 1, .targets = &s->restore_op});
    trn_tensor_unref(name);
    return err;
}

trn_err trn_saver_restore(trn_saver *s, trn_session *session, const char *path)
{
    trn_checkpoint *c = NULL;
    bool by_key = false;
    trn_err err = trn_checkpoint_open(&c, path);
    bool here = !err;
    if (err && trn_err_code(err) == TRN_NOT_FOUND) { /* perhaps the tasks see it */
        trn_err_free(err);
        err = TRN_OK;
    }
    if (here && s->n_items)
        err = check_items(&by_key, s, c);
    if (!err)
        err = by_key ? restore_fed(s, session, c) : restore_run(s, session, here ? c->path : path);
    trn_checkpoint_close(c);
    return err ? trn_err_wrap(err, "restoring %s", path) : TRN_OK;
}

/* ---- as initial values ---------------------------------------------------------------------------------------------------------- */

static const char *key_name(const trn_variable *v) { return v->full_name ? v->full_name : v->name; }

static void initialise(trn_builder *b, trn_variable *v, trn_checkpoint *c, const char *path, const char *key)
{
    const entry *e = lookup(c, key);
    const trn_shape *want = v->full_name ? &v->full_shape : &v->shape;
    if (e->dtype != v->dtype || !trn_shape_compatible(&e->shape, want)) {
        char x[TRN_SHAPE_TEXT], y[TRN_SHAPE_TEXT];
        trn_builder_fail(b, trn_errorf(TRN_INVALID_ARGUMENT, "variable '%s' is %s %s, but '%s' in %s is %s %s", v->name, trn_dtype_name(v->dtype), trn_shape_text(x, want), key,
                                       c->path, trn_dtype_name(e->dtype), trn_shape_text(y, &e->shape)));
        return;
    }
    const char *slice = trn_saver__slice(b, v);
    trn_name_scope_again(b, "");
    trn_control_scope(b, NULL, 0);
    trn_device_scope(b, "");
    trn_device_scope(b, trn_out_op(b, v->handle)->device);
    trn_name_scope(b, "checkpoint_initializer");
    const char *whole = trn_builder_strdup(b, trn_scope_name(b));
    trn_out in[] = {trn_const_str(trn_named(b, "prefix"), path), trn_const(trn_named(b, "tensor_names"), trn_tensor_from(TRN_STRING, 1, (int64_t[]){1}, &key)),
                    trn_const(trn_named(b, "shape_and_slices"), trn_tensor_from(TRN_STRING, 1, (int64_t[]){1}, &slice))};
    trn_end(b);
    trn_attr_val *type = trn_builder_alloc(b, sizeof *type);
    type->type = v->dtype;
    trn_attr at = {.name = "dtypes", .kind = TRN_ATTR_TYPE, .is_list = true, .n = 1, .list = type};
    if (trn_builder_ok(b)) {
        v->initial = trn_builder__add_in_scope(b, whole, "RestoreV2", in, 3, &at, 1);
        v->init = trn_variable_assign(trn_named(b, "checkpoint_initializer/Assign"), v, v->initial);
    }
    for (int i = 0; i < 4; i++)
        trn_end(b);
}

static bool is_scope(const char *s) { return *s && s[strlen(s) - 1] == '/'; }

/* All variables below a scope, or one. */
static void map_pair(trn_builder *b, trn_checkpoint *c, const char *path, const trn_name_pair *pair)
{
    bool scope = is_scope(pair->from);
    if (scope != (is_scope(pair->to) || (scope && !*pair->to))) {
        trn_builder_fail(b, trn_errorf(TRN_INVALID_ARGUMENT, "'%s' → '%s': both are scopes (with / at the end), or neither", pair->from, pair->to));
        return;
    }
    const char *from = strcmp(pair->from, "/") ? pair->from : "", *to = strcmp(pair->to, "/") ? pair->to : "";
    int n, hits = 0;
    trn_variable **v = trn_variables(&n, b, TRN_VARS_ALL);
    for (int i = 0; i < n && trn_builder_ok(b); i++) {
        const char *name = key_name(v[i]);
        if (scope ? strncmp(name, to, strlen(to)) != 0 || (v[i]->flags & (TRN_LOCAL | TRN_NOT_SAVED)) : strcmp(name, to) && strcmp(v[i]->name, to))
            continue;
        const char *wanted = scope ? trn_builder_printf(b, "%s%s", from, name + strlen(to)) : from, *key = trn_checkpoint_key(c, wanted);
        hits++;
        if (key)
            initialise(b, v[i], c, path, key);
        else if (!scope || !(v[i]->flags & TRN_SLOT)) /* an optimizer that is new begins anew */
            trn_builder_fail(b, trn_errorf(TRN_NOT_FOUND, "%s has no tensor '%s' for variable '%s'", c->path, wanted, v[i]->name));
    }
    if (!hits)
        trn_builder_fail(b, trn_errorf(TRN_NOT_FOUND, "'%s' → '%s': no variable is called so", pair->from, pair->to));
}

void trn_init_from_checkpoint(trn_builder *b, const char *path, const trn_name_pair *map, int n)
{
    if (!trn_builder_ok(b))
        return;
    trn_checkpoint *c;
    trn_err err = trn_checkpoint_open(&c, path);
    if (err) {
        trn_builder_fail(b, trn_err_wrap(err, "trn_init_from_checkpoint"));
        return;
    }
    char *full = trn_train__absolute(c->path);
    for (int i = 0; i < n && trn_builder_ok(b); i++)
        map_pair(b, c, full, &map[i]);
    free(full);
    trn_checkpoint_close(c);
}
