/* Checkpoints, meta graphs and saved models: what a training program leaves on disk, in TensorFlow's formats.
 *
 *     trn_saver *saver = trn_saver_new(b, NULL);                       // while building, after the optimizer
 *     ...
 *     err = trn_saver_save(NULL, saver, session, "run/model.ckpt", step);   // run/model.ckpt-1200.{index,data-…,meta}, run/checkpoint
 *     char *last = trn_latest_checkpoint("run");
 *     if (last) err = trn_saver_restore(saver, session, last);
 *
 * Promises
 * - Killed at any moment, the state file ("checkpoint") names a checkpoint that is complete: files appear whole, the state file is written last, and
 *   what it no longer names is deleted after that. The next saver in the folder removes what a killed one left behind.
 * - TensorFlow's Saver, tf.train.load_checkpoint and import_meta_graph read what is written here; everything that they write is read here.
 * - The variables' bytes are written by the tasks that hold them (the ps), so all tasks and the program see one file system, or one path on each.
 */
#ifndef TRAINERA_SAVE_H
#define TRAINERA_SAVE_H

#include <trainera/build.h>
#include <trainera/session.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- saver ----------------------------------------------------------------------------------------------------------- */

/* The builder's; its run-time functions may be called from any thread. */
typedef struct trn_saver trn_saver;

typedef struct trn_saver_opts {
    trn_variable *const *vars; /* NULL: every global variable (slots too) that is not TRN_NOT_SAVED */
    int n_vars;
    const char *const *names;  /* names in the checkpoint, one per variable; NULL: the variables' own */
    trn_maybe_bool sharded;    /* every device writes its own file; not given: yes when the variables lie on several devices */
    int max_to_keep;           /* 0: 5; negative: all */
    double keep_every_hours;   /* one more is kept for each of these; 0: none */
    const char *name;          /* scope of the nodes; NULL: "save" */
    const char *state_file;    /* NULL: "checkpoint" */
    bool no_meta;              /* no <checkpoint>.meta */
    bool no_graph;             /* no graph.pbtxt */
    bool pad_step;             /* model.ckpt-00001200 */
} trn_saver_opts;

/* Adds the nodes that save and restore. opts NULL: all defaults. Make it after all variables are there. */
TRN_API trn_saver *trn_saver_new(trn_builder *b, const trn_saver_opts *opts);
/* The builder's first saver; made with defaults when there is none. */
TRN_API trn_saver *trn_saver_default(trn_builder *b);

/* Writes <prefix>-<step> (step negative: <prefix>), then the state file, then removes what is not kept. *path (may be NULL) is what was written, to be
 * freed with free(). Waits for a save in the background, and reports its error if there was one. */
TRN_API trn_err trn_saver_save(char **path, trn_saver *s, trn_session *session, const char *prefix, int64_t step) TRN_MUST_USE;
/* The same in a thread of its own: returns when the variables have been read, before they are written; steps run on. So what is saved is what the variables
 * were at the time of the call, but for reference variables (TRN_REF_VARIABLE), which are read as they are written. One at a time: a second one waits for
 * the first. An error comes from the next call here or from trn_saver_wait. */
TRN_API trn_err trn_saver_save_async(trn_saver *s, trn_session *session, const char *prefix, int64_t step) TRN_MUST_USE;
TRN_API bool trn_saver_busy(trn_saver *s);                     /* a save is under way in the background */
TRN_API trn_err trn_saver_wait(trn_saver *s) TRN_MUST_USE;     /* until it is done; call it before the session is closed */
/* Runs after each save, on the thread that saved; it must not call the saver. */
TRN_API void trn_saver_on_saved(trn_saver *s, void (*fn)(void *arg, const char *path, int64_t step), void *arg);
/* All variables of the saver from a checkpoint. Also from one that tf.train.Checkpoint or Keras wrote: then by the variables' full names. */
TRN_API trn_err trn_saver_restore(trn_saver *s, trn_session *session, const char *path) TRN_MUST_USE;

