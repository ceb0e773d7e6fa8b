"""Specs of real models and of devices of three sizes, for tests that only do arithmetic."""

from paceline.contracts.specs import DeviceSpec, LayerSpec, ModelSpec

SMOLLM2 = ModelSpec(
    family="llama",
    name="smollm2-135m",
    revision="r",
    vocab_size=49152,
    hidden_size=576,
    intermediate_size=1536,
    num_heads=9,
    num_kv_heads=3,
    head_dim=64,
    layers=(LayerSpec(),) * 30,
    max_model_len=8192,
    tie_word_embeddings=True,
)
GEMMA_270M = ModelSpec(
    family="gemma3",
    name="gemma3-270m",
    revision="r",
    vocab_size=262144,
    hidden_size=640,
    intermediate_size=2048,
    num_heads=4,
    num_kv_heads=1,
    head_dim=256,
    layers=tuple(LayerSpec() if i % 6 == 5 else LayerSpec(attention="sliding", window=512) for i in range(18)),
    max_model_len=32768,
    tie_word_embeddings=True,
)
LLAMA_8B = ModelSpec(
    family="llama",
    name="llama-8b",
    revision="r",
    vocab_size=128256,
    hidden_size=4096,
    intermediate_size=14336,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    layers=(LayerSpec(),) * 32,
    max_model_len=131072,
)
LAPTOP = DeviceSpec(
    kind="cpu", name="laptop", memory_bytes=24 << 30, num_cores=2, gflops=150, memory_gbps=18, source="made up"
)
SERVER = DeviceSpec(
    kind="cpu", name="server", memory_bytes=512 << 30, num_cores=64, gflops=6000, memory_gbps=300, source="made up"
)
GPU = DeviceSpec(
    kind="cuda", name="gpu", memory_bytes=80 << 30, num_cores=132, gflops=800e3, memory_gbps=3300, source="made up"
)
