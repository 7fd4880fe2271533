/* Writes JSON into a string builder: commas and escapes are kept track of, so that a caller only says what there is.
 *
 *     trn_json j = {.out = &sb};
 *     trn_json_open(&j, NULL, '{');
 *     trn_json_str(&j, "name", name);
 *     trn_json_close(&j);
 *
 * `key` is NULL inside a list. Text that is not UTF-8 (a peer's, a file's) is repaired, numbers that JSON has no word for are null. */
#ifndef TRN_JSON_H
#define TRN_JSON_H

#include "base/base.h"

typedef struct trn_json {
    trn_sb *out;
    int depth;
    char close[32];
    bool some[32]; /* at that depth something stands already */
    bool pretty;   /* lines and indentation, for people */
} trn_json;

void trn_json_open(trn_json *j, const char *key, char kind); /* '{' or '[' */
void trn_json_close(trn_json *j);
void trn_json_str(trn_json *j, const char *key, const char *text); /* NULL: null */
void trn_json_strn(trn_json *j, const char *key, const char *text, size_t n);
void trn_json_strf(trn_json *j, const char *key, const char *fmt, ...) TRN_PRINTF(3, 4);
void trn_json_int(trn_json *j, const char *key, int64_t v);
void trn_json_uint(trn_json *j, const char *key, uint64_t v);
void trn_json_num(trn_json *j, const char *key, double v); /* six significant digits, or all that are needed when it is large */
void trn_json_bool(trn_json *j, const char *key, bool v);
void trn_json_null(trn_json *j, const char *key);
void trn_json_raw(trn_json *j, const char *key, const char *json, size_t n); /* JSON already */

#endif
