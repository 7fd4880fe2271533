/* tensorflow.MasterService over a trn_master. */
#ifndef TRN_MASTER_SERVICE_H
#define TRN_MASTER_SERVICE_H

#include "master/master.h"

void trn_master_serve(trn_rpc_server *s, trn_master *m);

#endif
