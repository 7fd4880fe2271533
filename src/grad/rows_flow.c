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

/* "TensorArrayReadV2", "Write" → "TensorArrayWriteV2": the array of the gradients is of the same kind. */
static const char *sibling(trn_grad_ctx *c, const char *what)
{
    const char *op = c->n->op, *v = op + strlen(op) - 2;
    return trn_arena_printf(c->tmp, "TensorArray%s%s", what, v[0] == 'V' && v[1] >= '2' && v[1] <= '3' ? v : "");
}

/* The array, and what orders its use. Those of the first two kinds have no flow of their own: what follows is ordered by their handle. */
static trn_out grad_array(trn_grad_ctx *c, trn_out *flow)
{
    const char *op = sibling(c, "Grad");
    trn_attr a = trn_attr__str("source", c->h->source ? c->h->source : "gradients");
    trn_out g = trn_g_node(c, op, TRN_OUTS(IN(0), *flow), &a, 1);
    if (op[strlen(op) - 1] == '3')
        *flow = trn_out_nth(g, 1);
    return g;
}

static void array_read(trn_grad_ctx *c)
{
    trn_out flow = IN(2), g = grad_array(c, &flow);
    trn_grad_set(c, 2, TRN_G(c, sibling(c, "Write"), g, IN(1), trn_grad_dy(c, 0), flow));
}

static void array_write(trn_grad_ctx *c)
{
    trn_out d = trn_grad_dy(c, 0), flow = d, g = grad_array(c, &flow);
    trn_attr a = trn_attr__type("dtype", trn_g_type(c, IN(2)));
    trn_grad_set(c, 2, trn_g_node(c, sibling(c, "Read"), TRN_OUTS(g, IN(1), flow), &a, 1));
    trn_grad_set(c, 3, d);
}

static void array_gather(trn_grad_ctx *c)
{
    trn_out flow = IN(2), g = grad_array(c, &flow);
    trn_grad_set(c, 2, TRN_G(c, sibling(c, "Scatter"), g, IN(1), trn_grad_dy(c, 0), flow));
}

static void array_scatter(trn_grad_ctx *c)
{
    trn_out d = trn_grad_dy(c, 0), flow = d, g = grad_array(c, &flow);
    trn_attr a = trn_attr__type("dtype", trn_g_type(c, IN(2)));
    trn_grad_set(c, 2, trn_g_node(c, sibling(c, "Gather"), TRN_OUTS(g, IN(1), flow), &a, 1));
    trn_grad_set(c, 3, d);
}

static void array_concat(trn_grad_ctx *c)
{
    trn_out flow = IN(1), g = grad_array(c, &flow);
    trn_grad_set(c, 1, TRN_G(c, sibling(c, "Split"), g, trn_grad_dy(c, 0), trn_grad_out(c, 1), flow));
}

static void array_split(trn_grad_ctx *c)
{
    trn_out d = trn_grad_dy(c, 0), flow = d, g = grad_array(c, &flow);
    trn_attr a = trn_attr__type("dtype", trn_g_type(c, IN(1)));
    trn_grad_set(c, 1, trn_g_node(c, sibling(c, "Concat"), TRN_OUTS(g, flow), &a, 1));
    trn_grad_set(c, 3, d);
}

const trn_grad_row trn_grads_flow[] = {
    {"TensorArrayConcat", .fn = array_concat},
    {"TensorArrayConcatV2", .fn = array_concat},
    {"TensorArrayConcatV3", .fn = array_concat},
    {"TensorArrayGather", .fn = array_gather},
    {"TensorArrayGatherV2", .fn = array_gather},
    {"TensorArrayGatherV3", .fn = array_gather},
    {"TensorArrayRead", .fn = array_read},
    {"TensorArrayReadV2", .fn = array_read},
    {"TensorArrayReadV3", .fn = array_read},
    {"TensorArrayScatter", .fn = array_scatter},
    {"TensorArrayScatterV2", .fn = array_scatter},
    {"TensorArrayScatterV3", .fn = array_scatter},
    {"TensorArraySplit", .fn = array_split},
    {"TensorArraySplitV2", .fn = array_split},
    {"TensorArraySplitV3", .fn = array_split},
    {"TensorArrayWrite", .fn = array_write},
    {"TensorArrayWriteV2", .fn = array_write},
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
