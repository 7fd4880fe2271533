/* Optimizers against TensorFlow 2.15.1: two steps on small variables, both kinds of variable, every dtype; then what goes wrong. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <pthread.h>

#include "check.h"
#include "statetest.h"
#include "ops/state.h"

enum { N = 6 };
static const float start[4][N] = {
    {.5f, -.25f, 1, -2, .125f, .75f}, {.5f, .6f, .7f, .8f, .9f, 1}, {1.1f, 1.2f, 1.3f, 1.4f, 1.5f, 1.6f}, {.05f, .1f, .15f, .2f, .25f, .3f}};
static const float gradient[N] = {.3f, -.6f, .9f, .1f, -.2f, .4f};
static const struct {
    const char *name;
    double v;
} scalars[] = {{"alpha", .3},      {"lr", .2},         {"l1", .05},        {"l2", .1},          {"l2_shrinkage", .03}, {"lr_power", -.5},
               {"rho", .9},        {"epsilon", 1e-3},  {"momentum", .85},  {"beta1_power", .9}, {"beta2_power", .999}, {"beta1", .9},
               {"beta2", .999},    {"sign_decay", .7}, {"logbase", 1.1},   {"beta", .8}};

/* Variables and slots ([3,2] each) after two steps; sparse ones name rows 1, 0, 1. */
static const struct golden {
    const char *op;    /* without "Resource" */
    const char *attr;  /* a bool attr that is not at its default */
    bool attr_is;
    const char *other; /* a scalar that differs from the table */
    double other_is;
    int n_vars;
    float want[4][N];
} goldens[] = {
    {"ApplyGradientDescent", NULL, false, NULL, 0, 1, {{0.319999993, 0.110000014, 0.460000008, -2.05999994, 0.245000005, 0.50999999}}},
    {"ApplyProximalGradientDescent", NULL, false, NULL, 0, 1, {{0.270383626, 0.108351424, 0.39725709, -1.91389382, 0.203930646,
     0.448628545}}},
    {"ApplyProximalGradientDescent", NULL, false, "l1", 0, 1, {{0.299085706, 0.108775586, 0.42595914, -1.94259596, 0.232632682,
     0.477330625}}},
    {"ApplyAdadelta", NULL, false, NULL, 0, 3, {{0.31435591, 0.0962459445, 0.513375044, -2.0557189, 0.233566254, 0.538590014},
     {0.422099978, 0.554400027, 0.720900059, 0.64989996, 0.736599922, 0.84040004}, {0.931925595, 1.11436462, 1.33420396, 1.13768661,
     1.22899652, 1.34907413}}},
    {"ApplyAdagrad", NULL, false, NULL, 0, 2, {{0.349125981, -0.023078911, 0.735342264, -2.04430866, 0.206662953, 0.606090784},
     {0.680000067, 1.32000005, 2.31999993, 0.819999993, 0.980000019, 1.31999993}}},
    {"ApplyAdagrad", "update_slots", false, NULL, 0, 2, {{0.330294371, 0.0598386824, 0.569717765, -2.0447216, 0.2093274, 0.590000033},
     {0.5, 0.600000024, 0.699999988, 0.800000012, 0.899999976, 1}}},
    {"ApplyAdagradV2", NULL, false, NULL, 0, 2, {{0.349315643, -0.0232946202, 0.73553896, -2.04425955, 0.20657967, 0.606220245},
     {0.680000067, 1.32000005, 2.31999993, 0.819999993, 0.980000019, 1.31999993}}},
    {"ApplyAdagradV2", "update_slots", false, NULL, 0, 2, {{0.330534041, 0.0594391823, 0.570231438, -2.04467154, 0.209238619,
     0.590159893}, {0.5, 0.600000024, 0.699999988, 0.800000012, 0.899999976, 1}}},
    {"ApplyProximalAdagrad", NULL, false, NULL, 0, 2, {{0.306178451, -0.00179078127, 0.697935879, -1.93568242, 0.179469571, 0.566097796},
     {0.680000067, 1.32000005, 2.31999993, 0.819999993, 0.980000019, 1.31999993}}},
    {"ApplyProximalAdagrad", NULL, false, "l1", 0, 2, {{0.330406129, -0.0201766472, 0.712319851, -1.95712161, 0.199276671, 0.583612382},
     {0.680000067, 1.32000005, 2.31999993, 0.819999993, 0.980000019, 1.31999993}}},
    {"ApplyAdagradDA", NULL, false, NULL, 0, 3, {{-0.170740128, 0.0701439083, -0.274473846, -0.146146894, -0.06168174, -0.238489285},
     {1.10000002, -0.600000024, 2.5, 1, 0.5, 1.79999995}, {1.28000009, 1.92000008, 2.91999984, 1.41999996, 1.57999992, 1.91999996}}},
    {"ApplyAdagradDA", NULL, false, "l1", 0, 3, {{-0.187814146, 0.0841726884, -0.285910249, -0.162385449, -0.0771021694, -0.252518058},
     {1.10000002, -0.600000024, 2.5, 1, 0.5, 1.79999995}, {1.28000009, 1.92000008, 2.91999984, 1.41999996, 1.57999992, 1.91999996}}},
    {"ApplyFtrl", NULL, false, NULL, 0, 3, {{-0.365758657, -0.0572361425, -0.144974291, -0.341519654, -0.206219733, -0.364706099},
     {0.680000067, 1.32000005, 2.31999993, 0.819999993, 0.980000019, 1.31999993}, {1.63121319, 0.390243828, 1.18308616, 1.66459978,
     1.11197948, 2.21801805}}},
    {"ApplyFtrl", "multiply_linear_by_lr", true, NULL, 0, 3, {{-1.45471311, -0.998601079, -0.964633107, -1.53300893, -1.39488459,
     -1.5105989}, {0.680000067, 1.32000005, 2.31999993, 0.819999993, 0.980000019, 1.31999993}, {1.26777577, 1.19724929, 1.51787066,
     1.45951903, 1.44666076, 1.80596995}}},
    {"ApplyFtrl", NULL, false, "lr_power", -0.7, 3, {{-0.392236114, -0.0803781748, -0.0102022896, -0.35972181, -0.208013192,
     -0.331618965}, {0.680000067, 1.32000005, 2.31999993, 0.819999993, 0.980000019, 1.31999993}, {1.62562656, 0.554176867, 0.143981457,
     1.68727624, 1.11706352, 2.1300993}}},
    {"ApplyFtrl", "multiply_linear_by_lr", true, "lr_power", -0.7, 3, {{-1.59575629, -1.02915514, -0.763203621, -1.6002264, -1.41088593,
     -1.44516337}, {0.680000067, 1.32000005, 2.31999993, 0.819999993, 0.980000019, 1.31999993}, {1.29204214, 1.30108726, 1.41609597,
     1.46668839, 1.45750916, 1.82297432}}},
    {"ApplyFtrl", NULL, false, "l1", 0, 3, {{-0.378133118, -0.0670420304, -0.152855635, -0.35215795, -0.216125265, -0.373658329},
     {0.680000067, 1.32000005, 2.31999993, 0.819999993, 0.980000019, 1.31999993}, {1.63470936, 0.39853555, 1.19468498, 1.66489434,
     1.1129905, 2.22123528}}},
    {"ApplyFtrlV2", NULL, false, NULL, 0, 3, {{-0.368967116, -0.0527276322, -0.15413034, -0.312245935, -0.20483309, -0.369679868},
     {0.680000067, 1.32000005, 2.31999993, 0.819999993, 0.980000019, 1.31999993}, {1.64508367, 0.363442719, 1.25464773, 1.52620256,
     1.10483861, 2.24758506}}},
    {"ApplyFtrlV2", "multiply_linear_by_lr", true, NULL, 0, 3, {{-1.44280815, -0.984591067, -0.967496932, -1.48861384, -1.3796488,
     -1.50400698}, {0.680000067, 1.32000005, 2.31999993, 0.819999993, 0.980000019, 1.31999993}, {1.25748241, 1.18059266, 1.52234721,
     1.41754174, 1.43096864, 1.79813266}}},
    {"ApplyFtrlV2", NULL, false, "lr_power", -0.7, 3, {{-0.395576268, -0.0757577717, -0.0193757545, -0.329037577, -0.206610158,
     -0.336811543}, {0.680000067, 1.32000005, 2.31999993, 0.819999993, 0.980000019, 1.31999993}, {1.63904405, 0.525195122, 0.228485584,
     1.54761684, 1.10986626, 2.16267014}}},
    {"ApplyFtrlV2", "multiply_linear_by_lr", true, "lr_power", -0.7, 3, {{-1.58112025, -1.0154593, -0.767543137, -1.55318928, -1.39541364,
     -1.43970442}, {0.680000067, 1.32000005, 2.31999993, 0.819999993, 0.980000019, 1.31999993}, {1.28028345, 1.28390563, 1.42409086,
     1.42387044, 1.44163525, 1.81612599}}},
    {"ApplyMomentum", NULL, false, NULL, 0, 2, {{0.171749979, -0.0966999978, 0.266849935, -2.30859995, -0.0440500006, 0.207500011},
     {0.91625005, -0.676500022, 2.17075014, 0.763000071, 0.280250013, 1.46249998}}},
    {"ApplyMomentum", "use_nesterov", true, NULL, 0, 2, {{0.100987464, 0.120305017, 0.0168224573, -2.30230999, 0.0613074973, 0.128874987},
     {0.91625005, -0.676500022, 2.17075014, 0.763000071, 0.280250013, 1.46249998}}},
    {"ApplyKerasMomentum", NULL, false, NULL, 0, 2, {{1.11524999, 1.03550005, 1.58774996, -0.798999846, 1.65425003, 2.09450006},
     {0.250250012, 0.655500054, 0.172750041, 0.541000068, 0.724250019, 0.574500084}}},
    {"ApplyKerasMomentum", "use_nesterov", true, NULL, 0, 2, {{0.902962506, 1.0826751, 1.13958752, -1.01914978, 1.50486255, 1.73282516},
     {0.250250012, 0.655500054, 0.172750041, 0.541000068, 0.724250019, 0.574500084}}},
    {"ApplyAdam", NULL, false, NULL, 0, 3, {{0.44321093, -0.299169749, 0.919173181, -2.07466388, 0.0485298522, 0.658711731}, {0.461999983,
     0.371999949, 0.737999976, 0.666999996, 0.690999925, 0.885999978}, {1.0979811, 1.19832098, 1.29902053, 1.39722145, 1.49708152,
     1.5971216}}},
    {"ApplyAdam", "use_nesterov", true, NULL, 0, 3, {{0.445272714, -0.287327319, 0.917277277, -2.06826639, 0.0582422689, 0.663841069},
     {0.461999983, 0.371999949, 0.737999976, 0.666999996, 0.690999925, 0.885999978}, {1.0979811, 1.19832098, 1.29902053, 1.39722145,
     1.49708152, 1.5971216}}},
    {"ApplyAdamWithAmsgrad", NULL, false, NULL, 0, 4, {{0.443223715, -0.299162239, 0.91918087, -2.07464623, 0.048547212, 0.658731639},
     {0.461999983, 0.371999949, 0.737999976, 0.666999996, 0.690999925, 0.885999978}, {1.0979811, 1.19832098, 1.29902053, 1.39722145,
     1.49708152, 1.5971216}, {1.09899008, 1.1991601, 1.29951, 1.39861, 1.49854004, 1.59856009}}},
    {"ApplyAdaMax", NULL, false, NULL, 0, 3, {{-1.21372247, -1.67085624, -1.24473, -3.99723744, -1.85124636, -1.534464}, {0.461999983,
     0.371999949, 0.737999976, 0.666999996, 0.690999925, 0.885999978}, {1.09780121, 1.19760132, 1.29740131, 1.39720142, 1.49700153,
     1.59680164}}},
    {"ApplyRMSProp", NULL, false, NULL, 0, 3, {{-1.48565304, -1.68372369, -1.65074563, -4.26983452, -2.10520577, -2.00776744},
     {0.422099978, 0.554400027, 0.72089994, 0.649900019, 0.736599922, 0.840399981}, {0.962187767, 0.571700394, 1.33242512, 1.05629683,
     0.999513686, 1.31422532}}},
    {"ApplyCenteredRMSProp", NULL, false, NULL, 0, 4, {{0.246801645, -0.0794614553, 0.290406644, -2.36695099, -0.166976601, 0.0791211426},
     {0.0975000113, -0.0330000371, 0.292500019, 0.180999994, 0.164499968, 0.319000006}, {0.908100009, 1.04040003, 1.20689988, 1.1358999,
     1.22259998, 1.32639992}, {0.150528878, -0.141951263, 0.417870641, 0.178887486, 0.114385143, 0.347302079}}},
    {"ApplyAddSign", NULL, false, NULL, 0, 2, {{0.379999995, -0.346000016, 0.639999986, -2.03999996, 0.0929999948, 0.590000033},
     {0.428000003, 0.168000013, 0.771999955, 0.548000038, 0.503999949, 0.783999979}}},
    {"ApplyPowerSign", NULL, false, NULL, 0, 2, {{0.240828037, -0.138876855, 0.222484142, -2.0863905, 0.162041038, 0.404437423},
     {0.428000003, 0.168000013, 0.771999955, 0.548000038, 0.503999949, 0.783999979}}},
    {"SparseApplyProximalGradientDescent", NULL, false, NULL, 0, 1, {{-0.0449147038, -0.26435101, 0.781094193, -1.61794472, 0.125, 0.75}}},
    {"SparseApplyProximalGradientDescent", NULL, false, "l1", 0, 1, {{-0.0453388803, -0.293053061, 0.836850643, -1.67370129, 0.125, 0.75}}},
    {"SparseApplyAdadelta", NULL, false, NULL, 0, 3, {{-0.017881453, -0.309541464, 0.943518937, -1.89453328, 0.125, 0.75}, {0.558899999,
     0.487899989, 0.481170982, 0.612483978, 0.899999976, 1}, {1.20948815, 0.976209939, 0.897564054, 1.08209825, 1.5, 1.60000002}}},
    {"SparseApplyAdagrad", NULL, false, NULL, 0, 2, {{0.21910876, -0.30100739, 0.954670966, -1.92460871, 0.125, 0.75}, {2.11999989,
     0.620000005, 0.959999979, 1.84000003, 0.899999976, 1}}},
    {"SparseApplyAdagrad", "update_slots", false, NULL, 0, 2, {{-0.00911682844, -0.301639795, 0.952190876, -1.91055727, 0.125, 0.75},
     {0.5, 0.600000024, 0.699999988, 0.800000012, 0.899999976, 1}}},
    {"SparseApplyAdagradV2", NULL, false, NULL, 0, 2, {{0.219330907, -0.300942421, 0.954722226, -1.92467952, 0.125, 0.75}, {2.11999989,
     0.620000005, 0.959999979, 1.84000003, 0.899999976, 1}}},
    {"SparseApplyAdagradV2", "update_slots", false, NULL, 0, 2, {{-0.00839787722, -0.301573217, 0.952247977, -1.91065717, 0.125, 0.75},
     {0.5, 0.600000024, 0.699999988, 0.800000012, 0.899999976, 1}}},
    {"SparseApplyProximalAdagrad", NULL, false, NULL, 0, 2, {{0.19508794, -0.262280077, 0.837212324, -1.77159655, 0.125, 0.75},
     {2.11999989, 0.620000005, 0.959999979, 1.84000003, 0.899999976, 1}}},
    {"SparseApplyProximalAdagrad", NULL, false, "l1", 0, 2, {{0.210333541, -0.28684029, 0.877869666, -1.80334675, 0.125, 0.75},
     {2.11999989, 0.620000005, 0.959999979, 1.84000003, 0.899999976, 1}}},
    {"SparseApplyAdagradDA", NULL, false, NULL, 0, 3, {{-0.260471821, -0.122320317, -0.124127276, -0.037452016, 0.125, 0.75}, {2.29999995,
     0.800000072, 0.900000036, 0.400000006, 0.899999976, 1}, {2.71999979, 1.22000003, 1.55999994, 2.44000006, 1.5, 1.60000002}}},
    {"SparseApplyAdagradDA", NULL, false, "l1", 0, 3, {{-0.272311449, -0.139794648, -0.139643192, -0.0499360189, 0.125, 0.75},
     {2.29999995, 0.800000072, 0.900000036, 0.400000006, 0.899999976, 1}, {2.71999979, 1.22000003, 1.55999994, 2.44000006, 1.5,
     1.60000002}}},
    {"SparseApplyFtrl", NULL, false, NULL, 0, 3, {{-0.264911532, -0.330626935, -0.256367892, -0.495997816, 0.125, 0.75}, {2.11999989,
     0.620000005, 0.959999979, 1.84000003, 0.899999976, 1}, {2.0315671, 1.41780484, 1.35721445, 3.51322031, 1.5, 1.60000002}}},
    {"SparseApplyFtrl", "multiply_linear_by_lr", true, NULL, 0, 3, {{-1.00780833, -1.499897, -1.37606883, -1.49865389, 0.125, 0.75},
     {2.11999989, 0.620000005, 0.959999979, 1.84000003, 0.899999976, 1}, {1.51770329, 1.25101602, 1.41330934, 2.1028192, 1.5,
     1.60000002}}},
    {"SparseApplyFtrl", NULL, false, "lr_power", -0.7, 3, {{-0.179037705, -0.363635808, -0.249518529, -0.606045842, 0.125, 0.75},
     {2.11999989, 0.620000005, 0.959999979, 1.84000003, 0.899999976, 1}, {1.60058749, 1.42382753, 1.31235027, 4.81473589, 1.5,
     1.60000002}}},
    {"SparseApplyFtrl", "multiply_linear_by_lr", true, "lr_power", -0.7, 3, {{-0.884129941, -1.6479044, -1.42083621, -1.58039701, 0.125,
     0.75}, {2.11999989, 0.620000005, 0.959999979, 1.84000003, 0.899999976, 1}, {1.54143262, 1.25516701, 1.44764328, 2.49501801, 1.5,
     1.60000002}}},
    {"SparseApplyFtrl", NULL, false, "l1", 0, 3, {{-0.273353517, -0.342806816, -0.267134219, -0.504950047, 0.125, 0.75}, {2.11999989,
     0.620000005, 0.959999979, 1.84000003, 0.899999976, 1}, {2.04471421, 1.4181931, 1.36211181, 3.52572775, 1.5, 1.60000002}}},
    {"SparseApplyFtrlV2", NULL, false, NULL, 0, 3, {{-0.268776268, -0.322581351, -0.259129226, -0.46205169, 0.125, 0.75}, {2.11999989,
     0.620000005, 0.959999979, 1.84000003, 0.899999976, 1}, {2.06047583, 1.38452029, 1.3712945, 3.2761972, 1.5, 1.60000002}}},
    {"SparseApplyFtrlV2", "multiply_linear_by_lr", true, NULL, 0, 3, {{-1.00571406, -1.47489321, -1.33857107, -1.43722129, 0.125, 0.75},
     {2.11999989, 0.620000005, 0.959999979, 1.84000003, 0.899999976, 1}, {1.51457024, 1.23032784, 1.37506926, 2.01703072, 1.5,
     1.60000002}}},
    {"SparseApplyFtrlV2", NULL, false, "lr_power", -0.7, 3, {{-0.18329142, -0.354331523, -0.252893329, -0.570935249, 0.125, 0.75},
     {2.11999989, 0.620000005, 0.959999979, 1.84000003, 0.899999976, 1}, {1.63742757, 1.38867569, 1.3294239, 4.53869629, 1.5,
     1.60000002}}},
    {"SparseApplyFtrlV2", "multiply_linear_by_lr", true, "lr_power", -0.7, 3, {{-0.883498788, -1.61820424, -1.38124478, -1.52082539,
     0.125, 0.75}, {2.11999989, 0.620000005, 0.959999979, 1.84000003, 0.899999976, 1}, {1.54033947, 1.23272538, 1.40758359, 2.40134764,
     1.5, 1.60000002}}},
    {"SparseApplyMomentum", NULL, false, NULL, 0, 2, {{-0.170249999, -0.495700032, 0.461494088, -2.11478591, 0.125, 0.75}, {2.02624989,
     0.618500113, 0.460141957, 0.228129983, 0.899999976, 1}}},
    {"SparseApplyMomentum", "use_nesterov", true, NULL, 0, 2, {{-0.429712474, -0.498845041, 0.502269983, -2.01756811, 0.125, 0.75},
     {2.02624989, 0.618500113, 0.460141957, 0.228129983, 0.899999976, 1}}},
    {"SparseApplyKerasMomentum", NULL, false, NULL, 0, 2, {{0.773250043, 0.636500061, 2.7367444, 0.485500067, 0.125, 0.75}, {0.0282500237,
     0.396500021, 0.346456885, 0.455500036, 0.899999976, 1}}},
    {"SparseApplyKerasMomentum", "use_nesterov", true, NULL, 0, 2, {{0.372262567, 0.463525027, 2.43623281, 0.192675114, 0.125, 0.75},
     {0.0282500237, 0.396500021, 0.346456885, 0.455500036, 0.899999976, 1}}},
    {"SparseApplyRMSProp", NULL, false, NULL, 0, 3, {{-1.92685688, -2.21586132, -2.71980977, -5.42866468, 0.125, 0.75}, {0.558899999,
     0.487899989, 0.481170982, 0.612483978, 0.899999976, 1}, {1.24507296, 0.918694973, 0.699093819, 0.692261398, 1.5, 1.60000002}}},
    {"SparseApplyCenteredRMSProp", NULL, false, NULL, 0, 4, {{-0.0829120874, -0.463346362, 0.445071816, -2.26312327, 0.125, 0.75},
     {0.211500034, 0.100000001, 0.11108499, 0.105879977, 0.25, 0.300000012}, {1.04489994, 0.97390002, 0.874830842, 1.00614393, 1.5,
     1.60000002}, {0.365065008, 0.109029695, 0.0937624723, 0.075684756, 0.25, 0.300000012}}},
};

