/* Values along edges, and the frames and iterations of v1 control flow: TensorFlow's semantics (propagator_state.cc) with one lock per
 * run that only loops take.
 *
 * Counters. A plain node's low half counts the edges to come; each dead one adds 1 above. A Merge runs on its first live input or when all
 * are dead, but after all control edges: its low half is 1 (no live input yet) + 2 per control edge. CLAIM is set by the first live input,
 * so that one value only is ever stored; RAN keeps a malformed graph from running it twice.
 *
 * Lifetimes. An iteration ends when nothing in it is ready or running (`live`), no child frame of it is left and the one before has ended;
 * iteration 0 waits for all Enter nodes as well. The step that takes `live` to zero happens under the lock, so nobody can free an iteration
 * between somebody else's decrement and look. A node that runs keeps its iteration, therefore its frame, therefore the parent's iteration. */
#include <stdlib.h>

#include "exec/run.h"

#define COUNT_DEAD (UINT64_C(1) << 32)
#define COUNT_CLAIM (UINT64_C(1) << 62)
#define COUNT_RAN (UINT64_C(1) << 63)
#define PENDING(c) ((uint32_t)(c))
#define DEAD(c) ((uint32_t)((c) >> 32) & 0x3fffffff)

/* ---- arrivals ------------------------------------------------------------------------------------------------- */

static int arrive(work *w, iter *it, int id, const pnode *dst, bool dead)
{
    if (dst->pending > 1) {
        /* One addition takes 1 off the low half and puts `dead` on top: the carry out of the low half makes up for the -1 above. */
        uint64_t old = atomic_fetch_add_explicit(&it->count[dst->at], dead ? COUNT_DEAD - 1 : UINT64_MAX, memory_order_acq_rel);
        if (PENDING(old) != 1)
            return 0;
        dead |= DEAD(old) > 0;
    }
    trn_run__push(w, it, id, dead && !dst->trigger);
    return 1;
}

static int merge_ready(work *w, iter *it, int id, const pnode *dst, bool dead)
{
    if (atomic_fetch_or_explicit(&it->count[dst->at], COUNT_RAN, memory_order_acq_rel) & COUNT_RAN)
        return 0;
    trn_run__push(w, it, id, dead);
    return 1;
}

static int merge_data(work *w, iter *it, const out_edge *e, const pnode *dst, trn_value v, bool from_enter)
{
    _Atomic uint64_t *count = &it->count[dst->at];
    if (value_is_dead(v)) {
        uint64_t old = atomic_fetch_add_explicit(count, COUNT_DEAD, memory_order_acq_rel);
        /* A dead Enter alone kills a loop's Merge: the loop lies in a branch that was not taken, and nothing will come round. */
        bool dead = from_enter || (int64_t)DEAD(old) + 1 == dst->n_in;
        return dead && PENDING(old) == 1 ? merge_ready(w, it, e->dst, dst, true) : 0;
    }
    if (atomic_fetch_or_explicit(count, COUNT_CLAIM, memory_order_acq_rel) & COUNT_CLAIM) {
        value_unref(v); /* late: another live input came first */
        return 0;
    }
    it->val[e->loc] = v;
    uint64_t old = atomic_fetch_and_explicit(count, ~UINT64_C(1), memory_order_acq_rel);
    return PENDING(old) == 1 ? merge_ready(w, it, e->dst, dst, false) : 0;
}

static int merge_control(work *w, iter *it, int id, const pnode *dst)
{
    uint64_t old = atomic_fetch_sub_explicit(&it->count[dst->at], 2, memory_order_acq_rel);
    uint32_t left = PENDING(old) - 2;
    bool dead = (int64_t)DEAD(old) == dst->n_in;
    return left == 0 || (left == 1 && dead) ? merge_ready(w, it, id, dst, left == 1) : 0;
}

/* Outputs of `n` to its users in iteration `it`. Returns how many became ready; moves what it can out of `outs`. */
static int activate(work *w, iter *it, const pnode *n, trn_value *outs, bool dead)
{
    const trn_plan *p = w->p;
    int activated = 0;
    const out_edge *e = p->edge + n->edges, *end = e + n->n_edges;
    for (; e < end; e++) {
        trn_value v = outs[e->slot];
        const pnode *dst = &p->node[e->dst];
        if (e->last)
            outs[e->slot] = (trn_value){0};
        else
            value_ref(v);
        if (dst->kind == KIND_MERGE) {
            activated += merge_data(w, it, e, dst, v, n->kind == KIND_ENTER);
            continue;
        }
        it->val[e->loc] = v;
        activated += arrive(w, it, e->dst, dst, value_is_dead(v));
    }
    for (const int *c = p->ctl + n->ctls, *cend = c + n->n_ctls; c < cend; c++) {
        const pnode *dst = &p->node[*c];
        activated += dst->kind == KIND_MERGE ? merge_control(w, it, *c, dst) : arrive(w, it, *c, dst, dead);
    }
    return activated;
}

