/* Optimizers: a table row each; slots, constants and update ops are made here in the same way for all of them.
 *
 * What must be TensorFlow's, because others see it: names and initial values of slots (checkpoints), the order in which they are made (the second slot of
 * Adam is "w/Adam_1"), that a slot and the update are where the variable is, and that global_step is counted after all updates. */
#include "train/optim_int.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/base.h"
#include "graph/builder.h"

enum { SGD, MOMENTUM, ADAGRAD, ADADELTA, ADAM, RMSPROP, RMSPROP_C, FTRL, FTRL_V2, PROX_SGD, PROX_ADAGRAD, ADAGRAD_DA };

static const trn_optim_kind kinds[] = {
    [SGD] = {"GradientDescent", "GradientDescent", "vlg", {{0}}, {0}},
    [MOMENTUM] = {"Momentum", "Momentum", "v0lga", {{"momentum", -1}}, {"momentum"}},
    [ADAGRAD] = {"Adagrad", "Adagrad", "v0lg", {{"accumulator", 0}}, {0}},
    [ADADELTA] = {"Adadelta", "Adadelta", "v01labg", {{"accum", -1}, {"accum_update", -1}}, {"rho", "epsilon"}},
    [ADAM] = {"Adam", "Adam", "v01pqlabcg", {{"m", -1}, {"v", -1}}, {"beta1", "beta2", "epsilon"}},
    [RMSPROP] = {"RMSProp", "RMSProp", "v01labcg", {{"rms", -2}, {"momentum", -1}}, {"decay", "momentum", "epsilon"}},
    [RMSPROP_C] = {"RMSProp", "CenteredRMSProp", "v102labcg", {{"rms", -2}, {"mg", -1}, {"momentum", -1}}, {"decay", "momentum", "epsilon"}},
    [FTRL] = {"Ftrl", "Ftrl", "v01glaLc", {{"accum", 3}, {"linear", -1}}, {"l1_regularization_strength", "l2_regularization_strength", "learning_rate_power"}},
    [FTRL_V2] = {"Ftrl", "FtrlV2", "v01glaLec", {{"accum", 3}, {"linear", -1}},
                 {"l1_regularization_strength", "l2_regularization_strength", "learning_rate_power", NULL, "l2_shrinkage_regularization_strength"}},
    [PROX_SGD] = {"ProximalGradientDescent", "ProximalGradientDescent", "vlabg", {{0}}, {"l1_regularization_strength", "l2_regularization_strength"}},
    [PROX_ADAGRAD] = {"ProximalAdagrad", "ProximalAdagrad", "v0labg", {{"accumulator", 2}}, {"l1_regularization_strength", "l2_regularization_strength"}},
    [ADAGRAD_DA] = {"AdagradDA", "AdagradDA", "v01glabs", {{"gradient_accumulator", -1}, {"gradient_squared_accumulator", 2}},
                    {"l1_regularization_strength", "l2_regularization_strength"}},
};

/* ---- constructors --------------------------------------------------------------------------------------------------- */

static trn_optimizer *make(trn_builder *b, int kind, trn_out lr)
{
    trn_optimizer *o = trn_builder_alloc(b, sizeof *o);
    o->b = b;
    o->kind = &kinds[kind];
    o->name = trn_builder_strdup(b, trn_take_name(b, o->kind->name));
    o->lr = lr;
    const trn_shape *s = trn_out_shape(b, lr);
    trn_dtype t = trn_out_dtype(b, lr);
    if (trn_builder_ok(b) && !trn_out_is(lr))
        trn_builder_fail(b, trn_errorf(TRN_INVALID_ARGUMENT, "%s: the learning rate is nothing", o->name));
    else if (trn_builder_ok(b) && (s->rank > 0 || (t != TRN_FLOAT && t != TRN_DOUBLE && t != TRN_HALF && t != TRN_BFLOAT16))) {
        char text[TRN_SHAPE_TEXT];
        trn_builder_fail(b, trn_errorf(TRN_INVALID_ARGUMENT, "%s: the learning rate must be a float scalar, not %s %s", o->name, trn_dtype_name(t),
                                       trn_shape_text(text, s)));
    }
    return o;
}

