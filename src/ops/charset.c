#include "ops/charset.h"

#include <ctype.h>
#include <errno.h>
#include <iconv.h>
#include <stdlib.h>

enum { BAD = 0xfffd, NOTHING = 0xffff /* what ICU gives when only a byte order mark is left */ };

typedef enum { ASCII, LATIN1, UTF8, UTF16, UTF16_BE, UTF16_LE, UTF32, UTF32_BE, UTF32_LE, OTHER } kind;
/* Where ICU's tables are not those of the C library. */
enum {
    C1 = 1 << 0, /* bytes from 0x80 to 0x9f without a character stand for themselves */
    PC = 1 << 1, /* 0x1a, 0x1c and 0x7f change places */
};
/* Two bytes of an encoding: what can be the first, what the second. Both of them make one mistake when they stand for nothing. */
typedef struct pair {
    uint8_t lead[4], trail[4]; /* two ranges each */
} pair;
static const pair sjis = {{0x81, 0x9f, 0xe0, 0xfc}, {0x40, 0x7e, 0x80, 0xfc}}, euc = {{0xa1, 0xfe, 0x8e, 0x8e}, {0xa0, 0xff}}, big5 = {{0x81, 0xfe}, {0x40, 0x7e, 0xa1, 0xfe}},
                  gbk = {{0x81, 0xfe}, {0x40, 0x7e, 0x80, 0xfe}}, gb18030 = {{0x81, 0xfe}, {0x40, 0x7e, 0x80, 0xff}}, uhc = {{0x81, 0xfe}, {0x41, 0xfe}};
/* Single bytes that differ; zeros at the end. */
static const uint16_t fix1253[][2] = {{0xaa, 0xaa}, {0, 0}}, fix_mac[][2] = {{0xc6, 0x2206}, {0xf0, 0xf8ff}, {0, 0}};

