/* Hash map: open addressing, linear probing, deletion by shifting back (no tombstones, so it never decays).
 * Keys up to 15 bytes lie in the slot. */
#include "base/base.h"

#include <stdlib.h>

#define KEY_IN 16

typedef struct slot {
    uint64_t hash; /* 0: free */
    void *value;
    size_t n;
    union {
        char in[KEY_IN];
        char *p;
    } key;
} slot;

struct trn_map {
    slot *slots;
    size_t mask; /* slots - 1; slots is a power of two */
    size_t count;
};

static const char *slot_key(const slot *s) { return s->n < KEY_IN ? s->key.in : s->key.p; }

trn_map *trn_map_new(void) { return trn_xalloc(sizeof(trn_map)); }

static uint64_t key_hash(const void *key, size_t n)
{
    uint64_t h = trn_hash(key, n);
    return h ? h : 1;
}

/* The key's slot, or the free one where it belongs. There is always a free one. */
static slot *find(const trn_map *m, const void *key, size_t n, uint64_t h)
{
    for (size_t i = h & m->mask;; i = (i + 1) & m->mask) {
        slot *s = &m->slots[i];
        if (!s->hash || (s->hash == h && s->n == n && (n == 0 || memcmp(slot_key(s), key, n) == 0)))
            return s;
    }
}

void *trn_map_get(const trn_map *m, const void *key, size_t n)
{
    if (!m || !m->count)
        return NULL;
    slot *s = find(m, key, n, key_hash(key, n));
    return s->hash ? s->value : NULL;
}

static void grow(trn_map *m)
{
    size_t old_n = m->slots ? m->mask + 1 : 0, new_n = old_n ? old_n * 2 : 8;
    slot *old = m->slots;
    m->slots = trn_xalloc(new_n * sizeof *m->slots);
    m->mask = new_n - 1;
    for (size_t i = 0; i < old_n; i++) {
        if (!old[i].hash)
            continue;
        size_t at = old[i].hash & m->mask;
        while (m->slots[at].hash)
            at = (at + 1) & m->mask;
        m->slots[at] = old[i];
    }
    free(old);
}

void *trn_map_put(trn_map *m, const void *key, size_t n, void *value)
{
    if (!m->slots || (m->count + 1) * 4 > (m->mask + 1) * 3)
        grow(m);
    uint64_t h = key_hash(key, n);
    slot *s = find(m, key, n, h);
    if (s->hash) {
        void *old = s->value;
        s->value = value;
        return old;
    }
    s->hash = h;
    s->n = n;
    s->value = value;
    if (n < KEY_IN) {
        if (n)
            memcpy(s->key.in, key, n);
        s->key.in[n] = 0;
    } else {
        s->key.p = trn_xstrndup(key, n);
    }
    m->count++;
    return NULL;
}

void *trn_map_del(trn_map *m, const void *key, size_t n)
{
    if (!m || !m->count)
        return NULL;
    slot *s = find(m, key, n, key_hash(key, n));
    if (!s->hash)
        return NULL;
    void *old = s->value;
    if (s->n >= KEY_IN)
        free(s->key.p);
    /* Pull back every follower whose home does not lie behind the hole. */
    size_t hole = (size_t)(s - m->slots);
    for (size_t i = (hole + 1) & m->mask; m->slots[i].hash; i = (i + 1) & m->mask) {
        size_t home = m->slots[i].hash & m->mask;
        if (((i - home) & m->mask) >= ((i - hole) & m->mask)) {
            m->slots[hole] = m->slots[i];
            hole = i;
        }
    }
    m->slots[hole].hash = 0;
    m->count--;
    return old;
}

size_t trn_map_count(const trn_map *m) { return m ? m->count : 0; }

bool trn_map_next(const trn_map *m, size_t *it, const char **key, size_t *n, void **value)
{
    if (!m || !m->slots)
        return false;
    for (; *it <= m->mask; ++*it) {
        const slot *s = &m->slots[*it];
        if (!s->hash)
            continue;
        if (key)
            *key = slot_key(s);
        if (n)
            *n = s->n;
        if (value)
            *value = s->value;
        ++*it;
        return true;
    }
    return false;
}

void trn_map_free(trn_map *m, void (*value_free)(void *))
{
    if (!m)
        return;
    for (size_t i = 0; m->slots && i <= m->mask; i++) {
        slot *s = &m->slots[i];
        if (!s->hash)
            continue;
        if (value_free)
            value_free(s->value);
        if (s->n >= KEY_IN)
            free(s->key.p);
    }
    free(m->slots);
    free(m);
}

/* ---- hash ----------------------------------------------------------------------------------------------------- */

/* Multiply to 128 bits and fold: two rounds per 16 bytes, good bits everywhere. Not for bytes that outlive the process. */
static inline uint64_t fold(uint64_t a, uint64_t b)
{
    unsigned __int128 r = (unsigned __int128)a * b;
    return (uint64_t)r ^ (uint64_t)(r >> 64);
}

static inline uint64_t load64(const uint8_t *p)
{
    uint64_t v;
    memcpy(&v, p, 8);
    return v;
}

uint64_t trn_hash(const void *data, size_t n)
{
    static const uint64_t k0 = 0x9e3779b97f4a7c15u, k1 = 0xd1b54a32d192ed03u, k2 = 0x8cb92ba72f3d8dd7u;
    const uint8_t *p = data;
    uint64_t h = k0 ^ (n * k1), a = 0, b = 0;
    size_t left = n;
    for (; left > 16; left -= 16, p += 16)
        h = fold(load64(p) ^ k1 ^ h, load64(p + 8) ^ k2);
    if (left >= 8) {
        a = load64(p);
        b = load64(p + left - 8);
    } else if (left) {
        uint8_t tail[8] = {0};
        memcpy(tail, p, left);
        a = load64(tail);
    }
    return fold(fold(a ^ k1 ^ h, b ^ k2), h ^ k0);
}