/* The row is wanted to hold: `ok`, or the builder says which number was wrong. */
static void want(trn_optimizer *o, bool ok, const char *what, double v)
{
    if (!ok && trn_builder_ok(o->b))
        trn_builder_fail(o->b, trn_errorf(TRN_INVALID_ARGUMENT, "%s: %s, not %g", o->name, what, v));
}

trn_optimizer *trn_sgd(trn_builder *b, trn_out lr) { return make(b, SGD, lr); }

trn_optimizer *trn_momentum(trn_builder *b, trn_out lr, float momentum, bool nesterov)
{
    trn_optimizer *o = make(b, MOMENTUM, lr);
    o->h[0] = momentum;
    o->nesterov = nesterov;
    return o;
}

trn_optimizer *trn_adagrad(trn_builder *b, trn_out lr, float initial_accumulator)
{
    trn_optimizer *o = make(b, ADAGRAD, lr);
    want(o, initial_accumulator > 0, "initial_accumulator must be positive", initial_accumulator);
    o->h[0] = initial_accumulator;
    return o;
}

trn_optimizer *trn_adadelta(trn_builder *b, trn_out lr, float rho, float epsilon)
{
    trn_optimizer *o = make(b, ADADELTA, lr);
    o->h[0] = rho;
    o->h[1] = epsilon;
    return o;
}

trn_optimizer *trn_adam(trn_builder *b, trn_out lr, float beta1, float beta2, float epsilon)
{
    trn_optimizer *o = make(b, ADAM, lr);
    o->h[0] = beta1;
    o->h[1] = beta2;
    o->h[2] = epsilon;
    return o;
}

trn_optimizer *trn_rmsprop(trn_builder *b, trn_out lr, float decay, float momentum, float epsilon, bool centered)
{
    trn_optimizer *o = make(b, centered ? RMSPROP_C : RMSPROP, lr);
    o->h[0] = decay;
    o->h[1] = momentum;
    o->h[2] = epsilon;
    return o;
}

trn_optimizer *trn_ftrl(trn_builder *b, trn_out lr, const trn_ftrl_opts *opts)
{
    static const trn_ftrl_opts none;
    const trn_ftrl_opts *p = opts ? opts : &none;
    trn_optimizer *o = make(b, p->l2_shrinkage > 0 ? FTRL_V2 : FTRL, lr);
    o->h[0] = p->l1;
    o->h[1] = p->l2;
    o->h[2] = p->lr_power.given ? p->lr_power.v : -0.5f;
    o->h[3] = p->initial_accumulator.given ? p->initial_accumulator.v : 0.1f;
    o->h[4] = p->l2_shrinkage;
    o->ftrl_beta = p->beta;
    want(o, o->h[0] >= 0, "l1 must not be negative", o->h[0]);
    want(o, o->h[1] >= 0, "l2 must not be negative", o->h[1]);
    want(o, o->h[2] <= 0, "lr_power must not be positive", o->h[2]);
    want(o, o->h[3] >= 0, "initial_accumulator must not be negative", o->h[3]);
    want(o, o->h[4] >= 0, "l2_shrinkage must not be negative", o->h[4]);
    return o;
}

trn_optimizer *trn_proximal_sgd(trn_builder *b, trn_out lr, float l1, float l2)
{
    trn_optimizer *o = make(b, PROX_SGD, lr);
    o->h[0] = l1;
    o->h[1] = l2;
    return o;
}

trn_optimizer *trn_proximal_adagrad(trn_builder *b, trn_out lr, float initial_accumulator, float l1, float l2)
{
    trn_optimizer *o = make(b, PROX_ADAGRAD, lr);
    want(o, initial_accumulator > 0, "initial_accumulator must be positive", initial_accumulator);
    o->h[0] = l1;
    o->h[1] = l2;
    o->h[2] = initial_accumulator;
    return o;
}

trn_optimizer *trn_adagrad_da(trn_builder *b, trn_out lr, trn_variable *global_step, float initial_accumulator, float l1, float l2)
{
    trn_optimizer *o = make(b, ADAGRAD_DA, lr);
    want(o, initial_accumulator > 0, "initial_accumulator must be positive", initial_accumulator);
    if (!global_step && trn_builder_ok(b))
        trn_builder_fail(b, trn_errorf(TRN_INVALID_ARGUMENT, "%s: it needs the global step", o->name));
    o->step = global_step;
    o->h[0] = l1;
    o->h[1] = l2;
    o->h[2] = initial_accumulator;
    return o;
}

