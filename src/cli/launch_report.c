/* A thread that tells every ps how our program is, and hears from them whether the job goes on (cluster/board.h). */
#include <jansson.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "cli/launch.h"

#define SECOND UINT64_C(1000000000)
enum { EVERY_MS = 2000, STAY_MS = 500, CALL_S = 3, STARTED_S = 5, TOLD_S = 10, GONE_S = 20 };

typedef struct one_ps {
    const char *name, *address;
    uint64_t heard;     /* 0: never */
    uint64_t next_log, log_every;
    bool told;          /* our last word */
    char error[256];    /* of the last try */
    bool awaits;        /* our program's end, by its last answer: one that serves for ever, or until a queue says so, never tells us of the others' */
    char running[256];  /* the programs that it waits for, by its last answer */
} one_ps;

typedef struct launch_report {
    launch_job *j;
    const launch_task *me;
    one_ps *ps;
    int n;
    pthread_t thread;
    bool started;
    int fd;
    uint64_t begin;
    char host[64];
    pthread_mutex_t mu;
    pthread_cond_t changed;
    /* under mu */
    launch_word word;
    int code;
    char why[512];
    uint64_t stay;    /* since when our program is done and we only wait for the others' end; 0 */
    bool last;        /* say the last word and end */
    bool done;        /* of the last word */
    int last_code;
    uint64_t last_by;
} launch_report;

static void set_word(launch_report *r, launch_word word, int code, const char *why)
{
    pthread_mutex_lock(&r->mu);
    if (r->word == LAUNCH_GO_ON) {
        r->word = word;
        r->code = code;
        snprintf(r->why, sizeof r->why, "%s", why);
        uint64_t one = 1;
        if (write(r->fd, &one, sizeof one) < 0)
            r->code = code;
    }
    pthread_mutex_unlock(&r->mu);
}

static void who_runs(one_ps *p, const json_t *tasks)
{
    const char *name;
    json_t *t;
    size_t n = 0;
    p->running[0] = 0;
    json_object_foreach ((json_t *)tasks, name, t)
        if (n < sizeof p->running && strcmp(json_string_value(json_object_get(t, "state")) ?: "", "done") != 0)
            n += (size_t)snprintf(p->running + n, sizeof p->running - n, "%s%s", n ? ", " : "", name);
}

static void hear(launch_report *r, one_ps *p, int status, const char *text)
{
    json_t *root = json_loads(text, 0, NULL);
    const char *job = json_string_value(json_object_get(root, "job")), *why = json_string_value(json_object_get(root, "why"));
    const char *task = json_string_value(json_object_get(root, "task"));
    if (status == 409 || !task || strcmp(task, p->name) != 0) {
        if (task)
            snprintf(p->error, sizeof p->error, "%s of %s%s%s answers there", task, job && strcmp(job, r->j->id) != 0 ? "another job, " : "this cluster",
                     job && strcmp(job, r->j->id) != 0 ? job : "", "");
        else
            snprintf(p->error, sizeof p->error, "something that is no task of Trainera answers there (HTTP %d)", status);
    } else {
        p->heard = trn_now_ns();
        p->error[0] = 0;
        who_runs(p, json_object_get(root, "tasks"));
        p->awaits = json_object_get(json_object_get(root, "tasks"), r->me->name) != NULL;
        if (json_is_true(json_object_get(root, "end"))) {
            int code = (int)json_integer_value(json_object_get(root, "code"));
            set_word(r, code ? LAUNCH_JOB_FAILED : LAUNCH_JOB_DONE, code, why ? why : "");
        }
    }
    json_decref(root);
}

