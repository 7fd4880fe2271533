/* cache(filename): the first walk that gets to the end leaves the elements in a file, all later ones (also of other sessions and servers, and TensorFlow's) read them there. The
 * file is a checkpoint, as TensorFlow writes it: component j of element i has the name "      i_j". A file beside it says that somebody is writing. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/bundle.h"
#include "ops/data.h"

#define MAX_ITEMS 10000000 /* TensorFlow's limit: names have seven places */

typedef struct filed {
    trn_ds d;
    char *path;
} filed;

typedef struct filed_it {
    trn_it it;
    enum { F_NEW, F_READ, F_WRITE, F_OVER } mode;
    bool ended; /* of the input, while it is written */
    int64_t at;
    trn_elem *kept; /* to be written */
    trn_bundle *in;
    trn_bundle_writer *out;
    char *lock;
} filed_it;

static void filed_free(trn_ds *d) { free(((filed *)d)->path); }

static void unlock_file(filed_it *it)
{
    if (it->lock)
        unlink(trn_local_path(it->lock));
    free(it->lock);
    it->lock = NULL;
}

static void filed_stop(trn_it *it_)
{
    filed_it *it = (filed_it *)it_;
    trn_elem_free(it->kept);
    trn_bundle_close(it->in);
    if (it->out)
        TRN_WARN("data", "%s: the dataset was not read to its end; what was cached of it is dropped", ((filed *)it_->d)->path);
    trn_bundle_abort(it->out);
    unlock_file(it);
}

static trn_err lock_file(filed_it *it, const char *path)
{
    trn_sb s = {0};
    trn_sb_addf(&s, "%s_0.lockfile", path);
    int fd = open(trn_local_path(s.p), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    trn_err err = TRN_OK;
    if (fd < 0)
        err = errno == EEXIST ? trn_errorf(TRN_ALREADY_EXISTS, "There appears to be a concurrent caching iterator running - cache lockfile already exists ('%s'). If you are sure no other "
                                                               "running computation is using this cache prefix, delete the lockfile and re-initialize the iterator.", s.p)
                              : trn_errorf(errno == ENOENT ? TRN_NOT_FOUND : TRN_UNAVAILABLE, "%s: %s", s.p, strerror(errno));
    else
        close(fd);
    if (!err)
        it->lock = s.p;
    else
        trn_sb_fini(&s);
    return err;
}

/* The first pull decides: read what is there, or write it. */
static trn_err begin(filed_it *it)
{
    const char *path = ((filed *)it->it.d)->path;
    TRN_TRY(trn_host_check_path(&it->it.root->host, path));
    char *index = trn_bundle_index_name(path);
    bool there = access(trn_local_path(index), F_OK) == 0;
    free(index);
    if (there) {
        TRN_TRY(trn_bundle_open(&it->in, path));
        it->mode = F_READ;
        return TRN_OK;
    }
    TRN_TRY(lock_file(it, path));
    trn_err err = trn_bundle_writer_open(&it->out, path);
    if (!err)
        err = trn_it_start_in(&it->it);
    if (err) {
        trn_bundle_abort(it->out);
        it->out = NULL;
        unlock_file(it);
    } else {
        it->mode = F_WRITE;
    }
    return err;
}

static size_t key(char out[48], const filed_it *it, int c)
{
    int digits = snprintf(NULL, 0, "%d", it->it.d->n - 1);
    return (size_t)snprintf(out, 48, "%7lld_%*d", (long long)it->at, digits, c);
}

static trn_err write_kept(filed_it *it)
{
    char name[48];
    if (it->at >= MAX_ITEMS)
        return TRN_BAD("Upstream iterator is producing more than %d items, which is more than the cache limit.", MAX_ITEMS);
    for (int c = 0; c < it->kept->n; c++) {
        size_t n = key(name, it, c);
        TRN_TRY(trn_bundle_add(it->out, name, n, it->kept->t[c]));
    }
    it->at++;
    return TRN_OK;
}

static trn_err finish_file(filed_it *it)
{
    trn_err err = trn_bundle_finish(it->out);
    it->out = NULL;
    unlock_file(it);
    it->mode = F_OVER;
    return err;
}

static trn_ds_do read_one(filed_it *it, trn_act *a)
{
    char name[48];
    trn_elem *e = trn_elem_new(it->it.d->n);
    for (int c = 0; c < e->n; c++) {
        size_t n = key(name, it, c);
        trn_err err = trn_bundle_read(&e->t[c], it->in, name, n);
        if (!err)
            continue;
        trn_elem_free(e);
        if (c > 0 || trn_err_code(err) != TRN_NOT_FOUND)
            return trn_act_fail(a, err);
        trn_err_free(err);
        it->mode = F_OVER;
        return TRN_DS_END;
    }
    it->at++;
    return trn_act_give(a, e);
}

static trn_ds_do on_disk(filed_it *it, trn_act *a)
{
    trn_err err;
    if (it->mode == F_NEW && (err = begin(it)))
        return trn_act_fail(a, err);
    if (it->mode == F_READ)
        return read_one(it, a);
    if (it->ended) {
        err = finish_file(it);
        return err ? trn_act_fail(a, err) : TRN_DS_END;
    }
    if (!it->kept)
        return trn_act_pull_on(a, it->it.in);
    err = write_kept(it);
    trn_elem *e = it->kept;
    it->kept = NULL;
    if (!err)
        return trn_act_give(a, e);
    trn_elem_free(e);
    return trn_act_fail(a, err);
}

static trn_ds_do filed_next(trn_it *it_, trn_act *a, trn_ds_why why)
{
    filed_it *it = (filed_it *)it_;
    switch (why) {
    case TRN_DS_START:
        trn_elem_free(it->kept);
        it->kept = NULL;
        if (it->mode == F_OVER)
            return TRN_DS_END;
        return it->mode == F_WRITE ? trn_act_pull_on(a, it_->in) : TRN_DS_DISK;
    case TRN_DS_GOT:
        it->kept = trn_act_take(a);
        return TRN_DS_DISK;
    case TRN_DS_ENDED:
        it->ended = true;
        return TRN_DS_DISK;
    default:
        return on_disk(it, a);
    }
}

static const trn_ds_op filed_op = {"CacheDataset", sizeof(filed_it), filed_free, NULL, filed_next, NULL, filed_stop, trn_data_count_same};

trn_err trn_data_cache_file(trn_kctx *k, char *path)
{
    filed *d;
    trn_err err = trn_data_on(&d, k, &filed_op, sizeof *d);
    if (err) {
        free(path);
        return err;
    }
    d->path = path;
    return trn_data_out(k, d, TRN_OK);
}
