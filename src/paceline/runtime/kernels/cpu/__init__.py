"""Native kernels for a CPU: C++ behind a C interface, compiled when paceline is installed.

`native` finds the library and says what is missing where it cannot serve; the dispatch table asks it. Kernels here have
the signatures of those in `kernels.torch_cpu`. Without a compiler, or on a processor without AVX2, those serve instead.
"""
