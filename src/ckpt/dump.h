/* Files of tfdbg, TensorFlow's debugger: each is one Event under a name that says what it is and when it was made. All of this is file I/O: disk threads only.
 *
 *     ROOT/_tfdbg_core_metadata_sessionrun00000000000003_TIME                       what was run (the master)
 *     ROOT/_tfdbg_device_,job_ps,replica_0,task_0,device_CPU_0/_tfdbg_graph_hashH_TIME  a task's part of it
 *     ROOT/_tfdbg_device_…/NODE_SLOT_DEBUGOP_TIME                                   what a debug op made
 *
 * TIME is in microseconds; a reader orders dumps by it, so no two files of this process have the same. */
#ifndef TRN_CKPT_DUMP_H
#define TRN_CKPT_DUMP_H

#include "tensor/tensor.h"

/* The folder of a file:// URL, inside it; NULL for other kinds. */
const char *trn_dump_root(const char *url);
bool trn_dump_is_grpc(const char *url);
void trn_dump_add_device(trn_sb *path, const char *device); /* "/_tfdbg_device_,job_…" */
uint64_t trn_dump_now(void);
/* BASE_TIME, or BASE_TIME-1 … when that is there already; folders are made. The file holds the bytes of both. */
trn_err trn_dump_write(const char *base, uint64_t time, const trn_sb *head, const trn_sb *rest) TRN_MUST_USE;

/* ---- events: the first bytes of one, behind which come the n bytes of what it holds */
void trn_dump_graph_head(trn_sb *out, uint64_t time, size_t n);
void trn_dump_text_head(trn_sb *out, uint64_t time, size_t n);
typedef struct trn_dump_name {
    const char *node, *op, *device; /* op: the debug op */
    int slot;
} trn_dump_name;
void trn_dump_tensor_head(trn_sb *out, uint64_t time, const trn_dump_name *name, size_t n); /* n: of a TensorProto */

/* ---- how much may be written: TFDBG_DISK_BYTES_LIMIT in the environment, 100 GiB without it. Counts tensors, as TensorFlow does; [any] */
bool trn_dump_take(uint64_t bytes);
uint64_t trn_dump_limit(void);
void trn_dump_reset(void);

#endif
