"""How big and fast the server under test is, and what it can carry: named workloads are scaled by it."""

from __future__ import annotations

import msgspec


class TargetSize(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a few unloaded requests show. The defaults are a 135M model on two CPU cores."""

    max_model_len: int = 2048
    ttft_s: float = 0.25  # unloaded, of a prompt of `ttft_tokens`
    ttft_tokens: int = 128
    tpot_s: float = 0.02  # unloaded
    parallel: float = 4.0  # answers that decode at once in about the time of one
    load: float = 0.6  # share of the estimated capacity that named workloads offer

    def prefill_s(self, num_tokens: float) -> float:
        """Unloaded TTFT: as the prompt's length, down to a quarter of the measured one."""
        return self.ttft_s * max(0.25, num_tokens / self.ttft_tokens)

    def decode_s(self, num_tokens: float) -> float:
        """Unloaded time from the first token to the last."""
        return self.tpot_s * max(0.0, num_tokens - 1)

    def e2e_s(self, num_input: float, num_output: float) -> float:
        """Unloaded time of a request."""
        return self.prefill_s(num_input) + self.decode_s(num_output)

    def capacity_rps(self, num_input: float, num_output: float) -> float:
        """Requests/s that saturate it: prefills one after the other, decoding `parallel` at a time. An estimate that
        only has to be right within a factor of two: the load it gives is `load` of it."""
        return 1 / (self.prefill_s(num_input) + self.decode_s(num_output) / self.parallel)

    @property
    def room(self) -> int:
        """Tokens a request may fill: a tenth of the context, and 48 tokens at least, stay free for templates."""
        return max(32, self.max_model_len - max(48, self.max_model_len // 10))
