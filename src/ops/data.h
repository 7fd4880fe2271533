/* What the dataset families share. The machinery is in res/dataset.h. */
#ifndef TRN_OPS_DATA_H
#define TRN_OPS_DATA_H

#include "op/kctx.h"
#include "ops/kern.h"
#include "res/dataset.h"
#include "res/res.h"

/* A dataset op is never folded, merged or dropped: what it makes may draw seeds, read files, count. */
#define DS_FLAGS (TRN_OP_CHEAP | TRN_OP_BACK)
#define DS_OUT "output_types:list(type)>=1, output_shapes:list(shape)>=1"
#define DS_META ", metadata:string=\"\""

/* Scalar inputs by position; INVALID_ARGUMENT that names the argument. */
trn_err trn_data_i64(int64_t *out, const trn_kctx *k, int i, const char *name) TRN_MUST_USE;
trn_err trn_data_bool(bool *out, const trn_kctx *k, int i, const char *name) TRN_MUST_USE;
trn_err trn_data_str(char **out, const trn_kctx *k, int i, const char *name) TRN_MUST_USE; /* the caller frees */
/* A new dataset of the node on its input 0. Elements as the input has them. */
trn_err trn_data_on(void *out, trn_kctx *k, const trn_ds_op *op, size_t size) TRN_MUST_USE;
trn_err trn_data_source(void *out, trn_kctx *k, const trn_ds_op *op, size_t size) TRN_MUST_USE; /* no input; types from the attrs if there are any */
/* Elements as attrs output_types and output_shapes say. */
void trn_data_elem_attrs(trn_ds *d, const trn_node *n);
/* The node's attr names the function; input argument `captured` (NULL: none) what it captured. */
trn_err trn_data_func(trn_ds *d, trn_kctx *k, const char *attr, const char *captured) TRN_MUST_USE;
/* The dataset becomes output 0; or it is dropped, when err is set. Returns err. */
trn_err trn_data_out(trn_kctx *k, void *ds, TRN_OWN trn_err err) TRN_MUST_USE;
/* Starts `it->in` on the dataset's input 0. */
trn_err trn_it_start_in(trn_it *it) TRN_MUST_USE;
trn_err trn_sh_dataset(trn_shctx *s);
trn_err trn_sh_elements(trn_shctx *s); /* the outputs are an element: attr output_shapes */
/* An element becomes the node's outputs, when it is what the node says. */
trn_err trn_data_set_outputs(trn_kctx *k, trn_elem *e) TRN_MUST_USE;
int64_t trn_data_count_same(const trn_ds *d); /* as many as the input */
trn_ds_do trn_data_pass(trn_it *it, trn_act *a, trn_ds_why why); /* `next` of an operator that changes nothing */

/* Output 0: a handle that owns `r`; output 1, if there is one: a variant that means "delete it" to TensorFlow. Ours goes with the last handle. */
trn_err trn_data_anonymous(trn_kctx *k, TRN_OWN trn_resource *r, const char *type_name) TRN_MUST_USE;

/* n elements of one component, stacked. */
trn_err trn_data_stack(trn_tensor **out, trn_elem *const *e, int64_t n, int component) TRN_MUST_USE;
/* n elements as one, component by component; drop_remainder has been seen to. */
trn_err trn_data_batch(trn_elem **out, trn_elem *const *e, int64_t n) TRN_MUST_USE;
/* Elements in a batch, when the dataset is one of batches; else -1. */
int64_t trn_data_batch_size(const trn_ds *d);
/* For asynchronous kernels: a walk over the dataset whose first element is the node's outputs. */
trn_err trn_data_only(trn_kctx *k, trn_ds *d) TRN_MUST_USE;
/* BatchDataset on another dataset. */
trn_err trn_data_batch_on(trn_ds **out, trn_ds *in, int64_t n, bool drop_remainder) TRN_MUST_USE;
/* An iterator over `d` that keeps up to n elements ready, and is told to begin before it is first pulled. */
trn_err trn_data_ahead_of(trn_it **out, trn_ds *d, int64_t n, trn_itroot *root) TRN_MUST_USE;
void trn_data_begin(trn_it *it);
/* CacheDataset of the node, kept in a file. */
trn_err trn_data_cache_file(trn_kctx *k, TRN_OWN char *path) TRN_MUST_USE;
/* A predicate's result; what: "… must return a scalar bool". */
trn_err trn_data_predicate(bool *out, const trn_elem *e, const char *what) TRN_MUST_USE;
/* The dataset's tensorflow.data.Options, serialized; added. */
trn_err trn_data_options(trn_sb *out, const trn_tensor *t) TRN_MUST_USE;
/* Size and drop_remainder of a batch, checked. */
trn_err trn_data_batch_args(int64_t *n, bool *drop, const trn_kctx *k) TRN_MUST_USE;
/* Slice i of the first dim. */
trn_err trn_data_slice(trn_tensor **out, const trn_tensor *t, int64_t i) TRN_MUST_USE;

/* Indices, values and shape of a sparse tensor as a vector of three variants: what DeserializeSparse takes. */
trn_err trn_box_sparse(trn_tensor **out, trn_tensor *const parts[3]) TRN_MUST_USE;
/* A ragged tensor with one ragged dimension as a scalar variant: what RaggedTensorFromVariant takes. */
trn_err trn_box_ragged(trn_tensor **out, trn_tensor *splits, trn_tensor *values) TRN_MUST_USE;

/* Elements that were kept, as a dataset: what windows are. Takes the elements. */
trn_err trn_data_memory(trn_ds **out, trn_elem **e, int64_t n, int n_components, const trn_dtype *types, const trn_shape *shapes) TRN_MUST_USE;
void trn_data_is_list(trn_ds *d); /* … and is then called a ListDataset */

#endif
