/* Who this program is in its cluster, from the flags that TensorFlow's trainers have always had, or from TF_CONFIG; and the program's own flags. */
#include <trainera/monitor.h>

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/base.h"
#include "cluster/cluster.h"

enum { MAX_CONFIG = 16 << 20 };

typedef struct cluster_flags {
    const char *ps_hosts, *worker_hosts, *chief_hosts, *job_name, *tf_config;
    int64_t task_index;
    bool help;
} cluster_flags;

enum { N_CLUSTER_FLAGS = 7 };

static void cluster_table(trn_flag out[N_CLUSTER_FLAGS + 1], cluster_flags *f)
{
    const trn_flag rows[N_CLUSTER_FLAGS + 1] = {
        {"ps_hosts", TRN_FLAG_STR, &f->ps_hosts, "host:port,… of the parameter servers, task 0 first; the same list on every task"},
        {"worker_hosts", TRN_FLAG_STR, &f->worker_hosts, "host:port,… of the workers"},
        {"chief_hosts", TRN_FLAG_STR, &f->chief_hosts, "host:port of the chief, where it is no worker; else worker 0 is the chief"},
        {"job_name", TRN_FLAG_STR, &f->job_name, "which of them this process is: ps, worker or chief; or coordinator, which needs no address"},
        {"task_index", TRN_FLAG_INT, &f->task_index, "its number in that list"},
        {"tf_config", TRN_FLAG_STR, &f->tf_config, "all of the above as TF_CONFIG has it: a file, or the JSON text itself; left out: the environment's TF_CONFIG"},
        {"help", TRN_FLAG_BOOL, &f->help, "this text"},
        {0},
    };
    memcpy(out, rows, sizeof rows);
}

/* ---- parsing -------------------------------------------------------------------------------------------------------- */

static bool same_name(const char *name, const char *word, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        char a = name[i] == '-' ? '_' : name[i], b = word[i] == '-' ? '_' : word[i];
        if (a != b) /* also when the name is over */
            return false;
    }
    return !name[n];
}

static const trn_flag *find_in(const trn_flag *table, const char *word, size_t n)
{
    for (const trn_flag *f = table; f && f->name; f++)
        if (same_name(f->name, word, n))
            return f;
    return NULL;
}

/* How many letters must change (Levenshtein), for short words. */
static size_t distance(const char *a, size_t na, const char *b)
{
    enum { MAX = 48 };
    size_t nb = strlen(b), row[MAX + 1];
    if (na > MAX || nb > MAX)
        return MAX;
    for (size_t j = 0; j <= nb; j++)
        row[j] = j;
    for (size_t i = 1; i <= na; i++) {
        size_t diag = row[0];
        row[0] = i;
        for (size_t j = 1; j <= nb; j++) {
            size_t change = diag + (a[i - 1] != b[j - 1]);
            diag = row[j];
            row[j] = TRN_MIN(change, TRN_MIN(row[j], row[j - 1]) + 1);
        }
    }
    return row[nb];
}

static trn_err unknown(const trn_flag *const *tables, const char *word, size_t n)
{
    const char *best = NULL;
    size_t least = 3;
    for (; *tables; tables++)
        for (const trn_flag *f = *tables; f->name; f++) {
            size_t d = distance(word, n, f->name);
            if (d < least) {
                least = d;
                best = f->name;
            }
        }
    if (best)
        return trn_errorf(TRN_INVALID_ARGUMENT, "unknown flag --%.*s; did you mean --%s?", (int)n, word, best);
    return trn_errorf(TRN_INVALID_ARGUMENT, "unknown flag --%.*s; --help shows those there are", (int)n, word);
}

