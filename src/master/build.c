/* From a run signature to something that runs: prune → lower → optimise → place → partition → register. Once per signature and graph version. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "master/master_int.h"
#include "graph/watch.h"
#include "proto/pb.h"
#include "proto/pbw.h"

typedef struct waiter {
    struct waiter *next;
    built_done done;
    void *arg;
} waiter;

/* In session->built: a graph, or one under construction with those who wait for it. */
typedef struct slot {
    built_graph *b; /* NULL: being built */
    waiter *waiters;
} slot;

typedef struct build_job {
    trn_msession *s;
    built_graph *b;
    trn_arena *arena;
    trn_run_sig sig;
    bool partial, partition_graphs;
    const uint8_t *debug; /* DebugOptions with watches; NULL: none */
    size_t debug_n;
    trn_join join; /* our own part, the RegisterGraph calls */
} build_job;

built_graph *trn_built_ref(built_graph *b)
{
    atomic_fetch_add_explicit(&b->ref, 1, memory_order_relaxed);
    return b;
}

static void ignore_reply(void *arg, trn_err err, const trn_msg *msg) { trn_err_free(err); }

static void forget_parts(const built_graph *b)
{
    for (int i = 0; i < b->n_parts; i++) {
        if (!b->parts[i].handle[0]) /* was refused */
            continue;
        trn_sb s = {0};
        trn_out_msg m = {0};
        trn_pbw_str(&s, 1, b->parts[i].handle);
        trn_pbw_str(&s, 2, b->s->handle);
        trn_pbw_varint(&s, 3, 1);
        trn_out_sb(&m, &s);
        trn_call_opts o = {.deadline_ns = trn_now_ns() + UINT64_C(30000000000)};
        trn_channel_call(NULL, b->s->remote[b->parts[i].remote].channel, TRN_PATH_WORKER "DeregisterGraph", &m, &o, ignore_reply, NULL);
    }
}

void trn_built_unref(built_graph *b)
{
    if (!b || atomic_fetch_sub_explicit(&b->ref, 1, memory_order_acq_rel) != 1)
        return;
    if (b->forgotten)
        forget_parts(b);
    trn_plan_unref(b->plan);
    if (b->pruned)
        trn_graph_free(b->pruned);
    for (int i = 0; b->feed_keys && i < b->n_feeds; i++)
        free(b->feed_keys[i]);
    for (int i = 0; b->fetch_keys && i < b->n_fetches; i++)
        free(b->fetch_keys[i]);
    free(b->feed_keys);
    free(b->fetch_keys);
    free(b->parts);
    trn_sb_fini(&b->partition_graphs);
    free(b->key);
    free(b);
}

void trn_built_slot_free(void *v)
{
    slot *s = v;
    trn_built_unref(s->b);
    free(s);
}

/* Of signatures with watches the last few are kept. Takes the one that has to go out of the table; the caller frees it without the lock. */
static slot *note_watched(trn_msession *s, const char *key)
{
    const char **at = &s->watched[s->next_watched++ % TRN_MAX_WATCHED];
    slot *old = *at ? trn_map_gets(s->built, *at) : NULL;
    if (old) {
        trn_map_dels(s->built, *at);
        old->b->forgotten = true;
    }
    *at = key;
    return old;
}

/* ---- building ------------------------------------------------------------------------------------------------------ */

