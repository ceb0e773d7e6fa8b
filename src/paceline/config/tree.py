"""The configuration as one frozen tree. Built once, checked at the edge, never written afterwards.

Every option carries its documentation, unit, experiment group and bounds in its type. None means "left to the profile"
wherever `derived=True`; what a profile then chose, and why, is in `profiles.Knobs` beside the tree, not in it. What is
measured at start (number of blocks, bytes) is in the memory plan, not here either.

Names are those of vLLM where they mean the same. Option names are unique over all sections, so that a flat keyword or
command-line flag names one option.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

Group = Literal["baseline", "batch", "kv", "prefix_cache", "quantisation", "parallel", "speculation", "offload"]
"""The groups of variables an experiment changes one at a time. `GROUPS` is the order in which it climbs them."""

GROUPS: tuple[Group, ...] = (
    "baseline",
    "batch",
    "kv",
    "prefix_cache",
    "quantisation",
    "parallel",
    "speculation",
    "offload",
)

Profile = Literal["interactive", "batch", "long-context"]


def option(
    doc: str,
    group: Group,
    *,
    unit: str = "",
    derived: bool = False,
    ge: float | None = None,
    gt: float | None = None,
    le: float | None = None,
    power_of_two: bool = False,
    secret: bool = False,
) -> msgspec.Meta:
    """Metadata of one option. `derived`: None lets the profile choose. `secret`: its value is never shown. The bounds
    are checked by `load.check_value`."""
    extra: dict[str, Any] = {
        "group": group,
        "unit": unit,
        "derived": derived,
        "ge": ge,
        "gt": gt,
        "le": le,
        "power_of_two": power_of_two,
        "secret": secret,
    }
    return msgspec.Meta(description=doc, extra=extra)


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Which model, and how it is read."""

    model: Annotated[str, option("Alias, hub id, folder or .gguf file.", "baseline")] = "smollm2-135m"
    revision: Annotated[
        str | None, option("Branch, tag or commit of a hub model; none = its main branch.", "baseline")
    ] = None
    tokenizer: Annotated[str | None, option("Folder or file of another tokenizer; none = the model's.", "baseline")] = (
        None
    )
    chat_template: Annotated[str | None, option("File of a chat template; none = the model's own.", "baseline")] = None
    load_format: Annotated[
        Literal["auto", "safetensors", "gguf", "dummy"],
        option("File format of the weights. dummy: random weights of the right shapes, no file read.", "baseline"),
    ] = "auto"
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"],
        option("Compute type. auto: bfloat16 where the device has instructions for it, else float32.", "baseline"),
    ] = "auto"
    quantization: Annotated[
        Literal["auto", "none", "int8"],
        option(
            "Weights. auto: those of a quantised file are kept as stored where a kernel multiplies them so (same "
            "results, less memory to read), else floats. none: always floats. int8: as auto, and those that are floats "
            "are rounded to 8 bits in groups of 32 while loading; an error where no kernel multiplies them.",
            "quantisation",
        ),
    ] = "auto"
    activation_dtype: Annotated[
        Literal["float", "int8", "bfloat16"],
        option(
            "What meets weights in a product. float: activations of the compute type. int8, for quantised weights: "
            "activations rounded to 8 bits in groups with a scale each, which is faster and changes numbers. bfloat16: "
            "activations and weights rounded to bfloat16, sums of float32, all else of the compute type float32. An "
            "error where no kernel does it.",
            "quantisation",
        ),
    ] = "float"
    seed: Annotated[int, option("Seed of dummy weights and of requests that bring none.", "baseline", ge=0)] = 0
    max_model_len: Annotated[
        int | None,
        option(
            "Longest sequence, prompt and output. Left unset: the model's own limit, lowered when its KV cannot fit.",
            "kv",
            unit="tokens",
            derived=True,
            ge=2,
        ),
    ] = None