/* Names of the nodes, for programs that run them themselves. */
TRN_API const char *trn_saver_filename_tensor(const trn_saver *s); /* "save/Const:0" */
TRN_API const char *trn_saver_save_tensor(const trn_saver *s);     /* "save/control_dependency:0" */
TRN_API const char *trn_saver_restore_op(const trn_saver *s);      /* "save/restore_all" */

/* ---- meta graphs ----------------------------------------------------------------------------------------------------- */

/* Graph, variables, collections and saver (may be NULL) as a MetaGraphDef, which tf.compat.v1.train.import_meta_graph loads and trains on. Freed with free(). */
TRN_API trn_err trn_meta_graph_export(void **out, size_t *n, trn_builder *b, const trn_saver *saver) TRN_MUST_USE;
TRN_API trn_err trn_meta_graph_write(const char *path, trn_builder *b, const trn_saver *saver) TRN_MUST_USE;
/* Adds graph, variables and collections under their own names. Gives the saver that comes with it; NULL: none, or an error is latched. */
TRN_API trn_saver *trn_meta_graph_import(trn_builder *b, const void *meta_graph_def, size_t n);
TRN_API trn_saver *trn_meta_graph_read(trn_builder *b, const char *path);
/* The same under "scope/…" (as import_scope of tf.compat.v1.train.import_meta_graph), with the tensors that it takes from elsewhere: see
 * trn_builder_import_with. The saver keeps the names that are in checkpoints. As in TensorFlow, resource variables keep their shared names: what is imported
 * twice shares its variables, unless it is imported into a graph of its own and another container. */
TRN_API trn_saver *trn_meta_graph_import_scope(trn_builder *b, const void *meta_graph_def, size_t n, const char *scope, const trn_named_out *inputs, int n_inputs);
/* What lies in a name scope ("tower/dense"), as a MetaGraphDef with names from there on (as export_scope of export_meta_graph): nodes, variables, collections; no
 * saver. What its nodes take from outside is called "$unbound_inputs_<tensor>", listed in the collection "unbound_inputs", and must be given when it is imported.
 * NOT_FOUND: nothing lies there. Freed with free(). */
TRN_API trn_err trn_meta_graph_export_scope(void **out, size_t *n, trn_builder *b, const char *scope) TRN_MUST_USE;

/* ---- saved models ----------------------------------------------------------------------------------------------------- */

/* What a server of models is asked for: named inputs and outputs. */
typedef struct trn_signature {
    const char *key;    /* NULL: "serving_default" */
    const char *method; /* NULL: "tensorflow/serving/predict" */
    const trn_named_out *inputs, *outputs;
    int n_inputs, n_outputs;
} trn_signature;
typedef struct trn_saved_model_opts {
    trn_saver *saver;          /* NULL: the builder's default one */
    const char *const *tags;   /* NULL: "serve" */
    int n_tags;
    const trn_out *main_op;    /* run after restoring (tables, …); NULL: none */
    bool keep_devices;         /* else nodes ask for no device, so that the model loads anywhere */
} trn_saved_model_opts;
/* dir/saved_model.pb and dir/variables/variables.*, with the values that the session's variables have. ALREADY_EXISTS: there is a model. */
TRN_API trn_err trn_saved_model_write(const char *dir, trn_builder *b, trn_session *session, const trn_signature *signatures, int n,
                                      const trn_saved_model_opts *opts) TRN_MUST_USE;
/* Graph, variables, collections and saver of the model with these tags (NULL: "serve"). NULL: an error is latched. */
typedef struct trn_saved_model trn_saved_model;
TRN_API trn_saved_model *trn_saved_model_read(trn_builder *b, const char *dir, const char *const *tags, int n_tags);
TRN_API const trn_signature *trn_saved_model_signature(const trn_saved_model *m, const char *key); /* NULL key: "serving_default"; NULL: there is none */
TRN_API trn_out trn_signature_input(const trn_signature *s, const char *name);                     /* TRN_NONE: there is none */
TRN_API trn_out trn_signature_output(const trn_signature *s, const char *name);
/* Gives the session's variables the model's values and runs its main op. */
TRN_API trn_err trn_saved_model_restore(trn_saved_model *m, trn_session *session) TRN_MUST_USE;

