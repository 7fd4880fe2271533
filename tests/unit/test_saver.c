/* Savers, checkpoints, state files, meta graphs, on a server in this process. */
#include <trainera/trainera.h>

#include <dirent.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
/* cmocka wants the four above first */
#include <cmocka.h>

#include "check.h"
#include "base/base.h"
#include "ckpt/bundle.h"

static char top[64];
static trn_server *server;

static const char *in(const char *name)
{
    static char buf[4][256];
    static int k;
    char *p = buf[k++ % 4];
    snprintf(p, 256, "%s/%s", top, name);
    return p;
}

static bool there(const char *name) { return access(in(name), F_OK) == 0; }

static trn_session *open_session(trn_builder *b)
{
    trn_session *s;
    ok(trn_session_open_on(&s, server, NULL));
    ok(trn_session_extend_builder(s, b));
    return s;
}

static void run(trn_session *s, const char *target) { ok(trn_session_run(s, &(trn_run){.n_targets = 1, .targets = &target})); }

static float value(trn_session *s, const char *name, int i)
{
    trn_tensor *t;
    ok(trn_session_run(s, &(trn_run){.n_fetches = 1, .fetches = &name, .out = &t}));
    float f = ((const float *)trn_tensor_data(t))[i];
    trn_tensor_unref(t);
    return f;
}

typedef struct model {
    trn_builder *b;
    trn_variable *v, *w;
    trn_out init, bump;
} model;

/* Two variables, one of each kind; the names are the test's own, for all share a server. */
static model make(const char *scope)
{
    model m = {.b = trn_builder_new()};
    trn_name_scope(m.b, scope);
    m.v = trn_variable_new(m.b, "v", trn_fill(m.b, TRN_FLOAT, trn_shape_of(2, (int64_t)2, (int64_t)3), 1), 0);
    m.w = trn_variable_new(m.b, "w", trn_fill(m.b, TRN_FLOAT, trn_shape_of(1, (int64_t)4), 7), TRN_REF_VARIABLE);
    m.bump = trn_variable_assign_add(trn_named(m.b, "bump"), m.v, trn_fill(m.b, TRN_FLOAT, m.v->shape, 1));
    trn_end(m.b);
    m.init = trn_variables_init(m.b, TRN_VARS_GLOBAL);
    return m;
}

static void test_save_restore(void **state)
{
    model m = make("sr");
    trn_saver *s = trn_saver_new(m.b, NULL);
    ok(trn_builder_check(m.b));
    assert_string_equal(trn_saver_filename_tensor(s), "save/Const:0");
    assert_string_equal(trn_saver_save_tensor(s), "save/control_dependency:0");
    assert_string_equal(trn_saver_restore_op(s), "save/restore_all");
    trn_session *sess = open_session(m.b);
    run(sess, trn_out_name(m.b, m.init));
    run(sess, "sr/bump");
    char *path;
    ok(trn_saver_save(&path, s, sess, in("sr/model.ckpt"), 3));
    assert_string_equal(path, in("sr/model.ckpt-3"));
    assert_true(there("sr/model.ckpt-3.meta") && there("sr/graph.pbtxt") && there("sr/checkpoint"));
    run(sess, "sr/bump");
    assert_true(value(sess, "sr/v/Read/ReadVariableOp:0", 5) == 3);
    ok(trn_saver_restore(s, sess, path));
    assert_true(value(sess, "sr/v/Read/ReadVariableOp:0", 5) == 2);
    assert_true(value(sess, "sr/w/read:0", 3) == 7);
    ok(trn_checkpoint_verify(path));
    fails(trn_saver_restore(s, sess, in("sr/nothing")), TRN_NOT_FOUND, "nothing");
    fails(trn_saver_save(NULL, s, sess, in("sr/"), 3), TRN_INVALID_ARGUMENT, "folder");

    trn_checkpoint *c;
    ok(trn_checkpoint_open(&c, in("sr"))); /* the folder's latest */
    assert_int_equal(trn_checkpoint_count(c), 2);
    assert_string_equal(trn_checkpoint_name(c, 0), "sr/v");
    trn_dtype dtype;
    trn_shape shape;
    ok(trn_checkpoint_find(&dtype, &shape, c, "sr/v"));
    assert_true(dtype == TRN_FLOAT && shape.rank == 2 && shape.dim[1] == 3);
    fails(trn_checkpoint_find(NULL, NULL, c, "sr/x"), TRN_NOT_FOUND, "sr/x");
    trn_tensor *t;
    ok(trn_checkpoint_read_slice(&t, c, "sr/v", (int64_t[]){1, 0}, (int64_t[]){-1, 2}));
    assert_int_equal(trn_tensor_count(t), 2);
    trn_tensor_unref(t);
    fails(trn_checkpoint_read_slice(&t, c, "sr/v", (int64_t[]){1, 0}, (int64_t[]){2, 2}), TRN_INVALID_ARGUMENT, "inside");
    trn_checkpoint_close(c);
    free(path);
    ok(trn_session_close(sess));
    trn_builder_free(m.b);
}

