/* A folder of checkpoints: the state file, what is kept, what killed programs left behind.
 *
 * The state file is TensorFlow's CheckpointState as text. Checkpoints that are about to be deleted are in it as comments ("# deleting: …"), which TensorFlow
 * skips: whoever opens the folder next finishes the job. */
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/bundle.h"
#include "ckpt/file.h"
#include "proto/pb.h"
#include "proto/tensorflow.pb-c.h"
#include "proto/textproto.h"
#include "train/save_priv.h"

#define STATE_MAX (16 << 20)
#define DELETING "# deleting: "

/* ---- paths --------------------------------------------------------------------------------------------------------- */

char *trn_train__absolute(const char *path)
{
    path = trn_local_path(path);
    if (*path == '/')
        return trn_xstrdup(path);
    char *cwd = getcwd(NULL, 0);
    char *out = cwd ? trn_xasprintf("%s/%s", cwd, path) : trn_xstrdup(path);
    free(cwd);
    return out;
}

trn_err trn_train__write_file(const char *path, const void *p, size_t n)
{
    trn_outfile f;
    TRN_TRY(trn_outfile_open(&f, path));
    trn_err err = trn_outfile_write(&f, p, n);
    if (!err)
        return trn_outfile_commit(&f);
    trn_outfile_abort(&f);
    return err;
}

trn_err trn_train__read_file(trn_sb *out, const char *path, size_t max)
{
    trn_infile f;
    TRN_TRY(trn_infile_open(&f, path));
    trn_err err = TRN_OK;
    if (f.size > max)
        err = trn_errorf(TRN_RESOURCE_EXHAUSTED, "%s has %" PRIu64 " bytes; at most %zu make sense", path, f.size, max);
    if (!err) {
        size_t n = (size_t)f.size;
        trn_sb_reserve(out, n);
        err = trn_infile_read(&f, 0, out->p + out->n, n);
        if (!err) {
            out->n += n;
            out->p[out->n] = 0;
        }
    }
    trn_infile_close(&f);
    return err;
}

static char *join(const char *dir, const char *path)
{
    return *path == '/' || !strcmp(dir, ".") ? trn_xstrdup(path) : trn_xasprintf("%s/%s", dir, path);
}

static const char *base_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* ---- one checkpoint's files ------------------------------------------------------------------------------------------ */

/* Files of either version: an index, a single file, or shards "<path>-00000-of-00002". */
bool trn_checkpoint_exists(const char *path)
{
    if (!path || !*path)
        return false;
    char *index = trn_bundle_index_name(path);
    bool there = trn_path_exists(index);
    free(index);
    struct stat st;
    if (there || (!stat(path, &st) && S_ISREG(st.st_mode)))
        return true;
    int found = 0; /* a pattern, or the common name of shards */
    for (int k = 0; k < 2 && !found; k++) {
        char *pattern = trn_xasprintf(k ? "%s-?\?\?\?\?-of-?\?\?\?\?" : "%s", path), **all = NULL;
        int n = 0;
        trn_err_free(trn_path_glob(&all, &n, pattern));
        for (int i = 0; i < n; i++) {
            found += !stat(all[i], &st) && S_ISREG(st.st_mode);
            free(all[i]);
        }
        free(all);
        free(pattern);
    }
    return found > 0;
}

/* "<base>.data-00000-of-00002": whose? Sets the length of the base. */
static bool is_data(const char *name, size_t *base)
{
    const char *at = strstr(name, ".data-");
    for (const char *next; at && (next = strstr(at + 1, ".data-"));)
        at = next;
    if (!at)
        return false;
    const char *p = at + 6;
    int digits = 0;
    for (; isdigit((unsigned char)*p); p++)
        digits++;
    if (digits < 5 || strncmp(p, "-of-", 4) != 0)
        return false;
    for (p += 4, digits = 0; isdigit((unsigned char)*p); p++)
        digits++;
    *base = (size_t)(at - name);
    return digits >= 5 && !*p;
}

