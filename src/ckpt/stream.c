#include "ckpt/stream.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "ckpt/crc32c.h"
#include "ckpt/record.h"
#include "ckpt/snappy.h"

#define CHUNK (256u << 10)
#define MAX_CHUNK (8u << 20)
#define MAX_PIECE (1ull << 30) /* of one line or record */
#define MAX_BLOCK (MAX_PIECE + MAX_PIECE / 6 + 32) /* as many bytes a compressed one takes at most */

struct trn_stream {
    char *path;
    int fd; /* -1: memory */
    const uint8_t *mem;
    size_t n_mem;
    trn_compression c;
    z_stream z;
    bool z_open, z_member_end;
    uint8_t *in; /* compressed bytes */
    size_t cap_in; /* SNAPPY: a block of any size */
    size_t chunk;
    bool in_end; /* of the file */
    bool end;    /* of what is given out */
    uint8_t *buf;
    size_t at, n, cap; /* window: [at, n) */
    uint64_t pos;      /* of buf[at] */
    int64_t size;
    trn_sb line;
};

trn_err trn_compression_parse(trn_compression *out, const char *name)
{
    if (!*name)
        *out = TRN_PLAIN;
    else if (!strcmp(name, "ZLIB"))
        *out = TRN_ZLIB;
    else if (!strcmp(name, "GZIP"))
        *out = TRN_GZIP;
    else
        return trn_errorf(TRN_INVALID_ARGUMENT, "Unsupported compression_type: %s", name);
    return TRN_OK;
}

trn_compression trn_compression_of_snapshot(const char *name)
{
    trn_compression c = TRN_PLAIN;
    if (!strcmp(name, "SNAPPY"))
        return TRN_SNAPPY;
    trn_err err = trn_compression_parse(&c, name);
    if (err)
        TRN_WARN("data", "a snapshot's compression is %s, which is unknown: it is not compressed", name);
    trn_err_free(err);
    return c;
}

static trn_err start(trn_stream *s)
{
    if (s->c == TRN_PLAIN || s->c == TRN_SNAPPY)
        return TRN_OK;
    if (inflateInit2(&s->z, s->c == TRN_GZIP ? MAX_WBITS + 16 : MAX_WBITS) != Z_OK)
        return trn_err_oom();
    s->z_open = true;
    s->in = trn_xalloc(s->chunk);
    return TRN_OK;
}

