/* What `trainera status`, `top` and `trace` share: asking a running task over HTTP, and its /status.json as text. */
#ifndef TRN_LOOK_H
#define TRN_LOOK_H

#include <jansson.h>

#include "cli/cli.h"

/* "grpc://h:p", "http://h:p/…", "h:p", "[v6]:p" or a port of this machine → "h:p"; the caller frees. */
trn_err cli_target(char **out, const char *text) TRN_MUST_USE;
/* cli_parse for a command that is about one running task: its address, which the caller frees. */
trn_err cli_parse_target(void *options, const cli_command *c, int argc, char **argv, char **address) TRN_MUST_USE;
/* cli_http_get of a page that is there: anything but 200 is an error that says so. */
trn_err cli_get(trn_sb *out, const char *address, const char *path, double timeout_s) TRN_MUST_USE;

/* /status.json, once the task knows about its cluster: asks twice when the first answer came too early for that. */
trn_err cli_look(json_t **out, trn_sb *raw, const char *address, double timeout_s) TRN_MUST_USE;
/* The document for people, lines of at most `width` columns (0: as long as they are), at most `rows` tasks, waits, errors each. */
void cli_look_text(trn_sb *out, json_t *doc, int width, int rows, bool color);

/* json values, whatever is there */
const char *cli_js(json_t *o, const char *key); /* "" */
double cli_jn(json_t *o, const char *key);      /* 0 */
/* "1.5 MiB", "12 ms" */
const char *cli_bytes_text(char buf[32], double bytes);
const char *cli_time_text(char buf[32], double seconds);

#endif
