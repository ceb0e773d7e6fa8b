"""Quantised weights: one file per format, each implementing `paceline.runtime.layers.linear.WeightMethod`.

    gguf    blocks of a GGUF file, kept quantised; where no kernel serves them they become floats at load instead

May import layers' seam and kernels; never models or the engine.
"""