/* fn for every entry of a folder. */
static void each_entry(const char *dir, void (*fn)(void *arg, const char *name), void *arg)
{
    DIR *d = opendir(dir);
    if (!d)
        return;
    char **name = NULL;
    int n = 0, cap = 0;
    for (struct dirent *e; (e = readdir(d));)
        if (strcmp(e->d_name, ".") && strcmp(e->d_name, ".."))
            TRN_PUSH(name, n, cap, trn_xstrdup(e->d_name));
    closedir(d);
    for (int i = 0; i < n; i++) {
        fn(arg, name[i]);
        free(name[i]);
    }
    free(name);
}

typedef struct two_names {
    const char *dir, *base, *to; /* to: second name, NULL: remove */
    trn_err err;
} two_names;

static void remove_data(void *arg, const char *name)
{
    two_names *t = arg;
    size_t n;
    if (!is_data(name, &n) || n != strlen(t->base) || strncmp(name, t->base, n) != 0)
        return;
    char *path = join(t->dir, name);
    unlink(path);
    free(path);
}

void trn_checkpoint_remove(const char *path)
{
    char *index = trn_bundle_index_name(path), *meta = trn_xasprintf("%s.meta", path), *dir = trn_path_dir(path);
    unlink(index); /* from here on it is no checkpoint */
    each_entry(dir, remove_data, &(two_names){.dir = dir, .base = base_of(path)});
    unlink(meta);
    struct stat st;
    if (!stat(path, &st) && S_ISREG(st.st_mode))
        unlink(path); /* version 1 */
    free(index);
    free(meta);
    free(dir);
}

static trn_err copy_file(const char *from, const char *to)
{
    trn_infile in;
    trn_outfile out;
    TRN_TRY(trn_infile_open(&in, from));
    trn_err err = trn_outfile_open(&out, to);
    if (err) {
        trn_infile_close(&in);
        return err;
    }
    size_t room = 1 << 20;
    char *buf = trn_xalloc(room);
    for (uint64_t at = 0; !err && at < in.size;) {
        size_t n = (size_t)TRN_MIN(in.size - at, (uint64_t)room);
        err = trn_infile_read(&in, at, buf, n);
        if (!err)
            err = trn_outfile_write(&out, buf, n);
        at += n;
    }
    free(buf);
    trn_infile_close(&in);
    if (!err)
        return trn_outfile_commit(&out);
    trn_outfile_abort(&out);
    return err;
}

/* A second name; a copy where the file system has none. */
static trn_err second_name(const char *from, const char *to)
{
    unlink(to);
    if (!link(from, to))
        return TRN_OK;
    return errno == ENOENT ? trn_err_errno(errno, "%s", from) : copy_file(from, to);
}

static void alias_data(void *arg, const char *name)
{
    two_names *t = arg;
    size_t n;
    if (t->err || !is_data(name, &n) || n != strlen(t->base) || strncmp(name, t->base, n) != 0)
        return;
    char *from = join(t->dir, name), *to = trn_xasprintf("%s%s", t->to, name + n);
    t->err = second_name(from, to);
    free(from);
    free(to);
}

/* All files of a checkpoint under a second name, the index last. */
static trn_err alias(const char *path, const char *to)
{
    char *dir = trn_path_dir(path), *index = trn_bundle_index_name(path), *to_index = trn_bundle_index_name(to);
    char *meta = trn_xasprintf("%s.meta", path), *to_meta = trn_xasprintf("%s.meta", to);
    two_names t = {.dir = dir, .base = base_of(path), .to = to};
    unlink(to_index);
    each_entry(dir, alias_data, &t);
    if (!t.err && trn_path_exists(meta))
        t.err = second_name(meta, to_meta);
    if (!t.err)
        t.err = second_name(index, to_index);
    free(dir);
    free(index);
    free(to_index);
    free(meta);
    free(to_meta);
    return t.err;
}

/* ---- the state file ---------------------------------------------------------------------------------------------------- */

static void put_quoted(trn_sb *s, const char *p)
{
    trn_sb_adds(s, "\"");
    for (; *p; p++) {
        unsigned char c = (unsigned char)*p;
        if (c == '"' || c == '\\')
            trn_sb_addf(s, "\\%c", c);
        else if (c < 32 || c >= 127)
            trn_sb_addf(s, "\\%03o", c);
        else
            trn_sb_addf(s, "%c", c);
    }
    trn_sb_adds(s, "\"");
}

