/* Meeting in a shared folder; meet.h tells the files and the rules. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "cluster/cluster.h"
#include "cluster/meet_int.h"

#define SECOND TRN_MEET_SECOND
enum { BEAT_S = 2, DEBRIS_S = 3, MAX_FILE = 4 << 20 };

typedef struct dir_state {
    char *own, *cluster;  /* paths */
    bool announced;
    uint64_t beat_at;     /* when we touched our file, by our clock … */
    int64_t beat_time;    /* … and by the file system's: ages are measured against it */
    char *written;        /* leader: what cluster.json says, by nonces */
} dir_state;

typedef struct seen {
    trn_meet_card card;
    bool there, fresh;
    double age;
} seen;

static char *task_path(const char *dir, const char *id, int index) { return trn_xasprintf("%s/%s.task-%d.json", dir, id, index); }

static int64_t mtime_of(const struct stat *st) { return st->st_mtim.tv_sec * INT64_C(1000000000) + st->st_mtim.tv_nsec; }

/* Opening asks the file server, where stat alone may be answered from a cache. */
static json_t *read_json(const char *path, int64_t *mtime)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat st;
    if (fd < 0)
        return NULL;
    json_t *root = NULL;
    if (fstat(fd, &st) == 0 && st.st_size <= MAX_FILE) {
        char *text = trn_xalloc((size_t)st.st_size + 1);
        ssize_t n = read(fd, text, (size_t)st.st_size);
        if (n >= 0)
            root = json_loadb(text, (size_t)n, 0, NULL);
        free(text);
        if (mtime)
            *mtime = mtime_of(&st);
    }
    close(fd);
    return root;
}

static trn_err write_all(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0)
        return trn_err_errno(errno, "cannot write %s", path);
    size_t n = strlen(text);
    bool ok = write(fd, text, n) == (ssize_t)n;
    int e = errno;
    if (close(fd) != 0 || !ok) {
        unlink(path);
        return trn_err_errno(ok ? errno : e, "cannot write %s", path);
    }
    return TRN_OK;
}

/* ---- our own file --------------------------------------------------------------------------------------------------- */

static trn_err announce(trn_meet *m);

static trn_err beat(trn_meet *m)
{
    dir_state *d = m->state;
    int64_t mtime = 0;
    if (utimensat(AT_FDCWD, d->own, NULL, 0) != 0) {
        if (errno != ENOENT)
            return trn_err_errno(errno, "cannot touch %s", d->own);
        return announce(m); /* cleaned away by somebody, perhaps by an earlier process of this task in the moment in which we took its place */
    }
    json_t *root = read_json(d->own, &mtime);
    const char *nonce = json_string_value(json_object_get(root, "nonce")), *host = json_string_value(json_object_get(root, "host"));
    trn_err err = TRN_OK;
    if (!nonce)
        err = trn_errorf(TRN_ABORTED, "%s cannot be read any more: has somebody cleaned up the folder?", d->own);
    else if (strcmp(nonce, m->nonce) != 0)
        err = trn_errorf(TRN_ALREADY_EXISTS, "another process on %s has taken the place of task %d of job '%s'", host ? host : "?", m->o.index, m->o.job_id);
    json_decref(root);
    TRN_TRY(err);
    d->beat_at = trn_now_ns();
    d->beat_time = mtime;
    return TRN_OK;
}

static double age_of(const dir_state *d, int64_t mtime) { return (double)(d->beat_time - mtime) / 1e9 + (double)(trn_now_ns() - d->beat_at) / 1e9; }

/* What the file system takes for now, by a file that we write there. */
static trn_err file_system_time(trn_meet *m, const char *tmp)
{
    dir_state *d = m->state;
    struct stat st;
    if (utimensat(AT_FDCWD, tmp, NULL, 0) != 0 || stat(tmp, &st) != 0)
        return trn_err_errno(errno, "cannot touch %s", tmp);
    d->beat_at = trn_now_ns();
    d->beat_time = mtime_of(&st);
    return TRN_OK;
}

