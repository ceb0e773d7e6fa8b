"""Rules about features that this version does not have. They are listed, explained and never judged."""

from __future__ import annotations

from paceline.planner.lint.rule import Rule

RULES = (
    Rule(
        code="PL104",
        title="tensor parallelism over slow links",
        what="Each layer waits for two all-reduces. Over PCIe or a network they outlast the products they split.",
        evidence="All-reduce time of a step against the compute that it saves, by the link's latency and rate.",
        fix="Replicas (data parallelism), or ranks that stay within one fast link.",
        not_yet="more than one rank; `paceline plan` compares such layouts by the cost model",
    ),
    Rule(
        code="PL105",
        title="prefix routing made a hot spot",
        what="Affinity sends a popular prefix to one replica: it queues while others idle.",
        evidence="Most loaded replica over the mean, against the prefill that its hits saved.",
        fix="Routing by predicted seconds, or a bound on the imbalance.",
        not_yet="the router",
    ),
    Rule(
        code="PL106",
        title="speculation on a full device",
        what="Drafts use compute that a small batch leaves idle. At rows * (drafts + 1) above the ridge they take it "
        "from others.",
        evidence="Rows times draft length against the ridge batch; good tokens with and without.",
        fix="A draft length that follows the load, or none.",
        not_yet="speculative decoding",
    ),
    Rule(
        code="PL107",
        title="offload slower than computing again",
        what="Restoring KV over PCIe or a network pays only where it is faster than the prefill of the same tokens.",
        evidence="p95 of restore times against the prefill time of those tokens; use of the link.",
        fix="Recompute below the break-even length, or a faster tier.",
        not_yet="KV offload",
    ),
    Rule(
        code="PL207",
        title="rates that no product reaches",
        what="Data sheets count skipped zeros (2:4 sparsity) and both directions of a link: each is twice too good.",
        evidence="Flags of the row that a device's rates come from.",
        fix="Dense FLOPS, one direction.",
        not_yet="devices of one's own: those built in are dense and one way, this machine's are measured",
    ),
    Rule(
        code="PL208",
        title="invented text for speculation or experts",
        what="Random tokens are neither as predictable as real text nor spread over experts as it is.",
        evidence="Synthetic content or ignore_eos, with speculation or a mixture of experts on.",
        fix="Natural text, lengths as they come.",
        not_yet="speculative decoding and mixtures of experts",
    ),
)
