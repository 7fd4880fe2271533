/* trainera init: ready files for schedulers, written to be read and changed. */
#include <stdio.h>
#include <stdlib.h>

#include "cli/cli.h"

typedef struct options {
    int64_t ps, workers, nodes, tasks_per_node, port;
    const char *name, *output, *image, *hosts, *dir;
    cli_list command;
} options;

#define ROW(field) offsetof(options, field)
static const cli_flag flags[] = {
    {"ps", "N", "How many ps tasks; 1 when left out.", CLI_INT, ROW(ps), 1, 10000},
    {"workers", "N", "condor, k8s, ssh: how many workers; 2 when left out.", CLI_INT, ROW(workers), 1, 10000},
    {"nodes", "N", "slurm: how many nodes; 2 when left out.", CLI_INT, ROW(nodes), 1, 100000},
    {"tasks-per-node", "N", "slurm: tasks on each of them, ps and workers together; 4 when left out.", CLI_INT, ROW(tasks_per_node), 1, 10000},
    {"name", "NAME", "Of the job; trainera when left out.", CLI_TEXT, ROW(name)},
    {"image", "IMAGE", "k8s: a container image with trainera and the program.", CLI_TEXT, ROW(image)},
    {"hosts", "HOST,…", "ssh: the machines; the first --ps of them also run a ps each.", CLI_TEXT, ROW(hosts)},
    {"port", "N", "k8s, ssh: the first port; 2222 when left out.", CLI_INT, ROW(port), 1, 65000},
    {"dir", "DIR", "condor: the shared folder to meet in; the submit folder when left out.", CLI_TEXT, ROW(dir)},
    {"output", "FILE", "Written there instead of to stdout.", CLI_TEXT, ROW(output)},
    {0},
};

/* A word that no shell and no submit file takes for more than it is. {name} is ours to fill in, {a,b} would be a shell's. */
static bool is_plain(const char *word)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=.,/:@%";
    for (const char *p = word; *p; p++) {
        if (*p == '{') {
            p += 1 + strspn(p + 1, "abcdefghijklmnopqrstuvwxyz_");
            if (*p != '}')
                return false;
        } else if (!strchr(plain, *p))
            return false;
    }
    return *word != 0;
}

/* Words that need no quotes stay as they are. `quote` stands for a ' inside '…': '\'' in a shell, '' in a submit file of HTCondor. */
static void quoted(trn_sb *out, const char *word, const char *quote)
{
    if (is_plain(word)) {
        trn_sb_adds(out, word);
        return;
    }
    trn_sb_adds(out, "'");
    for (const char *p = word; *p; p++)
        trn_sb_adds(out, *p == '\'' ? quote : (char[]){*p, 0});
    trn_sb_adds(out, "'");
}

static char *command_line(const options *o, const char *quote)
{
    static const char *const example[] = {"python", "trainer.py", "--ps_hosts={ps_hosts}", "--worker_hosts={worker_hosts}", "--job_name={job_name}", "--task_index={task_index}"};
    const char *const *v = o->command.n ? o->command.v : example;
    int n = o->command.n ? o->command.n : (int)TRN_COUNTOF(example);
    trn_sb s = {0};
    for (int i = 0; i < n; i++) {
        trn_sb_adds(&s, i ? " " : "");
        quoted(&s, v[i], quote);
    }
    return s.p;
}

/* `text` with every `c` replaced; to be freed. */
static char *replaced(const char *text, char c, const char *by)
{
    trn_sb s = {0};
    trn_sb_adds(&s, "");
    for (const char *p = text; *p; p++)
        trn_sb_adds(&s, *p == c ? by : (char[]){*p, 0});
    return s.p;
}

/* A file of lines has no way to write a line break within one. */
static trn_err one_line(const char *text)
{
    return strchr(text, '\n') ? trn_errorf(TRN_INVALID_ARGUMENT, "a line break in the command cannot be written in such a file: put it into a script of its own") : TRN_OK;
}