/* True: it has our word. */
static bool tell(launch_report *r, one_ps *p, const char *state, int code, bool stays)
{
    char path[512];
    snprintf(path, sizeof path, "/job?task=%s&state=%s&stays=%d&code=%d&id=%s&from=%s", r->me->name, state, stays, code, r->j->id, r->host);
    trn_sb body = {0};
    int status = 0;
    uint64_t before = p->heard;
    trn_err err = cli_http_get(&body, &status, p->address, path, CALL_S * SECOND);
    if (err)
        snprintf(p->error, sizeof p->error, "%s", trn_err_msg(err));
    else
        hear(r, p, status, body.p ? body.p : "");
    trn_err_free(err);
    trn_sb_fini(&body);
    return p->heard != before;
}

/* A ps that is not there, explained: who, for whom, where, how long, why, what next. */
static void complain(launch_report *r, one_ps *p)
{
    uint64_t now = trn_now_ns(), since = p->heard ? p->heard : r->begin;
    if (now - since < STARTED_S * SECOND)
        return;
    uint64_t limit = (uint64_t)(p->heard ? r->j->o->peer_timeout : r->j->o->wait_timeout) * SECOND;
    if (limit && now - since > limit) {
        char why[512];
        snprintf(why, sizeof why, "%s at %s %s for %.0f s: %s", p->name, p->address, p->heard ? "has not answered" : "was not there", (double)(now - since) / 1e9,
                 p->error);
        set_word(r, LAUNCH_PS_LOST, p->heard ? LAUNCH_LOST : LAUNCH_WAITED, why);
        return;
    }
    if (now < p->next_log)
        return;
    char next[64] = "";
    if (limit)
        snprintf(next, sizeof next, "; giving up in %.0f s", (double)(limit - (now - since)) / 1e9);
    launch_say(r->j, "%s waits for %s at %s since %.0f s: %s; trying again every %d s%s", r->me->name, p->name, p->address, (double)(now - since) / 1e9, p->error,
               EVERY_MS / 1000, next);
    p->log_every = TRN_MIN(p->log_every ? p->log_every * 2 : 10 * SECOND, 300 * SECOND);
    p->next_log = now + p->log_every;
}

/* Our program is done; a ps that ends says so before it goes. One that is restarted meanwhile must hear of us again, one that is silent for long has gone
 * without a word. */
static void tell_and_stay(launch_report *r, one_ps *p, uint64_t since)
{
    bool heard = tell(r, p, "done", 0, true);
    p->told |= heard;
    if (heard && !p->awaits) {
        set_word(r, LAUNCH_JOB_DONE, 0, "its ps serve on");
        return;
    }
    uint64_t quiet = trn_now_ns() - (p->told ? p->heard : since);
    uint64_t patience = p->told ? GONE_S : TOLD_S;
    if (!heard && quiet > patience * SECOND)
        set_word(r, LAUNCH_JOB_DONE, 0, "its ps have gone");
    uint64_t now = trn_now_ns();
    if (p != r->ps || !p->running[0] || now - since < p->log_every)
        return;
    if (p->log_every)
        launch_say(r->j, "%s is done since %.0f s; a server stands in for it until all are done; still there: %s (--leave-early would not wait)", r->me->name,
                   (double)(now - since) / 1e9, p->running);
    p->log_every = p->log_every ? p->log_every * 4 : 5 * SECOND;
}

static void *talk(void *arg)
{
    launch_report *r = arg;
    for (;;) {
        pthread_mutex_lock(&r->mu);
        bool last = r->last, done = r->done;
        int code = r->last_code;
        uint64_t by = r->last_by, stay = r->stay;
        pthread_mutex_unlock(&r->mu);
        bool all = true, all_heard = true;
        for (int i = 0; i < r->n; i++) {
            one_ps *p = &r->ps[i];
            if (!last && stay) {
                tell_and_stay(r, p, stay);
            } else if (!last) {
                if (tell(r, p, "run", 0, false))
                    p->next_log = p->log_every = 0;
                else
                    complain(r, p);
            } else if (!p->told) {
                all &= p->told = tell(r, p, done ? "done" : "failed", code, false);
            }
            all_heard &= p->heard != 0;
        }
        if (last && (all || trn_now_ns() >= by))
            break;
        pthread_mutex_lock(&r->mu);
        if (r->last == last && r->stay == stay) {
            struct timespec ts;
            clock_gettime(CLOCK_REALTIME, &ts);
            uint64_t ns = (uint64_t)ts.tv_nsec + (last ? 200 : stay ? STAY_MS : all_heard ? EVERY_MS : EVERY_MS / 4) * UINT64_C(1000000);
            ts.tv_sec += (time_t)(ns / SECOND);
            ts.tv_nsec = (long)(ns % SECOND);
            pthread_cond_timedwait(&r->changed, &r->mu, &ts);
        }
        pthread_mutex_unlock(&r->mu);
    }
    return NULL;
}

