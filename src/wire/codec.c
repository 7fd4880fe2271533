#include "wire/codec.h"

#include <stdlib.h>

#include "proto/pb.h"
#include "proto/pbw.h"
#include "tensor/tensor_pb.h"

#define MAX_FIELDS (1 << 20) /* feeds, fetches, keys of one message */
#define INLINE_BYTES 512     /* content up to this is copied into the head: cheaper than a slice of its own */

/* Ours, in TensorFlow's messages and in Push: far from any number that TensorFlow will use. */
enum { F_PUSH = 1000, F_CLEAN = 1001, F_DEAD = 1002 };

static trn_err malformed(const char *what)
{
    return trn_errorf(TRN_INVALID_ARGUMENT, "malformed %s message", what);
}

void trn_out_sb(trn_out_msg *m, trn_sb *s)
{
    if (s->n)
        trn_out_bytes(m, s->p, s->n);
    trn_sb_fini(s);
}

/* ---- TensorProto -------------------------------------------------------------------------------------------------- */

#define HEAD_MAX (24 + TRN_MAX_RANK * 14) /* a plain tensor's head, at most */

static size_t tag_to(uint8_t *p, uint32_t field, size_t n)
{
    size_t k = trn_pbw_varint_to(p, (uint64_t)field << 3 | TRN_PB_BYTES);
    return k + trn_pbw_varint_to(p + k, n);
}

/* dtype = 1, tensor_shape = 2 (dim = 2 {size = 1}). */
static size_t shape_to(uint8_t *p, const trn_tensor *t)
{
    size_t n = 0, dims = 0;
    p[n++] = 1 << 3;
    n += trn_pbw_varint_to(p + n, (uint64_t)t->dtype);
    for (int i = 0; i < t->shape.rank; i++)
        dims += 2 + (t->shape.dim[i] ? 1 + trn_pbw_varint_size((uint64_t)t->shape.dim[i]) : 0);
    n += tag_to(p + n, 2, dims);
    for (int i = 0; i < t->shape.rank; i++) {
        uint64_t d = (uint64_t)t->shape.dim[i];
        n += tag_to(p + n, 2, d ? 1 + trn_pbw_varint_size(d) : 0);
        if (d) {
            p[n++] = 1 << 3;
            n += trn_pbw_varint_to(p + n, d);
        }
    }
    return n;
}

static void put_tensor_head(trn_sb *s, const trn_tensor *t)
{
    uint8_t head[HEAD_MAX];
    trn_sb_add(s, head, shape_to(head, t));
}

static void put_strings(trn_sb *s, const trn_tensor *t)
{
    const trn_str *v = t->data;
    size_t n = 0;
    for (int64_t i = 0; i < t->count; i++)
        n += trn_pbw_varint_size(v[i].len) + v[i].len;
    if (!t->count)
        return;
    trn_pbw_tag(s, 4, TRN_PB_BYTES);
    trn_pbw_raw_varint(s, n);
    for (int64_t i = 0; i < t->count; i++)
        trn_pbw_raw_varint(s, v[i].len);
    for (int64_t i = 0; i < t->count; i++)
        trn_sb_add(s, trn_str_p(&v[i]), v[i].len);
}

/* The whole TensorProto of strings or handles. */
static trn_err tensor_body(trn_sb *s, const trn_tensor *t)
{
    if (t->dtype == TRN_STRING) {
        put_tensor_head(s, t);
        put_strings(s, t);
        return TRN_OK;
    }
    trn_arena *a = trn_arena_new(); /* handles and variants are rare on the wire: the generated code will do */
    Tensorflow__TensorProto *pb = trn_tensor_to_pb(a, t);
    if (!pb) {
        trn_arena_free(a);
        return trn_errorf(TRN_UNIMPLEMENTED, "a %s tensor cannot be sent to another task", trn_dtype_name(t->dtype));
    }
    size_t n = tensorflow__tensor_proto__get_packed_size(pb);
    uint8_t *p = trn_arena_alloc(a, n + 1);
    tensorflow__tensor_proto__pack(pb, p);
    trn_sb_add(s, p, n);
    trn_arena_free(a);
    return TRN_OK;
}

