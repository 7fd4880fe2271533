/* GeneratorDataset: three functions of the graph make a state, elements from it, and an end of it. (tf.data's from_generator is made of it, with Python functions inside,
 * which need the client's process: their op, PyFunc, is what is missing here then.) */
#include <stdlib.h>

#include "ops/data.h"

typedef struct part {
    trn_func *f;
    int n_cap;
    trn_tensor **cap;
} part;

enum { G_INIT, G_NEXT, G_LAST, G_PARTS };

typedef struct generator {
    trn_ds d;
    part part[G_PARTS];
} generator;

typedef struct generator_it {
    trn_it it;
    trn_func *f[G_PARTS]; /* with states of this walk */
    trn_elem *state;      /* NULL: not made yet, or ended */
    bool over;
    int calling;
} generator_it;

static void generator_free(trn_ds *d)
{
    generator *g = (generator *)d;
    for (int p = 0; p < G_PARTS; p++) {
        for (int i = 0; i < g->part[p].n_cap; i++)
            trn_tensor_unref(g->part[p].cap[i]);
        free(g->part[p].cap);
        trn_func_unref(g->part[p].f);
    }
}

static trn_err generator_start(trn_it *it_)
{
    generator_it *it = (generator_it *)it_;
    const generator *g = (generator *)it_->d;
    for (int p = 0; p < G_PARTS; p++)
        TRN_TRY(trn_func_fork(&it->f[p], g->part[p].f));
    return TRN_OK;
}

/* State and captured inputs: the arguments of one of the functions. */
static trn_elem *arguments(const generator_it *it, int p)
{
    const part *q = &((const generator *)it->it.d)->part[p];
    int n = it->state ? it->state->n : 0;
    trn_elem *e = trn_elem_new(n + q->n_cap);
    for (int i = 0; i < e->n; i++)
        e->t[i] = trn_tensor_ref(i < n ? it->state->t[i] : q->cap[i - n]);
    return e;
}

static trn_ds_do call(generator_it *it, trn_act *a, int p)
{
    trn_elem_free(a->elem);
    a->elem = arguments(it, p);
    a->fn = it->f[p];
    it->calling = p;
    return TRN_DS_CALL;
}

static trn_ds_do generator_next(trn_it *it_, trn_act *a, trn_ds_why why)
{
    generator_it *it = (generator_it *)it_;
    if (why == TRN_DS_START)
        return it->over ? TRN_DS_END : call(it, a, it->state ? G_NEXT : G_INIT);
    if (why == TRN_DS_ERROR) {
        if (it->calling != G_NEXT || trn_err_code(a->err) != TRN_OUT_OF_RANGE)
            return TRN_DS_FAIL;
        trn_err_free(a->err);
        a->err = TRN_OK;
        return call(it, a, G_LAST);
    }
    if (why != TRN_DS_CALLED)
        return TRN_DS_END;
    switch (it->calling) {
    case G_INIT:
        it->state = trn_act_take(a);
        return call(it, a, G_NEXT);
    case G_NEXT:
        return TRN_DS_GIVE;
    default:
        it->over = true;
        trn_elem_free(it->state);
        it->state = NULL;
        return TRN_DS_END;
    }
}

/* A walk that nobody finishes ends its state all the same, behind the scenes. */
typedef struct last_call {
    trn_cancel *cancel;
    trn_func *f;
    trn_elem *args;
} last_call;

static void last_done(void *arg, trn_err err, trn_tensor **rets, int n_rets)
{
    last_call *c = arg;
    if (err)
        TRN_WARN("data", "a generator's last function failed: %s", trn_err_msg(err));
    trn_err_free(err);
    trn_elem_free(c->args);
    trn_func_unref(c->f);
    trn_cancel_unref(c->cancel);
    free(c);
}

static void generator_stop(trn_it *it_)
{
    generator_it *it = (generator_it *)it_;
    if (it->state && !it->over) {
        last_call *c = trn_xalloc(sizeof *c);
        *c = (last_call){.cancel = trn_cancel_new(), .f = trn_func_ref_add(it->f[G_LAST]), .args = arguments(it, G_LAST)};
        trn_func_run(c->f, c->cancel, c->args->t, c->args->n, last_done, c);
    }
    trn_elem_free(it->state);
    for (int p = 0; p < G_PARTS; p++)
        trn_func_unref(it->f[p]);
}

static const trn_ds_op generator_op = {"GeneratorDataset", sizeof(generator_it), generator_free, generator_start, generator_next, .stop = generator_stop,
                                       .catches = true};

static trn_err read_part(part *p, trn_kctx *k, const char *attr, const char *arg)
{
    TRN_TRY(trn_k_func(&p->f, k, trn_attr_func(k->node, attr)));
    int n, first = trn_in_arg(k, arg, &n);
    p->cap = trn_xalloc(((size_t)n + 1) * sizeof *p->cap);
    for (int i = 0; i < n; i++)
        p->cap[p->n_cap++] = trn_tensor_ref(trn_in(k, first + i));
    return TRN_OK;
}

static trn_err generator_dataset(trn_kctx *k)
{
    generator *g;
    TRN_TRY(trn_data_source(&g, k, &generator_op, sizeof *g));
    trn_err err = read_part(&g->part[G_INIT], k, "init_func", "init_func_other_args");
    if (!err)
        err = read_part(&g->part[G_NEXT], k, "next_func", "next_func_other_args");
    if (!err)
        err = read_part(&g->part[G_LAST], k, "finalize_func", "finalize_func_other_args");
    return trn_data_out(k, g, err);
}

const trn_op trn_ops_data_generator[] = {
    {"GeneratorDataset",
     "init_func_other_args:Tinit_func_args, next_func_other_args:Tnext_func_args, finalize_func_other_args:Tfinalize_func_args -> handle:var; "
     "init_func:func, next_func:func, finalize_func:func, Tinit_func_args:list(type)>=0, Tnext_func_args:list(type)>=0, "
     "Tfinalize_func_args:list(type)>=0, " DS_OUT DS_META,
     trn_sh_dataset, generator_dataset, DS_FLAGS | TRN_OP_STATEFUL},
    {0},
};
