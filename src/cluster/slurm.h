/* A Slurm job step from inside one of its tasks, from the step's own variables: no command is run, no file is read.
 *
 * SLURM_STEP_NODELIST and SLURM_STEP_TASKS_PER_NODE in their compressed forms, SLURM_STEP_NUM_TASKS, SLURM_PROCID; SLURM_STEP_RESV_PORTS when srun was given
 * --resv-ports. Tasks are numbered node by node (srun's block distribution), ports are port_base + the number on the node: the same order and addresses
 * as TensorFlow's SlurmClusterResolver, so that its tasks can share the job.
 */
#ifndef TRN_SLURM_H
#define TRN_SLURM_H

#include "base/base.h"

enum { TRN_SLURM_PORT_BASE = 8888, TRN_SLURM_MAX = 100000 };

typedef struct trn_slurm_task {
    const char *host;
    int node, local; /* number of its node, its number there */
    int port;
} trn_slurm_task;

typedef struct trn_slurm {
    char *id; /* "slurm-123.0" */
    char **hosts;
    int n_nodes;
    trn_slurm_task *tasks; /* by SLURM_PROCID */
    int n_tasks, self;
} trn_slurm;

typedef const char *(*trn_slurm_env)(const char *name); /* getenv, or a test's */
/* There is a step with several tasks, and we are one of them. */
bool trn_slurm_is_step(trn_slurm_env env);
trn_err trn_slurm_read(trn_slurm *out, trn_slurm_env env, int port_base) TRN_MUST_USE; /* port_base < 0: reserved ports, or TensorFlow's 8888 */
void trn_slurm_fini(trn_slurm *s);

/* "n[1-2,05],rack[0-1]-m[3-4]x" → every name, in order. */
trn_err trn_slurm_hostlist(char ***out, int *n, const char *text) TRN_MUST_USE;
void trn_slurm_hostlist_free(char **hosts, int n);
/* "2(x3),1" → 2, 2, 2, 1. */
trn_err trn_slurm_counts(int **out, int *n, const char *text) TRN_MUST_USE;

#endif
