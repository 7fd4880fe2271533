/* Seeds, random tensors, initialisers, variables with them. Formulas are those of TensorFlow's init_ops, step by step in the variable's dtype, so
 * that the same seeds give the same bits. */
#include "train/nn_priv.h"

#include "graph/builder.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- small ops ----------------------------------------------------------------------------------------------------- */

trn_attr trn_nn__at_ints(trn_builder *b, const char *name, const int64_t *v, int n)
{
    trn_attr_val *list = trn_builder_alloc(b, sizeof *list * (size_t)(n ? n : 1));
    if (list)
        for (int i = 0; i < n; i++)
            list[i].i = v[i];
    return (trn_attr){.name = name, .kind = TRN_ATTR_INT, .is_list = true, .n = list ? n : 0, .list = list};
}

trn_out trn_nn__cast(trn_builder *b, trn_out x, trn_dtype t)
{
    return trn_out_dtype(b, x) == t ? x : OPA(b, "Cast", ATTRS(trn_at_type("DstT", t)), x);
}

trn_out trn_nn__ints(trn_builder *b, const int64_t *v, int n)
{
    bool wide = false;
    for (int i = 0; i < n; i++)
        wide |= v[i] > INT32_MAX || v[i] < INT32_MIN;
    trn_tensor *t;
    trn_shape s = trn_shape_vector(n);
    trn_err err = trn_tensor_new(&t, wide ? TRN_INT64 : TRN_INT32, &s);
    if (err)
        return trn_builder_fail(b, err);
    for (int i = 0; i < n; i++)
        if (wide)
            ((int64_t *)trn_tensor_data_mut(t))[i] = v[i];
        else
            ((int32_t *)trn_tensor_data_mut(t))[i] = (int32_t)v[i];
    return trn_const(b, t);
}

const trn_shape *trn_nn__shape(trn_builder *b, trn_out x)
{
    static const trn_shape unknown = {.rank = -1};
    const trn_shape *s = trn_out_is(x) ? trn_out_shape(b, x) : NULL;
    return s ? s : &unknown;
}

int trn_nn__rank(trn_builder *b, trn_out x) { return trn_nn__shape(b, x)->rank; }

bool trn_nn__is_float(trn_dtype t) { return t == TRN_FLOAT || t == TRN_DOUBLE || t == TRN_HALF || t == TRN_BFLOAT16; }

trn_out trn_nn__sum(trn_builder *b, trn_out x)
{
    int rank = trn_nn__rank(b, x);
    if (rank == 0)
        return x;
    trn_out axes;
    if (rank > 0) {
        int64_t all[TRN_MAX_RANK];
        for (int i = 0; i < rank; i++)
            all[i] = i;
        axes = trn_nn__ints(b, all, rank);
    } else
        axes = OP(b, "Range", trn_const_i32(b, 0), OP(b, "Rank", x), trn_const_i32(b, 1));
    return OP(b, "Sum", x, axes);
}

trn_out trn_nn__size_f32(trn_builder *b, trn_out x)
{
    int64_t n;
    const trn_shape *s = trn_nn__shape(b, x);
    if (trn_shape_is_full(s)) {
        trn_err err = trn_shape_count(&n, s);
        if (err)
            return trn_builder_fail(b, err);
        return trn_const_f32(b, (float)n);
    }
    return trn_nn__cast(b, OP(b, "Size", x), TRN_FLOAT);
}

trn_out trn_nn__part(trn_builder *b, trn_out vector, int64_t from, int64_t to)
{
    trn_out begin = trn_nn__ints(b, &from, 1), end = trn_nn__ints(b, &to, 1), step = trn_nn__ints(b, (int64_t[]){1}, 1);
    return OP(b, "StridedSlice", vector, begin, end, step);
}

trn_out trn_nn__batch(trn_builder *b, trn_out x) { return trn_nn__part(b, OP(b, "Shape", x), 0, 1); }