void trn_optimizer_use_locking(trn_optimizer *opt, bool yes)
{
    opt->locking = yes;
    if (opt->inner)
        trn_optimizer_use_locking(opt->inner, yes);
}

const char *trn_optimizer_name(const trn_optimizer *opt) { return opt->name; }

/* ---- slots ---------------------------------------------------------------------------------------------------------- */

trn_variable *trn_optimizer_slot(const trn_optimizer *opt, const trn_variable *var, const char *slot)
{
    if (opt->inner)
        return trn_optimizer_slot(opt->inner, var, slot);
    for (int i = 0; i < opt->n_slots; i++)
        if (opt->slots[i].of == var && strcasecmp(opt->slots[i].slot, slot) == 0)
            return opt->slots[i].var;
    return NULL;
}

const char *const *trn_optimizer_slot_names(int *n, const trn_optimizer *opt)
{
    if (opt->inner)
        return trn_optimizer_slot_names(n, opt->inner);
    const char **names = trn_builder_alloc(opt->b, TRN_OPT_SLOTS * sizeof *names);
    *n = 0;
    for (int i = 0; i < TRN_OPT_SLOTS && opt->kind->slots[i].name; i++) {
        int at = (*n)++;
        for (; at > 0 && strcmp(names[at - 1], opt->kind->slots[i].name) > 0; at--)
            names[at] = names[at - 1];
        names[at] = opt->kind->slots[i].name;
    }
    return names;
}

trn_variable *const *trn_optimizer_variables(int *n, const trn_optimizer *opt)
{
    if (opt->inner)
        return trn_optimizer_variables(n, opt->inner);
    *n = opt->n_vars;
    return opt->vars;
}

static void keep(trn_optimizer *o, trn_variable *v) { o->vars[o->n_vars++] = v; }

/* The first of "w/Adam", "w/Adam_1", … that no variable has. */
static const char *slot_name(trn_optimizer *o, const trn_variable *v)
{
    const char *base = trn_builder_printf(o->b, "%s/%s", v->name, o->name), *name = base;
    for (int i = 1; trn_variable_find(o->b, name); i++)
        name = trn_builder_printf(o->b, "%s_%d", base, i);
    return name;
}

static void make_slot(trn_optimizer *o, trn_variable *v, int i)
{
    trn_builder *b = o->b;
    int initial = o->kind->slots[i].initial;
    double value = initial == -1 ? 0 : initial == -2 ? 1 : (double)o->h[initial];
    const char *name = slot_name(o, v);
    trn_variable *s = NULL;
    TRN_SCOPE(trn_name_scope_again(b, ""), b) /* a slot's name is its variable's, whatever scope we are in */
    TRN_SCOPE(trn_control_scope(b, NULL, 0), b)
    TRN_SCOPE(trn_colocate_scope(b, v->handle), b)
    {
        trn_out init;
        TRN_SCOPE(trn_name_scope_again(b, trn_builder_printf(b, "%s/Initializer", name)), b)
        init = trn_fill(b, v->dtype, v->shape, value);
        s = trn_variable_new(b, name, init, TRN_SLOT | TRN_NOT_TRAINABLE | (trn_optim__is_ref(b, v) ? TRN_REF_VARIABLE : 0));
    }
    if (!trn_builder_ok(b))
        return;
    if (v->full_name) { /* a piece: its slots are pieces too */
        s->full_name = trn_builder_printf(b, "%s%s", v->full_name, s->name + strlen(v->name));
        s->full_shape = v->full_shape;
        memcpy(s->offset, v->offset, sizeof s->offset);
    }
    o->slots[o->n_slots++] = (trn_optim_slot){o->kind->slots[i].name, v, s};
    keep(o, s);
}

/* One for all variables, on the ps of the one whose name is first: the same for every worker. */
static trn_variable *make_power(trn_optimizer *o, const char *name, float beta, const trn_variable *first)
{
    trn_builder *b = o->b;
    trn_variable *v = NULL;
    TRN_SCOPE(trn_control_scope(b, NULL, 0), b)
    TRN_SCOPE(trn_colocate_scope(b, first->handle), b)
    {
        trn_out init = trn_const_f32(trn_named(b, trn_builder_printf(b, "%s/initial_value", name)), beta);
        v = trn_variable_new(b, name, init, TRN_SLOT | TRN_NOT_TRAINABLE | (trn_optim__is_ref(b, first) ? TRN_REF_VARIABLE : 0));
    }
    if (trn_builder_ok(b))
        keep(o, v);
    return v;
}

