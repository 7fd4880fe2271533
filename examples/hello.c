/* The smallest program: a server of this one process, a session on it, one string constant. */
#include <trainera/trainera.h>

#include <stdio.h>

static const char graph[] = "node { name: 'hello' op: 'Const' attr { key: 'dtype' value { type: DT_STRING } }"
                            "  attr { key: 'value' value { tensor { dtype: DT_STRING tensor_shape { } string_val: 'Hello, distributed Trainera!' } } } }";

int main(void)
{
    trn_server *server = NULL;
    trn_session *session = NULL;
    trn_tensor *hello = NULL;
    const char *fetch = "hello:0";
    trn_err err = trn_server_create_local(&server);
    if (!err)
        err = trn_session_open_on(&session, server, NULL);
    if (!err)
        err = trn_session_extend_text(session, graph);
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
    int status = err ? 1 : 0;
    trn_err_free(err);
    return status;
}
