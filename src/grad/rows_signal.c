/* Gradients of Fourier transforms and of images: patches, colours. */
#include "grad/rows.h"

#define IN(i) trn_grad_in(c, i)

/* "IRFFT2D": 2 */
static int axes_of(const char *op)
{
    const char *n = op + strlen(op) - 2;
    return n[1] == 'D' ? n[0] - '0' : 1;
}

/* How many numbers are transformed together, as a number of d's dtype. */
static trn_out size_of(trn_grad_ctx *c, trn_out x, trn_dtype t)
{
    trn_out from = trn_g_ints_const(c, (const int64_t[]){-axes_of(c->n->op)}, 1);
    return trn_g_cast(c, TRN_GE(c, "(Prod (StridedSlice (Shape $0) $1 #[0] #[1] end_mask=1) #0)", x, from), t);
}

static void fft(trn_grad_ctx *c)
{
    bool back = c->n->op[0] == 'I';
    const char *op = back ? c->n->op + 1 : trn_arena_printf(c->tmp, "I%s", c->n->op);
    trn_out d = trn_grad_dy(c, 0), size = size_of(c, d, trn_g_type(c, d));
    trn_grad_set(c, 0, TRN_G(c, back ? "RealDiv" : "Mul", TRN_G(c, op, d), size));
}

/* Cut, or filled up with zeros behind. */
static trn_out fitted(trn_grad_ctx *c, trn_out x, trn_out shape)
{
    trn_out more = TRN_GE(c, "(Maximum (Sub $0 (Shape $1)) #0)", shape, x);
    return TRN_GE(c, "(Slice (Pad $0 (Pack (ZerosLike $1) $1 axis=1)) (ZerosLike $1) $2)", x, more, shape);
}

/* The result is half of a whole that the other half follows from: with zeros there, the way back is the complex one. */
static void rfft(trn_grad_ctx *c)
{
    int r = axes_of(c->n->op);
    static const char *const back[] = {"IFFT", "IFFT2D", "IFFT3D"};
    trn_out d = trn_grad_dy(c, 0), lead = TRN_GE(c, "(StridedSlice (Shape $0) #[0] $1 #[1] begin_mask=1)", d, trn_g_ints_const(c, (const int64_t[]){-r}, 1));
    trn_out whole = fitted(c, d, TRN_GE(c, "(ConcatV2 $0 y #0)", lead)), z = TRN_G(c, back[r - 1], whole);
    trn_attr t = trn_attr__type("Tout", trn_g_type(c, IN(0)));
    z = trn_g_node(c, "Real", &z, 1, &t, 1);
    trn_grad_set(c, 0, fitted(c, TRN_G(c, "Mul", z, size_of(c, z, t.v.type)), TRN_GE(c, "(Shape x)")));
}

/* Each frequency counts twice, but the first and, of an even length, the middle one. */
static void irfft(trn_grad_ctx *c)
{
    trn_out d = trn_grad_dy(c, 0), len = TRN_GE(c, "(StridedSlice y #[-1] #[0] #[1] end_mask=1 shrink_axis_mask=1)");
    trn_dtype real = trn_g_type(c, d), t = trn_g_type(c, IN(0));
    trn_attr a = trn_attr__type("Tcomplex", t);
    trn_out k = TRN_GE(c, "(Range #0 (AddV2 (FloorDiv $0 #2) #1) #1)", len);
    trn_out once = TRN_GE(c, "(LogicalOr (Equal $0 #0) (Equal (AddV2 $0 $0) $1))", k, len);
    trn_out times = TRN_GE(c, "(RealDiv (Sub 2 $0) $1)", trn_g_cast(c, once, real), size_of(c, d, real));
    trn_out z = trn_g_node(c, c->n->op + 1, TRN_OUTS(d, IN(1)), &a, 1);
    trn_grad_set(c, 0, fitted(c, TRN_G(c, "Mul", z, trn_g_cast(c, times, t)), TRN_GE(c, "(Shape x)")));
}

