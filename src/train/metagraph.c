/* MetaGraphDef: a graph together with what a program must know of it, that is its variables, collections and saver. */
#include <stdlib.h>

#include "ckpt/file.h"
#include "graph/builder.h"
#include "proto/pb.h"
#include "proto/pbw.h"
#include "proto/tensorflow.pb-c.h"
#include "train/save_priv.h"

#define META_MAX ((size_t)INT32_MAX)

enum { META_INFO = 1, META_GRAPH = 2, META_SAVER = 3, META_COLLECTION = 4 };
enum { NODE_LIST = 1, BYTES_LIST = 2 };

/* ---- writing -------------------------------------------------------------------------------------------------------------- */

static void put_ints(trn_sb *s, uint32_t field, const int64_t *v, int n)
{
    trn_sb packed = {0};
    for (int i = 0; i < n; i++)
        trn_pbw_raw_varint(&packed, (uint64_t)v[i]);
    if (n)
        trn_pbw_bytes(s, field, packed.p, packed.n);
    trn_sb_fini(&packed);
}

/* What goes out: all of the builder, or one name scope with names from there on. */
typedef struct part {
    trn_builder *b;
    const char *scope; /* "": all */
    size_t n;          /* of scope and the slash behind it */
} part;

static bool inside(const part *p, const char *name) { return !*p->scope || (strncmp(name, p->scope, p->n - 1) == 0 && name[p->n - 1] == '/' && name[p->n]); }
static const char *below(const part *p, const char *name) { return inside(p, name) ? name + p->n : name; }
static const char *name_of(const part *p, trn_out o) { return below(p, trn_out_name(p->b, o)); }

static void put_variable(trn_sb *s, const part *p, const trn_variable *v)
{
    trn_pbw_str(s, 1, name_of(p, v->handle));
    trn_pbw_str(s, 2, name_of(p, trn_out_node(v->init)));
    trn_pbw_str(s, 3, name_of(p, v->value));
    if (v->full_name) {
        trn_sb slice = {0};
        trn_pbw_str(&slice, 1, below(p, v->full_name));
        put_ints(&slice, 2, v->full_shape.dim, v->full_shape.rank);
        put_ints(&slice, 3, v->offset, v->shape.rank);
        put_ints(&slice, 4, v->shape.dim, v->shape.rank);
        trn_pbw_bytes(s, 4, slice.p, slice.n);
        trn_sb_fini(&slice);
    }
    trn_pbw_varint(s, 5, !(v->flags & TRN_REF_VARIABLE));
    if (trn_out_is(v->initial))
        trn_pbw_str(s, 6, name_of(p, v->initial));
    trn_pbw_varint(s, 7, !(v->flags & TRN_NOT_TRAINABLE));
}

/* One entry of the map of collections: its name, and a list of names or of messages; frees the list. */
static void put_collection(trn_sb *out, const char *name, int kind, TRN_OWN trn_sb *list)
{
    trn_sb def = {0}, entry = {0};
    trn_pbw_bytes(&def, (uint32_t)kind, list->p, list->n);
    trn_pbw_str(&entry, 1, name);
    trn_pbw_bytes(&entry, 2, def.p, def.n);
    trn_pbw_bytes(out, META_COLLECTION, entry.p, entry.n);
    trn_sb_fini(list);
    trn_sb_fini(&def);
    trn_sb_fini(&entry);
}

static void put_variables(trn_sb *out, const part *p, const char *name, trn_variable *const *v, int n)
{
    trn_sb list = {0};
    for (int i = 0; i < n; i++) {
        trn_sb one = {0};
        if (!inside(p, v[i]->name))
            continue;
        put_variable(&one, p, v[i]);
        trn_pbw_bytes(&list, 1, one.p, one.n);
        trn_sb_fini(&one);
    }
    if (list.n)
        put_collection(out, name, BYTES_LIST, &list);
}

