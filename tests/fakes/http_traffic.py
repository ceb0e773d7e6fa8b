"""Random HTTP calls for a server, valid and not, each a function of its seed.

About seven in ten are valid. Those are drawn so that their answer is determined (greedy or seeded), and say in
`Call.jobs` what a serial engine has to be asked for it; `serial_answers.py` asks and compares.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from paceline.contracts.request import SamplingParams

Manner = Literal["read", "slow", "leave", "reset", "hang up early"]
Kind = Literal["completion", "chat", "tokenize", "detokenize", "models", "wrong"]

LETTERS = "abcdefghijklmnopqrstuvwxyz ABC.,!?\n"
ODD = 'éßñ中文字🙂👩‍🚀\u0301\u200b\t"\\'
_NAMES = ("system", "user", "assistant")


@dataclass(frozen=True)
class World:
    """What a generator must know of the server."""

    model: str
    vocab_size: int
    max_model_len: int
    letters: str = LETTERS  # what its text is likely made of
    max_body_bytes: int = 8 * 2**20


@dataclass(frozen=True)
class Call:
    """One request and what its client does. `fields` is the body as JSON, None where it is none."""

    seed: int
    kind: Kind
    method: str
    path: str
    body: bytes
    fields: dict[str, Any] | None = None
    manner: Manner = "read"
    leave_after: int = 0  # events or bytes of the reply, for those who leave
    pieces: tuple[int, ...] | None = None  # chunk sizes of a chunked body
    headers: dict[str, str] = field(default_factory=dict)
    wrong: str = ""  # what is wrong with it
    jobs: tuple[tuple[Any, SamplingParams], ...] = ()  # (prompt, sampling) per prompt

    @property
    def valid(self) -> bool:
        return not self.wrong

    def __str__(self) -> str:
        extras = f", {self.manner} after {self.leave_after}" if self.manner != "read" else ""
        wrong = f", wrong: {self.wrong}" if self.wrong else ""
        body = self.body[:2000].decode("utf-8", "backslashreplace")
        return f"seed {self.seed}: {self.method} {self.path}{extras}{wrong}\n{body}"


def draw_call(seed: int, world: World) -> Call:
    """The call of `seed`."""
    rng = random.Random(seed)
    roll = rng.random()
    if roll < 0.40:
        call = _completion(rng, seed, world)
    elif roll < 0.68:
        call = _chat(rng, seed, world)
    elif roll < 0.72:
        call = _text_call(rng, seed, world)
    elif roll < 0.74:
        call = Call(seed, "models", "GET", "/v1/models", b"")
    else:
        return _wrong(rng, seed, world)
    return _with_manner(rng, call)


def _with_manner(rng: random.Random, call: Call) -> Call:
    """How the client behaves, and how the body is cut."""
    pieces = None
    if call.method == "POST" and rng.random() < 0.25:
        pieces = tuple(rng.randrange(1, 60) for _ in range(rng.randrange(0, 5)))
    manner: Manner = "read"
    if call.kind in ("completion", "chat") and rng.random() < 0.25:
        manner = rng.choice(("slow", "leave", "reset", "hang up early"))
    leave_after = rng.choice((0, 1, 1, 2, 3, 5, 8))
    return replace(call, pieces=pieces, manner=manner, leave_after=leave_after)


# --- valid calls


def text(rng: random.Random, most: int) -> str:
    """1 to `most` characters, some of them of several bytes."""
    alphabet = LETTERS * 4 + (ODD if rng.random() < 0.4 else "")
    return "".join(rng.choice(alphabet) for _ in range(rng.randrange(1, most + 1)))


def _ids(rng: random.Random, world: World, most: int) -> list[int]:
    return [rng.randrange(world.vocab_size) for _ in range(rng.randrange(1, most + 1))]


def _sampling(rng: random.Random, world: World) -> dict[str, Any]:
    """Fields that both endpoints have. Whatever is drawn has one answer."""
    fields: dict[str, Any] = {}
    if rng.random() < 0.4:
        fields["temperature"] = 0 if rng.random() < 0.5 else 0.0
    else:
        fields["seed"] = rng.choice((0, 1, rng.randrange(2**31), rng.randrange(2**63)))
        if rng.random() < 0.6:
            fields["temperature"] = round(rng.uniform(0.1, 2.0), 3)
    choices: dict[str, Callable[[], Any]] = {
        "top_p": lambda: round(rng.uniform(0.2, 1.0), 3),
        "top_k": lambda: rng.choice((-1, 0, 1, 5, 40, 10_000)),
        "min_p": lambda: round(rng.uniform(0, 0.3), 3),
        "typical_p": lambda: round(rng.uniform(0.3, 1.0), 3),
        "presence_penalty": lambda: round(rng.uniform(-2, 2), 2),
        "frequency_penalty": lambda: round(rng.uniform(-2, 2), 2),
        "repetition_penalty": lambda: round(rng.uniform(0.8, 1.5), 2),
        "logit_bias": lambda: {
            str(rng.randrange(world.vocab_size)): rng.choice((-100, -5.5, 3, 100)) for _ in range(rng.randrange(1, 4))
        },
        "ignore_eos": lambda: rng.random() < 0.7,
        "n": lambda: rng.choice((1, 2, 3)),
        "stop": lambda: _stop(rng, world),
        "stop_token_ids": lambda: _ids(rng, world, max(3, world.vocab_size // 8)),
        "min_tokens": lambda: rng.randrange(0, 5),
        "include_stop_str_in_output": lambda: rng.random() < 0.5,
        "priority": lambda: rng.choice((-2, 0, 1, 7)),
        "user": lambda: "somebody",
        "cache_salt": lambda: rng.choice(("red", "blue")),
        "timings": lambda: True,
        "timeout": lambda: 600,
    }
    for name, value in choices.items():
        if rng.random() < 0.15:
            fields[name] = value()
    if rng.random() < 0.5:
        fields["stream"] = rng.random() < 0.8
        if fields["stream"] and rng.random() < 0.6:
            fields["stream_options"] = {"include_usage": rng.random() < 0.8}
            if rng.random() < 0.3:
                fields["stream_options"]["continuous_usage_stats"] = rng.random() < 0.7
    return fields


def _stop(rng: random.Random, world: World) -> Any:
    """Strings that a random text has a fair chance to hold."""
    stops = ["".join(rng.choice(world.letters) for _ in range(rng.choice((1, 1, 1, 2, 3)))) for _ in range(16)]
    return stops[0] if rng.random() < 0.3 else stops[: rng.randrange(1, 17)]


def sampling_of(fields: dict[str, Any], *, chat: bool) -> SamplingParams:
    """What the API's words mean to an engine: written from the API's definition, not from the server."""
    names = set(SamplingParams.__struct_fields__) - {"logprobs", "logit_bias", "stop", "max_tokens", "prompt_logprobs"}
    given = {name: value for name, value in fields.items() if name in names}
    if "logit_bias" in fields:
        given["logit_bias"] = {int(token): float(value) for token, value in fields["logit_bias"].items()}
    stop = fields.get("stop", [])
    given["stop"] = (stop,) if isinstance(stop, str) else tuple(stop)
    if "stop_token_ids" in fields:
        given["stop_token_ids"] = tuple(fields["stop_token_ids"])
    if chat:
        given["max_tokens"] = fields.get("max_completion_tokens", fields.get("max_tokens"))
        given["logprobs"] = fields.get("top_logprobs", 0) if fields.get("logprobs") else None
    else:
        given["max_tokens"] = fields.get("max_tokens", 16)
        given["logprobs"] = fields.get("logprobs")
        if fields.get("echo"):
            given["prompt_logprobs"] = fields.get("logprobs")
    return SamplingParams(**given)


def _limit_tokens(fields: dict[str, Any], limit: int) -> int:
    return max(limit, int(fields.get("min_tokens", 0)))


def _completion(rng: random.Random, seed: int, world: World) -> Call:
    fields = {"model": world.model, **_sampling(rng, world)}
    limit = 16 if rng.random() < 0.2 else rng.randrange(1, 13)
    if limit != 16:
        fields["max_tokens"] = _limit_tokens(fields, limit)
    if rng.random() < 0.3:
        fields["logprobs"] = rng.choice((0, 1, 3, 5))
    if rng.random() < 0.2:
        fields["echo"] = rng.random() < 0.8
    kind = rng.random()
    longest = 24 if rng.random() < 0.8 else world.max_model_len // 8
    prompt: Any
    if kind < 0.55:
        prompt = text(rng, longest)
    elif kind < 0.75:
        prompt = _ids(rng, world, longest)
    elif kind < 0.9:
        prompt = [text(rng, 12) for _ in range(rng.randrange(1, 4))]
    else:
        prompt = [_ids(rng, world, 12) for _ in range(rng.randrange(1, 4))]
    fields["prompt"] = prompt
    many = prompt if isinstance(prompt, list) and not isinstance(prompt[0], int) else [prompt]
    sampling = sampling_of(fields, chat=False)
    jobs = tuple((one, sampling) for one in many)
    return Call(seed, "completion", "POST", "/v1/completions", _dump(rng, fields), fields, jobs=jobs)


def _chat(rng: random.Random, seed: int, world: World) -> Call:
    fields = {"model": world.model, **_sampling(rng, world)}
    limit = _limit_tokens(fields, rng.randrange(1, 13))
    fields[rng.choice(("max_tokens", "max_completion_tokens"))] = limit
    if rng.random() < 0.3:
        fields["logprobs"] = True
        if rng.random() < 0.7:
            fields["top_logprobs"] = rng.randrange(0, 6)
    messages: list[dict[str, Any]] = []
    for role in [*rng.choices(_NAMES, k=rng.randrange(0, 3)), "user"]:
        content: Any = text(rng, 16)
        if rng.random() < 0.2:
            content = [{"type": "text", "text": content}]
        messages.append({"role": role, "content": content})
    fields["messages"] = messages
    jobs = ((messages, sampling_of(fields, chat=True)),)
    return Call(seed, "chat", "POST", "/v1/chat/completions", _dump(rng, fields), fields, jobs=jobs)


def _text_call(rng: random.Random, seed: int, world: World) -> Call:
    if rng.random() < 0.5:
        fields: dict[str, Any] = {"model": world.model, "prompt": text(rng, 40)}
        return Call(seed, "tokenize", "POST", "/tokenize", _dump(rng, fields), fields)
    fields = {"model": world.model, "tokens": _ids(rng, world, 30)}
    return Call(seed, "detokenize", "POST", "/detokenize", _dump(rng, fields), fields)


def _dump(rng: random.Random, fields: dict[str, Any]) -> bytes:
    names = list(fields)
    rng.shuffle(names)
    return json.dumps({name: fields[name] for name in names}, ensure_ascii=rng.random() < 0.5).encode()


# --- calls with a mistake


def _wrong(rng: random.Random, seed: int, world: World) -> Call:
    good = _completion(rng, seed, world) if rng.random() < 0.5 else _chat(rng, seed, world)
    assert good.fields is not None
    name, make = rng.choice(MISTAKES)
    body = make(rng, dict(good.fields), world)
    path = good.path
    method = "POST"
    if name == "unknown path":
        path = rng.choice(("/v1/completion", "/v2/chat/completions", "/v1/", "/v1/models/nobody", "/%00", "/..%2f"))
    if name == "wrong method":
        method = rng.choice(("PUT", "DELETE", "PATCH"))
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    pieces = tuple(rng.randrange(1, 40) for _ in range(3)) if rng.random() < 0.2 else None
    return Call(seed, "wrong", method, path, data, manner="read", pieces=pieces, wrong=name)


def _wrong_type(rng: random.Random, fields: dict[str, Any], _: World) -> dict[str, Any]:
    """A value that no sampling field takes: a nested object."""
    names = list(fields)
    fields[rng.choice(names)] = {"nested": [{"deep": None}]}
    return fields


def _out_of_range(rng: random.Random, fields: dict[str, Any], world: World) -> dict[str, Any]:
    values: tuple[tuple[str, Any], ...] = (
        ("temperature", -1),
        ("temperature", 1e39),
        ("top_p", 0),
        ("top_p", 1.5),
        ("top_k", -7),
        ("min_p", 2),
        ("n", 0),
        ("n", 10**9),
        ("max_tokens", -1),
        ("presence_penalty", 5),
        ("frequency_penalty", -5),
        ("repetition_penalty", 0),
        ("seed", 2**80),
        ("min_tokens", 10**12),
        ("logit_bias", {str(world.vocab_size): 1}),
        ("logit_bias", {"-1": 1}),
        ("logit_bias", {"one": 1}),
        ("stop_token_ids", [world.vocab_size]),
        ("stop_token_ids", [-1]),
        ("stop", [""]),
        ("stop", ["x"] * 100),
        ("timeout", -3),
        ("priority", 2**70),
    )
    name, value = rng.choice(values)
    if name == "max_tokens":
        fields.pop("max_completion_tokens", None)
    fields[name] = value
    return fields


def _bad_prompt(rng: random.Random, fields: dict[str, Any], world: World) -> dict[str, Any]:
    if "messages" in fields:
        fields["messages"] = rng.choice(
            (
                [],
                "hello",
                [{"role": "user"}, "x"],
                [{"content": "no role"}],
                [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
                [{"role": "user", "content": "y" * (world.max_model_len * 9)}],
                [{"role": "user", "content": "\ud83d"}],
            )
        )
    else:
        fields["prompt"] = rng.choice(
            (
                *([], None, 7, {"a": 1}, [[]], ["a", 1], [1, "a"], [1.5], [True], [None], "\udc00"),
                *([world.vocab_size], [-1], "z" * (world.max_model_len * 9), [1] * (world.max_model_len + 1)),
            )
        )
    return fields


def _odd_json(rng: random.Random, fields: dict[str, Any], _: World) -> bytes:
    whole = json.dumps(fields).encode()
    return rng.choice(
        (
            b"",
            b"{",
            whole[: rng.randrange(1, len(whole))],
            whole + b"}",
            b"[]",
            b"null",
            b'"text"',
            b"3",
            b"\xff\xfe{}",
            b'{"model": "\xff"}',
            b"[" * 5000,
            b'{"a":' * 2000,
            whole[:-1] + b', "temperature": NaN}',
            whole[:-1] + b', "temperature": Infinity}',
            whole[:-1] + b', "seed": ' + b"9" * 5000 + b"}",
            whole.replace(b'"', b"'"),
            b"\x00" * 50,
        )
    )


def _unknown_field(rng: random.Random, fields: dict[str, Any], _: World) -> dict[str, Any]:
    return {**fields, rng.choice(("temprature", "max_token", "x", "")): 1}


def _unknown_model(rng: random.Random, fields: dict[str, Any], _: World) -> dict[str, Any]:
    return {**fields, "model": rng.choice(("gpt-4", "../..", "a" * 9000))}


def _no_prompt(_: random.Random, fields: dict[str, Any], __: World) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name not in ("prompt", "messages")}


def _as_it_is(_: random.Random, fields: dict[str, Any], __: World) -> dict[str, Any]:
    return fields


def _too_large(_: random.Random, __: dict[str, Any], world: World) -> bytes:
    return b'{"x": "' + b"y" * world.max_body_bytes + b'"}'


Mistake = Callable[[random.Random, dict[str, Any], World], dict[str, Any] | bytes]
MISTAKES: tuple[tuple[str, Mistake], ...] = (
    ("wrong type", _wrong_type),
    ("out of range", _out_of_range),
    ("bad prompt", _bad_prompt),
    ("odd JSON", _odd_json),
    ("unknown field", _unknown_field),
    ("unknown model", _unknown_model),
    ("no prompt", _no_prompt),
    ("unknown path", _as_it_is),
    ("wrong method", _as_it_is),
    ("body too large", _too_large),
)