/* A plain tensor, named or not, without an allocation of its own: this is what every step sends. */
static void put_plain(trn_out_msg *m, uint32_t field, const char *name, const trn_tensor *t)
{
    uint8_t head[HEAD_MAX], front[64 + HEAD_MAX + INLINE_BYTES];
    size_t bytes = trn_tensor_bytes(t), hn = shape_to(head, t), n = 0;
    if (bytes)
        hn += tag_to(head + hn, 4, bytes); /* tensor_content */
    size_t body = hn + bytes, name_n = name ? strlen(name) : 0;
    if (name) { /* NamedTensorProto: name = 1, tensor = 2 */
        size_t inner = (name_n ? 1 + trn_pbw_varint_size(name_n) + name_n : 0) + 1 + trn_pbw_varint_size(body) + body;
        n = tag_to(front, field, inner);
        if (name_n) {
            n += tag_to(front + n, 1, name_n);
            trn_out_bytes(m, front, n);
            trn_out_bytes(m, name, name_n);
            n = 0;
        }
        field = 2;
    }
    n += tag_to(front + n, field, body);
    memcpy(front + n, head, hn);
    n += hn;
    bool apart = t->buf && bytes > INLINE_BYTES;
    if (!apart && bytes <= INLINE_BYTES) {
        memcpy(front + n, t->data, bytes);
        n += bytes;
    }
    trn_out_bytes(m, front, n);
    if (apart)
        trn_out_slice(m, t->buf, t->data, bytes);
    else if (bytes > INLINE_BYTES)
        trn_out_bytes(m, t->data, bytes);
}

trn_err trn_tensor_put(trn_out_msg *m, uint32_t field, const trn_tensor *t)
{
    if (trn_dtype_is_plain(t->dtype)) {
        put_plain(m, field, NULL, t);
        return TRN_OK;
    }
    trn_sb body = {0}, front = {0};
    trn_err err = tensor_body(&body, t);
    if (!err) {
        trn_pbw_tag(&front, field, TRN_PB_BYTES);
        trn_pbw_raw_varint(&front, body.n);
        trn_out_bytes(m, front.p, front.n);
        trn_out_bytes(m, body.p, body.n);
    }
    trn_sb_fini(&body);
    trn_sb_fini(&front);
    return err;
}

trn_err trn_named_put(trn_out_msg *m, uint32_t field, const char *name, const trn_tensor *t)
{
    if (trn_dtype_is_plain(t->dtype)) {
        put_plain(m, field, name, t);
        return TRN_OK;
    }
    trn_sb body = {0}, inner = {0}, front = {0};
    trn_err err = tensor_body(&body, t);
    if (!err) {
        trn_pbw_str(&inner, 1, name);
        trn_pbw_tag(&inner, 2, TRN_PB_BYTES);
        trn_pbw_raw_varint(&inner, body.n);
        trn_pbw_tag(&front, field, TRN_PB_BYTES);
        trn_pbw_raw_varint(&front, inner.n + body.n);
        trn_sb_add(&front, inner.p, inner.n);
        trn_out_bytes(m, front.p, front.n);
        trn_out_bytes(m, body.p, body.n);
    }
    trn_sb_fini(&body);
    trn_sb_fini(&inner);
    trn_sb_fini(&front);
    return err;
}

static bool parse_shape(trn_shape *out, const uint8_t *p, size_t n)
{
    trn_pbr r = trn_pbr_init(p, n);
    out->rank = 0;
    while (trn_pbr_next(&r)) {
        if (r.field == 3 && r.v)
            return false; /* unknown rank: not a tensor's shape */
        if (r.field != 2 || r.type != TRN_PB_BYTES)
            continue;
        if (out->rank == TRN_MAX_RANK)
            return false;
        int64_t size = 0;
        trn_pbr d = trn_pbr_init(r.b, r.n);
        while (trn_pbr_next(&d))
            if (d.field == 1 && d.type == TRN_PB_VARINT)
                size = (int64_t)d.v;
        if (d.bad || size < 0)
            return false;
        out->dim[out->rank++] = size;
    }
    return !r.bad;
}

