/* tensorflow.ClusterDef and tensorflow.ServerDef, binary and text. */
#include <stdlib.h>

#include "cluster/cluster.h"
#include "proto/pb.h"
#include "proto/tensorflow.pb-c.h"
#include "proto/textproto.h"

enum { MAX_DEF = 16 << 20, MAX_JOBS = 4096, MAX_CPU_DEVICES = 1024, MAX_THREADS = 4096 };

static trn_err add_def(trn_cluster_builder *b, const Tensorflow__ClusterDef *def)
{
    if (def->n_job > MAX_JOBS)
        return trn_errorf(TRN_INVALID_ARGUMENT, "%zu jobs in the cluster; %d are possible", def->n_job, MAX_JOBS);
    for (size_t i = 0; i < def->n_job; i++) {
        const Tensorflow__JobDef *j = def->job[i];
        for (size_t k = 0; k < i; k++)
            if (strcmp(def->job[k]->name, j->name) == 0)
                return trn_errorf(TRN_INVALID_ARGUMENT, "job '%.80s' is defined twice in the cluster", j->name);
        for (size_t k = 0; k < j->n_tasks; k++)
            TRN_TRY(trn_cluster_builder_add(b, j->name, j->tasks[k]->key, j->tasks[k]->value));
    }
    return TRN_OK;
}

static trn_err too_big(const char *what, size_t n)
{
    return trn_errorf(TRN_INVALID_ARGUMENT, "a %s of %zu bytes is too big; %d are possible", what, n, MAX_DEF);
}

trn_err trn_cluster_from_def(trn_cluster **out, const void *p, size_t n)
{
    if (n > MAX_DEF)
        return too_big("ClusterDef", n);
    trn_arena *a = trn_arena_new();
    Tensorflow__ClusterDef *def;
    trn_cluster_builder b = {.lenient = true};
    trn_err err = TRN_PB_UNPACK(&def, a, tensorflow__cluster_def__descriptor, p, n);
    if (!err)
        err = add_def(&b, def);
    if (err)
        trn_cluster_builder_fini(&b);
    else
        err = trn_cluster_builder_finish(out, &b);
    trn_arena_free(a);
    return err;
}

void trn_cluster_to_def(trn_sb *out, const trn_cluster *c)
{
    trn_arena *a = trn_arena_new();
    Tensorflow__ClusterDef def = TENSORFLOW__CLUSTER_DEF__INIT;
    def.n_job = (size_t)c->n_jobs;
    def.job = trn_arena_alloc(a, def.n_job * sizeof *def.job + 1);
    for (int i = 0; i < c->n_jobs; i++) {
        const trn_cluster_job *j = &c->jobs[i];
        Tensorflow__JobDef *d = def.job[i] = trn_arena_alloc(a, sizeof *d);
        tensorflow__job_def__init(d);
        d->name = (char *)j->name;
        d->n_tasks = (size_t)j->n_tasks;
        d->tasks = trn_arena_alloc(a, d->n_tasks * sizeof *d->tasks + 1);
        for (int k = 0; k < j->n_tasks; k++) {
            Tensorflow__JobDef__TasksEntry *t = d->tasks[k] = trn_arena_alloc(a, sizeof *t);
            tensorflow__job_def__tasks_entry__init(t);
            t->key = j->tasks[k].index;
            t->value = (char *)j->tasks[k].address;
        }
    }
    trn_pb_pack(out, &def.base);
    trn_arena_free(a);
}

/* ---- ServerDef ------------------------------------------------------------------------------------------------- */

void trn_server_def_fini(trn_server_def *d)
{
    trn_cluster_unref(d->cluster);
    free(d->session_config);
    *d = (trn_server_def){0};
}

/* A binary ServerDef always has a control character in it: every length and the tag of job_name (0x12) or of a task (0x12). */
static bool looks_like_text(const uint8_t *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if ((p[i] < ' ' && !(p[i] == '\n' || p[i] == '\t' || p[i] == '\r')) || p[i] == 127)
            return false;
    return true;
}

