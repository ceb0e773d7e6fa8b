"""The live feed in virtual time: who makes it look, how much it remembers, what a restart does to rates."""

import asyncio
import json

import pytest
from tests.pure.server.telemetry.live_kit import stats

from paceline.contracts.decision import Decision, Kind, Reason
from paceline.errors import EngineDeadError, EngineError, QueueFullError
from paceline.server.telemetry.live import LiveFeed


class Engine:
    """A session whose looks are scripted: a step a look, three tokens each, one of them output."""

    def __init__(self):
        self.ready, self.why_not_ready, self.restarts, self.phases = True, "", 0, {"weights": 1.5}
        self.num_asked = 0
        self.step = 0
        self.recent = []
        self.answer = None  # an awaitable factory instead of the script

    async def stats(self):
        self.num_asked += 1
        if self.answer is not None:
            return await self.answer()
        self.step += 1
        return stats(self.step, step=self.step, computed=3 * self.step, output=self.step, recent=self.recent)


class Time:
    """Time that only moves when the feed sleeps; `ticks` lets it sleep so many times."""

    def __init__(self):
        self.now = 1000.0
        self._go = asyncio.Semaphore(0)
        self._slept = asyncio.Semaphore(0)

    def clock(self):
        return self.now

    async def sleep(self, seconds):
        self._slept.release()
        await self._go.acquire()
        self.now += seconds

    async def ticks(self, count):
        """After the first look, `count` more."""
        for _ in range(count):
            await asyncio.wait_for(self._slept.acquire(), 10)
            self._go.release()
        await asyncio.wait_for(self._slept.acquire(), 10)
        self._slept.release()


def feed_of(engine, time, **options):
    return LiveFeed(engine, interval_s=0.5, clock=time.clock, sleep=time.sleep, **options)


def parse(data):
    """(event, value) pairs of server-sent events."""
    pairs = []
    for block in data.decode().strip().split("\n\n"):
        event, value = block.split("\n")
        pairs.append((event.removeprefix("event: "), json.loads(value.removeprefix("data: "))))
    return pairs


async def read(viewer, num_events):
    """The viewer's next events, without leaving it."""
    found = []
    stream = aiter(viewer)
    while len(found) < num_events:
        found += parse(await asyncio.wait_for(anext(stream), 10))
    await stream.aclose()
    return found


async def drain(viewer):
    """Read to the end; how many events."""
    return sum([len(parse(chunk)) async for chunk in viewer])


def test_a_reader_who_does_not_keep_up_is_let_go():
    async def script():
        engine, time = Engine(), Time()
        feed = feed_of(engine, time)
        reader = asyncio.create_task(drain(feed.watch()))
        asleep = feed.watch()
        await time.ticks(30)
        assert feed.num_viewers == 1
        assert await drain(asleep) == 20  # ten seconds of it were kept
        await feed.close()
        assert await reader > 20

    asyncio.run(script())


def test_it_looks_only_while_somebody_watches():
    async def script():
        engine, time = Engine(), Time()
        feed = feed_of(engine, time)
        await asyncio.sleep(0)
        assert engine.num_asked == 0
        one, two = feed.watch(), feed.watch()
        await time.ticks(3)
        assert engine.num_asked == 4  # once for both
        one.close()
        await time.ticks(1)
        assert engine.num_asked == 5
        two.close()
        two.close()
        assert feed.num_viewers == 0
        for _ in range(20):
            await asyncio.sleep(0)
        assert engine.num_asked == 5
        again = feed.watch()
        time._go = asyncio.Semaphore(0)
        await time.ticks(0)
        assert engine.num_asked > 5
        again.close()

    asyncio.run(script())


def test_a_new_viewer_gets_a_bounded_history_and_then_what_happens():
    async def script():
        engine, time = Engine(), Time()
        feed = feed_of(engine, time, history_s=5.0, about={"model": "toy"})
        reader = asyncio.create_task(drain(feed.watch()))
        await time.ticks(30)
        assert feed.num_samples == 10
        late = feed.watch()
        await time.ticks(1)
        (name, history), (event, sample) = await read(late, 2)
        assert name == "history"
        assert history["model"] == "toy"
        assert len(history["samples"]) == 10
        assert event == "sample"
        assert sample["t"] > history["samples"][-1]["t"]
        assert sample["output_tps"] == 2.0  # one token every half second
        assert sample["prompt_tps"] == 4.0
        assert (sample["held"], sample["cached"], sample["free"]) == (15, 25, 60)
        await feed.close()
        assert await reader == 33  # the history and 32 looks

    asyncio.run(script())


def test_viewers_are_capped_and_a_place_becomes_free():
    async def script():
        engine, time = Engine(), Time()
        feed = feed_of(engine, time, max_viewers=2)
        viewers = [feed.watch(), feed.watch()]
        with pytest.raises(QueueFullError, match="too many viewers"):
            feed.watch()
        viewers.pop().close()
        viewers.append(feed.watch())
        await feed.close()
        assert feed.num_viewers == 0
        with pytest.raises(EngineError, match="going down"):
            feed.watch()
        left = [event async for event in viewers[0]]
        assert parse(left[0])[0][0] == "history", "what was there is still handed out, then the stream ends"

    asyncio.run(script())