static void make_slots(trn_optimizer *o, const trn_grad_var *gv, int n)
{
    int per = 0;
    while (per < TRN_OPT_SLOTS && o->kind->slots[per].name)
        per++;
    trn_optim_slot *slots = trn_builder_alloc(o->b, (size_t)(o->n_slots + n * per + 1) * sizeof *slots);
    trn_variable **vars = trn_builder_alloc(o->b, (size_t)(o->n_vars + n * per + 2) * sizeof *vars);
    if (o->n_slots)
        memcpy(slots, o->slots, (size_t)o->n_slots * sizeof *slots);
    if (o->n_vars)
        memcpy(vars, o->vars, (size_t)o->n_vars * sizeof *vars);
    o->slots = slots;
    o->vars = vars;
    if (o->kind == &kinds[ADAM] && !o->power[0]) {
        const trn_variable *first = NULL;
        for (int i = 0; i < n; i++)
            if (trn_grad_is(gv[i].grad) && (!first || strcmp(gv[i].var->name, first->name) < 0))
                first = gv[i].var;
        o->power[0] = make_power(o, "beta1_power", o->h[0], first);
        o->power[1] = make_power(o, "beta2_power", o->h[1], first);
    }
    for (int i = 0; i < n; i++)
        for (int k = 0; k < per && trn_grad_is(gv[i].grad); k++)
            if (!trn_optimizer_slot(o, gv[i].var, o->kind->slots[k].name))
                make_slot(o, gv[i].var, k);
}

/* ---- numbers, where they are used ----------------------------------------------------------------------------------- */

trn_out trn_optim__cast(trn_builder *b, trn_out x, trn_dtype to)
{
    if (trn_out_dtype(b, x) == to || !trn_builder_ok(b))
        return x;
    return trn_node_add(b, "Cast", &x, 1, (trn_attr[]){trn_at_type("DstT", to)}, 1);
}

/* A constant on the variable's device, one per device. */
static trn_out number(trn_optimizer *o, const trn_variable *v, const char *name, double value)
{
    if (!trn_builder_ok(o->b))
        return TRN_NONE;
    const char *dev = trn_out_op(o->b, v->handle)->device;
    dev = dev ? dev : "";
    for (int i = 0; i < o->n_consts; i++) {
        const trn_optim_const *c = &o->consts[i];
        if (c->dtype == v->dtype && c->value == value && strcmp(c->device, dev) == 0)
            return c->out;
    }
    trn_out out;
    TRN_SCOPE(trn_control_scope(o->b, NULL, 0), o->b)
    out = trn_const_num(trn_named(o->b, name), v->dtype, value);
    if (o->n_consts == o->cap_consts) {
        int cap = TRN_MAX(8, 2 * o->cap_consts);
        trn_optim_const *more = trn_builder_alloc(o->b, (size_t)cap * sizeof *more);
        if (o->n_consts)
            memcpy(more, o->consts, (size_t)o->n_consts * sizeof *more);
        o->consts = more;
        o->cap_consts = cap;
    }
    o->consts[o->n_consts++] = (trn_optim_const){trn_builder_strdup(o->b, dev), v->dtype, value, out};
    return out;
}

static bool const_lr(const trn_optimizer *o, float *out)
{
    const trn_tensor *t = trn_out_const(o->b, o->lr);
    if (!t || trn_tensor_dtype(t) != TRN_FLOAT || trn_tensor_count(t) != 1)
        return false;
    memcpy(out, trn_tensor_data(t), sizeof *out);
    return true;
}

trn_out trn_optim__lr(trn_optimizer *o, const trn_variable *v)
{
    float lr;
    return const_lr(o, &lr) ? number(o, v, "learning_rate", (double)lr) : trn_optim__cast(o->b, o->lr, v->dtype);
}

trn_out trn_optim__hyper(trn_optimizer *o, const trn_variable *v, int i) { return number(o, v, o->kind->hyper[i], (double)o->h[i]); }

