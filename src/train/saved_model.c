/* Saved models: a folder with one meta graph, its signatures, and a checkpoint of its variables.
 *
 * saved_model.pb is written last: a folder without it is no model. Signatures and main op of a model are read into the builder's memory. */
#include <stdlib.h>

#include "ckpt/file.h"
#include "graph/builder.h"
#include "proto/pb.h"
#include "proto/pbw.h"
#include "proto/tensorflow.pb-c.h"
#include "train/save_priv.h"

#define MODEL_MAX ((size_t)INT32_MAX)
#define PREDICT "tensorflow/serving/predict"
#define DEFAULT_KEY "serving_default"
#define MAIN_OP "saved_model_main_op"
#define INIT_OP "__saved_model_init_op" /* a signature, in TensorFlow 2's models */

enum { MODEL_VERSION = 1, MODEL_GRAPHS = 2, META_COLLECTION = 4, META_SIGNATURE = 5 };

static const char *const serve = "serve";

/* ---- writing -------------------------------------------------------------------------------------------------------------- */

static void put_shape(trn_sb *out, uint32_t field, const trn_shape *s)
{
    trn_sb m = {0}, dim = {0};
    for (int i = 0; i < s->rank; i++) {
        dim.n = 0;
        trn_pbw_varint(&dim, 1, (uint64_t)s->dim[i]);
        trn_pbw_bytes(&m, 2, dim.p, dim.n);
    }
    trn_pbw_varint(&m, 3, s->rank < 0);
    trn_pbw_bytes(out, field, m.p, m.n);
    trn_sb_fini(&m);
    trn_sb_fini(&dim);
}

/* Entries of a map from name to TensorInfo. */
static trn_err put_tensors(trn_sb *out, uint32_t field, trn_builder *b, const char *key, const trn_named_out *t, int n)
{
    for (int i = 0; i < n; i++) {
        if (!trn_builder__node(b, t[i].tensor) || t[i].tensor.slot < 0)
            return trn_errorf(TRN_INVALID_ARGUMENT, "signature '%s': '%s' is no tensor of the graph", key, t[i].name);
        trn_sb info = {0}, entry = {0};
        trn_pbw_str(&info, 1, trn_out_name(b, t[i].tensor));
        trn_pbw_varint(&info, 2, (uint64_t)trn_out_dtype(b, t[i].tensor));
        put_shape(&info, 3, trn_out_shape(b, t[i].tensor));
        trn_pbw_str(&entry, 1, t[i].name);
        trn_pbw_bytes(&entry, 2, info.p, info.n);
        trn_pbw_bytes(out, field, entry.p, entry.n);
        trn_sb_fini(&info);
        trn_sb_fini(&entry);
    }
    return TRN_OK;
}

static trn_err put_signature(trn_sb *out, trn_builder *b, const trn_signature *s)
{
    const char *key = s->key ? s->key : DEFAULT_KEY;
    trn_sb def = {0}, entry = {0};
    trn_err err = put_tensors(&def, 1, b, key, s->inputs, s->n_inputs);
    if (!err)
        err = put_tensors(&def, 2, b, key, s->outputs, s->n_outputs);
    if (!err) {
        trn_pbw_str(&def, 3, s->method ? s->method : PREDICT);
        trn_pbw_str(&entry, 1, key);
        trn_pbw_bytes(&entry, 2, def.p, def.n);
        trn_pbw_bytes(out, META_SIGNATURE, entry.p, entry.n);
    }
    trn_sb_fini(&def);
    trn_sb_fini(&entry);
    return err;
}

static void put_main_op(trn_sb *out, trn_builder *b, trn_out op)
{
    const char *name = trn_out_name(b, trn_out_node(op));
    trn_sb list = {0}, def = {0}, entry = {0};
    trn_pbw_str(&list, 1, name);
    trn_pbw_bytes(&def, 1, list.p, list.n);
    trn_pbw_str(&entry, 1, MAIN_OP);
    trn_pbw_bytes(&entry, 2, def.p, def.n);
    trn_pbw_bytes(out, META_COLLECTION, entry.p, entry.n);
    trn_sb_fini(&list);
    trn_sb_fini(&def);
    trn_sb_fini(&entry);
}

