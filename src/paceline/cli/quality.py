"""`paceline quality`: are the answers still right? Scores sets, compares two servers, over HTTP against any of them."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from paceline.cli.errors import clean_errors

if TYPE_CHECKING:
    from paceline.lab.quality import Caller, Comparison, SetScore
    from paceline.lab.quality.refusal import Judge

T = TypeVar("T")

app = typer.Typer(no_args_is_help=True)

Url = Annotated[str, typer.Option("--url", help="The server: http://host:port.")]
Reference = Annotated[str, typer.Option("--reference", help="The server to compare with.")]
Model = Annotated[str | None, typer.Option("--model", "-m", help="Model to ask for; the first one listed by default.")]
Key = Annotated[str | None, typer.Option("--api-key", help="The server's key.")]
ReferenceKey = Annotated[str | None, typer.Option("--reference-key", help="The reference's key.")]
Concurrency = Annotated[int, typer.Option("--concurrency", min=1, help="Calls at once.")]
Out = Annotated[Path | None, typer.Option("--out", "-o", help="Keep the result in this file.")]
TextFile = Annotated[Path, typer.Argument(help="A text file. Paragraphs are set apart by empty lines.")]


@app.command("sets")
def sets() -> None:
    """List the sets that ship, and the forms of files that load."""
    with clean_errors():
        from paceline.lab.quality import SHIPPED, load_set
        from paceline.lab.quality.items import RULES

        for name in SHIPPED:
            quality = load_set(name)
            print(f"{name:10s} {len(quality.items)} items")
        print("files: JSON lines with id, rule, prompt or messages, answer; or of GSM8K, IFEval, BFCL, JSON schemas")
        print(f"rules: {', '.join(RULES)}")


@app.command("score")
def score(
    name: Annotated[str, typer.Argument(metavar="SET", help="A set that ships, or a JSONL file.")],
    url: Url,
    model: Model = None,
    api_key: Key = None,
    limit: Annotated[int | None, typer.Option(help="Draw so many items.")] = None,
    seed: Annotated[int, typer.Option(help="Of the draw.")] = 0,
    completions: Annotated[bool, typer.Option("--completions", help="Prompts as plain text, not as chat.")] = False,
    max_tokens: Annotated[int, typer.Option(min=1, help="Of a reply, where an item names none.")] = 256,
    concurrency: Concurrency = 8,
    judge_command: Annotated[str | None, typer.Option(help="Judges refusals: JSON in, refuse or answer out.")] = None,
    judge_url: Annotated[str | None, typer.Option(help="A model judges refusals: its server.")] = None,
    judge_pattern: Annotated[str | None, typer.Option(help="A reply that matches this declines.")] = None,
    load: Annotated[str | None, typer.Option(help="Score while this workload (a TOML file) runs.")] = None,
    keep_text: Annotated[bool, typer.Option("--keep-text", help="Keep the replies in the result.")] = False,
    out: Out = None,
) -> None:
    """Score a set against one server."""
    with clean_errors():
        from paceline.lab.quality import load_set, score_set, write_score

        quality = load_set(name, limit=limit, seed=seed)
        count = Counter(len(quality.items))

        async def work(caller: Caller) -> SetScore:
            judge = await _judge(judge_command, judge_url, judge_pattern)
            return await score_set(
                caller,
                quality,
                form="completions" if completions else "chat",
                max_tokens=max_tokens,
                keep_text=keep_text,
                judge=judge,
                mode="under load" if load else "alone",
                on_done=count,
            )

        def ask() -> SetScore:
            return _run(work, url, model, api_key, concurrency)

        found = _under_load(ask, url, model, api_key, load, seed) if load else ask()
        count.end()
        show_score(found)
        if out is not None:
            write_score(out, found)


@app.command("compare")
def compare(
    reference: Annotated[Path, typer.Argument(help="A stored score of the reference.")],
    candidate: Annotated[Path, typer.Argument(help="One of the candidate, of the same set.")],
    margin: Annotated[float, typer.Option(help="Points that may be lost at most.")] = 2.0,
) -> None:
    """Compare two stored scores item by item. Ends with 0 if the candidate is not worse, 1 if it is, 2 if unclear."""
    with clean_errors():
        from paceline.lab.quality import compare_scores, read_score

        found = compare_scores(read_score(reference), read_score(candidate), margin=margin / 100)
        for each in found:
            print(each.sentence)
            if each.lost:
                print(f"  lost: {', '.join(each.lost)}")
        answers = {each.answer for each in found}
        raise typer.Exit(1 if "worse" in answers else 2 if "inconclusive" in answers else 0)


@app.command("kl")
def kl(
    text: TextFile,
    url: Url,
    reference: Reference,
    model: Model = None,
    api_key: Key = None,
    reference_key: ReferenceKey = None,
    max_tokens: Annotated[int, typer.Option(min=2, help="Of each text.")] = 8000,
    top: Annotated[int, typer.Option(min=1, help="Log probabilities asked for at each position.")] = 20,
    whole: Annotated[bool, typer.Option("--whole", help="The file is one text, not paragraphs.")] = False,
    concurrency: Concurrency = 2,
    out: Out = None,
) -> None:
    """KL and top-1 agreement with a reference server on given texts, by position."""
    with clean_errors():
        from paceline.lab.quality import Caller, prompt_divergence

        texts = _texts(text, whole)
        count = Counter(len(texts))

        async def work(caller: Caller) -> Comparison:
            async with Caller(reference, model=model, api_key=reference_key, max_concurrency=concurrency) as other:
                return await prompt_divergence(other, caller, texts, max_tokens=max_tokens, num_top=top, on_done=count)

        found = _run(work, url, model, api_key, concurrency)
        count.end()
        show_divergence(found)
        _keep(found, out)


@app.command("agree")
def agree(
    text: TextFile,
    url: Url,
    reference: Reference,
    model: Model = None,
    api_key: Key = None,
    reference_key: ReferenceKey = None,
    num_tokens: Annotated[int, typer.Option(min=1, help="Of each answer.")] = 64,
    top: Annotated[int, typer.Option(min=0, help="Log probabilities asked for at each token.")] = 5,
    concurrency: Concurrency = 4,
    out: Out = None,
) -> None:
    """Where the greedy answers of two servers part. Works without log probabilities of prompts, too."""
    with clean_errors():
        from paceline.lab.gates.limits import shown
        from paceline.lab.quality import Agreement, Caller, greedy_agreement

        texts = _texts(text, False)
        count = Counter(len(texts))

        async def work(caller: Caller) -> Agreement:
            async with Caller(reference, model=model, api_key=reference_key, max_concurrency=concurrency) as other:
                return await greedy_agreement(other, caller, texts, num_tokens=num_tokens, num_top=top, on_done=count)

        found = _run(work, url, model, api_key, concurrency)
        count.end()
        print(f"equal answers: {shown(found.whole, scale=100)} % of {len(found.texts)} prompts")
        print(f"chance to part: {shown(found.part_rate)} at each position, in {found.unit}")
        if found.num_failed:
            print(f"left out: {found.num_failed} prompts, for a call failed")
        if found.divergence is not None:
            show_divergence(found.divergence)
        _keep(found, out)


@app.command("perplexity")
def perplexity(
    text: TextFile,
    url: Url,
    reference: Annotated[str | None, typer.Option("--reference", help="A server to compare with.")] = None,
    model: Model = None,
    api_key: Key = None,
    reference_key: ReferenceKey = None,
    window: Annotated[int, typer.Option(min=2, help="Tokens of a window.")] = 1024,
    stride: Annotated[int, typer.Option(min=1, help="Tokens scored in each window.")] = 512,
    max_tokens: Annotated[int | None, typer.Option(min=2, help="Of the text.")] = None,
    concurrency: Concurrency = 2,
    out: Out = None,
) -> None:
    """Perplexity of a text, and its ratio to that at a reference."""
    with clean_errors():
        from paceline.lab import quality
        from paceline.lab.gates.limits import shown
        from paceline.lab.quality.perplexity import ratio

        words = _texts(text, True)[0]

        async def work(caller: Caller) -> quality.Perplexity:
            return await quality.perplexity(caller, words, window=window, stride=stride, max_tokens=max_tokens)

        found = _run(work, url, model, api_key, concurrency)
        print(f"perplexity {found.value:.4f} over {found.num_tokens} tokens, windows of {found.window} {found.method}")
        _keep(found, out)
        if reference is not None:
            other = _run(work, reference, model, reference_key, concurrency)
            print(f"reference {other.value:.4f}; ratio {shown(ratio(other, found), digits=5)}")


@app.command("lm-eval")
def lm_eval(
    tasks: Annotated[list[str], typer.Argument(help="Tasks of the lm-evaluation-harness.")],
    url: Url,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for its files and our scores.")],
    model: Model = None,
    api_key: Key = None,
    chat: Annotated[bool, typer.Option("--chat", help="Through the chat endpoint.")] = False,
    limit: Annotated[int | None, typer.Option(help="Items of each task.")] = None,
    tokenizer: Annotated[str | None, typer.Option(help="One the harness can load; log likelihoods need it.")] = None,
    include_path: Annotated[Path | None, typer.Option(help="Folder with tasks of your own.")] = None,
    python: Annotated[str | None, typer.Option(help="An interpreter that has lm_eval.")] = None,
    concurrency: Concurrency = 8,
) -> None:
    """Score tasks of the lm-evaluation-harness, where it is installed."""
    with clean_errors():
        from paceline.lab.quality import write_score
        from paceline.lab.quality.lm_eval import require_installed, run_lm_eval

        if python is None:
            require_installed()
        name = model or _run(lambda caller: caller.model(), url, model, api_key, 1)
        scores = run_lm_eval(
            url, name, tasks, out, form="chat" if chat else "completions", limit=limit, tokenizer=tokenizer,
            include_path=include_path, num_concurrent=concurrency, python=python, api_key=api_key,
        )  # fmt: skip
        for found in scores:
            show_score(found)
            write_score(out / f"{found.set}.json", found)


# --- shared


def show_score(found: SetScore) -> None:
    from paceline.lab.gates.limits import shown

    print(f"{found.set}: {shown(found.accuracy, scale=100)} % right of {len(found.items)} items ({found.mode})")
    for name, rate in found.error_rates().items():
        print(f"  {name.replace('_', ' ')}: {shown(rate, scale=100)} %")
    for name, part in found.by_group().items():
        print(f"  {name}: {shown(part, scale=100)} % of {part.n}")
    if found.num_truncated:
        print(f"  {found.num_truncated} replies were cut at max_tokens")
    if found.num_failed:
        first = next(item.error for item in found.items if item.error)
        print(f"  {found.num_failed} calls failed and count as wrong: {first}")
    for note in found.notes:
        print(f"  note: {note}")


def show_divergence(found: Comparison) -> None:
    from paceline.lab.gates.limits import shown

    print(
        f"{'positions':12s} {'n':>7s}  {'KL, nats (lower bound)':34s} {'at most*':>9s} {'untold':>7s}  top-1 agreement"
    )
    for bucket in found.buckets:
        upper = "-" if bucket.kl_upper is None else f"{bucket.kl_upper:.3g}"
        rest = "-" if bucket.rest is None else f"{100 * bucket.rest:.1f} %"
        top1 = f"{shown(bucket.top1, scale=100, digits=4)} %"
        print(f"{bucket.bucket:12s} {bucket.num_positions:7d}  {shown(bucket.kl):34s} {upper:>9s} {rest:>7s}  {top1}")
    print(f"* if no untold token's log ratio exceeds {found.assumed_ratio:.2f}, the largest one told ({found.method})")
    for note in found.notes:
        print(f"note: {note}")


class Counter:
    """Items done, on a terminal."""

    def __init__(self, total: int) -> None:
        self._total, self._done, self._shown = total, 0, sys.stderr.isatty()

    def __call__(self) -> None:
        self._done += 1
        if self._shown:
            print(f"\r{self._done} of {self._total}", end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        if self._shown:
            print(file=sys.stderr)


def _run(
    work: Callable[[Caller], Coroutine[Any, Any, T]], url: str, model: str | None, api_key: str | None, concurrency: int
) -> T:
    from paceline.lab.quality import Caller

    async def inner() -> T:
        async with Caller(url, model=model, api_key=api_key, max_concurrency=concurrency) as caller:
            return await work(caller)

    return asyncio.run(inner())


def _under_load(
    ask: Callable[[], SetScore], url: str, model: str | None, api_key: str | None, load: str, seed: int
) -> SetScore:
    import msgspec

    from paceline.lab.load import probe
    from paceline.lab.quality.under_load import load_beside
    from paceline.lab.workload import load_spec

    target = asyncio.run(probe(url, api_key=api_key, model=model))
    with load_beside(target, load_spec(load), seed=seed) as beside:
        found = ask()
    return msgspec.structs.replace(found, notes=(*found.notes, beside.sentence))


async def _judge(command: str | None, url: str | None, pattern: str | None) -> Judge | None:
    from paceline.errors import ConfigError
    from paceline.lab.quality import Caller, CommandJudge, ModelJudge, PhraseJudge

    if sum(each is not None for each in (command, url, pattern)) > 1:
        raise ConfigError("several judges were named", fix="name one of --judge-command, --judge-url, --judge-pattern")
    if command is not None:
        return CommandJudge(command)
    if url is not None:
        return ModelJudge(Caller(url))
    return PhraseJudge(pattern) if pattern is not None else None


def _texts(path: Path, whole: bool) -> list[str]:
    from paceline.errors import ConfigError

    try:
        words = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("the text cannot be read", seen=f"{path}: {error}") from None
    texts = [words] if whole else [part.strip() for part in words.split("\n\n")]
    texts = [each for each in texts if each.strip()]
    if not texts:
        raise ConfigError("the text is empty", seen=str(path))
    return texts


def _keep(value: Any, out: Path | None) -> None:
    if out is None:
        return
    import msgspec

    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_bytes(msgspec.json.format(msgspec.json.encode(value), indent=1))