/* A graph that differs from the checkpoint is told so before any variable changes. */
static void test_mismatch(void **state)
{
    model m = make("mm");
    trn_saver *s = trn_saver_new(m.b, NULL);
    trn_session *sess = open_session(m.b);
    run(sess, trn_out_name(m.b, m.init));
    ok(trn_saver_save(NULL, s, sess, in("mm/a"), -1));
    ok(trn_session_close(sess));
    trn_builder *b = trn_builder_new();
    trn_variable_new(b, "mm/v", trn_zeros(b, TRN_FLOAT, trn_shape_of(2, (int64_t)2, (int64_t)4)), 0);
    s = trn_saver_new(b, NULL);
    sess = open_session(b);
    fails(trn_saver_restore(s, sess, in("mm/a")), TRN_INVALID_ARGUMENT, "[2,4]");
    ok(trn_session_close(sess));
    trn_builder_free(b);
    b = trn_builder_new();
    trn_variable_new(b, "mm/other", trn_zeros(b, TRN_FLOAT, trn_shape_of(1, (int64_t)2)), 0);
    s = trn_saver_new(b, NULL);
    sess = open_session(b);
    fails(trn_saver_restore(s, sess, in("mm/a")), TRN_NOT_FOUND, "mm/other");
    ok(trn_session_close(sess));
    trn_builder_free(b);
    trn_builder_free(m.b);
    b = trn_builder_new();
    assert_null(trn_saver_new(b, NULL));
    fails(trn_builder_check(b), TRN_INVALID_ARGUMENT, "no variables");
    trn_builder_free(b);
}

/* Pieces on their own, and all under one name. */
static void test_pieces(void **state)
{
    trn_builder *b = trn_builder_new();
    trn_variable *p[2];
    for (int i = 0; i < 2; i++) {
        p[i] = trn_variable_new(b, i ? "pieces/part_1" : "pieces/part_0", trn_fill(b, TRN_FLOAT, trn_shape_of(2, (int64_t)(2 + i), (int64_t)2), i + 1), 0);
        p[i]->full_name = "pieces";
        p[i]->full_shape = trn_shape_of(2, (int64_t)5, (int64_t)2);
        p[i]->offset[0] = i ? 2 : 0;
    }
    trn_saver *s = trn_saver_new(b, &(trn_saver_opts){.sharded = TRN_B(true)});
    trn_out init = trn_variables_init(b, TRN_VARS_GLOBAL);
    ok(trn_builder_check(b));
    assert_string_equal(trn_saver_save_tensor(s), "save/Identity:0");
    trn_session *sess = open_session(b);
    run(sess, trn_out_name(b, init));
    ok(trn_saver_save(NULL, s, sess, in("pieces/m"), 1));
    assert_false(there("pieces/m-1_temp"));
    ok(trn_saver_restore(s, sess, in("pieces/m-1")));
    ok(trn_session_close(sess));
    trn_builder_free(b);
    trn_checkpoint *c;
    trn_tensor *t;
    ok(trn_checkpoint_open(&c, in("pieces/m-1")));
    assert_int_equal(trn_checkpoint_count(c), 1);
    ok(trn_checkpoint_read(&t, c, "pieces"));
    const float *f = trn_tensor_data(t);
    assert_true(trn_tensor_count(t) == 10 && f[3] == 1 && f[4] == 2 && f[9] == 2);
    trn_tensor_unref(t);
    trn_checkpoint_close(c);
}

