"""Reads `tenants.toml`: who may use the server, as what, and how much of it. All of it is checked at the start.

    [classes.NAME]   priority, ttft_ms, tpot_ms, e2e_ms, timeout_s, shed, refuse_late
    [tenants.NAME]   key_sha256, classes, priority_ceiling, max_concurrency, max_waiting, tokens_per_minute,
                     requests_per_minute

Every mistake is a ConfigError that names the file, the line and the table. Keys are never shown, hashed or not.
"""

from __future__ import annotations

import math
import re
import tomllib
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar

import msgspec

from paceline.contracts.request import MAX_INT32, MIN_INT32
from paceline.contracts.slo import Slo
from paceline.errors import ConfigError
from paceline.server.tenancy.classes import BUILT_IN_CLASSES, ServiceClass, nearest
from paceline.server.tenancy.keys import is_key_hash

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_TABLES = ("classes", "tenants")

Priority = Annotated[int, msgspec.Meta(ge=MIN_INT32, le=MAX_INT32)]
Count = Annotated[int, msgspec.Meta(ge=1, le=2**53)]
Positive = Annotated[float, msgspec.Meta(gt=0)]


class ClassEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A `[classes.NAME]` table. What it leaves out asks nothing, also where it replaces a built-in class."""

    priority: Priority = 0
    ttft_ms: Positive | None = None
    tpot_ms: Positive | None = None
    e2e_ms: Positive | None = None
    timeout_s: Positive | None = None
    shed: bool = False
    refuse_late: bool = False


class TenantEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A `[tenants.NAME]` table. What it leaves out is unlimited."""

    key_sha256: list[str]
    classes: list[str] | None = None  # the first one is used when a request names none; None: all, "default" first
    priority_ceiling: Priority | None = None  # the least number it may ask for; None: that of its best class
    max_concurrency: Count | None = None
    max_waiting: Count | None = None
    tokens_per_minute: Count | None = None
    requests_per_minute: Count | None = None


class TenantsFile(msgspec.Struct, frozen=True, kw_only=True):
    """A whole file, checked. `classes` has the built-in ones too."""

    classes: dict[str, ServiceClass]
    tenants: dict[str, TenantEntry]


E = TypeVar("E", ClassEntry, TenantEntry)


