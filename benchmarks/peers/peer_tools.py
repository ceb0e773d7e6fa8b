"""How each load generator is asked for the same thing, and where its figures stand in what it writes.

A tool gives the means it reports; what it calls them differs, and the notes say which of its figures is taken. None of
the others' code is imported: each runs as a program in an environment of its own (setup_generators.sh).
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any

START_S = 240.0  # a peer may take so long before its first request and after its last
MODEL = "mock"


@dataclass(frozen=True)
class Asked:
    url: str
    rate: float  # requests/s, evenly spaced
    count: int
    prompt_tokens: int
    output_tokens: int

    @property
    def seconds(self) -> float:
        return self.count / self.rate


@dataclass(frozen=True)
class Told:
    """Means as the tool reports them; None: it does not."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    e2e_ms: float | None = None
    output_tokens: float | None = None
    rps: float | None = None


class ToolFailedError(Exception):
    """The tool did not give a result."""


class Tool(ABC):
    name = ""
    note = ""  # which figures are taken

    @abstractmethod
    def missing(self) -> str:
        """Why it cannot run; "" if it can."""

    @abstractmethod
    def run(self, asked: Asked, folder: Path) -> Told:
        """Raises ToolFailedError."""


class Ours(Tool):
    name = "paceline"
    note = "TTFT and E2E from the planned time; TPOT by tokens after the first chunk"

    def missing(self) -> str:
        return ""

    def run(self, asked: Asked, folder: Path) -> Told:
        from paceline.contracts.artefact import RunInfo, Window
        from paceline.contracts.slo import Outcome
        from paceline.contracts.workload import PlannedRequest, SloClass
        from paceline.lab.load import probe, run_load
        from paceline.lab.load.calibrate import NullContent, NullPlan
        from paceline.lab.metrics import compute

        target = asyncio.run(probe(asked.url))
        requests = tuple(
            PlannedRequest(id=i, stream="even", at_s=i / asked.rate, num_output_tokens=asked.output_tokens)
            for i in range(asked.count)
        )
        plan = NullPlan(requests=requests, span_s=asked.seconds)
        result = run_load(target, plan, NullContent(asked.prompt_tokens))
        failed = sum(record.outcome is not Outcome.OK for record in result.records)
        if failed:
            raise ToolFailedError(f"{failed} of {asked.count} requests failed")
        window = Window(start_ns=0, end_ns=round(asked.seconds * 1e9))
        info = RunInfo(name="even", target=target.info, window=window, slo=[SloClass()], client=result.health)
        whole = compute(info, result.records).whole
        mean = {name: latency.mean for name, latency in whole.latency.items()}
        return Told(
            ttft_ms=milliseconds(mean.get("ttft")),
            tpot_ms=milliseconds(mean.get("tpot")),
            e2e_ms=milliseconds(mean.get("e2e")),
            output_tokens=whole.output_tokens / asked.count,
            rps=result.health.achieved_rps,
        )


class Peer(Tool):
    """A program in an environment of its own. `tokenizer` is a folder with one token for each word."""

    def __init__(self, envs: Path, tokenizer: Path) -> None:
        self.program = envs / self.name / "bin" / self.name
        self.tokenizer = tokenizer

    def missing(self) -> str:
        return "" if self.program.exists() else f"{self.program} is not there: it could not be installed, or not yet"

    def call(self, asked: Asked, folder: Path, *arguments: str) -> None:
        command = [str(self.program), *arguments]
        environment = {
            "PATH": "/usr/bin:/bin",
            "HOME": str(folder),
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
        }
        limit = asked.seconds + START_S
        try:
            done = subprocess.run(
                command, cwd=folder, env=environment, capture_output=True, text=True, timeout=limit, check=False
            )
        except subprocess.TimeoutExpired:
            raise ToolFailedError(f"no result after {limit:.0f} s") from None
        (folder / "log.txt").write_text(done.stdout + done.stderr)
        if done.returncode:
            words = (done.stderr.strip() or done.stdout.strip()).splitlines()
            raise ToolFailedError(words[-1] if words else f"exit {done.returncode}")

    def read(self, path: Path) -> Any:
        try:
            return json.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise ToolFailedError(f"no result: {error}") from None


class GuideLLM(Peer):
    name = "guidellm"
    note = "time_to_first_token_ms, inter_token_latency_ms, request_latency"

    def run(self, asked: Asked, folder: Path) -> Told:
        result = folder / "out.json"
        spec = {
            "backend": {"kind": "openai_http", "target": asked.url, "model": MODEL, "http2": False},
            "profile": {"kind": "constant", "rate": [asked.rate]},
            "constraints": [{"kind": "max_requests", "count": asked.count}],
            "tokenizer": {"kind": "hf_auto", "model": str(self.tokenizer)},
            "data": [
                {
                    "kind": "synthetic_text",
                    "prompt_tokens": asked.prompt_tokens,
                    "output_tokens": asked.output_tokens,
                }
            ],
            "outputs": [{"kind": "json", "path": str(result)}],
        }
        (folder / "spec.json").write_text(json.dumps({"spec": spec}))
        self.call(asked, folder, "run", "-c", str(folder / "spec.json"), "--disable-console")
        metrics = self.read(result)["benchmarks"][0]["metrics"]

        def mean(name: str) -> float | None:
            found = metrics[name]["successful"]
            return found["mean"] if found["count"] else None

        return Told(
            ttft_ms=mean("time_to_first_token_ms"),
            tpot_ms=mean("inter_token_latency_ms"),
            e2e_ms=milliseconds(mean("request_latency")),
            output_tokens=mean("output_token_count"),
            rps=mean("requests_per_second"),
        )