/* The usual case: dtype, shape, tensor_content of a plain dtype, each once. False: leave it to the generated code. */
static bool parse_plain(trn_err *err, trn_tensor **out, trn_buf *buf, const uint8_t *p, size_t n)
{
    trn_pbr r = trn_pbr_init(p, n);
    trn_dtype dtype = TRN_INVALID;
    trn_shape shape = {0};
    const uint8_t *content = NULL;
    size_t content_n = 0;
    while (trn_pbr_next(&r)) {
        if (r.field == 1 && r.type == TRN_PB_VARINT)
            dtype = r.v < TRN_DTYPE_END ? (trn_dtype)r.v : TRN_INVALID;
        else if (r.field == 2 && r.type == TRN_PB_BYTES) {
            if (!parse_shape(&shape, r.b, r.n))
                return false;
        } else if (r.field == 4 && r.type == TRN_PB_BYTES) {
            content = r.b;
            content_n = r.n;
        } else if (r.field != 3)
            return false;
    }
    int64_t count;
    if (r.bad || !content || !trn_dtype_is_plain(dtype))
        return false;
    trn_err e = trn_shape_count(&count, &shape);
    if (e) {
        trn_err_free(e);
        return false;
    }
    size_t size = trn_dtype_size(dtype);
    if (!size || (uint64_t)count > SIZE_MAX / size || (size_t)count * size != content_n)
        return false;
    if (buf && content_n > TRN_TENSOR_INLINE && content_n >= buf->size / 2) { /* a small one must not keep a large message alive */
        *err = trn_tensor_on_buf(out, dtype, &shape, buf, content);
        return true;
    }
    *err = trn_tensor_new(out, dtype, &shape);
    if (!*err && content_n)
        memcpy((*out)->data, content, content_n);
    return true;
}

/* What it takes beyond its bytes is taken from *left, which the tensors of a message share. */
static trn_err parse_tensor(trn_tensor **out, trn_buf *buf, const uint8_t *p, size_t n, size_t *left)
{
    trn_err err;
    if (parse_plain(&err, out, buf, p, n))
        return err;
    trn_arena *a = trn_arena_new();
    ProtobufCMessage *pb = NULL;
    err = trn_pb_unpack(&pb, a, &tensorflow__tensor_proto__descriptor, p, n);
    if (!err)
        err = trn_tensor_from_pb_within(out, (Tensorflow__TensorProto *)pb, left);
    trn_arena_free(a);
    return err;
}

trn_err trn_tensor_parse(trn_tensor **out, trn_buf *buf, const uint8_t *p, size_t n)
{
    size_t left = TRN_PB_FILL_MAX;
    return parse_tensor(out, buf, p, n, &left);
}

void trn_named_fini(trn_named_tensor *v, int n)
{
    for (int i = 0; i < n; i++) {
        trn_tensor_unref(v[i].t);
        v[i].t = NULL;
    }
}

static trn_err parse_named(trn_named_tensor *out, trn_arena *a, trn_buf *buf, const uint8_t *p, size_t n, size_t *left)
{
    trn_pbr r = trn_pbr_init(p, n);
    const uint8_t *t = (const uint8_t *)"";
    size_t tn = 0;
    out->name = "";
    out->t = NULL;
    while (trn_pbr_next(&r)) {
        if (r.type != TRN_PB_BYTES)
            continue;
        if (r.field == 1)
            out->name = trn_arena_strndup(a, (const char *)r.b, r.n);
        else if (r.field == 2)
            t = r.b, tn = r.n;
    }
    if (r.bad)
        return malformed("NamedTensorProto");
    trn_err err = parse_tensor(&out->t, buf, t, tn, left);
    return err ? trn_err_wrap(err, "tensor %s", out->name) : TRN_OK;
}

/* How often a field occurs: arrays are allocated once. */
static int count_field(const trn_msg *m, uint32_t field)
{
    trn_pbr r = trn_pbr_init(m->p, m->n);
    int n = 0;
    while (trn_pbr_next(&r) && n < MAX_FIELDS)
        n += r.field == field && r.type == TRN_PB_BYTES;
    return n;
}

/* Where the content of the message's first tensor begins, down through the given fields to tensor_content; skips smaller things on the way. */
static int64_t find_content(const uint8_t *base, const uint8_t *p, const uint8_t *have_end, const uint32_t *path, int depth)
{
    while (p < have_end) {
        trn_pbr r = {.p = p, .end = have_end};
        uint64_t tag, n;
        if (!trn_pbr_raw_varint(&r, &tag))
            return -2;
        int type = (int)(tag & 7);
        if (type == TRN_PB_BYTES) {
            if (!trn_pbr_raw_varint(&r, &n))
                return -2;
            if (tag >> 3 == path[0])
                return depth == 1 ? r.p - base : find_content(base, r.p, have_end, path + 1, depth - 1);
            if (n > (uint64_t)(have_end - r.p))
                return n > 4096 ? -1 : -2;
            p = r.p + n;
        } else if (type == TRN_PB_VARINT) {
            if (!trn_pbr_raw_varint(&r, &n))
                return -2;
            p = r.p;
        } else if (type == TRN_PB_FIXED64 || type == TRN_PB_FIXED32) {
            size_t w = type == TRN_PB_FIXED64 ? 8 : 4;
            if ((size_t)(have_end - r.p) < w)
                return -2;
            p = r.p + w;
        } else
            return -1;
    }
    return -2;
}

