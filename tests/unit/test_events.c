/* Event files: framing, order, errors that stay, files that can be read while they grow; summary nodes. */
#include <trainera/trainera.h>

#include <dirent.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
/* cmocka wants the four above first */
#include <cmocka.h>

#include "check.h"
#include "base/base.h"
#include "ckpt/record.h"
#include "proto/pb.h"
#include "proto/tensorflow.pb-c.h"

static char dir[64];

typedef struct events {
    trn_arena *a;
    Tensorflow__Event *at[4096];
    int n;
} events;

static void load(events *e, const char *path)
{
    trn_infile f;
    e->a = trn_arena_new();
    e->n = 0;
    ok(trn_infile_open(&f, path));
    for (uint64_t at = 0;;) {
        uint8_t *p;
        size_t n;
        bool found;
        ok(trn_record_read(&p, &n, &found, &f, &at, 1 << 20));
        if (!found)
            break;
        ok(TRN_PB_UNPACK(&e->at[e->n++], e->a, tensorflow__event__descriptor, p, n));
        free(p);
    }
    trn_infile_close(&f);
}

static void test_all_kinds(void **state)
{
    trn_event_writer *w;
    ok(trn_event_writer_open(&w, dir, &(trn_event_writer_opts){.suffix = ".test"}));
    assert_non_null(strstr(trn_event_writer_path(w), "events.out.tfevents."));
    trn_event_writer_add_scalar(w, "loss", 0.5f, 3);
    ok(trn_event_writer_flush(w));
    events e;
    load(&e, trn_event_writer_path(w)); /* while it grows */
    assert_int_equal(e.n, 2);
    assert_string_equal(e.at[0]->file_version, "brain.Event:2");
    assert_true(e.at[1]->step == 3 && e.at[1]->wall_time > 1e9 && e.at[1]->summary->value[0]->simple_value == 0.5f);
    trn_arena_free(e.a);

    trn_tensor *h = trn_tensor_from(TRN_FLOAT, 1, (int64_t[]){4}, (float[]){1, 2, -3, 1.0f / 0.0f});
    trn_event_writer_add_histogram(w, "h", h, 4);
    trn_tensor_unref(h);
    trn_event_writer_add_image(w, "i", (uint8_t[]){0, 255, 128, 64, 1, 2}, 2, 1, 3, 4);
    trn_event_writer_add_text(w, "t", "hello", 4);
    trn_event_writer_add_graph_def(w, "", 0);
    trn_event_writer_add_run_metadata(w, "", 0, "step4", 4);
    trn_event_writer_add_session_log(w, TRN_SESSION_CHECKPOINT, "run/model.ckpt-4", "saved", 4);
    char *path = trn_xstrdup(trn_event_writer_path(w));
    ok(trn_event_writer_close(w));
    load(&e, path);
    assert_int_equal(e.n, 8);
    assert_true(e.at[2]->summary->value[0]->histo->num == 3 && e.at[2]->summary->value[0]->histo->min == -3);
    Tensorflow__Summary__Image *im = e.at[3]->summary->value[0]->image;
    assert_true(im->width == 2 && im->height == 1 && im->colorspace == 3 && !memcmp(im->encoded_image_string.data + 1, "PNG", 3));
    assert_string_equal(e.at[4]->summary->value[0]->metadata->plugin_data->plugin_name, "text");
    assert_string_equal(e.at[6]->tagged_run_metadata->tag, "step4");
    assert_string_equal(e.at[7]->session_log->checkpoint_path, "run/model.ckpt-4");
    trn_arena_free(e.a);
    free(path);
}

static void *adder(void *arg)
{
    for (int i = 0; i < 500; i++)
        trn_event_writer_add_scalar(arg, "x", (float)i, i);
    return NULL;
}

static void test_threads(void **state)
{
    trn_event_writer *w;
    pthread_t t[4];
    ok(trn_event_writer_open(&w, dir, &(trn_event_writer_opts){.queue = 3}));
    for (int i = 0; i < 4; i++)
        pthread_create(&t[i], NULL, adder, w);
    for (int i = 0; i < 4; i++)
        pthread_join(t[i], NULL);
    ok(trn_event_writer_flush(w));
    events *e = trn_xalloc(sizeof *e);
    load(e, trn_event_writer_path(w));
    assert_int_equal(e->n, 2001);
    trn_arena_free(e->a);
    free(e);
    ok(trn_event_writer_close(w));
}

