#include "ckpt/dump.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <strings.h>
#include <unistd.h>

#include "ckpt/file.h"
#include "proto/pbw.h"

/* ---- names ------------------------------------------------------------------------------------------------------------------- */

const char *trn_dump_root(const char *url) { return strncasecmp(url, "file://", 7) == 0 ? url + 7 : NULL; }

bool trn_dump_is_grpc(const char *url) { return strncasecmp(url, "grpc://", 7) == 0; }

void trn_dump_add_device(trn_sb *path, const char *device)
{
    trn_sb_adds(path, "/_tfdbg_device_");
    for (const char *p = device; *p; p++) {
        char c = *p == ':' ? '_' : *p == '/' ? ',' : *p;
        trn_sb_add(path, &c, 1);
    }
}

uint64_t trn_dump_now(void)
{
    static _Atomic uint64_t last;
    uint64_t before = atomic_load(&last), now;
    do {
        now = trn_wall_us();
        now = TRN_MAX(now, before + 1);
    } while (!atomic_compare_exchange_weak(&last, &before, now));
    return now;
}

/* ---- files ------------------------------------------------------------------------------------------------------------------- */

static trn_err write_all(int fd, const char *path, const trn_sb *s)
{
    for (size_t at = 0; at < s->n;) {
        ssize_t k = TRN_FAULT("dump.write") ? (errno = ENOSPC, -1) : write(fd, s->p + at, TRN_MIN(s->n - at, (size_t)1 << 30));
        if (k >= 0)
            at += (size_t)k;
        else if (errno != EINTR)
            return trn_err_errno(errno, "writing %s", path);
    }
    return TRN_OK;
}

static trn_err open_new(int *fd, char **path, const char *base, uint64_t time)
{
    char *name = trn_xasprintf("%s_%" PRIu64, base, time);
    for (int i = 1; (*fd = open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666)) < 0 && errno == EEXIST; i++) {
        free(name);
        name = trn_xasprintf("%s_%" PRIu64 "-%d", base, time, i);
    }
    *path = name;
    return *fd < 0 ? trn_err_errno(errno, "creating %s", name) : TRN_OK;
}

trn_err trn_dump_write(const char *base, uint64_t time, const trn_sb *head, const trn_sb *rest)
{
    base = trn_local_path(base); /* what --allow-path was asked about */
    char *dir = trn_path_dir(base), *path = NULL;
    int fd = -1;
    trn_err err = trn_path_mkdirs(dir);
    free(dir);
    if (!err)
        err = open_new(&fd, &path, base, time);
    if (!err)
        err = write_all(fd, path, head);
    if (!err)
        err = write_all(fd, path, rest);
    if (fd >= 0 && close(fd) < 0 && !err)
        err = trn_err_errno(errno, "closing %s", path);
    if (err && fd >= 0)
        unlink(path); /* half an Event is worse than none */
    free(path);
    return err;
}

/* ---- events ------------------------------------------------------------------------------------------------------------------ */

/* Field numbers of Event and of what it holds. */
enum { EV_TIME = 1, EV_GRAPH = 4, EV_SUMMARY = 5, EV_LOG = 6, LOG_TEXT = 2 };
enum { SUMMARY_VALUE = 1, VALUE_TAG = 1, VALUE_NODE = 7, VALUE_TENSOR = 8, VALUE_METADATA = 9, METADATA_PLUGIN = 1, PLUGIN_NAME = 1, PLUGIN_CONTENT = 2 };

static void put_time(trn_sb *out, uint64_t time)
{
    double us = (double)time;
    uint64_t bits;
    memcpy(&bits, &us, sizeof bits);
    trn_pbw_fixed64(out, EV_TIME, bits);
}

void trn_dump_graph_head(trn_sb *out, uint64_t time, size_t n)
{
    put_time(out, time);
    trn_pbw_head(out, EV_GRAPH, n);
}

void trn_dump_text_head(trn_sb *out, uint64_t time, size_t n)
{
    put_time(out, time);
    trn_pbw_head(out, EV_LOG, trn_pbw_bytes_size(LOG_TEXT, n));
    trn_pbw_head(out, LOG_TEXT, n);
}

/* A client's own debug op says what it likes to be its device. */
static void put_json_text(trn_sb *out, const char *text)
{
    for (const unsigned char *p = (const unsigned char *)text; *p; p++)
        if (*p < 0x20 || *p == '"' || *p == '\\')
            trn_sb_addf(out, "\\u%04x", *p);
        else
            trn_sb_add(out, p, 1);
}

static void put_metadata(trn_sb *out, const trn_dump_name *name)
{
    trn_sb json = {0}, plugin = {0};
    trn_sb_adds(&json, "{\"device\":\"");
    put_json_text(&json, name->device);
    trn_sb_addf(&json, "\",\"outputSlot\":%d,\"numChunks\":1,\"chunkIndex\":0}", name->slot);
    trn_pbw_str(&plugin, PLUGIN_NAME, "debugger");
    trn_pbw_bytes(&plugin, PLUGIN_CONTENT, json.p, json.n);
    trn_pbw_head(out, VALUE_METADATA, trn_pbw_bytes_size(METADATA_PLUGIN, plugin.n));
    trn_pbw_bytes(out, METADATA_PLUGIN, plugin.p, plugin.n);
    trn_sb_fini(&plugin);
    trn_sb_fini(&json);
}

void trn_dump_tensor_head(trn_sb *out, uint64_t time, const trn_dump_name *name, size_t n)
{
    trn_sb value = {0};
    char *watch = trn_xasprintf("%s:%d:%s", name->node, name->slot, name->op);
    trn_pbw_str(&value, VALUE_TAG, name->node);
    trn_pbw_str(&value, VALUE_NODE, watch);
    put_metadata(&value, name);
    trn_pbw_head(&value, VALUE_TENSOR, n);
    put_time(out, time);
    trn_pbw_head(out, EV_SUMMARY, trn_pbw_bytes_size(SUMMARY_VALUE, value.n + n));
    trn_pbw_head(out, SUMMARY_VALUE, value.n + n);
    trn_sb_add(out, value.p, value.n);
    trn_sb_fini(&value);
    free(watch);
}

/* ---- how much ---------------------------------------------------------------------------------------------------------------- */

static _Atomic uint64_t used;

uint64_t trn_dump_limit(void)
{
    static _Atomic uint64_t limit; /* 0: not asked yet */
    uint64_t v = atomic_load(&limit);
    if (!v) {
        const char *text = getenv("TFDBG_DISK_BYTES_LIMIT");
        char *end = NULL;
        v = text && *text ? strtoull(text, &end, 10) : 0;
        if (!v || *end)
            v = UINT64_C(100) << 30;
        atomic_store(&limit, v);
    }
    return v;
}

bool trn_dump_take(uint64_t bytes)
{
    uint64_t have = atomic_load(&used), limit = trn_dump_limit();
    do {
        if (bytes && (bytes >= limit || have >= limit - bytes))
            return false;
    } while (!atomic_compare_exchange_weak(&used, &have, have + bytes));
    return true;
}

void trn_dump_reset(void) { atomic_store(&used, 0); }