/* l2 + beta / (2 max(lr, tiny)): beta has no input of its own in the op. */
static trn_out ftrl_l2(trn_optimizer *o, const trn_variable *v)
{
    static const char name[] = "adjusted_l2_regularization_strength";
    trn_builder *b = o->b;
    float lr;
    if (o->ftrl_beta == 0)
        return number(o, v, name, (double)o->h[1]);
    if (const_lr(o, &lr)) {
        float adj = o->ftrl_beta / (2.0f * fmaxf(lr, 1e-36f));
        return number(o, v, name, (double)(o->h[1] + adj));
    }
    trn_out most = TRN_OP(b, NULL, "Maximum", trn_optim__lr(o, v), trn_const_num(b, v->dtype, (double)1e-36f));
    trn_out half = TRN_OP(b, NULL, "Mul", most, trn_const_num(b, v->dtype, 2));
    trn_out adj = TRN_OP(b, NULL, "RealDiv", trn_const_num(b, v->dtype, (double)o->ftrl_beta), half);
    return TRN_OP(b, name, "AddV2", trn_const_num(b, v->dtype, (double)o->h[1]), adj);
}

/* ---- applying ------------------------------------------------------------------------------------------------------- */

/* A ref variable is changed in place, under whoever still reads it: its update waits for all that read it on the way to any of the gradients. (Of
 * a resource a reader has its own value.) */
typedef struct readers {
    bool *on_way; /* by node: some gradient needs it */
    int n;
} readers;

static void mark(readers *r, trn_builder *b, const trn_grad_var *gv, int n)
{
    r->n = trn_builder_node_count(b);
    r->on_way = trn_xalloc((size_t)r->n + 1);
    int *todo = trn_xalloc((size_t)r->n * sizeof *todo + 1), n_todo = 0;
    for (int i = 0; i < n; i++) {
        const trn_out from[] = {gv[i].grad.values, gv[i].grad.indices};
        for (int k = 0; k < 2; k++)
            if (trn_grad_is(gv[i].grad) && trn_out_is(from[k]) && !r->on_way[from[k].node]) {
                r->on_way[from[k].node] = true;
                todo[n_todo++] = from[k].node;
            }
    }
    while (n_todo) {
        const trn_gnode *nd = b->g->node[todo[--n_todo]];
        for (int k = 0; k < nd->n.n_in; k++)
            if (!r->on_way[nd->in[k].node]) {
                r->on_way[nd->in[k].node] = true;
                todo[n_todo++] = nd->in[k].node;
            }
    }
    free(todo);
}

/* Opens a control scope. */
static void after_readers(const readers *r, trn_builder *b, const trn_variable *v)
{
    trn_out *wait = trn_xalloc((size_t)(r->n + 1) * sizeof *wait);
    int n = 0;
    for (int i = 0; i < r->n; i++) {
        const trn_gnode *nd = b->g->node[i];
        bool reads = false;
        for (int k = 0; r->on_way[i] && k < nd->n.n_in && !reads; k++)
            reads = nd->in[k].node == v->value.node || (nd->in[k].node == v->handle.node && i != v->value.node);
        if (reads && strcmp(nd->n.op, "Enter") && strcmp(nd->n.op, "RefEnter")) /* those are in a loop's frame: nobody outside can wait for them */
            wait[n++] = (trn_out){i, -1};
    }
    trn_control_scope(b, wait, n);
    free(wait);
}

