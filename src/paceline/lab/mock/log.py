"""What the mock saw and did: the truth a measurement is held against.

Times are nanoseconds of the monotonic clock, which all processes of one Linux machine share; -1: it did not happen.
"Sent" means handed to the socket.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from paceline.contracts.artefact import NEVER, ChunkKind
from paceline.errors import LabError


class SentChunk(NamedTuple):
    t_planned_ns: int  # by the script
    t_sent_ns: int
    kind: ChunkKind
    num_tokens: int


class LogEntry(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One request for text."""

    number: int  # in order of arrival, from 0
    path: str = ""
    model: str = ""
    rule: int = -1  # of the script; -1: its fallback
    connection: int = 0  # number of the connection: requests that share one used keep-alive
    key: int = -1  # which of the script's API keys
    request_id: str = ""  # header X-Request-Id
    streamed: bool = False
    status: int = 0
    outcome: str = "open"  # open, done, cut (by the script), client_closed
    t_arrival_ns: int = NEVER  # its first byte was read
    t_read_ns: int = NEVER  # all of it was read
    t_begin_ns: int = NEVER  # service began, by the schedule of the slots
    t_headers_ns: int = NEVER
    t_first_token_ns: int = NEVER
    t_last_token_ns: int = NEVER
    t_end_ns: int = NEVER  # last byte of the reply
    t_closed_ns: int = NEVER  # the client left before that
    t_freed_ns: int = NEVER  # its slot and blocks were free again
    num_body_bytes: int = 0
    prompt_sha256: str = ""  # of the JSON of `messages` or `prompt` as it came
    prompt_tokens: int = 0  # as the mock counts
    cached_tokens: int = 0
    num_tokens_asked: int = -1  # max_tokens
    num_tokens_sent: int = 0
    num_first_tokens: int = 0  # in the first chunk of tokens
    chunks: list[SentChunk] = []
    body: str | None = None

    @property
    def ttft_s(self) -> float:
        """Arrival to first token; nan: there was none."""
        return (self.t_first_token_ns - self.t_arrival_ns) / 1e9 if self.t_first_token_ns != NEVER else math.nan

    @property
    def tpot_s(self) -> float:
        """By contracts.slo: gaps over the tokens after the first chunk; nan: there were none."""
        later = self.num_tokens_sent - self.num_first_tokens
        return (self.t_last_token_ns - self.t_first_token_ns) / 1e9 / later if later > 0 else math.nan

    @property
    def e2e_s(self) -> float:
        """Arrival to last token."""
        return (self.t_last_token_ns - self.t_arrival_ns) / 1e9 if self.t_last_token_ns != NEVER else math.nan

    def sent(self, num_tokens: int, t_ns: int) -> None:
        """Note one chunk of tokens."""
        if self.t_first_token_ns == NEVER:
            self.t_first_token_ns = t_ns
            self.num_first_tokens = num_tokens
        self.t_last_token_ns = t_ns
        self.num_tokens_sent += num_tokens


def wait_for_ends(
    log: Callable[[], list[LogEntry]], num_requests: int, *, timeout_s: float, pause_s: float
) -> list[LogEntry]:
    """The log, once so many of its requests have ended. LabError if they do not."""
    give_up = time.monotonic() + timeout_s
    while True:
        entries = log()
        ended = sum(entry.outcome != "open" for entry in entries)
        if ended >= num_requests:
            return entries
        if time.monotonic() > give_up:
            raise LabError("the mock did not see enough requests end", seen=ended, expected=str(num_requests))
        time.sleep(pause_s)
