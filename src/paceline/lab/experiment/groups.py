"""The groups of variables an edge may change, and which group an option of a known server belongs to.

paceline's own options carry their group (`/v1/internal/config`, or the table a caller passes in). Options of other
servers are found in `DECLARED`, or in the spec's [server.groups]; an option nobody knows is refused, because a change
whose group is unknown cannot be said to be the only one.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from paceline.errors import ConfigError

GROUPS = (
    "baseline",
    "batch",
    "kv",
    "prefix_cache",
    "quantisation",
    "parallel",
    "speculation",
    "offload",
    "disagg",
    "compile",
    "lora",
)
"""In the order in which an experiment usually climbs them."""

ALIASES = {
    "prefix": "prefix_cache",
    "quant": "quantisation",
    "quantization": "quantisation",
    "spec": "speculation",
    "disaggregation": "disagg",
}

_BY_GROUP = {
    "batch": "max_num_seqs max_num_batched_tokens enable_chunked_prefill scheduling_policy max_num_partial_prefills "
    "long_prefill_token_threshold async_scheduling "  # vLLM
    "max_running_requests chunked_prefill_size max_prefill_tokens schedule_policy schedule_conservativeness "  # SGLang
    "n_parallel parallel np b batch_size ub ubatch_size cb cont_batching no_cont_batching",  # llama.cpp
    "kv": "block_size gpu_memory_utilization max_model_len kv_cache_memory_bytes num_gpu_blocks_override "
    "mem_fraction_static context_length page_size max_total_tokens "
    "c ctx_size kv_unified kvu swa_full",
    "prefix_cache": "enable_prefix_caching no_enable_prefix_caching prefix_caching_hash_algo "
    "disable_radix_cache radix_eviction_policy "
    "cache_reuse cache_ram slot_prompt_similarity sps cache_prompt no_cache_prompt",
    "quantisation": "quantization activation_dtype dtype kv_cache_dtype calculate_kv_scales torchao_config "
    "ctk cache_type_k ctv cache_type_v",
    "parallel": "tensor_parallel_size tp pipeline_parallel_size pp data_parallel_size dp enable_expert_parallel "
    "decode_context_parallel_size ep_size dp_size tp_size pp_size "
    "sm split_mode ts tensor_split mg main_gpu",
    "speculation": "speculative_config speculative_algorithm speculative_draft_model_path speculative_num_steps "
    "speculative_eagle_topk speculative_num_draft_tokens num_draft_tokens "  # the last: a simulated engine's
    "md model_draft draft_max draft_min draft_n draft_p_min",
    "offload": "cpu_offload_gb swap_space kv_offloading_size kv_offloading_backend enable_hierarchical_cache "
    "hicache_ratio hicache_size ngl n_gpu_layers gpu_layers no_kv_offload nkvo cpu_moe n_cpu_moe",
    "disagg": "kv_transfer_config disaggregation_mode disaggregation_transfer_backend",
    "compile": "enforce_eager compilation_config cuda_graph_sizes O enable_torch_compile cuda_graph_max_bs "
    "disable_cuda_graph attention_backend fa flash_attn",
    "lora": "enable_lora max_loras max_lora_rank lora_modules lora_paths max_loras_per_batch lora",
    "baseline": "model m served_model_name seed tokenizer chat_template jinja t threads tb threads_batch revision "
    "load_format trust_remote_code host port numa",
}
DECLARED: dict[str, str] = {name: group for group, names in _BY_GROUP.items() for name in names.split()}
"""Flag of vLLM, SGLang or llama.cpp, without its dashes, - as _ -> group."""


def canonical(group: str) -> str:
    """The group's one name. Raises ConfigError with the nearest one."""
    name = ALIASES.get(group, group)
    if name in GROUPS:
        return name
    near = difflib.get_close_matches(group, [*GROUPS, *ALIASES], n=1)
    raise ConfigError(
        "no such group of variables",
        seen=group,
        expected=" | ".join(GROUPS),
        fix=f"did you mean {near[0]}?" if near else "",
    )


def plain(option: str) -> str:
    """An option's name as the tables have it: no dashes before, no section, _ between words."""
    return option.lstrip("-").rpartition(".")[2].replace("-", "_")


def group_of(option: str, known: Mapping[str, str], said: Mapping[str, str]) -> str:
    """The group of one option: what the spec says, what the server's table says, what is known of other servers.

    `known`: names of a server's own table. `said`: the spec's [server.groups]. Raises ConfigError.
    """
    for table in (said, known, DECLARED):
        for name in (option, plain(option)):
            if name in table:
                return canonical(table[name])
    near = difflib.get_close_matches(plain(option), list(known or DECLARED), n=1)
    hint = f"did you mean {near[0]}? else " if near else ""
    raise ConfigError(
        f"the group of the option {option} is not known",
        expected="an option of the server's table",
        fix=f'{hint}say it in the spec: [server.groups] {plain(option)} = "batch"',
    )