static int64_t align_by(const uint8_t *p, size_t have, size_t total, const uint32_t *path, int depth)
{
    int64_t at = find_content(p, p, p + have, path, depth);
    return at == -2 && have >= total ? -1 : at;
}

int64_t trn_recv_resp_align(const uint8_t *p, size_t have, size_t total)
{
    static const uint32_t path[] = {1, 4};
    return align_by(p, have, total, path, 2);
}

int64_t trn_run_graph_req_align(const uint8_t *p, size_t have, size_t total)
{
    static const uint32_t path[] = {3, 2, 4};
    return align_by(p, have, total, path, 3);
}

int64_t trn_run_step_req_align(const uint8_t *p, size_t have, size_t total)
{
    static const uint32_t path[] = {2, 2, 4};
    return align_by(p, have, total, path, 3);
}

int64_t trn_run_step_resp_align(const uint8_t *p, size_t have, size_t total)
{
    static const uint32_t path[] = {1, 2, 4};
    return align_by(p, have, total, path, 3);
}

/* ---- RecvTensor --------------------------------------------------------------------------------------------------- */

trn_err trn_recv_req_parse(trn_recv_req *out, trn_arena *a, const trn_msg *m)
{
    *out = (trn_recv_req){.key = ""};
    trn_pbr r = trn_pbr_init(m->p, m->n);
    while (trn_pbr_next(&r)) {
        if (r.field == 1 && r.type == TRN_PB_VARINT)
            out->step_id = (int64_t)r.v;
        else if (r.field == 2 && r.type == TRN_PB_BYTES)
            out->key = trn_arena_strndup(a, (const char *)r.b, r.n);
        else if (r.field == 7 && r.type == TRN_PB_VARINT)
            out->request_id = (int64_t)r.v;
    }
    return r.bad ? malformed("RecvTensorRequest") : TRN_OK;
}

void trn_recv_req_put(trn_out_msg *m, int64_t step_id, const char *key, int64_t request_id)
{
    trn_sb s = {0};
    trn_pbw_varint(&s, 1, (uint64_t)step_id);
    trn_pbw_str(&s, 2, key);
    trn_pbw_varint(&s, 7, (uint64_t)request_id);
    trn_out_sb(m, &s);
}

trn_err trn_recv_resp_put(trn_out_msg *m, const trn_tensor *t, bool dead)
{
    trn_sb front = {0};
    trn_pbw_varint(&front, 2, dead);
    trn_pbw_varint(&front, 3, trn_wall_us());
    if (t) {
        trn_out_sb(m, &front);
        return trn_tensor_put(m, 1, t);
    }
    /* A dead tensor travels as an empty float, as TensorFlow's does. */
    static const uint8_t empty[] = {1 << 3, 1, 2 << 3 | 2, 0};
    trn_pbw_bytes(&front, 1, empty, sizeof empty);
    trn_out_sb(m, &front);
    return TRN_OK;
}

trn_err trn_recv_resp_parse(trn_tensor **out, bool *dead, const trn_msg *m)
{
    trn_pbr r = trn_pbr_init(m->p, m->n);
    const uint8_t *t = NULL;
    size_t n = 0;
    bool is_dead = false;
    while (trn_pbr_next(&r)) {
        if (r.field == 1 && r.type == TRN_PB_BYTES)
            t = r.b, n = r.n;
        else if (r.field == 2 && r.type == TRN_PB_VARINT)
            is_dead = r.v;
    }
    if (r.bad)
        return malformed("RecvTensorResponse");
    *dead = is_dead;
    if (is_dead || !t) {
        *out = NULL;
        return is_dead ? TRN_OK : trn_errorf(TRN_INTERNAL, "RecvTensorResponse without a tensor");
    }
    return trn_tensor_parse(out, m->buf, t, n);
}

/* ---- RunGraph ----------------------------------------------------------------------------------------------------- */