void trn_saver__put_def(trn_sb *out, const trn_saver *s)
{
    trn_pbw_str(out, 1, s->filename_tensor);
    trn_pbw_str(out, 2, s->save_tensor);
    trn_pbw_str(out, 3, s->restore_op);
    trn_pbw_varint(out, 4, (uint64_t)s->max_to_keep);
    trn_pbw_varint(out, 5, s->sharded);
    float hours = s->keep_every_hours > 0 ? (float)s->keep_every_hours : 10000.0f;
    uint32_t bits;
    memcpy(&bits, &hours, sizeof bits);
    trn_pbw_fixed32(out, 6, bits);
    trn_pbw_varint(out, 7, 2); /* checkpoints of version 2 */
}

/* Collections that are told from the variables themselves. */
static bool of_variables(const char *name)
{
    static const char *const all[] = {"variables", "trainable_variables", "local_variables", "global_step"};
    for (size_t i = 0; i < TRN_COUNTOF(all); i++)
        if (!strcmp(name, all[i]))
            return true;
    return false;
}

static void put_collections(trn_sb *out, const part *p)
{
    trn_builder *b = p->b;
    static const struct {
        const char *name;
        trn_which which;
    } kind[] = {{"variables", TRN_VARS_GLOBAL}, {"trainable_variables", TRN_VARS_TRAINABLE}, {"local_variables", TRN_VARS_LOCAL}};
    for (size_t i = 0; i < TRN_COUNTOF(kind); i++) {
        int n;
        trn_variable **v = trn_variables(&n, b, kind[i].which);
        put_variables(out, p, kind[i].name, v, n);
    }
    trn_variable *step = trn_variable_find(b, "global_step");
    if (step)
        put_variables(out, p, "global_step", &step, 1);
    for (int i = 0; i < b->n_coll; i++) {
        const trn_collected *c = &b->coll[i];
        if (of_variables(c->name) || !c->n)
            continue;
        trn_sb list = {0};
        for (int j = 0; j < c->n; j++) {
            const char *name = trn_out_name(b, c->at[j]);
            if (inside(p, name))
                trn_pbw_bytes(&list, 1, below(p, name), strlen(below(p, name)));
        }
        if (list.n)
            put_collection(out, c->name, NODE_LIST, &list);
    }
}

static void clear_devices(Tensorflow__NodeDef **node, size_t n)
{
    for (size_t i = 0; i < n; i++)
        node[i]->device = (char *)(uintptr_t)"";
}

#define UNBOUND "$unbound_inputs_"

/* Only the nodes inside, by their names from there on; what they take from outside is added to `unbound`, each once. */
static void cut_out(trn_arena *a, Tensorflow__GraphDef *g, const part *p, trn_map *seen, trn_sb *unbound)
{
    size_t n = 0;
    for (size_t i = 0; i < g->n_node; i++) {
        Tensorflow__NodeDef *nd = g->node[i];
        if (!inside(p, nd->name))
            continue;
        g->node[n++] = nd;
        nd->name += p->n;
        for (size_t k = 0; k < nd->n_input; k++) {
            bool control = *nd->input[k] == '^';
            const char *from = nd->input[k] + control;
            bool in = inside(p, from);
            nd->input[k] = trn_arena_printf(a, "%s%s%s", control ? "^" : "", in ? "" : UNBOUND, below(p, from));
            if (!in && !trn_map_gets(seen, nd->input[k])) {
                trn_map_puts(seen, nd->input[k], nd);
                trn_pbw_bytes(unbound, 1, nd->input[k], strlen(nd->input[k]));
            }
        }
        for (size_t k = 0; k < nd->n_attr; k++) {
            Tensorflow__AttrValue *v = nd->attr[k]->value;
            if (strcmp(nd->attr[k]->key, "_class") || !v || v->value_case != TENSORFLOW__ATTR_VALUE__VALUE_LIST)
                continue;
            size_t m = 0;
            for (size_t j = 0; j < v->list->n_s; j++) {
                char *with = trn_arena_printf(a, "%.*s", (int)v->list->s[j].len, (const char *)v->list->s[j].data);
                if (strncmp(with, "loc:@", 5) || !inside(p, with + 5)) /* nobody is there to be beside */
                    continue;
                char *to = trn_arena_printf(a, "loc:@%s", below(p, with + 5));
                v->list->s[m++] = (ProtobufCBinaryData){strlen(to), (uint8_t *)to};
            }
            v->list->n_s = m;
        }
    }
    g->n_node = n;
}