/* ---- the state file -------------------------------------------------------------------------------------------------- */

typedef struct trn_checkpoint_state {
    char *latest;      /* with the folder in front when the file has a relative path */
    int n;
    char **all;        /* oldest first; what was deleted behind the file's back is still here */
    double *times;     /* seconds since 1970; 0: not known */
    double last_kept;  /* of the last one that keep_every_hours kept; 0: none */
} trn_checkpoint_state;
/* name NULL: "checkpoint". NOT_FOUND: there is none. */
TRN_API trn_err trn_checkpoint_state_read(trn_checkpoint_state *out, const char *dir, const char *name) TRN_MUST_USE;
TRN_API void trn_checkpoint_state_fini(trn_checkpoint_state *st);
/* The newest checkpoint of the state file that is there; NULL: none. To be freed with free(). */
TRN_API char *trn_latest_checkpoint(const char *dir);
TRN_API bool trn_checkpoint_exists(const char *path); /* either version */
TRN_API void trn_checkpoint_remove(const char *path); /* index first, then data and .meta */

/* ---- reading without a session --------------------------------------------------------------------------------------- */

/* One thread at a time. */
typedef struct trn_checkpoint trn_checkpoint;
/* A checkpoint of either version, or a folder: its latest. */
TRN_API trn_err trn_checkpoint_open(trn_checkpoint **out, const char *path) TRN_MUST_USE;
TRN_API void trn_checkpoint_close(TRN_OWN trn_checkpoint *c); /* NULL is fine */
TRN_API int trn_checkpoint_count(const trn_checkpoint *c);
TRN_API const char *trn_checkpoint_name(const trn_checkpoint *c, int i); /* in order */
TRN_API trn_err trn_checkpoint_find(trn_dtype *dtype, trn_shape *shape, trn_checkpoint *c, const char *name) TRN_MUST_USE; /* NOT_FOUND */
/* The whole tensor, put together when it was saved in pieces. Checksums are verified. */
TRN_API trn_err trn_checkpoint_read(trn_tensor **out, trn_checkpoint *c, const char *name) TRN_MUST_USE;
/* A box of it: start and size have one element per dimension; size -1: to the end. */
TRN_API trn_err trn_checkpoint_read_slice(trn_tensor **out, trn_checkpoint *c, const char *name, const int64_t *start, const int64_t *size) TRN_MUST_USE;
/* tf.train.Checkpoint and Keras name values by their place among objects ("model/layer-0/kernel/.ATTRIBUTES/VARIABLE_VALUE"). The key of the variable
 * with this full name ("dense/kernel"); the name itself where it is a key; NULL: no such variable. */
TRN_API const char *trn_checkpoint_key(trn_checkpoint *c, const char *full_name);
/* The reverse; NULL: the object graph has no name for it. */
TRN_API const char *trn_checkpoint_full_name(trn_checkpoint *c, const char *key);
/* Reads everything once: DATA_LOSS says what is damaged. */
TRN_API trn_err trn_checkpoint_verify(const char *path) TRN_MUST_USE;

/* From here on the initializers of variables read a checkpoint (a folder: its latest). Pairs: "from/" → "to/" (all names below a scope; "/" is the
 * root), or a tensor's name → a variable's name. Call it before trn_variables_init. */
typedef struct trn_name_pair {
    const char *from, *to;
} trn_name_pair;
TRN_API void trn_init_from_checkpoint(trn_builder *b, const char *path, const trn_name_pair *map, int n);

#ifdef __cplusplus
}
#endif
#endif
