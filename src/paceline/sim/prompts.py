"""Token ids for planned requests: invented, but equal exactly where the plan says that texts are equal.

Ids are names here, not tokens of a vocabulary. A piece of text (a shared prefix, a passage, a request's own words, an
answer) is a row of consecutive ids from a number that is its alone, so that prefix caches hit what they would hit.
What a chat template adds is such a piece too, and a part of the tokens that were asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from paceline.contracts.mix import mix64
from paceline.contracts.request import Prompt, TokenPrompt, TracePrompt
from paceline.contracts.step import RowAdmit
from paceline.contracts.workload import Endpoint, PlannedRequest
from paceline.lab.workload.draw import key

NUM_IDS = (1 << 31) - 1  # size of the vocabulary that a simulated executor must have
_START = (1 << 30) - 1  # pieces begin below it and stay within NUM_IDS


class Template(NamedTuple):
    """Tokens that a model's chat template puts into every chat: shared by all of them."""

    before: int = 0  # the first message
    between: int = 0  # the first, which has what requests share, and the second


NO_TEMPLATE = Template()


class Answers:
    """The oracle of a simulated executor: answers are pieces of text too, one for each request."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def begin(self, request_id: int) -> int:
        return (request_id * 0x9E3779B1 + self._seed * 0x85EBCA6B) & _START

    def __call__(self, row: RowAdmit, position: int, /) -> int:
        return self.begin(row.request_id) + position

    def of(self, request_id: int) -> Sequence[int]:
        """By output position, longer than any answer."""
        first = self.begin(request_id)
        return range(first, first + _START)

    def token(self, request_id: int, position: int) -> int:
        return self.begin(request_id) + position


class Prompts:
    """Makes the prompts of one plan, turn by turn of each session.

    `keyed` False: nobody looks at the ids (no prefix cache), so they are not made.
    """

    def __init__(self, answers: Answers, *, keyed: bool = True, template: Template = NO_TEMPLATE) -> None:
        self._template = template
        self._answers = answers
        self._keyed = keyed
        self._begins: dict[tuple[object, ...], int] = {}  # of shared pieces
        self._history: dict[int, np.ndarray] = {}  # session -> ids of its turns so far
        self._lengths: dict[int, int] = {}  # the same without ids

    def prompt(self, request: PlannedRequest) -> Prompt:
        """The prompt of a request that is due: of a later turn, once the turn before has ended."""
        if not self._keyed:
            before = self._lengths.get(request.session, 0) if request.session is not None else 0
            return TracePrompt(num_tokens=before + request.num_input_tokens, block_hashes=(), hash_block_size=1)
        return TokenPrompt(ids=self._ids(request))

    def ended(self, request: PlannedRequest, prompt: Prompt, num_output: int) -> None:
        """A turn has its answer, which the next turn will quote."""
        if request.session is None:
            return
        if request.last_turn:
            self.forget(request)
        elif not self._keyed:
            self._lengths[request.session] = prompt.num_tokens + num_output
        else:
            answer = _piece(self._answers.begin(request.id), num_output)
            self._history[request.session] = np.concatenate([prompt.ids, answer])

    def forget(self, request: PlannedRequest) -> None:
        """Its session does not go on."""
        if request.session is not None:
            self._history.pop(request.session, None)
            self._lengths.pop(request.session, None)

    def _ids(self, request: PlannedRequest) -> np.ndarray:
        """[num_tokens] int32."""
        pieces: list[np.ndarray] = []
        left, between = request.num_input_tokens, 0
        if request.session is not None and request.session in self._history:
            pieces.append(self._history[request.session])
        elif request.endpoint is Endpoint.CHAT and left > sum(self._template):
            before, between = self._template
            pieces.append(_piece(self._begin(("template",)), before))
            left -= before + between
        if request.prefix_group is not None and request.num_prefix_tokens:
            name = ("prefix", request.stream, request.prefix_group)
            pieces.append(_piece(self._begin(name), min(left, request.num_prefix_tokens)))
            left -= len(pieces[-1])
        for passage in request.shared:
            if left <= 0:
                break
            pieces.append(_piece(self._begin(("passage", passage)), min(left, request.num_shared_tokens)))
            left -= len(pieces[-1])
        if between and len(pieces) > 1:  # a message of what is shared, and one that is its own
            pieces.append(_piece(self._begin(("between",)), between))
        else:
            left += between
        if left > 0:
            pieces.append(_piece(mix64(request.content_seed) & _START, left))
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def _begin(self, name: tuple[object, ...]) -> int:
        begin = self._begins.get(name)
        if begin is None:
            begin = self._begins[name] = key(*name) & _START
        return begin


def _piece(begin: int, num: int) -> np.ndarray:
    return np.arange(begin, begin + num, dtype=np.int32)
