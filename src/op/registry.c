/* Signature parsing and the table of all ops. */
#include "op/registry.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>

#include "op/families.h"

/* ---- dtype sets ------------------------------------------------------------------------------------------------ */

#define B(t) (UINT64_C(1) << (t))
#define SET_FLOAT (B(TRN_HALF) | B(TRN_BFLOAT16) | B(TRN_FLOAT) | B(TRN_DOUBLE))
#define SET_INT                                                                                                        \
    (B(TRN_INT8) | B(TRN_INT16) | B(TRN_INT32) | B(TRN_INT64) | B(TRN_UINT8) | B(TRN_UINT16) | B(TRN_UINT32) |         \
     B(TRN_UINT64))
#define SET_REAL (SET_FLOAT | SET_INT)
#define SET_NUM (SET_REAL | B(TRN_COMPLEX64) | B(TRN_COMPLEX128))
#define SET_QUANT (B(TRN_QINT8) | B(TRN_QUINT8) | B(TRN_QINT16) | B(TRN_QUINT16) | B(TRN_QINT32))
#define SET_ANY (~UINT64_C(0) & ~B(TRN_INVALID))

static uint64_t type_set(const char *p, size_t n)
{
    static const struct {
        const char *name;
        uint64_t set;
    } sets[] = {{"float", SET_FLOAT}, {"int", SET_INT}, {"real", SET_REAL}, {"num", SET_NUM}, {"quant", SET_QUANT}, {"any", SET_ANY}, {"type", SET_ANY}};
    for (size_t i = 0; i < TRN_COUNTOF(sets); i++)
        if (strlen(sets[i].name) == n && !memcmp(sets[i].name, p, n))
            return sets[i].set;
    trn_dtype t = trn_dtype_parse(p, n);
    return t == TRN_INVALID ? 0 : B(t);
}

/* ---- a tiny scanner -------------------------------------------------------------------------------------------- */

/* Which attrs exist is known only after the arguments are read: keep the words, bind later. */
typedef struct raw_arg {
    const char *type, *number;
    size_t type_n, number_n;
} raw_arg;

typedef struct scan {
    const char *p;
    trn_arena *a;
    const trn_op *row;
    raw_arg args[128]; /* inputs, then outputs */
    int n_args;
} scan;

static trn_err bad(const scan *s, const char *what)
{
    return trn_errorf(TRN_INTERNAL, "op %s: signature \"%s\": %s at \"%.20s\"", s->row->name, s->row->sig, what, s->p);
}

static void skip(scan *s)
{
    while (*s->p == ' ' || *s->p == '\n')
        s->p++;
}

static bool eat(scan *s, const char *tok)
{
    skip(s);
    size_t n = strlen(tok);
    if (strncmp(s->p, tok, n))
        return false;
    s->p += n;
    return true;
}

static bool word(scan *s, const char **p, size_t *n)
{
    skip(s);
    const char *b = s->p;
    while (isalnum((unsigned char)*s->p) || *s->p == '_')
        s->p++;
    *p = b;
    *n = (size_t)(s->p - b);
    return *n > 0;
}

static void drop_tensor(void *t) { trn_tensor_unref(t); }

