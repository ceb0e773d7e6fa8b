"""A server the lab owns: started, waited for, timed by phase, stopped. Nothing of it outlives the lab, see `keeper`."""

from __future__ import annotations

import contextlib
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx
import msgspec

from paceline.errors import ConfigError, LabError
from paceline.lab.experiment import keeper

_PAUSE_S = 0.05
_LISTENING = re.compile(r"listening on (https?://\S+)")
TAIL_LINES = 20


class StoppedError(Exception):
    """Told to stop while waiting for a server."""


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """How a server is started. In `argv`, {port} and {host} are replaced.

    `url` is where it answers, without /v1; "" means that it logs `listening on URL`, as paceline does with --port 0.
    """

    argv: tuple[str, ...]
    env: dict[str, str] = {}  # on top of the lab's own
    url: str = "http://{host}:{port}"
    cwd: str | None = None
    api_key: str | None = None
    ready_timeout_s: float = 600.0
    stop_s: float = 45.0  # from SIGTERM to SIGKILL: longer than a server needs to drain
    probe_prompt: str = "Hello"  # of the one-token request that ends the start


class Phases(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds since the process was made. None: not seen (a server without that endpoint)."""

    process_s: float | None = None  # the program runs
    port_open_s: float | None = None
    listed_s: float | None = None
    ready_s: float | None = None
    first_token_s: float | None = None
    server: dict[str, float] = {}  # its own phases by name, from /ready


class OwnedServer:
    """`with OwnedServer(launch, log) as server: server.wait_ready(); server.url`. Leaving the block ends it."""

    def __init__(self, launch: Launch, log: Path) -> None:
        self.launch = launch
        self.log_path = log
        self.url = ""
        self.pid: int | None = None
        self.phases = Phases()
        self._keeper: subprocess.Popen[bytes] | None = None
        self._began = 0.0
        self._stop: threading.Event | None = None

    def __enter__(self) -> OwnedServer:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Makes the process; does not wait. Raises LabError when the program cannot be run."""
        assert self._keeper is None, "started already"
        port = free_port() if any("{port}" in part for part in (*self.launch.argv, self.launch.url)) else 0
        argv = [_fill(part, port) for part in self.launch.argv]
        if self.launch.env:  # set by the program of that name, on top of what is inherited
            argv = ["env", *(f"{name}={value}" for name, value in self.launch.env.items()), *argv]
        self.url = _fill(self.launch.url, port).rstrip("/")
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-I", "-S", keeper.__file__, str(self.launch.stop_s), "--", *argv]
        with self.log_path.open("wb") as sink:
            self._began = time.monotonic()
            self._keeper = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=sink,
                cwd=self.launch.cwd,
                start_new_session=True,  # a Ctrl-C at the terminal is for the lab, which then stops the server
            )
        assert self._keeper.stdout is not None
        line = self._keeper.stdout.readline().decode()
        if not line.startswith("pid "):
            self.stop()
            raise LabError("the server cannot be started", seen=self.log_tail(3) or argv[0], fix=f"see {self.log_path}")
        self.pid = int(line.split()[1])
        self.phases = msgspec.structs.replace(self.phases, process_s=time.monotonic() - self._began)

    @property
    def alive(self) -> bool:
        return self._keeper is not None and self._keeper.poll() is None

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.launch.api_key}"} if self.launch.api_key else {}

    def wait_ready(self, on_phase: Callable[[str], None] | None = None, stop: threading.Event | None = None) -> Phases:
        """Until a request for one token came back. Raises LabError when it ends first or takes too long, StoppedError
        when `stop` is set."""
        say = _changes(on_phase) if on_phase else (lambda _words: None)
        self._stop = stop
        with httpx.Client(timeout=10.0, headers=self.headers, trust_env=False) as client:
            if not self.url:
                self.url = self._until(self._logged_url, "to say where it listens").rstrip("/")
            self._until(self._port_open, "to open its port")
            self._mark("port_open_s")
            say("port open")
            answered, phases = self._until(lambda: self._ready(client, say), "to be ready")
            if answered:
                self._mark("ready_s")
            self.phases = msgspec.structs.replace(self.phases, server=phases)
            model = self._until(lambda: self._model(client), "to name its model")
            self._mark("listed_s")
            say("model listed")
            self._until(lambda: self._one_token(client, model), "to give a first token")
            self._mark("first_token_s")
        return self.phases

    def stop(self) -> int | None:
        """Closes the keeper's pipe and waits; its exit status. Safe to call twice."""
        if self._keeper is None:
            return None
        for pipe in (self._keeper.stdin, self._keeper.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        try:
            return self._keeper.wait(self.launch.stop_s + 15.0)
        except subprocess.TimeoutExpired:
            self._keeper.kill()
            return self._keeper.wait()

    def get(self, path: str) -> Any:
        """The JSON of a GET. Raises LabError for anything but 200."""
        try:
            answer = httpx.get(self.url + path, headers=self.headers, timeout=30.0, trust_env=False)
        except httpx.HTTPError as error:
            raise self.trouble(f"cannot be asked for {path}: {error}") from None
        if answer.status_code != 200:
            raise self.trouble(f"answered {answer.status_code} to {path}")
        return answer.json()

    def log_tail(self, num_lines: int = TAIL_LINES) -> list[str]:
        try:
            with self.log_path.open("rb") as file:
                file.seek(max(0, self.log_path.stat().st_size - 64_000))
                return file.read().decode(errors="replace").splitlines()[-num_lines:]
        except FileNotFoundError:
            return []

    def trouble(self, what: str) -> LabError:
        return LabError(f"the server {what}", seen=" / ".join(self.log_tail(5)), fix=f"see {self.log_path}")

    def _mark(self, name: str) -> None:
        self.phases = msgspec.structs.replace(self.phases, **{name: time.monotonic() - self._began})

    def _until(self, ask: Callable[[], Any], what: str) -> Any:
        """The first answer that is not None."""
        end = self._began + self.launch.ready_timeout_s
        while True:
            answer = ask()
            if answer is not None:
                return answer
            if self._stop is not None and self._stop.is_set():
                raise StoppedError
            if not self.alive:
                raise self.trouble("ended while it started")
            if time.monotonic() > end:
                raise self.trouble(f"took more than {self.launch.ready_timeout_s:g} s {what}")
            time.sleep(_PAUSE_S)

    def _logged_url(self) -> str | None:
        found = _LISTENING.search(self.log_path.read_text(errors="replace"))
        return found[1] if found else None

    def _port_open(self) -> bool | None:
        parts = httpx.URL(self.url)
        try:
            port = parts.port or (443 if parts.scheme == "https" else 80)
            socket.create_connection((parts.host, port), timeout=5.0).close()
        except OSError:
            return None
        return True

    def _ready(self, client: httpx.Client, say: Callable[[str], None]) -> tuple[bool, dict[str, float]] | None:
        """(whether it told, its phases): /ready where there is one, else /health; a server with neither is asked for
        its models next."""
        for path in ("/ready", "/health"):
            answer = _get(client, self.url + path)
            if answer is None:
                return None  # nobody answers yet
            if answer.status_code in (404, 405):
                continue
            body = _json(answer)
            if answer.status_code == 200:
                return True, {k: float(v) for k, v in body.get("phases_s", {}).items()}
            if body.get("reason"):
                say(str(body["reason"]))
            return None
        return False, {}

    def _model(self, client: httpx.Client) -> str | None:
        answer = _get(client, f"{self.url}/v1/models")
        listed = _json(answer).get("data") if answer is not None and answer.status_code == 200 else None
        return str(listed[0]["id"]) if listed else None

    def _one_token(self, client: httpx.Client, model: str) -> bool | None:
        """A text completion, or a chat where there are none; a server that is still loading refuses both."""
        prompt = self.launch.probe_prompt
        tries: tuple[tuple[str, dict[str, Any]], ...] = (
            ("completions", {"prompt": prompt}),
            ("chat/completions", {"messages": [{"role": "user", "content": prompt}]}),
        )
        for path, content in tries:
            body = {"model": model, "max_tokens": 1, "temperature": 0, **content}
            try:
                left = max(1.0, self._began + self.launch.ready_timeout_s - time.monotonic())
                answer = client.post(f"{self.url}/v1/{path}", json=body, timeout=left)
            except httpx.HTTPError:
                return None
            if answer.status_code == 200:
                return True
            if answer.status_code in (401, 403):
                raise LabError("the server wants a key", seen=answer.status_code, fix="give it as api_key")
        return None


def _changes(say: Callable[[str], None]) -> Callable[[str], None]:
    """Says each thing once in a row."""
    last = ""

    def changed(words: str) -> None:
        nonlocal last
        if words != last:
            last = words
            say(words)

    return changed


def free_port(host: str = "127.0.0.1") -> int:
    """A port nobody listened on just now."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def _fill(part: str, port: int) -> str:
    return part.replace("{port}", str(port)).replace("{host}", "127.0.0.1")


def _get(client: httpx.Client, url: str) -> httpx.Response | None:
    try:
        return client.get(url)
    except httpx.HTTPError:
        return None


def _json(answer: httpx.Response) -> dict[str, Any]:
    try:
        body = answer.json()
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}


def paceline_argv(options: Mapping[str, Any], extra: Sequence[str] = (), *, command: str = "serve") -> tuple[str, ...]:
    """`paceline serve`, on a free port, or another command with these options. Names as in the option table, with or
    without a section."""
    flags: list[str] = []
    for name, value in options.items():
        flag = "--" + name.rpartition(".")[2].replace("_", "-")
        if value is None:
            continue
        if isinstance(value, bool):
            flags.append(flag if value else f"--no-{flag[2:]}")
        elif isinstance(value, list | tuple):
            for item in value:
                flags += [flag, str(item)]
        elif isinstance(value, int | float | str):
            flags += [flag, str(value)]
        else:
            raise ConfigError("an option of a server is a number, a text or a list", seen=f"{name} = {value!r}")
    port = ("--port", "0") if command == "serve" else ()
    return (sys.executable, "-m", "paceline.cli.main", command, *port, *flags, *extra)