trn_err trn_stream_open(trn_stream **out, const char *path, trn_compression c, size_t chunk)
{
    int fd = open(trn_local_path(path), O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return trn_errorf(errno == ENOENT ? TRN_NOT_FOUND : errno == EACCES ? TRN_PERMISSION_DENIED : TRN_UNKNOWN, "%s; %s", path, strerror(errno));
    struct stat st = {0};
    if (fstat(fd, &st) == 0 && S_ISDIR(st.st_mode)) {
        close(fd);
        return trn_errorf(TRN_FAILED_PRECONDITION, "%s; Is a directory", path);
    }
    trn_stream *s = trn_xalloc(sizeof *s);
    s->path = trn_xstrdup(path);
    s->fd = fd;
    s->c = c;
    s->size = c == TRN_PLAIN && S_ISREG(st.st_mode) ? st.st_size : -1;
    s->chunk = chunk ? TRN_MIN(TRN_MAX(chunk, 4096u), MAX_CHUNK) : CHUNK;
    trn_err err = start(s);
    if (err)
        trn_stream_close(s);
    else
        *out = s;
    return err;
}

trn_err trn_stream_on_memory(trn_stream **out, const void *p, size_t n, trn_compression c)
{
    trn_stream *s = trn_xalloc(sizeof *s);
    s->path = trn_xstrdup("memory");
    s->fd = -1;
    s->mem = p;
    s->n_mem = n;
    s->c = c;
    s->size = c == TRN_PLAIN ? (int64_t)n : -1;
    s->chunk = CHUNK;
    trn_err err = start(s);
    if (err)
        trn_stream_close(s);
    else
        *out = s;
    return err;
}

void trn_stream_close(trn_stream *s)
{
    if (!s)
        return;
    if (s->fd >= 0)
        close(s->fd);
    if (s->z_open)
        inflateEnd(&s->z);
    free(s->in);
    free(s->buf);
    free(s->path);
    trn_sb_fini(&s->line);
    free(s);
}

static trn_err read_some(trn_stream *s, uint8_t *p, size_t n, size_t *got)
{
    if (s->fd < 0) {
        *got = TRN_MIN(n, s->n_mem);
        memcpy(p, s->mem, *got);
        s->mem += *got;
        s->n_mem -= *got;
        return TRN_OK;
    }
    ssize_t r;
    do
        r = read(s->fd, p, n);
    while (r < 0 && errno == EINTR);
    if (r < 0)
        return trn_err_errno(errno, "read of %s", s->path);
    *got = (size_t)r;
    return TRN_OK;
}

static trn_err inflate_some(trn_stream *s, size_t *got)
{
    s->z.next_out = s->buf + s->n;
    s->z.avail_out = (uInt)s->chunk;
    for (;;) {
        if (s->z.avail_in == 0 && !s->in_end) {
            size_t n;
            TRN_TRY(read_some(s, s->in, s->chunk, &n));
            s->z.next_in = s->in;
            s->z.avail_in = (uInt)n;
            s->in_end = n == 0;
        }
        if (s->z_member_end) { /* gzip files may be put behind each other */
            if (s->z.avail_in == 0)
                break;
            inflateReset(&s->z);
            s->z_member_end = false;
        }
        int r = inflate(&s->z, Z_NO_FLUSH);
        if (r == Z_STREAM_END)
            s->z_member_end = true;
        else if (r != Z_OK && r != Z_BUF_ERROR)
            return trn_errorf(TRN_DATA_LOSS, "inflate() failed with error %d: %s (%s)", r, s->z.msg ? s->z.msg : "damaged", s->path);
        if (s->z.avail_out < s->chunk && (s->z.avail_out == 0 || s->z_member_end || s->z.avail_in == 0))
            break;
        if (s->in_end && s->z.avail_in == 0 && !s->z_member_end) {
            if (s->z.avail_out == s->chunk)
                return s->z.total_in == 0 ? TRN_OK : trn_errorf(TRN_DATA_LOSS, "%s ends inside of its compressed data", s->path);
            break;
        }
    }
    *got = s->chunk - s->z.avail_out;
    return TRN_OK;
}

/* n bytes into s->in, whose memory grows with what is really there. */
static trn_err read_block(trn_stream *s, size_t n, size_t *got)
{
    size_t now;
    for (*got = 0; *got < n; *got += now) {
        size_t want = TRN_MIN(n - *got, (size_t)MAX_CHUNK);
        if (s->cap_in < *got + want) {
            s->cap_in = *got + want;
            s->in = trn_xrealloc(s->in, s->cap_in);
        }
        TRN_TRY(read_some(s, s->in + *got, want, &now));
        if (!now)
            break;
    }
    return TRN_OK;
}

static trn_err reserve(trn_stream *s, size_t more)
{
    if (s->cap - s->n >= more)
        return TRN_OK;
    size_t cap = TRN_MAX(s->cap + s->cap / 2, s->n + more);
    uint8_t *b = realloc(s->buf, cap);
    if (!b)
        return trn_err_oom();
    s->buf = b;
    s->cap = cap;
    return TRN_OK;
}

static trn_err cut_off(const trn_stream *s) { return trn_errorf(TRN_DATA_LOSS, "%s ends inside of its compressed data", s->path); }

/* The next block with something in it. */
static trn_err unsnap_some(trn_stream *s, size_t *got)
{
    while (!*got) {
        size_t have, size;
        TRN_TRY(read_block(s, 4, &have));
        if (have == 0)
            return TRN_OK;
        if (have < 4)
            return cut_off(s);
        size_t n = (size_t)s->in[0] << 24 | (size_t)s->in[1] << 16 | (size_t)s->in[2] << 8 | s->in[3];
        if (n > MAX_BLOCK)
            return trn_errorf(TRN_DATA_LOSS, "%s: no compressed block has %zu bytes", s->path, n);
        TRN_TRY(read_block(s, n, &have));
        if (have < n)
            return cut_off(s);
        trn_err err = trn_snappy_size(&size, s->in, n);
        if (!err && size > MAX_PIECE)
            err = trn_errorf(TRN_RESOURCE_EXHAUSTED, "a block has %zu bytes", size);
        if (!err)
            err = reserve(s, size);
        if (!err)
            err = trn_snappy_uncompress(s->buf + s->n, size, s->in, n);
        if (err)
            return trn_err_wrap(err, "%s", s->path);
        *got = size;
    }
    return TRN_OK;
}

trn_err trn_stream_fill(trn_stream *s)
{
    if (s->end)
        return TRN_OK;
    if (s->at > 0) {
        memmove(s->buf, s->buf + s->at, s->n - s->at);
        s->n -= s->at;
        s->at = 0;
    }
    TRN_TRY(reserve(s, s->chunk));
    size_t got = 0;
    TRN_TRY(s->c == TRN_PLAIN ? read_some(s, s->buf + s->n, s->chunk, &got) : s->c == TRN_SNAPPY ? unsnap_some(s, &got) : inflate_some(s, &got));
    s->n += got;
    s->end = got == 0;
    return TRN_OK;
}

uint64_t trn_stream_pos(const trn_stream *s) { return s->pos; }
int64_t trn_stream_size(const trn_stream *s) { return s->size; }
size_t trn_stream_have(const trn_stream *s) { return s->n - s->at; }
bool trn_stream_at_end(const trn_stream *s) { return s->end; }
const uint8_t *trn_stream_window(const trn_stream *s) { return s->buf ? s->buf + s->at : (const uint8_t *)""; }

void trn_stream_skip(trn_stream *s, size_t n)
{
    s->at += n;
    s->pos += n;
}

/* ---- cutting ------------------------------------------------------------------------------------------------------ */

trn_err trn_stream_line(trn_cut *out, trn_stream *s, const char **p, size_t *n)
{
    size_t have = trn_stream_have(s);
    const char *w = have ? (const char *)trn_stream_window(s) : "";
    const char *nl = memchr(w, '\n', have);
    if (!nl && !s->end) {
        if (have > MAX_PIECE)
            return trn_errorf(TRN_RESOURCE_EXHAUSTED, "a line of %s is longer than 1 GiB", s->path);
        *out = TRN_CUT_MORE;
        return TRN_OK;
    }
    if (!nl && have == 0) {
        *out = TRN_CUT_END;
        return TRN_OK;
    }
    size_t len = nl ? (size_t)(nl - w) : have;
    trn_stream_skip(s, len + (nl != NULL));
    *p = w;
    *n = len;
    if (memchr(w, '\r', len)) {
        s->line.n = 0;
        trn_sb_reserve(&s->line, len);
        for (size_t i = 0; i < len; i++)
            if (w[i] != '\r')
                s->line.p[s->line.n++] = w[i];
        *p = s->line.p;
        *n = s->line.n;
    }
    *out = TRN_CUT_GOT;
    return TRN_OK;
}

trn_err trn_stream_record(trn_cut *out, trn_stream *s, const char **p, size_t *n)
{
    size_t have = trn_stream_have(s);
    const uint8_t *w = trn_stream_window(s);
    *out = TRN_CUT_MORE;
    if (have < TRN_RECORD_HEAD) {
        if (s->end && have)
            return trn_errorf(TRN_DATA_LOSS, "truncated record at %" PRIu64 "' failed with Read less bytes than requested (%s)", s->pos, s->path);
        if (s->end)
            *out = TRN_CUT_END;
        return TRN_OK;
    }
    uint64_t len;
    uint32_t sum;
    memcpy(&len, w, 8);
    memcpy(&sum, w + 8, 4);
    if (!trn_crc32c_ok(sum, trn_crc32c_mask(trn_crc32c(0, w, 8))))
        return trn_errorf(TRN_DATA_LOSS, "corrupted record at %" PRIu64 " of %s", s->pos, s->path);
    if (len > MAX_PIECE)
        return trn_errorf(TRN_RESOURCE_EXHAUSTED, "the record at %" PRIu64 " of %s has %" PRIu64 " bytes", s->pos, s->path, len);
    if (have - TRN_RECORD_HEAD < len + TRN_RECORD_TAIL) {
        if (s->end)
            return trn_errorf(TRN_DATA_LOSS, "truncated record at %" PRIu64 " of %s", s->pos, s->path);
        return TRN_OK;
    }
    memcpy(&sum, w + TRN_RECORD_HEAD + len, 4);
    if (!trn_crc32c_ok(sum, trn_crc32c_mask(trn_crc32c(0, w + TRN_RECORD_HEAD, len))))
        return trn_errorf(TRN_DATA_LOSS, "corrupted record at %" PRIu64 " of %s", s->pos, s->path);
    trn_stream_skip(s, TRN_RECORD_HEAD + len + TRN_RECORD_TAIL);
    *p = (const char *)w + TRN_RECORD_HEAD;
    *n = len;
    *out = TRN_CUT_GOT;
    return TRN_OK;
}

trn_err trn_inflate(trn_sb *out, const void *p, size_t n, trn_compression c, size_t max)
{
    trn_stream *s;
    TRN_TRY(trn_stream_on_memory(&s, p, n, c));
    trn_err err = TRN_OK;
    while (!err && !s->end) {
        err = trn_stream_fill(s);
        if (!err && trn_stream_have(s) > max)
            err = trn_errorf(TRN_RESOURCE_EXHAUSTED, "uncompressed data has more than %zu bytes", max);
    }
    if (!err)
        trn_sb_add(out, trn_stream_window(s), trn_stream_have(s));
    trn_stream_close(s);
    return err;
}
