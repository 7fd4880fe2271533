#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "cli/cli.h"

static char fold(char c) { return c == '_' ? '-' : (char)tolower((unsigned char)c); }

static bool same_name(const char *name, const char *word, size_t n)
{
    if (strlen(name) != n)
        return false;
    for (size_t i = 0; i < n; i++)
        if (fold(name[i]) != fold(word[i]))
            return false;
    return true;
}

/* ---- nearest --------------------------------------------------------------------------------------------------- */

enum { NEAR_MAX = 63 };

/* Edits (insert, drop, replace, swap neighbours) from a to b. */
static int distance(const char *a, size_t an, const char *b, size_t bn)
{
    if (an > NEAR_MAX || bn > NEAR_MAX)
        return NEAR_MAX;
    int row[3][NEAR_MAX + 1];
    int *before = row[0], *last = row[1], *now = row[2];
    for (size_t j = 0; j <= bn; j++)
        last[j] = (int)j;
    for (size_t i = 1; i <= an; i++) {
        now[0] = (int)i;
        for (size_t j = 1; j <= bn; j++) {
            bool same = fold(a[i - 1]) == fold(b[j - 1]);
            int d = TRN_MIN(last[j - 1] + !same, TRN_MIN(last[j], now[j - 1]) + 1);
            if (i > 1 && j > 1 && fold(a[i - 1]) == fold(b[j - 2]) && fold(a[i - 2]) == fold(b[j - 1]))
                d = TRN_MIN(d, before[j - 2] + 1);
            now[j] = d;
        }
        int *t = before;
        before = last, last = now, now = t;
    }
    return last[bn];
}

const char *cli_nearest(const char *word, size_t n, const char *(*next)(const void *table, int i), const void *table)
{
    const char *best = NULL, *name;
    int best_d = n <= 3 ? 2 : 4; /* further away is a guess */
    for (int i = 0; (name = next(table, i)); i++) {
        int d = distance(word, n, name, strlen(name));
        if (d < best_d)
            best_d = d, best = name;
    }
    return best;
}

/* Names of rows without help are ours and are not proposed. */
static const char *flag_name(const void *table, int i)
{
    const cli_flag *f = table;
    for (; f->name; f++)
        if (f->help && i-- == 0)
            return f->name;
    return NULL;
}

/* ---- parse ----------------------------------------------------------------------------------------------------- */

static const cli_flag *find(const cli_flag *flags, const char *word, size_t n)
{
    for (const cli_flag *f = flags; f->name; f++)
        if (same_name(f->name, word, n))
            return f;
    return NULL;
}

static trn_err set_bool(bool *dst, const cli_flag *f, const char *value)
{
    static const char *const words[][2] = {{"false", "true"}, {"no", "yes"}, {"0", "1"}, {"off", "on"}};
    for (size_t i = 0; i < TRN_COUNTOF(words); i++)
        for (int v = 0; v < 2; v++)
            if (same_name(words[i][v], value, strlen(value))) {
                *dst = v;
                return TRN_OK;
            }
    return trn_errorf(TRN_INVALID_ARGUMENT, "--%s=%s: true or false is expected", f->name, value);
}

static trn_err set(void *options, const cli_flag *f, const char *value)
{
    void *dst = (char *)options + f->offset;
    switch (f->kind) {
    case CLI_BOOL:
        return set_bool(dst, f, value);
    case CLI_TEXT:
        *(const char **)dst = value;
        return TRN_OK;
    case CLI_LIST: {
        cli_list *l = dst;
        TRN_PUSH(l->v, l->n, l->cap, value);
        return TRN_OK;
    }
    case CLI_INT: {
        char *end;
        errno = 0;
        long long v = strtoll(value, &end, 10);
        if (end == value || *end || isspace((unsigned char)*value))
            return trn_errorf(TRN_INVALID_ARGUMENT, "--%s=%s: a number is expected", f->name, value);
        if (errno || v < f->min || v > f->max)
            return trn_errorf(TRN_INVALID_ARGUMENT, "--%s=%s: a number from %lld to %lld is expected", f->name, value,
                              (long long)f->min, (long long)f->max);
        *(int64_t *)dst = v;
        return TRN_OK;
    }
    }
    return TRN_OK;
}

