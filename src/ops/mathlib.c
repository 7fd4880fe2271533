#include "ops/mathlib.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#ifdef TRN_HAVE_DNNL
#include <dnnl.h>
#endif

#ifndef TRN_HAVE_DNNL

trn_conv_plan *trn_mathlib_conv(trn_conv_kind kind, const trn_conv_geom *g) { return NULL; }
void trn_conv_plan_unref(trn_conv_plan *p) { (void)p; }
size_t trn_conv_plan_packed(const trn_conv_plan *p) { return 0; }
bool trn_conv_plan_same_filter(const trn_conv_plan *a, const trn_conv_plan *b) { return false; }
trn_err trn_conv_plan_pack(const trn_conv_plan *p, void *packed, const float *filter) { return TRN_OK; }
trn_err trn_conv_plan_unpack(const trn_conv_plan *p, float *filter, const void *packed) { return TRN_OK; }
trn_err trn_conv_plan_run(const trn_conv_plan *p, float *input, float *filter, float *output) { return TRN_OK; }
const char *trn_mathlib_text(void) { return "built without oneDNN"; }

#else

/* ---- the library ---------------------------------------------------------------------------------------------------------------- */

#define FUNCTIONS(X)                                                                                                   \
    X(dnnl_version)                                                                                                    \
    X(dnnl_set_primitive_cache_capacity)                                                                               \
    X(dnnl_engine_create)                                                                                              \
    X(dnnl_stream_create)                                                                                              \
    X(dnnl_primitive_attr_create)                                                                                      \
    X(dnnl_primitive_attr_destroy)                                                                                     \
    X(dnnl_primitive_attr_set_scratchpad_mode)                                                                         \
    X(dnnl_memory_desc_init_by_tag)                                                                                    \
    X(dnnl_memory_desc_init_by_strides)                                                                                \
    X(dnnl_memory_desc_equal)                                                                                          \
    X(dnnl_memory_desc_get_size)                                                                                       \
    X(dnnl_dilated_convolution_forward_desc_init)                                                                      \
    X(dnnl_dilated_convolution_backward_data_desc_init)                                                                \
    X(dnnl_dilated_convolution_backward_weights_desc_init)                                                             \
    X(dnnl_primitive_desc_create)                                                                                      \
    X(dnnl_primitive_desc_destroy)                                                                                     \
    X(dnnl_primitive_desc_query)                                                                                       \
    X(dnnl_primitive_desc_query_md)                                                                                    \
    X(dnnl_reorder_primitive_desc_create)                                                                              \
    X(dnnl_primitive_create)                                                                                           \
    X(dnnl_primitive_destroy)                                                                                          \
    X(dnnl_primitive_execute)                                                                                          \
    X(dnnl_memory_create)                                                                                              \
    X(dnnl_memory_destroy)

static struct {
#define X(name) __typeof__(&name) name;
    FUNCTIONS(X)
#undef X
    void (*omp_set_num_threads)(int);
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    bool ok;
    char text[128];
} lib;
static pthread_once_t opened = PTHREAD_ONCE_INIT;

