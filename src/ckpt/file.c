#include "ckpt/file.h"

#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define BUFFER (256 << 10)

/* ---- writing -------------------------------------------------------------------------------------------------- */

trn_err trn_outfile_open(trn_outfile *f, const char *path)
{
    *f = (trn_outfile){.fd = -1};
    path = trn_local_path(path);
    char *tmp = trn_xasprintf("%s.tempstate%" PRIu64, path, trn_random64());
    int fd = TRN_FAULT("ckpt.open") ? (errno = EIO, -1) : open(tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0) {
        trn_err err = trn_err_errno(errno, "%s", tmp);
        free(tmp);
        return err;
    }
    *f = (trn_outfile){.fd = fd, .path = trn_xstrdup(path), .tmp = tmp, .buf = trn_xalloc(BUFFER)};
    return TRN_OK;
}

static trn_err write_all(const trn_outfile *f, const uint8_t *p, size_t n)
{
    while (n) {
        ssize_t k = TRN_FAULT("ckpt.write") ? (errno = ENOSPC, -1) : write(f->fd, p, TRN_MIN(n, (size_t)1 << 30));
        if (k < 0 && errno == EINTR)
            continue;
        if (k < 0)
            return trn_err_errno(errno, "writing %s", f->tmp);
        p += k;
        n -= (size_t)k;
    }
    return TRN_OK;
}

static trn_err flush(trn_outfile *f)
{
    size_t n = f->n_buf;
    f->n_buf = 0;
    return write_all(f, f->buf, n);
}

trn_err trn_outfile_write(trn_outfile *f, const void *p, size_t n)
{
    f->size += n;
    if (f->n_buf + n > BUFFER)
        TRN_TRY(flush(f));
    if (n > BUFFER)
        return write_all(f, p, n);
    if (n)
        memcpy(f->buf + f->n_buf, p, n);
    f->n_buf += n;
    return TRN_OK;
}

trn_err trn_outfile_sync(trn_outfile *f)
{
    if (f->fd < 0)
        return TRN_OK;
    trn_err err = flush(f);
    if (!err && (TRN_FAULT("ckpt.fsync") ? (errno = EIO, -1) : fsync(f->fd)))
        err = trn_err_errno(errno, "fsync of %s", f->tmp);
    if (close(f->fd) && !err)
        err = trn_err_errno(errno, "closing %s", f->tmp);
    f->fd = -1;
    return err;
}

static trn_err sync_dir(const char *path)
{
    char *dir = trn_path_dir(path);
    trn_err err = trn_path_sync(dir);
    free(dir);
    return err;
}

static void outfile_fini(trn_outfile *f)
{
    if (f->fd >= 0)
        close(f->fd);
    free(f->path);
    free(f->tmp);
    free(f->buf);
    *f = (trn_outfile){.fd = -1};
}

trn_err trn_outfile_commit(trn_outfile *f)
{
    trn_err err = trn_outfile_sync(f);
    if (!err && (TRN_FAULT("ckpt.rename") ? (errno = EIO, -1) : rename(f->tmp, f->path)))
        err = trn_err_errno(errno, "renaming %s to %s", f->tmp, f->path);
    if (!err)
        err = sync_dir(f->path);
    else
        unlink(f->tmp);
    outfile_fini(f);
    return err;
}

void trn_outfile_abort(trn_outfile *f)
{
    if (f->tmp)
        unlink(f->tmp);
    outfile_fini(f);
}

/* ---- reading -------------------------------------------------------------------------------------------------- */

trn_err trn_infile_open(trn_infile *f, const char *path)
{
    int fd = open(trn_local_path(path), O_RDONLY | O_CLOEXEC);
    struct stat st;
    if (fd < 0)
        return trn_err_errno(errno, "%s", path);
    trn_err err = TRN_OK;
    if (fstat(fd, &st))
        err = trn_err_errno(errno, "%s", path);
    else if (!S_ISREG(st.st_mode))
        err = trn_errorf(TRN_FAILED_PRECONDITION, "%s is not a regular file", path);
    if (err) {
        close(fd);
        return err;
    }
    *f = (trn_infile){.fd = fd, .path = trn_xstrdup(path), .size = (uint64_t)st.st_size};
    return TRN_OK;
}