static trn_err set_value(const trn_flag *f, const char *v)
{
    char *end;
    errno = 0;
    switch (f->kind) {
    case TRN_FLAG_STR:
        *(const char **)f->value = v;
        return TRN_OK;
    case TRN_FLAG_BOOL:
        if (!strcmp(v, "true") || !strcmp(v, "True") || !strcmp(v, "1") || !strcmp(v, "yes"))
            *(bool *)f->value = true;
        else if (!strcmp(v, "false") || !strcmp(v, "False") || !strcmp(v, "0") || !strcmp(v, "no"))
            *(bool *)f->value = false;
        else
            return trn_errorf(TRN_INVALID_ARGUMENT, "--%s=%s: true or false is expected", f->name, v);
        return TRN_OK;
    case TRN_FLAG_INT: {
        long long x = strtoll(v, &end, 10);
        if (end == v || *end || errno)
            return trn_errorf(TRN_INVALID_ARGUMENT, "--%s=%s: a whole number is expected", f->name, v);
        *(int64_t *)f->value = x;
        return TRN_OK;
    }
    case TRN_FLAG_FLOAT: {
        double x = strtod(v, &end);
        if (end == v || *end)
            return trn_errorf(TRN_INVALID_ARGUMENT, "--%s=%s: a number is expected", f->name, v);
        *(double *)f->value = x;
        return TRN_OK;
    }
    }
    return trn_errorf(TRN_INVALID_ARGUMENT, "flag --%s is of no known kind", f->name);
}

static trn_err parse(const trn_flag *own, const trn_flag *common, int argc, char **argv)
{
    const trn_flag *tables[3] = {own ? own : common, own ? common : NULL, NULL};
    for (int i = 1; i < argc; i++) {
        const char *name = argv[i];
        if (name[0] != '-' || !name[1] || isdigit((unsigned char)name[1]))
            return trn_errorf(TRN_INVALID_ARGUMENT, "'%s' is not expected here: flags begin with --", name);
        name += name[1] == '-' ? 2 : 1;
        size_t n = strcspn(name, "=");
        const char *value = name[n] ? name + n + 1 : NULL;
        const trn_flag *f = NULL;
        for (int k = 0; tables[k] && !f; k++)
            f = find_in(tables[k], name, n);
        if (!f && !value && n > 2 && !strncmp(name, "no", 2)) { /* --nosync */
            size_t skip = name[2] == '_' || name[2] == '-' ? 3 : 2;
            for (int k = 0; tables[k] && !f; k++)
                f = find_in(tables[k], name + skip, n - skip);
            if (f && f->kind == TRN_FLAG_BOOL)
                value = "false";
            else
                f = NULL;
        }
        if (!f)
            return unknown(tables, name, n);
        if (!value && f->kind == TRN_FLAG_BOOL)
            value = "true";
        if (!value) {
            if (i + 1 == argc)
                return trn_errorf(TRN_INVALID_ARGUMENT, "--%s needs a value: --%s=…", f->name, f->name);
            value = argv[++i];
        }
        TRN_TRY(set_value(f, value));
    }
    return TRN_OK;
}

/* ---- help ----------------------------------------------------------------------------------------------------------- */

static void help_rows(FILE *out, const trn_flag *table, bool defaults)
{
    for (const trn_flag *f = table; f && f->name; f++) {
        static const char *const args[] = {[TRN_FLAG_BOOL] = "", [TRN_FLAG_INT] = "=N", [TRN_FLAG_FLOAT] = "=X", [TRN_FLAG_STR] = "=…"};
        fprintf(out, "  --%s%s\n        %s", f->name, (unsigned)f->kind < TRN_COUNTOF(args) ? args[f->kind] : "", f->help ? f->help : "");
        if (defaults && f->kind == TRN_FLAG_INT)
            fprintf(out, " (%lld)", (long long)*(int64_t *)f->value);
        else if (defaults && f->kind == TRN_FLAG_FLOAT)
            fprintf(out, " (%g)", *(double *)f->value);
        else if (defaults && f->kind == TRN_FLAG_STR && *(const char **)f->value)
            fprintf(out, " (%s)", *(const char **)f->value);
        else if (defaults && f->kind == TRN_FLAG_BOOL)
            fprintf(out, " (%s)", *(bool *)f->value ? "true" : "false");
        fputc('\n', out);
    }
}

