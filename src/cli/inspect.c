/* trainera inspect: what is in a file that training left behind. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <trainera/save.h>

#include "ckpt/file.h"
#include "cli/inspect.h"

#define ROW(field) offsetof(inspect_opts, field)
static const cli_flag flags[] = {
    {"verify", NULL, "Checkpoints: reads everything and checks every checksum.", CLI_BOOL, ROW(verify)},
    {"print", "NAME", "Checkpoints: the values of this tensor. May be given several times.", CLI_LIST, ROW(print)},
    {"values", "N", "How many values of each are printed; 20 when left out.", CLI_INT, ROW(values), 1, INT32_MAX},
    {"match", "TEXT", "Only tensors, ops or tags whose name contains it.", CLI_TEXT, ROW(match)},
    {"json", NULL, "The same as JSON.", CLI_BOOL, ROW(json)},
    {0},
};

static bool is_dir(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

static bool is_file(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode);
}

/* The prefix that a path means when it is a checkpoint's: itself, one of its files, or the folder's latest; NULL: none. The caller frees. */
static char *checkpoint_of(const char *path)
{
    if (is_dir(path)) {
        char *inside = trn_xasprintf("%s/variables/variables", path); /* of a SavedModel */
        if (trn_checkpoint_exists(inside))
            return inside;
        free(inside);
        return trn_latest_checkpoint(path);
    }
    const char *data = strstr(path, ".data-"), *index = strstr(path, ".index");
    char *prefix = data && !strchr(data, '/') ? trn_xstrndup(path, (size_t)(data - path)) : index && !index[6] ? trn_xstrndup(path, (size_t)(index - path)) : trn_xstrdup(path);
    char *name = trn_xasprintf("%s.index", prefix);
    bool there = is_file(name);
    free(name);
    if (there)
        return prefix;
    free(prefix);
    return NULL;
}

/* Version 1 is one file, an SSTable, whose last bytes say so. */
static bool is_sstable(const char *path)
{
    static const uint8_t magic[8] = {0x57, 0xfb, 0x80, 0x8b, 0x24, 0x75, 0x47, 0xdb};
    trn_infile f;
    trn_err err = trn_infile_open(&f, path);
    uint8_t tail[8];
    if (!err) {
        err = f.size >= 48 ? trn_infile_read(&f, f.size - 8, tail, 8) : trn_errorf(TRN_NOT_FOUND, "short");
        trn_infile_close(&f);
    }
    bool ok = !err && memcmp(tail, magic, 8) == 0;
    trn_err_free(err);
    return ok;
}

static trn_err event_files(char ***out, int *n, const char *dir)
{
    char *pattern = trn_xasprintf("%s/*tfevents*", dir);
    trn_err err = trn_path_glob(out, n, pattern);
    free(pattern);
    return err;
}

static trn_err folder(trn_json *j, const char *path, const inspect_opts *o, bool *bad)
{
    bool any = false;
    trn_err err = TRN_OK;
    static const char *const models[] = {"saved_model.pb", "saved_model.pbtxt"};
    for (int i = 0; i < 2 && !any; i++) {
        char *model = trn_xasprintf("%s/%s", path, models[i]);
        if (is_file(model)) {
            any = true;
            err = inspect_graph(j, model, o, bad);
        }
        free(model);
    }
    char *prefix = err ? NULL : checkpoint_of(path);
    if (prefix) {
        if (any && !j)
            printf("\n");
        any = true;
        err = inspect_checkpoint(j, prefix, o, bad);
        free(prefix);
    }
    char **files = NULL;
    int n = 0;
    if (!err)
        err = event_files(&files, &n, path);
    if (!err && n) {
        if (any && !j)
            printf("\n");
        any = true;
        err = inspect_events(j, files, n, o, bad);
    }
    for (int i = 0; i < n; i++)
        free(files[i]);
    free(files);
    if (!err && !any)
        err = trn_errorf(TRN_NOT_FOUND, "%s: no saved_model.pb, no checkpoint and no event file is in this folder", path);
    return err;
}

static trn_err one(trn_json *j, const char *path, const inspect_opts *o, bool *bad)
{
    if (is_dir(path))
        return folder(j, path, o, bad);
    char *prefix = checkpoint_of(path);
    if (prefix) {
        trn_err err = inspect_checkpoint(j, prefix, o, bad);
        free(prefix);
        return err;
    }
    if (!is_file(path))
        return trn_errorf(TRN_NOT_FOUND, "%s: there is no such file, and no checkpoint %s.index", path, path);
    if (is_sstable(path))
        return inspect_checkpoint(j, path, o, bad);
    const char *slash = strrchr(path, '/');
    if (strstr(slash ? slash : path, "tfevents")) {
        char *only = (char *)path;
        return inspect_events(j, &only, 1, o, bad);
    }
    return inspect_graph(j, path, o, bad);
}

static trn_err two(trn_json *j, const char *a, const char *b, const inspect_opts *o, bool *bad)
{
    char *p = checkpoint_of(a), *q = checkpoint_of(b);
    trn_err err = inspect_compare(j, p ? p : a, q ? q : b, o, bad);
    free(p);
    free(q);
    return err;
}

static int run(int argc, char **argv)
{
    inspect_opts o = {.values = 20};
    cli_list paths = {0};
    trn_err err = cli_parse(&o, flags, argc, argv, &paths);
    if (!err && (paths.n < 1 || paths.n > 2))
        err = trn_errorf(TRN_INVALID_ARGUMENT, "one path is expected, or two checkpoints to compare");
    if (err)
        return cli_fail(err, CLI_USAGE);
    trn_sb text = {0};
    trn_json j = {.out = &text, .pretty = true}, *to = o.json ? &j : NULL;
    bool bad = false;
    if (to)
        trn_json_open(to, NULL, '{');
    err = paths.n == 1 ? one(to, paths.v[0], &o, &bad) : two(to, paths.v[0], paths.v[1], &o, &bad);
    if (!err && to) {
        trn_json_close(to);
        fwrite(text.p, 1, text.n, stdout);
    }
    trn_sb_fini(&text);
    free(paths.v);
    free(o.print.v);
    return err ? cli_fail(err, CLI_FAILED) : bad ? CLI_FAILED : CLI_OK;
}

const cli_command cli_inspect = {
    .name = "inspect",
    .usage = "PATH [SECOND_CHECKPOINT]",
    .summary = "what is in a checkpoint, a graph, a saved model, an event file",
    .details = "PATH is a checkpoint (its prefix, one of its files, or the folder: then its latest), a GraphDef (binary or text), a MetaGraphDef\n"
               "(model.ckpt-100.meta), a SavedModel's folder, an event file or a folder with some. Two checkpoints are compared, value by value.\n"
               "\n"
               "  trainera inspect logdir                                everything that is in it, losses as plots\n"
               "  trainera inspect --verify logdir/model.ckpt-1000       is it whole?\n"
               "  trainera inspect --print global_step logdir            a value of the latest checkpoint\n"
               "  trainera inspect a/model.ckpt-5 b/model.ckpt-5         did two runs come to the same?\n"
               "\n"
               "Exit code: 0 all is well, 1 damaged, different, or ops are missing, 2 wrong flags.\n",
    .flags = flags,
    .run = run,
};
