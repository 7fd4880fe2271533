/* A coordinator: one program hands steps to whichever worker is free; workers and ps are plain servers.
 *
 *     trainera local --ps 1 --workers 3 &                                       prints the cluster spec
 *     coordinator --job_name=coordinator --ps_hosts=localhost:45001 --worker_hosts=localhost:45002,localhost:45003,localhost:45004
 *
 * A step whose worker dies is run again on another one; a worker that comes back is used again. docs/examples/coordinator.md */
#include <trainera/trainera.h>

#include <stdio.h>

static int64_t steps = 2000;
static const trn_flag flags[] = {{"steps", TRN_FLAG_INT, &steps, "how many steps to hand out"}, {0}};

/* Each step draws its own batch on the worker that runs it: y = x·[1 2 3 4] + 5. */
static trn_out build(trn_builder *b, const trn_cluster *cluster, trn_variable **w, trn_variable **bias, trn_out *loss)
{
    trn_out train = TRN_NONE;
    TRN_SCOPE(trn_replica_device_setter(b, &(trn_setter_opts){.cluster = cluster, .worker_device = ""}), b)
    {
        *w = trn_variable_new(b, "w", trn_zeros(b, TRN_FLOAT, trn_shape_of(2, (int64_t)4, (int64_t)1)), 0);
        *bias = trn_variable_new(b, "bias", trn_zeros(b, TRN_FLOAT, trn_shape_of(1, (int64_t)1)), 0);
        trn_out x = trn_random_normal(b, TRN_FLOAT, trn_shape_of(2, (int64_t)64, (int64_t)4), 0, 1, (trn_maybe_int){0});
        trn_out truth = trn_const(b, trn_tensor_from(TRN_FLOAT, 2, (int64_t[]){4, 1}, (float[]){1, 2, 3, 4}));
        trn_out y = trn_op_add_v2(b, trn_op_mat_mul(b, x, truth, NULL), trn_const_f32(b, 5));
        trn_out guess = trn_op_add_v2(b, trn_op_mat_mul(b, x, (*w)->value, NULL), (*bias)->value);
        *loss = trn_loss_mean_squared(b, y, guess, NULL);
        train = trn_minimize(trn_sgd(b, trn_const_f32(b, 0.02f)), *loss, trn_global_step(b));
    }
    return train;
}

static trn_err coordinate(const trn_cluster *cluster, trn_builder *b)
{
    trn_variable *w, *bias;
    trn_out loss, train = build(b, cluster, &w, &bias, &loss);
    const char *op = trn_out_name(b, train), *fetch = trn_out_name(b, loss);
    trn_coord *c;
    TRN_TRY(trn_coord_open(&c, &(trn_coord_opts){.builder = b, .cluster = cluster}));
    trn_err err = TRN_OK;
    for (int64_t i = 0; i < steps && !err; i++) {
        trn_future *f = NULL;
        bool look = (i + 1) % 500 == 0;
        err = trn_coord_schedule(look ? &f : NULL, c, &(trn_run){.targets = &op, .n_targets = 1, .fetches = &fetch, .n_fetches = look});
        trn_tensor *t;
        if (!err && look && !(err = trn_coord_fetch(f, &t, 1))) {
            printf("step %lld: loss %.5f, %d workers\n", (long long)i + 1, *(const float *)trn_tensor_data(t), trn_coord_workers(c));
            trn_tensor_unref(t);
        }
        trn_future_free(f);
    }
    if (!err)
        err = trn_coord_join(c);
    if (!err) {
        const char *fetches[] = {trn_out_name(b, w->value), trn_out_name(b, bias->value)};
        trn_future *f;
        trn_tensor *t[2];
        err = trn_coord_schedule(&f, c, &(trn_run){.fetches = fetches, .n_fetches = 2});
        if (!err && !(err = trn_coord_fetch(f, t, 2))) {
            const float *v = trn_tensor_data(t[0]);
            printf("w = %.2f %.2f %.2f %.2f, bias = %.2f; %lld steps were given to another worker\n", v[0], v[1], v[2], v[3], *(const float *)trn_tensor_data(t[1]),
                   (long long)trn_coord_retries(c));
            trn_tensor_unref(t[0]);
            trn_tensor_unref(t[1]);
        }
        trn_future_free(f);
    }
    return trn_err_first(err, trn_coord_close(c));
}

int main(int argc, char **argv)
{
    trn_role me = {0};
    trn_builder *b = trn_builder_new();
    trn_err err = trn_flags_cluster(&me, argc, argv, flags);
    if (!err && !me.cluster)
        err = trn_errorf(TRN_INVALID_ARGUMENT, "who are the workers? --ps_hosts and --worker_hosts say it, or TF_CONFIG");
    if (!err)
        err = coordinate(me.cluster, b);
    if (err)
        fprintf(stderr, "coordinator: %s: %s\n", trn_code_name(trn_err_code(err)), trn_err_msg(err));
    trn_role_fini(&me);
    trn_builder_free(b);
    int status = err ? 1 : 0;
    trn_err_free(err);
    return status;
}
