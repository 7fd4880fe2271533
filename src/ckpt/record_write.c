/* TFRecord files, written record by record; compressed as a whole when that is wanted. The file appears when it is closed. */
#include <stdlib.h>
#include <zlib.h>

#include "ckpt/record.h"
#include "ckpt/snappy.h"

struct trn_record_writer {
    trn_outfile f;
    bool packed, blocks;
    z_stream z;
    trn_sb kept; /* SNAPPY: of the block */
};

static trn_err deflate_some(trn_record_writer *w, const void *p, size_t n, int flush)
{
    uint8_t room[16384];
    while (n || flush == Z_FINISH) {
        size_t now = TRN_MIN(n, (size_t)1 << 30);
        w->z.next_in = (Bytef *)(uintptr_t)p;
        w->z.avail_in = (uInt)now;
        int rc;
        do {
            w->z.next_out = room;
            w->z.avail_out = sizeof room;
            rc = deflate(&w->z, flush);
            if (rc == Z_STREAM_ERROR)
                return trn_errorf(TRN_INTERNAL, "%s: zlib: %s", w->f.path, w->z.msg ? w->z.msg : "stream error");
            TRN_TRY(trn_outfile_write(&w->f, room, sizeof room - w->z.avail_out));
        } while (w->z.avail_out == 0 || w->z.avail_in > 0);
        p = (const uint8_t *)p + now;
        n -= now;
        if (flush == Z_FINISH && rc == Z_STREAM_END)
            break;
    }
    return TRN_OK;
}

static trn_err put_block(trn_record_writer *w)
{
    trn_sb s = {0};
    if (!w->kept.n)
        return TRN_OK;
    trn_snappy_compress(&s, w->kept.p, w->kept.n);
    uint8_t head[4] = {(uint8_t)(s.n >> 24), (uint8_t)(s.n >> 16), (uint8_t)(s.n >> 8), (uint8_t)s.n};
    trn_err err = trn_outfile_write(&w->f, head, sizeof head);
    if (!err)
        err = trn_outfile_write(&w->f, s.p, s.n);
    trn_sb_fini(&s);
    w->kept.n = 0;
    return err;
}

static trn_err put_blocks(trn_record_writer *w, const char *p, size_t n)
{
    while (n) {
        size_t now = TRN_MIN(n, TRN_SNAPPY_BLOCK - w->kept.n);
        trn_sb_add(&w->kept, p, now);
        p += now;
        n -= now;
        if (w->kept.n == TRN_SNAPPY_BLOCK)
            TRN_TRY(put_block(w));
    }
    return TRN_OK;
}

static trn_err put(trn_record_writer *w, const void *p, size_t n)
{
    return w->blocks ? put_blocks(w, p, n) : w->packed ? deflate_some(w, p, n, Z_NO_FLUSH) : trn_outfile_write(&w->f, p, n);
}

trn_err trn_record_writer_open(trn_record_writer **out, const char *path, const char *compression)
{
    trn_compression how;
    TRN_TRY(trn_compression_parse(&how, compression ? compression : ""));
    return trn_record_writer_with(out, path, how);
}

trn_err trn_record_writer_with(trn_record_writer **out, const char *path, trn_compression how)
{
    trn_record_writer *w = trn_xalloc(sizeof *w);
    trn_err err = trn_outfile_open(&w->f, path);
    w->blocks = how == TRN_SNAPPY;
    if (!err && (how == TRN_GZIP || how == TRN_ZLIB)) {
        if (deflateInit2(&w->z, Z_DEFAULT_COMPRESSION, Z_DEFLATED, how == TRN_GZIP ? 15 + 16 : 15, 8, Z_DEFAULT_STRATEGY) != Z_OK) {
            trn_outfile_abort(&w->f);
            err = trn_err_oom();
        } else
            w->packed = true;
    }
    if (err) {
        free(w);
        return err;
    }
    *out = w;
    return TRN_OK;
}

trn_err trn_record_writer_add(trn_record_writer *w, const void *p, size_t n)
{
    uint8_t head[TRN_RECORD_HEAD], tail[TRN_RECORD_TAIL];
    trn_record_head(head, n);
    trn_record_tail(tail, p, n);
    TRN_TRY(put(w, head, sizeof head));
    TRN_TRY(put(w, p, n));
    return put(w, tail, sizeof tail);
}

trn_err trn_record_writer_close(trn_record_writer *w)
{
    trn_err err = w->packed ? deflate_some(w, NULL, 0, Z_FINISH) : put_block(w);
    if (w->packed)
        deflateEnd(&w->z);
    if (err)
        trn_outfile_abort(&w->f);
    else
        err = trn_outfile_commit(&w->f);
    trn_sb_fini(&w->kept);
    free(w);
    return err;
}

void trn_record_writer_abort(trn_record_writer *w)
{
    if (!w)
        return;
    if (w->packed)
        deflateEnd(&w->z);
    trn_outfile_abort(&w->f);
    trn_sb_fini(&w->kept);
    free(w);
}
