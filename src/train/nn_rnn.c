/* LSTM and GRU over time. The steps are unrolled where their number is known: a step of training then runs without frames, and many things at a time.
 * Else they are a loop over lists of tensors. */
#include <trainera/control.h>

#include "train/nn_priv.h"

static const trn_rnn no_rnn = {{-1, 0}, {-1, 0}, {-1, 0}};
static const trn_rnn_opts no_opts;
enum { MAX_STEPS = 4096 };

/* A layer while it is built. */
typedef struct rnn {
    trn_builder *b;
    const trn_rnn_opts *o;
    trn_activation act;
    int64_t units, features, steps;
    trn_dtype t;
    trn_variable *k[2], *bias[2]; /* LSTM: one pair; GRU: gates, candidate */
    trn_out c, h;
    /* of a loop: */
    void (*step)(struct rnn *, trn_out);
    trn_out list, lengths, n; /* inputs by time, int32 lengths or TRN_NONE, number of steps */
} rnn;

static bool rnn_init(rnn *r, trn_builder *b, const char *layer, trn_out x, int64_t units, const trn_rnn_opts *opts)
{
    const trn_shape *s = trn_nn__shape(b, x);
    char text[TRN_SHAPE_TEXT];
    if (!trn_builder_ok(b))
        return false;
    *r = (rnn){.b = b, .o = opts ? opts : &no_opts, .units = units, .t = trn_out_dtype(b, x), .c = TRN_NONE, .h = TRN_NONE};
    r->act = r->o->activation ? r->o->activation : trn_tanh;
    if (s->rank != 3 || s->dim[1] == 0 || s->dim[2] < 1)
        BAD(b, "%s: its input must be [batch, time, features] with known features, but %s is %s", layer, trn_out_name(b, x), trn_shape_text(text, s));
    else if (!trn_nn__is_float(r->t))
        BAD(b, "%s: its input must be of floats, but %s is of %s", layer, trn_out_name(b, x), trn_dtype_name(r->t));
    else if (units < 1)
        BAD(b, "%s: %lld units; at least one is needed", layer, (long long)units);
    else {
        r->steps = s->dim[1] > MAX_STEPS || r->o->loop ? -1 : s->dim[1];
        r->features = s->dim[2];
    }
    return trn_builder_ok(b);
}

static trn_out state_of(rnn *r, const char *name, const trn_out *given, trn_out x)
{
    trn_builder *b = r->b;
    const trn_shape *s = trn_nn__shape(b, x);
    trn_shape want = trn_shape_of(2, s->dim[0], r->units);
    if (given) {
        char tg[TRN_SHAPE_TEXT], tw[TRN_SHAPE_TEXT];
        if (trn_builder_ok(b) && !trn_shape_compatible(trn_nn__shape(b, *given), &want))
            return BAD(b, "rnn: the state %s is %s, it must be %s", name, trn_shape_text(tg, trn_nn__shape(b, *given)), trn_shape_text(tw, &want));
        return *given;
    }
    if (s->dim[0] >= 0)
        return trn_zeros(b, r->t, want);
    return OP(b, "Fill", OP(b, "ConcatV2", trn_nn__batch(b, x), trn_nn__ints(b, &r->units, 1), trn_const_i32(b, 0)), trn_const_num(b, r->t, 0));
}

static trn_out linear(rnn *r, trn_out x, trn_out h, int which)
{
    trn_builder *b = r->b;
    trn_out both = OP(b, "ConcatV2", x, h, trn_const_i32(b, 1));
    return OP(b, "BiasAdd", OP(b, "MatMul", both, r->k[which]->value), r->bias[which]->value);
}

static trn_out split(trn_builder *b, trn_out x, int n) { return OPA(b, "Split", ATTRS(trn_at_int("num_split", n)), trn_const_i32(b, 1), x); }

