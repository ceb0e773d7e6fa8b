"""Sentences and words that prompts are made of. The long lists lie beside, as text: sentences.txt and words.txt."""

from __future__ import annotations

from functools import lru_cache
from importlib.resources import files

TASKS = (
    "Please summarise the notes above in plain words.",
    "Which of these statements would you question first, and why?",
    "Write a short story that could follow from this.",
    "List the people and places that are mentioned.",
    "Explain the main points to a friend who has little time.",
    "What do these observations have in common?",
    "Continue the text in the same tone.",
    "Draft a polite letter that answers these points.",
)
"""What a natural prompt asks for at its end."""

ROLES = (
    "You are a careful assistant who answers in full sentences.",
    "You help the readers of a small local newspaper.",
    "You are a patient editor and you explain your choices.",
    "You write clear notes for people who are new to the subject.",
)
"""How a system message goes on after the words that make it unique."""


@lru_cache(maxsize=1)
def sentences() -> tuple[str, ...]:
    """What natural prompts are made of."""
    return tuple(line for line in _read("sentences.txt").splitlines() if line)


@lru_cache(maxsize=1)
def words() -> tuple[str, ...]:
    """Common English words that most vocabularies hold whole. Which of them are one token is measured, not assumed."""
    return tuple(_read("words.txt").split())


def _read(name: str) -> str:
    return files("paceline.lab.workload.content").joinpath(name).read_text(encoding="utf-8")
