"""Fast kernels for a CPU in plain torch: few calls per layer, memory reused, work shared between rows.

Their bits may depend on the batch; docs/concepts/attention-and-numerics.md says where.
"""