static trn_tensor *make(trn_dtype dtype, int rank, const int64_t *dims, const float *v)
{
    trn_shape shape = {.rank = rank};
    for (int i = 0; i < rank; i++)
        shape.dim[i] = dims[i];
    trn_tensor *t;
    ok(trn_tensor_new(&t, dtype, &shape));
    for (int64_t i = 0; i < t->count; i++)
        switch (dtype) {
        case TRN_DOUBLE: TRN_DATA_MUT(t, double)[i] = v[i]; break;
        case TRN_HALF: TRN_DATA_MUT(t, trn_half)[i] = trn_half_from_f32(v[i]); break;
        case TRN_BFLOAT16: TRN_DATA_MUT(t, trn_bf16)[i] = trn_bf16_from_f32(v[i]); break;
        default: TRN_DATA_MUT(t, float)[i] = v[i]; break;
        }
    return t;
}

/* Variables and dense gradients are [3, 2], or that over and over again. */
static int64_t n_rows = 3;
static trn_tensor *make_rows(trn_dtype dtype, const float *v)
{
    if (n_rows == 3)
        return make(dtype, 2, (int64_t[]){3, 2}, v);
    float *all = malloc((size_t)n_rows * 2 * sizeof *all);
    for (int64_t i = 0; i < n_rows * 2; i++)
        all[i] = v[i % N];
    trn_tensor *t = make(dtype, 2, (int64_t[]){n_rows, 2}, all);
    free(all);
    return t;
}

