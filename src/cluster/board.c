#include "cluster/board.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define SECOND UINT64_C(1000000000)
enum { HEAR_S = 10, STAYS_S = 10 }; /* how long the others have to hear of a failure, and those who only stay for that, of the end */

typedef enum state { ABSENT, RUNS, DONE, FAILED } state;
static const char *const state_names[] = {"absent", "run", "done", "failed"};

typedef struct row {
    char *task;
    state state;
    int code;
    bool knows; /* was told that the job has failed, or is over */
    bool stays; /* its program is done, it asks until it is told that all are */
    uint64_t heard;
    char from[64];
} row;

struct trn_board {
    pthread_mutex_t mu;
    char *task, *id;
    row *rows;
    int n, cap;
    uint64_t begin, wait_ns, silence_ns, next_log, log_every;
    uint64_t failed_at; /* 0: none has */
    uint64_t done_at;   /* 0: not all are */
    int failed;         /* row */
    int fd;
};

trn_err trn_board_new(trn_board **out, const trn_board_opts *o)
{
    trn_board *b = trn_xalloc(sizeof *b);
    pthread_mutex_init(&b->mu, NULL);
    b->task = trn_xstrdup(o->task);
    b->id = o->job_id ? trn_xstrdup(o->job_id) : NULL;
    b->begin = trn_now_ns();
    b->wait_ns = o->wait_ns;
    b->silence_ns = o->silence_ns;
    b->log_every = 5 * SECOND;
    b->next_log = b->begin + b->log_every;
    b->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    for (const char *p = o->await; p && *p;) {
        size_t n = strcspn(p, ",");
        if (n > 0) {
            row r = {.task = trn_xstrndup(p, n)};
            TRN_PUSH(b->rows, b->n, b->cap, r);
        }
        p += n + (p[n] == ',');
    }
    *out = b;
    return TRN_OK;
}

void trn_board_free(trn_board *b)
{
    if (!b)
        return;
    for (int i = 0; i < b->n; i++)
        free(b->rows[i].task);
    free(b->rows);
    free(b->task);
    free(b->id);
    if (b->fd >= 0)
        close(b->fd);
    pthread_mutex_destroy(&b->mu);
    free(b);
}

int trn_board_fd(const trn_board *b) { return b->fd; }

/* ---- a word from a launcher --------------------------------------------------------------------------------------- */

/* The value of a key in "a=b&c=d"; nothing in it needs escapes. */
static bool value_of(char *out, size_t size, const char *query, const char *key)
{
    size_t kn = strlen(key);
    for (const char *p = query; p && *p;) {
        size_t n = strcspn(p, "&");
        if (n > kn && memcmp(p, key, kn) == 0 && p[kn] == '=') {
            snprintf(out, size, "%.*s", (int)TRN_MIN(n - kn - 1, size - 1), p + kn + 1);
            return true;
        }
        p += n + (p[n] == '&');
    }
    return false;
}

static row *find(trn_board *b, const char *task)
{
    for (int i = 0; i < b->n; i++)
        if (strcmp(b->rows[i].task, task) == 0)
            return &b->rows[i];
    return NULL;
}

static bool all_done(const trn_board *b)
{
    for (int i = 0; i < b->n; i++)
        if (b->rows[i].state != DONE)
            return false;
    return b->n > 0;
}

static void take_word(trn_board *b, const char *query)
{
    char task[80], word[16] = "run", code[16] = "0", from[64] = "", stays[4] = "0";
    if (!value_of(task, sizeof task, query, "task"))
        return;
    row *r = find(b, task);
    if (!r)
        return; /* nobody awaits it */
    value_of(word, sizeof word, query, "state");
    value_of(code, sizeof code, query, "code");
    value_of(from, sizeof from, query, "from");
    r->stays = value_of(stays, sizeof stays, query, "stays") && stays[0] == '1';
    for (int s = RUNS; s <= FAILED; s++)
        if (strcmp(word, state_names[s]) == 0)
            r->state = (state)s;
    r->heard = trn_now_ns();
    r->code = atoi(code);
    memcpy(r->from, from, sizeof from);
    if (r->state == FAILED && !b->failed_at) {
        b->failed_at = r->heard;
        b->failed = (int)(r - b->rows);
    }
    if (!all_done(b))
        b->done_at = 0;
    else if (!b->done_at)
        b->done_at = r->heard;
    r->knows = b->failed_at || b->done_at;
    uint64_t one = 1;
    if (write(b->fd, &one, sizeof one) != (ssize_t)sizeof one)
        return;
}

