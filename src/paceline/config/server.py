"""Options of the server process: where it listens, whom it lets in, how much it takes, how it starts and ends.

They stand beside the engine's tree, not in it: an engine in a library or a child process has none of them. In the file
they are the section `[server]`. Names are those of vLLM where they mean the same.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from paceline.config.tree import option

MIB = 1 << 20


class ServerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Everything the server process is told. Keys and secrets are left out of `repr`, and so out of logs."""

    host: Annotated[str, option("Address to listen on; 0.0.0.0 and :: are all interfaces.", "baseline")] = "127.0.0.1"
    port: Annotated[int, option("TCP port to listen on; 0 takes a free one.", "baseline", ge=0, le=65535)] = 8000
    served_model_name: Annotated[
        tuple[str, ...],
        option("Names clients call the model by, the first one being shown; none given = its own.", "baseline"),
    ] = ()
    api_key: Annotated[
        tuple[str, ...],
        option(
            "Keys clients must send as a bearer token. Better in a file: command lines are public.",
            "baseline",
            secret=True,
        ),
    ] = ()
    admin_key: Annotated[
        str | None,
        option(
            "Key for the operator's calls, /v1/internal; none = they are taken from this machine alone.",
            "baseline",
            secret=True,
        ),
    ] = None
    tenants: Annotated[
        str | None, option("File of tenants, their keys and limits; none = one open tenant.", "baseline")
    ] = None
    slo: Annotated[
        str | None,
        option(
            "Latency targets of requests that name no class, such as ttft=1s,tpot=60ms: what scheduling_mode=auto "
            "works towards; none = those of the class default, 2 s and 200 ms, or what the tenants file says.",
            "baseline",
        ),
    ] = None
    usage_log: Annotated[str | None, option("File to which each request's usage is appended as JSON.", "baseline")] = (
        None
    )
    server_secret: Annotated[
        str | None,
        option(
            "Key of the tenants' cache salts; none = a random one at each start.",
            "baseline",
            secret=True,
        ),
    ] = None
    root_path: Annotated[str, option("Path prefix that a proxy in front takes away.", "baseline")] = ""
    ssl_certfile: Annotated[
        str | None, option("Certificate chain (PEM); with it the server speaks HTTPS.", "baseline")
    ] = None
    ssl_keyfile: Annotated[str | None, option("Private key (PEM) of the certificate.", "baseline")] = None
    tool_call_parser: Annotated[
        Literal["auto", "hermes", "qwen3_coder", "llama3_json", "mistral", "mistral_args", "pythonic", "json"],
        option("Format in which the model writes tool calls; auto: as its chat template tells.", "baseline"),
    ] = "auto"
    reasoning_parser: Annotated[
        Literal["auto", "none", "think", "mistral", "thinking", "seed", "thought"],
        option(
            "Markers around the model's reasoning; auto: as its chat template tells. none: it stays in the text.",
            "baseline",
        ),
    ] = "auto"
    allowed_origins: Annotated[
        tuple[str, ...], option("Origins whose pages may call the API (CORS); * is every origin.", "baseline")
    ] = ()
    max_body_bytes: Annotated[
        int, option("Longest request body; a longer one is answered with 413.", "baseline", unit="bytes", ge=1024)
    ] = 8 * MIB
    max_connections: Annotated[
        int, option("Most open connections; one more is answered with 503 and closed.", "baseline", ge=1)
    ] = 2048
    header_timeout_s: Annotated[
        float, option("How long a client may take to send the head of a request.", "baseline", unit="s", gt=0)
    ] = 10.0
    body_timeout_s: Annotated[
        float, option("How long a client may take to send the body of a request.", "baseline", unit="s", gt=0)
    ] = 60.0
    keep_alive_timeout_s: Annotated[
        float, option("An idle connection is closed after this time.", "baseline", unit="s", gt=0)
    ] = 30.0
    request_timeout_s: Annotated[
        float | None,
        option(
            "A request is ended after this time; it may ask for less, never more. none = no bound.",
            "baseline",
            unit="s",
            gt=0,
        ),
    ] = None
    drain_timeout_s: Annotated[
        float,
        option(
            "When told to stop, how long running requests may go on before they are aborted.",
            "baseline",
            unit="s",
            ge=0,
        ),
    ] = 30.0
    restart: Annotated[
        bool, option("Start the engine anew when its process dies; else the server ends too.", "baseline")
    ] = True
    max_restarts: Annotated[
        int,
        option("Deaths in a row, none of them after a minute of service, after which it gives up.", "baseline", ge=1),
    ] = 5
    start_timeout_s: Annotated[
        float,
        option("How long the engine may take to load before that counts as a failure.", "baseline", unit="s", gt=0),
    ] = 600.0
    stall_limit_s: Annotated[
        float,
        option("A step that runs longer turns readiness red and logs the last decisions.", "baseline", unit="s", gt=0),
    ] = 120.0
    nice: Annotated[
        int, option("Niceness of the server process; the engine keeps its own.", "baseline", ge=0, le=19)
    ] = 0
    disable_page: Annotated[bool, option("Serve no page for people at /.", "baseline")] = False
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], option("Least severe message that is logged.", "baseline")
    ] = "info"
    access_log: Annotated[bool, option("Log one line for each request, without its content.", "baseline")] = True

    def __repr__(self) -> str:
        """Without keys and secrets."""
        shown = {f: getattr(self, f) for f in self.__struct_fields__ if f not in SECRETS}
        given = [name for name in SECRETS if getattr(self, name)]
        return f"ServerConfig({shown}, set and not shown: {given})"


SECRETS = ("api_key", "admin_key", "server_secret")
"""Options whose values are never shown."""
