"""What each number on a page means, with its formula. `docs/reference/metrics.md` says why."""

from __future__ import annotations

from paceline.lab.report.page import Section, Table

_TERMS: tuple[tuple[str, str, str], ...] = (
    ("planned time", "t_plan", "When the schedule wanted the request sent. In a closed loop: when it was sent."),
    (
        "TTFT",
        "t_first − t_plan",
        "To the first chunk with reasoning, content or a tool call in it. The client's own queue is inside.",
    ),
    (
        "TTFT from send",
        "t_first − t_send",
        "The same without the client's queue; the difference is the client's lag.",
    ),
    ("TTFA", "t_answer − t_plan", "To the first content or tool call: what counts after a reasoning phase."),
    (
        "TPOT",
        "(t_last − t_first) / (N − n_first)",
        "Mean time per token after the first chunk, the tokens of that chunk left out. N from usage.",
    ),
    ("ICL", "t_j − t_(j−1)", "Each gap between two chunks, as a reader sees it."),
    ("ITL", "(t_j − t_(j−1)) / n_j", "Each gap spread over the tokens it brought; their mean is TPOT."),
    ("E2E", "t_last − t_plan", "To the last token."),
    (
        "fluidity",
        "share of tokens with t ≤ deadline",
        "Deadlines carry slack: an early token lends its time to later ones.",
    ),
    (
        "good request",
        "ended well ∧ each term ≤ its limit ∧ valid",
        "A TPOT that does not exist, as all tokens came at once, counts as met.",
    ),
    (
        "attainment",
        "Σ good / Σ requests",
        "Over requests planned in the window. Errors, timeouts and refusals count as bad; a cancel counts "
        "only after a missed limit.",
    ),
    ("goodput", "Σ good / window", "Good requests per second. The figure this page decides by."),
    ("output throughput", "Σ tokens in the window / window", "By the time of each token, not of each request's end."),
    ("prefix hits", "cached / prompt tokens", "As usage says."),
    (
        "queue, prefill",
        "t_scheduled − t_arrived, t_first − t_scheduled",
        "Parts of TTFT at the server; network is what is left from the time of sending.",
    ),
    (
        "Little's law",
        "mean in flight = rate × mean E2E",
        "A check of the records: more than 5 % apart means that the log is wrong.",
    ),
    (
        "interval",
        "[low, high] at 95 %",
        "How far the number may be off by chance: order statistics for percentiles, Wilson for shares, a "
        "block bootstrap for means.",
    ),
    ("inconclusive", "limit inside the interval", "Not enough was measured to say pass or fail."),
)


def glossary() -> Section:
    table = Table(("word", "formula", "meaning"), _TERMS, num_words=3)
    intro = (
        "t: a time at the client. n: tokens of a chunk, as the server counts them. Percentiles are inverted-CDF ones: "
        "p95 ≤ L means that 95 % of the samples are ≤ L."
    )
    return Section("glossary", "Glossary", (table,), intro)
