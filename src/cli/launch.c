/* trainera launch: the flags and the order of things; launch.h tells the rest. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "cli/launch.h"
#include "cluster/meet.h"

enum { MAX_TASKS = 512 };

#define ROW(field) offsetof(launch_options, field)
static const cli_flag flags[] = {
    {"ps", "N", "How many ps tasks; 1 when left out. They are native servers of this program.", CLI_INT, ROW(ps), 0, MAX_TASKS},
    {"workers", "N", "How many workers, each a process of the command; 2 when left out.", CLI_INT, ROW(workers), 0, MAX_TASKS},
    {"chief", NULL, "Also a chief task (a job of its own in TF_CONFIG); without it worker 0 usually is the chief.", CLI_BOOL, ROW(chief)},
    {"evaluator", NULL, "Also an evaluator, which is no member of the cluster.", CLI_BOOL, ROW(evaluator)},
    {"native-workers", NULL,
     "tf.train.Server and tf.distribute.Server in the program become native servers too, so that its sessions run on Trainera (a module on PYTHONPATH).",
     CLI_BOOL, ROW(native_workers)},
    {"max-restarts", "N", "How often each task that failed is started again; 0 when left out.", CLI_INT, ROW(max_restarts), 0, 1000000},
    {"keep-going", NULL, "When a worker has failed for good, the others go on; left out: they are ended.", CLI_BOOL, ROW(keep_going)},
    {"end-with-chief", NULL, "When the chief ends with 0 the job is done: workers that only serve are ended.", CLI_BOOL, ROW(end_with_chief)},
    {"leave-early", NULL,
     "With one launcher per task: end as soon as the own program has; left out, a small server stands in for it until all programs of the job are done, so that "
     "sessions of TensorFlow that wait for every task do not wait for ever.",
     CLI_BOOL, ROW(leave_early)},
    {"grace", "SECONDS", "From SIGTERM to SIGKILL when the job is ended; 4 when left out.", CLI_INT, ROW(grace), 0, 86400},
    {"log-dir", "DIR", "Where each task's output is kept, as worker-1.log; trainera-logs/TIME-PID when left out, none when empty.", CLI_TEXT, ROW(log_dir)},
    {"terminal", "TASK",
     "This task, say worker/0, has the terminal to itself, as if it were started alone: a progress bar or a debugger works. The other programs' lines go to "
     "their logs only, and the last ones of a program that fails are shown.",
     CLI_TEXT, ROW(terminal)},
    {"color", "WHEN", "Coloured task names: auto, always or never.", CLI_TEXT, ROW(color)},
    {"log-level", "LEVEL", "Of the native servers: debug, info, warn, error or off; warn when left out.", CLI_TEXT, ROW(log_level)},
    {"intra_op_parallelism_threads", "N", "For every native server, see trainera help serve.", CLI_INT, ROW(intra), 0, 4096},
    {"inter_op_parallelism_threads", "N", "For every native server, see trainera help serve.", CLI_INT, ROW(inter), 0, 4096},
    {"allow-path", "DIR", "For every native server, see trainera help serve.", CLI_LIST, ROW(allow_paths)},
    {"rendezvous", "DIR|tcp://HOST:PORT",
     "One launcher per task, wherever they run; they meet in a shared folder, or at a port of one of their machines, and tell each other their addresses.",
     CLI_TEXT, ROW(rendezvous)},
    {"tasks", "N", "With --rendezvous: how many launchers there are, ps and all.", CLI_INT, ROW(tasks), 1, 10000},
    {"index", "N", "With --rendezvous: which of them this is, from 0.", CLI_INT, ROW(index), 0, 9999},
    {"job-id", "ID", "Tells jobs apart that meet in one place; 'job' when left out. In Slurm it is made from the job's number.", CLI_TEXT, ROW(job_id)},
    {"roles", "ROLE,…", "What each task is, one word per task in their order: ps,worker,worker,ps,worker,worker. Left out: the first --ps tasks are ps.", CLI_TEXT,
     ROW(roles)},
    {"spread-ps", NULL, "In Slurm: the first task of every node is a ps, until there are --ps of them.", CLI_BOOL, ROW(spread_ps)},
    {"cluster_spec", "JSON|@FILE|TF_CONFIG", "One launcher per task, at addresses that are known; --job_name and --task_index say which this is.", CLI_TEXT,
     ROW(cluster_spec)},
    {"job_name", "NAME", "With --cluster_spec: the job of this task.", CLI_TEXT, ROW(job_name)},
    {"task_index", "N", "With --cluster_spec: its number.", CLI_INT, ROW(task_index), 0, INT32_MAX},
    {"interface", "NAME|NETWORK", "With --rendezvous: which network the others reach us by: ib0, 10.1.0.0/16.", CLI_TEXT, ROW(interface)},
    {"host", "HOST", "With --rendezvous: our name or address for the others.", CLI_TEXT, ROW(host)},
    {"port-base", "N", "In Slurm: the first port of a node, 8888 when left out as in TensorFlow's SlurmClusterResolver. With --rendezvous: a fixed port, N + index.",
     CLI_INT, ROW(port_base), 1, 65535},
    {"slurm", "0|1", "0: never look at Slurm's variables; 1: fail when they are not there. Left out: used in a job step of several tasks.", CLI_INT, ROW(slurm), 0, 1},
    {"wait-timeout", "SECONDS", "How long to wait for the others to come, 0 for ever; 600 when left out.", CLI_INT, ROW(wait_timeout), 0, 86400 * 30},
    {"peer-timeout", "SECONDS", "How long one that ran may be silent before the job is given up, 0 for ever; 60 when left out.", CLI_INT, ROW(peer_timeout), 0, 86400 * 30},
    {"done-queue", "NAME", "For every ps, see trainera help serve.", CLI_TEXT, ROW(done_queue)},
    {"done-count", "N", "For every ps, see trainera help serve.", CLI_INT, ROW(done_count), 1, INT32_MAX},
    {0},
};

static volatile sig_atomic_t interrupted;
static void on_interrupt(int sig) { interrupted = sig; }

int launch_interrupted(void) { return interrupted; }

static trn_err give_terminal(launch_job *j)
{
    if (!j->o->terminal)
        return TRN_OK;
    bool found = false;
    for (int i = 0; i < j->n; i++)
        if (strcmp(j->tasks[i].name, j->o->terminal) == 0) {
            found = true;
            j->tasks[i].terminal = j->tasks[i].mine;
        }
    j->quiet = true;
    return found ? TRN_OK : trn_errorf(TRN_INVALID_ARGUMENT, "--terminal=%s: the job has no such task; %s is one", j->o->terminal, j->tasks[j->n - 1].name);
}

static trn_err prepare(launch_job *j)
{
    /* Until the keeper is there a signal only has to be remembered: waits look at it, and what was announced is taken back. */
    struct sigaction a = {.sa_handler = on_interrupt};
    sigaction(SIGINT, &a, NULL);
    sigaction(SIGTERM, &a, NULL);
    sigaction(SIGHUP, &a, NULL);
    TRN_TRY(launch_find_cluster(j));
    TRN_TRY(give_terminal(j));
    TRN_TRY(launch_log_open(j));
    if (j->o->native_workers)
        TRN_TRY(launch_py_write(&j->py_dir));
    return TRN_OK;
}

