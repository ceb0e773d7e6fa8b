"""Quantised weights: one file per format, each a `paceline.runtime.layers.linear.WeightMethod` or what gives it blocks.

    gguf     blocks of a GGUF file, kept quantised; where no kernel serves them they become floats at load instead
    int8     the same blocks, multiplied with activations that are rounded to 8 bits
    bf16     the same blocks, or floats rounded once, multiplied with activations of bfloat16
    rounded  float weights made blocks of 8 bits while loading, for any of them

May import layers' seam and kernels; never models or the engine.
"""
