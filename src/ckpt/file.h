/* Files, as checkpoints need them: written under a temporary name and put in place whole, read at any offset and never past the end. */
#ifndef TRN_CKPT_FILE_H
#define TRN_CKPT_FILE_H

#include "base/base.h"

/* ---- writing -------------------------------------------------------------------------------------------------- */

/* Bytes go to `<path>.tempstate<random>`; commit() makes them durable (fsync) and renames. Whatever kills the process before that leaves
 * the old file, or none, never half a one. */
typedef struct trn_outfile {
    int fd;
    char *path, *tmp;
    uint64_t size; /* written so far, with what is still in the buffer */
    size_t n_buf;
    uint8_t *buf;
} trn_outfile;
trn_err trn_outfile_open(trn_outfile *f, const char *path) TRN_MUST_USE;
/* Small pieces are gathered; large ones go straight from where they are. */
trn_err trn_outfile_write(trn_outfile *f, const void *p, size_t n) TRN_MUST_USE;
/* fsync and close, not yet in place: several files can be made durable first and then appear together. */
trn_err trn_outfile_sync(trn_outfile *f) TRN_MUST_USE;
/* In place; syncs first unless that is done. The folder's entry is durable when it returns. Ends the file, also when it fails. */
trn_err trn_outfile_commit(trn_outfile *f) TRN_MUST_USE;
void trn_outfile_abort(trn_outfile *f); /* after failure: removes the temporary; fine after commit too */

/* ---- reading -------------------------------------------------------------------------------------------------- */

/* A file, or bytes in memory (tests, fuzzers). */
typedef struct trn_infile {
    int fd; /* -1: memory */
    const uint8_t *mem;
    char *path; /* for messages */
    uint64_t size;
} trn_infile;
trn_err trn_infile_open(trn_infile *f, const char *path) TRN_MUST_USE; /* NOT_FOUND */
void trn_infile_on_memory(trn_infile *f, const char *name, const void *p, size_t n);
void trn_infile_close(trn_infile *f);
/* All n bytes, or DATA_LOSS. */
trn_err trn_infile_read(trn_infile *f, uint64_t at, void *p, size_t n) TRN_MUST_USE;

/* ---- names ---------------------------------------------------------------------------------------------------- */

bool trn_path_exists(const char *path);
char *trn_path_dir(const char *path); /* "a/b" of "a/b/c", "." of "c" */
/* One level; fine when it exists. */
trn_err trn_path_mkdir(const char *path) TRN_MUST_USE;
trn_err trn_path_mkdirs(const char *path) TRN_MUST_USE; /* with all above it; fine when it exists */
trn_err trn_path_sync(const char *dir) TRN_MUST_USE; /* which files and folders lie in it is durable */

/* Paths that match a shell pattern, in order; "*" matches hidden names too, as in TensorFlow. The caller frees each and the array. */
trn_err trn_path_glob(char ***out, int *n, const char *pattern) TRN_MUST_USE;

#endif
