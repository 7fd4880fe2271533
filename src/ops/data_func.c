/* Datasets that call functions of the graph's library, element by element, in order. Those that work ahead are in data_ahead.c. */
#include <sched.h>
#include <stdlib.h>

#include "ops/data.h"

typedef struct mapped {
    trn_ds d;
    bool preserve;     /* an OUT_OF_RANGE of the function is an error, not the end */
    int64_t cycle, block;
    int64_t calls, buffer; /* parallel: slots that are opened ahead, elements each keeps ready */
    trn_elem *state;   /* Scan: the first one */
} mapped;

static void mapped_free(trn_ds *d) { trn_elem_free(((mapped *)d)->state); }

static trn_err mapped_on(mapped **out, trn_kctx *k, const trn_ds_op *op, const char *attr)
{
    mapped *m;
    TRN_TRY(trn_data_on(&m, k, op, sizeof *m));
    trn_data_elem_attrs(&m->d, k->node);
    trn_err err = trn_data_func(&m->d, k, attr, "other_arguments");
    if (err) {
        trn_ds_unref(&m->d);
        return err;
    }
    m->preserve = trn_attr_bool(k->node, "preserve_cardinality");
    *out = m;
    return TRN_OK;
}

typedef struct mapped_it {
    trn_it it;
    bool calling, over;
    trn_elem *kept;
} mapped_it;

static void mapped_stop(trn_it *it) { trn_elem_free(((mapped_it *)it)->kept); }

/* ---- Map ---------------------------------------------------------------------------------------------------------- */

static trn_ds_do map_next(trn_it *it_, trn_act *a, trn_ds_why why)
{
    mapped_it *it = (mapped_it *)it_;
    bool called = it->calling;
    it->calling = false;
    switch (why) {
    case TRN_DS_START:
        return trn_act_pull_on(a, it_->in);
    case TRN_DS_GOT:
        it->calling = true;
        return TRN_DS_CALL;
    case TRN_DS_CALLED:
        return TRN_DS_GIVE;
    case TRN_DS_ERROR:
        if (!called || trn_err_code(a->err) != TRN_OUT_OF_RANGE)
            return TRN_DS_FAIL;
        trn_err err = a->err;
        a->err = TRN_OK;
        if (((mapped *)it_->d)->preserve)
            a->err = TRN_BAD("Function invocation produced OutOfRangeError: %s", trn_err_msg(err));
        trn_err_free(err);
        return a->err ? TRN_DS_FAIL : TRN_DS_END;
    default:
        return TRN_DS_END;
    }
}

static int64_t map_count(const trn_ds *d)
{
    return ((const mapped *)d)->preserve ? trn_ds_count(d->in[0]) : TRN_DS_UNKNOWN;
}

static const trn_ds_op map_op = {"MapDataset", sizeof(mapped_it), mapped_free, trn_it_start_in, map_next, .count = map_count, .catches = true};

static trn_err map_dataset(trn_kctx *k)
{
    mapped *m;
    TRN_TRY(mapped_on(&m, k, &map_op, "f"));
    return trn_data_out(k, m, TRN_OK);
}

/* ---- Filter, TakeWhile -------------------------------------------------------------------------------------------- */

trn_err trn_data_predicate(bool *out, const trn_elem *e, const char *what)
{
    if (e->n != 1 || !e->t[0] || e->t[0]->dtype != TRN_BOOL || e->t[0]->count != 1)
        return TRN_BAD("%s must return a scalar bool.", what);
    *out = TRN_DATA(e->t[0], bool)[0];
    return TRN_OK;
}

static trn_ds_do choose(mapped_it *it, trn_act *a, trn_ds_why why, bool while_true)
{
    trn_it *it_ = &it->it;
    bool yes;
    trn_err err;
    switch (why) {
    case TRN_DS_GOT:
        trn_elem_free(it->kept);
        it->kept = trn_elem_copy(a->elem);
        return TRN_DS_CALL;
    case TRN_DS_CALLED:
        err = trn_data_predicate(&yes, a->elem, while_true ? "TakeWhile's predicate" : "Filter predicate `f`");
        if (err)
            return trn_act_fail(a, err);
        trn_elem *e = it->kept;
        it->kept = NULL;
        if (yes)
            return trn_act_give(a, e);
        trn_elem_free(e);
        it->over = while_true;
        break;
    case TRN_DS_ENDED:
        it->over = true;
        break;
    default:
        break;
    }
    return it->over ? TRN_DS_END : trn_act_pull_on(a, it_->in);
}

