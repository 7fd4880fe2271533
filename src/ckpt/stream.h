/* A file from front to end, as it is or compressed, cut into lines, records or pieces. What has been read lies in a window; cutting never does I/O, so who
 * must not wait for a disk fills the window elsewhere. */
#ifndef TRN_STREAM_H
#define TRN_STREAM_H

#include "base/base.h"

/* SNAPPY: blocks, each behind its length (32 bits, the highest byte first). */
typedef enum trn_compression { TRN_PLAIN, TRN_ZLIB, TRN_GZIP, TRN_SNAPPY } trn_compression;
#define TRN_SNAPPY_BLOCK (256u << 10) /* TensorFlow reads no larger ones */
trn_err trn_compression_parse(trn_compression *out, const char *name) TRN_MUST_USE; /* "", "ZLIB", "GZIP" */
trn_compression trn_compression_of_snapshot(const char *name); /* "SNAPPY", too; what is unknown is none, as in TensorFlow */

typedef struct trn_stream trn_stream;
/* Blocks. NOT_FOUND. chunk: how much is read at once; 0: our choice. */
trn_err trn_stream_open(trn_stream **out, const char *path, trn_compression c, size_t chunk) TRN_MUST_USE;
trn_err trn_stream_on_memory(trn_stream **out, const void *p, size_t n, trn_compression c) TRN_MUST_USE; /* the bytes must stay */
void trn_stream_close(trn_stream *s); /* NULL is fine */
/* Blocks: makes the window larger, or finds the end. */
trn_err trn_stream_fill(trn_stream *s) TRN_MUST_USE;
uint64_t trn_stream_pos(const trn_stream *s);  /* of the window's first byte, in uncompressed bytes */
int64_t trn_stream_size(const trn_stream *s);  /* of the file, uncompressed ones; else -1 */
size_t trn_stream_have(const trn_stream *s);   /* bytes in the window */
bool trn_stream_at_end(const trn_stream *s);   /* nothing comes behind the window */
const uint8_t *trn_stream_window(const trn_stream *s);
void trn_stream_skip(trn_stream *s, size_t n); /* at most what is there */

/* What cutting found. MORE: fill and try again. */
typedef enum trn_cut { TRN_CUT_GOT, TRN_CUT_MORE, TRN_CUT_END } trn_cut;
/* A line without its end; carriage returns are left out wherever they are, as TensorFlow does. *p is valid until the next call. */
trn_err trn_stream_line(trn_cut *out, trn_stream *s, const char **p, size_t *n) TRN_MUST_USE;
/* A TFRecord; DATA_LOSS when it is damaged or the file ends inside. */
trn_err trn_stream_record(trn_cut *out, trn_stream *s, const char **p, size_t *n) TRN_MUST_USE;

/* All of it at once. RESOURCE_EXHAUSTED over `max`. */
trn_err trn_inflate(trn_sb *out, const void *p, size_t n, trn_compression c, size_t max) TRN_MUST_USE;

#endif
