/* The main that programs for a cluster have in common. */
#include <trainera/monitor.h>
#include <trainera/trainera.h>

#include <stdio.h>
#include <string.h>

enum { CLOSE_MS = 1000 };

int trn_main(int argc, char **argv, const trn_flag *own, trn_err (*work)(const trn_role *me, trn_server *server))
{
    trn_role me = {0};
    trn_server *server = NULL;
    trn_err err = trn_flags_cluster(&me, argc, argv, own);
    if (!err)
        err = me.cluster ? trn_server_create(&server, me.cluster, me.job, me.task) : trn_server_create_local(&server);
    if (!err)
        err = me.is_ps ? trn_ps_wait_done(server, NULL) : work(&me, server);
    if (server)
        trn_server_close(server, CLOSE_MS);
    if (err) {
        const char *slash = argc > 0 ? strrchr(argv[0], '/') : NULL;
        fprintf(stderr, "%s: %s: %s\n", slash ? slash + 1 : argc > 0 ? argv[0] : "trainer", trn_code_name(trn_err_code(err)), trn_err_msg(err));
    }
    trn_role_fini(&me);
    int status = err ? 1 : 0;
    trn_err_free(err);
    return status;
}