static double at(const trn_tensor *t, int64_t i)
{
    switch (t->dtype) {
    case TRN_DOUBLE: return TRN_DATA(t, double)[i];
    case TRN_HALF: return trn_half_to_f32(TRN_DATA(t, trn_half)[i]);
    case TRN_BFLOAT16: return trn_bf16_to_f32(TRN_DATA(t, trn_bf16)[i]);
    default: return TRN_DATA(t, float)[i];
    }
}

/* A variable of either kind: what goes into the op. */
static trn_value variable(st *s, bool ref, int i, trn_dtype dtype)
{
    char name[8] = {'v', (char)('0' + i), 0};
    trn_shape shape = trn_shape_of(2, n_rows, (int64_t)2);
    st_node *n = st_op(s, ref ? "VariableV2" : "VarHandleOp", name), *a = st_op(s, ref ? "Assign" : "AssignVariableOp", "init");
    st_type(s, n, "dtype", dtype);
    st_shape(s, n, "shape", &shape);
    st_type(s, a, ref ? "T" : "dtype", dtype);
    trn_value v, out = {0};
    ok(st_run(s, n, NULL, 0, &v));
    trn_value in[2] = {v, st_t(make_rows(dtype, start[i]))};
    if (in[0].t)
        trn_tensor_ref(in[0].t);
    ok(st_run_give(s, a, in, 2, &out, true));
    st_drop(out);
    return v;
}

