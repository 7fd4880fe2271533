/* What the status page is made of: JSON, series, recent errors, scalars. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>
#include <jansson.h>

#include "obs/json.h"

static void json_is_json_whatever_comes(void **state)
{
    trn_sb s = {0};
    trn_json j = {.out = &s};
    trn_json_open(&j, NULL, '{');
    trn_json_strn(&j, "text", "a\"b\\c\n\x01\xff\xc3\xa4\xed\xa0\x80\xf0\x9f\x98\x80", 18);
    trn_json_open(&j, "list", '[');
    trn_json_num(&j, NULL, NAN);
    trn_json_num(&j, NULL, 0.1);
    trn_json_num(&j, NULL, 123456789);
    trn_json_uint(&j, NULL, UINT64_MAX >> 1);
    trn_json_open(&j, NULL, '{');
    trn_json_close(&j);
    trn_json_close(&j);
    trn_json_str(&j, "none", NULL);
    trn_json_close(&j);
    json_error_t e;
    json_t *v = json_loadb(s.p, s.n, 0, &e);
    if (!v)
        fail_msg("%s: %s", e.text, s.p);
    const char *text = json_string_value(json_object_get(v, "text"));
    assert_non_null(strstr(text, "\xc3\xa4"));
    assert_non_null(strstr(text, "\xf0\x9f\x98\x80"));
    assert_non_null(strstr(text, "\xef\xbf\xbd")); /* what was no UTF-8 */
    json_t *l = json_object_get(v, "list");
    assert_true(json_is_null(json_array_get(l, 0)));
    assert_int_equal(json_integer_value(json_array_get(l, 2)), 123456789);
    assert_true(json_is_null(json_object_get(v, "none")));
    json_decref(v);
    trn_sb_fini(&s);
}

static void series_keep_the_whole_run(void **state)
{
    trn_series s = {.bin_ns = 1000};
    for (uint64_t t = 1; t <= 1000000; t++)
        trn_series_add(&s, t * 10, (double)(t % 10));
    assert_true(s.n <= TRN_SERIES_BINS && s.n > TRN_SERIES_BINS / 2 - 1);
    uint64_t count = 0;
    double sum = 0;
    for (int i = 0; i < s.n; i++) {
        count += s.count[i];
        sum += s.sum[i];
        if (s.count[i] > 1000)
            assert_true(fabs(s.sum[i] / (double)s.count[i] - 4.5) < .1);
    }
    assert_int_equal(count, 1000000);
    assert_true(sum == 4500000);
    assert_true(s.last == 0);
    trn_series_add(&s, 5, 7); /* a clock that went back harms nothing */
    trn_series_add(&s, UINT64_MAX, 7);
}

typedef struct seen {
    int n;
    trn_recent first;
    char text[64];
} seen;

static void see(void *arg, const trn_recent *r)
{
    seen *s = arg;
    if (s->n++ == 0) {
        s->first = *r;
        snprintf(s->text, sizeof s->text, "%s", r->text);
    }
}

static void errors_repeat_and_are_bounded(void **state)
{
    for (int i = 0; i < 1000; i++)
        trn_recent_note(TRN_LOG_ERROR, "test", "the same again", 14);
    seen s = {0};
    trn_recent_each(100, see, &s);
    assert_int_equal(s.n, 1);
    assert_int_equal(s.first.count, 1000);
    for (int i = 0; i < 1000; i++) {
        char text[32];
        trn_recent_note(TRN_LOG_WARN, "test", text, (size_t)snprintf(text, sizeof text, "number %d", i));
    }
    s = (seen){0};
    trn_recent_each(1000, see, &s);
    assert_int_equal(s.n, 64);
    assert_string_equal(s.text, "number 999"); /* the newest first */
    trn_log_set_fd(-1);
    TRN_WARN("test", "from the log");
    trn_log_set_fd(2);
    s = (seen){0};
    trn_recent_each(1, see, &s);
    assert_string_equal(s.text, "from the log");
}

static void count_tag(void *arg, const char *tag, const trn_series *s)
{
    int *n = arg;
    n[0]++;
    if (strcmp(tag, "tag 0") == 0) {
        assert_true(s->last == 2.5);
        n[1] = (int)s->total;
    }
}

static void scalars_are_bounded(void **state)
{
    for (int i = 0; i < 1000; i++) {
        char tag[32];
        trn_scalar_note(tag, (size_t)snprintf(tag, sizeof tag, "tag %d", i), 1);
    }
    trn_scalar_note("tag 0", 5, 2.5);
    trn_scalar_note("tag 0", 5, NAN); /* no plot can show it */
    int n[2] = {0};
    trn_scalar_each(1000, count_tag, n);
    assert_int_equal(n[0], 64);
    assert_int_equal(n[1], 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(json_is_json_whatever_comes),
        cmocka_unit_test(series_keep_the_whole_run),
        cmocka_unit_test(errors_repeat_and_are_bounded),
        cmocka_unit_test(scalars_are_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