trn_err launch_report_start(launch_job *j)
{
    const launch_task *me = NULL;
    int n = 0;
    for (int i = 0; i < j->n; i++) {
        if (j->tasks[i].mine && !j->tasks[i].server)
            me = &j->tasks[i];
        n += j->tasks[i].server;
    }
    if (j->alone || !me || n == 0)
        return TRN_OK;
    launch_report *r = trn_xalloc(sizeof *r);
    r->j = j;
    r->me = me;
    r->begin = trn_now_ns();
    r->ps = trn_xalloc(sizeof *r->ps * (size_t)n);
    for (int i = 0; i < j->n; i++)
        if (j->tasks[i].server)
            r->ps[r->n++] = (one_ps){.name = j->tasks[i].name, .address = j->tasks[i].address};
    gethostname(r->host, sizeof r->host - 1);
    r->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    pthread_mutex_init(&r->mu, NULL);
    pthread_cond_init(&r->changed, NULL);
    if (r->fd < 0 || pthread_create(&r->thread, NULL, talk, r) != 0)
        return trn_errorf(TRN_RESOURCE_EXHAUSTED, "cannot start a thread");
    j->report = r;
    return TRN_OK;
}

int launch_report_fd(const launch_job *j) { return j->report ? j->report->fd : -1; }

launch_word launch_report_heard(launch_job *j, int *code, char *why, size_t n)
{
    launch_report *r = j->report;
    uint64_t ignored;
    if (read(r->fd, &ignored, sizeof ignored) < 0)
        return LAUNCH_GO_ON;
    pthread_mutex_lock(&r->mu);
    launch_word w = r->word;
    *code = r->code;
    snprintf(why, n, "%s", r->why);
    pthread_mutex_unlock(&r->mu);
    return w;
}

void launch_report_stay(launch_job *j)
{
    launch_report *r = j->report;
    pthread_mutex_lock(&r->mu);
    r->stay = trn_now_ns();
    pthread_cond_signal(&r->changed);
    pthread_mutex_unlock(&r->mu);
}

void launch_report_end(launch_job *j, bool done, int code, uint64_t ns)
{
    launch_report *r = j->report;
    pthread_mutex_lock(&r->mu);
    for (int i = 0; i < r->n && r->stay && r->word == LAUNCH_GO_ON; i++)
        r->ps[i].told = false; /* we go before the job is over: nobody has to tell us */
    r->last = true;
    r->done = done;
    r->last_code = code;
    r->last_by = trn_now_ns() + (r->word == LAUNCH_GO_ON ? ns : TRN_MIN(ns, SECOND)); /* the others know already, or cannot be reached */
    pthread_cond_signal(&r->changed);
    pthread_mutex_unlock(&r->mu);
    pthread_join(r->thread, NULL);
    for (int i = 0; i < r->n; i++)
        if (!r->ps[i].told && !(r->word == LAUNCH_PS_LOST || r->word == LAUNCH_JOB_DONE || r->word == LAUNCH_JOB_FAILED))
            launch_say(j, "%s at %s could not be told that %s has ended: %s", r->ps[i].name, r->ps[i].address, r->me->name, r->ps[i].error);
}
