/* Writes trainera/ops.h and the functions behind it: a typed, documented function for each op, from the parsed rows.
 *
 *     gen_ops WORDS.tsv --header ops.h
 *     gen_ops WORDS.tsv --source ops_0.c ops_1.c …
 *     gen_ops WORDS.tsv --calls calls.h           for a test: a call of each function with plain arguments (tests/interop/c/every_op.c)
 *
 * WORDS.tsv says in a sentence what each op computes: lines `Op<TAB>words`, under headings `# Title`; the header follows its order. Ops whose name begins
 * with '_' are internal and get nothing. */
#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "op/registry.h"

#define MAX_FIELDS 96

typedef struct entry {
    const trn_opdef *def; /* NULL: a heading */
    char *words;
    char *snake;
} entry;

static trn_arena *names;
static entry *entries;
static int n_entries;

static _Noreturn void die(const char *fmt, const char *a, const char *b)
{
    fprintf(stderr, "gen_ops: ");
    fprintf(stderr, fmt, a, b);
    fputc('\n', stderr);
    exit(1);
}

/* ---- names ----------------------------------------------------------------------------------------------------- */

/* MatMul → mat_mul, Conv2DBackpropInput → conv2d_backprop_input, FIFOQueueV2 → fifo_queue_v2, L2Loss → l2_loss */
static char *snake_case(const char *name)
{
    char *out = trn_arena_alloc(names, 2 * strlen(name) + 1), *p = out;
    for (const char *s = name; *s; s++) {
        if (isupper((unsigned char)*s) && s > name) {
            bool word_begins = islower((unsigned char)s[1]) || (*s == 'V' && isdigit((unsigned char)s[1]));
            if (islower((unsigned char)s[-1]) || word_begins)
                *p++ = '_';
        }
        *p++ = (char)tolower((unsigned char)*s);
    }
    *p = 0;
    return out;
}

/* What no parameter or member can be called: keywords of C and C++, and what the functions use themselves. */
static bool is_reserved(const char *name)
{
    static const char *const words[] = {
        "alignas",  "alignof", "and",      "asm",      "auto",      "bool",    "break",    "case",     "catch",   "char",     "class",    "const",
        "continue", "default", "delete",   "do",       "double",    "else",    "enum",     "explicit", "export",  "extern",   "false",    "float",
        "for",      "friend",  "goto",     "if",       "inline",    "int",     "long",     "mutable",  "new",     "not",      "operator", "or",
        "private",  "public",  "register", "restrict", "return",    "short",   "signed",   "sizeof",   "static",  "struct",   "switch",   "template",
        "this",     "throw",   "true",     "try",      "typedef",   "typename", "union",   "unsigned", "using",   "virtual",  "void",     "volatile",
        "while",    "xor",     "namespace", "protected", "linux",   "unix",    "I",        "errno",    "b",       "opts",     "in_",      "at_",
        "n_",       "first_",  "slot_",    "out_",     "n_in_",     "none_",
    };
    for (size_t i = 0; i < TRN_COUNTOF(words); i++)
        if (!strcmp(words[i], name))
            return true;
    return false;
}

/* ---- the form of a function ------------------------------------------------------------------------------------ */

typedef struct param {
    char *name;
    char *count; /* of a list of tensors: the name of its length */
} param;

typedef struct form {
    const trn_opdef *def;
    const char *snake;
    param in[64];
    char *attr[64];   /* parameter or member; NULL where the attr follows from the inputs */
    int from[64];     /* of those: the first input that says it */
    char *out[64];
    char *taken[MAX_FIELDS * 2];
    int n_taken;
    bool has_opts;
    const char *opts; /* name of the struct */
} form;

/* `name`, changed until it is free among the parameters of f. */
static char *claim(form *f, const char *name)
{
    char *s = trn_arena_alloc(names, strlen(name) + 32);
    strcpy(s, name);
    for (;;) {
        bool clash = is_reserved(s);
        for (int i = 0; i < f->n_taken; i++)
            clash |= !strcmp(f->taken[i], s);
        if (!clash)
            break;
        strcat(s, "_");
    }
    if (f->n_taken == (int)TRN_COUNTOF(f->taken))
        die("%s: too many parameters%s", f->def->row->name, "");
    f->taken[f->n_taken++] = s;
    return s;
}

