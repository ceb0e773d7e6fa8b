"""One stream's requests, arrival by arrival. Each property of request i is a draw of its own, named and numbered."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from paceline.contracts.workload import Faults, PlannedRequest
from paceline.errors import ConfigError
from paceline.lab.workload.draw import deck, key, pick, small, uniforms, zipf_weights
from paceline.lab.workload.lengths import AnyLength
from paceline.lab.workload.spec import Stream, WorkloadSpec
from paceline.lab.workload.traces.replay import Trace
from paceline.lab.workload.traces.rows import TraceRows

TURN_TOKENS = 16
"""Kept free per turn of a session for what a chat template adds around each message."""


class Column:
    """A growing list whose first elements never change: item i of `make(n)` is the same for every n > i."""

    def __init__(self, make: Callable[[int], Any]) -> None:
        self._make = make
        self._items: Any = ()  # a list or an array

    def __getitem__(self, index: int) -> Any:
        if index >= len(self._items):
            self._items = self._make(max(64, 2 * index + 2))
        return self._items[index]


class StreamRequests:
    """Makes the requests of one stream; call `arrival` for 0, 1, 2, ... in order."""

    def __init__(self, stream: Stream, spec: WorkloadSpec, seed: int, rows: TraceRows | None) -> None:
        self._stream = stream
        self._limit = spec.max_model_len
        self._rows = rows
        self._names = (seed, "stream", stream.name)
        self._num_made = 0
        self._input = self._lengths("input", stream.input)
        self._output = self._lengths("output", stream.output)
        self._streamed = Column(lambda n: deck(n, {"yes": stream.streaming_share}, *self._names, "streamed"))
        self._fault = Column(lambda n: deck(n, _fault_shares(stream), *self._names, "fault"))
        self._amount = Column(lambda n: uniforms(n, *self._names, "amount"))
        prefix = stream.prefix
        if prefix is not None:
            weights = zipf_weights(prefix.groups, prefix.zipf)
            self._group = Column(lambda n: pick(weights, uniforms(n, *self._names, "group")))

    def arrival(self, index: int) -> tuple[list[PlannedRequest], int]:
        """The requests of arrival `index`, ids and times not yet set: one, or a session's turns; and how many were
        cut to fit the model."""
        if self._stream.turns is None:
            request, cut = self._request(index, 0, 0)
            return [request], cut
        made: list[PlannedRequest] = []
        num_history = 0
        for turn in range(self._num_turns(index)):
            request, cut = self._request(index, turn, num_history)
            num_history += request.num_input_tokens + request.num_output_tokens + TURN_TOKENS
            if turn > 0 and (cut or (self._limit is not None and num_history > self._limit)):
                self._num_made -= 1  # the next request takes this place, so that shares stay exact
                return made, 1
            made.append(request)
        return made, 0

    def _request(self, index: int, turn: int, num_history: int) -> tuple[PlannedRequest, int]:
        stream, place = self._stream, self._num_made
        self._num_made += 1
        num_prefix = stream.prefix.tokens if stream.prefix is not None and turn == 0 else 0
        shared, num_each, num_shared = self._shared(index, turn)
        num_input = num_prefix + num_shared + self._length(self._input, "num_input", index, place)
        num_output = self._length(self._output, "num_output", index, place)
        num_input, num_output, cut = self._fit(num_input, num_output, num_history)
        streamed = self._streamed[place] is not None
        unstreamed_class = stream.unstreamed_class or stream.slo_class
        turns = stream.turns
        think_s = 0.0
        if turns is not None and turn > 0:
            wait = small(*self._names, "think", index, turn)
            think_s = (
                turns.think_s if turns.think == "fixed" or not turns.think_s else wait.expovariate(1 / turns.think_s)
            )
        return PlannedRequest(
            id=0,
            stream=stream.name,
            slo_class=stream.slo_class if streamed else unstreamed_class,
            tenant=stream.tenant,
            priority=stream.priority,
            service_class=stream.service_class,
            endpoint=stream.endpoint,
            streamed=streamed,
            num_input_tokens=num_input,
            num_output_tokens=num_output,
            exact_output=self._exact(),
            temperature=stream.temperature,
            content=stream.content,
            content_seed=key(*self._names, "content", place, bits=48),
            prefix_group=int(self._group[index]) if num_prefix else None,
            num_prefix_tokens=min(num_prefix, num_input),
            shared=shared,
            num_shared_tokens=num_each,
            session=index if turns is not None else None,
            turn=turn,
            think_s=think_s,
            loop_slots=getattr(stream.arrival, "slots", None),
            faults=self._faults(place, num_output),
            extra=stream.extra,
        ), int(cut)

    def _lengths(self, name: str, length: AnyLength | None) -> Column | None:
        if length is None:
            return None
        return Column(lambda n: length.sample(uniforms(n, *self._names, name)))

    def _length(self, column: Column | None, name: str, index: int, place: int) -> int:
        if column is not None:
            return int(column[place])
        recorded = None if self._rows is None else getattr(self._rows, name)
        if recorded is None and name == "num_input" and self._stream.content == "file":
            return 0  # known when it is read
        if recorded is None:
            term = name.removeprefix("num_")
            raise ConfigError(f"stream {self._stream.name}: its trace says no {term} lengths", fix=f"{term} = 128")
        assert isinstance(self._stream.arrival, Trace)
        return max(1, round(float(recorded[index]) * self._stream.arrival.length_scale))

    def _shared(self, index: int, turn: int) -> tuple[tuple[int, ...], int, int]:
        """Ids of passages, tokens of each, and how many tokens they add to what `input` asks."""
        rows, documents = self._rows, self._stream.documents
        if documents is not None and turn == 0:
            weights = zipf_weights(documents.pool, documents.zipf)
            draws = np.random.Generator(np.random.Philox(key=key(*self._names, "documents", index, bits=128)))
            chosen = draws.choice(documents.pool, size=documents.per_request, replace=False, p=weights)
            return tuple(int(i) for i in chosen), documents.tokens, documents.per_request * documents.tokens
        if rows is None or rows.blocks is None or self._stream.input is not None:
            return (), 0, 0
        assert isinstance(self._stream.arrival, Trace)
        return rows.blocks[index], max(1, round(rows.block_tokens * self._stream.arrival.length_scale)), 0

    def _fit(self, num_input: int, num_output: int, num_history: int) -> tuple[int, int, bool]:
        if self._limit is None or num_history + num_input + num_output <= self._limit:
            return num_input, num_output, False
        num_output = min(num_output, max(1, self._limit // 2))
        return min(num_input, max(1, self._limit - num_output)), num_output, True

    def _num_turns(self, index: int) -> int:
        turns = self._stream.turns
        assert turns is not None
        if turns.mean is None or turns.mean <= 1:
            return turns.max if turns.mean is None else 1
        u = small(*self._names, "turns", index).random()
        return min(turns.max, 1 + math.floor(math.log1p(-u) / math.log1p(-1 / turns.mean)))

    def _exact(self) -> bool:
        asked = self._stream.exact_output
        return self._stream.content not in ("tools", "structured") if asked is None else asked

    def _faults(self, place: int, num_output: int) -> Faults:
        faults = self._stream.faults
        if faults is None:
            return Faults()
        kind, u = self._fault[place], float(self._amount[place])
        if kind == "cancel":
            if faults.cancel_after_tokens is not None:
                return Faults(cancel_after_tokens=int(faults.cancel_after_tokens.sample(np.asarray([u]))[0]))
            return Faults(cancel_after_tokens=1 + int(u * max(1, num_output // 2)))
        if kind == "disconnect":
            low, high = faults.disconnect_after_s
            return Faults(disconnect_after_s=low + u * (high - low))
        if kind == "timeout" or (faults.timeout_s is not None and faults.timeout_share is None):
            return Faults(timeout_s=faults.timeout_s)
        return Faults()


def _fault_shares(stream: Stream) -> dict[str, float]:
    faults = stream.faults
    if faults is None:
        return {}
    return {
        "cancel": faults.cancel_share,
        "disconnect": faults.disconnect_share,
        "timeout": faults.timeout_share or 0.0,
    }
