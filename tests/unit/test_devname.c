/* Device names as programs write them, and how two of them narrow, match and clash. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "graph/devname.h"

static trn_devname dev(const char *text)
{
    trn_devname d;
    trn_err err = trn_devname_parse(&d, text, strlen(text));
    if (err)
        fail_msg("%s: %s", text, trn_err_msg(err));
    return d;
}

static void parse_and_text(void **state)
{
    static const struct {
        const char *in, *out;
    } rows[] = {
        {"", ""},
        {"/", ""},
        {"/job:ps/replica:0/task:1/device:CPU:0", "/job:ps/replica:0/task:1/device:CPU:0"},
        {"/job:ps", "/job:ps"},
        {"/task:3/job:worker", "/job:worker/task:3"},
        {"/cpu:0", "/device:CPU:0"},
        {"/CPU:*", "/device:CPU:*"},
        {"/gpu:1", "/device:GPU:1"},
        {"/GPU:12", "/device:GPU:12"},
        {"/device:cpu:0", "/device:CPU:0"},
        {"/device:TPU_SYSTEM:0", "/device:TPU_SYSTEM:0"},
        {"/device:CPU", "/device:CPU:*"},
        {"/device:CPU:*", "/device:CPU:*"},
        {"/device:*:2", "/device:*:2"},
        {"/job:*/replica:*/task:*", ""},
        {"/job:ps/device:*", "/job:ps"},
        {"/job:ps/job:worker", "/job:worker"},
        {"CPU:0", "/device:CPU:0"},
        {"cpu:0", "/device:CPU:0"},
        {"gpu:1", "/device:GPU:1"},
        {"XLA_CPU:2", "/device:XLA_CPU:2"},
        {"/job:a1_B/replica:2147483647/task:2147483647", "/job:a1_B/replica:2147483647/task:2147483647"},
    };
    for (size_t i = 0; i < TRN_COUNTOF(rows); i++) {
        char buf[TRN_DEVNAME_TEXT];
        trn_devname d = dev(rows[i].in);
        assert_string_equal(trn_devname_text(buf, &d), rows[i].out);
        trn_devname again = dev(buf);
        assert_true(trn_devname_eq(&d, &again));
    }
}

