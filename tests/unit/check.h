/* What nearly every test asks of an error, with the place of the test that asked, and ports for servers. */
#ifndef TRN_TEST_CHECK_H
#define TRN_TEST_CHECK_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <arpa/inet.h>
#include <cmocka.h>
#include <string.h>
#include <sys/socket.h>

#include <trainera/build.h>
#include <trainera/types.h>

#define ok(e) check_ok(e, __FILE__, __LINE__)
#define fails(e, code, part) check_fails(e, code, part, __FILE__, __LINE__) /* part of its message; NULL: whatever it says */
#define fails_build(b, part) check_fails_build(b, part, __FILE__, __LINE__) /* and frees the builder */

static inline void check_ok(trn_err e, const char *file, int line)
{
    if (!e)
        return;
    print_error("%s: %s\n", trn_code_name(trn_err_code(e)), trn_err_msg(e));
    _fail(file, line);
}

static inline void check_fails(trn_err e, trn_code code, const char *part, const char *file, int line)
{
    if (!e || trn_err_code(e) != code || (part && !strstr(trn_err_msg(e), part))) {
        print_error("wanted %s with \"%s\", got %s: %s\n", trn_code_name(code), part ? part : "", e ? trn_code_name(trn_err_code(e)) : "no error", trn_err_msg(e));
        _fail(file, line);
    }
    trn_err_free(e);
}

static inline void check_fails_build(trn_builder *b, const char *part, const char *file, int line)
{
    trn_err e = trn_builder_check(b);
    if (!e || !strstr(trn_err_msg(e), part)) {
        print_error("wanted \"%s\", got %s: %s\n", part, e ? trn_code_name(trn_err_code(e)) : "no error", trn_err_msg(e));
        _fail(file, line);
    }
    trn_err_free(e);
    trn_builder_free(b);
}

/* Bound for as long as the test runs, but not listening: nobody else gets them, and a server that sets SO_REUSEADDR can have them. */
static inline void free_ports(int *port, int n)
{
    for (int i = 0; i < n; i++) {
        struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        socklen_t len = sizeof a;
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int)), 0);
        assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
        getsockname(fd, (struct sockaddr *)&a, &len);
        port[i] = ntohs(a.sin_port);
    }
}

#endif
