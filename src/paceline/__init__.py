"""paceline: an LLM inference system measured by goodput.

Importing this package is cheap: torch, tokenizers and the CLI load only when used. `LLM` is the offline face;
`SamplingParams` says how to sample.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paceline.contracts.request import SamplingParams
    from paceline.llm import LLM

__version__ = "0.1.0"
__all__ = ["LLM", "SamplingParams", "__version__"]


def __getattr__(name: str) -> Any:
    if name == "LLM":
        from paceline.llm import LLM

        return LLM
    if name == "SamplingParams":
        from paceline.contracts.request import SamplingParams

        return SamplingParams
    raise AttributeError(f"module 'paceline' has no attribute {name!r}; it offers {', '.join(__all__)}")
