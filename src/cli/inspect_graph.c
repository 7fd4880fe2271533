/* trainera inspect: graphs, as GraphDef (binary or text), MetaGraphDef or SavedModel. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "cli/inspect.h"
#include "cli/look.h"
#include "proto/pb.h"
#include "proto/pbw.h"
#include "proto/tensorflow.pb-c.h"
#include "proto/textproto.h"

typedef struct op_count {
    const char *op;
    int nodes;
    size_t bytes; /* of constants in them */
} op_count;

typedef struct counts {
    trn_arena *arena;
    trn_map *by_op;
    op_count **v;
    int n, cap;
    int nodes, functions;
    size_t constants;
} counts;

static void count_node(counts *c, const Tensorflow__NodeDef *n)
{
    op_count *e = trn_map_gets(c->by_op, n->op);
    if (!e) {
        e = trn_arena_alloc(c->arena, sizeof *e);
        e->op = n->op;
        trn_map_puts(c->by_op, n->op, e);
        TRN_PUSH(c->v, c->n, c->cap, e);
    }
    e->nodes++;
    c->nodes++;
    for (size_t i = 0; i < n->n_attr; i++) {
        const Tensorflow__AttrValue *a = n->attr[i]->value;
        if (!a || a->value_case != TENSORFLOW__ATTR_VALUE__VALUE_TENSOR)
            continue;
        size_t bytes = protobuf_c_message_get_packed_size(&a->tensor->base);
        e->bytes += bytes;
        c->constants += bytes;
    }
}

static int most_first(const void *a, const void *b)
{
    const op_count *x = *(op_count *const *)a, *y = *(op_count *const *)b;
    return x->nodes != y->nodes ? y->nodes - x->nodes : strcmp(x->op, y->op);
}

static void put_counts(trn_json *j, const counts *c, const inspect_opts *o)
{
    char bytes[32];
    if (j) {
        trn_json_int(j, "nodes", c->nodes);
        trn_json_int(j, "functions", c->functions);
        trn_json_uint(j, "constant_bytes", c->constants);
        trn_json_open(j, "ops", '[');
    } else {
        printf("%d nodes of %d ops, %d functions, constants of %s\n\n%-34s %8s %12s\n", c->nodes, c->n, c->functions, cli_bytes_text(bytes, (double)c->constants), "OP", "NODES",
               "CONSTANTS");
    }
    for (int i = 0; i < c->n; i++) {
        if (o->match && !strstr(c->v[i]->op, o->match))
            continue;
        if (j) {
            trn_json_open(j, NULL, '{');
            trn_json_str(j, "op", c->v[i]->op);
            trn_json_int(j, "nodes", c->v[i]->nodes);
            if (c->v[i]->bytes)
                trn_json_uint(j, "constant_bytes", c->v[i]->bytes);
            trn_json_close(j);
        } else {
            printf("%-34s %8d %12s\n", c->v[i]->op, c->v[i]->nodes, c->v[i]->bytes ? cli_bytes_text(bytes, (double)c->v[i]->bytes) : "");
        }
    }
    if (j)
        trn_json_close(j);
}

static void put_lacks(trn_json *j, const cli_survey *s)
{
    if (j) {
        cli_put_lacks(j, s);
        return;
    }
    printf("\n");
    if (!s->n)
        printf("Trainera has all of these ops.\n");
    for (int i = 0; i < s->n; i++)
        printf("missing: %s in %d nodes, first %s: %s\n", s->order[i]->op, s->order[i]->count, s->order[i]->node, s->order[i]->why);
}

static trn_err one_graph(trn_json *j, const uint8_t *p, size_t n, const inspect_opts *o, bool *bad)
{
    counts c = {.arena = trn_arena_new(), .by_op = trn_map_new()};
    cli_survey s = {.arena = c.arena, .lacks = trn_map_new()};
    Tensorflow__GraphDef *g = NULL;
    trn_err err = TRN_PB_UNPACK(&g, c.arena, tensorflow__graph_def__descriptor, p, n);
    if (!err) {
        for (size_t i = 0; i < g->n_node; i++)
            count_node(&c, g->node[i]);
        c.functions = g->library ? (int)g->library->n_function : 0;
        for (int f = 0; f < c.functions; f++)
            for (size_t i = 0; i < g->library->function[f]->n_node_def; i++)
                count_node(&c, g->library->function[f]->node_def[i]);
        if (c.n)
            qsort(c.v, (size_t)c.n, sizeof *c.v, most_first);
        put_counts(j, &c, o);
        err = cli_survey_graph(&s, p, n);
    }
    if (!err) {
        put_lacks(j, &s);
        *bad |= s.n > 0;
    }
    free(c.v);
    trn_map_free(c.by_op, NULL);
    trn_map_free(s.lacks, NULL);
    free(s.order);
    trn_arena_free(c.arena);
    return err;
}

static void put_signature(trn_json *j, const char *name, const Tensorflow__SignatureDef *d)
{
    if (!d)
        return;
    if (j)
        trn_json_open(j, name, '{');
    else
        printf("signature %s\n", name);
    if (j)
        trn_json_open(j, "inputs", '{');
    for (size_t i = 0; i < d->n_inputs; i++) {
        const char *t = d->inputs[i]->value && d->inputs[i]->value->name ? d->inputs[i]->value->name : "";
        if (j)
            trn_json_str(j, d->inputs[i]->key, t);
        else
            printf("    in   %s = %s\n", d->inputs[i]->key, t);
    }
    if (j) {
        trn_json_close(j);
        trn_json_open(j, "outputs", '{');
    }
    for (size_t i = 0; i < d->n_outputs; i++) {
        const char *t = d->outputs[i]->value && d->outputs[i]->value->name ? d->outputs[i]->value->name : "";
        if (j)
            trn_json_str(j, d->outputs[i]->key, t);
        else
            printf("    out  %s = %s\n", d->outputs[i]->key, t);
    }
    if (j) {
        trn_json_close(j);
        trn_json_close(j);
    }
}