/* The graph as a field of its own. */
static trn_err put_graph(trn_sb *out, const part *p, bool keep_devices, trn_sb *unbound)
{
    trn_arena *a = trn_arena_new();
    Tensorflow__GraphDef *g = trn_builder__export(a, p->b, 0);
    if (!keep_devices) {
        clear_devices(g->node, g->n_node);
        for (size_t i = 0; g->library && i < g->library->n_function; i++)
            clear_devices(g->library->function[i]->node_def, g->library->function[i]->n_node_def);
    }
    if (*p->scope) {
        trn_map *seen = trn_map_new();
        cut_out(a, g, p, seen, unbound);
        trn_map_free(seen, NULL);
    }
    bool any = g->n_node > 0 || !*p->scope;
    if (any) {
        trn_pbw_head(out, META_GRAPH, tensorflow__graph_def__get_packed_size(g));
        trn_pb_pack(out, &g->base);
    }
    trn_arena_free(a);
    return any ? TRN_OK : trn_errorf(TRN_NOT_FOUND, "there are no nodes in the name scope '%s'", p->scope);
}

static trn_err put_part(trn_sb *out, const part *p, const trn_saver *saver, const char *const *tags, int n_tags, bool keep_devices)
{
    TRN_TRY(trn_builder_check(p->b));
    trn_sb message = {0}, unbound = {0};
    for (int i = 0; i < n_tags; i++)
        trn_pbw_bytes(&message, 4, tags[i], strlen(tags[i]));
    trn_pbw_varint(&message, 7, 1); /* attrs with their default value are left out */
    trn_pbw_bytes(out, META_INFO, message.p, message.n);
    trn_err err = put_graph(out, p, keep_devices, &unbound);
    if (saver) {
        message.n = 0;
        trn_saver__put_def(&message, saver);
        trn_pbw_bytes(out, META_SAVER, message.p, message.n);
    }
    trn_sb_fini(&message);
    if (err) {
        trn_sb_fini(&unbound);
        return err;
    }
    put_collections(out, p);
    if (unbound.n)
        put_collection(out, "unbound_inputs", BYTES_LIST, &unbound);
    return trn_builder_check(p->b);
}

trn_err trn_meta__put(trn_sb *out, trn_builder *b, const trn_saver *saver, const char *const *tags, int n_tags, bool keep_devices)
{
    return put_part(out, &(part){.b = b->real, .scope = ""}, saver, tags, n_tags, keep_devices);
}

trn_err trn_meta_graph_export_scope(void **out, size_t *n, trn_builder *b, const char *scope)
{
    size_t len = strlen(scope);
    while (len && scope[len - 1] == '/') /* TensorFlow's scopes end in one */
        len--;
    if (!len)
        return trn_errorf(TRN_INVALID_ARGUMENT, "a name scope is wanted; trn_meta_graph_export exports the whole graph");
    char *own = trn_xstrndup(scope, len);
    trn_sb s = {0};
    trn_err err = put_part(&s, &(part){.b = b->real, .scope = own, .n = len + 1}, NULL, NULL, 0, true);
    free(own);
    if (err) {
        trn_sb_fini(&s);
        return err;
    }
    *out = s.p;
    *n = s.n;
    return TRN_OK;
}