trn_out trn_nn__last_dim(trn_builder *b, trn_out x, trn_out y, int64_t last)
{
    const trn_shape *s = trn_nn__shape(b, y);
    int unknown = 0;
    for (int i = 0; i + 1 < s->rank; i++)
        unknown += s->dim[i] < 0;
    if (s->rank > 0 && unknown <= 1) {
        int64_t dims[TRN_MAX_RANK];
        memcpy(dims, s->dim, sizeof *dims * (size_t)s->rank);
        dims[s->rank - 1] = last;
        return OP(b, "Reshape", x, trn_nn__ints(b, dims, s->rank));
    }
    trn_out head = trn_nn__part(b, OP(b, "Shape", y), 0, -1);
    return OP(b, "Reshape", x, OP(b, "ConcatV2", head, trn_nn__ints(b, &last, 1), trn_const_i32(b, 0)));
}

trn_out trn_nn__squeeze_last(trn_builder *b, trn_out x) { return OPA(b, "Squeeze", ATTRS(AT_INTS(b, "squeeze_dims", -1)), x); }

bool trn_nn__same_shape(trn_builder *b, const char *what, trn_out x, trn_out y)
{
    const trn_shape *sx = trn_nn__shape(b, x), *sy = trn_nn__shape(b, y);
    if (trn_shape_compatible(sx, sy))
        return true;
    char tx[TRN_SHAPE_TEXT], ty[TRN_SHAPE_TEXT];
    BAD(b, "%s: labels are %s, predictions are %s; they must have the same shape", what, trn_shape_text(tx, sx), trn_shape_text(ty, sy));
    return false;
}

double trn_nn__meant(float v)
{
    char text[32];
    snprintf(text, sizeof text, "%.7g", (double)v);
    double d = strtod(text, NULL);
    return (float)d == v ? d : (double)v;
}

/* ---- seeds --------------------------------------------------------------------------------------------------------- */

typedef struct nn_seeds {
    bool given;
    int64_t graph, next;
} nn_seeds;

static nn_seeds *seeds_of(trn_builder *b)
{
    nn_seeds *s = trn_builder_get(b, "nn.seeds");
    if (!s && (s = trn_builder_alloc(b, sizeof *s)))
        trn_builder_put(b, "nn.seeds", s);
    return s;
}

void trn_set_seed(trn_builder *b, int64_t seed)
{
    nn_seeds *s = seeds_of(b);
    if (s) {
        s->given = true;
        s->graph = seed;
    }
}

/* As Python's %: never negative. */
static int64_t in_int32(int64_t v)
{
    int64_t m = v % INT32_MAX;
    return m < 0 ? m + INT32_MAX : m;
}

void trn_next_seeds(int64_t out[2], trn_builder *b, trn_maybe_int own)
{
    nn_seeds *s = seeds_of(b);
    out[0] = out[1] = 0; /* both 0: another sequence in every session */
    if (!s || (!s->given && !own.given))
        return;
    out[0] = s->given ? in_int32(s->graph) : 87654321;
    out[1] = own.given ? in_int32(own.v) : s->next++;
    if (!out[0] && !out[1])
        out[1] = INT32_MAX;
}

/* ---- random tensors ------------------------------------------------------------------------------------------------ */

static trn_out random_node(trn_builder *b, const char *op, trn_dtype dtype, const trn_shape *shape, trn_maybe_int seed)
{
    int64_t seeds[2];
    if (shape->rank < 0 || !trn_shape_is_full(shape)) {
        char text[TRN_SHAPE_TEXT];
        return BAD(b, "%s: the shape must be known, it is %s", op, trn_shape_text(text, shape));
    }
    trn_next_seeds(seeds, b, seed);
    return OPA(b, op, ATTRS(trn_at_type("dtype", dtype), trn_at_int("seed", seeds[0]), trn_at_int("seed2", seeds[1])),
               trn_nn__ints(b, shape->dim, shape->rank));
}

/* The scope's own name is its result's, as in TensorFlow. */
static trn_out result(trn_builder *b, const char *op, trn_out x, trn_out y)
{
    return trn_builder_ok(b) ? trn_builder__add_in_scope(b, trn_scope_name(b), op, (trn_out[]){x, y}, 2, NULL, 0) : TRN_NONE;
}

