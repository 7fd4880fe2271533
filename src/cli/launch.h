/* trainera launch: any program as a parameter-server job.
 *
 * Who is there (launch_cluster.c): on one machine all tasks are ours; inside Slurm, with --rendezvous or with --cluster_spec each launcher has one task,
 * and the others are its equals elsewhere.
 *
 * The processes:
 *
 *     trainera launch        the front: what the user started; passes signals on, gives the exit code
 *      └ keeper              the same program after fork; starts, watches, restarts and ends the tasks, prints their lines
 *         ├ trainera serve   a ps task, with a listening socket that the keeper bound before anybody started
 *         └ python …         the user's program as worker, chief or evaluator; one process group each
 *
 * Nothing survives. Front and keeper are both "child subreapers": whatever a task leaves behind, also what has left its process group and session, becomes
 * a child of the keeper and is ended with it. The front dies (kill -9): the keeper sees the end of a pipe and ends everything. The keeper dies: the kernel
 * kills the tasks (PR_SET_PDEATHSIG), what they had started falls to the front, which kills it.
 *
 * Why two processes and not one with a guard beside it: only an ancestor inherits orphans.
 */
#ifndef TRN_CLI_LAUNCH_H
#define TRN_CLI_LAUNCH_H

#include <sys/types.h>

#include "cli/cli.h"

/* Exit codes beside those of cli.h; docs/LAUNCH.md lists them. */
enum { LAUNCH_WAITED = 3, LAUNCH_LOST = 4 }; /* as CLI_WAITED, CLI_LOST of serve_end.h */

typedef struct launch_options {
    int64_t ps, workers;
    bool chief, evaluator, native_workers, keep_going, end_with_chief, leave_early;
    int64_t max_restarts, grace, wait_timeout, peer_timeout;
    const char *log_dir, *color, *log_level;
    const char *terminal; /* the name of the task that has it; NULL: none */
    int64_t intra, inter;
    cli_list allow_paths;
    const char *done_queue;
    int64_t done_count;
    /* where the tasks are */
    const char *rendezvous, *job_id, *roles, *interface, *host;
    int64_t tasks, index, port_base;
    bool spread_ps;
    int64_t slurm; /* -1: when this is a Slurm step of several tasks */
    const char *cluster_spec, *job_name;
    int64_t task_index;
} launch_options;

/* A stream of a task on its way to ours. */
typedef struct launch_stream {
    int fd;  /* -1: ended */
    int to;  /* 1 or 2 */
    trn_sb line;
} launch_stream;

typedef enum launch_state {
    LAUNCH_WAITING, /* for start_at */
    LAUNCH_RUNNING,
    LAUNCH_ENDED,
} launch_state;

typedef struct launch_task {
    const char *job;
    int index;
    char name[80];  /* "worker/1" */
    char *address;  /* as the others know it */
    bool mine;      /* started by this launcher */
    bool member;    /* in the cluster spec: the evaluator is not */
    bool server;    /* a native server, not the user's program */
    int stand_in;   /* > 0: a server in the place of a program that has ended while others go on; how often it was tried */
    int listen_fd;  /* server: bound and listening, kept for restarts; -1 */
    int hold_fd;    /* program: keeps the port from others until the program takes it; -1 */
    /* running */
    launch_state state;
    pid_t pid;
    uint64_t start_at, started;
    int restarts;
    int code;       /* once ended: exit code, 128 + signal */
    bool told;      /* to end */
    launch_stream out[2];
    int log_fd;
    bool terminal;  /* it has the launcher's own stdin, stdout and stderr */
    trn_sb tail;    /* its last lines, for when it fails, if they are not shown as they come */
} launch_task;

typedef struct launch_job {
    const launch_options *o;
    char **command; /* the user's, ends with NULL */
    launch_task *tasks;
    int n, cap;
    char *spec;     /* {"ps": [...], "worker": [...]} */
    char *id;       /* of this run, for people and files */
    bool alone;     /* every task is ours */
    char nonce[17]; /* of this launcher */
    char *py_dir;   /* what goes on PYTHONPATH, or NULL */
    char *log_dir;  /* or NULL */
    bool color;
    bool quiet;     /* one task has the terminal: programs' lines go to their logs only */
    pid_t group;    /* the front's process group, the terminal's foreground one */
    int name_width;
    struct trn_meet *meet;           /* where the tasks met, until the end; or NULL */
    struct launch_report *report;    /* tells the ps how we are; or NULL */
} launch_job;

/* launch_cluster.c: fills tasks, spec, alone; binds the ports of our own. */
trn_err launch_find_cluster(launch_job *j) TRN_MUST_USE;
void launch_cluster_fini(launch_job *j);
bool launch_listen(const launch_job *j, launch_task *t); /* at t's own port; false: not now */

int launch_interrupted(void); /* the signal that came before the keeper was there, or 0 */

/* launch_task.c */
trn_err launch_start(launch_job *j, launch_task *t, const void *signal_mask) TRN_MUST_USE;
char *launch_fill(const launch_job *j, const launch_task *t, const char *word); /* {ps_hosts} … filled in */

/* launch_log.c */
trn_err launch_log_open(launch_job *j) TRN_MUST_USE;
bool launch_log_read(launch_job *j, launch_task *t, launch_stream *s); /* false: the stream has ended */
void launch_log_end(launch_job *j, launch_task *t);                    /* what is left, then closes */
void launch_log_tail(launch_job *j, launch_task *t);                   /* it has failed: its last lines, if they were not shown */
/* A line of the launcher itself: "launch   | …". */
void launch_say(const launch_job *j, const char *fmt, ...) TRN_PRINTF(2, 3);

/* launch_keep.c: forks the keeper, returns the exit code of the job. */
int launch_run(launch_job *j);
/* Kills every descendant of this process, again and again until none is left. */
void launch_sweep(void);

/* launch_report.c: a thread that tells every ps how our task is, and hears from them whether the job has ended. */
typedef enum launch_word { LAUNCH_GO_ON, LAUNCH_JOB_DONE, LAUNCH_JOB_FAILED, LAUNCH_PS_LOST } launch_word;
trn_err launch_report_start(launch_job *j) TRN_MUST_USE;
int launch_report_fd(const launch_job *j); /* readable when launch_report_heard has news; -1 */
launch_word launch_report_heard(launch_job *j, int *code, char *why, size_t n);
/* Our program is done, a server stands in for it: the ps are told so, and asked again and again whether all are done. */
void launch_report_stay(launch_job *j);
/* The last word: blocks until every ps has it, at most `ns`. */
void launch_report_end(launch_job *j, bool done, int code, uint64_t ns);

/* launch_py.c: the module that replaces tf.train.Server; written to a new folder of the file system's temporary one. */
trn_err launch_py_write(char **dir) TRN_MUST_USE;
void launch_py_remove(const char *dir);

#endif