/* Paths inside the folder are written without it: the folder can be moved. */
static const char *relative(const trn_ckpt_dir *d, const char *path)
{
    size_t n = strlen(d->dir);
    return !strncmp(path, d->dir, n) && path[n] == '/' ? path + n + 1 : path;
}

static trn_err write_state(const trn_ckpt_dir *d)
{
    trn_sb s = {0};
    if (d->n) {
        trn_sb_adds(&s, "model_checkpoint_path: ");
        put_quoted(&s, relative(d, d->kept[d->n - 1].path));
        trn_sb_adds(&s, "\n");
    }
    for (int i = 0; i < d->n; i++) {
        trn_sb_adds(&s, "all_model_checkpoint_paths: ");
        put_quoted(&s, relative(d, d->kept[i].path));
        trn_sb_adds(&s, "\n");
    }
    for (int i = 0; i < d->n; i++)
        trn_sb_addf(&s, "all_model_checkpoint_timestamps: %.17g\n", d->kept[i].time);
    if (d->last_kept > 0)
        trn_sb_addf(&s, "last_preserved_timestamp: %.17g\n", d->last_kept);
    for (int i = 0; i < d->n_gone; i++)
        if (!strchr(d->gone[i], '\n'))
            trn_sb_addf(&s, DELETING "%s\n", relative(d, d->gone[i]));
    char *path = join(d->dir, d->state_file);
    trn_err err = trn_train__write_file(path, s.p ? s.p : "", s.n);
    free(path);
    trn_sb_fini(&s);
    return err;
}

void trn_checkpoint_state_fini(trn_checkpoint_state *st)
{
    free(st->latest);
    for (int i = 0; i < st->n; i++)
        free(st->all[i]);
    free(st->all);
    free(st->times);
    *st = (trn_checkpoint_state){0};
}

static trn_err parse_state(trn_checkpoint_state *out, const char *dir, const char *path, const trn_sb *text)
{
    trn_sb wire = {0};
    trn_arena *a = trn_arena_new();
    Tensorflow__CheckpointState *m;
    trn_err err = trn_textproto_encode(&wire, &tensorflow__checkpoint_state__descriptor, text->p ? text->p : "", text->n);
    if (!err)
        err = TRN_PB_UNPACK(&m, a, tensorflow__checkpoint_state__descriptor, (const uint8_t *)wire.p, wire.n);
    if (!err && !*m->model_checkpoint_path)
        err = trn_errorf(TRN_DATA_LOSS, "it names no checkpoint");
    if (!err) {
        *out = (trn_checkpoint_state){.latest = join(dir, m->model_checkpoint_path), .last_kept = m->last_preserved_timestamp, .n = (int)m->n_all_model_checkpoint_paths};
        out->all = trn_xalloc(((size_t)out->n + 1) * sizeof *out->all);
        out->times = trn_xalloc(((size_t)out->n + 1) * sizeof *out->times);
        for (int i = 0; i < out->n; i++) {
            out->all[i] = join(dir, m->all_model_checkpoint_paths[i]);
            if (m->n_all_model_checkpoint_timestamps == (size_t)out->n)
                out->times[i] = m->all_model_checkpoint_timestamps[i];
        }
    }
    trn_arena_free(a);
    trn_sb_fini(&wire);
    return err ? trn_err_wrap(err, "%s", path) : TRN_OK;
}

trn_err trn_checkpoint_state_read(trn_checkpoint_state *out, const char *dir, const char *name)
{
    char *path = join(dir, name ? name : "checkpoint");
    trn_sb text = {0};
    trn_err err = trn_train__read_file(&text, path, STATE_MAX);
    if (!err)
        err = parse_state(out, dir, path, &text);
    trn_sb_fini(&text);
    free(path);
    return err;
}