trn_err trn_meta_graph_export(void **out, size_t *n, trn_builder *b, const trn_saver *saver)
{
    trn_sb s = {0};
    trn_err err = trn_meta__put(&s, b, saver, NULL, 0, true);
    if (err) {
        trn_sb_fini(&s);
        return err;
    }
    *out = s.p;
    *n = s.n;
    return TRN_OK;
}

trn_err trn_meta_graph_write(const char *path, trn_builder *b, const trn_saver *saver)
{
    void *p;
    size_t n;
    TRN_TRY(trn_meta_graph_export(&p, &n, b, saver));
    trn_err err = trn_train__write_file(path, p, n);
    free(p);
    return err;
}

/* ---- reading --------------------------------------------------------------------------------------------------------------- */

trn_out trn_meta__find(const trn_builder *b, const char *name)
{
    b = b->real;
    const char *colon = strrchr(name, ':');
    const trn_gnode *nd = trn_graph_find(b->g, name, colon ? (size_t)(colon - name) : strlen(name));
    if (!nd)
        return TRN_NONE;
    int slot = colon ? atoi(colon + 1) : nd->n.n_out ? 0 : -1;
    return slot < nd->n.n_out && slot >= (colon ? 0 : -1) ? (trn_out){nd->id, slot} : TRN_NONE;
}

/* "name" or "^name" as it is called below a scope ("": as it is). */
static const char *under(trn_builder *b, const char *scope, const char *name)
{
    if (!*scope || !*name)
        return name;
    return *name == '^' ? trn_builder_printf(b, "^%s/%s", scope, name + 1) : trn_builder_printf(b, "%s/%s", scope, name);
}

static trn_err slice_info(trn_builder *b, const char *scope, trn_variable *v, const Tensorflow__SaveSliceInfoDef *s)
{
    if (!s || !*s->full_name)
        return TRN_OK;
    if (s->n_full_shape != (size_t)v->shape.rank || s->n_var_offset != s->n_full_shape || s->n_full_shape > TRN_MAX_RANK)
        return trn_errorf(TRN_INVALID_ARGUMENT, "variable '%s': its slice has another rank than itself", v->name);
    v->full_name = trn_builder_strdup(b, under(b, scope, s->full_name));
    v->full_shape.rank = v->shape.rank;
    for (int i = 0; i < v->shape.rank; i++) {
        v->full_shape.dim[i] = s->full_shape[i];
        v->offset[i] = s->var_offset[i];
    }
    return TRN_OK;
}

