/* Lookup tables: keys to values, shared by name like variables.
 *
 *     STATIC    filled once (InitializeTable), then read without a lock
 *     SCALARS   one value per key, changes at any time
 *     TENSORS   a vector per key
 *     DENSE     TensorFlow's open-addressing layout, bucket by bucket: it is what LookupTableExport shows and what checkpoints hold
 *
 * Keys are elements of one dtype (of a DENSE table maybe vectors of them). Functions are [any]; a table's lock is held for one call. */
#ifndef TRN_TABLE_H
#define TRN_TABLE_H

#include "res/res.h"

typedef enum trn_table_kind { TRN_TABLE_STATIC, TRN_TABLE_SCALARS, TRN_TABLE_TENSORS, TRN_TABLE_DENSE } trn_table_kind;
typedef struct trn_table trn_table;
extern const trn_restype trn_table_type;

trn_table *trn_table_new(trn_table_kind kind, trn_dtype key, trn_dtype value,
                         const trn_shape *value_shape); /* not DENSE */
/* deleted NULL: nothing can be removed. buckets: a power of two, at least 4. */
trn_err trn_table_new_dense(trn_table **out, const trn_tensor *empty, const trn_tensor *deleted, trn_dtype value,
                            const trn_shape *value_shape, int64_t buckets, float max_load) TRN_MUST_USE;
trn_table_kind trn_table_kind_of(const trn_table *t);
trn_dtype trn_table_key(const trn_table *t);
trn_dtype trn_table_value(const trn_table *t);
bool trn_table_is_set(trn_table *t); /* a STATIC one has been filled */
int64_t trn_table_size(trn_table *t);

/* The values' shape for these keys, if keys and default are right for the table. */
trn_err trn_table_check_find(trn_shape *out, trn_table *t, const trn_tensor *keys, const trn_tensor *dflt) TRN_MUST_USE;
/* values: of the shape that trn_table_check_find said. */
trn_err trn_table_find(trn_table *t, trn_tensor *values, const trn_tensor *keys, const trn_tensor *dflt) TRN_MUST_USE;
trn_err trn_table_insert(trn_table *t, const trn_tensor *keys, const trn_tensor *values) TRN_MUST_USE;
trn_err trn_table_remove(trn_table *t, const trn_tensor *keys) TRN_MUST_USE;
/* Replaces everything; fills a STATIC one. */
trn_err trn_table_import(trn_table *t, const trn_tensor *keys, const trn_tensor *values) TRN_MUST_USE;
trn_err trn_table_export(trn_table *t, trn_tensor **keys, trn_tensor **values) TRN_MUST_USE;

#endif