static void introduce(const launch_job *j)
{
    launch_say(j, "cluster %s", j->spec);
    for (int i = 0; j->alone && i < j->n; i++)
        if (j->tasks[i].server) {
            launch_say(j, "http://%s/ shows the job while it runs", j->tasks[i].address);
            break;
        }
    if (j->log_dir)
        launch_say(j, "logs in %s", j->log_dir);
}

static int run(int argc, char **argv)
{
    /* Static: what is left at the end goes with the process, and a leak checker still sees whose it is. */
    static launch_options o;
    static launch_job j;
    o = (launch_options){.ps = 1, .workers = -1, .slurm = -1, .grace = 4, .intra = -1, .inter = -1, .tasks = -1, .index = -1, .port_base = -1, .task_index = -1,
                        .wait_timeout = 600, .peer_timeout = 60};
    j = (launch_job){.o = &o, .name_width = 6};
    int n_flags = 0;
    while (n_flags < argc && strcmp(argv[n_flags], "--") != 0)
        n_flags++;
    int code = CLI_USAGE;
    trn_err err = cli_parse(&o, flags, n_flags, argv, NULL);
    if (!err && n_flags + 1 >= argc)
        err = trn_errorf(TRN_INVALID_ARGUMENT, "which program? trainera launch --ps 1 --workers 2 -- python trainer.py");
    trn_log_level level;
    if (!err && o.log_level)
        err = cli_log_level(&level, o.log_level);
    if (!err) {
        code = CLI_FAILED;
        j.command = argv + n_flags + 1;
        err = prepare(&j);
    }
    if (!err && interrupted) {
        code = 128 + interrupted;
        err = trn_errorf(TRN_CANCELLED, "ended by %s", sigdescr_np(interrupted));
    }
    if (err) {
        if (interrupted)
            code = 128 + interrupted;
        else if (trn_err_code(err) == TRN_DEADLINE_EXCEEDED)
            code = LAUNCH_WAITED;
        launch_cluster_fini(&j);
        return cli_fail(err, code);
    }
    introduce(&j);
    return launch_run(&j); /* what is left goes with the process */
}

