#include "ckpt/record.h"

#include <inttypes.h>
#include <stdlib.h>

#include "ckpt/crc32c.h"

static uint32_t sum_of(const void *p, size_t n) { return trn_crc32c_mask(trn_crc32c(0, p, n)); }

void trn_record_head(uint8_t head[TRN_RECORD_HEAD], size_t n)
{
    uint64_t len = n;
    memcpy(head, &len, 8);
    uint32_t sum = sum_of(head, 8);
    memcpy(head + 8, &sum, 4);
}

void trn_record_tail(uint8_t tail[TRN_RECORD_TAIL], const void *p, size_t n)
{
    uint32_t sum = sum_of(p, n);
    memcpy(tail, &sum, 4);
}

trn_err trn_record_read(uint8_t **out, size_t *n, bool *found, trn_infile *f, uint64_t *at, size_t max)
{
    *found = *at < f->size;
    if (!*found)
        return TRN_OK;
    uint8_t head[TRN_RECORD_HEAD];
    uint64_t len;
    uint32_t sum;
    if (f->size - *at < TRN_RECORD_HEAD)
        return trn_errorf(TRN_DATA_LOSS, "truncated record at %" PRIu64 " of %s", *at, f->path);
    TRN_TRY(trn_infile_read(f, *at, head, sizeof head));
    memcpy(&len, head, 8);
    memcpy(&sum, head + 8, 4);
    if (!trn_crc32c_ok(sum, sum_of(head, 8)))
        return trn_errorf(TRN_DATA_LOSS, "corrupted record at %" PRIu64 " of %s", *at, f->path);
    if (len > max || len > f->size - *at - TRN_RECORD_HEAD || f->size - *at - TRN_RECORD_HEAD - len < TRN_RECORD_TAIL)
        return trn_errorf(TRN_DATA_LOSS, "truncated record at %" PRIu64 " of %s: %" PRIu64 " bytes", *at, f->path, len);
    uint8_t *p = malloc((size_t)len + TRN_RECORD_TAIL);
    if (!p)
        return trn_err_oom();
    trn_err err = trn_infile_read(f, *at + TRN_RECORD_HEAD, p, (size_t)len + TRN_RECORD_TAIL);
    if (!err) {
        memcpy(&sum, p + len, 4);
        if (!trn_crc32c_ok(sum, sum_of(p, (size_t)len)))
            err = trn_errorf(TRN_DATA_LOSS, "corrupted record at %" PRIu64 " of %s", *at, f->path);
    }
    if (err) {
        free(p);
        return err;
    }
    *out = p;
    *n = (size_t)len;
    *at += TRN_RECORD_HEAD + len + TRN_RECORD_TAIL;
    return TRN_OK;
}
