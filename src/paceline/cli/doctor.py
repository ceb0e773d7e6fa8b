"""`paceline doctor`: what this machine and version can do, and what the engine would choose for a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from paceline.cli.options import EngineConfig, engine_options

if TYPE_CHECKING:
    from rich.console import Console


@engine_options
def doctor(
    matrix: Annotated[bool, typer.Option("--matrix", help="Which features go together; which are not there.")] = False,
    load: Annotated[bool, typer.Option("--load/--no-load", help="Load the model and measure memory.")] = True,
    *,
    config: EngineConfig,
) -> None:
    """Show versions, device, kernels, profile knobs with their reasons, and the memory ledger of a loaded model."""
    from rich.console import Console

    console = Console()
    if matrix:
        print_matrix(console)
        return
    print_versions(console)
    print_device(console, config)
    print_kernels(console, config)
    if load:
        print_model(console, config)


def print_versions(console: Console) -> None:
    import platform
    from importlib.metadata import PackageNotFoundError, version

    import paceline

    parts = [f"paceline {paceline.__version__}", f"Python {platform.python_version()}"]
    for name in ("torch", "numpy", "tokenizers", "safetensors", "gguf"):
        try:
            parts.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            parts.append(f"{name} missing")
    console.print(", ".join(parts), highlight=False)


def print_device(console: Console, config: EngineConfig) -> None:
    from paceline.assemble import find_device

    device, dtype = find_device(config)
    console.print(
        f"device {device.kind}: {device.name}, {device.num_cores} cores, {device.memory_bytes / 2**30:.1f} GiB usable, "
        f"{device.gflops:.0f} GFLOP/s {dtype}, {device.memory_gbps:.1f} GB/s ({device.source})",
        highlight=False,
    )


def print_kernels(console: Console, config: EngineConfig) -> None:
    from paceline.assemble import find_device, isa_line, kernel_table

    device, dtype = find_device(config)
    rows = kernel_table(device.kind, dtype, config.numerics)
    if device.kind == "cpu" and (line := isa_line()):
        console.print(line, highlight=False)
    _table(console, "kernels", ("op", "implementation", "why"), rows)


def print_matrix(console: Console) -> None:
    from paceline.config import matrix_rows

    rows = [(r.feature, r.status, r.needs, r.conflicts, r.instead) for r in matrix_rows()]
    _table(console, "features", ("feature", "there", "needs", "conflicts", "instead"), rows)


def print_model(console: Console, config: EngineConfig) -> None:
    from paceline.cli.progress import loaded, print_ledger

    with loaded(config) as llm:
        spec = llm.spec
        console.print(
            f"model {spec.name}: {spec.family}, {spec.num_parameters / 1e6:.1f} M parameters, {spec.num_layers} "
            f"layers, {spec.num_heads} heads / {spec.num_kv_heads} KV, vocabulary {spec.vocab_size}, stored as "
            f"{spec.weight_dtype}",
            highlight=False,
        )
        rows = [(d.name, str(d.value), d.source, d.reason) for d in llm.knobs.derived]
        _table(console, f"profile {config.profile}", ("option", "value", "from", "why"), rows)
        print_ledger(llm, console)
        times = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in llm.phases.items())
        console.print(f"start-up: {times}", highlight=False)


def _table(console: Console, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for name in columns:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*row)
    console.print(table)