static char *member(const char *name)
{
    return trn_arena_printf(names, "%s%s", name, is_reserved(name) ? "_" : "");
}

static bool is_list(const trn_argdef *a) { return a->number_attr >= 0 || a->type_list_attr >= 0; }

static void form_of(form *f, const entry *e)
{
    const trn_opdef *d = e->def;
    memset(f, 0, sizeof *f);
    f->def = d;
    f->snake = e->snake;
    f->opts = trn_arena_printf(names, "trn_%s%s_opts", !strcmp(e->snake, "conv") ? "op_" : "", e->snake); /* trn_conv_opts is of nn.h: the layers' */
    for (int i = 0; i < d->n_attrs; i++)
        f->from[i] = -1;
    for (int i = 0; i < d->n_in; i++) {
        f->in[i].name = claim(f, d->in[i].name);
        if (is_list(&d->in[i])) {
            f->in[i].count = claim(f, trn_arena_printf(names, "n_%s", f->in[i].name));
        }
        const int said[] = {d->in[i].type_attr, d->in[i].number_attr, d->in[i].type_list_attr};
        for (int k = 0; k < 3; k++)
            if (said[k] >= 0 && f->from[said[k]] < 0)
                f->from[said[k]] = i;
    }
    for (int i = 0; i < d->n_attrs; i++) {
        if (f->from[i] >= 0)
            continue;
        f->attr[i] = d->attrs[i].has_default ? member(d->attrs[i].name) : claim(f, d->attrs[i].name);
        f->has_opts |= d->attrs[i].has_default;
    }
    for (int i = 0; i < d->n_out; i++)
        f->out[i] = member(d->out[i].name);
}

static const char *c_type(const trn_opdef *d, const trn_attrdef *a)
{
    switch (a->kind) {
    case TRN_ATTR_INT:
        return a->is_list ? "trn_ints " : "int64_t ";
    case TRN_ATTR_FLOAT:
        return a->is_list ? "trn_floats " : "float ";
    case TRN_ATTR_BOOL:
        if (!a->is_list)
            return "bool ";
        break;
    case TRN_ATTR_TYPE:
        return a->is_list ? "trn_types " : "trn_dtype ";
    case TRN_ATTR_STRING:
        return a->is_list ? "trn_strs " : "const char *";
    case TRN_ATTR_SHAPE:
        return a->is_list ? "trn_shapes " : "const trn_shape *";
    case TRN_ATTR_FUNC:
        return a->is_list ? "trn_funcs " : "const trn_func_ref *";
    case TRN_ATTR_TENSOR:
        if (!a->is_list)
            return "trn_tensor *";
        break;
    default:
        break;
    }
    die("%s: attr %s is of a kind that gen_ops does not know yet", d->row->name, a->name);
}

/* Numbers whose default is not zero must say that they are given; everything else has a zero that can stand for "default". */
static bool is_maybe(const trn_attrdef *a)
{
    if (a->is_list)
        return false;
    return (a->kind == TRN_ATTR_INT && a->def.v.i != 0) || (a->kind == TRN_ATTR_FLOAT && a->def.v.f != 0) || (a->kind == TRN_ATTR_BOOL && a->def.v.b);
}

static const char *opt_type(const trn_opdef *d, const trn_attrdef *a)
{
    if (!is_maybe(a))
        return c_type(d, a);
    return a->kind == TRN_ATTR_INT ? "trn_maybe_int " : a->kind == TRN_ATTR_FLOAT ? "trn_maybe_float " : "trn_maybe_bool ";
}