static trn_err write_variables(const trn_saver *saver, trn_session *session, const char *dir)
{
    char *path = trn_xasprintf("%s/variables", dir), *full = trn_train__absolute(dir), *prefix = trn_xasprintf("%s/variables/variables", full);
    trn_err err = trn_path_mkdirs(path);
    trn_tensor *name = NULL, *got;
    if (!err && !(name = trn_tensor_str(prefix, strlen(prefix))))
        err = trn_err_oom();
    if (!err)
        err = trn_session_run(session, &(trn_run){.n_feeds = 1, .feed_names = &saver->filename_tensor, .feeds = &name, .n_fetches = 1, .fetches = &saver->save_tensor, .out = &got});
    if (!err)
        trn_tensor_unref(got);
    trn_tensor_unref(name);
    free(path);
    free(full);
    free(prefix);
    return err;
}

static trn_err put_model(trn_sb *out, trn_builder *b, const trn_saver *saver, const trn_signature *sig, int n, const trn_saved_model_opts *o)
{
    trn_sb meta = {0};
    trn_err err = trn_meta__put(&meta, b, saver, o->tags ? o->tags : &serve, o->tags ? o->n_tags : 1, o->keep_devices);
    for (int i = 0; !err && i < n; i++)
        err = put_signature(&meta, b, &sig[i]);
    if (!err && o->main_op)
        put_main_op(&meta, b, *o->main_op);
    trn_pbw_varint(out, MODEL_VERSION, 1);
    trn_pbw_bytes(out, MODEL_GRAPHS, meta.p, meta.n);
    trn_sb_fini(&meta);
    return err;
}

trn_err trn_saved_model_write(const char *dir, trn_builder *b, trn_session *session, const trn_signature *signatures, int n, const trn_saved_model_opts *opts)
{
    static const trn_saved_model_opts none;
    const trn_saved_model_opts *o = opts ? opts : &none;
    trn_saver *saver = o->saver ? o->saver : trn_saver_default(b); /* before the session has the graph, if it is not there yet */
    TRN_TRY(trn_builder_check(b));
    char *path = trn_xasprintf("%s/saved_model.pb", dir);
    trn_sb model = {0};
    trn_err err = trn_path_exists(path) ? trn_errorf(TRN_ALREADY_EXISTS, "%s: there is a model already", path) : trn_session_extend_builder(session, b);
    if (!err)
        err = put_model(&model, b, saver, signatures, n, o);
    if (!err)
        err = write_variables(saver, session, dir);
    if (!err)
        err = trn_train__write_file(path, model.p, model.n);
    trn_sb_fini(&model);
    free(path);
    return err;
}

/* ---- reading ---------------------------------------------------------------------------------------------------------------- */

typedef struct asset {
    const char *tensor, *path;
} asset;

struct trn_saved_model {
    trn_builder *b;
    trn_saver *saver; /* NULL: no variables */
    const char *variables;
    const char *main_op; /* NULL: none */
    int n_signatures, n_assets;
    trn_signature *signature;
    asset *asset;
};

static bool has_tags(const Tensorflow__MetaGraphDef *m, const char *const *tags, int n)
{
    if (!m->meta_info_def || m->meta_info_def->n_tags != (size_t)n)
        return false;
    for (int i = 0; i < n; i++) {
        bool found = false;
        for (int j = 0; j < n; j++)
            found |= !strcmp(m->meta_info_def->tags[j], tags[i]);
        if (!found)
            return false;
    }
    return true;
}

static trn_err choose(const Tensorflow__MetaGraphDef **out, const Tensorflow__SavedModel *s, const char *dir, const char *const *tags, int n)
{
    trn_sb have = {0};
    for (size_t i = 0; i < s->n_meta_graphs; i++) {
        const Tensorflow__MetaGraphDef *m = s->meta_graphs[i];
        if (has_tags(m, tags, n)) {
            trn_sb_fini(&have);
            *out = m;
            return TRN_OK;
        }
        trn_sb_adds(&have, have.n ? "; " : "");
        for (size_t j = 0; m->meta_info_def && j < m->meta_info_def->n_tags; j++)
            trn_sb_addf(&have, "%s%s", j ? "," : "", m->meta_info_def->tags[j]);
    }
    trn_err err = trn_errorf(TRN_NOT_FOUND, "%s has no graph with the tags asked for; it has: %s", dir, have.p ? have.p : "none");
    trn_sb_fini(&have);
    return err;
}

