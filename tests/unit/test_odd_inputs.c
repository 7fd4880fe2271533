/* Every op with inputs that nobody means: shapes whose dims overflow when multiplied though there are no elements, ranks from 0 to 32, indices far outside, NaN, negative
 * sizes, empty lists. Whatever comes out, the process must live, each case must end (or end when it is cancelled), ask for no absurd memory, leave alone what others hold,
 * and give the same twice, whatever bytes malloc gives.
 *
 * The inputs are made from the op's signature and a seed that is the case's number, so a case is found again:
 *
 *     test_odd_inputs                    the quick form, all ops
 *     test_odd_inputs Conv2D             more cases of one op, or of all whose names begin with it ("Conv2D*")
 *     test_odd_inputs Conv2D 117         that one, in this process (for a debugger)
 *     TRAINERA_ODD_CASES=5000            how many of each op
 *     TRAINERA_ODD_SEED=7                other ones
 *     TRAINERA_ODD_LIST=1                names of ops that no case made run
 *     TRAINERA_ODD_INTERNAL=1            INTERNAL is wrong, too: nearly always it means that something was not checked
 *     TRAINERA_ODD_LOG=FILE              what all cases say goes there (with UBSAN_OPTIONS=halt_on_error=0: every place that is wrong at once)
 *
 * A child runs the cases and writes down which one it is at; the parent looks whether it lives and how long it has been there, tells what it was, and goes on behind it. */
#include <fcntl.h>
#include <malloc.h>
#include <math.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "optest.h"
#include "res/rdv.h"
#include "res/res.h"
#include "res/var.h"

/* What nobody asks for by mistake may be this large; kernels that want more must take the refusal. (Wrapped by the linker: those come by mmap.) */
#define ROOM ((size_t)256 << 20)
trn_err __real_trn_buf_new(trn_buf **out, size_t size);
trn_err __wrap_trn_buf_new(trn_buf **out, size_t size);
trn_err __wrap_trn_buf_new(trn_buf **out, size_t size)
{
    if (size > ROOM)
        return trn_errorf(TRN_RESOURCE_EXHAUSTED, "%zu bytes are not to be had in this test", size);
    return __real_trn_buf_new(out, size);
}

#if TRN_ASAN
TRN_API const char *__asan_default_options(void);
const char *__asan_default_options(void) { return "allocator_may_return_null=1:max_allocation_size_mb=512:quarantine_size_mb=32"; }
TRN_API const char *__ubsan_default_options(void);
const char *__ubsan_default_options(void) { return "halt_on_error=1:print_stacktrace=1"; }
void __lsan_do_leak_check(void);
#endif

enum { CANCEL_MS = 300, CPU_MS = 5000 * (TRN_ASAN ? 2 : 1), WALL_MS = 60000, MAX_FINDINGS = 3, MADE_MAX = 8 };

/* ---- chance ------------------------------------------------------------------------------------------------------------------------ */

static uint64_t rng;
static uint64_t rnd(void)
{
    uint64_t z = rng += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}
static int below(int n) { return (int)(rnd() % (uint64_t)n); }
static bool chance(int percent) { return below(100) < percent; }
#define PICK(a) ((a)[below((int)TRN_COUNTOF(a))])

#define B(n) (INT64_C(1) << (n))

static int64_t odd_int(void)
{
    static const int64_t v[] = {0, 1, -1, 2, -2, 3, 5, 7, -7, 31, 32, 33, 63, 64, 255, 256, 65536, INT16_MAX, INT16_MIN, INT32_MAX, INT32_MIN, B(31), B(32), -B(32), B(33) + 1, B(50), B(62), -B(62), INT64_MAX, INT64_MIN, INT64_MAX - 1, INT64_MIN + 1, 3037000500};
    return PICK(v);
}

static double odd_float(void)
{
    static const double v[] = {0, -0.0, 1, -1, 0.5, -0.5, 2, 3.7, 1e-3, 1e-10, 1e-40, 1e5, 1e9, -1e9, 3e9, 1e10, -1e10, 1e19, -1e19, 1e30, -1e30, 3.4e38, NAN, -NAN, INFINITY, -INFINITY};
    return PICK(v);
}

static const char *odd_string(void)
{
    static const char *const v[] = {"", "a", "b", "abc", "a b  c", "1", "-5", "0.5", "1e999", "99999999999999999999", "0x", "%s%n", "\xff\xfe\x80", "\xe2\x82", "\xc3\xa9t\xc3\xa9", "(?:a|b)*", "[", "(", "*", "a{1000}", "\\1", ",,,\"",
                                    "2020-01-01", "{\"a\":1}", "AAAA", "!!", "NHWC", "\x08\x01\x12\x03", "\x0a\xff\xff\xff\xff\x0f", "/", "UTF-8", "a,b;c", "nan", "\x89PNG\r\n\x1a\n", "GIF89a\xff\xff\xff\xff", "BM", "RIFF", "\xff\xd8\xff",
                                    "0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789"};
    return PICK(v);
}

/* ---- shapes ------------------------------------------------------------------------------------------------------------------------ */

enum { MOST = 1500 }; /* elements */

static trn_shape vector(int64_t n) { return trn_shape_vector(n > MOST ? 0 : n); }

/* No tensor is larger than MOST; one with a dim that would make it so has no elements. */
static void limit(trn_shape *s)
{
    int64_t n = 1;
    bool none = false, over = false;
    for (int i = 0; i < s->rank; i++) {
        none |= s->dim[i] == 0;
        over |= !over && (__builtin_mul_overflow(n, s->dim[i] ? s->dim[i] : 1, &n) || n > MOST);
    }
    if (over && !none)
        s->dim[below(s->rank)] = 0;
}

