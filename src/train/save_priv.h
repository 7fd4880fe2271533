/* Shared by the files that save and restore. */
#ifndef TRN_TRAIN_SAVE_PRIV_H
#define TRN_TRAIN_SAVE_PRIV_H

#include <trainera/save.h>

#include "base/base.h"

/* ---- paths --------------------------------------------------------------------------------------------------------- */

char *trn_train__absolute(const char *path);             /* tasks have other working directories than the program */
trn_err trn_train__write_file(const char *path, const void *p, size_t n) TRN_MUST_USE; /* appears whole */
trn_err trn_train__read_file(trn_sb *out, const char *path, size_t max) TRN_MUST_USE;

/* ---- what a folder of checkpoints holds ------------------------------------------------------------------------------ */

typedef struct trn_kept {
    char *path;
    double time;
} trn_kept;

/* One saver's view of one folder: which checkpoints the state file names, and what goes next. */
typedef struct trn_ckpt_dir {
    char *dir, *state_file;
    trn_kept *kept; /* oldest first */
    int n, cap;
    char **gone;    /* no longer named, perhaps still there; also in the state file, so that a killed deletion is finished later */
    int n_gone, cap_gone;
    double start;     /* of the saver */
    double last_kept; /* of the last one that keep_every_hours kept; 0: none yet */
} trn_ckpt_dir;

/* Reads the state file, finishes deletions, and removes what killed saves of <base> left before `start` (seconds since 1970). */
void trn_ckpt_dir__open(trn_ckpt_dir *d, const char *dir, const char *state_file, const char *base, double start);
void trn_ckpt_dir__fini(trn_ckpt_dir *d);
/* Before `path` is written again although the state file names it: its files get a second name, which the state file names from then on. */
trn_err trn_ckpt_dir__set_aside(trn_ckpt_dir *d, const char *path, const char *aside) TRN_MUST_USE;
/* A new checkpoint is complete: state file first, then deletions, also of the one set aside. max_to_keep 0: all. */
trn_err trn_ckpt_dir__record(trn_ckpt_dir *d, const char *path, const char *aside, int max_to_keep, double keep_every_hours) TRN_MUST_USE;

/* ---- saver ----------------------------------------------------------------------------------------------------------- */

/* One value that restoring assigns: output `tensor` of a RestoreV2. */
typedef struct trn_saver_item {
    const char *key, *slice; /* slice "": the whole tensor */
    const char *tensor;      /* "save/RestoreV2:3" */
    trn_dtype dtype;
    trn_shape shape;         /* of the variable (piece); unknown rank when not known */
} trn_saver_item;

struct trn_saver {
    trn_builder *b;
    const char *filename_tensor, *save_tensor, *restore_op;
    const char *snapshot_tensor; /* there when the variables have been read; NULL: TensorFlow's saver, or reference variables only */
    bool sharded, no_meta, no_graph, pad_step;
    int max_to_keep; /* 0: all */
    double keep_every_hours;
    const char *state_file;
    int n_items;
    trn_saver_item *items;
    void (*saved)(void *arg, const char *path, int64_t step);
    void *saved_arg;
    double start; /* of this saver, seconds since 1970 */

    pthread_mutex_t mu;
    pthread_cond_t changed;
    bool busy;        /* one save at a time; who has it has the fields below */
    bool joinable;    /* `thread` is over, or soon */
    pthread_t thread; /* of the last save in the background */
    trn_err late;     /* of a save in the background that nobody was told of */
    trn_ckpt_dir dir; /* the folder of the last save; dir.dir NULL: none yet */
    void *meta;       /* of `meta_nodes` nodes */
    size_t n_meta;
    char *graph_text;
    bool graph_written; /* in this folder */
    int meta_nodes;
};

/* A saver for nodes that exist. Latches. */
trn_saver *trn_saver__adopt(trn_builder *b, const char *filename_tensor, const char *save_tensor, const char *restore_op, bool sharded, int max_to_keep, double keep_every_hours);

const char *trn_saver__slice(trn_builder *b, const trn_variable *v); /* where a piece lies: "10 4 0,5:0,4"; "": not a piece */
void trn_saver__put_def(trn_sb *out, const trn_saver *s); /* a SaverDef */

/* ---- meta graphs ------------------------------------------------------------------------------------------------------- */

trn_err trn_meta__put(trn_sb *out, trn_builder *b, const trn_saver *saver, const char *const *tags, int n_tags,
                      bool keep_devices) TRN_MUST_USE; /* appends a MetaGraphDef */
/* "name:0" or "name"; TRN_NONE when there is none: a meta graph may name what it does not have. */
trn_out trn_meta__find(const trn_builder *b, const char *name);
struct Tensorflow__MetaGraphDef;
/* scope NULL: under their own names. */
trn_saver *trn_meta__import(trn_builder *b, trn_arena *a, const struct Tensorflow__MetaGraphDef *m, const char *scope, const trn_named_out *inputs, int n_inputs);

#define TRN_TEXT_METADATA "\x0a\x06\x0a\x04text" /* SummaryMetadata of TensorBoard's text page */

#endif
