/* Regular expressions with RE2's syntax and leftmost-first matching, in time linear in the text: a pattern comes from a peer, so nothing that
 * backtracks will do. Text is UTF-8; a byte that is not matches only \C. Classes (\p{..}) and cases are those of
 * Unicode 15. */
#ifndef TRN_OPS_REGEX_H
#define TRN_OPS_REGEX_H

#include "base/base.h"

typedef struct trn_regex trn_regex;

enum { TRN_REGEX_CAPS = 20 }; /* begin and end of the match and of groups 1..9 */

/* INVALID_ARGUMENT with what is wrong in the pattern. */
trn_err trn_regex_new(trn_regex **out, const char *pattern, size_t n) TRN_MUST_USE;
void trn_regex_free(trn_regex *r);
/* 1: yes, 0: no, -1: out of memory. */
int trn_regex_full(const trn_regex *r, const char *p, size_t n);
/* First match that starts at or after `from`; -1 in cap: that group took no part. */
int trn_regex_find(const trn_regex *r, const char *p, size_t n, size_t from, int64_t cap[TRN_REGEX_CAPS]);
int trn_regex_groups(const trn_regex *r);
/* Bytes of the UTF-8 character at p (1 when it is not one). */
int trn_utf8_len(const char *p, size_t n);

#endif
