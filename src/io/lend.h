/* Sending without the copy: the socket refers to the sender's pages until the peer has read them.
 *
 * vmsplice puts references to pages into a pipe, splice moves them into the socket. A local peer reads straight out of these pages, a network card sends
 * them. So the bytes must stay as they are until the *peer's program* has taken them, long after the call and also after TCP's acknowledgement: whoever lends needs a
 * word from the peer that comes behind the bytes (wire/h2.c asks with a PING). */
#ifndef TRN_LEND_H
#define TRN_LEND_H

#include <sys/uio.h>

#include "base/base.h"

#define TRN_LEND_MAX (1 << 20) /* per call; what an unprivileged user's pipe holds, in whole pages */

typedef struct trn_lender trn_lender;
trn_lender *trn_lender_open(void); /* NULL: not here (TRAINERA_LEND=0 in the environment, an old kernel, no descriptors left) */
void trn_lender_close(trn_lender *l);
/* As send() does it: how many of the n bytes the non-blocking socket took, or -1 and errno. `more`: others follow at once. */
ssize_t trn_lend(trn_lender *l, int fd, const void *p, size_t n, bool more);

#endif