def read_tenants_file(path: Path) -> TenantsFile:
    """Raises ConfigError for a file that cannot be read or says something that cannot be."""
    try:
        text = path.read_text(encoding="utf-8")
        document = tomllib.loads(text)
    except FileNotFoundError:
        raise ConfigError("the tenants file does not exist", seen=str(path), fix="check the path") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("the tenants file cannot be read", seen=f"{path}: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError("the tenants file is not valid TOML", seen=f"{path}: {error}") from None
    return _Reader(path, text).read(document)


class _Reader:
    def __init__(self, path: Path, text: str) -> None:
        self._path = path
        self._lines = text.splitlines()

    def read(self, document: dict[str, Any]) -> TenantsFile:
        for name, value in document.items():
            if name not in _TABLES:
                hint = nearest(name, _TABLES, "did you mean [{}.NAME]?")
                self._refuse(
                    "unknown table", name, None, seen=name, expected="[classes.NAME] or [tenants.NAME]", fix=hint
                )
            if not isinstance(value, dict) or not all(isinstance(inner, dict) for inner in value.values()):
                self._refuse("not a table of tables", name, None, seen=name, expected=f"[{name}.NAME] tables")
        classes = dict(BUILT_IN_CLASSES)
        for name, table in document.get("classes", {}).items():
            classes[name] = self._class(name, self._entry("classes", name, table, ClassEntry))
        tenants = {
            name: self._entry("tenants", name, table, TenantEntry)
            for name, table in document.get("tenants", {}).items()
        }
        owner: dict[str, str] = {}
        for name, entry in tenants.items():
            self._check(name, entry, classes, owner)
        return TenantsFile(classes=classes, tenants=tenants)

    def _entry(self, group: str, name: str, table: dict[str, Any], kind: type[E]) -> E:
        where = f"{group}.{name}"
        if _NAME.fullmatch(name) is None:
            expected = "letters, digits, dots, dashes and underscores, at most 64, a letter or digit first"
            self._refuse("this name cannot be", where, None, seen=repr(name)[:80], expected=expected)
        known = kind.__struct_fields__
        for field in table:
            if field not in known:
                fix = nearest(field, known) or "leave it out"
                self._refuse("unknown key", where, field, seen=field, expected=", ".join(known), fix=fix)
        for field, value in table.items():
            if isinstance(value, float) and not math.isfinite(value):
                self._refuse(f"{field} cannot be that", where, field, seen=value, expected="a finite number")
        try:
            return msgspec.convert(table, kind)
        except msgspec.ValidationError as error:
            expected, _, at = str(error).partition(" - at `$.")
            field = re.split(r"[.\[`]", at)[0]
            if not field:
                self._refuse("a key is missing", where, None, seen=f"[{where}]", expected=expected)
            seen = "not shown" if field == "key_sha256" else repr(table[field])[:80]
            self._refuse(f"{field} cannot be that", where, field, seen=seen, expected=expected)

    def _class(self, name: str, entry: ClassEntry) -> ServiceClass:
        for field in ("shed", "refuse_late"):
            if getattr(entry, field) and entry.ttft_ms is None:
                what, seen = f"{field} needs a ttft_ms to go by", f"{field} = true"
                self._refuse(what, f"classes.{name}", field, seen=seen, expected="ttft_ms")

        def seconds(ms: float | None) -> float | None:
            return None if ms is None else ms / 1e3

        slo = Slo(ttft_s=seconds(entry.ttft_ms), tpot_s=seconds(entry.tpot_ms), e2e_s=seconds(entry.e2e_ms))
        return ServiceClass(
            name=name,
            priority=entry.priority,
            slo=slo,
            timeout_s=entry.timeout_s,
            shed=entry.shed,
            refuse_late=entry.refuse_late,
        )

    def _check(self, name: str, entry: TenantEntry, classes: dict[str, ServiceClass], owner: dict[str, str]) -> None:
        where = f"tenants.{name}"
        if not entry.key_sha256:
            self._refuse("a tenant without a key", where, "key_sha256", seen="an empty list", expected="key hashes")
        for number, text in enumerate(entry.key_sha256, start=1):
            if not is_key_hash(text.lower()):
                self._refuse(
                    "a key hash cannot be that",
                    where,
                    "key_sha256",
                    seen=f"entry {number}, {len(text)} characters, not shown",
                    expected="the SHA-256 of a key: 64 hexadecimal digits",
                    fix='make one with: printf %s "$KEY" | sha256sum',
                )
            other = owner.setdefault(text.lower(), name)
            if other != name:
                self._refuse(
                    "two tenants have the same key",
                    where,
                    "key_sha256",
                    seen=f"entry {number}, also in [tenants.{other}]",
                )
        if entry.classes is None:
            return
        if not entry.classes:
            self._refuse(
                "a tenant without a class", where, "classes", seen="[]", expected="class names, or no such key"
            )
        for wanted in entry.classes:
            if wanted not in classes:
                fix = nearest(wanted, classes) or f"add a table [classes.{wanted}]"
                self._refuse("unknown class", where, "classes", seen=wanted, expected=", ".join(classes), fix=fix)

    def _refuse(
        self, what: str, table: str, key: str | None, *, seen: object, expected: str = "", fix: str = ""
    ) -> NoReturn:
        line = self._line(table, key)
        at = f"{self._path}, line {line}" if line else str(self._path)
        raise ConfigError(f"[{table}] in {at}: {what}", seen=seen, expected=expected, fix=fix)

    def _line(self, table: str, key: str | None) -> int | None:
        """Where a key of a table stands, or the table's head; None for spellings this does not look for."""
        head: int | None = None
        for number, line in enumerate(self._lines, start=1):
            plain = line.strip()
            if plain.startswith("["):
                if head is not None:
                    break
                name = plain.strip("[] ").replace('"', "").replace("'", "")
                if name == table or name.startswith(table + "."):
                    head = number
            elif head is not None and key is not None and plain.partition("=")[0].strip().strip("\"'") == key:
                return number
        return head
