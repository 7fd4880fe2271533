/* Pattern → tree → program → Pike's virtual machine: all threads step through the text together, ordered by preference. */
#include "ops/regex.h"

#include <stdlib.h>

#include "ops/unicode.h"

enum { MAX_RANGES = 1000000 /* of all sets */, MAX_PROG = 50000, MAX_WORK = 1000000, MAX_REPEAT = 1000, MAX_DEPTH = 200 };

typedef enum { N_EMPTY, N_SET, N_BYTE, N_CAT, N_ALT, N_REP, N_GROUP, N_ASSERT } node_kind;
typedef enum { A_BEGIN, A_END, A_LINE_BEGIN, A_LINE_END, A_WORD, A_NOT_WORD } assert_kind;

typedef struct range {
    int32_t lo, hi;
} range;

typedef struct node {
    node_kind kind;
    struct node *a, *b; /* CAT, ALT; REP and GROUP: a */
    range *set;         /* SET: in order, apart from each other */
    int n_set;
    int min, max; /* REP; max -1: no limit */
    bool lazy;
    int cap;      /* GROUP: number, 0: does not capture */
    assert_kind what;
} node;

typedef enum { I_SET, I_BYTE, I_SPLIT, I_JMP, I_SAVE, I_ASSERT, I_MATCH } inst_kind;
typedef struct inst {
    inst_kind op;
    int x, y; /* SPLIT: preferred and other; JMP: x; SAVE: slot x; ASSERT: kind x */
    const range *set;
    int n_set;
} inst;

struct trn_regex {
    trn_arena *arena;
    inst *prog;
    int n, cap_n, groups;
    int work; /* of the compiler: nested repetitions of nothing add no instructions */
};

/* ---- UTF-8 --------------------------------------------------------------------------------------------------------------------- */

static int32_t decode(const char *s, size_t n, int *len)
{
    const uint8_t *p = (const uint8_t *)s;
    *len = 1;
    if (p[0] < 0x80)
        return p[0];
    int need = p[0] >= 0xf0 ? 3 : p[0] >= 0xe0 ? 2 : 1;
    if (p[0] < 0xc2 || p[0] > 0xf4 || n < (size_t)need + 1)
        return -1;
    int32_t c = p[0] & (0x3f >> need);
    for (int i = 1; i <= need; i++) {
        if ((p[i] & 0xc0) != 0x80)
            return -1;
        c = c << 6 | (p[i] & 0x3f);
    }
    static const int32_t least[] = {0, 0x80, 0x800, 0x10000};
    if (c < least[need] || c > 0x10ffff) /* RE2 takes halves of UTF-16's pairs */
        return -1;
    *len = need + 1;
    return c;
}

int trn_utf8_len(const char *p, size_t n)
{
    int len;
    (void)decode(p, n, &len);
    return len;
}

/* ---- parser -------------------------------------------------------------------------------------------------------------------- */

typedef struct parser {
    const char *p, *end;
    trn_arena *a;
    int groups, depth;
    bool fold, dot_nl, multi, ungreedy;
    bool quoted; /* inside \Q..\E */
    int ranges;  /* of all sets so far: some classes have hundreds */
    const char *err;
} parser;

static node *mk(parser *s, node_kind k)
{
    node *n = trn_arena_alloc(s->a, sizeof *n);
    n->kind = k;
    return n;
}

static node *bad(parser *s, const char *why)
{
    if (!s->err)
        s->err = why;
    return mk(s, N_EMPTY);
}

typedef struct set {
    range *r;
    int n, cap;
} set;

static void set_add(parser *s, set *t, int32_t lo, int32_t hi)
{
    if (++s->ranges > MAX_RANGES) {
        s->err = s->err ? s->err : "pattern too large - compile failed";
        return;
    }
    if (t->n == t->cap) {
        int cap = t->cap ? t->cap * 2 : 8;
        range *r = trn_arena_alloc(s->a, sizeof *r * (size_t)cap);
        if (t->n)
            memcpy(r, t->r, sizeof *r * (size_t)t->n);
        t->r = r;
        t->cap = cap;
    }
    t->r[t->n++] = (range){lo, hi};
}

