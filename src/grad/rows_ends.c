/* Where gradients end: what the op gives does not depend on the numbers that it gets, or not smoothly. What TensorFlow says has no gradient is here
 * when a gradient could come to it; tools/check-grads knows. */
#include "grad/rows.h"

const char *const trn_grad_ends[] = {
    "ApproximateEqual", "ArgMax", "ArgMin", "Assert", "Assign", "AssignAdd", "AssignSub", "Bincount", "Bitcast", "BroadcastArgs",
    "BroadcastGradientArgs", "Bucketize", "CTCBeamSearchDecoder", "CTCGreedyDecoder", "Ceil", "ConcatOffset", "DecodeRaw", "DrawBoundingBoxes", "EditDistance", "Equal",
    "ExtractGlimpse", "Floor", "FloorDiv", "GetSessionHandleV2", "Greater", "GreaterEqual", "HSVToRGB", "InTopK", "InTopKV2", "InvertPermutation", "IsFinite", "IsInf",
    "IsNan", "IsVariableInitialized", "Less", "LessEqual", "LinSpace", "LoadAndRemapMatrix", "LogicalAnd", "LogicalNot", "LogicalOr",
    "LookupTableFind", "LookupTableFindV2", "Multinomial", "MutableDenseHashTableV2", "NoOp", "NonMaxSuppression", "NonMaxSuppressionV2", "NonMaxSuppressionWithOverlaps", "NotEqual", "OneHot", "OnesLike",
    "ParameterizedTruncatedNormal", "QueueDequeueManyV2", "QueueDequeueV2", "RaggedRange", "RandomCrop", "RandomShuffle", "RandomStandardNormal", "RandomUniform",
    "RandomUniformInt", "Range", "Rank", "ReduceDataset", "ReduceJoin", "Rint", "Round", "SampleDistortedBoundingBox", "SampleDistortedBoundingBoxV2", "ScatterAdd", "ScatterDiv", "ScatterMul", "ScatterNdAdd",
    "ScatterNdSub", "ScatterNdUpdate", "ScatterSub", "SdcaOptimizer", "SdcaOptimizerV2", "Shape", "ShapeN", "Sign", "Size", "SparseAddGrad", "SparseConcat", "StackPush",
    "StatelessMultinomial", "StatelessRandomBinomial", "StatelessRandomNormal", "StatelessRandomNormalV2", "StatelessRandomPoisson", "StatelessRandomUniform", "StatelessRandomUniformV2",
    "StatelessTruncatedNormal", "StatelessTruncatedNormalV2", "StopGradient", "TensorArrayGradV3", "TensorArrayGradWithShape", "TensorArraySizeV3",
    "TensorListConcatLists", "TensorListElementShape", "TensorListLength", "TensorListPushBackBatch", "TruncateDiv", "TruncatedNormal",
    "VarIsInitializedOp", "VariableShape", "Where", "ZerosLike",
    NULL,
};
