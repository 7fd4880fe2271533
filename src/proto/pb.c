#include "proto/pb.h"
#include "proto/pbw.h"

/* Arena bytes per message byte that a sane message never exceeds (empty strings, the worst, take just as many), beside what any
   message may take. */
#define MAX_GROWTH 40
#define GROWTH_FREE ((size_t)64 << 20)

static void *arena_alloc(void *a, size_t n) { return trn_arena_try_alloc(a, n); }
static void arena_free(void *a, void *p)
{
    (void)a;
    (void)p;
}

ProtobufCAllocator trn_pb_allocator(trn_arena *a)
{
    return (ProtobufCAllocator){.alloc = arena_alloc, .free = arena_free, .allocator_data = a};
}

/* ---- the walk ------------------------------------------------------------------------------------------------- */

typedef struct walk {
    size_t memory, limit; /* what unpacking will take, roughly; what it may take */
} walk;

static const char *wire_name(int w)
{
    static const char *const names[] = {"varint",         "64-bit",       "length-delimited",
                                        "start of group", "end of group", "32-bit"};
    return (unsigned)w < TRN_COUNTOF(names) ? names[w] : "unknown";
}

static int wire_of(ProtobufCType t)
{
    switch (t) {
    case PROTOBUF_C_TYPE_FIXED32:
    case PROTOBUF_C_TYPE_SFIXED32:
    case PROTOBUF_C_TYPE_FLOAT:
        return TRN_PB_FIXED32;
    case PROTOBUF_C_TYPE_FIXED64:
    case PROTOBUF_C_TYPE_SFIXED64:
    case PROTOBUF_C_TYPE_DOUBLE:
        return TRN_PB_FIXED64;
    case PROTOBUF_C_TYPE_STRING:
    case PROTOBUF_C_TYPE_BYTES:
    case PROTOBUF_C_TYPE_MESSAGE:
        return TRN_PB_BYTES;
    default:
        return TRN_PB_VARINT;
    }
}

/* At most this many bytes of memory for one element of a repeated scalar. */
#define SCALAR 8
/* protobuf-c notes every field it scans before it parses it; the arena keeps these notes. */
#define SCAN 48

static bool take(walk *w, size_t n)
{
    return !__builtin_add_overflow(w->memory, n, &w->memory) && w->memory <= w->limit;
}

static trn_err too_big(const ProtobufCMessageDescriptor *d)
{
    return trn_errorf(TRN_RESOURCE_EXHAUSTED, "%s: its bytes would unpack into more than %d times their size", d->name,
                      MAX_GROWTH);
}

static trn_err check_packed(walk *w, const ProtobufCMessageDescriptor *d, const ProtobufCFieldDescriptor *f,
                            const uint8_t *p, size_t n)
{
    int wire = wire_of(f->type);
    size_t count = 0;
    if (wire == TRN_PB_VARINT) {
        trn_pbr r = trn_pbr_init(p, n);
        for (uint64_t v; r.p < r.end; count++)
            if (!trn_pbr_raw_varint(&r, &v))
                return trn_errorf(TRN_INVALID_ARGUMENT, "%s.%s: a packed value is not a varint", d->name, f->name);
    } else {
        size_t each = wire == TRN_PB_FIXED32 ? 4 : 8;
        if (n % each)
            return trn_errorf(TRN_INVALID_ARGUMENT, "%s.%s: %zu packed bytes are no multiple of %zu", d->name, f->name,
                              n, each);
        count = n / each;
    }
    return take(w, count * SCALAR) ? TRN_OK : too_big(d);
}

