/* For test_c_save.py: writes what TensorFlow shall read, reads what TensorFlow wrote.
 *
 *   write DIR [TARGET]          a model with Adam, saved at steps 1 to 3; TARGET: on that cluster's ps tasks
 *   dump PATH                   every tensor of a checkpoint: name, dtype, shape, values
 *   restore PATH NAME:DTYPE:DIMS…   into variables; prints their values
 *   train META CKPT             imports, restores, runs "train_op" once, prints the variables, saves as CKPT.c
 *   export DIR                  a saved model y = x w + b
 *   serve DIR                   runs the default signature of a saved model on [[1,2]]
 *   events DIR                  an event file with one of each kind
 *   loop DIR                    saves for ever, in turns here and in the background, with and without a new name
 *   verify PATH
 */
#include <trainera/trainera.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void ok(trn_err err)
{
    if (!err)
        return;
    fprintf(stderr, "%s: %s\n", trn_code_name(trn_err_code(err)), trn_err_msg(err));
    exit(1);
}

static void print_tensor(const char *name, const trn_tensor *t)
{
    const trn_shape *s = trn_tensor_shape(t);
    printf("%s %s [", name, trn_dtype_name(trn_tensor_dtype(t)));
    for (int i = 0; i < s->rank; i++)
        printf("%s%" PRId64, i ? "," : "", s->dim[i]);
    printf("]");
    const void *p = trn_tensor_data(t);
    for (int64_t i = 0; i < trn_tensor_count(t); i++) {
        switch (trn_tensor_dtype(t)) {
        case TRN_FLOAT: printf(" %.9g", (double)((const float *)p)[i]); break;
        case TRN_DOUBLE: printf(" %.17g", ((const double *)p)[i]); break;
        case TRN_INT32: printf(" %d", ((const int32_t *)p)[i]); break;
        case TRN_INT64: printf(" %" PRId64, ((const int64_t *)p)[i]); break;
        case TRN_BOOL: printf(" %d", ((const uint8_t *)p)[i]); break;
        case TRN_STRING: {
            size_t n;
            const char *z = trn_tensor_str_at(t, i, &n);
            printf(" ");
            for (size_t k = 0; k < n; k++)
                printf("%02x", (unsigned char)z[k]);
            break;
        }
        default: printf(" ?"); break;
        }
    }
    printf("\n");
}

static trn_session *start(trn_server **server, const char *target, trn_builder *b)
{
    trn_session *s;
    *server = NULL;
    ok(trn_builder_check(b));
    if (target) {
        ok(trn_session_open(&s, target, NULL));
    } else {
        ok(trn_server_create_local(server));
        ok(trn_session_open_on(&s, *server, NULL));
    }
    ok(trn_session_extend_builder(s, b));
    return s;
}

static void stop(trn_server *server, trn_session *s, trn_builder *b)
{
    ok(trn_session_close(s));
    if (server)
        trn_server_close(server, 0);
    trn_builder_free(b);
}

static void run(trn_session *s, const char *target) { ok(trn_session_run(s, &(trn_run){.n_targets = 1, .targets = &target})); }

static void print_variables(trn_session *s, trn_builder *b)
{
    int n;
    trn_variable **v = trn_variables(&n, b, TRN_VARS_GLOBAL);
    for (int i = 0; i < n; i++) {
        const char *name = trn_out_name(b, v[i]->value), *set = trn_out_name(b, v[i]->is_initialized);
        trn_tensor *t;
        ok(trn_session_run(s, &(trn_run){.n_fetches = 1, .fetches = &set, .out = &t}));
        bool has_value = *(const bool *)trn_tensor_data(t);
        trn_tensor_unref(t);
        if (!has_value)
            continue;
        ok(trn_session_run(s, &(trn_run){.n_fetches = 1, .fetches = &name, .out = &t}));
        print_tensor(v[i]->name, t);
        trn_tensor_unref(t);
    }
}

static const char *on_ps(void *arg, trn_builder *b, const trn_node *node, const char *asked)
{
    static int next;
    if (strcmp(node->op, "VarHandleOp") && strcmp(node->op, "VariableV2"))
        return *asked ? asked : "/job:worker/task:0";
    return next++ % 2 ? "/job:ps/task:1" : "/job:ps/task:0";
}

typedef struct model {
    trn_out x, y, loss, train, init;
    trn_saver *saver;
} model;

