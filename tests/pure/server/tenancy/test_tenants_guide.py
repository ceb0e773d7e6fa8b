"""What the guide shows is accepted, and says what the code does."""

import json
import re
from pathlib import Path

import msgspec

from paceline.server.api.generation import UNTOLD_TOKENS
from paceline.server.tenancy.classes import BUILT_IN_CLASSES
from paceline.server.tenancy.keys import hash_key
from paceline.server.tenancy.tenants import TenantBook
from paceline.server.tenancy.usage import UsageRecord

GUIDE = (Path(__file__).parents[4] / "docs" / "guides" / "tenants.md").read_text(encoding="utf-8")


def block(kind: str, number: int = 0) -> str:
    return re.findall(rf"```{kind}\n(.*?)```", GUIDE, re.DOTALL)[number]


def test_the_file_of_the_guide_loads(tmp_path):
    path = tmp_path / "tenants.toml"
    path.write_text(block("toml"), encoding="utf-8")
    book = TenantBook.load(path)
    assert book.names == ("alice", "bob")
    alice = book.authenticate(None, "alice")  # no key to use: anybody can guess it
    assert hash_key("alice") in GUIDE
    assert (alice.max_concurrency, alice.tokens_per_minute, alice.priority_ceiling) == (16, 120_000, -5)
    assert book.resolve(alice).service_class.name == "chat"


def test_the_record_of_the_guide_has_every_field():
    shown = json.loads(block("json"))
    assert tuple(shown) == UsageRecord.__struct_fields__
    msgspec.convert(shown, UsageRecord)


def test_the_table_of_classes_is_the_built_in_ones():
    for name, each in BUILT_IN_CLASSES.items():
        row = next(line for line in GUIDE.splitlines() if line.startswith(f"| `{name}` |"))
        cells = [cell.strip() for cell in row.split("|")[2:5]]
        slo = each.slo
        times = [{None: "-", 2.0: "2 s"}.get(t, f"{1e3 * (t or 0):g} ms") for t in (slo.ttft_s, slo.tpot_s)]
        assert cells == [str(each.priority), *times]


def test_the_untold_reservation_is_the_one_that_is_made():
    assert f"{UNTOLD_TOKENS:,} tokens for each sequence" in GUIDE