static trn_shape any_shape(void)
{
    static const int64_t tame[] = {0, 1, 1, 2, 2, 2, 3, 3, 4, 5, 8}, huge[] = {B(31), B(32), B(50), B(62), INT64_MAX, 3037000500, B(40), INT32_MAX};
    static const struct {
        int rank;
        int64_t dim[5];
    } known[] = {{3, {0, B(32), B(32)}}, {3, {B(50), 0, 0}}, {2, {B(50), 0}}, {2, {0, B(50)}}, {4, {0, B(32), B(32), B(32)}}, {4, {0, B(32), B(32), 1}}, {3, {0, 3037000500, 3037000500}}, {1, {0}}, {2, {0, 5}}, {2, {5, 0}}, {4, {B(32), B(32), 0, 3}}, {4, {1, 0, B(32), B(32)}}, {5, {B(32), 0, B(32), 2, B(32)}}, {3, {B(62), B(62), 0}}, {4, {0, 4, 4, 3}}, {4, {2, 0, 3, 1}}, {3, {1, 0, 3}}};
    trn_shape s = {.rank = 0};
    int kind = below(100);
    if (kind < 25) {
        int i = below((int)TRN_COUNTOF(known));
        s.rank = known[i].rank;
        memcpy(s.dim, known[i].dim, sizeof known[i].dim);
        return s;
    }
    s.rank = kind < 90 ? below(6) : kind < 97 ? below(9) : TRN_MAX_RANK - below(chance(50) ? 2 : TRN_MAX_RANK);
    for (int i = 0; i < s.rank; i++)
        s.dim[i] = kind < 45 && chance(50) ? PICK(huge) : s.rank > 5 ? below(3) : PICK(tame);
    limit(&s);
    return s;
}

/* Related to what the other inputs are like, since most kernels want that. */
static trn_shape shape_near(const trn_shape *base, bool ints)
{
    trn_shape s = *base;
    int kind = below(100);
    if (ints && kind < 50)
        return kind < 25 ? trn_shape_scalar() : vector(chance(50) ? base->rank : below(5));
    if (kind < 55)
        return s;
    if (kind < 65)
        return trn_shape_scalar();
    if (kind < 75)
        return vector(base->rank ? base->dim[chance(50) ? base->rank - 1 : below(base->rank)] : below(5));
    if (kind < 80)
        return vector(below(5));
    if (kind < 90) {
        int i = s.rank ? below(s.rank) : 0;
        switch (below(4)) {
        case 0:
            if (s.rank)
                memmove(&s.dim[i], &s.dim[i + 1], sizeof s.dim[0] * (size_t)(--s.rank - i));
            break;
        case 1:
            if (s.rank < TRN_MAX_RANK) {
                memmove(&s.dim[i + 1], &s.dim[i], sizeof s.dim[0] * (size_t)(s.rank++ - i));
                s.dim[i] = 1;
            }
            break;
        case 2:
            if (s.rank)
                s.dim[i] = below(4);
            break;
        default:
            if (s.rank)
                s.dim[i] = s.dim[below(s.rank)];
        }
        limit(&s);
        if (s.rank == 1 && s.dim[0] > MOST)
            s.dim[0] = 0;
        return s;
    }
    return any_shape();
}

/* ---- one case ----------------------------------------------------------------------------------------------------------------------- */

typedef struct made {
    optest t;
    trn_step_api api;
} made;

typedef struct odd {
    trn_resmgr *mgr, *step_mgr;
    trn_cancel *cancel;
    trn_rdv *rdv;
    trn_shape base;
    trn_dtype want; /* most types are this, since most ops want that */
    bool tame;      /* small values only */
    bool named;     /* arguments are shaped by what their names say */
    int64_t n, r;   /* of sparse tensors: places, dims */
    made *made[MADE_MAX]; /* ops that made resources and variants for this case */
    int n_made, depth;
} odd;

static odd *now; /* with now_mu: whose cancellation the watchdog fires */
static pthread_mutex_t now_mu = PTHREAD_MUTEX_INITIALIZER;

static trn_tensor *tensor(odd *o, trn_dtype dt, const trn_shape *s)
{
    trn_tensor *t;
    trn_err e = trn_tensor_new(&t, dt, s);
    if (e) {
        trn_err_free(e);
        return NULL;
    }
    int kind = o->tame ? below(40) : below(100); /* below 40: small numbers; below 80: odd ones now and then; else: mostly */
    int percent = kind < 40 ? 0 : kind < 80 ? 20 : 80;
    int top = 1 + below(5);
    for (int64_t i = 0; i < t->count; i++) {
        bool is_odd = chance(percent);
        int64_t n = is_odd ? odd_int() : below(top);
        double f = is_odd ? odd_float() : chance(30) ? n : (double)below(2000) / 1000 - (kind < 20 ? 0 : 1);
        switch (dt) {
        case TRN_FLOAT: TRN_DATA_MUT(t, float)[i] = (float)f; break;
        case TRN_DOUBLE: TRN_DATA_MUT(t, double)[i] = f; break;
        case TRN_COMPLEX64: TRN_DATA_MUT(t, float)[2 * i] = (float)f, TRN_DATA_MUT(t, float)[2 * i + 1] = (float)(is_odd ? odd_float() : n); break;
        case TRN_COMPLEX128: TRN_DATA_MUT(t, double)[2 * i] = f, TRN_DATA_MUT(t, double)[2 * i + 1] = is_odd ? odd_float() : (double)n; break;
        case TRN_HALF: TRN_DATA_MUT(t, trn_half)[i] = trn_half_from_f32((float)f); break;
        case TRN_BFLOAT16: TRN_DATA_MUT(t, trn_bf16)[i] = trn_bf16_from_f32((float)f); break;
        case TRN_BOOL: TRN_DATA_MUT(t, bool)[i] = n & 1; break;
        case TRN_INT4: TRN_DATA_MUT(t, int8_t)[i] = (int8_t)(n % 8); break;
        case TRN_UINT4: TRN_DATA_MUT(t, uint8_t)[i] = (uint8_t)(n & 15); break;
        case TRN_STRING: {
            const char *p = odd_string();
            if (trn_tensor_str_put(t, i, p, strlen(p)))
                abort();
            break;
        }
        case TRN_RESOURCE:
        case TRN_VARIANT: break; /* empty handles */
        default:
            switch (trn_dtype_size(dt)) {
            case 1: TRN_DATA_MUT(t, int8_t)[i] = (int8_t)n; break;
            case 2: TRN_DATA_MUT(t, int16_t)[i] = (int16_t)n; break;
            case 4: TRN_DATA_MUT(t, int32_t)[i] = n > INT32_MAX ? INT32_MAX : n < INT32_MIN ? INT32_MIN : (int32_t)n; break;
            default: TRN_DATA_MUT(t, int64_t)[i] = n;
            }
        }
    }
    return t;
}

