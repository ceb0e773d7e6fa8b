"""What a page holds, before it is HTML: sections of tables, figures, facts and words. Plain values, no markup.

Colours in a figure are names of the style sheet's variables, `@a` or `@a/0.25` with an opacity: the browser puts in
the value of the theme that is on, so that one figure serves light, dark and print.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from paceline.contracts.artefact import Answer

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell of a table. `note` is said under the text, smaller: an interval, a reason."""

    text: str
    note: str = ""
    tone: Literal["", "good", "bad", "muted"] = ""
    href: str = ""  # relative: to another page of the same folder


Row = tuple[Cell | str, ...]


@dataclass(frozen=True, slots=True)
class Table:
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    num_words: int = 1  # leading columns that hold words; the others hold numbers, set to the right
    caption: str = ""
    kind: Literal["table"] = "table"


@dataclass(frozen=True, slots=True)
class View:
    """One way to look at a figure: a button that changes the layout (and, per trace, what is drawn)."""

    label: str
    layout: Json


@dataclass(frozen=True, slots=True)
class Figure:
    """A chart with its words and the same numbers as a table. `traces` and `layout` are plotly's."""

    id: str
    title: str
    traces: list[Json]
    layout: Json
    table: Table
    lead: str = ""  # what to see in it, in one sentence
    views: tuple[View, ...] = ()
    height: int = 300
    wide: bool = False  # takes the whole row
    kind: Literal["figure"] = "figure"


@dataclass(frozen=True, slots=True)
class Facts:
    """Names and values, as a definition list."""

    items: tuple[tuple[str, str], ...]
    title: str = ""
    kind: Literal["facts"] = "facts"


@dataclass(frozen=True, slots=True)
class FactSheet:
    """Several lists of facts, set in columns as they fit."""

    items: tuple[Facts, ...]
    kind: Literal["sheet"] = "sheet"


@dataclass(frozen=True, slots=True)
class Code:
    """Text to be copied as it is: a command, a configuration."""

    text: str
    title: str = ""
    folded: bool = False
    kind: Literal["code"] = "code"


@dataclass(frozen=True, slots=True)
class Words:
    text: str
    tone: Literal["", "muted", "missing"] = ""
    kind: Literal["words"] = "words"


@dataclass(frozen=True, slots=True)
class Edge:
    """One step of a ladder: what changed, what it did."""

    title: str
    group: str  # batch, kv, prefix, ...; "" for the base
    changes: tuple[tuple[str, str, str], ...]  # option, before, after
    effects: tuple[tuple[str, Cell], ...]  # name, ratio or difference with its interval
    answer: Answer | None = None
    sentence: str = ""
    findings: tuple[tuple[str, str], ...] = ()  # lint: code, sentence
    links: tuple[tuple[str, str], ...] = ()  # label, relative address


@dataclass(frozen=True, slots=True)
class Edges:
    items: tuple[Edge, ...]
    kind: Literal["edges"] = "edges"


Block = Table | Figure | Facts | FactSheet | Code | Words | Edges


@dataclass(frozen=True, slots=True)
class Section:
    id: str
    title: str
    blocks: tuple[Block, ...]
    intro: str = ""

    @property
    def figures(self) -> list[Figure]:
        return [block for block in self.blocks if isinstance(block, Figure)]


@dataclass(frozen=True, slots=True)
class Gate:
    """One gate as a row of the verdict: the answer, the words, and the interval against its limit."""

    answer: Answer
    name: str
    sentence: str
    subject: str = ""
    value: str = ""
    interval: str = ""
    limit: str = ""
    strip: Json | None = None  # {lo, value, hi, limit} as shares of the strip's width, see verdict.py


@dataclass(frozen=True, slots=True)
class KeyNumber:
    label: str
    value: str
    unit: str = ""
    interval: str = ""
    note: str = ""
    tone: Literal["", "good", "bad", "muted"] = ""


@dataclass(frozen=True, slots=True)
class Warn:
    code: str
    sentence: str
    severe: bool = False


@dataclass(frozen=True, slots=True)
class Page:
    """One page. The first screen is the verdict: answer, sentence, gates, key numbers, cautions."""

    kind: str  # run, experiment, matrix, comparison
    title: str
    answer: Answer | None  # None: nobody asked for a verdict
    sentence: str
    subtitle: tuple[str, ...] = ()  # server, model, workload, date
    question: str = ""
    answer_word: str = ""  # what the answer is called, where that is not its own word: better, worse
    what_would_change_it: str = ""
    gates: tuple[Gate, ...] = ()
    numbers: tuple[KeyNumber, ...] = ()
    cautions: tuple[Warn, ...] = ()
    sections: tuple[Section, ...] = field(default=())
