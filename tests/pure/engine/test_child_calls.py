"""Calls to a real child that are interrupted, refused, or made while it hangs."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.fakes.builders import EOS, VOCAB, collect, make_request, reference, scripted_engine
from tests.fakes.byte_tokenizer import letter_bytes
from tests.fakes.toy_model import ToyModel
from tests.fakes.word_grammar import WordGrammar
from tests.pure.engine.children import child, pull

from paceline.contracts.kv import CacheCleared
from paceline.contracts.ports import EngineStats
from paceline.contracts.request import Request, expand_choices
from paceline.engine.child_client import ChildClient
from paceline.engine.client import InProcessClient
from paceline.errors import EngineDeadError, EngineError, RequestError


def test_a_grammar_is_prepared_and_followed_in_the_child() -> None:
    with child() as client:

        def prepare(data: bytes) -> None:
            end = time.monotonic() + 20
            while not client.prepare_grammar(data):
                assert time.monotonic() < end

        def submit(data: bytes) -> None:
            client.submit(make_request(3, [1], 2, grammar=data))

        twice, three = WordGrammar((b"abcd",), 2, 2).spec, WordGrammar((b"a",), 3, 3).spec
        prepare(twice)
        client.submit(make_request(1, [1, 2, 3], 20, grammar=twice))
        client.submit(make_request(2, [1, 2, 3], 20, temperature=1.0, seed=1, grammar=three))
        found = collect(pull(client, 2))
        token_bytes = letter_bytes(VOCAB, (EOS,))
        texts = [b"".join(token_bytes[token] for token in found[i].token_ids) for i in (1, 2)]
        assert texts == [b"abcdabcd", b"aaa"]
        for ask in (prepare, submit):
            with pytest.raises(RequestError) as caught:
                ask(b"{}")
            assert caught.value.param == "grammar"


def free_run(request_id: int, max_tokens: int = 4) -> Request:
    return make_request(request_id, [1, 2, 3, request_id], max_tokens, sampling={"ignore_eos": True})


def stop(pid: int) -> None:
    """Stop a process, and see it stopped: until then it may still answer."""
    os.kill(pid, signal.SIGSTOP)
    end = time.monotonic() + 20
    while Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "T":
        assert time.monotonic() < end
        time.sleep(0.01)


@contextmanager
def interrupted(client: ChildClient) -> Iterator[None]:
    """Ctrl-C while the call in the body waits for its reply; the child gets and answers the call after that."""
    stop(client.pid)

    def press() -> None:
        end = time.monotonic() + 20
        while client.unanswered_s < 0.05 and time.monotonic() < end:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=press)
    # a shell's background jobs inherit that Ctrl-C is ignored
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            yield
    finally:
        os.kill(client.pid, signal.SIGCONT)
        thread.join()
        signal.signal(signal.SIGINT, before)


def test_the_reply_to_an_interrupted_call_does_not_answer_the_next_one() -> None:
    with child() as client:
        client.submit(free_run(0))
        pull(client, 1)
        with interrupted(client):
            client.stats()
        assert {d.request_id for d in client.decisions(0)} == {0}
        with interrupted(client):
            client.decisions(0)
        with interrupted(client):
            client.kv_events()
        assert client.stats().num_finished == 1
        assert client.reset_prefix_cache() is True


def test_an_interrupted_submission_is_ended_and_heard_of_by_nobody() -> None:
    with child() as client:
        with interrupted(client):
            client.submit_all([free_run(0, 200), free_run(1, 200)])
        assert not client._open
        client.submit(free_run(2))
        outputs = pull(client, 1)
        end = time.monotonic() + 20
        while client._disowned:
            assert time.monotonic() < end
            outputs.extend(client.outputs(timeout_s=0.05))
        assert {o.request_id for o in outputs} == {2}
        stats = client.stats()
        assert (stats.num_finished, stats.num_running, stats.num_waiting, stats.kv.held) == (3, 0, 0, 0)
        client.submit(free_run(0))  # its id is free again
        assert collect(pull(client, 1))[0].token_ids == reference(free_run(0), 4, ToyModel(VOCAB))

        # one that the engine refuses was never there
        with interrupted(client):
            client.submit(make_request(7, [1], sampling={"stop_token_ids": (VOCAB + 5,)}))
        with pytest.raises(RequestError, match="in use"):
            client.submit(free_run(7))  # not known yet
        client.stats()
        client.submit(free_run(7))
        assert sorted(collect(pull(client, 1))) == [7]


def test_a_call_of_several_requests_is_taken_in_whole_or_not_at_all() -> None:
    call = make_request(0, [1, 2, 3, 4, 5, 6, 7], 6, temperature=1.0, seed=None, sampling={"n": 3})
    choices = expand_choices(call, [1, 2])
    with child() as client:
        before = client.stats()
        bad = make_request(9, [VOCAB])
        with pytest.raises(RequestError, match="vocabulary"):
            client.submit_all([*choices, bad])
        with pytest.raises(RequestError, match="in use"):
            client.submit_all([*choices, free_run(1)])
        after = client.stats()
        assert not client._open
        assert (after.num_running, after.num_waiting, after.num_finished) == (0, 0, 0)
        assert after.kv == before.kv
        assert not client.decisions(0)
        client.submit_all(choices)
        found = collect(pull(client, 3))
        assert sorted(found) == [0, 1, 2]
        assert len({tuple(f.token_ids) for f in found.values()}) > 1

        client.submit_all([free_run(i, 200) for i in (10, 11, 12)])
        client.abort_all([10, 12, 10, 99])
        client.submit(free_run(13, 1))
        ended = [o.request_id for o in pull(client, 3) if o.finish is not None]
        assert sorted(ended) == [10, 12, 13]
        client.abort_all([])


def test_cache_events_come_over_the_wire_in_order() -> None:
    here = InProcessClient(scripted_engine().core)
    with child() as client:
        seen = []
        for engine in (client, here):
            engine.submit(make_request(0, list(range(9)), 4, sampling={"ignore_eos": True}))
            assert engine.drain(20.0)
            seen.append(engine.kv_events())
            assert engine.reset_prefix_cache()
            assert engine.kv_events().events == [CacheCleared()]
            assert engine.kv_events().events == []
        assert seen[0] == seen[1]
        assert len(seen[0].events) == 3
        assert seen[0].num_dropped == 0
    here.close()


def wait_until_stalled(client: ChildClient) -> EngineStats:
    end = time.monotonic() + 20
    while not (stats := client.stats()).stalled:
        assert time.monotonic() < end
        time.sleep(0.02)
    return stats


def test_a_step_that_hangs_in_the_executor_is_told_while_calls_are_answered() -> None:
    with child("stuck") as client:
        client.submit(free_run(0, 50))
        stats = wait_until_stalled(client)
        assert "a step has been running" in stats.trouble
        assert "request 0 admit cold" in stats.trouble
        assert stats.num_running == 1
        client.submit(free_run(1))  # waits, as it would behind a long step
        assert client.stats().num_waiting == 1
        assert client.decisions(0)
        assert client.unanswered_s == 0.0


def test_a_scheduler_that_hangs_does_not_take_the_calls_with_it() -> None:
    with child("stuck-plan") as client:
        client.submit(free_run(0, 50))
        stats = wait_until_stalled(client)
        assert "request 0 admit cold" in stats.trouble
        for call in (lambda: client.submit(free_run(1)), lambda: client.decisions(0), lambda: client.abort(0)):
            with pytest.raises(EngineError, match="hangs between two steps"):
                call()
        assert list(client._open) == [0]
        assert client.stats().stalled


def test_a_child_that_answers_nobody_is_noticed_and_a_close_ends_the_wait() -> None:
    with child() as client:
        stop(client.pid)
        raised: list[BaseException] = []

        def ask() -> None:
            try:
                client.stats()
            except EngineDeadError as error:
                raised.append(error)

        asking = threading.Thread(target=ask)
        asking.start()
        end = time.monotonic() + 20
        while client.unanswered_s < 0.2:
            assert time.monotonic() < end
            time.sleep(0.01)
    asking.join(20)
    assert [str(error) for error in raised] == ["the engine is closed"]


MUCH_INFO = """
import sys
from paceline.engine.child import serve_child
from tests.fakes.builders import scripted_engine
info = {"ledger": "x" * 5_000_000, "phases": {"weights": 0.5}, "knobs": [["max_num_seqs", 8, "profile", "why"]] * 500}
sys.exit(serve_child(scripted_engine().core, sys.argv[1], info=info))
"""
BAD_INFO = MUCH_INFO.replace("info = {", "info = {'bad': object(), ")


def test_what_the_assembler_tells_may_be_long_and_a_sigterm_is_the_clients_to_handle() -> None:
    with child(command=[sys.executable, "-c", MUCH_INFO]) as client:
        assert len(client.info["ledger"]) == 5_000_000
        assert client.info["phases"] == {"weights": 0.5}
        assert client.info["knobs"][499] == ["max_num_seqs", 8, "profile", "why"]
        os.kill(client.pid, signal.SIGTERM)
        client.submit(free_run(0))
        assert len(collect(pull(client, 1))[0].token_ids) == 4


def test_info_that_cannot_travel_is_an_error_of_the_start() -> None:
    with pytest.raises(EngineError, match="cannot encode"), child(command=[sys.executable, "-c", BAD_INFO]):
        pass