static trn_dtype type_of(odd *o, uint64_t types)
{
    if (types >> o->want & 1 && chance(85))
        return o->want;
    trn_dtype t[64];
    int n = 0;
    for (int i = 1; i < TRN_DTYPE_END; i++)
        if (types >> i & 1)
            t[n++] = (trn_dtype)i;
    return n ? t[below(n)] : TRN_INVALID;
}

static void attr_value(odd *o, optest *t, const trn_attrdef *d, trn_attr_val *v)
{
    switch (d->kind) {
    case TRN_ATTR_INT: v->i = o->tame || chance(60) ? TRN_MAX(d->min, 0) + below(3) : odd_int(); break;
    case TRN_ATTR_FLOAT: v->f = (float)(o->tame || chance(60) ? below(100) / 50.0 : odd_float()); break;
    case TRN_ATTR_BOOL: v->b = chance(50); break;
    case TRN_ATTR_TYPE: v->type = type_of(o, d->types ? d->types : ~UINT64_C(0)); break;
    case TRN_ATTR_STRING:
        v->s.p = d->n_allowed && chance(97) ? d->allowed[below(d->n_allowed)] : odd_string();
        v->s.n = strlen(v->s.p);
        break;
    case TRN_ATTR_SHAPE: {
        trn_shape s = chance(30) ? trn_shape_unknown() : shape_near(&o->base, false);
        for (int i = 0; i < s.rank; i++)
            s.dim[i] = chance(10) ? -1 : s.dim[i];
        v->shape = trn_arena_dup(t->arena, &s, sizeof s);
        break;
    }
    case TRN_ATTR_FUNC: {
        trn_func_ref f = {.name = "f"};
        v->func = trn_arena_dup(t->arena, &f, sizeof f);
        break;
    }
    default: break;
    }
}

static void drop_tensor(void *t) { trn_tensor_unref(t); }

/* Sets what must be set, and now and then what need not be. False: this op is not for us. */
static bool attrs(odd *o, optest *t, const trn_opdef *def, bool keep_defaults)
{
    for (int i = 0; i < def->n_attrs; i++) {
        const trn_attrdef *d = &def->attrs[i];
        bool is_type = d->kind == TRN_ATTR_TYPE;
        if (d->has_default && chance(keep_defaults ? (is_type ? 40 : 95) : is_type ? 20 : o->tame ? 70 : 50))
            continue;
        if (t->node.n_attrs == OPTEST_MAX)
            return false;
        trn_attr *a = &t->attrs[t->node.n_attrs++];
        *a = (trn_attr){.name = d->name, .kind = d->kind, .is_list = d->is_list};
        if (d->kind == TRN_ATTR_TENSOR) {
            trn_shape s = shape_near(&o->base, false);
            const trn_attr *dt = trn_node_attr(&t->node, "dtype");
            if (d->is_list || !(a->v.tensor = tensor(o, dt && dt->kind == TRN_ATTR_TYPE && dt->v.type ? dt->v.type : o->want, &s)))
                return false;
            trn_arena_on_free(t->arena, drop_tensor, a->v.tensor);
            continue;
        }
        if (!d->is_list) {
            attr_value(o, t, d, &a->v);
            bool is_n = false;
            for (int j = 0; j < def->n_in; j++)
                is_n |= def->in[j].number_attr == i;
            for (int j = 0; j < def->n_out; j++)
                is_n |= def->out[j].number_attr == i;
            if (is_n)
                a->v.i = TRN_MAX(d->min, 0) + below(4);
            continue;
        }
        static const int sizes[] = {0, 1, 1, 2, 2, 3, 4, 4, 5};
        a->n = (int)TRN_MAX(d->min, (int64_t)(chance(40) ? TRN_MIN(o->base.rank, 6) : PICK(sizes)));
        trn_attr_val *v = trn_arena_alloc(t->arena, sizeof *v * (size_t)(a->n + 1));
        for (int j = 0; j < a->n; j++)
            attr_value(o, t, d, &v[j]);
        if (d->kind == TRN_ATTR_INT && a->n > 2 && o->named) /* windows: none over batches, none over channels */
            for (int j = 0; j < a->n; j++)
                v[j].i = j == 0 || j == a->n - 1 ? 1 : 1 + below(2);
        a->list = v;
    }
    return true;
}

static void no_call(trn_kctx *k, const trn_func_ref *f, trn_tensor *const *args, int n_args, trn_call_done done, void *arg)
{
    (void)k, (void)f, (void)args, (void)n_args;
    done(arg, trn_errorf(TRN_UNIMPLEMENTED, "no functions here"), NULL, 0);
}
static void no_call_on(trn_kctx *k, const char *device, const trn_func_ref *f, trn_tensor *const *args, int n_args, trn_call_done done, void *arg)
{
    (void)device;
    no_call(k, f, args, n_args, done, arg);
}
static trn_err no_path(const trn_kctx *k, const char *path)
{
    (void)k;
    return trn_errorf(TRN_PERMISSION_DENIED, "%s: no files here", path);
}
static trn_resmgr *step_resmgr(const trn_kctx *k)
{
    (void)k;
    return now->step_mgr;
}
static const trn_step_api api = {.done = optest_done, .call = no_call, .call_on = no_call_on, .check_path = no_path, .step_resmgr = step_resmgr};

