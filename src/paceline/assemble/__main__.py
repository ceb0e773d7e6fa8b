"""`python -m paceline.assemble [--stall-limit-s S] CONFIG_JSON ADDRESS`: the engine's process, made by `spawn_engine`.

Serves one client and ends with it. What goes wrong while it starts reaches that client.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import msgspec

from paceline.assemble.core import Core, build_core
from paceline.assemble.report import engine_info
from paceline.config import EngineConfig
from paceline.engine import EngineCore
from paceline.engine.child import PhaseRelay, serve_child


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m paceline.assemble")
    parser.add_argument("--stall-limit-s", type=float, default=120.0)
    parser.add_argument("config")
    parser.add_argument("address")
    given = parser.parse_args(argv)
    config = msgspec.json.decode(given.config, type=EngineConfig)
    relay = PhaseRelay()
    built: list[Core] = []

    def build() -> EngineCore:
        built.append(build_core(config, on_phase=relay))
        return built[0].core

    return serve_child(
        build,
        given.address,
        info=lambda _: engine_info(built[0]),
        relay=relay,
        stall_limit_s=given.stall_limit_s,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
