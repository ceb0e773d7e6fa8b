"""The seven questions of a layout, in order, each with its inequality in numbers: why the next was, or was not, taken.

    one device -> tensor parallel in the fast domain -> over nodes -> replicas -> experts -> context -> prefill apart

Every number is from the search or from the same step times; nothing is decided here that the search did not decide.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from paceline.contracts.ports import prefill_shape
from paceline.cost.context import rank_pairs
from paceline.cost.features import decode_shape
from paceline.cost.memory import format_bytes
from paceline.cost.prior import StepPrior
from paceline.errors import UnsupportedError
from paceline.planner.layout import Layout
from paceline.planner.question import Question
from paceline.planner.search import Candidate, Search, layout_steps
from paceline.planner.split import Split, best_split
from paceline.planner.steady import Replica


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One question. `holds`: the inequality does, so that what it asks about was taken."""

    name: str
    inequality: str
    holds: bool
    why: str


WORTH = 1.1  # a split must carry so many times more to be worth two kinds of replicas


def walk(question: Question, found: Search) -> tuple[Step, ...]:
    """All questions, also those that a small fleet answers at once."""
    return (
        one_device(found),
        tensor_parallel(question, found),
        over_nodes(question, found),
        replicas(question, found),
        experts(question, found),
        context_parallel(question, found),
        split(question, found),
    )


def one_device(found: Search) -> Step:
    """Does the model with KV for this traffic fit one device, and what does that carry?"""
    single = _best(found, lambda layout: layout.degrees.num_ranks == 1)
    chosen = found.chosen
    taken = chosen is not None and chosen.layout.degrees.num_ranks == 1
    if single is None or single.memory is None:
        reason = "" if single is None else single.rejected
        return Step(name="one device", inequality=reason, holds=False, why="the model must be divided")
    ledger = single.memory.plan.ledger
    weights, budget = ledger.weights.predicted_bytes, ledger.budget_bytes
    needed = ledger.total - ledger.kv.predicted_bytes
    inequality = (
        f"{format_bytes(weights)} weights + {format_bytes(needed - weights)} workspace, engine and margin <= "
        f"{format_bytes(budget)}: {format_bytes(budget - needed)} for KV hold {single.memory.fit.num_seqs} "
        f"sequences of this traffic"
    )
    if single.rejected:
        return Step(name="one device", inequality=inequality, holds=False, why=single.rejected)
    rate = _per_replica(single)
    why = f"one device carries {rate:.3g} good requests/s"
    return Step(name="one device", inequality=inequality, holds=taken, why=why)


def tensor_parallel(question: Question, found: Search) -> Step:
    """Is a decode step so much faster divided within a node that each device carries more?"""
    name = "tensor parallel in a node"
    per_node = question.fleet.per_node
    if per_node == 1:
        return Step(name=name, inequality="1 device in a node", holds=False, why="there is nothing to divide over")
    best = _best(found, lambda x: 1 < x.degrees.tp <= per_node and x.degrees.pp == x.degrees.ep == 1)
    if best is None:
        return Step(name=name, inequality="no degree divides the heads", holds=False, why="not possible")
    inequality = _latency_words(question, best.layout)
    chosen = found.chosen
    taken = chosen is not None and 1 < chosen.layout.degrees.tp <= per_node
    if best.rejected:
        return Step(name=name, inequality=inequality, holds=taken, why=best.rejected)
    per_device = _per_replica(best) / best.layout.degrees.num_ranks
    single = _best(found, lambda layout: layout.degrees.num_ranks == 1)
    if single is None or single.rejected:
        why = f"one device does not do it; {best.layout.degrees.tp} carry {per_device:.3g} good requests/s each"
    else:
        alone = _per_replica(single)
        why = f"{per_device:.3g} good requests/s for each device against {alone:.3g} undivided"
    return Step(name=name, inequality=inequality, holds=taken, why=why)


def over_nodes(question: Question, found: Search) -> Step:
    """Must a group leave its node, or does it carry more across?"""
    name = "over nodes"
    fleet = question.fleet
    if fleet.num_nodes == 1:
        return Step(name=name, inequality="1 node", holds=False, why="there is nothing to cross")
    inside = _best(found, lambda layout: layout.degrees.num_ranks <= fleet.per_node)
    across = _best(found, lambda layout: layout.degrees.num_ranks > fleet.per_node)
    chosen = found.chosen
    taken = chosen is not None and chosen.layout.degrees.num_ranks > fleet.per_node
    per_step = question.card.network().ms(question.traffic.mean_input * question.spec.hidden_size * 2)
    inequality = (
        f"within a node {_words(question, inside)}, over nodes {_words(question, across)}; a mean prompt's activations "
        f"cross once in {per_step:.3g} ms (pipeline), or 2 x {question.spec.num_layers} times (tensor parallel)"
    )
    why = "a node does not hold the model" if taken and (inside is None or inside.rejected) else (
        "crossing carries more" if taken else "a node holds the model, and crossing carries less"
    )  # fmt: skip
    return Step(name=name, inequality=inequality, holds=taken, why=why)


