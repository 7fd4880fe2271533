/* Memory for control structures: allocation that cannot fail, arenas, the string builder. */
#include "base/base.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* ---- what there is ---------------------------------------------------------------------------------------------- */

uint64_t trn_memory_bytes(void)
{
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    uint64_t bytes = pages > 0 && page > 0 ? (uint64_t)pages * (uint64_t)page : 0;
    static const char *const files[] = {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}; /* as a container sees its own */
    for (size_t i = 0; i < TRN_COUNTOF(files); i++) {
        FILE *f = fopen(files[i], "re");
        unsigned long long n;
        if (f && fscanf(f, "%llu", &n) == 1 && n > 0 && (!bytes || n < bytes)) /* "max": no number */
            bytes = n;
        if (f)
            fclose(f);
    }
    return bytes;
}

/* ---- allocation that cannot fail ------------------------------------------------------------------------------ */

static _Noreturn void die_oom(size_t n)
{
    char line[96];
    int len = snprintf(line, sizeof line, "trainera: out of memory (%zu bytes asked for), giving up\n", n);
    ssize_t ignored = write(STDERR_FILENO, line, (size_t)len);
    (void)ignored;
    abort();
}

void *trn_xalloc(size_t n)
{
    void *p = calloc(1, n ? n : 1);
    if (TRN_UNLIKELY(!p))
        die_oom(n);
    return p;
}

void *trn_xrealloc(void *p, size_t n)
{
    p = realloc(p, n ? n : 1);
    if (TRN_UNLIKELY(!p))
        die_oom(n);
    return p;
}

char *trn_xstrndup(const char *s, size_t n)
{
    char *p = malloc(n + 1);
    if (TRN_UNLIKELY(!p))
        die_oom(n);
    if (n)
        memcpy(p, s, n);
    p[n] = 0;
    return p;
}

char *trn_xstrdup(const char *s) { return trn_xstrndup(s, strlen(s)); }

char *trn_xasprintf(const char *fmt, ...)
{
    va_list ap;
    char *p;
    va_start(ap, fmt);
    int n = vasprintf(&p, fmt, ap);
    va_end(ap);
    if (TRN_UNLIKELY(n < 0))
        die_oom(strlen(fmt));
    return p;
}

/* ---- arena ---------------------------------------------------------------------------------------------------- */

/* Chunks double from 1 KiB to 256 KiB, so that a small call costs one small malloc and a graph few large ones. What is
 * larger than a quarter of the next chunk gets a chunk of its own, and the open chunk stays open. */
#define CHUNK_MIN ((size_t)1 << 10)
#define CHUNK_MAX ((size_t)1 << 18)
#define ALIGN 16

typedef struct chunk {
    struct chunk *next;
    size_t size;
    _Alignas(ALIGN) char data[];
} chunk;

typedef struct on_free {
    struct on_free *next;
    void (*fn)(void *);
    void *arg;
} on_free;

struct trn_arena {
    char *at, *end; /* free room of the open chunk */
    chunk *chunks;
    on_free *hooks;
    size_t next_size, bytes;
    _Alignas(ALIGN) char first[CHUNK_MIN - 64];
};

trn_arena *trn_arena_new(void)
{
    trn_arena *a = trn_xalloc(sizeof *a);
    a->at = a->first;
    a->end = a->first + sizeof a->first;
    a->next_size = 2 * CHUNK_MIN;
    a->bytes = sizeof *a;
    return a;
}

void trn_arena_free(trn_arena *a)
{
    if (!a)
        return;
    for (on_free *h = a->hooks; h; h = h->next)
        h->fn(h->arg);
    for (chunk *c = a->chunks, *next; c; c = next) {
        next = c->next;
        free(c);
    }
    free(a);
}

static char *chunk_add(trn_arena *a, size_t size)
{
    chunk *c = calloc(1, sizeof *c + size);
    if (!c)
        return NULL;
    c->size = size;
    c->next = a->chunks;
    a->chunks = c;
    a->bytes += sizeof *c + size;
    return c->data;
}