static const char *at_fn(const trn_attrdef *a)
{
    static const char *const one[] = {[TRN_ATTR_STRING] = "str",   [TRN_ATTR_INT] = "int",       [TRN_ATTR_FLOAT] = "float",  [TRN_ATTR_BOOL] = "bool", [TRN_ATTR_TYPE] = "type",
                                      [TRN_ATTR_SHAPE] = "shape", [TRN_ATTR_TENSOR] = "tensor", [TRN_ATTR_FUNC] = "func"};
    static const char *const many[] = {[TRN_ATTR_STRING] = "strs",   [TRN_ATTR_INT] = "ints",  [TRN_ATTR_FLOAT] = "floats", [TRN_ATTR_TYPE] = "types",
                                       [TRN_ATTR_SHAPE] = "shapes", [TRN_ATTR_FUNC] = "funcs"};
    return a->is_list ? many[a->kind] : one[a->kind];
}

/* ---- the header ------------------------------------------------------------------------------------------------ */

static void put_value(FILE *o, trn_attr_kind kind, const trn_attr_val *v)
{
    char buf[TRN_SHAPE_TEXT];
    switch (kind) {
    case TRN_ATTR_INT:
        fprintf(o, "%" PRId64, v->i);
        break;
    case TRN_ATTR_FLOAT:
        fprintf(o, "%.7g", (double)v->f);
        break;
    case TRN_ATTR_BOOL:
        fputs(v->b ? "true" : "false", o);
        break;
    case TRN_ATTR_STRING:
        fprintf(o, "\"%s\"", v->s.p);
        break;
    case TRN_ATTR_TYPE:
        fputs("TRN_", o);
        for (const char *p = trn_dtype_name(v->type); *p; p++)
            fputc(toupper((unsigned char)*p), o);
        break;
    case TRN_ATTR_SHAPE:
        fputs(trn_shape_text(buf, v->shape), o);
        break;
    default:
        fputs("as TensorFlow's", o);
    }
}

/* What the zero of a member stands for, where that is not plain. */
static void put_default(FILE *o, const trn_attrdef *a)
{
    const trn_attr *d = &a->def;
    bool plain = a->is_list ? d->n == 0 : !is_maybe(a) && (a->kind == TRN_ATTR_INT || a->kind == TRN_ATTR_FLOAT || a->kind == TRN_ATTR_BOOL || (a->kind == TRN_ATTR_STRING && !d->v.s.n));
    if (plain && !a->n_allowed)
        return;
    fputs(" /* ", o);
    for (int i = 0; i < a->n_allowed; i++)
        fprintf(o, "%s\"%s\"%s", i ? ", " : "", a->allowed[i], i + 1 == a->n_allowed ? "; " : "");
    fputs("default ", o);
    if (!a->is_list) {
        put_value(o, a->kind, &d->v);
    } else {
        fputc('{', o);
        for (int i = 0; i < d->n; i++) {
            fputs(i ? ", " : "", o);
            put_value(o, a->kind, &d->list[i]);
        }
        fputc('}', o);
    }
    fputs(" */", o);
}

/* The row's signature as lines of a comment. */
static void put_signature(FILE *o, const char *name, const char *sig)
{
    fprintf(o, " *\n *     %s ", name);
    size_t col = 10 + strlen(name);
    for (const char *p = sig; *p;) {
        while (*p == ' ' || *p == '\n')
            p++;
        size_t n = 0;
        while (p[n] && p[n] != ' ' && p[n] != '\n')
            n++;
        if (col + n > 118) {
            fputs("\n *        ", o);
            col = 10;
        }
        fprintf(o, " %.*s", (int)n, p);
        col += n + 1;
        p += n;
    }
    fputs(" */\n", o);
}

static void put_wrapped(FILE *out, const char *text)
{
    size_t col = 0;
    for (const char *p = text; *p;) {
        size_t n = strcspn(p, ",");
        n += p[n] ? 1 + (p[n + 1] == ' ') : 0;
        if (col && col + n > 130) {
            fputs("\n    ", out);
            col = 4;
        }
        fprintf(out, "%.*s", (int)n, p);
        col += n;
        p += n;
    }
}