static void parse_errors(void **state)
{
    static const char *const bad[] = {
        "/job:",
        "/job:1a",
        "/job:ps/",
        "//",
        "job:ps",
        "/task:-1",
        "/task:x",
        "/task:2147483648",
        "/replica:",
        "/device:",
        "/device:CPU:",
        "/device:0",
        "/cpu",
        "/cpu:",
        "CPU",
        "CPU:",
        "CPU:0x",
        "/foo:1",
        "/job:ps /task:0",
        "/device:CPU:0:1",
        " /job:ps",
        "@gpu:0",
        "/job:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    };
    for (size_t i = 0; i < TRN_COUNTOF(bad); i++) {
        trn_devname d = trn_devname_cpu("keep", 7, 7), before = d;
        trn_err err = trn_devname_parse(&d, bad[i], strlen(bad[i]));
        if (!err)
            fail_msg("'%s' was accepted", bad[i]);
        assert_int_equal(trn_err_code(err), TRN_INVALID_ARGUMENT);
        assert_non_null(strstr(trn_err_msg(err), bad[i]));
        assert_true(trn_devname_eq(&d, &before));
        trn_err_free(err);
    }
    trn_devname d;
    trn_err err = trn_devname_parse(&d, "/job:p\0s", 8);
    assert_non_null(err);
    trn_err_free(err);
}

static void match(void **state)
{
    trn_devname full = dev("/job:ps/replica:0/task:1/device:CPU:0");
    assert_true(trn_devname_is_full(&full) && trn_devname_has_task(&full) && !trn_devname_is_any(&full));
    static const struct {
        const char *want;
        bool match;
    } rows[] = {
        {"", true},
        {"/job:ps", true},
        {"/job:worker", false},
        {"/task:1", true},
        {"/task:0", false},
        {"/cpu:0", true},
        {"/device:CPU", true},
        {"/device:CPU:1", false},
        {"/gpu:0", false},
        {"/replica:1", false},
        {"/job:ps/replica:0/task:1/device:CPU:0", true},
    };
    for (size_t i = 0; i < TRN_COUNTOF(rows); i++) {
        trn_devname w = dev(rows[i].want);
        assert_int_equal(trn_devname_match(&w, &full), rows[i].match);
        assert_int_equal(trn_devname_compatible(&w, &full), rows[i].match);
        assert_int_equal(trn_devname_compatible(&full, &w), rows[i].match);
    }
    /* What is not given satisfies nothing that is wanted. */
    trn_devname ps = dev("/job:ps"), any = trn_devname_any();
    assert_false(trn_devname_match(&full, &ps));
    assert_true(trn_devname_is_any(&any));
    trn_devname t1 = trn_devname_task("ps", 1), t2 = trn_devname_task("ps", 2), c1 = trn_devname_cpu("ps", 1, 3);
    assert_true(trn_devname_same_task(&t1, &full) && trn_devname_same_task(&t1, &c1));
    assert_false(trn_devname_same_task(&t1, &t2));
    assert_false(trn_devname_same_task(&ps, &ps));
}

static void merge(void **state)
{
    static const struct {
        const char *a, *b, *hard, *soft;
    } rows[] = {
        /* NULL: an error */
        {"/job:ps", "/task:1", "/job:ps/task:1", "/job:ps/task:1"},
        {"/job:ps", "/job:ps/cpu:0", "/job:ps/device:CPU:0", "/job:ps/device:CPU:0"},
        {"/job:ps", "/job:worker", NULL, NULL},
        {"/task:0", "/task:1", NULL, NULL},
        {"/replica:0", "/replica:1", NULL, NULL},
        {"/cpu:0", "/gpu:0", NULL, ""},
        {"/job:ps/cpu:0", "/task:1/cpu:1", NULL, "/job:ps/task:1/device:CPU:*"},
        {"", "/gpu:2", "/device:GPU:2", "/device:GPU:2"},
    };
    for (size_t i = 0; i < TRN_COUNTOF(rows); i++)
        for (int soft = 0; soft < 2; soft++) {
            trn_devname a = dev(rows[i].a), b = dev(rows[i].b), before = a;
            const char *want = soft ? rows[i].soft : rows[i].hard;
            trn_err err = trn_devname_merge(&a, &b, soft);
            assert_int_equal(err != NULL, want == NULL);
            if (err) {
                assert_true(trn_devname_eq(&a, &before));
                trn_err_free(err);
            } else {
                char buf[TRN_DEVNAME_TEXT];
                assert_string_equal(trn_devname_text(buf, &a), want);
            }
        }
}

static void fill(void **state)
{
    char buf[TRN_DEVNAME_TEXT];
    trn_devname own = trn_devname_cpu("worker", 2, 0);
    trn_devname d = dev("/job:ps");
    trn_devname_fill(&d, &own);
    assert_string_equal(trn_devname_text(buf, &d), "/job:ps/replica:0/task:2/device:CPU:0");
    d = dev("/device:GPU");
    trn_devname_fill(&d, &own);
    assert_string_equal(trn_devname_text(buf, &d), "/job:worker/replica:0/task:2/device:GPU:*");
    d = dev("/job:ps/task:1/device:CPU:1");
    trn_devname o = dev("/task:4/device:GPU:0");
    trn_devname_override(&d, &o);
    assert_string_equal(trn_devname_text(buf, &d), "/job:ps/task:4/device:GPU:0");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(parse_and_text), cmocka_unit_test(parse_errors),
                                       cmocka_unit_test(match), cmocka_unit_test(merge), cmocka_unit_test(fill)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