static void lstm_step(rnn *r, trn_out x)
{
    trn_builder *b = r->b;
    trn_out g = split(b, linear(r, x, r->h, 0), 4); /* input, new, forget, output */
    trn_out forget = trn_const_num(b, r->t, r->o->forget_bias.given ? trn_nn__meant(r->o->forget_bias.v) : 1);
    trn_out keep = OP(b, "Mul", r->c, OP(b, "Sigmoid", OP(b, "AddV2", trn_out_nth(g, 2), forget)));
    trn_out in = OP(b, "Sigmoid", g), news = r->act(b, trn_out_nth(g, 1));
    r->c = OP(b, "AddV2", keep, OP(b, "Mul", in, news));
    trn_out seen = r->act(b, r->c);
    r->h = OP(b, "Mul", seen, OP(b, "Sigmoid", trn_out_nth(g, 3)));
}

static void gru_step(rnn *r, trn_out x)
{
    trn_builder *b = r->b;
    trn_out g = split(b, OP(b, "Sigmoid", linear(r, x, r->h, 0)), 2); /* reset, update */
    trn_out u = trn_out_nth(g, 1), past = OP(b, "Mul", g, r->h);
    trn_out c = r->act(b, linear(r, x, past, 1));
    trn_out keep = OP(b, "Mul", u, r->h), take = OP(b, "Sub", trn_const_num(b, r->t, 1), u);
    r->h = OP(b, "AddV2", keep, OP(b, "Mul", take, c));
}

/* One step at time i (int32 scalar); rows that have ended keep their state. Gives the output. */
static trn_out masked_step(rnn *r, trn_out x, trn_out i)
{
    trn_builder *b = r->b;
    trn_out c = r->c, h = r->h;
    r->step(r, x);
    if (!trn_out_is(r->lengths))
        return r->h;
    trn_out on = OP(b, "ExpandDims", OP(b, "Greater", r->lengths, i), trn_const_i32(b, 1));
    trn_out y = OP(b, "SelectV2", on, r->h, trn_const_num(b, r->t, 0));
    r->h = OP(b, "SelectV2", on, r->h, h);
    if (trn_out_is(c))
        r->c = OP(b, "SelectV2", on, r->c, c);
    return y;
}

/* ---- as a loop: i, h, outputs, and c of an LSTM ---------------------------------------------------------------------- */

static trn_out more_steps(void *arg, trn_builder *b, const trn_out *v) { return OP(b, "Less", v[0], ((rnn *)arg)->n); }

static void loop_step(void *arg, trn_builder *b, trn_out *v)
{
    rnn *r = arg;
    bool lstm = r->step == lstm_step;
    trn_out x = OPA(b, "TensorListGetItem", ATTRS(trn_at_type("element_dtype", r->t)), r->list, v[0], trn_nn__ints(b, (int64_t[]){-1, r->features}, 2));
    x = OP(b, "Reshape", x, trn_nn__ints(b, (int64_t[]){-1, r->features}, 2)); /* its features are known from here on */
    r->h = v[1];
    r->c = lstm ? v[3] : TRN_NONE;
    trn_out y = masked_step(r, x, v[0]);
    v[2] = OP(b, "TensorListSetItem", v[2], v[0], y);
    v[1] = r->h;
    if (lstm)
        v[3] = r->c;
    v[0] = OP(b, "AddV2", v[0], trn_const_i32(b, 1));
}

static trn_rnn in_a_loop(rnn *r, trn_out x)
{
    trn_builder *b = r->b;
    bool lstm = r->step == lstm_step;
    trn_out swap = trn_nn__ints(b, (int64_t[]){1, 0, 2}, 3), element = trn_nn__ints(b, (int64_t[]){-1, r->units}, 2);
    r->list = OP(b, "TensorListFromTensor", OP(b, "Transpose", x, swap), trn_nn__ints(b, (int64_t[]){-1, r->features}, 2));
    r->n = trn_nn__squeeze_last(b, trn_nn__part(b, OP(b, "Shape", x), 1, 2));
    trn_out outs = OPA(b, "TensorListReserve", ATTRS(trn_at_type("element_dtype", r->t)), element, r->n);
    trn_out vars[] = {trn_const_i32(b, 0), r->h, outs, r->c};
    trn_shape state = trn_shape_of(2, (int64_t)-1, r->units), shapes[] = {trn_shape_scalar(), state, trn_shape_scalar(), state};
    trn_outs end = trn_while(b, more_steps, loop_step, r, vars, lstm ? 4 : 3, &(trn_loop_opts){.shapes = shapes});
    if (!trn_builder_ok(b))
        return no_rnn;
    trn_out y = OPA(b, "TensorListStack", ATTRS(trn_at_type("element_dtype", r->t)), end.at[2], element);
    y = OP(b, "Transpose", y, swap);
    y = trn_nn__last_dim(b, y, x, r->units); /* a stack of what the loop made has no shape; this is known of x */
    return (trn_rnn){y, lstm ? end.at[3] : TRN_NONE, end.at[1]};
}

