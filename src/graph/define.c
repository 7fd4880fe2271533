/* Graphs as functions: how a part of a divided function travels to another task. */
#include "graph/graph_priv.h"

#include <stdlib.h>

char *trn_graph__spell(trn_arena *a, const trn_graph *g, trn_edge e)
{
    const trn_gnode *from = g->node[e.node];
    if (!from->n.def) {
        const Tensorflow__FunctionDef *fd = trn_funclib__find(g->lib, from->n.op);
        return fd && (size_t)e.slot < fd->signature->n_output_arg ? trn_arena_printf(a, "%s:%s:0", from->n.name, fd->signature->output_arg[e.slot]->name) : NULL;
    }
    for (int k = 0; k < from->n.def->n_out; k++) {
        const char *name = from->n.def->out[k].name;
        int first, count;
        if (trn_node_out_arg(&from->n, name, strlen(name), &first, &count) && e.slot >= first && e.slot < first + count)
            return trn_arena_printf(a, "%s:%s:%d", from->n.name, name, e.slot - first);
    }
    return NULL;
}

static int by_index(const void *x, const void *y)
{
    const trn_gnode *a = *(trn_gnode *const *)x, *b = *(trn_gnode *const *)y;
    int64_t i = trn_attr_int(&a->n, "index"), k = trn_attr_int(&b->n, "index");
    return (i > k) - (i < k);
}

static Tensorflow__OpDef__ArgDef *arg_def(trn_arena *a, char *name, const trn_gnode *nd)
{
    Tensorflow__OpDef__ArgDef *d = trn_arena_alloc(a, sizeof *d);
    tensorflow__op_def__arg_def__init(d);
    d->name = name;
    d->type = (Tensorflow__DataType)trn_attr_type(&nd->n, "T");
    return d;
}

typedef struct definition {
    trn_arena *a;
    const trn_graph *g;
    const char **arg_name; /* by node id; NULL: no argument */
} definition;

static trn_err spell(char **out, const definition *d, const trn_gnode *nd, int i)
{
    trn_edge e = nd->in[i];
    *out = d->arg_name[e.node] ? (char *)(uintptr_t)d->arg_name[e.node] : trn_graph__spell(d->a, d->g, e);
    return *out ? TRN_OK : trn_errorf(TRN_UNIMPLEMENTED, "input %d of '%s' comes from '%s' (%s), whose outputs have no known names", i, nd->n.name, d->g->node[e.node]->n.name, d->g->node[e.node]->n.op);
}

static trn_err node_def(Tensorflow__NodeDef **out, const definition *d, const trn_gnode *nd)
{
    Tensorflow__NodeDef *pb = trn_gnode__to_pb(d->a, d->g, nd);
    pb->n_input = 0;
    for (int i = 0; i < nd->n.n_in; i++)
        TRN_TRY(spell(&pb->input[pb->n_input++], d, nd, i));
    for (int i = 0; i < nd->n_ctl; i++)
        pb->input[pb->n_input++] = trn_arena_printf(d->a, "^%s", d->arg_name[nd->ctl[i]] ? d->arg_name[nd->ctl[i]] : d->g->node[nd->ctl[i]]->n.name);
    size_t n = 0;
    for (size_t i = 0; i < pb->n_attr; i++)
        if (strcmp(pb->attr[i]->key, "_class") != 0)
            pb->attr[n++] = pb->attr[i];
    pb->n_attr = n;
    *out = pb;
    return TRN_OK;
}

trn_err trn_graph__define(Tensorflow__FunctionDef **out, trn_arena *a, const trn_graph *g, const char *name, int *n_args, int **arg, int *n_rets, int **ret)
{
    size_t room = (size_t)g->n + 1;
    definition d = {a, g, trn_arena_alloc(a, room * sizeof *d.arg_name)};
    trn_gnode **args = trn_arena_alloc(a, room * sizeof *args), **rets = trn_arena_alloc(a, room * sizeof *rets);
    *n_args = *n_rets = 0;
    for (int i = 0; i < g->n; i++) {
        trn_gnode *nd = g->node[i];
        if (nd && trn_gnode__is(nd, "_Arg"))
            args[(*n_args)++] = nd;
        else if (nd && trn_gnode__is(nd, "_Retval"))
            rets[(*n_rets)++] = nd;
    }
    qsort(args, (size_t)*n_args, sizeof *args, by_index);
    qsort(rets, (size_t)*n_rets, sizeof *rets, by_index);
    Tensorflow__FunctionDef *fd = trn_arena_alloc(a, sizeof *fd);
    Tensorflow__OpDef *sig = trn_arena_alloc(a, sizeof *sig);
    tensorflow__function_def__init(fd);
    tensorflow__op_def__init(sig);
    fd->signature = sig;
    sig->name = trn_arena_strdup(a, name);
    sig->is_stateful = true;
    sig->input_arg = trn_arena_alloc(a, room * sizeof *sig->input_arg);
    sig->output_arg = trn_arena_alloc(a, room * sizeof *sig->output_arg);
    fd->ret = trn_arena_alloc(a, room * sizeof *fd->ret);
    fd->node_def = trn_arena_alloc(a, room * sizeof *fd->node_def);
    *arg = trn_arena_alloc(a, room * sizeof **arg);
    *ret = trn_arena_alloc(a, room * sizeof **ret);
    for (int i = 0; i < *n_args; i++) {
        (*arg)[i] = (int)trn_attr_int(&args[i]->n, "index");
        d.arg_name[args[i]->id] = trn_arena_printf(a, "component_arg_%d", i);
        sig->input_arg[sig->n_input_arg++] = arg_def(a, (char *)(uintptr_t)d.arg_name[args[i]->id], args[i]);
    }
    for (int i = 0; i < g->n; i++) {
        const trn_gnode *nd = g->node[i];
        if (nd && !d.arg_name[i] && !trn_gnode__is(nd, "_Retval"))
            TRN_TRY(node_def(&fd->node_def[fd->n_node_def++], &d, nd));
    }
    for (int i = 0; i < *n_rets; i++) {
        Tensorflow__FunctionDef__RetEntry *r = trn_arena_alloc(a, sizeof *r);
        tensorflow__function_def__ret_entry__init(r);
        (*ret)[i] = (int)trn_attr_int(&rets[i]->n, "index");
        r->key = trn_arena_printf(a, "component_ret_%d", i);
        TRN_TRY(spell(&r->value, &d, rets[i], 0));
        sig->output_arg[sig->n_output_arg++] = arg_def(a, r->key, rets[i]);
        fd->ret[fd->n_ret++] = r;
    }
    *out = fd;
    return TRN_OK;
}