static model make(trn_builder *b, bool ps)
{
    model m;
    if (ps)
        trn_device_fn_scope(b, on_ps, NULL);
    m.x = trn_const(trn_named(b, "x"), trn_tensor_from(TRN_FLOAT, 2, (int64_t[]){2, 2}, (float[]){1, 2, 3, 4}));
    trn_variable *w = trn_variable_new(b, "layer/w", trn_fill(b, TRN_FLOAT, trn_shape_of(2, (int64_t)2, (int64_t)3), 0.5), 0);
    trn_variable *c = trn_variable_new(b, "layer/b", trn_zeros(b, TRN_FLOAT, trn_shape_of(1, (int64_t)3)), TRN_REF_VARIABLE);
    /* one in two pieces, and one of each other dtype */
    for (int i = 0; i < 2; i++) {
        trn_variable *p = trn_variable_new(b, i ? "table/part_1" : "table/part_0", trn_fill(b, TRN_DOUBLE, trn_shape_of(2, (int64_t)(2 - i), (int64_t)2), i + 1), TRN_NOT_TRAINABLE);
        p->full_name = "table";
        p->full_shape = trn_shape_of(2, (int64_t)3, (int64_t)2);
        p->offset[0] = i ? 2 : 0;
    }
    trn_variable_new(b, "count", trn_const_i32(b, -7), TRN_NOT_TRAINABLE);
    trn_variable_new(b, "flag", trn_const_bool(b, true), TRN_NOT_TRAINABLE);
    trn_variable_new(b, "scratch", trn_const_f32(b, 1), TRN_NOT_TRAINABLE | TRN_NOT_SAVED);
    trn_variable_new(b, "mine", trn_const_f32(b, 1), TRN_NOT_TRAINABLE | TRN_LOCAL);
    trn_out xw = trn_node_add(b, "MatMul", (trn_out[]){m.x, w->value}, 2, NULL, 0);
    m.y = trn_node_add(trn_named(b, "y"), "AddV2", (trn_out[]){xw, c->value}, 2, NULL, 0);
    trn_out square = trn_node_add(b, "Square", &m.y, 1, NULL, 0), axes = trn_const_i32s(b, (int32_t[]){0, 1}, 2);
    m.loss = trn_node_add(trn_named(b, "loss"), "Mean", (trn_out[]){square, axes}, 2, NULL, 0);
    trn_summary_scalar(b, "loss_summary", m.loss);
    m.train = trn_minimize(trn_adam(b, trn_const_f32(b, 0.1f), 0.9f, 0.999f, 1e-8f), m.loss, trn_global_step(b));
    trn_collect(b, "train_op", trn_out_node(m.train));
    trn_collect(b, "losses", m.loss);
    trn_summary_merge_all(b);
    m.init = trn_variables_init(b, TRN_VARS_ALL);
    m.saver = trn_saver_new(b, &(trn_saver_opts){.max_to_keep = 2});
    if (ps)
        trn_end(b);
    return m;
}

static void write_model(const char *dir, const char *target)
{
    trn_builder *b = trn_builder_new();
    model m = make(b, target != NULL);
    trn_server *server;
    trn_session *s = start(&server, target, b);
    run(s, trn_out_name(b, m.init));
    char prefix[4096];
    snprintf(prefix, sizeof prefix, "%s/model.ckpt", dir);
    for (int step = 1; step <= 3; step++) {
        run(s, trn_out_name(b, trn_out_node(m.train)));
        if (step == 2) {
            ok(trn_saver_save_async(m.saver, s, prefix, step));
            continue;
        }
        ok(trn_saver_save(NULL, m.saver, s, prefix, step)); /* waits for the one before */
    }
    print_variables(s, b);
    stop(server, s, b);
}

static void dump(const char *path)
{
    trn_checkpoint *c;
    ok(trn_checkpoint_open(&c, path));
    for (int i = 0; i < trn_checkpoint_count(c); i++) {
        const char *name = trn_checkpoint_name(c, i), *full = trn_checkpoint_full_name(c, name);
        trn_tensor *t;
        ok(trn_checkpoint_read(&t, c, name));
        if (!full || strcmp(trn_checkpoint_key(c, full), name) == 0)
            print_tensor(full ? full : name, t);
        trn_tensor_unref(t);
    }
    trn_checkpoint_close(c);
}