/* Packed varints; a second field replaces the first. */
static void parse_ids(int64_t **out, int *n_out, trn_arena *a, const uint8_t *p, size_t n)
{
    trn_pbr r = {.p = p, .end = p + n};
    int64_t *v = trn_arena_alloc(a, sizeof *v * (n + 1));
    int k = 0;
    for (uint64_t id; r.p < r.end && trn_pbr_raw_varint(&r, &id);)
        v[k++] = (int64_t)id;
    *out = v;
    *n_out = k;
}

static void put_ids(trn_sb *s, const int64_t *v, int n)
{
    if (!n)
        return;
    trn_sb ids = {0};
    for (int i = 0; i < n; i++)
        trn_pbw_raw_varint(&ids, (uint64_t)v[i]);
    trn_pbw_bytes(s, F_CLEAN, ids.p, ids.n);
    trn_sb_fini(&ids);
}

static void parse_exec_opts(trn_run_graph_req *out, const uint8_t *p, size_t n)
{
    trn_pbr r = trn_pbr_init(p, n);
    while (trn_pbr_next(&r)) {
        if (r.type != TRN_PB_VARINT)
            continue;
        if (r.field == 1)
            out->record_costs = r.v;
        else if (r.field == 3)
            out->record_timeline = r.v;
        else if (r.field == 4)
            out->record_partitions = r.v;
    }
}

trn_err trn_run_graph_req_parse(trn_run_graph_req *out, trn_arena *a, const trn_msg *m)
{
    *out = (trn_run_graph_req){.session = "", .graph = ""};
    int n_send = count_field(m, 3), n_recv = count_field(m, 4);
    if (n_send)
        out->send = trn_arena_alloc(a, sizeof *out->send * (size_t)n_send);
    if (n_recv)
        out->recv_key = trn_arena_alloc(a, sizeof *out->recv_key * (size_t)n_recv);
    trn_pbr r = trn_pbr_init(m->p, m->n);
    trn_err err = TRN_OK;
    size_t left = TRN_PB_FILL_MAX;
    while (!err && trn_pbr_next(&r)) {
        const bool bytes = r.type == TRN_PB_BYTES, var = r.type == TRN_PB_VARINT;
        switch (r.field) {
        case 1: if (bytes) out->graph = trn_arena_strndup(a, (const char *)r.b, r.n); break;
        case 2: if (var) out->step_id = (int64_t)r.v; break;
        case 3:
            if (bytes && out->n_send < n_send) {
                err = parse_named(&out->send[out->n_send], a, m->buf, r.b, r.n, &left);
                out->n_send += !err;
            }
            break;
        case 4: if (bytes && out->n_recv < n_recv) out->recv_key[out->n_recv++] = trn_arena_strndup(a, (const char *)r.b, r.n); break;
        case 5: if (bytes) parse_exec_opts(out, r.b, r.n); break;
        case 6: if (var) out->is_partial = r.v; break;
        case 7: if (var) out->is_last_partial = r.v; break;
        case 8: if (bytes) out->session = trn_arena_strndup(a, (const char *)r.b, r.n); break;
        case 9: if (var) out->errors_in_body = r.v; break;
        case 10: if (var) out->session_created = r.v; break;
        case 11: if (var) out->request_id = (int64_t)r.v; break;
        case F_PUSH: if (var) out->push = r.v; break;
        case F_CLEAN: if (bytes) parse_ids(&out->clean, &out->n_clean, a, r.b, r.n); break;
        default: break;
        }
    }
    if (!err && r.bad)
        err = malformed("RunGraphRequest");
    if (err)
        trn_run_graph_req_fini(out);
    return err;
}

void trn_run_graph_req_fini(trn_run_graph_req *r)
{
    trn_named_fini(r->send, r->n_send);
    r->n_send = 0;
}