/* Partial runs: feeds arrive and fetches leave through the rendezvous of our own half of the step, call by call. */
static trn_err through_rendezvous(build_job *j, trn_graph *g)
{
    built_graph *b = j->b;
    const trn_device *dev = &j->s->devs.dev[j->s->devs.def];
    b->feed_keys = trn_xalloc(sizeof *b->feed_keys * (size_t)(b->n_feeds + 1));
    b->fetch_keys = trn_xalloc(sizeof *b->fetch_keys * (size_t)(b->n_fetches + 1));
    for (int i = 0; i < g->n; i++) {
        trn_gnode *n = g->node[i];
        if (!n)
            continue;
        bool arg = !strcmp(n->n.op, "_Arg"), ret = !strcmp(n->n.op, "_Retval");
        if (!arg && !ret)
            continue;
        int64_t index = trn_attr_int(&n->n, "index");
        trn_dtype t = trn_attr_type(&n->n, "T");
        const char *name = trn_arena_printf(g->arena, "_client_%s_%" PRId64, arg ? "feed" : "fetch", index);
        trn_attr *a = trn_arena_alloc(g->arena, sizeof *a * 6);
        a[0] = (trn_attr){.name = arg ? "tensor_type" : "T", .kind = TRN_ATTR_TYPE, .v.type = t};
        a[1] = (trn_attr){.name = "tensor_name", .kind = TRN_ATTR_STRING, .v.s = {name, strlen(name)}};
        a[2] = (trn_attr){.name = "send_device", .kind = TRN_ATTR_STRING, .v.s = {dev->name, strlen(dev->name)}};
        a[3] = (trn_attr){.name = "send_device_incarnation", .kind = TRN_ATTR_INT, .v.i = (int64_t)dev->incarnation};
        a[4] = (trn_attr){.name = "recv_device", .kind = TRN_ATTR_STRING, .v.s = {dev->name, strlen(dev->name)}};
        a[5] = (trn_attr){.name = "client_terminated", .kind = TRN_ATTR_BOOL, .v.b = true};
        n->n.op = arg ? "_Recv" : "_Send";
        n->n.attrs = a;
        n->n.n_attrs = 6;
        TRN_TRY(trn_node_resolve(&n->n, g->arena));
        char *key = trn_xasprintf("%s;%016" PRIx64 ";%s;%s;0:0", dev->name, dev->incarnation, dev->name, name);
        (arg ? b->feed_keys : b->fetch_keys)[index] = key;
    }
    return TRN_OK;
}

/* What the optimiser and the executor may do with the graph, short of registering it. `g` is ours. */
static trn_err make_parts(trn_part **parts, int *n_parts, build_job *j)
{
    trn_msession *s = j->s;
    trn_graph *g;
    trn_lock(&s->mu);
    trn_place_opts place = {.soft = s->soft_placement, .log = s->log_placement}, first = place;
    first.unlowered = true;
    trn_err err = TRN_OK;
    if (s->placed_version != s->version) { /* the whole graph, so that a node's place does not depend on what is fetched first */
        err = trn_graph_place(s->graph, &s->devs, &first);
        if (!err)
            s->placed_version = s->version;
    }
    if (!err && !s->place_pruned)
        err = trn_graph_place_errors(s->graph);
    if (!err)
        err = trn_graph_prune(&g, s->graph, &j->sig, s->devs.dev[s->devs.def].name);
    trn_unlock(&s->mu);
    if (err)
        return err;
    trn_graph_note_ops(g);
    if (j->partial) {
        j->b->pruned = trn_graph_copy(g, NULL);
        err = through_rendezvous(j, g);
    }
    g->keep_branches = s->single_threaded;
    if (!err)
        err = trn_graph_lower(g);
    if (!err)
        err = trn_graph_check_ops(g);
    if (!err) {
        trn_opt_opts opt = j->debug ? (trn_opt_opts){0} : s->opt; /* a debugger sees every node that the client wrote, and its names in the graph */
        opt.fuse_task = s->devs.dev[s->devs.def].task;
        err = trn_graph_optimise(g, &opt, trn_exec_eval);
    }
    if (!err)
        err = trn_graph_place(g, &s->devs, &place);
    if (!err)
        err = trn_graph_place_errors(g);
    if (!err)
        err = trn_graph_partition(parts, n_parts, g, &s->devs);
    trn_graph_free(g);
    return err;
}

static void build_finish(build_job *j)
{
    trn_msession *s = j->s;
    trn_err err = trn_join_fini(&j->join);
    trn_lock(&s->mu);
    slot *sl = trn_map_gets(s->built, j->b->key);
    waiter *w = sl->waiters;
    sl->waiters = NULL;
    if (err) {
        trn_map_dels(s->built, j->b->key); /* the next try may go better: a task may be back */
        j->b->forgotten = true; /* the other tasks' parts may have been registered */
    } else {
        sl->b = trn_built_ref(j->b);
    }
    slot *old = !err && j->debug ? note_watched(s, j->b->key) : NULL;
    trn_unlock(&s->mu);
    if (old)
        trn_built_slot_free(old);
    if (err)
        free(sl);
    while (w) {
        waiter *next = w->next;
        w->done(w->arg, err ? trn_err_copy(err) : TRN_OK, err ? NULL : trn_built_ref(j->b));
        free(w);
        w = next;
    }
    trn_err_free(err);
    trn_built_unref(j->b);
    trn_arena_free(j->arena);
    trn_msession_unref(s);
    free(j);
}