/* Both ways: a saver that restores, and initial values from the checkpoint. */
static void restore(const char *path, char **spec, int n)
{
    for (int way = 0; way < 2; way++) {
        trn_builder *b = trn_builder_new();
        for (int i = 0; i < n; i++) {
            char name[512], dtype[32], dims[128] = "";
            sscanf(spec[i], "%511[^:]:%31[^:]:%127s", name, dtype, dims);
            trn_shape s = trn_shape_scalar();
            for (char *p = strtok(dims, ","); p; p = strtok(NULL, ","))
                s.dim[s.rank++] = atoll(p);
            trn_variable_new(b, name, trn_zeros(b, trn_dtype_parse(dtype, strlen(dtype)), s), i % 2 ? TRN_REF_VARIABLE : 0);
        }
        if (way)
            trn_init_from_checkpoint(b, path, (trn_name_pair[]){{"/", "/"}}, 1);
        trn_out init = trn_variables_init(b, TRN_VARS_GLOBAL);
        trn_saver *saver = trn_saver_new(b, NULL);
        trn_server *server;
        trn_session *s = start(&server, NULL, b);
        if (way)
            run(s, trn_out_name(b, init));
        else
            ok(trn_saver_restore(saver, s, path));
        print_variables(s, b);
        stop(server, s, b);
    }
}

static void train(const char *meta, const char *ckpt)
{
    trn_builder *b = trn_builder_new();
    trn_saver *saver = trn_meta_graph_read(b, meta);
    trn_server *server;
    trn_session *s = start(&server, NULL, b);
    ok(trn_saver_restore(saver, s, ckpt));
    int n;
    const trn_out *op = trn_collection(&n, b, "train_op");
    run(s, trn_out_name(b, trn_out_node(op[0])));
    print_variables(s, b);
    char path[4096];
    snprintf(path, sizeof path, "%s.c", ckpt);
    ok(trn_saver_save(NULL, saver, s, path, -1));
    stop(server, s, b);
}

/* The scope "tower" of a graph, as a meta graph. */
static void export_scope(const char *path)
{
    trn_builder *b = trn_builder_new();
    trn_out x = trn_placeholder(b, "outer/x", TRN_FLOAT, trn_shape_of(2, (int64_t)-1, (int64_t)2));
    TRN_SCOPE(trn_name_scope(b, "tower"), b) {
        trn_variable *w = trn_variable_new(b, "w", trn_const(b, trn_tensor_from(TRN_FLOAT, 2, (int64_t[]){2, 1}, (float[]){3, 4})), 0);
        trn_out y = trn_node_add(trn_named(b, "y"), "MatMul", (trn_out[]){x, w->value}, 2, NULL, 0);
        trn_collect(b, "losses", y);
    }
    void *p;
    size_t n;
    ok(trn_meta_graph_export_scope(&p, &n, b, "tower"));
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(p, 1, n, f) != n || fclose(f))
        exit(1);
    free(p);
    trn_builder_free(b);
}

/* A part of a graph, below "mine", fed with [[1, 2]] where it asks for outer/x. */
static void import_scope(const char *path)
{
    trn_builder *b = trn_builder_new();
    FILE *f = fopen(path, "rb");
    static char bytes[1 << 20];
    size_t n = f ? fread(bytes, 1, sizeof bytes, f) : 0;
    if (f)
        fclose(f);
    trn_out x = trn_const(b, trn_tensor_from(TRN_FLOAT, 2, (int64_t[]){1, 2}, (float[]){1, 2}));
    trn_meta_graph_import_scope(b, bytes, n, "mine", &(trn_named_out){"$unbound_inputs_outer/x", x}, 1);
    trn_out init = trn_variables_init(b, TRN_VARS_GLOBAL);
    int k;
    const trn_out *losses = trn_collection(&k, b, "losses");
    ok(trn_builder_check(b));
    trn_server *server;
    trn_session *s = start(&server, NULL, b);
    run(s, trn_out_name(b, trn_out_node(init)));
    trn_tensor *t;
    const char *fetch = trn_out_name(b, losses[0]);
    ok(trn_session_run(s, &(trn_run){.fetches = &fetch, .n_fetches = 1, .out = &t}));
    printf("%s %g\n", fetch, (double)*(const float *)trn_tensor_data(t));
    trn_tensor_unref(t);
    trn_variable **v = trn_variables(&k, b, TRN_VARS_TRAINABLE);
    for (int i = 0; i < k; i++)
        printf("%s\n", v[i]->name);
    stop(server, s, b);
}

