"""`/metrics` of each flavour, in the text form of Prometheus: true numbers of the mock under that server's names."""

from __future__ import annotations

import math

from paceline.lab.mock.script import Flavour
from paceline.lab.mock.state import MockState

# what is counted -> the name each flavour has for it; counters end in _total
_NAMES: dict[Flavour, dict[str, str]] = {
    Flavour.PACELINE: {
        "running": "paceline:num_requests_running",
        "waiting": "paceline:num_requests_waiting",
        "kv_share": "paceline:kv_cache_usage_perc",
        "prompt": "paceline:prompt_tokens_total",
        "output": "paceline:output_tokens_total",
        "queried": "paceline:prefix_cache_queries_total",
        "hit": "paceline:prefix_cache_hits_total",
        "requests": "paceline:requests_total",
        "up": "paceline:engine_up",
    },
    Flavour.VLLM: {
        "running": "vllm:num_requests_running",
        "waiting": "vllm:num_requests_waiting",
        "kv_share": "vllm:kv_cache_usage_perc",
        "prompt": "vllm:prompt_tokens_total",
        "output": "vllm:generation_tokens_total",
        "queried": "vllm:prefix_cache_queries_total",
        "hit": "vllm:prefix_cache_hits_total",
        "requests": "vllm:request_success_total",
    },
    Flavour.LLAMA_CPP: {
        "running": "llamacpp:requests_processing",
        "waiting": "llamacpp:requests_deferred",
        "prompt": "llamacpp:prompt_tokens_total",
        "output": "llamacpp:tokens_predicted_total",
    },
    Flavour.OPENAI: {},
}


def metrics_text(state: MockState) -> str:
    """Gauges of now, counters since the script began."""
    numbers = counts(state)
    lines: list[str] = []
    series = [(name, numbers[what]) for what, name in _NAMES[state.script.flavour].items()]
    for name, value in series:
        kind = "counter" if name.endswith("_total") else "gauge"
        lines += [f"# TYPE {name.removesuffix('_total')} {kind}", f"{name} {value:g}"]
    if state.script.flavour is Flavour.PACELINE:
        total = state.script.kv_blocks
        held = min(total, round(numbers["held"]))
        cached = min(total - held, round(numbers["cached"]))
        lines.append("# TYPE paceline:kv_blocks gauge")
        for name, value in (("free", total - held - cached), ("cached", cached), ("held", held), ("limbo", 0)):
            lines.append(f'paceline:kv_blocks{{state="{name}"}} {value}')
    lines += [f"{name} {value:g}" for name, value in state.script.metrics.items()]
    return "\n".join(lines) + "\n"


def counts(state: MockState) -> dict[str, float]:
    """Everything the mock counts, by what it is."""
    running = [exchange for exchange in state.open if exchange.running]
    caches = [service.cache for service in state.services if service.cache is not None]
    block = next((service.service.block_tokens for service in state.services), 16)
    tokens = [exchange.entry.prompt_tokens + exchange.entry.num_tokens_sent for exchange in running]
    held = sum(math.ceil(count / block) for count in tokens)
    return {
        "running": len(running),
        "waiting": sum(len(service.waiting) for service in state.services),
        "held": held,
        "cached": sum(len(cache) for cache in caches),
        "kv_share": min(1.0, held / max(1, state.script.kv_blocks)),
        "prompt": state.prompt_tokens,
        "output": state.output_tokens + sum(exchange.entry.num_tokens_sent for exchange in running),
        "queried": sum(cache.num_queried for cache in caches),
        "hit": sum(cache.num_hit for cache in caches),
        "requests": state.num_done,
        "up": 1,
    }
