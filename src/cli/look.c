#include "cli/look.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "io/net.h"

/* ---- asking ---------------------------------------------------------------------------------------------------- */

trn_err cli_target(char **out, const char *text)
{
    const char *at = strstr(text, "://");
    at = at ? at + 3 : text;
    char *address = trn_xstrndup(at, strcspn(at, "/"));
    if (*address && strspn(address, "0123456789") == strlen(address)) {
        char *port = address;
        address = trn_xasprintf("localhost:%s", port);
        free(port);
    }
    char *host;
    int port;
    trn_err err = trn_net_split(&host, &port, address);
    if (err) {
        free(address);
        return trn_err_wrap(err, "%s: host:port of a task is expected", text);
    }
    free(host);
    *out = address;
    return TRN_OK;
}

trn_err cli_parse_target(void *options, const cli_command *c, int argc, char **argv, char **address)
{
    cli_list rest = {0};
    trn_err err = cli_parse(options, c->flags, argc, argv, &rest);
    if (!err && rest.n != 1)
        err = trn_errorf(TRN_INVALID_ARGUMENT, "one task is expected: trainera %s HOST:PORT", c->name);
    if (!err)
        err = cli_target(address, rest.v[0]);
    free(rest.v);
    return err;
}

trn_err cli_get(trn_sb *out, const char *address, const char *path, double timeout_s)
{
    int status = 0;
    TRN_TRY(cli_http_get(out, &status, address, path, (uint64_t)(timeout_s * 1e9)));
    if (status != 200)
        return trn_errorf(TRN_UNAVAILABLE, "%s answered HTTP %d to %s%s", address, status, path, status == 404 ? ": not a Trainera task, or an older one" : "");
    return TRN_OK;
}

static bool somebody_unknown(json_t *doc)
{
    size_t i;
    json_t *t;
    json_array_foreach(json_object_get(json_object_get(doc, "cluster"), "tasks"), i, t)
        if (strcmp(cli_js(t, "state"), "unknown") == 0)
            return true;
    return false;
}

trn_err cli_look(json_t **out, trn_sb *raw, const char *address, double timeout_s)
{
    uint64_t end = trn_now_ns() + (uint64_t)(timeout_s * 1e9);
    for (int i = 0;; i++) {
        trn_sb body = {0};
        trn_err err = cli_get(&body, address, "/status.json", timeout_s);
        json_error_t e;
        json_t *doc = err ? NULL : json_loadb(body.p ? body.p : "", body.n, 0, &e);
        if (!err && (!doc || cli_jn(doc, "schema") < 1)) {
            err = trn_errorf(TRN_UNAVAILABLE, "%s: what came is no status of a Trainera task", address);
            json_decref(doc);
        }
        if (err) {
            trn_sb_fini(&body);
            return err;
        }
        if (i < 12 && somebody_unknown(doc) && trn_now_ns() < end) { /* it has just begun to ask the others */
            json_decref(doc);
            trn_sb_fini(&body);
            nanosleep(&(struct timespec){.tv_nsec = i < 3 ? 100000000 : 300000000}, NULL);
            continue;
        }
        *out = doc;
        if (raw)
            trn_sb_add(raw, body.p, body.n);
        trn_sb_fini(&body);
        return TRN_OK;
    }
}

/* ---- for people ------------------------------------------------------------------------------------------------- */

const char *cli_js(json_t *o, const char *key)
{
    const char *s = json_string_value(json_object_get(o, key));
    return s ? s : "";
}

double cli_jn(json_t *o, const char *key)
{
    double v = json_number_value(json_object_get(o, key));
    return isfinite(v) ? v : 0;
}

