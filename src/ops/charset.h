/* Text of any encoding, character by character, with ICU's idea of what is malformed and how far it reaches. */
#ifndef TRN_OPS_CHARSET_H
#define TRN_OPS_CHARSET_H

#include "base/base.h"

typedef struct trn_charset trn_charset;

/* Names are ICU's: case, "-" and "_" do not matter. INVALID_ARGUMENT: there is no such encoding. For one thread at a time. */
trn_err trn_charset_open(trn_charset **out, const char *name) TRN_MUST_USE;
void trn_charset_close(trn_charset *c);
/* The character at p, where n > 0 bytes are left of a string. A byte order mark says what the order is, where the encoding leaves that open. *len: bytes that it takes; *bad: they are none (and the result is U+FFFD). */
int32_t trn_charset_next(trn_charset *c, const uint8_t *p, size_t n, size_t *len, bool *bad);

#endif
