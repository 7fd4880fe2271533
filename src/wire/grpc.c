#include "wire/grpc.h"

#include <nghttp2/nghttp2.h>
#include <stdio.h>
#include <stdlib.h>

size_t trn_grpc_timeout_text(char buf[TRN_GRPC_TIMEOUT_TEXT], uint64_t ns)
{
    static const struct {
        uint64_t ns;
        char unit;
    } units[] = {{1000, 'u'}, {1000000, 'm'}, {1000000000, 'S'}, {60000000000, 'M'}, {3600000000000, 'H'}};
    for (size_t i = 0; i < TRN_COUNTOF(units); i++) {
        uint64_t v = ns / units[i].ns + (ns % units[i].ns != 0);
        if (v <= 99999999)
            return (size_t)snprintf(buf, TRN_GRPC_TIMEOUT_TEXT, "%u%c", (unsigned)v, units[i].unit);
    }
    return (size_t)snprintf(buf, TRN_GRPC_TIMEOUT_TEXT, "99999999H");
}

bool trn_grpc_timeout_parse(uint64_t *ns, const char *p, size_t n)
{
    if (n < 2 || n > 9)
        return false;
    uint64_t v = 0;
    for (size_t i = 0; i + 1 < n; i++) {
        if (p[i] < '0' || p[i] > '9')
            return false;
        v = v * 10 + (uint64_t)(p[i] - '0');
    }
    uint64_t unit;
    switch (p[n - 1]) {
    case 'n':
        unit = 1;
        break;
    case 'u':
        unit = 1000;
        break;
    case 'm':
        unit = 1000000;
        break;
    case 'S':
        unit = 1000000000;
        break;
    case 'M':
        unit = 60000000000;
        break;
    case 'H':
        unit = 3600000000000;
        break;
    default:
        return false;
    }
    /* A century is for ever; what is left fits 64 bits. */
    const uint64_t century = UINT64_C(3155760000) * 1000000000;
    *ns = v > century / unit ? century : v * unit;
    return true;
}

static const char hex[] = "0123456789ABCDEF";

static bool plain(unsigned char c) { return c >= 0x20 && c <= 0x7e && c != '%'; }

size_t trn_grpc_message_encode(char *out, size_t max, const char *text)
{
    size_t n = 0, safe = 0; /* safe: end of the last whole character that leaves room for the dots */
    const unsigned char *p = (const unsigned char *)text;
    while (*p) {
        size_t need = plain(*p) ? 1 : 3;
        if (n + need > max)
            break;
        if (need == 1) {
            out[n++] = (char)*p;
        } else {
            out[n++] = '%';
            out[n++] = hex[*p >> 4];
            out[n++] = hex[*p & 15];
        }
        p++;
        if ((*p & 0xC0) != 0x80 && n + 3 <= max)
            safe = n;
    }
    if (*p && max >= 3) {
        memcpy(out + safe, "...", 3);
        n = safe + 3;
    }
    return n;
}

static int nibble(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                  : -1;
}

char *trn_grpc_message_decode(const char *p, size_t n)
{
    char *out = trn_xalloc(n + 1);
    size_t m = 0;
    for (size_t i = 0; i < n; i++) {
        int hi, lo;
        if (p[i] == '%' && i + 2 < n && (hi = nibble(p[i + 1])) >= 0 && (lo = nibble(p[i + 2])) >= 0 &&
            (hi | lo) != 0) {
            out[m++] = (char)(hi << 4 | lo);
            i += 2;
        } else if (p[i] != 0) {
            out[m++] = p[i];
        }
    }
    out[m] = 0;
    return out;
}

/* ---- TensorFlow's payloads ------------------------------------------------------------------------------------ */

/* TensorFlow attaches Status payloads as a map<string, bytes> (field 1), by type. A mark is a type with an empty value. */
static const char *const mark_types[] = {"type.googleapis.com/tensorflow.DerivedStatus", "type.googleapis.com/tensorflow.CoordinationServiceError"};

static const char b64[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

size_t trn_grpc_details_text(char out[TRN_GRPC_DETAILS_TEXT], unsigned marks)
{
    unsigned char raw[TRN_GRPC_DETAILS_TEXT * 3 / 4];
    size_t n = 0, m = 0;
    for (size_t i = 0; i < TRN_COUNTOF(mark_types); i++) {
        size_t key = strlen(mark_types[i]);
        if (!(marks & 1u << i) || n + key + 6 > sizeof raw - 3)
            continue;
        raw[n++] = 0x0A;
        raw[n++] = (unsigned char)(key + 4);
        raw[n++] = 0x0A;
        raw[n++] = (unsigned char)key;
        memcpy(raw + n, mark_types[i], key);
        n += key;
        raw[n++] = 0x12;
        raw[n++] = 0;
    }
    for (size_t i = 0; i < n; i += 3) {
        uint32_t v = (uint32_t)raw[i] << 16 | (i + 1 < n ? (uint32_t)raw[i + 1] << 8 : 0) | (i + 2 < n ? raw[i + 2] : 0);
        size_t chars = TRN_MIN(n - i, (size_t)3) + 1;
        for (size_t k = 0; k < chars; k++)
            out[m++] = b64[v >> (18 - 6 * k) & 63];
    }
    out[m] = 0;
    return m;
}

unsigned trn_grpc_details_marks(const char *p, size_t n)
{
    unsigned char raw[1024];
    size_t m = 0;
    uint32_t v = 0;
    int bits = 0;
    for (size_t i = 0; i < n && m < sizeof raw; i++) {
        const char *at = p[i] ? strchr(b64, p[i]) : NULL;
        if (!at)
            break;
        v = v << 6 | (uint32_t)(at - b64);
        bits += 6;
        if (bits >= 8) {
            bits -= 8;
            raw[m++] = (unsigned char)(v >> bits);
        }
    }
    unsigned marks = 0;
    for (size_t i = 0; i < TRN_COUNTOF(mark_types); i++)
        if (memmem(raw, m, mark_types[i], strlen(mark_types[i])))
            marks |= 1u << i;
    return marks;
}

/* ---- codes ---------------------------------------------------------------------------------------------------- */

trn_code trn_grpc_code_from_http(int status)
{
    switch (status) {
    case 400:
        return TRN_INTERNAL;
    case 401:
        return TRN_UNAUTHENTICATED;
    case 403:
        return TRN_PERMISSION_DENIED;
    case 404:
        return TRN_UNIMPLEMENTED;
    case 429:
    case 502:
    case 503:
    case 504:
        return TRN_UNAVAILABLE;
    default:
        return TRN_UNKNOWN;
    }
}

trn_code trn_grpc_code_from_h2(uint32_t error_code)
{
    switch (error_code) {
    case NGHTTP2_REFUSED_STREAM:
        return TRN_UNAVAILABLE;
    case NGHTTP2_CANCEL:
        return TRN_CANCELLED;
    case NGHTTP2_ENHANCE_YOUR_CALM:
        return TRN_RESOURCE_EXHAUSTED;
    case NGHTTP2_INADEQUATE_SECURITY:
        return TRN_PERMISSION_DENIED;
    default:
        return TRN_INTERNAL;
    }
}
