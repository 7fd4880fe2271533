/* Slurm's compressed lists and the step's variables; which address is ours. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "cluster/iface.h"
#include "cluster/slurm.h"

static void expands(const char *text, const char *want)
{
    char **v = NULL;
    int n = 0;
    trn_err err = trn_slurm_hostlist(&v, &n, text);
    if (err)
        fail_msg("%s", trn_err_msg(err));
    trn_sb s = {0};
    for (int i = 0; i < n; i++)
        trn_sb_addf(&s, "%s%s", i ? " " : "", v[i]);
    assert_string_equal(s.p, want);
    trn_sb_fini(&s);
    trn_slurm_hostlist_free(v, n);
}

static void hostlists(void **state)
{
    expands("node1", "node1");
    expands("n[1-2],m5,o[3-4,6,7-9]", "n1 n2 m5 o3 o4 o6 o7 o8 o9"); /* the example of TensorFlow's resolver */
    expands("n[08-11]", "n08 n09 n10 n11");
    expands("rack[0-1]-n[1-2]x", "rack0-n1x rack0-n2x rack1-n1x rack1-n2x");
    expands("n1,n1", "n1 n1");
    static const char *const bad[] = {"", ",", "n[", "n[]", "n]", "n[1", "n[1-]", "n[a]", "n[2-1]", "n[1,]", "a,,b", "n[[1]]", "n[1-999999999]", "n[0-999][0-999][0-9]", "n[1-2-3]",
                                      "n[1][1][1][1][1]"};
    for (size_t i = 0; i < TRN_COUNTOF(bad); i++) {
        char **v = NULL;
        int n = 0;
        trn_err err = trn_slurm_hostlist(&v, &n, bad[i]);
        if (!err)
            fail_msg("'%s' was taken", bad[i]);
        assert_int_equal(trn_err_code(err), TRN_INVALID_ARGUMENT);
        trn_err_free(err);
    }
}

static void counts(void **state)
{
    int *v, n;
    assert_null(trn_slurm_counts(&v, &n, "3(x2),2,1"));
    assert_int_equal(n, 4);
    assert_true(v[0] == 3 && v[1] == 3 && v[2] == 2 && v[3] == 1);
    free(v);
    static const char *const bad[] = {"", "x", "1(", "1(x)", "1(x0)", "1,", "1(x2", "-1", "1(x99999999)"};
    for (size_t i = 0; i < TRN_COUNTOF(bad); i++) {
        trn_err err = trn_slurm_counts(&v, &n, bad[i]);
        if (!err)
            fail_msg("'%s' was taken", bad[i]);
        trn_err_free(err);
    }
}

static const char *const *vars;
static const char *env(const char *name)
{
    for (const char *const *p = vars; *p; p += 2)
        if (strcmp(*p, name) == 0)
            return p[1];
    return NULL;
}

static void step(void **state)
{
    static const char *const ok[] = {"SLURM_STEP_NODELIST", "a[1-2]", "SLURM_STEP_TASKS_PER_NODE", "2(x2)", "SLURM_STEP_NUM_TASKS", "4", "SLURM_PROCID", "3",
                                     "SLURM_LOCALID", "1", "SLURM_NODEID", "1", "SLURM_JOB_ID", "17", "SLURM_STEP_ID", "0", NULL};
    vars = ok;
    trn_slurm s;
    assert_true(trn_slurm_is_step(env));
    assert_null(trn_slurm_read(&s, env, -1));
    assert_int_equal(s.n_tasks, 4);
    assert_int_equal(s.self, 3);
    assert_string_equal(s.tasks[2].host, "a2");
    assert_int_equal(s.tasks[3].port, 8889);
    assert_string_equal(s.id, "slurm-17.0");
    trn_slurm_fini(&s);
    static const char *const resv[] = {"SLURM_STEP_NODELIST", "a[1-2]", "SLURM_STEP_TASKS_PER_NODE", "2,1", "SLURM_STEP_NUM_TASKS", "3", "SLURM_PROCID", "1",
                                       "SLURM_STEP_RESV_PORTS", "12000,12005", NULL};
    vars = resv;
    assert_null(trn_slurm_read(&s, env, -1));
    assert_int_equal(s.tasks[1].port, 12005);
    assert_int_equal(s.tasks[2].port, 12000);
    trn_slurm_fini(&s);
    static const char *const cyclic[] = {"SLURM_STEP_NODELIST", "a[1-2]", "SLURM_STEP_TASKS_PER_NODE", "2(x2)", "SLURM_STEP_NUM_TASKS", "4", "SLURM_PROCID", "1",
                                         "SLURM_LOCALID", "0", "SLURM_NODEID", "1", NULL};
    vars = cyclic;
    trn_err err = trn_slurm_read(&s, env, -1);
    assert_non_null(strstr(trn_err_msg(err), "srun -m block"));
    trn_err_free(err);
    static const char *const odd[] = {"SLURM_STEP_NODELIST", "a[1-3]", "SLURM_STEP_TASKS_PER_NODE", "2(x2)", "SLURM_STEP_NUM_TASKS", "4", "SLURM_PROCID", "1", NULL};
    vars = odd;
    err = trn_slurm_read(&s, env, -1);
    assert_non_null(strstr(trn_err_msg(err), "names 3 nodes"));
    trn_err_free(err);
    static const char *const none[] = {NULL};
    vars = none;
    assert_false(trn_slurm_is_step(env));
    err = trn_slurm_read(&s, env, -1);
    assert_non_null(strstr(trn_err_msg(err), "is not set"));
    trn_err_free(err);
}

static void interfaces(void **state)
{
    assert_true(trn_iface_in_network("10.1.2.3", "10.1.0.0/16"));
    assert_false(trn_iface_in_network("10.2.2.3", "10.1.0.0/16"));
    assert_true(trn_iface_in_network("10.2.2.3", "0.0.0.0/0"));
    assert_true(trn_iface_in_network("fd00::1", "fd00::/8"));
    assert_false(trn_iface_in_network("fd00::1", "10.0.0.0/8"));
    assert_false(trn_iface_in_network("x", "10.0.0.0/8"));
    assert_false(trn_iface_in_network("10.0.0.1", "10.0.0.0/33"));
    char *a = NULL;
    assert_null(trn_iface_address(&a, "lo"));
    assert_string_equal(a, "127.0.0.1");
    free(a);
    assert_null(trn_iface_address(&a, "127.0.0.0/8"));
    free(a);
    assert_null(trn_iface_address(&a, NULL));
    free(a);
    trn_err err = trn_iface_address(&a, "nosuch0");
    assert_non_null(strstr(trn_err_msg(err), "lo 127.0.0.1"));
    trn_err_free(err);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hostlists),
        cmocka_unit_test(counts),
        cmocka_unit_test(step),
        cmocka_unit_test(interfaces),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