/* ---- one after the other --------------------------------------------------------------------------------------------- */

static trn_rnn over_time(rnn *r, const char *cell, trn_out x, void (*step)(rnn *, trn_out))
{
    trn_builder *b = r->b;
    const trn_rnn_opts *o = r->o;
    trn_rnn y = no_rnn;
    r->step = step;
    if (step == lstm_step)
        r->c = state_of(r, "c", o->c, x);
    r->h = state_of(r, "h", o->h, x);
    r->lengths = o->lengths ? trn_nn__cast(b, *o->lengths, TRN_INT32) : TRN_NONE;
    if (r->steps < 0)
        return in_a_loop(r, x);
    trn_out *outputs = trn_builder_alloc(b, sizeof *outputs * (size_t)r->steps);
    trn_out xs = OPA(b, "Unpack", ATTRS(trn_at_int("num", r->steps), trn_at_int("axis", 1)), x);
    for (int64_t i = 0; i < r->steps && outputs && trn_builder_ok(b); i++)
        TRN_SCOPE(trn_name_scope(b, cell), b)
            outputs[i] = masked_step(r, trn_out_nth(xs, (int)i), trn_out_is(r->lengths) ? trn_const_i32(b, (int32_t)i) : TRN_NONE);
    if (trn_builder_ok(b)) {
        trn_attr axis = trn_at_int("axis", 1);
        y = (trn_rnn){trn_node_add(b, "Pack", outputs, (int)r->steps, &axis, 1), r->c, r->h};
    }
    return y;
}

static bool vars(rnn *r, nn_layer *l, int i, const char *cell, const char *part, int64_t cols, trn_init bias)
{
    trn_builder *b = r->b;
    const char *dir = trn_builder_printf(b, "%s%s%s", cell, *part ? "/" : "", part);
    r->k[i] = trn_nn__var(l, trn_builder_printf(b, "%s/kernel", dir), r->t, trn_shape_of(2, r->features + r->units, cols), r->o->kernel_init, (trn_init){0}, 0);
    r->bias[i] = trn_nn__var(l, trn_builder_printf(b, "%s/bias", dir), r->t, trn_shape_vector(cols), r->o->bias_init, bias, 0);
    return r->k[i] && r->bias[i];
}

trn_rnn trn_lstm(trn_builder *b, trn_out x, int64_t units, const trn_rnn_opts *opts)
{
    rnn r;
    trn_rnn y = no_rnn;
    nn_layer l = trn_nn__open(b, "rnn", opts && opts->reuse, opts && opts->not_trainable);
    if (rnn_init(&r, b, "lstm", x, units, opts) && vars(&r, &l, 0, "basic_lstm_cell", "", 4 * units, trn_init_zeros()))
        y = over_time(&r, "basic_lstm_cell", x, lstm_step);
    trn_nn__close(&l);
    return y;
}

trn_rnn trn_gru(trn_builder *b, trn_out x, int64_t units, const trn_rnn_opts *opts)
{
    rnn r;
    trn_rnn y = no_rnn;
    nn_layer l = trn_nn__open(b, "rnn", opts && opts->reuse, opts && opts->not_trainable);
    if (rnn_init(&r, b, "gru", x, units, opts) && vars(&r, &l, 0, "gru_cell", "gates", 2 * units, trn_init_ones()) &&
        vars(&r, &l, 1, "gru_cell", "candidate", units, trn_init_zeros()))
        y = over_time(&r, "gru_cell", x, gru_step);
    trn_nn__close(&l);
    return y;
}
