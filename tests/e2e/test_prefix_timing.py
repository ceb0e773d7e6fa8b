"""The timing probe against our own server: two tenants share nothing; two keys of one tenant do, and are found out."""

from __future__ import annotations

import hashlib

import pytest
from tests.fakes.server_process import running_server

from paceline.contracts.artefact import Answer
from paceline.lab.gates.timing_probe import probe_prefix_timing

KEYS = ("first-key-of-the-test-0123456789", "second-key-of-the-test-0123456789")
ENGINE = {"kind": "simulated", "fixed_ms": 1.0, "token_ms": 0.1, "num_blocks": 4096}


@pytest.mark.parametrize("shared", [False, True])
def test_the_prefix_cache_is_seen_from_outside(tmp_path, shared):
    hashes = [f'"{hashlib.sha256(key.encode()).hexdigest()}"' for key in KEYS]
    owners = {"alice": hashes} if shared else {"alice": hashes[:1], "bob": hashes[1:]}
    tables = [f"[tenants.{name}]\nkey_sha256 = [{', '.join(keys)}]\n" for name, keys in owners.items()]
    (tmp_path / "tenants.toml").write_text("\n".join(tables))
    with running_server(ENGINE, tenants=str(tmp_path / "tenants.toml")) as server:
        found = probe_prefix_timing(server.base_url, *KEYS, num_rounds=12, num_words=40)
    assert found.num_rounds == 12
    assert found.cached_tokens["own"] > 12 * 100  # the probe's own repeats are hits
    assert found.cached_tokens["control"] <= 2 * 16  # prompts of random words may begin alike
    assert (found.cached_tokens["test"] > 0) is shared
    if shared:
        result = found.gate_result()
        assert result.answer is Answer.FAIL
        assert "another tenant's prompts" in result.sentence
