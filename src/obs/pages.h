/* Pages that every task serves beside gRPC. */
#ifndef TRN_PAGES_H
#define TRN_PAGES_H

#include "wire/rpc.h"

extern const trn_http_route trn_page_root;    /* the status page, which shows what /status.json says */
extern const trn_http_route trn_page_healthz; /* "ok" */
extern const trn_http_route trn_page_metrics; /* Prometheus text */

#endif
