/* Patterns and texts of any encoding. First byte 'r': a regular expression (its length is the second byte) and the text it is to be found in; otherwise the number of an
 * encoding, and text that claims to have it. What is found lies inside of the text, and every character takes some of it. */
#include <stdlib.h>

#include "ops/charset.h"
#include "ops/regex.h"

static void match(const uint8_t *data, size_t size)
{
    size_t n = size ? data[0] : 0;
    if (!size || n > size - 1)
        return;
    trn_regex *r;
    trn_err err = trn_regex_new(&r, (const char *)data + 1, n);
    if (err) {
        trn_err_free(err);
        return;
    }
    const char *text = (const char *)data + 1 + n;
    size_t len = size - 1 - n;
    int64_t cap[TRN_REGEX_CAPS];
    int full = trn_regex_full(r, text, len), found = trn_regex_find(r, text, len, 0, cap);
    if (full == 1 && found != 1)
        abort();
    for (int i = 0; found == 1 && i < TRN_REGEX_CAPS; i += 2)
        if ((cap[i] < 0) != (cap[i + 1] < 0) || cap[i] > cap[i + 1] || cap[i + 1] > (int64_t)len || (!i && cap[0] < 0))
            abort();
    trn_regex_free(r);
}

static void decode(const uint8_t *data, size_t size, unsigned which)
{
    static const char *const names[] = {"UTF-8",      "UTF-16",      "UTF-16-BE",    "UTF-16-LE", "UTF-32", "UTF-32-LE", "US-ASCII", "latin1", "windows-1252", "windows-1255",
                                        "windows-1258", "koi8-r",    "ibm850",       "macintosh", "shift_jis", "euc-jp", "euc-kr",   "windows-949", "gb18030",  "gbk",
                                        "gb2312",     "big5",        "ISO-8859-7"};
    trn_charset *c;
    trn_err err = trn_charset_open(&c, names[which % TRN_COUNTOF(names)]);
    if (err) {
        trn_err_free(err);
        return;
    }
    for (size_t at = 0, len; at < size; at += len) {
        bool bad;
        int32_t v = trn_charset_next(c, data + at, size - at, &len, &bad);
        if (len == 0 || len > size - at || v < 0 || v > 0x10ffff || (bad && v != 0xfffd))
            abort();
    }
    trn_charset_close(c);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0 || size > 2048)
        return 0;
    if (data[0] == 'r')
        match(data + 1, size - 1);
    else
        decode(data + 1, size - 1, data[0]);
    return 0;
}