static void begin(odd *o, optest *t, const char *op)
{
    optest_begin(t, op);
    t->step = (trn_step){.api = &api, .resmgr = o->mgr, .step_resmgr = o->step_mgr, .rdv = o->rdv, .cancel = o->cancel};
}

static void drop_vars(optest *t)
{
    for (int i = 0; i < OPTEST_MAX; i++) {
        if (t->in[i].var)
            trn_resource_unref(t->in[i].var);
        if (t->out[i].var)
            trn_resource_unref(t->out[i].var);
        t->in[i].var = t->out[i].var = NULL;
    }
}

static bool skipped(const trn_opdef *d)
{
    static const char *const names[] = {"Abort", "Print", "PrintV2", "ImmutableConst"};
    for (size_t i = 0; i < TRN_COUNTOF(names); i++)
        if (strcmp(d->row->name, names[i]) == 0)
            return true;
    return !d->row->kernel || d->row->flags >> 16 || strncmp(d->row->name, "Debug", 5) == 0;
}

static bool fill(odd *o, optest *t, const trn_opdef *def, bool keep_defaults);

/* Which ops make handles (or variants), and how much of a name they share with the op that wants one. */
static int alike(const char *a, const char *b)
{
    int best = 0;
    for (const char *p = a; *p; p++)
        for (const char *q = b; *q; q++) {
            int n = 0;
            while (p[n] && p[n] == q[n])
                n++;
            best = TRN_MAX(best, n);
        }
    return best;
}

static const trn_opdef *maker_of(const char *op, trn_dtype type, bool by_ref)
{
    enum { MAX = 200 };
    static const trn_opdef *all[3][MAX];
    static int n_all[3];
    int kind = by_ref ? 2 : type == TRN_VARIANT;
    if (!n_all[kind])
        for (int i = 0; i < trn_op_count() && n_all[kind] < MAX; i++) {
            const trn_opdef *d = trn_op_at(i);
            if (d->n_out && d->out[0].type == type && d->out[0].number_attr < 0 && d->out[0].is_ref == by_ref && !(d->n_in && (d->in[0].type == TRN_VARIANT || d->in[0].type == TRN_RESOURCE)) && !(d->row->flags & (TRN_OP_ASYNC | TRN_OP_DISK)) && !skipped(d))
                all[kind][n_all[kind]++] = d;
        }
    int n = n_all[kind], best = 0, n_best = 0;
    if (!n)
        return NULL;
    if (chance(20))
        return all[kind][below(n)];
    const trn_opdef *pick = NULL;
    for (int i = 0; i < n; i++) {
        int s = alike(op, all[kind][i]->row->name);
        if (s > best)
            best = s, n_best = 0;
        if (s == best && below(++n_best) == 0)
            pick = all[kind][i];
    }
    return pick;
}

/* A handle to something that is there, of whatever kind; or to nothing. */
static trn_value thing(odd *o, const char *op, trn_dtype type, bool by_ref)
{
    trn_value v = {0};
    trn_shape s = trn_shape_scalar();
    bool vars = !strncmp(op, "Resource", 8) || strstr(op, "Variable");
    if (type == TRN_RESOURCE && chance(vars ? 90 : 15)) {
        char name[24];
        snprintf(name, sizeof name, "v%d", below(3));
        trn_var *var;
        trn_shape any = trn_shape_unknown(), sv = shape_near(&o->base, false);
        trn_dtype dt = chance(95) ? o->want : TRN_INT32;
        trn_tensor *x = chance(90) ? tensor(o, dt, &sv) : NULL;
        if (trn_var_new(&var, name, dt, &any))
            abort();
        if (x) {
            trn_var_assign(var, x);
            var->is_init = true;
        }
        trn_err_free(trn_resmgr_put(o->mgr, "", name, &var->base));
        trn_node n = {.name = name, .device = ""};
        if (trn_res_handle(&v.t, &n, "", name, trn_var_type.handle ? trn_var_type.handle : trn_var_type.name, dt, &any))
            abort();
        return v;
    }
    const trn_opdef *d = o->depth < 3 && o->n_made < MADE_MAX && chance(95) ? maker_of(op, type, by_ref) : NULL;
    if (!d)
        return (trn_value){.t = tensor(o, type, &s)};
    made *m = trn_xalloc(sizeof *m);
    o->made[o->n_made++] = m;
    o->depth++;
    begin(o, &m->t, d->row->name);
    m->t.node.name = trn_arena_printf(m->t.arena, "made%d", o->n_made);
    bool was = o->tame;
    o->tame |= chance(80);
    trn_err e = fill(o, &m->t, d, true) ? optest_prepare(&m->t) : trn_errorf(TRN_UNKNOWN, "-");
    if (!e)
        e = optest_go(&m->t);
    o->tame = was;
    o->depth--;
    bool bad = e != NULL;
    trn_err_free(e);
    if (bad)
        return (trn_value){.t = tensor(o, type, &s)};
    v.t = trn_tensor_ref(m->t.out[0].t);
    if (m->t.out[0].var)
        v.var = trn_resource_ref(m->t.out[0].var);
    return v;
}

static bool named(const char *arg, const char *const *names)
{
    for (; *names; names++)
        if (strcmp(arg, *names) == 0)
            return true;
    return false;
}