static trn_ds_do filter_next(trn_it *it, trn_act *a, trn_ds_why why) { return choose((mapped_it *)it, a, why, false); }
static trn_ds_do take_while_next(trn_it *it, trn_act *a, trn_ds_why why) { return choose((mapped_it *)it, a, why, true); }

static const trn_ds_op filter_op = {"FilterDataset", sizeof(mapped_it), mapped_free, trn_it_start_in, filter_next, .stop = mapped_stop};
static const trn_ds_op take_while_op = {"TakeWhileDataset", sizeof(mapped_it), mapped_free, trn_it_start_in, take_while_next, .stop = mapped_stop};

static trn_err choosing(trn_kctx *k, const trn_ds_op *op)
{
    mapped *m;
    TRN_TRY(mapped_on(&m, k, op, "predicate"));
    const trn_ds *in = m->d.in[0];
    trn_ds_elem_is(&m->d, in->n, in->types, in->shapes);
    return trn_data_out(k, m, TRN_OK);
}

static trn_err filter_dataset(trn_kctx *k) { return choosing(k, &filter_op); }
static trn_err take_while_dataset(trn_kctx *k) { return choosing(k, &take_while_op); }

/* ---- Scan --------------------------------------------------------------------------------------------------------- */

static trn_err scan_start(trn_it *it_)
{
    mapped_it *it = (mapped_it *)it_;
    it->kept = trn_elem_copy(((mapped *)it_->d)->state);
    return trn_it_start_in(it_);
}

static trn_ds_do scan_next(trn_it *it_, trn_act *a, trn_ds_why why)
{
    mapped_it *it = (mapped_it *)it_;
    const mapped *m = (mapped *)it_->d;
    int s = m->state->n;
    bool called = it->calling;
    it->calling = false;
    switch (why) {
    case TRN_DS_START:
        return trn_act_pull_on(a, it_->in);
    case TRN_DS_GOT: {
        trn_elem *args = trn_elem_new(s + a->elem->n);
        for (int i = 0; i < args->n; i++)
            args->t[i] = trn_tensor_ref(i < s ? it->kept->t[i] : a->elem->t[i - s]);
        trn_elem_free(a->elem);
        a->elem = args;
        it->calling = true;
        return TRN_DS_CALL;
    }
    case TRN_DS_CALLED: {
        if (a->elem->n != s + m->d.n)
            return trn_act_fail(a, TRN_BAD("the function gave %d values, %d are expected", a->elem->n, s + m->d.n));
        for (int i = 0; i < s; i++)
            if (!a->elem->t[i] || a->elem->t[i]->dtype != m->state->t[i]->dtype)
                return trn_act_fail(a, TRN_BAD("Got wrong type for scan_func return value %d (expected %s).", i, trn_dtype_name(m->state->t[i]->dtype)));
        trn_elem_free(it->kept);
        it->kept = trn_elem_of(a->elem->t, s);
        return trn_act_give(a, trn_elem_of(a->elem->t + s, m->d.n));
    }
    case TRN_DS_ERROR:
        if (called && trn_err_code(a->err) == TRN_OUT_OF_RANGE && !m->preserve) {
            trn_err_free(a->err);
            a->err = TRN_OK;
            return TRN_DS_END;
        }
        return TRN_DS_FAIL;
    default:
        return TRN_DS_END;
    }
}

static const trn_ds_op scan_op = {"ScanDataset", sizeof(mapped_it), mapped_free, scan_start, scan_next, .stop = mapped_stop, .count = map_count,
                                  .catches = true};

static trn_err scan_dataset(trn_kctx *k)
{
    mapped *m;
    TRN_TRY(mapped_on(&m, k, &scan_op, "f"));
    int n, first = trn_in_arg(k, "initial_state", &n);
    m->state = trn_elem_new(n);
    for (int i = 0; i < n; i++)
        m->state->t[i] = trn_tensor_ref(trn_in(k, first + i));
    return trn_data_out(k, m, TRN_OK);
}

/* ---- FlatMap, Interleave ------------------------------------------------------------------------------------------ */

typedef struct cycle_it {
    trn_it it;
    int64_t n, at, in_block, open;
    trn_it **slot;
    bool over;   /* of the input */
    bool inner;  /* what was pulled last: the slot's iterator, else the input */
    int64_t opening;
    trn_err *bad; /* parallel: what opening a slot failed with, kept for its turn */
} cycle_it;

static trn_err cycle_start(trn_it *it_)
{
    cycle_it *it = (cycle_it *)it_;
    it->n = ((mapped *)it_->d)->cycle;
    it->slot = trn_xalloc((size_t)it->n * sizeof *it->slot);
    it->bad = trn_xalloc((size_t)it->n * sizeof *it->bad);
    return trn_it_start_in(it_);
}