/* What one element of argv is: a flag (with its value when it is attached), or NULL. */
typedef struct element {
    const char *name;
    size_t n;
    const char *value; /* NULL: not attached */
} element;

static bool is_flag(element *out, const char *arg)
{
    if (arg[0] != '-' || !arg[1])
        return false;
    const char *name = arg + (arg[1] == '-' ? 2 : 1);
    if (isdigit((unsigned char)*name))
        return false; /* a negative number */
    size_t n = strcspn(name, "=");
    *out = (element){name, n, name[n] == '=' ? name + n + 1 : NULL};
    return true;
}

/* "--noflag" for a switch. */
static const cli_flag *find_negated(const cli_flag *flags, const element *e)
{
    if (e->n <= 2 || strncasecmp(e->name, "no", 2) != 0 || e->value)
        return NULL;
    size_t skip = e->name[2] == '-' || e->name[2] == '_' ? 3 : 2;
    const cli_flag *f = find(flags, e->name + skip, e->n - skip);
    return f && f->kind == CLI_BOOL ? f : NULL;
}

trn_err cli_parse(void *options, const cli_flag *flags, int argc, char **argv, cli_list *rest)
{
    bool only_rest = false;
    for (int i = 0; i < argc; i++) {
        element e;
        if (!only_rest && strcmp(argv[i], "--") == 0) {
            only_rest = true;
            continue;
        }
        if (only_rest || !is_flag(&e, argv[i])) {
            if (!rest)
                return trn_errorf(TRN_INVALID_ARGUMENT, "'%s' is not expected here: flags begin with --", argv[i]);
            TRN_PUSH(rest->v, rest->n, rest->cap, argv[i]);
            continue;
        }
        const cli_flag *f = find(flags, e.name, e.n);
        if (!f && (f = find_negated(flags, &e))) {
            TRN_TRY(set(options, f, "false"));
            continue;
        }
        if (!f) {
            const char *near = cli_nearest(e.name, e.n, flag_name, flags);
            if (near)
                return trn_errorf(TRN_INVALID_ARGUMENT, "unknown flag --%.*s; did you mean --%s?", (int)e.n, e.name,
                                  near);
            return trn_errorf(TRN_INVALID_ARGUMENT, "unknown flag --%.*s; --help shows those there are", (int)e.n,
                              e.name);
        }
        if (!e.value && f->kind == CLI_BOOL)
            e.value = "true";
        if (!e.value) {
            if (i + 1 == argc)
                return trn_errorf(TRN_INVALID_ARGUMENT, "--%s needs a value: --%s=%s", f->name, f->name, f->arg);
            e.value = argv[++i];
        }
        TRN_TRY(set(options, f, e.value));
    }
    return TRN_OK;
}

/* ---- help ------------------------------------------------------------------------------------------------------ */

/* Folds text at `width` columns, every line but the first behind `indent` spaces. */
static void wrap(FILE *f, const char *text, int indent, int width)
{
    int col = indent;
    for (const char *p = text; *p;) {
        int n = (int)strcspn(p, " ");
        if (col > indent && col + 1 + n > width) {
            fprintf(f, "\n%*s", indent, "");
            col = indent;
        } else if (col > indent) {
            fputc(' ', f);
            col++;
        }
        fprintf(f, "%.*s", n, p);
        col += n;
        p += n;
        while (*p == ' ')
            p++;
    }
    fputc('\n', f);
}

void cli_help(FILE *f, const cli_command *c)
{
    enum { INDENT = 8, WIDTH = 100 };
    fprintf(f, "trainera %s %s\n\n%s\n\n", c->name, c->usage, c->summary);
    for (const cli_flag *g = c->flags; g->name; g++) {
        if (!g->help)
            continue;
        if (g->arg)
            fprintf(f, "  --%s=%s\n%*s", g->name, g->arg, INDENT, "");
        else
            fprintf(f, "  --%s\n%*s", g->name, INDENT, "");
        wrap(f, g->help, INDENT, WIDTH);
    }
    fprintf(f, "\n%s", c->details);
}
