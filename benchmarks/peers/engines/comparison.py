"""The measurements, part by part; what was measured already is not measured again."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from pydoc_data import topics

from benchmarks.peers.engines import online, quality, table
from benchmarks.peers.engines.columns import Column, Machine
from benchmarks.peers.engines.engine import Engine, EngineFailedError
from benchmarks.peers.engines.model_sizes import sizes_of
from benchmarks.peers.engines.results import Results
from benchmarks.peers.engines.workloads import FULL, QUICK, Call, Load, arrivals, calls, figure

from paceline.assemble.files import find_files
from paceline.config import load_config, read_environment
from paceline.errors import PacelineError
from paceline.text import load_tokenizer

ROUNDS = {"W1": 5, "W2": 5, "W3": 3, "W4": 3}
REQUESTS, QUICK_REQUESTS = 300, 40
KL_RUNS, QUICK_KL_RUNS = 8, 1  # of 512 tokens, half of which are compared
LIMITS = Path(__file__).with_name("limits.py")


class Comparison:
    def __init__(self, given: argparse.Namespace, machine: Machine, chosen: list[Column]) -> None:
        self.given, self.machine = given, machine
        self.columns = chosen
        self.loads: dict[str, Load] = QUICK if given.quick else FULL
        self.rounds = {name: given.rounds or (1 if given.quick else count) for name, count in ROUNDS.items()}
        self.requests = given.requests or (QUICK_REQUESTS if given.quick else REQUESTS)
        self.logs = given.peers / "logs"
        self.logs.mkdir(parents=True, exist_ok=True)
        self.file = machine.gguf("Q4_0") if machine.gguf("Q4_0").exists() else machine.gguf("Q4_1")
        files = find_files(load_config(None, {"model": str(self.file)}), read_environment())
        self.text = "\n\n".join(topics.topics[name] for name in sorted(topics.topics))
        tokenizer = load_tokenizer(files)
        self.ids = tokenizer.encode(self.text, add_special=False)
        first = tokenizer.encode("")
        self.bos = first[0] if first else None  # llama.cpp puts it there, too
        self.sizes = sizes_of(self.file)
        settings = {
            "loads": {name: vars(load) for name, load in self.loads.items()},
            "requests": self.requests,
            "chunk_tokens": machine.chunk_tokens,
            "threads": machine.threads,
            "file": self.file.name,
        }
        name = "quick.jsonl" if given.quick else "full.jsonl"
        self.results = Results(given.out or given.peers / "results" / name, settings, fresh=given.fresh)
        self.engines = {column.name: Engine(column, self.logs) for column in chosen}

    def say(self, words: str) -> None:
        print(f"{time.strftime('%H:%M:%S')} {words}", file=sys.stderr, flush=True)

    def run(self) -> None:
        load_average = os.getloadavg()[0]
        self.say(f"load average {load_average:.1f} before")
        self.results.add({"kind": "session", "load_average": load_average, "date": time.strftime("%F %T")})
        try:
            self.measure_limits("before")
            if "loads" in self.given.parts:
                for name in self.given.loads or self.loads:
                    self.measure(self.loads[name])
                self.measure_limits("after")
            if "online" in self.given.parts:
                self.measure_online()
        finally:
            for engine in self.engines.values():
                engine.close()
        if "quality" in self.given.parts:
            self.measure_quality()

    def measure_limits(self, when: str) -> None:
        mib = -(-self.sizes.weight_bytes >> 20)
        command = [sys.executable, str(LIMITS), "--threads", str(self.machine.threads), "--mib", str(mib), "1024"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        found = json.loads(done.stdout.splitlines()[-1])
        self.results.add({"kind": "limits", "when": when, "weights_mib": mib, **found})
        self.say(f"limits {json.dumps(found)}")

    def measure(self, load: Load) -> None:
        out: set[str] = set()
        for round_ in range(self.rounds[load.name]):
            turns = [c for c in self.columns if c.name not in out and (not c.loads or load.name in c.loads)]
            if all(self.results.has(kind="load", load=load.name, round=round_, column=c.name) for c in turns):
                continue
            for column in reversed(turns) if round_ % 2 else turns:
                try:
                    self.one_round(column, load, round_)
                except EngineFailedError as error:
                    self.failed(column, load.name, str(error))
                    out.add(column.name)

    def one_round(self, column: Column, load: Load, round_: int) -> None:
        engine = self.engines[column.name]
        with engine.turn():
            if round_ == 0 and load.name in ("W1", "W2"):  # whatever is compiled or touched for the first time
                for call in calls(load, -1, self.ids):
                    engine.generate(Call(call.prompts, min(call.num_out, 8)))
            with engine.memory() as peak:
                seconds = [engine.generate(call) for call in calls(load, round_, self.ids)]
        value = figure(load, seconds)
        self.say(f"{load.name} round {round_ + 1} {column.name}: {table.short(value)}")
        record = {"kind": "load", "load": load.name, "round": round_, "column": column.name, "value": value}
        self.results.add({**record, "seconds": seconds, "memory_bytes": peak.bytes, "version": engine.version})

    def measure_online(self) -> None:
        """The first rate for all engines, then the next for those whose answer is open."""
        columns = [column for column in self.columns if not column.loads]
        held: dict[str, dict[float, bool]] = {column.name: {} for column in columns}
        for record in self.results.records:
            if record["kind"] == "online" and record["column"] in held:
                held[record["column"]][record["rate"]] = record["share"] >= online.SHARE
        for engine in self.engines.values():
            engine.close()
        open_ = columns
        while open_:
            for column in list(open_):
                rate = online.next_rate(self.given.rates, self.given.start_rate, held[column.name])
                if rate is None:
                    open_.remove(column)
                    continue
                try:
                    share = self.one_rate(column, rate)
                except (EngineFailedError, PacelineError) as error:
                    self.failed(column, "W5", str(error))
                    open_.remove(column)
                    continue
                held[column.name][rate] = share >= online.SHARE

    def one_rate(self, column: Column, rate: float) -> float:
        schedule = arrivals(rate, self.requests, self.ids)
        if column.server is not None:
            seen = online.through_server(column, schedule, self.logs / f"{column.slug}-server.log")
        else:
            engine = Engine(self.with_chunks(column), self.logs)
            try:
                seen = online.within(engine, schedule)
            finally:
                engine.close()
        found = online.summary(seen, len(schedule))
        self.results.add({"kind": "online", "column": column.name, "rate": rate, **found})
        self.say(f"W5 at {rate:g}/s {column.name}: {table.online_cell(found)}")
        return float(found["share"])

    def with_chunks(self, column: Column) -> Column:
        return replace(column, options=column.options | {"max_num_batched_tokens": self.machine.chunk_tokens})

    def measure_quality(self) -> None:
        llama = next((c for c in self.columns if c.model == self.file and not c.ours), None)
        program = self.machine.peers / "llama.cpp/build/bin/llama-perplexity"
        if llama is None or not program.exists():
            self.say("quality: llama.cpp on the same file is not there")
            return
        arms = {column.name: column.arithmetic for column in self.columns if column.ours}
        if all(self.results.has(kind="quality", column=name) for name in (llama.name, *arms)):
            return
        text, base = self.given.peers / "results/text.txt", self.given.peers / "results/base.kld"
        text.write_text(self.text, encoding="utf-8")
        runs = QUICK_KL_RUNS if self.given.quick else KL_RUNS
        log = self.logs / "llama-perplexity.log"
        quality.write_base(program, self.file, text, base, runs=runs, threads=self.machine.threads, log=log)
        for record in quality.compare(quality.read_base(base, self.bos), self.file, arms, llama.name):
            self.results.add(record)
            self.say(f"quality {record['column']}: KL {record['kl']:.5f}")
        base.unlink()

    def failed(self, column: Column, part: str, why: str) -> None:
        why = " ".join(why.split())
        self.results.add({"kind": "failed", "column": column.name, "part": part, "why": why[:300]})
        self.say(f"{part} {column.name} FAILED: {why}")
