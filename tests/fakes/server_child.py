"""The engine's process behind a server in tests: `python -m tests.fakes.server_child OPTIONS_JSON ADDRESS`."""

from __future__ import annotations

import sys
import time

import msgspec
from tests.fakes.server_engines import EngineOptions, build_engine, wait_while_held

from paceline.engine.child import PhaseRelay, serve_child
from paceline.engine.loop import EngineCore
from paceline.errors import ModelError


def main() -> int:
    options = msgspec.json.decode(sys.argv[1], type=EngineOptions)
    stall_limit_s = float(sys.argv[2])
    relay = PhaseRelay()

    def build() -> EngineCore:
        relay("weights")
        time.sleep(options.start_s)
        wait_while_held(options.control)
        if options.fail_start:
            raise ModelError(options.fail_start)
        return build_engine(options)

    def info(core: EngineCore) -> dict[str, object]:
        caps = core.executor.caps
        return {
            "model": options.kind,
            "vocab_size": caps.vocab_size,
            "max_model_len": options.max_model_len,
            "num_blocks": caps.layout.num_blocks,
            "block_size": caps.layout.block_size,
            "dtype": "float32",
            "device": {"kind": "cpu", "name": "none"},
            "phases": {"weights": options.start_s},
            "ledger": [],
            "notes": [],
            "knobs": [],
            "options": [],
        }

    return serve_child(build, sys.argv[-1], info=info, relay=relay, stall_limit_s=stall_limit_s)


if __name__ == "__main__":
    sys.exit(main())