static void build_one_done(build_job *j, trn_err err)
{
    if (trn_join_done(&j->join, err))
        build_finish(j);
}

typedef struct reg_call {
    build_job *j;
    int part;
} reg_call;

static void registered(void *arg, trn_err err, const trn_msg *msg)
{
    reg_call *c = arg;
    remote_part *part = &c->j->b->parts[c->part];
    const remote_task *t = &c->j->s->remote[part->remote];
    if (!err)
        err = trn_register_graph_resp_parse(part->handle, sizeof part->handle, msg);
    build_one_done(c->j, err ? trn_err_wrap(err, "RegisterGraph to %s (%s)", t->task, t->address) : TRN_OK);
}

static trn_err register_remote(build_job *j, const trn_part *p)
{
    built_graph *b = j->b;
    int r = 0;
    while (r < j->s->n_remote && strcmp(j->s->remote[r].task, p->task))
        r++;
    if (r == j->s->n_remote)
        return trn_errorf(TRN_INTERNAL, "part for %s, which is no task of the session", p->task);
    int i = b->n_parts++;
    b->parts[i].remote = r;
    Tensorflow__RegisterGraphRequest q = TENSORFLOW__REGISTER_GRAPH_REQUEST__INIT;
    Tensorflow__GraphOptions go = TENSORFLOW__GRAPH_OPTIONS__INIT;
    q.session_handle = j->s->handle;
    q.create_worker_session_called = true;
    q.graph_def = trn_graph_export(j->arena, p->graph);
    q.graph_options = &go;
    q.debug_options = (ProtobufCBinaryData){j->debug_n, (uint8_t *)j->debug};
    reg_call *c = trn_arena_alloc(j->arena, sizeof *c);
    *c = (reg_call){j, i};
    trn_join_add(&j->join, 1);
    uint64_t deadline = trn_now_ns() + UINT64_C(120000000000);
    trn_call_pb(j->s->remote[r].channel, TRN_PATH_WORKER "RegisterGraph", &q.base, deadline, false, NULL, registered, c);
    return TRN_OK;
}

static void keep_partition_graph(build_job *j, const trn_graph *g)
{
    Tensorflow__GraphDef *gd = trn_graph_export(j->arena, g);
    trn_sb bytes = {0};
    trn_pb_pack(&bytes, &gd->base);
    trn_pbw_bytes(&j->b->partition_graphs, 3, bytes.p, bytes.n);
    trn_sb_fini(&bytes);
}

/* With the debug ops that the task will add. */
static trn_err keep_watched_graph(build_job *j, const trn_graph *part)
{
    if (!j->debug) {
        keep_partition_graph(j, part);
        return TRN_OK;
    }
    trn_watches w;
    trn_graph *g = trn_graph_copy(part, NULL);
    trn_err err = trn_watches_parse(&w, j->arena, j->debug, j->debug_n);
    if (!err)
        err = trn_graph_watch(g, &w, "");
    if (!err)
        keep_partition_graph(j, g);
    trn_graph_free(g);
    return err;
}

typedef struct own_part {
    build_job *j;
    trn_graph *g;
} own_part;

static void own_watched(void *arg, trn_err err)
{
    own_part *p = arg;
    build_job *j = p->j;
    if (err)
        trn_graph_free(p->g);
    else
        j->b->plan = trn_wsession_new_plan(&err, j->s->local, p->g);
    build_one_done(j, err);
}

