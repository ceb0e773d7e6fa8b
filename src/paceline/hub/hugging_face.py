"""Models of the Hugging Face hub, through the `huggingface_hub` package: resumable downloads into its cache layout.

Only what paceline reads is fetched: configuration, tokenizer, chat template and safetensors, from the top folder; never
code and never pickled weights. Files whose name in the cache is a sha256 (the large ones) are checked against it once,
when they arrive.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.errors import ModelError
from paceline.hub.disk import Progress, check_space, file_sha256, no_progress, room_on

CONFIGURATION = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
)
WEIGHTS = ("*.safetensors", "*.safetensors.index.json")
_ELSEWHERE = ("*/*", "consolidated*", "adapter_*")
_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class HubAccess:
    """Where the hub is and how to speak to it."""

    endpoint: str | None = None  # None: the public hub
    token: str | None = None
    offline: bool = False

    def __repr__(self) -> str:
        """Without the token: this text ends up in logs."""
        return f"HubAccess(endpoint={self.endpoint!r}, token={'set' if self.token else None}, offline={self.offline})"


def is_hub_id(name: str) -> bool:
    """org/name, with letters, digits and .-_ only."""
    return _ID.fullmatch(name) is not None and ".." not in name


def hub_cache(cache_dir: Path) -> Path:
    return cache_dir / "hub"


def snapshot(
    hub_id: str,
    cache_dir: Path,
    *,
    revision: str | None = None,
    download: bool = True,
    weights: bool = True,
    access: HubAccess | None = None,
    progress: Progress = no_progress,
) -> Path:
    """The folder with the model's files at `revision` (branch, tag or commit; None = main), fetched when missing.

    Raises ModelError when it is neither here nor to be had, with what to do about it.
    """
    import huggingface_hub
    from huggingface_hub import errors

    access = access or HubAccess()
    offline = access.offline or not download
    known = _blobs(hub_id, cache_dir)
    progress(f"finding {hub_id}", 0, None)
    try:
        with room_on(cache_dir):
            hub_cache(cache_dir).mkdir(parents=True, exist_ok=True)
            options: dict[str, Any] = {
                "revision": revision,
                "cache_dir": hub_cache(cache_dir),
                "endpoint": access.endpoint,
                "token": access.token,
                "allow_patterns": [*CONFIGURATION, *(WEIGHTS if weights else ())],
                "ignore_patterns": list(_ELSEWHERE),
            }
            if not offline:
                _check_room(huggingface_hub, hub_id, options, cache_dir)
            folder = huggingface_hub.snapshot_download(
                hub_id, local_files_only=offline, tqdm_class=_bar(progress), **options
            )
    except errors.GatedRepoError as error:
        raise _failed(
            hub_id, error, "accept its terms on the hub, then set HF_TOKEN to a token that may read it"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise _failed(hub_id, error, "check the name; for a private model set HF_TOKEN") from error
    except errors.RevisionNotFoundError as error:
        raise _failed(hub_id, error, f"check the revision {revision!r}: a branch, a tag or a commit") from error
    except errors.LocalEntryNotFoundError as error:
        fix = "paceline models pull " + hub_id if offline else "check the network and proxy settings, then try again"
        raise _failed(hub_id, error, fix) from error
    except ModelError:
        raise
    except Exception as error:
        # Which HTTP library's errors come out depends on the version of huggingface_hub.
        if type(error).__module__.startswith(("httpx", "httpcore", "requests", "huggingface_hub")) or isinstance(
            error, OSError
        ):
            raise _failed(hub_id, error, "check the network and try again: what has arrived is kept") from error
        raise
    _check_new_files(hub_id, cache_dir, known, progress)
    return Path(folder)


def _check_room(package: Any, hub_id: str, options: dict[str, Any], cache_dir: Path) -> None:
    """Compare what is missing with the free space, where this version of the package can say it beforehand."""
    try:
        plan = package.snapshot_download(hub_id, dry_run=True, **options)
    except TypeError:  # versions before 1.0 have no dry run
        return
    except OSError:  # not to be had: the download that follows says why
        return
    check_space(cache_dir, sum(file.file_size for file in plan if file.will_download))


def _failed(hub_id: str, error: Exception, fix: str) -> ModelError:
    first = (str(error).strip().splitlines() or [""])[0]
    return ModelError(f"cannot get {hub_id} from the hub", seen=f"{type(error).__name__}: {first[:200]}", fix=fix)


def _blobs(hub_id: str, cache_dir: Path) -> set[Path]:
    folder = hub_cache(cache_dir) / f"models--{hub_id.replace('/', '--')}" / "blobs"
    return {path for path in folder.iterdir() if _SHA256.fullmatch(path.name)} if folder.is_dir() else set()


def _check_new_files(hub_id: str, cache_dir: Path, known: set[Path], progress: Progress) -> None:
    for blob in sorted(_blobs(hub_id, cache_dir) - known):
        if (seen := file_sha256(blob, progress=progress)) != blob.name:
            blob.unlink()
            raise ModelError(
                f"a file of {hub_id} has the wrong content",
                seen=f"sha256 {seen}",
                expected=f"sha256 {blob.name}",
                fix="try again",
            )


def _bar(progress: Progress) -> type:
    """A tqdm class that reports bytes to `progress` and draws nothing.

    Versions of the package differ in how many bars they make: one per file, one for all, and a second one for the same
    bytes on the wire, which is left out.
    """
    from tqdm import tqdm  # type: ignore[import-untyped]

    bars: dict[int, tuple[int, int]] = {}  # done and total bytes of each

    class Bar(tqdm):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self._counts = kwargs.get("unit") == "B" and kwargs.get("desc") != "Downloading bytes"
            self._done = int(kwargs.get("initial") or 0)
            kwargs.pop("name", None)
            kwargs["disable"] = True
            super().__init__(*args, **kwargs)

        def update(self, n: float | None = 1) -> None:
            if self._counts:
                self._done += int(n or 0)
                bars[id(self)] = (self._done, int(self.total or 0))
                done, total = (sum(column) for column in zip(*bars.values(), strict=True))
                progress("downloading", done, total or None)

    return Bar
