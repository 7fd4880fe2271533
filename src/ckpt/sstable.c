#include "ckpt/sstable.h"

#include <stdlib.h>

#include "ckpt/crc32c.h"
#include "proto/pbw.h"

#define BLOCK_SIZE 262144 /* a block ends with the entry that reaches this */
#define RESTART_INTERVAL 16
#define TRAILER 5
#define FOOTER 48
#define MAGIC 0xdb4775248b80fb57u
#define BLOCK_MAX ((uint64_t)1 << 32) /* of what we read: a value of a version 1 checkpoint holds a whole tensor */

/* ---- writing -------------------------------------------------------------------------------------------------- */

typedef struct block {
    trn_sb data;
    uint32_t *restart;
    int n_restart, cap_restart;
    int interval, since; /* entries since the last restart */
    trn_sb last;         /* key */
} block;

struct trn_sst_writer {
    trn_outfile *f;
    block data, index;
    bool pending; /* a block was written: its index entry waits for the next key */
    uint64_t at, size;
    bool any;
};

static void block_reset(block *b, int interval)
{
    b->interval = interval;
    b->since = 0;
    b->data.n = b->last.n = 0;
    b->n_restart = 0;
    TRN_PUSH(b->restart, b->n_restart, b->cap_restart, 0);
}

static void block_fini(block *b)
{
    trn_sb_fini(&b->data);
    trn_sb_fini(&b->last);
    free(b->restart);
}

static size_t block_bytes(const block *b) { return b->data.n + ((size_t)b->n_restart + 1) * 4; }

static size_t common(const char *a, size_t na, const char *b, size_t nb)
{
    size_t n = TRN_MIN(na, nb), i = 0;
    while (i < n && a[i] == b[i])
        i++;
    return i;
}

static void block_add(block *b, const char *key, size_t n_key, const void *val, size_t n_val)
{
    size_t shared = 0;
    if (b->since < b->interval) {
        shared = common(b->last.p, b->last.n, key, n_key);
    } else {
        TRN_PUSH(b->restart, b->n_restart, b->cap_restart, (uint32_t)b->data.n);
        b->since = 0;
    }
    trn_pbw_raw_varint(&b->data, shared);
    trn_pbw_raw_varint(&b->data, n_key - shared);
    trn_pbw_raw_varint(&b->data, n_val);
    trn_sb_add(&b->data, key + shared, n_key - shared);
    trn_sb_add(&b->data, val, n_val);
    b->last.n = 0;
    trn_sb_add(&b->last, key, n_key);
    b->since++;
}

static trn_err write_block(trn_sst_writer *w, block *b, uint64_t *at, uint64_t *size)
{
    for (int i = 0; i < b->n_restart; i++)
        trn_sb_add(&b->data, &b->restart[i], 4);
    uint32_t n = (uint32_t)b->n_restart;
    trn_sb_add(&b->data, &n, 4);
    *at = w->f->size;
    *size = b->data.n;
    char trailer[TRAILER] = {0};
    uint32_t crc = trn_crc32c_mask(trn_crc32c(trn_crc32c(0, b->data.p, b->data.n), trailer, 1));
    memcpy(trailer + 1, &crc, 4);
    TRN_TRY(trn_outfile_write(w->f, b->data.p, b->data.n));
    return trn_outfile_write(w->f, trailer, TRAILER);
}

trn_sst_writer *trn_sst_writer_new(trn_outfile *f)
{
    trn_sst_writer *w = trn_xalloc(sizeof *w);
    w->f = f;
    block_reset(&w->data, RESTART_INTERVAL);
    block_reset(&w->index, 1);
    return w;
}

void trn_sst_writer_free(trn_sst_writer *w)
{
    if (!w)
        return;
    block_fini(&w->data);
    block_fini(&w->index);
    free(w);
}

static void add_handle(trn_sb *s, uint64_t at, uint64_t size)
{
    trn_pbw_raw_varint(s, at);
    trn_pbw_raw_varint(s, size);
}

/* The index entry of the block just written, under a short key that is not less than its last key and less than `next` (NULL: the end). */
static void add_index(trn_sst_writer *w, const char *next, size_t n_next)
{
    trn_sb *k = &w->data.last;
    size_t n = k->n;
    if (next) {
        size_t i = common(k->p, k->n, next, n_next);
        if (i < k->n && i < n_next && (uint8_t)k->p[i] < 0xff && (uint8_t)k->p[i] + 1 < (uint8_t)next[i]) {
            k->p[i]++;
            n = i + 1;
        }
    } else {
        for (size_t i = 0; i < k->n; i++)
            if ((uint8_t)k->p[i] != 0xff) {
                k->p[i]++;
                n = i + 1;
                break;
            }
    }
    trn_sb handle = {0};
    add_handle(&handle, w->at, w->size);
    block_add(&w->index, k->p ? k->p : "", n, handle.p, handle.n);
    trn_sb_fini(&handle);
    w->pending = false;
    block_reset(&w->data, RESTART_INTERVAL);
}

