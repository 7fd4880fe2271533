/* Hooks of your own, and ps that end by themselves.
 *
 *     trainera launch --ps 2 --workers 2 -- hooks
 *
 * A hook is a table of functions, called at five moments: begin, after_create_session, before_run, after_run, end. This one keeps the smallest loss that it
 * has seen and stops training when the loss has not got better for a while. The Done hook tells every ps, through a queue there, that this worker has ended; a ps
 * that has heard it from all workers ends, with exit code 0. docs/examples/hooks.md */
#include <trainera/trainera.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct early_stop {
    trn_hook hook; /* first, so that a trn_hook * is also an early_stop * */
    const char *loss;
    float best;
    int since, patience, steps;
} early_stop;

static trn_err stop_before(trn_hook *h, trn_monitored *m, trn_step_ask *ask)
{
    (void)m;
    trn_ask_fetch(ask, ((early_stop *)h)->loss);
    return TRN_OK;
}

static trn_err stop_after(trn_hook *h, trn_monitored *m, const trn_step_got *got)
{
    early_stop *e = (early_stop *)h;
    float loss = *(const float *)trn_tensor_data(got->fetched[0]);
    e->steps++;
    e->since++;
    if (loss < e->best * 0.999f) {
        e->best = loss;
        e->since = 0;
    }
    if (e->since >= e->patience)
        trn_monitored_request_stop(m);
    return TRN_OK;
}

static trn_err stop_end(trn_hook *h, trn_monitored *m)
{
    early_stop *e = (early_stop *)h;
    (void)m;
    printf("%d steps here, best loss %.6f\n", e->steps, e->best);
    return TRN_OK;
}

static const trn_hook_table early_stop_table = {.name = "EarlyStop", .before_run = stop_before, .after_run = stop_after, .end = stop_end};

static trn_hook *early_stop_new(const char *loss, int patience)
{
    early_stop *e = calloc(1, sizeof *e);
    *e = (early_stop){.hook = {&early_stop_table}, .loss = loss, .best = INFINITY, .patience = patience};
    return &e->hook;
}

static trn_err work(const trn_role *me, trn_server *server)
{
    trn_builder *b = trn_builder_new();
    trn_out loss = TRN_NONE, train = TRN_NONE;
    char worker[128];
    snprintf(worker, sizeof worker, "/job:%s/task:%d", me->cluster ? me->job : "worker", me->task); /* a chief may be a job of its own */
    TRN_SCOPE(trn_replica_device_setter(b, &(trn_setter_opts){.cluster = me->cluster, .worker_device = worker}), b)
    {
        /* The lowest point of a bowl. */
        trn_variable *at = trn_variable_new(b, "at", trn_fill(b, TRN_FLOAT, trn_shape_of(1, (int64_t)8), 3), 0);
        trn_variable *too = trn_variable_new(b, "too", trn_fill(b, TRN_FLOAT, trn_shape_of(1, (int64_t)8), -2), 0);
        loss = trn_op_add_v2(b, trn_op_l2_loss(b, at->value), trn_op_l2_loss(b, too->value));
        train = trn_minimize(trn_momentum(b, trn_const_f32(b, 0.05f), 0.5f, false), loss, trn_global_step(b));
    }
    trn_hook *hooks[] = {early_stop_new(trn_out_name(b, loss), 20), trn_hook_done(NULL)};
    trn_monitored *m = NULL;
    trn_err err = trn_monitored_open(&m, &(trn_monitored_opts){.builder = b, .server = server, .is_chief = me->is_chief, .hooks = hooks, .n_hooks = me->cluster ? 2 : 1});
    while (!err && !trn_monitored_should_stop(m))
        err = trn_monitored_step(m, train, NULL, 0, NULL);
    err = trn_err_first(err, trn_monitored_close(m));
    trn_builder_free(b);
    return err;
}

int main(int argc, char **argv)
{
    return trn_main(argc, argv, NULL, work);
}