static trn_err check_message(walk *w, const ProtobufCMessageDescriptor *d, const uint8_t *p, size_t n, int depth)
{
    if (depth > TRN_PB_MAX_DEPTH)
        return trn_errorf(TRN_INVALID_ARGUMENT, "%s: messages are nested more than %d deep", d->name, TRN_PB_MAX_DEPTH);
    if (!take(w, d->sizeof_message + 16))
        return too_big(d);
    uint64_t seen[4] = {0}; /* singular messages that were there already, by field index */
    trn_pbr r = trn_pbr_init(p, n);
    for (const uint8_t *at = r.p; trn_pbr_next(&r); at = r.p) {
        const ProtobufCFieldDescriptor *f = protobuf_c_message_descriptor_get_field(d, r.field);
        if (!take(w, SCAN))
            return too_big(d);
        if (!f) { /* kept as it is, in one array of entries */
            if (!take(w, sizeof(ProtobufCMessageUnknownField) + 16 + (size_t)(r.p - at)))
                return too_big(d);
            continue;
        }
        bool repeated = f->label == PROTOBUF_C_LABEL_REPEATED;
        int want = wire_of(f->type);
        if (r.type == TRN_PB_BYTES && want != TRN_PB_BYTES && repeated) {
            TRN_TRY(check_packed(w, d, f, r.b, r.n));
            continue;
        }
        if (r.type != want)
            return trn_errorf(TRN_INVALID_ARGUMENT, "%s.%s: field %u is sent as %s, not as %s", d->name, f->name,
                              r.field, wire_name(r.type), wire_name(want));
        if (repeated && !take(w, 16))
            return too_big(d);
        switch (f->type) {
        case PROTOBUF_C_TYPE_STRING:
            /* It would end at the zero, and what we then see is not what was sent. */
            if (memchr(r.b, 0, r.n))
                return trn_errorf(TRN_INVALID_ARGUMENT, "%s.%s: the string holds a zero byte", d->name, f->name);
            /* fallthrough */
        case PROTOBUF_C_TYPE_BYTES:
            if (!take(w, r.n + 16))
                return too_big(d);
            break;
        case PROTOBUF_C_TYPE_MESSAGE: {
            unsigned i = (unsigned)(f - d->fields);
            if (!repeated && i < 8 * sizeof seen) {
                /* Merging is what protobuf-c would do, at a cost that grows with the square of the repetitions. */
                if (seen[i / 64] >> (i % 64) & 1)
                    return trn_errorf(TRN_INVALID_ARGUMENT, "%s.%s: field %u is there twice", d->name, f->name,
                                      r.field);
                seen[i / 64] |= (uint64_t)1 << (i % 64);
            }
            TRN_TRY(check_message(w, f->descriptor, r.b, r.n, depth + 1));
            break;
        }
        default:
            break;
        }
    }
    if (r.bad) {
        const ProtobufCFieldDescriptor *f = r.field ? protobuf_c_message_descriptor_get_field(d, r.field) : NULL;
        return trn_errorf(TRN_INVALID_ARGUMENT, "%s.%s: field %u, at byte %zu of %zu: %s", d->name,
                          f ? f->name : "(unknown field)", r.field, (size_t)(r.p - p), n, r.why);
    }
    return TRN_OK;
}

trn_err trn_pb_check(const ProtobufCMessageDescriptor *d, const uint8_t *p, size_t n)
{
    walk w = {.limit = n > (SIZE_MAX - GROWTH_FREE) / MAX_GROWTH ? SIZE_MAX : GROWTH_FREE + n * MAX_GROWTH};
    return check_message(&w, d, p, n, 1);
}

/* ---- pack, unpack --------------------------------------------------------------------------------------------- */

trn_err trn_pb_unpack(ProtobufCMessage **out, trn_arena *a, const ProtobufCMessageDescriptor *d, const uint8_t *p,
                      size_t n)
{
    static const uint8_t none[1];
    TRN_TRY(trn_pb_check(d, p ? p : none, n));
    ProtobufCAllocator alloc = trn_pb_allocator(a);
    ProtobufCMessage *m = protobuf_c_message_unpack(d, &alloc, n, p ? p : none);
    if (!m)
        return trn_errorf(TRN_INVALID_ARGUMENT, "%s: %zu bytes could not be unpacked", d->name, n);
    *out = m;
    return TRN_OK;
}

void trn_pb_pack(trn_sb *out, const ProtobufCMessage *m)
{
    size_t n = protobuf_c_message_get_packed_size(m);
    trn_sb_reserve(out, n);
    out->n += protobuf_c_message_pack(m, (uint8_t *)out->p + out->n);
    out->p[out->n] = 0;
}

uint8_t *trn_pb_pack_arena(trn_arena *a, size_t *n, const ProtobufCMessage *m)
{
    uint8_t *p = trn_arena_alloc(a, protobuf_c_message_get_packed_size(m));
    *n = protobuf_c_message_pack(m, p);
    return p;
}

trn_err trn_pb_pack_buf(trn_buf **out, const ProtobufCMessage *m)
{
    trn_buf *b;
    TRN_TRY(trn_buf_new(&b, protobuf_c_message_get_packed_size(m)));
    b->size = protobuf_c_message_pack(m, b->data);
    *out = b;
    return TRN_OK;
}
