#include "ckpt/slice.h"

#include <inttypes.h>

trn_slicespec trn_slicespec_full(int rank)
{
    trn_slicespec s = {.rank = rank};
    for (int d = 0; d < rank; d++)
        s.length[d] = -1;
    return s;
}

#define BAD(...) trn_errorf(TRN_INVALID_ARGUMENT, __VA_ARGS__)

static trn_err bad(const char *why, const char *text, size_t n)
{
    return BAD("%s in shape_and_slice specification: %.*s", why, (int)TRN_MIN(n, 200), text);
}

/* Digits up to `end`; false on anything else. */
static bool number(const char **p, const char *end, int64_t *out)
{
    const char *s = *p;
    uint64_t v = 0;
    while (s < end && *s >= '0' && *s <= '9' && v <= INT64_MAX / 10)
        v = v * 10 + (uint64_t)(*s++ - '0');
    if (s == *p || v > INT64_MAX || (s < end && *s >= '0' && *s <= '9'))
        return false;
    *p = s;
    *out = (int64_t)v;
    return true;
}

trn_err trn_slicespec_parse(trn_shape *shape, trn_slicespec *slice, const char *text, size_t n)
{
    const char *end = text + n, *last = end;
    while (last > text && last[-1] != ' ')
        last--;
    if (last == text)
        return bad("Need at least two elements", text, n);
    *shape = (trn_shape){.rank = 0};
    for (const char *p = text; p < last; p++) { /* dims, one space behind each */
        if (shape->rank == TRN_MAX_RANK)
            return bad("Too many dimensions", text, n);
        if (!number(&p, last, &shape->dim[shape->rank++]) || *p != ' ')
            return bad("Non numerical dimension", text, n);
    }
    *slice = (trn_slicespec){.rank = 0};
    for (const char *p = last; p < end;) { /* extents with ':' between */
        if (slice->rank == TRN_MAX_RANK)
            return bad("Too many extents", text, n);
        int d = slice->rank++;
        if (*p == '-') {
            p++;
            slice->length[d] = -1;
        } else if (!number(&p, end, &slice->start[d]) || p == end || *p != ',' ||
                   (p++, !number(&p, end, &slice->length[d]))) {
            return bad("Expected a pair of numbers or '-'", text, n);
        } else if (slice->length[d] <= 0) {
            return bad("Expected non-negative start and positive length", text, n);
        }
        if (p < end && *p++ != ':')
            return bad("Expected ':' between extents", text, n);
    }
    trn_shape ignored;
    return trn_slicespec_shape(&ignored, slice, shape);
}

void trn_slicespec_text(trn_sb *out, const trn_slicespec *s)
{
    for (int d = 0; d < s->rank; d++) {
        if (d)
            trn_sb_adds(out, ":");
        if (s->length[d] < 0)
            trn_sb_adds(out, "-");
        else
            trn_sb_addf(out, "%" PRId64 ",%" PRId64, s->start[d], s->length[d]);
    }
}

trn_err trn_slicespec_shape(trn_shape *out, const trn_slicespec *s, const trn_shape *full)
{
    bool ok = s->rank == full->rank;
    trn_shape r = {.rank = full->rank};
    for (int d = 0; ok && d < full->rank; d++) {
        ok = s->length[d] < 0 ||
             (s->start[d] >= 0 && s->length[d] <= full->dim[d] && s->start[d] <= full->dim[d] - s->length[d]);
        r.dim[d] = s->length[d] < 0 ? full->dim[d] : s->length[d];
    }
    if (!ok) {
        char text[TRN_SHAPE_TEXT];
        trn_sb slice = {0};
        trn_slicespec_text(&slice, s);
        trn_err err = BAD("The slice does not lie inside the tensor: shape = %s, slice = %s",
                          trn_shape_text(text, full), slice.n ? slice.p : "");
        trn_sb_fini(&slice);
        return err;
    }
    *out = r;
    return TRN_OK;
}

bool trn_slicespec_eq(const trn_slicespec *a, const trn_slicespec *b)
{
    size_t n = (size_t)a->rank * sizeof *a->start;
    return a->rank == b->rank && !memcmp(a->start, b->start, n) && !memcmp(a->length, b->length, n);
}

static int64_t from(const trn_slicespec *s, int d) { return s->length[d] < 0 ? 0 : s->start[d]; }
static int64_t length(const trn_slicespec *s, int d, const trn_shape *full)
{
    return s->length[d] < 0 ? full->dim[d] : s->length[d];
}

