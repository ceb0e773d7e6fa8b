"""What a number was measured on and how to get it again: configuration, fingerprint, start, cache protocol, command."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from paceline.contracts.artefact import ClientHealth, RunInfo
from paceline.lab.report.page import Block, Code, Facts, FactSheet, Section, Table
from paceline.lab.report.toml import toml_of
from paceline.lab.report.words import count, named, number, plain, share


def reproduction(info: RunInfo, folder: str) -> Section:
    """How to measure this again."""
    target = info.target
    same = ["paceline", "bench", "--url", target.url, "--model", target.model]
    same += ["--workload", "workload.toml", "--seed", str(info.seed)]
    stored = info.fingerprint.get("command")
    blocks: list[Block] = [Code(stored, "The command of this run")] if isinstance(stored, str) and stored else []
    blocks += [
        Code(shlex.join(same), "Send the same requests again, to this server or another one"),
        Code(f"paceline bench recompute {shlex.quote(folder)}", "Recompute every number from the stored requests"),
        Code(toml_of(info.spec), "workload.toml: the workload, resolved", folded=True),
    ]
    words = "With the workload below saved as workload.toml: plan and texts follow from it and the seed."
    return Section("again", "Again", tuple(blocks), words)


def measured_on(info: RunInfo) -> Section:
    target = info.target
    known = {
        name: getattr(target, name)
        for name in target.__struct_fields__
        if name not in ("url", "model", "kind", "version")
    }
    facts: list[Facts] = [
        Facts((("address", target.url), ("model", target.model), ("kind", f"{target.kind} {target.version}".strip()),
               *((name.replace("_", " "), plain(value)) for name, value in known.items())), "Server"),
        Facts(client_facts(info.client), "Load generator"),
    ]  # fmt: skip
    facts += fingerprint_facts(info.fingerprint)
    if info.cache:
        facts.append(Facts(flat(info.cache), "Cache protocol"))
    if info.start:
        facts.append(Facts(flat(info.start), "Start of the server"))
    blocks: list[Block] = [FactSheet(tuple(facts))]
    if info.config:
        words = {"resolved": "as the server resolved it", "declared": "as it was declared; the server does not tell"}
        blocks.append(
            config_table(info.config, f"Server configuration, {words.get(info.config_source, 'of unknown origin')}")
        )
    return Section("measured-on", "Measured on", tuple(blocks))


def config_table(config: Mapping[str, Any], caption: str) -> Table:
    """One row for each option; an entry that is itself a mapping with a value shows its group and reason."""
    rows = []
    for name, value in flat_items(config):
        if isinstance(value, Mapping) and "value" in value:
            rows.append((name, plain(value["value"]), plain(value.get("group", "")), plain(value.get("reason", ""))))
        else:
            rows.append((name, plain(value), "", ""))
    if any(row[2] or row[3] for row in rows):
        return Table(("option", "value", "group", "why"), tuple(rows), num_words=4, caption=caption)
    return Table(("option", "value"), tuple(row[:2] for row in rows), num_words=2, caption=caption)


def fingerprint_facts(fingerprint: Mapping[str, Any]) -> list[Facts]:
    """A list of facts for each part, single values together."""
    single = {
        k: v
        for k, v in fingerprint.items()
        if not isinstance(v, Mapping) and v not in (None, [], ()) and k != "command"
    }
    facts = [
        Facts(flat(part), name.replace("_", " ").capitalize())
        for name, part in fingerprint.items()
        if isinstance(part, Mapping) and part
    ]
    if single:
        facts.append(Facts(flat(single), "Other"))
    return facts


def client_facts(health: ClientHealth) -> tuple[tuple[str, str], ...]:
    calibrated = (
        f"{number(health.calibrated_rps)} req/s at a p99 lag of {number(health.calibrated_lag_p99_ms)} ms, by a mock"
        if health.calibrated_rps
        else "not calibrated"
    )
    reached = share(health.achieved_rps / health.offered_rps) if health.offered_rps else "–"
    lags = (("p50", health.lag_p50_ms), ("p99", health.lag_p99_ms), ("most", health.lag_max_ms))
    return (
        ("processes", count(health.num_processes)),
        ("offered", f"{number(health.offered_rps)} req/s"),
        ("achieved", f"{number(health.achieved_rps)} req/s, {reached} of it"),
        (
            "schedule lag",
            ", ".join(f"{n} {number(v)} ms" for n, v in lags),
        ),
        ("event loop lag p99", f"{number(health.loop_lag_p99_ms)} ms"),
        ("busiest process", f"{share(health.cpu_share_max)} of a core, {number(health.cpu_us_per_chunk)} µs per chunk"),
        ("connections, most", count(health.connections_peak)),
        ("this client can", calibrated),
    )


def flat(values: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Nested mappings as `outer · inner`, lists of them numbered."""
    return tuple(named(name, value) for name, value in flat_items(values))


def flat_items(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and "value" not in value:
            found += flat_items(value, f"{name} · ")
        elif isinstance(value, list | tuple) and value and all(isinstance(item, Mapping) for item in value):
            for i, item in enumerate(value):
                found += flat_items(item, f"{name} {i} · ")
        else:
            found.append((name, value))
    return found