/* One output for an iteration that gets a copy of a kept value. */
static void activate_copy(work *w, iter *it, const pnode *n, trn_value v)
{
    value_ref(v);
    atomic_fetch_add_explicit(&it->live, activate(w, it, n, &v, value_is_dead(v)), memory_order_relaxed);
    value_unref(v);
}

/* ---- iterations and frames: all under run->mu ------------------------------------------------------------------ */

void trn_run__sweep(const frame_info *info, iter *it)
{
    for (int i = 0; i < info->n_values; i++)
        if (it->val[i].t != info->values[i].t || it->val[i].var) {
            value_unref(it->val[i]);
            it->val[i] = (trn_value){0};
        }
}

static iter *iter_new(frame *f, int64_t num)
{
    const frame_info *info = f->info;
    size_t nv = (size_t)info->n_values * sizeof(trn_value), nc = (size_t)info->n_nodes * sizeof(uint64_t);
    iter *it = f->spare;
    f->spare = NULL;
    if (!it)
        it = trn_xalloc(sizeof *it + nv + nc);
    *it = (iter){.f = f, .num = num, .val = (trn_value *)(it + 1)};
    it->count = (_Atomic uint64_t *)((char *)(it + 1) + nv);
    memset(it->val, 0, nv); /* constants are preloaded in the root only */
    memcpy((void *)it->count, info->counters, nc);
    return it;
}

static void append_iter(frame *f, iter *it)
{
    if (f->newest)
        f->newest->next = it;
    else
        f->oldest = it;
    f->newest = it;
    f->n_iters++;
}

static frame *find_child(work *w, iter *it, int child)
{
    const frame_info *info = &w->p->frame[child];
    for (frame *f = it->children; f; f = f->sibling)
        if (f->info == info)
            return f;
    frame *f = trn_xalloc(sizeof *f);
    f->info = info;
    if (w->p->named_frames) {
        f->name = trn_xasprintf("%s;%lld;%s", it->f ? it->f->name : "", (long long)it->num, info->name);
        f->id = trn_hash64_tf(f->name, strlen(f->name));
    } else {
        f->id = trn_hash64_tf_combine(it->f ? it->f->id : 0, trn_hash64_tf_combine((uint64_t)it->num, info->hash));
    }
    f->parent = it;
    f->enters_left = info->n_enters;
    f->sibling = it->children;
    it->children = f;
    append_iter(f, iter_new(f, 0));
    atomic_fetch_add_explicit(&it->live, 1, memory_order_relaxed);
    return f;
}

static void frame_free(frame *f)
{
    for (iter *it = f->oldest, *next; it; it = next) {
        next = it->next;
        for (frame *c = it->children, *sib; c; c = sib) {
            sib = c->sibling;
            frame_free(c);
        }
        trn_run__sweep(f->info, it);
        free(it);
    }
    for (int i = 0; i < f->n_next; i++)
        value_unref(f->next_in[i].v);
    for (int i = 0; i < f->n_inv; i++)
        value_unref(f->inv[i].v);
    free(f->spare);
    free(f->next_in);
    free(f->inv);
    free(f->dead_exit);
    free(f->name);
    free(f);
}

void trn_run__free_frames(run *r)
{
    for (frame *f = r->root.children, *next; f; f = next) {
        next = f->sibling;
        frame_free(f);
    }
    r->root.children = NULL;
}

static iter *next_iteration(work *w, frame *f)
{
    iter *it = iter_new(f, ++f->count);
    append_iter(f, it);
    f->n_dead = 0; /* the loop goes on, so its exits were not dead for good */
    for (int i = 0; i < f->n_next; i++) {
        activate_copy(w, it, f->next_in[i].n, f->next_in[i].v);
        value_unref(f->next_in[i].v);
    }
    f->n_next = 0;
    for (int i = 0; i < f->n_inv; i++)
        activate_copy(w, it, f->inv[i].n, f->inv[i].v);
    return it;
}

