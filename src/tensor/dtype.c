/* dtypes as one table: a row per type says size and names. */
#include "tensor/tensor.h"

static const struct {
    uint8_t size;
    bool plain;
    const char *name, *ref_name;
    const char *alias[3];
} types[TRN_DTYPE_END] = {
#define ROW(id, bytes, is_plain, word, ...) [id] = {bytes, is_plain, word, word "_ref", {__VA_ARGS__}}
    [TRN_INVALID] = {0, false, "INVALID", "INVALID_ref", {0}},
    ROW(TRN_FLOAT, 4, true, "float", "float32", "f32"),
    ROW(TRN_DOUBLE, 8, true, "double", "float64", "f64"),
    ROW(TRN_INT32, 4, true, "int32", "i32"),
    ROW(TRN_UINT8, 1, true, "uint8", "u8"),
    ROW(TRN_INT16, 2, true, "int16", "i16"),
    ROW(TRN_INT8, 1, true, "int8", "i8"),
    ROW(TRN_STRING, sizeof(trn_str), false, "string", "str"),
    ROW(TRN_COMPLEX64, 8, true, "complex64", "c64"),
    ROW(TRN_INT64, 8, true, "int64", "i64"),
    ROW(TRN_BOOL, 1, true, "bool"),
    ROW(TRN_QINT8, 1, true, "qint8"),
    ROW(TRN_QUINT8, 1, true, "quint8"),
    ROW(TRN_QINT32, 4, true, "qint32"),
    ROW(TRN_BFLOAT16, 2, true, "bfloat16", "bf16"),
    ROW(TRN_QINT16, 2, true, "qint16"),
    ROW(TRN_QUINT16, 2, true, "quint16"),
    ROW(TRN_UINT16, 2, true, "uint16", "u16"),
    ROW(TRN_COMPLEX128, 16, true, "complex128", "c128"),
    ROW(TRN_HALF, 2, true, "half", "float16", "f16"),
    ROW(TRN_RESOURCE, sizeof(trn_handle *), false, "resource", "res"),
    ROW(TRN_VARIANT, sizeof(trn_variant *), false, "variant", "var"),
    ROW(TRN_UINT32, 4, true, "uint32", "u32"),
    ROW(TRN_UINT64, 8, true, "uint64", "u64"),
    ROW(TRN_FLOAT8_E5M2, 1, true, "float8_e5m2"),
    ROW(TRN_FLOAT8_E4M3FN, 1, true, "float8_e4m3fn"),
    ROW(TRN_INT4, 1, true, "int4", "i4"),
    ROW(TRN_UINT4, 1, true, "uint4", "u4"),
#undef ROW
};

static bool known(trn_dtype base) { return (unsigned)base < TRN_DTYPE_END && types[base].name; }

size_t trn_dtype_size(trn_dtype t)
{
    trn_dtype b = trn_dtype_base(t);
    return known(b) ? types[b].size : 0;
}

const char *trn_dtype_name(trn_dtype t)
{
    trn_dtype b = trn_dtype_base(t);
    if (!known(b))
        return "unknown dtype";
    return trn_dtype_is_ref(t) ? types[b].ref_name : types[b].name;
}

bool trn_dtype_is_plain(trn_dtype t)
{
    trn_dtype b = trn_dtype_base(t);
    return known(b) && types[b].plain;
}

static bool same(const char *word, const char *name, size_t len)
{
    return word && strlen(word) == len && memcmp(word, name, len) == 0;
}

trn_dtype trn_dtype_parse(const char *name, size_t len)
{
    if (len > 4 && memcmp(name + len - 4, "_ref", 4) == 0) {
        trn_dtype base = trn_dtype_parse(name, len - 4);
        return base == TRN_INVALID || trn_dtype_is_ref(base) ? TRN_INVALID : (trn_dtype)(base + TRN_REF);
    }
    for (int i = TRN_INVALID + 1; i < TRN_DTYPE_END; i++) {
        if (same(types[i].name, name, len))
            return (trn_dtype)i;
        for (size_t j = 0; j < TRN_COUNTOF(types[i].alias); j++)
            if (same(types[i].alias[j], name, len))
                return (trn_dtype)i;
    }
    return TRN_INVALID;
}

/* ---- half and bfloat16 ---------------------------------------------------------------------------------------- */

static inline uint32_t f32_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}

static inline float f32_of(uint32_t u)
{
    float f;
    memcpy(&f, &u, 4);
    return f;
}

float trn_half_to_f32(trn_half h)
{
    uint32_t sign = (uint32_t)(h.bits & 0x8000) << 16, exp = (h.bits >> 10) & 31, man = h.bits & 0x3ff;
    if (exp == 31)
        return f32_of(sign | 0x7f800000 | man << 13);
    if (exp == 0) { /* zero and subnormals: man * 2^-24 is exact */
        float f = (float)man * 0x1p-24f;
        return f32_of(sign | f32_bits(f));
    }
    return f32_of(sign | (exp + 112) << 23 | man << 13);
}

trn_half trn_half_from_f32(float f)
{
    uint32_t u = f32_bits(f), sign = u >> 16 & 0x8000, abs = u & 0x7fffffff;
    uint16_t out;
    if (abs > 0x7f800000) { /* NaN stays one: quiet, with what fits of its payload */
        out = (uint16_t)(0x7e00 | (abs >> 13 & 0x1ff));
    } else if (abs >= 0x477ff000) { /* from 65520 on everything rounds to infinity */
        out = 0x7c00;
    } else if (abs < 0x38800000) { /* below 2^-14: let the FPU round at the subnormals' last bit */
        out = (uint16_t)(f32_bits(f32_of(abs) + 0.5f) - f32_bits(0.5f));
    } else {
        uint32_t odd = abs >> 13 & 1;
        out = (uint16_t)((abs - 0x38000000 + 0xfff + odd) >> 13);
    }
    return (trn_half){(uint16_t)(sign | out)};
}

float trn_bf16_to_f32(trn_bf16 h) { return f32_of((uint32_t)h.bits << 16); }

trn_bf16 trn_bf16_from_f32(float f)
{
    uint32_t u = f32_bits(f);
    if ((u & 0x7fffffff) > 0x7f800000)
        return (trn_bf16){(uint16_t)((u >> 16 & 0x8000) | 0x7fc0)};
    return (trn_bf16){(uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16)};
}