static trn_err add_variable(trn_builder *b, const char *scope, const Tensorflow__VariableDef *d, unsigned flags)
{
    trn_out handle = trn_meta__find(b, under(b, scope, d->variable_name));
    const trn_gnode *nd = trn_builder__node(b, handle);
    if (!nd)
        return trn_errorf(TRN_INVALID_ARGUMENT, "variable '%s' is not in the graph", d->variable_name);
    trn_variable *v = trn_variable_find(b, nd->n.name);
    if (v) {
        if (!(flags & TRN_NOT_TRAINABLE))
            v->flags &= ~(unsigned)TRN_NOT_TRAINABLE;
        return TRN_OK;
    }
    bool ref = !d->is_resource;
    v = trn_builder_alloc(b, sizeof *v);
    *v = (trn_variable){.name = nd->n.name, .flags = flags | (ref ? TRN_REF_VARIABLE : 0), .handle = handle, .init = trn_out_node(trn_meta__find(b, under(b, scope, d->initializer_name))),
                        .initial = trn_meta__find(b, under(b, scope, d->initial_value_name)), .value = trn_meta__find(b, under(b, scope, d->snapshot_name)), .is_initialized = TRN_NONE, .full_shape = trn_shape_unknown()};
    v->dtype = trn_attr_type(&nd->n, "dtype");
    v->shape = *trn_attr_shape(&nd->n, "shape");
    if (v->dtype == TRN_INVALID)
        return trn_errorf(TRN_INVALID_ARGUMENT, "'%s', a %s, is not a variable", v->name, nd->n.op);
    if (!trn_out_is(v->init))
        return trn_errorf(TRN_INVALID_ARGUMENT, "variable '%s': its initializer '%s' is not in the graph", v->name, d->initializer_name);
    if (!trn_out_is(v->value))
        v->value = trn_meta__find(b, trn_builder_printf(b, ref ? "%s/read:0" : "%s/Read/ReadVariableOp:0", v->name));
    TRN_TRY(slice_info(b, scope, v, d->save_slice_info_def));
    const char *dev = nd->n.device;
    if (!trn_out_is(v->value)) {
        trn_attr at = trn_at_type("dtype", v->dtype);
        v->value = trn_builder__add_at(b, trn_builder__unique(b, trn_builder_printf(b, "%s/read", v->name)), dev, ref ? "Identity" : "ReadVariableOp", &handle, 1, &at, !ref);
    }
    v->is_initialized = trn_meta__find(b, trn_builder_printf(b, ref ? "%s/IsVariableInitialized:0" : "%s/IsInitialized/VarIsInitializedOp:0", v->name));
    if (!trn_out_is(v->is_initialized))
        v->is_initialized = trn_builder__add_at(b, trn_builder__unique(b, trn_builder_printf(b, ref ? "%s/IsVariableInitialized" : "%s/IsInitialized/VarIsInitializedOp", v->name)), dev,
                                                ref ? "IsVariableInitialized" : "VarIsInitializedOp", &handle, 1, NULL, 0);
    TRN_PUSH(b->vars, b->n_vars, b->cap_vars, v);
    trn_map_puts(b->var_by_name, v->name, v);
    trn_map_puti(b->var_by_node, (uint64_t)v->handle.node, v);
    trn_map_puti(b->var_by_node, (uint64_t)v->value.node, v);
    return TRN_OK;
}

static trn_err add_variables(trn_builder *b, trn_arena *a, const char *scope, const Tensorflow__MetaGraphDef *m, const char *collection, unsigned flags)
{
    for (size_t i = 0; i < m->n_collection_def; i++) {
        const Tensorflow__CollectionDef *c = m->collection_def[i]->value;
        if (strcmp(m->collection_def[i]->key, collection) != 0 || !c || c->kind_case != TENSORFLOW__COLLECTION_DEF__KIND_BYTES_LIST)
            continue;
        for (size_t j = 0; j < c->bytes_list->n_value; j++) {
            Tensorflow__VariableDef *d;
            TRN_TRY(TRN_PB_UNPACK(&d, a, tensorflow__variable_def__descriptor, c->bytes_list->value[j].data, c->bytes_list->value[j].len));
            TRN_TRY(add_variable(b, scope, d, flags));
        }
    }
    return TRN_OK;
}

static void add_collections(trn_builder *b, const char *scope, const Tensorflow__MetaGraphDef *m)
{
    for (size_t i = 0; i < m->n_collection_def; i++) {
        const Tensorflow__CollectionDef *c = m->collection_def[i]->value;
        if (!c || c->kind_case != TENSORFLOW__COLLECTION_DEF__KIND_NODE_LIST || of_variables(m->collection_def[i]->key))
            continue;
        for (size_t j = 0; j < c->node_list->n_value; j++) {
            trn_out o = trn_meta__find(b, under(b, scope, c->node_list->value[j]));
            if (trn_out_is(o))
                trn_collect(b, m->collection_def[i]->key, strchr(c->node_list->value[j], ':') ? o : trn_out_node(o));
        }
    }
}

