/* Gradients of lists (TensorList…: values that functional loops carry) and of TensorArrays (state that old loops write, ordered by their flow). */
#include "grad/rows.h"

#define IN(i) trn_grad_in(c, i)

static trn_attr element(trn_dtype t) { return trn_attr__type("element_dtype", t); }

static void push_back(trn_grad_ctx *c)
{
    trn_attr t = element(trn_g_type(c, IN(1)));
    trn_out p = trn_g_node(c, "TensorListPopBack", TRN_OUTS(trn_grad_dy(c, 0), trn_g_shape_of(c, IN(1))), &t, 1);
    trn_grad_set(c, 0, p);
    trn_grad_set(c, 1, trn_out_nth(p, 1));
}

static void pop_back(trn_grad_ctx *c)
{
    trn_dtype t = trn_attr_type(c->n, "element_dtype");
    trn_out list = trn_grad_has_dy(c, 0) ? trn_grad_dy(c, 0) : TRN_GE(c, "(EmptyTensorList (TensorListElementShape o shape_type=int32) #-1 element_dtype=@)");
    trn_out d = trn_grad_dy(c, 1);
    if (trn_g_ok(c) && trn_g_type(c, d) != t)
        d = trn_g_cast(c, d, t);
    trn_grad_set(c, 0, TRN_G(c, "TensorListPushBack", list, d));
}

/* The shape of one element of a tensor that is a list in a row. */
static trn_out element_shape(trn_grad_ctx *c, trn_out t) { return TRN_GE(c, "(StridedSlice (Shape $0) #[1] #[0] #[1] end_mask=1)", t); }

static void from_tensor(trn_grad_ctx *c)
{
    trn_attr a = element(trn_g_type(c, IN(0)));
    trn_grad_set(c, 0, trn_g_like(c, trn_g_node(c, "TensorListStack", TRN_OUTS(trn_grad_dy(c, 0), element_shape(c, IN(0))), &a, 1), IN(0)));
}

static void stack(trn_grad_ctx *c)
{
    trn_out d = trn_grad_dy(c, 0);
    trn_grad_set(c, 0, TRN_G(c, "TensorListFromTensor", d, element_shape(c, d)));
}

static void get_item(trn_grad_ctx *c)
{
    trn_out d = trn_grad_dy(c, 0);
    trn_out list = TRN_GE(c, "(TensorListReserve (Shape $0) (TensorListLength x) element_dtype=@)", d);
    trn_grad_set(c, 0, TRN_G(c, "TensorListSetItem", list, IN(1), d));
}

static void set_item(trn_grad_ctx *c)
{
    trn_out d = trn_grad_dy(c, 0);
    trn_attr a = element(trn_g_type(c, IN(2)));
    if (trn_grad_wanted(c, 0))
        trn_grad_set(c, 0, TRN_G(c, "TensorListSetItem", d, IN(1), trn_g_zeros_like(c, IN(2))));
    if (trn_grad_wanted(c, 2))
        trn_grad_set(c, 2, trn_g_node(c, "TensorListGetItem", TRN_OUTS(d, IN(1), trn_g_shape_of(c, IN(2))), &a, 1));
}

static void list_gather(trn_grad_ctx *c)
{
    trn_out d = trn_grad_dy(c, 0);
    trn_out list = TRN_GE(c, "(TensorListReserve $0 (TensorListLength x) element_dtype=@)", element_shape(c, d));
    trn_grad_set(c, 0, TRN_G(c, "TensorListScatterIntoExistingList", list, d, IN(1)));
}

/* tensor and indices are the first inputs of TensorListScatter and TensorListScatterV2. */
static void list_scatter(trn_grad_ctx *c)
{
    trn_attr a = element(trn_g_type(c, IN(0)));
    trn_grad_set(c, 0, trn_g_node(c, "TensorListGather", TRN_OUTS(trn_grad_dy(c, 0), IN(1), element_shape(c, IN(0))), &a, 1));
}