static void put_prototype(FILE *out, const char *prefix, const form *f)
{
    const trn_opdef *d = f->def;
    char *text;
    size_t size;
    FILE *o = open_memstream(&text, &size);
    fputs(prefix, o);
    if (d->n_out > 1)
        fprintf(o, "trn_%s_out ", f->snake);
    else
        fputs(d->n_out == 1 && is_list(&d->out[0]) ? "trn_outs " : "trn_out ", o);
    fprintf(o, "trn_op_%s(trn_builder *b", f->snake);
    for (int i = 0; i < d->n_in; i++) {
        if (f->in[i].count)
            fprintf(o, ", const trn_out *%s, int %s", f->in[i].name, f->in[i].count);
        else
            fprintf(o, ", trn_out %s", f->in[i].name);
    }
    for (int i = 0; i < d->n_attrs; i++)
        if (f->attr[i] && !d->attrs[i].has_default)
            fprintf(o, ", %s%s", c_type(d, &d->attrs[i]), f->attr[i]);
    if (f->has_opts)
        fprintf(o, ", const %s *opts", f->opts);
    fputc(')', o);
    fclose(o);
    put_wrapped(out, text);
    free(text);
}

static void put_declaration(FILE *o, const entry *e)
{
    form f;
    form_of(&f, e);
    const trn_opdef *d = f.def;
    fprintf(o, "\n/* %s\n", e->words);
    put_signature(o, d->row->name, d->row->sig);
    if (f.has_opts) {
        fprintf(o, "typedef struct %s {\n", f.opts);
        for (int i = 0; i < d->n_attrs; i++) {
            if (!f.attr[i] || !d->attrs[i].has_default)
                continue;
            fprintf(o, "    %s%s;", opt_type(d, &d->attrs[i]), f.attr[i]);
            put_default(o, &d->attrs[i]);
            fputc('\n', o);
        }
        fprintf(o, "} %s;\n", f.opts);
    }
    if (d->n_out > 1) {
        fprintf(o, "typedef struct trn_%s_out {\n", f.snake);
        for (int i = 0; i < d->n_out; i++)
            fprintf(o, "    %s %s;\n", is_list(&d->out[i]) ? "trn_outs" : "trn_out", f.out[i]);
        fprintf(o, "} trn_%s_out;\n", f.snake);
    }
    put_prototype(o, "TRN_API ", &f);
    fputs(";\n", o);
}

static const char head[] =
    "/* A function for every op. Made by tools/gen_ops from the op rows (src/ops) and src/ops/words.tsv; do not edit.\n"
    " *\n"
    " *     trn_out y = trn_op_mat_mul(b, x, w, NULL);\n"
    " *     trn_out z = trn_op_mat_mul(trn_named(b, \"z\"), x, w, &(trn_mat_mul_opts){.transpose_b = true});\n"
    " *     trn_out n = trn_op_fused_batch_norm_v3(b, x, scale, offset, mean, var, &(trn_fused_batch_norm_v3_opts){.epsilon = TRN_F(1e-3f)}).y;\n"
    " *\n"
    " * Parameters are the op's inputs in order, then the attrs that it must be given, then the optional ones in a struct: NULL, and every member that is\n"
    " * left out, stand for the default. Members are plain where the default is zero, false, \"\" or an empty list; other numbers are given with TRN_I, TRN_F,\n"
    " * TRN_B; of the rest zero (TRN_INVALID, NULL, a list whose `at` is NULL) is the default. Types and lengths that follow from the inputs are no parameters.\n"
    " * Lists of tensors are an array and its length: TRN_OUTS(x, y, z). A name that is a word of C has an underscore behind it.\n"
    " * Results: the output; where there is none, the node itself; where there are several, a struct of them; trn_outs where an output is a list.\n"
    " * Errors stay in the builder (trainera/build.h). Above each function: what the op computes, and its row in the notation of trainera/op.h.\n"
    " */\n"
    "#ifndef TRAINERA_OPS_H\n"
    "#define TRAINERA_OPS_H\n"
    "\n"
    "#include <trainera/build.h>\n"
    "\n"
    "#ifdef __cplusplus\n"
    "extern \"C\" {\n"
    "#endif\n";