static const trn_named_out *read_tensors(trn_builder *b, int *n_out, void *const *entries, size_t n)
{
    trn_named_out *t = trn_builder_alloc(b, (n + 1) * sizeof *t);
    for (size_t i = 0; i < n; i++) { /* both maps have the same kind of entries */
        const Tensorflow__SignatureDef__InputsEntry *e = entries[i];
        const Tensorflow__TensorInfo *info = e->value;
        if (!info || info->encoding_case != TENSORFLOW__TENSOR_INFO__ENCODING_NAME)
            continue; /* sparse ones have three tensors: by their own names */
        trn_out o = trn_meta__find(b, info->name);
        if (trn_out_is(o))
            t[(*n_out)++] = (trn_named_out){trn_builder_strdup(b, e->key), o};
    }
    return t;
}

static void read_signatures(trn_saved_model *s, const Tensorflow__MetaGraphDef *m)
{
    trn_builder *b = s->b;
    s->signature = trn_builder_alloc(b, (m->n_signature_def + 1) * sizeof *s->signature);
    for (size_t i = 0; i < m->n_signature_def; i++) {
        const Tensorflow__SignatureDef *d = m->signature_def[i]->value;
        if (!d)
            continue;
        trn_signature *sig = &s->signature[s->n_signatures++];
        sig->key = trn_builder_strdup(b, m->signature_def[i]->key);
        sig->method = trn_builder_strdup(b, d->method_name);
        sig->inputs = read_tensors(b, &sig->n_inputs, (void *const *)d->inputs, d->n_inputs);
        sig->outputs = read_tensors(b, &sig->n_outputs, (void *const *)d->outputs, d->n_outputs);
        if (!strcmp(sig->key, INIT_OP) && d->n_outputs == 1 && d->outputs[0]->value && d->outputs[0]->value->encoding_case == TENSORFLOW__TENSOR_INFO__ENCODING_NAME)
            s->main_op = trn_builder_strdup(b, d->outputs[0]->value->name);
    }
}

static void add_asset(trn_saved_model *s, const Tensorflow__AssetFileDef *a, const char *dir)
{
    if (a->tensor_info && a->tensor_info->encoding_case == TENSORFLOW__TENSOR_INFO__ENCODING_NAME && trn_out_is(trn_meta__find(s->b, a->tensor_info->name)))
        s->asset[s->n_assets++] = (asset){trn_builder_strdup(s->b, a->tensor_info->name), trn_builder_printf(s->b, "%s/assets/%s", dir, a->filename)};
}

/* Older models have them in a collection, each wrapped in an Any. */
static void read_wrapped(trn_saved_model *s, trn_arena *arena, ProtobufCBinaryData list, const char *dir)
{
    int n = 0;
    trn_pbr r = trn_pbr_init(list.data, list.len);
    while (trn_pbr_next(&r))
        n += r.field == 1;
    s->asset = trn_builder_alloc(s->b, (size_t)(n + 1) * sizeof *s->asset);
    r = trn_pbr_init(list.data, list.len);
    while (trn_pbr_next(&r)) {
        trn_pbr any = trn_pbr_init(r.b, r.type == TRN_PB_BYTES ? r.n : 0);
        while (r.field == 1 && trn_pbr_next(&any)) {
            Tensorflow__AssetFileDef *a;
            if (any.field != 2 || any.type != TRN_PB_BYTES)
                continue;
            trn_err err = TRN_PB_UNPACK(&a, arena, tensorflow__asset_file_def__descriptor, any.b, any.n);
            if (!err && s->n_assets < n)
                add_asset(s, a, dir);
            trn_err_free(err);
        }
    }
}

static void read_assets(trn_saved_model *s, trn_arena *a, const Tensorflow__MetaGraphDef *m, const char *dir)
{
    s->asset = trn_builder_alloc(s->b, (m->n_asset_file_def + 1) * sizeof *s->asset);
    for (size_t i = 0; i < m->n_asset_file_def; i++)
        add_asset(s, m->asset_file_def[i], dir);
    for (size_t i = 0; !m->n_asset_file_def && i < m->n_collection_def; i++) {
        const Tensorflow__CollectionDef *c = m->collection_def[i]->value;
        if (!strcmp(m->collection_def[i]->key, "saved_model_assets") && c && c->kind_case == TENSORFLOW__COLLECTION_DEF__KIND_ANY_LIST)
            read_wrapped(s, a, c->any_list, dir);
    }
}

