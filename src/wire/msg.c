#include <stdlib.h>

#include "wire/rpc.h"

void trn_msg_fini(trn_msg *m)
{
    if (m->buf)
        trn_buf_unref(m->buf);
    *m = (trn_msg){0};
}

/* Copied bytes go to the end of the last slice when it is one of ours with room. */
enum { PIECE = 480 };

void trn_out_bytes(trn_out_msg *m, const void *p, size_t n)
{
    if (n == 0)
        return;
    trn_slice *last = m->n ? &m->slices[m->n - 1] : NULL;
    /* Sole owner of memory that is ours: nobody else reads behind the slice. */
    if (last && last->buf && !last->buf->release && trn_buf_sole(last->buf) &&
        last->p + last->n + n <= last->buf->data + last->buf->size) {
        memcpy((uint8_t *)last->p + last->n, p, n);
        last->n += n;
        m->bytes += n;
        return;
    }
    trn_buf *b;
    trn_err err = trn_buf_new(&b, n < PIECE ? PIECE : n);
    if (err) {
        trn_err_free(err);
        trn_xalloc(SIZE_MAX / 2); /* heads are small: ends the process with a message */
        return;
    }
    memcpy(b->data, p, n);
    TRN_PUSH(m->slices, m->n, m->cap, (trn_slice){b, b->data, n});
    m->bytes += n;
}

void trn_out_slice(trn_out_msg *m, trn_buf *buf, const void *p, size_t n)
{
    if (n == 0)
        return;
    TRN_PUSH(m->slices, m->n, m->cap, (trn_slice){buf ? trn_buf_ref(buf) : NULL, p, n});
    m->bytes += n;
}

void trn_out_fini(trn_out_msg *m)
{
    for (int i = 0; i < m->n; i++)
        if (m->slices[i].buf)
            trn_buf_unref(m->slices[i].buf);
    free(m->slices);
    *m = (trn_out_msg){0};
}
