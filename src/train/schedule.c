/* Learning rates as functions of the global step, in float as TensorFlow's are. All are a handful of scalar ops on the worker. */
#include "train/optim_int.h"

#include <math.h>

#include <trainera/nn.h>

#include "base/base.h"

static trn_out f32(trn_builder *b, double v) { return trn_const_f32(b, (float)v); }
static trn_out mul(trn_builder *b, trn_out x, trn_out y) { return TRN_OP(b, "mul", "Mul", x, y); }
static trn_out divide(trn_builder *b, trn_out x, trn_out y) { return TRN_OP(b, "truediv", "RealDiv", x, y); }
static trn_out add(trn_builder *b, trn_out x, trn_out y) { return TRN_OP(b, "add", "AddV2", x, y); }
static trn_out sub(trn_builder *b, trn_out x, trn_out y) { return TRN_OP(b, "sub", "Sub", x, y); }

/* Opens the schedule's scope and gives the step as a float; NONE (with the scope open all the same) after an error. */
static trn_out begin(trn_builder *b, const char *name, trn_variable *global_step, double decay_steps)
{
    trn_name_scope(b, trn_take_name(b, name));
    if (!trn_builder_ok(b))
        return TRN_NONE;
    if (!global_step)
        return trn_builder_fail(b, trn_errorf(TRN_INVALID_ARGUMENT, "%s: it needs the global step", name));
    if (!(decay_steps > 0))
        return trn_builder_fail(b, trn_errorf(TRN_INVALID_ARGUMENT, "%s: the number of steps must be positive, not %g", name, decay_steps));
    return trn_optim__cast(b, global_step->value, TRN_FLOAT);
}

static trn_out end(trn_builder *b, trn_out lr)
{
    trn_end(b);
    return lr;
}

static trn_out periods(trn_builder *b, trn_out step, double decay_steps, bool staircase)
{
    trn_out p = divide(b, step, f32(b, decay_steps));
    return staircase ? TRN_OP(b, NULL, "Floor", p) : p;
}

/* min(step, decay_steps) / decay_steps */
static trn_out done_part(trn_builder *b, trn_out step, double decay_steps)
{
    return divide(b, TRN_OP(b, NULL, "Minimum", step, f32(b, decay_steps)), f32(b, decay_steps));
}

/* (1 + cos(pi x)) / 2 */
static trn_out half_wave(trn_builder *b, trn_out x)
{
    return mul(b, f32(b, 0.5), add(b, f32(b, 1), TRN_OP(b, NULL, "Cos", mul(b, f32(b, M_PI), x))));
}

trn_out trn_exponential_decay(trn_builder *b, float lr, trn_variable *global_step, double decay_steps, float rate, bool staircase)
{
    trn_out step = begin(b, "ExponentialDecay", global_step, decay_steps);
    trn_out p = periods(b, step, decay_steps, staircase);
    return end(b, mul(b, trn_const_f32(b, lr), TRN_OP(b, NULL, "Pow", trn_const_f32(b, rate), p)));
}

trn_out trn_natural_exp_decay(trn_builder *b, float lr, trn_variable *global_step, double decay_steps, float rate, bool staircase)
{
    trn_out step = begin(b, "NaturalExpDecay", global_step, decay_steps);
    trn_out p = periods(b, step, decay_steps, staircase);
    return end(b, mul(b, trn_const_f32(b, lr), TRN_OP(b, NULL, "Exp", mul(b, trn_const_f32(b, -rate), p))));
}

trn_out trn_inverse_time_decay(trn_builder *b, float lr, trn_variable *global_step, double decay_steps, float rate, bool staircase)
{
    trn_out step = begin(b, "InverseTimeDecay", global_step, decay_steps);
    trn_out p = periods(b, step, decay_steps, staircase);
    return end(b, divide(b, trn_const_f32(b, lr), add(b, f32(b, 1), mul(b, trn_const_f32(b, rate), p))));
}

trn_out trn_piecewise_constant(trn_builder *b, trn_variable *global_step, const int64_t *boundaries, const float *values, int n)
{
    trn_name_scope(b, trn_take_name(b, "PiecewiseConstant"));
    bool ok = trn_builder_ok(b) && global_step && n >= 1;
    for (int i = 1; ok && i < n; i++)
        ok = boundaries[i - 1] < boundaries[i];
    if (!ok) {
        if (trn_builder_ok(b))
            trn_builder_fail(b, trn_errorf(TRN_INVALID_ARGUMENT, "PiecewiseConstant: it needs the global step and rising boundaries"));
        return end(b, TRN_NONE);
    }
    /* As many values are behind us as boundaries are below the step. */
    trn_out step = trn_optim__cast(b, global_step->value, TRN_INT64);
    trn_out at = trn_const(trn_named(b, "boundaries"), trn_tensor_from(TRN_INT64, 1, (int64_t[]){n}, boundaries));
    trn_out of = trn_const(trn_named(b, "values"), trn_tensor_from(TRN_FLOAT, 1, (int64_t[]){n + 1}, values));
    trn_out past = trn_optim__cast(b, TRN_OP(b, NULL, "Greater", step, at), TRN_INT32);
    trn_out which = TRN_OP(b, NULL, "Sum", past, trn_const_i32s(b, (int32_t[]){0}, 1));
    return end(b, TRN_OP(b, NULL, "GatherV2", of, which, trn_const_i32(b, 0)));
}

