"""`paceline bench`: exit codes of several answers, and the command that a page shows."""

import pytest
import typer

from paceline.cli import bench


@pytest.mark.parametrize(
    ("codes", "code"), [([], 0), ([0, 0], 0), ([0, 2], 2), ([2, 3], 3), ([3, 1, 2], 1), ([0, 1, 0], 1)]
)
def test_a_failure_is_not_hidden_by_what_is_invalid_or_open(codes, code):
    assert bench.worst(codes) == code


def shown(*arguments):
    """The command of a run with these arguments."""
    return bench.command_of(typer.main.get_command(bench.app).make_context("bench", list(arguments)))


def test_the_command_of_a_run_holds_what_was_given_and_no_key():
    assert shown() == "paceline bench"
    given = ("--url", "http://h:1", "--rate", "2.5", "--no-calibrate", "--out", "runs/x")
    assert shown(*given) == "paceline bench --url http://h:1 --rate 2.5 --no-calibrate"
    keys = ("--api-key", "sk-1", "--tenant-key", "gold=sk-2", "--tenant-key", "a b=sk-3")
    assert shown(*keys) == (
        'paceline bench --api-key "$API_KEY" --tenant-key gold="$TENANT_KEY" --tenant-key \'a b\'="$TENANT_KEY"'
    )


@pytest.mark.parametrize("form", ["--api-key sk-4", "--api-key=sk-4", "--admin-key 'sk-4 x'"])
def test_keys_of_the_server_that_is_started_are_left_out_too(form):
    command = shown("--serve", f"--max-num-seqs 8 {form} --dtype float32")
    assert "sk-4" not in command
    assert "--max-num-seqs 8" in command
    assert "--dtype float32" in command
