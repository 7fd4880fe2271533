#include "cluster/slurm.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- host lists ------------------------------------------------------------------------------------------------------ */

typedef struct names {
    char **v;
    int n, cap;
} names;

void trn_slurm_hostlist_free(char **hosts, int n)
{
    for (int i = 0; i < n; i++)
        free(hosts[i]);
    free(hosts);
}

static trn_err bad_list(const char *text, const char *why) { return trn_errorf(TRN_INVALID_ARGUMENT, "host list '%.200s': %s", text, why); }

static trn_err push(names *out, const char *text, TRN_OWN char *name)
{
    if (out->n >= TRN_SLURM_MAX) {
        free(name);
        return bad_list(text, "more than 100000 hosts");
    }
    TRN_PUSH(out->v, out->n, out->cap, name);
    return TRN_OK;
}

static const char *digits(const char *p, const char *end, int64_t *v)
{
    const char *q = p;
    *v = 0;
    while (q < end && isdigit((unsigned char)*q) && q - p <= 12)
        *v = *v * 10 + (*q++ - '0');
    return q > p && q - p <= 12 ? q : NULL;
}

/* "1-2,05" between p and end: appends `rest` expanded to each of prefix + number. */
static trn_err expand(names *out, const char *text, const char *prefix, const char *p, const char *end);

static trn_err expand_range(names *out, const char *text, const char *prefix, const char *p, const char *close, const char *end)
{
    while (p < close) {
        int64_t a, b;
        const char *q = digits(p, close, &a);
        if (!q)
            return bad_list(text, "numbers are expected between [ and ]");
        int width = (int)(q - p);
        b = a;
        if (q < close && *q == '-') {
            q = digits(q + 1, close, &b);
            if (!q)
                return bad_list(text, "a number is expected after '-'");
        }
        if (b < a || b - a >= TRN_SLURM_MAX)
            return bad_list(text, "a range goes from small to large, and not too far");
        for (int64_t i = a; i <= b; i++) {
            char *name = trn_xasprintf("%s%0*lld", prefix, width, (long long)i);
            trn_err err = expand(out, text, name, close + 1, end);
            free(name);
            TRN_TRY(err);
        }
        if (q < close && *q != ',')
            return bad_list(text, "',' or ']' is expected after a number");
        p = q + 1;
        if (q < close && p == close)
            return bad_list(text, "a number is expected after ','");
    }
    return TRN_OK;
}

static trn_err expand(names *out, const char *text, const char *prefix, const char *p, const char *end)
{
    const char *open = memchr(p, '[', (size_t)(end - p));
    const char *stop = open ? open : end;
    if (memchr(p, ']', (size_t)(stop - p)))
        return bad_list(text, "']' without '['");
    char *name = trn_xasprintf("%s%.*s", prefix, (int)(stop - p), p);
    if (!open)
        return *name ? push(out, text, name) : (free(name), bad_list(text, "an empty name"));
    const char *close = memchr(open, ']', (size_t)(end - open));
    trn_err err = !close || memchr(open + 1, '[', (size_t)(close - open - 1)) ? bad_list(text, "'[' without ']'")
                  : close == open + 1                                         ? bad_list(text, "nothing between [ and ]")
                  : strlen(name) > 1000                                       ? bad_list(text, "a name of more than 1000 characters")
                                                                              : expand_range(out, text, name, open + 1, close, end);
    free(name);
    return err;
}

trn_err trn_slurm_hostlist(char ***out, int *n, const char *text)
{
    names v = {0};
    trn_err err = TRN_OK;
    for (const char *p = text; !err;) {
        const char *q = p;
        int brackets = 0;
        for (; *q && (*q != ',' || brackets); q++)
            brackets += *q == '[' ? 1 : *q == ']' ? -1 : 0;
        for (int k = 0, depth = 0; !err && p + k < q; k++) /* many ranges in one name would multiply */
            if (p[k] == '[' && ++depth > 4)
                err = bad_list(text, "more than four ranges in a name");
        if (!err)
            err = expand(&v, text, "", p, q);
        if (!*q)
            break;
        p = q + 1;
    }
    if (err) {
        trn_slurm_hostlist_free(v.v, v.n);
        return err;
    }
    *out = v.v;
    *n = v.n;
    return TRN_OK;
}

trn_err trn_slurm_counts(int **out, int *n, const char *text)
{
    int *v = NULL, count = 0, cap = 0;
    for (const char *p = text, *end = text + strlen(text);;) {
        int64_t tasks, times = 1;
        const char *q = digits(p, end, &tasks);
        if (q && q[0] == '(' && q[1] == 'x') {
            q = digits(q + 2, end, &times);
            if (q && *q == ')')
                q++;
            else
                q = NULL;
        }
        if (!q || (*q && *q != ',') || tasks > TRN_SLURM_MAX || times < 1 || times > TRN_SLURM_MAX - count) {
            free(v);
            return trn_errorf(TRN_INVALID_ARGUMENT, "tasks per node '%.200s': numbers like 4,2(x3) are expected", text);
        }
        for (int64_t i = 0; i < times; i++)
            TRN_PUSH(v, count, cap, (int)tasks);
        if (!*q)
            break;
        p = q + 1;
    }
    *out = v;
    *n = count;
    return TRN_OK;
}

/* ---- the step --------------------------------------------------------------------------------------------------------- */

bool trn_slurm_is_step(trn_slurm_env env)
{
    const char *n = env("SLURM_STEP_NUM_TASKS");
    return n && atoi(n) > 1 && env("SLURM_STEP_NODELIST") && env("SLURM_PROCID");
}