trn_out trn_polynomial_decay(trn_builder *b, float lr, trn_variable *global_step, double decay_steps, float end_lr, float power, bool cycle)
{
    trn_out step = begin(b, "PolynomialDecay", global_step, decay_steps), p;
    if (cycle) {
        trn_out rounds = TRN_OP(b, NULL, "Ceil", divide(b, step, f32(b, decay_steps)));
        rounds = TRN_OP(b, NULL, "SelectV2", TRN_OP(b, NULL, "Equal", step, f32(b, 0)), f32(b, 1), rounds);
        p = divide(b, step, mul(b, f32(b, decay_steps), rounds));
    } else
        p = done_part(b, step, decay_steps);
    trn_out left = TRN_OP(b, NULL, "Pow", sub(b, f32(b, 1), p), trn_const_f32(b, power));
    return end(b, add(b, mul(b, trn_const_f32(b, lr - end_lr), left), trn_const_f32(b, end_lr)));
}

trn_out trn_cosine_decay(trn_builder *b, float lr, trn_variable *global_step, double decay_steps, float alpha)
{
    trn_out step = begin(b, "CosineDecay", global_step, decay_steps);
    trn_out wave = half_wave(b, done_part(b, step, decay_steps));
    return end(b, mul(b, trn_const_f32(b, lr), add(b, mul(b, trn_const_f32(b, 1 - alpha), wave), trn_const_f32(b, alpha))));
}

trn_out trn_cosine_decay_restarts(trn_builder *b, float lr, trn_variable *global_step, double first_decay_steps, float t_mul, float m_mul, float alpha)
{
    trn_out step = begin(b, "SGDRDecay", global_step, first_decay_steps);
    if (trn_builder_ok(b) && !(t_mul >= 1))
        trn_builder_fail(b, trn_errorf(TRN_INVALID_ARGUMENT, "SGDRDecay: t_mul must be 1 or more, not %g", (double)t_mul));
    trn_out done = divide(b, step, f32(b, first_decay_steps)), round;
    if (t_mul == 1) {
        round = TRN_OP(b, NULL, "Floor", done);
        done = sub(b, done, round);
    } else {
        trn_out t = trn_const_f32(b, t_mul), one = f32(b, 1);
        trn_out log = TRN_OP(b, NULL, "Log", sub(b, one, mul(b, done, trn_const_f32(b, 1 - t_mul))));
        round = TRN_OP(b, NULL, "Floor", divide(b, log, TRN_OP(b, NULL, "Log", t)));
        trn_out len = TRN_OP(b, NULL, "Pow", t, round);
        trn_out before = divide(b, sub(b, one, len), trn_const_f32(b, 1 - t_mul));
        done = divide(b, sub(b, done, before), len);
    }
    trn_out height = TRN_OP(b, NULL, "Pow", trn_const_f32(b, m_mul), round);
    trn_out wave = mul(b, height, half_wave(b, done));
    return end(b, mul(b, trn_const_f32(b, lr), add(b, mul(b, trn_const_f32(b, 1 - alpha), wave), trn_const_f32(b, alpha))));
}

/* lr · ((alpha + line) · wave + beta), `done` being the part of the steps that is over */
static trn_out linear_cosine(trn_builder *b, float lr, trn_out line, trn_out done, float num_periods, float alpha, float beta)
{
    trn_out wave = half_wave(b, mul(b, trn_const_f32(b, 2 * num_periods), done));
    return mul(b, trn_const_f32(b, lr), add(b, mul(b, add(b, trn_const_f32(b, alpha), line), wave), trn_const_f32(b, beta)));
}

trn_out trn_linear_cosine_decay(trn_builder *b, float lr, trn_variable *global_step, double decay_steps, float num_periods, float alpha, float beta)
{
    trn_out step = begin(b, "LinearCosineDecay", global_step, decay_steps);
    trn_out done = done_part(b, step, decay_steps);
    return end(b, linear_cosine(b, lr, sub(b, f32(b, 1), done), done, num_periods, alpha, beta));
}

trn_out trn_noisy_linear_cosine_decay(trn_builder *b, float lr, trn_variable *global_step, double decay_steps, float initial_variance, float variance_decay,
                                      float num_periods, float alpha, float beta)
{
    trn_out step = begin(b, "NoisyLinearCosineDecay", global_step, decay_steps);
    trn_out steps = f32(b, decay_steps), at = TRN_OP(b, NULL, "Minimum", step, steps);
    trn_out variance = divide(b, trn_const_f32(b, initial_variance), TRN_OP(b, NULL, "Pow", add(b, f32(b, 1), at), trn_const_f32(b, variance_decay)));
    trn_out noise = mul(b, trn_random_normal(b, TRN_FLOAT, trn_shape_scalar(), 0, 1, (trn_maybe_int){0}), TRN_OP(b, NULL, "Sqrt", variance));
    trn_out line = add(b, divide(b, sub(b, steps, at), steps), noise);
    return end(b, linear_cosine(b, lr, line, divide(b, at, steps), num_periods, alpha, beta));
}

trn_out trn_warm_up(trn_builder *b, trn_out lr, trn_variable *global_step, double steps)
{
    trn_out step = begin(b, "WarmUp", global_step, steps);
    trn_out part = divide(b, add(b, step, f32(b, 1)), f32(b, steps));
    part = TRN_OP(b, NULL, "Minimum", part, f32(b, 1));
    return end(b, mul(b, lr, trn_optim__cast(b, part, trn_out_dtype(b, lr))));
}
