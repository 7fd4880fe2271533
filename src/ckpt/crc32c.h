/* CRC-32C (Castagnoli), the checksum of every file format here: by instruction where the CPU has one, by tables elsewhere. */
#ifndef TRN_CRC32C_H
#define TRN_CRC32C_H

#include "base/base.h"

/* The checksum of what `crc` covered (0: nothing), followed by n bytes. [any] */
uint32_t trn_crc32c(uint32_t crc, const void *p, size_t n);
uint32_t trn_crc32c_by_table(uint32_t crc, const void *p,
                             size_t n); /* for tests: what CPUs without the instruction run */

/* Files hold checksums masked, so that checksums of bytes that hold checksums stay good. */
static inline uint32_t trn_crc32c_mask(uint32_t crc) { return (crc >> 15 | crc << 17) + 0xa282ead8u; }
static inline uint32_t trn_crc32c_unmask(uint32_t m)
{
    m -= 0xa282ead8u;
    return m >> 17 | m << 15;
}

/* Fuzzers would never get past a checksum: for them (fault point "ckpt.crc") all are right. */
static inline bool trn_crc32c_ok(uint32_t stored, uint32_t actual) { return stored == actual || TRN_FAULT("ckpt.crc"); }

#endif