static void test_keep(void **state)
{
    model m = make("keep");
    trn_saver *s = trn_saver_new(m.b, &(trn_saver_opts){.max_to_keep = 2, .no_graph = true});
    trn_session *sess = open_session(m.b);
    run(sess, trn_out_name(m.b, m.init));
    for (int i = 1; i <= 4; i++)
        ok(trn_saver_save(NULL, s, sess, in("keep/m"), i));
    assert_false(there("keep/m-2.index") || there("keep/m-2.meta") || there("keep/m-2.data-00000-of-00001") || there("keep/graph.pbtxt"));
    assert_true(there("keep/m-3.index") && there("keep/m-4.index"));
    trn_checkpoint_state st;
    ok(trn_checkpoint_state_read(&st, in("keep"), NULL));
    assert_int_equal(st.n, 2);
    assert_string_equal(st.latest, in("keep/m-4"));
    assert_string_equal(st.all[0], in("keep/m-3"));
    assert_true(st.times[0] > 0 && st.times[0] <= st.times[1]);
    trn_checkpoint_state_fini(&st);
    ok(trn_session_close(sess));

    /* A new saver goes on where the old one was killed: half a save, and a deletion that did not happen. */
    mkdir(in("keep/m-5_temp"), 0777);
    static const char *const left[] = {"keep/m-5_temp/part-00000-of-00001.index", "keep/m-5.data-00000-of-00001", "keep/m-6.index.tempstate123", "keep/checkpoint.tempstate99",
                                       "keep/m-7.meta", "keep/other-8.data-00000-of-00001", "keep/m-1.index", "keep/m-1.data-00000-of-00001", "keep/m-best.index.tempstate1"};
    for (size_t i = 0; i < TRN_COUNTOF(left); i++)
        close(open(in(left[i]), O_CREAT | O_WRONLY, 0666));
    FILE *f = fopen(in("keep/checkpoint"), "a");
    fprintf(f, "# deleting: m-1\n");
    fclose(f);
    usleep(20000);
    trn_builder_free(m.b);
    m = make("keep");
    s = trn_saver_new(m.b, &(trn_saver_opts){.max_to_keep = 2, .no_graph = true});
    sess = open_session(m.b);
    ok(trn_saver_save(NULL, s, sess, in("keep/m"), 9));
    for (size_t i = 0; i < TRN_COUNTOF(left); i++)
        assert_int_equal(there(left[i]), i == 5 || i == 8); /* not ours */
    assert_false(there("keep/m-5_temp") || there("keep/m-3.index"));
    assert_true(there("keep/m-4.index") && there("keep/m-9.index"));
    char *last = trn_latest_checkpoint(in("keep"));
    assert_string_equal(last, in("keep/m-9"));
    free(last);

    /* The latest once more, under the same name; while it is written the state file names its second name. */
    ok(trn_saver_save(NULL, s, sess, in("keep/m"), 9));
    assert_false(there("keep/m.old-9.index") || there("keep/m.old-9.data-00000-of-00001") || there("keep/m.old-9.meta"));
    ok(trn_checkpoint_verify(in("keep/m-9")));
    trn_faults_set("ckpt.fsync:1");
    fails(trn_saver_save(NULL, s, sess, in("keep/m"), 9), TRN_DATA_LOSS, "fsync");
    trn_faults_set(NULL);
    last = trn_latest_checkpoint(in("keep"));
    ok(trn_checkpoint_verify(last));
    free(last);
    ok(trn_saver_save(NULL, s, sess, in("keep/m"), 9));
    last = trn_latest_checkpoint(in("keep"));
    assert_string_equal(last, in("keep/m-9"));
    assert_false(there("keep/m.old-9.index"));
    free(last);
    unlink(in("keep/m-9.index")); /* somebody did */
    last = trn_latest_checkpoint(in("keep"));
    assert_string_equal(last, in("keep/m-4"));
    free(last);
    ok(trn_session_close(sess));
    trn_builder_free(m.b);
}

