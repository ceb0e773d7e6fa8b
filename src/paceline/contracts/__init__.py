"""The nouns that cross a boundary: values, ports and the definitions of metrics. Decides nothing, does nothing.

May import the standard library, numpy, msgspec and `paceline.errors`; never torch, never another paceline package.
Import from the module that defines a name: `request` (what is asked and what comes back), `step` (plan and result),
`kv` (blocks, keys, layout), `specs` (model and device), `slo` (latency and goodput), `ports` (the seams), `decision`
(reason codes), `compat` (which features go together).
"""
