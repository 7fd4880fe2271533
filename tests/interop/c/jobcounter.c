/* A counter on every ps, which every worker of a job counts up; for the tests of launchers and schedulers. Who takes part is told by TF_CONFIG or flags.
 *
 *     trainera launch --ps 2 --workers 3 -- jobcounter --steps=100
 *
 * A worker ends with 0 when each counter has come to just what all workers together count: fewer, or another job's worker on our ps, is a failure. */
#include <trainera/trainera.h>

#include <inttypes.h>
#include <stdio.h>
#include <time.h>

enum { MAX_PS = 16, WAIT_S = 300 };

static int64_t steps = 100;
static const trn_flag flags[] = {{"steps", TRN_FLAG_INT, &steps, "how often each worker counts"}, {0}};

static trn_err count(const trn_role *me, trn_server *server)
{
    if (!me->cluster || me->n_ps > MAX_PS)
        return trn_errorf(TRN_INVALID_ARGUMENT, "for the workers of a job with up to %d ps", MAX_PS);
    trn_builder *b = trn_builder_new();
    const char *now[MAX_PS], *add[MAX_PS];
    for (int i = 0; i < me->n_ps; i++) {
        char device[64], name[32];
        snprintf(device, sizeof device, "/job:ps/task:%d", i);
        snprintf(name, sizeof name, "counter%d", i);
        TRN_SCOPE(trn_device_scope(b, device), b)
        {
            trn_variable *v = trn_variable_new(b, name, trn_const_i64(b, 0), 0);
            add[i] = trn_out_name(b, trn_variable_assign_add(b, v, trn_const_i64(b, 1)));
            now[i] = trn_out_name(b, trn_variable_read(b, v));
        }
    }
    trn_monitored *session = NULL;
    trn_err err = trn_monitored_open(&session, &(trn_monitored_opts){.builder = b, .server = server, .is_chief = me->is_chief, .log_steps = -1, .wait_secs = WAIT_S});
    for (int64_t i = 0; !err && i < steps; i++)
        err = trn_monitored_run(session, &(trn_run){.targets = add, .n_targets = me->n_ps});
    /* The others may still be counting. */
    int64_t goal = steps * me->n_workers, got[MAX_PS] = {0};
    bool all = false;
    for (int tries = 0; !err && !all && tries < WAIT_S * 50; tries++) {
        trn_tensor *t[MAX_PS] = {0};
        err = trn_monitored_run(session, &(trn_run){.fetches = now, .n_fetches = me->n_ps, .out = t});
        all = !err;
        for (int i = 0; !err && i < me->n_ps; i++) {
            got[i] = *(const int64_t *)trn_tensor_data(t[i]);
            all &= got[i] >= goal;
            trn_tensor_unref(t[i]);
        }
        if (!all)
            nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    }
    for (int i = 0; !err && i < me->n_ps; i++)
        if (got[i] != goal)
            err = trn_errorf(TRN_INTERNAL, "ps/%d was counted to %" PRId64 " instead of %" PRId64, i, got[i], goal);
    err = trn_err_first(err, trn_monitored_close(session));
    if (!err)
        printf("%d ps counted to %" PRId64 " by %d workers\n", me->n_ps, goal, me->n_workers);
    trn_builder_free(b);
    return err;
}

int main(int argc, char **argv) { return trn_main(argc, argv, flags, count); }
