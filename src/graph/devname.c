#include "graph/devname.h"

#include <stdio.h>

static bool is_alpha(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
static bool is_digit(char c) { return c >= '0' && c <= '9'; }
static bool is_word(char c) { return is_alpha(c) || is_digit(c) || c == '_'; }
static char upper(char c) { return c >= 'a' && c <= 'z' ? (char)(c - 'a' + 'A') : c; }

/* ---- a cursor over the text ------------------------------------------------------------------------------------ */

typedef struct cur {
    const char *p, *end;
} cur;

static bool take(cur *c, const char *prefix)
{
    size_t n = strlen(prefix);
    if ((size_t)(c->end - c->p) < n || memcmp(c->p, prefix, n) != 0)
        return false;
    c->p += n;
    return true;
}

static bool take_word(cur *c, char *out, size_t max)
{
    const char *q = c->p;
    if (q == c->end || !is_alpha(*q))
        return false;
    while (q < c->end && is_word(*q))
        q++;
    size_t n = (size_t)(q - c->p);
    if (n > max)
        return false;
    memcpy(out, c->p, n);
    out[n] = 0;
    c->p = q;
    return true;
}

static bool take_number(cur *c, int32_t *out)
{
    int64_t v = 0;
    const char *q = c->p;
    for (; q < c->end && is_digit(*q); q++) {
        v = v * 10 + (*q - '0');
        if (v > INT32_MAX)
            return false;
    }
    if (q == c->p)
        return false;
    c->p = q;
    *out = (int32_t)v;
    return true;
}

static bool take_number_or_star(cur *c, int32_t *out)
{
    if (take(c, "*")) {
        *out = -1;
        return true;
    }
    return take_number(c, out);
}

static bool take_type(cur *c, char out[TRN_DEV_TYPE_MAX + 1])
{
    if (!take_word(c, out, TRN_DEV_TYPE_MAX))
        return false;
    if (strcmp(out, "cpu") == 0 || strcmp(out, "gpu") == 0)
        for (char *q = out; *q; q++)
            *q = upper(*q);
    return true;
}

static bool take_part(cur *c, trn_devname *d)
{
    if (take(c, "/job:")) {
        if (take(c, "*")) {
            d->job[0] = 0;
            return true;
        }
        return take_word(c, d->job, TRN_DEV_JOB_MAX);
    }
    if (take(c, "/replica:"))
        return take_number_or_star(c, &d->replica);
    if (take(c, "/task:"))
        return take_number_or_star(c, &d->task);
    if (take(c, "/device:")) {
        d->id = -1;
        if (take(c, "*"))
            d->type[0] = 0;
        else if (!take_type(c, d->type))
            return false;
        return take(c, ":") ? take_number_or_star(c, &d->id) : true;
    }
    static const char *const old[][3] = {{"/cpu:", "/CPU:", "CPU"}, {"/gpu:", "/GPU:", "GPU"}};
    for (size_t i = 0; i < TRN_COUNTOF(old); i++)
        if (take(c, old[i][0]) || take(c, old[i][1])) {
            strcpy(d->type, old[i][2]);
            return take_number_or_star(c, &d->id);
        }
    return false;
}

trn_err trn_devname_parse(trn_devname *out, const char *text, size_t n)
{
    trn_devname d = trn_devname_any();
    cur c = {text, text + n};
    bool ok = true;
    if (n > 0 && *text == '/') {
        if (n > 1)
            while (ok && c.p < c.end)
                ok = take_part(&c, &d);
    } else if (n > 0) {
        ok = take_type(&c, d.type) && take(&c, ":") && take_number_or_star(&c, &d.id) && c.p == c.end;
    }
    if (!ok)
        return trn_errorf(TRN_INVALID_ARGUMENT, "Malformed device specification '%.*s'", (int)TRN_MIN(n, (size_t)200),
                          text);
    *out = d;
    return TRN_OK;
}

const char *trn_devname_text(char buf[TRN_DEVNAME_TEXT], const trn_devname *d)
{
    size_t n = 0;
    buf[0] = 0;
    if (d->job[0])
        n += (size_t)snprintf(buf + n, TRN_DEVNAME_TEXT - n, "/job:%s", d->job);
    if (d->replica >= 0)
        n += (size_t)snprintf(buf + n, TRN_DEVNAME_TEXT - n, "/replica:%d", d->replica);
    if (d->task >= 0)
        n += (size_t)snprintf(buf + n, TRN_DEVNAME_TEXT - n, "/task:%d", d->task);
    if (d->type[0] || d->id >= 0) {
        n += (size_t)snprintf(buf + n, TRN_DEVNAME_TEXT - n, "/device:%s:", d->type[0] ? d->type : "*");
        if (d->id >= 0)
            snprintf(buf + n, TRN_DEVNAME_TEXT - n, "%d", d->id);
        else
            snprintf(buf + n, TRN_DEVNAME_TEXT - n, "*");
    }
    return buf;
}

/* ---- values ---------------------------------------------------------------------------------------------------- */

trn_devname trn_devname_any(void)
{
    trn_devname d = {.replica = -1, .task = -1, .id = -1};
    return d;
}

trn_devname trn_devname_task(const char *job, int32_t task)
{
    trn_devname d = {.replica = 0, .task = task, .id = -1};
    snprintf(d.job, sizeof d.job, "%s", job);
    return d;
}

trn_devname trn_devname_cpu(const char *job, int32_t task, int32_t id)
{
    trn_devname d = trn_devname_task(job, task);
    strcpy(d.type, "CPU");
    d.id = id;
    return d;
}

bool trn_devname_job_ok(const char *name, size_t n)
{
    if (n == 0 || n > TRN_DEV_JOB_MAX || !is_alpha(name[0]))
        return false;
    for (size_t i = 1; i < n; i++)
        if (!is_word(name[i]))
            return false;
    return true;
}

bool trn_devname_is_any(const trn_devname *d)
{
    return !d->job[0] && !d->type[0] && d->replica < 0 && d->task < 0 && d->id < 0;
}

bool trn_devname_has_task(const trn_devname *d) { return d->job[0] && d->replica >= 0 && d->task >= 0; }
bool trn_devname_is_full(const trn_devname *d) { return trn_devname_has_task(d) && d->type[0] && d->id >= 0; }

bool trn_devname_eq(const trn_devname *a, const trn_devname *b)
{
    return a->replica == b->replica && a->task == b->task && a->id == b->id && strcmp(a->job, b->job) == 0 &&
           strcmp(a->type, b->type) == 0;
}

bool trn_devname_match(const trn_devname *want, const trn_devname *name)
{
    return (!want->job[0] || strcmp(want->job, name->job) == 0) &&
           (want->replica < 0 || want->replica == name->replica) && (want->task < 0 || want->task == name->task) &&
           (!want->type[0] || strcmp(want->type, name->type) == 0) && (want->id < 0 || want->id == name->id);
}

static bool words_clash(const char *a, const char *b) { return a[0] && b[0] && strcmp(a, b) != 0; }
static bool numbers_clash(int32_t a, int32_t b) { return a >= 0 && b >= 0 && a != b; }

bool trn_devname_compatible(const trn_devname *a, const trn_devname *b)
{
    return !words_clash(a->job, b->job) && !numbers_clash(a->replica, b->replica) && !numbers_clash(a->task, b->task) &&
           !words_clash(a->type, b->type) && !numbers_clash(a->id, b->id);
}

bool trn_devname_same_task(const trn_devname *a, const trn_devname *b)
{
    return trn_devname_has_task(a) && trn_devname_has_task(b) && a->replica == b->replica && a->task == b->task &&
           strcmp(a->job, b->job) == 0;
}

static trn_err clash(const char *what, const trn_devname *a, const trn_devname *b)
{
    char ta[TRN_DEVNAME_TEXT], tb[TRN_DEVNAME_TEXT];
    return trn_errorf(TRN_INVALID_ARGUMENT, "Cannot merge devices with incompatible %s: '%s' and '%s'", what,
                      trn_devname_text(ta, a), trn_devname_text(tb, b));
}

trn_err trn_devname_merge(trn_devname *d, const trn_devname *more, bool soft)
{
    if (words_clash(d->job, more->job))
        return clash("jobs", d, more);
    if (numbers_clash(d->replica, more->replica))
        return clash("replicas", d, more);
    if (numbers_clash(d->task, more->task))
        return clash("tasks", d, more);
    bool type = words_clash(d->type, more->type), id = numbers_clash(d->id, more->id);
    if (type && !soft)
        return clash("types", d, more);
    if (id && !soft)
        return clash("ids", d, more);

    trn_devname r = *d;
    trn_devname_override(&r, more);
    if (type)
        r.type[0] = 0;
    if (type || id)
        r.id = -1;
    *d = r;
    return TRN_OK;
}

void trn_devname_override(trn_devname *d, const trn_devname *over)
{
    if (over->job[0])
        memcpy(d->job, over->job, sizeof d->job);
    if (over->replica >= 0)
        d->replica = over->replica;
    if (over->task >= 0)
        d->task = over->task;
    if (over->type[0])
        memcpy(d->type, over->type, sizeof d->type);
    if (over->id >= 0)
        d->id = over->id;
}

void trn_devname_fill(trn_devname *d, const trn_devname *defaults)
{
    if (!d->job[0])
        memcpy(d->job, defaults->job, sizeof d->job);
    if (d->replica < 0)
        d->replica = defaults->replica;
    if (d->task < 0)
        d->task = defaults->task;
    if (!d->type[0])
        memcpy(d->type, defaults->type, sizeof d->type);
    if (d->id < 0 && strcmp(d->type, defaults->type) == 0)
        d->id = defaults->id;
}
