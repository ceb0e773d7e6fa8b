"""The chosen configuration as a file that `paceline serve --config` takes, where this version can serve it."""

from __future__ import annotations

from paceline.config import EngineConfig
from paceline.contracts.slo import format_targets
from paceline.errors import UnsupportedError
from paceline.planner.question import Question
from paceline.planner.search import Candidate
from paceline.planner.verify import in_words

BUILT = ("llama", "qwen2", "qwen3", "gemma2", "gemma3")  # families an engine builds
SECTIONS = {
    "model": ("model", "max_model_len"),
    "cache": ("block_size", "kv_cache_dtype", "expected_context"),
    "scheduling": ("max_num_seqs", "max_num_batched_tokens", "prefill_chunk_tokens"),
}


def why_not_served(question: Question, candidate: Candidate) -> str:
    """Why this version cannot serve the layout as planned; "" when it can."""
    if candidate.rejected:
        return f"it does not fit: {candidate.rejected}"
    if candidate.layout.degrees.num_ranks > 1:
        return f"one process computes a model in this version, {candidate.layout} needs several"
    if question.spec.family not in BUILT:
        return f"models of the family {question.spec.family} are not in this version"
    if question.kept.weights != "bf16" and question.kept.stored_bytes is None:
        return f"checkpoints in {question.kept.weights} are not read in this version"
    return _why_not_cached(question)


def _why_not_cached(question: Question) -> str:
    kept, kind = question.kept, question.card.spec.kind
    if kept.kv_cache_dtype == "int8" and kind == "cuda":
        return "no kernel of this version reads an int8 KV cache on CUDA; the reference one is slower than planned"
    if kept.kv_cache_dtype not in ("auto", "int8", kept.dtype):
        return f"an engine that computes in {kept.dtype} keeps no KV cache in {kept.kv_cache_dtype}"
    return ""


def config_text(question: Question, candidate: Candidate, config: EngineConfig) -> str:
    """A TOML file, one engine's options, with what is expected of it as comments.

    Raises UnsupportedError where `why_not_served` says so.
    """
    if reason := why_not_served(question, candidate):
        raise UnsupportedError("no file for this plan", seen=reason, fix="plan for one device, or take it as advice")
    operating = candidate.operating
    assert operating is not None, "a candidate that fits has one"
    count = candidate.layout.replicas
    start = "" if count == 1 else f": start one engine on each of {count} devices"
    lines = [
        f"# paceline plan: {question.spec.name} on {question.card.spec.name}{start}",
        f"# expected ({candidate.tier}): {candidate.goodput_rps:.3g} good requests/s, TTFT p95 "
        f"{operating.ttft_p95_s:.3g} s, TPOT {operating.step_ms:.3g} ms",
    ]
    if candidate.simulated is not None:
        lines.append(f"# simulated: {in_words(candidate.simulated)}")
    lines.append(f'profile = "{config.profile}"')
    for section, names in SECTIONS.items():
        holder = getattr(config, section)
        lines += ["", f"[{section}]"]
        lines += [f"{name} = {_toml(getattr(holder, name))}" for name in names]
        if section == "scheduling" and candidate.simulated is not None:
            lines.append(f"scheduling_mode = {_toml(candidate.simulated.carried.mode)}")
    if targets := format_targets(question.slo.slo):
        lines += ["", "[server]", f"slo = {_toml(targets)}"]
    return "\n".join(lines) + "\n"


def _toml(value: object) -> str:
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    assert isinstance(value, int)
    return str(value)