trn_err trn_sst_add(trn_sst_writer *w, const void *key, size_t n_key, const void *val, size_t n_val)
{
    const trn_sb *last = &w->data.last;
    size_t i = common(last->p, last->n, key, n_key);
    if (w->any && (i == n_key || (i < last->n && (uint8_t)last->p[i] > ((const uint8_t *)key)[i])))
        return trn_errorf(TRN_INTERNAL, "%s: keys of a table must rise", w->f->path);
    if (w->pending)
        add_index(w, key, n_key);
    w->any = true;
    block_add(&w->data, key, n_key, val, n_val);
    if (block_bytes(&w->data) < BLOCK_SIZE)
        return TRN_OK;
    w->pending = true;
    return write_block(w, &w->data, &w->at, &w->size);
}

trn_err trn_sst_finish(trn_sst_writer *w)
{
    if (!w->pending && w->data.data.n) {
        TRN_TRY(write_block(w, &w->data, &w->at, &w->size));
        w->pending = true;
    }
    uint64_t at, size;
    block none = {0};
    block_reset(&none, RESTART_INTERVAL);
    trn_err err = write_block(w, &none, &at, &size);
    block_fini(&none);
    TRN_TRY(err);
    if (w->pending)
        add_index(w, NULL, 0);
    trn_sb footer = {0};
    add_handle(&footer, at, size);
    err = write_block(w, &w->index, &at, &size);
    if (!err) {
        add_handle(&footer, at, size);
        while (footer.n < FOOTER - 8)
            trn_sb_add(&footer, "", 1);
        uint64_t magic = MAGIC;
        trn_sb_add(&footer, &magic, 8);
        err = trn_outfile_write(w->f, footer.p, footer.n);
    }
    trn_sb_fini(&footer);
    return err;
}

/* ---- reading -------------------------------------------------------------------------------------------------- */

typedef struct cursor {
    uint8_t *p; /* the block: entries, then restarts */
    size_t n;   /* of the entries */
    size_t at;
    trn_sb key; /* of the last entry read */
    const uint8_t *restart;
    uint32_t n_restart;
} cursor;

struct trn_sst {
    trn_infile *f;
    cursor index, data;
    uint64_t data_at; /* which block `data` holds */
    bool have_data;
    bool end;    /* behind the last entry, or a seek failed */
    bool replay; /* trn_sst_next gives `cur`, which the seek found */
    trn_sst_entry cur;
};

static trn_err damaged(const trn_sst *t, const char *why)
{
    return trn_errorf(TRN_DATA_LOSS, "%s: not a table, or a damaged one: %s", t->f->path, why);
}

static void cursor_fini(cursor *c)
{
    free(c->p);
    trn_sb_fini(&c->key);
    *c = (cursor){0};
}

static trn_err read_block(cursor *out, trn_sst *t, uint64_t at, uint64_t size)
{
    if (size < 4 || size > BLOCK_MAX || at > t->f->size || size + TRAILER > t->f->size - at)
        return damaged(t, "a block lies outside the file");
    uint8_t *p = malloc((size_t)size + TRAILER);
    if (!p)
        return trn_err_oom();
    trn_err err = trn_infile_read(t->f, at, p, (size_t)size + TRAILER);
    uint32_t crc = 0, n = 0;
    if (!err) {
        memcpy(&crc, p + size + 1, 4);
        memcpy(&n, p + size - 4, 4);
        if (!trn_crc32c_ok(trn_crc32c_unmask(crc), trn_crc32c(0, p, (size_t)size + 1)))
            err = damaged(t, "block checksum mismatch");
        else if (p[size] != 0)
            err =
                trn_errorf(TRN_UNIMPLEMENTED, "%s: compressed blocks (type %d) are not supported", t->f->path, p[size]);
        else if (n > (size - 4) / 4)
            err = damaged(t, "bad restart count");
    }
    if (err) {
        free(p);
        return err;
    }
    cursor_fini(out);
    *out = (cursor){.p = p, .n = (size_t)size - 4 - (size_t)n * 4, .n_restart = n};
    out->restart = p + out->n;
    return TRN_OK;
}

static bool varint32(const uint8_t **p, const uint8_t *end, uint64_t *out)
{
    uint64_t v = 0;
    for (int shift = 0; shift < 35; shift += 7) {
        if (*p == end)
            return false;
        uint8_t b = *(*p)++;
        v |= (uint64_t)(b & 0x7f) << shift;
        if (!(b & 0x80)) {
            *out = v;
            return v <= UINT32_MAX;
        }
    }
    return false;
}

/* The entry at the cursor; *found is false at the block's end. */
static trn_err cursor_next(trn_sst_entry *out, bool *found, trn_sst *t, cursor *c)
{
    *found = c->at < c->n;
    if (!*found)
        return TRN_OK;
    const uint8_t *p = c->p + c->at, *end = c->p + c->n;
    uint64_t shared, rest, n_val;
    if (!varint32(&p, end, &shared) || !varint32(&p, end, &rest) || !varint32(&p, end, &n_val) || shared > c->key.n ||
        rest + n_val > (uint64_t)(end - p))
        return damaged(t, "bad entry in a block");
    c->key.n = (size_t)shared;
    trn_sb_add(&c->key, p, (size_t)rest);
    *out = (trn_sst_entry){.key = c->key.p, .n_key = c->key.n, .val = p + rest, .n_val = (size_t)n_val};
    c->at = (size_t)(p + rest + n_val - c->p);
    return TRN_OK;
}