trn_err trn_run_graph_req_put(trn_out_msg *m, const trn_run_graph_req *q)
{
    trn_sb s = {0};
    trn_pbw_str(&s, 8, q->session);
    trn_pbw_varint(&s, 10, q->session_created);
    trn_pbw_str(&s, 1, q->graph);
    trn_pbw_varint(&s, 2, (uint64_t)q->step_id);
    trn_sb o = {0};
    trn_pbw_varint(&o, 1, q->record_costs);
    trn_pbw_varint(&o, 3, q->record_timeline);
    trn_pbw_varint(&o, 4, q->record_partitions);
    trn_pbw_bytes(&s, 5, o.p, o.n);
    trn_sb_fini(&o);
    for (int i = 0; i < q->n_recv; i++)
        trn_pbw_str(&s, 4, q->recv_key[i]);
    trn_pbw_varint(&s, 6, q->is_partial);
    trn_pbw_varint(&s, 7, q->is_last_partial);
    trn_pbw_varint(&s, 9, q->errors_in_body);
    trn_pbw_varint(&s, 11, (uint64_t)q->request_id);
    trn_pbw_varint(&s, F_PUSH, q->push);
    put_ids(&s, q->clean, q->n_clean);
    trn_out_sb(m, &s);
    for (int i = 0; i < q->n_send; i++)
        TRN_TRY(trn_named_put(m, 3, q->send[i].name, q->send[i].t));
    return TRN_OK;
}

trn_err trn_register_graph_resp_parse(char *handle, size_t size, const trn_msg *m)
{
    trn_pbr r = trn_pbr_init(m->p, m->n);
    while (trn_pbr_next(&r))
        if (r.field == 1 && r.type == TRN_PB_BYTES && r.n < size)
            memcpy(handle, r.b, r.n);
    return r.bad || !*handle ? trn_errorf(TRN_INTERNAL, "it gave no graph handle") : TRN_OK;
}

trn_err trn_run_graph_resp_parse(trn_run_graph_resp *out, trn_arena *a, const trn_msg *m)
{
    *out = (trn_run_graph_resp){0};
    int n = count_field(m, 1), n_dead = count_field(m, F_DEAD);
    if (n)
        out->recv = trn_arena_alloc(a, sizeof *out->recv * (size_t)n);
    if (n_dead)
        out->dead = trn_arena_alloc(a, sizeof *out->dead * (size_t)n_dead);
    trn_pbr r = trn_pbr_init(m->p, m->n);
    trn_err err = TRN_OK;
    size_t left = TRN_PB_FILL_MAX;
    uint64_t code = 0;
    const char *text = "";
    while (!err && trn_pbr_next(&r)) {
        if (r.field == 1 && r.type == TRN_PB_BYTES && out->n_recv < n) {
            err = parse_named(&out->recv[out->n_recv], a, m->buf, r.b, r.n, &left);
            out->n_recv += !err;
        } else if (r.field == 2 && r.type == TRN_PB_BYTES)
            out->step_stats = r.b, out->step_stats_n = r.n;
        else if (r.field == F_DEAD && r.type == TRN_PB_BYTES && out->n_dead < n_dead)
            out->dead[out->n_dead++] = trn_arena_strndup(a, (const char *)r.b, r.n);
        else if (r.field == 5 && r.type == TRN_PB_VARINT)
            code = r.v;
        else if (r.field == 6 && r.type == TRN_PB_BYTES)
            text = trn_arena_strndup(a, (const char *)r.b, r.n);
    }
    if (!err && r.bad)
        err = malformed("RunGraphResponse");
    if (err) {
        trn_named_fini(out->recv, out->n_recv);
        return err;
    }
    if (code)
        out->status = trn_errorf(code <= 16 ? (trn_code)code : TRN_UNKNOWN, "%s", text);
    return TRN_OK;
}

int64_t trn_run_graph_resp_align(const uint8_t *p, size_t have, size_t total)
{
    return trn_run_step_resp_align(p, have, total); /* the same three fields down */
}

/* ---- Push --------------------------------------------------------------------------------------------------------- */

trn_err trn_push_parse(trn_push *out, trn_arena *a, const trn_msg *m)
{
    *out = (trn_push){0};
    int n = count_field(m, 1), n_dead = count_field(m, F_DEAD);
    out->v = trn_arena_alloc(a, sizeof *out->v * (size_t)(n + 1));
    out->dead = trn_arena_alloc(a, sizeof *out->dead * (size_t)(n_dead + 1));
    trn_pbr r = trn_pbr_init(m->p, m->n);
    trn_err err = TRN_OK;
    size_t left = TRN_PB_FILL_MAX;
    while (!err && trn_pbr_next(&r)) {
        const bool bytes = r.type == TRN_PB_BYTES;
        if (r.field == 1 && bytes && out->n < n) {
            err = parse_named(&out->v[out->n], a, m->buf, r.b, r.n, &left);
            out->n += !err;
        } else if (r.field == 2 && r.type == TRN_PB_VARINT)
            out->step_id = (int64_t)r.v;
        else if (r.field == F_CLEAN && bytes)
            parse_ids(&out->clean, &out->n_clean, a, r.b, r.n);
        else if (r.field == F_DEAD && bytes && out->n_dead < n_dead)
            out->dead[out->n_dead++] = trn_arena_strndup(a, (const char *)r.b, r.n);
    }
    if (!err && r.bad)
        err = malformed("Push");
    if (err)
        trn_named_fini(out->v, out->n);
    return err;
}

