"""The engine in a process of its own, started from a configuration."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
from tests.fakes.model_folder import write_model

from paceline.assemble import build_core, spawn_engine
from paceline.assemble.replay import replay_journal
from paceline.config import EngineConfig, load_config
from paceline.contracts.ports import EngineClient
from paceline.contracts.request import FinishReason, Request, RequestOutput, SamplingParams, TokenPrompt
from paceline.engine import ChildClient, InProcessClient
from paceline.errors import CapacityError, EngineDeadError, ModelError, RequestError

VOCAB = 99


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> EngineConfig:
    folder = write_model(tmp_path_factory.mktemp("models") / "tiny")
    return config_of(folder)


def config_of(folder: Path, **options: object) -> EngineConfig:
    sizes = {"max_num_seqs": 4, "max_num_batched_tokens": 48, "prefill_chunk_tokens": 16, "expected_context": 128}
    exact = {
        "dtype": "float32",
        "num_threads": 1,
        "numerics": "reference",
    }  # whatever the two engines' timing makes of it
    return load_config(flags={"model": str(folder), **exact, **sizes, **options})


@pytest.fixture(scope="module")
def child(config: EngineConfig) -> Iterator[ChildClient]:
    client = spawn_engine(config, start_timeout_s=120.0)
    yield client
    client.close()


def make_requests() -> list[Request]:
    rng = np.random.default_rng(5)
    shared = rng.integers(3, VOCAB, 40)
    params = [
        SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True),
        SamplingParams(temperature=1.0, max_tokens=15, seed=1, top_p=0.9, ignore_eos=True),
        SamplingParams(temperature=0.7, max_tokens=12, seed=2, logprobs=3, repetition_penalty=1.2),
        SamplingParams(temperature=1.0, max_tokens=10),  # the engine draws its seed
        SamplingParams(temperature=0.0, max_tokens=8, prompt_logprobs=0),
    ]
    return [
        Request(
            request_id=index,
            prompt=TokenPrompt(ids=np.concatenate([shared, rng.integers(3, VOCAB, 4 * index + 1)]).astype(np.int32)),
            sampling=sampling,
        )
        for index, sampling in enumerate(params, start=1)
    ]


def run(client: EngineClient, requests: list[Request]) -> dict[int, list[RequestOutput]]:
    for request in requests:
        client.submit(request)
    outputs: dict[int, list[RequestOutput]] = {request.request_id: [] for request in requests}
    end = time.monotonic() + 60
    while any(not news or news[-1].finish is None for news in outputs.values()):
        assert time.monotonic() < end, outputs
        for output in client.outputs(timeout_s=1.0):
            outputs[output.request_id].append(output)
    return outputs


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_the_tokens_are_those_of_the_engine_in_this_process(config: EngineConfig, child: ChildClient) -> None:
    here = InProcessClient(build_core(config).core)
    expected, found = run(here, make_requests()), run(child, make_requests())
    here.close()
    for request_id, news in expected.items():
        got = found[request_id]
        assert [i for o in got for i in o.token_ids] == [i for o in news for i in o.token_ids]
        assert got[-1].finish is news[-1].finish is not FinishReason.ERROR
        assert got[-1].usage is not None
        assert got[-1].usage.output_tokens == sum(len(o.token_ids) for o in got)
    for which, field in ((3, "logprobs"), (5, "prompt_logprobs")):
        values = [value for o in expected[which] for value in getattr(o, field) or ()]
        assert values
        assert [value for o in found[which] for value in getattr(o, field) or ()] == values
    assert child.info["vocab_size"] == VOCAB
    assert child.info["num_blocks"] == child.stats().kv.total


def test_a_wrong_request_is_refused_here_and_hurts_nobody(child: ChildClient) -> None:
    (good, *_) = make_requests()
    bad = Request(request_id=100, prompt=TokenPrompt(ids=np.full(400, 5, dtype=np.int32)))
    child.submit(good)
    with pytest.raises(RequestError) as caught:
        child.submit(bad)
    assert caught.value.param == "prompt"
    while not any(o.finish is not None for o in child.outputs(timeout_s=10.0)):
        pass
    assert child.stats().kv.held == 0


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"model": "/no/such/folder"}, ModelError, "/no/such/folder"),
        ({"kv_cache_memory": 64}, CapacityError, "no room for a KV cache"),
    ],
)
def test_what_goes_wrong_at_start_is_raised_here(
    config: EngineConfig, options: dict[str, object], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        spawn_engine(config_of(Path(config.model.model), **options), start_timeout_s=120.0)


def test_closing_leaves_no_process(config: EngineConfig) -> None:
    client = spawn_engine(config, start_timeout_s=120.0)
    pid = client.pid
    assert is_running(pid)
    client.submit(make_requests()[0])  # in the middle of its work
    client.close()
    assert not is_running(pid)
    client.close()
    with pytest.raises(EngineDeadError, match="closed"):
        client.stats()


def test_a_run_is_recorded_and_can_be_replayed_without_the_model(config: EngineConfig, tmp_path: Path) -> None:
    path = tmp_path / "run.journal"
    client = InProcessClient(build_core(msgspec.structs.replace(config, journal=str(path))).core)
    outputs = run(client, make_requests())
    client.close()
    assert all(news[-1].finish is not FinishReason.ERROR for news in outputs.values())
    assert len(replay_journal(path).digests) >= 20  # the longest output has 20 tokens