static void help(FILE *out, const char *program, const trn_flag *own, const trn_flag *common)
{
    const char *slash = strrchr(program, '/');
    const char *name = slash ? slash + 1 : program;
    fprintf(out, "%s [flags]\n\n", name);
    help_rows(out, own, true);
    if (own && own->name)
        fputc('\n', out);
    fprintf(out, "Which task of which cluster this is; without any of these the program trains alone, in one process:\n");
    help_rows(out, common, false);
    fprintf(out,
            "\nA cluster of one ps and two workers, each in a shell of its own:\n"
            "  %s --ps_hosts=localhost:2222 --worker_hosts=localhost:2223,localhost:2224 --job_name=ps     --task_index=0\n"
            "  %s --ps_hosts=localhost:2222 --worker_hosts=localhost:2223,localhost:2224 --job_name=worker --task_index=0\n"
            "  %s --ps_hosts=localhost:2222 --worker_hosts=localhost:2223,localhost:2224 --job_name=worker --task_index=1\n",
            name, name, name);
}

/* ---- the role ------------------------------------------------------------------------------------------------------- */

static trn_err read_file(trn_sb *out, const char *path)
{
    FILE *f = fopen(path, "rb");
    if (!f)
        return trn_err_errno(errno, "%s", path);
    char buf[4096];
    size_t n;
    while ((n = fread(buf, 1, sizeof buf, f)) > 0 && out->n <= MAX_CONFIG)
        trn_sb_add(out, buf, n);
    bool bad = ferror(f);
    fclose(f);
    if (bad)
        return trn_errorf(TRN_DATA_LOSS, "%s cannot be read to its end", path);
    if (out->n > MAX_CONFIG)
        return trn_errorf(TRN_INVALID_ARGUMENT, "%s has more than %d bytes", path, MAX_CONFIG);
    return TRN_OK;
}

static trn_err from_config(trn_cluster **out, const char *text_or_file)
{
    const char *p = text_or_file;
    while (isspace((unsigned char)*p))
        p++;
    if (*p == '{')
        return trn_cluster_from_tf_config(out, p, strlen(p));
    trn_sb text = {0};
    trn_err err = read_file(&text, text_or_file);
    if (!err) {
        err = trn_cluster_from_tf_config(out, text.p ? text.p : "", text.n);
        if (err)
            err = trn_err_wrap(err, "%s", text_or_file);
    }
    trn_sb_fini(&text);
    return err;
}

/* A coordinator serves nothing, so it needs no address: it may be no member of the cluster. */
static bool is_outside(const trn_cluster *c, const char *job)
{
    return job && !strcmp(job, "coordinator") && !trn_cluster_job_find(c, job);
}

static trn_err from_hosts(trn_cluster **out, const cluster_flags *f)
{
    trn_cluster_builder b = {0};
    const struct {
        const char *job, *hosts;
    } lists[] = {{"ps", f->ps_hosts}, {"worker", f->worker_hosts}, {"chief", f->chief_hosts}};
    trn_err err = TRN_OK;
    for (size_t i = 0; !err && i < TRN_COUNTOF(lists); i++)
        if (lists[i].hosts && *lists[i].hosts)
            err = trn_cluster_builder_list(&b, lists[i].job, lists[i].hosts);
    if (!err && !f->job_name)
        err = trn_errorf(TRN_INVALID_ARGUMENT, "--job_name is missing: is this a ps, a worker or the chief?");
    if (err) {
        trn_cluster_builder_fini(&b);
        return err;
    }
    trn_cluster *c;
    TRN_TRY(trn_cluster_builder_finish(&c, &b));
    if (is_outside(c, f->job_name)) {
        *out = c;
        return TRN_OK;
    }
    err = trn_cluster_as(out, c, f->job_name, (int32_t)(f->task_index < 0 ? 0 : f->task_index));
    trn_cluster_unref(c);
    return err;
}

static int tasks_of(const trn_cluster *c, const char *job)
{
    const trn_cluster_job *j = trn_cluster_job_find(c, job);
    return j ? j->n_tasks : 0;
}

