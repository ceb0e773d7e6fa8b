"""The one place that picks concrete classes: a configuration in, an engine or a server out.

    build_core(config)      what computes and decides: core, model, memory plan       (no text)
    build_engine(config)    that, in this process, with a client and the text around it
    spawn_engine(config)    the same core in a child process; returns the client
    server.run_server(...)  the server process over such a child

Start-up goes in named phases, each timed: files, tokenizer, torch, device, weights, memory, kv cache. Nothing else in
the package may import from every side; this may. Importing it loads neither torch nor the server's libraries.
"""

from __future__ import annotations

from paceline.assemble.core import Core, build_core
from paceline.assemble.engine import Engine, build_engine, spawn_engine
from paceline.assemble.files import require_chat_template
from paceline.assemble.inspect import bench_step, find_device, kernel_table
from paceline.assemble.isa import isa_line

__all__ = [
    "Core",
    "Engine",
    "bench_step",
    "build_core",
    "build_engine",
    "find_device",
    "isa_line",
    "kernel_table",
    "require_chat_template",
    "spawn_engine",
]
