/* What Unicode says of characters: scripts, and the classes that regular expressions name. The tables are made by tools/unicode-tables. */
#ifndef TRN_OPS_UNICODE_H
#define TRN_OPS_UNICODE_H

#include "base/base.h"

/* ICU's number of the character's script (Unicode 13, as in TensorFlow's ICU); -1: no code point. */
int trn_unicode_script(int32_t c);
/* Calls add() for each range of a class of RE2's: "Any", a category ("L", "Lu"; not "Cn"), a script ("Greek"). false: there is no such class. */
bool trn_unicode_class(const char *name, size_t n, void (*add)(void *arg, int32_t lo, int32_t hi), void *arg);
/* Calls add() for all characters that are the same as one from lo to hi when case does not matter, themselves left out. */
void trn_unicode_fold(int32_t lo, int32_t hi, void (*add)(void *arg, int32_t lo, int32_t hi), void *arg);

#endif
