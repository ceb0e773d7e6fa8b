"""Around a native step torch computes alone, and native kernels keep their threads."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Thread

import pytest
import torch

from paceline.runtime.threads import kernel_threads, torch_alone


@pytest.fixture(autouse=True)
def three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def test_kernels_take_as_many_threads_as_torch_until_told_otherwise() -> None:
    assert kernel_threads() == 3
    with torch_alone():
        assert (torch.get_num_threads(), kernel_threads()) == (1, 3)
        with torch_alone():
            assert (torch.get_num_threads(), kernel_threads()) == (1, 3)
        assert (torch.get_num_threads(), kernel_threads()) == (1, 3)
    assert (torch.get_num_threads(), kernel_threads()) == (3, 3)


def test_a_step_that_fails_gives_the_threads_back() -> None:
    with pytest.raises(RuntimeError, match="no"), torch_alone():
        raise RuntimeError("no")
    assert (torch.get_num_threads(), kernel_threads()) == (3, 3)


def test_other_threads_are_not_told() -> None:
    seen: list[int] = []
    with torch_alone():
        thread = Thread(target=lambda: (torch.set_num_threads(2), seen.append(kernel_threads())))
        thread.start()
        thread.join()
    assert seen == [2]