/* Only these: what iconv knows besides has tables or states that ICU's do not have. */
static const struct encoding {
    const char *names; /* small letters and digits, a blank after each */
    kind kind;
    const char *iconv;
    int flags;
    const pair *pair; /* NULL: every byte is a character */
    const uint16_t (*fix)[2];
} encodings[] = {
    {"utf8 ", UTF8, NULL, 0, NULL, NULL},
    {"utf16 iso10646ucs2 unicode ", UTF16, NULL, 0, NULL, NULL},
    {"utf16be utf16bigendian xutf16be ", UTF16_BE, NULL, 0, NULL, NULL},
    {"utf16le utf16littleendian xutf16le ", UTF16_LE, NULL, 0, NULL, NULL},
    {"utf32 iso10646ucs4 ucs4 ", UTF32, NULL, 0, NULL, NULL},
    {"utf32be ", UTF32_BE, NULL, 0, NULL, NULL},
    {"utf32le ", UTF32_LE, NULL, 0, NULL, NULL},
    {"usascii ascii us iso646us ansix341968 ansix341986 csascii cp367 ibm367 ascii7 646 ", ASCII, NULL, 0, NULL, NULL},
    {"iso88591 latin1 l1 ibm819 cp819 88591 isolatin1 csisolatin1 819 ", LATIN1, NULL, 0, NULL, NULL},
    {"iso88592 latin2 l2 ibm912 cp912 88592 csisolatin2 ", OTHER, "ISO-8859-2", 0, NULL, NULL},
    {"iso88593 latin3 l3 ibm913 cp913 88593 csisolatin3 ", OTHER, "ISO-8859-3", 0, NULL, NULL},
    {"iso88594 latin4 l4 ibm914 cp914 88594 csisolatin4 ", OTHER, "ISO-8859-4", 0, NULL, NULL},
    {"iso88595 cyrillic ibm915 cp915 88595 csisolatincyrillic ", OTHER, "ISO-8859-5", 0, NULL, NULL},
    {"iso88596 arabic ibm1089 cp1089 88596 csisolatinarabic ", OTHER, "ISO-8859-6", 0, NULL, NULL},
    {"iso88597 greek greek8 elot928 ecma118 csisolatingreek ", OTHER, "ISO-8859-7", 0, NULL, NULL},
    {"iso88598 hebrew iso88598i iso88598e csisolatinhebrew ", OTHER, "ISO-8859-8", 0, NULL, NULL},
    {"iso88599 latin5 l5 ibm920 cp920 88599 csisolatin5 ", OTHER, "ISO-8859-9", 0, NULL, NULL},
    {"iso885910 latin6 l6 csisolatin6 ", OTHER, "ISO-8859-10", 0, NULL, NULL},
    {"iso885913 ", OTHER, "ISO-8859-13", 0, NULL, NULL},
    {"iso885914 latin8 l8 isoceltic ", OTHER, "ISO-8859-14", 0, NULL, NULL},
    {"iso885915 latin9 l9 csisolatin9 latin0 ", OTHER, "ISO-8859-15", 0, NULL, NULL},
    {"windows1250 cp1250 ", OTHER, "CP1250", C1, NULL, NULL},
    {"windows1251 cp1251 ansi1251 ", OTHER, "CP1251", C1, NULL, NULL},
    {"windows1252 cp1252 ", OTHER, "CP1252", C1, NULL, NULL},
    {"windows1253 cp1253 ", OTHER, "CP1253", C1, NULL, fix1253},
    {"windows1254 cp1254 ", OTHER, "CP1254", C1, NULL, NULL},
    {"windows1255 cp1255 ", OTHER, "CP1255", C1, NULL, NULL},
    {"windows1256 cp1256 ", OTHER, "CP1256", C1, NULL, NULL},
    {"windows1257 cp1257 ", OTHER, "CP1257", C1, NULL, NULL},
    {"windows1258 cp1258 ", OTHER, "CP1258", C1, NULL, NULL},
    {"koi8r koi8 cskoi8r cp878 ", OTHER, "KOI8-R", 0, NULL, NULL},
    {"koi8u ", OTHER, "KOI8-U", 0, NULL, NULL},
    {"ibm850 cp850 850 ", OTHER, "CP850", PC, NULL, NULL},
    {"ibm855 cp855 855 ", OTHER, "CP855", PC, NULL, NULL},
    {"ibm857 cp857 857 ", OTHER, "CP857", PC, NULL, NULL},
    {"ibm866 cp866 866 ", OTHER, "CP866", PC, NULL, NULL},
    {"macintosh mac csmacintosh xmacroman ", OTHER, "MACINTOSH", 0, NULL, fix_mac},
    {"shiftjis sjis mskanji xsjis windows31j cswindows31j cp943c csshiftjis ", OTHER, "CP932", PC, &sjis, NULL},
    {"eucjp xeucjp cseucpkdfmtjapanese ", OTHER, "EUC-JP", 0, &euc, NULL},
    {"euckr cseuckr iboeuckr ", OTHER, "EUC-KR", 0, &euc, NULL},
    {"windows949 ms949 ksc56011987 ksc5601 korean isoir149 ksc5601win ", OTHER, "UHC", 0, &uhc, NULL},
    {"gb18030 ", OTHER, "GB18030", 0, &gb18030, NULL},
    {"gbk cp936 ms936 windows936 ", OTHER, "CP936", 0, &gbk, NULL},
    {"gb2312 euccn hp15cn csgb2312 ", OTHER, "EUC-CN", C1, &euc, NULL},
    {"big5 windows950 csbig5 xbig5 ", OTHER, "CP950", 0, &big5, NULL},
};

struct trn_charset {
    const struct encoding *e;
    kind now; /* UTF16 and UTF32: once a beginning was seen */
    iconv_t cd;
};

