"""Quantised weights: one file per format, each implementing `paceline.runtime.layers.linear.WeightMethod`.

Holds no format yet: GGUF weights become plain tensors while loading (`paceline.runtime.loader.dequantize`). May import
layers' seam and kernels; never models or the engine.
"""