static trn_err number(int *out, trn_slurm_env env, const char *name)
{
    const char *text = env(name);
    int64_t v;
    if (!text)
        return trn_errorf(TRN_FAILED_PRECONDITION, "%s is not set: this is no task of a Slurm job step (srun)", name);
    const char *q = digits(text, text + strlen(text), &v);
    if (!q || *q || v > TRN_SLURM_MAX)
        return trn_errorf(TRN_INVALID_ARGUMENT, "%s=%.100s: a number is expected", name, text);
    *out = (int)v;
    return TRN_OK;
}

static trn_err read_ports(int **out, int *n, const char *text)
{
    char *list = trn_xasprintf("[%s]", text);
    char **words = NULL;
    trn_err err = trn_slurm_hostlist(&words, n, list);
    free(list);
    if (err) {
        trn_err_free(err);
        return trn_errorf(TRN_INVALID_ARGUMENT, "SLURM_STEP_RESV_PORTS=%.100s: ports like 12000-12003 are expected", text);
    }
    *out = trn_xalloc(sizeof **out * (size_t)*n);
    for (int i = 0; i < *n; i++)
        (*out)[i] = atoi(words[i]);
    trn_slurm_hostlist_free(words, *n);
    return TRN_OK;
}

static trn_err place(trn_slurm *s, const int *counts, const int *ports, int n_ports, int port_base)
{
    for (int node = 0; node < s->n_nodes; node++)
        for (int k = 0; k < counts[node]; k++) {
            int port = ports ? k < n_ports ? ports[k] : 0 : port_base + k;
            if (port <= 0 || port > 65535)
                return trn_errorf(TRN_INVALID_ARGUMENT, "task %d of node %s has no port: %d are reserved, it has %d tasks", k, s->hosts[node], n_ports, counts[node]);
            s->tasks[s->n_tasks++] = (trn_slurm_task){s->hosts[node], node, k, port};
        }
    return TRN_OK;
}

static trn_err read_step(trn_slurm *s, trn_slurm_env env, int port_base)
{
    int n_tasks, n_counts = 0, n_ports = 0, total = 0, *counts = NULL, *ports = NULL;
    TRN_TRY(number(&n_tasks, env, "SLURM_STEP_NUM_TASKS"));
    TRN_TRY(number(&s->self, env, "SLURM_PROCID"));
    const char *nodes = env("SLURM_STEP_NODELIST"), *per_node = env("SLURM_STEP_TASKS_PER_NODE"), *resv = env("SLURM_STEP_RESV_PORTS");
    if (!nodes || !per_node)
        return trn_errorf(TRN_FAILED_PRECONDITION, "%s is not set: this is no task of a Slurm job step (srun)",
                          nodes ? "SLURM_STEP_TASKS_PER_NODE" : "SLURM_STEP_NODELIST");
    TRN_TRY(trn_slurm_hostlist(&s->hosts, &s->n_nodes, nodes));
    TRN_TRY(trn_slurm_counts(&counts, &n_counts, per_node));
    for (int i = 0; i < n_counts && total <= TRN_SLURM_MAX; i++)
        total += counts[i];
    trn_err err = TRN_OK;
    if (n_counts != s->n_nodes)
        err = trn_errorf(TRN_INVALID_ARGUMENT, "SLURM_STEP_NODELIST=%.200s names %d nodes, SLURM_STEP_TASKS_PER_NODE=%.200s has %d", nodes, s->n_nodes, per_node, n_counts);
    else if (total != n_tasks || s->self >= n_tasks)
        err = trn_errorf(TRN_INVALID_ARGUMENT, "task %d of %d (SLURM_PROCID, SLURM_STEP_NUM_TASKS), but %.200s are %d tasks", s->self, n_tasks, per_node, total);
    if (!err && resv && *resv && port_base < 0)
        err = read_ports(&ports, &n_ports, resv);
    s->tasks = trn_xalloc(sizeof *s->tasks * (size_t)(n_tasks + 1));
    if (!err)
        err = place(s, counts, ports, n_ports, port_base < 0 ? TRN_SLURM_PORT_BASE : port_base);
    free(counts);
    free(ports);
    TRN_TRY(err);
    int local, node;
    bool known = env("SLURM_LOCALID") && env("SLURM_NODEID");
    if (known) {
        TRN_TRY(number(&local, env, "SLURM_LOCALID"));
        TRN_TRY(number(&node, env, "SLURM_NODEID"));
        if (local != s->tasks[s->self].local || node != s->tasks[s->self].node)
            return trn_errorf(TRN_FAILED_PRECONDITION, "task %d is number %d on node %d, where number %d on node %d was expected: start the step with srun -m block (not cyclic)",
                              s->self, local, node, s->tasks[s->self].local, s->tasks[s->self].node);
    }
    const char *how = env("SLURM_DISTRIBUTION"); /* all tasks see it, also those that would be where they are expected */
    if (how && *how && strncmp(how, "block", 5) != 0)
        return trn_errorf(TRN_FAILED_PRECONDITION, "tasks are distributed over the nodes as '%.50s': start the step with srun -m block", how);
    const char *job = env("SLURM_JOB_ID"), *step = env("SLURM_STEP_ID");
    s->id = trn_xasprintf("slurm-%.20s.%.20s", job ? job : "0", step ? step : "0");
    return TRN_OK;
}

trn_err trn_slurm_read(trn_slurm *out, trn_slurm_env env, int port_base)
{
    trn_slurm s = {0};
    trn_err err = read_step(&s, env, port_base);
    if (err) {
        trn_slurm_fini(&s);
        return trn_err_wrap(err, "Slurm");
    }
    *out = s;
    return TRN_OK;
}

void trn_slurm_fini(trn_slurm *s)
{
    trn_slurm_hostlist_free(s->hosts, s->n_nodes);
    free(s->tasks);
    free(s->id);
    *s = (trn_slurm){0};
}