static void list_scatter_into(trn_grad_ctx *c)
{
    trn_out d = trn_grad_dy(c, 0);
    trn_attr a = element(trn_g_type(c, IN(1)));
    if (trn_grad_wanted(c, 0))
        trn_grad_set(c, 0, TRN_G(c, "TensorListScatterIntoExistingList", d, trn_g_zeros_like(c, IN(1)), IN(2)));
    if (trn_grad_wanted(c, 1))
        trn_grad_set(c, 1, trn_g_node(c, "TensorListGather", TRN_OUTS(d, IN(2), element_shape(c, IN(1))), &a, 1));
}

/* ---- TensorArrays: the array of the gradients is found by the name of the array and a source */

static trn_out grad_array(trn_grad_ctx *c, trn_out flow)
{
    trn_attr a = trn_attr__str("source", c->h->source ? c->h->source : "gradients");
    return trn_g_node(c, "TensorArrayGradV3", TRN_OUTS(IN(0), flow), &a, 1);
}

static trn_out flow_of(trn_out array) { return trn_out_nth(array, 1); }

static void array_read(trn_grad_ctx *c)
{
    trn_out g = grad_array(c, IN(2));
    trn_grad_set(c, 2, TRN_G(c, "TensorArrayWriteV3", g, IN(1), trn_grad_dy(c, 0), flow_of(g)));
}

static void array_write(trn_grad_ctx *c)
{
    trn_out d = trn_grad_dy(c, 0), g = grad_array(c, d);
    trn_attr a = trn_attr__type("dtype", trn_g_type(c, IN(2)));
    trn_grad_set(c, 2, trn_g_node(c, "TensorArrayReadV3", TRN_OUTS(g, IN(1), flow_of(g)), &a, 1));
    trn_grad_set(c, 3, d);
}

static void array_gather(trn_grad_ctx *c)
{
    trn_out g = grad_array(c, IN(2));
    trn_grad_set(c, 2, TRN_G(c, "TensorArrayScatterV3", g, IN(1), trn_grad_dy(c, 0), flow_of(g)));
}

static void array_scatter(trn_grad_ctx *c)
{
    trn_out d = trn_grad_dy(c, 0), g = grad_array(c, d);
    trn_attr a = trn_attr__type("dtype", trn_g_type(c, IN(2)));
    trn_grad_set(c, 2, trn_g_node(c, "TensorArrayGatherV3", TRN_OUTS(g, IN(1), flow_of(g)), &a, 1));
    trn_grad_set(c, 3, d);
}

static void array_concat(trn_grad_ctx *c)
{
    trn_out g = grad_array(c, IN(1));
    trn_grad_set(c, 1, TRN_G(c, "TensorArraySplitV3", g, trn_grad_dy(c, 0), trn_grad_out(c, 1), flow_of(g)));
}

static void array_split(trn_grad_ctx *c)
{
    trn_out d = trn_grad_dy(c, 0), g = grad_array(c, d);
    trn_attr a = trn_attr__type("dtype", trn_g_type(c, IN(1)));
    trn_grad_set(c, 1, trn_g_node(c, "TensorArrayConcatV3", TRN_OUTS(g, flow_of(g)), &a, 1));
    trn_grad_set(c, 3, d);
}

const trn_grad_row trn_grads_flow[] = {
    {"TensorArrayConcatV3", .fn = array_concat},
    {"TensorArrayGatherV3", .fn = array_gather},
    {"TensorArrayReadV3", .fn = array_read},
    {"TensorArrayScatterV3", .fn = array_scatter},
    {"TensorArraySplitV3", .fn = array_split},
    {"TensorArrayWriteV3", .fn = array_write},
    {"TensorListFromTensor", .fn = from_tensor},
    {"TensorListGather", .fn = list_gather},
    {"TensorListGetItem", .fn = get_item},
    {"TensorListPopBack", .fn = pop_back},
    {"TensorListPushBack", .fn = push_back},
    {"TensorListResize", {"(TensorListResize d (TensorListLength x))"}},
    {"TensorListScatter", .fn = list_scatter},
    {"TensorListScatterIntoExistingList", .fn = list_scatter_into},
    {"TensorListScatterV2", .fn = list_scatter},
    {"TensorListSetItem", .fn = set_item},
    {"TensorListStack", .fn = stack},
    {0},
};
