"""From a planned request to its prompt: deterministic, of the asked length, distinct where it must be.

A chat prompt begins with a system message, so that a template's own default never becomes a prefix that all requests
share. What is shared on purpose (prefix, passages) stands in it; what is the request's own stands in the user message.
Each text begins with words drawn from its own seed and the run's salt.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from paceline.contracts.workload import Endpoint, PlannedRequest, RenderedPrompt
from paceline.errors import LabError
from paceline.lab.workload.content.counter import EstimateCounter, TokenCounter
from paceline.lab.workload.content.pieces import LEAD, Piece, Pieces, measure
from paceline.lab.workload.content.prompt_files import read_prompts
from paceline.lab.workload.content.tools import SCHEMAS, TOOLS, schema_body, tool_body
from paceline.lab.workload.draw import key, small
from paceline.lab.workload.spec import WorkloadSpec

_MIN_SYSTEM = 24  # own tokens from which a request affords a system message of its own
_MIN_TASK = 48  # and from which it ends with a task
_ROUNDS = 4
_MIN_TAIL = 40  # tokens of filling words by whose number a prompt's length is corrected, where counts do not add up
_AT_ONCE = 16


class _Overhead(NamedTuple):
    """Tokens a chat template adds."""

    both: int  # around a system and a user message
    user: int  # around a user message alone, with the template's own system message if it has one
    turn: int  # around one more message


class Content:
    """Renders a plan's requests. Call `prepare` once, then `render` as often as needed: no I/O, same words each time.

    `counter` None estimates lengths; prompts then say `num_tokens` None. `exact` tells whether lengths are exact.
    """

    def __init__(self, spec: WorkloadSpec, seed: int, salt: str, counter: TokenCounter | None = None) -> None:
        self._streams = {stream.name: stream for stream in spec.streams}
        self._names = (seed, "salt", salt)
        self._counter: TokenCounter = counter or EstimateCounter()
        self._made: Pieces | None = None
        self._has_system = True
        self._overhead: _Overhead | None = None
        self._adds_up: bool | None = None
        self._missing: dict[int, int] | None = None  # tokens to add by request, where counts do not add up
        self._shared: dict[tuple[object, ...], tuple[str, int]] = {}
        self._files = {s.name: read_prompts(s.file) for s in spec.streams if s.file is not None}

    @property
    def exact(self) -> bool:
        """Whether prompts get exactly the tokens they were asked to have."""
        return self._counter.exact

    @property
    def salted(self) -> bool:
        """Whether no prompt of this run can have been seen by the server before: not so for a user's own prompts."""
        return not self._files

    async def prepare(self, requests: Sequence[PlannedRequest] = (), *, like: Content | None = None) -> None:
        """Measures what texts are made of, and what the chat template adds: some hundred short calls, or none where
        `like` has measured the same server. If counts do not add up for this tokenizer, each of `requests` is measured
        and adjusted. Raises LabError if the server cannot count."""
        if like is not None and like._made is not None:
            self._made, self._adds_up = like._made, like._adds_up
            self._overhead, self._has_system = like._overhead, like._has_system
        if self._made is None:
            self._made = await measure(self._counter)
        chats = any(s.endpoint is Endpoint.CHAT for s in self._streams.values())
        if chats and self._overhead is None:
            self._overhead, self._adds_up = await self._template(), None
        if self._adds_up is None:
            self._adds_up = self._made.additive and await self._holds(chats)
        if self._counter.exact and not self._adds_up:
            await self._adjust([r for r in requests if _has_counted_text(r)])

    def render(self, request: PlannedRequest, history: list[dict[str, Any]] | None = None) -> RenderedPrompt:
        """The prompt of one request; `history` holds the session's messages so far, answers included."""
        if request.endpoint is Endpoint.TOKEN_IDS:
            return self._ids(request)
        if request.content == "file":
            return self._of_file(request, history)
        if self._made is None:
            raise LabError("the content is not prepared", fix="await content.prepare() first")
        if request.endpoint is Endpoint.COMPLETIONS:
            return self._text(request)
        return self._chat(request, history)

    def _chat(self, request: PlannedRequest, history: list[dict[str, Any]] | None) -> RenderedPrompt:
        made, wanted = self._pieces, request.num_input_tokens
        form, body = _form(request)
        ends = [made.asks[form.name]] if form is not None else None
        schema = form.schema if form is not None else None
        if history:
            text, _ = self._own(request, wanted - self._around.turn, ends)
            return RenderedPrompt(messages=[*history, _message("user", text)], body=body, schema=schema)
        common, num_common = self._common(request, wanted - self._around.both - 1)
        if not common and (wanted < self._around.both + _MIN_SYSTEM or not self._has_system):
            text, num = self._own(request, wanted - self._around.user, ends)
            return self._chat_prompt([_message("user", text)], num + self._around.user, body, schema)
        if not common:
            rng = small(*self._names, request.content_seed, "system")
            role = made.roles[int(rng.random() * len(made.roles))]
            common, num_common = made.prose(rng, min(LEAD + role.num_tokens, wanted // 3), [role])
        text, num = self._own(request, wanted - self._around.both - num_common, ends)
        if not self._has_system:
            return self._chat_prompt(
                [_message("user", common + text)], num + num_common + self._around.user, body, schema
            )
        messages = [_message("system", common), _message("user", text)]
        return self._chat_prompt(messages, num + num_common + self._around.both, body, schema)

    def _chat_prompt(
        self, messages: list[dict[str, Any]], num: int, body: dict[str, Any], schema: dict[str, Any] | None
    ) -> RenderedPrompt:
        # tools add to the prompt what only the template knows
        known = self._counter.exact and "tools" not in body
        return RenderedPrompt(messages=messages, num_tokens=num if known else None, body=body, schema=schema)

    def _text(self, request: PlannedRequest) -> RenderedPrompt:
        offset = self._pieces.offset
        wanted = request.num_input_tokens - offset
        common, num_common = self._common(request, wanted - 1)
        text, num = self._own(request, wanted - num_common, None)
        total = num_common + num + offset
        return RenderedPrompt(text=(common + text).lstrip(), num_tokens=total if self._counter.exact else None)

    def _ids(self, request: PlannedRequest) -> RenderedPrompt:
        low, high = self._streams[request.stream].token_id_range

        def draw(num: int, *names: object) -> list[int]:
            seed = key(*self._names, "ids", *names, bits=128)
            drawn: list[int] = np.random.Generator(np.random.Philox(key=seed)).integers(low, high, max(0, num)).tolist()
            return drawn

        ids: list[int] = []
        if request.prefix_group is not None:
            ids += draw(request.num_prefix_tokens, "prefix", request.stream, request.prefix_group)
        for passage in request.shared:
            ids += draw(request.num_shared_tokens, "passage", passage)
        ids = ids[: request.num_input_tokens]
        ids += draw(request.num_input_tokens - len(ids), "own", request.content_seed)
        return RenderedPrompt(token_ids=ids, num_tokens=len(ids))

    def _of_file(self, request: PlannedRequest, history: list[dict[str, Any]] | None) -> RenderedPrompt:
        prompts = self._files[request.stream]
        prompt = prompts[request.content_seed % len(prompts)]
        if request.endpoint is Endpoint.COMPLETIONS:
            return RenderedPrompt(text="\n".join(str(m["content"]) for m in prompt))
        said = [dict(m) for m in prompt if not (history and m.get("role") == "system")]  # a chat has one, at its front
        return RenderedPrompt(messages=[*(history or []), *said])

    def _own(self, request: PlannedRequest, num: int, ends: list[Piece] | None) -> tuple[str, int]:
        """The request's own text."""
        made, num = self._pieces, max(1, num)
        rng = small(*self._names, request.content_seed, "own")
        tail, num_tail = self._tail(request, num)
        if request.content == "synthetic":
            text, counted = made.plain(rng, num - num_tail)
            return text + tail, counted + num_tail
        if ends is None:
            ends = [made.tasks[int(rng.random() * len(made.tasks))]] if num >= _MIN_TASK else []
        num_ends = sum(piece.num_tokens for piece in ends)
        text, counted = made.prose(rng, max(1, num - num_ends - num_tail))
        return text + tail + "".join(piece.text for piece in ends), counted + num_tail + num_ends

    def _tail(self, request: PlannedRequest, num: int) -> tuple[str, int]:
        """Words that make up for counts that do not add up: (text, what it was meant to count)."""
        num_tail = max(_MIN_TAIL, num // 8)
        if self._missing is None or num < 2 * _MIN_TAIL:
            return "", 0
        rng = small(*self._names, request.content_seed, "tail")
        return self._pieces.filling(rng, max(0, num_tail + self._missing.get(request.id, 0)))[0], num_tail

    def _common(self, request: PlannedRequest, limit: int) -> tuple[str, int]:
        """The prefix of its group and the passages it shares, `limit` tokens at most."""
        text, counted = "", 0
        if request.prefix_group is not None:
            num = min(request.num_prefix_tokens, limit)
            text, counted = self._prefix(request.stream, request.prefix_group, num)
        for passage in request.shared:
            num = min(request.num_shared_tokens, limit - counted)
            if num <= 0:
                break
            more, add = self._passage(passage, num, plain=request.content == "synthetic")
            text, counted = text + more, counted + add
        return text, counted

    def _prefix(self, stream: str, group: int, num: int) -> tuple[str, int]:
        if num <= 0:
            return "", 0
        name = ("prefix", stream, group, num)
        if name not in self._shared:
            spec, made = self._streams[stream], self._pieces
            rng = small(*self._names, "prefix", stream, group)
            if spec.content == "synthetic":
                self._shared[name] = made.plain(rng, num)
            else:
                tools = spec.prefix is not None and spec.prefix.kind == "tools"
                self._shared[name] = made.prose(rng, num, made.tools if tools else ())
        return self._shared[name]

    def _passage(self, passage: int, num: int, *, plain: bool) -> tuple[str, int]:
        rng = small(*self._names, "passage", passage)
        return self._pieces.plain(rng, num) if plain else self._pieces.prose(rng, num)

    @property
    def _around(self) -> _Overhead:
        assert self._overhead is not None
        return self._overhead

    @property
    def _pieces(self) -> Pieces:
        assert self._made is not None
        return self._made

    async def _template(self) -> _Overhead:
        """What the chat template adds around one, two and three messages."""
        word = self._pieces.leads[0]
        user, answer = _message("user", word.text), _message("assistant", word.text)
        alone = await self._counter.count_chat([user])
        three = await self._counter.count_chat([user, answer, user])
        turn, user_tokens = max(0, three - alone - 2 * word.num_tokens) // 2, alone - word.num_tokens
        try:
            both = await self._counter.count_chat([_message("system", word.text), user])
        except LabError:  # a template without system messages
            self._has_system = False
            return _Overhead(user_tokens, user_tokens, turn)
        return _Overhead(both - 2 * word.num_tokens, user_tokens, turn)

    async def _holds(self, chats: bool) -> bool:
        """Do counts of whole texts, and of a whole chat, come out as predicted?"""
        rng = small(*self._names, "check")
        (short, n1), (long, n2) = self._pieces.prose(rng, 40), self._pieces.prose(rng, 200)
        (words, n3), offset = self._pieces.plain(rng, 100), self._pieces.offset
        if await self._counter.count([short, long, words]) != [n1 + offset, n2 + offset, n3 + offset]:
            return False
        if not chats:
            return True
        if not self._has_system:
            return await self._counter.count_chat([_message("user", long)]) == n2 + self._around.user
        chat = await self._counter.count_chat([_message("system", short), _message("user", long)])
        return chat == n1 + n2 + self._around.both

    async def _adjust(self, requests: Sequence[PlannedRequest]) -> None:
        """Renders, measures and corrects, a few rounds: for tokenizers whose counts depend on what stands beside."""
        missing: dict[int, int] = {}
        self._missing = missing
        wrong = list(requests)
        for _ in range(_ROUNDS):
            counts: list[int] = []
            for i in range(0, len(wrong), _AT_ONCE):
                counts += await asyncio.gather(*(self._count(self.render(r)) for r in wrong[i : i + _AT_ONCE]))
            off = [(r, r.num_input_tokens - n) for r, n in zip(wrong, counts, strict=True) if n != r.num_input_tokens]
            for request, more in off:
                missing[request.id] = missing.get(request.id, 0) + more
            wrong = [request for request, _ in off]
            if not wrong:
                return

    async def _count(self, prompt: RenderedPrompt) -> int:
        if prompt.messages is not None:
            return await self._counter.count_chat(prompt.messages)
        assert prompt.text is not None
        return (await self._counter.count([prompt.text]))[0]


def _message(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": text.lstrip()}


def _form(request: PlannedRequest) -> tuple[Any, dict[str, Any]]:
    """The tool or schema that a request asks for, and the fields that say so."""
    if request.content == "tools":
        form = TOOLS[request.content_seed % len(TOOLS)]
        return form, tool_body(form)
    if request.content == "structured":
        form = SCHEMAS[request.content_seed % len(SCHEMAS)]
        return form, schema_body(form)
    return None, {}


def _has_counted_text(request: PlannedRequest) -> bool:
    return request.endpoint is not Endpoint.TOKEN_IDS and request.content not in ("file", "tools") and request.turn == 0