/* As ICU compares names: letters and digits only, and no zeros in front of a number. */
static bool same_name(const char *names, const char *name)
{
    char key[64];
    size_t n = 0;
    for (const char *p = name; *p; p++) {
        if (!isalnum((unsigned char)*p) || (*p == '0' && isdigit((unsigned char)p[1]) && !(n && isdigit((unsigned char)key[n - 1]))))
            continue;
        if (n + 2 >= sizeof key)
            return false;
        key[n++] = (char)tolower((unsigned char)*p);
    }
    key[n] = ' ';
    key[n + 1] = 0;
    const char *at = names;
    while (n && (at = strstr(at, key))) {
        if (at == names || at[-1] == ' ')
            return true;
        at++;
    }
    return false;
}

trn_err trn_charset_open(trn_charset **out, const char *name)
{
    const struct encoding *e = encodings, *end = e + TRN_COUNTOF(encodings);
    while (e < end && !same_name(e->names, name))
        e++;
    iconv_t cd = (iconv_t)-1;
    if (e == end || (e->iconv && (cd = iconv_open("UTF-32LE", e->iconv)) == (iconv_t)-1))
        return trn_errorf(TRN_INVALID_ARGUMENT, "Could not create converter for input encoding: %.100s", name);
    trn_charset *c = trn_xalloc(sizeof *c);
    c->e = e;
    c->cd = cd;
    c->now = e->kind;
    *out = c;
    return TRN_OK;
}

void trn_charset_close(trn_charset *c)
{
    if (c && c->cd != (iconv_t)-1)
        iconv_close(c->cd);
    free(c);
}

static int32_t wrong(bool *bad)
{
    *bad = true;
    return BAD;
}

/* A mistake reaches as far as the bytes could still have become a character. */
static int32_t utf8(const uint8_t *p, size_t n, size_t *len, bool *bad)
{
    *len = 1;
    uint8_t b = p[0];
    if (b < 0x80)
        return b;
    size_t more = b >= 0xf0 ? 3 : b >= 0xe0 ? 2 : 1;
    if (b < 0xc2 || b > 0xf4)
        return wrong(bad);
    uint8_t lo = b == 0xe0 ? 0xa0 : b == 0xf0 ? 0x90 : 0x80, hi = b == 0xed ? 0x9f : b == 0xf4 ? 0x8f : 0xbf;
    int32_t c = b & (0x3f >> more);
    for (size_t i = 1; i <= more; i++, lo = 0x80, hi = 0xbf) {
        if (i >= n || p[i] < lo || p[i] > hi)
            return wrong(bad);
        c = c << 6 | (p[i] & 0x3f);
        *len = i + 1;
    }
    return c;
}

static uint32_t unit(const uint8_t *p, int bytes, bool le)
{
    uint32_t v = 0;
    for (int i = 0; i < bytes; i++)
        v = v << 8 | p[le ? bytes - 1 - i : i];
    return v;
}

static int32_t utf16(const uint8_t *p, size_t n, size_t *len, bool *bad, bool le)
{
    *len = TRN_MIN(n, (size_t)2);
    if (n < 2)
        return wrong(bad);
    uint32_t a = unit(p, 2, le);
    if (a < 0xd800 || a > 0xdfff)
        return (int32_t)a;
    if (a > 0xdbff)
        return wrong(bad);
    if (n < 4) {
        *len = n; /* ends inside a pair */
        return wrong(bad);
    }
    uint32_t b = unit(p + 2, 2, le);
    if (b < 0xdc00 || b > 0xdfff)
        return wrong(bad);
    *len = 4;
    return (int32_t)(0x10000 + ((a - 0xd800) << 10) + (b - 0xdc00));
}

static int32_t utf32(const uint8_t *p, size_t n, size_t *len, bool *bad, bool le)
{
    *len = TRN_MIN(n, (size_t)4);
    if (n < 4)
        return wrong(bad);
    uint32_t c = unit(p, 4, le);
    return c > 0x10ffff || (c >= 0xd800 && c < 0xe000) ? wrong(bad) : (int32_t)c;
}

