"""The rates of this machine that bound every engine: reading memory, products of matrices in int8 and bfloat16.

    python benchmarks/peers/engines/limits.py [--threads 2] [--mib 94 1024]

Reading is measured by a small program compiled here (gcc or clang), for as much memory as the model's weights take,
read again and again as decoding does, and for 1 GiB. Products are of 2,048 x 2,048 x 2,048 through torch, which calls
oneDNN: its fastest of several tries. What oneDNN lacks on this machine is missed here too, so the limit is one that
was reached, not one from a data sheet. It prints one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

SOURCE = Path(__file__).with_name("limits.c")
SIZE = 2048
BUDGET_S = 1.0  # of one product


def reading(sizes_mib: list[int], threads: int) -> dict[int, float]:
    """GB/s by size."""
    compiler = shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return {mib: reading_with_torch(mib) for mib in sizes_mib}
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "limits"
        subprocess.run([compiler, "-O3", "-march=native", "-fopenmp", str(SOURCE), "-o", str(program)], check=True)
        done = subprocess.run(
            [str(program), *map(str, sizes_mib)],
            env={"OMP_NUM_THREADS": str(threads), "OMP_PROC_BIND": "true"},
            capture_output=True,
            text=True,
            check=True,
        )
    return {int(mib): float(rate) for mib, rate in (line.split() for line in done.stdout.splitlines())}


def reading_with_torch(mib: int) -> float:
    """Without a compiler; slower than the truth where a sum of floats is."""
    numbers = torch.ones(mib << 18)
    return (mib << 20) * fastest(numbers.sum) / 1e9


def fastest(run: Callable[[], object]) -> float:
    """Runs per second of the fastest."""
    run()
    best, end = float("inf"), time.perf_counter() + BUDGET_S
    while time.perf_counter() < end:
        begun = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - begun)
    return 1 / best


def products() -> dict[str, float]:
    """Operations per second, a multiplication and an addition being two."""
    ops = 2.0 * SIZE**3
    found = {}
    for name, dtype in (("f32", torch.float32), ("bf16", torch.bfloat16)):
        a, b = torch.randn(SIZE, SIZE).to(dtype), torch.randn(SIZE, SIZE).to(dtype)
        found[name] = ops * fastest(lambda a=a, b=b: a @ b)  # type: ignore[misc]
    x, w = (torch.randint(-127, 127, (SIZE, SIZE), dtype=torch.int8) for _ in range(2))
    ways = [ops * fastest(lambda: torch._int_mm(x, w))]
    packed = torch.ops.onednn.qlinear_prepack(w, [SIZE, SIZE])
    scales, zeros = torch.ones(SIZE), torch.zeros(SIZE, dtype=torch.int32)
    unsigned = x.view(torch.uint8)

    def quantised() -> torch.Tensor:
        return torch.ops.onednn.qlinear_pointwise(
            unsigned, 1.0, 0, packed, scales, zeros, None, 1.0, 0, torch.float32, "none", [], ""
        )

    ways.append(ops * fastest(quantised))
    found["int8"] = max(ways)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--mib", type=int, nargs="+", default=[94, 1024], help="sizes to read, MiB")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    with torch.inference_mode():
        found = {"read_gb_s": reading(args.mib, args.threads), "ops_per_s": products()}
    print(json.dumps(found | {"threads": args.threads}))


if __name__ == "__main__":
    main()
