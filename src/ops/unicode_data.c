#include "ops/unicode.h"

#include "ops/unicode_tables.inc"

#define LAST 0x10ffff

/* The step that c belongs to. */
static uint8_t value_at(const uint32_t *steps, size_t n, int32_t c)
{
    size_t lo = 0, hi = n; /* steps[lo] begins at c or before, steps[hi] behind it */
    while (hi - lo > 1) {
        size_t mid = lo + (hi - lo) / 2;
        if (steps[mid] >> 8 <= (uint32_t)c)
            lo = mid;
        else
            hi = mid;
    }
    return (uint8_t)steps[lo];
}

static bool is_late(int32_t c)
{
    size_t lo = 0, hi = TRN_COUNTOF(late_ranges);
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if ((uint32_t)c > late_ranges[mid][1])
            lo = mid + 1;
        else if ((uint32_t)c < late_ranges[mid][0])
            hi = mid;
        else
            return true;
    }
    return false;
}

enum { COMMON = 0, UNKNOWN = 103 };

int trn_unicode_script(int32_t c)
{
    if (c < 0 || c > LAST)
        return -1;
    if (c == 0x16fe2 || c == 0x16fe3)
        return COMMON; /* Han since Unicode 14 */
    return is_late(c) ? UNKNOWN : value_at(script_steps, TRN_COUNTOF(script_steps), c);
}

typedef bool (*wanted_fn)(uint8_t value, const char *name, size_t n);

static bool is_category(uint8_t v, const char *name, size_t n) { return v && memcmp(category_names[v], name, n) == 0; } /* 0: not assigned, in no class of RE2's */

static bool is_script(uint8_t v, const char *name, size_t n) { return script_names[v] && strlen(script_names[v]) == n && memcmp(script_names[v], name, n) == 0; }

static bool each(const uint32_t *steps, size_t count, wanted_fn wanted, const char *name, size_t n, void (*add)(void *, int32_t, int32_t), void *arg)
{
    bool any = false;
    for (size_t i = 0; i < count; i++) {
        if (!wanted((uint8_t)steps[i], name, n))
            continue;
        size_t end = i + 1;
        while (end < count && wanted((uint8_t)steps[end], name, n))
            end++;
        add(arg, (int32_t)(steps[i] >> 8), end < count ? (int32_t)(steps[end] >> 8) - 1 : LAST);
        any = true;
        i = end;
    }
    return any;
}

bool trn_unicode_class(const char *name, size_t n, void (*add)(void *, int32_t, int32_t), void *arg)
{
    if (n == 3 && memcmp(name, "Any", 3) == 0) {
        add(arg, 0, LAST);
        return true;
    }
    if (n == 1 || n == 2)
        return each(category_steps, TRN_COUNTOF(category_steps), is_category, name, n, add, arg);
    return n && each(script_steps, TRN_COUNTOF(script_steps), is_script, name, n, add, arg);
}

void trn_unicode_fold(int32_t lo, int32_t hi, void (*add)(void *, int32_t, int32_t), void *arg)
{
    for (size_t i = 0; i < TRN_COUNTOF(fold_ranges) && (int32_t)fold_ranges[i].first <= hi; i++) {
        int32_t a = (int32_t)fold_ranges[i].first, b = TRN_MIN((int32_t)fold_ranges[i].last, hi), step = (int32_t)fold_ranges[i].step, d = fold_ranges[i].distance;
        if (a < lo)
            a = lo + (step == 2 && (lo - a) % 2);
        if (step == 1 && a <= b)
            add(arg, a + d, b + d);
        else
            for (; a <= b; a += step)
                add(arg, a + d, a + d);
    }
}