static trn_err fill(trn_role *out, TRN_OWN trn_cluster *c, const char *job_flag)
{
    if (is_outside(c, job_flag)) {
        *out = (trn_role){.cluster = c, .job = "coordinator", .is_coordinator = true, .n_ps = tasks_of(c, "ps"), .n_workers = tasks_of(c, "worker")};
        return TRN_OK;
    }
    trn_role r = {.cluster = c, .task = c->own_task};
    if (!c->own_job || strlen(c->own_job) >= sizeof r.job) {
        trn_err err = c->own_job ? trn_errorf(TRN_INVALID_ARGUMENT, "the name of job %s is too long", c->own_job)
                                 : trn_errorf(TRN_INVALID_ARGUMENT, "the cluster does not say which task this is: a \"task\" is missing");
        trn_cluster_unref(c);
        return err;
    }
    strcpy(r.job, c->own_job);
    int chiefs = tasks_of(c, "chief") + tasks_of(c, "master");
    r.n_ps = tasks_of(c, "ps");
    r.n_workers = tasks_of(c, "worker") + chiefs;
    r.is_ps = !strcmp(r.job, "ps");
    bool named = !strcmp(r.job, "chief") || !strcmp(r.job, "master");
    r.is_chief = named || (!chiefs && !strcmp(r.job, "worker") && c->own_task == trn_cluster_job_find(c, "worker")->tasks[0].index);
    r.is_coordinator = named && r.n_ps > 0 && tasks_of(c, "worker") > 0;
    *out = r;
    return TRN_OK;
}

trn_err trn_flags_cluster(trn_role *out, int argc, char **argv, const trn_flag *own)
{
    cluster_flags f = {.task_index = -1};
    trn_flag common[N_CLUSTER_FLAGS + 1];
    cluster_table(common, &f);
    for (int i = 1; i < argc; i++) /* first, so that it shows the defaults */
        if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h") || !strcmp(argv[i], "-help")) {
            help(stdout, argv[0], own, common);
            exit(0);
        }
    TRN_TRY(parse(own, common, argc, argv));
    if (f.task_index > INT32_MAX)
        return trn_errorf(TRN_INVALID_ARGUMENT, "--task_index=%lld: there are no such tasks", (long long)f.task_index);
    bool hosts = (f.ps_hosts && *f.ps_hosts) || (f.worker_hosts && *f.worker_hosts) || (f.chief_hosts && *f.chief_hosts);
    const char *env = getenv("TF_CONFIG");
    if (hosts && f.tf_config)
        return trn_errorf(TRN_INVALID_ARGUMENT, "the cluster is given twice: use either --*_hosts or --tf_config");
    trn_cluster *c = NULL;
    if (hosts) {
        TRN_TRY(from_hosts(&c, &f));
    } else if (f.tf_config || (env && *env)) {
        TRN_TRY(from_config(&c, f.tf_config ? f.tf_config : env));
        if (!is_outside(c, f.job_name) && (f.job_name || f.task_index >= 0)) { /* flags win */
            trn_cluster *me;
            trn_err err = trn_cluster_as(&me, c, f.job_name ? f.job_name : c->own_job,
                                         f.task_index >= 0 ? (int32_t)f.task_index : f.job_name ? 0 : c->own_task);
            trn_cluster_unref(c);
            TRN_TRY(err);
            c = me;
        }
    } else if (f.job_name) {
        return trn_errorf(TRN_INVALID_ARGUMENT, "--job_name=%s without hosts: --ps_hosts and --worker_hosts say who is in the cluster", f.job_name);
    }
    if (!c) {
        *out = (trn_role){.is_chief = true, .n_workers = 1};
        return TRN_OK;
    }
    TRN_TRY(fill(out, c, f.job_name));
    char who[80];
    snprintf(who, sizeof who, "%s/%d", out->job, out->task);
    trn_log_set_task(who);
    return TRN_OK;
}

void trn_role_fini(trn_role *r)
{
    trn_cluster_unref(r->cluster);
    *r = (trn_role){0};
}