bool trn_slicespec_is_full(const trn_slicespec *s, const trn_shape *full)
{
    for (int d = 0; d < s->rank; d++)
        if (length(s, d, full) != full->dim[d])
            return false;
    return s->rank == full->rank;
}

bool trn_slicespec_overlap(trn_slicespec *out, const trn_slicespec *a, const trn_slicespec *b, const trn_shape *full)
{
    trn_slicespec r = {.rank = full->rank};
    for (int d = 0; d < full->rank; d++) {
        int64_t lo = TRN_MAX(from(a, d), from(b, d));
        int64_t hi = TRN_MIN(from(a, d) + length(a, d, full), from(b, d) + length(b, d, full));
        if (hi <= lo)
            return false;
        r.start[d] = lo;
        r.length[d] = hi - lo;
    }
    *out = r;
    return true;
}

typedef struct copying {
    trn_tensor *dst;
    const trn_tensor *src;
    trn_slicespec box;                                          /* what is copied, in the full tensor */
    int64_t dst_stride[TRN_MAX_RANK], src_stride[TRN_MAX_RANK]; /* elements per step along each dimension */
    int64_t dst_off[TRN_MAX_RANK], src_off[TRN_MAX_RANK];       /* where the box starts */
    int inner;                                                  /* from here on the box is one run on both sides */
} copying;

static trn_err copy_dim(const copying *c, int d, int64_t dst_at, int64_t src_at)
{
    if (d == c->inner) {
        int64_t n = 1;
        for (int i = d; i < c->box.rank; i++) {
            n *= c->box.length[i];
            dst_at += c->dst_off[i] * c->dst_stride[i];
            src_at += c->src_off[i] * c->src_stride[i];
        }
        return trn_tensor_copy_elems(c->dst, dst_at, c->src, src_at, n);
    }
    for (int64_t i = 0; i < c->box.length[d]; i++)
        TRN_TRY(copy_dim(c, d + 1, dst_at + (c->dst_off[d] + i) * c->dst_stride[d],
                         src_at + (c->src_off[d] + i) * c->src_stride[d]));
    return TRN_OK;
}

trn_err trn_slice_copy(trn_tensor *dst, const trn_slicespec *dst_slice, const trn_tensor *src,
                       const trn_slicespec *src_slice, const trn_shape *full)
{
    copying c = {.dst = dst, .src = src};
    if (!trn_slicespec_overlap(&c.box, dst_slice, src_slice, full))
        return TRN_OK;
    int rank = full->rank;
    int64_t ds = 1, ss = 1;
    c.inner = rank;
    bool run = true;
    for (int d = rank - 1; d >= 0; d--) {
        int64_t dl = length(dst_slice, d, full), sl = length(src_slice, d, full);
        c.dst_stride[d] = ds;
        c.src_stride[d] = ss;
        ds *= dl;
        ss *= sl;
        c.dst_off[d] = c.box.start[d] - from(dst_slice, d);
        c.src_off[d] = c.box.start[d] - from(src_slice, d);
        if (run)
            c.inner = d;
        run = run && c.box.length[d] == dl && c.box.length[d] == sl;
    }
    return copy_dim(&c, 0, 0, 0);
}

/* ---- pieces --------------------------------------------------------------------------------------------------- */

#define PAIRS_MAX 4096 /* pieces of one tensor that are compared with each other */

static int64_t volume(const trn_slicespec *box)
{
    int64_t v = 1;
    for (int d = 0; d < box->rank; d++)
        v *= box->length[d];
    return v;
}

/* Do the pieces cover what is wanted, each element once? */
static trn_err check_cover(const char *name, size_t n, const trn_shape *full, const trn_slicespec *piece, int n_pieces,
                           const trn_slicespec *want, int64_t wanted)
{
    int64_t got = 0;
    for (int i = 0; i < n_pieces; i++) {
        trn_slicespec box, both;
        if (!trn_slicespec_overlap(&box, want, &piece[i], full))
            continue;
        got += volume(&box);
        for (int j = 0; j < i && i < PAIRS_MAX; j++)
            if (trn_slicespec_overlap(&both, &box, &piece[j], full))
                return trn_errorf(TRN_DATA_LOSS, "Slices of %.*s overlap", (int)n, name);
        if (got > wanted)
            return trn_errorf(TRN_DATA_LOSS, "Slices of %.*s overlap", (int)n, name);
    }
    if (got == wanted)
        return TRN_OK;
    trn_sb text = {0};
    trn_slicespec_text(&text, want);
    trn_err err = BAD("Does not have sufficient slices for partitioned tensor %.*s to restore in slice_spec: %s",
                      (int)n, name, text.n ? text.p : "");
    trn_sb_fini(&text);
    return err;
}