trn_err trn_push_put_tensor(trn_out_msg *m, const char *key, const trn_tensor *t, bool dead)
{
    if (!dead)
        return trn_named_put(m, 1, key, t);
    trn_sb s = {0};
    trn_pbw_str(&s, F_DEAD, key);
    trn_out_sb(m, &s);
    return TRN_OK;
}

void trn_push_put_head(trn_out_msg *m, int64_t step_id, const int64_t *clean, int n_clean)
{
    trn_sb s = {0};
    trn_pbw_varint(&s, 2, (uint64_t)step_id);
    put_ids(&s, clean, n_clean);
    trn_out_sb(m, &s);
}

int64_t trn_push_align(const uint8_t *p, size_t have, size_t total)
{
    return trn_run_step_resp_align(p, have, total);
}

/* ---- RunStep ------------------------------------------------------------------------------------------------------ */

static void parse_run_options(trn_run_step_req *out, const uint8_t *p, size_t n)
{
    trn_pbr r = trn_pbr_init(p, n);
    while (trn_pbr_next(&r)) {
        if (r.field == 6 && r.type == TRN_PB_BYTES) {
            out->debug = r.b;
            out->debug_n = r.n;
        }
        if (r.type != TRN_PB_VARINT)
            continue;
        if (r.field == 1)
            out->trace_level = (int)r.v;
        else if (r.field == 2)
            out->timeout_ms = (int64_t)r.v;
        else if (r.field == 5)
            out->partition_graphs = r.v;
    }
}

trn_err trn_run_step_req_parse(trn_run_step_req *out, trn_arena *a, const trn_msg *m)
{
    *out = (trn_run_step_req){.session = "", .partial_handle = ""};
    int n_feeds = count_field(m, 2), n_fetches = count_field(m, 3), n_targets = count_field(m, 4);
    out->feeds = trn_arena_alloc(a, sizeof *out->feeds * (size_t)(n_feeds + 1));
    out->fetches = trn_arena_alloc(a, sizeof *out->fetches * (size_t)(n_fetches + 1));
    out->targets = trn_arena_alloc(a, sizeof *out->targets * (size_t)(n_targets + 1));
    trn_pbr r = trn_pbr_init(m->p, m->n);
    trn_err err = TRN_OK;
    size_t left = TRN_PB_FILL_MAX;
    while (!err && trn_pbr_next(&r)) {
        const bool bytes = r.type == TRN_PB_BYTES, var = r.type == TRN_PB_VARINT;
        switch (r.field) {
        case 1: if (bytes) out->session = trn_arena_strndup(a, (const char *)r.b, r.n); break;
        case 2:
            if (bytes && out->n_feeds < n_feeds) {
                err = parse_named(&out->feeds[out->n_feeds], a, m->buf, r.b, r.n, &left);
                out->n_feeds += !err;
            }
            break;
        case 3: if (bytes && out->n_fetches < n_fetches) out->fetches[out->n_fetches++] = trn_arena_strndup(a, (const char *)r.b, r.n); break;
        case 4: if (bytes && out->n_targets < n_targets) out->targets[out->n_targets++] = trn_arena_strndup(a, (const char *)r.b, r.n); break;
        case 5: if (bytes) parse_run_options(out, r.b, r.n); break;
        case 6: if (bytes) out->partial_handle = trn_arena_strndup(a, (const char *)r.b, r.n); break;
        case 7: if (var) out->errors_in_body = r.v; break;
        case 8: if (var) out->request_id = (int64_t)r.v; break;
        default: break;
        }
    }
    if (!err && r.bad)
        err = malformed("RunStepRequest");
    if (err)
        trn_run_step_req_fini(out);
    return err;
}

void trn_run_step_req_fini(trn_run_step_req *r)
{
    trn_named_fini(r->feeds, r->n_feeds);
    r->n_feeds = 0;
}

