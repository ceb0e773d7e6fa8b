"""Log probabilities as the two endpoints show them: a list of objects (chat), parallel lists (completions).

A token is shown as its text; bytes that are no whole text on their own are `bytes:\\xe2\\x80` in completions, where
names are keys and must differ, and U+FFFD in chat, where the exact bytes stand beside the name.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any, Protocol

from paceline.contracts.request import TokenLogprob

LEAST = -9999.0  # stands for minus infinity, which JSON cannot say


class TokenTable(Protocol):
    """What is asked of a tokenizer here."""

    def bytes_of(self, token_id: int) -> bytes: ...

    def token_bytes(self) -> Sequence[bytes]: ...


def _finite(logprob: float) -> float:
    return logprob if logprob > LEAST else LEAST


class ChatLogprobs:
    """Entries of `logprobs.content`."""

    def __init__(self, tokens: TokenTable, *, as_ids: bool = False) -> None:
        self._tokens = tokens
        self._as_ids = as_ids

    def entries(self, logprobs: Sequence[TokenLogprob]) -> list[dict[str, Any]]:
        """One for each token, in order."""
        return [
            {
                **self._one(entry.token_id, entry.logprob),
                "top_logprobs": [self._one(token, logprob) for token, logprob in _alternatives(entry)],
            }
            for entry in logprobs
        ]

    def _one(self, token_id: int, logprob: float) -> dict[str, Any]:
        data = self._tokens.bytes_of(token_id)
        name = f"token_id:{token_id}" if self._as_ids else data.decode("utf-8", errors="replace")
        return {"token": name, "logprob": _finite(logprob), "bytes": list(data)}


def _alternatives(entry: TokenLogprob) -> list[tuple[int, float]]:
    """The best ones, then those that were asked for by id and are not among them."""
    best = {token for token, _ in entry.top}
    return [*entry.top, *((token, logprob) for token, logprob in entry.extra if token not in best)]


class TextLogprobs:
    """The `logprobs` of one choice of a completion, portion by portion. `text_offset` counts characters of the choice's
    text: where the token's first byte lies, a character begun by an earlier token included."""

    def __init__(
        self, tokens: TokenTable, *, as_ids: bool = False, skip_special: bool = True, strip_space: bool = False
    ) -> None:
        """`strip_space`: the text's first space, if it begins with one, is not shown (echoed prompts of some
        vocabularies)."""
        self._tokens = tokens
        self._table = tokens.token_bytes()
        self._as_ids = as_ids
        self._skip_special = skip_special
        self._strip_space = strip_space
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._offset = 0

    def portion(self, entries: Sequence[TokenLogprob | None], token_ids: Sequence[int]) -> dict[str, Any]:
        """The next tokens; an entry is None for a token without a logprob (the first of a prompt)."""
        tokens: list[str] = []
        offsets: list[int] = []
        values: list[float | None] = []
        tops: list[dict[str, float] | None] = []
        for token_id, entry in zip(token_ids, entries, strict=True):
            name = self.name(token_id)
            tokens.append(name)
            offsets.append(self._offset)
            self._offset += len(self._decoder.decode(self._shown(token_id)))
            if entry is None:
                values.append(None)
                tops.append(None)
                continue
            values.append(_finite(entry.logprob))
            top: dict[str, float] = {}
            for other, logprob in (*_alternatives(entry), (token_id, entry.logprob)):
                top.setdefault(self.name(other), _finite(logprob))
            tops.append(top)
        return {"text_offset": offsets, "token_logprobs": values, "tokens": tokens, "top_logprobs": tops}

    def name(self, token_id: int) -> str:
        if self._as_ids:
            return f"token_id:{token_id}"
        data = self._tokens.bytes_of(token_id)
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)

    def _shown(self, token_id: int) -> bytes:
        known = 0 <= token_id < len(self._table)
        data = self._table[token_id] if known else b""
        if not data and not self._skip_special:
            data = self._tokens.bytes_of(token_id)
        if self._strip_space and data:
            self._strip_space = False
            return data.removeprefix(b" ")
        return data


def joined(portions: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Portions of one choice as one."""
    names = ("text_offset", "token_logprobs", "tokens", "top_logprobs")
    return {name: [item for portion in portions for item in portion[name]] for name in names}


def prompt_entries(tokens: TokenTable, logprobs: Sequence[TokenLogprob | None]) -> list[dict[str, Any] | None]:
    """`prompt_logprobs` as vLLM has them: by token id, the prompt's own token among them; None for the first."""
    shown: list[dict[str, Any] | None] = []
    for entry in logprobs:
        if entry is None:
            shown.append(None)
            continue
        found = {
            token: {"logprob": _finite(logprob), "rank": rank, "decoded_token": _text(tokens, token)}
            for rank, (token, logprob) in enumerate(entry.top, start=1)
        }
        own = {"logprob": _finite(entry.logprob), "rank": entry.rank, "decoded_token": _text(tokens, entry.token_id)}
        found[entry.token_id] = own
        shown.append({str(token): value for token, value in found.items()})
    return shown


def _text(tokens: TokenTable, token_id: int) -> str:
    return tokens.bytes_of(token_id).decode("utf-8", errors="replace")