/* Somebody's file is in our place. True: it is a dead one's. */
static trn_err may_replace(trn_meet *m, const char *tmp, int64_t *first_mtime, bool *out)
{
    dir_state *d = m->state;
    int64_t mtime = 0;
    json_t *root = read_json(d->own, &mtime);
    trn_meet_card c;
    bool read = trn_meet__card_read(&c, root);
    json_decref(root);
    trn_err err = file_system_time(m, tmp);
    if (!err) {
        if (!*first_mtime)
            *first_mtime = mtime;
        *out = (read && trn_meet__gone(m, &c)) || age_of(d, mtime) > TRN_MEET_STALE_S;
        if (!*out && read && mtime != *first_mtime && mtime != 0)
            err = trn_errorf(TRN_ALREADY_EXISTS, "task %d of job '%s' runs already: pid %lld on %s, at %s", m->o.index, m->o.job_id, (long long)c.pid, c.host, c.address);
    }
    if (read)
        trn_meet__card_fini(&c);
    return err;
}

static trn_err announce_with(trn_meet *m, const char *tmp)
{
    dir_state *d = m->state;
    int64_t first_mtime = 0;
    for (;;) {
        if (link(tmp, d->own) == 0)
            break;
        int e = errno;
        if (e == EPERM || e == EOPNOTSUPP || e == ENOSYS || e == EMLINK) { /* no hard links here: not atomic, but checked at every beat */
            if (access(d->own, F_OK) != 0) {
                if (rename(tmp, d->own) != 0)
                    return trn_err_errno(errno, "cannot write %s", d->own);
                break;
            }
        } else if (e != EEXIST) {
            return trn_err_errno(e, "cannot write %s", d->own);
        }
        bool replace = false;
        TRN_TRY(may_replace(m, tmp, &first_mtime, &replace));
        if (replace) {
            if (rename(tmp, d->own) != 0)
                return trn_err_errno(errno, "cannot write %s", d->own);
            break;
        }
        TRN_TRY(trn_meet__patience(m, "an earlier process of the same task to be gone"));
        nanosleep(&(struct timespec){.tv_nsec = 200000000}, NULL);
    }
    d->announced = true;
    return beat(m);
}

static trn_err announce(trn_meet *m)
{
    dir_state *d = m->state;
    char *tmp = trn_xasprintf("%s/.%s.task-%d.%s.tmp", m->o.where, m->o.job_id, m->o.index, m->nonce);
    json_t *root = trn_meet__card_json(&m->me);
    char *text = json_dumps(root, 0);
    json_decref(root);
    trn_err err = write_all(tmp, text);
    if (!err)
        err = announce_with(m, tmp);
    unlink(tmp);
    free(text);
    if (!err)
        TRN_DEBUG("meet", "announced as %s", d->own);
    return err;
}

/* ---- the others ------------------------------------------------------------------------------------------------------ */

static trn_err scan(trn_meet *m, seen *v)
{
    dir_state *d = m->state;
    for (int i = 0; i < m->o.n_tasks; i++) {
        char *path = task_path(m->o.where, m->o.job_id, i);
        int64_t mtime = 0;
        json_t *root = read_json(path, &mtime);
        free(path);
        seen *s = &v[i];
        s->there = trn_meet__card_read(&s->card, root);
        json_decref(root);
        s->age = s->there ? age_of(d, mtime) : 0;
        s->fresh = s->there && s->age < TRN_MEET_STALE_S && !trn_meet__gone(m, &s->card);
        if (s->fresh)
            TRN_TRY(trn_meet__check(m, &s->card));
        if (s->fresh && s->card.index != i)
            return trn_errorf(TRN_INVALID_ARGUMENT, "the file of task %d holds task %d", i, s->card.index);
    }
    return TRN_OK;
}

static void scan_fini(seen *v, int n)
{
    for (int i = 0; i < n; i++)
        if (v[i].there)
            trn_meet__card_fini(&v[i].card);
    free(v);
}

static int missing_text(trn_sb *out, const trn_meet *m, const seen *v)
{
    int n = 0;
    for (int i = 0; i < m->o.n_tasks; i++) {
        if (v[i].fresh)
            continue;
        if (n++ >= 8)
            continue;
        trn_sb_addf(out, "%stask %d", n > 1 ? ", " : "", i);
        if (v[i].there)
            trn_sb_addf(out, " (%s, last seen %.0f s ago on %s)", v[i].card.role, v[i].age, v[i].card.host);
        else
            trn_sb_adds(out, " (never seen)");
    }
    if (n > 8)
        trn_sb_addf(out, " and %d more", n - 8);
    if (n == 0)
        trn_sb_adds(out, "task 0 to say that all are there");
    return n;
}

