"""A replica does what the engine's loop does."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from tests.pure.sim.kit import COST, Played, leave, replica_spec, submit

from paceline.contracts.request import FinishReason, Request, SamplingParams, TokenPrompt
from paceline.engine.journal import Planned, StepJournal, Submitted, read_events
from paceline.engine.kv_manager import KVManager
from paceline.engine.loop import EngineCore
from paceline.engine.scheduler import Scheduler
from paceline.errors import UnsupportedError
from paceline.sim import SimulatedExecutor, VirtualClock, simulated_caps
from paceline.sim.fleet import make_replica
from paceline.sim.prompts import NUM_IDS, Answers


def prompt(num: int, name: int = 0) -> TokenPrompt:
    return TokenPrompt(ids=np.arange(1000 * name, 1000 * name + num, dtype=np.int32))


def test_plans_are_those_of_the_engines_own_loop() -> None:
    """Requests reach both between two steps, so that the loop's clock stands where the replica's does."""
    spec = replica_spec(num_blocks=24, max_num_seqs=3)
    lengths = [(9, 12), (17, 6), (30, 20), (5, 9), (11, 15)]
    caps = simulated_caps(spec.layout, max_rows=3, max_tokens=64, vocab_size=NUM_IDS)
    kv = KVManager(spec.layout, max_chunk_tokens=spec.settings.max_uncommitted_tokens(1))
    clock, journal = VirtualClock(), StepJournal()
    executor = SimulatedExecutor(caps, COST, clock, Answers(1))
    core = EngineCore(Scheduler(spec.settings, caps, kv, COST), executor, clock, journal)
    for request_id, (num, max_tokens) in enumerate(lengths):
        sampling = SamplingParams(max_tokens=max_tokens, temperature=0.0, seed=0, ignore_eos=True)
        core.submit(Request(request_id=request_id, prompt=prompt(num, request_id), sampling=sampling))
        core.step()
    while core.has_work:
        core.step()
    events = list(read_events(journal.to_bytes()))
    came = [event.now for event in events if isinstance(event, Submitted)]
    digests = [event.digest for event in events if isinstance(event, Planned) and event.digest]
    script = [
        (at, submit(request_id, prompt(num, request_id), max_tokens))
        for request_id, (at, (num, max_tokens)) in enumerate(zip(came, lengths, strict=True))
    ]
    played = Played(spec, macro_steps=False).run(script)
    assert [plan.digest() for _, plan in sorted(played.plans.items())] == digests


def test_a_request_that_comes_during_a_run_is_seen_by_the_next_step() -> None:
    script = [(0.0, submit(0, prompt(8), 100)), (0.2, submit(1, prompt(8, 1), 2))]
    slow = Played(replica_spec(), macro_steps=False).run(script)
    fast = Played(replica_spec(), macro_steps=True).run(script)
    timeline = fast.ends[1].timeline
    assert timeline is not None
    assert 0.2 < timeline.admitted < 0.2 + 0.02
    assert timeline.admitted == pytest.approx(slow.ends[1].timeline.admitted, abs=1e-9)  # type: ignore[union-attr]
    assert fast.replica.num_events < slow.replica.num_events / 5


def test_a_client_that_leaves_gets_what_was_drawn_until_then() -> None:
    script = [
        (0.0, submit(0, prompt(8), 100, leaves_after=5)),
        (0.0, submit(1, prompt(8, 1), 100, may_leave=True)),
        (0.15, leave(1)),
    ]
    played = Played(replica_spec(), macro_steps=True).run(script)
    assert played.left == [0]
    assert played.ends[0].finish is FinishReason.ABORT
    assert played.ends[0].timeline.num_tokens == 5  # type: ignore[union-attr]
    timeline = played.ends[1].timeline
    assert timeline is not None
    assert timeline.end == 0.15
    assert all(time < 0.15 for time, _ in timeline.chunks)
    assert played.replica.kv.stats().held == 0


def test_a_replica_that_fails_ends_what_it_had() -> None:
    played = Played(replica_spec(), macro_steps=True)

    def fail(played: Played, now: float) -> None:
        played.ends |= {end.request_id: end for end in played.replica.fail(now).ends}

    played.run([(0.0, submit(0, prompt(8), 100)), (0.05, submit(1, prompt(8, 1), 3)), (0.5, fail)])
    assert sorted(played.ends) == [0, 1]
    lost = played.ends[0].timeline
    assert lost is not None
    assert 0 < lost.num_tokens < 100
    assert max(time for time, _ in lost.chunks) < 0.5


def test_drafts_are_refused() -> None:
    spec = replica_spec()
    drafting = msgspec.structs.replace(spec, settings=msgspec.structs.replace(spec.settings, num_draft_tokens=2))
    with pytest.raises(UnsupportedError, match="acceptance curve alone"):
        make_replica(0, drafting, COST, Answers(0))


def test_a_prompt_whose_last_token_opens_a_block_leaves_no_promise_behind() -> None:
    """65 tokens in chunks of 64: the last one is computed in a step that looks like a decode step. The second request
    fits beside the first to the block, for a while."""
    first, second = prompt(65, 1), prompt(97, 2)
    admitted = []
    for macro_steps in (True, False):
        played = Played(replica_spec(num_blocks=50), macro_steps=macro_steps, check=True)
        played.run([(0.0, submit(1, first, 35)), (0.25, submit(2, second, 2))])
        timeline = played.ends[2].timeline
        assert timeline is not None
        admitted.append(timeline.admitted)
    assert admitted[0] == pytest.approx(admitted[1], abs=1e-9)
    assert admitted[0] < 0.27