static void export_model(const char *dir)
{
    trn_builder *b = trn_builder_new();
    trn_device_scope(b, "/job:local/task:0");
    trn_out x = trn_placeholder(b, "x", TRN_FLOAT, trn_shape_of(2, (int64_t)-1, (int64_t)2));
    trn_variable *w = trn_variable_new(b, "w", trn_const(b, trn_tensor_from(TRN_FLOAT, 2, (int64_t[]){2, 1}, (float[]){3, 4})), 0);
    trn_variable *c = trn_variable_new(b, "b", trn_const(b, trn_tensor_from(TRN_FLOAT, 1, (int64_t[]){1}, (float[]){0.5f})), TRN_REF_VARIABLE);
    trn_out xw = trn_node_add(b, "MatMul", (trn_out[]){x, w->value}, 2, NULL, 0);
    trn_out y = trn_node_add(trn_named(b, "y"), "AddV2", (trn_out[]){xw, c->value}, 2, NULL, 0);
    trn_end(b);
    trn_out init = trn_variables_init(b, TRN_VARS_GLOBAL);
    trn_server *server;
    trn_session *s = start(&server, NULL, b);
    run(s, trn_out_name(b, init));
    trn_signature sig = {.inputs = &(trn_named_out){"features", x}, .n_inputs = 1, .outputs = &(trn_named_out){"score", y}, .n_outputs = 1};
    ok(trn_saved_model_write(dir, b, s, &sig, 1, NULL));
    trn_err err = trn_saved_model_write(dir, b, s, &sig, 1, NULL);
    if (trn_err_code(err) != TRN_ALREADY_EXISTS)
        ok(trn_errorf(TRN_INTERNAL, "a second model was written over the first"));
    trn_err_free(err);
    stop(server, s, b);
}

static void serve(const char *dir)
{
    trn_builder *b = trn_builder_new();
    trn_saved_model *m = trn_saved_model_read(b, dir, NULL, 0);
    const trn_signature *sig = trn_saved_model_signature(m, NULL);
    if (trn_builder_ok(b) && (!sig || sig->n_inputs != 1 || sig->n_outputs != 1))
        ok(trn_errorf(TRN_INTERNAL, "no signature with one input and one output"));
    trn_server *server;
    trn_session *s = start(&server, NULL, b);
    ok(trn_saved_model_restore(m, s));
    trn_tensor *in = trn_tensor_from(TRN_FLOAT, 2, (int64_t[]){1, 2}, (float[]){1, 2}), *out;
    const char *feed = trn_out_name(b, sig->inputs[0].tensor), *fetch = trn_out_name(b, sig->outputs[0].tensor);
    ok(trn_session_run(s, &(trn_run){.n_feeds = 1, .feed_names = &feed, .feeds = &in, .n_fetches = 1, .fetches = &fetch, .out = &out}));
    print_tensor(sig->outputs[0].name, out);
    trn_tensor_unref(in);
    trn_tensor_unref(out);
    stop(server, s, b);
}

static void events(const char *dir)
{
    trn_builder *b = trn_builder_new();
    model m = make(b, false);
    trn_summary_histogram(b, "weights", trn_variable_find(b, "layer/w")->value);
    trn_summary_image(b, "picture", trn_fill(b, TRN_FLOAT, trn_shape_of(4, (int64_t)2, (int64_t)3, (int64_t)4, (int64_t)3), 1), 0);
    trn_summary_text(b, "words", trn_const_str(b, "some *words*"));
    const char *all = trn_out_name(b, trn_summary_merge_all(b)), *train_op = trn_out_name(b, trn_out_node(m.train));
    trn_server *server;
    trn_session *s = start(&server, NULL, b);
    run(s, trn_out_name(b, m.init));
    trn_event_writer *w;
    ok(trn_event_writer_open(&w, dir, NULL));
    trn_event_writer_add_session_log(w, TRN_SESSION_START, NULL, NULL, 0);
    trn_event_writer_add_graph(w, b);
    for (int step = 1; step <= 3; step++) {
        trn_tensor *t;
        void *meta;
        size_t n;
        ok(trn_session_run(s, &(trn_run){.n_fetches = 1, .fetches = &all, .out = &t, .n_targets = 1, .targets = &train_op, .trace = true, .metadata = &meta, .metadata_len = &n}));
        char tag[32];
        snprintf(tag, sizeof tag, "step%d", step);
        trn_event_writer_add_run_metadata(w, meta, n, tag, step);
        trn_event_writer_add_summary_tensor(w, t, step);
        trn_event_writer_add_scalar(w, "direct/scalar", (float)step / 4, step);
        trn_tensor_unref(t);
        free(meta);
    }
    trn_tensor *h = trn_tensor_from(TRN_INT32, 1, (int64_t[]){5}, (int32_t[]){-2, 0, 1, 1, 100});
    trn_event_writer_add_histogram(w, "direct/histogram", h, 3);
    trn_tensor_unref(h);
    uint8_t pixels[4 * 5 * 4];
    for (size_t i = 0; i < sizeof pixels; i++)
        pixels[i] = (uint8_t)(i * 7);
    trn_event_writer_add_image(w, "direct/image", pixels, 5, 4, 4, 3);
    trn_event_writer_add_text(w, "direct/text", "said *directly*", 3);
    ok(trn_event_writer_close(w));
    stop(server, s, b);
}

