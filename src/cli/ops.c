/* trainera ops: which ops there are, and which ones of a graph there are not, before anything runs. */
#include <stdio.h>
#include <stdlib.h>

#include "cli/cli.h"
#include "cli/inspect.h"
#include "graph/graph.h"
#include "op/registry.h"
#include "proto/pb.h"
#include "proto/pbw.h"
#include "proto/textproto.h"

typedef struct options {
    bool signatures, json;
} options;

#define ROW(field) offsetof(options, field)
static const cli_flag flags[] = {
    {"signatures", NULL, "With the list: inputs, outputs and attributes of every op.", CLI_BOOL, ROW(signatures)},
    {"json", NULL, "The same as JSON.", CLI_BOOL, ROW(json)},
    {0},
};

static void list_json(const options *o)
{
    trn_sb text = {0};
    trn_json j = {.out = &text, .pretty = true};
    trn_json_open(&j, NULL, '{');
    trn_json_open(&j, "ops", '[');
    for (int i = 0; i < trn_op_count(); i++) {
        const trn_op *row = trn_op_at(i)->row;
        if (!o->signatures) {
            trn_json_str(&j, NULL, row->name);
            continue;
        }
        trn_json_open(&j, NULL, '{');
        trn_json_str(&j, "name", row->name);
        trn_json_str(&j, "signature", row->sig);
        trn_json_close(&j);
    }
    trn_json_close(&j);
    trn_json_close(&j);
    fwrite(text.p, 1, text.n, stdout);
    trn_sb_fini(&text);
}

static void list(const options *o)
{
    if (o->json) {
        list_json(o);
        return;
    }
    for (int i = 0; i < trn_op_count(); i++) {
        const trn_op *row = trn_op_at(i)->row;
        if (o->signatures)
            printf("%s(%s)\n", row->name, row->sig);
        else
            printf("%s\n", row->name);
    }
}

/* ---- finding the GraphDef ------------------------------------------------------------------------------------------- */

static bool ends_with(const char *s, const char *tail)
{
    size_t n = strlen(s), k = strlen(tail);
    return n >= k && strcmp(s + n - k, tail) == 0;
}

/* Calls fn for field `field` of a message, down through `depth` levels; the number of calls, or -1. */
static int each_graph(const uint8_t *p, size_t n, int depth, trn_err *err, trn_err (*fn)(void *, const uint8_t *, size_t), void *arg)
{
    if (depth == 0) {
        *err = fn(arg, p, n);
        return 1;
    }
    int found = 0;
    trn_pbr r = trn_pbr_init(p, n);
    while (!*err && trn_pbr_next(&r))
        if (r.field == 2 && r.type == TRN_PB_BYTES) /* SavedModel.meta_graphs, MetaGraphDef.graph_def */
            found += each_graph(r.b, r.n, depth - 1, err, fn, arg);
    if (r.bad && !*err)
        *err = trn_errorf(TRN_DATA_LOSS, "it is not a serialized graph");
    return found;
}

bool cli_looks_like_text(const trn_sb *s)
{
    for (size_t i = 0; i < s->n && i < 512; i++) {
        uint8_t c = (uint8_t)s->p[i];
        if (c < 0x20 && c != '\n' && c != '\t' && c != '\r')
            return false;
    }
    return memchr(s->p, '{', TRN_MIN(s->n, (size_t)512)) != NULL;
}

/* ---- what it needs ---------------------------------------------------------------------------------------------------- */

typedef cli_lack lack;
typedef cli_survey survey;

static void note_lack(survey *s, const char *op, const char *node, const char *why)
{
    char *key = trn_xasprintf("%s\n%s", op, why);
    lack *l = trn_map_gets(s->lacks, key);
    if (!l) {
        l = trn_arena_alloc(s->arena, sizeof *l);
        *l = (lack){trn_arena_strdup(s->arena, op), trn_arena_strdup(s->arena, node), trn_arena_strdup(s->arena, why), 0};
        trn_map_puts(s->lacks, key, l);
        TRN_PUSH(s->order, s->n, s->cap, l);
    }
    l->count++;
    free(key);
}

static void survey_graph(survey *s, trn_graph *g)
{
    for (int i = 0; i < g->n; i++) {
        const trn_gnode *nd = g->node[i];
        if (!nd)
            continue;
        s->nodes++;
        if (nd->n.def || (g->lib && trn_funclib_has(g->lib, nd->n.op)))
            continue;
        if (!trn_op_find(nd->n.op)) {
            note_lack(s, nd->n.op, nd->n.name, "not there");
            continue;
        }
        trn_node n = nd->n; /* we have it, but not like this */
        trn_err err = trn_node_resolve(&n, s->arena);
        note_lack(s, nd->n.op, nd->n.name, err ? trn_err_msg(err) : "cannot be resolved");
        trn_err_free(err);
    }
}

