from kernels import Case as C
