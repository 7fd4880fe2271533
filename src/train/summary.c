/* Summary nodes, as tf.compat.v1.summary makes them: the tag is a constant beside the node, and equal to the node's whole name. */
#include <ctype.h>

#include <trainera/summary.h>

#include "graph/builder.h"
#include "train/save_priv.h"

#define COLLECTION "summaries"

/* Letters that a node's name cannot have become underscores. */
static const char *clean(trn_builder *b, const char *tag)
{
    while (*tag == '/')
        tag++;
    char *s = (char *)(uintptr_t)trn_builder_strdup(b, tag);
    for (char *p = s; *p; p++)
        if (!isalnum((unsigned char)*p) && !strchr("_.\\/-", *p))
            *p = '_';
    if (*s == '_' || *s == '-' || *s == '\\')
        *s = '.';
    return *s ? s : "summary";
}

typedef struct kind {
    const char *op, *tag; /* tag: the name of its constant */
    const trn_attr *attrs;
    int n_attrs;
    bool text;
} kind;

static trn_out add(trn_builder *b, const char *tag, trn_out value, const kind *k)
{
    trn_take_name(b, "");
    if (!trn_builder_ok(b))
        return TRN_NONE;
    trn_name_scope(b, clean(b, tag));
    const char *whole = trn_builder_strdup(b, trn_scope_name(b));
    trn_out in[3] = {trn_const_str(trn_named(b, k->tag), whole), value};
    if (k->text)
        in[2] = trn_const(trn_named(b, "serialized_summary_metadata"), trn_tensor_str(TRN_TEXT_METADATA, sizeof TRN_TEXT_METADATA - 1));
    trn_end(b);
    if (!trn_builder_ok(b))
        return TRN_NONE;
    trn_out o = trn_builder__add_in_scope(b, whole, k->op, in, k->text ? 3 : 2, k->attrs, k->n_attrs);
    if (trn_out_is(o))
        trn_collect(b, COLLECTION, o);
    return o;
}

trn_out trn_summary_scalar(trn_builder *b, const char *tag, trn_out value) { return add(b, tag, value, &(kind){"ScalarSummary", "tags"}); }
trn_out trn_summary_histogram(trn_builder *b, const char *tag, trn_out values) { return add(b, tag, values, &(kind){"HistogramSummary", "tag"}); }
trn_out trn_summary_text(trn_builder *b, const char *tag, trn_out strings) { return add(b, tag, strings, &(kind){"TensorSummaryV2", "tag", .text = true}); }

trn_out trn_summary_image(trn_builder *b, const char *tag, trn_out images, int max_images)
{
    trn_attr at = trn_at_int("max_images", max_images > 0 ? max_images : 3);
    return add(b, tag, images, &(kind){"ImageSummary", "tag", &at, 1});
}

trn_out trn_summary_merge(trn_builder *b, const trn_out *summaries, int n)
{
    const char *name = trn_take_name(b, "Merge/MergeSummary");
    if (!trn_builder_ok(b))
        return TRN_NONE;
    if (n < 1)
        return trn_builder_fail(b, trn_errorf(TRN_INVALID_ARGUMENT, "trn_summary_merge of no summaries"));
    return trn_node_add(trn_named(b, name), "MergeSummary", summaries, n, NULL, 0);
}

trn_out trn_summary_merge_all(trn_builder *b)
{
    int n;
    const trn_out *all = trn_collection(&n, b, COLLECTION);
    if (!n) {
        trn_take_name(b, "");
        return TRN_NONE;
    }
    return trn_summary_merge(b, all, n);
}