static trn_tensor *value_of(st *s, trn_value v, trn_dtype dtype)
{
    trn_tensor *t;
    if (v.var) {
        ok(trn_var_read(&t, v.var));
        return t;
    }
    st_node *n = st_op(s, "ReadVariableOp", "read");
    st_type(s, n, "dtype", dtype);
    trn_value out;
    ok(st_run(s, n, &v, 1, &out));
    return out.t;
}

/* Input i of the node by its name in the row. */
static trn_value argument(const struct golden *g, const char *name, trn_dtype dtype, int step)
{
    int64_t three = 3;
    const int32_t named[3] = {1, 0, 1};
    if (strcmp(name, "grad") == 0 || strcmp(name, "delta") == 0)
        return st_t(make_rows(dtype, gradient));
    if (strcmp(name, "indices") == 0)
        return st_t(trn_tensor_from(TRN_INT32, 1, &three, named));
    if (strcmp(name, "global_step") == 0)
        return st_t(trn_tensor_i64(step + 1));
    for (size_t i = 0; i < TRN_COUNTOF(scalars); i++)
        if (strcmp(scalars[i].name, name) == 0) {
            float v = (float)(g->other && strcmp(g->other, name) == 0 ? g->other_is : scalars[i].v);
            return st_t(make(dtype, 0, NULL, &v));
        }
    fail_msg("no value for %s", name);
    return (trn_value){0};
}

