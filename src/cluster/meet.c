#include "cluster/meet_int.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define SECOND TRN_MEET_SECOND

/* ---- cards --------------------------------------------------------------------------------------------------------- */

static char *own_ns(void)
{
    char pid_ns[64] = "", boot[64] = "";
    ssize_t n = readlink("/proc/self/ns/pid", pid_ns, sizeof pid_ns - 1);
    pid_ns[n > 0 ? n : 0] = 0;
    FILE *f = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (f) {
        if (fscanf(f, "%40s", boot) != 1)
            boot[0] = 0;
        fclose(f);
    }
    return trn_xasprintf("%s %s", boot, pid_ns);
}

json_t *trn_meet__card_json(const trn_meet_card *c)
{
    return json_pack("{s:i, s:i, s:s, s:s, s:s, s:s, s:s, s:I, s:s}", "index", c->index, "tasks", c->tasks, "role", c->role, "address", c->address, "host",
                     c->host, "nonce", c->nonce, "ns", c->ns, "pid", (json_int_t)c->pid, "version", TRAINERA_VERSION);
}

bool trn_meet__card_read(trn_meet_card *out, json_t *root)
{
    const char *role, *address, *host, *nonce, *ns;
    json_int_t pid;
    trn_meet_card c = {0};
    if (!root || json_unpack(root, "{s:i, s:i, s:s, s:s, s:s, s:s, s:s, s:I}", "index", &c.index, "tasks", &c.tasks, "role", &role, "address", &address, "host",
                             &host, "nonce", &nonce, "ns", &ns, "pid", &pid) != 0) {
        *out = (trn_meet_card){0};
        return false;
    }
    c.role = trn_xstrdup(role);
    c.address = trn_xstrdup(address);
    c.host = trn_xstrdup(host);
    c.nonce = trn_xstrdup(nonce);
    c.ns = trn_xstrdup(ns);
    c.pid = pid;
    *out = c;
    return true;
}

void trn_meet__card_fini(trn_meet_card *c)
{
    free(c->role);
    free(c->address);
    free(c->host);
    free(c->nonce);
    free(c->ns);
    *c = (trn_meet_card){0};
}

/* Ended, but its parent has not yet asked how. */
static bool is_zombie(int64_t pid)
{
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/%lld/stat", (long long)pid);
    FILE *f = fopen(path, "re");
    if (!f)
        return false;
    size_t n = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    text[n] = 0;
    const char *p = strrchr(text, ')'); /* the name may hold anything */
    return p && p[1] == ' ' && p[2] == 'Z';
}

bool trn_meet__gone(const trn_meet *m, const trn_meet_card *c)
{
    if (strcmp(c->ns, m->me.ns) != 0 || c->pid <= 0)
        return false;
    return kill((pid_t)c->pid, 0) != 0 ? errno == ESRCH : is_zombie(c->pid);
}

trn_err trn_meet__check(const trn_meet *m, const trn_meet_card *c)
{
    if (c->tasks != m->o.n_tasks)
        return trn_errorf(TRN_INVALID_ARGUMENT, "task %d on %s says that the job has %d tasks, here it has %d: all must be started with the same --tasks", c->index,
                          c->host, c->tasks, m->o.n_tasks);
    if (c->index < 0 || c->index >= m->o.n_tasks)
        return trn_errorf(TRN_INVALID_ARGUMENT, "a task on %s has index %d of %d tasks", c->host, c->index, m->o.n_tasks);
    return TRN_OK;
}

bool trn_meet__adopt(trn_meet *m, json_t *root)
{
    json_t *members = json_object_get(root, "members"), *e;
    size_t i;
    int n = 0;
    bool me = false;
    char **v = trn_xalloc(sizeof *v * (size_t)m->o.n_tasks);
    json_array_foreach(members, i, e)
    {
        json_t *index = json_object_get(e, "index");
        const char *address = json_string_value(json_object_get(e, "address")), *nonce = json_string_value(json_object_get(e, "nonce"));
        json_int_t k = json_integer_value(index);
        if (!json_is_integer(index) || !address || !nonce || k < 0 || k >= m->o.n_tasks || v[k])
            continue;
        v[k] = trn_xstrdup(address);
        me |= k == m->o.index && strcmp(nonce, m->nonce) == 0;
        n++;
    }
    if (!me || n != m->o.n_tasks) {
        for (int k = 0; k < m->o.n_tasks; k++)
            free(v[k]);
        free(v);
        return false;
    }
    for (int k = 0; m->addresses && k < m->o.n_tasks; k++)
        free(m->addresses[k]);
    free(m->addresses);
    m->addresses = v;
    return true;
}

