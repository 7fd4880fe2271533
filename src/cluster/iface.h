/* Which of this machine's addresses the others should use. */
#ifndef TRN_IFACE_H
#define TRN_IFACE_H

#include "base/base.h"

/* `want`: the name of an interface ("ib0"), a network ("10.1.0.0/16", "fd00::/8"), or NULL: the address of the host's name when it is not loopback, else the
 * first interface that is up, else loopback. Without brackets. */
trn_err trn_iface_address(char **out, const char *want) TRN_MUST_USE;
bool trn_iface_in_network(const char *address, const char *cidr); /* both numeric; false also when one is not */

#endif