static void check_one(const struct golden *g, bool ref, trn_dtype dtype, bool read_between)
{
    st *s = st_new();
    trn_value in[ST_MAX_IO] = {0}, vars[4], out;
    char op[64];
    snprintf(op, sizeof op, "%s%s", ref ? "" : "Resource", g->op);
    if (!trn_op_find(op)) { /* some have no ref form */
        assert_true(ref);
        st_free(s);
        return;
    }
    bool centered = strstr(g->op, "Centered"); /* mean of gradients must be below the root of their mean square */
    for (int i = 0; i < g->n_vars; i++)
        vars[i] = variable(s, ref, i, dtype);
    if (centered) {
        st_node *a = st_op(s, ref ? "Assign" : "AssignVariableOp", "small");
        st_type(s, a, ref ? "T" : "dtype", dtype);
        trn_value two[2] = {vars[1], st_t(make_rows(dtype, start[3]))};
        ok(st_run(s, a, two, 2, &out));
        if (ref)
            st_drop(out);
        st_drop(two[1]);
    }
    st_node *n = st_op(s, op, "update");
    st_type(s, n, "T", dtype);
    if (strstr(op, "Sparse"))
        st_type(s, n, "Tindices", TRN_INT32);
    if (g->attr)
        st_bool(s, n, g->attr, g->attr_is);
    ok(st_prepare(s, n));
    for (int step = 0; step < 2; step++) {
        /* A reader that still holds the value must keep it, and the update must come out the same. */
        trn_tensor *held = read_between ? value_of(s, vars[0], dtype) : NULL, *was = NULL;
        if (held)
            ok(trn_tensor_copy(&was, held));
        for (int i = 0; i < n->n.n_in; i++) {
            in[i] = i < g->n_vars ? vars[i] : argument(g, n->n.def->in[i].name, dtype, step);
            if (i < g->n_vars && in[i].t)
                trn_tensor_ref(in[i].t);
        }
        out = (trn_value){0};
        ok(st_run_give(s, n, in, n->n.n_in, &out, true));
        if (ref)
            assert_ptr_equal(out.var, vars[0].var);
        st_drop(out);
        if (held)
            assert_memory_equal(held->data, was->data, trn_tensor_bytes(was));
        trn_tensor_unref(held);
        trn_tensor_unref(was);
    }
    double tol = dtype == TRN_HALF ? 4e-3 : dtype == TRN_BFLOAT16 ? 4e-2 : 2e-6;
    for (int v = 0; v < g->n_vars; v++) {
        trn_tensor *t = value_of(s, vars[v], dtype);
        assert_int_equal(t->count, n_rows * 2);
        for (int64_t i = 0; i < t->count; i++)
            if (!(fabs(at(t, i) - g->want[v][i % N]) <= tol * (fabs(g->want[v][i % N]) + 1)))
                fail_msg("%s %s %s %s: variable %d element %d is %.9g, TensorFlow has %.9g", op, trn_dtype_name(dtype), g->attr ? g->attr : "",
                         g->other ? g->other : "", v, (int)i, at(t, i), (double)g->want[v][i % N]);
        trn_tensor_unref(t);
        st_drop(vars[v]);
    }
    st_free(s);
}

static void like_tensorflow(void **state)
{
    const trn_dtype types[] = {TRN_FLOAT, TRN_DOUBLE, TRN_HALF, TRN_BFLOAT16};
    for (size_t i = 0; i < TRN_COUNTOF(goldens); i++)
        for (int ref = 0; ref < 2; ref++)
            for (size_t t = 0; t < TRN_COUNTOF(types); t++) {
                if (types[t] == TRN_BFLOAT16 && strstr(goldens[i].op, "ApplyAdam"))
                    continue; /* 0.999 is 1 in bfloat16 */
                check_one(&goldens[i], ref, types[t], (i + t) % 2);
            }
}

/* Large ones go through some lines at a time, fetched ahead; the last block and the last piece are not whole. */
static void large_like_tensorflow(void **state)
{
    (void)state;
    const trn_dtype types[] = {TRN_FLOAT, TRN_DOUBLE, TRN_HALF};
    for (size_t i = 0; i < TRN_COUNTOF(goldens); i++)
        if (!strstr(goldens[i].op, "Sparse"))
            for (size_t t = 0; t < TRN_COUNTOF(types); t++) {
                n_rows = 3 * (t == 0 ? 100001 : t == 1 ? 50001 : 200001); /* 2.4 MB of each */
                check_one(&goldens[i], false, types[t], (i + t) % 2);
            }
    n_rows = 3;
}

/* ---- a product as the gradient ------------------------------------------------------------------------------------ */

static void in_pieces(const trn_kctx *k, int64_t n, int64_t grain, void (*fn)(void *, int64_t, int64_t), void *arg)
{
    (void)k;
    for (int64_t i = (n - 1) / grain * grain; i >= 0; i -= grain)
        fn(arg, i, TRN_MIN(i + grain, n));
}
static int two_threads(const trn_kctx *k) { return 2; }
static const trn_step_api pieces_api = {.parallel_for = in_pieces, .threads = two_threads};

static void is_crowded(st *s, trn_value handle)
{
    st_node *n = st_op(s, "AssignAddVariableOp", "find");
    st_type(s, n, "dtype", TRN_FLOAT);
    ok(st_prepare(s, n));
    trn_kctx k = {.node = &n->n, .in = &handle, .n_in = 1, .step = &s->step};
    trn_var *v;
    ok(trn_k_var(&v, &k, 0, TRN_FLOAT));
    v->crowded = 3;
    trn_resource_unref(&v->base);
}

/* The identity times the gradient, by the one node that is made of both. */
static void check_product(const struct golden *g, bool transpose, bool crowded)
{
    st *s = st_new();
    s->step.api = &pieces_api;
    char op[64];
    snprintf(op, sizeof op, "Resource%s", g->op);
    st_node *was = st_op(s, op, "was"), *n = st_op(s, "_MatMulUpdate", "update");
    st_type(s, was, "T", TRN_FLOAT);
    ok(st_prepare(s, was));
    trn_value vars[4], out, in[ST_MAX_IO];
    for (int i = 0; i < g->n_vars; i++)
        vars[i] = variable(s, false, i, TRN_FLOAT);
    if (strstr(op, "Centered")) {
        int64_t dims[2] = {3, 2};
        st_node *a = st_op(s, "AssignVariableOp", "small");
        st_type(s, a, "dtype", TRN_FLOAT);
        trn_value two[2] = {vars[1], st_t(make(TRN_FLOAT, 2, dims, start[3]))};
        ok(st_run(s, a, two, 2, &out));
        st_drop(two[1]);
    }
    st_str(s, n, "update", op);
    st_int(s, n, "num_vars", g->n_vars);
    st_int(s, n, "num_args", was->n.n_in - g->n_vars - 1);
    st_bool(s, n, "transpose_a", transpose);
    st_bool(s, n, "transpose_b", transpose);
    if (g->attr)
        st_bool(s, n, g->attr, g->attr_is);
    ok(st_prepare(s, n));
    if (crowded)
        is_crowded(s, vars[g->n_vars - 1]);
    for (int step = 0; step < 2; step++) {
        const float unit[9] = {1, 0, 0, 0, 1, 0, 0, 0, 1}, *q = gradient, turned[N] = {q[0], q[2], q[4], q[1], q[3], q[5]};
        int64_t square[2] = {3, 3}, dims[2] = {transpose ? 2 : 3, transpose ? 3 : 2};
        int at = 0;
        for (; at < g->n_vars; at++)
            in[at] = st_t(trn_tensor_ref(vars[at].t));
        in[at++] = st_t(make(TRN_FLOAT, 2, square, unit));
        in[at++] = st_t(make(TRN_FLOAT, 2, dims, transpose ? turned : gradient));
        for (int i = g->n_vars; i < was->n.n_in; i++)
            if (strcmp(was->n.def->in[i].name, "grad") != 0 && strcmp(was->n.def->in[i].name, "delta") != 0)
                in[at++] = argument(g, was->n.def->in[i].name, TRN_FLOAT, step);
        trn_tensor *held = step ? value_of(s, vars[0], TRN_FLOAT) : NULL, *copy = NULL;
        if (held)
            ok(trn_tensor_copy(&copy, held));
        ok(st_run_give(s, n, in, at, &out, true));
        if (held)
            assert_memory_equal(held->data, copy->data, trn_tensor_bytes(copy));
        trn_tensor_unref(held);
        trn_tensor_unref(copy);
    }
    for (int v = 0; v < g->n_vars; v++) {
        trn_tensor *t = value_of(s, vars[v], TRN_FLOAT);
        for (int i = 0; i < N; i++)
            if (!(fabs(at(t, i) - g->want[v][i]) <= 2e-6 * (fabs(g->want[v][i]) + 1)))
                fail_msg("%s with a product: variable %d element %d is %.9g, not %.9g", op, v, i, at(t, i), (double)g->want[v][i]);
        trn_tensor_unref(t);
        st_drop(vars[v]);
    }
    st_free(s);
}