trn_err trn_run_step_req_put(trn_out_msg *m, const trn_run_step_req *q)
{
    trn_sb s = {0};
    trn_pbw_str(&s, 1, q->session);
    for (int i = 0; i < q->n_fetches; i++)
        trn_pbw_str(&s, 3, q->fetches[i]);
    for (int i = 0; i < q->n_targets; i++)
        trn_pbw_str(&s, 4, q->targets[i]);
    trn_sb o = {0};
    trn_pbw_varint(&o, 1, (uint64_t)q->trace_level);
    trn_pbw_varint(&o, 2, (uint64_t)q->timeout_ms);
    trn_pbw_varint(&o, 5, q->partition_graphs);
    if (q->debug_n)
        trn_pbw_bytes(&o, 6, q->debug, q->debug_n);
    if (o.n)
        trn_pbw_bytes(&s, 5, o.p, o.n);
    trn_sb_fini(&o);
    trn_pbw_str(&s, 6, q->partial_handle);
    trn_pbw_varint(&s, 7, q->errors_in_body);
    trn_pbw_varint(&s, 8, (uint64_t)q->request_id);
    trn_out_sb(m, &s);
    for (int i = 0; i < q->n_feeds; i++)
        TRN_TRY(trn_named_put(m, 2, q->feeds[i].name, q->feeds[i].t));
    return TRN_OK;
}

trn_err trn_run_step_resp_parse(trn_run_step_resp *out, trn_arena *a, const trn_msg *m)
{
    *out = (trn_run_step_resp){0};
    int n = count_field(m, 1);
    out->tensors = trn_arena_alloc(a, sizeof *out->tensors * (size_t)(n + 1));
    trn_pbr r = trn_pbr_init(m->p, m->n);
    trn_err err = TRN_OK;
    size_t left = TRN_PB_FILL_MAX;
    uint64_t code = 0;
    const char *text = "";
    while (!err && trn_pbr_next(&r)) {
        if (r.field == 1 && r.type == TRN_PB_BYTES && out->n < n) {
            err = parse_named(&out->tensors[out->n], a, m->buf, r.b, r.n, &left);
            out->n += !err;
        } else if (r.field == 2 && r.type == TRN_PB_BYTES)
            out->metadata = r.b, out->metadata_n = r.n;
        else if (r.field == 3 && r.type == TRN_PB_VARINT)
            code = r.v;
        else if (r.field == 4 && r.type == TRN_PB_BYTES)
            text = trn_arena_strndup(a, (const char *)r.b, r.n);
    }
    if (!err && r.bad)
        err = malformed("RunStepResponse");
    if (err) {
        trn_named_fini(out->tensors, out->n);
        return err;
    }
    if (code)
        out->status = trn_errorf(code <= 16 ? (trn_code)code : TRN_UNKNOWN, "%s", text);
    return TRN_OK;
}

/* ---- RunCallable -------------------------------------------------------------------------------------------------- */

trn_err trn_run_callable_req_parse(trn_run_callable_req *out, trn_arena *a, const trn_msg *m)
{
    *out = (trn_run_callable_req){.session = ""};
    int n = count_field(m, 3);
    out->feeds = trn_arena_alloc(a, sizeof *out->feeds * (size_t)(n + 1));
    trn_pbr r = trn_pbr_init(m->p, m->n);
    trn_err err = TRN_OK;
    size_t left = TRN_PB_FILL_MAX;
    while (!err && trn_pbr_next(&r)) {
        if (r.field == 1 && r.type == TRN_PB_BYTES)
            out->session = trn_arena_strndup(a, (const char *)r.b, r.n);
        else if (r.field == 2 && r.type == TRN_PB_VARINT)
            out->handle = (int64_t)r.v;
        else if (r.field == 3 && r.type == TRN_PB_BYTES && out->n_feeds < n) {
            err = parse_tensor(&out->feeds[out->n_feeds], m->buf, r.b, r.n, &left);
            out->n_feeds += !err;
        } else if (r.field == 4 && r.type == TRN_PB_VARINT)
            out->request_id = (int64_t)r.v;
    }
    if (!err && r.bad)
        err = malformed("RunCallableRequest");
    if (err)
        trn_run_callable_req_fini(out);
    return err;
}

void trn_run_callable_req_fini(trn_run_callable_req *r)
{
    for (int i = 0; i < r->n_feeds; i++)
        trn_tensor_unref(r->feeds[i]);
    r->n_feeds = 0;
}