static void test_every_hours(void **state)
{
    model m = make("hours");
    trn_saver *s = trn_saver_new(m.b, &(trn_saver_opts){.max_to_keep = 1, .keep_every_hours = 0.8 / 3600, .no_meta = true, .no_graph = true});
    trn_session *sess = open_session(m.b);
    run(sess, trn_out_name(m.b, m.init));
    for (int i = 1; i <= 3; i++) {
        if (i != 2)
            usleep(850000);
        ok(trn_saver_save(NULL, s, sess, in("hours/m"), i));
    }
    assert_true(there("hours/m-1.index") && !there("hours/m-2.index") && there("hours/m-3.index") && !there("hours/m-1.meta"));
    ok(trn_session_close(sess));
    trn_builder_free(m.b);
}

static _Atomic int told;
static void on_saved(void *arg, const char *path, int64_t step) { told += path && step > 0 && arg == &told; }

static void test_background(void **state)
{
    model m = make("bg");
    trn_saver *s = trn_saver_new(m.b, &(trn_saver_opts){.no_graph = true});
    trn_saver_on_saved(s, on_saved, &told);
    trn_session *sess = open_session(m.b);
    run(sess, trn_out_name(m.b, m.init));
    for (int i = 1; i <= 5; i++) {
        ok(trn_saver_save_async(s, sess, in("bg/m"), i));
        run(sess, "bg/bump");
        run(sess, "bg/bump");
    }
    ok(trn_saver_wait(s));
    assert_false(trn_saver_busy(s));
    assert_int_equal(told, 5);
    for (int i = 1; i <= 5; i++) { /* the values of the moment of the call, whatever ran meanwhile */
        trn_checkpoint *c;
        trn_tensor *t;
        char name[32];
        snprintf(name, sizeof name, "bg/m-%d", i);
        ok(trn_checkpoint_open(&c, in(name)));
        ok(trn_checkpoint_read(&t, c, "bg/v"));
        assert_true(((const float *)trn_tensor_data(t))[5] == (float)(2 * i - 1));
        trn_tensor_unref(t);
        trn_checkpoint_close(c);
    }
    trn_faults_set("ckpt.rename:1");
    ok(trn_saver_save_async(s, sess, in("bg/m"), 6));
    fails(trn_saver_save_async(s, sess, in("bg/m"), 7), TRN_DATA_LOSS, "bg/m-6"); /* the next call tells */
    trn_faults_set(NULL);
    ok(trn_saver_wait(s));
    char *last = trn_latest_checkpoint(in("bg"));
    assert_string_equal(last, in("bg/m-5"));
    free(last);
    ok(trn_saver_save_async(s, sess, "/proc/nowhere/m", 8)); /* a folder that cannot be made: the step that was begun must go, too */
    fails(trn_saver_wait(s), TRN_NOT_FOUND, "/proc/nowhere");
    ok(trn_saver_save_async(s, sess, in("bg/m"), 8));
    ok(trn_saver_wait(s));
    ok(trn_session_close(sess));
    trn_builder_free(m.b);
}