static void products_like_tensorflow(void **state)
{
    int n = 0;
    for (size_t i = 0; i < TRN_COUNTOF(goldens); i++)
        if (!strstr(goldens[i].op, "Sparse") && !strstr(goldens[i].op, "AdagradDA")) {
            check_product(&goldens[i], i % 2, false);
            check_product(&goldens[i], i % 3 == 0, true);
            n++;
        }
    assert_true(n >= 17);
}

static trn_value zeros_of(st *s, int64_t m, int64_t n)
{
    trn_shape shape = trn_shape_of(2, m, n);
    st_node *h = st_op(s, "VarHandleOp", "w"), *a = st_op(s, "AssignVariableOp", "init");
    st_type(s, h, "dtype", TRN_FLOAT);
    st_shape(s, h, "shape", &shape);
    st_type(s, a, "dtype", TRN_FLOAT);
    trn_value v, out;
    ok(st_run(s, h, NULL, 0, &v));
    trn_tensor *zeros;
    ok(trn_tensor_new(&zeros, TRN_FLOAT, &shape));
    memset(zeros->data, 0, trn_tensor_bytes(zeros));
    trn_value in[2] = {st_t(trn_tensor_ref(v.t)), st_t(zeros)};
    ok(st_run_give(s, a, in, 2, &out, true));
    return v;
}

static trn_tensor *noise(int64_t m, int64_t n, unsigned seed)
{
    trn_tensor *t;
    ok(trn_tensor_new(&t, TRN_FLOAT, &(trn_shape){.rank = 2, .dim = {m, n}}));
    for (int64_t i = 0; i < t->count; i++)
        TRN_DATA_MUT(t, float)[i] = (float)((seed = seed * 1664525u + 1013904223u) >> 8) / 16777216.f - .5f;
    return t;
}

/* variable -= rate · aᵀ·b */
static st_node *sgd_product(st *s)
{
    st_node *up = st_op(s, "_MatMulUpdate", "up");
    st_str(s, up, "update", "ResourceApplyGradientDescent");
    st_int(s, up, "num_vars", 1);
    st_int(s, up, "num_args", 1);
    st_bool(s, up, "transpose_a", true);
    return up;
}

/* More rows than columns, more columns than rows, one piece and many, nothing to sum: bit for bit what the product and then the update give. */
static void products_in_pieces(void **state)
{
    static const int64_t sizes[][3] = {{300, 200, 33}, {200, 300, 33}, {784, 512, 100}, {5, 3, 2}, {40, 30, 0}, {100, 1, 50}, {0, 4, 3}};
    for (size_t i = 0; i < TRN_COUNTOF(sizes); i++) {
        int64_t m = sizes[i][0], n = sizes[i][1], k = sizes[i][2];
        st *s = st_new();
        s->step.api = &pieces_api;
        trn_value v = zeros_of(s, m, n), out;
        st_node *up = sgd_product(s), *mul = st_op(s, "MatMul", "mul");
        st_bool(s, mul, "transpose_a", true);
        st_type(s, mul, "T", TRN_FLOAT);
        trn_value a = st_t(noise(k, m, 1)), b = st_t(noise(k, n, 2)), ab[2] = {a, b};
        trn_value in[4] = {v, a, b, st_t(trn_tensor_f32(-1))};
        ok(st_run(s, up, in, 4, &out));
        ok(st_run(s, mul, ab, 2, &out));
        trn_tensor *w = value_of(s, v, TRN_FLOAT);
        for (int64_t e = 0; e < w->count; e++)
            if (TRN_DATA(w, float)[e] != TRN_DATA(out.t, float)[e])
                fail_msg("%lld x %lld, %lld: element %lld is %.9g, not %.9g", (long long)m, (long long)n, (long long)k, (long long)e, (double)TRN_DATA(w, float)[e],
                         (double)TRN_DATA(out.t, float)[e]);
        trn_tensor_unref(w);
        st_drop(out);
        for (int q = 0; q < 4; q++)
            st_drop(in[q]);
        st_free(s);
    }
}

static bool may_owe(const trn_kctx *k) { return true; }
static trn_later *kept;
static void keep(const trn_kctx *k, trn_later *l) { kept = l; }
static const trn_step_api owing_api = {.parallel_for = in_pieces, .threads = two_threads, .may_owe = may_owe, .owe = keep};