static int compare(const char *a, size_t na, const char *b, size_t nb)
{
    int c = TRN_MIN(na, nb) ? memcmp(a, b, TRN_MIN(na, nb)) : 0;
    return c ? c : (na > nb) - (na < nb);
}

static trn_err jump(trn_sst *t, cursor *c, uint32_t restart)
{
    uint32_t at;
    memcpy(&at, c->restart + (size_t)restart * 4, 4);
    if (at > c->n)
        return damaged(t, "bad restart");
    c->at = at;
    c->key.n = 0;
    return TRN_OK;
}

/* To the first entry not less than `key`, which is then in *out: by restart points, then one by one. */
static trn_err cursor_seek(trn_sst_entry *out, bool *found, trn_sst *t, cursor *c, const char *key, size_t n)
{
    uint32_t lo = 0, hi = c->n_restart; /* restarts before lo are less than the key */
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        TRN_TRY(jump(t, c, mid));
        TRN_TRY(cursor_next(out, found, t, c));
        if (*found && compare(out->key, out->n_key, key, n) < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    c->at = 0;
    c->key.n = 0;
    if (lo > 0)
        TRN_TRY(jump(t, c, lo - 1));
    do
        TRN_TRY(cursor_next(out, found, t, c));
    while (*found && compare(out->key, out->n_key, key, n) < 0);
    return TRN_OK;
}

static trn_err parse_handle(const trn_sst *t, const uint8_t *p, size_t n, uint64_t *at, uint64_t *size, size_t *used)
{
    trn_pbr r = trn_pbr_init(p, n);
    const uint8_t *start = r.p;
    if (!trn_pbr_raw_varint(&r, at) || !trn_pbr_raw_varint(&r, size))
        return damaged(t, "bad block handle");
    *used = (size_t)(r.p - start);
    return TRN_OK;
}

static trn_err load_data(trn_sst *t, const trn_sst_entry *index)
{
    uint64_t at, size;
    size_t used;
    TRN_TRY(parse_handle(t, index->val, index->n_val, &at, &size, &used));
    if (!t->have_data || t->data_at != at) {
        t->have_data = false;
        TRN_TRY(read_block(&t->data, t, at, size));
        t->have_data = true;
        t->data_at = at;
    }
    t->data.at = 0;
    t->data.key.n = 0;
    return TRN_OK;
}

trn_err trn_sst_open(trn_sst **out, trn_infile *f)
{
    trn_sst *t = trn_xalloc(sizeof *t);
    t->f = f;
    uint8_t footer[FOOTER];
    uint64_t magic = 0, at, size;
    size_t used = 0;
    trn_err err = f->size < FOOTER ? damaged(t, "too short") : trn_infile_read(f, f->size - FOOTER, footer, FOOTER);
    if (!err) {
        memcpy(&magic, footer + FOOTER - 8, 8);
        if (magic != MAGIC)
            err = damaged(t, "bad magic number");
    }
    if (!err)
        err = parse_handle(t, footer, FOOTER - 8, &at, &size, &used); /* metaindex: nothing in it for us */
    if (!err)
        err = parse_handle(t, footer + used, FOOTER - 8 - used, &at, &size, &used);
    if (!err)
        err = read_block(&t->index, t, at, size);
    if (err) {
        trn_sst_close(t);
        return err;
    }
    *out = t;
    return TRN_OK;
}

void trn_sst_close(trn_sst *t)
{
    if (!t)
        return;
    cursor_fini(&t->index);
    cursor_fini(&t->data);
    free(t);
}

trn_err trn_sst_seek(trn_sst *t, const void *key, size_t n)
{
    trn_sst_entry index;
    bool found;
    t->replay = false;
    t->end = true;
    TRN_TRY(cursor_seek(&index, &found, t, &t->index, key, n));
    if (!found)
        return TRN_OK;
    TRN_TRY(load_data(t, &index));
    TRN_TRY(cursor_seek(&t->cur, &t->replay, t, &t->data, key, n));
    t->end = false;
    return TRN_OK;
}

trn_err trn_sst_next(trn_sst_entry *out, bool *found, trn_sst *t)
{
    if (t->end || t->replay) {
        *found = t->replay;
        *out = t->cur;
        t->replay = false;
        return TRN_OK;
    }
    for (;;) {
        TRN_TRY(cursor_next(out, found, t, &t->data));
        if (*found)
            return TRN_OK;
        trn_sst_entry index;
        TRN_TRY(cursor_next(&index, found, t, &t->index));
        if (!*found)
            return TRN_OK;
        TRN_TRY(load_data(t, &index));
    }
}
