/* What `trainera inspect` is made of: a file per kind of thing that it looks into. */
#ifndef TRN_INSPECT_H
#define TRN_INSPECT_H

#include "cli/cli.h"
#include "obs/json.h"

typedef struct inspect_opts {
    bool json, verify;
    const char *match; /* only names that contain it; NULL: all */
    cli_list print;    /* values of these */
    int64_t values;    /* how many of each */
} inspect_opts;

/* Each adds its keys to `j` when that is not NULL, else prints for people. *bad: something is damaged, missing or different (exit code 1). */
trn_err inspect_checkpoint(trn_json *j, const char *prefix, const inspect_opts *o, bool *bad) TRN_MUST_USE;
trn_err inspect_compare(trn_json *j, const char *a, const char *b, const inspect_opts *o, bool *bad) TRN_MUST_USE;
trn_err inspect_graph(trn_json *j, const char *path, const inspect_opts *o, bool *bad) TRN_MUST_USE;
trn_err inspect_events(trn_json *j, char *const *paths, int n, const inspect_opts *o, bool *bad) TRN_MUST_USE;

/* ---- ops.c: what a graph needs that is not there */
typedef struct cli_lack {
    const char *op, *node, *why;
    int count;
} cli_lack;
typedef struct cli_survey {
    trn_arena *arena;
    trn_map *lacks; /* op and reason → cli_lack */
    cli_lack **order;
    int n, cap;
    int nodes;
} cli_survey;
trn_err cli_survey_graph(cli_survey *s, const uint8_t *p, size_t n) TRN_MUST_USE; /* a serialized GraphDef */
void cli_put_lacks(trn_json *j, const cli_survey *s);
bool cli_looks_like_text(const trn_sb *s);

#endif