static trn_err slurm(trn_sb *s, const options *o, const char *command)
{
    int64_t tasks = o->nodes * o->tasks_per_node;
    if (o->ps >= tasks)
        return trn_errorf(TRN_INVALID_ARGUMENT, "%lld tasks, of which %lld are ps: nobody is left to work", (long long)tasks, (long long)o->ps);
    trn_sb_addf(s,
                "#!/bin/bash\n"
                "# %lld ps and %lld workers on %lld nodes: sbatch this file.\n"
                "#SBATCH --job-name=%s\n"
                "#SBATCH --nodes=%lld\n"
                "#SBATCH --ntasks-per-node=%lld\n"
                "#SBATCH --output=%%x-%%j.out\n"
                "\n"
                "# Every task finds its role and everybody's address from the step's variables; the first tasks are the ps.\n"
                "#   --spread-ps           one ps per node instead\n"
                "#   --roles ps,worker,…   one word per task, node by node\n"
                "#   srun --resv-ports     ports from Slurm, when several jobs share nodes (MpiParams=ports=… in slurm.conf)\n"
                "# The ps end when the workers have ended; one failed task ends the job with its exit code.\n"
                "srun --kill-on-bad-exit=0 --distribution=block trainera launch --ps %lld --log-dir= -- \\\n"
                "    %s\n",
                (long long)o->ps, (long long)(tasks - o->ps), (long long)o->nodes, o->name, (long long)o->nodes, (long long)o->tasks_per_node, (long long)o->ps, command);
    return TRN_OK;
}

static trn_err condor(trn_sb *s, const options *o, const char *command)
{
    long long tasks = (long long)(o->ps + o->workers);
    TRN_TRY(one_line(command));
    TRN_TRY(one_line(o->dir ? o->dir : ""));
    /* $(x) and $FUNCTION(x) are macros of a submit file, $(DOLLAR) is a $. The whole stands in ", so each " in it is doubled. */
    char *dollars = replaced(command, '$', "$(DOLLAR)"), *args = replaced(dollars, '"', "\"\""), *dir = o->dir ? replaced(o->dir, '$', "$(DOLLAR)") : NULL;
    trn_sb meet = {0};
    if (dir) {
        char *doubled = replaced(dir, '"', "\"\"");
        quoted(&meet, doubled, "''");
        free(doubled);
    } else
        trn_sb_adds(&meet, "'$ENV(PWD)/meet'");
    trn_sb_addf(s,
                "# %lld ps and %lld workers: condor_submit this file. They meet in a folder that all machines share.\n"
                "universe                = vanilla\n"
                "executable              = /usr/bin/env\n"
                "arguments               = \"trainera launch --rendezvous %s --job-id condor-$(ClusterId) --tasks %lld --index $(Process) --ps %lld --log-dir= -- %s\"\n"
                "getenv                  = true\n"
                "should_transfer_files   = IF_NEEDED\n"
                "log                     = %s.$(ClusterId).log\n"
                "output                  = %s.$(ClusterId).$(Process).out\n"
                "error                   = %s.$(ClusterId).$(Process).err\n"
                "request_cpus            = 1\n"
                "# All must run at the same time; give up after a while if the pool has no room for all of them:\n"
                "#   --wait-timeout 3600 after --tasks, and\n"
                "# periodic_remove       = JobStatus == 1 && time() - QDate > 3600\n"
                "queue %lld\n",
                (long long)o->ps, (long long)o->workers, meet.p, tasks, (long long)o->ps, args, o->name, o->name, o->name, tasks);
    trn_sb_fini(&meet);
    free(dir);
    free(args);
    free(dollars);
    return TRN_OK;
}

static void host_list(trn_sb *s, const char *name, const char *job, int64_t n, long long port)
{
    for (int i = 0; i < n; i++)
        trn_sb_addf(s, "%s\"%s-%s-%d.%s:%lld\"", i ? ", " : "", name, job, i, name, port);
}

/* The names that are made of it have to be DNS labels of up to 63 characters; StatefulSets also put a hash behind them. */
static trn_err dns_label(const char *name)
{
    static const char lower[] = "abcdefghijklmnopqrstuvwxyz", rest[] = "abcdefghijklmnopqrstuvwxyz0123456789-";
    size_t n = strlen(name);
    if (n == 0 || n > 40 || !strchr(lower, name[0]) || strspn(name, rest) != n || name[n - 1] == '-')
        return trn_errorf(TRN_INVALID_ARGUMENT, "--name=%s cannot be a name in Kubernetes: up to 40 of a-z, 0-9 and -, a letter first, no - last", name);
    return TRN_OK;
}

