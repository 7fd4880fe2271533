/* A counter on a parameter server, counted up through several workers at once.
 *
 *     trainera local --ps 1 --workers 2            prints the workers' targets
 *     counter grpc://localhost:45001 grpc://localhost:45002
 *
 * Every argument is a worker. Each gets a session of its own (its master places the graph: the variable on the ps, the rest on itself), and a thread
 * that runs steps on it. All sessions see one variable, because it is found by its name on the ps. */
#include <trainera/trainera.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define STEPS 2000

/* The variable on the ps, its increment, and its value before and after. */
static void build(trn_builder *b)
{
    TRN_SCOPE(trn_device_scope(b, "/job:ps/task:0"), b)
    {
        trn_variable *counter = trn_variable_new(b, "counter", trn_const_i64(b, 0), 0);
        trn_out add = trn_variable_assign_add(b, counter, trn_const_i64(b, 1));
        trn_variable_read(trn_named(b, "now"), counter);
        TRN_SCOPE(trn_control_scope(b, &add, 1), b) trn_variable_read(trn_named(b, "next"), counter);
        trn_variables_init(b, TRN_VARS_GLOBAL);
    }
}

static void check(trn_err err, const char *what)
{
    if (!err)
        return;
    fprintf(stderr, "counter: %s: %s: %s\n", what, trn_code_name(trn_err_code(err)), trn_err_msg(err));
    exit(1);
}

static trn_session *open_session(const char *target, trn_builder *b)
{
    trn_session *s;
    check(trn_session_open(&s, target, &(trn_session_opts){.timeout_ms = 60000}), target);
    check(trn_session_extend_builder(s, b), target);
    return s;
}

static int64_t fetch(trn_session *s, const char *name)
{
    trn_tensor *t;
    check(trn_session_run(s, &(trn_run){.fetches = &name, .n_fetches = 1, .out = &t}), name);
    int64_t v = *(const int64_t *)trn_tensor_data(t);
    trn_tensor_unref(t);
    return v;
}

static void *count(void *session)
{
    for (int i = 0; i < STEPS; i++)
        fetch(session, "next:0");
    return NULL;
}

int main(int argc, char **argv)
{
    int n = argc - 1;
    if (n < 1) {
        fprintf(stderr, "usage: counter grpc://WORKER...   (start a cluster with: trainera local --ps 1 --workers 2)\n");
        return 2;
    }
    trn_builder *b = trn_builder_new();
    build(b);
    trn_session **session = calloc((size_t)n, sizeof *session);
    pthread_t *thread = calloc((size_t)n, sizeof *thread);
    for (int i = 0; i < n; i++)
        session[i] = open_session(argv[i + 1], b);
    const char *init = "init";
    check(trn_session_run(session[0], &(trn_run){.targets = &init, .n_targets = 1}), "init");

    struct timespec from, to;
    clock_gettime(CLOCK_MONOTONIC, &from);
    for (int i = 0; i < n; i++)
        pthread_create(&thread[i], NULL, count, session[i]);
    for (int i = 0; i < n; i++)
        pthread_join(thread[i], NULL);
    clock_gettime(CLOCK_MONOTONIC, &to);

    int64_t total = fetch(session[0], "now:0"), expected = (int64_t)n * STEPS;
    double secs = (double)(to.tv_sec - from.tv_sec) + (double)(to.tv_nsec - from.tv_nsec) / 1e9;
    printf("%d workers counted to %lld, as they should: %s (%.0f steps/s)\n", n, (long long)total, total == expected ? "yes" : "NO", (double)expected / secs);
    for (int i = 0; i < n; i++)
        trn_err_free(trn_session_close(session[i]));
    trn_builder_free(b);
    free(session);
    free(thread);
    return total == expected ? 0 : 1;
}
