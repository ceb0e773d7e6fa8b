"""A device to plan or simulate for: a card of the planner's table by its name, or one's own from a TOML file.

    name = "my-card"            # any
    memory_gib = 80             # all of it
    memory_gbps = 3350          # GB/s
    tflops = 989                # 16-bit products
    tflops_fp8 = 1978           # left out: no 8-bit products
    link = "NVLink"             # what joins devices of a node; with link_gbps
    link_gbps = 450
    link_latency_us = [24, 28, 35]   # of an all-reduce over 2, 4 and 8 devices
    net_gbps = 50               # per device, to another node
    per_node = 8
    sparse = false              # tflops count zeros that are skipped (2:4 sparsity)
    both_directions = false     # link_gbps and net_gbps are of both directions together
    source = "data sheet of 2025-03"

Rates are used as they are given; `paceline lint` says which of them no product reaches (PL207).
"""

from __future__ import annotations

import difflib
import math
import tomllib
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from paceline.contracts.specs import DeviceSpec
from paceline.errors import ConfigError
from paceline.planner.devices import DEVICES, GIB, DeviceCard

Positive = Annotated[float, msgspec.Meta(gt=0)]


class DeviceFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file's keys."""

    name: str
    memory_gib: Positive
    memory_gbps: Positive
    tflops: Positive
    source: str
    tflops_fp8: Positive | None = None
    kind: Literal["cuda", "cpu"] = "cuda"
    num_cores: Annotated[int, msgspec.Meta(ge=1)] = 1
    link: str = "PCIe"  # this and the next three: of a card in a plain host, if nobody says otherwise
    link_gbps: Positive = 32.0
    link_latency_us: tuple[Positive, Positive, Positive] = (45.0, 54.0, 70.0)
    net_gbps: Positive = 12.5
    per_node: Annotated[int, msgspec.Meta(ge=1)] = 8
    watts: Positive | None = None
    sparse: bool = False
    both_directions: bool = False

    def card(self) -> DeviceCard:
        assumed = [f"{name} {value}" for name, value in LINKS.items() if getattr(self, name) == value]
        return DeviceCard(
            spec=DeviceSpec(
                kind=self.kind,
                name=self.name,
                memory_bytes=int(self.memory_gib * GIB),
                num_cores=self.num_cores,
                gflops=1e3 * self.tflops,
                memory_gbps=self.memory_gbps,
                source=self.source,
            ),
            link=self.link,
            link_gbps=self.link_gbps,
            link_latency_us=self.link_latency_us,
            net_gbps=self.net_gbps,
            fp8_gflops=None if self.tflops_fp8 is None else 1e3 * self.tflops_fp8,
            watts=self.watts,
            per_node=self.per_node,
            dense=not self.sparse,
            one_way=not self.both_directions,
            source=self.source,
            assumed="; ".join(assumed),
        )


LINKS: dict[str, object] = {"link": "PCIe", "link_gbps": 32.0, "link_latency_us": (45.0, 54.0, 70.0), "net_gbps": 12.5}


def find_card(name: str, *, others: tuple[str, ...] = ()) -> DeviceCard:
    """A device of the table, or of a file whose name ends with .toml. `others`: further names that the caller knows.
    Raises ConfigError that names the nearest device, or the key that is wrong."""
    if name in DEVICES:
        return DEVICES[name]
    if name.endswith(".toml"):
        return read_card(Path(name))
    known = [*others, *DEVICES]
    close = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.4)
    raise ConfigError(
        "no such device",
        seen=name,
        expected=f"{', '.join(known)}, or a .toml file that describes one",
        fix=f"did you mean {close[0]}?" if close else "`paceline plan --list` shows them",
    )


def read_card(path: Path) -> DeviceCard:
    """Raises ConfigError for a file that is not there, or says something else."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError("the file of a device cannot be read", seen=f"{path}: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError("the file of a device is not TOML", seen=f"{path}: {error}") from None
    fields = DeviceFile.__struct_fields__
    for key in table:
        if key not in fields:
            near = difflib.get_close_matches(key, fields, n=1)
            fix = f"did you mean {near[0]}?" if near else f"known are {', '.join(fields)}"
            raise ConfigError("unknown key in the file of a device", seen=f"{path}: {key}", fix=fix)
    try:
        found = msgspec.convert(table, DeviceFile)
    except msgspec.ValidationError as error:
        raise ConfigError("the file of a device is not right", seen=f"{path}: {error}") from None
    numbers = [found.memory_gib, found.memory_gbps, found.tflops, found.link_gbps, found.net_gbps]
    if not all(map(math.isfinite, [*numbers, found.tflops_fp8 or 0.0, *found.link_latency_us])):
        raise ConfigError("the file of a device has a rate that is no number", seen=path, expected="numbers above 0")
    return found.card()