/* What most kernels want of arguments of these names. */
static void shape_named(trn_shape *s, const odd *o, const char *arg, trn_dtype dt)
{
    static const char *const scalars[] = {"lr", "rho", "epsilon", "momentum", "l1", "l2", "beta1", "beta2", "beta1_power", "beta2_power", "beta", "alpha", "axis", "dim", "num_segments", "num_split", "depth", "max_output_size",
                                          "iou_threshold", "score_threshold", "batch_size", "drop_remainder", "count", "index", "size", "alg", "algorithm", "num", "ms_epsilon", "global_step", "lr_power", "l2_shrinkage",
                                          "momentum_term", "filename", "buffer_size", "num_parallel_calls", "flow_in", "delta", "padding_value", "num_elements", "start", "stop", "step", "k", NULL},
                            *const alike[] = {"x", "y", "z", "a", "b", "grad", "gradient", "gradients", "input", "orig_input", "orig_output", "out_backprop", "filter", "images", "image", "params", "data", "updates", "value", "tensor", "t",
                                              "var", "accum", "linear", "mg", "ms", "mom", "m", "v", "features", "labels", "logits", NULL};
    bool ints = dt == TRN_INT32 || dt == TRN_INT64;
    if (named(arg, scalars))
        *s = trn_shape_scalar();
    else if (strncmp(arg, "seed", 4) == 0 || strcmp(arg, "crop_size") == 0)
        *s = vector(2);
    else if (dt == TRN_INT64 && strstr(arg, "indices"))
        *s = trn_shape_of(2, o->n, o->r);
    else if (strstr(arg, "values"))
        *s = vector(o->n);
    else if (ints && strstr(arg, "shape"))
        *s = vector(o->r);
    else if (strcmp(arg, "paddings") == 0 || strcmp(arg, "crops") == 0)
        *s = trn_shape_of(2, (int64_t)o->base.rank, (int64_t)2);
    else if (strcmp(arg, "boxes") == 0)
        *s = trn_shape_of(2, o->n, (int64_t)4);
    else if (strcmp(arg, "scores") == 0 || strcmp(arg, "box_ind") == 0 || strstr(arg, "_ids"))
        *s = vector(o->n);
    else if (named(arg, alike))
        *s = o->base;
}

static bool input(odd *o, optest *t, const trn_argdef *a, trn_dtype dt, bool ints)
{
    if (t->k.n_in == OPTEST_MAX || dt == TRN_INVALID || dt >= TRN_DTYPE_END || !trn_dtype_size(dt))
        return false;
    trn_value *v = &t->in[t->k.n_in];
    trn_shape s = t->k.n_in == 0 && chance(70) ? o->base : shape_near(&o->base, ints);
    if (o->named)
        shape_named(&s, o, a->name, dt);
    if ((dt == TRN_RESOURCE || dt == TRN_VARIANT || (a->is_ref && dt == TRN_STRING)) && chance(97)) {
        *v = thing(o, t->node.op, dt, a->is_ref && dt == TRN_STRING);
        if (v->var && !a->is_ref) { /* its value is wanted */
            trn_err_free(trn_var_read(&v->t, v->var));
            trn_resource_unref(v->var);
            v->var = NULL;
        }
    }
    if (v->t && a->is_ref) {
        trn_tensor_unref(v->t);
        v->t = NULL;
    }
    if (v->t || v->var) {
        /* a handle */
    } else if (a->is_ref) {
        trn_shape any = trn_shape_unknown();
        if (trn_var_new(&v->var, "v", dt, &any))
            abort();
        trn_tensor *x = tensor(o, dt, &s);
        if (x)
            trn_var_assign(v->var, x);
    } else {
        v->t = tensor(o, dt, &s);
    }
    t->k.n_in++;
    return v->t || v->var;
}

static bool fill(odd *o, optest *t, const trn_opdef *def, bool keep_defaults)
{
    if (!attrs(o, t, def, keep_defaults))
        return false;
    for (int i = 0; i < def->n_in; i++) {
        const trn_argdef *a = &def->in[i];
        int n = 1;
        const trn_attr *list = NULL;
        if (a->number_attr >= 0) {
            const trn_attr *at = trn_node_attr(&t->node, def->attrs[a->number_attr].name);
            n = (int)(at ? at->v.i : def->attrs[a->number_attr].def.v.i);
        } else if (a->type_list_attr >= 0) {
            list = trn_node_attr(&t->node, def->attrs[a->type_list_attr].name);
            list = list ? list : &def->attrs[a->type_list_attr].def;
            n = list->n;
        }
        trn_dtype dt = a->type;
        uint64_t types = 0;
        if (a->type_attr >= 0) {
            const trn_attr *at = trn_node_attr(&t->node, def->attrs[a->type_attr].name);
            dt = at ? at->v.type : def->attrs[a->type_attr].def.v.type;
            types = def->attrs[a->type_attr].types;
        }
        bool ints = (a->type == TRN_INT32 || a->type == TRN_INT64) || (types && !(types & ~(UINT64_C(1) << TRN_INT32 | UINT64_C(1) << TRN_INT64 | UINT64_C(1) << TRN_INT16)));
        for (int j = 0; j < n; j++)
            if (!input(o, t, a, list ? list->list[j].type : dt, ints))
                return false;
    }
    return true;
}

/* ---- what came out ------------------------------------------------------------------------------------------------------------------- */

typedef struct shared {
    _Atomic int op, nr, at_end; /* where the child is */
    _Atomic uint64_t ran;       /* cases whose kernel ran to an end without an error */
    _Atomic uint64_t refused;
    char what[4000];
    _Atomic int ran_of[4000]; /* by op */
} shared;
static shared *sh;