/* ---- patience ------------------------------------------------------------------------------------------------------ */

void trn_meet__say(trn_meet *m, const char *fmt, ...)
{
    trn_sb line = {0};
    va_list ap;
    va_start(ap, fmt);
    trn_sb_addv(&line, fmt, ap);
    va_end(ap);
    if (m->o.say)
        m->o.say(m->o.arg, line.p);
    else
        TRN_INFO("meet", "%s", line.p);
    trn_sb_fini(&line);
}

bool trn_meet__say_due(trn_meet *m)
{
    uint64_t now = trn_now_ns();
    if (now < m->next_say)
        return false;
    m->say_every = TRN_MIN(m->say_every ? m->say_every * 2 : 5 * SECOND, 300 * SECOND);
    m->next_say = now + m->say_every;
    return true;
}

trn_err trn_meet__patience(const trn_meet *m, const char *missing)
{
    if (m->o.stop && m->o.stop(m->o.arg))
        return trn_errorf(TRN_CANCELLED, "ended while waiting for %s", missing);
    uint64_t waited = trn_now_ns() - m->begin;
    if (m->o.timeout_ns && waited > m->o.timeout_ns)
        return trn_errorf(TRN_DEADLINE_EXCEEDED, "%s (task %d) waited %.0f s at %s, job '%s', in vain for %s", m->o.role, m->o.index, (double)waited / 1e9, m->o.where,
                          m->o.job_id, missing);
    return TRN_OK;
}

/* ---- all kinds ------------------------------------------------------------------------------------------------------ */

static trn_err check_id(const char *id)
{
    for (const char *p = id; *p; p++)
        if (!((*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') || (*p >= '0' && *p <= '9') || strchr("_-+@.", *p)))
            return trn_errorf(TRN_INVALID_ARGUMENT, "job id '%s': letters, digits, '-', '_', '.' are possible", id);
    if (!*id || *id == '.' || strlen(id) > 100)
        return trn_errorf(TRN_INVALID_ARGUMENT, "job id '%s': 1 to 100 characters are expected, the first of them no '.'", id);
    return TRN_OK;
}

trn_err trn_meet_open(trn_meet **out, const trn_meet_opts *o)
{
    const char *id = o->job_id ? o->job_id : "job";
    TRN_TRY(check_id(id));
    if (o->n_tasks < 1 || o->n_tasks > TRN_MEET_MAX_TASKS || o->index < 0 || o->index >= o->n_tasks)
        return trn_errorf(TRN_INVALID_ARGUMENT, "task index %d of %d tasks: 0 to %d is possible", o->index, o->n_tasks, o->n_tasks - 1);
    char host[256] = "?";
    gethostname(host, sizeof host - 1);
    trn_meet *m = trn_xalloc(sizeof *m);
    m->o = *o;
    m->o.where = trn_xstrdup(o->where);
    m->o.job_id = trn_xstrdup(id);
    m->o.role = trn_xstrdup(o->role);
    m->o.address = trn_xstrdup(o->address);
    snprintf(m->nonce, sizeof m->nonce, "%016llx", (unsigned long long)trn_random64());
    m->begin = trn_now_ns();
    m->next_say = m->begin + 3 * SECOND;
    m->me = (trn_meet_card){.index = o->index, .tasks = o->n_tasks, .role = trn_xstrdup(o->role), .address = trn_xstrdup(o->address), .host = trn_xstrdup(host),
                            .nonce = trn_xstrdup(m->nonce), .ns = own_ns(), .pid = getpid()};
    m->kind = strncmp(o->where, "tcp://", 6) == 0 ? &trn_meet__tcp : &trn_meet__dir;
    trn_err err = m->kind->gather(m);
    if (err) {
        trn_meet_close(m);
        return err;
    }
    m->met = true;
    *out = m;
    return TRN_OK;
}

const char *trn_meet_address(const trn_meet *m, int index) { return m->addresses[index]; }
uint64_t trn_meet_tend(trn_meet *m, uint64_t now) { return m->kind->tend(m, now); }

void trn_meet_close(trn_meet *m)
{
    if (!m)
        return;
    m->kind->close(m);
    for (int k = 0; m->addresses && k < m->o.n_tasks; k++)
        free(m->addresses[k]);
    free(m->addresses);
    trn_meet__card_fini(&m->me);
    free((char *)m->o.where);
    free((char *)m->o.job_id);
    free((char *)m->o.role);
    free((char *)m->o.address);
    free(m);
}