trn_err trn_slice_gather(trn_tensor **out, const char *name, size_t n, trn_dtype dtype, const trn_shape *full,
                         const trn_slicespec *piece, int n_pieces, const trn_slicespec *want, uint64_t most,
                         trn_err (*read)(trn_tensor **out, void *arg, int i), void *arg)
{
    trn_shape shape;
    int64_t wanted;
    TRN_TRY(trn_slicespec_shape(&shape, want, full));
    for (int i = 0; i < n_pieces; i++)
        if (trn_slicespec_eq(want, &piece[i]))
            return read(out, arg, i);
    TRN_TRY(trn_shape_count(&wanted, &shape));
    TRN_TRY(check_cover(name, n, full, piece, n_pieces, want, wanted));
    if ((uint64_t)wanted > most)
        return trn_errorf(TRN_DATA_LOSS,
                          "%.*s is said to have %" PRId64 " elements, but the files have only %" PRIu64 " bytes",
                          (int)n, name, wanted, most);
    trn_tensor *t;
    TRN_TRY(trn_tensor_new(&t, dtype, &shape));
    if (n_pieces > PAIRS_MAX && trn_dtype_is_plain(dtype))
        memset(t->data, 0, trn_tensor_bytes(t)); /* what overlapping pieces leave open */
    trn_err err = TRN_OK;
    for (int i = 0; !err && i < n_pieces; i++) {
        trn_slicespec box;
        if (!trn_slicespec_overlap(&box, want, &piece[i], full))
            continue;
        trn_tensor *p;
        err = read(&p, arg, i);
        if (err)
            break;
        err = trn_slice_copy(t, want, p, &piece[i], full);
        trn_tensor_unref(p);
    }
    if (err)
        trn_tensor_unref(t);
    else
        *out = t;
    return err;
}

/* ---- keys ----------------------------------------------------------------------------------------------------- */

/* Length in bytes, then the bytes, high one first: order of codes is order of numbers. */
static void add_unsigned(trn_sb *out, uint64_t v)
{
    uint8_t b[9];
    int n = 0;
    for (int shift = 56; shift >= 0; shift -= 8)
        if (v >> shift)
            b[++n] = (uint8_t)(v >> shift);
    b[0] = (uint8_t)n;
    trn_sb_add(out, b, (size_t)n + 1);
}

/* n bytes hold 7n - 1 bits and a sign; the number of leading bits like the (inverted) sign tells n. */
static void add_signed(trn_sb *out, int64_t v)
{
    uint64_t magnitude = v < 0 ? ~(uint64_t)v : (uint64_t)v;
    int bits = magnitude ? 64 - __builtin_clzll(magnitude) : 0, n = bits / 7 + 1;
    uint8_t b[10];
    for (int i = 0; i < 10; i++)
        b[i] = i < 2 ? (v < 0 ? 0xff : 0) : (uint8_t)((uint64_t)v >> (8 * (9 - i)));
    uint8_t *p = b + 10 - n;
    for (int i = 0; i < n; i++) /* n marks, from the first bit on */
        p[i / 8] ^= (uint8_t)(0x80 >> (i % 8));
    trn_sb_add(out, p, (size_t)n);
}

static void add_string(trn_sb *out, const char *p, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (p[i] == '\0')
            trn_sb_add(out, "\0\xff", 2);
        else if ((uint8_t)p[i] == 0xff)
            trn_sb_add(out, "\xff\0", 2);
        else
            trn_sb_add(out, p + i, 1);
    }
    trn_sb_add(out, "\0\1", 2);
}

void trn_slicespec_key(trn_sb *out, const char *name, size_t n, const trn_slicespec *s)
{
    add_unsigned(out, 0);
    add_string(out, name, n);
    add_unsigned(out, (uint64_t)s->rank);
    for (int d = 0; d < s->rank; d++) {
        add_signed(out, s->start[d]);
        add_signed(out, s->length[d]);
    }
}