static void put_header(FILE *o)
{
    fputs(head, o);
    for (int i = 0; i < n_entries; i++) {
        if (entries[i].def) {
            put_declaration(o, &entries[i]);
            continue;
        }
        int n = fprintf(o, "\n/* ---- %s ", entries[i].words);
        for (; n < 118; n++)
            fputc('-', o);
        fputs(" */\n", o);
    }
    fputs("\n#ifdef __cplusplus\n}\n#endif\n#endif\n", o);
}

/* ---- the functions --------------------------------------------------------------------------------------------- */

/* The length of list output `a`, as an expression. */
static void put_count(FILE *o, const form *f, const trn_argdef *a)
{
    int t = a->number_attr >= 0 ? a->number_attr : a->type_list_attr;
    const trn_attrdef *at = &f->def->attrs[t];
    if (f->from[t] >= 0) {
        fputs(f->in[f->from[t]].count, o);
    } else if (a->number_attr >= 0) {
        if (!at->has_default)
            fputs(f->attr[t], o);
        else if (is_maybe(at))
            fprintf(o, "opts->%s.given ? opts->%s.v : %" PRId64, f->attr[t], f->attr[t], at->def.v.i);
        else
            fprintf(o, "opts->%s", f->attr[t]);
    } else if (!at->has_default) {
        fprintf(o, "%s.n", f->attr[t]);
    } else {
        fprintf(o, "opts->%s.at ? opts->%s.n : %d", f->attr[t], f->attr[t], at->def.n);
    }
}

static void put_attrs(FILE *o, const form *f)
{
    const trn_opdef *d = f->def;
    for (int i = 0; i < d->n_attrs; i++) {
        const trn_attrdef *a = &d->attrs[i];
        const char *b = a->is_list ? "b, " : "";
        if (f->from[i] >= 0) { /* lengths and lists of types are said: with several lists nobody can tell them from the flat inputs */
            const param *p = &f->in[f->from[i]];
            if (a->kind == TRN_ATTR_INT)
                fprintf(o, "    at_[n_++] = trn_at_int(\"%s\", %s);\n", a->name, p->count);
            else if (a->is_list)
                fprintf(o, "    at_[n_++] = trn_op__types(b, \"%s\", %s, %s);\n", a->name, p->name, p->count);
            continue;
        }
        if (!a->has_default) {
            if (!a->is_list && (a->kind == TRN_ATTR_TENSOR || a->kind == TRN_ATTR_FUNC || a->kind == TRN_ATTR_STRING || a->kind == TRN_ATTR_SHAPE))
                fprintf(o, "    trn_op__need(b, \"%s\", \"%s\", %s);\n", d->row->name, a->name, f->attr[i]);
            bool str = a->kind == TRN_ATTR_STRING && !a->is_list; /* the error is latched, yet somebody measures it */
            fprintf(o, "    at_[n_++] = trn_at_%s(%s\"%s\", %s%s);\n", at_fn(a), b, a->name, f->attr[i], str ? trn_arena_printf(names, " ? %s : \"\"", f->attr[i]) : "");
            continue;
        }
        const char *given = a->is_list ? a->def.n ? ".at" : ".n" : is_maybe(a) ? ".given" : "";
        fprintf(o, "    if (opts->%s%s)\n        at_[n_++] = trn_at_%s(%s\"%s\", opts->%s%s);\n", f->attr[i], given, at_fn(a), b, a->name, f->attr[i], is_maybe(a) ? ".v" : "");
    }
}