def replicas(question: Question, found: Search) -> Step:
    """More, smaller replicas against one over all devices, whole and with a device lost."""
    name, total = "replicas", question.fleet.num_devices
    if total == 1:
        return Step(name=name, inequality="1 device", holds=False, why="there is room for one")
    most = _best(found, lambda layout: layout.degrees.num_ranks < total)
    whole = _best(found, lambda layout: layout.degrees.tp == total)
    other = _best(found, lambda layout: layout.degrees.num_ranks == total != layout.degrees.tp)
    chosen = found.chosen
    taken = chosen is not None and chosen.layout.replicas > 1
    against = ", ".join(_loss_words(question, c) for c in (whole, other) if c is not None)
    inequality = f"{_loss_words(question, most)}; against {against}"
    why = "a lost device takes its replica with it: more, smaller replicas lose less"
    if chosen is not None and chosen.layout.replicas == 1:
        asked = question.traffic.rate_rps
        why = "one replica carries the rate" if asked is not None else "one replica over all devices carries more"
    return Step(name=name, inequality=inequality, holds=taken, why=why)


def experts(question: Question, found: Search) -> Step:
    """Experts spread over ranks against experts divided by width."""
    name, spec = "expert parallel", question.spec
    if spec.experts is None:
        return Step(name=name, inequality="0 experts", holds=False, why="the model is dense")
    best = _best(found, lambda layout: layout.degrees.ep > 1)
    without = _best(found, lambda layout: layout.degrees.ep == 1)
    chosen = found.chosen
    taken = chosen is not None and chosen.layout.degrees.ep > 1
    x = spec.experts
    rows = 1.0 if chosen is None or chosen.capacity is None else max(1.0, chosen.capacity.rows)
    reached = x.num_experts * (1 - (1 - x.num_active / x.num_experts) ** rows)
    inequality = (
        f"{rows:.0f} rows x {x.num_active} of {x.num_experts} experts reach {reached:.0f} of them a step, the busiest "
        f"rank taken as {question.expert_imbalance:g} times the mean: {_words(question, best)} against "
        f"{_words(question, without)}"
    )
    why = "each rank reads fewer experts, and attention needs no all-reduce" if taken else "it carries no more here"
    return Step(name=name, inequality=inequality, holds=taken, why=why)


def context_parallel(question: Question, found: Search) -> Step:
    """Would long prompts be in time with their positions divided? Priced, and never taken: no engine of this version is
    divided so."""
    name, chosen = "context parallel", found.chosen
    if question.fleet.num_devices == 1:
        return Step(name=name, inequality="1 device", holds=False, why="there is nothing to divide over")
    if chosen is None:  # too slow, perhaps: the smallest layout that memory holds
        held = [c for c in found.candidates if c.memory is not None and c.memory.seats]
        chosen = min(held, key=lambda c: c.layout.degrees.num_ranks, default=None)
    if chosen is None:
        return Step(name=name, inequality="no layout fits", holds=False, why="there is nothing to divide")
    alone, target = _replica(question, chosen).at_rows(0.0), question.slo.ttft_s
    worst = float("nan") if alone is None else alone.ttft_p95_s
    late = target is not None and worst > target
    words = f"TTFT p95 without load {worst:.3g} s {'>' if late else '<='} {target or float('inf'):g} s"
    longest = int(question.traffic.input_tokens.max())
    try:
        ranks, (single, divided) = _divided_prompt(question, chosen, longest)
    except UnsupportedError as error:
        return Step(name=name, inequality=f"{words}; {error.message}", holds=False, why="not possible here")
    if ranks == 1:
        words += "; the layout leaves no device to divide over"
        return Step(name=name, inequality=words, holds=False, why="a replica has all devices")
    pairs = rank_pairs(longest, 0, ranks, zigzag=False)
    inequality = (
        f"{words}; the longest prompt, {longest} tokens in one chunk: {_span(single)}, over CP{ranks} "
        f"{_span(divided)}, {single / divided:.3g} times as fast on {ranks} times the devices (zig-zag: all ranks "
        f"alike; in order the last has {ranks * max(pairs) / sum(pairs):.3g} times the mean)"
    )
    why = "prompts are in time"
    if late:
        why = "no engine of this version is divided so; see `paceline sim --context-parallel-size`"
    return Step(name=name, inequality=inequality, holds=False, why=why)


def _span(ms: float) -> str:
    return f"{ms:.3g} ms" if ms < 1000 else f"{ms / 1e3:.3g} s"


def _divided_prompt(question: Question, candidate: Candidate, num_tokens: int) -> tuple[int, tuple[float, float]]:
    """The most ranks that a node (or the fleet, for a layout over nodes) has devices for, in place of each of the
    layout's, and milliseconds of a prompt in one chunk on the layout as it is and so divided."""
    degrees, fleet = candidate.layout.degrees, question.fleet
    room = fleet.per_node if degrees.num_ranks <= fleet.per_node else fleet.num_devices
    ranks = room // degrees.num_ranks
    over = Layout(degrees=msgspec.structs.replace(degrees, cp=ranks))
    shape = prefill_shape(num_tokens)
    single, divided = (layout_steps(question, each).round_ms(shape) for each in (Layout(degrees=degrees), over))
    return ranks, (single, divided)


