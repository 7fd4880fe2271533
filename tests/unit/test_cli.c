/* Flags: every way to write them, and what is said about wrong ones. The program itself is tested by tests/cli. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "cli/flags.c"

typedef struct opts {
    bool on;
    const char *text;
    int64_t n;
    cli_list list;
} opts;

static const cli_flag rows[] = {
    {"worker_hosts", "H", "Help.", CLI_TEXT, offsetof(opts, text)},
    {"task-index", "N", "Help.", CLI_INT, offsetof(opts, n), -5, 10},
    {"allow-path", "D", "Help.", CLI_LIST, offsetof(opts, list)},
    {"switch", NULL, "Help.", CLI_BOOL, offsetof(opts, on)},
    {"hidden-fd", "N", NULL, CLI_INT, offsetof(opts, n), 0, 10},
    {0},
};

static trn_err parse(opts *o, cli_list *rest, const char *first, ...)
{
    char *argv[16];
    int argc = 0;
    va_list ap;
    va_start(ap, first);
    for (const char *a = first; a; a = va_arg(ap, const char *))
        argv[argc++] = (char *)a;
    va_end(ap);
    return cli_parse(o, rows, argc, argv, rest);
}

static void spellings(void **state)
{
    static const char *const names[] = {"--worker_hosts", "--worker-hosts", "-worker_hosts", "--Worker-Hosts"};
    for (size_t i = 0; i < TRN_COUNTOF(names); i++) {
        opts o = {0};
        assert_null(parse(&o, NULL, names[i], "a:1", NULL));
        assert_string_equal(o.text, "a:1");
        char joined[64];
        snprintf(joined, sizeof joined, "%s=b=c", names[i]);
        assert_null(parse(&o, NULL, joined, NULL));
        assert_string_equal(o.text, "b=c");
    }
    opts o = {.on = true};
    assert_null(parse(&o, NULL, "--task_index", "-5", "--noswitch", "--allow_path=x", "--allow-path", "--y", NULL));
    assert_int_equal(o.n, -5);
    assert_false(o.on);
    assert_int_equal(o.list.n, 2);
    assert_string_equal(o.list.v[1], "--y");
    assert_null(parse(&o, NULL, "--switch", "--worker_hosts=", NULL));
    assert_true(o.on);
    assert_string_equal(o.text, "");
    assert_null(parse(&o, NULL, "--switch=off", NULL));
    assert_false(o.on);
    free(o.list.v);
    cli_list rest = {0};
    assert_null(parse(&o, &rest, "one", "--switch", "-", "--", "--switch=off", NULL));
    assert_true(o.on);
    assert_int_equal(rest.n, 3);
    assert_string_equal(rest.v[2], "--switch=off");
    free(rest.v);
}

static void wrong(void **state)
{
    static const struct {
        const char *a, *b, *why;
    } bad[] = {
        {"--worker_host=x", NULL, "unknown flag --worker_host; did you mean --worker_hosts?"},
        {"--taskindex=1", NULL, "did you mean --task-index?"},
        {"--wroker-hosts", "x", "did you mean --worker_hosts?"},
        {"--frobnicate", NULL, "unknown flag --frobnicate; --help shows"},
        {"--hidden-f=1", NULL, "unknown flag --hidden-f; --help"},
        {"--task-index", NULL, "--task-index needs a value: --task-index=N"},
        {"--task-index=11", NULL, "a number from -5 to 10 is expected"},
        {"--task-index=99999999999999999999", NULL, "a number from -5 to 10"},
        {"--task-index=", NULL, "a number is expected"},
        {"--task-index=1x", NULL, "a number is expected"},
        {"--task-index= 1", NULL, "a number is expected"},
        {"--switch=maybe", NULL, "true or false is expected"},
        {"--noworker_hosts", NULL, "unknown flag"},
        {"stray", NULL, "'stray' is not expected here"},
    };
    for (size_t i = 0; i < TRN_COUNTOF(bad); i++) {
        opts o = {0};
        trn_err err = parse(&o, NULL, bad[i].a, bad[i].b, NULL);
        if (!err)
            fail_msg("%s was accepted", bad[i].a);
        if (!strstr(trn_err_msg(err), bad[i].why))
            fail_msg("'%s' does not say '%s'", trn_err_msg(err), bad[i].why);
        trn_err_free(err);
    }
}

static void help(void **state)
{
    char *text = NULL;
    size_t n = 0;
    FILE *f = open_memstream(&text, &n);
    cli_help(f, &(cli_command){.name = "serve", .usage = "U", .summary = "S", .details = "D", .flags = rows});
    fclose(f);
    assert_non_null(strstr(text, "--worker_hosts=H\n"));
    assert_non_null(strstr(text, "--switch\n"));
    assert_null(strstr(text, "hidden"));
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(spellings), cmocka_unit_test(wrong), cmocka_unit_test(help)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
