/* GraphDef text of functions. */
#ifndef TRN_TEST_FUNC_TEXT_H
#define TRN_TEST_FUNC_TEXT_H

#define ARG(name, type) "input_arg { name: '" name "' type: " type " } "
#define RET(name, type) "output_arg { name: '" name "' type: " type " } "
#define FUNC(name, sig, rest) "library { function { signature { name: '" name "' " sig "} " rest "} } "
#define BODY1(name, op, in) "node_def { name: '" name "' op: '" op "' input: '" in "' " T_FLOAT "} "
#define BODY2(name, op, x, y) "node_def { name: '" name "' op: '" op "' input: '" x "' input: '" y "' " T_FLOAT "} "
#define IS(ret, from) "ret { key: '" ret "' value: '" from "' } "
#define BODY_CONST(name, v)                                                                                            \
    "node_def { name: '" name "' op: 'Const' attr { key: 'dtype' value { type: DT_FLOAT } } "                          \
    "attr { key: 'value' value { tensor { dtype: DT_FLOAT tensor_shape {} float_val: " v " } } } } "

#endif
