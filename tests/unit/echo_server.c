/* echo_server [port]: serves echo.h's methods on localhost, prints the port, ends when stdin does. */
#include <unistd.h>

#include "echo.h"

int main(int argc, char **argv)
{
    trn_loop *loop;
    trn_rpc_server *s;
    echo e = {0};
    int port = argc > 1 ? atoi(argv[1]) : 0;
    trn_err err = trn_pool_open(&e.pool, 2, "pool");
    if (!err)
        err = trn_loop_open(&loop, "loop");
    if (!err)
        err = trn_rpc_server_open(&s, &(trn_server_opts){.loops = &loop, .n_loops = 1});
    if (!err) {
        trn_rpc_server_add(s, echo_methods, &e);
        err = trn_rpc_server_listen(s, "localhost", port, &port);
    }
    if (err) {
        fprintf(stderr, "%s\n", trn_err_msg(err));
        return 1;
    }
    printf("%d\n", port);
    fflush(stdout);
    char c;
    while (read(0, &c, 1) > 0)
        ;
    trn_rpc_server_close(s, 100000000);
    trn_pool_close(e.pool);
    trn_loop_close(loop);
    if (e.source)
        trn_buf_unref(e.source);
    return 0;
}