static trn_err k8s(trn_sb *s, const options *o, const char *command)
{
    TRN_TRY(dns_label(o->name));
    TRN_TRY(one_line(command));
    if (o->image && (!*o->image || o->image[strcspn(o->image, " \t\n\"'#{}[],&*!|>%`")]))
        return trn_errorf(TRN_INVALID_ARGUMENT, "--image=%s is no name of an image", o->image);
    /* Kubernetes looks for $(NAME) in a container's command, and takes $$ for a $. */
    char *escaped = strstr(command, "$(") || strstr(command, "$$") ? replaced(command, '$', "$$") : replaced(command, 0, "");
    trn_sb spec = {0};
    long long port = (long long)o->port;
    trn_sb_adds(&spec, "{\"ps\": [");
    host_list(&spec, o->name, "ps", o->ps, port);
    trn_sb_adds(&spec, "], \"worker\": [");
    host_list(&spec, o->name, "worker", o->workers, port);
    trn_sb_adds(&spec, "]}");
    trn_sb_addf(s,
                "# %lld ps and %lld workers: kubectl apply -f this file.\n"
                "# Names are stable (StatefulSets behind a headless service) and are resolved again on every reconnect, so pods may move.\n"
                "apiVersion: v1\nkind: Service\nmetadata: {name: %s}\nspec:\n  clusterIP: None\n  publishNotReadyAddresses: true\n  selector: {app: %s}\n"
                "  ports: [{name: grpc, port: %lld}]\n"
                "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: %s}\ndata:\n  spec.json: '%s'\n",
                (long long)o->ps, (long long)o->workers, o->name, o->name, port, o->name, spec.p);
    trn_sb_fini(&spec);
    for (int w = 0; w < 2; w++) {
        const char *job = w ? "worker" : "ps";
        trn_sb_addf(s,
                    "---\napiVersion: apps/v1\nkind: StatefulSet\nmetadata: {name: %s-%s}\nspec:\n  serviceName: %s\n  replicas: %lld\n  podManagementPolicy: Parallel\n"
                    "  selector: {matchLabels: {app: %s, role: %s}}\n  template:\n    metadata: {labels: {app: %s, role: %s}}\n    spec:\n"
                    "      terminationGracePeriodSeconds: 30\n      containers:\n      - name: %s\n        image: %s\n        command: [\"/bin/sh\", \"-c\"]\n        args:\n        - |\n",
                    o->name, job, o->name, (long long)(w ? o->workers : o->ps), o->name, job, o->name, job, job, o->image ? o->image : "IMAGE");
        if (w)
            trn_sb_addf(s,
                        "          trainera launch --cluster_spec=@/etc/trainera/spec.json --job_name=worker --task_index=${HOSTNAME##*-} --log-dir= -- \\\n"
                        "            %s\n"
                        "          # A StatefulSet starts what has ended again; a finished worker stays, idle, until: kubectl delete -f this file\n"
                        "          code=$?; [ $code = 0 ] && exec sleep infinity; exit $code\n",
                        escaped);
        else
            trn_sb_adds(s, "          exec trainera serve --cluster_spec=@/etc/trainera/spec.json --job_name=ps --task_index=${HOSTNAME##*-} --bind=\"\"\n");
        trn_sb_addf(s, "        ports: [{containerPort: %lld}]\n        volumeMounts: [{name: spec, mountPath: /etc/trainera}]\n", port);
        if (!w)
            trn_sb_addf(s,
                        "        readinessProbe: {httpGet: {path: /healthz, port: %lld}, periodSeconds: 5}\n"
                        "        livenessProbe: {httpGet: {path: /healthz, port: %lld}, periodSeconds: 20, failureThreshold: 6}\n",
                        port, port);
        trn_sb_addf(s, "      volumes: [{name: spec, configMap: {name: %s}}]\n", o->name);
    }
    free(escaped);
    return TRN_OK;
}

static trn_err ssh(trn_sb *s, const options *o, const char *command)
{
    const char *hosts = o->hosts ? o->hosts : "host1,host2";
    trn_sb_addf(s,
                "#!/bin/bash\n"
                "# %lld ps and %lld workers on machines that ssh reaches without a password. Ends with the first failure's exit code; Ctrl-C ends all.\n"
                "hosts=(%s)\nps=%lld workers=%lld port=%lld id=%s-$$\n",
                (long long)o->ps, (long long)o->workers, hosts, (long long)o->ps, (long long)o->workers, (long long)o->port, o->name);
    for (char *p = s->p; (p = strchr(p, ','));) /* in the array only: nothing before it has a comma */
        *p = ' ';
    trn_sb_addf(s,
                "\n"
                "list() { local n=$1 first=$2 i; for ((i = 0; i < n; i++)); do printf '%%s\"%%s:%%d\"' \"${i:+,}\" \"${hosts[i %% ${#hosts[@]}]}\" $((first + i / ${#hosts[@]})); done | sed 's/^,//'; }\n"
                "spec=\"{\\\"ps\\\": [$(list $ps $port)], \\\"worker\\\": [$(list $workers $((port + 100)))]}\"\n"
                "start() { # job index host\n"
                "    # -tt: the remote launcher gets SIGHUP when this script ends, and ends its task\n"
                "    ssh -tt -o BatchMode=yes \"$3\" \"cd '$PWD' && exec trainera launch --cluster_spec='$spec' --job_name=$1 --task_index=$2 --job-id=$id --log-dir= -- $command\" </dev/null 2>&1 &\n"
                "    pids+=($!)\n"
                "}\n"
                "command=$(cat <<'END'\n%s\nEND\n)\n"
                "pids=()\n"
                "end() { kill \"${pids[@]}\" 2>/dev/null; }\n"
                "trap 'end; exit 130' INT\n"
                "trap 'end; exit 143' TERM HUP\n"
                "for ((i = 0; i < ps; i++)); do start ps $i \"${hosts[i %% ${#hosts[@]}]}\"; done\n"
                "for ((i = 0; i < workers; i++)); do start worker $i \"${hosts[i %% ${#hosts[@]}]}\"; done\n"
                "# One that fails, even before it could tell the others, ends all.\n"
                "code=0\n"
                "for _ in \"${pids[@]}\"; do wait -n || { c=$?; [ $code = 0 ] && code=$c && end; }; done\n"
                "exit $code\n",
                command);
    return TRN_OK;
}