static trn_err check_count(const char *what, int64_t v, int64_t max)
{
    if (v < 0 || v > max)
        return trn_errorf(TRN_INVALID_ARGUMENT, "%s is %lld; 0 to %lld is possible", what, (long long)v,
                          (long long)max);
    return TRN_OK;
}

static trn_err take_config(trn_server_def *out, const Tensorflow__ConfigProto *c)
{
    out->session_config_len = tensorflow__config_proto__get_packed_size(c);
    out->session_config = trn_xalloc(out->session_config_len + 1);
    tensorflow__config_proto__pack(c, out->session_config);
    for (size_t i = 0; i < c->n_device_count; i++)
        if (strcmp(c->device_count[i]->key, "CPU") == 0 || strcmp(c->device_count[i]->key, "cpu") == 0) {
            TRN_TRY(check_count("device_count of CPU", c->device_count[i]->value, MAX_CPU_DEVICES));
            out->n_cpu_devices = TRN_MAX(1, c->device_count[i]->value);
        }
    /* TensorFlow takes -1 as "one thread, the caller's". */
    int intra = c->intra_op_parallelism_threads, inter = c->inter_op_parallelism_threads;
    TRN_TRY(check_count("intra_op_parallelism_threads", intra < 0 ? 1 : intra, MAX_THREADS));
    TRN_TRY(check_count("inter_op_parallelism_threads", inter < 0 ? 1 : inter, MAX_THREADS));
    out->intra_threads = intra < 0 ? 1 : intra;
    out->inter_threads = inter < 0 ? 1 : inter;
    return TRN_OK;
}

static trn_err take_def(trn_server_def *out, const Tensorflow__ServerDef *def)
{
    out->n_cpu_devices = 1;
    const char *protocol = def->protocol;
    if (*protocol && strcmp(protocol, "grpc") != 0)
        return trn_errorf(TRN_NOT_FOUND, "there is no server for protocol '%.80s'; 'grpc' is possible", protocol);
    if (def->replica != 0)
        return trn_errorf(TRN_UNIMPLEMENTED, "replica %d: only replica 0 is possible", def->replica);
    TRN_TRY(check_count("port", def->port, 65535));
    out->port = def->port;
    if (def->default_session_config)
        TRN_TRY(take_config(out, def->default_session_config));

    trn_cluster_builder b = {.lenient = true};
    trn_err err = def->cluster ? add_def(&b, def->cluster) : TRN_OK;
    if (!err)
        err = trn_cluster_builder_own(&b, *def->job_name ? def->job_name : NULL, def->task_index);
    if (err) {
        trn_cluster_builder_fini(&b);
        return err;
    }
    return trn_cluster_builder_finish(&out->cluster, &b);
}

static trn_err read_def(trn_server_def *out, trn_arena *a, const void *p, size_t n)
{
    trn_sb bytes = {0};
    trn_err err = TRN_OK;
    if (looks_like_text(p, n)) {
        if ((err = trn_textproto_encode(&bytes, &tensorflow__server_def__descriptor, p, n)))
            err = trn_err_wrap(err, "read as text");
        p = bytes.p ? bytes.p : "";
        n = bytes.n;
    }
    Tensorflow__ServerDef *def;
    if (!err)
        err = TRN_PB_UNPACK(&def, a, tensorflow__server_def__descriptor, p, n);
    trn_sb_fini(&bytes);
    return err ? err : take_def(out, def);
}

trn_err trn_server_def_read(trn_server_def *out, const void *p, size_t n)
{
    if (n > MAX_DEF)
        return too_big("ServerDef", n);
    trn_arena *a = trn_arena_new();
    trn_server_def d = {0};
    trn_err err = read_def(&d, a, p, n);
    trn_arena_free(a);
    if (err) {
        trn_server_def_fini(&d);
        return trn_err_wrap(err, "ServerDef");
    }
    *out = d;
    return TRN_OK;
}
