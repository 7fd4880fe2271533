/* TFRecord files: event files, and what datasets read. length u64 | masked crc of the length | bytes | masked crc of the bytes. */
#ifndef TRN_CKPT_RECORD_H
#define TRN_CKPT_RECORD_H

#include <trainera/input.h>

#include "ckpt/file.h"
#include "ckpt/stream.h"

#define TRN_RECORD_HEAD 12
#define TRN_RECORD_TAIL 4
/* Puts head and tail around n bytes. */
void trn_record_head(uint8_t head[TRN_RECORD_HEAD], size_t n);
void trn_record_tail(uint8_t tail[TRN_RECORD_TAIL], const void *p, size_t n);
/* The record at *at, and *at behind it. *out is the caller's (free); *found is false at the clean end of the file. Records larger than `max`
 * are DATA_LOSS, and so is a file that ends inside one. */
trn_err trn_record_read(uint8_t **out, size_t *n, bool *found, trn_infile *f, uint64_t *at, size_t max) TRN_MUST_USE;

/* trn_record_writer_open (trainera/input.h) with any compression. */
trn_err trn_record_writer_with(trn_record_writer **out, const char *path, trn_compression c) TRN_MUST_USE;

#endif
