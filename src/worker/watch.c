/* A part of a step that tfdbg watches: debug ops in it (graph/watch.c), and a file that says what it looks like, since readers of dumps want to know. */
#include <inttypes.h>
#include <stdlib.h>

#include "ckpt/dump.h"
#include "graph/watch.h"
#include "proto/pb.h"
#include "worker/worker_int.h"

/* One device's nodes. */
typedef struct drawing {
    char *device;
    trn_sb bytes; /* GraphDef */
} drawing;

typedef struct watch_job {
    trn_worker *w;
    trn_arena *arena;
    trn_watches watches;
    int n, cap;
    drawing *v;
    void (*done)(void *arg, trn_err err);
    void *arg;
} watch_job;

static void job_end(watch_job *j, trn_err err)
{
    void (*done)(void *, trn_err) = j->done;
    void *arg = j->arg;
    trn_worker *w = j->w;
    for (int i = 0; i < j->n; i++) {
        free(j->v[i].device);
        trn_sb_fini(&j->v[i].bytes);
    }
    free(j->v);
    trn_arena_free(j->arena);
    free(j);
    done(arg, err);
    trn_worker_busy_add(w, -1);
}

static trn_err write_drawing(const watch_job *j, const drawing *d, const char *root)
{
    trn_sb base = {0}, head = {0};
    uint64_t now = trn_dump_now();
    trn_sb_adds(&base, root);
    trn_dump_add_device(&base, d->device);
    trn_sb_addf(&base, "/_tfdbg_graph_hash%" PRIu64, trn_hash64_tf(d->bytes.p ? d->bytes.p : "", d->bytes.n));
    char *path = trn_xstrndup(base.p, base.n);
    trn_dump_graph_head(&head, now, d->bytes.n);
    trn_err err = trn_exec_check_path(j->w->env, path);
    if (!err)
        err = trn_dump_write(path, now, &head, &d->bytes);
    free(path);
    trn_sb_fini(&head);
    trn_sb_fini(&base);
    return err ? trn_err_wrap(err, "debug_options: this step's graph") : TRN_OK;
}

static void write_drawings(void *arg)
{
    watch_job *j = arg;
    int n = 0;
    const char **urls;
    trn_err err = trn_watches_urls(&urls, &n, j->arena, &j->watches);
    if (j->watches.reset_disk)
        trn_dump_reset();
    for (int i = 0; i < n; i++)
        for (int k = 0; !err && trn_dump_root(urls[i]) && k < j->n; k++)
            err = write_drawing(j, &j->v[k], trn_dump_root(urls[i]));
    job_end(j, err);
}

/* Each round goes through what is left: no more devices than the task may have. */
static trn_err draw(watch_job *j, const trn_graph *g, const char *device, int max_devices)
{
    trn_arena *a = trn_arena_new();
    Tensorflow__GraphDef *gd = trn_graph_export(a, g);
    Tensorflow__NodeDef **left = gd->node;
    trn_err err = TRN_OK;
    for (size_t n_left = gd->n_node, n = 0; n_left; left += n, n_left -= n) {
        const char *first = *left[0]->device ? left[0]->device : device;
        if (j->n == max_devices) {
            err = trn_errorf(TRN_INVALID_ARGUMENT, "debug_options: the part of the step has nodes on more than %d devices, the last on %s", max_devices, first);
            break;
        }
        n = 0;
        for (size_t i = 0; i < n_left; i++) {
            Tensorflow__NodeDef *nd = left[i];
            if (strcmp(*nd->device ? nd->device : device, first) != 0)
                continue;
            left[i] = left[n]; /* those of other devices come later */
            left[n++] = nd;
        }
        gd->node = left;
        gd->n_node = n;
        drawing d = {.device = trn_xstrdup(first)};
        trn_pb_pack(&d.bytes, &gd->base);
        TRN_PUSH(j->v, j->n, j->cap, d);
    }
    trn_arena_free(a);
    return err;
}

void trn_worker_watch(trn_worker *w, trn_graph *g, const uint8_t *debug, size_t n, void (*done)(void *arg, trn_err err), void *arg)
{
    if (!n) {
        done(arg, TRN_OK);
        return;
    }
    trn_worker_busy_add(w, 1);
    watch_job *j = trn_xalloc(sizeof *j);
    *j = (watch_job){.w = w, .arena = trn_arena_new(), .done = done, .arg = arg};
    trn_err err = trn_watches_parse(&j->watches, j->arena, debug, n);
    if (!err)
        err = trn_graph_watch(g, &j->watches, w->dev[0].name);
    if (!err && atomic_load(&w->stopped))
        err = trn_errorf(TRN_UNAVAILABLE, "the task is stopping");
    if (!err && j->watches.n)
        err = draw(j, g, w->dev[0].name, w->n_dev + 16); /* some masters have their own ways to write a device */
    if (err || !j->watches.n)
        job_end(j, err);
    else if (w->env->disk)
        trn_pool_submit(w->env->disk, write_drawings, j);
    else
        write_drawings(j);
}
