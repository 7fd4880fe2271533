/* Packed handles: one handle for a tensor or a resource on each of several devices, as replicated variables are given to functions.
 *
 * Members on this task are held: they live as long as the bundle, whatever becomes of their own handles. Those on other tasks are known by name only, and theirs to keep.
 * Who uses a bundle decides what it is: a function divides it (divide.c), an op gets the members stacked, a component function its own device's. */
#include <inttypes.h>
#include <stdlib.h>

#include "eager/eager_int.h"
#include "graph/devname.h"
#include "proto/pb.h"

#define MAX_MEMBERS 4096

static trn_epacked *packed_ref(trn_epacked *p)
{
    atomic_fetch_add_explicit(&p->ref, 1, memory_order_relaxed);
    return p;
}

void trn_epacked_unref(void *v)
{
    trn_epacked *p = v;
    if (!p || atomic_fetch_sub_explicit(&p->ref, 1, memory_order_acq_rel) != 1)
        return;
    for (int i = 0; i < p->n; i++)
        trn_tensor_unref(p->member[i].t);
    trn_arena_free(p->arena);
    free(p);
}

trn_epacked *trn_ectx_packed(trn_ectx *c, const Tensorflow__Eager__RemoteTensorHandle *h)
{
    if (!atomic_load_explicit(&c->n_packed, memory_order_relaxed))
        return NULL;
    trn_ehandle_key k = {h->op_id, h->output_num};
    trn_lock(&c->mu);
    trn_epacked *p = trn_map_get(c->packed, &k, sizeof k);
    if (p)
        packed_ref(p);
    trn_unlock(&c->mu);
    return p;
}

/* A member's device: a full name that the context has, or one of ours without its task ("CPU:0", ""). */
static trn_err device_of(const char **out, trn_epacked *p, const trn_edevices *all, const char *text)
{
    trn_devname d;
    trn_err err = trn_devname_parse(&d, text, strlen(text));
    bool known = !err && (trn_devname_is_full(&d) || (!*d.job && d.replica < 0 && d.task < 0));
    trn_err_free(err);
    int at = known ? trn_edevices_find(all, text) : -1; /* ours come first */
    if (at < 0)
        return trn_errorf(TRN_INVALID_ARGUMENT, "%s unknown device.", text);
    *out = trn_arena_strdup(p->arena, all->set.dev[at].name);
    return TRN_OK;
}

static trn_err remote_member(trn_emember *m, trn_ectx *ctx, trn_wsession *s, trn_epacked *p, const trn_edevices *all, const Tensorflow__Eager__RemoteTensorHandle *h)
{
    TRN_TRY(device_of(&m->device, p, all, *h->op_device ? h->op_device : h->device));
    m->dtype = (trn_dtype)h->dtype;
    if (!trn_ectx__elsewhere(s, h)) {
        trn_epacked *inner = trn_ectx_packed(ctx, h);
        m->nested = inner != NULL;
        trn_epacked_unref(inner);
        if (m->nested)
            return TRN_OK;
        TRN_TRY(trn_ectx_get(&m->t, ctx, h));
        m->dtype = m->t->dtype;
        return TRN_OK;
    }
    trn_sb bytes = {0};
    trn_pb_pack(&bytes, &h->base);
    Tensorflow__Eager__RemoteTensorHandle *copy;
    trn_err err = TRN_PB_UNPACK(&copy, p->arena, tensorflow__eager__remote_tensor_handle__descriptor, (const uint8_t *)bytes.p, bytes.n);
    trn_sb_fini(&bytes);
    TRN_TRY(err);
    m->input = trn_arena_alloc(p->arena, sizeof *m->input);
    tensorflow__eager__operation__input__init(m->input);
    m->input->item_case = TENSORFLOW__EAGER__OPERATION__INPUT__ITEM_REMOTE_HANDLE;
    m->input->remote_handle = copy;
    return TRN_OK;
}

