"""/v1/completions: a text, or token ids, or several of either, continued."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response

from paceline.contracts.request import TokenLogprob
from paceline.server.api.answer import ANSWERS, Answer
from paceline.server.api.calls import arrival_of, check_model, encode_prompts, request_id_of
from paceline.server.api.choice import Choice, News
from paceline.server.api.generation import Ask, Generation
from paceline.server.api.protocol import CompletionRequest, read_body, request_schema
from paceline.server.api.protocol.completions import DEFAULT_MAX_TOKENS
from paceline.server.api.protocol.logprobs import TextLogprobs, joined, prompt_entries
from paceline.server.api.sse import encode, event
from paceline.server.api.writer import BaseWriter, finish_reason, stop_reason
from paceline.server.errors import ERROR_RESPONSES
from paceline.server.state import server_of
from paceline.server.tenancy.auth import tenant_of
from paceline.server.tenancy.tenants import Tenant

router = APIRouter(tags=["generation"], responses=ERROR_RESPONSES)


@router.post(
    "/v1/completions", openapi_extra=request_schema(CompletionRequest), response_class=Response, responses=ANSWERS
)
async def create_completion(request: Request, tenant: Annotated[Tenant, Depends(tenant_of)]) -> Response:
    """Continue prompts. Fields: docs/reference/api.md."""
    arrival = arrival_of(request)
    state = server_of(request)
    body = await read_body(request, CompletionRequest, state.engine.text)
    model = check_model(state, body.model)
    sampling = body.sampling()
    sampling.check_vocabulary(state.pipeline.tokenizer.vocab_size)
    prompts, texts = await encode_prompts(request, state, body)
    ask = Ask(
        body=body,
        prompts=prompts,
        sampling=sampling,
        grammar=body.structured_output(),
        default_max_tokens=DEFAULT_MAX_TOKENS,
        arrival=arrival,
        request_id=f"cmpl-{request_id_of(request, body.request_id)}",
    )
    generation = Generation(state, tenant, ask)
    return Answer(generation, CompletionWriter(generation, body, texts, model), stream=bool(body.stream))


class CompletionWriter(BaseWriter):
    object_name = chunk_name = "text_completion"

    def __init__(self, generation: Generation, body: CompletionRequest, texts: Sequence[str], model: str) -> None:
        """`texts`: the prompts as text, where `echo` asks for them."""
        super().__init__(generation, response_id=generation.ask.request_id, created=int(time.time()), model=model)
        self._texts = texts
        self._echo = bool(body.echo)
        self._only_echo = body.only_echo
        self._want_logprobs = body.logprobs is not None
        self._want_prompt_logprobs = body.prompt_logprobs is not None
        self._as_ids = bool(body.return_tokens_as_token_ids)
        self._tokens = generation.tokenizer
        self._logprobs: dict[int, TextLogprobs] = {}  # by choice
        self._portions: dict[int, list[dict[str, Any]]] = {}
        self._ends: dict[int, News] = {}

    def _prompt_text(self, choice: Choice) -> str:
        return self._texts[choice.index // self.generation.ask.sampling.n]

    def _shown(self, news: News) -> News:
        """What the client is given: nothing, when it asked for the prompt alone."""
        if self._only_echo:
            news.text, news.token_ids, news.logprobs = "", [], []
            news.stop_reason = None
        return news

    def num_tokens(self, choice: Choice) -> int:
        return 0 if self._only_echo else choice.num_tokens

    # --- logprobs

    def _portion(
        self, choice: Choice, entries: Sequence[TokenLogprob | None], token_ids: Sequence[int]
    ) -> dict[str, Any]:
        counter = self._logprobs.get(choice.index)
        if counter is None:
            counter = self._logprobs[choice.index] = TextLogprobs(
                self._tokens,
                as_ids=self._as_ids,
                skip_special=self.body.skip_special_tokens is not False,
                strip_space=self._echo and self._tokens.strip_space,
            )
        return counter.portion(entries, token_ids)

    def _prompt_portion(self, choice: Choice, news: News) -> dict[str, Any] | None:
        if not (self._echo and self._want_logprobs) or news.prompt_logprobs is None:
            return None
        return self._portion(choice, news.prompt_logprobs, choice.request.prompt.ids.tolist())

    # --- events

    def events(self, choice: Choice, news: News) -> bytes:
        return super().events(choice, self._shown(news))

    def opening(self, choice: Choice, news: News) -> list[bytes]:
        """The prompt, with `echo`; its ids, when ids are wanted."""
        if not self._echo and not self.want_ids:
            return []
        value = self.text_choice(choice.index, self._prompt_text(choice) if self._echo else "")
        value["logprobs"] = self._prompt_portion(choice, news)
        if self.want_ids:
            value["prompt_token_ids"] = choice.request.prompt.ids.tolist()
        return [event({**self.wrap([value]), "paceline": {"num_tokens": 0}})]

    def extra(self, choice: Choice, news: News) -> dict[str, Any]:
        extra: dict[str, Any] = {}
        if self._want_logprobs and news.token_ids:
            extra["logprobs"] = self._portion(choice, news.logprobs, news.token_ids)
        if self.want_ids and news.token_ids:
            extra["token_ids"] = news.token_ids
        return extra

    def text_choice(self, index: int, text: str) -> dict[str, Any]:
        return {"index": index, "text": text, "logprobs": None, "finish_reason": None, "stop_reason": None}

    # --- whole

    def collect(self, choice: Choice, news: News) -> None:
        news = self._shown(news)
        if self._want_logprobs:
            portions = self._portions.setdefault(choice.index, [])
            if (prompt := self._prompt_portion(choice, news)) is not None:
                portions.append(prompt)
            if news.token_ids:
                portions.append(self._portion(choice, news.logprobs, news.token_ids))
        if news.finish is not None:
            self._ends[choice.index] = news

    def whole(self) -> bytes:
        choices = sorted(self.generation.choices, key=lambda choice: choice.index)
        return encode(
            {
                "id": self._id,
                "object": self.object_name,
                "created": self._created,
                "model": self._model,
                "choices": [self._whole_choice(choice) for choice in choices],
                "usage": self.usage(),
                "paceline": self.about(),
            }
        )

    def _whole_choice(self, choice: Choice) -> dict[str, Any]:
        end = self._ends[choice.index]
        text = "" if self._only_echo else choice.text.text
        value: dict[str, Any] = {
            "index": choice.index,
            "text": self._prompt_text(choice) + text if self._echo else text,
            "logprobs": joined(self._portions.get(choice.index, ())) if self._want_logprobs else None,
            "finish_reason": finish_reason(end),
            "stop_reason": stop_reason(end, self.sampling),
        }
        if self._want_prompt_logprobs and choice.text.prompt_logprobs is not None:
            value["prompt_logprobs"] = prompt_entries(self._tokens, choice.text.prompt_logprobs)
        if self.want_ids:
            value["token_ids"] = [] if self._only_echo else choice.text.token_ids
            value["prompt_token_ids"] = choice.request.prompt.ids.tolist()
        return value
