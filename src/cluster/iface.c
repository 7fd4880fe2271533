#include "cluster/iface.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <unistd.h>

#include "io/net.h"

/* v4 as the last four of sixteen bytes, so that there is one comparison. */
static bool bytes_of(uint8_t out[16], int *family, const char *text)
{
    if (inet_pton(AF_INET, text, out + 12) == 1) {
        memset(out, 0, 12);
        *family = AF_INET;
        return true;
    }
    *family = AF_INET6;
    return inet_pton(AF_INET6, text, out) == 1;
}

bool trn_iface_in_network(const char *address, const char *cidr)
{
    const char *slash = strchr(cidr, '/');
    if (!slash || slash - cidr > 60)
        return false;
    char net[64];
    memcpy(net, cidr, (size_t)(slash - cidr));
    net[slash - cidr] = 0;
    uint8_t a[16], b[16];
    int fa, fb;
    char *end;
    long bits = strtol(slash + 1, &end, 10);
    if (*end || end == slash + 1 || !bytes_of(a, &fa, address) || !bytes_of(b, &fb, net) || fa != fb || bits < 0 || bits > (fa == AF_INET ? 32 : 128))
        return false;
    bits += fa == AF_INET ? 96 : 0;
    for (int i = fa == AF_INET ? 96 : 0; i < bits; i++)
        if ((a[i / 8] ^ b[i / 8]) & (0x80 >> i % 8))
            return false;
    return true;
}

static bool text_of(char out[INET6_ADDRSTRLEN], const struct sockaddr *sa)
{
    if (!sa)
        return false;
    if (sa->sa_family == AF_INET)
        return inet_ntop(AF_INET, &((const struct sockaddr_in *)sa)->sin_addr, out, INET6_ADDRSTRLEN);
    if (sa->sa_family == AF_INET6 && !IN6_IS_ADDR_LINKLOCAL(&((const struct sockaddr_in6 *)sa)->sin6_addr))
        return inet_ntop(AF_INET6, &((const struct sockaddr_in6 *)sa)->sin6_addr, out, INET6_ADDRSTRLEN);
    return false;
}

static char *by_name(void)
{
    char host[256] = "", text[INET6_ADDRSTRLEN];
    gethostname(host, sizeof host - 1);
    trn_addrs addrs = {0};
    trn_err err = *host ? trn_net_resolve(&addrs, host, 0) : TRN_OK;
    if (err) {
        trn_err_free(err);
        return NULL;
    }
    for (int i = 0; i < addrs.n; i++)
        if (!trn_addr_is_loopback(&addrs.a[i]) && text_of(text, &addrs.a[i].sa)) {
            /* A name may be of another network; only an address that this machine has will do. */
            int fd = socket(addrs.a[i].sa.sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
            bool ours = fd >= 0 && bind(fd, &addrs.a[i].sa, addrs.a[i].len) == 0;
            if (fd >= 0)
                close(fd);
            if (ours)
                return trn_xstrdup(text);
        }
    return NULL;
}

trn_err trn_iface_address(char **out, const char *want)
{
    if (!want && (*out = by_name()))
        return TRN_OK;
    struct ifaddrs *all;
    if (getifaddrs(&all) != 0)
        return trn_err_errno(errno, "getifaddrs");
    char best[INET6_ADDRSTRLEN] = "", text[INET6_ADDRSTRLEN];
    bool is_net = want && strchr(want, '/');
    trn_sb seen = {0};
    trn_sb_adds(&seen, "");
    for (int pass = 0; pass < 2 && !*best; pass++) /* v4 first: more programs can read it */
        for (struct ifaddrs *i = all; i && !*best; i = i->ifa_next) {
            if (!(i->ifa_flags & IFF_UP) || !text_of(text, i->ifa_addr) || (i->ifa_addr->sa_family == AF_INET) == (pass == 1))
                continue;
            trn_sb_addf(&seen, "%s%s %s", seen.n ? ", " : "", i->ifa_name, text);
            bool ok = !want ? !(i->ifa_flags & IFF_LOOPBACK) : is_net ? trn_iface_in_network(text, want) : strcmp(i->ifa_name, want) == 0;
            if (ok)
                memcpy(best, text, sizeof best);
        }
    freeifaddrs(all);
    trn_err err = TRN_OK;
    if (*best)
        *out = trn_xstrdup(best);
    else if (!want)
        *out = trn_xstrdup("127.0.0.1");
    else
        err = trn_errorf(TRN_NOT_FOUND, "--interface=%s: this machine has %s", want, seen.p);
    trn_sb_fini(&seen);
    return err;
}
