"""The engines that are compared: which program, which weights, which options a user would choose on this machine.

paceline stands there twice, on the four-bit file with activations of eight bits, and with every option left alone. The
peers are what each is fastest with: llama.cpp on the same file and on an eight-bit one, OpenVINO with weights of eight
bits, vLLM in bfloat16, which is all that its build for CPUs does well.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline.lab.experiment.process import Launch

ROOT = Path(__file__).resolve().parents[3]
MODEL = "SmolLM2-135M-Instruct"
MAX_MODEL_LEN, MAX_NUM_SEQS = 4096, 64
START_S = 1800.0  # an engine that compiles may take its time
# Of ours for W1 to W4: the tokens of W3 and some, as llama.cpp's context is made for the load. A larger cache would
# keep the prompts of earlier rounds, and count as memory that a load needs.
KV_CACHE_BYTES = 640 << 20
SLOTS, SLOT_TOKENS = 16, 1536  # of llama.cpp's server under arrivals: the longest request has 1,280 tokens


@dataclass(frozen=True)
class Column:
    name: str
    ours: bool
    worker: str  # file below workers
    python: Path
    model: Path
    options: dict[str, Any]
    environment: dict[str, str]
    needs: tuple[Path, ...] = ()  # beside the interpreter and the model
    why: Path | None = None  # where the setup wrote why it could not be had
    server: Launch | None = None  # None: schedules are carried out within the worker
    notes: str = ""
    arithmetic: Mapping[str, Any] = field(default_factory=dict)  # engine options of ours that change numbers
    loads: tuple[str, ...] = ()  # that it is asked for; none: all, and arrivals

    @property
    def slug(self) -> str:
        return self.name.lower().replace(",", "").replace(" ", "-")

    def missing(self) -> str:
        """Why it cannot run; "" if it can."""
        gone = [path for path in (self.python, self.model, *self.needs) if not path.exists()]
        if not gone:
            return ""
        if self.why is not None and self.why.exists():
            return self.why.read_text().strip()
        return f"{gone[0]} is not there (benchmarks/peers/engines/setup.sh makes it)"


@dataclass(frozen=True)
class Machine:
    """Where peers lie, and what they may use."""

    peers: Path
    threads: int
    chunk_tokens: int  # of prompts, a step under arrivals: the same for every engine that has such a limit
    python: Path = field(default_factory=lambda: Path(sys.executable))

    def gguf(self, kind: str) -> Path:
        return self.peers / "models" / f"{MODEL}.{kind}.gguf"


def inherited(**more: str) -> dict[str, str]:
    """This process's variables, without those that lead its Python or count its threads."""
    dropped = ("PYTHONPATH", "OMP_NUM_THREADS", "LD_PRELOAD")
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    return kept | {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"} | more


def launch(*argv: str, url: str = "http://{host}:{port}", **more: str) -> Launch:
    """A server of its own; it inherits this process's variables, so what must not reach it is emptied."""
    env = {"PYTHONPATH": "", "HF_HUB_OFFLINE": "1"} | more
    return Launch(argv=argv, env=env, url=url, ready_timeout_s=START_S)


def columns(machine: Machine) -> list[Column]:
    return [
        paceline(machine, "paceline int8", {"activation_dtype": "int8"}),
        paceline(machine, "paceline auto", {}),
        llama_cpp(machine, "Q4_0"),
        llama_cpp(machine, "Q4_0", slots=MAX_NUM_SEQS, loads=("W3",)),
        llama_cpp(machine, "Q8_0"),
        openvino(machine),
        vllm(machine),
    ]


def paceline(machine: Machine, name: str, options: dict[str, Any]) -> Column:
    file = machine.gguf("Q4_0")
    model = file if file.exists() else machine.gguf("Q4_1")
    path = f"{ROOT / 'src'}:{ROOT}"
    common = {"model": str(model), "num_threads": machine.threads, "max_model_len": MAX_MODEL_LEN, **options}
    serving = common | {
        "port": 0,
        "max_num_seqs": MAX_NUM_SEQS,
        "max_num_batched_tokens": machine.chunk_tokens,
        "prefill_chunk_tokens": machine.chunk_tokens,
    }
    flags = [part for key, value in serving.items() for part in ("--" + key.replace("_", "-"), str(value))]
    return Column(
        name=name,
        ours=True,
        worker="paceline_worker.py",
        python=machine.python,
        model=model,
        options={**common, "profile": "batch", "max_num_seqs": MAX_NUM_SEQS, "kv_cache_memory": KV_CACHE_BYTES},
        environment=inherited(PYTHONPATH=path),
        # it says itself where it listens
        server=launch(str(machine.python), "-m", "paceline.cli.main", "serve", *flags, url="", PYTHONPATH=path),
        notes=", ".join(f"{key}={value}" for key, value in options.items()) or "options as they are",
        arithmetic=options,
    )


def llama_cpp(machine: Machine, kind: str, *, slots: int = 32, loads: tuple[str, ...] = ()) -> Column:
    """With `slots` requests at once in W3: 32 is what it is fastest with, 64 what the others hold at once."""
    program = machine.peers / "llama.cpp/build/bin/llama-server"
    model, threads, chunk = machine.gguf(kind), str(machine.threads), str(machine.chunk_tokens)
    arguments = ["-t", threads, "-tb", threads, "-np", str(SLOTS), "-c", str(SLOTS * SLOT_TOKENS)]
    arguments += ["-b", chunk, "-ub", chunk, "--no-webui", "--host", "{host}", "--port", "{port}"]
    return Column(
        name=f"llama.cpp {kind}" + (f", {slots} slots" if loads else ""),
        ours=False,
        worker="llamacpp_worker.py",
        python=machine.python,
        model=model,
        options={
            "program": str(program),
            "model": str(model),
            "threads": machine.threads,
            "slots": slots,
            "log": str(machine.peers / "logs" / f"llama-server-{kind}-{slots}.log"),
        },
        environment=inherited(),
        needs=(program,),
        why=machine.peers / "llama.cpp.why",
        server=launch(str(program), "-m", str(model), *arguments),
        notes=f"llama-server, 1, {slots} and 4 slots for W1 and W2, W3, W4",
        loads=loads,
    )


def openvino(machine: Machine) -> Column:
    model = machine.peers / "models/ov-int8"
    return Column(
        name="OpenVINO int8",
        ours=False,
        worker="openvino_worker.py",
        python=machine.peers / "openvino/bin/python",
        model=model,
        options={
            "model": str(model),
            "threads": machine.threads,
            "cache_gib": 2,
            "max_num_batched_tokens": 2048,
            "max_num_seqs": MAX_NUM_SEQS,
        },
        environment=inherited(),
        needs=(model / "openvino_model.bin",),
        why=machine.peers / "openvino.why",
        notes="continuous batching in process, without a server; steps of 2,048 tokens for W1 to W4",
    )


def vllm(machine: Machine) -> Column:
    folder, model = machine.peers / "vllm", machine.peers / "models/hf-bfloat16"
    preloads = [tcmalloc(), str(folder / "lib/libiomp5.so")]
    variables = {
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{machine.threads - 1}",
        "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_CACHE_ROOT": str(folder / "cache"),
        "LD_PRELOAD": ":".join(path for path in preloads if path and Path(path).exists()),
    }
    serving = {
        "--model": str(model),
        "--dtype": "bfloat16",
        "--max-model-len": str(MAX_MODEL_LEN),
        "--max-num-seqs": str(MAX_NUM_SEQS),
        "--max-num-batched-tokens": str(machine.chunk_tokens),
        "--host": "{host}",
        "--port": "{port}",
    }
    flags = [part for pair in serving.items() for part in pair]
    python = folder / "bin/python"
    return Column(
        name="vLLM bf16",
        ours=False,
        worker="vllm_worker.py",
        python=python,
        model=model,
        options={"model": str(model), "max_model_len": MAX_MODEL_LEN, "max_num_seqs": MAX_NUM_SEQS},
        environment=inherited(**variables),
        why=machine.peers / "vllm.why",
        # not `vllm serve`, which looks for a distribution of that name and finds vllm-cpu
        server=launch(str(python), "-m", "vllm.entrypoints.openai.api_server", *flags, **variables),
        notes="prefix cache on, defaults",
    )


def tcmalloc() -> str:
    """Where the allocator lies that vLLM's pages ask for; "" without it."""
    program = shutil.which("ldconfig") or "/sbin/ldconfig"
    listed = subprocess.run([program, "-p"], capture_output=True, text=True, check=False).stdout
    found = [line.split()[-1] for line in listed.splitlines() if "libtcmalloc_minimal.so.4" in line]
    return found[0] if found else ""