static trn_out update(trn_optimizer *o, trn_variable *v, trn_grad g)
{
    trn_builder *b = o->b;
    bool sparse = trn_grad_is_sparse(g), ref = trn_optim__is_ref(b, v);
    const trn_optim_kind *kind = o->kind;
    if (sparse && kind == &kinds[SGD])
        return trn_optim__sgd_sparse(o, v, g);
    if (sparse)
        g = trn_optim__unique(b, g);
    trn_variable *slot[TRN_OPT_SLOTS] = {NULL};
    for (int i = 0; i < TRN_OPT_SLOTS && kind->slots[i].name; i++)
        if (!(slot[i] = trn_optimizer_slot(o, v, kind->slots[i].name)))
            return TRN_NONE; /* an error has been latched */
    if (sparse && kind == &kinds[ADAM])
        return trn_optim__adam_sparse(o, v, slot[0], slot[1], g);
    trn_out in[16];
    int n = 0;
    for (const char *c = kind->inputs; *c; c++)
        switch (*c) {
        case 'v': in[n++] = v->handle; break;
        case '0': case '1': case '2': in[n++] = slot[*c - '0']->handle; break;
        case 'l': in[n++] = trn_optim__lr(o, v); break;
        case 'g':
            in[n++] = g.values;
            if (sparse)
                in[n++] = g.indices;
            break;
        case 'p': case 'q': in[n++] = trn_optim__cast(b, o->power[*c - 'p']->value, v->dtype); break;
        case 's': in[n++] = o->step_plus_one; break;
        case 'L': in[n++] = ftrl_l2(o, v); break;
        default: in[n++] = trn_optim__hyper(o, v, *c - 'a'); break;
        }
    trn_attr attrs[2] = {trn_at_bool("use_locking", o->locking)};
    int n_attrs = 1;
    if (kind == &kinds[MOMENTUM])
        attrs[n_attrs++] = trn_at_bool("use_nesterov", o->nesterov);
    const char *op = trn_builder_printf(b, "%s%sApply%s", ref ? "" : "Resource", sparse ? "Sparse" : "", kind->op);
    return trn_out_node(trn_node_add(b, op, in, n, attrs, n_attrs));
}

/* Adam's powers go on when every update has used them. */
static int finish_adam(trn_optimizer *o, trn_out *out, const trn_out *updates, int n)
{
    trn_builder *b = o->b;
    TRN_SCOPE(trn_control_scope(b, updates, n), b)
    TRN_SCOPE(trn_colocate_scope(b, o->power[0]->handle), b)
    for (int i = 0; i < 2; i++) {
        trn_out next = TRN_OP(b, "mul", "Mul", trn_variable_read(b, o->power[i]), number(o, o->power[0], o->kind->hyper[i], (double)o->h[i]));
        bool ref = trn_optim__is_ref(b, o->power[i]);
        trn_attr lock = trn_at_bool("use_locking", o->locking);
        out[i] = trn_out_node(trn_node_add(trn_named(b, "Assign"), ref ? "Assign" : "AssignVariableOp", TRN_OUTS(o->power[i]->handle, next), &lock, ref));
    }
    return 2;
}

static bool check(trn_optimizer *o, const trn_grad_var *gv, int n)
{
    trn_builder *b = o->b;
    if (!trn_builder_ok(b))
        return false;
    int with = 0;
    for (int i = 0; i < n; i++) {
        const trn_variable *v = gv[i].var;
        if (!v) {
            trn_builder_fail(b, trn_errorf(TRN_INVALID_ARGUMENT, "%s: entry %d has no variable", o->name, i));
            return false;
        }
        if (!trn_grad_is(gv[i].grad))
            continue;
        with++;
        trn_dtype t = trn_out_dtype(b, gv[i].grad.values);
        const trn_shape *s = trn_out_shape(b, gv[i].grad.values);
        char sv[TRN_SHAPE_TEXT], sg[TRN_SHAPE_TEXT];
        bool sparse = trn_grad_is_sparse(gv[i].grad);
        if (t != v->dtype || (!sparse && !trn_shape_compatible(s, &v->shape)) || (sparse && v->shape.rank < 1)) {
            trn_builder_fail(b, trn_errorf(TRN_INVALID_ARGUMENT, "%s: the gradient of '%s' is %s %s, the variable %s %s", o->name, v->name, trn_dtype_name(t),
                                           trn_shape_text(sg, s), trn_dtype_name(v->dtype), trn_shape_text(sv, &v->shape)));
            return false;
        }
    }
    if (!with)
        trn_builder_fail(b, trn_errorf(TRN_INVALID_ARGUMENT, "%s: none of the %d variables has a gradient: does the loss depend on them?", o->name, n));
    return with > 0;
}