static void open_library(void)
{
    const char *want = getenv("TRAINERA_ONEDNN");
    if (want && !strcmp(want, "0")) {
        snprintf(lib.text, sizeof lib.text, "oneDNN is switched off");
        return;
    }
    void *h = dlopen("libdnnl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (!h) {
        snprintf(lib.text, sizeof lib.text, "no oneDNN: %s", dlerror());
        TRN_WARN("ops", "%s; convolutions use slower code (Debian: apt-get install libdnnl2)", lib.text);
        return;
    }
#define X(name)                                                                                                        \
    if (!(*(void **)&lib.name = dlsym(h, #name))) {                                                                    \
        snprintf(lib.text, sizeof lib.text, "oneDNN has no " #name);                                                   \
        return;                                                                                                        \
    }
    FUNCTIONS(X)
#undef X
    /* Searched in what the library depends on. A build without OpenMP does not have it and needs none. */
    *(void **)&lib.omp_set_num_threads = dlsym(h, "omp_set_num_threads");
    if (lib.omp_set_num_threads)
        lib.omp_set_num_threads(1);
    lib.dnnl_set_primitive_cache_capacity(0); /* ours is enough */
    if (lib.dnnl_engine_create(&lib.engine, dnnl_cpu, 0) != dnnl_success || lib.dnnl_stream_create(&lib.stream, lib.engine, dnnl_stream_default_flags) != dnnl_success) {
        snprintf(lib.text, sizeof lib.text, "oneDNN does not start");
        return;
    }
    const dnnl_version_t *v = lib.dnnl_version();
    snprintf(lib.text, sizeof lib.text, "oneDNN %d.%d.%d", v->major, v->minor, v->patch);
    lib.ok = true;
    TRN_DEBUG("ops", "%s", lib.text);
}

/* On every thread that calls in: a team of one. */
static bool enter(void)
{
    static _Thread_local bool alone;
    pthread_once(&opened, open_library);
    if (lib.ok && !alone) {
        if (lib.omp_set_num_threads)
            lib.omp_set_num_threads(1);
        alone = true;
    }
    return lib.ok;
}

const char *trn_mathlib_text(void)
{
    enter();
    return lib.text;
}

static trn_err failed(const char *what, dnnl_status_t s)
{
    return s == dnnl_out_of_memory ? trn_err_oom() : trn_errorf(TRN_INTERNAL, "oneDNN could not %s (status %d)", what, (int)s);
}

/* ---- plans ---------------------------------------------------------------------------------------------------------------------- */

typedef struct conv_key {
    int64_t kind;
    trn_conv_geom g;
} conv_key;

struct trn_conv_plan {
    _Atomic int ref;
    conv_key key;
    struct trn_conv_plan *newer, *older; /* cache, in the order of use */
    bool usable;
    dnnl_primitive_t conv, reorder; /* reorder: between the plain filter and the library's, NULL when they are one */
    dnnl_memory_desc_t input, filter, plain, output, scratch;
    size_t packed, scratch_bytes;
};

void trn_conv_plan_unref(trn_conv_plan *p)
{
    if (!p || atomic_fetch_sub(&p->ref, 1) != 1)
        return;
    if (p->conv)
        lib.dnnl_primitive_destroy(p->conv);
    if (p->reorder)
        lib.dnnl_primitive_destroy(p->reorder);
    free(p);
}
size_t trn_conv_plan_packed(const trn_conv_plan *p) { return p->packed; }
bool trn_conv_plan_same_filter(const trn_conv_plan *a, const trn_conv_plan *b) { return lib.dnnl_memory_desc_equal(&a->filter, &b->filter); }

/* Plain NHWC, whatever the sizes: tags are ambiguous to the library when dims are 1, strides are not. */
static bool channels_last(dnnl_memory_desc_t *md, int nd, int64_t n, int64_t c, const int64_t *space)
{
    dnnl_dims_t dim = {n, c}, stride;
    int64_t at = c;
    stride[1] = 1;
    for (int i = nd - 3; i >= 0; i--) {
        dim[2 + i] = space[i];
        stride[2 + i] = at;
        at *= TRN_MAX(space[i], (int64_t)1);
    }
    stride[0] = at;
    return lib.dnnl_memory_desc_init_by_strides(md, nd, dim, dnnl_f32, stride) == dnnl_success;
}

/* The filter [ker…, ic/groups, oc] as [(groups,) oc, ic, ker…]; `any`: let the library choose. */
static bool filter_desc(dnnl_memory_desc_t *md, int nd, const trn_conv_geom *g, const int64_t *ker, bool any)
{
    dnnl_dims_t dim, stride;
    int64_t icg = g->ic / g->groups, ocg = g->oc / g->groups, at = icg * g->oc;
    int d = 0;
    if (g->groups > 1) {
        dim[0] = g->groups;
        stride[0] = ocg;
        d = 1;
    }
    dim[d] = ocg;
    stride[d] = 1;
    dim[d + 1] = icg;
    stride[d + 1] = g->oc;
    for (int i = nd - 3; i >= 0; i--) {
        dim[d + 2 + i] = ker[i];
        stride[d + 2 + i] = at;
        at *= ker[i];
    }
    dnnl_status_t s = any ? lib.dnnl_memory_desc_init_by_tag(md, nd + d, dim, dnnl_f32, dnnl_format_tag_any)
                          : lib.dnnl_memory_desc_init_by_strides(md, nd + d, dim, dnnl_f32, stride);
    return s == dnnl_success;
}

static dnnl_primitive_attr_t make_attr(void)
{
    dnnl_primitive_attr_t a = NULL;
    if (lib.dnnl_primitive_attr_create(&a) != dnnl_success)
        return NULL;
    /* The library's own scratch memory would be one per thread and never freed. */
    bool ok = lib.dnnl_primitive_attr_set_scratchpad_mode(a, dnnl_scratchpad_mode_user) == dnnl_success;
    if (ok)
        return a;
    lib.dnnl_primitive_attr_destroy(a);
    return NULL;
}

static bool build(trn_conv_plan *p, dnnl_primitive_attr_t attr)
{
    const trn_conv_geom *g = &p->key.g;
    trn_conv_kind kind = (trn_conv_kind)p->key.kind;
    int skip = g->in[0] == 1 && g->ker[0] == 1 && g->out[0] == 1 && !g->pad[0] && !g->pad_after[0] ? 1 : 0, nd = 5 - skip;
    dnnl_dims_t stride, dil, pad, after;
    for (int i = skip; i < 3; i++) {
        stride[i - skip] = g->stride[i];
        dil[i - skip] = g->dil[i] - 1;
        pad[i - skip] = g->pad[i];
        /* The library wants its own formula to give the output size, without a remainder of the stride. */
        after[i - skip] = (g->out[i] - 1) * g->stride[i] + (g->ker[i] - 1) * g->dil[i] + 1 - g->in[i] - g->pad[i];
    }
    dnnl_memory_desc_t input, filter, output;
    if (!channels_last(&input, nd, g->n, g->ic, g->in + skip) || !channels_last(&output, nd, g->n, g->oc, g->out + skip) ||
        !filter_desc(&filter, nd, g, g->ker + skip, true) || !filter_desc(&p->plain, nd, g, g->ker + skip, false))
        return false;
    dnnl_convolution_desc_t fd, bd;
    dnnl_primitive_desc_t fwd = NULL, bwd = NULL, pd;
    bool ok = lib.dnnl_dilated_convolution_forward_desc_init(&fd, dnnl_forward_training, dnnl_convolution_direct, &input, &filter, NULL,
                                                             &output, stride, dil, pad, after) == dnnl_success &&
              lib.dnnl_primitive_desc_create(&fwd, &fd, attr, lib.engine, NULL) == dnnl_success;
    pd = fwd;
    if (ok && kind != TRN_CONV_FWD) {
        ok = (kind == TRN_CONV_BWD_INPUT
                  ? lib.dnnl_dilated_convolution_backward_data_desc_init(&bd, dnnl_convolution_direct, &input, &filter, &output, stride, dil, pad, after)
                  : lib.dnnl_dilated_convolution_backward_weights_desc_init(&bd, dnnl_convolution_direct, &input, &filter, NULL, &output, stride, dil, pad,
                                                                            after)) == dnnl_success &&
             lib.dnnl_primitive_desc_create(&bwd, &bd, attr, lib.engine, fwd) == dnnl_success;
        pd = bwd;
    }
    if (ok) {
        const char *name = "";
        ok = lib.dnnl_primitive_desc_query(pd, dnnl_query_impl_info_str, 0, &name) == dnnl_success && strncmp(name, "ref", 3) != 0;
        TRN_DEBUG("ops", "convolution kind %d n %lld %lldx%lldx%lldx%lld -> %lld: %s", (int)kind, (long long)g->n, (long long)g->in[0], (long long)g->in[1],
                  (long long)g->in[2], (long long)g->ic, (long long)g->oc, name);
    }
    if (ok) {
        p->input = *lib.dnnl_primitive_desc_query_md(pd, kind == TRN_CONV_BWD_INPUT ? dnnl_query_diff_src_md : dnnl_query_src_md, 0);
        p->filter = *lib.dnnl_primitive_desc_query_md(pd, kind == TRN_CONV_BWD_FILTER ? dnnl_query_diff_weights_md : dnnl_query_weights_md, 0);
        p->output = *lib.dnnl_primitive_desc_query_md(pd, kind == TRN_CONV_FWD ? dnnl_query_dst_md : dnnl_query_diff_dst_md, 0);
        p->scratch = *lib.dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0);
        p->scratch_bytes = lib.dnnl_memory_desc_get_size(&p->scratch);
        ok = lib.dnnl_primitive_create(&p->conv, pd) == dnnl_success;
    }
    if (ok && !lib.dnnl_memory_desc_equal(&p->filter, &p->plain)) {
        bool out = kind == TRN_CONV_BWD_FILTER;
        dnnl_primitive_desc_t rd = NULL;
        ok = lib.dnnl_reorder_primitive_desc_create(&rd, out ? &p->filter : &p->plain, lib.engine, out ? &p->plain : &p->filter, lib.engine, NULL) == dnnl_success &&
             lib.dnnl_primitive_create(&p->reorder, rd) == dnnl_success;
        if (rd)
            lib.dnnl_primitive_desc_destroy(rd);
        p->packed = lib.dnnl_memory_desc_get_size(&p->filter);
    }
    if (fwd)
        lib.dnnl_primitive_desc_destroy(fwd);
    if (bwd)
        lib.dnnl_primitive_desc_destroy(bwd);
    return ok;
}

/* ---- cache ---------------------------------------------------------------------------------------------------------------------- */

enum { CACHE_MAX = 512 };
static struct {
    pthread_mutex_t mu;
    trn_map *map;
    trn_conv_plan *newest, *oldest;
    int n;
} cache = {.mu = PTHREAD_MUTEX_INITIALIZER};

static void unlink_plan(trn_conv_plan *p)
{
    *(p->newer ? &p->newer->older : &cache.newest) = p->older;
    *(p->older ? &p->older->newer : &cache.oldest) = p->newer;
    p->newer = p->older = NULL;
}
static void link_newest(trn_conv_plan *p)
{
    p->older = cache.newest;
    if (cache.newest)
        cache.newest->newer = p;
    else
        cache.oldest = p;
    cache.newest = p;
}

/* The library's generated code counts in 32 bits and expects windows that touch the image. A peer chooses these numbers. */
static bool ordinary(const trn_conv_geom *g)
{
    double in = (double)g->ic, out = (double)g->oc, filter = (double)g->ic * (double)g->oc;
    for (int i = 0; i < 3; i++) {
        int64_t reach = (g->ker[i] - 1) * g->dil[i] + 1;
        if (g->in[i] < 1 || g->in[i] > 65536 || g->out[i] > 65536 || reach > 65536 || g->stride[i] > 65536 || g->pad[i] >= reach || g->pad_after[i] >= reach)
            return false;
        in *= (double)g->in[i];
        out *= (double)g->out[i];
        filter *= (double)g->ker[i];
    }
    return in * (double)g->n < 5e8 && out * (double)g->n < 5e8 && filter < 5e8;
}

trn_conv_plan *trn_mathlib_conv(trn_conv_kind kind, const trn_conv_geom *g)
{
    if (!ordinary(g) || !enter())
        return NULL;
    conv_key key;
    memset(&key, 0, sizeof key);
    key.kind = kind;
    key.g = *g;
    pthread_mutex_lock(&cache.mu);
    if (!cache.map)
        cache.map = trn_map_new();
    trn_conv_plan *p = trn_map_get(cache.map, &key, sizeof key);
    if (p) {
        unlink_plan(p);
        link_newest(p);
        atomic_fetch_add(&p->ref, 1);
    }
    pthread_mutex_unlock(&cache.mu);
    if (!p) {
        /* Not under the lock: generating code takes milliseconds. Two threads may build the same one; the first to come back stays. */
        p = trn_xalloc(sizeof *p);
        p->key = key;
        atomic_init(&p->ref, 2);
        dnnl_primitive_attr_t attr = make_attr();
        p->usable = attr && build(p, attr);
        if (attr)
            lib.dnnl_primitive_attr_destroy(attr);
        trn_conv_plan *gone = NULL;
        pthread_mutex_lock(&cache.mu);
        trn_conv_plan *other = trn_map_get(cache.map, &key, sizeof key);
        if (other) {
            atomic_store(&p->ref, 1);
            gone = p;
            p = other;
            atomic_fetch_add(&p->ref, 1);
        } else {
            trn_map_put(cache.map, &key, sizeof key, p);
            link_newest(p);
            if (++cache.n > CACHE_MAX) {
                gone = cache.oldest;
                unlink_plan(gone);
                trn_map_del(cache.map, &gone->key, sizeof gone->key);
                cache.n--;
            }
        }
        pthread_mutex_unlock(&cache.mu);
        trn_conv_plan_unref(gone);
    }
    if (p->usable)
        return p;
    trn_conv_plan_unref(p);
    return NULL;
}

/* ---- running -------------------------------------------------------------------------------------------------------------------- */

typedef struct argument {
    int what;
    const dnnl_memory_desc_t *md;
    void *data;
} argument;

static trn_err execute(dnnl_primitive_t prim, const argument *in, int n, const char *what)
{
    dnnl_exec_arg_t args[8];
    dnnl_status_t s = dnnl_success;
    int have = 0;
    enter();
    for (; have < n && s == dnnl_success; have++) {
        args[have].arg = in[have].what;
        s = lib.dnnl_memory_create(&args[have].memory, in[have].md, lib.engine, in[have].data);
        if (s != dnnl_success)
            break;
    }
    if (s == dnnl_success)
        s = lib.dnnl_primitive_execute(prim, lib.stream, n, args);
    for (int i = 0; i < have; i++)
        lib.dnnl_memory_destroy(args[i].memory);
    return s == dnnl_success ? TRN_OK : failed(what, s);
}

trn_err trn_conv_plan_pack(const trn_conv_plan *p, void *packed, const float *filter)
{
    argument a[] = {{DNNL_ARG_FROM, &p->plain, (void *)filter}, {DNNL_ARG_TO, &p->filter, packed}};
    return execute(p->reorder, a, 2, "pack a filter");
}
trn_err trn_conv_plan_unpack(const trn_conv_plan *p, float *filter, const void *packed)
{
    argument a[] = {{DNNL_ARG_FROM, &p->filter, (void *)packed}, {DNNL_ARG_TO, &p->plain, filter}};
    return execute(p->reorder, a, 2, "unpack a filter");
}

trn_err trn_conv_plan_run(const trn_conv_plan *p, float *input, float *filter, float *output)
{
    trn_conv_kind kind = (trn_conv_kind)p->key.kind;
    argument a[4] = {
        {kind == TRN_CONV_BWD_INPUT ? DNNL_ARG_DIFF_SRC : DNNL_ARG_SRC, &p->input, input},
        {kind == TRN_CONV_BWD_FILTER ? DNNL_ARG_DIFF_WEIGHTS : DNNL_ARG_WEIGHTS, &p->filter, filter},
        {kind == TRN_CONV_FWD ? DNNL_ARG_DST : DNNL_ARG_DIFF_DST, &p->output, output},
    };
    int n = 3;
    trn_buf *scratch = NULL;
    if (p->scratch_bytes) {
        TRN_TRY(trn_buf_new(&scratch, p->scratch_bytes));
        a[n++] = (argument){DNNL_ARG_SCRATCHPAD, &p->scratch, scratch->data};
    }
    trn_err e = execute(p->conv, a, n, "run a convolution");
    trn_buf_unref(scratch);
    return e;
}


#endif