static int32_t next(trn_charset *c, const uint8_t *p, size_t n, size_t *len, bool *bad);

/* The first character, behind a mark if there is one. */
static int32_t marked(trn_charset *c, const uint8_t *p, size_t n, size_t *len, bool *bad)
{
    size_t size = c->now == UTF16 ? 2 : 4;
    bool wide = size == 4, mark = false;
    c->now = wide ? UTF32_BE : UTF16_BE;
    if (n >= size) {
        if (unit(p, (int)size, false) == 0xfeff)
            mark = true;
        else if (unit(p, (int)size, true) == 0xfeff)
            mark = true, c->now = wide ? UTF32_LE : UTF16_LE;
    }
    if (!mark)
        return next(c, p, n, len, bad);
    if (n == size) {
        *len = n;
        *bad = false;
        return NOTHING;
    }
    int32_t v = next(c, p + size, n - size, len, bad);
    *len += size;
    return v;
}

static bool within(const uint8_t r[4], uint8_t b) { return (b >= r[0] && b <= r[1]) || (r[2] && b >= r[2] && b <= r[3]); }

static int32_t other(trn_charset *c, const uint8_t *p, size_t n, size_t *len, bool *bad)
{
    const struct encoding *e = c->e;
    if (e->flags & PC && (*p == 0x1a || *p == 0x1c || *p == 0x7f)) {
        *len = 1;
        return *p == 0x1a ? 0x1c : *p == 0x1c ? 0x7f : 0x1a;
    }
    for (const uint16_t(*f)[2] = e->fix; f && (*f)[0]; f++)
        if (*p == (*f)[0])
            return (*f)[1];
    char *in = (char *)(uintptr_t)p;
    uint8_t bytes[4];
    char *out = (char *)bytes;
    if (!e->pair)
        n = 1;
    size_t left = n, room = sizeof bytes; /* for one character, so it stops behind that */
    size_t rc = iconv(c->cd, &in, &left, &out, &room);
    if (room && rc != (size_t)-1)
        rc = iconv(c->cd, NULL, NULL, &out, &room); /* a letter that waits for an accent */
    if (room == 0) {
        *len = n - left;
        return (int32_t)unit(bytes, 4, true);
    }
    int why = rc == (size_t)-1 ? errno : EINVAL;
    iconv(c->cd, NULL, NULL, NULL, NULL);
    *len = 1;
    if (why == EINVAL) {
        *len = n;
    } else if (e->flags & C1 && *p >= 0x80 && *p <= 0x9f) {
        return *p;
    } else if (e->pair && n > 1 && within(e->pair->lead, p[0]) && within(e->pair->trail, p[1])) {
        *len = 2;
    }
    return wrong(bad);
}

static int32_t next(trn_charset *c, const uint8_t *p, size_t n, size_t *len, bool *bad)
{
    *bad = false;
    *len = 1;
    switch (c->now) {
    case ASCII: return *p < 0x80 ? *p : wrong(bad);
    case LATIN1: return *p;
    case UTF8: return utf8(p, n, len, bad);
    case UTF16_BE: return utf16(p, n, len, bad, false);
    case UTF16_LE: return utf16(p, n, len, bad, true);
    case UTF32_BE: return utf32(p, n, len, bad, false);
    case UTF32_LE: return utf32(p, n, len, bad, true);
    case UTF16:
    case UTF32: return marked(c, p, n, len, bad);
    default: return other(c, p, n, len, bad);
    }
}

/* TensorFlow lets one converter of ICU's read all strings of a tensor. It forgets the order of bytes only when a string ends with its first character or with a mistake;
 * otherwise the next one's mark is a character. */
int32_t trn_charset_next(trn_charset *c, const uint8_t *p, size_t n, size_t *len, bool *bad)
{
    bool first = c->now == UTF16 || c->now == UTF32;
    int32_t v = next(c, p, n, len, bad);
    if (*len == n && (first || *bad))
        c->now = c->e->kind;
    return v;
}