static void cycle_stop(trn_it *it_)
{
    cycle_it *it = (cycle_it *)it_;
    for (int64_t i = 0; it->slot && i < it->n; i++) {
        trn_it_drop(it->slot[i]);
        trn_err_free(it->bad[i]);
    }
    free(it->slot);
    free(it->bad);
}

static void advance(cycle_it *it)
{
    it->in_block = 0;
    it->at = (it->at + 1) % it->n;
}

/* What was pulled last has no more: the walk in the current slot, or the input. */
static void source_ended(cycle_it *it)
{
    if (!it->inner) {
        it->over = true;
        return;
    }
    trn_it_drop(it->slot[it->at]);
    it->slot[it->at] = NULL;
    it->open--;
    advance(it);
}

/* The function's result is a dataset: walk it in slot `at`. */
static trn_err open_slot(cycle_it *it, int64_t at, const trn_elem *e)
{
    if (e->n != 1 || !e->t[0] || e->t[0]->dtype != TRN_VARIANT)
        return TRN_BAD("The function must return a single scalar of dtype DT_VARIANT.");
    trn_ds *d;
    TRN_TRY(trn_ds_in(&d, e->t[0]));
    const trn_ds *own = it->it.d;
    if (d->n != own->n)
        return TRN_BAD("the function's dataset has %d components, %d are expected", d->n, own->n);
    int64_t ahead = ((const mapped *)own)->buffer;
    TRN_TRY(ahead ? trn_data_ahead_of(&it->slot[at], d, ahead, it->it.root) : trn_it_new(&it->slot[at], d, it->it.root));
    it->open++;
    return TRN_OK;
}

static trn_ds_do cycle_next(trn_it *it_, trn_act *a, trn_ds_why why)
{
    cycle_it *it = (cycle_it *)it_;
    int64_t block = ((mapped *)it_->d)->block;
    trn_err err;
    switch (why) {
    case TRN_DS_GOT:
        if (!it->inner)
            return TRN_DS_CALL;
        if (++it->in_block == block)
            advance(it);
        return TRN_DS_GIVE;
    case TRN_DS_CALLED:
        if ((err = open_slot(it, it->at, a->elem)))
            return trn_act_fail(a, err);
        break;
    case TRN_DS_ENDED:
        source_ended(it);
        break;
    default:
        break;
    }
    while (!it->over || it->open > 0) {
        if (it->slot[it->at]) {
            it->inner = true;
            return trn_act_pull_on(a, it->slot[it->at]);
        }
        if (!it->over) {
            it->inner = false;
            return trn_act_pull_on(a, it_->in);
        }
        advance(it);
    }
    return TRN_DS_END;
}

/* The next slot that may be opened: those whose turn comes soon. Inputs go to slots in the order of the turns, as when each is opened at its own. */
static bool to_open(cycle_it *it)
{
    if (it->over || it->open == it->n)
        return false;
    int64_t calls = ((mapped *)it->it.d)->calls;
    for (int64_t j = 0; j < calls; j++) {
        int64_t at = (it->at + j) % it->n;
        if (!it->slot[at] && !it->bad[at]) {
            it->opening = at;
            return true;
        }
    }
    return false;
}

/* Interleave whose datasets work ahead at the same time; the order is that of the other one. */
static trn_ds_do pcycle_next(trn_it *it_, trn_act *a, trn_ds_why why)
{
    cycle_it *it = (cycle_it *)it_;
    trn_err err;
    switch (why) {
    case TRN_DS_GOT:
        if (!it->inner)
            return TRN_DS_CALL;
        if (++it->in_block == ((mapped *)it_->d)->block)
            advance(it);
        return TRN_DS_GIVE;
    case TRN_DS_CALLED:
        if ((err = open_slot(it, it->opening, a->elem))) {
            it->bad[it->opening] = err;
            it->open++;
        } else {
            trn_data_begin(it->slot[it->opening]);
        }
        break;
    case TRN_DS_ERROR:
        if (it->inner) { /* has its place in the block, as an element */
            if (++it->in_block == ((mapped *)it_->d)->block)
                advance(it);
            return TRN_DS_FAIL;
        }
        it->bad[it->opening] = a->err; /* of the input or the function */
        a->err = TRN_OK;
        it->open++;
        break;
    case TRN_DS_ENDED:
        source_ended(it);
        break;
    default:
        break;
    }
    for (;;) {
        if (to_open(it)) {
            it->inner = false;
            return trn_act_pull_on(a, it_->in);
        }
        if (it->slot[it->at]) {
            it->inner = true;
            return trn_act_pull_on(a, it->slot[it->at]);
        }
        if ((err = it->bad[it->at])) {
            it->bad[it->at] = TRN_OK;
            it->open--;
            advance(it);
            return trn_act_fail(a, err);
        }
        if (it->over && it->open == 0)
            return TRN_DS_END;
        advance(it);
    }
}

