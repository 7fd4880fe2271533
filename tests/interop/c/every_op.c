/* Calls every function of trainera/ops.h with plain arguments, each in a graph of its own: every_op FILE writes the graphs, one line of text before each
 * ("MatMul 123", its op and length), for test_c_ops.py. Without FILE it only tells which calls fail. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <trainera/trainera.h>

static trn_tensor *some_tensor;

/* A tensor of a type, with nothing known of its shape. */
static trn_out some(trn_builder *b, int dtype) { return trn_placeholder(b, "in", (trn_dtype)dtype, trn_shape_unknown()); }

static trn_out some_ref(trn_builder *b, int dtype)
{
    trn_shape any = trn_shape_unknown();
    return trn_op_variable_v2(trn_named(b, "in"), &any, (trn_dtype)dtype, NULL);
}

#include "every_op_calls.h"

int main(int argc, char **argv)
{
    FILE *f = argc > 1 ? fopen(argv[1], "wb") : NULL;
    int bad = argc > 1 && !f;
    some_tensor = trn_tensor_f32(1);
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        trn_builder *b = trn_builder_new();
        calls[i].call(b);
        void *def = NULL;
        size_t n = 0;
        trn_err err = trn_builder_check(b);
        if (!err)
            err = trn_builder_export(&def, &n, b);
        const trn_node *node = err ? NULL : trn_out_op(b, trn_find(b, "it"));
        if (err || !node || strcmp(node->op, calls[i].op) != 0) {
            printf("%s: %s\n", calls[i].op, err ? trn_err_msg(err) : "not the node that was asked for");
            bad++;
        } else if (f) {
            fprintf(f, "%s %zu\n", calls[i].op, n);
            fwrite(def, 1, n, f);
        }
        trn_err_free(err);
        free(def);
        trn_builder_free(b);
    }
    trn_tensor_unref(some_tensor);
    return (f && fclose(f)) || bad > 0;
}