static void test_meta_graph(void **state)
{
    model m = make("mg");
    trn_collect(m.b, "train_op", m.bump);
    trn_collect(m.b, "losses", m.v->value);
    trn_saver *s = trn_saver_new(m.b, NULL);
    trn_session *sess = open_session(m.b);
    run(sess, trn_out_name(m.b, m.init));
    run(sess, "mg/bump");
    ok(trn_saver_save(NULL, s, sess, in("mg/m"), 1));
    ok(trn_session_close(sess));
    trn_builder_free(m.b);

    trn_builder *b = trn_builder_new();
    s = trn_meta_graph_read(b, in("mg/m-1.meta"));
    ok(trn_builder_check(b));
    assert_non_null(s);
    assert_ptr_equal(s, trn_saver_default(b));
    trn_variable *v = trn_variable_find(b, "mg/v"), *w = trn_variable_find(b, "mg/w");
    assert_true(v && w && !(v->flags & (TRN_REF_VARIABLE | TRN_NOT_TRAINABLE)) && (w->flags & TRN_REF_VARIABLE));
    assert_true(v->shape.dim[1] == 3 && trn_out_is(v->value) && trn_out_is(v->init) && trn_out_is(v->is_initialized) && trn_out_is(w->is_initialized));
    int n;
    const trn_out *train = trn_collection(&n, b, "train_op");
    assert_int_equal(n, 1);
    sess = open_session(b);
    ok(trn_saver_restore(s, sess, in("mg/m-1")));
    run(sess, trn_out_name(b, train[0]));
    assert_true(value(sess, trn_out_name(b, v->value), 0) == 3);
    ok(trn_saver_save(NULL, s, sess, in("mg/m"), 2));
    ok(trn_session_close(sess));
    trn_builder_free(b);

    b = trn_builder_new();
    assert_null(trn_meta_graph_import(b, "\xff\xff\xff", 3));
    assert_false(trn_builder_ok(b));
    trn_builder_free(b);
}

/* A whole meta graph below a scope, with the checkpoint that came with it; a part of a graph, with another input than it had. */
static void test_meta_graph_scopes(void **state)
{
    model m = make("ms");
    trn_collect(m.b, "train_op", m.bump);
    trn_saver *s = trn_saver_new(m.b, NULL);
    trn_session *sess = open_session(m.b);
    run(sess, trn_out_name(m.b, m.init));
    run(sess, "ms/bump");
    ok(trn_saver_save(NULL, s, sess, in("ms/m"), 1));
    run(sess, "ms/bump");
    ok(trn_session_close(sess));
    void *meta;
    size_t len;
    ok(trn_meta_graph_export(&meta, &len, m.b, s));
    ok(trn_meta_graph_write(in("ms/own.meta"), m.b, s));
    trn_builder_free(m.b);
    trn_builder *same = trn_builder_new();
    assert_non_null(trn_meta_graph_read(same, in("ms/own.meta")));
    assert_non_null(trn_variable_find(same, "ms/v"));
    trn_builder_free(same);

    trn_builder *b = trn_builder_new();
    trn_const_f32(trn_named(b, "here"), 1); /* the scope that is asked for is taken */
    s = trn_meta_graph_import_scope(b, meta, len, "here", NULL, 0);
    ok(trn_builder_check(b));
    trn_variable *v = trn_variable_find(b, "here_1/ms/v");
    assert_true(s && v && !trn_variable_find(b, "ms/v") && trn_out_is(v->init) && trn_out_is(v->value));
    assert_string_equal(trn_saver_restore_op(s), "here_1/save/restore_all");
    int n;
    const trn_out *train = trn_collection(&n, b, "train_op");
    assert_true(n == 1 && !strcmp(trn_out_name(b, train[0]), "here_1/ms/bump"));
    sess = open_session(b);
    ok(trn_saver_restore(s, sess, in("ms/m-1"))); /* under the names that the checkpoint has */
    run(sess, trn_out_name(b, train[0]));
    assert_true(value(sess, trn_out_name(b, v->value), 0) == 3);
    ok(trn_session_close(sess));
    trn_builder_free(b);
    free(meta);

    b = trn_builder_new();
    trn_out x = trn_const_f32(trn_named(b, "x"), 5);
    trn_out go = trn_node_add(trn_named(b, "go"), "NoOp", NULL, 0, NULL, 0);
    TRN_SCOPE(trn_name_scope(b, "tower"), b) {
        trn_variable *w = trn_variable_new(b, "w", trn_const_f32(b, 2), 0);
        trn_out y = trn_node_add(trn_named(b, "y"), "Mul", TRN_OUTS(w->value, x), NULL, 0);
        trn_control_add(b, y, go);
        trn_collect(b, "losses", y);
    }
    trn_collect(b, "losses", x);
    trn_variable_new(b, "towers", trn_const_f32(b, 2), 0); /* begins alike, but lies elsewhere */
    ok(trn_meta_graph_export_scope(&meta, &len, b, "tower/"));
    void *none;
    size_t no;
    trn_err err = trn_meta_graph_export_scope(&none, &no, b, "towe");
    assert_int_equal(trn_err_code(err), TRN_NOT_FOUND);
    trn_err_free(err);
    err = trn_meta_graph_export_scope(&none, &no, b, "");
    assert_int_equal(trn_err_code(err), TRN_INVALID_ARGUMENT);
    trn_err_free(err);
    trn_builder_free(b);

    b = trn_builder_new();
    trn_out seven = trn_const_f32(b, 7), node = trn_out_node(seven);
    trn_named_out inputs[] = {{"$unbound_inputs_x", seven}, {"^$unbound_inputs_go", node}, {"nobody", seven}, {"$unbound_inputs_x", TRN_NONE}};
    assert_null(trn_meta_graph_import_scope(b, meta, len, "copy", inputs, 2)); /* it has no saver */
    ok(trn_builder_check(b));
    assert_int_equal(trn_builder_node_count(b) > 5, 1);
    trn_variables(&n, b, TRN_VARS_ALL);
    assert_true(n == 1 && trn_variable_find(b, "copy/w"));
    const trn_out *y = trn_collection(&n, b, "losses");
    assert_true(n == 1 && !strcmp(trn_out_name(b, y[0]), "copy/y:0"));
    trn_out init = trn_variables_init(b, TRN_VARS_GLOBAL);
    sess = open_session(b);
    run(sess, trn_out_name(b, trn_out_node(init)));
    assert_true(value(sess, "copy/y:0", 0) == 14);
    ok(trn_session_close(sess));
    trn_builder_free(b);
    b = trn_builder_new();
    trn_meta_graph_import(b, meta, len);
    fails_build(b, "needs the input '");
    b = trn_builder_new();
    trn_const_f32(b, 7);
    trn_meta_graph_import_scope(b, meta, len, NULL, inputs, 3);
    fails_build(b, "no node takes anything from 'nobody'");
    b = trn_builder_new();
    trn_const_f32(b, 7);
    trn_meta_graph_import_scope(b, meta, len, NULL, inputs + 1, 3);
    fails_build(b, "'$unbound_inputs_x', has no tensor");
    free(meta);
}