static trn_err parse_scalar_value(scan *s, trn_attr_kind kind, trn_attr_val *v)
{
    skip(s);
    const char *p;
    size_t n;
    char *end;
    switch (kind) {
    case TRN_ATTR_INT:
        v->i = strtoll(s->p, &end, 10);
        if (end == s->p)
            return bad(s, "number expected");
        s->p = end;
        return TRN_OK;
    case TRN_ATTR_FLOAT:
        v->f = strtof(s->p, &end);
        if (end == s->p)
            return bad(s, "number expected");
        s->p = end;
        return TRN_OK;
    case TRN_ATTR_BOOL:
        if (!word(s, &p, &n))
            return bad(s, "true or false expected");
        v->b = n == 4 && !memcmp(p, "true", 4);
        return TRN_OK;
    case TRN_ATTR_TYPE: {
        if (!word(s, &p, &n))
            return bad(s, "dtype expected");
        v->type = trn_dtype_parse(p, n);
        return v->type == TRN_INVALID ? bad(s, "unknown dtype") : TRN_OK;
    }
    case TRN_ATTR_SHAPE: {
        trn_shape sh = trn_shape_unknown();
        if (!eat(s, "?")) {
            if (!eat(s, "["))
                return bad(s, "shape expected: ? or [1,2]");
            sh.rank = 0;
            while (!eat(s, "]")) {
                sh.dim[sh.rank++] = strtoll(s->p, &end, 10);
                if (end == s->p || sh.rank == TRN_MAX_RANK)
                    return bad(s, "bad shape");
                s->p = end;
                (void)eat(s, ",");
            }
        }
        v->shape = trn_arena_dup(s->a, &sh, sizeof sh);
        return TRN_OK;
    }
    case TRN_ATTR_STRING: {
        if (eat(s, "\"")) {
            const char *b = s->p;
            while (*s->p && *s->p != '"')
                s->p++;
            if (*s->p != '"')
                return bad(s, "closing quote missing");
            v->s.n = (size_t)(s->p - b);
            v->s.p = trn_arena_strndup(s->a, b, v->s.n);
            s->p++;
            return TRN_OK;
        }
        const char *b = s->p;
        while (*s->p && *s->p != ',' && *s->p != ']' && *s->p != '}')
            s->p++;
        const char *e = s->p;
        while (e > b && e[-1] == ' ')
            e--;
        v->s.n = (size_t)(e - b);
        v->s.p = trn_arena_strndup(s->a, b, v->s.n);
        return TRN_OK;
    }
    case TRN_ATTR_TENSOR: { /* a vector of small numbers: u8[255,0] */
        if (!word(s, &p, &n))
            return bad(s, "dtype expected");
        trn_dtype dt = trn_dtype_parse(p, n);
        int64_t elem[64];
        trn_shape sh = trn_shape_vector(0);
        if (dt != TRN_UINT8 || !eat(s, "["))
            return bad(s, "tensor expected: u8[1,2]");
        while (!eat(s, "]")) {
            elem[sh.dim[0]++] = strtoll(s->p, &end, 10);
            if (end == s->p || sh.dim[0] == 64)
                return bad(s, "bad tensor");
            s->p = end;
            (void)eat(s, ",");
        }
        TRN_TRY(trn_tensor_new(&v->tensor, dt, &sh));
        for (int64_t i = 0; i < sh.dim[0]; i++)
            TRN_DATA_MUT(v->tensor, uint8_t)[i] = (uint8_t)elem[i];
        trn_arena_on_free(s->a, drop_tensor, v->tensor);
        return TRN_OK;
    }
    default:
        return bad(s, "this kind of attr cannot have a default");
    }
}

static trn_err parse_attr_default(scan *s, trn_attrdef *d)
{
    d->has_default = true;
    d->def.name = d->name;
    d->def.kind = d->kind;
    d->def.is_list = d->is_list;
    if (!d->is_list)
        return parse_scalar_value(s, d->kind, &d->def.v);
    if (!eat(s, "["))
        return bad(s, "list default expected: [..]");
    trn_attr_val tmp[64];
    int n = 0;
    while (!eat(s, "]")) {
        if (n == 64)
            return bad(s, "list default too long");
        TRN_TRY(parse_scalar_value(s, d->kind, &tmp[n++]));
        (void)eat(s, ",");
    }
    d->def.n = n;
    d->def.list = trn_arena_dup(s->a, tmp, sizeof tmp[0] * (size_t)n);
    return TRN_OK;
}

static bool types_an_arg(const scan *s, const char *name)
{
    for (int i = 0; i < s->n_args; i++)
        if (strlen(name) == s->args[i].type_n && !memcmp(name, s->args[i].type, s->args[i].type_n))
            return true;
    return false;
}

