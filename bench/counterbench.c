/* Steps per second of a shared counter, driven from C.
 *
 *     counterbench [--clients N] [--steps N | --seconds S] [--warm S] [--variable NAME] [--keep] grpc://WORKER…
 *     counterbench … --as-worker '{"ps": ["host:port"], "worker": ["host:port"]}'
 *
 * Every client is a thread with a session of its own on one of the targets (in turns); all count one int64 on /job:ps/task:0 up. With --steps the
 * clients end after that many steps together; --keep counts on from the value that is there. With --as-worker this program is /job:worker/task:0 of
 * the cluster itself and its sessions are in-process, as a trainer's are. One line of JSON on stdout; exit 1 when an increment got lost. */
#include <trainera/trainera.h>

#include <getopt.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#define OP(name, op, more) "node { name: '" name "' op: '" op "' attr { key: 'dtype' value { type: DT_INT64 } } " more "}"
#define PS "device: '/job:ps/task:0' "
#define VALUE(v) "attr { key: 'value' value { tensor { dtype: DT_INT64 tensor_shape { } int64_val: " v " } } } "

static const char graph[] =
    OP("v", "VarHandleOp", PS "attr { key: 'shape' value { shape { } } } attr { key: 'shared_name' value { s: '%s' } }")
    OP("zero", "Const", PS VALUE("0"))
    OP("one", "Const", PS VALUE("1"))
    OP("init", "AssignVariableOp", PS "input: 'v' input: 'zero'")
    OP("add", "AssignAddVariableOp", PS "input: 'v' input: 'one'")
    OP("next", "ReadVariableOp", PS "input: 'v' input: '^add'")
    OP("now", "ReadVariableOp", PS "input: 'v'");

static long long steps;             /* all clients together; 0: until told */
static double seconds = 3, warm = 0.5;
static atomic_llong begun, done;    /* steps */
#define SLOTS 100000                /* of 1 us: how long the steps took */
static atomic_llong took[SLOTS];
static atomic_bool stop;

static void check(trn_err err, const char *what)
{
    if (!err)
        return;
    fprintf(stderr, "counterbench: %s: %s: %s\n", what, trn_code_name(trn_err_code(err)), trn_err_msg(err));
    exit(2);
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static double cpu(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

static void nap(double s)
{
    nanosleep(&(struct timespec){(time_t)s, (long)((s - (double)(time_t)s) * 1e9)}, NULL);
}

static trn_session *open_session(trn_server *own, const char *target, const char *variable)
{
    char text[sizeof graph + 200];
    snprintf(text, sizeof text, graph, variable);
    trn_session *s;
    trn_session_opts opts = {.timeout_ms = 60000};
    check(own ? trn_session_open_on(&s, own, &opts) : trn_session_open(&s, target, &opts), target);
    check(trn_session_extend_text(s, text), target);
    return s;
}

static long long fetch(trn_session *s, const char *name)
{
    trn_tensor *t;
    check(trn_session_run(s, &(trn_run){.fetches = &name, .n_fetches = 1, .out = &t, .timeout_ms = 60000}), name);
    long long v = *(const int64_t *)trn_tensor_data(t);
    trn_tensor_unref(t);
    return v;
}

static void *count(void *session)
{
    long long last = 0;
    while (!atomic_load(&stop)) {
        if (steps && atomic_fetch_add(&begun, 1) >= steps)
            break;
        double a = now();
        long long v = fetch(session, "next:0");
        double us = (now() - a) * 1e6;
        atomic_fetch_add_explicit(&took[us < SLOTS - 1 ? (int)us : SLOTS - 1], 1, memory_order_relaxed);
        if (v <= last) {
            fprintf(stderr, "counterbench: the counter went from %lld to %lld\n", last, v);
            exit(1);
        }
        last = v;
        atomic_fetch_add(&done, 1);
    }
    return NULL;
}

static double median_ms(long long n)
{
    int i = 0;
    for (long long seen = 0; i < SLOTS - 1 && (seen += atomic_load(&took[i])) * 2 < n; i++)
        ;
    return i / 1e3;
}

int main(int argc, char **argv)
{
    static const struct option flags[] = {{"clients", 1, NULL, 'c'}, {"steps", 1, NULL, 'n'}, {"seconds", 1, NULL, 's'}, {"warm", 1, NULL, 'w'},
        {"variable", 1, NULL, 'v'}, {"keep", 0, NULL, 'k'}, {"as-worker", 1, NULL, 'a'}, {0}};
    int clients = 1, c;
    bool keep = false;
    const char *variable = "counter", *cluster = NULL;
    while ((c = getopt_long(argc, argv, "", flags, NULL)) != -1) {
        if (c == 'c')
            clients = atoi(optarg);
        else if (c == 'n')
            steps = atoll(optarg);
        else if (c == 's')
            seconds = atof(optarg);
        else if (c == 'w')
            warm = atof(optarg);
        else if (c == 'v' && strlen(optarg) < 200)
            variable = optarg;
        else if (c == 'k')
            keep = true;
        else if (c == 'a')
            cluster = optarg;
        else
            return 2;
    }
    if ((optind == argc) == !cluster || clients < 1) {
        fprintf(stderr, "usage: counterbench [--clients N] [--steps N | --seconds S] [--warm S] [--variable NAME] [--keep] grpc://WORKER... | --as-worker CLUSTER\n");
        return 2;
    }
    trn_server *own = NULL;
    if (cluster) {
        trn_cluster *spec;
        check(trn_cluster_parse(&spec, cluster), "--as-worker");
        check(trn_server_create(&own, spec, "worker", 0), "--as-worker");
        trn_cluster_free(spec);
    }
    trn_session **session = calloc((size_t)clients, sizeof *session);
    pthread_t *thread = calloc((size_t)clients, sizeof *thread);
    for (int i = 0; i < clients; i++)
        session[i] = open_session(own, own ? trn_server_target(own) : argv[optind + i % (argc - optind)], variable);
    const char *init = "init";
    if (!keep)
        check(trn_session_run(session[0], &(trn_run){.targets = &init, .n_targets = 1}), "init");
    long long before = fetch(session[0], "now:0");

    double a = now(), cpu_a = cpu();
    long long warm_steps = 0;
    for (int i = 0; i < clients; i++)
        pthread_create(&thread[i], NULL, count, session[i]);
    if (!steps) {
        nap(warm);
        warm_steps = atomic_load(&done);
        a = now();
        cpu_a = cpu();
        nap(seconds);
    }
    double b = now(), cpu_b = cpu();
    long long measured = atomic_load(&done) - warm_steps;
    if (!steps)
        atomic_store(&stop, true);
    for (int i = 0; i < clients; i++)
        pthread_join(thread[i], NULL);
    if (steps) {
        b = now();
        cpu_b = cpu();
        measured = atomic_load(&done);
    }
    long long total = fetch(session[0], "now:0") - before, all = atomic_load(&done);
    printf("{\"clients\": %d, \"steps\": %lld, \"seconds\": %.3f, \"steps_per_s\": %.1f, \"p50_ms\": %.3f, \"cpu_s\": %.3f, \"counted\": %lld, \"total\": %lld}\n", clients, all,
        b - a, (double)measured / (b - a), median_ms(all), cpu_b - cpu_a, total, before + total);
    for (int i = 0; i < clients; i++)
        trn_err_free(trn_session_close(session[i]));
    free(session);
    free(thread);
    if (own)
        trn_server_close(own, 0);
    /* Somebody else may count too when the counter is kept. */
    return keep ? total < all : total != all;
}