static bool quiet; /* nobody reads what the cases are */
static void describe(const optest *t)
{
    trn_sb s = {0};
    for (int i = 0; i < t->node.n_attrs; i++) {
        const trn_attr *a = &t->attrs[i];
        trn_sb_addf(&s, "%s%s=", i ? " " : "", a->name);
        for (int j = 0; j < (a->is_list ? a->n : 1); j++) {
            const trn_attr_val *v = a->is_list ? &a->list[j] : &a->v;
            char text[TRN_SHAPE_TEXT];
            if (j || a->is_list)
                trn_sb_adds(&s, j ? "," : "list:");
            switch (a->kind) {
            case TRN_ATTR_INT: trn_sb_addf(&s, "%lld", (long long)v->i); break;
            case TRN_ATTR_FLOAT: trn_sb_addf(&s, "%g", (double)v->f); break;
            case TRN_ATTR_BOOL: trn_sb_adds(&s, v->b ? "true" : "false"); break;
            case TRN_ATTR_TYPE: trn_sb_adds(&s, trn_dtype_name(v->type)); break;
            case TRN_ATTR_STRING: trn_sb_addf(&s, "\"%.*s\"", (int)v->s.n, v->s.p); break;
            case TRN_ATTR_SHAPE: trn_sb_adds(&s, trn_shape_text(text, v->shape)); break;
            case TRN_ATTR_TENSOR: trn_tensor_text(&s, v->tensor, 6); break;
            default: trn_sb_adds(&s, "?");
            }
        }
    }
    for (int i = 0; i < t->k.n_in && s.n < sizeof sh->what; i++) {
        trn_sb_adds(&s, i ? ", " : " | ");
        if (t->in[i].t) {
            trn_tensor_text(&s, t->in[i].t, 12);
        } else if (t->in[i].var && t->in[i].var->value) {
            trn_sb_adds(&s, "variable ");
            trn_tensor_text(&s, t->in[i].var->value, 12);
        } else {
            trn_sb_adds(&s, "-");
        }
    }
    snprintf(sh->what, sizeof sh->what, "%s", s.p ? s.p : "");
    trn_sb_fini(&s);
}

static _Noreturn void wrong(const char *what)
{
    fprintf(stderr, "wrong: %s\n", what);
    fflush(stderr);
    _exit(9);
}

static bool same(const trn_tensor *a, const trn_tensor *b)
{
    if (a->dtype != b->dtype || !trn_shape_eq(&a->shape, &b->shape))
        return false;
    if (a->dtype == TRN_STRING) {
        for (int64_t i = 0; i < a->count; i++)
            if (!trn_str_eq(&TRN_DATA(a, trn_str)[i], &TRN_DATA(b, trn_str)[i]))
                return false;
        return true;
    }
    return !trn_dtype_is_plain(a->dtype) || !memcmp(a->data, b->data, trn_tensor_bytes(a));
}

/* Their rules ask for more than their kernels do, in TensorFlow, too; or an attr says what shape comes out, whether it is true or not. */
static bool stricter(const char *op)
{
    static const char *const names[] = {"Fill", "PlaceholderWithDefault", "UncompressElement", "QuantizeAndDequantizeV2", "QuantizeAndDequantizeV3", "QuantizeAndDequantizeV4"};
    for (size_t i = 0; i < TRN_COUNTOF(names); i++)
        if (strcmp(op, names[i]) == 0)
            return true;
    return strstr(op, "BackpropFilter") || strncmp(op, "TensorArray", 11) == 0; /* no filter of any rank; whatever comes as flow goes on as flow */
}

static void check_rule(optest *t, bool known, bool ran)
{
    ran &= !stricter(t->node.op);
    trn_shape in[OPTEST_MAX], out[OPTEST_MAX];
    const trn_tensor *value[OPTEST_MAX];
    for (int i = 0; i < t->k.n_in; i++) {
        in[i] = known && t->in[i].t ? t->in[i].t->shape : trn_shape_unknown();
        value[i] = known ? t->in[i].t : NULL;
    }
    for (int i = 0; i < t->k.n_out; i++)
        out[i] = trn_shape_unknown();
    trn_shctx s = {.node = &t->node, .n_in = t->k.n_in, .n_out = t->k.n_out, .in = in, .value = value, .out = out};
    trn_err e = t->node.def->row->shape(&s);
    if (e && ran) {
        fprintf(stderr, "%s\n", trn_err_msg(e));
        wrong("the shape rule refuses what the kernel takes");
    }
    for (int i = 0; i < t->k.n_out && !e && ran; i++)
        if (t->out[i].t && !trn_shape_compatible(&out[i], &t->out[i].t->shape)) {
            char a[TRN_SHAPE_TEXT], b[TRN_SHAPE_TEXT];
            fprintf(stderr, "output %d is %s, the shape rule says %s\n", i, trn_shape_text(a, &t->out[i].t->shape), trn_shape_text(b, &out[i]));
            wrong("the shape rule and the kernel differ");
        }
    trn_err_free(e);
}

static trn_err go(odd *o, optest *t)
{
    trn_err e = optest_go(t);
    if (e || !(t->node.def->row->flags & TRN_OP_ASYNC))
        return e;
    e = optest_wait(t, 2);
    if (trn_err_code(e) != TRN_DEADLINE_EXCEEDED || t->done)
        return e;
    trn_err_free(e);
    trn_cancel_fire(o->cancel, trn_errorf(TRN_CANCELLED, "no more time"));
    e = optest_wait(t, 10000);
    if (!t->done)
        wrong("was cancelled ten seconds ago");
    return e;
}

