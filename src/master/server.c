#include "master/server.h"

#include <stdlib.h>
#include <unistd.h>

#include "wire/rpc.h"

struct trn_server {
    trn_cluster *cluster;
    trn_loop *loop;
    trn_rpc_server *rpc;
    int port;
    char *target;
};

static void healthz(void *svc, const char *path, const char *query, trn_http_reply *out)
{
    out->status = 200;
    out->content_type = "text/plain";
    trn_sb_adds(&out->body, "ok\n");
}

static const trn_http_route route_healthz = {"/healthz", healthz, NULL};

/* TensorFlow's server calls a port that it cannot have UNKNOWN. */
static trn_err as_tensorflow(trn_err err)
{
    if (!err)
        return TRN_OK;
    trn_err same = trn_errorf(TRN_UNKNOWN, "could not start the server: %s", trn_err_msg(err));
    trn_err_free(err);
    return same;
}

static trn_err start(trn_server *s, const trn_server_config *c, int *listen_fd)
{
    const char *job = c->job ? c->job : c->cluster->own_job;
    int task = c->job ? c->task : c->cluster->own_task;
    const trn_cluster_task *me = job ? trn_cluster_task_find(c->cluster, job, task) : NULL;
    if (!me)
        return trn_errorf(TRN_INTERNAL, "/job:%s/task:%d is not in the cluster", job ? job : "?", task);
    s->cluster = trn_cluster_ref(c->cluster);
    TRN_TRY(trn_loop_open(&s->loop, "loop-0"));
    TRN_TRY(trn_rpc_server_open(&s->rpc, &(trn_server_opts){.loops = &s->loop, .n_loops = 1}));
    trn_rpc_server_route(s->rpc, &route_healthz);
    if (*listen_fd >= 0) {
        int fd = *listen_fd;
        *listen_fd = -1;
        TRN_TRY(as_tensorflow(trn_rpc_server_listen_fd(s->rpc, fd, &s->port)));
    } else {
        TRN_TRY(as_tensorflow(trn_rpc_server_listen(s->rpc, c->bind_host ? c->bind_host : me->host,
                                                    c->port >= 0 ? c->port : me->port, &s->port)));
    }
    char *address = trn_address_join(me->host, s->port);
    s->target = trn_xasprintf("grpc://%s", address);
    free(address);
    return TRN_OK;
}

trn_err trn_server_start(trn_server **out, const trn_server_config *c)
{
    trn_server *s = trn_xalloc(sizeof *s);
    int listen_fd = c->listen_fd;
    trn_err err = start(s, c, &listen_fd);
    if (listen_fd >= 0)
        close(listen_fd);
    if (err)
        trn_server_stop(s, 0);
    else
        *out = s;
    return err;
}

int trn_server_port(const trn_server *s) { return s->port; }
const char *trn_server_target(const trn_server *s) { return s->target; }

void trn_server_stop(trn_server *s, uint64_t drain_ns)
{
    if (s->rpc)
        trn_rpc_server_close(s->rpc, drain_ns);
    if (s->loop)
        trn_loop_close(s->loop);
    trn_cluster_unref(s->cluster);
    free(s->target);
    free(s);
}