static void test_init_from(void **state)
{
    model m = make("from");
    trn_saver *s = trn_saver_new(m.b, NULL);
    trn_session *sess = open_session(m.b);
    run(sess, trn_out_name(m.b, m.init));
    run(sess, "from/bump");
    ok(trn_saver_save(NULL, s, sess, in("from/m"), 1));
    ok(trn_session_close(sess));
    trn_builder_free(m.b);

    for (int way = 0; way < 2; way++) {
        trn_builder *b = trn_builder_new();
        const char *scope = way ? "to1" : "to0";
        trn_name_scope(b, scope);
        trn_variable *v = trn_variable_new(b, "v", trn_zeros(b, TRN_FLOAT, trn_shape_of(2, (int64_t)2, (int64_t)3)), 0);
        trn_variable *w = trn_variable_new(b, "w", trn_zeros(b, TRN_FLOAT, trn_shape_of(1, (int64_t)4)), TRN_REF_VARIABLE);
        trn_end(b);
        trn_init_from_checkpoint(b, in("from"), way ? (trn_name_pair[]){{"from/", "to1/"}} : (trn_name_pair[]){{"from/w", "to0/w"}}, 1);
        trn_out init = trn_variables_init(b, TRN_VARS_GLOBAL);
        ok(trn_builder_check(b));
        sess = open_session(b);
        run(sess, trn_out_name(b, init));
        assert_true(value(sess, trn_out_name(b, v->value), 5) == (way ? 2 : 0));
        assert_true(value(sess, trn_out_name(b, w->value), 3) == 7);
        ok(trn_session_close(sess));
        trn_builder_free(b);
    }
    trn_builder *b = trn_builder_new();
    trn_variable_new(b, "to2/x", trn_zeros(b, TRN_FLOAT, trn_shape_of(1, (int64_t)4)), 0);
    trn_init_from_checkpoint(b, in("from"), (trn_name_pair[]){{"from/", "to2/"}}, 1);
    fails(trn_builder_check(b), TRN_NOT_FOUND, "from/x");
    trn_builder_free(b);
}