static void put_inputs(FILE *o, const form *f, char call[64])
{
    const trn_opdef *d = f->def;
    bool lists = false;
    for (int i = 0; i < d->n_in; i++)
        lists |= f->in[i].count != NULL;
    if (!d->n_in) {
        strcpy(call, "NULL, 0");
        return;
    }
    if (!lists) {
        fputs("    const trn_out in_[] = {", o);
        for (int i = 0; i < d->n_in; i++)
            fprintf(o, "%s%s", i ? ", " : "", f->in[i].name);
        fputs("};\n", o);
        snprintf(call, 64, "in_, %d", d->n_in);
        return;
    }
    for (int i = 0; i < d->n_in; i++) { /* two lists of one length, or of the same types */
        int t = d->in[i].number_attr >= 0 ? d->in[i].number_attr : d->in[i].type_list_attr;
        if (t >= 0 && f->from[t] != i)
            fprintf(o, "    trn_op__same_length(b, \"%s\", \"%s\", %s, \"%s\", %s);\n", d->row->name, d->in[f->from[t]].name, f->in[f->from[t]].count, d->in[i].name, f->in[i].count);
    }
    fputs("    int n_in_;\n    const trn_out *in_ = trn_op__join(&n_in_, b, (const trn_op__list[]){", o);
    for (int i = 0; i < d->n_in; i++)
        fprintf(o, "%s{%s%s, %s}", i ? ", " : "", f->in[i].count ? "" : "&", f->in[i].name, f->in[i].count ? f->in[i].count : "1");
    fprintf(o, "}, %d);\n", d->n_in);
    strcpy(call, "in_, n_in_");
}

static void put_function(FILE *o, const entry *e)
{
    form f;
    form_of(&f, e);
    const trn_opdef *d = f.def;
    fputc('\n', o);
    put_prototype(o, "", &f);
    fputs("\n{\n", o);
    if (f.has_opts)
        fprintf(o, "    static const %s none_;\n    if (!opts)\n        opts = &none_;\n", f.opts);
    int n = 0;
    for (int i = 0; i < d->n_attrs; i++)
        n += f.from[i] < 0 || d->attrs[i].is_list || d->attrs[i].kind == TRN_ATTR_INT;
    char call[64];
    put_inputs(o, &f, call);
    if (n) {
        fprintf(o, "    trn_attr at_[%d];\n    int n_ = 0;\n", n);
        put_attrs(o, &f);
    }
    const char *attrs = n ? "at_, n_" : "NULL, 0";
    if (d->n_out == 0 || (d->n_out == 1 && !is_list(&d->out[0]))) {
        fprintf(o, "    return trn_node_add(b, \"%s\", %s, %s);\n}\n", d->row->name, call, attrs);
            return;
    }
    bool lists = false;
    for (int i = 0; i < d->n_out; i++)
        lists |= is_list(&d->out[i]);
    fprintf(o, "    trn_out first_ = trn_node_add(b, \"%s\", %s, %s);\n", d->row->name, call, attrs);
    if (lists)
        fputs("    int slot_ = 0;\n", o);
    if (d->n_out == 1) {
        fputs("    return trn_op__outs(b, first_, &slot_, ", o);
        put_count(o, &f, &d->out[0]);
        fputs(");\n}\n", o);
            return;
    }
    fprintf(o, "    trn_%s_out out_;\n", f.snake);
    for (int i = 0; i < d->n_out; i++) {
        if (is_list(&d->out[i])) {
            fprintf(o, "    out_.%s = trn_op__outs(b, first_, &slot_, ", f.out[i]);
            put_count(o, &f, &d->out[i]);
            fputs(");\n", o);
        } else if (lists) {
            fprintf(o, "    out_.%s = trn_op__nth(first_, slot_++);\n", f.out[i]);
        } else {
            fprintf(o, "    out_.%s = trn_op__nth(first_, %d);\n", f.out[i], i);
        }
    }
    fputs("    return out_;\n}\n", o);
}

/* ---- calls for the test of all of them -------------------------------------------------------------------------- */

static trn_dtype some_type(const trn_attrdef *a)
{
    static const trn_dtype liked[] = {TRN_FLOAT, TRN_INT32, TRN_INT64, TRN_STRING, TRN_COMPLEX64};
    for (size_t i = 0; i < TRN_COUNTOF(liked); i++)
        if (a->types >> liked[i] & 1)
            return liked[i];
    return (trn_dtype)__builtin_ctzll(a->types);
}

static int some_length(const trn_attrdef *a, int otherwise) { return a->min > otherwise ? (int)a->min : otherwise; }