static trn_err fill(trn_epacked *p, trn_ectx *ctx, trn_wsession *s, const trn_edevices *all, const Tensorflow__Eager__SendPackedHandleOp *q, size_t *left)
{
    for (; p->n < (int)q->n_handles; p->n++) {
        const Tensorflow__Eager__SendPackedHandleOp__Handle *h = q->handles[p->n];
        trn_emember *m = &p->member[p->n];
        if (h->item_case == TENSORFLOW__EAGER__SEND_PACKED_HANDLE_OP__HANDLE__ITEM_REMOTE_HANDLE)
            TRN_TRY(remote_member(m, ctx, s, p, all, h->remote_handle));
        else if (h->item_case == TENSORFLOW__EAGER__SEND_PACKED_HANDLE_OP__HANDLE__ITEM_LOCAL_HANDLE && h->local_handle->tensor) {
            TRN_TRY(device_of(&m->device, p, all, h->local_handle->device));
            TRN_TRY(trn_etensor_from_pb(&m->t, h->local_handle->tensor, left));
            m->dtype = m->t->dtype;
        } else
            return trn_errorf(TRN_INVALID_ARGUMENT, "handle %d of packed handle %" PRId64 " is empty", p->n, q->op_id);
    }
    return TRN_OK;
}

trn_err trn_ectx_pack(trn_ectx *c, const Tensorflow__Eager__SendPackedHandleOp *q, size_t *left)
{
    if (!q->n_handles)
        return trn_errorf(TRN_INVALID_ARGUMENT, "Handles should not be empty.");
    if (q->n_handles > MAX_MEMBERS)
        return trn_errorf(TRN_INVALID_ARGUMENT, "packed handle %" PRId64 " has %zu members; at most %d are taken", q->op_id, q->n_handles, MAX_MEMBERS);
    trn_lock(&c->mu);
    trn_wsession *s = trn_wsession_ref(c->session);
    trn_edevices *all = trn_edevices_ref(c->devices);
    trn_unlock(&c->mu);
    trn_epacked *p = trn_xalloc(sizeof *p);
    p->ref = 1;
    p->arena = trn_arena_new();
    p->member = trn_arena_alloc(p->arena, sizeof *p->member * q->n_handles);
    trn_err err = fill(p, c, s, all, q, left);
    trn_edevices_unref(all);
    trn_wsession_unref(s);
    if (err) {
        trn_epacked_unref(p);
        return err;
    }
    trn_ehandle_key k = {q->op_id, 0};
    trn_lock(&c->mu);
    trn_epacked *old = trn_map_put(c->packed, &k, sizeof k, p);
    trn_tensor *plain = trn_map_del(c->handles, &k, sizeof k);
    atomic_store_explicit(&c->n_packed, (uint32_t)trn_map_count(c->packed), memory_order_relaxed);
    trn_unlock(&c->mu);
    trn_epacked_unref(old);
    trn_tensor_unref(plain);
    return TRN_OK;
}

bool trn_ectx__unpack(trn_ectx *c, const trn_ehandle_key *k)
{
    if (!atomic_load_explicit(&c->n_packed, memory_order_relaxed))
        return false;
    trn_lock(&c->mu);
    trn_epacked *p = trn_map_del(c->packed, k, sizeof *k);
    atomic_store_explicit(&c->n_packed, (uint32_t)trn_map_count(c->packed), memory_order_relaxed);
    trn_unlock(&c->mu);
    bool there = p != NULL;
    trn_epacked_unref(p);
    return there;
}

trn_err trn_epacked_on(trn_tensor **out, const trn_epacked *p, const char *device, const char *user)
{
    for (int i = 0; i < p->n; i++)
        if (p->member[i].t && strcmp(p->member[i].device, device) == 0) {
            *out = trn_tensor_ref(p->member[i].t);
            return TRN_OK;
        }
    return trn_errorf(TRN_INVALID_ARGUMENT, "%s takes one tensor and got a packed handle without a member on %s", user, device);
}