class CacheConfig(msgspec.Struct, frozen=True, kw_only=True):
    """KV cache and memory."""

    block_size: Annotated[
        int, option("Tokens of a KV block.", "kv", unit="tokens", ge=1, le=256, power_of_two=True)
    ] = 16
    kv_cache_dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16", "fp8", "int8", "int4"],
        option(
            "Type of cached K and V. auto: the compute type. int8: codes of 8 bits with a scale for each token and "
            "head, a quarter of the memory of float32 and rounded.",
            "quantisation",
        ),
    ] = "auto"
    memory_utilization: Annotated[
        float | None,
        option(
            "Share of the memory free at start that weights, KV and workspace may take together.",
            "kv",
            derived=True,
            gt=0,
            le=1,
        ),
    ] = None
    kv_cache_memory: Annotated[
        int | None,
        option("Bytes of KV cache, instead of a derived size. Refused when they do not fit.", "kv", unit="bytes", ge=1),
    ] = None
    expected_context: Annotated[
        int | None,
        option(
            "KV is sized for max_num_seqs sequences of this many tokens, memory permitting.",
            "kv",
            unit="tokens",
            derived=True,
            ge=1,
        ),
    ] = None
    prefix_cache_reserve: Annotated[
        float | None,
        option(
            "KV kept for reuse, as a multiple of what the running sequences are expected to hold.",
            "prefix_cache",
            derived=True,
            ge=0,
        ),
    ] = None
    enable_prefix_caching: Annotated[
        bool, option("Reuse the KV of equal prompt prefixes within one cache salt.", "prefix_cache")
    ] = True
    watermark: Annotated[
        float | None,
        option(
            "Share of blocks that stay free when a request is admitted beside others.", "kv", derived=True, ge=0, le=0.5
        ),
    ] = None

    def kv_dtype(self, compute: str) -> str:
        """What the cache holds where the compute type is `compute`."""
        return compute if self.kv_cache_dtype == "auto" else self.kv_cache_dtype


class SchedulingConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Who runs when, and how much of it."""

    max_num_seqs: Annotated[int | None, option("Most sequences running at once.", "batch", derived=True, ge=1)] = None
    max_num_batched_tokens: Annotated[
        int | None, option("Most tokens computed in one step.", "batch", unit="tokens", derived=True, ge=1)
    ] = None
    prefill_chunk_tokens: Annotated[
        int | None,
        option("Most prompt tokens of one request in one step.", "batch", unit="tokens", derived=True, ge=1),
    ] = None
    min_prefill_tokens: Annotated[
        int | None,
        option(
            "Prompt tokens a step takes at least while prompts wait, however many rows decode.",
            "batch",
            unit="tokens",
            derived=True,
            ge=1,
        ),
    ] = None
    prefill_priority: Annotated[
        Literal["decode_first", "prefill_first"] | None,
        option("Who is served first from a step's tokens: running decodes or prompts.", "batch", derived=True),
    ] = None
    scheduling_mode: Annotated[
        Literal["fixed", "auto"] | None,
        option(
            "fixed: a step takes what the other options say, in order of arrival. auto: latency targets of the "
            "classes of service and predicted step times decide how much of a prompt a step takes, who is next and "
            "when one more row is let in; the other options are its bounds.",
            "batch",
            derived=True,
        ),
    ] = None
    max_wait_ms: Annotated[
        float | None,
        option("How long a request may wait for a fuller batch.", "batch", unit="ms", derived=True, ge=0),
    ] = None
    policy: Annotated[
        Literal["fcfs", "priority", "fair"],
        option("Order of waiting requests: by arrival, by class, or by class and then tenant share.", "batch"),
    ] = "fair"
    batching: Annotated[
        Literal["continuous", "static"],
        option("continuous: join and leave at every step. static: a batch ends before the next begins.", "batch"),
    ] = "continuous"
    preemption: Annotated[
        Literal["recompute", "offload"], option("What becomes of a preempted sequence's KV.", "offload")
    ] = "recompute"
    max_waiting_requests: Annotated[
        int | None, option("Longest queue; more are refused. none = no bound.", "batch", ge=1)
    ] = 4096
    max_waiting_tokens: Annotated[
        int | None,
        option("Most prompt tokens in the queue; more are refused. none = no bound.", "batch", unit="tokens", ge=1),
    ] = None
    wait_for_prefix: Annotated[
        bool,
        option("A request whose next block another is computing waits for it when that is sooner.", "prefix_cache"),
    ] = True


class DeviceConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Where it runs."""

    device: Annotated[Literal["auto", "cpu", "cuda"], option("auto: CUDA when there is one.", "baseline")] = "auto"
    num_threads: Annotated[
        int | None, option("Threads of the compute pool; none = one per usable core.", "baseline", ge=1)
    ] = None


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The whole tree."""

    profile: Annotated[
        Profile, option("Which trade the options left unset are derived for: latency, throughput or length.", "batch")
    ] = "interactive"
    numerics: Annotated[
        Literal["fast", "reference"],
        option(
            "reference: a row's result never depends on its batch mates. fast: wherever it costs little.", "baseline"
        ),
    ] = "fast"
    journal: Annotated[
        str | None,
        option(
            "File that records what the scheduler was given and each plan's digest, for `paceline replay`. "
            "It holds prompts as token ids. none = off.",
            "baseline",
        ),
    ] = None
    model: ModelConfig = ModelConfig()
    cache: CacheConfig = CacheConfig()
    scheduling: SchedulingConfig = SchedulingConfig()
    device: DeviceConfig = DeviceConfig()