static int64_t cycle_count(const trn_ds *d)
{
    return ((const mapped *)d)->preserve && trn_ds_count(d->in[0]) == TRN_DS_INFINITE ? TRN_DS_INFINITE : TRN_DS_UNKNOWN;
}

static const trn_ds_op cycle_op = {"InterleaveDataset", sizeof(cycle_it), mapped_free, cycle_start, cycle_next, .stop = cycle_stop,
                                   .count = cycle_count};

static const trn_ds_op pcycle_op = {"ParallelInterleaveDataset", sizeof(cycle_it), mapped_free, cycle_start, pcycle_next, .stop = cycle_stop,
                                    .count = cycle_count, .catches = true};

#define MAX_CYCLE (1 << 20)
#define MAX_READY 256 /* elements that one dataset of a cycle keeps ready */

/* calls: 0, one dataset at a time. preserve: TensorFlow's newer parallel ones say that they are infinite when the input is, the others say nothing */
static trn_err cycle_dataset(trn_kctx *k, int64_t cycle, int64_t block, int64_t calls, int64_t buffer, bool preserve)
{
    mapped *m;
    TRN_TRY(mapped_on(&m, k, calls ? &pcycle_op : &cycle_op, "f"));
    m->preserve = preserve;
    m->cycle = cycle;
    m->block = block;
    m->calls = TRN_MIN(calls, cycle);
    m->buffer = calls ? TRN_MIN(buffer, MAX_READY) : 0;
    return trn_data_out(k, m, TRN_OK);
}

static trn_err flat_map_dataset(trn_kctx *k) { return cycle_dataset(k, 1, INT64_MAX, 0, 0, false); }

