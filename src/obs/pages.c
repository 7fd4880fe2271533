#include "obs/pages.h"

static void healthz(void *svc, const char *path, const char *query, trn_http_reply *out)
{
    out->status = 200;
    out->content_type = "text/plain; charset=utf-8";
    trn_sb_adds(&out->body, "ok\n");
}

static void metrics(void *svc, const char *path, const char *query, trn_http_reply *out)
{
    out->status = 200;
    out->content_type = "text/plain; version=0.0.4; charset=utf-8";
    trn_metrics_text(&out->body);
}

const trn_http_route trn_page_healthz = {"/healthz", healthz, NULL};
const trn_http_route trn_page_metrics = {"/metrics", metrics, NULL};

static void root(void *svc, const char *path, const char *query, trn_http_reply *out)
{
    static const char page[] = {
#include "obs/page.inc"
    };
    out->status = 200;
    out->content_type = "text/html; charset=utf-8";
    trn_sb_add(&out->body, page, sizeof page);
}

const trn_http_route trn_page_root = {"/", root, NULL};