char *trn_latest_checkpoint(const char *dir)
{
    trn_checkpoint_state st;
    trn_err err = trn_checkpoint_state_read(&st, dir, NULL);
    if (err) {
        if (trn_err_code(err) != TRN_NOT_FOUND)
            TRN_WARN("saver", "no checkpoint is taken from %s: %s", dir, trn_err_msg(err));
        trn_err_free(err);
        return NULL;
    }
    char *found = NULL;
    if (trn_checkpoint_exists(st.latest))
        found = trn_xstrdup(st.latest);
    for (int i = st.n; !found && i-- > 0;)
        if (trn_checkpoint_exists(st.all[i])) {
            found = trn_xstrdup(st.all[i]);
            TRN_WARN("saver", "%s is not there although %s/checkpoint names it; the newest that is there is %s", st.latest, dir, found);
        }
    trn_checkpoint_state_fini(&st);
    return found;
}

/* ---- what killed programs left ----------------------------------------------------------------------------------------- */

static bool listed(const trn_ckpt_dir *d, const char *path)
{
    for (int i = 0; i < d->n; i++)
        if (!strcmp(d->kept[i].path, path))
            return true;
    return false;
}

typedef struct sweeping {
    const trn_ckpt_dir *d;
    const char *base; /* "model.ckpt" */
    double start;
    int n;
} sweeping;

static bool older(const char *path, double start)
{
    struct stat st;
    return !lstat(path, &st) && (double)st.st_mtim.tv_sec + (double)st.st_mtim.tv_nsec / 1e9 < start;
}

static bool starts(const char *s, const char *with) { return !strncmp(s, with, strlen(with)); }

/* How long the checkpoint's name is at the front of a file's name: base, ".old" perhaps, "-<step>" perhaps; 0: not one of ours. */
static size_t own_name(const char *name, const char *base)
{
    size_t n = strlen(base);
    if (strncmp(name, base, n) != 0)
        return 0;
    if (!strncmp(name + n, ".old", 4))
        n += 4;
    if (name[n] == '-' && isdigit((unsigned char)name[n + 1]))
        for (n++; isdigit((unsigned char)name[n]);)
            n++;
    return n;
}

static bool is_temp(const char *name)
{
    const char *at = strstr(name, ".tempstate");
    if (!at || !at[10])
        return false;
    for (at += 10; isdigit((unsigned char)*at);)
        at++;
    return !*at;
}

static void remove_in(void *arg, const char *name)
{
    char *path = join(arg, name);
    unlink(path);
    free(path);
}

static void sweep_one(void *arg, const char *name)
{
    sweeping *s = arg;
    size_t n = own_name(name, s->base), data;
    const char *rest = name + n;
    char *path = join(s->d->dir, name), *ckpt = NULL, *index = NULL;
    bool gone = false;
    if (!older(path, s->start))
        ;
    else if (is_temp(name) && ((n && (starts(rest, ".index.") || starts(rest, ".data-") || starts(rest, ".meta."))) ||
                               (starts(name, s->d->state_file) && starts(name + strlen(s->d->state_file), ".temp")) || starts(name, "graph.pbtxt.")))
        gone = !unlink(path);
    else if (n && !strcmp(rest, "_temp")) {
        each_entry(path, remove_in, path);
        gone = !rmdir(path);
    } else if (n && ((is_data(name, &data) && data == n) || !strcmp(rest, ".meta"))) {
        ckpt = trn_xstrndup(path, strlen(path) - strlen(rest));
        index = trn_bundle_index_name(ckpt);
        if (!trn_path_exists(index) && !listed(s->d, ckpt))
            gone = !unlink(path);
    }
    s->n += gone;
    free(path);
    free(ckpt);
    free(index);
}

/* ---- a saver's view ----------------------------------------------------------------------------------------------------- */

static void delete_gone(trn_ckpt_dir *d)
{
    for (int i = 0; i < d->n_gone; i++) {
        if (!listed(d, d->gone[i]))
            trn_checkpoint_remove(d->gone[i]);
        free(d->gone[i]);
    }
    d->n_gone = 0;
}

