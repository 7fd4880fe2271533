#include "wire/http1.h"

#include <stdlib.h>
#include <strings.h>

static const char *reason(int status)
{
    switch (status) {
    case 200:
        return "OK";
    case 400:
        return "Bad Request";
    case 404:
        return "Not Found";
    case 405:
        return "Method Not Allowed";
    case 431:
        return "Request Header Fields Too Large";
    case 500:
        return "Internal Server Error";
    case 503:
        return "Service Unavailable";
    case 505:
        return "HTTP Version Not Supported";
    default:
        return "Status";
    }
}

static void answer(trn_sb *out, int status, const char *type, const char *body, size_t n, bool with_body, bool keep)
{
    trn_sb_addf(out,
                "HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\nCache-Control: no-store\r\n%sConnection: "
                "%s\r\n\r\n",
                status, reason(status), type ? type : "text/plain; charset=utf-8", n,
                status == 405 ? "Allow: GET, HEAD\r\n" : "", keep ? "keep-alive" : "close");
    if (with_body)
        trn_sb_add(out, body, n);
}

static bool refuse(trn_sb *out, int status, const char *text)
{
    answer(out, status, NULL, text, strlen(text), true, false);
    return false;
}

/* The value of a header line "Name: value", or NULL. */
static const char *header(const char *line, const char *name)
{
    size_t n = strlen(name);
    if (strncasecmp(line, name, n) != 0 || line[n] != ':')
        return NULL;
    line += n + 1;
    while (*line == ' ' || *line == '\t')
        line++;
    return line;
}

/* One request: `head` is zero-terminated, its lines end with \r\n or \n. */
static bool serve(char *head, trn_sb *out, void (*get)(void *, const char *, const char *, trn_http_reply *),
                  void *user)
{
    char *save = NULL, *line = strtok_r(head, "\n", &save);
    size_t len = line ? strlen(line) : 0;
    if (len && line[len - 1] == '\r')
        line[len - 1] = 0;
    char *sp1 = line ? strchr(line, ' ') : NULL, *sp2 = sp1 ? strchr(sp1 + 1, ' ') : NULL;
    if (!sp2 || strncmp(sp2 + 1, "HTTP/", 5) != 0)
        return refuse(out, 400, "This port speaks gRPC (HTTP/2) and HTTP/1.1 GET.\n");
    *sp1 = *sp2 = 0;
    const char *version = sp2 + 6;
    if (strcmp(version, "1.1") != 0 && strcmp(version, "1.0") != 0)
        return refuse(out, 505, "HTTP/1.1, please.\n");
    bool keep = strcmp(version, "1.1") == 0, body = false;
    while ((line = strtok_r(NULL, "\n", &save))) {
        const char *v;
        if ((v = header(line, "Connection"))) {
            if (strncasecmp(v, "close", 5) == 0)
                keep = false;
            else if (strncasecmp(v, "keep-alive", 10) == 0)
                keep = true;
        } else if (header(line, "Transfer-Encoding") ||
                   ((v = header(line, "Content-Length")) && strtol(v, NULL, 10) != 0)) {
            body = true;
        }
    }
    bool is_head = strcmp(head, "HEAD") == 0;
    if (!is_head && strcmp(head, "GET") != 0)
        return refuse(out, 405, "Only GET is served here.\n");
    if (body) /* we would have to skip it */
        keep = false;
    char *path = sp1 + 1, *query = strchr(path, '?');
    if (query)
        *query++ = 0;
    if (path[0] != '/')
        return refuse(out, 400, "The path begins with a slash.\n");
    trn_http_reply r = {.status = 200};
    get(user, path, query ? query : "", &r);
    answer(out, r.status, r.content_type, r.body.p ? r.body.p : "", r.body.n, !is_head, keep);
    trn_sb_fini(&r.body);
    return keep;
}

/* Length of the head that is whole, blank line included; 0: not yet. */
static size_t head_end(const char *p, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (p[i] != '\n')
            continue;
        if (i + 1 < n && p[i + 1] == '\n')
            return i + 2;
        if (i + 2 < n && p[i + 1] == '\r' && p[i + 2] == '\n')
            return i + 3;
    }
    return 0;
}

/* A request line consists of printable bytes; anything else need not wait for a line's end. */
static bool garbage(const char *p, size_t n)
{
    for (size_t i = 0; i < n && p[i] != '\n' && p[i] != '\r'; i++)
        if ((unsigned char)p[i] < 0x20 || p[i] == 0x7f)
            return true;
    return n > 0 && (p[0] < 'A' || p[0] > 'Z');
}

bool trn_http1_recv(trn_http1 *h, const uint8_t *p, size_t n, trn_sb *out,
                    void (*get)(void *, const char *, const char *, trn_http_reply *), void *user)
{
    trn_sb_add(&h->in, p, n);
    size_t at = 0;
    while (at < h->in.n) {
        const char *rest = h->in.p + at;
        size_t left = h->in.n - at, end = head_end(rest, TRN_MIN(left, (size_t)TRN_HTTP1_MAX_HEAD));
        if (garbage(rest, end ? end : left) || (end && memchr(rest, 0, end)))
            return refuse(out, 400, "This port speaks gRPC (HTTP/2) and HTTP/1.1 GET.\n");
        if (end == 0) {
            if (left >= TRN_HTTP1_MAX_HEAD)
                return refuse(out, 431, "The request's head is too long.\n");
            break;
        }
        char *head = trn_xstrndup(rest, end);
        bool keep = serve(head, out, get, user);
        free(head);
        at += end;
        if (!keep || out->n > TRN_HTTP1_MAX_OUT)
            return false;
    }
    if (at)
        memmove(h->in.p, h->in.p + at, h->in.n - at);
    h->in.n -= at;
    return true;
}

void trn_http1_fini(trn_http1 *h) { trn_sb_fini(&h->in); }