const cli_command cli_launch = {
    .name = "launch",
    .usage = "--ps 1 --workers 2 [--chief] -- python trainer.py --ps_hosts={ps_hosts} …",
    .summary = "Any program, TensorFlow or C, as a parameter-server job; ends when its workers have ended.",
    .details =
        "The ps are native servers; the command is run once per worker (chief, evaluator). Every process has TF_CONFIG,\n"
        "TRAINERA_PS_HOSTS, TRAINERA_WORKER_HOSTS, TRAINERA_JOB_NAME and TRAINERA_TASK_INDEX in its environment, and wherever they\n"
        "stand in the command these are filled in:\n"
        "  {ps_hosts} {worker_hosts} {chief_hosts}   host:port,host:port      {job_name} {task_index}   worker, 1\n"
        "  {cluster_spec}                            all of it as JSON        {num_ps} {num_workers}    how many\n"
        "\n"
        "  trainera launch --ps 2 --workers 4 -- python trainer.py --ps_hosts={ps_hosts} --worker_hosts={worker_hosts} \\\n"
        "                                         --job_name={job_name} --task_index={task_index}\n"
        "  trainera launch --chief --workers 2 -- python estimator.py         everything from TF_CONFIG\n"
        "  trainera launch --native-workers -- python trainer.py              workers' sessions run on Trainera, too\n"
        "  trainera launch --max-restarts 3 -- ./my_c_trainer                 a dead worker is started again\n"
        "  trainera launch --terminal worker/0 -- ./my_c_trainer              worker 0 has the terminal: progress bar, debugger\n"
        "\n"
        "On a cluster start one launcher per task, all with the same flags:\n"
        "  srun -n 8 trainera launch --ps 2 -- python trainer.py …            Slurm: addresses from the step's variables\n"
        "  trainera launch --rendezvous /shared/run1 --tasks 4 --index $I …   a shared folder (HTCondor, anything)\n"
        "  trainera launch --rendezvous tcp://head:7777 --tasks 4 --index $I …   any of the tasks is the meeting point\n"
        "  trainera launch --cluster_spec=@spec.json --job_name=worker --task_index=1 …   known addresses\n"
        "`trainera init slurm|condor|k8s|ssh` writes ready files for these.\n"
        "\n"
        "The job ends with 0 when all workers have ended with 0; the ps are then ended. Otherwise with the exit code of the first\n"
        "task that failed (128 + signal when a signal ended it), with 130 after Ctrl-C and 143 after SIGTERM; 1: could not start,\n"
        "2: wrong flags, 3: the others did not come in time, 4: one was lost. Nothing that was started survives, not even kill -9 of the launcher.\n",
    .flags = flags,
    .run = run,
};