/* Task 0: everybody is there, and it is not what the file says already. */
static trn_err write_cluster(trn_meet *m, const seen *v)
{
    dir_state *d = m->state;
    trn_sb nonces = {0};
    json_t *members = json_array();
    for (int i = 0; i < m->o.n_tasks; i++) {
        trn_sb_adds(&nonces, v[i].card.nonce);
        json_array_append_new(members, json_pack("{s:i, s:s, s:s, s:s}", "index", i, "role", v[i].card.role, "address", v[i].card.address, "nonce", v[i].card.nonce));
    }
    trn_err err = TRN_OK;
    if (!d->written || strcmp(d->written, nonces.p) != 0) {
        json_t *root = json_pack("{s:s, s:o}", "job", m->o.job_id, "members", members);
        char *text = json_dumps(root, JSON_INDENT(1));
        char *tmp = trn_xasprintf("%s/.%s.cluster.%s.tmp", m->o.where, m->o.job_id, m->nonce);
        err = write_all(tmp, text);
        if (!err && rename(tmp, d->cluster) != 0)
            err = trn_err_errno(errno, "cannot write %s", d->cluster);
        free(tmp);
        free(text);
        json_decref(root);
        if (!err && d->written && m->met)
            trn_meet__say(m, "a task has come back; %s has the new addresses", d->cluster);
        free(d->written);
        d->written = nonces.p;
    } else {
        json_decref(members);
        trn_sb_fini(&nonces);
    }
    return err;
}

static bool complete(const trn_meet *m, const seen *v)
{
    for (int i = 0; i < m->o.n_tasks; i++)
        if (!v[i].fresh)
            return false;
    return true;
}

static trn_err turn(trn_meet *m, bool *met)
{
    dir_state *d = m->state;
    if (trn_now_ns() - d->beat_at > BEAT_S * SECOND)
        TRN_TRY(beat(m));
    seen *v = trn_xalloc(sizeof *v * (size_t)m->o.n_tasks);
    trn_err err = scan(m, v);
    if (!err && m->o.index == 0 && complete(m, v))
        err = write_cluster(m, v);
    if (!err) {
        json_t *root = read_json(d->cluster, NULL);
        *met = trn_meet__adopt(m, root);
        json_decref(root);
    }
    if (!err && !*met) {
        trn_sb missing = {0};
        int n = missing_text(&missing, m, v);
        if (trn_meet__say_due(m)) {
            double waited = (double)(trn_now_ns() - m->begin) / 1e9;
            trn_meet__say(m, "%s (task %d) waits since %.0f s in %s, job '%s', for %d of %d tasks: %s%s%.0f%s", m->o.role, m->o.index, waited, m->o.where, m->o.job_id, n,
                          m->o.n_tasks, missing.p, m->o.timeout_ns ? "; giving up in " : "; waiting on (",
                          m->o.timeout_ns ? (double)m->o.timeout_ns / 1e9 - waited : 0.0, m->o.timeout_ns ? " s" : " = no limit)");
        }
        err = trn_meet__patience(m, missing.p);
        trn_sb_fini(&missing);
    }
    scan_fini(v, m->o.n_tasks);
    return err;
}

static trn_err gather(trn_meet *m)
{
    dir_state *d = m->state = trn_xalloc(sizeof *d);
    d->own = task_path(m->o.where, m->o.job_id, m->o.index);
    d->cluster = trn_xasprintf("%s/%s.cluster.json", m->o.where, m->o.job_id);
    if (mkdir(m->o.where, 0777) != 0 && errno != EEXIST)
        return trn_err_errno(errno, "cannot make the folder %s to meet in", m->o.where);
    TRN_TRY(announce(m));
    bool met = false;
    for (long ms = 50; !met; ms = TRN_MIN(ms * 3 / 2, 1000L)) {
        TRN_TRY(turn(m, &met));
        if (!met)
            nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000}, NULL);
    }
    return TRN_OK;
}

