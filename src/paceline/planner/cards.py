"""Models to plan for without a file: what their published config.json says, as far as it changes memory or time.

Each card names its source, and what of the model it leaves out.
"""

from __future__ import annotations

import msgspec

from paceline.contracts.specs import ExpertsSpec, LatentSpec, LayerSpec, ModelSpec, StateSpec

FULL = LayerSpec()


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """A model and where its numbers come from: the config.json of a repository on the Hugging Face hub."""

    spec: ModelSpec
    hub_id: str
    weights: str = "bf16"  # the format it is published in
    left_out: str = ""  # what a `ModelSpec` cannot say, each below 1 % of the weights


def _every(period: int, rare: LayerSpec, common: LayerSpec, count: int) -> tuple[LayerSpec, ...]:
    """`count` layers of which each `period`-th is `rare`."""
    return tuple(rare if index % period == period - 1 else common for index in range(count))


LLAMA_8B = ModelSpec(
    name="llama-3.1-8b", family="llama", revision="card",
    layers=(FULL,) * 32, vocab_size=128_256, hidden_size=4096, intermediate_size=14_336, num_heads=32,
    num_kv_heads=8, head_dim=128, max_model_len=131_072,
)  # fmt: skip
LLAMA_70B = ModelSpec(
    name="llama-3.1-70b", family="llama", revision="card",
    layers=(FULL,) * 80, vocab_size=128_256, hidden_size=8192, intermediate_size=28_672, num_heads=64,
    num_kv_heads=8, head_dim=128, max_model_len=131_072,
)  # fmt: skip
QWEN25_7B = ModelSpec(
    name="qwen2.5-7b", family="qwen2", revision="card",
    layers=(FULL,) * 28, vocab_size=152_064, hidden_size=3584, intermediate_size=18_944, num_heads=28,
    num_kv_heads=4, head_dim=128, max_model_len=32_768, attention_bias=True,
)  # fmt: skip
QWEN3_8B = ModelSpec(
    name="qwen3-8b", family="qwen3", revision="card",
    layers=(FULL,) * 36, vocab_size=151_936, hidden_size=4096, intermediate_size=12_288, num_heads=32,
    num_kv_heads=8, head_dim=128, max_model_len=40_960, qk_norm=True,
)  # fmt: skip
QWEN3_30B_A3B = ModelSpec(
    name="qwen3-30b-a3b", family="qwen3_moe", revision="card",
    layers=(LayerSpec(routed=True),) * 48, vocab_size=151_936, hidden_size=2048,
    intermediate_size=6144, num_heads=32, num_kv_heads=4, head_dim=128, max_model_len=40_960, qk_norm=True,
    experts=ExpertsSpec(num_experts=128, num_active=8, intermediate_size=768),
)  # fmt: skip
GEMMA3_27B = ModelSpec(
    name="gemma-3-27b", family="gemma3", revision="card",
    layers=_every(6, FULL, LayerSpec(attention="sliding", window=1024), 62), vocab_size=262_208,
    hidden_size=5376, intermediate_size=21_504, num_heads=32, num_kv_heads=16, head_dim=128, max_model_len=131_072,
    tie_word_embeddings=True, qk_norm=True,
)  # fmt: skip
MIXTRAL_8X7B = ModelSpec(
    name="mixtral-8x7b", family="mixtral", revision="card",
    layers=(LayerSpec(routed=True),) * 32, vocab_size=32_000, hidden_size=4096,
    intermediate_size=14_336, num_heads=32, num_kv_heads=8, head_dim=128, max_model_len=32_768,
    experts=ExpertsSpec(num_experts=8, num_active=2, intermediate_size=14_336),
)  # fmt: skip
DEEPSEEK_V3 = ModelSpec(
    name="deepseek-v3", family="deepseek_v3", revision="card",
    layers=(LayerSpec(attention="latent"),) * 3 + (LayerSpec(attention="latent", routed=True),) * 58,
    vocab_size=129_280, hidden_size=7168, intermediate_size=18_432, num_heads=128, num_kv_heads=128, head_dim=192,
    max_model_len=163_840,
    experts=ExpertsSpec(num_experts=256, num_active=8, intermediate_size=2048, shared_intermediate_size=2048),
    latent=LatentSpec(kv_rank=512, rope_dim=64, nope_dim=128, value_dim=128, query_rank=1536),
)  # fmt: skip
GPT_OSS_120B = ModelSpec(
    name="gpt-oss-120b", family="gpt_oss", revision="card",
    layers=_every(2, LayerSpec(routed=True), LayerSpec(attention="sliding", window=128, routed=True), 36),
    vocab_size=201_088, hidden_size=2880, intermediate_size=2880, num_heads=64, num_kv_heads=8, head_dim=64,
    max_model_len=131_072, attention_bias=True, attention_output_bias=True,
    experts=ExpertsSpec(num_experts=128, num_active=4, intermediate_size=2880),
)  # fmt: skip

# Of a gated delta layer: 32 value heads, 16 key heads, all of width 128, convolution over 4 positions. Its state is
# 32 matrices of 128 x 128 in 4 bytes, and the last 3 of 8,192 inputs of the convolution in 2; its weights are the
# projections in (12,288 + 64 wide) and out (4,096), and the convolution.
_GATED_DELTA = StateSpec(
    num_bytes=32 * 128 * 128 * 4 + 3 * 8192 * 2, num_parameters=2048 * (12_288 + 64) + 4096 * 2048 + 4 * 8192
)
QWEN3_NEXT_80B = ModelSpec(
    name="qwen3-next-80b-a3b", family="qwen3_next", revision="card",
    layers=_every(4, LayerSpec(routed=True), LayerSpec(attention="state", routed=True), 48),
    vocab_size=151_936, hidden_size=2048, intermediate_size=5120, num_heads=16, num_kv_heads=2, head_dim=256,
    max_model_len=262_144, qk_norm=True, state=_GATED_DELTA,
    experts=ExpertsSpec(num_experts=512, num_active=10, intermediate_size=512, shared_intermediate_size=512),
)  # fmt: skip

CARDS: dict[str, ModelCard] = {
    card.spec.name: card
    for card in (
        ModelCard(spec=LLAMA_8B, hub_id="meta-llama/Llama-3.1-8B-Instruct"),
        ModelCard(spec=LLAMA_70B, hub_id="meta-llama/Llama-3.1-70B-Instruct"),
        ModelCard(spec=QWEN25_7B, hub_id="Qwen/Qwen2.5-7B-Instruct"),
        ModelCard(spec=QWEN3_8B, hub_id="Qwen/Qwen3-8B"),
        ModelCard(spec=QWEN3_30B_A3B, hub_id="Qwen/Qwen3-30B-A3B"),
        ModelCard(spec=GEMMA3_27B, hub_id="google/gemma-3-27b-it", left_out="pictures, two of four norms a layer"),
        ModelCard(spec=MIXTRAL_8X7B, hub_id="mistralai/Mixtral-8x7B-Instruct-v0.1"),
        ModelCard(
            spec=DEEPSEEK_V3, hub_id="deepseek-ai/DeepSeek-V3", weights="fp8", left_out="the extra prediction layer"
        ),
        ModelCard(spec=GPT_OSS_120B, hub_id="openai/gpt-oss-120b", weights="mxfp4", left_out="biases of experts"),
        ModelCard(
            spec=QWEN3_NEXT_80B,
            hub_id="Qwen/Qwen3-Next-80B-A3B-Instruct",
            left_out="output gates of full attention, the extra prediction layer",
        ),
    )
}