/* Comments of the state file that tell what its writer wanted to delete. */
static void read_gone(trn_ckpt_dir *d)
{
    char *path = join(d->dir, d->state_file);
    trn_sb text = {0};
    trn_err err = trn_train__read_file(&text, path, STATE_MAX);
    for (char *line = err ? NULL : text.p, *end; line && *line; line = end) {
        end = strchrnul(line, '\n');
        if (*end)
            *end++ = 0;
        if (!strncmp(line, DELETING, sizeof DELETING - 1) && line[sizeof DELETING - 1])
            TRN_PUSH(d->gone, d->n_gone, d->cap_gone, join(d->dir, line + sizeof DELETING - 1));
    }
    trn_err_free(err);
    trn_sb_fini(&text);
    free(path);
}

void trn_ckpt_dir__open(trn_ckpt_dir *d, const char *dir, const char *state_file, const char *base, double start)
{
    *d = (trn_ckpt_dir){.dir = trn_xstrdup(dir), .state_file = trn_xstrdup(state_file), .start = start};
    trn_checkpoint_state st;
    trn_err err = trn_checkpoint_state_read(&st, dir, state_file);
    if (!err) {
        for (int i = 0; i < st.n; i++)
            if (trn_checkpoint_exists(st.all[i]))
                TRN_PUSH(d->kept, d->n, d->cap, (trn_kept){trn_xstrdup(st.all[i]), st.times[i]});
        if (!listed(d, st.latest) && trn_checkpoint_exists(st.latest))
            TRN_PUSH(d->kept, d->n, d->cap, (trn_kept){trn_xstrdup(st.latest), 0});
        d->last_kept = st.last_kept;
        trn_checkpoint_state_fini(&st);
        read_gone(d);
    } else if (trn_err_code(err) != TRN_NOT_FOUND) {
        TRN_WARN("saver", "%s/%s is damaged and will be written anew: %s", dir, state_file, trn_err_msg(err));
    }
    trn_err_free(err);
    delete_gone(d);
    sweeping s = {.d = d, .base = base, .start = start};
    each_entry(dir, sweep_one, &s);
    if (s.n)
        TRN_INFO("saver", "%s: removed %d files that an interrupted save had left", dir, s.n);
}

void trn_ckpt_dir__fini(trn_ckpt_dir *d)
{
    for (int i = 0; i < d->n; i++)
        free(d->kept[i].path);
    for (int i = 0; i < d->n_gone; i++)
        free(d->gone[i]);
    free(d->kept);
    free(d->gone);
    free(d->dir);
    free(d->state_file);
    *d = (trn_ckpt_dir){0};
}

trn_err trn_ckpt_dir__set_aside(trn_ckpt_dir *d, const char *path, const char *aside)
{
    for (int i = 0; i < d->n; i++) {
        if (strcmp(d->kept[i].path, path) != 0 || !trn_checkpoint_exists(path))
            continue;
        TRN_TRY(alias(path, aside));
        free(d->kept[i].path);
        d->kept[i].path = trn_xstrdup(aside);
        return write_state(d);
    }
    return TRN_OK;
}

static void drop(trn_ckpt_dir *d, int i, bool keep_files)
{
    if (keep_files)
        free(d->kept[i].path);
    else
        TRN_PUSH(d->gone, d->n_gone, d->cap_gone, d->kept[i].path);
    memmove(&d->kept[i], &d->kept[i + 1], (size_t)(d->n - i - 1) * sizeof *d->kept);
    d->n--;
}

trn_err trn_ckpt_dir__record(trn_ckpt_dir *d, const char *path, const char *aside, int max_to_keep, double keep_every_hours)
{
    for (int i = d->n; i-- > 0;) {
        if (!strcmp(d->kept[i].path, path))
            drop(d, i, true);
        else if (!strcmp(d->kept[i].path, aside))
            drop(d, i, false);
    }
    TRN_PUSH(d->kept, d->n, d->cap, (trn_kept){trn_xstrdup(path), (double)trn_wall_us() / 1e6});
    if (keep_every_hours > 0 && d->last_kept <= 0)
        d->last_kept = d->start;
    while (max_to_keep > 0 && d->n > max_to_keep) {
        bool stays = keep_every_hours > 0 && d->kept[0].time - d->last_kept >= keep_every_hours * 3600;
        if (stays)
            d->last_kept = d->kept[0].time;
        drop(d, 0, stays);
    }
    TRN_TRY(write_state(d));
    delete_gone(d);
    return TRN_OK;
}