static void put_call_input(FILE *o, const form *f, int i)
{
    const trn_opdef *d = f->def;
    const trn_argdef *a = &d->in[i];
    int list = a->number_attr >= 0 ? a->number_attr : a->type_list_attr;
    int n = list >= 0 ? some_length(&d->attrs[list], 1) : 1;
    int t = a->type_attr >= 0 ? a->type_attr : a->type_list_attr;
    fprintf(o, "    const trn_out in%d[] = {", i);
    for (int k = 0; k < n; k++)
        fprintf(o, "%s%s(b, %d)", k ? ", " : "", a->is_ref ? "some_ref" : "some", (int)(t >= 0 ? some_type(&d->attrs[t]) : a->type));
    fputs("};\n", o);
}

static void put_call_value(FILE *o, const trn_attrdef *a)
{
    static const char *const one[] = {[TRN_ATTR_INT] = "1", [TRN_ATTR_FLOAT] = "1", [TRN_ATTR_BOOL] = "true", [TRN_ATTR_SHAPE] = "trn_shape_unknown()", [TRN_ATTR_FUNC] = "{.name = \"f\"}"};
    static const char *const list[] = {[TRN_ATTR_INT] = "INTS", [TRN_ATTR_FLOAT] = "FLOATS", [TRN_ATTR_STRING] = "STRS", [TRN_ATTR_TYPE] = "TYPES", [TRN_ATTR_SHAPE] = "SHAPES", [TRN_ATTR_FUNC] = "FUNCS"};
    char value[64];
    if (a->kind == TRN_ATTR_STRING)
        snprintf(value, sizeof value, "\"%s\"", a->n_allowed ? a->allowed[0] : "s");
    else if (a->kind == TRN_ATTR_TYPE)
        snprintf(value, sizeof value, "%d", (int)some_type(a));
    else if (a->kind == TRN_ATTR_INT && !a->is_list)
        snprintf(value, sizeof value, "%d", some_length(a, 1));
    else
        snprintf(value, sizeof value, "%s", a->kind == TRN_ATTR_TENSOR ? "some_tensor" : one[a->kind]);
    if (!a->is_list) {
        fprintf(o, a->kind == TRN_ATTR_SHAPE ? ", (trn_shape[]){%s}" : a->kind == TRN_ATTR_FUNC ? ", &(trn_func_ref)%s" : ", %s", value);
        return;
    }
    fprintf(o, ", TRN_%s(", list[a->kind]);
    for (int i = 0, n = some_length(a, a->kind == TRN_ATTR_INT ? 4 : 1); i < n; i++)
        fprintf(o, "%s%s", i ? ", " : "", value);
    fputc(')', o);
}

static void put_calls(FILE *o)
{
    fputs("/* Made by tools/gen_ops from the op rows; do not edit. */\n", o);
    for (int e = 0; e < n_entries; e++) {
        if (!entries[e].def)
            continue;
        form f;
        form_of(&f, &entries[e]);
        const trn_opdef *d = f.def;
        fprintf(o, "static void call_%s(trn_builder *b)\n{\n", f.snake);
        for (int i = 0; i < d->n_in; i++)
            put_call_input(o, &f, i);
        fprintf(o, "    (void)trn_op_%s(trn_named(b, \"it\")", f.snake);
        for (int i = 0; i < d->n_in; i++)
            fprintf(o, f.in[i].count ? ", in%d, (int)(sizeof in%d / sizeof in%d[0])" : ", in%d[0]", i, i, i);
        for (int i = 0; i < d->n_attrs; i++)
            if (f.attr[i] && !d->attrs[i].has_default)
                put_call_value(o, &d->attrs[i]);
        fprintf(o, "%s);\n}\n", f.has_opts ? ", NULL" : "");
    }
    fputs("static const struct {\n    const char *op;\n    void (*call)(trn_builder *b);\n} calls[] = {\n", o);
    for (int e = 0; e < n_entries; e++)
        if (entries[e].def)
            fprintf(o, "    {\"%s\", call_%s},\n", entries[e].def->row->name, entries[e].snake);
    fputs("};\n", o);
}

/* ---- words, and main ------------------------------------------------------------------------------------------- */

