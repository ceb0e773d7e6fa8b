"""From names to files, the list of fetched models, and the hub through a server of our own."""

import hashlib
import json
import subprocess
import sys
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from tests.pure.hub.conftest import Site
from tests.pure.hub.gguf_maker import model_bytes
from tests.pure.hub.safetensors_maker import safetensors_bytes

from paceline.errors import ModelError
from paceline.hub import ALIASES, HubAccess, describe, remove, resolve, stored
from paceline.hub.aliases import alias_path

COMMIT = "0123456789abcdef0123456789abcdef01234567"
CONFIG = json.dumps(
    {
        "model_type": "llama",
        "vocab_size": 16,
        "hidden_size": 8,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
).encode()
WEIGHTS = safetensors_bytes({"a.weight": ("F32", (16, 8), bytes(512))})


class FakeHub:
    """The few endpoints of the hub that a download uses."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.status = 200
        self.error_code = ""
        self.files = {
            "config.json": CONFIG,
            "model.safetensors": WEIGHTS,
            "tokenizer.json": b"{}",
            "pytorch_model.bin": b"pickle",
            "modeling_custom.py": b"raise SystemExit",
            "original/consolidated.safetensors": b"no",
        }
        for name, content in self.files.items():
            path = f"/org/tiny/resolve/{COMMIT}/{name}"
            site.files[path] = content
            digest = hashlib.sha256(content) if name.endswith("safetensors") else hashlib.sha1(content)
            site.headers[path] = {"ETag": f'"{digest.hexdigest()}"', "X-Repo-Commit": COMMIT}
        site.handlers.append(self.api)

    def api(self, request: BaseHTTPRequestHandler) -> bool:
        path = request.path.partition("?")[0]
        if self.status != 200 and ("/api/" in path or "/resolve/" in path):
            request.plain(self.status, {"X-Error-Code": self.error_code} if self.error_code else {})  # type: ignore[attr-defined]
            return True
        if path.startswith("/api/models/org/tiny/revision/") or path == "/api/models/org/tiny":
            if path.endswith("/nope"):
                request.plain(404, {"X-Error-Code": "RevisionNotFound"})  # type: ignore[attr-defined]
                return True
            siblings = [{"rfilename": name} for name in self.files]
            body = {"id": "org/tiny", "modelId": "org/tiny", "sha": COMMIT, "siblings": siblings}
        elif path.startswith("/api/models/org/tiny/tree/"):
            entries = []
            for name, content in self.files.items():
                entry = {"type": "file", "path": name, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
                if name.endswith("safetensors"):
                    sha256 = hashlib.sha256(content).hexdigest()
                    entry["lfs"] = {"oid": sha256, "size": len(content), "pointerSize": 130}
                entries.append(entry)
            request.plain(200, {"Content-Type": "application/json"}, json.dumps(entries).encode())  # type: ignore[attr-defined]
            return True
        else:
            return False
        request.plain(200, {"Content-Type": "application/json"}, json.dumps(body).encode())  # type: ignore[attr-defined]
        return True


@pytest.fixture
def hub(site: Site) -> FakeHub:
    return FakeHub(site)


def test_a_hub_model_is_fetched_without_code_or_pickles(hub: FakeHub, tmp_path: Path) -> None:
    told: list[tuple[str, int, int | None]] = []
    access = HubAccess(endpoint=hub.site.url)
    files = resolve("org/tiny", tmp_path, access=access, progress=lambda *report: told.append(report))
    assert (files.kind, files.name) == ("folder", "org/tiny")
    assert sorted(p.name for p in files.path.iterdir()) == ["config.json", "model.safetensors", "tokenizer.json"]
    assert files.files[0].read_bytes() == WEIGHTS
    assert describe(files).family == "llama"
    assert ("checking " + hashlib.sha256(WEIGHTS).hexdigest(), len(WEIGHTS), len(WEIGHTS)) in told
    total = len(WEIGHTS) + len(CONFIG) + 2
    assert [done for stage, done, _ in told if stage == "downloading"][-1] == total
    assert [(s.name, s.size_bytes >= total) for s in stored(tmp_path)] == [("org/tiny", True)]

    hub.status = 500  # what is here needs nobody
    assert resolve("org/tiny", tmp_path, download=False, access=access).path == files.path
    assert resolve("org/tiny", tmp_path, access=HubAccess(endpoint=hub.site.url, offline=True)).path == files.path
    assert remove("org/tiny", tmp_path).name == "org/tiny"
    assert stored(tmp_path) == []
    with pytest.raises(ModelError, match="cannot get org/tiny") as caught:
        resolve("org/tiny", tmp_path, download=False, access=access)
    assert caught.value.fix == "paceline models pull org/tiny"


def test_dummy_weights_need_the_configuration_alone(hub: FakeHub, tmp_path: Path) -> None:
    files = resolve("dummy:org/tiny@main", tmp_path, access=HubAccess(endpoint=hub.site.url))
    assert (files.kind, files.name, files.files) == ("dummy", "dummy:org/tiny@main", ())
    assert not (files.path / "model.safetensors").exists()


def test_large_files_are_checked_against_their_digest(hub: FakeHub, tmp_path: Path) -> None:
    path = f"/org/tiny/resolve/{COMMIT}/model.safetensors"
    hub.site.files[path] = WEIGHTS[:-1] + b"!"
    with pytest.raises(ModelError, match="wrong content"):
        resolve("org/tiny", tmp_path, access=HubAccess(endpoint=hub.site.url))
    hub.site.files[path] = WEIGHTS
    assert resolve("org/tiny", tmp_path, access=HubAccess(endpoint=hub.site.url)).files[0].read_bytes() == WEIGHTS


@pytest.mark.parametrize(
    ("status", "code", "name", "fix"),
    [
        (401, "RepoNotFound", "org/tiny", "check the name"),
        (403, "GatedRepo", "org/tiny", "accept its terms"),
        (200, "", "org/tiny@nope", "check the revision 'nope'"),
    ],
)
def test_refusals_of_the_hub_say_what_to_do(
    hub: FakeHub, tmp_path: Path, status: int, code: str, name: str, fix: str
) -> None:
    hub.status, hub.error_code = status, code
    with pytest.raises(ModelError, match="cannot get org/tiny") as caught:
        resolve(name, tmp_path, access=HubAccess(endpoint=hub.site.url))
    assert fix in caught.value.fix


def test_a_hub_that_is_not_there_is_an_error_with_a_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with pytest.raises(ModelError, match="cannot get org/tiny") as caught:
        resolve("org/tiny", tmp_path, access=HubAccess(endpoint="http://127.0.0.1:9"))
    assert "check the network" in caught.value.fix


def test_the_token_is_never_shown() -> None:
    assert "hf_secret" not in repr(HubAccess(token="hf_secret"))


def test_paths_and_short_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(model_bytes())
    files = resolve(str(path), tmp_path)
    assert (files.kind, files.path, files.size_bytes) == ("gguf", path, path.stat().st_size)
    assert resolve(f"dummy:{path}", tmp_path).kind == "dummy"
    monkeypatch.chdir(tmp_path)
    Path("smollm2-135m").mkdir()  # an alias is an alias wherever one stands
    with pytest.raises(ModelError, match="is not here yet") as caught:
        resolve("smollm2-135m", tmp_path, download=False)
    assert caught.value.fix == "paceline models pull smollm2-135m"


def test_a_pulled_alias_is_found_listed_and_removed(tmp_path: Path) -> None:
    alias = ALIASES["smollm2-135m"]
    path = alias_path(alias, tmp_path)
    path.parent.mkdir(parents=True)
    with path.open("wb") as file:
        file.truncate(alias.size_bytes)  # size decides: the digest was checked when the file got its name
    assert resolve(alias.name, tmp_path, download=False).path == path
    assert [s.name for s in stored(tmp_path)] == [alias.name]
    assert remove(alias.name, tmp_path).size_bytes == alias.size_bytes
    assert not path.parent.exists()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("smollm2", "did you mean 'smollm2-135m'?"),
        ("zzz", "models list"),
        ("./nothing", "check the path"),
        ("/no/such/folder", "check the path"),
        ("nothing.gguf", "check the path"),
        ("a/b/c", "check the path"),
        ("", "no model is called"),
        ("../x", "check the path"),
    ],
)
def test_unknown_names_are_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, words: str) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(ModelError) as caught:
        resolve(name, tmp_path, download=False)
    assert words in str(caught.value)


@pytest.mark.parametrize("name", ["smollm2-135m", "org/none", "../models", "zzz"])
def test_removing_what_is_not_here_is_an_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(ModelError, match="is not here"):
        remove(name, tmp_path)


def test_finding_what_is_here_loads_no_http_library_and_no_torch() -> None:
    heavy = ("httpx", "huggingface_hub", "torch", "gguf")
    code = f"import sys, paceline.hub; print([m for m in {heavy} if m in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"