/* Cores that this process may run on, as TensorFlow counts them. */
static int64_t cores(void)
{
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

/* Without a cycle length: one per call at once, or (calls left to us) so many that a cycle and what is read ahead keep the cores busy. */
static int64_t auto_cycle(bool parallel, int64_t calls)
{
    return !parallel ? cores() : calls > 0 ? TRN_MIN(calls, cores()) : (cores() + 2) / 3;
}

static trn_err interleave_dataset(trn_kctx *k)
{
    int64_t cycle, block, calls = -1;
    int parallel, at = trn_in_arg(k, "num_parallel_calls", &parallel);
    TRN_TRY(trn_data_i64(&cycle, k, trn_in_arg(k, "cycle_length", NULL), "cycle_length"));
    TRN_TRY(trn_data_i64(&block, k, trn_in_arg(k, "block_length", NULL), "block_length"));
    TRN_CHECK_ARG(block > 0, "`block_length` must be > 0");
    if (parallel) {
        TRN_TRY(trn_data_i64(&calls, k, at, "num_parallel_calls"));
        TRN_CHECK_ARG(calls > 0 || calls == -1, "num_parallel_calls must be greater than zero.");
        TRN_CHECK_ARG(calls <= cycle || cycle == -1, "num_parallel_calls (%lld) must be at most cycle_length (%lld)", (long long)calls, (long long)cycle);
    }
    int ahead;
    int64_t buffer = -1, inputs = -1;
    at = trn_in_arg(k, "buffer_output_elements", &ahead);
    if (ahead) {
        TRN_TRY(trn_data_i64(&buffer, k, at, "buffer_output_elements"));
        TRN_TRY(trn_data_i64(&inputs, k, at + 1, "prefetch_input_elements"));
        TRN_CHECK_ARG(buffer > 0 || (buffer == -1 && parallel), "`buffer_output_elements` must be > 0 but is %lld", (long long)buffer);
        TRN_CHECK_ARG(inputs >= 0 || (inputs == -1 && parallel), "`prefetch_input_elements` must be >= 0 but is %lld", (long long)inputs);
    }
    if (cycle == -1 && (parallel || !ahead))
        cycle = auto_cycle(parallel, calls);
    TRN_CHECK_ARG(cycle > 0 && cycle <= MAX_CYCLE, "`cycle_length` must be > 0");
    if (calls == -1)
        calls = parallel || ahead ? cycle : 0;
    if (buffer == -1)
        buffer = block < MAX_READY ? 2 * block + 1 : MAX_READY;
    return cycle_dataset(k, cycle, block, calls, buffer, parallel);
}

#define F_ARGS "f:func, Targuments:list(type)>=0, "
#define P_ARGS "predicate:func, Targuments:list(type)>=0, "
#define CYCLE ", cycle_length:i64, block_length:i64"
#define AHEAD ", buffer_output_elements:i64, prefetch_input_elements:i64"
#define DET "deterministic:string=\"default\", "

const trn_op trn_ops_data_func[] = {
    {"MapDataset",
     "input_dataset:var, other_arguments:Targuments -> handle:var; " F_ARGS DS_OUT
     ", use_inter_op_parallelism:bool=true, preserve_cardinality:bool=false" DS_META,
     trn_sh_dataset, map_dataset, DS_FLAGS},
    {"FilterDataset", "input_dataset:var, other_arguments:Targuments -> handle:var; " P_ARGS DS_OUT DS_META, trn_sh_dataset, filter_dataset, DS_FLAGS},
    {"ExperimentalTakeWhileDataset", "input_dataset:var, other_arguments:Targuments -> handle:var; " P_ARGS DS_OUT, trn_sh_dataset, take_while_dataset,
     DS_FLAGS},
    {"ExperimentalScanDataset",
     "input_dataset:var, initial_state:Tstate, other_arguments:Targuments -> handle:var; f:func, Tstate:list(type)>=1, Targuments:list(type)>=0, " DS_OUT
     ", preserve_cardinality:bool=false",
     trn_sh_dataset, scan_dataset, DS_FLAGS},
    {"TakeWhileDataset", "input_dataset:var, other_arguments:Targuments -> handle:var; " P_ARGS DS_OUT DS_META, trn_sh_dataset, take_while_dataset,
     DS_FLAGS},
    {"ScanDataset",
     "input_dataset:var, initial_state:Tstate, other_arguments:Targuments -> handle:var; f:func, Tstate:list(type)>=1, Targuments:list(type)>=0, " DS_OUT
     ", preserve_cardinality:bool=false, use_default_device:bool=true" DS_META,
     trn_sh_dataset, scan_dataset, DS_FLAGS},
    {"FlatMapDataset", "input_dataset:var, other_arguments:Targuments -> handle:var; " F_ARGS DS_OUT DS_META, trn_sh_dataset, flat_map_dataset, DS_FLAGS},
    {"InterleaveDataset", "input_dataset:var, other_arguments:Targuments" CYCLE " -> handle:var; " F_ARGS DS_OUT DS_META, trn_sh_dataset,
     interleave_dataset, DS_FLAGS},
    {"ParallelInterleaveDataset", "input_dataset:var, other_arguments:Targuments" CYCLE ", sloppy:bool" AHEAD " -> handle:var; " F_ARGS DS_OUT DS_META,
     trn_sh_dataset, interleave_dataset, DS_FLAGS},
    {"ExperimentalParallelInterleaveDataset", "input_dataset:var, other_arguments:Targuments" CYCLE ", sloppy:bool" AHEAD " -> handle:var; " F_ARGS DS_OUT,
     trn_sh_dataset, interleave_dataset, DS_FLAGS},
    {"LegacyParallelInterleaveDatasetV2",
     "input_dataset:var, other_arguments:Targuments" CYCLE AHEAD " -> handle:var; f:func, " DET "Targuments:list(type)>=0, " DS_OUT DS_META,
     trn_sh_dataset, interleave_dataset, DS_FLAGS},
    {"ParallelInterleaveDatasetV2",
     "input_dataset:var, other_arguments:Targuments" CYCLE ", num_parallel_calls:i64 -> handle:var; " F_ARGS DS_OUT ", sloppy:bool=false" DS_META,
     trn_sh_dataset, interleave_dataset, DS_FLAGS},
    {"ParallelInterleaveDatasetV3",
     "input_dataset:var, other_arguments:Targuments" CYCLE ", num_parallel_calls:i64 -> handle:var; f:func, " DET "Targuments:list(type)>=0, " DS_OUT DS_META,
     trn_sh_dataset, interleave_dataset, DS_FLAGS},
    {"ParallelInterleaveDatasetV4",
     "input_dataset:var, other_arguments:Targuments" CYCLE AHEAD ", num_parallel_calls:i64 -> handle:var; f:func, " DET
     "Targuments:list(type)>=0, " DS_OUT DS_META,
     trn_sh_dataset, interleave_dataset, DS_FLAGS},
    {0},
};
