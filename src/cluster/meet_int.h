/* Private to meet*.c. */
#ifndef TRN_MEET_INT_H
#define TRN_MEET_INT_H

#include <jansson.h>

#include "cluster/meet.h"

#define TRN_MEET_SECOND UINT64_C(1000000000)

/* What a task says of itself. */
typedef struct trn_meet_card {
    int index, tasks;
    char *role, *address, *host, *nonce;
    char *ns; /* boot and pid name space: pids are comparable when it is the same */
    int64_t pid;
} trn_meet_card;

struct trn_meet {
    trn_meet_opts o; /* strings are ours */
    char nonce[17];
    trn_meet_card me;
    char **addresses;
    bool met;
    uint64_t begin, next_say, say_every;
    const struct trn_meet_kind *kind;
    void *state; /* of the kind */
};

typedef struct trn_meet_kind {
    trn_err (*gather)(trn_meet *m); /* until addresses are known */
    uint64_t (*tend)(trn_meet *m, uint64_t now);
    void (*close)(trn_meet *m);
} trn_meet_kind;
extern const trn_meet_kind trn_meet__dir, trn_meet__tcp;

json_t *trn_meet__card_json(const trn_meet_card *c);
bool trn_meet__card_read(trn_meet_card *out, json_t *root); /* false: is none; out is empty then */
void trn_meet__card_fini(trn_meet_card *c);
trn_err trn_meet__check(const trn_meet *m, const trn_meet_card *c) TRN_MUST_USE; /* same number of tasks, index in range */
/* From {"members": [{index, address, nonce}, …]} when it is complete and has our nonce. */
bool trn_meet__adopt(trn_meet *m, json_t *root);

void trn_meet__say(trn_meet *m, const char *fmt, ...) TRN_PRINTF(2, 3);
bool trn_meet__say_due(trn_meet *m); /* first after 3 s, then at a falling rate */
/* CANCELLED when asked to stop, DEADLINE_EXCEEDED when time is over: `missing` says for whom we wait. */
trn_err trn_meet__patience(const trn_meet *m, const char *missing) TRN_MUST_USE;
bool trn_meet__gone(const trn_meet *m, const trn_meet_card *c); /* it ran here and does not any more */

#endif