typedef struct class_arg {
    parser *s;
    set *t;
} class_arg;

static void add_as_is(void *arg, int32_t lo, int32_t hi)
{
    class_arg *a = arg;
    set_add(a->s, a->t, lo, hi);
}

static void set_add_fold(parser *s, set *t, int32_t lo, int32_t hi)
{
    set_add(s, t, lo, hi);
    class_arg a = {s, t};
    if (s->fold)
        trn_unicode_fold(lo, hi, add_as_is, &a);
}

static int by_lo(const void *a, const void *b)
{
    int32_t x = ((const range *)a)->lo, y = ((const range *)b)->lo;
    return (x > y) - (x < y);
}

static set set_not(parser *s, set t)
{
    set o = {0};
    int32_t at = 0;
    if (t.n)
        qsort(t.r, (size_t)t.n, sizeof *t.r, by_lo);
    for (int i = 0; i < t.n; i++) {
        if (t.r[i].lo > at)
            set_add(s, &o, at, t.r[i].lo - 1);
        at = TRN_MAX(at, t.r[i].hi + 1);
    }
    if (at <= 0x10ffff)
        set_add(s, &o, at, 0x10ffff);
    return o;
}

/* In order and without overlaps: large ones are searched by halves. */
static node *from_set(parser *s, set t)
{
    node *n = mk(s, N_SET);
    n->set = t.r;
    if (t.n)
        qsort(t.r, (size_t)t.n, sizeof *t.r, by_lo);
    for (int i = 0; i < t.n; i++) {
        range *last = n->n_set ? &n->set[n->n_set - 1] : NULL;
        if (last && t.r[i].lo <= last->hi + 1)
            last->hi = TRN_MAX(last->hi, t.r[i].hi);
        else
            n->set[n->n_set++] = t.r[i];
    }
    return n;
}

static node *one_char(parser *s, int32_t c)
{
    set t = {0};
    set_add_fold(s, &t, c, c);
    return from_set(s, t);
}

/* \d and friends into t; false when c is none. */
static bool perl_class(parser *s, set *t, char c)
{
    set k = {0};
    switch (c | 32) {
    case 'd': set_add_fold(s, &k, '0', '9'); break;
    case 'w':
        set_add_fold(s, &k, '0', '9');
        set_add_fold(s, &k, 'A', 'Z');
        set_add_fold(s, &k, '_', '_');
        set_add_fold(s, &k, 'a', 'z');
        break;
    case 's':
        set_add_fold(s, &k, '\t', '\n');
        set_add_fold(s, &k, '\f', '\r');
        set_add_fold(s, &k, ' ', ' ');
        break;
    default: return false;
    }
    if (!(c & 32))
        k = set_not(s, k);
    for (int i = 0; i < k.n; i++)
        set_add(s, t, k.r[i].lo, k.r[i].hi);
    return true;
}

static void class_add(void *arg, int32_t lo, int32_t hi)
{
    class_arg *a = arg;
    set_add_fold(a->s, a->t, lo, hi);
}

/* \pN, \p{Greek}, \P{..}, \p{^..} at s->p (behind the backslash) into t; false when there is none. */
static bool unicode_class(parser *s, set *t)
{
    if ((*s->p | 32) != 'p')
        return false;
    bool not = *s->p == 'P';
    const char *name = s->p + 1, *end = name;
    if (name < s->end && *name == '{') {
        name++;
        end = memchr(name, '}', (size_t)(s->end - name));
    } else if (name < s->end) {
        int len;
        (void)decode(name, (size_t)(s->end - name), &len);
        end = name + len;
    }
    if (!end || name >= s->end) {
        bad(s, "invalid character class range");
        return true;
    }
    s->p = end + (name[-1] == '{');
    if (name < end && *name == '^') {
        not = !not;
        name++;
    }
    set k = {0};
    class_arg a = {s, &k};
    if (!trn_unicode_class(name, (size_t)(end - name), class_add, &a))
        bad(s, "invalid character class range");
    if (not)
        k = set_not(s, k);
    for (int i = 0; i < k.n; i++)
        set_add(s, t, k.r[i].lo, k.r[i].hi);
    return true;
}

