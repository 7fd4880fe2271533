/* Bands of diagonals: MatrixDiag, MatrixDiagPart and MatrixSetDiag of the second and third kind. */
#include "ops/kern.h"

/* Diagonals lower … upper (0: the main one, positive above it) of matrices rows × cols. In a band tensor the uppermost comes first, and each is
 * padded to the longest at its left or right end. */
typedef struct band {
    int64_t lower, upper, rows, cols, longest;
    bool left_super, left_sub; /* diagonals above and below start at the left */
} band;

static int64_t length(const band *b, int64_t d)
{
    int64_t r = b->rows + (d < 0 ? d : 0), c = b->cols - (d > 0 ? d : 0);
    return r < c ? r : c;
}

static int64_t start(const band *b, int64_t d)
{
    bool left = (d >= 0 && b->left_super) || (d <= 0 && b->left_sub);
    return left ? 0 : b->longest - length(b, d);
}

static trn_err read_k(band *b, const trn_kctx *k, int i)
{
    const trn_tensor *t = trn_in(k, i);
    char text[TRN_SHAPE_TEXT];
    TRN_CHECK_ARG(t->shape.rank <= 1 && (t->count == 1 || t->count == 2),
                  "diag_index must be a scalar or a vector with one or two elements, received shape %s",
                  trn_shape_text(text, &t->shape));
    b->lower = TRN_DATA(t, int32_t)[0];
    b->upper = TRN_DATA(t, int32_t)[t->count - 1];
    TRN_CHECK_ARG(b->lower <= b->upper,
                  "lower_diag_index must be smaller than or equal to upper_diag_index: %lld > %lld",
                  (long long)b->lower, (long long)b->upper);
    const char *align = trn_attr_str(k->node, "align"); /* the second kind has none: left */
    b->left_super = !*align || !strncmp(align, "LEFT", 4);
    b->left_sub = !*align || (strlen(align) > 4 && !strcmp(align + strlen(align) - 4, "LEFT"));
    return TRN_OK;
}

static trn_err check_band(band *b)
{
    TRN_CHECK_ARG((-b->rows < b->lower && b->lower < b->cols) || b->lower == 0,
                  "lower_diag_index is out of bound: %lld. It must be between %lld and %lld", (long long)b->lower,
                  (long long)-b->rows, (long long)b->cols);
    TRN_CHECK_ARG((-b->rows < b->upper && b->upper < b->cols) || b->upper == 0,
                  "upper_diag_index is out of bound: %lld. It must be between %lld and %lld", (long long)b->upper,
                  (long long)-b->rows, (long long)b->cols);
    int64_t r = b->rows + TRN_MIN(b->upper, (int64_t)0), c = b->cols - TRN_MAX(b->lower, (int64_t)0);
    b->longest = TRN_MIN(r, c);
    return TRN_OK;
}

/* Copies between matrices and bands; sizes are checked. */
static trn_err move(const band *b, trn_tensor *mats, trn_tensor *bands, const trn_tensor *from, int64_t batch)
{
    int64_t n_diags = b->upper - b->lower + 1;
    for (int64_t m = 0; m < batch && from->count; m++)
        for (int64_t d = b->upper; d >= b->lower; d--) {
            int64_t n = length(b, d), at = (m * n_diags + b->upper - d) * b->longest + start(b, d);
            int64_t r = d < 0 ? -d : 0, c = d > 0 ? d : 0;
            for (int64_t i = 0; i < n; i++) {
                int64_t cell = (m * b->rows + r + i) * b->cols + c + i;
                TRN_TRY(mats ? trn_tensor_copy_elems(mats, cell, from, at + i, 1)
                             : trn_tensor_copy_elems(bands, at + i, from, cell, 1));
            }
        }
    return TRN_OK;
}

static trn_err scalar_in(const trn_kctx *k, int i, const char *what)
{
    TRN_CHECK_ARG(trn_in(k, i)->count == 1 && trn_in(k, i)->shape.rank == 0, "%s must be a scalar, received rank %d",
                  what, trn_in(k, i)->shape.rank);
    return TRN_OK;
}

/* Of matrices: their size goes into b; the shape of their bands, and how many matrices there are. */
static trn_err band_of(band *b, trn_shape *bands, int64_t *batch, const trn_shape *mats)
{
    int outer = mats->rank - 2;
    b->rows = mats->dim[outer];
    b->cols = mats->dim[outer + 1];
    TRN_TRY(check_band(b));
    *bands = *mats;
    *batch = 1;
    for (int i = 0; i < outer; i++)
        *batch = trn_times(*batch, mats->dim[i]);
    bands->rank = outer;
    if (b->lower != b->upper)
        bands->dim[bands->rank++] = b->upper - b->lower + 1;
    bands->dim[bands->rank++] = b->longest;
    return TRN_OK;
}

static trn_err diag_part(trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 0);
    band b;
    TRN_CHECK_ARG(x->shape.rank >= 2, "input must be at least 2-dim, received rank %d", x->shape.rank);
    TRN_TRY(read_k(&b, k, 1));
    TRN_TRY(scalar_in(k, 2, "padding_value"));
    trn_shape s;
    int64_t batch;
    TRN_TRY(band_of(&b, &s, &batch, &x->shape));
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, 0, x->dtype, &s));
    TRN_TRY(trn_fill_elems(y, 0, y->count, trn_in(k, 2), 0));
    return move(&b, NULL, y, x, batch);
}