trn_out trn_apply_gradients(trn_optimizer *o, const trn_grad_var *gv, int n, trn_variable *global_step)
{
    if (!check(o, gv, n))
        return TRN_NONE;
    if (o->inner)
        return trn_sync__apply(o, gv, n, global_step);
    trn_builder *b = o->b;
    make_slots(o, gv, n);
    if (!trn_builder_ok(b))
        return TRN_NONE;
    trn_out *ops = trn_builder_alloc(b, (size_t)(n + 2) * sizeof *ops), done = TRN_NONE;
    int n_ops = 0;
    TRN_SCOPE(trn_name_scope(b, o->name), b)
    {
        const char *whole = trn_scope_name(b); /* the op is called like its scope */
        if (o->step)
            o->step_plus_one = TRN_OP(b, "add", "AddV2", trn_optim__cast(b, o->step->value, TRN_INT64), trn_const_i64(b, 1));
        readers r = {0};
        for (int i = 0; i < n; i++) {
            if (!trn_grad_is(gv[i].grad))
                continue;
            bool ref = trn_optim__is_ref(b, gv[i].var);
            if (ref && !r.n)
                mark(&r, b, gv, n);
            if (ref)
                after_readers(&r, b, gv[i].var);
            TRN_SCOPE(trn_name_scope(b, trn_builder_printf(b, "update_%s", gv[i].var->name)), b)
            TRN_SCOPE(trn_colocate_scope(b, gv[i].var->handle), b)
            ops[n_ops++] = update(o, gv[i].var, gv[i].grad);
            if (ref)
                trn_end(b);
        }
        free(r.on_way);
        if (trn_builder_ok(b) && o->power[0])
            n_ops += finish_adam(o, ops + n_ops, ops, n_ops);
        if (!trn_builder_ok(b))
            ;
        else {
            trn_out all = trn_group(trn_named(b, "update"), ops, n_ops);
            TRN_SCOPE(trn_control_scope(b, &all, 1), b)
            if (!global_step)
                done = trn_builder__add_in_scope(b, whole, "NoOp", NULL, 0, NULL, 0);
            else
                TRN_SCOPE(trn_colocate_scope(b, global_step->handle), b)
                {
                    bool ref = trn_optim__is_ref(b, global_step);
                    trn_out one = trn_const_num(trn_named(b, "value"), global_step->dtype, 1);
                    done = trn_out_node(trn_builder__add_in_scope(b, whole, ref ? "AssignAdd" : "AssignAddVariableOp", TRN_OUTS(global_step->handle, one), NULL, 0));
                }
        }
    }
    if (trn_builder_ok(b))
        trn_collect(b, "train_op", done);
    return done;
}

trn_grad_var *trn_compute_gradients(int *n, trn_optimizer *opt, trn_out loss, trn_variable *const *vars, int n_vars)
{
    trn_builder *b = opt->b;
    *n = 0;
    if (!vars && trn_builder_ok(b))
        vars = trn_variables(&n_vars, b, TRN_VARS_TRAINABLE);
    if (!trn_builder_ok(b))
        return NULL;
    if (n_vars < 1) {
        trn_builder_fail(b, trn_errorf(TRN_INVALID_ARGUMENT, "%s: there is no variable to train", opt->name));
        return NULL;
    }
    trn_out *xs = trn_builder_alloc(b, (size_t)n_vars * sizeof *xs);
    trn_grad *gs = trn_builder_alloc(b, (size_t)n_vars * sizeof *gs);
    trn_grad_var *gv = trn_builder_alloc(b, (size_t)n_vars * sizeof *gv);
    for (int i = 0; i < n_vars; i++) {
        xs[i] = vars[i]->handle;
        trn_dtype t = vars[i]->dtype;
        if (t != TRN_FLOAT && t != TRN_DOUBLE && t != TRN_HALF && t != TRN_BFLOAT16 && t != TRN_COMPLEX64 && t != TRN_COMPLEX128) {
            trn_builder_fail(b, trn_errorf(TRN_INVALID_ARGUMENT, "%s: '%s' is %s, which cannot be trained", opt->name, vars[i]->name, trn_dtype_name(t)));
            return NULL;
        }
    }
    trn_gradients(gs, b, &loss, 1, xs, n_vars, NULL);
    if (!trn_builder_ok(b))
        return NULL;
    for (int i = 0; i < n_vars; i++)
        gv[i] = (trn_grad_var){gs[i], vars[i]};
    *n = n_vars;
    return gv;
}

trn_out trn_minimize(trn_optimizer *opt, trn_out loss, trn_variable *global_step)
{
    int n;
    trn_grad_var *gv = trn_compute_gradients(&n, opt, loss, NULL, 0);
    return gv ? trn_apply_gradients(opt, gv, n, global_step) : TRN_NONE;
}