static trn_err one_meta(trn_json *j, const uint8_t *p, size_t n, const inspect_opts *o, bool *bad)
{
    trn_arena *a = trn_arena_new();
    Tensorflow__MetaGraphDef *m = NULL;
    trn_err err = TRN_PB_UNPACK(&m, a, tensorflow__meta_graph_def__descriptor, p, n);
    if (!err) {
        const Tensorflow__MetaGraphDef__MetaInfoDef *info = m->meta_info_def;
        if (j)
            trn_json_open(j, "tags", '[');
        for (size_t i = 0; info && i < info->n_tags; i++) {
            if (j)
                trn_json_str(j, NULL, info->tags[i]);
            else
                printf("tag %s\n", info->tags[i]);
        }
        if (j)
            trn_json_close(j);
        if (info && info->tensorflow_version && *info->tensorflow_version) {
            if (j)
                trn_json_str(j, "tensorflow_version", info->tensorflow_version);
            else
                printf("written by TensorFlow %s\n", info->tensorflow_version);
        }
        if (j)
            trn_json_open(j, "signatures", '{');
        for (size_t i = 0; i < m->n_signature_def; i++)
            put_signature(j, m->signature_def[i]->key, m->signature_def[i]->value);
        if (j)
            trn_json_close(j);
        if (j)
            trn_json_open(j, "collections", '{');
        for (size_t i = 0; i < m->n_collection_def; i++) {
            const Tensorflow__CollectionDef *c = m->collection_def[i]->value;
            size_t k = !c ? 0 : c->kind_case == TENSORFLOW__COLLECTION_DEF__KIND_NODE_LIST ? c->node_list->n_value : c->kind_case == TENSORFLOW__COLLECTION_DEF__KIND_BYTES_LIST ? c->bytes_list->n_value : 0;
            if (j)
                trn_json_uint(j, m->collection_def[i]->key, k);
            else if (k)
                printf("collection %s: %zu\n", m->collection_def[i]->key, k);
        }
        if (j)
            trn_json_close(j);
        err = one_graph(j, m->graph_def.data, m->graph_def.len, o, bad);
    }
    trn_arena_free(a);
    return err;
}

static bool ends_with(const char *s, const char *tail)
{
    size_t n = strlen(s), k = strlen(tail);
    return n >= k && strcmp(s + n - k, tail) == 0;
}

static trn_err saved_model(trn_json *j, const trn_sb *file, const inspect_opts *o, bool *bad)
{
    int found = 0;
    trn_err err = TRN_OK;
    trn_pbr r = trn_pbr_init(file->p, file->n);
    if (j)
        trn_json_open(j, "meta_graphs", '[');
    while (!err && trn_pbr_next(&r))
        if (r.field == 2 && r.type == TRN_PB_BYTES) {
            found++;
            if (j)
                trn_json_open(j, NULL, '{');
            err = one_meta(j, r.b, r.n, o, bad);
            if (j)
                trn_json_close(j);
        }
    if (j)
        trn_json_close(j);
    if (!err && (r.bad || !found))
        err = trn_errorf(TRN_DATA_LOSS, "there is no graph in it");
    return err;
}

trn_err inspect_graph(trn_json *j, const char *path, const inspect_opts *o, bool *bad)
{
    trn_sb file = {0}, bytes = {0};
    TRN_TRY(cli_read_file(&file, path, (size_t)INT32_MAX));
    bool text = file.n && cli_looks_like_text(&file), saved = ends_with(path, "saved_model.pb") || ends_with(path, "saved_model.pbtxt"), meta = ends_with(path, ".meta");
    trn_err err = TRN_OK;
    if (text) {
        const ProtobufCMessageDescriptor *d = saved ? &tensorflow__saved_model__descriptor : meta ? &tensorflow__meta_graph_def__descriptor : &tensorflow__graph_def__descriptor;
        err = trn_textproto_encode(&bytes, d, file.p, file.n);
    }
    const trn_sb *from = text ? &bytes : &file;
    const char *kind = saved ? "SavedModel" : meta ? "MetaGraphDef" : "GraphDef";
    if (j) {
        trn_json_open(j, "graph", '{');
        trn_json_str(j, "path", path);
        trn_json_str(j, "kind", kind);
        trn_json_bool(j, "text", text);
        trn_json_uint(j, "bytes", file.n);
    } else {
        char b[32];
        printf("%s: %s%s, %s\n", path, kind, text ? " as text" : "", cli_bytes_text(b, (double)file.n));
    }
    if (!err)
        err = saved ? saved_model(j, from, o, bad) : meta ? one_meta(j, (uint8_t *)from->p, from->n, o, bad) : one_graph(j, (uint8_t *)from->p, from->n, o, bad);
    if (j)
        trn_json_close(j);
    trn_sb_fini(&file);
    trn_sb_fini(&bytes);
    return err ? trn_err_wrap(err, "%s", path) : TRN_OK;
}
