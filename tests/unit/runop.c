/* Runs kernels for tests/parity/kernels.py: requests on stdin, answers on stdout, little-endian.
 *
 * request:  str op, u32 n_attrs {str name, u8 kind "sifbth", u8 is_list, u32 n, values}, u32 n_inputs {tensor}
 * answer:   u32 code, str message, u32 n_outputs {tensor}
 * str: u32 n, bytes. tensor: u32 dtype, i32 rank, i64 dims, then the bytes, or a str per element.
 *
 * Every request runs three times: with inputs that others hold, with inputs the kernel may overwrite, and its shape rule on known and
 * unknown shapes. A difference between them is an error of its own (code 90 and up).
 */
#include <unistd.h>

#include "io/loop.h"
#include "optest.h"

static void need(void *p, size_t n)
{
    if (n && fread(p, 1, n, stdin) != n)
        exit(0);
}
static uint32_t u32(void)
{
    uint32_t v;
    need(&v, 4);
    return v;
}
static char *str(trn_arena *a, size_t *n)
{
    uint32_t len = u32();
    char *p = trn_arena_alloc(a, (size_t)len + 1);
    need(p, len);
    if (n)
        *n = len;
    return p;
}
static trn_shape *shape(trn_arena *a)
{
    trn_shape *s = trn_arena_alloc(a, sizeof *s);
    need(&s->rank, 4);
    for (int i = 0; i < s->rank; i++)
        need(&s->dim[i], 8);
    return s;
}

static trn_tensor *tensor(trn_arena *a)
{
    trn_dtype dt = (trn_dtype)u32();
    trn_shape *s = shape(a);
    trn_tensor *t;
    trn_err e = trn_tensor_new(&t, dt, s);
    if (e) {
        fprintf(stderr, "runop: %s\n", trn_err_msg(e));
        exit(2);
    }
    if (dt == TRN_STRING)
        for (int64_t i = 0; i < t->count; i++) {
            size_t n;
            char *p = str(a, &n);
            if (trn_tensor_str_put(t, i, p, n))
                exit(2);
        }
    else
        need(t->data, trn_tensor_bytes(t));
    return t;
}

static void attr(optest *t, trn_attr *at)
{
    at->name = str(t->arena, NULL);
    char kind, list;
    need(&kind, 1);
    need(&list, 1);
    at->is_list = list;
    at->n = (int)u32();
    trn_attr_val *v = trn_arena_alloc(t->arena, sizeof *v * (size_t)(at->n + 1));
    at->kind = kind == 's' ? TRN_ATTR_STRING : kind == 'i' ? TRN_ATTR_INT : kind == 'f' ? TRN_ATTR_FLOAT : kind == 'b' ? TRN_ATTR_BOOL : kind == 't' ? TRN_ATTR_TYPE : TRN_ATTR_SHAPE;
    for (int i = 0; i < (list ? at->n : 1); i++) {
        uint8_t b;
        switch (kind) {
        case 's': v[i].s.p = str(t->arena, &v[i].s.n); break;
        case 'i': need(&v[i].i, 8); break;
        case 'f': need(&v[i].f, 4); break;
        case 'b': need(&b, 1); v[i].b = b; break;
        case 't': v[i].type = (trn_dtype)u32(); break;
        default: v[i].shape = shape(t->arena); break;
        }
    }
    if (list)
        at->list = v;
    else
        at->v = v[0];
}

static void put(const void *p, size_t n)
{
    if (n && fwrite(p, 1, n, stdout) != n)
        exit(2);
}
static void put_u32(uint32_t v) { put(&v, 4); }
static void put_str(const char *p, size_t n)
{
    put_u32((uint32_t)n);
    put(p, n);
}
static void put_tensor(const trn_tensor *t)
{
    put_u32((uint32_t)t->dtype);
    put(&t->shape.rank, 4);
    put(t->shape.dim, sizeof(int64_t) * (size_t)t->shape.rank);
    if (t->dtype != TRN_STRING) {
        put(t->data, trn_tensor_bytes(t));
        return;
    }
    for (int64_t i = 0; i < t->count; i++) {
        size_t n;
        const char *p = trn_tensor_str_at(t, i, &n);
        put_str(p, n);
    }
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
    return !memcmp(a->data, b->data, trn_tensor_bytes(a));
}