/* Ends iterations that are over, then the frame, then whatever ends with it further up. */
static void end_iterations(work *w, frame *f)
{
    for (;;) {
        iter *it;
        while ((it = f->oldest) && atomic_load_explicit(&it->live, memory_order_acquire) == 0 && f->enters_left == 0) {
            f->oldest = it->next;
            if (!f->oldest)
                f->newest = NULL;
            f->n_iters--;
            trn_run__sweep(f->info, it);
            free(f->spare);
            f->spare = it;
            if (f->n_next > 0)
                next_iteration(w, f);
        }
        if (f->enters_left > 0 || f->n_iters > 0)
            return;
        iter *up = f->parent;
        for (int i = 0; i < f->n_dead; i++) {
            trn_value none = {0};
            int activated = activate(w, up, f->dead_exit[i], &none, true);
            atomic_fetch_add_explicit(&up->live, activated, memory_order_relaxed);
        }
        for (frame **at = &up->children; *at; at = &(*at)->sibling)
            if (*at == f) {
                *at = f->sibling;
                break;
            }
        frame_free(f);
        if (atomic_fetch_sub_explicit(&up->live, 1, memory_order_acq_rel) != 1 || !up->f)
            return;
        f = up->f;
    }
}

/* ---- a node has run ------------------------------------------------------------------------------------------- */

/* It made `activated` others ready in its own iteration, which it leaves. */
static void leave(work *w, iter *it, int activated)
{
    if (!it->f)
        return; /* the root ends with the run */
    if (activated > 0) {
        if (activated > 1)
            atomic_fetch_add_explicit(&it->live, activated - 1, memory_order_relaxed);
        return;
    }
    int64_t live = atomic_load_explicit(&it->live, memory_order_relaxed);
    while (live > 1)
        if (atomic_compare_exchange_weak_explicit(&it->live, &live, live - 1, memory_order_acq_rel, memory_order_relaxed))
            return;
    trn_lock(&w->r->mu);
    if (atomic_fetch_sub_explicit(&it->live, 1, memory_order_acq_rel) == 1)
        end_iterations(w, it->f);
    trn_unlock(&w->r->mu);
}

static void enter(work *w, iter *it, const pnode *n, trn_value *outs, bool dead)
{
    trn_lock(&w->r->mu);
    frame *f = find_child(w, it, n->child);
    if (n->invariant) {
        for (iter *i = f->oldest; i; i = i->next)
            activate_copy(w, i, n, outs[0]);
        TRN_PUSH(f->inv, f->n_inv, f->cap_inv, (kept){n, outs[0]});
        outs[0] = (trn_value){0};
    } else {
        iter *first = f->oldest; /* iteration 0: it lasts until all Enters have run */
        atomic_fetch_add_explicit(&first->live, activate(w, first, n, outs, dead), memory_order_relaxed);
    }
    if (--f->enters_left == 0)
        end_iterations(w, f);
    trn_unlock(&w->r->mu);
}

static void leave_loop(work *w, iter *it, const pnode *n, trn_value *outs, bool dead)
{
    frame *f = it->f;
    if (!dead) {
        int activated = activate(w, f->parent, n, outs, false);
        atomic_fetch_add_explicit(&f->parent->live, activated, memory_order_relaxed);
        return;
    }
    trn_lock(&w->r->mu);
    if (it->num == f->count)
        TRN_PUSH(f->dead_exit, f->n_dead, f->cap_dead, n);
    trn_unlock(&w->r->mu);
}

static void go_round(work *w, iter *it, const pnode *n, trn_value *outs)
{
    frame *f = it->f;
    trn_lock(&w->r->mu);
    iter *to = it->next;
    if (!to && f->n_iters >= f->info->parallel) {
        TRN_PUSH(f->next_in, f->n_next, f->cap_next, (kept){n, outs[0]});
        outs[0] = (trn_value){0};
    } else {
        if (!to)
            to = next_iteration(w, f);
        atomic_fetch_add_explicit(&to->live, activate(w, to, n, outs, false), memory_order_relaxed);
    }
    trn_unlock(&w->r->mu);
}

void trn_run__propagate(work *w, iter *it, const pnode *n, trn_value *outs, bool dead)
{
    int activated = 0;
    if (n->kind == KIND_ENTER)
        enter(w, it, n, outs, dead);
    else if (n->kind == KIND_EXIT)
        leave_loop(w, it, n, outs, dead);
    else if (n->kind != KIND_NEXT)
        activated = activate(w, it, n, outs, dead);
    else if (!dead) /* a dead one ends here: the loop does not go on */
        go_round(w, it, n, outs);
    for (int i = 0; i < n->n_out; i++) /* outputs that nobody takes */
        if (!value_is_dead(outs[i])) {
            value_unref(outs[i]);
            outs[i] = (trn_value){0};
        }
    leave(w, it, activated);
}
