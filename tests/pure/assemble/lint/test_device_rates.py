"""PL207: a device of one's own, its rates as a data sheet prints them; halved, predictions are those of the product."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.pure.assemble.lint.kit import Case, numbers, toml

from paceline.assemble.device_card import find_card
from paceline.assemble.plan import Asked, read_question
from paceline.config import read_environment
from paceline.contracts.lint import Severity
from paceline.errors import ConfigError
from paceline.planner.devices import DEVICES, GIB
from paceline.planner.lint import DeviceFacts, Facts
from paceline.planner.lint.rates import RULE, _like

SETTINGS = {"model": "llama-3.1-8b", "max_model_len": 4096, "max_num_seqs": 32}
LOAD: dict[str, Any] = {
    "num_requests": 12, "stream": [{"arrival": {"kind": "closed", "slots": 4}, "input": 2000, "output": 8}],
}  # fmt: skip
DENSE: dict[str, Any] = {  # an H100 as the table has it
    "name": "rented", "memory_gib": 80, "memory_gbps": 3350, "tflops": 989, "tflops_fp8": 1978, "link": "NVLink",
    "link_gbps": 450, "link_latency_us": [24, 28, 35], "net_gbps": 50, "source": "a data sheet",
}  # fmt: skip


def described(folder: Path, **changes: Any) -> Path:
    file = folder / "device.toml"
    file.write_text("".join(f"{key} = {toml(value)}\n" for key, value in {**DENSE, **changes}.items()))
    return file


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"tflops": 1979, "tflops_fp8": 3958}, "2 times that of h100-sxm"),
        ({"tflops": 1978, "tflops_fp8": 3956, "sparse": True}, "as its file says"),
        ({"link_gbps": 900}, "link is 2 times that of h100-sxm"),
        ({"link_gbps": 900, "net_gbps": 100, "both_directions": True}, "network counts both directions of it, as its"),
        ({"name": "b300", "memory_gib": 288, "memory_gbps": 8000, "tflops": 5000}, "which has the most of its kind"),
        ({"name": "dream", "memory_gib": 288, "memory_gbps": 8000, "tflops": 50_000}, "which has the most of its kind"),
        ({"name": "H100 SXM", "memory_gib": 94, "tflops": 1979}, "2 times that of h100-sxm"),
    ],
)
def test_rates_of_a_data_sheet_are_found_and_what_it_offers_instead_is_not(
    tmp_path: Path, wrong: dict[str, Any], words: str
) -> None:
    case = Case(tmp_path, SETTINGS, LOAD, str(described(tmp_path, **wrong)))
    finding = case.predicted("PL207")
    assert finding is not None
    assert finding.severity is Severity.ERROR
    assert words in finding.sentence
    described(tmp_path, **{**wrong, **finding.fix.device})
    assert case.predicted("PL207") is None


@pytest.mark.parametrize(
    ("name", "memory_gib", "tflops", "memory_gbps"),
    [
        ("my-a100-40", 40, 312, 1555),  # no A10
        ("NVIDIA L40", 48, 181, 864),  # no L4
        ("A40", 48, 150, 696),
        ("gb200", 192, 2250, 8000),  # no B200
        ("h100-nvl", 94, 835, 3900),
        ("b200", 180, 2250, 7700),
        ("rtx-pro-6000", 96, 500, 1792),
        ("rented", 80, 756, 2000),  # an H100 of 80 GB whose memory is nearly as fast as an A100's
    ],
)
@pytest.mark.parametrize("link", ["NVLink", "PCIe"])
def test_products_as_they_are_sold_are_left_alone(
    name: str, memory_gib: float, tflops: float, memory_gbps: float, link: str
) -> None:
    device = DeviceFacts(
        name=name, kind="cuda", source="a data sheet", memory_bytes=int(memory_gib * GIB), gflops=1e3 * tflops,
        memory_gbps=memory_gbps, link=link,
    )  # fmt: skip
    assert list(RULE.check(Facts(source="config", name="c", device=device))) == []


@pytest.mark.parametrize(
    ("name", "memory_gib", "memory_gbps", "like"),
    [
        ("NVIDIA L40S", 48, 864, ("l40s", True)),
        ("L40", 48, 864, None),
        ("my-l4-box", 24, 300, ("l4", True)),
        ("l40_s", 24, 300, ("l4", False)),
        ("NVIDIA_A100  SXM", 40, 1555, ("a100-sxm", True)),
        ("gb200", 192, 8000, None),
        ("h200-nvl", 141, 4800, ("h200", True)),
    ],
)
def test_a_product_is_known_by_whole_words_or_by_its_memory(
    name: str, memory_gib: float, memory_gbps: float, like: tuple[str, bool] | None
) -> None:
    device = DeviceFacts(
        name=name, kind="cuda", source="s", memory_bytes=int(memory_gib * GIB), gflops=1.0, memory_gbps=memory_gbps
    )
    assert _like(device) == like


def test_a_simulation_on_sparse_rates_is_too_fast_and_with_the_fix_it_is_the_product(tmp_path: Path) -> None:
    case = Case(tmp_path, SETTINGS, LOAD, str(described(tmp_path, tflops=1979)))
    sparse = case.measured("PL207")
    assert sparse.finding is not None
    assert numbers(sparse.finding)["16-bit rate"] == 1979
    described(tmp_path, **{"tflops": 1979, **sparse.finding.fix.device})
    dense = case.measured("PL207", name="dense")
    assert dense.finding is None
    product = Case(tmp_path, SETTINGS, LOAD, "h100-sxm").measured("PL207", name="product")
    assert product.finding is None
    assert dense.p50("ttft") == pytest.approx(product.p50("ttft"), rel=1e-6)
    assert sparse.p50("ttft") < 0.75 * product.p50("ttft")


def test_a_file_is_the_card_it_describes_and_plans_as_such(tmp_path: Path) -> None:
    card, table = find_card(str(described(tmp_path))), DEVICES["h100-sxm"]
    for name in ("gflops", "memory_gbps", "memory_bytes"):
        assert getattr(card.spec, name) == getattr(table.spec, name)
    assert card.fast_link(4) == table.fast_link(4)
    assert card.network() == table.network()
    assert card.dense
    assert card.one_way
    question = read_question(Asked(model="llama-3.1-8b", device=str(tmp_path / "device.toml")), read_environment())
    assert question.card == card


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name = 'x'\ntflop = 3\n", "did you mean tflops"),
        ("name = 'x'\n", "missing required field"),
        ("name = 'x'\nmemory_gib = 80\nmemory_gbps = 0\ntflops = 1\nsource = 's'\n", "memory_gbps"),
        ("name = 'x'\nmemory_gib = 80\nmemory_gbps = inf\ntflops = 1\nsource = 's'\n", "no number"),
        ("name = \n", "not TOML"),
    ],
)
def test_a_file_that_is_no_device_is_refused_in_words(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "d.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=words):
        find_card(str(file))


def test_a_name_nobody_has_suggests_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean h100-sxm"):
        find_card("h100-sxn")
    with pytest.raises(ConfigError, match="cannot be read"):
        find_card("no/such.toml")