static void test_saved_model(void **state)
{
    model m = make("sm");
    trn_out x = trn_placeholder(m.b, "x", TRN_FLOAT, trn_shape_of(2, (int64_t)2, (int64_t)-1));
    trn_out y = trn_node_add(trn_named(m.b, "y"), "AddV2", (trn_out[]){x, m.v->value}, 2, NULL, 0);
    trn_session *sess = open_session(m.b);
    run(sess, trn_out_name(m.b, m.init));
    run(sess, "sm/bump");
    trn_signature sig = {.inputs = &(trn_named_out){"in", x}, .n_inputs = 1, .outputs = &(trn_named_out){"out", y}, .n_outputs = 1};
    trn_signature bad = {.outputs = &(trn_named_out){"out", TRN_NONE}, .n_outputs = 1};
    fails(trn_saved_model_write(in("sm"), m.b, sess, &bad, 1, NULL), TRN_INVALID_ARGUMENT, "'out'");
    trn_saved_model_opts o = {.main_op = &m.bump, .tags = (const char *[]){"train", "gpu"}, .n_tags = 2};
    ok(trn_saved_model_write(in("sm"), m.b, sess, &sig, 1, &o));
    fails(trn_saved_model_write(in("sm"), m.b, sess, &sig, 1, &o), TRN_ALREADY_EXISTS, "sm");
    ok(trn_session_close(sess));
    trn_builder_free(m.b);

    trn_builder *b = trn_builder_new();
    assert_null(trn_saved_model_read(b, in("sm"), NULL, 0));
    fails(trn_builder_check(b), TRN_NOT_FOUND, "train,gpu");
    trn_builder_free(b);
    b = trn_builder_new();
    trn_saved_model *sm = trn_saved_model_read(b, in("sm"), (const char *[]){"gpu", "train"}, 2);
    ok(trn_builder_check(b));
    const trn_signature *got = trn_saved_model_signature(sm, NULL);
    assert_non_null(got);
    assert_null(trn_saved_model_signature(sm, "other"));
    assert_string_equal(trn_out_name(b, trn_signature_input(got, "in")), "x:0");
    assert_string_equal(trn_out_name(b, trn_signature_output(got, "out")), "y:0");
    assert_false(trn_out_is(trn_signature_output(got, "nothing")));
    sess = open_session(b);
    ok(trn_saved_model_restore(sm, sess));
    assert_true(value(sess, "sm/v/Read/ReadVariableOp:0", 0) == 3); /* saved as 2, and bumped by the main op */
    ok(trn_session_close(sess));
    trn_builder_free(b);
}

static int setup(void **state)
{
    snprintf(top, sizeof top, "/tmp/trn_saver_%d", (int)getpid());
    trn_log_set_level(TRN_LOG_OFF);
    return mkdir(top, 0777) || trn_server_create_local(&server) != TRN_OK;
}

static int teardown(void **state)
{
    char cmd[128];
    snprintf(cmd, sizeof cmd, "rm -rf %s", top);
    trn_server_close(server, 0);
    return system(cmd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_save_restore), cmocka_unit_test(test_mismatch), cmocka_unit_test(test_pieces),     cmocka_unit_test(test_keep),
        cmocka_unit_test(test_every_hours),  cmocka_unit_test(test_background), cmocka_unit_test(test_meta_graph), cmocka_unit_test(test_meta_graph_scopes),
        cmocka_unit_test(test_init_from),    cmocka_unit_test(test_saved_model),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