def split(question: Question, found: Search) -> Step:
    name, chosen = "prefill and decode apart", found.chosen
    if chosen is None or chosen.capacity is None:
        return Step(name=name, inequality="no layout fits", holds=False, why="there is nothing to split")
    parts = split_of(question, chosen)
    if parts is None:
        held = "fewer than two replicas, or one kind cannot meet its target"
        return Step(name=name, inequality=held, holds=False, why="there is nothing to split")
    ranks = chosen.layout.degrees.num_ranks
    together = question.fleet.num_devices // ranks * _per_replica(chosen)
    pays = parts.rate_rps * question.slo.share > WORTH * together
    inequality = (
        f"min({parts.prefill_replicas} x {parts.prefill_rps:.3g}, {parts.decode_replicas} x {parts.decode_rps:.3g}) = "
        f"{parts.rate_rps:.3g} requests/s, KV of a prompt in {parts.transfer_ms:.3g} ms, "
        f"{'>' if pays else '<='} {WORTH:g} x {together:.3g} together"
    )
    why = "chunked prefill beside decodes carries as much"
    if pays:
        why = "worth a trial; this version has no such replicas"
    return Step(name=name, inequality=inequality, holds=False, why=why)


def split_of(question: Question, candidate: Candidate) -> Split | None:
    """The best division of the whole fleet into replicas of a candidate's layout."""
    assert candidate.memory is not None
    spec, ranks = question.spec, candidate.layout.degrees.num_ranks
    per_prompt = question.kept.kv.sequence_bytes(spec, round(question.traffic.mean_input))
    inside = 2 * ranks <= question.fleet.per_node
    return best_split(
        layout_steps(question, candidate.layout),
        question.traffic,
        question.slo,
        replicas=question.fleet.num_devices // ranks,
        seats=candidate.memory.seats,
        chunk=candidate.chunk,
        kv_bytes_per_prompt=per_prompt / ranks,  # ranks send side by side
        link=question.card.fast_link(2) if inside else question.card.network(),
    )


# --- words


def _best(found: Search, which: Callable[[Layout], bool]) -> Candidate | None:
    """The best candidate whose layout is one of `which`: one that fits before one that does not."""
    those = [c for c in found.candidates if which(c.layout)]

    def worth(c: Candidate) -> tuple[bool, float, int]:
        ranks = c.layout.degrees.num_ranks
        return c.fits, _per_replica(c) / ranks, ranks

    return max(those, key=worth, default=None)


def _per_replica(candidate: Candidate) -> float:
    return 0.0 if candidate.capacity is None else candidate.capacity.goodput_rps


def _whole(question: Question, candidate: Candidate) -> tuple[int, float]:
    """Replicas that the fleet has room for, and what all of them carry."""
    count = question.fleet.num_devices // candidate.layout.degrees.num_ranks
    return count, count * _per_replica(candidate)


def _words(question: Question, candidate: Candidate | None) -> str:
    if candidate is None:
        return "nothing possible"
    count, rate = _whole(question, candidate)
    name = str(Layout(degrees=candidate.layout.degrees, replicas=count))
    return f"{name} {rate:.3g} good requests/s" if candidate.fits else f"{name} none ({candidate.rejected})"


def _loss_words(question: Question, candidate: Candidate | None) -> str:
    if candidate is None or not candidate.fits:
        return _words(question, candidate)
    count, rate = _whole(question, candidate)
    return f"{_words(question, candidate)}, {rate * (count - 1) / count:.3g} after one device fails"


def _latency_words(question: Question, layout: Layout) -> str:
    """A decode step of one row, undivided and divided, and what of it is all-reduce."""
    context = round(question.traffic.mean_context)
    shape = decode_shape(1, context)
    divided = layout_steps(question, layout).times
    single = layout_steps(question, Layout()).times
    step, undivided = divided.step_ms(shape), single.step_ms(shape)
    reduce = divided.parts(shape)["tensor_parallel"] if isinstance(divided, StepPrior) else 0.0
    tp = layout.degrees.tp
    rest = step - undivided / tp - reduce
    return (
        f"a decode step of one row: {undivided:.3g} ms / {tp} + {reduce:.3g} ms all-reduce + {rest:.3g} ms that is not "
        f"divided = {step:.3g} ms, {undivided / step:.3g} times as fast on {tp} times the devices"
    )


def _replica(question: Question, candidate: Candidate) -> Replica:
    assert candidate.memory is not None
    steps = layout_steps(question, candidate.layout)
    return Replica(steps, question.traffic, question.slo, seats=candidate.memory.seats, chunk=candidate.chunk)
