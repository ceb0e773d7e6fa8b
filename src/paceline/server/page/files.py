"""The page's files, read once, with what a browser needs to know about each."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from types import MappingProxyType

INDEX = "index.html"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


@dataclass(frozen=True)
class PageFile:
    """One static file."""

    body: bytes
    media_type: str
    etag: str  # quoted, from the content


@cache
def page_files() -> MappingProxyType[str, PageFile]:
    """Every file of the page by name. Only these are served: no path reaches the file system."""
    folder = resources.files("paceline.server.page") / "static"
    found = {}
    for entry in folder.iterdir():
        suffix = "." + entry.name.rpartition(".")[2]
        if suffix in _TYPES:
            body = entry.read_bytes()
            etag = f'"{hashlib.sha256(body).hexdigest()[:20]}"'
            found[entry.name] = PageFile(body=body, media_type=_TYPES[suffix], etag=etag)
    return MappingProxyType(found)