const char *cli_bytes_text(char buf[32], double b)
{
    static const char *const unit[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    int u = 0;
    for (; b >= 1024 && u < 4; u++)
        b /= 1024;
    snprintf(buf, 32, u == 0 || b >= 10 ? "%.0f %s" : "%.1f %s", b, unit[u]);
    return buf;
}

const char *cli_time_text(char buf[32], double s)
{
    if (s < 1e-3)
        snprintf(buf, 32, "%.0f us", s * 1e6);
    else if (s < 1)
        snprintf(buf, 32, s < .01 ? "%.2f ms" : "%.0f ms", s * 1e3);
    else if (s < 120)
        snprintf(buf, 32, "%.1f s", s);
    else if (s < 7200)
        snprintf(buf, 32, "%.0f min", s / 60);
    else
        snprintf(buf, 32, "%.1f h", s / 3600);
    return buf;
}

static const char *rate_text(char buf[32], double v)
{
    snprintf(buf, 32, v >= 100 || v == 0 ? "%.0f" : "%.1f", v);
    return buf;
}

typedef struct page {
    trn_sb *out;
    int width;
    bool color;
} page;

/* One line, cut to the terminal's width between characters; what others wrote cannot drive the terminal. */
static void line(page *p, const char *style, const char *fmt, ...) TRN_PRINTF(3, 4);
static void line(page *p, const char *style, const char *fmt, ...)
{
    trn_sb s = {0};
    va_list ap;
    va_start(ap, fmt);
    trn_sb_addv(&s, fmt, ap);
    va_end(ap);
    size_t end = 0;
    for (int columns = 0; end < s.n && (p->width <= 0 || columns < p->width); columns++) {
        if ((unsigned char)s.p[end] < 0x20 || s.p[end] == 0x7f)
            s.p[end] = ' ';
        for (end++; end < s.n && ((unsigned char)s.p[end] & 0xc0) == 0x80;)
            end++;
    }
    while (end > 0 && s.p[end - 1] == ' ')
        end--;
    if (p->color && *style)
        trn_sb_addf(p->out, "\x1b[%sm", style);
    trn_sb_add(p->out, s.p ? s.p : "", end);
    if (p->color && *style)
        trn_sb_adds(p->out, "\x1b[0m");
    trn_sb_adds(p->out, "\n");
    trn_sb_fini(&s);
}

static void put_rates(page *p, json_t *t)
{
    json_t *st = json_object_get(t, "steps"), *pr = json_object_get(t, "process"), *tr = json_object_get(t, "traffic");
    bool whole = cli_jn(json_object_get(st, "step_time"), "count") > 0;
    json_t *h = json_object_get(st, whole ? "step_time" : "part_time");
    char a[32], b[32], c[32], d[32], e[32], f[32];
    line(p, "", "%s %s/s (%.0f so far, median %s, 99 %% within %s)   in %s/s   out %s/s   CPU %.0f %% of %.0f cores   memory %s", whole ? "steps" : "parts of steps",
         rate_text(a, cli_jn(st, whole ? "steps_per_s" : "parts_per_s")), cli_jn(h, "count"), cli_time_text(b, cli_jn(h, "p50_us") / 1e6),
         cli_time_text(c, cli_jn(h, "p99_us") / 1e6), cli_bytes_text(d, cli_jn(tr, "in_per_s")), cli_bytes_text(e, cli_jn(tr, "out_per_s")), cli_jn(pr, "cpu_percent"),
         cli_jn(pr, "cores"), cli_bytes_text(f, cli_jn(pr, "rss_bytes")));
    json_t *s;
    size_t i;
    trn_sb text = {0};
    json_array_foreach(json_object_get(t, "scalars"), i, s)
        if (i < 12)
            trn_sb_addf(&text, "   %.60s %.5g", cli_js(s, "tag"), cli_jn(s, "last"));
    if (text.n)
        line(p, "", "%s", text.p + 3);
    trn_sb_fini(&text);
}

static void put_task_row(page *p, json_t *c, json_t *me, int name_width, int address_width)
{
    bool self = json_is_true(json_object_get(c, "self"));
    json_t *t = self ? me : json_object_get(c, "task"), *st = json_object_get(t, "steps"), *pr = json_object_get(t, "process"), *v = json_object_get(t, "variables");
    bool whole = cli_jn(json_object_get(st, "step_time"), "count") > 0, down = strcmp(cli_js(c, "state"), "down") == 0;
    char rtt[32] = "", rate[32] = "", cpu[32] = "", mem[32] = "", vars[32] = "", waits[32] = "";
    if (cli_jn(c, "round_trip_ms") > 0)
        cli_time_text(rtt, cli_jn(c, "round_trip_ms") / 1e3);
    if (t) {
        rate_text(rate, cli_jn(st, whole ? "steps_per_s" : "parts_per_s"));
        snprintf(cpu, sizeof cpu, "%.0f %%", cli_jn(pr, "cpu_percent"));
        cli_bytes_text(mem, cli_jn(pr, "rss_bytes"));
        cli_bytes_text(vars, cli_jn(v, "bytes"));
        snprintf(waits, sizeof waits, "%.0f", cli_jn(t, "n_waits"));
    }
    line(p, down ? "31" : cli_jn(t, "n_waits") > 0 ? "33" : "", "%-*s  %-*s  %-7s %10s %9s %6s %9s %9s %6s  %s", name_width, cli_js(c, "name"), address_width, cli_js(c, "address"),
         cli_js(c, "state"), self ? "(this)" : rtt, rate, cpu, mem, vars, waits, down ? cli_js(c, "error") : json_is_true(json_object_get(t, "stand_in")) ? "ended; stand-in" : strcmp(cli_js(c, "kind"), "other") == 0 ? "not Trainera" : cli_js(t, "version"));
}

static int widest(json_t *tasks, const char *key, int least)
{
    size_t i;
    json_t *t;
    json_array_foreach(tasks, i, t)
        least = TRN_MAX(least, (int)strlen(cli_js(t, key)));
    return TRN_MIN(least, 40);
}

static void put_cluster(page *p, json_t *doc, int rows)
{
    json_t *tasks = json_object_get(json_object_get(doc, "cluster"), "tasks"), *t;
    int name = widest(tasks, "name", 4), address = widest(tasks, "address", 7), down = 0, up = 0;
    size_t i;
    json_array_foreach(tasks, i, t) {
        down += strcmp(cli_js(t, "state"), "down") == 0;
        up += strcmp(cli_js(t, "state"), "up") == 0;
    }
    line(p, "", "%s", "");
    line(p, "1", "%-*s  %-*s  %-7s %10s %9s %6s %9s %9s %6s  %s", name, "TASK", address, "ADDRESS", "STATE", "ROUND TRIP", "STEPS/S", "CPU", "MEMORY", "VARIABLES", "WAITS", "VERSION");
    int shown = 0;
    for (int pass = 0; pass < 2; pass++) /* those that are down are never cut off */
        json_array_foreach(tasks, i, t)
            if ((strcmp(cli_js(t, "state"), "down") == 0) == (pass == 0) && (pass == 0 ? shown < rows - 1 || rows >= (int)json_array_size(tasks) : shown < rows)) {
                put_task_row(p, t, json_object_get(doc, "task"), name, address);
                shown++;
            }
    if (shown < (int)json_array_size(tasks))
        line(p, "2", "… %d more (%d up, %d down in all)", (int)json_array_size(tasks) - shown, up, down);
}

static void put_waits(page *p, const char *who, json_t *t, int *left)
{
    size_t i;
    json_t *w;
    json_array_foreach(json_object_get(t, "waits"), i, w) {
        if ((*left)-- <= 0)
            return;
        char a[32];
        const char *peer = cli_js(w, "peer"), *key = cli_js(w, "key"), *node = cli_js(w, "node"), *state = cli_js(w, "state");
        line(p, "33", "%s has waited %s for %s%s%s%s%s: %s%s%s%s%s", who, cli_time_text(a, cli_jn(w, "for_s")), *peer ? peer : "whoever fills ", *peer ? "" : key,
             *cli_js(w, "address") ? " (" : "", cli_js(w, "address"), *cli_js(w, "address") ? ")" : "", cli_js(w, "op"), *peer && *key ? " of " : "", *peer ? key : "",
             *node ? ", node " : "", node);
        if (*state)
            line(p, "", "    %s", state);
    }
}

static void put_errors(page *p, const char *who, json_t *t, int *left)
{
    size_t i;
    json_t *e;
    json_array_foreach(json_object_get(t, "errors"), i, e) {
        if ((*left)-- <= 0)
            return;
        char a[32];
        line(p, "", "%s, %s ago%s: %s: %s", who, cli_time_text(a, cli_jn(e, "ago_s")), cli_jn(e, "count") > 1 ? " and before" : "", cli_js(e, "from"), cli_js(e, "text"));
    }
}

static void put_all(page *p, json_t *doc, const char *title, void (*put)(page *, const char *, json_t *, int *), int rows)
{
    json_t *me = json_object_get(doc, "task"), *c;
    trn_sb *to = p->out, text = {0};
    size_t i;
    p->out = &text;
    put(p, cli_js(me, "name"), me, &rows);
    json_array_foreach(json_object_get(json_object_get(doc, "cluster"), "tasks"), i, c)
        if (!json_is_true(json_object_get(c, "self")) && json_object_get(c, "task"))
            put(p, cli_js(c, "name"), json_object_get(c, "task"), &rows);
    p->out = to;
    if (text.n) {
        line(p, "", "%s", "");
        line(p, "1", "%s", title);
        trn_sb_add(p->out, text.p, text.n);
    }
    trn_sb_fini(&text);
}

static void put_variables(page *p, const char *who, json_t *t, int *left)
{
    json_t *vars = json_object_get(t, "variables"), *v;
    size_t i;
    json_array_foreach(json_object_get(vars, "list"), i, v) {
        if ((*left)-- <= 0)
            return;
        char a[32];
        char *shape = json_dumps(json_object_get(v, "shape"), JSON_COMPACT | JSON_ENCODE_ANY);
        json_t *value = json_object_get(v, "value");
        line(p, "", "%-10s %-44s %-8s %-16s %9s", who, cli_js(v, "name"), cli_js(v, "dtype"), shape ? shape : "?", cli_bytes_text(a, cli_jn(v, "bytes")));
        if (value) {
            trn_sb_reserve(p->out, 40);
            p->out->n--; /* behind the same line */
            trn_sb_addf(p->out, "  = %.9g\n", json_number_value(value));
        }
        free(shape);
    }
}

static void put_fills(page *p, const char *who, json_t *t, int *left)
{
    size_t i;
    json_t *r;
    json_array_foreach(json_object_get(json_object_get(t, "resources"), "list"), i, r) {
        if ((*left)-- <= 0)
            return;
        json_t *cap = json_object_get(r, "capacity");
        char of[32] = "";
        if (cap)
            snprintf(of, sizeof of, " of %.0f", json_number_value(cap));
        line(p, "", "%-10s %-30s %-24s %.0f%s, %.0f wait to put, %.0f to take%s", who, cli_js(r, "name"), cli_js(r, "kind"), cli_jn(r, "count"), of, cli_jn(r, "waiting_to_put"),
             cli_jn(r, "waiting_to_take"), json_is_true(json_object_get(r, "closed")) ? ", closed" : "");
    }
}

void cli_look_text(trn_sb *out, json_t *doc, int width, int rows, bool color)
{
    page p = {out, width, color};
    json_t *t = json_object_get(doc, "task"), *pr = json_object_get(t, "process");
    char a[32];
    line(&p, "1", "%s at %s, Trainera %s, up %s, pid %.0f on %s", cli_js(t, "name"), cli_js(t, "address"), cli_js(t, "version"), cli_time_text(a, cli_jn(t, "uptime_s")), cli_jn(pr, "pid"),
         cli_js(pr, "host"));
    put_rates(&p, t);
    put_cluster(&p, doc, rows);
    put_all(&p, doc, "WHO WAITS FOR WHOM", put_waits, rows);
    put_all(&p, doc, "VARIABLES", put_variables, rows);
    put_all(&p, doc, "QUEUES, ACCUMULATORS, BARRIERS", put_fills, rows);
    put_all(&p, doc, "RECENT ERRORS", put_errors, TRN_MIN(rows, 8));
}