/* The kernel ends with nothing done; whoever comes to the variable next, or to a slot, finds everything done. `held`: somebody has the old value, which stays as it was. */
static void products_are_owed(void **state)
{
    enum { READ, UPDATE, ROWS, DROP, WAYS };
    for (int way = 0; way < 2 * WAYS; way++) {
        bool held = way >= WAYS;
        st *s = st_new();
        s->step.api = &owing_api;
        int64_t m = 500, n = 300, k = 100;
        trn_value v = zeros_of(s, m, n), out;
        st_node *up = sgd_product(s), *mul = st_op(s, "MatMul", "mul"), *gather = st_op(s, "ResourceGather", "rows");
        st_bool(s, mul, "transpose_a", true);
        st_type(s, mul, "T", TRN_FLOAT);
        st_type(s, gather, "dtype", TRN_FLOAT);
        st_type(s, gather, "Tindices", TRN_INT32);
        trn_tensor *was = held ? value_of(s, v, TRN_FLOAT) : NULL;
        trn_value a = st_t(noise(k, m, 1)), b = st_t(noise(k, n, 2)), ab[2] = {a, b}, in[4] = {v, a, b, st_t(trn_tensor_f32(-1))};
        kept = NULL;
        ok(st_run(s, up, in, 4, &out));
        assert_non_null(kept);
        assert_int_equal(trn_later_count(), 1);
        assert_int_equal(kept->next, 0);
        if (way % WAYS == UPDATE) {
            trn_later *first = kept;
            ok(st_run(s, up, in, 4, &out));
            assert_int_equal(first->done, m);
            assert_true(kept != first);
            assert_int_equal(trn_later_count(), 1);
            trn_later_unref(first);
        }
        if (way % WAYS == ROWS) {
            trn_value at[2] = {v, st_t(trn_tensor_from(TRN_INT32, 1, (int64_t[]){1}, (int32_t[]){499}))};
            ok(st_run(s, gather, at, 2, &out));
            assert_int_equal(kept->done, m);
            st_drop(out);
            st_drop(at[1]);
        }
        if (way % WAYS != DROP) {
            ok(st_run(s, mul, ab, 2, &out));
            trn_tensor *w = value_of(s, v, TRN_FLOAT);
            float times = way % WAYS == UPDATE ? 2 : 1;
            for (int64_t e = 0; e < w->count; e++)
                assert_true(TRN_DATA(w, float)[e] == times * TRN_DATA(out.t, float)[e]);
            trn_tensor_unref(w);
            st_drop(out);
            assert_int_equal(trn_later_count(), 0);
        }
        for (int64_t e = 0; was && e < was->count; e++)
            assert_true(TRN_DATA(was, float)[e] == 0);
        trn_tensor_unref(was);
        for (int q = 0; q < 4; q++)
            st_drop(in[q]);
        st_free(s);
        assert_int_equal(trn_later_count(), 0); /* a variable that goes does what is left: its slots may stay */
        trn_later_unref(kept);
    }
}

/* A piece for which there is no memory is done without: an update is never left half done. */
static void products_without_memory(void **state)
{
    static const char *const faults[] = {"buf.new", "buf.new:1", "buf.new:2", "buf.new:3"};
    static const int64_t sizes[][3] = {{300, 200, 33}, {200, 300, 33}};
    for (size_t i = 0; i < 2 * TRN_COUNTOF(faults); i++) {
        int64_t m = sizes[i % 2][0], n = sizes[i % 2][1], k = sizes[i % 2][2];
        st *s = st_new();
        s->step.api = &pieces_api;
        trn_value v = zeros_of(s, m, n), out;
        st_node *up = sgd_product(s);
        trn_value in[4] = {v, st_t(noise(k, m, 1)), st_t(noise(k, n, 2)), st_t(trn_tensor_f32(-1))};
        ok(st_prepare(s, up));
        trn_faults_set(faults[i / 2]);
        trn_err err = st_run(s, up, in, 4, &out);
        trn_faults_set(NULL);
        ok(err);
        trn_tensor *w = value_of(s, v, TRN_FLOAT);
        const float *a = TRN_DATA(in[1].t, float), *b = TRN_DATA(in[2].t, float);
        for (int64_t r = 0; r < m; r++)
            for (int64_t c = 0; c < n; c++) {
                double sum = 0;
                for (int64_t e = 0; e < k; e++)
                    sum += (double)a[e * m + r] * (double)b[e * n + c];
                if (!(fabs((double)TRN_DATA(w, float)[r * n + c] - sum) < 1e-5))
                    fail_msg("%s: element %lld, %lld is %.9g, not %.9g", faults[i / 2], (long long)r, (long long)c, (double)TRN_DATA(w, float)[r * n + c], sum);
            }
        trn_tensor_unref(w);
        for (int q = 0; q < 4; q++)
            st_drop(in[q]);
        st_free(s);
    }
}

/* What the optimiser takes for an update that a product may be given to (graph/fuse_update.c), the kernel knows. */
static void products_of_all_updates(void **state)
{
    int n = 0;
    for (int i = 0; i < trn_op_count(); i++) {
        const trn_opdef *d = trn_op_at(i);
        if (strncmp(d->row->name, "ResourceApply", 13) != 0 || strcmp(d->row->name, "ResourceApplyAdagradDA") == 0) /* the one with a number that is not float */
            continue;
        st *s = st_new();
        trn_value v = variable(s, false, 0, TRN_FLOAT), out, in[3] = {v, st_t(noise(3, 4, 1)), st_t(noise(4, 2, 2))};
        st_node *up = st_op(s, "_MatMulUpdate", "up");
        st_str(s, up, "update", d->row->name);
        st_int(s, up, "num_vars", 1);
        st_int(s, up, "num_args", 0);
        trn_err err = st_run(s, up, in, 3, &out);
        if (trn_err_code(err) != TRN_INVALID_ARGUMENT) /* each takes numbers, and says how many */
            fail_msg("%s: %s", d->row->name, trn_err_msg(err));
        trn_err_free(err);
        for (int q = 0; q < 3; q++)
            st_drop(in[q]);
        st_free(s);
        n++;
    }
    assert_true(n >= 17);
}

static void bad_products(void **state)
{
    static const struct {
        const char *update;
        int args;
        int64_t rows, k;
        trn_code code;
    } cases[] = {{"ResourceApplyGradientDescent", 1, 3, 4, TRN_CODE_OK},
                 {"ResourceApplyGradientDescent", 1, 2, 4, TRN_INVALID_ARGUMENT}, /* of another shape than the variable */
                 {"ResourceApplyGradientDescent", 1, 3, 5, TRN_INVALID_ARGUMENT}, /* factors that do not fit */
                 {"ResourceApplyGradientDescent", 2, 3, 4, TRN_INVALID_ARGUMENT},
                 {"ResourceApplyAdam", 6, 3, 4, TRN_INVALID_ARGUMENT}, /* without its slots */
                 {"ResourceApplyAdagradDA", 1, 3, 4, TRN_UNIMPLEMENTED}};
    for (size_t i = 0; i < TRN_COUNTOF(cases); i++) {
        st *s = st_new();
        trn_value v = variable(s, false, 0, TRN_FLOAT), out, in[9] = {v, st_t(noise(cases[i].rows, cases[i].k, 1)), st_t(noise(4, 2, 2))};
        st_node *up = st_op(s, "_MatMulUpdate", "up");
        st_str(s, up, "update", cases[i].update);
        st_int(s, up, "num_vars", 1);
        st_int(s, up, "num_args", cases[i].args);
        for (int q = 0; q < cases[i].args; q++)
            in[3 + q] = st_t(trn_tensor_f32(.1f));
        trn_err err = st_run(s, up, in, 3 + cases[i].args, &out);
        assert_int_equal(trn_err_code(err), cases[i].code);
        trn_err_free(err);
        for (int q = 0; q < 3 + cases[i].args; q++)
            st_drop(in[q]);
        st_free(s);
    }
}

