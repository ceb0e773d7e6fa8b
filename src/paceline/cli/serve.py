"""`paceline serve`: the OpenAI API over one model."""

from __future__ import annotations

import json
import logging
import sys
from typing import TYPE_CHECKING, Any

from paceline.cli.lint import look_for_mistakes
from paceline.cli.options import EngineConfig, ServerConfig, engine_options

if TYPE_CHECKING:
    from paceline.assemble.server import ServerState


@engine_options
def serve(*, config: EngineConfig, server: ServerConfig) -> None:
    """Serve a model over the OpenAI API: /v1/chat/completions, /v1/completions, /v1/models, a page at /, metrics."""
    from paceline.assemble.server import run_server

    start_logging(server.log_level)
    raise_file_limit()
    say(f"paceline serve {config.model.model}: /ready tells the phase while it loads")

    def ready(state: ServerState, url: str) -> None:
        announce(state, url)
        look_for_mistakes(config, state)

    run_server(config, server, ready)


def start_logging(level: str) -> None:
    """paceline's messages on standard error; of its libraries, only what went wrong."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.getLogger("paceline").setLevel(level.upper())


def raise_file_limit() -> None:
    """As many open files as the system lets this user have: each connection is one."""
    try:
        import resource
    except ImportError:  # not a Unix
        return
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def announce(state: ServerState, url: str) -> None:
    """What a person needs to go on: how the start went, what the memory is for, and a line to try."""
    from paceline.assemble.server import dialect_line

    report = state.report
    phases = report["phases"]
    say(f"ready in {sum(state.engine.phases.values()):.2f} s: {_times(phases)}")
    for part, predicted, measured, how in report.get("ledger", ()):
        say(f"  {part:20s} {predicted:>10s} {measured and f'({measured} measured)':22s} {how}")
    for note in report.get("notes", ()):
        say(f"note: {note}")
    if state.tenants.open:
        say("no API key is asked for (--api-key, --tenants)")
    body: dict[str, Any] = {"model": state.model.id, "messages": [{"role": "user", "content": "Say hello."}]}
    path = "/v1/chat/completions"
    if not state.pipeline.template.sources:
        body, path = {"model": state.model.id, "prompt": "Once upon a time", "max_tokens": 32}, "/v1/completions"
    key = "" if state.tenants.open else " -H 'Authorization: Bearer YOUR_KEY'"
    say(f"model {state.model.id}: up to {state.model.max_model_len} tokens, {report.get('dtype', '')}")
    if state.pipeline.template.sources:
        say(dialect_line(state))
    say(f"API at {url}/v1, described in docs/reference/api.md and {url}/openapi.json; metrics at {url}/metrics")
    if not state.settings.disable_page:
        say(f"page at {url}/")
    say(f"try: curl {url}{path}{key} -H 'Content-Type: application/json' -d '{json.dumps(body)}'")


def _times(phases: dict[str, float]) -> str:
    return ", ".join(f"{name} {seconds:.2f} s" for name, seconds in phases.items())


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