static trn_err parse_attr(scan *s, trn_attrdef *d)
{
    const char *p;
    size_t n;
    d->min = INT64_MIN;
    if (!word(s, &p, &n))
        return bad(s, "attr name expected");
    d->name = trn_arena_strndup(s->a, p, n);
    if (!eat(s, ":"))
        return bad(s, "':' expected");
    if (eat(s, "list("))
        d->is_list = true;
    static const struct {
        const char *name;
        trn_attr_kind kind;
    } kinds[] = {{"int", TRN_ATTR_INT},     {"float", TRN_ATTR_FLOAT},   {"bool", TRN_ATTR_BOOL}, {"string", TRN_ATTR_STRING},
                 {"shape", TRN_ATTR_SHAPE}, {"tensor", TRN_ATTR_TENSOR}, {"func", TRN_ATTR_FUNC}};
    if (eat(s, "{")) { /* string with allowed values */
        d->kind = TRN_ATTR_STRING;
        const char *vals[32];
        while (!eat(s, "}")) {
            if (d->n_allowed == 32)
                return bad(s, "too many allowed values");
            trn_attr_val v;
            TRN_TRY(parse_scalar_value(s, TRN_ATTR_STRING, &v));
            vals[d->n_allowed++] = v.s.p;
            (void)eat(s, ",");
        }
        d->allowed = trn_arena_dup(s->a, vals, sizeof vals[0] * (size_t)d->n_allowed);
    } else {
        const char *save = s->p;
        if (!word(s, &p, &n))
            return bad(s, "attr type expected");
        skip(s);
        for (size_t i = 0; i < TRN_COUNTOF(kinds); i++) {
            if (strlen(kinds[i].name) != n || memcmp(kinds[i].name, p, n))
                continue;
            /* "int" and "float" also name dtype sets: an attr that is some argument's type is a set, and so is a union. */
            if (*s->p == '|' || types_an_arg(s, d->name))
                break;
            d->kind = kinds[i].kind;
            break;
        }
        if (d->kind == TRN_ATTR_NONE) {
            d->kind = TRN_ATTR_TYPE;
            s->p = save;
            do {
                if (!word(s, &p, &n))
                    return bad(s, "dtype expected");
                uint64_t set = type_set(p, n);
                if (!set)
                    return bad(s, "unknown dtype");
                d->types |= set;
            } while (eat(s, "|"));
        }
    }
    if (d->is_list && !eat(s, ")"))
        return bad(s, "')' expected");
    if (eat(s, ">=")) {
        char *end;
        skip(s);
        d->min = strtoll(s->p, &end, 10);
        s->p = end;
    }
    if (eat(s, "="))
        return parse_attr_default(s, d);
    return TRN_OK;
}

static trn_err parse_args(scan *s, trn_argdef *args, int *count, const char *stop)
{
    for (;;) {
        skip(s);
        if (!*s->p || !strncmp(s->p, stop, strlen(stop)))
            return TRN_OK;
        if (*count == 64)
            return bad(s, "too many arguments");
        trn_argdef *d = &args[*count];
        raw_arg *r = &s->args[s->n_args++];
        *d = (trn_argdef){.type_attr = -1, .number_attr = -1, .type_list_attr = -1};
        *r = (raw_arg){0};
        const char *p;
        size_t n;
        if (!word(s, &p, &n))
            return bad(s, "argument name expected");
        d->name = trn_arena_strndup(s->a, p, n);
        if (!eat(s, ":"))
            return bad(s, "':' expected");
        d->is_ref = eat(s, "&");
        if (!word(s, &r->type, &r->type_n))
            return bad(s, "type expected");
        if (eat(s, "*")) {
            r->number = r->type;
            r->number_n = r->type_n;
            if (eat(s, "&"))
                d->is_ref = true;
            if (!word(s, &r->type, &r->type_n))
                return bad(s, "type expected");
        }
        (*count)++;
        if (!eat(s, ","))
            continue;
    }
}

static int find_attr(const trn_opdef *o, const char *p, size_t n)
{
    for (int i = 0; i < o->n_attrs; i++)
        if (strlen(o->attrs[i].name) == n && !memcmp(o->attrs[i].name, p, n))
            return i;
    return -1;
}

static trn_err bind_args(const scan *s, const trn_opdef *o, trn_argdef *args, const raw_arg *raw, int n)
{
    for (int i = 0; i < n; i++) {
        if (raw[i].number) {
            args[i].number_attr = find_attr(o, raw[i].number, raw[i].number_n);
            if (args[i].number_attr < 0 || o->attrs[args[i].number_attr].kind != TRN_ATTR_INT)
                return bad(s, "N of an N*T argument is not an int attr");
        }
        int t = find_attr(o, raw[i].type, raw[i].type_n);
        if (t >= 0) {
            if (o->attrs[t].kind != TRN_ATTR_TYPE)
                return bad(s, "argument's type is not a type attr");
            if (o->attrs[t].is_list)
                args[i].type_list_attr = t;
            else
                args[i].type_attr = t;
            continue;
        }
        args[i].type = trn_dtype_parse(raw[i].type, raw[i].type_n);
        if (args[i].type == TRN_INVALID)
            return bad(s, "argument of unknown type");
    }
    return TRN_OK;
}

