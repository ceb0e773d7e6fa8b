"""One file for each kind of chart: values in, a `page.Figure` out, None where there is nothing to draw.

A chart computes nothing that a decision rests on. It may import `page`, `times`, `words` and the contracts.
"""