static int hex(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
}

/* The character that an escape stands for (s->p is behind the backslash); -1: not one. */
static int32_t escaped(parser *s)
{
    char c = *s->p++;
    switch (c) {
    case 'n': return '\n';
    case 't': return '\t';
    case 'r': return '\r';
    case 'f': return '\f';
    case 'v': return '\v';
    case 'a': return '\a';
    case 'x': {
        int32_t v = 0;
        if (s->p < s->end && *s->p == '{') {
            s->p++;
            int digits = 0;
            for (; s->p < s->end && hex(*s->p) >= 0 && v <= 0x10ffff; s->p++, digits++)
                v = v * 16 + hex(*s->p);
            if (!digits || v > 0x10ffff || s->p >= s->end || *s->p++ != '}')
                return -1;
            return v;
        }
        if (s->end - s->p < 2 || hex(s->p[0]) < 0 || hex(s->p[1]) < 0)
            return -1;
        v = hex(s->p[0]) * 16 + hex(s->p[1]);
        s->p += 2;
        return v;
    }
    default: break;
    }
    if (c >= '1' && c <= '7' && (s->p >= s->end || *s->p < '0' || *s->p > '7'))
        return -1; /* a back reference */
    if (c >= '0' && c <= '7') {
        int32_t v = c - '0';
        for (int i = 0; i < 2 && s->p < s->end && *s->p >= '0' && *s->p <= '7'; i++)
            v = v * 8 + (*s->p++ - '0');
        return v;
    }
    bool alnum = (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z');
    return alnum || (c & 0x80) ? -1 : c;
}

static node *alternation(parser *s);

static node *bracket(parser *s)
{
    static const struct {
        const char *name;
        const char *ranges;
    } posix[] = {{"alnum", "09AZaz"},       {"alpha", "AZaz"}, {"ascii", "\x01\x7f"}, {"blank", "\t\t  "}, {"cntrl", "\x01\x1f\x7f\x7f"}, {"digit", "09"},
                 {"graph", "!~"},           {"lower", "az"},   {"print", " ~"},       {"punct", "!/:@[`{~"}, {"space", "\t\r  "},          {"upper", "AZ"},
                 {"word", "09AZaz__"},      {"xdigit", "09AFaf"}};
    bool neg = s->p < s->end && *s->p == '^';
    s->p += neg;
    set t = {0};
    for (bool first = true;; first = false) {
        if (s->p >= s->end)
            return bad(s, "missing ]");
        if (*s->p == ']' && !first)
            break;
        if (s->end - s->p >= 4 && s->p[0] == '[' && s->p[1] == ':') {
            const char *q = s->p + 2;
            bool not = *q == '^';
            q += not;
            const char *e = memchr(q, ':', (size_t)(s->end - q));
            if (e && e + 1 < s->end && e[1] == ']') {
                size_t i = 0;
                while (i < TRN_COUNTOF(posix) && (strlen(posix[i].name) != (size_t)(e - q) || memcmp(posix[i].name, q, (size_t)(e - q))))
                    i++;
                if (i == TRN_COUNTOF(posix))
                    return bad(s, "invalid character class range");
                set k = {0};
                for (const char *r = posix[i].ranges; *r; r += 2)
                    set_add_fold(s, &k, r[0] == 1 ? 0 : r[0], r[1]);
                if (not )
                    k = set_not(s, k);
                for (int j = 0; j < k.n; j++)
                    set_add(s, &t, k.r[j].lo, k.r[j].hi);
                s->p = e + 2;
                continue;
            }
        }
        int32_t lo, hi;
        if (*s->p == '\\') {
            if (++s->p >= s->end)
                return bad(s, "trailing \\");
            if (perl_class(s, &t, *s->p)) {
                s->p++;
                continue;
            }
            if (unicode_class(s, &t)) {
                if (s->err)
                    return mk(s, N_EMPTY);
                continue;
            }
            lo = escaped(s);
        } else {
            int len;
            lo = decode(s->p, (size_t)(s->end - s->p), &len);
            s->p += len;
        }
        hi = lo;
        if (s->end - s->p >= 2 && s->p[0] == '-' && s->p[1] != ']') {
            s->p++;
            if (*s->p == '\\') {
                if (++s->p >= s->end)
                    return bad(s, "trailing \\");
                hi = escaped(s);
            } else {
                int len;
                hi = decode(s->p, (size_t)(s->end - s->p), &len);
                s->p += len;
            }
        }
        if (lo < 0 || hi < lo)
            return bad(s, lo < 0 || hi < 0 ? "invalid escape sequence or UTF-8" : "invalid character class range");
        set_add_fold(s, &t, lo, hi);
    }
    s->p++;
    return from_set(s, neg ? set_not(s, t) : t);
}

static node *assertion(parser *s, assert_kind k)
{
    node *n = mk(s, N_ASSERT);
    n->what = k;
    return n;
}

/* Behind "(?": flags, or a named group. NULL: flags for the rest of the group. */
static node *special_group(parser *s, bool *plain)
{
    *plain = false;
    if (s->end - s->p >= 3 && ((s->p[0] == 'P' && s->p[1] == '<') || s->p[0] == '<')) {
        const char *e = memchr(s->p, '>', (size_t)(s->end - s->p));
        if (!e || e == s->p + (s->p[0] == 'P' ? 2 : 1))
            return bad(s, "invalid named capture group");
        s->p = e + 1;
        *plain = true;
        return NULL;
    }
    bool on = true, any = false, was[4] = {s->fold, s->dot_nl, s->multi, s->ungreedy};
    for (; s->p < s->end; s->p++) {
        switch (*s->p) {
        case '-':
            if (!on)
                return bad(s, "invalid group flags");
            on = false;
            any = true;
            continue;
        case 'i': s->fold = on; any = true; continue;
        case 's': s->dot_nl = on; any = true; continue;
        case 'm': s->multi = on; any = true; continue;
        case 'U': s->ungreedy = on; any = true; continue;
        case ')':
            if (!any)
                return bad(s, "invalid group");
            s->p++;
            return NULL;
        case ':': {
            s->p++;
            node *n = alternation(s);
            s->fold = was[0], s->dot_nl = was[1], s->multi = was[2], s->ungreedy = was[3];
            if (s->p >= s->end || *s->p != ')')
                return bad(s, "missing )");
            s->p++;
            return n;
        }
        default: return bad(s, "invalid or unsupported Perl syntax");
        }
    }
    return bad(s, "missing )");
}

static node *atom(parser *s)
{
    char c = *s->p;
    switch (c) {
    case '(': {
        s->p++;
        if (++s->depth > MAX_DEPTH)
            return bad(s, "nested too deeply");
        bool plain = true;
        node *n = NULL;
        if (s->p < s->end && *s->p == '?') {
            s->p++;
            n = special_group(s, &plain);
            if (!plain) {
                s->depth--;
                return n ? n : mk(s, N_EMPTY);
            }
        }
        bool was[4] = {s->fold, s->dot_nl, s->multi, s->ungreedy};
        n = mk(s, N_GROUP);
        n->cap = ++s->groups;
        n->a = alternation(s);
        s->fold = was[0], s->dot_nl = was[1], s->multi = was[2], s->ungreedy = was[3];
        s->depth--;
        if (s->p >= s->end || *s->p != ')')
            return bad(s, "missing )");
        s->p++;
        return n;
    }
    case '[': s->p++; return bracket(s);
    case '.': {
        s->p++;
        set t = {0};
        set_add(s, &t, 0, s->dot_nl ? 0x10ffff : '\n' - 1);
        if (!s->dot_nl)
            set_add(s, &t, '\n' + 1, 0x10ffff);
        return from_set(s, t);
    }
    case '^': s->p++; return assertion(s, s->multi ? A_LINE_BEGIN : A_BEGIN);
    case '$': s->p++; return assertion(s, s->multi ? A_LINE_END : A_END);
    case '*':
    case '+':
    case '?': return bad(s, "no argument for repetition operator");
    case '\\': break;
    default: {
        int len;
        int32_t v = decode(s->p, (size_t)(s->end - s->p), &len);
        s->p += len;
        return v < 0 ? bad(s, "invalid UTF-8") : one_char(s, v);
    }
    }
    if (++s->p >= s->end)
        return bad(s, "trailing \\");
    set t = {0};
    switch (*s->p) {
    case 'A': s->p++; return assertion(s, A_BEGIN);
    case 'z': s->p++; return assertion(s, A_END);
    case 'b': s->p++; return assertion(s, A_WORD);
    case 'B': s->p++; return assertion(s, A_NOT_WORD);
    case 'C': s->p++; return mk(s, N_BYTE);
    default: break;
    }
    if (unicode_class(s, &t))
        return from_set(s, t);
    if (perl_class(s, &t, *s->p)) {
        s->p++;
        return from_set(s, t);
    }
    int32_t v = escaped(s);
    return v < 0 ? bad(s, "invalid escape sequence") : one_char(s, v);
}

/* "{n}", "{n,}", "{n,m}" at s->p; anything else is plain text. */
static bool counted(parser *s, int *min, int *max)
{
    const char *p = s->p + 1;
    int v[2] = {-1, -1};
    for (int i = 0; i < 2; i++) {
        while (p < s->end && *p >= '0' && *p <= '9' && v[i] < 100000)
            v[i] = (v[i] < 0 ? 0 : v[i]) * 10 + (*p++ - '0');
        if (i == 0 && v[0] < 0)
            return false;
        if (p < s->end && *p == '}') {
            *min = v[0];
            *max = i == 0 ? v[0] : v[1];
            s->p = p + 1;
            return true;
        }
        if (i == 1 || p >= s->end || *p++ != ',')
            return false;
    }
    return false;
}

/* One character of \Q..\E; the last one may be repeated, so its \E goes too. */
static node *quoted(parser *s)
{
    int len;
    int32_t v = decode(s->p, (size_t)(s->end - s->p), &len);
    s->p += len;
    if (s->end - s->p >= 2 && s->p[0] == '\\' && s->p[1] == 'E') {
        s->quoted = false;
        s->p += 2;
    }
    return v < 0 ? bad(s, "invalid UTF-8") : one_char(s, v);
}

static node *concatenation(parser *s)
{
    node *all = NULL, **tail = &all; /* a right-leaning chain: compiled by a loop, however long */
    while (!s->err && s->p < s->end && (s->quoted || (*s->p != '|' && *s->p != ')'))) {
        if (s->end - s->p >= 2 && s->p[0] == '\\' && s->p[1] == (s->quoted ? 'E' : 'Q')) {
            s->quoted = !s->quoted;
            s->p += 2;
            continue;
        }
        node *n = s->quoted ? quoted(s) : atom(s);
        if (s->quoted) {
            *tail = mk(s, N_CAT);
            (*tail)->a = n;
            tail = &(*tail)->b;
            continue;
        }
        for (bool again = false; !s->err && s->p < s->end; again = true) {
            int min, max;
            if (*s->p == '*' || *s->p == '+' || *s->p == '?') {
                min = *s->p == '+';
                max = *s->p == '?' ? 1 : -1;
                s->p++;
            } else if (*s->p != '{' || !counted(s, &min, &max)) {
                break;
            }
            if (again)
                return bad(s, "bad repetition operator");
            if (min > MAX_REPEAT || max > MAX_REPEAT || (max >= 0 && min > max))
                return bad(s, "bad repetition operator");
            node *r = mk(s, N_REP);
            r->a = n;
            r->min = min;
            r->max = max;
            r->lazy = s->ungreedy;
            if (s->p < s->end && *s->p == '?') {
                r->lazy = !r->lazy;
                s->p++;
            }
            n = r;
        }
        *tail = mk(s, N_CAT);
        (*tail)->a = n;
        tail = &(*tail)->b;
    }
    *tail = mk(s, N_EMPTY);
    return all;
}

static node *alternation(parser *s)
{
    node *all = concatenation(s), **tail = &all;
    while (!s->err && s->p < s->end && *s->p == '|') {
        s->p++;
        node *alt = mk(s, N_ALT);
        alt->a = *tail;
        alt->b = concatenation(s);
        *tail = alt;
        tail = &alt->b;
    }
    return all;
}

/* ---- compiler ------------------------------------------------------------------------------------------------------------------ */

static int emit(trn_regex *r, inst i)
{
    if (r->n >= MAX_PROG)
        return 0; /* noticed by the caller: n stays at the limit */
    TRN_PUSH(r->prog, r->n, r->cap_n, i);
    return r->n - 1;
}

/* Returns whether it may match nothing. */
static bool compile(trn_regex *r, const node *n)
{
    if (r->n >= MAX_PROG || ++r->work > MAX_WORK)
        return false;
    bool empty = true;
    switch (n->kind) {
    case N_EMPTY: return true;
    case N_SET: emit(r, (inst){.op = I_SET, .set = n->set, .n_set = n->n_set}); return false;
    case N_BYTE: emit(r, (inst){.op = I_BYTE}); return false;
    case N_ASSERT: emit(r, (inst){.op = I_ASSERT, .x = (int)n->what}); return true;
    case N_CAT:
        for (; n->kind == N_CAT; n = n->b)
            empty &= compile(r, n->a);
        return empty; /* the last one is nothing */
    case N_GROUP: {
        bool keep = n->cap * 2 + 1 < TRN_REGEX_CAPS;
        if (keep)
            emit(r, (inst){.op = I_SAVE, .x = n->cap * 2});
        empty = compile(r, n->a);
        if (keep)
            emit(r, (inst){.op = I_SAVE, .x = n->cap * 2 + 1});
        return empty;
    }
    case N_ALT: {
        int ends = -1; /* jumps to the end, chained through x until it is known */
        empty = false;
        for (; n->kind == N_ALT; n = n->b) {
            int split = emit(r, (inst){.op = I_SPLIT});
            empty |= compile(r, n->a);
            int jmp = emit(r, (inst){.op = I_JMP, .x = ends});
            if (r->n >= MAX_PROG)
                return false;
            ends = jmp;
            r->prog[split].x = split + 1;
            r->prog[split].y = r->n;
        }
        empty |= compile(r, n);
        while (ends >= 0) {
            int before = r->prog[ends].x;
            r->prog[ends].x = r->n;
            ends = before;
        }
        return empty;
    }
    case N_REP:
        for (int i = 0; i + (n->max < 0) < n->min && r->work <= MAX_WORK; i++)
            empty = compile(r, n->a);
        if (n->max < 0) {
            /* As RE2 builds it, because which way is taken first shows in the groups: a* is one fork with a way back to it, unless a may match nothing;
             * then it is (a+)?, so that an empty round ends the loop. */
            int skip = n->min ? -1 : emit(r, (inst){.op = I_SPLIT}), start = r->n;
            empty = compile(r, n->a);
            bool simple = skip >= 0 && !empty;
            int loop = emit(r, (inst){.op = simple ? I_JMP : I_SPLIT});
            if (r->n >= MAX_PROG)
                return false;
            inst fork = {.op = I_SPLIT, .x = n->lazy ? r->n : start, .y = n->lazy ? start : r->n};
            if (skip >= 0)
                r->prog[skip] = fork;
            if (simple)
                r->prog[loop].x = skip;
            else
                r->prog[loop] = fork;
            return empty || !n->min;
        }
        int forks = -1; /* (a(a(a)?)?)?: who leaves one out leaves out the rest; chained through x until the end is known */
        for (int i = n->min; i < n->max && r->work <= MAX_WORK; i++) {
            forks = emit(r, (inst){.op = I_SPLIT, .x = forks});
            compile(r, n->a);
            if (r->n >= MAX_PROG)
                return false;
        }
        while (forks >= 0) {
            int before = r->prog[forks].x;
            r->prog[forks].x = n->lazy ? r->n : forks + 1;
            r->prog[forks].y = n->lazy ? forks + 1 : r->n;
            forks = before;
        }
        return empty || !n->min;
    }
    return empty;
}

trn_err trn_regex_new(trn_regex **out, const char *pattern, size_t n)
{
    if (n > 65536)
        return trn_errorf(TRN_INVALID_ARGUMENT, "Invalid pattern: longer than 65536 bytes");
    trn_arena *a = trn_arena_new();
    parser s = {.p = pattern, .end = pattern + n, .a = a};
    node *tree = alternation(&s);
    if (!s.err && s.p < s.end)
        s.err = "unexpected )";
    trn_regex *r = trn_xalloc(sizeof *r);
    r->arena = a;
    r->groups = s.groups;
    if (!s.err) {
        compile(r, tree);
        emit(r, (inst){.op = I_MATCH});
        if (r->n >= MAX_PROG || r->work > MAX_WORK)
            s.err = "pattern too large - compile failed";
    }
    if (s.err) {
        trn_err e = trn_errorf(TRN_INVALID_ARGUMENT, "Invalid pattern: %.*s, error: %s", (int)TRN_MIN(n, (size_t)200), pattern, s.err);
        trn_regex_free(r);
        return e;
    }
    *out = r;
    return TRN_OK;
}

void trn_regex_free(trn_regex *r)
{
    if (!r)
        return;
    trn_arena_free(r->arena);
    free(r->prog);
    free(r);
}

int trn_regex_groups(const trn_regex *r) { return r->groups; }

/* ---- machine ------------------------------------------------------------------------------------------------------------------- */

typedef struct threads {
    int n;
    int *pc;
    int64_t *cap; /* slots per thread */
} threads;

typedef struct machine {
    const trn_regex *r;
    const char *text;
    size_t n;
    int slots;
    uint32_t *mark; /* generation in which an instruction was last added */
    uint32_t gen;
    int *stack;
    int64_t *saved; /* what the walk below has to put back */
} machine;

static bool word_at(const machine *m, int64_t i)
{
    if (i < 0 || (size_t)i >= m->n)
        return false;
    char c = m->text[i];
    return c == '_' || (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z');
}

static bool holds(const machine *m, assert_kind k, size_t at)
{
    switch (k) {
    case A_BEGIN: return at == 0;
    case A_END: return at == m->n;
    case A_LINE_BEGIN: return at == 0 || m->text[at - 1] == '\n';
    case A_LINE_END: return at == m->n || m->text[at] == '\n';
    default: return (word_at(m, (int64_t)at - 1) != word_at(m, (int64_t)at)) == (k == A_WORD);
    }
}

/* Adds pc and everything reachable without reading text, in order of preference. The stack holds program counters, and below zero "put slot
 * ~x back": captures are undone on the way back from a branch. */
static void follow(machine *m, threads *t, int pc, size_t at, int64_t *cap)
{
    int top = 0, undo = 0;
    m->stack[top++] = pc;
    while (top) {
        int x = m->stack[--top];
        if (x < 0) {
            cap[~x] = m->saved[--undo];
            continue;
        }
        if (m->mark[x] == m->gen)
            continue;
        m->mark[x] = m->gen;
        const inst *i = &m->r->prog[x];
        switch (i->op) {
        case I_JMP: m->stack[top++] = i->x; break;
        case I_SPLIT:
            m->stack[top++] = i->y;
            m->stack[top++] = i->x;
            break;
        case I_ASSERT:
            if (holds(m, (assert_kind)i->x, at))
                m->stack[top++] = x + 1;
            break;
        case I_SAVE:
            if (i->x < m->slots) {
                m->saved[undo++] = cap[i->x];
                m->stack[top++] = ~i->x;
                cap[i->x] = (int64_t)at;
            }
            m->stack[top++] = x + 1;
            break;
        default:
            memcpy(t->cap + (size_t)t->n * (size_t)m->slots, cap, sizeof *cap * (size_t)m->slots);
            t->pc[t->n++] = x;
        }
    }
}

static bool in_set(const inst *i, int32_t c)
{
    int lo = 0, hi = i->n_set;
    while (lo < hi) {
        int mid = lo + (hi - lo) / 2;
        if (c > i->set[mid].hi)
            lo = mid + 1;
        else if (c < i->set[mid].lo)
            hi = mid;
        else
            return true;
    }
    return false;
}

/* `whole`: the match must be all of the text. */
static int run(const trn_regex *r, const char *text, size_t n, size_t from, bool whole, int64_t *cap, int slots)
{
    /* Room for two thread lists, marks and the walk's stack. */
    size_t N = (size_t)r->n, S = (size_t)TRN_MAX(slots, 2);
    size_t bytes = 2 * N * sizeof(int) + 2 * N * S * sizeof(int64_t) + N * sizeof(uint32_t) + 4 * (N + 2) * sizeof(int) + (N + 2) * sizeof(int64_t);
    char *mem = malloc(bytes);
    if (!mem)
        return -1;
    machine m = {.r = r, .text = text, .n = n, .slots = (int)S};
    threads list[2];
    char *p = mem;
    m.saved = (int64_t *)(void *)p, p += (N + 2) * sizeof(int64_t);
    list[0].cap = (int64_t *)(void *)p, p += N * S * sizeof(int64_t);
    list[1].cap = (int64_t *)(void *)p, p += N * S * sizeof(int64_t);
    list[0].pc = (int *)(void *)p, p += N * sizeof(int);
    list[1].pc = (int *)(void *)p, p += N * sizeof(int);
    m.mark = (uint32_t *)(void *)p, p += N * sizeof(uint32_t);
    m.stack = (int *)(void *)p;
    memset(m.mark, 0, N * sizeof(uint32_t));
    threads *cur = &list[0], *next = &list[1];
    cur->n = 0;
    m.gen = 1;
    int found = 0;
    int64_t fresh[TRN_REGEX_CAPS];
    for (size_t at = from;;) {
        int len = 1;
        int32_t c = at < n ? decode(text + at, n - at, &len) : -1;
        if (!found && (!whole || at == from)) { /* a match that starts here is worth less than those under way */
            for (size_t i = 0; i < S; i++)
                fresh[i] = -1;
            fresh[0] = (int64_t)at;
            follow(&m, cur, 0, at, fresh);
        }
        m.gen++;
        next->n = 0;
        for (int i = 0; i < cur->n; i++) {
            const inst *in = &r->prog[cur->pc[i]];
            int64_t *tc = cur->cap + (size_t)i * S;
            if (in->op == I_MATCH) {
                if (whole && at < n)
                    continue;
                found = 1;
                if (cap) {
                    memcpy(cap, tc, sizeof *cap * S);
                    cap[1] = (int64_t)at;
                }
                break; /* what is less preferred is cut off */
            }
            if (at >= n)
                continue;
            if ((in->op == I_BYTE && len == 1) || /* characters are stepped over whole, so \C takes none of several bytes */
                (in->op == I_SET && c >= 0 && in_set(in, c)))
                follow(&m, next, cur->pc[i] + 1, at + (size_t)len, tc);
        }
        threads *t = cur;
        cur = next;
        next = t;
        if (at >= n || (found && cur->n == 0) || (whole && cur->n == 0))
            break;
        at += (size_t)len;
    }
    free(mem);
    return found;
}

int trn_regex_full(const trn_regex *r, const char *p, size_t n) { return run(r, p, n, 0, true, NULL, 2); }

int trn_regex_find(const trn_regex *r, const char *p, size_t n, size_t from, int64_t cap[TRN_REGEX_CAPS])
{
    return run(r, p, n, from, false, cap, TRN_REGEX_CAPS);
}