trn_out trn_random_uniform(trn_builder *b, trn_dtype dtype, trn_shape shape, double low, double high, trn_maybe_int seed)
{
    trn_out y = TRN_NONE;
    TRN_SCOPE(trn_name_scope(b, trn_take_name(b, "random_uniform")), b) {
        trn_out lo = trn_const_num(trn_named(b, "min"), dtype, low), hi = trn_const_num(trn_named(b, "max"), dtype, high);
        if (dtype == TRN_INT32 || dtype == TRN_INT64) {
            int64_t seeds[2];
            trn_next_seeds(seeds, b, seed);
            y = OPA(b, "RandomUniformInt", ATTRS(trn_at_int("seed", seeds[0]), trn_at_int("seed2", seeds[1])),
                    trn_nn__ints(b, shape.dim, shape.rank > 0 ? shape.rank : 0), lo, hi);
        } else {
            trn_out r = random_node(b, "RandomUniform", dtype, &shape, seed);
            y = result(b, "AddV2", OP(b, "Mul", r, OP(b, "Sub", hi, lo)), lo);
        }
    }
    return y;
}

static trn_out scaled_normal(trn_builder *b, const char *scope, const char *op, trn_dtype dtype, const trn_shape *shape, double mean, double stddev,
                             trn_maybe_int seed)
{
    trn_out y = TRN_NONE;
    TRN_SCOPE(trn_name_scope(b, trn_take_name(b, scope)), b) {
        trn_out m = trn_const_num(trn_named(b, "mean"), dtype, mean), d = trn_const_num(trn_named(b, "stddev"), dtype, stddev);
        y = result(b, "AddV2", OP(b, "Mul", random_node(b, op, dtype, shape, seed), d), m);
    }
    return y;
}

trn_out trn_random_normal(trn_builder *b, trn_dtype dtype, trn_shape shape, double mean, double stddev, trn_maybe_int seed)
{
    return scaled_normal(b, "random_normal", "RandomStandardNormal", dtype, &shape, mean, stddev, seed);
}

trn_out trn_truncated_normal(trn_builder *b, trn_dtype dtype, trn_shape shape, double mean, double stddev, trn_maybe_int seed)
{
    return scaled_normal(b, "truncated_normal", "TruncatedNormal", dtype, &shape, mean, stddev, seed);
}

/* ---- initialisers -------------------------------------------------------------------------------------------------- */

/* Kernels are [receptive field…, in, out]. */
static void fans_of(double *in, double *out, const trn_shape *s)
{
    double field = 1;
    for (int i = 0; i + 2 < s->rank; i++)
        field *= (double)s->dim[i];
    *in = *out = 1;
    if (s->rank == 1)
        *in = *out = (double)s->dim[0];
    else if (s->rank > 1) {
        *in = field * (double)s->dim[s->rank - 2];
        *out = field * (double)s->dim[s->rank - 1];
    }
}

static trn_out variance_scaling(trn_builder *b, const trn_init *init, trn_dtype dtype, const trn_shape *shape)
{
    double in, out, scale = init->a;
    if (!(scale > 0))
        return BAD(b, "variance scaling: the scale must be positive, it is %g", scale);
    fans_of(&in, &out, shape);
    scale /= fmax(1, init->fan == TRN_FAN_IN ? in : init->fan == TRN_FAN_OUT ? out : (in + out) / 2);
    if (init->kind == TRN_INIT_SCALED_UNIFORM) {
        double limit = sqrt(3 * scale);
        return trn_random_uniform(b, dtype, *shape, -limit, limit, init->seed);
    }
    if (init->kind == TRN_INIT_SCALED_NORMAL)
        return trn_random_normal(b, dtype, *shape, 0, sqrt(scale), init->seed);
    /* What is cut off beyond two deviations makes the rest narrower by this factor. */
    return trn_truncated_normal(b, dtype, *shape, 0, sqrt(scale) / .87962566103423978, init->seed);
}