static void build_run(void *arg)
{
    build_job *j = arg;
    trn_part *parts = NULL;
    int n = 0;
    trn_err err = make_parts(&parts, &n, j);
    if (!err)
        j->b->parts = trn_xalloc(sizeof *j->b->parts * (size_t)(n + 1));
    for (int i = 0; !err && i < n; i++) {
        if (j->partition_graphs && (err = keep_watched_graph(j, parts[i].graph)))
            break;
        if (strcmp(parts[i].task, j->s->self)) {
            err = register_remote(j, &parts[i]);
            continue;
        }
        own_part *own = trn_arena_alloc(j->arena, sizeof *own);
        *own = (own_part){j, parts[i].graph};
        parts[i].graph = NULL;
        trn_join_add(&j->join, 1);
        trn_worker_watch(j->s->m->w, own->g, j->debug, j->debug_n, own_watched, own);
    }
    trn_parts_free(parts, n);
    build_one_done(j, err);
}

/* ---- finding ------------------------------------------------------------------------------------------------------- */

/* Names may hold anything but zeros; \1 between them makes the key a plain string. A graph never changes what it has (ExtendSession only adds), so the
 * version is no part of it. */
static char *signature(const trn_step_req *q, bool partial)
{
    trn_sb s = {0};
    trn_sb_addf(&s, "%c%c%d;%d;", partial ? 'p' : 'r', q->partition_graphs ? 'g' : '-', q->n_feeds, q->n_fetches);
    for (int i = 0; i < q->n_feeds; i++)
        trn_sb_add(&s, q->feed_names[i], strlen(q->feed_names[i]) + 1);
    for (int i = 0; i < q->n_fetches; i++)
        trn_sb_add(&s, q->fetches[i], strlen(q->fetches[i]) + 1);
    for (int i = 0; i < q->n_targets; i++)
        trn_sb_add(&s, q->targets[i], strlen(q->targets[i]) + 1);
    for (int i = 0; i < q->n_joins; i++)
        trn_sb_addf(&s, "=%s=%s=", q->join_from[i], q->join_to[i]);
    if (q->watches) {
        trn_sb_adds(&s, "?");
        trn_watches_key(&s, q->watches);
    }
    for (size_t i = 0; i < s.n; i++)
        if (!s.p[i])
            s.p[i] = 1;
    char *key = trn_xstrndup(s.p, s.n);
    trn_sb_fini(&s);
    return key;
}

void trn_built_get(trn_msession *s, const trn_step_req *q, bool partial, built_done done, void *arg)
{
    trn_lock(&s->mu);
    char *key = signature(q, partial);
    slot *sl = trn_map_gets(s->built, key);
    if (sl && sl->b) {
        built_graph *b = trn_built_ref(sl->b);
        trn_unlock(&s->mu);
        free(key);
        done(arg, TRN_OK, b);
        return;
    }
    waiter *w = trn_xalloc(sizeof *w);
    *w = (waiter){sl ? sl->waiters : NULL, done, arg};
    bool build = !sl;
    if (build) {
        sl = trn_xalloc(sizeof *sl);
        trn_map_puts(s->built, key, sl);
    }
    sl->waiters = w;
    trn_unlock(&s->mu);
    if (!build) {
        free(key);
        return;
    }
    build_job *j = trn_xalloc(sizeof *j);
    j->s = trn_msession_ref(s);
    j->arena = trn_arena_new();
    j->b = trn_xalloc(sizeof *j->b);
    *j->b = (built_graph){.ref = 1, .s = s, .key = key, .n_feeds = q->n_feeds, .n_fetches = q->n_fetches, .partial = partial};
    j->sig = (trn_run_sig){q->n_feeds, q->n_fetches, q->n_targets, trn_dup_names(j->arena, q->feed_names, (size_t)q->n_feeds),
                           trn_dup_names(j->arena, q->fetches, (size_t)q->n_fetches), trn_dup_names(j->arena, q->targets, (size_t)q->n_targets),
                           q->n_joins, trn_dup_names(j->arena, q->join_from, (size_t)q->n_joins), trn_dup_names(j->arena, q->join_to, (size_t)q->n_joins)};
    j->partial = partial;
    j->partition_graphs = q->partition_graphs;
    if (q->watches) {
        j->debug_n = q->debug_n;
        j->debug = trn_arena_dup(j->arena, q->debug, q->debug_n);
    }
    trn_join_init(&j->join, 1);
    trn_pool_submit(s->m->w->env->pool, build_run, j);
}
