"""The demo's load: a seeded mix of short, long and shared-prefix requests that arrive while others run."""

from __future__ import annotations

import random
from typing import Literal

import msgspec

Kind = Literal["short", "long", "shared prefix", "two choices", "sampled", "cancelled"]

SYSTEM = (
    "You are the reading assistant of a small public library. Answer in one or two plain sentences. The library opens"
    " at nine in the morning from Tuesday to Saturday and closes at six in the evening; on Thursdays it stays open "
    "until eight. A member may borrow up to twelve books for four weeks and renew each of them twice, unless somebody"
    " else has reserved it. Films and records are lent for one week and cannot be renewed. Children under twelve need"
    " the signature of a parent for their first card, and no fee is ever taken from them. A lost card costs three "
    "coins. Books that come back late cost ten cents a day, at most the price of the book. The reading room on the "
    "first floor is silent; the garden, the kitchen and the ground floor are not. Meeting rooms can be reserved two "
    "weeks ahead. The printers take members' cards, and the first ten pages of a day are free. Dogs wait in the yard,"
    " where there is water. When a question is not about the library, say so kindly and name a book that could answer"
    " it."
)

QUESTIONS = (
    "How many books may I borrow at once?",
    "When do you close on Thursdays?",
    "My daughter is nine. What does she need for a card?",
    "Can I renew a film?",
    "What does a lost card cost?",
    "May I bring my dog?",
    "How early can I reserve a meeting room?",
    "Are there free pages at the printer?",
    "Is the garden a silent place?",
    "What happens when a book is late?",
    "Do you open on Mondays?",
    "Why is the sky blue?",
)

SHORT = (
    "Name the capital of France.",
    "What is a prime number?",
    "Write a one-line greeting for a new colleague.",
    "Which is heavier, a kilogram of iron or a kilogram of wool?",
    "Give me three words that rhyme with light.",
    "What does a compiler do?",
    "How many days has a leap year?",
    "Say in one sentence why plants need light.",
)

LEDGER_LINES = (
    "the north field was ploughed before the rain came and the seed went in late",
    "two wagons of hay were sold at the spring market and one was kept for the mare",
    "the mill wheel was mended with oak because the ash had rotted below the water line",
    "a letter arrived from the coast with news of herring and a price for salt",
    "the school roof was patched by the older boys while the teacher read to the small ones",
    "frost took the early beans but the barley behind the wall was spared",
    "the bridge toll was shared between the two parishes as in the year before",
    "a swarm settled in the bell tower and nobody rang it until the evening",
)


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One call of the demo."""

    kind: Kind
    at_s: float  # after the start of the load
    messages: tuple[dict[str, str], ...]
    max_tokens: int
    temperature: float = 0.0
    n: int = 1
    cancel_after: int | None = None  # tokens


SHARES: dict[Kind, float] = {"shared prefix": 0.38, "short": 0.35, "long": 0.12, "sampled": 0.1, "two choices": 0.05}


def demo_load(seed: int = 1, rate: float = 1.0, num_calls: int = 64) -> list[Job]:
    """`num_calls` calls, at least 8, in order of arrival: a Poisson process of `rate` calls a second. One is cancelled;
    there is one of every other kind at least."""
    rng = random.Random(seed)
    counts = {kind: max(1, round(share * (num_calls - 1))) for kind, share in SHARES.items()}
    counts["shared prefix"] += num_calls - 1 - sum(counts.values())
    kinds = [kind for kind, count in counts.items() for _ in range(count)]
    rng.shuffle(kinds)
    kinds.insert(min(8, num_calls // 2), "cancelled")
    at_s, jobs = 0.0, []
    for kind in kinds:
        at_s += rng.expovariate(rate)
        jobs.append(_job(kind, at_s, rng))
    return jobs


def _job(kind: Kind, at_s: float, rng: random.Random) -> Job:
    if kind == "shared prefix":
        messages = ({"role": "system", "content": SYSTEM}, {"role": "user", "content": rng.choice(QUESTIONS)})
        return Job(kind=kind, at_s=at_s, messages=messages, max_tokens=rng.randint(16, 48))
    if kind == "long":
        lines = [f"Entry {i}: {rng.choice(LEDGER_LINES)}." for i in range(1, rng.randint(20, 34))]
        text = "This is a village ledger.\n" + "\n".join(lines) + "\nSum it up in one sentence."
        return Job(kind=kind, at_s=at_s, messages=({"role": "user", "content": text},), max_tokens=32)
    question = ({"role": "user", "content": rng.choice(SHORT)},)
    if kind == "cancelled":
        return Job(kind=kind, at_s=at_s, messages=question, max_tokens=256, cancel_after=8)
    if kind == "two choices":
        return Job(kind=kind, at_s=at_s, messages=question, max_tokens=32, temperature=0.8, n=2)
    if kind == "sampled":
        return Job(kind=kind, at_s=at_s, messages=question, max_tokens=48, temperature=0.8)
    return Job(kind=kind, at_s=at_s, messages=question, max_tokens=rng.randint(8, 64))
