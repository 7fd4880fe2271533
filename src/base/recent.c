/* What happened lately, kept in bounded memory for whoever looks in: warnings and errors, and the scalars that the program reports. */
#include "base/base.h"

#include <math.h>
#include <stdlib.h>

/* ---- a series over time ---------------------------------------------------------------------------------------- */

void trn_series_add(trn_series *s, uint64_t now_ns, double v)
{
    if (!s->bin_ns)
        s->bin_ns = TRN_SERIES_FIRST_NS;
    if (!s->start_ns)
        s->start_ns = now_ns;
    s->last = v;
    s->total++;
    uint64_t at = now_ns > s->start_ns ? (now_ns - s->start_ns) / s->bin_ns : 0;
    while (at >= TRN_SERIES_BINS) { /* two bins become one: the whole run stays in view, ever more coarsely */
        for (int i = 0; i < TRN_SERIES_BINS / 2; i++) {
            s->sum[i] = s->sum[2 * i] + s->sum[2 * i + 1];
            s->count[i] = s->count[2 * i] + s->count[2 * i + 1];
        }
        memset(s->sum + TRN_SERIES_BINS / 2, 0, sizeof s->sum / 2);
        memset(s->count + TRN_SERIES_BINS / 2, 0, sizeof s->count / 2);
        s->n = (s->n + 1) / 2;
        s->bin_ns *= 2;
        at /= 2;
    }
    s->sum[at] += v;
    s->count[at]++;
    s->n = TRN_MAX(s->n, (int)at + 1);
}

/* ---- warnings and errors ---------------------------------------------------------------------------------------- */

#define MAX_NOTES 64
#define NOTE_TEXT 480

typedef struct note {
    trn_recent r;
    char module[24];
    char text[NOTE_TEXT];
} note;

static pthread_mutex_t notes_mu = PTHREAD_MUTEX_INITIALIZER;
static note *notes[MAX_NOTES]; /* a ring, made as needed */
static uint64_t n_notes;

/* Whole characters: a text that is cut inside one would not be UTF-8 any more. */
static void copy_text(char *to, size_t cap, const char *from, size_t n)
{
    if (n >= cap) {
        n = cap - 1;
        while (n > 0 && ((unsigned char)from[n] & 0xc0) == 0x80)
            n--;
    }
    memcpy(to, from, n);
    to[n] = 0;
}

void trn_recent_note(trn_log_level level, const char *module, const char *text, size_t n)
{
    char head[NOTE_TEXT];
    copy_text(head, sizeof head, text, n);
    uint64_t now = trn_now_ns();
    pthread_mutex_lock(&notes_mu);
    /* What repeats is counted, not kept again: it would push everything else out. */
    for (uint64_t i = 0; i < TRN_MIN(n_notes, (uint64_t)8); i++) {
        note *last = notes[(n_notes - 1 - i) % MAX_NOTES];
        if (last->r.level == level && strcmp(last->text, head) == 0) {
            last->r.count++;
            last->r.last_ns = now;
            pthread_mutex_unlock(&notes_mu);
            return;
        }
    }
    note **slot = &notes[n_notes % MAX_NOTES];
    if (!*slot)
        *slot = trn_xalloc(sizeof **slot);
    note *e = *slot;
    copy_text(e->module, sizeof e->module, module, strlen(module));
    memcpy(e->text, head, sizeof head);
    e->r = (trn_recent){level, now, now, 1, e->module, e->text};
    n_notes++;
    pthread_mutex_unlock(&notes_mu);
}

void trn_recent_each(int max, void (*fn)(void *arg, const trn_recent *r), void *arg)
{
    pthread_mutex_lock(&notes_mu);
    uint64_t have = TRN_MIN(n_notes, (uint64_t)MAX_NOTES);
    for (uint64_t i = 0; i < have && (int)i < max; i++)
        fn(arg, &notes[(n_notes - 1 - i) % MAX_NOTES]->r);
    pthread_mutex_unlock(&notes_mu);
}

/* ---- scalars ---------------------------------------------------------------------------------------------------- */

#define MAX_SCALARS 64
#define MAX_TAG 200

typedef struct scalar {
    trn_series s;
    char tag[MAX_TAG + 1];
} scalar;

static pthread_mutex_t scalars_mu = PTHREAD_MUTEX_INITIALIZER;
static scalar *scalars[MAX_SCALARS];
static int n_scalars;

void trn_scalar_note(const char *tag, size_t n, double v)
{
    if (n == 0 || n > MAX_TAG || !isfinite(v))
        return;
    uint64_t now = trn_now_ns();
    pthread_mutex_lock(&scalars_mu);
    scalar *s = NULL;
    for (int i = 0; i < n_scalars && !s; i++)
        if (memcmp(scalars[i]->tag, tag, n) == 0 && !scalars[i]->tag[n])
            s = scalars[i];
    if (!s && n_scalars < MAX_SCALARS) {
        s = scalars[n_scalars++] = trn_xalloc(sizeof *s);
        memcpy(s->tag, tag, n);
    }
    if (s)
        trn_series_add(&s->s, now, v);
    pthread_mutex_unlock(&scalars_mu);
}

void trn_scalar_each(int max, void (*fn)(void *arg, const char *tag, const trn_series *s), void *arg)
{
    pthread_mutex_lock(&scalars_mu);
    for (int i = 0; i < n_scalars && i < max; i++)
        fn(arg, scalars[i]->tag, &scalars[i]->s);
    pthread_mutex_unlock(&scalars_mu);
}
