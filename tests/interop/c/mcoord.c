/* A coordinator: hands out steps that count, on workers that come and go. Prints "scheduled N workers A B …" while it goes (how many steps each has done), then
 * "total T scheduled N retries R workers A B …". With --until it goes on, beyond its steps, until that file is there. */
#include <trainera/trainera.h>

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static int64_t steps = 200, pause_ms;
static const char *until = "";
static const trn_flag own[] = {
    {"steps", TRN_FLAG_INT, &steps, "to schedule"}, {"pause_ms", TRN_FLAG_INT, &pause_ms, "between two"}, {"until", TRN_FLAG_STR, &until, "this file is there"}, {0}};

static void workers(trn_coord *c, int n)
{
    printf(" workers");
    for (int i = 0; i < n; i++)
        printf(" %lld", (long long)trn_coord_steps(c, i));
    printf("\n");
    fflush(stdout);
}

static trn_err coordinate(const trn_role *me)
{
    trn_builder *b = trn_builder_new();
    trn_device_scope(b, "/job:ps/task:0");
    trn_variable *v = trn_variable_new(b, "total", trn_const_i64(b, 0), 0);
    const char *add = trn_out_name(b, trn_out_node(trn_variable_assign_add(b, v, trn_const_i64(b, 1))));
    trn_end(b);
    const char *value = trn_out_name(b, v->value);
    trn_coord *c = NULL;
    trn_err err = trn_coord_open(&c, &(trn_coord_opts){.builder = b, .cluster = me->cluster, .wait_secs = 30});
    int64_t n = 0;
    while (!err && (n < steps || (*until && access(until, F_OK) != 0))) {
        err = trn_coord_schedule(NULL, c, &(trn_run){.targets = &add, .n_targets = 1});
        printf("scheduled %lld", (long long)++n);
        workers(c, me->n_workers);
        if (pause_ms)
            usleep((useconds_t)pause_ms * 1000);
    }
    if (!err)
        err = trn_coord_join(c);
    trn_future *f = NULL;
    trn_tensor *t = NULL;
    if (!err)
        err = trn_coord_schedule(&f, c, &(trn_run){.fetches = &value, .n_fetches = 1});
    if (!err)
        err = trn_coord_fetch(f, &t, 1);
    if (!err) {
        printf("total %lld scheduled %lld retries %lld", (long long)*(const int64_t *)trn_tensor_data(t), (long long)n, (long long)trn_coord_retries(c));
        workers(c, me->n_workers);
    }
    trn_tensor_unref(t);
    trn_future_free(f);
    err = trn_err_first(err, trn_coord_close(c));
    trn_builder_free(b);
    return err;
}

int main(int argc, char **argv)
{
    trn_role me;
    trn_err err = trn_flags_cluster(&me, argc, argv, own);
    if (!err) {
        err = coordinate(&me);
        trn_role_fini(&me);
    }
    if (err) {
        fprintf(stderr, "mcoord: %s: %s\n", trn_code_name(trn_err_code(err)), trn_err_msg(err));
        trn_err_free(err);
        return 1;
    }
    return 0;
}