static trn_out orthogonal(trn_builder *b, const trn_init *init, trn_dtype dtype, const trn_shape *shape)
{
    if (shape->rank < 2)
        return BAD(b, "orthogonal initialiser: at least two dimensions are needed, not %d", shape->rank);
    int64_t rows = 1, cols = shape->dim[shape->rank - 1];
    for (int i = 0; i + 1 < shape->rank; i++)
        rows *= shape->dim[i];
    bool wide = rows < cols;
    trn_out a = trn_random_normal(b, dtype, trn_shape_of(2, wide ? cols : rows, wide ? rows : cols), 0, 1, init->seed);
    trn_out q = OPA(b, "Qr", ATTRS(trn_at_bool("full_matrices", false)), a);
    /* The signs of R's diagonal make Q uniform among the orthogonal matrices. */
    q = OP(b, "Mul", q, OP(b, "Sign", OP(b, "MatrixDiagPart", trn_out_nth(q, 1))));
    if (wide)
        q = OP(b, "Transpose", q, trn_nn__ints(b, (int64_t[]){1, 0}, 2));
    return OP(b, "Mul", trn_const_num(b, dtype, init->a), OP(b, "Reshape", q, trn_nn__ints(b, shape->dim, shape->rank)));
}

static trn_out identity(trn_builder *b, const trn_init *init, trn_dtype dtype, const trn_shape *shape)
{
    if (shape->rank != 2)
        return BAD(b, "identity initialiser: two dimensions are needed, not %d", shape->rank);
    int64_t n = shape->dim[0] < shape->dim[1] ? shape->dim[0] : shape->dim[1];
    trn_out eye = OP(b, "MatrixSetDiag", trn_zeros(b, dtype, *shape), trn_fill(b, dtype, trn_shape_vector(n), 1));
    return init->a == 1 ? eye : OP(b, "Mul", trn_const_num(b, dtype, init->a), eye);
}

trn_out trn_initial(trn_builder *b, trn_init init, trn_dtype dtype, trn_shape shape)
{
    char text[TRN_SHAPE_TEXT];
    if (!trn_builder_ok(b))
        return TRN_NONE;
    if (!trn_shape_is_full(&shape))
        return BAD(b, "an initial value needs a known shape, not %s", trn_shape_text(text, &shape));
    if (init.kind == TRN_INIT_DEFAULT)
        init = trn_nn__is_float(dtype) ? trn_init_glorot_uniform() : trn_init_zeros();
    switch (init.kind) {
    case TRN_INIT_CONSTANT: return trn_fill(b, dtype, shape, init.a);
    case TRN_INIT_UNIFORM: return trn_random_uniform(b, dtype, shape, init.a, init.b, init.seed);
    case TRN_INIT_NORMAL: return trn_random_normal(b, dtype, shape, init.a, init.b, init.seed);
    case TRN_INIT_TRUNCATED_NORMAL: return trn_truncated_normal(b, dtype, shape, init.a, init.b, init.seed);
    case TRN_INIT_SCALED_UNIFORM:
    case TRN_INIT_SCALED_NORMAL:
    case TRN_INIT_SCALED_TRUNCATED_NORMAL: return variance_scaling(b, &init, dtype, &shape);
    case TRN_INIT_ORTHOGONAL: return orthogonal(b, &init, dtype, &shape);
    case TRN_INIT_IDENTITY: return identity(b, &init, dtype, &shape);
    case TRN_INIT_VALUE:
        if (!init.value || trn_tensor_dtype(init.value) != dtype || !trn_shape_eq(trn_tensor_shape(init.value), &shape))
            return BAD(b, "an initial value of %s %s is needed, not %s", trn_dtype_name(dtype), trn_shape_text(text, &shape),
                       init.value ? trn_dtype_name(trn_tensor_dtype(init.value)) : "NULL");
        return trn_const(b, trn_tensor_ref(init.value));
    case TRN_INIT_FN:
        if (init.fn)
            return init.fn(init.arg, b, dtype, &shape);
        break;
    case TRN_INIT_DEFAULT: break;
    }
    return BAD(b, "initialiser of unknown kind %d", (int)init.kind);
}

trn_variable *trn_get_variable(trn_builder *b, const char *name, trn_dtype dtype, trn_shape shape, trn_init init, unsigned flags)
{
    trn_out value = TRN_NONE;
    const char *scope = trn_scope_name(b);
    const char *inner = trn_builder_printf(b, "%s%s%s/Initializer", scope, *scope ? "/" : "", name);
    TRN_SCOPE(trn_name_scope_again(b, inner), b)
        value = trn_initial(b, init, dtype, shape);
    return trn_variable_new(b, name, value, flags);
}