/* The values of one checkpoint belong together: "a" and "b" are equal, whatever is killed. */
static void loop(const char *dir, const char *target)
{
    trn_builder *b = trn_builder_new();
    trn_variable *v[2];
    trn_out set[2], step = trn_placeholder(b, "to", TRN_FLOAT, trn_shape_scalar());
    for (int i = 0; i < 2; i++) {
        if (target)
            trn_device_scope(b, i ? "/job:ps/task:1" : "/job:ps/task:0");
        v[i] = trn_variable_new(b, i ? "b" : "a", trn_zeros(b, TRN_FLOAT, trn_shape_of(1, (int64_t)20000)), 0);
        if (target)
            trn_end(b);
        trn_out dims = trn_const_i32s(b, (int32_t[]){20000}, 1);
        set[i] = trn_variable_assign(b, v[i], trn_node_add(b, "Fill", (trn_out[]){dims, step}, 2, NULL, 0));
    }
    trn_out both = trn_group(trn_named(b, "both"), set, 2);
    trn_saver *saver = trn_saver_new(b, &(trn_saver_opts){.max_to_keep = 3});
    trn_server *server;
    trn_session *s = start(&server, target, b);
    char *last = trn_latest_checkpoint(dir), prefix[4096];
    snprintf(prefix, sizeof prefix, "%s/m", dir);
    int64_t at = 0;
    if (last) {
        ok(trn_saver_restore(saver, s, last));
        at = atoll(strrchr(last, '-') + 1);
        free(last);
    }
    const char *feed = "to:0", *op = trn_out_name(b, both);
    for (;; at++) { /* as a trainer that resumes: its first save has the name of the one that it restored */
        trn_tensor *t = trn_tensor_f32((float)at);
        ok(trn_session_run(s, &(trn_run){.n_feeds = 1, .feed_names = &feed, .feeds = &t, .n_targets = 1, .targets = &op}));
        trn_tensor_unref(t);
        if (at % 3) {
            ok(trn_saver_save(NULL, saver, s, prefix, at));
        } else {
            ok(trn_saver_save_async(saver, s, prefix, at));
            ok(trn_saver_wait(saver));
        }
        printf("%" PRId64 "\n", at);
        fflush(stdout);
    }
}

int main(int argc, char **argv)
{
    const char *what = argc > 2 ? argv[1] : "";
    if (!strcmp(what, "write"))
        write_model(argv[2], argv[3]);
    else if (!strcmp(what, "dump"))
        dump(argv[2]);
    else if (!strcmp(what, "restore"))
        restore(argv[2], argv + 3, argc - 3);
    else if (!strcmp(what, "train") && argc > 3)
        train(argv[2], argv[3]);
    else if (!strcmp(what, "export_scope"))
        export_scope(argv[2]);
    else if (!strcmp(what, "import_scope"))
        import_scope(argv[2]);
    else if (!strcmp(what, "export"))
        export_model(argv[2]);
    else if (!strcmp(what, "serve"))
        serve(argv[2]);
    else if (!strcmp(what, "events"))
        events(argv[2]);
    else if (!strcmp(what, "loop"))
        loop(argv[2], argv[3]);
    else if (!strcmp(what, "verify"))
        ok(trn_checkpoint_verify(argv[2]));
    else
        return 2;
    return 0;
}
