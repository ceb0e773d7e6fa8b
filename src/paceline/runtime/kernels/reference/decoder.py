"""No whole-model call: blocks run one by one, each operation through its own kernel."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.runtime.kernels.params import BlockParts


class ReferenceDecoder:
    @staticmethod
    def build(blocks: Sequence[BlockParts] | None) -> None:  # noqa: ARG004
        return None
