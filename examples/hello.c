/* The smallest program: a graph of one string, a server of this one process, a session on it. */
#include <trainera/trainera.h>

#include <stdio.h>

int main(void)
{
    trn_builder *b = trn_builder_new();
    trn_const_str(trn_named(b, "hello"), "Hello, distributed Trainera!");

    trn_server *server = NULL;
    trn_session *session = NULL;
    trn_tensor *hello = NULL;
    const char *fetch = "hello:0";
    trn_err err = trn_server_create_local(&server);
    if (!err)
        err = trn_session_open_on(&session, server, NULL);
    if (!err)
        err = trn_session_extend_builder(session, b);
    if (!err)
        err = trn_session_run(session, &(trn_run){.fetches = &fetch, .n_fetches = 1, .out = &hello});
    if (!err) {
        size_t n;
        const char *text = trn_tensor_str_at(hello, 0, &n);
        printf("%.*s\n(from %s)\n", (int)n, text, trn_server_target(server));
    } else
        fprintf(stderr, "hello: %s\n", trn_err_msg(err));
    trn_tensor_unref(hello);
    trn_err_free(trn_session_close(session));
    if (server)
        trn_server_close(server, 0);
    trn_builder_free(b);
    int status = err ? 1 : 0;
    trn_err_free(err);
    return status;
}