static void test_errors(void **state)
{
    trn_event_writer *w;
    ok(trn_event_writer_open(&w, dir, NULL));
    ok(trn_event_writer_flush(w));
    trn_faults_set("events.write:1");
    trn_event_writer_add_scalar(w, "x", 1, 1);
    trn_err err = trn_event_writer_flush(w);
    trn_faults_set(NULL);
    assert_int_equal(trn_err_code(err), TRN_RESOURCE_EXHAUSTED);
    trn_err_free(err);
    err = trn_event_writer_close(w);
    assert_non_null(err);
    trn_err_free(err);
    ok(trn_event_writer_open(&w, dir, NULL));
    trn_event_writer_add_image(w, "i", (uint8_t[]){0}, 1, 1, 2, 4);
    err = trn_event_writer_close(w);
    assert_int_equal(trn_err_code(err), TRN_INVALID_ARGUMENT);
    trn_err_free(err);
    err = trn_event_writer_open(&w, "/proc/nowhere", NULL);
    assert_non_null(err);
    trn_err_free(err);
}

static void test_nodes(void **state)
{
    trn_builder *b = trn_builder_new();
    assert_false(trn_out_is(trn_summary_merge_all(b)));
    trn_out x = trn_const_f32(b, 2), im = trn_fill(b, TRN_FLOAT, trn_shape_of(4, (int64_t)1, (int64_t)2, (int64_t)2, (int64_t)1), 1);
    trn_name_scope(b, "a");
    trn_summary_scalar(b, "my loss", x);
    assert_string_equal(trn_out_name(b, trn_summary_scalar(b, "my loss", x)), "a/my_loss_1:0");
    trn_summary_histogram(b, "h", x);
    trn_summary_image(b, "im", im, 0);
    trn_summary_text(b, "t", trn_const_str(b, "words"));
    trn_end(b);
    trn_out two[] = {trn_summary_scalar(b, "x", x), trn_summary_scalar(b, "y", x)}, both = trn_summary_merge(trn_named(b, "both"), two, 2);
    ok(trn_builder_check(b));
    assert_string_equal(trn_out_op(b, both)->op, "MergeSummary");
    trn_out all = trn_summary_merge_all(b);
    ok(trn_builder_check(b));
    const char *name = trn_out_name(b, all);
    assert_string_equal(name, "Merge/MergeSummary:0");
    trn_server *server;
    trn_session *s;
    trn_tensor *t;
    ok(trn_server_create_local(&server));
    ok(trn_session_open_on(&s, server, NULL));
    ok(trn_session_extend_builder(s, b));
    ok(trn_session_run(s, &(trn_run){.n_fetches = 1, .fetches = &name, .out = &t}));
    trn_event_writer *w;
    ok(trn_event_writer_open(&w, dir, NULL));
    trn_event_writer_add_graph(w, b);
    trn_event_writer_add_summary_tensor(w, t, 9);
    size_t len;
    const char *bytes = trn_tensor_str_at(t, 0, &len);
    trn_event_writer_add_summary(w, bytes, len, 10);
    ok(trn_event_writer_flush(w));
    events e;
    load(&e, trn_event_writer_path(w));
    assert_int_equal(e.n, 4);
    assert_true(e.at[3]->step == 10 && e.at[3]->summary->n_value == 7);
    assert_true(e.at[1]->graph_def.len > 100 && e.at[2]->step == 9 && e.at[2]->summary->n_value == 7);
    assert_string_equal(e.at[2]->summary->value[1]->tag, "a/my_loss_1");
    trn_arena_free(e.a);
    ok(trn_event_writer_close(w));
    trn_tensor_unref(t);
    ok(trn_session_close(s));
    trn_server_close(server, 0);
    trn_builder_free(b);
}

static int setup(void **state)
{
    snprintf(dir, sizeof dir, "/tmp/trn_events_%d/deep", (int)getpid());
    trn_log_set_level(TRN_LOG_OFF);
    return 0;
}

static int teardown(void **state)
{
    char cmd[128];
    snprintf(cmd, sizeof cmd, "rm -rf /tmp/trn_events_%d", (int)getpid());
    return system(cmd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_kinds),
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_errors),
        cmocka_unit_test(test_nodes),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
