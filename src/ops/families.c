/* Every family of ops. A new family is one line in each list. */
#include "op/families.h"

#define FAMILIES(X)                                                                                                    \
    X(trn_ops_accum)                                                                                                   \
    X(trn_ops_array)                                                                                                   \
    X(trn_ops_array2)                                                                                                  \
    X(trn_ops_audio)                                                                                                   \
    X(trn_ops_barrier)                                                                                                 \
    X(trn_ops_candidate)                                                                                               \
    X(trn_ops_cast)                                                                                                    \
    X(trn_ops_ckpt)                                                                                                    \
    X(trn_ops_cluster)                                                                                                 \
    X(trn_ops_compare)                                                                                                 \
    X(trn_ops_composite)                                                                                               \
    X(trn_ops_control)                                                                                                 \
    X(trn_ops_conv)                                                                                                    \
    X(trn_ops_count)                                                                                                   \
    X(trn_ops_csr)                                                                                                     \
    X(trn_ops_ctc)                                                                                                     \
    X(trn_ops_data_ahead)                                                                                              \
    X(trn_ops_data_batch)                                                                                              \
    X(trn_ops_data_csv)                                                                                                \
    X(trn_ops_data_ends)                                                                                               \
    X(trn_ops_data_files)                                                                                              \
    X(trn_ops_data_flow)                                                                                               \
    X(trn_ops_data_generator)                                                                                          \
    X(trn_ops_data_func)                                                                                               \
    X(trn_ops_data_group)                                                                                              \
    X(trn_ops_data_iter)                                                                                               \
    X(trn_ops_data_multi)                                                                                              \
    X(trn_ops_data_rebatch)                                                                                            \
    X(trn_ops_data_shard)                                                                                              \
    X(trn_ops_data_shuffle)                                                                                            \
    X(trn_ops_diag)                                                                                                    \
    X(trn_ops_einsum)                                                                                                  \
    X(trn_ops_example)                                                                                                 \
    X(trn_ops_example_json)                                                                                            \
    X(trn_ops_fft)                                                                                                     \
    X(trn_ops_gather)                                                                                                  \
    X(trn_ops_image)                                                                                                 \
    X(trn_ops_image_codec)                                                                                             \
    X(trn_ops_image_box)                                                                                               \
    X(trn_ops_image_crop)                                                                                              \
    X(trn_ops_image_resize)                                                                                            \
    X(trn_ops_inplace)                                                                                                 \
    X(trn_ops_isotonic)                                                                                                \
    X(trn_ops_linalg)                                                                                                  \
    X(trn_ops_linalg_more)                                                                                             \
    X(trn_ops_list)                                                                                                    \
    X(trn_ops_lookup)                                                                                                  \
    X(trn_ops_map_defun)                                                                                               \
    X(trn_ops_math_binary)                                                                                             \
    X(trn_ops_math_unary)                                                                                              \
    X(trn_ops_matmul)                                                                                                  \
    X(trn_ops_mutex)                                                                                                   \
    X(trn_ops_nn_small)                                                                                                \
    X(trn_ops_norm)                                                                                                    \
    X(trn_ops_norm_global)                                                                                             \
    X(trn_ops_optional)                                                                                                \
    X(trn_ops_pool)                                                                                                    \
    X(trn_ops_quant)                                                                                                   \
    X(trn_ops_quantize)                                                                                                \
    X(trn_ops_queue)                                                                                                   \
    X(trn_ops_random)                                                                                                  \
    X(trn_ops_random_dist)                                                                                             \
    X(trn_ops_random_param)                                                                                            \
    X(trn_ops_random_state)                                                                                            \
    X(trn_ops_reader)                                                                                                  \
    X(trn_ops_record_input)                                                                                            \
    X(trn_ops_reduce)                                                                                                  \
    X(trn_ops_ragged)                                                                                                  \
    X(trn_ops_remap)                                                                                                   \
    X(trn_ops_rnn_block)                                                                                               \
    X(trn_ops_scatter)                                                                                                 \
    X(trn_ops_sdca)                                                                                                    \
    X(trn_ops_segment)                                                                                                 \
    X(trn_ops_select)                                                                                                  \
    X(trn_ops_serialize)                                                                                               \
    X(trn_ops_sets)                                                                                                    \
    X(trn_ops_slice)                                                                                                   \
    X(trn_ops_space)                                                                                                   \
    X(trn_ops_sparse)                                                                                                  \
    X(trn_ops_sparse_cross)                                                                                            \
    X(trn_ops_sparse_math)                                                                                             \
    X(trn_ops_sparse_store)                                                                                            \
    X(trn_ops_special)                                                                                                 \
    X(trn_ops_stage)                                                                                                   \
    X(trn_ops_stagemap)                                                                                                \
    X(trn_ops_stochastic_cast)                                                                                         \
    X(trn_ops_string)                                                                                                  \
    X(trn_ops_string_more)                                                                                             \
    X(trn_ops_summary)                                                                                                 \
    X(trn_ops_summary_media)                                                                                           \
    X(trn_ops_summary_writer)                                                                                          \
    X(trn_ops_tensor_array)                                                                                            \
    X(trn_ops_tensor_map)                                                                                              \
    X(trn_ops_train)                                                                                                   \
    X(trn_ops_unicode)                                                                                                 \
    X(trn_ops_var)                                                                                                     \
    /* one line each, above this one */

#define X(name) extern const trn_op name[];
FAMILIES(X)
#undef X

#define X(name) name,
const trn_op *const trn_op_families[] = {FAMILIES(X) NULL};
