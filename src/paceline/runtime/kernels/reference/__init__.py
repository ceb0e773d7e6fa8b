"""Plain torch kernels: the truth that every other kernel is compared to.

A token's result depends on its own sequence alone, to the last bit: not on the rows beside it, on how its prompt was
cut into chunks, on where its blocks lie, or on whether they were computed or found in the cache.
"""
