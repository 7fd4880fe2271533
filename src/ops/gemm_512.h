/* Tiles of a matrix product for AVX-512, as gemm.c's TILE makes them from C, instruction by instruction: 24 sums, two vectors of B and six of A are all the registers there are,
 * and a CPU that takes four instructions at a time (Skylake to Cascade Lake) has none to spare beside them. A compiler keeps moving some about: three quarters of such a CPU's peak instead of
 * nine tenths. Sums are made in the same order, so results are the same to the last bit.
 *
 * Included by gemm.c alone, whose tiles from C stand in for these under the sanitizers, which do not see what happens here. */
#ifndef TRN_OPS_GEMM_512_H
#define TRN_OPS_GEMM_512_H

#define S_(x) #x
#define S(x) S_(x)

/* Where row r of A is, `at` steps of k further (E: an element's size). Rows as they lie: three share a pointer. */
#define A512_PACKED(E, r, at) S(E) "*" S(r) "+" S(E) "*12*" S(at) "(%[a0])"
#define A512_COLS(E, r, at) S(E) "*" S(r) "(%[a0])"
#define A512_ROWS(E, r, at) S(E) "*" S(at) "(" ROW512_##r
#define ROW512_0 "%[a0])"
#define ROW512_1 "%[a0],%[ars])"
#define ROW512_2 "%[a0],%[ars],2)"
#define ROW512_3 "%[a1])"
#define ROW512_4 "%[a1],%[ars])"
#define ROW512_5 "%[a1],%[ars],2)"
#define ROW512_6 "%[a2])"
#define ROW512_7 "%[a2],%[ars])"
#define ROW512_8 "%[a2],%[ars],2)"
#define ROW512_9 "%[a3])"
#define ROW512_10 "%[a3],%[ars])"
#define ROW512_11 "%[a3],%[ars],2)"

/* After one step of k, and after n that were written out. */
#define A512_PACKED_NEXT
#define A512_COLS_NEXT "add %[ars],%[a0]\n\t"
#define A512_ROWS_NEXT
#define A512_PACKED_ON(E, n) "add $" S(E) "*12*" S(n) ",%[a0]\n\t"
#define A512_COLS_ON(E, n)
#define A512_ROWS_ON(E, n)                                                                                             \
    "add $" S(E) "*" S(n) ",%[a0]\n\tadd $" S(E) "*" S(n) ",%[a1]\n\tadd $" S(E) "*" S(n) ",%[a2]\n\tadd $" S(E) "*" S(n) ",%[a3]\n\t"

/* B: packed, as it lies, or as it lies and packed on the way; then `ahead` runs 32 rows before it. */
#define B512_TIGHT(at) "vmovups 128*" S(at) "(%[b]),%%zmm24\n\tvmovups 128*" S(at) "+64(%[b]),%%zmm25\n\t"
#define B512_LOOSE(at) "vmovups (%[b]),%%zmm24\n\tvmovups 64(%[b]),%%zmm25\n\tadd %[brs],%[b]\n\t"
#define B512_TAKEN(at)                                                                                                 \
    B512_LOOSE(at)                                                                                                     \
    "prefetcht0 (%[ahead])\n\tprefetcht0 64(%[ahead])\n\tadd %[brs],%[ahead]\n\t"                                      \
    "vmovups %%zmm24,128*" S(at) "(%[keep])\n\tvmovups %%zmm25,128*" S(at) "+64(%[keep])\n\t"
#define B512_TIGHT_ON(n) "add $128*" S(n) ",%[b]\n\t"
#define B512_LOOSE_ON(n)
#define B512_TAKEN_ON(n) "add $128*" S(n) ",%[keep]\n\t"

/* Every fourth step a row of the next panel comes closer. */
#define AHEAD512 "test %[ahead],%[ahead]\n\tjz 3f\n\tprefetcht1 (%[ahead])\n\tprefetcht1 64(%[ahead])\n\tadd %[brs],%[ahead]\n3:\n\t"
#define B512_TIGHT_AHEAD AHEAD512
#define B512_LOOSE_AHEAD AHEAD512
#define B512_TAKEN_AHEAD

/* D is done with the rows of a part of a tile, in order: row, its two sums, a register for its element of A. */
#define EACH512_THIRD(D, ...) D(__VA_ARGS__, 0, 0, 1, 26) D(__VA_ARGS__, 1, 2, 3, 27) D(__VA_ARGS__, 2, 4, 5, 28) D(__VA_ARGS__, 3, 6, 7, 29)
#define EACH512_TWO(D, ...)                                                                                            \
    EACH512_THIRD(D, __VA_ARGS__)                                                                                      \
    D(__VA_ARGS__, 4, 8, 9, 30) D(__VA_ARGS__, 5, 10, 11, 31) D(__VA_ARGS__, 6, 12, 13, 26) D(__VA_ARGS__, 7, 14, 15, 27)
#define EACH512_WHOLE(D, ...)                                                                                          \
    EACH512_TWO(D, __VA_ARGS__)                                                                                        \
    D(__VA_ARGS__, 8, 16, 17, 28) D(__VA_ARGS__, 9, 18, 19, 29) D(__VA_ARGS__, 10, 20, 21, 30) D(__VA_ARGS__, 11, 22, 23, 31)

#define ZERO512(P, r, x, y, s) "vpxord %%zmm" #x ",%%zmm" #x ",%%zmm" #x "\n\tvpxord %%zmm" #y ",%%zmm" #y ",%%zmm" #y "\n\t"
#define FMA512(A, P, E, at, r, x, y, s)                                                                                \
    "vbroadcasts" P " " A512_##A(E, r, at) ",%%zmm" #s "\n\tvfmadd231p" P " %%zmm24,%%zmm" #s ",%%zmm" #x              \
    "\n\tvfmadd231p" P " %%zmm25,%%zmm" #s ",%%zmm" #y "\n\t"
