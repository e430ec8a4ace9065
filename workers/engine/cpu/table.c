/* The table of one instruction set. */
#include "workers/engine/cpu/isa.h"

#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)
#if ISA_LEVEL == 3
#define PANEL "p32"
#else
#define PANEL "p16"
#endif
#if defined(EBB_BF16)
#define BF16_CLASS "x86-bf16-dp"
#define BF16_LAYOUT "bf16x2" PANEL
#else
#define BF16_CLASS "x86-bf16-fma"
#define BF16_LAYOUT "bf16" PANEL
#endif
#if defined(EBB_VNNI)
#define INT8_LAYOUT "int8x4b128" PANEL
#else
#define INT8_LAYOUT "int8x2b128" PANEL
#endif

const struct kernels ISA_PASTE(kernels, ISA) = {
    .name = TEXT(ISA),
    .mr = MR,
    .nr = NR,
    .product = {
        [PREC_F32] = {"x86-f32", "f32" PANEL, SYM(f32_packed_bytes), SYM(f32_pack), SYM(f32_run)},
        [PREC_BF16] = {BF16_CLASS, BF16_LAYOUT, SYM(bf16_packed_bytes), SYM(bf16_pack), SYM(bf16_run)},
        [PREC_INT8] = {"x86-int8", INT8_LAYOUT, SYM(int8_packed_bytes), SYM(int8_pack), SYM(int8_run)},
    },
    .matmul_scratch = SYM(matmul_scratch),
    .matmul = SYM(matmul),
    .finish = SYM(finish),
    .attention = SYM(attention),
    .norm = SYM(norm),
    .rms_norm = SYM(rms_norm),
    .embed = SYM(embed),
    .pool = SYM(pool),
    .unit = SYM(unit),
    .vec = {
        .map = SYM(map),
        .sum = SYM(sum),
        .max = SYM(max),
        .min = SYM(min),
        .squares = SYM(squares),
        .dot = SYM(dot),
        .softmax = SYM(softmax),
        .log_softmax = SYM(log_softmax),
    },
};