/* ---- a layer's scope and variables --------------------------------------------------------------------------------- */

nn_layer trn_nn__open(trn_builder *b, const char *otherwise, bool reuse, bool not_trainable)
{
    const char *name = trn_take_name(b, otherwise), *outer = trn_scope_name(b);
    nn_layer l = {.b = b, .reuse = reuse, .flags = not_trainable ? TRN_NOT_TRAINABLE : 0};
    l.vars = trn_builder_printf(b, "%s%s%s", outer, *outer ? "/" : "", name);
    trn_name_scope(b, name);
    if (!reuse)
        l.vars = trn_builder_strdup(b, trn_scope_name(b));
    return l;
}

void trn_nn__close(nn_layer *l) { trn_end(l->b); }

trn_variable *trn_nn__var(nn_layer *l, const char *name, trn_dtype dtype, trn_shape shape, trn_init init, trn_init otherwise, unsigned flags)
{
    trn_builder *b = l->b;
    if (!trn_builder_ok(b))
        return NULL;
    if (l->reuse) {
        char text[TRN_SHAPE_TEXT], had[TRN_SHAPE_TEXT];
        const char *full = trn_builder_printf(b, "%s/%s", l->vars, name);
        trn_variable *v = trn_variable_find(b, full);
        if (!v)
            BAD(b, "no variable %s to be reused: the layer of this name must have been built before, in the same scope", full);
        else if (v->dtype != dtype || !trn_shape_eq(&v->shape, &shape)) {
            BAD(b, "variable %s is reused as %s %s, but it is %s %s", full, trn_dtype_name(dtype), trn_shape_text(text, &shape),
                trn_dtype_name(v->dtype), trn_shape_text(had, &v->shape));
            v = NULL;
        }
        return v;
    }
    trn_variable *v = trn_get_variable(b, name, dtype, shape, init.kind == TRN_INIT_DEFAULT ? otherwise : init, l->flags | flags);
    return trn_builder_ok(b) ? v : NULL;
}

trn_out trn_nn__read(nn_layer *l, trn_variable *v) { return v ? v->value : TRN_NONE; }

trn_out trn_regularize(trn_builder *b, trn_out w, float l1, float l2)
{
    trn_out sum = TRN_NONE;
    TRN_SCOPE(trn_name_scope(b, trn_take_name(b, "Regularizer")), b) {
        trn_dtype t = trn_out_dtype(b, w);
        if (l1 != 0)
            sum = OP(b, "Mul", trn_const_num(b, t, l1), trn_nn__sum(b, OP(b, "Abs", w)));
        if (l2 != 0) {
            trn_out two = OP(b, "Mul", trn_const_num(b, t, l2), trn_nn__sum(b, OP(b, "Square", w)));
            sum = l1 != 0 ? OP(b, "AddV2", sum, two) : two;
        }
        if (l1 == 0 && l2 == 0)
            BAD(b, "a regulariser needs l1 or l2");
    }
    if (trn_builder_ok(b))
        trn_collect(b, "regularization_losses", sum);
    return sum;
}

void trn_nn__regularize(nn_layer *l, const char *name, trn_variable *v, float l1, float l2)
{
    if (!v || l->reuse || (l1 == 0 && l2 == 0))
        return;
    TRN_SCOPE(trn_name_scope_again(l->b, trn_builder_printf(l->b, "%s/%s", l->vars, name)), l->b)
        trn_regularize(l->b, v->value, l1, l2);
}

trn_out trn_nn__finish(nn_layer *l, trn_out y, int64_t units, bool no_bias, trn_init bias_init, trn_activation act)
{
    trn_builder *b = l->b;
    if (!no_bias) {
        trn_variable *bias = trn_nn__var(l, "bias", trn_out_dtype(b, y), trn_shape_vector(units), bias_init, trn_init_zeros(), 0);
        y = trn_builder_ok(b) ? OP(b, "BiasAdd", y, trn_nn__read(l, bias)) : TRN_NONE;
    }
    return act && trn_builder_ok(b) ? act(b, y) : y;
}
