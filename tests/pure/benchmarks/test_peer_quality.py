"""llama.cpp's file of distributions is read as it writes it, and KL is that of the distributions."""

import struct

import numpy as np
import pytest
from benchmarks.peers.engines.quality import divergence, read_base, rounded

VOCAB, RUN, RUNS = 7, 6, 2


def as_written(logits):
    """One row as llama.cpp's `log_softmax` in its perplexity program writes it, number by number."""
    most = max(logits)
    least = max(min(logits), np.float32(most - 16))
    scale = np.float32((most - least) / np.float32(65535))
    least_log_prob = least - most - np.float32(np.log(sum(np.exp(np.float64(v - most)) for v in logits)))
    codes = [round(float((v - least) / scale)) if v > least else 0 for v in logits]
    width = 2 * ((len(logits) + 1) // 2)
    return struct.pack("<ff", scale, least_log_prob) + struct.pack(f"<{width}H", *codes, *[0] * (width - len(codes)))


@pytest.fixture
def logits():
    drawn = np.random.default_rng(1).normal(0, 6, (RUNS, RUN - 1 - RUN // 2, VOCAB)).astype(np.float32)
    drawn[0, 0, 0] = drawn[0, 0].max() + 30  # the rest is below what can be written
    return drawn


@pytest.fixture
def path(tmp_path, logits):
    head = b"_logits_" + struct.pack("<iii", RUN, VOCAB, RUNS)
    tokens = np.arange(RUN * RUNS, dtype=np.int32).tobytes()
    path = tmp_path / "base.kld"
    path.write_bytes(head + tokens + b"".join(as_written(row) for run in logits for row in run))
    return path


def test_the_file_reads_as_it_was_written(path, logits):
    base = read_base(path)
    assert (base.num_run, base.vocab_size, base.first) == (RUN, VOCAB, 3)
    assert base.tokens.tolist() == [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11]]
    for run in range(RUNS):
        exact = logits[run] - np.log(np.exp(logits[run] - logits[run].max(-1, keepdims=True)).sum(-1, keepdims=True))
        exact -= logits[run].max(-1, keepdims=True)
        near = exact > exact.max(-1, keepdims=True) - 16
        np.testing.assert_allclose(base.log_probs(run)[near], exact[near], atol=16 / 65535)


def test_ours_is_rounded_alike(path, logits):
    base = read_base(path)
    for run in range(RUNS):
        np.testing.assert_allclose(rounded(logits[run]), base.log_probs(run), atol=1e-5)


def test_a_first_token_that_the_model_wants(path):
    assert read_base(path, bos=99).tokens[:, 0].tolist() == [99, 99]


def test_another_kind_of_file_is_refused(tmp_path):
    (tmp_path / "x").write_bytes(b"GGUF" + bytes(40))
    with pytest.raises(ValueError, match="does not begin with"):
        read_base(tmp_path / "x")


def test_divergence_by_hand():
    p, q = np.array([[0.5, 0.25, 0.25]]), np.array([[0.25, 0.5, 0.25]])
    kl, first = divergence(np.log(p), np.log(q))
    assert kl == pytest.approx([0.5 * np.log(2) - 0.25 * np.log(2)])
    assert first.tolist() == [False]
    assert divergence(np.log(p), np.log(p) + 3)[0] == pytest.approx([0.0])