static json_t *answer(trn_board *b)
{
    json_t *root = json_object(), *tasks = json_object();
    json_object_set_new(root, "task", json_string(b->task));
    json_object_set_new(root, "job", b->id ? json_string(b->id) : json_null());
    json_object_set_new(root, "version", json_string(TRAINERA_VERSION));
    json_object_set_new(root, "time_us", json_integer((json_int_t)trn_wall_us()));
    const row *f = b->failed_at ? &b->rows[b->failed] : NULL;
    json_object_set_new(root, "end", json_boolean(f || all_done(b)));
    json_object_set_new(root, "code", json_integer(f ? f->code : 0));
    char why[200] = "";
    if (f)
        snprintf(why, sizeof why, "%s failed with exit code %d", f->task, f->code);
    else if (all_done(b))
        snprintf(why, sizeof why, "all %d programs have ended", b->n);
    json_object_set_new(root, "why", json_string(why));
    uint64_t now = trn_now_ns();
    for (int i = 0; i < b->n; i++) {
        json_t *t = json_object();
        json_object_set_new(t, "state", json_string(state_names[b->rows[i].state]));
        if (b->rows[i].heard)
            json_object_set_new(t, "silent_s", json_real((double)(now - b->rows[i].heard) / 1e9));
        json_object_set_new(tasks, b->rows[i].task, t);
    }
    json_object_set_new(root, "tasks", tasks);
    return root;
}

/* [loop] */
static void handle(void *svc, const char *path, const char *query, trn_http_reply *out)
{
    trn_board *b = svc;
    char id[128];
    out->status = 200;
    out->content_type = "application/json";
    pthread_mutex_lock(&b->mu);
    json_t *root = NULL;
    if (b->id && value_of(id, sizeof id, query, "id") && strcmp(id, b->id) != 0) {
        out->status = 409;
        root = json_pack("{s:s, s:s, s:s}", "error", "another job", "job", b->id, "task", b->task);
    } else {
        take_word(b, query);
        root = answer(b);
    }
    pthread_mutex_unlock(&b->mu);
    char *text = json_dumps(root, 0);
    trn_sb_adds(&out->body, text ? text : "{}");
    trn_sb_adds(&out->body, "\n");
    free(text);
    json_decref(root);
}

trn_http_route trn_board_route(trn_board *b) { return (trn_http_route){"/job", handle, b}; }

/* ---- the state ---------------------------------------------------------------------------------------------------- */

static void names_of(trn_sb *out, const trn_board *b, state s)
{
    int n = 0;
    for (int i = 0; i < b->n; i++)
        if (b->rows[i].state == s) {
            if (n < 8)
                trn_sb_addf(out, "%s%s", n ? ", " : "", b->rows[i].task);
            n++;
        }
    if (n > 8)
        trn_sb_addf(out, " and %d more", n - 8);
}

static void log_waiting(trn_board *b, uint64_t now)
{
    trn_sb absent = {0};
    names_of(&absent, b, ABSENT);
    if (absent.n && now >= b->next_log) {
        TRN_INFO("serve", "serving; %s ha%s not been heard of for %.0f s%s", absent.p, strchr(absent.p, ',') ? "ve" : "s", (double)(now - b->begin) / 1e9,
                 b->wait_ns ? "; giving up when --wait-timeout is over" : "");
        b->log_every = TRN_MIN(b->log_every * 2, 300 * SECOND);
        b->next_log = now + b->log_every;
    }
    trn_sb_fini(&absent);
}

static trn_board_state look(trn_board *b, uint64_t now, int *code, char *why, size_t n)
{
    *code = 0;
    if (all_done(b)) {
        for (int i = 0; i < b->n; i++)
            if (b->rows[i].stays && !b->rows[i].knows && now < b->done_at + STAYS_S * SECOND)
                return TRN_BOARD_OPEN;
        snprintf(why, n, "all %d programs of the job have ended", b->n);
        return TRN_BOARD_DONE;
    }
    if (b->failed_at) {
        const row *f = &b->rows[b->failed];
        bool all_know = true;
        for (int i = 0; i < b->n; i++)
            all_know &= b->rows[i].knows || b->rows[i].state >= DONE; /* one that has not come yet would wait for us in vain */
        if (!all_know && now - b->failed_at < HEAR_S * SECOND)
            return TRN_BOARD_OPEN;
        *code = f->code;
        snprintf(why, n, "%s failed with exit code %d", f->task, f->code);
        return TRN_BOARD_FAILED;
    }
    for (int i = 0; i < b->n; i++) {
        const row *r = &b->rows[i];
        if (r->state == ABSENT && b->wait_ns && now - b->begin > b->wait_ns) {
            snprintf(why, n, "%s was not heard of for %.0f s", r->task, (double)(now - b->begin) / 1e9);
            return TRN_BOARD_WAITED;
        }
        if (r->state == RUNS && b->silence_ns && now > r->heard && now - r->heard > b->silence_ns) {
            snprintf(why, n, "%s%s%s has been silent for %.0f s without having said that it ended", r->task, *r->from ? " on " : "", r->from,
                     (double)(now - r->heard) / 1e9);
            return TRN_BOARD_LOST;
        }
    }
    log_waiting(b, now);
    return TRN_BOARD_OPEN;
}

trn_board_state trn_board_look(trn_board *b, uint64_t now, int *code, char *why, size_t n)
{
    uint64_t ignored;
    if (read(b->fd, &ignored, sizeof ignored) < 0)
        ignored = 0;
    pthread_mutex_lock(&b->mu);
    trn_board_state s = look(b, now, code, why, n);
    pthread_mutex_unlock(&b->mu);
    return s;
}
