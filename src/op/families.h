/* The family tables, by name; the list itself is in ops/families.c. */
#ifndef TRN_FAMILIES_H
#define TRN_FAMILIES_H

#include <trainera/op.h>

extern const trn_op *const trn_op_families[]; /* ends with NULL */
/* Tests bring rows of their own. */
void trn_op_register_test(const trn_op *rows);

#endif