static void one(const trn_opdef *def, int nr, uint64_t seed)
{
    odd o = {.mgr = trn_resmgr_new(""), .step_mgr = trn_resmgr_new("step"), .cancel = trn_cancel_new(), .rdv = trn_rdv_local_new()};
    static const trn_dtype wants[] = {TRN_FLOAT, TRN_FLOAT, TRN_FLOAT, TRN_DOUBLE, TRN_INT32, TRN_INT64, TRN_HALF, TRN_STRING, TRN_BOOL, TRN_COMPLEX64, TRN_INT8, TRN_UINT8, TRN_BFLOAT16, TRN_UINT64, TRN_COMPLEX128};
    rng = trn_hash(def->row->name, strlen(def->row->name)) ^ seed << 40 ^ (uint64_t)nr;
    (void)rnd();
    o.want = PICK(wants);
    o.base = any_shape();
    o.tame = chance(50);
    o.named = chance(40);
    o.n = below(4);
    o.r = 1 + below(3);
    if (o.named && chance(50)) { /* what windows slide over, two dims or three */
        o.base.rank = 4 + chance(25);
        for (int i = 0; i < o.base.rank; i++)
            o.base.dim[i] = 1 + below(4);
    }
    sh->what[0] = 0;
    pthread_mutex_lock(&now_mu);
    now = &o;
    pthread_mutex_unlock(&now_mu);
    optest t;
    begin(&o, &t, def->row->name);
    bool filled = fill(&o, &t, def, false);
    trn_tensor *held[OPTEST_MAX] = {0};
    trn_value first[OPTEST_MAX] = {{0}};
    bool pure = !(def->row->flags & (TRN_OP_STATEFUL | TRN_OP_ASYNC)) && strncmp(def->row->name, "ExtractGlimpse", 14) != 0, has_vars = false; /* glimpses: noise outside */
    if (filled) {
        if (!quiet)
            describe(&t);
        for (int i = 0; i < t.k.n_in; i++) {
            has_vars |= t.in[i].var != NULL;
            pure &= t.in[i].t && trn_dtype_base(t.in[i].t->dtype) != TRN_RESOURCE && trn_dtype_base(t.in[i].t->dtype) != TRN_VARIANT;
        }
        for (int i = 0; pure && i < t.k.n_in; i++)
            if (trn_tensor_copy(&held[i], t.in[i].t))
                abort();
        trn_err e = optest_prepare(&t);
        if (!e) {
            trn_tensor *mine[OPTEST_MAX] = {0};
            for (int i = 0; pure && i < t.k.n_in; i++)
                mine[i] = trn_tensor_ref(t.in[i].t);
            mallopt(M_PERTURB, 0x55);
            e = go(&o, &t);
            atomic_fetch_add(e ? &sh->refused : &sh->ran, 1);
            if (sh->op < (int)TRN_COUNTOF(sh->ran_of))
                sh->ran_of[sh->op] += !e;
            for (int i = 0; pure && i < t.k.n_in; i++)
                if (!same(mine[i], held[i]))
                    wrong("the kernel wrote into an input that others hold");
            for (int i = 0; i < t.k.n_in; i++)
                trn_tensor_unref(mine[i]);
            for (int i = 0; !e && i < t.k.n_out; i++)
                if (!t.out[i].t && !t.out[i].var && strcmp(def->row->name, "MapDefun") != 0) /* of no elements whose shape only the function knows */
                    wrong("an output is missing");
            if (def->row->shape && !has_vars) {
                check_rule(&t, true, !e);
                check_rule(&t, false, !e);
            }
            if (!e && pure && !trn_cancelled(o.cancel)) {
                memcpy(first, t.out, sizeof first);
                memset(t.out, 0, sizeof t.out);
                for (int i = 0; i < t.k.n_in; i++) {
                    trn_tensor_unref(t.in[i].t);
                    t.in[i].t = held[i];
                    held[i] = NULL;
                }
                mallopt(M_PERTURB, 0xaa);
                e = go(&o, &t);
                if (e && !trn_cancelled(o.cancel)) {
                    fprintf(stderr, "%s\n", trn_err_msg(e));
                    wrong("fails with inputs of its own");
                }
                for (int i = 0; !e && i < t.k.n_out; i++)
                    if (first[i].t && !same(first[i].t, t.out[i].t)) {
                        trn_sb s = {0};
                        trn_tensor_text(&s, first[i].t, 20);
                        trn_sb_adds(&s, "\n");
                        trn_tensor_text(&s, t.out[i].t, 20);
                        fprintf(stderr, "output %d: %s\n", i, s.p);
                        wrong("is something else the second time");
                    }
            }
        }
        if (e && trn_err_code(e) == TRN_INTERNAL && getenv("TRAINERA_ODD_INTERNAL"))
            fprintf(stderr, "%s\n", trn_err_msg(e)), wrong("INTERNAL");
        trn_err_free(e);
    }
    for (int i = 0; i < OPTEST_MAX; i++) {
        trn_tensor_unref(held[i]);
        trn_tensor_unref(first[i].t);
    }
    drop_vars(&t);
    optest_end(&t);
    for (int i = o.n_made - 1; i >= 0; i--) {
        drop_vars(&o.made[i]->t);
        optest_end(&o.made[i]->t);
        free(o.made[i]);
    }
    pthread_mutex_lock(&now_mu);
    now = NULL;
    pthread_mutex_unlock(&now_mu);
    trn_resmgr_clear(o.step_mgr, NULL);
    trn_resmgr_clear(o.mgr, NULL);
    trn_resmgr_unref(o.step_mgr);
    trn_resmgr_unref(o.mgr);
    trn_rdv_unref(o.rdv);
    trn_cancel_unref(o.cancel);
}

/* ---- child and parent ---------------------------------------------------------------------------------------------------------------- */

static void *watchdog(void *arg)
{
    (void)arg;
    int op = -1, nr = -1, ms = 0;
    for (;; usleep(20000)) {
        if (op != sh->op || nr != sh->nr) {
            op = sh->op, nr = sh->nr, ms = 0;
            continue;
        }
        if ((ms += 20) < CANCEL_MS)
            continue;
        trn_cancel *c = NULL;
        pthread_mutex_lock(&now_mu);
        if (now && !trn_cancelled(now->cancel))
            c = trn_cancel_ref(now->cancel);
        pthread_mutex_unlock(&now_mu);
        if (c) {
            trn_cancel_fire(c, trn_errorf(TRN_CANCELLED, "no more time"));
            trn_cancel_unref(c);
        }
    }
    return NULL;
}

static bool wanted(const trn_opdef *d, const char *name)
{
    size_t n = name ? strlen(name) : 0;
    if (!name)
        return true;
    return name[n - 1] == '*' ? strncmp(d->row->name, name, n - 1) == 0 : strcmp(d->row->name, name) == 0;
}