class AIPerf(Peer):
    name = "aiperf"
    note = "time_to_first_token, inter_token_latency, request_latency"

    def run(self, asked: Asked, folder: Path) -> Told:
        given = {
            "--model": MODEL,
            "--url": asked.url,
            "--endpoint-type": "chat",
            "--request-rate": f"{asked.rate:g}",
            "--arrival-pattern": "constant",
            "--request-count": str(asked.count),
            "--synthetic-input-tokens-mean": str(asked.prompt_tokens),
            "--synthetic-input-tokens-stddev": "0",
            "--output-tokens-mean": str(asked.output_tokens),
            "--output-tokens-stddev": "0",
            "--extra-inputs": "ignore_eos:true",
            "--tokenizer": self._cached(folder),
            "--artifact-dir": str(folder / "out"),
            "--ui": "none",
        }
        flags = [part for pair in given.items() for part in pair]
        self.call(asked, folder, "profile", "--streaming", "--use-server-token-count", *flags)
        found = next(iter(sorted((folder / "out").rglob("profile_export_aiperf.json"))), folder / "out")
        metrics = self.read(found)

        def mean(name: str) -> float | None:
            value = metrics.get(name)
            return None if value is None else float(value["avg"])

        return Told(
            ttft_ms=mean("time_to_first_token"),
            tpot_ms=mean("inter_token_latency"),
            e2e_ms=mean("request_latency"),
            output_tokens=mean("output_sequence_length"),
            rps=mean("request_throughput"),
        )

    def _cached(self, home: Path) -> str:
        """Offline it takes a tokenizer only from the cache of downloads: put it there, under a name."""
        repository = home / ".cache/huggingface/hub/models--local--words"
        shutil.copytree(self.tokenizer, repository / "snapshots/0")
        (repository / "refs").mkdir()
        (repository / "refs/main").write_text("0")
        return "local/words"


class InferencePerf(Peer):
    name = "inference-perf"
    note = "latency of successes: time_to_first_token, time_per_output_token, request_latency"

    def run(self, asked: Asked, folder: Path) -> Told:
        lengths = {"mean": asked.prompt_tokens, "min": asked.prompt_tokens, "max": asked.prompt_tokens, "std_dev": 0}
        outputs = {"mean": asked.output_tokens, "min": asked.output_tokens, "max": asked.output_tokens, "std_dev": 0}
        spec = {
            "api": {"type": "completion", "streaming": True},  # its random prompts are for this one only
            "data": {
                "type": "random",
                "input_distribution": {**lengths, "total_count": asked.count},
                "output_distribution": {**outputs, "total_count": asked.count},
            },
            "load": {"type": "constant", "stages": [{"rate": asked.rate, "duration": max(1, round(asked.seconds))}]},
            "server": {"type": "vllm", "model_name": MODEL, "base_url": asked.url, "ignore_eos": True},
            "tokenizer": {"pretrained_model_name_or_path": str(self.tokenizer)},
            "report": {"request_lifecycle": {"summary": True, "per_stage": True, "per_request": False}},
            "storage": {"local_storage": {"path": str(folder / "out")}},
        }
        (folder / "spec.yaml").write_text(json.dumps(spec))  # JSON is YAML
        self.call(asked, folder, "--config_file", str(folder / "spec.yaml"))
        found = next(iter(sorted((folder / "out").rglob("summary_lifecycle_metrics.json"))), folder / "out")
        good = self.read(found)["successes"]
        latency = good["latency"]

        def mean(name: str) -> float | None:
            value = latency.get(name)
            return None if not value else float(value["mean"]) * 1000

        return Told(
            ttft_ms=mean("time_to_first_token"),
            tpot_ms=mean("time_per_output_token"),
            e2e_ms=mean("request_latency"),
            output_tokens=(good.get("output_len") or {}).get("mean"),
            rps=(good.get("throughput") or {}).get("requests_per_sec"),
        )


PEERS: tuple[type[Peer], ...] = (GuideLLM, AIPerf, InferencePerf)


def milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000


def write_tokenizer(folder: Path) -> Path:
    """A tokenizer folder for peers that count by themselves: one token for each word, as the mock counts."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    folder.mkdir(parents=True, exist_ok=True)
    words = ["<unk>", "<eos>", *(f"w{i}" for i in range(5000))]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<eos>", "model_max_length": 100_000}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder
