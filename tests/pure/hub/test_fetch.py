"""Pulling models with a short name: through the real pip with an index of our own, and through a scripted one."""

import hashlib
import io
import json
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.pure.hub.conftest import Site

from paceline.errors import CapacityError, ModelError
from paceline.hub import fetch, transfer
from paceline.hub.aliases import ALIASES, Alias, Part, alias_path, is_pulled, nearest
from paceline.hub.fetch import pull
from paceline.hub.package_index import PackageIndex, Wheel
from paceline.hub.transfer import client

PIECES = (b"GGUF one" * 40_000, b"and two!" * 30_000)


def wheel(package: str, members: dict[str, bytes]) -> bytes:
    info = f"{package}-1.0.dist-info"
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return out.getvalue()


def make_alias(**changes: Any) -> Alias:
    parts = tuple(
        Part(f"tinymodel-p{i}==1.0", f"tinymodel_p{i}/data/m.part{i}", len(piece)) for i, piece in enumerate(PIECES)
    )
    values: dict[str, Any] = {
        "name": "tiny",
        "file_name": "tiny.gguf",
        "sha256": hashlib.sha256(b"".join(PIECES)).hexdigest(),
        "about": "",
        "license": "",
        "parts": parts,
    }
    return Alias(**values | changes)


class FakePip:
    """Answers the reports of a real pip: where each wheel is, as `Site` serves it."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.calls: list[Sequence[str]] = []
        self.wheels: dict[str, bytes] = {}
        for i, piece in enumerate(PIECES):
            self.put(f"tinymodel_p{i}", {f"tinymodel_p{i}/data/m.part{i}": piece})

    def put(self, package: str, members: dict[str, bytes]) -> None:
        name = f"{package}-1.0-py3-none-any.whl"
        self.wheels[name] = self.site.files[f"/{name}"] = wheel(package, members)

    def __call__(self, command: Sequence[str]) -> "subprocess.CompletedProcess[str]":
        self.calls.append(command)
        name = command[-1].partition("=")[0].replace("-", "_") + "-1.0-py3-none-any.whl"
        if command[3] == "download":
            (Path(command[command.index("--dest") + 1]) / name).write_bytes(self.wheels[name])
            return subprocess.CompletedProcess(command, 0, "", "")
        if name not in self.wheels:
            return subprocess.CompletedProcess(command, 1, "", "ERROR: No matching distribution found\n")
        sha256 = hashlib.sha256(self.wheels[name]).hexdigest()
        info = {"url": f"{self.site.url}/{name}", "archive_info": {"hashes": {"sha256": sha256}}}
        return subprocess.CompletedProcess(command, 0, json.dumps({"install": [{"download_info": info}]}), "")


@pytest.fixture
def pip(site: Site, monkeypatch: pytest.MonkeyPatch) -> FakePip:
    monkeypatch.setattr(transfer, "ATTEMPTS", 1)  # no pauses
    return FakePip(site)


def pull_with(pip: FakePip, cache: Path, alias: Alias | None = None, **options: Any) -> Path:
    with client() as http:
        return pull(alias or make_alias(), cache, index=PackageIndex(http, run=pip), **options)


def test_parts_are_joined_in_order_and_nothing_else_stays(pip: FakePip, tmp_path: Path) -> None:
    stages: list[str] = []
    path = pull_with(pip, tmp_path, progress=lambda stage, *_: stages.append(stage))
    assert path == tmp_path / "models" / "tiny" / "tiny.gguf"
    assert path.read_bytes() == b"".join(PIECES)
    assert [p.name for p in path.parent.iterdir()] == ["tiny.gguf"]
    assert list(dict.fromkeys(stages)) == [
        "finding tinymodel-p0==1.0",
        "downloading tinymodel_p0-1.0-py3-none-any.whl",
        "checking tinymodel_p0-1.0-py3-none-any.whl",
        "finding tinymodel-p1==1.0",
        "downloading tinymodel_p1-1.0-py3-none-any.whl",
        "checking tinymodel_p1-1.0-py3-none-any.whl",
        "unpacking tiny.gguf",
    ]


def test_a_second_pull_asks_nobody(pip: FakePip, tmp_path: Path) -> None:
    pull_with(pip, tmp_path)
    pip.calls.clear()
    pull_with(pip, tmp_path)
    assert pip.calls == []


def test_a_file_changed_on_disk_is_fetched_again(pip: FakePip, tmp_path: Path) -> None:
    path = pull_with(pip, tmp_path)
    changed = bytearray(path.read_bytes())
    changed[1000] ^= 1
    path.write_bytes(changed)
    assert is_pulled(make_alias(), tmp_path)  # its size is right: only a pull reads all of it
    assert pull_with(pip, tmp_path).read_bytes() == b"".join(PIECES)


def test_an_interrupted_pull_goes_on_with_what_it_has(pip: FakePip, site: Site, tmp_path: Path) -> None:
    for name in ("tinymodel_p0", "tinymodel_p1"):  # incompressible, so that a cut falls into the data
        size = len(PIECES[int(name[-1])])
        noise = hashlib.shake_256(name.encode()).digest(size)
        pip.put(name, {f"{name}/data/m.part{name[-1]}": noise})
    alias = make_alias(
        sha256=hashlib.sha256(
            b"".join(hashlib.shake_256(f"tinymodel_p{i}".encode()).digest(len(PIECES[i])) for i in range(2))
        ).hexdigest()
    )

    def broken(command: Sequence[str]) -> "subprocess.CompletedProcess[str]":
        if command[3] == "download":
            return subprocess.CompletedProcess(command, 1, "", "ERROR: connection lost\n")
        site.cut_after = [50_000] if "p1" in command[-1] else []
        return pip(command)

    with client() as http, pytest.raises(ModelError, match="cannot download tinymodel_p1"):
        pull(alias, tmp_path, index=PackageIndex(http, run=broken))
    left = {p.name: p.stat().st_size for p in (tmp_path / "models/tiny/downloads").iterdir()}
    assert left["tinymodel_p1-1.0-py3-none-any.whl.part"] == 50_000
    site.requests.clear()
    assert pull_with(pip, tmp_path, alias).stat().st_size == alias.size_bytes
    assert [(path, wanted) for _, path, wanted in site.requests] == [
        ("/tinymodel_p1-1.0-py3-none-any.whl", "bytes=50000-")
    ]


def test_where_our_download_is_refused_pip_downloads(pip: FakePip, site: Site, tmp_path: Path) -> None:
    site.statuses = [401, 401]
    assert pull_with(pip, tmp_path).read_bytes() == b"".join(PIECES)
    assert [call[3] for call in pip.calls] == ["install", "download"] * 2


def test_the_pinned_digest_decides_whatever_the_index_says(pip: FakePip, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"tiny\.gguf has the wrong content"):
        pull_with(pip, tmp_path, make_alias(sha256="0" * 64))
    assert not list((tmp_path / "models/tiny").glob("*.gguf*"))
    assert pull_with(pip, tmp_path).read_bytes() == b"".join(PIECES)


@pytest.mark.parametrize(
    "members",
    [
        {"tinymodel_p0/data/m.part0": PIECES[0] + b"!"},  # longer than it may be
        {"tinymodel_p0/data/m.part0": b"short"},
        {"../../tinymodel_p0/data/m.part0": PIECES[0]},
        {},
    ],
)
def test_a_wheel_with_other_contents_is_refused(pip: FakePip, tmp_path: Path, members: dict[str, bytes]) -> None:
    pip.put("tinymodel_p0", members)
    with pytest.raises(ModelError, match="tinymodel_p0"):
        pull_with(pip, tmp_path)
    assert not is_pulled(make_alias(), tmp_path)
    assert not (tmp_path.parent / "tinymodel_p0").exists()


def test_no_room_is_said_before_anything_is_asked(
    pip: FakePip, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(*_: object) -> None:
        raise CapacityError("no room")

    monkeypatch.setattr(fetch, "check_space", no_room)
    with pytest.raises(CapacityError):
        pull_with(pip, tmp_path)
    assert pip.calls == []


@pytest.mark.parametrize(
    ("stderr", "words"),
    [
        ("/usr/bin/python: No module named pip", "not installed"),
        (
            "WARNING: x\nERROR: Could not find\nERROR: No matching distribution found for y\n",
            "No matching distribution",
        ),
        ("", "no message"),
    ],
)
def test_what_pip_says_is_passed_on(tmp_path: Path, stderr: str, words: str) -> None:
    def run(command: Sequence[str]) -> "subprocess.CompletedProcess[str]":
        return subprocess.CompletedProcess(command, 1, "", stderr)

    with client() as http, pytest.raises(ModelError) as caught:
        pull(make_alias(), tmp_path, index=PackageIndex(http, run=run))
    assert words in str(caught.value)
    assert caught.value.fix


def test_a_pip_without_reports_is_named() -> None:
    def run(command: Sequence[str]) -> "subprocess.CompletedProcess[str]":
        return subprocess.CompletedProcess(command, 0, "", "")

    with client() as http, pytest.raises(ModelError, match="does not say") as caught:
        PackageIndex(http, run=run).locate("x==1")
    assert "22.2" in caught.value.fix


def test_the_real_pip_finds_a_wheel_on_an_index_and_in_a_folder(site: Site, pip: FakePip, tmp_path: Path) -> None:
    name = "tinymodel_p0-1.0-py3-none-any.whl"
    site.files["/simple/tinymodel-p0/"] = f'<html><body><a href="/{name}">{name}</a></body></html>'.encode()
    site.headers["/simple/tinymodel-p0/"] = {"Content-Type": "text/html"}
    sha256 = hashlib.sha256(pip.wheels[name]).hexdigest()
    links = tmp_path / "links"
    links.mkdir()
    (links / name).write_bytes(pip.wheels[name])
    with client() as http:
        remote = PackageIndex(http, pip_options=("--isolated", "--no-cache-dir", "--index-url", f"{site.url}/simple"))
        assert remote.locate("tinymodel-p0==1.0") == Wheel(f"{site.url}/{name}", sha256)
        local = PackageIndex(http, pip_options=("--isolated", "--no-index", "--find-links", str(links)))
        assert local.fetch("tinymodel-p0==1.0", tmp_path).read_bytes() == pip.wheels[name]


def test_pip_is_called_from_this_python() -> None:
    from paceline.hub.package_index import PIP

    assert PIP[0] == sys.executable


def test_the_short_names_are_pinned() -> None:
    smollm, gemma = ALIASES["smollm2-135m"], ALIASES["gemma3-270m"]
    assert (smollm.size_bytes, gemma.size_bytes) == (98_362_432, 253_113_024)
    assert (smollm.sha256[:8], smollm.sha256[-6:]) == ("b179c952", "10db53")
    assert (gemma.sha256[:8], gemma.sha256[-6:]) == ("a5fd3b62", "7a6818")
    assert [part.member[-6:] for part in gemma.parts] == ["part00", "part01", "part02", "part03"]
    for alias in ALIASES.values():
        assert all("==" in part.requirement for part in alias.parts)
        assert alias_path(alias, Path("/c")) == Path("/c/models") / alias.name / alias.file_name


@pytest.mark.parametrize(
    ("typed", "meant"), [("smollm-135m", "smollm2-135m"), ("Gemma3-270M", "gemma3-270m"), ("gpt-17", None)]
)
def test_a_mistyped_name_gets_the_nearest(typed: str, meant: str | None) -> None:
    assert nearest(typed) == meant
