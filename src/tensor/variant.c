/* Variants on the wire: a type's name, some bytes of its own and tensors (tensorflow.VariantTensorDataProto). Types with more in them than a number
 * say how they are packed (trn_variant_type_add). */
#include <stdlib.h>

#include "tensor/tensor_pb.h"

#define MAX_TYPES 16

static const trn_variant_type *types[MAX_TYPES];
static int n_types;

void trn_variant_type_add(const trn_variant_type *t)
{
    if (n_types < MAX_TYPES)
        types[n_types++] = t;
}

/* ---- numbers ----------------------------------------------------------------------------------------------------- */

typedef struct number {
    trn_variant base;
    uint8_t byte[8];
} number;

static const trn_variant_type number_types[];
static const size_t number_size[] = {4, 4, 1, 8, 8};

static size_t size_of(const trn_variant *v) { return number_size[v->type - number_types]; }

static trn_err number_new(trn_variant **out, const trn_variant_type *t, const void *p)
{
    number *n = trn_xalloc(sizeof *n);
    atomic_init(&n->base.ref, 1);
    n->base.type = t;
    memset(n->byte, 0, sizeof n->byte);
    if (p)
        memcpy(n->byte, p, size_of(&n->base));
    *out = &n->base;
    return TRN_OK;
}

static trn_err number_zeros(trn_variant **out, const trn_variant *v) { return number_new(out, v->type, NULL); }

static trn_err number_pack(trn_sb *meta, trn_tensor ***t, int *n, const trn_variant *v)
{
    trn_sb_add(meta, ((const number *)v)->byte, size_of(v));
    *t = NULL;
    *n = 0;
    return TRN_OK;
}

#define NUMBER(type_name) {.name = type_name, .free = free, .zeros_like = number_zeros, .pack = number_pack}
static const trn_variant_type number_types[] = {NUMBER("int"), NUMBER("float"), NUMBER("bool"), NUMBER("double"), NUMBER("long")};

/* ---- messages ---------------------------------------------------------------------------------------------------- */

static trn_err unpack_tensors(trn_variant **out, const trn_variant_type *type, const Tensorflow__VariantTensorDataProto *pb)
{
    trn_tensor **t = trn_xalloc((pb->n_tensors + 1) * sizeof *t);
    trn_err err = TRN_OK;
    size_t n = 0, filled = 0;
    for (; n < pb->n_tensors && !err; n++) {
        t[n] = NULL;
        err = trn_tensor_from_pb(&t[n], pb->tensors[n]);
        if (err)
            break;
        filled += pb->tensors[n]->tensor_content.len ? 0 : trn_tensor_bytes(t[n]);
        if (filled > TRN_PB_FILL_MAX) /* a few bytes may stand for many, once */
            err = trn_errorf(TRN_RESOURCE_EXHAUSTED, "the tensors in a %s take more than %zu bytes", type->name, TRN_PB_FILL_MAX);
    }
    if (!err)
        err = type->unpack(out, pb->metadata.data, pb->metadata.len, t, (int)n);
    for (size_t i = 0; i < n; i++)
        trn_tensor_unref(t[i]);
    free(t);
    return err;
}

trn_err trn_variant_from_pb(trn_variant **out, const Tensorflow__VariantTensorDataProto *pb)
{
    const char *name = pb->type_name ? pb->type_name : "";
    *out = NULL;
    if (!*name && !pb->metadata.len && !pb->n_tensors)
        return TRN_OK; /* empty */
    for (size_t i = 0; i < TRN_COUNTOF(number_types); i++)
        if (strcmp(name, number_types[i].name) == 0) {
            if (pb->metadata.len != number_size[i])
                return trn_errorf(TRN_INVALID_ARGUMENT, "a variant that holds a %s has %zu bytes", name, pb->metadata.len);
            return number_new(out, &number_types[i], pb->metadata.data);
        }
    for (int i = 0; i < n_types; i++)
        if (strcmp(name, types[i]->name) == 0)
            return unpack_tensors(out, types[i], pb);
    return trn_errorf(TRN_UNIMPLEMENTED, "variant tensors of this kind cannot be sent between tasks (the message holds a %s)", name);
}

Tensorflow__VariantTensorDataProto *trn_variant_to_pb(trn_arena *a, const trn_variant *v, trn_pb_room *room)
{
    Tensorflow__VariantTensorDataProto *pb = trn_arena_alloc(a, sizeof *pb);
    tensorflow__variant_tensor_data_proto__init(pb);
    if (!v)
        return pb;
    if (!v->type->pack || room->depth < 0 || --room->values < 0)
        return NULL;
    trn_sb meta = {0};
    trn_tensor **t = NULL;
    int n = 0;
    trn_err err = v->type->pack(&meta, &t, &n, v);
    bool ok = !err;
    trn_err_free(err);
    if (ok) {
        pb->type_name = trn_arena_strdup(a, v->type->name);
        pb->metadata = (ProtobufCBinaryData){meta.n, trn_arena_dup(a, meta.n ? meta.p : "", meta.n)};
        pb->tensors = trn_arena_alloc(a, ((size_t)n + 1) * sizeof *pb->tensors);
        room->depth--;
        for (int i = 0; i < n && ok; i++)
            ok = (room->bytes -= (int64_t)trn_tensor_total_bytes(t[i])) >= 0 && --room->values >= 0 &&
                 (pb->tensors[pb->n_tensors++] = trn_tensor__to_pb(a, t[i], room));
        room->depth++;
    }
    free(t);
    trn_sb_fini(&meta);
    return ok ? pb : NULL;
}