def test_a_restarted_engine_gives_no_negative_rate():
    async def script():
        engine, time = Engine(), Time()
        feed = feed_of(engine, time, history_s=60.0)
        viewer = feed.watch()
        await time.ticks(3)

        async def gone():
            raise EngineDeadError("the engine is gone")

        engine.ready, engine.why_not_ready, engine.answer = False, "the engine is gone: signal 9", gone
        await time.ticks(2)
        engine.why_not_ready = "loading: weights"
        await time.ticks(1)
        engine.ready, engine.why_not_ready, engine.answer = True, "", None
        engine.restarts, engine.step = 1, 0  # its counters begin anew
        await time.ticks(3)
        viewer.close()
        samples = parse(feed.watch()._events[0])[0][1]["samples"]
        assert [s["state"] for s in samples] == ["ready"] * 4 + ["restarting"] * 3 + ["ready"] * 3
        assert samples[4]["why"] == "the engine is gone: signal 9"
        assert "running" not in samples[4], "what is not known is not said"
        rates = [s.get("output_tps") for s in samples]
        assert rates == [None, 2.0, 2.0, 2.0, None, None, None, None, 2.0, 2.0]
        await feed.close()

    asyncio.run(script())


def test_an_engine_that_does_not_answer_is_asked_once_and_shown_as_stalled():
    async def script():
        engine, time = Engine(), Time()
        feed = LiveFeed(engine, interval_s=0.01, patience_s=0.05, clock=time.clock, sleep=time.sleep)
        answered = asyncio.Event()

        async def slow():
            await answered.wait()
            return stats(1.0)

        engine.answer = slow
        viewer = feed.watch()
        await time.ticks(8)
        assert engine.num_asked == 1
        states = [value["state"] for name, value in await read(viewer, 9) if name == "sample"]
        assert states[0] == "ready"
        assert states[-1] == "stalled"
        await feed.close()

    asyncio.run(script())


@pytest.mark.parametrize(
    ("ready", "why", "answer", "state"),
    [
        (False, "loading: weights", None, "loading"),
        (False, "the server is stopping", stats(), "draining"),
        (True, "", stats(stalled=True, trouble="step 7 runs for 130 s\nt=1 step 7"), "stalled"),
        (True, "", stats(), "ready"),
    ],
)
def test_states_in_words(ready, why, answer, state):
    async def script():
        engine, time = Engine(), Time()

        async def look():
            if answer is None:
                raise EngineDeadError("not there")
            return answer

        engine.ready, engine.why_not_ready, engine.answer = ready, why, look
        viewer = feed_of(engine, time).watch()
        await time.ticks(0)
        sample = (await read(viewer, 2))[1][1]
        assert sample["state"] == state
        assert sample.get("why", "") == (why or ("step 7 runs for 130 s" if state == "stalled" else ""))
        assert sample.get("phases") == (None if state == "ready" else {"weights": 1.5})

    asyncio.run(script())


def test_decisions_come_once_in_words_and_in_the_feeds_time():
    async def script():
        engine, time = Engine(), Time()
        feed = feed_of(engine, time)
        viewer = feed.watch()
        numbers = {"missing": 3.0, "available": 1200.0}
        engine.recent = [
            Decision(time=0.5, step=1, request_id=4, kind=Kind.WAIT, reason=Reason.NO_BLOCKS, numbers=numbers)
        ]
        await time.ticks(1)
        engine.recent = [
            *engine.recent,
            Decision(time=2.0, step=3, request_id=4, kind=Kind.ADMIT, reason=Reason.COLD, numbers={"known": 9.0}),
        ]
        await time.ticks(2)
        found = [value for name, value in await read(viewer, 7) if name == "decisions"]
        assert [[d["request"] for d in batch] for batch in found] == [[4], [4]]
        assert found[0][0]["words"] == "waits for KV blocks: 3 too few are free (1,200 available)"
        assert found[0][0]["t"] == 999.5  # the engine's clock said 1.0 at the first look, half a second after it
        assert found[1][0]["words"] == "starts: 9 tokens, none of them cached"

    asyncio.run(script())


def test_a_viewer_that_leaves_takes_its_place_with_it_when_its_stream_is_dropped():
    async def script():
        engine, time = Engine(), Time()
        feed = feed_of(engine, time)
        stream = aiter(feed.watch())
        await anext(stream)
        assert feed.num_viewers == 1
        await stream.aclose()
        assert feed.num_viewers == 0

    asyncio.run(script())


def test_an_unforeseen_failure_ends_the_streams_and_not_the_feed():
    async def script():
        engine, time = Engine(), Time()
        told = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
        feed = feed_of(engine, time)

        async def broken():
            raise ValueError("a bug")

        engine.answer = broken
        events = [event async for event in feed.watch()]
        assert len(events) == 1
        assert feed.num_viewers == 0
        engine.answer = None
        viewer = feed.watch()
        await time.ticks(0)
        assert [name for name, _ in await read(viewer, 2)] == ["history", "sample"]

    asyncio.run(script())