/* Task 0 goes on looking: who was killed and started again needs its new nonce in the file. */
static uint64_t tend(trn_meet *m, uint64_t now)
{
    dir_state *d = m->state;
    uint64_t due = d->beat_at + (m->o.index == 0 ? SECOND : BEAT_S * SECOND);
    if (now < due)
        return due;
    trn_err err = beat(m);
    d->beat_at = trn_now_ns();
    if (!err && m->o.index == 0) {
        seen *v = trn_xalloc(sizeof *v * (size_t)m->o.n_tasks);
        err = scan(m, v);
        if (!err && complete(m, v))
            err = write_cluster(m, v);
        scan_fini(v, m->o.n_tasks);
    }
    if (err && trn_meet__say_due(m))
        trn_meet__say(m, "%s", trn_err_msg(err));
    trn_err_free(err);
    return d->beat_at + (m->o.index == 0 ? SECOND : BEAT_S * SECOND);
}

/* What a task that was killed while it wrote left behind: files of this job under other names. Those of a living one are microseconds old, or touched five times
 * a second. */
static void clear_debris(trn_meet *m)
{
    dir_state *d = m->state;
    char *head = trn_xasprintf(".%s.", m->o.job_id);
    DIR *dir = opendir(m->o.where);
    for (struct dirent *e; dir && (e = readdir(dir));) {
        const char *rest = e->d_name + strlen(head);
        size_t n = strlen(e->d_name);
        if (strncmp(e->d_name, head, strlen(head)) != 0 || (strncmp(rest, "task-", 5) != 0 && strncmp(rest, "cluster.", 8) != 0) || n < 4 ||
            strcmp(e->d_name + n - 4, ".tmp") != 0)
            continue;
        char *path = trn_xasprintf("%s/%s", m->o.where, e->d_name);
        int64_t mtime = INT64_MAX;
        json_t *root = read_json(path, &mtime);
        trn_meet_card c;
        bool card = trn_meet__card_read(&c, root);
        json_decref(root);
        if ((card && trn_meet__gone(m, &c)) || (mtime != INT64_MAX && age_of(d, mtime) > DEBRIS_S))
            unlink(path);
        trn_meet__card_fini(&c);
        free(path);
    }
    if (dir)
        closedir(dir);
    free(head);
}

/* The last one out takes the cluster file with it. */
static void close_dir(trn_meet *m)
{
    dir_state *d = m->state;
    if (!d)
        return;
    json_t *root = d->announced ? read_json(d->own, NULL) : NULL;
    const char *nonce = json_string_value(json_object_get(root, "nonce"));
    if (nonce && strcmp(nonce, m->nonce) == 0) {
        unlink(d->own);
        bool others = false;
        for (int i = 0; i < m->o.n_tasks && !others; i++) {
            char *path = task_path(m->o.where, m->o.job_id, i);
            others = access(path, F_OK) == 0;
            free(path);
        }
        if (!others) {
            unlink(d->cluster);
            clear_debris(m);
        }
    }
    json_decref(root);
    free(d->own);
    free(d->cluster);
    free(d->written);
    free(d);
}

const trn_meet_kind trn_meet__dir = {gather, tend, close_dir};

int trn_meet_old_port(const char *where, const char *job_id, int index, const char *host)
{
    if (strncmp(where, "tcp://", 6) == 0)
        return 0;
    const char *id = job_id ? job_id : "job";
    char *path = task_path(where, id, index), *cluster = trn_xasprintf("%s/%s.cluster.json", where, id);
    json_t *root = read_json(path, NULL);
    const char *address = json_string_value(json_object_get(root, "address"));
    if (!address) { /* it took its name off before it ended, but the others know it */
        json_decref(root);
        root = read_json(cluster, NULL);
        json_t *e;
        size_t i;
        json_array_foreach(json_object_get(root, "members"), i, e)
        {
            if (json_integer_value(json_object_get(e, "index")) == index)
                address = json_string_value(json_object_get(e, "address"));
        }
    }
    free(path);
    free(cluster);
    const char *colon = address ? strrchr(address, ':') : NULL;
    int port = colon ? atoi(colon + 1) : 0;
    char *same = port > 0 ? trn_address_join(host, port) : NULL; /* with brackets where they belong */
    if (same && strcmp(same, address) != 0)
        port = 0;
    free(same);
    json_decref(root);
    return port;
}