static void add_entry(const trn_opdef *def, const char *words)
{
    entries = trn_xrealloc(entries, sizeof *entries * (size_t)(n_entries + 1));
    entries[n_entries++] = (entry){.def = def, .words = trn_arena_strndup(names, words, strlen(words)), .snake = def ? snake_case(def->row->name) : NULL};
}

static const entry *entry_of(const trn_opdef *def)
{
    for (int i = 0; i < n_entries; i++)
        if (entries[i].def == def)
            return &entries[i];
    return NULL;
}

static void read_words(const char *path)
{
    FILE *in = fopen(path, "r");
    if (!in)
        die("cannot open %s%s", path, "");
    char line[4096];
    while (fgets(line, sizeof line, in)) {
        line[strcspn(line, "\n")] = 0;
        if (!line[0])
            continue;
        if (strstr(line, "*/"))
            die("%s: this would end a comment: %s", path, line);
        if (line[0] == '#') {
            add_entry(NULL, line + 1 + strspn(line + 1, " "));
            continue;
        }
        char *tab = strchr(line, '\t');
        if (!tab || !tab[1])
            die("%s: not `Op<TAB>words`: %s", path, line);
        *tab = 0;
        const trn_opdef *def = trn_op_find(line);
        if (!def)
            die("%s: there is no op %s", path, line);
        if (entry_of(def))
            die("%s: op %s is there twice", path, line);
        if (line[0] == '_')
            die("%s: op %s is internal and gets no function", path, line);
        add_entry(def, tab + 1);
    }
    fclose(in);
    bool missing = false;
    for (int i = 0; i < trn_op_count(); i++) {
        const trn_opdef *d = trn_op_at(i);
        if (d->row->name[0] == '_' || entry_of(d))
            continue;
        fprintf(stderr, "gen_ops: %s: no words for op %s: add a line that says what it computes\n", path, d->row->name);
        missing = true;
    }
    if (missing)
        exit(1);
    for (int i = 0; i < n_entries; i++)
        for (int j = 0; j < i; j++)
            if (entries[i].def && entries[j].def && !strcmp(entries[i].snake, entries[j].snake))
                die("%s and %s would have functions of one name", entries[j].def->row->name, entries[i].def->row->name);
}

/* A file that has this content already is left alone: what includes it need not be compiled again. */
static void put_file(const char *path, const char *text, size_t n)
{
    FILE *f = fopen(path, "r");
    if (f) {
        char *old = trn_arena_alloc(names, n + 1);
        size_t got = fread(old, 1, n + 1, f);
        fclose(f);
        if (got == n && !memcmp(old, text, n))
            return;
    }
    f = fopen(path, "w");
    bool bad = !f || fwrite(text, 1, n, f) != n;
    if ((f && fclose(f)) || bad)
        die("cannot write %s%s", path, "");
}

int main(int argc, char **argv)
{
    if (argc < 4 || (strcmp(argv[2], "--header") && strcmp(argv[2], "--source") && strcmp(argv[2], "--calls")))
        die("usage: gen_ops WORDS.tsv --header ops.h | --source ops_0.c … | --calls calls.h%s%s", "", "");
    names = trn_arena_new();
    read_words(argv[1]);
    bool source = !strcmp(argv[2], "--source");
    int files = source ? argc - 3 : 1;
    for (int k = 0; k < files; k++) {
        char *text;
        size_t n;
        FILE *o = open_memstream(&text, &n);
        if (!source) {
            (strcmp(argv[2], "--calls") ? put_header : put_calls)(o);
        } else {
            fputs("/* Made by tools/gen_ops from the op rows; do not edit. */\n#include <trainera/ops.h>\n\n#include \"graph/op_call.h\"\n", o);
            for (int i = n_entries * k / files; i < n_entries * (k + 1) / files; i++)
                if (entries[i].def)
                    put_function(o, &entries[i]);
        }
        fclose(o);
        put_file(argv[3 + k], text, n);
        free(text);
    }
    trn_arena_free(names);
    free(entries);
    return 0;
}
