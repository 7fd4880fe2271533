/* Visits to rows of shared variables, each under its row's lock.
 *
 * Taking a lock waits for every store before it: with one for each row, nothing of a row overlaps with the next one's way from memory. So rows are taken a block at a
 * time and those of one lock together, and a lock that somebody else has is come back to. Items of one row keep their order. */
#ifndef TRN_OPS_ROWS_H
#define TRN_OPS_ROWS_H

#include "ops/kern.h"
#include "res/var.h"

enum { TRN_ROWS_BLOCK = 1024 };

typedef struct trn_rows {
    int n;
    int64_t item[TRN_ROWS_BLOCK];
    uint8_t lock[TRN_ROWS_BLOCK];
} trn_rows;

/* Item `item` is about row `row`. True: the block is full and wants to be visited. */
static inline bool trn_rows_add(trn_rows *r, int64_t item, int64_t row)
{
    r->item[r->n] = item;
    r->lock[r->n] = (uint8_t)trn_var_row_lock_of(row);
    return ++r->n == TRN_ROWS_BLOCK;
}

/* Empties the block. `fetch` asks for an item's memory ahead of time, `visit` has the item's row of all n_vars variables (in address order) for itself.
 * Inlined, and these two with it. */
static inline __attribute__((always_inline)) void trn_rows_visit(trn_rows *r, trn_var *const *vars, int n_vars, const void *arg,
                                                                 void (*fetch)(const void *arg, int64_t item),
                                                                 void (*visit)(const void *arg, int64_t item))
{
    uint16_t end[TRN_VAR_ROW_LOCKS] = {0}, order[TRN_ROWS_BLOCK], first = 0;
    _Static_assert(TRN_VAR_ROW_LOCKS <= 64, "todo has a bit for each lock");
    uint64_t todo = 0;
    for (int i = 0; i < r->n; i++)
        end[r->lock[i]]++;
    for (int l = 0; l < TRN_VAR_ROW_LOCKS; l++) {
        todo |= (uint64_t)(end[l] > 0) << l;
        uint16_t n = end[l];
        end[l] = first; /* where its items begin; one further for each that is put there */
        first = (uint16_t)(first + n);
    }
    for (int i = 0; i < r->n; i++)
        order[end[r->lock[i]]++] = (uint16_t)i;
    for (int i = 0; i < TRN_ROWS_AHEAD && i < r->n; i++)
        fetch(arg, r->item[order[i]]);
    for (unsigned turns = 1; todo; turns++) {
        for (uint64_t left = todo; left; left &= left - 1) {
            int l = __builtin_ctzll(left);
            if (n_vars > 0 && !trn_var_row_try(vars[0], l))
                continue;
            for (int v = 1; v < n_vars; v++)
                trn_var_row_lock(vars[v], l);
            for (int i = l ? end[l - 1] : 0; i < end[l]; i++) {
                if (i + TRN_ROWS_AHEAD < r->n)
                    fetch(arg, r->item[order[i + TRN_ROWS_AHEAD]]);
                visit(arg, r->item[order[i]]);
            }
            for (int v = n_vars - 1; v >= 0; v--)
                trn_var_row_unlock(vars[v], l);
            todo &= ~(UINT64_C(1) << l);
        }
        if (todo && turns % 64 == 0)
            sched_yield();
    }
    r->n = 0;
}

#endif