#define ADD512(P, r, x, y, s) "vaddp" P " (%[keep]),%%zmm" #x ",%%zmm" #x "\n\tvaddp" P " 64(%[keep]),%%zmm" #y ",%%zmm" #y "\n\tadd %[ldc],%[keep]\n\t"
#define SET512(P, r, x, y, s) "vmovups %%zmm" #x ",(%[c])\n\tvmovups %%zmm" #y ",64(%[c])\n\tadd %[ldc],%[c]\n\t"
#define STREAM512(P, r, x, y, s) "vmovntps %%zmm" #x ",(%[c])\n\tvmovntps %%zmm" #y ",64(%[c])\n\tadd %[ldc],%[c]\n\t"
#define STEP512(PART, A, B, P, E, at) B512_##B(at) EACH512_##PART(FMA512, A, P, E, at) A512_##A##_NEXT

/* As TILE; P: "s" or "d", E: an element's size. */
#define TILE_512(T, V, name, L, PART, MR, FMA, TARGET, A, B) TILE_512_(T, V, name, L, PART, TARGET, A, B, LETTER_##L, SIZE_##L)
#define TILE_512_(...) TILE_512__(__VA_ARGS__)
#define LETTER_16 "s"
#define LETTER_8 "d"
#define SIZE_16 4
#define SIZE_8 8
#define TILE_512__(T, V, name, L, PART, TARGET, A, B, P, E)                                                            \
    TARGET static void name(int64_t kc, const T *a, int64_t ars, const T *b, int64_t brs, T *keep, T *c, int64_t ldc,  \
                            int64_t mr, int64_t nr, int how, const T *ahead)                                           \
    {                                                                                                                  \
        enum { R = PART_##PART(12), TAKES = PACKS_##B };                                                               \
        const T *a1 = a + 3 * ars, *a2 = a + 6 * ars, *a3 = a + 9 * ars;                                               \
        T part[R * 2 * (L)], *to = part;                                                                               \
        int64_t step = 2 * (L) * (int64_t)sizeof(T), four = kc / 4, one = kc % 4;                                      \
        int end = SET;                                                                                                 \
        for (int64_t r = 0; r < mr && how != STREAM; r++) {                                                            \
            __builtin_prefetch(c + r * ldc, 1);                                                                        \
            __builtin_prefetch(c + r * ldc + (L), 1);                                                                  \
        }                                                                                                              \
        bool whole = mr == R && nr == 2 * (L);                                                                         \
        if (whole) {                                                                                                   \
            to = c;                                                                                                    \
            step = ldc * (int64_t)sizeof(T);                                                                           \
            end = how;                                                                                                 \
        }                                                                                                              \
        if (TAKES)                                                                                                     \
            ahead = b + 32 * brs;                                                                                      \
        ars *= (int64_t)sizeof(T);                                                                                     \
        brs *= (int64_t)sizeof(T);                                                                                     \
        __asm__ volatile(                                                                                              \
            EACH512_##PART(ZERO512, P)                                                                                 \
            "test %[four],%[four]\n\tjz 2f\n\t.p2align 5\n1:\n\t"                                                      \
            STEP512(PART, A, B, P, E, 0) STEP512(PART, A, B, P, E, 1) STEP512(PART, A, B, P, E, 2) STEP512(PART, A, B, P, E, 3)\
            A512_##A##_ON(E, 4) B512_##B##_ON(4) B512_##B##_AHEAD                                                      \
            "dec %[four]\n\tjnz 1b\n2:\n\t"                                                                            \
            "mov %[one],%[four]\n\ttest %[four],%[four]\n\tjz 2f\n1:\n\t"                                              \
            STEP512(PART, A, B, P, E, 0) A512_##A##_ON(E, 1) B512_##B##_ON(1)                                          \
            "dec %[four]\n\tjnz 1b\n2:\n\t"                                                                            \
            "cmpl $1,%[end]\n\tje 2f\n\tjg 3f\n\t"                                                                     \
            "mov %[c],%[keep]\n\t" EACH512_##PART(ADD512, P)                                                           \
            "2:\n\t" EACH512_##PART(SET512, P) "jmp 4f\n"                                                              \
            "3:\n\t" EACH512_##PART(STREAM512, P)                                                                      \
            "4:\n\tvzeroupper"                                                                                         \
            : [a0] "+&r"(a), [a1] "+&r"(a1), [a2] "+&r"(a2), [a3] "+&r"(a3), [b] "+&r"(b), [keep] "+&r"(keep), [ahead] "+&r"(ahead), [c] "+&r"(to), [four] "+&r"(four)\
            : [one] "m"(one), [ars] "r"(ars), [brs] "r"(brs), [ldc] "r"(step), [end] "m"(end)                          \
            : "memory", "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15",\
              "xmm16", "xmm17", "xmm18", "xmm19", "xmm20", "xmm21", "xmm22", "xmm23", "xmm24", "xmm25", "xmm26", "xmm27", "xmm28", "xmm29", "xmm30", "xmm31");\
        for (int64_t r = 0; !whole && r < mr; r++)                                                                     \
            for (int64_t j = 0; j < nr; j++)                                                                           \
                c[r * ldc + j] = how ? part[r * 2 * (L) + j] : c[r * ldc + j] + part[r * 2 * (L) + j];                 \
    }
_Static_assert(ADD == 0 && SET == 1 && STREAM == 2, "as the assembler text compares them");

#endif
