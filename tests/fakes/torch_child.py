"""A process that serves the torch executor over a tiny model: `python -m tests.fakes.torch_child FD`."""

from __future__ import annotations

import sys

from tests.fakes.tiny_models import tiny_executor

from paceline.runtime.remote import serve_executor


def main() -> None:
    executor = tiny_executor("gemma3")
    if "--break" in sys.argv:
        executor.runner.model = None  # type: ignore[assignment]
    serve_executor(executor, int(sys.argv[-1]))


if __name__ == "__main__":
    main()
