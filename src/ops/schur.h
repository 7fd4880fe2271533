/* Schur's form of a square matrix, in double complex: what functions of matrices and eigenvectors of general matrices start from. */
#ifndef TRN_SCHUR_H
#define TRN_SCHUR_H

#include <stdbool.h>
#include <stdint.h>

/* a (n × n, by rows) becomes t, upper triangular, with a = u t uᴴ and u unitary. False: it does not settle (values that are not finite). */
bool trn_schur(double _Complex *a, double _Complex *u, int64_t n);
/* Unit eigenvectors of a as columns of v, eigenvalues on t's diagonal, in that order; t and u from trn_schur. */
void trn_schur_vectors(double _Complex *v, const double _Complex *t, const double _Complex *u, int64_t n);

#endif
