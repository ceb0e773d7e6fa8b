"""What kernel tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from paceline.runtime.kernels.cpu import native


@pytest.fixture(params=[1, 2, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    """A test for each number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.fixture(params=["avx2", "avxvnni", "avx512", "vnni512", "amx"])
def level(request: pytest.FixtureRequest) -> Iterator[str]:
    """A test for each level of instructions that this machine has, which no kernel exceeds meanwhile."""
    if request.param not in native.isa_levels():
        pytest.skip(f"this machine has no {request.param}")
    before = native.isa()
    native.set_isa(request.param)
    yield request.param
    native.set_isa(before)
