/* Just enough HTTP/1.1 to serve GET for people and their tools; no I/O. */
#ifndef TRN_HTTP1_H
#define TRN_HTTP1_H

#include "wire/rpc.h"

#define TRN_HTTP1_MAX_HEAD (8 << 10)
#define TRN_HTTP1_MAX_OUT (16 << 20) /* answers that wait to be written */

typedef struct trn_http1 {
    trn_sb in; /* what is not yet a whole request */
} trn_http1;

/* Appends the answers to all whole requests to `out`. False: close once `out` is written; also when it is full: somebody asks and does not read. */
bool trn_http1_recv(trn_http1 *h, const uint8_t *p, size_t n, trn_sb *out,
                    void (*get)(void *user, const char *path, const char *query, trn_http_reply *r), void *user);
void trn_http1_fini(trn_http1 *h);

#endif