/* Patches of the numbers of the pixels say where each number came from; those of the border came from nowhere. */
static void image_patches(trn_grad_ctx *c)
{
    trn_out b[4];
    static const char *const dim[] = {"(StridedSlice (Shape x) #[0] #[1] #[1])", "(StridedSlice (Shape x) #[1] #[2] #[1])",
                                      "(StridedSlice (Shape x) #[2] #[3] #[1])", "(StridedSlice (Shape x) #[3] #[4] #[1])"};
    for (int i = 0; i < 4; i++)
        b[i] = TRN_GE(c, dim[i]);
    trn_out n = TRN_GE(c, "(Prod (Mul $0 $1) #0)", b[1], b[2]);
    trn_out at = TRN_GE(c, "(Reshape (Range #1 (AddV2 $0 #1) #1) (ConcatV2 #[1] $1 $2 #[1] #0))", n, b[1], b[2]);
    at = TRN_GE(c, "(Sub (Reshape (ExtractImagePatches $0 @) #[-1]) #1)", at);
    trn_out parts = TRN_GE(c, "(Reshape d (ConcatV2 (StridedSlice (Shape d) #[0] #[3] #[1]) #[-1] $0 #0))", b[3]);
    trn_out rows = TRN_GE(c, "(Reshape (Transpose $0 #[1,2,3,0,4]) (ConcatV2 (Shape $1) (Mul $2 $3) #0))", parts, at, b[0], b[3]);
    trn_out sum = TRN_G(c, "UnsortedSegmentSum", rows, at, n);
    trn_grad_set(c, 0, TRN_GE(c, "(Transpose (Reshape $0 (ConcatV2 $1 $2 $3 $4 #0)) #[2,0,1,3])", sum, b[1], b[2], b[0], b[3]));
}
static void volume_patches(trn_grad_ctx *c)
{
    trn_out batch = TRN_GE(c, "(StridedSlice (Shape x) #[0] #[1] #[1])"), space = TRN_GE(c, "(StridedSlice (Shape x) #[1] #[4] #[1])");
    trn_out depth = TRN_GE(c, "(StridedSlice (Shape x) #[4] #[5] #[1])");
    trn_out n = TRN_GE(c, "(Prod $0 #0)", space), at = TRN_GE(c, "(Reshape (Range #1 (AddV2 $0 #1) #1) (ConcatV2 #[1] $1 #[1] #0))", n, space);
    at = TRN_GE(c, "(Sub (Reshape (ExtractVolumePatches $0 @) #[-1]) #1)", at);
    trn_out parts = TRN_GE(c, "(Reshape d (ConcatV2 (StridedSlice (Shape d) #[0] #[4] #[1]) #[-1] $0 #0))", depth);
    trn_out rows = TRN_GE(c, "(Reshape (Transpose $0 #[1,2,3,4,0,5]) (ConcatV2 (Shape $1) (Mul $2 $3) #0))", parts, at, batch, depth);
    trn_out sum = TRN_G(c, "UnsortedSegmentSum", rows, at, n);
    trn_grad_set(c, 0, TRN_GE(c, "(Transpose (Reshape $0 (ConcatV2 $1 $2 $3 #0)) #[3,0,1,2,4])", sum, space, batch, depth));
}

/* With m, n one at the greatest and the smallest channel (the first, the last of equals), c their difference and p, q the channels behind the greatest in
 * the circle r, g, b: value = greatest, saturation = c / greatest, hue = (2m + (p - q) / c) / 6. */
static void rgb_to_hsv(trn_grad_ctx *c)
{
    trn_dtype t = trn_g_type(c, IN(0));
    trn_out one = trn_g_num(c, t, 1), zero = trn_g_num(c, t, 0), three = trn_g_i32(c, 3);
    trn_out m = TRN_GE(c, "(OneHot (ArgMax x #-1 output_type=int32) $0 $1 $2)", three, one, zero);
    trn_out n = TRN_GE(c, "(OneHot (Sub #2 (ArgMin (ReverseV2 x #[-1]) #-1 output_type=int32)) $0 $1 $2)", three, one, zero);
    trn_out most = TRN_GE(c, "(Sum (Mul x $0) #-1 keep_dims=true)", m), least = TRN_GE(c, "(Sum (Mul x $0) #-1 keep_dims=true)", n);
    trn_out apart = TRN_G(c, "Sub", most, least), diff = TRN_GE(c, "(Sum (Mul $0 (Sub (Roll x #-1 #-1) (Roll x #-2 #-1))) #-1 keep_dims=true)", m);
    trn_out dh = TRN_GE(c, "(Sub (DivNoNan (Sub (Roll $0 #1 #-1) (Roll $0 #2 #-1)) $1) (DivNoNan (Mul $2 (Sub $0 $3)) (Square $1)))", m, apart, diff, n);
    trn_out lit = trn_g_cast(c, TRN_G(c, "Greater", most, zero), t), seen = trn_g_cast(c, TRN_GE(c, "(Greater x $0)", zero), t);
    dh = TRN_GE(c, "(Mul $0 (RealDiv $1 6))", dh, lit);
    trn_out ds = TRN_GE(c, "(Mul $0 (Sub (DivNoNan (Mul $1 $2) (Square $3)) (DivNoNan $4 $3)))", seen, m, least, most, n);
    static const char *const part[] = {"(StridedSlice d #[0,0] #[0,1] #[1,1] ellipsis_mask=1)", "(StridedSlice d #[0,1] #[0,2] #[1,1] ellipsis_mask=1)",
                                       "(StridedSlice d #[0,2] #[0,3] #[1,1] ellipsis_mask=1)"};
    trn_grad_set(c, 0, TRN_GE(c, "(AddV2 (AddV2 (Mul $0 $1) (Mul $2 $3)) (Mul $4 $5))", TRN_GE(c, part[0]), dh, TRN_GE(c, part[1]), ds, TRN_GE(c, part[2]), m));
}

const trn_grad_row trn_grads_signal[] = {
    {"ExtractImagePatches", .fn = image_patches},
    {"ExtractVolumePatches", .fn = volume_patches},
    {"FFT", .fn = fft},
    {"FFT2D", .fn = fft},
    {"FFT3D", .fn = fft},
    {"IFFT", .fn = fft},
    {"IFFT2D", .fn = fft},
    {"IFFT3D", .fn = fft},
    {"IRFFT", .fn = irfft},
    {"IRFFT2D", .fn = irfft},
    {"IRFFT3D", .fn = irfft},
    {"RFFT", .fn = rfft},
    {"RFFT2D", .fn = rfft},
    {"RFFT3D", .fn = rfft},
    {"RGBToHSV", .fn = rgb_to_hsv},
    {0},
};