/* Says which inputs of the meta graph are still open. */
static trn_err check_bound(const Tensorflow__MetaGraphDef *m, const trn_named_out *inputs, int n)
{
    for (size_t i = 0; i < m->n_collection_def; i++) {
        const Tensorflow__CollectionDef *c = m->collection_def[i]->value;
        if (strcmp(m->collection_def[i]->key, "unbound_inputs") || !c || c->kind_case != TENSORFLOW__COLLECTION_DEF__KIND_BYTES_LIST)
            continue;
        for (size_t j = 0; j < c->bytes_list->n_value; j++) {
            const ProtobufCBinaryData *v = &c->bytes_list->value[j];
            bool given = false;
            for (int k = 0; k < n && !given; k++)
                given = inputs[k].name && strlen(inputs[k].name) == v->len && memcmp(inputs[k].name, v->data, v->len) == 0;
            if (!given)
                return trn_errorf(TRN_INVALID_ARGUMENT, "it is a part of a graph, and needs the input '%.*s'", (int)TRN_MIN(v->len, (size_t)200), (const char *)v->data);
        }
    }
    return TRN_OK;
}

trn_saver *trn_meta__import(trn_builder *b, trn_arena *a, const Tensorflow__MetaGraphDef *m, const char *wanted, const trn_named_out *inputs, int n_inputs)
{
    b = b->real;
    trn_err unbound = check_bound(m, inputs, n_inputs);
    if (unbound) {
        trn_builder_fail(b, trn_err_wrap(unbound, "while importing a meta graph"));
        return NULL;
    }
    const char *scope = trn_builder__import(b, m->graph_def.data, m->graph_def.len, wanted, inputs, n_inputs);
    if (!scope)
        return NULL;
    /* The first collection that has a variable says what it is; being trainable comes on top. */
    trn_err err = add_variables(b, a, scope, m, "variables", TRN_NOT_TRAINABLE);
    if (!err)
        err = add_variables(b, a, scope, m, "local_variables", TRN_NOT_TRAINABLE | TRN_LOCAL);
    if (!err)
        err = add_variables(b, a, scope, m, "model_variables", TRN_NOT_TRAINABLE);
    if (!err)
        err = add_variables(b, a, scope, m, "trainable_variables", 0);
    if (err) {
        trn_builder_fail(b, trn_err_wrap(err, "while importing a meta graph"));
        return NULL;
    }
    add_collections(b, scope, m);
    const Tensorflow__SaverDef *s = m->saver_def;
    if (!s || !*s->filename_tensor_name)
        return NULL;
    return trn_saver__adopt(b, under(b, scope, s->filename_tensor_name), under(b, scope, s->save_tensor_name), under(b, scope, s->restore_op_name), s->sharded, TRN_MAX(s->max_to_keep, 0),
                            s->keep_checkpoint_every_n_hours >= 10000 ? 0 : (double)s->keep_checkpoint_every_n_hours);
}

trn_saver *trn_meta_graph_import(trn_builder *b, const void *meta_graph_def, size_t n) { return trn_meta_graph_import_scope(b, meta_graph_def, n, NULL, NULL, 0); }

trn_saver *trn_meta_graph_import_scope(trn_builder *b, const void *meta_graph_def, size_t n, const char *scope, const trn_named_out *inputs, int n_inputs)
{
    if (!trn_builder_ok(b))
        return NULL;
    trn_arena *a = trn_arena_new();
    Tensorflow__MetaGraphDef *m;
    trn_saver *s = NULL;
    trn_err err = TRN_PB_UNPACK(&m, a, tensorflow__meta_graph_def__descriptor, meta_graph_def, n);
    if (err)
        trn_builder_fail(b, trn_err_wrap(err, "while importing a meta graph"));
    else
        s = trn_meta__import(b, a, m, scope, inputs, n_inputs);
    trn_arena_free(a);
    return s;
}

trn_saver *trn_meta_graph_read(trn_builder *b, const char *path)
{
    trn_sb s = {0};
    trn_saver *saver = NULL;
    trn_err err = trn_train__read_file(&s, path, META_MAX);
    if (err)
        trn_builder_fail(b, err);
    else
        saver = trn_meta_graph_import(b, s.p, s.n);
    trn_sb_fini(&s);
    return saver;
}