static trn_err sgd(st *s, trn_value var, trn_tensor *alpha, trn_tensor *delta)
{
    st_node *n = st_op(s, "ResourceApplyGradientDescent", "sgd");
    st_type(s, n, "T", TRN_FLOAT);
    trn_value in[3] = {st_t(trn_tensor_ref(var.t)), st_t(alpha), st_t(delta)}, out;
    return st_run_give(s, n, in, 3, &out, true);
}

static void bad_inputs(void **state)
{
    st *s = st_new();
    trn_value v = variable(s, false, 0, TRN_FLOAT), a = variable(s, false, 1, TRN_FLOAT), out;
    int64_t dims[2] = {3, 2}, other[2] = {2, 3}, two = 2;
    fails(sgd(s, v, trn_tensor_f32(1), make(TRN_FLOAT, 2, other, gradient)), TRN_INVALID_ARGUMENT, "same shape");
    fails(sgd(s, v, make(TRN_FLOAT, 1, &two, gradient), make(TRN_FLOAT, 2, dims, gradient)), TRN_INVALID_ARGUMENT, "alpha is not a scalar");

    st_node *h = st_op(s, "VarHandleOp", "nowhere");
    trn_shape shape = trn_shape_of(2, (int64_t)3, (int64_t)2);
    st_type(s, h, "dtype", TRN_FLOAT);
    st_shape(s, h, "shape", &shape);
    trn_value none;
    ok(st_run(s, h, NULL, 0, &none));
    fails(sgd(s, none, trn_tensor_f32(1), make(TRN_FLOAT, 2, dims, gradient)), TRN_INTERNAL, "nowhere");
    st_drop(none);

    st_node *n = st_op(s, "ResourceSparseApplyAdagrad", "sparse");
    st_type(s, n, "T", TRN_FLOAT);
    st_type(s, n, "Tindices", TRN_INT32);
    const int32_t rows[2] = {0, 3};
    trn_value in[5] = {v, a, st_t(trn_tensor_f32(.1f)), st_t(make(TRN_FLOAT, 2, (int64_t[]){2, 2}, gradient)),
                       st_t(trn_tensor_from(TRN_INT32, 1, &two, rows))};
    fails(st_run(s, n, in, 5, &out), TRN_INVALID_ARGUMENT, "indices[1] = 3 is not in [0, 3)");
    trn_tensor *t = value_of(s, v, TRN_FLOAT);
    assert_memory_equal(t->data, start[0], sizeof start[0]); /* row 0 was not touched either */
    trn_tensor_unref(t);
    for (int i = 0; i < 5; i++)
        st_drop(in[i]);
    st_free(s);
}

/* word2vec: however few counterexamples each word has, the step can be cancelled. */
static void cancelled_among_words(void **state)
{
    enum { WORDS = 2000 };
    st *s = st_new();
    st_node *n = st_op(s, "NegTrain", "train");
    trn_attr *counts = st_attr(s, n, "vocab_count", TRN_ATTR_INT);
    counts->is_list = true;
    counts->n = 3;
    static const trn_attr_val some[3] = {{.i = 1}, {.i = 2}, {.i = 3}};
    counts->list = some;
    st_int(s, n, "num_negative_samples", 1000);
    static const int32_t words[WORDS];
    trn_value in[5] = {variable(s, true, 0, TRN_FLOAT), variable(s, true, 1, TRN_FLOAT), st_t(trn_tensor_from(TRN_INT32, 1, (int64_t[]){WORDS}, words)),
                       st_t(trn_tensor_from(TRN_INT32, 1, (int64_t[]){WORDS}, words)), st_t(trn_tensor_f32(0))};
    s->step.cancel = trn_cancel_new();
    ok(st_run(s, n, in, 5, NULL));
    trn_cancel_fire(s->step.cancel, trn_errorf(TRN_CANCELLED, "nobody waits"));
    fails(st_run(s, n, in, 5, NULL), TRN_CANCELLED, "nobody waits");
    trn_cancel_unref(s->step.cancel);
    for (int i = 0; i < 5; i++)
        st_drop(in[i]);
    st_free(s);
}

/* Two optimizers that name the same two variables in opposite order, from several threads: must not deadlock, and must lose no step. */
struct worker {
    st *s;
    st_node *n;
    trn_value a, b;
};

static void *work(void *arg)
{
    struct worker *w = arg;
    trn_err err = TRN_OK;
    int64_t dims[2] = {3, 2};
    trn_tensor *zero = trn_tensor_f32(0), *one = trn_tensor_f32(1), *g;
    float ones[N] = {1, 1, 1, 1, 1, 1};
    g = trn_tensor_from(TRN_FLOAT, 2, dims, ones);
    for (int i = 0; i < 400 && !err; i++) {
        trn_value in[5] = {w->a, w->b, st_t(zero), st_t(g), st_t(one)}, out;
        err = st_run(w->s, w->n, in, 5, &out);
    }
    trn_tensor_unref(zero);
    trn_tensor_unref(one);
    trn_tensor_unref(g);
    return err;
}

static void crossed_locks(void **state)
{
    st *s = st_new();
    trn_value a = variable(s, false, 0, TRN_FLOAT), b = variable(s, false, 1, TRN_FLOAT);
    st_node *n = st_op(s, "ResourceApplyMomentum", "m"); /* lr 0, momentum 1: the slot counts steps */
    st_type(s, n, "T", TRN_FLOAT);
    ok(st_prepare(s, n));
    struct worker w[2] = {{s, n, a, b}, {s, n, b, a}};
    pthread_t t[4];
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&t[i], NULL, work, &w[i % 2]), 0);
    for (int i = 0; i < 4; i++) {
        void *err;
        pthread_join(t[i], &err);
        ok(err);
    }
    for (int v = 0; v < 2; v++) {
        trn_tensor *x = value_of(s, v ? b : a, TRN_FLOAT);
        for (int i = 0; i < N; i++)
            assert_true(fabs(TRN_DATA(x, float)[i] - start[v][i] - 800) < .1);
        trn_tensor_unref(x);
    }
    st_drop(a);
    st_drop(b);
    st_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(like_tensorflow),
        cmocka_unit_test(large_like_tensorflow),
        cmocka_unit_test(products_like_tensorflow),
        cmocka_unit_test(products_in_pieces),
        cmocka_unit_test(products_without_memory),
        cmocka_unit_test(products_are_owed),
        cmocka_unit_test(products_of_all_updates),
        cmocka_unit_test(bad_products),
        cmocka_unit_test(bad_inputs),
        cmocka_unit_test(crossed_locks),
        cmocka_unit_test(cancelled_among_words),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