void trn_infile_on_memory(trn_infile *f, const char *name, const void *p, size_t n)
{
    *f = (trn_infile){.fd = -1, .mem = p, .path = trn_xstrdup(name), .size = n};
}

void trn_infile_close(trn_infile *f)
{
    if (f->path && f->fd >= 0)
        close(f->fd);
    free(f->path);
    *f = (trn_infile){.fd = -1};
}

trn_err trn_infile_read(trn_infile *f, uint64_t at, void *out, size_t n)
{
    if (at > f->size || n > f->size - at)
        return trn_errorf(TRN_DATA_LOSS, "%s: %zu bytes wanted at %" PRIu64 ", but the file has %" PRIu64, f->path, n,
                          at, f->size);
    if (f->fd < 0) {
        if (n)
            memcpy(out, f->mem + at, n);
        return TRN_OK;
    }
    uint8_t *p = out;
    while (n) {
        ssize_t k =
            TRN_FAULT("ckpt.read") ? (errno = EIO, -1) : pread(f->fd, p, TRN_MIN(n, (size_t)1 << 30), (off_t)at);
        if (k < 0 && errno == EINTR)
            continue;
        if (k < 0)
            return trn_err_errno(errno, "reading %s", f->path);
        if (k == 0)
            return trn_errorf(TRN_DATA_LOSS, "%s ends at %" PRIu64 ": it became shorter while it was read", f->path,
                              at);
        p += k;
        n -= (size_t)k;
        at += (uint64_t)k;
    }
    return TRN_OK;
}

/* ---- names ---------------------------------------------------------------------------------------------------- */

bool trn_path_exists(const char *path) { return access(trn_local_path(path), F_OK) == 0; }

char *trn_path_dir(const char *path)
{
    const char *slash = strrchr(path, '/');
    if (!slash)
        return trn_xstrdup(".");
    return slash == path ? trn_xstrdup("/") : trn_xstrndup(path, (size_t)(slash - path));
}

trn_err trn_path_mkdir(const char *path)
{
    return mkdir(trn_local_path(path), 0777) && errno != EEXIST ? trn_err_errno(errno, "%s", path) : TRN_OK;
}

trn_err trn_path_mkdirs(const char *path)
{
    if (trn_path_exists(path))
        return TRN_OK;
    char *part = trn_xstrdup(trn_local_path(path));
    trn_err err = TRN_OK;
    for (char *p = part; !err && *p; p++) {
        if (*p != '/' || p == part)
            continue;
        *p = 0;
        err = trn_path_mkdir(part);
        *p = '/';
    }
    free(part);
    return err ? err : trn_path_mkdir(path);
}

trn_err trn_path_sync(const char *dir)
{
    int fd = open(trn_local_path(dir), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    trn_err err = TRN_OK;
    if (fd < 0)
        err = trn_err_errno(errno, "%s", dir);
    else if ((TRN_FAULT("ckpt.fsync_dir") ? (errno = EIO, -1) : fsync(fd)) && errno != EINVAL && errno != ENOTSUP) /* some network file systems cannot */
        err = trn_err_errno(errno, "fsync of %s", dir);
    if (fd >= 0)
        close(fd);
    return err;
}

static int by_name(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

trn_err trn_path_glob(char ***out, int *n, const char *pattern)
{
    glob_t g = {0};
    const char *local = trn_local_path(pattern);
    int front = strcmp(local, "/") == 0 ? 0 : (int)(local - pattern); /* "file://", which results keep */
    int rc = glob(local, GLOB_NOSORT | GLOB_PERIOD, NULL, &g);
    if (rc && rc != GLOB_NOMATCH) {
        globfree(&g);
        return rc == GLOB_NOSPACE ? trn_err_oom() : trn_errorf(TRN_UNKNOWN, "%s: the folder cannot be read", pattern);
    }
    char **v = NULL;
    int count = 0, cap = 0;
    for (size_t i = 0; i < g.gl_pathc; i++) {
        const char *p = g.gl_pathv[i], *last = strrchr(p, '/');
        last = last ? last + 1 : p;
        if (strcmp(last, ".") != 0 && strcmp(last, "..") != 0)
            TRN_PUSH(v, count, cap, trn_xasprintf("%.*s%s", front, pattern, p));
    }
    globfree(&g);
    if (count)
        qsort(v, (size_t)count, sizeof *v, by_name);
    *out = v;
    *n = count;
    return TRN_OK;
}