static const char *main_op_of(trn_builder *b)
{
    static const char *const names[] = {MAIN_OP, "legacy_init_op"};
    for (size_t i = 0; i < TRN_COUNTOF(names); i++) {
        int n;
        const trn_out *o = trn_collection(&n, b, names[i]);
        if (n)
            return trn_out_name(b, trn_out_node(o[0]));
    }
    return NULL;
}

static trn_saved_model *import(trn_builder *b, trn_arena *a, const Tensorflow__MetaGraphDef *m, const char *dir)
{
    trn_saver *saver = trn_meta__import(b, a, m, NULL, NULL, 0);
    if (!trn_builder_ok(b))
        return NULL;
    char *full = trn_train__absolute(dir);
    trn_saved_model *s = trn_builder_alloc(b, sizeof *s);
    *s = (trn_saved_model){.b = b, .saver = saver, .main_op = main_op_of(b), .variables = trn_builder_printf(b, "%s/variables/variables", full)};
    read_signatures(s, m);
    read_assets(s, a, m, full);
    free(full);
    return s;
}

trn_saved_model *trn_saved_model_read(trn_builder *b, const char *dir, const char *const *tags, int n_tags)
{
    if (!trn_builder_ok(b))
        return NULL;
    char *path = trn_xasprintf("%s/saved_model.pb", dir);
    trn_sb bytes = {0};
    trn_arena *a = trn_arena_new();
    Tensorflow__SavedModel *model;
    const Tensorflow__MetaGraphDef *m;
    trn_saved_model *out = NULL;
    trn_err err = trn_train__read_file(&bytes, path, MODEL_MAX);
    if (!err)
        err = TRN_PB_UNPACK(&model, a, tensorflow__saved_model__descriptor, (const uint8_t *)bytes.p, bytes.n);
    if (!err)
        err = choose(&m, model, dir, tags ? tags : &serve, tags ? n_tags : 1);
    if (err)
        trn_builder_fail(b, trn_err_wrap(err, "%s", path));
    else
        out = import(b, a, m, dir);
    trn_arena_free(a);
    trn_sb_fini(&bytes);
    free(path);
    return out;
}

const trn_signature *trn_saved_model_signature(const trn_saved_model *m, const char *key)
{
    for (int i = 0; m && i < m->n_signatures; i++)
        if (!strcmp(m->signature[i].key, key ? key : DEFAULT_KEY))
            return &m->signature[i];
    return NULL;
}

static trn_out by_name(const trn_named_out *t, int n, const char *name)
{
    for (int i = 0; i < n; i++)
        if (!strcmp(t[i].name, name))
            return t[i].tensor;
    return TRN_NONE;
}

trn_out trn_signature_input(const trn_signature *s, const char *name) { return s ? by_name(s->inputs, s->n_inputs, name) : TRN_NONE; }
trn_out trn_signature_output(const trn_signature *s, const char *name) { return s ? by_name(s->outputs, s->n_outputs, name) : TRN_NONE; }

static trn_err run_main_op(const trn_saved_model *m, trn_session *session)
{
    const char **name = trn_xalloc((size_t)(m->n_assets + 1) * sizeof *name);
    trn_tensor **path = trn_xalloc((size_t)(m->n_assets + 1) * sizeof *path);
    for (int i = 0; i < m->n_assets; i++) {
        name[i] = m->asset[i].tensor;
        path[i] = trn_tensor_str(m->asset[i].path, strlen(m->asset[i].path));
    }
    trn_err err = trn_session_run(session, &(trn_run){.n_feeds = m->n_assets, .feed_names = name, .feeds = path, .n_targets = 1, .targets = &m->main_op});
    for (int i = 0; i < m->n_assets; i++)
        trn_tensor_unref(path[i]);
    free(path);
    free(name);
    return err;
}

trn_err trn_saved_model_restore(trn_saved_model *m, trn_session *session)
{
    if (m->saver && trn_checkpoint_exists(m->variables))
        TRN_TRY(trn_saver_restore(m->saver, session, m->variables));
    return m->main_op ? run_main_op(m, session) : TRN_OK;
}
