#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "cli/cli.h"

int cli_fail(trn_err err, int exit_code)
{
    /* One line whatever the message holds: a program may read it. */
    char *msg = trn_xstrdup(trn_err_msg(err));
    for (char *p = msg; *p; p++)
        if ((unsigned char)*p < ' ')
            *p = ' ';
    fflush(stdout);
    fprintf(stderr, "trainera: %d %s\n", (int)trn_err_code(err), msg);
    free(msg);
    trn_err_free(err);
    return exit_code;
}

trn_err cli_read_file(trn_sb *out, const char *path, size_t max)
{
    FILE *f = fopen(path, "rb");
    if (!f)
        return trn_err_errno(errno, "cannot read %s", path);
    char buf[65536];
    size_t got;
    while ((got = fread(buf, 1, sizeof buf, f)) > 0 && out->n <= max)
        trn_sb_add(out, buf, got);
    int e = ferror(f) ? errno ? errno : EIO : 0;
    fclose(f);
    if (e)
        return trn_err_errno(e, "cannot read %s", path);
    if (out->n > max)
        return trn_errorf(TRN_INVALID_ARGUMENT, "%s is larger than %zu bytes", path, max);
    return TRN_OK;
}

trn_err cli_write_file(const char *path, const char *text)
{
    char *tmp = trn_xasprintf("%s.%d.tmp", path, (int)getpid());
    trn_err err = TRN_OK;
    FILE *f = fopen(tmp, "wbe");
    if (!f) {
        err = trn_err_errno(errno, "cannot write %s", path);
    } else {
        bool ok = fputs(text, f) >= 0;
        ok &= fclose(f) == 0;
        if (!ok || rename(tmp, path) != 0) {
            err = trn_err_errno(errno, "cannot write %s", path);
            unlink(tmp);
        }
    }
    free(tmp);
    return err;
}

trn_err cli_log_level(trn_log_level *out, const char *word)
{
    static const char *const names[] = {[TRN_LOG_DEBUG] = "debug",
                                        [TRN_LOG_INFO] = "info",
                                        [TRN_LOG_WARN] = "warn",
                                        [TRN_LOG_ERROR] = "error",
                                        [TRN_LOG_OFF] = "off"};
    for (size_t i = 0; i < TRN_COUNTOF(names); i++)
        if (strcasecmp(word, names[i]) == 0 || (i == TRN_LOG_WARN && strcasecmp(word, "warning") == 0)) {
            *out = (trn_log_level)i;
            return TRN_OK;
        }
    return trn_errorf(TRN_INVALID_ARGUMENT, "--log-level=%s: debug, info, warn, error or off is expected", word);
}