static trn_err check_rule(const optest *t, trn_value *outs, bool known)
{
    trn_shape in[OPTEST_MAX], out[OPTEST_MAX];
    const trn_tensor *value[OPTEST_MAX];
    for (int i = 0; i < t->k.n_in; i++) {
        in[i] = known ? t->in[i].t->shape : trn_shape_unknown();
        value[i] = known ? t->in[i].t : NULL;
    }
    for (int i = 0; i < t->k.n_out; i++)
        out[i] = trn_shape_unknown();
    trn_shctx s = {.node = &t->node, .n_in = t->k.n_in, .n_out = t->k.n_out, .in = in, .value = value, .out = out};
    trn_err e = t->node.def->row->shape(&s);
    if (!outs) { /* the kernel failed: so may the rule */
        trn_err_free(e);
        return TRN_OK;
    }
    if (e)
        return trn_err_wrap(e, "the shape rule refuses what the kernel takes");
    for (int i = 0; i < t->k.n_out; i++)
        if (!trn_shape_compatible(&out[i], &outs[i].t->shape)) {
            char a[TRN_SHAPE_TEXT], b[TRN_SHAPE_TEXT];
            return trn_errorf(TRN_INTERNAL, "output %d is %s, the shape rule says %s", i, trn_shape_text(a, &outs[i].t->shape), trn_shape_text(b, &out[i]));
        }
    return TRN_OK;
}

static void answer(uint32_t code, const char *msg, const optest *t)
{
    put_u32(code);
    put_str(msg, strlen(msg));
    put_u32(code ? 0 : (uint32_t)t->k.n_out);
    for (int i = 0; !code && i < t->k.n_out; i++)
        put_tensor(t->out[i].t);
    fflush(stdout);
}

/* RUNOP_THREADS=n: kernels may use n threads, and divide even the smallest tensors among them. */
static trn_pool *pool;

static void pool_for(const trn_kctx *k, int64_t n, int64_t grain, void (*fn)(void *, int64_t, int64_t), void *arg) { trn_pool_for(pool, n, grain, fn, arg); }
static int pool_threads(const trn_kctx *k) { return trn_pool_threads(pool); }

static void one(void)
{
    static const trn_step_api threaded = {.done = optest_done, .parallel_for = pool_for, .threads = pool_threads};
    optest t;
    trn_arena *tmp = trn_arena_new();
    optest_begin(&t, str(tmp, NULL));
    if (pool)
        t.step.api = &threaded;
    uint32_t n = u32();
    for (uint32_t i = 0; i < n; i++)
        attr(&t, &t.attrs[t.node.n_attrs++]);
    n = u32();
    trn_tensor *held[OPTEST_MAX];
    for (uint32_t i = 0; i < n; i++) {
        held[i] = tensor(tmp);
        trn_tensor *c;
        if (trn_tensor_copy(&c, held[i]))
            exit(2);
        optest_input(&t, c);
    }
    trn_err e = optest_prepare(&t);
    trn_value first[OPTEST_MAX] = {{0}};
    uint32_t code = 0;
    if (!e) {
        /* Held inputs first: nothing of them may change. */
        trn_tensor *mine[OPTEST_MAX];
        for (int i = 0; i < t.k.n_in; i++) {
            mine[i] = t.in[i].t;
            t.in[i].t = trn_tensor_ref(held[i]);
        }
        e = optest_go(&t);
        for (int i = 0; i < t.k.n_in && !code; i++)
            if (!same(held[i], mine[i]) && held[i]->dtype != TRN_RESOURCE)
                code = 90;
        trn_err r = check_rule(&t, e ? NULL : t.out, true);
        if (!r)
            r = check_rule(&t, e ? NULL : t.out, false);
        if (r) {
            code = 91;
            trn_err_free(e);
            e = r;
        }
        for (int i = 0; i < t.k.n_in; i++) {
            trn_tensor_unref(t.in[i].t);
            t.in[i].t = mine[i];
        }
        if (!e && !(t.node.def->row->flags & TRN_OP_STATEFUL)) { /* a second run of those is another result */
            memcpy(first, t.out, sizeof first);
            memset(t.out, 0, sizeof t.out);
            e = optest_go(&t);
            if (e)
                code = 92;
            for (int i = 0; i < t.k.n_out && !e; i++)
                if (!same(first[i].t, t.out[i].t))
                    code = 93;
        }
    }
    if (!code)
        code = (uint32_t)trn_err_code(e);
    static const char *const why[] = {"the kernel wrote into an input that others hold", "shape rule", "fails with inputs of its own", "differs with inputs of its own"};
    answer(code, e ? trn_err_msg(e) : code >= 90 ? why[code - 90] : "", &t);
    trn_err_free(e);
    for (uint32_t i = 0; i < n; i++)
        trn_tensor_unref(held[i]);
    for (int i = 0; i < OPTEST_MAX; i++)
        trn_tensor_unref(first[i].t);
    optest_end(&t);
    trn_arena_free(tmp);
}

int main(void)
{
    trn_fpu_flush(); /* as the executor does */
    const char *threads = getenv("RUNOP_THREADS");
    if (threads && atoi(threads) > 0) {
        if (trn_pool_open(&pool, atoi(threads), "runop"))
            return 2;
        trn_grain_cap = 2;
    }
    for (int c; (c = getc(stdin)) != EOF;) {
        ungetc(c, stdin);
        one();
    }
    if (pool) /* the leak checker may trip over threads that still run */
        trn_pool_close(pool);
    return 0;
}