static trn_err matrix_size(band *b, const trn_kctx *k)
{
    TRN_TRY(scalar_in(k, 2, "num_rows"));
    TRN_TRY(scalar_in(k, 3, "num_cols"));
    int64_t rows = TRN_DATA(trn_in(k, 2), int32_t)[0], cols = TRN_DATA(trn_in(k, 3), int32_t)[0];
    int64_t min_rows = b->longest - TRN_MIN(b->upper, (int64_t)0),
            min_cols = b->longest + TRN_MAX(b->lower, (int64_t)0);
    TRN_CHECK_ARG(rows == -1 || rows >= min_rows, "The number of rows is too small.");
    TRN_CHECK_ARG(cols == -1 || cols >= min_cols, "The number of columns is too small.");
    if (rows == -1 && cols == -1) {
        rows = cols = TRN_MAX(min_rows, min_cols);
    } else if (rows == -1) {
        rows = min_rows;
    } else if (cols == -1) {
        cols = min_cols;
    }
    TRN_CHECK_ARG(rows == min_rows || cols == min_cols,
                  "The number of rows or columns is not consistent with the specified d_lower, d_upper, and diagonal.");
    b->rows = rows;
    b->cols = cols;
    return TRN_OK;
}

static trn_err diag(trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 0);
    band b;
    TRN_CHECK_ARG(x->shape.rank >= 1, "diagonal must be at least 1-dim, received rank 0");
    TRN_TRY(read_k(&b, k, 1));
    TRN_TRY(scalar_in(k, 4, "padding_value"));
    int r = x->shape.rank, lead = r - 1 - (b.lower != b.upper);
    TRN_CHECK_ARG(lead >= 0 && lead + 2 <= TRN_MAX_RANK,
                  "diagonal must be at least 2-dim for several diagonals, received rank %d", r);
    b.longest = x->shape.dim[r - 1];
    TRN_CHECK_ARG(b.lower == b.upper || x->shape.dim[r - 2] == b.upper - b.lower + 1,
                  "The number of diagonals provided in the input does not match the lower_diag_index and "
                  "upper_diag_index range.");
    TRN_TRY(matrix_size(&b, k));
    trn_shape s = x->shape;
    int64_t batch = 1, count;
    for (int i = 0; i < lead; i++)
        batch = trn_times(batch, s.dim[i]);
    s.rank = lead;
    s.dim[s.rank++] = b.rows;
    s.dim[s.rank++] = b.cols;
    TRN_TRY(trn_count_checked(&count, &s)); /* diagonals that lie outside of the matrix are left out */
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, 0, x->dtype, &s));
    TRN_TRY(trn_fill_elems(y, 0, y->count, trn_in(k, 4), 0));
    return move(&b, y, NULL, x, batch);
}

static trn_err set_diag(trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 0), *dg = trn_in(k, 1);
    band b;
    char ta[TRN_SHAPE_TEXT], tb[TRN_SHAPE_TEXT];
    TRN_CHECK_ARG(x->shape.rank >= 2, "input must be at least 2-dim, received rank %d", x->shape.rank);
    TRN_CHECK_ARG(dg->shape.rank >= 1, "diagonal must be at least 1-dim, received rank 0");
    TRN_TRY(read_k(&b, k, 2));
    trn_shape want;
    int64_t batch;
    TRN_TRY(band_of(&b, &want, &batch, &x->shape));
    TRN_CHECK_ARG(trn_shape_eq(&want, &dg->shape), "diagonal has shape %s; %s is expected: the number of diagonals, or the first dimensions of diagonal don't match the input",
                  trn_shape_text(ta, &dg->shape), trn_shape_text(tb, &want));
    trn_tensor *y;
    TRN_TRY(trn_out_like(&y, k, 0, 0));
    if (y->data != x->data)
        TRN_TRY(trn_tensor_copy_elems(y, 0, x, 0, x->count));
    return move(&b, y, NULL, dg, batch);
}

#define ALIGN ", align:{LEFT_RIGHT,RIGHT_LEFT,LEFT_LEFT,RIGHT_RIGHT}=RIGHT_LEFT"
#define PART "input:T, k:i32, padding_value:T -> diagonal:T; T:any"
#define DIAG "diagonal:T, k:i32, num_rows:i32, num_cols:i32, padding_value:T -> output:T; T:any"
#define SET "input:T, diagonal:T, k:i32 -> output:T; T:any"

const trn_op trn_ops_diag[] = {
    {"MatrixDiagPartV2", PART, trn_sh_unknown, diag_part, 0},
    {"MatrixDiagPartV3", PART ALIGN, trn_sh_unknown, diag_part, 0},
    {"MatrixDiagV2", DIAG, trn_sh_unknown, diag, 0},
    {"MatrixDiagV3", DIAG ALIGN, trn_sh_unknown, diag, 0},
    {"MatrixSetDiagV2", SET, trn_sh_same, set_diag, 0},
    {"MatrixSetDiagV3", SET ALIGN, trn_sh_same, set_diag, 0},
    {0},
};