trn_err trn_opdef_parse(trn_opdef **out, trn_arena *a, const trn_op *row)
{
    trn_opdef *o = trn_arena_alloc(a, sizeof *o);
    o->row = row;
    scan s = {.p = row->sig, .a = a, .row = row};
    trn_argdef in[64], outs[64];
    TRN_TRY(parse_args(&s, in, &o->n_in, "->"));
    if (!eat(&s, "->"))
        return bad(&s, "'->' expected");
    TRN_TRY(parse_args(&s, outs, &o->n_out, ";"));
    trn_attrdef attrs[64];
    memset(attrs, 0, sizeof attrs);
    if (eat(&s, ";")) {
        for (skip(&s); *s.p; skip(&s)) {
            if (o->n_attrs == 64)
                return bad(&s, "too many attrs");
            TRN_TRY(parse_attr(&s, &attrs[o->n_attrs]));
            o->n_attrs++;
            skip(&s);
            if (*s.p && !eat(&s, ","))
                return bad(&s, "',' expected");
        }
    }
    if (*s.p)
        return bad(&s, "junk behind the signature");
    o->attrs = trn_arena_dup(a, attrs, sizeof attrs[0] * (size_t)o->n_attrs);
    TRN_TRY(bind_args(&s, o, in, s.args, o->n_in));
    TRN_TRY(bind_args(&s, o, outs, s.args + o->n_in, o->n_out));
    o->in = trn_arena_dup(a, in, sizeof in[0] * (size_t)o->n_in);
    o->out = trn_arena_dup(a, outs, sizeof outs[0] * (size_t)o->n_out);
    *out = o;
    return TRN_OK;
}

/* ---- the table ------------------------------------------------------------------------------------------------- */

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_rwlock_t table_lock = PTHREAD_RWLOCK_INITIALIZER; /* only tests add rows later */
static trn_arena *table_arena;
static trn_map *table;
static const trn_opdef **sorted;
static int n_sorted;

static int by_name(const void *a, const void *b)
{
    return strcmp((*(const trn_opdef *const *)a)->row->name, (*(const trn_opdef *const *)b)->row->name);
}

static void add_rows(const trn_op *rows)
{
    for (const trn_op *r = rows; r->name; r++) {
        trn_opdef *d = NULL;
        trn_err e = trn_opdef_parse(&d, table_arena, r);
        if (e || trn_map_gets(table, r->name)) {
            fprintf(stderr, "trainera: %s\n", e ? trn_err_msg(e) : trn_arena_printf(table_arena, "op %s has two rows", r->name));
            abort(); /* a programming error in a table, found by the first test */
        }
        trn_map_puts(table, r->name, d);
        sorted = trn_xrealloc(sorted, sizeof *sorted * (size_t)(n_sorted + 1));
        sorted[n_sorted++] = d;
    }
    qsort(sorted, (size_t)n_sorted, sizeof *sorted, by_name);
}

static void build_table(void)
{
    table_arena = trn_arena_new();
    table = trn_map_new();
    for (int i = 0; trn_op_families[i]; i++)
        add_rows(trn_op_families[i]);
}

const trn_opdef *trn_op_find(const char *name)
{
    pthread_once(&once, build_table);
    pthread_rwlock_rdlock(&table_lock);
    const trn_opdef *d = trn_map_gets(table, name);
    pthread_rwlock_unlock(&table_lock);
    return d;
}

int trn_op_count(void)
{
    pthread_once(&once, build_table);
    return n_sorted;
}

const trn_opdef *trn_op_at(int i)
{
    return i >= 0 && i < trn_op_count() ? sorted[i] : NULL;
}

void trn_op_register_test(const trn_op *rows)
{
    pthread_once(&once, build_table);
    pthread_rwlock_wrlock(&table_lock);
    add_rows(rows);
    pthread_rwlock_unlock(&table_lock);
}
