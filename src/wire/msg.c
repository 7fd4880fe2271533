#include <stdlib.h>

#include "wire/rpc.h"

void trn_msg_fini(trn_msg *m)
{
    if (m->buf)
        trn_buf_unref(m->buf);
    *m = (trn_msg){0};
}

/* Copied bytes go into a buffer of the message's own; the first is small, because most messages are one head. */
enum { PIECE = 480, NEXT_PIECE = 4032 };

void trn_out_bytes(trn_out_msg *m, const void *p, size_t n)
{
    if (n == 0)
        return;
    trn_buf *b = m->room;
    if (!b || n > b->size - m->room_at) {
        size_t piece = b ? NEXT_PIECE : PIECE;
        trn_err err = trn_buf_new(&b, n < piece ? piece : n);
        if (err) {
            trn_err_free(err);
            trn_xalloc(SIZE_MAX / 2); /* heads are small: ends the process with a message */
            return;
        }
        if (m->room)
            trn_buf_unref(m->room);
        m->room = b;
        m->room_at = 0;
    }
    uint8_t *at = b->data + m->room_at;
    memcpy(at, p, n);
    m->room_at += n;
    m->bytes += n;
    trn_slice *last = m->n ? &m->slices[m->n - 1] : NULL;
    if (last && last->buf == b && last->p + last->n == at)
        last->n += n;
    else
        TRN_PUSH(m->slices, m->n, m->cap, (trn_slice){trn_buf_ref(b), at, n});
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
    if (m->room)
        trn_buf_unref(m->room);
    free(m->slices);
    *m = (trn_out_msg){0};
}
