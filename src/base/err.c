/* Errors as values: one allocation holds code, flag and message. */
#include "base/base.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

struct trn_error {
    trn_code code;
    unsigned marks;
    const char *msg; /* = text, but for the static one */
    char text[];
};

/* Not const so that it can stand for a trn_err; nobody writes to it. */
static trn_error oom = {.code = TRN_RESOURCE_EXHAUSTED, .msg = "out of memory"};

trn_err trn_err_oom(void) { return &oom; }

static trn_error *error_alloc(trn_code code, size_t len)
{
    trn_error *e = malloc(sizeof *e + len + 1);
    if (e) {
        e->code = code;
        e->marks = 0;
        e->msg = e->text;
        e->text[len] = 0;
    }
    return e;
}

/* head + sep + formatted text + tail; any of head, sep, tail may be "". */
static trn_err error_build(trn_code code, const char *head, const char *sep, const char *tail, const char *fmt,
                           va_list ap)
{
    va_list again;
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, again);
    va_end(again);
    if (n < 0)
        n = 0;
    size_t nh = strlen(head), ns = strlen(sep), nt = strlen(tail), len = nh + ns + (size_t)n + nt;
    trn_error *e = error_alloc(code, len);
    if (!e)
        return trn_err_oom();
    memcpy(e->text, head, nh);
    memcpy(e->text + nh, sep, ns);
    if (n > 0)
        vsnprintf(e->text + nh + ns, (size_t)n + 1, fmt, ap);
    memcpy(e->text + nh + ns + n, tail, nt + 1);
    return e;
}

trn_err trn_errorf(trn_code code, const char *fmt, ...)
{
    /* A zero code in an error would read as success on the wire. */
    if (code == TRN_CODE_OK)
        code = TRN_UNKNOWN;
    va_list ap;
    va_start(ap, fmt);
    trn_err e = error_build(code, "", "", "", fmt, ap);
    va_end(ap);
    return e;
}

trn_err trn_err_wrap(trn_err err, const char *fmt, ...)
{
    if (!err || err == &oom)
        return err;
    va_list ap;
    va_start(ap, fmt);
    trn_err e = error_build(err->code, err->msg, " | ", "", fmt, ap);
    va_end(ap);
    if (e == &oom)
        return err; /* the first message is worth more than the news that context did not fit */
    e->marks = err->marks;
    trn_err_free(err);
    return e;
}

trn_err trn_err_errno(int errno_value, const char *fmt, ...)
{
    trn_code code;
    switch (errno_value) {
    case ENOENT:
    case ENODEV:
    case ENXIO:
        code = TRN_NOT_FOUND;
        break;
    case EEXIST:
        code = TRN_ALREADY_EXISTS;
        break;
    case EPERM:
    case EACCES:
    case EROFS:
        code = TRN_PERMISSION_DENIED;
        break;
    case ENOMEM:
    case ENOSPC:
    case EDQUOT:
    case EMFILE:
    case ENFILE:
    case ENOBUFS:
    case EFBIG:
        code = TRN_RESOURCE_EXHAUSTED;
        break;
    case EINVAL:
    case ENAMETOOLONG:
    case E2BIG:
    case EDESTADDRREQ:
    case EAFNOSUPPORT:
        code = TRN_INVALID_ARGUMENT;
        break;
    case ENOTDIR:
    case EISDIR:
    case ENOTEMPTY:
    case EBUSY:
    case ETXTBSY:
    case EADDRINUSE:
    case EADDRNOTAVAIL:
    case ENOTCONN:
        code = TRN_FAILED_PRECONDITION;
        break;
    /* All that says "the peer is gone": a lost connection's ETIMEDOUT is no deadline of ours. */
    case ECONNREFUSED:
    case ECONNRESET:
    case ECONNABORTED:
    case EPIPE:
    case ETIMEDOUT:
    case EHOSTUNREACH:
    case EHOSTDOWN:
    case ENETUNREACH:
    case ENETDOWN:
    case ENETRESET:
    case EAGAIN:
    case EINTR:
        code = TRN_UNAVAILABLE;
        break;
    case ECANCELED:
        code = TRN_CANCELLED;
        break;
    case ENOSYS:
    case EOPNOTSUPP:
        code = TRN_UNIMPLEMENTED;
        break;
    case EIO:
    case EBADMSG:
        code = TRN_DATA_LOSS;
        break;
    default:
        code = TRN_UNKNOWN;
    }
    char text[128], tail[160];
    snprintf(tail, sizeof tail, ": %s", strerror_r(errno_value, text, sizeof text));
    va_list ap;
    va_start(ap, fmt);
    trn_err e = error_build(code, "", "", tail, fmt, ap);
    va_end(ap);
    return e;
}

trn_err trn_err_copy(const trn_error *err)
{
    if (!err || err == &oom)
        return (trn_err)err;
    size_t len = strlen(err->msg);
    trn_error *e = error_alloc(err->code, len);
    if (!e)
        return trn_err_oom();
    e->marks = err->marks;
    memcpy(e->text, err->msg, len);
    return e;
}

void trn_err_free(trn_err err)
{
    if (err != &oom)
        free(err);
}

trn_err trn_err_first(trn_err err, trn_err later)
{
    if (!err)
        return later;
    trn_err_free(later);
    return err;
}

trn_code trn_err_code(const trn_error *err) { return err ? err->code : TRN_CODE_OK; }
const char *trn_err_msg(const trn_error *err) { return err ? err->msg : ""; }
unsigned trn_err_marks(const trn_error *err) { return err ? err->marks : 0; }

trn_err trn_err_mark(trn_err err, unsigned marks)
{
    if (err && err != &oom)
        err->marks |= marks;
    return err;
}

const char *trn_code_name(trn_code code)
{
    static const char *const names[] = {
        "OK",       "Cancelled",       "Unknown",          "InvalidArgument",   "DeadlineExceeded",
        "NotFound", "AlreadyExists",   "PermissionDenied", "ResourceExhausted", "FailedPrecondition",
        "Aborted",  "OutOfRange",      "Unimplemented",    "Internal",          "Unavailable",
        "DataLoss", "Unauthenticated",
    };
    return (size_t)code < TRN_COUNTOF(names) ? names[code] : "Unknown";
}
