/* Calls on a device that is known only when they run (RemoteCall), of this task or of another one.
 *
 * For another task the function becomes a small graph: one _Recv for each argument, the call, one _Send for each result. The other task registers it once per function and
 * device; the root plan's cache keeps it (call.c). A call feeds the arguments, fetches the results, and is a step of its own over there. The call in that graph
 * is a RemoteCall again, to its own device: so whatever is told by devices (where a resource is, say) is right, on TensorFlow's tasks too. */
#include <stdlib.h>

#include "exec/run.h"
#include "graph/devname.h"
#include "ops/control.h"
#include "proto/pb.h"
#include "res/rdv.h"

typedef struct far_call {
    trn_kctx *k;
    trn_call_done done;
    void *arg;
    trn_arena *arena;
    trn_far_call c;
    trn_sb key;         /* in the cache */
    const char *scope;  /* of the nodes over there */
    const char **name;  /* of the arguments' nodes, then the results' */
} far_call;

static void ended(far_call *c, trn_err err, trn_tensor **rets, int n_rets)
{
    trn_call_done done = c->done;
    void *arg = c->arg;
    for (int i = 0; i < c->c.n_args; i++)
        trn_tensor_unref(c->c.args[i]);
    trn_arena_free(c->arena);
    trn_sb_fini(&c->key);
    free(c);
    done(arg, err, rets, n_rets);
}

static void ran(void *arg, trn_err err, trn_tensor **rets, int n_rets)
{
    ended(arg, err, rets, n_rets);
}

static void placed(void *arg, trn_err err, trn_far *f)
{
    far_call *c = arg;
    if (err) {
        ended(c, err, NULL, 0);
        return;
    }
    trn_fncache__keep_far(((run *)c->k->step)->plan->fns, &c->key, f);
    f->type->run(f, &c->c);
    trn_far_unref(f);
}

/* ---- the graph ---------------------------------------------------------------------------------------------------- */

static trn_attr str_attr(const char *name, const char *s) { return (trn_attr){.name = name, .kind = TRN_ATTR_STRING, .v.s = {s, strlen(s)}}; }

static trn_err transfer(trn_gnode **out, trn_graph *g, const char *op, trn_dtype t, const char *name, const char *device, const trn_edge *in)
{
    const trn_attr attrs[] = {{.name = in ? "T" : "tensor_type", .kind = TRN_ATTR_TYPE, .v.type = t},
                              str_attr("tensor_name", name),
                              str_attr("send_device", device),
                              {.name = "send_device_incarnation", .kind = TRN_ATTR_INT, .v.i = 1},
                              str_attr("recv_device", device),
                              {.name = "client_terminated", .kind = TRN_ATTR_BOOL, .v.b = true}};
    return trn_graph_add(out, g, op, name, device, attrs, TRN_COUNTOF(attrs), in, in != NULL);
}

/* Names and keys. TensorFlow's worker keeps kernels by node name for all graphs of a session, so different calls have different names. */
static void name_all(far_call *c, const char *device)
{
    int n = c->c.n_args + c->c.n_rets;
    c->scope = trn_arena_printf(c->arena, "%s/call_%016llx", c->k->node->name, (unsigned long long)trn_hash(c->key.p, c->key.n));
    c->name = trn_arena_alloc(c->arena, ((size_t)n + 1) * sizeof *c->name);
    const char **key = trn_arena_alloc(c->arena, ((size_t)n + 1) * sizeof *key);
    for (int i = 0; i < n; i++) {
        bool arg = i < c->c.n_args;
        c->name[i] = trn_arena_printf(c->arena, "%s/%s_%d", c->scope, arg ? "arg" : "ret", arg ? i : i - c->c.n_args);
        key[i] = trn_arena_printf(c->arena, "%s;%016x;%s;%s;0:0", device, 1, device, c->name[i]);
    }
    c->c.send_key = key;
    c->c.recv_key = key + c->c.n_args;
}

static trn_err add_target(trn_gnode **out, trn_graph *g, const char *name, const char *device)
{
    trn_tensor *t;
    TRN_TRY(trn_tensor_new(&t, TRN_STRING, &(trn_shape){0}));
    trn_err err = trn_str_set(TRN_DATA_MUT(t, trn_str), device, strlen(device));
    const trn_attr attrs[] = {{.name = "dtype", .kind = TRN_ATTR_TYPE, .v.type = TRN_STRING}, {.name = "value", .kind = TRN_ATTR_TENSOR, .v.tensor = t}};
    if (!err)
        err = trn_graph_add(out, g, "Const", name, device, attrs, TRN_COUNTOF(attrs), NULL, 0);
    trn_tensor_unref(t);
    return err;
}

