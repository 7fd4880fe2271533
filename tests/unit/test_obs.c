/* What the status page is made of: JSON, series, recent errors, scalars. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>
#include <jansson.h>

#include "exec/waits.h"
#include "obs/json.h"
#include "wire/stats.h"
#include "worker/capture.h"

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

static void count_parked(void *arg, const trn_parked *p)
{
    int *n = arg;
    n[0]++;
    n[1] += (int)p->step_id;
}

static void parked_kernels_are_listed(void **state)
{
    trn_waits *w = trn_waits_new();
    static trn_parked p[100];
    for (int i = 0; i < 100; i++) {
        p[i].step_id = i;
        trn_waits_add(w, &p[i]);
    }
    int n[2] = {0};
    trn_waits_each(w, 1000, count_parked, n);
    assert_int_equal(n[0], 100);
    assert_int_equal(n[1], 99 * 50);
    assert_true(p[5].since_ns <= trn_now_ns() && trn_now_ns() - p[5].since_ns < 10000000000u);
    for (int i = 0; i < 100; i += 2)
        trn_waits_del(w, &p[i]);
    n[0] = n[1] = 0;
    trn_waits_each(w, 1000, count_parked, n);
    assert_int_equal(n[0], 50);
    assert_int_equal(n[1], 2500);
    n[0] = 0;
    trn_waits_each(w, 1, count_parked, n); /* bounded work: at most one of each list */
    assert_true(n[0] <= 16);
    for (int i = 1; i < 100; i += 2)
        trn_waits_del(w, &p[i]);
    trn_waits_free(w);
}

static void captures_are_bounded_json(void **state)
{
    trn_capture *c = trn_capture_new();
    trn_funclib *lib = trn_funclib_new();
    trn_graph *g = trn_graph_new(lib);
    trn_funclib_unref(lib);
    trn_trace_node nodes[2] = {{.name = "a\"\\\n\xff", .op = "Const", .start_ns = 1000, .end_ns = 3500, .thread = 7, .out_bytes = 12}, {.name = "b", .op = "NoOp"}};
    trn_trace t = {.n = 2, .v = nodes};
    int dropped;
    assert_false(trn_capture_on(c));
    trn_capture_start(c, 3, 60000000000u);
    assert_true(trn_capture_on(c));
    for (int i = 0; i < 5; i++)
        trn_capture_add(c, 100 + i, &t, g, 1000, 4000);
    assert_false(trn_capture_on(c)); /* three were wanted */
    assert_int_equal(trn_capture_count(c, &dropped), 3);
    assert_int_equal(dropped, 2);
    trn_sb s = {0};
    trn_capture_json(c, &s);
    json_t *v = json_loadb(s.p, s.n, 0, NULL);
    assert_non_null(v);
    assert_int_equal(json_array_size(v), 3);
    json_t *node = json_array_get(json_object_get(json_array_get(v, 2), "nodes"), 0);
    assert_true(fabs(json_number_value(json_object_get(node, "us")) - 2.5) < 1e-9);
    json_decref(v);
    trn_sb_fini(&s);
    trn_capture_start(c, 0, 0); /* over before it began */
    trn_capture_add(c, 1, &t, g, 1000, 4000);
    assert_int_equal(trn_capture_count(c, &dropped), 0);
    assert_false(trn_capture_on(c));
    trn_graph_free(g);
    trn_capture_free(c);
}

static void count_traffic(void *arg, const trn_traffic *t) { ++*(int *)arg; }

static void peers_are_bounded(void **state)
{
    trn_traffic *a = trn_traffic_of("worker/0", 8, true), *b = trn_traffic_of("worker/0", 8, false);
    assert_ptr_equal(a, trn_traffic_of("worker/0", 8, true));
    assert_ptr_not_equal(a, b); /* whom it called and who called it */
    for (int i = 0; i < 5000; i++) {
        char peer[300];
        int n = snprintf(peer, sizeof peer, "%0*d", i % 100 + 8, i);
        assert_non_null(trn_traffic_of(peer, (size_t)n, true));
    }
    int n = 0;
    trn_traffic_each(count_traffic, &n);
    assert_true(n <= 2050);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(json_is_json_whatever_comes),
        cmocka_unit_test(series_keep_the_whole_run),
        cmocka_unit_test(errors_repeat_and_are_bounded),
        cmocka_unit_test(scalars_are_bounded),
        cmocka_unit_test(parked_kernels_are_listed),
        cmocka_unit_test(captures_are_bounded_json),
        cmocka_unit_test(peers_are_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
