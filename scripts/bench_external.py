"""Run every benchmark of benchmarks/external whose data is in a folder; say which were left out and why.

    python scripts/bench_external.py DATA [--url http://127.0.0.1:8000] [--list]

A benchmark says what it needs in lines of its docstring:

    Data: tools/*_answers.jsonl          files that must be there: subfolder and pattern
    Needs: a running server              it is run only with --url, and told it

It is called with the folder that holds the files: `DATA/tools` where that exists, else the one folder under DATA in
which the pattern matches. One that fails does not hide the others; the exit status is 1 then.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent.parent / "benchmarks" / "external"
_DATA = re.compile(r"^Data: (\S+)", re.MULTILINE)
_SERVER = re.compile(r"^Needs: a running server", re.MULTILINE)


class Wanted(NamedTuple):
    """What one benchmark says about itself."""

    data: str  # subfolder/pattern; "": it says nothing
    server: bool


def wanted(source: str) -> Wanted:
    """From the text of a benchmark's file."""
    words = ast.get_docstring(ast.parse(source)) or ""
    found = _DATA.search(words)
    return Wanted("" if found is None else found.group(1), _SERVER.search(words) is not None)


def folder_with(data: Path, pattern: str) -> Path | None:
    """The folder in `data` whose files match `subfolder/pattern`: the one named, or any one with such files."""
    named, name = data / Path(pattern).parent, Path(pattern).name
    if named.is_dir() and any(named.glob(name)):
        return named
    return next((path.parent for path in sorted(data.rglob(name))), None)


def reason_to_skip(want: Wanted, folder: Path | None, url: str) -> str:
    """ "": it can run."""
    if not want.data:
        return "its docstring has no line `Data: subfolder/pattern`"
    if folder is None:
        return f"nothing like {want.data} in the data folder"
    return "it needs a running server: give --url" if want.server and not url else ""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder with the data sets, in subfolders or not")
    parser.add_argument("--url", default="", help="a server for those that need one")
    parser.add_argument("--list", action="store_true", help="say what would run, and run nothing")
    options = parser.parse_args(arguments)
    if not options.data.is_dir():
        print(f"bench-external: {options.data} is not a folder", file=sys.stderr)
        return 2
    failed, skipped, ran = [], [], 0
    for path in sorted(HERE.glob("[!_]*.py")):
        want = wanted(path.read_text(encoding="utf-8"))
        folder = folder_with(options.data, want.data) if want.data else None
        if why := reason_to_skip(want, folder, options.url):
            skipped.append(f"{path.name}: {why}")
            continue
        command = [sys.executable, str(path), str(folder), *(["--url", options.url] if want.server else [])]
        print(f"== {path.name} {folder}", flush=True)
        ran += 1
        if not options.list and subprocess.run(command, check=False).returncode:
            failed.append(path.name)
    print(f"bench-external: {ran} {'would run' if options.list else 'run'}, {len(skipped)} skipped")
    for line in skipped:
        print(f"  skipped {line}")
    if failed:
        print(f"bench-external: failed: {' '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
