#include "tensor/tensor.h"

#include <stdio.h>

trn_shape trn_shape_of(int rank, ...)
{
    trn_shape s = {.rank = rank < 0 ? -1 : TRN_MIN(rank, TRN_MAX_RANK)};
    va_list ap;
    va_start(ap, rank);
    for (int i = 0; i < s.rank; i++)
        s.dim[i] = va_arg(ap, int64_t);
    va_end(ap);
    return s;
}

trn_shape trn_shape_scalar(void) { return (trn_shape){.rank = 0}; }
trn_shape trn_shape_vector(int64_t n) { return (trn_shape){.rank = 1, .dim = {n}}; }
trn_shape trn_shape_unknown(void) { return (trn_shape){.rank = -1}; }

bool trn_shape_eq(const trn_shape *a, const trn_shape *b)
{
    if (a->rank != b->rank)
        return false;
    for (int i = 0; i < a->rank; i++)
        if (a->dim[i] != b->dim[i])
            return false;
    return true;
}

bool trn_shape_compatible(const trn_shape *a, const trn_shape *b)
{
    if (a->rank < 0 || b->rank < 0)
        return true;
    if (a->rank != b->rank)
        return false;
    for (int i = 0; i < a->rank; i++)
        if (a->dim[i] >= 0 && b->dim[i] >= 0 && a->dim[i] != b->dim[i])
            return false;
    return true;
}

bool trn_shape_is_full(const trn_shape *s)
{
    for (int i = 0; i < s->rank; i++)
        if (s->dim[i] < 0)
            return false;
    return s->rank >= 0;
}

trn_err trn_shape_count(int64_t *out, const trn_shape *s)
{
    char text[TRN_SHAPE_TEXT];
    if (s->rank > TRN_MAX_RANK)
        return trn_errorf(TRN_INVALID_ARGUMENT, "shape has rank %d; at most %d is supported", s->rank, TRN_MAX_RANK);
    if (!trn_shape_is_full(s))
        return trn_errorf(TRN_INVALID_ARGUMENT, "shape %s is not fully defined", trn_shape_text(text, s));
    int64_t n = 1;
    for (int i = 0; i < s->rank; i++) {
        /* The bound holds before every product, also when a later dim is 0: like TensorFlow, [2^40,2^40,0] is refused. */
        if (__builtin_mul_overflow(n, s->dim[i], &n) || n > (int64_t)1 << 62)
            return trn_errorf(TRN_INVALID_ARGUMENT, "shape %s has more than 2^62 elements", trn_shape_text(text, s));
    }
    *out = n;
    return TRN_OK;
}

const char *trn_shape_text(char buf[TRN_SHAPE_TEXT], const trn_shape *s)
{
    if (s->rank < 0) {
        snprintf(buf, TRN_SHAPE_TEXT, "<unknown>");
        return buf;
    }
    size_t n = 0;
    buf[n++] = '[';
    for (int i = 0; i < TRN_MIN(s->rank, TRN_MAX_RANK); i++) {
        if (n > TRN_SHAPE_TEXT - 32) { /* a dim, a comma and the end must fit */
            n += (size_t)snprintf(buf + n, TRN_SHAPE_TEXT - n, ",...");
            break;
        }
        if (s->dim[i] < 0)
            n += (size_t)snprintf(buf + n, TRN_SHAPE_TEXT - n, "%s?", i ? "," : "");
        else
            n += (size_t)snprintf(buf + n, TRN_SHAPE_TEXT - n, "%s%lld", i ? "," : "", (long long)s->dim[i]);
    }
    buf[n++] = ']';
    buf[n] = 0;
    return buf;
}