static void child(int op, int nr, int cases, uint64_t seed, const char *name, const char *dir)
{
    if (chdir(dir))
        _exit(8);
    if (!TRN_ASAN)
        setrlimit(RLIMIT_AS, &(struct rlimit){(rlim_t)3 << 30, (rlim_t)3 << 30});
    setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
    pthread_t th;
    if (pthread_create(&th, NULL, watchdog, NULL))
        _exit(8);
    trn_log_set_level(TRN_LOG_OFF);
    (void)trn_fpu_flush(); /* as the executor does */
    for (; op < trn_op_count(); op++, nr = 0) {
        const trn_opdef *d = trn_op_at(op);
        if (skipped(d) || !wanted(d, name))
            continue;
        if (ftruncate(1, 0) || (!getenv("TRAINERA_ODD_LOG") && ftruncate(2, 0)))
            _exit(8);
        for (; nr < cases; nr++) {
            sh->nr = nr;
            sh->op = op;
            one(d, nr, seed);
        }
#if TRN_ASAN
        if (name || cases > 1000) { /* of one op, so that it is known whose it is */
            snprintf(sh->what, sizeof sh->what, "memory was not freed by one of its cases");
            __lsan_do_leak_check();
        }
#endif
    }
    sh->at_end = 1;
}

static uint64_t cpu_ms(pid_t p)
{
    clockid_t c;
    struct timespec ts;
    return clock_getcpuclockid(p, &c) || clock_gettime(c, &ts) ? 0 : (uint64_t)ts.tv_sec * 1000 + (uint64_t)ts.tv_nsec / 1000000;
}

/* How it ended: NULL, or what is wrong. */
static const char *wait_for(pid_t p, char text[64])
{
    int op = -1, nr = -1, st;
    uint64_t cpu = 0, wall = 0, used;
    for (;; usleep(sh->at_end ? 1000 : 10000)) {
        if (waitpid(p, &st, WNOHANG) == p) {
            if (WIFEXITED(st) && !WEXITSTATUS(st))
                return NULL;
            if (WIFSIGNALED(st))
                snprintf(text, 64, "%s", strsignal(WTERMSIG(st)));
            else
                snprintf(text, 64, "ended with %d", WEXITSTATUS(st));
            return text;
        }
        if (op != sh->op || nr != sh->nr) {
            op = sh->op, nr = sh->nr;
            cpu = cpu_ms(p);
            wall = trn_now_ns();
        } else if (!sh->at_end && ((used = cpu_ms(p) - cpu) > CPU_MS || trn_now_ns() > wall + WALL_MS * UINT64_C(1000000))) {
            kill(p, SIGKILL);
            waitpid(p, &st, 0);
            return used > CPU_MS ? "computes on, though it was cancelled" : "waits on, though it was cancelled";
        }
    }
}

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : NULL, *env = getenv("TRAINERA_ODD_CASES"), *s = getenv("TRAINERA_ODD_SEED");
    int cases = env ? atoi(env) : name ? 2000 : 200;
    uint64_t seed = s ? strtoull(s, NULL, 10) : 0;
    sh = mmap(NULL, sizeof *sh, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (sh == MAP_FAILED)
        return 2;
    if (argc > 2) { /* one case, here */
        const trn_opdef *d = trn_op_find(name);
        if (!d)
            return 2;
        one(d, atoi(argv[2]), seed);
        printf("%s\n%s\n", sh->what, sh->ran ? "ran" : sh->refused ? "refused" : "no such inputs");
        return 0;
    }
    char dir[] = "/tmp/trainera-odd-XXXXXX";
    if (!mkdtemp(dir))
        return 2;
    int op = 0, nr = 0, findings = 0, of_op = 0;
    uint64_t start = trn_now_ns();
    for (;;) {
        FILE *said = tmpfile();
        if (!said)
            return 2;
        fflush(stdout);
        pid_t p = fork();
        if (p < 0)
            return 2;
        if (!p) {
            fcntl(fileno(said), F_SETFL, O_APPEND);
            dup2(fileno(said), 1);
            int log = getenv("TRAINERA_ODD_LOG") ? open(getenv("TRAINERA_ODD_LOG"), O_WRONLY | O_CREAT | O_APPEND, 0644) : -1;
            dup2(log >= 0 ? log : fileno(said), 2);
            child(op, nr, cases, seed, name, dir);
            _exit(0);
        }
        char text[64];
        const char *bad = wait_for(p, text);
        if (!bad) {
            fclose(said);
            break;
        }
        findings++;
        printf("%s %d: %s\n    %s\n", trn_op_at(sh->op)->row->name, sh->nr, bad, sh->what);
        rewind(said);
        char line[1000];
        for (int n = 0; n < 30 && fgets(line, sizeof line, said); n++)
            printf("    > %s", line);
        fclose(said);
        of_op = op == sh->op ? of_op + 1 : 1;
        op = sh->op;
        nr = sh->nr + 1;
        if (of_op >= MAX_FINDINGS)
            op++, nr = of_op = 0;
        sh->at_end = 0;
    }
    char cmd[64];
    snprintf(cmd, sizeof cmd, "rm -rf %s", dir);
    (void)!system(cmd);
    printf("%d ops, %d cases of each: %llu ran, %llu were refused, in %.1f s\n", trn_op_count(), cases, (unsigned long long)sh->ran, (unsigned long long)sh->refused, (double)(trn_now_ns() - start) / 1e9);
    if (getenv("TRAINERA_ODD_LIST")) {
        printf("no inputs made these run:");
        for (int i = 0; i < trn_op_count(); i++)
            if (wanted(trn_op_at(i), name) && !skipped(trn_op_at(i)) && !sh->ran_of[i])
                printf(" %s", trn_op_at(i)->row->name);
        printf("\n");
    }
    printf(findings ? "%d findings\n" : "nothing found\n", findings);
    return findings != 0;
}