static trn_err add_all(trn_graph *g, far_call *c, const char *device, const trn_func_ref *f)
{
    const trn_node *n = c->k->node;
    int n_args = c->c.n_args, n_rets = c->c.n_rets;
    trn_edge *in = trn_arena_alloc(c->arena, ((size_t)n_args + 1) * sizeof *in);
    trn_attr_val *types = trn_arena_alloc(c->arena, ((size_t)n_args + (size_t)n_rets + 1) * sizeof *types);
    trn_gnode *nd, *call;
    TRN_TRY(add_target(&nd, g, trn_arena_printf(c->arena, "%s/target", c->scope), device));
    in[0] = (trn_edge){nd->id, 0};
    for (int i = 0; i < n_args; i++) {
        types[i].type = c->c.args[i]->dtype;
        TRN_TRY(transfer(&nd, g, "_Recv", types[i].type, c->name[i], device, NULL));
        in[i + 1] = (trn_edge){nd->id, 0};
    }
    for (int i = 0; i < n_rets; i++)
        types[n_args + i].type = trn_dtype_base(n->out_types[i]);
    const trn_attr attrs[] = {{.name = "Tin", .kind = TRN_ATTR_TYPE, .is_list = true, .n = n_args, .list = types},
                              {.name = "Tout", .kind = TRN_ATTR_TYPE, .is_list = true, .n = n_rets, .list = types + n_args},
                              {.name = "f", .kind = TRN_ATTR_FUNC, .v.func = f}};
    TRN_TRY(trn_graph_add(&call, g, "RemoteCall", c->scope, device, attrs, TRN_COUNTOF(attrs), in, n_args + 1));
    for (int i = 0; i < n_rets; i++)
        TRN_TRY(transfer(&nd, g, "_Send", types[n_args + i].type, c->name[n_args + i], device, &(trn_edge){call->id, i}));
    return TRN_OK;
}

/* Appends the GraphDef. */
static trn_err build(trn_sb *out, far_call *c, const char *device, const trn_func_ref *f)
{
    const trn_graph *from = ((run *)c->k->step)->plan->g;
    trn_graph *g = trn_graph_new(from->lib);
    g->producer = from->producer;
    g->min_consumer = from->min_consumer;
    trn_err err = add_all(g, c, device, f);
    if (!err) {
        trn_arena *a = trn_arena_new();
        trn_pb_pack(out, &trn_graph_export(a, g)->base);
        trn_arena_free(a);
    }
    trn_graph_free(g);
    return err;
}

/* ---- calls ------------------------------------------------------------------------------------------------------ */

/* The body runs as if it had been placed there: resources say which device they are on. */
static void call_near(trn_kctx *k, const char *device, const trn_func_ref *f, trn_tensor *const *args, int n_args, trn_call_done done, void *arg)
{
    trn_attr *attrs = trn_xalloc(((size_t)f->n_attrs + 1) * sizeof *attrs);
    memcpy(attrs, f->attrs, (size_t)f->n_attrs * sizeof *attrs);
    attrs[f->n_attrs] = str_attr(TRN_CALL_TARGET, device);
    trn_exec__call(k, &(trn_func_ref){.name = f->name, .n_attrs = f->n_attrs + 1, .attrs = attrs}, args, n_args, done, arg);
    free(attrs);
}

static void call_far(trn_kctx *k, const trn_devname *to, const trn_func_ref *f, trn_tensor *const *args, int n_args, trn_call_done done, void *arg)
{
    run *r = (run *)k->step;
    trn_rdv *rdv = r->step.rdv;
    char device[TRN_DEVNAME_TEXT];
    trn_devname_text(device, to);
    if (!rdv || !rdv->type->place) {
        done(arg, trn_errorf(TRN_UNIMPLEMENTED, "Function %s: other tasks (%s) are called in steps of a session only", f->name, device), NULL, 0);
        return;
    }
    far_call *c = trn_xalloc(sizeof *c);
    c->k = k;
    c->done = done;
    c->arg = arg;
    c->arena = trn_arena_new();
    trn_tensor **held = trn_arena_alloc(c->arena, ((size_t)n_args + 1) * sizeof *held);
    for (int i = 0; i < n_args; i++)
        held[i] = trn_tensor_ref(args[i]);
    c->c = (trn_far_call){.cancel = r->step.cancel, .n_args = n_args, .n_rets = k->n_out, .args = held, .done = ran, .arg = c};
    trn_sb_addf(&c->key, "%s;%s;", device, k->node->name);
    trn_fncache__key(&c->key, f);
    name_all(c, device);
    trn_far *there = trn_fncache__far(r->plan->fns, &c->key);
    trn_sb graph = {0};
    trn_err err = there ? TRN_OK : build(&graph, c, device, f);
    if (err)
        ended(c, err, NULL, 0);
    else if (there)
        there->type->run(there, &c->c);
    else
        rdv->type->place(rdv, to->job, to->task, &graph, r->step.cancel, placed, c);
    trn_sb_fini(&graph);
    trn_far_unref(there);
}

void trn_exec__call_on(trn_kctx *k, const char *device, const trn_func_ref *f, trn_tensor *const *args, int n_args, trn_call_done done, void *arg)
{
    trn_devname to, here;
    trn_err err = trn_devname_parse(&to, device, strlen(device));
    if (!err)
        err = trn_devname_parse(&here, k->node->device, strlen(k->node->device));
    if (err) {
        done(arg, err, NULL, 0);
        return;
    }
    trn_devname_fill(&to, &here);
    if (trn_devname_is_full(&to) && trn_devname_has_task(&here) && !trn_devname_same_task(&to, &here))
        call_far(k, &to, f, args, n_args, done, arg);
    else
        call_near(k, device, f, args, n_args, done, arg);
}