void *trn_arena_try_alloc(trn_arena *a, size_t n)
{
    if (TRN_UNLIKELY(n > SIZE_MAX / 2))
        return NULL;
    size_t need = n ? (n + ALIGN - 1) & ~(size_t)(ALIGN - 1) : ALIGN;
    if (TRN_LIKELY(need <= (size_t)(a->end - a->at))) {
        void *p = a->at;
        a->at += need;
        return p;
    }
    if (need > a->next_size / 4)
        return chunk_add(a, need);
    char *p = chunk_add(a, a->next_size);
    if (!p)
        return NULL;
    a->at = p + need;
    a->end = p + a->next_size;
    if (a->next_size < CHUNK_MAX)
        a->next_size *= 2;
    return p;
}

void *trn_arena_alloc(trn_arena *a, size_t n)
{
    void *p = trn_arena_try_alloc(a, n);
    if (TRN_UNLIKELY(!p))
        die_oom(n);
    return p;
}

void *trn_arena_dup(trn_arena *a, const void *p, size_t n)
{
    void *q = trn_arena_alloc(a, n);
    if (n)
        memcpy(q, p, n);
    return q;
}

char *trn_arena_strndup(trn_arena *a, const char *s, size_t n)
{
    char *q = trn_arena_alloc(a, n + 1);
    if (n)
        memcpy(q, s, n);
    return q;
}

char *trn_arena_strdup(trn_arena *a, const char *s) { return trn_arena_strndup(a, s, strlen(s)); }

char *trn_arena_printf(trn_arena *a, const char *fmt, ...)
{
    char small[256]; /* most are names: formatted once */
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(small, sizeof small, fmt, ap);
    va_end(ap);
    if (n < 0)
        n = 0;
    if ((size_t)n < sizeof small)
        return trn_arena_strndup(a, small, (size_t)n);
    char *p = trn_arena_alloc(a, (size_t)n + 1);
    va_start(ap, fmt);
    vsnprintf(p, (size_t)n + 1, fmt, ap);
    va_end(ap);
    return p;
}

void trn_arena_on_free(trn_arena *a, void (*fn)(void *), void *arg)
{
    on_free *h = trn_arena_alloc(a, sizeof *h);
    *h = (on_free){a->hooks, fn, arg};
    a->hooks = h;
}

size_t trn_arena_bytes(const trn_arena *a) { return a->bytes; }

/* ---- string builder ------------------------------------------------------------------------------------------- */

void trn_sb_reserve(trn_sb *s, size_t more)
{
    if (TRN_UNLIKELY(more > SIZE_MAX / 4))
        die_oom(more);
    size_t need = s->n + more + 1;
    if (need <= s->cap)
        return;
    size_t cap = s->cap ? s->cap * 2 : 64;
    s->cap = cap < need ? need : cap;
    s->p = trn_xrealloc(s->p, s->cap);
}

void trn_sb_add(trn_sb *s, const void *p, size_t n)
{
    trn_sb_reserve(s, n);
    if (n)
        memcpy(s->p + s->n, p, n);
    s->n += n;
    s->p[s->n] = 0;
}

void trn_sb_adds(trn_sb *s, const char *str) { trn_sb_add(s, str, strlen(str)); }

void trn_sb_addv(trn_sb *s, const char *fmt, va_list ap)
{
    trn_sb_reserve(s, 64);
    va_list again;
    va_copy(again, ap);
    size_t room = s->cap - s->n;
    int n = vsnprintf(s->p + s->n, room, fmt, ap);
    if (n >= 0 && (size_t)n >= room) {
        trn_sb_reserve(s, (size_t)n);
        vsnprintf(s->p + s->n, (size_t)n + 1, fmt, again);
    }
    va_end(again);
    if (n > 0)
        s->n += (size_t)n;
    s->p[s->n] = 0;
}

void trn_sb_addf(trn_sb *s, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    trn_sb_addv(s, fmt, ap);
    va_end(ap);
}

void trn_sb_fini(trn_sb *s)
{
    free(s->p);
    *s = (trn_sb){0};
}