/* Types inside a function may depend on its caller: only the names can be judged. */
static void survey_functions(survey *s, const Tensorflow__FunctionDefLibrary *lib)
{
    trn_map *own = trn_map_new();
    for (size_t i = 0; i < lib->n_function; i++)
        if (lib->function[i]->signature)
            trn_map_puts(own, lib->function[i]->signature->name, s);
    for (size_t i = 0; i < lib->n_function; i++) {
        const Tensorflow__FunctionDef *f = lib->function[i];
        for (size_t k = 0; k < f->n_node_def; k++) {
            const Tensorflow__NodeDef *nd = f->node_def[k];
            s->nodes++;
            if (trn_op_find(nd->op) || trn_map_gets(own, nd->op))
                continue;
            char *where = trn_xasprintf("%s in function %s", nd->name, f->signature ? f->signature->name : "?");
            note_lack(s, nd->op, where, "not there");
            free(where);
        }
    }
    trn_map_free(own, NULL);
}

trn_err cli_survey_graph(cli_survey *s, const uint8_t *p, size_t n)
{
    ProtobufCMessage *pb = NULL;
    TRN_TRY(trn_pb_unpack(&pb, s->arena, &tensorflow__graph_def__descriptor, p, n));
    const Tensorflow__GraphDef *def = (Tensorflow__GraphDef *)pb;
    trn_funclib *lib = trn_funclib_new();
    trn_graph *g = trn_graph_new(lib);
    trn_funclib_unref(lib);
    trn_err err = trn_graph_import(g, def);
    if (!err) {
        survey_graph(s, g);
        if (def->library)
            survey_functions(s, def->library);
    }
    trn_graph_free(g);
    return err;
}

void cli_put_lacks(trn_json *j, const cli_survey *s)
{
    trn_json_open(j, "missing", '[');
    for (int i = 0; i < s->n; i++) {
        trn_json_open(j, NULL, '{');
        trn_json_str(j, "op", s->order[i]->op);
        trn_json_int(j, "nodes", s->order[i]->count);
        trn_json_str(j, "first_node", s->order[i]->node);
        trn_json_str(j, "why", s->order[i]->why);
        trn_json_close(j);
    }
    trn_json_close(j);
}

static trn_err survey_bytes(void *arg, const uint8_t *p, size_t n)
{
    return cli_survey_graph(arg, p, n);
}

static trn_err survey_file(survey *s, const char *path)
{
    trn_sb file = {0}, bytes = {0};
    TRN_TRY(cli_read_file(&file, path, (size_t)INT32_MAX));
    trn_err err = TRN_OK;
    bool text = cli_looks_like_text(&file);
    if (text)
        err = trn_textproto_encode(&bytes, &tensorflow__graph_def__descriptor, (const char *)file.p, file.n);
    const trn_sb *from = text ? &bytes : &file;
    int depth = text ? 0 : ends_with(path, "saved_model.pb") ? 2 : ends_with(path, ".meta") ? 1 : 0;
    if (!err && each_graph((const uint8_t *)from->p, from->n, depth, &err, survey_bytes, s) == 0 && !err)
        err = trn_errorf(TRN_NOT_FOUND, "there is no graph in it");
    trn_sb_fini(&file);
    trn_sb_fini(&bytes);
    return err ? trn_err_wrap(err, "%s", path) : TRN_OK;
}

static int report_json(const survey *s)
{
    trn_sb text = {0};
    trn_json j = {.out = &text, .pretty = true};
    trn_json_open(&j, NULL, '{');
    trn_json_int(&j, "nodes", s->nodes);
    cli_put_lacks(&j, s);
    trn_json_close(&j);
    fwrite(text.p, 1, text.n, stdout);
    trn_sb_fini(&text);
    return s->n ? CLI_FAILED : CLI_OK;
}

static int report(const survey *s)
{
    if (!s->n) {
        printf("Trainera has every op of these %d nodes.\n", s->nodes);
        return CLI_OK;
    }
    printf("%-32s %7s  %s\n", "op", "nodes", "first node: what is missing");
    for (int i = 0; i < s->n; i++)
        printf("%-32s %7d  %s: %s\n", s->order[i]->op, s->order[i]->count, s->order[i]->node, s->order[i]->why);
    printf("\n%d of what %d nodes need is missing. It matters only to runs that reach those nodes.\n", s->n, s->nodes);
    return CLI_FAILED;
}

static int run(int argc, char **argv)
{
    options o = {0};
    cli_list files = {0};
    trn_err err = cli_parse(&o, flags, argc, argv, &files);
    if (err)
        return cli_fail(err, CLI_USAGE);
    if (files.n == 0) {
        list(&o);
        return CLI_OK;
    }
    survey s = {.arena = trn_arena_new(), .lacks = trn_map_new()};
    for (int i = 0; i < files.n && !err; i++)
        err = survey_file(&s, files.v[i]);
    int code = err ? cli_fail(err, CLI_FAILED) : o.json ? report_json(&s) : report(&s);
    trn_map_free(s.lacks, NULL);
    free(s.order);
    free(files.v);
    trn_arena_free(s.arena);
    return code;
}

const cli_command cli_ops = {
    "ops", "[FILE…]", "The ops there are; with a graph's file, the ones it needs that are not there.",
    "FILE is a GraphDef (binary or text), a MetaGraphDef (model.ckpt-100.meta) or a saved_model.pb. Ends with 1 when something is missing.\n"
    "\n"
    "  trainera ops | grep Apply            which optimizers\n"
    "  trainera ops logdir/graph.pbtxt      will this training program run?\n",
    flags, run};