static const struct {
    const char *name;
    trn_err (*write)(trn_sb *s, const options *o, const char *command);
} kinds[] = {{"slurm", slurm}, {"condor", condor}, {"k8s", k8s}, {"ssh", ssh}};

static const char *kind_name(const void *table, int i) { return i < (int)TRN_COUNTOF(kinds) ? kinds[i].name : NULL; }

static trn_err write_kind(const options *o, const char *kind)
{
    /* Part of file names, and of lines that a shell reads. */
    if (!*o->name || !is_plain(o->name) || strpbrk(o->name, "/{%"))
        return trn_errorf(TRN_INVALID_ARGUMENT, "--name='%s' is no name for a job", o->name);
    if (o->hosts && o->hosts[strcspn(o->hosts, " \t\n\"'`$(){}&|;<>*?!#\\")])
        return trn_errorf(TRN_INVALID_ARGUMENT, "--hosts=%s: names or addresses with commas between them", o->hosts);
    for (size_t i = 0; i < TRN_COUNTOF(kinds); i++)
        if (strcmp(kind, kinds[i].name) == 0) {
            trn_sb s = {0};
            char *command = command_line(o, kinds[i].write == condor ? "''" : "'\\''");
            trn_err err = kinds[i].write(&s, o, command);
            free(command);
            if (!err && o->output)
                err = cli_write_file(o->output, s.p);
            else if (!err)
                fputs(s.p, stdout);
            trn_sb_fini(&s);
            return err;
        }
    const char *near = cli_nearest(kind, strlen(kind), kind_name, NULL);
    return trn_errorf(TRN_INVALID_ARGUMENT, near ? "'%s' is none of slurm, condor, k8s, ssh; did you mean '%s'?" : "'%s' is none of slurm, condor, k8s, ssh", kind, near);
}

static int run(int argc, char **argv)
{
    options o = {.ps = 1, .workers = 2, .nodes = 2, .tasks_per_node = 4, .port = 2222, .name = "trainera"};
    cli_list rest = {0};
    int n_flags = 0;
    while (n_flags < argc && strcmp(argv[n_flags], "--") != 0)
        n_flags++;
    int code = CLI_USAGE;
    trn_err err = cli_parse(&o, flags, n_flags, argv, &rest);
    for (int i = n_flags + 1; i < argc; i++)
        TRN_PUSH(o.command.v, o.command.n, o.command.cap, (const char *)argv[i]);
    if (!err && rest.n != 1)
        err = trn_errorf(TRN_INVALID_ARGUMENT, "for which scheduler? trainera init slurm|condor|k8s|ssh");
    if (!err) {
        err = write_kind(&o, rest.v[0]);
        code = CLI_FAILED;
    }
    free(rest.v);
    free(o.command.v);
    return err ? cli_fail(err, code) : CLI_OK;
}

const cli_command cli_init = {
    .name = "init",
    .usage = "slurm|condor|k8s|ssh [--ps 2 …] -- python trainer.py …",
    .summary = "Writes a ready job file for Slurm, HTCondor, Kubernetes, or a script for plain hosts.",
    .details = "  trainera init slurm --nodes 2 --tasks-per-node 4 --ps 2 -- python trainer.py >job.sbatch; sbatch job.sbatch\n"
               "  trainera init condor --workers 4 --dir /shared/meet -- python trainer.py >job.sub; condor_submit job.sub\n"
               "  trainera init k8s --image registry/trainer --workers 4 -- python trainer.py | kubectl apply -f -\n"
               "  trainera init ssh --hosts alpha,beta -- python trainer.py >job.sh; bash job.sh\n"
               "\n"
               "The files say in comments what can be changed. {ps_hosts}, {task_index} … in the command are filled in when it runs,\n"
               "see trainera help launch. Exit code: 0, 1 could not write, 2 wrong flags.\n",
    .flags = flags,
    .run = run,
};
