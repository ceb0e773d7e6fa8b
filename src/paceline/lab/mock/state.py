"""A script at work: which rule takes a request, services and their queues, counts, the log."""

from __future__ import annotations

import re
from collections import deque

from paceline.lab.mock.asks import Ask
from paceline.lab.mock.exchange import Exchange, ServiceState
from paceline.lab.mock.log import LogEntry
from paceline.lab.mock.script import Match, Reply, Rule, Script, Service


class MockState:
    """Everything that a new script replaces."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.log: deque[LogEntry] = deque(maxlen=script.log_size)
        self.open: set[Exchange] = set()
        self.num_requests = 0
        self.num_done = 0
        self.prompt_tokens = 0
        self.output_tokens = 0  # of requests that ended
        self.cache_resets = 0
        self._used = [0] * len(script.rules)
        self._patterns = [re.compile(r.match.regex) if r.match.regex is not None else None for r in script.rules]
        self._services = {-1: _at_work(script.fallback)}
        self._services |= {i: _at_work(rule.service) for i, rule in enumerate(script.rules)}

    @property
    def services(self) -> list[ServiceState]:
        return [state for state in self._services.values() if state is not None]

    def pick(self, ask: Ask, number: int) -> tuple[int, Reply | Service, ServiceState | None]:
        """The rule, what it has, and the service at work. -1: no rule takes it."""
        for i, rule in enumerate(self.script.rules):
            spent = rule.times is not None and self._used[i] >= rule.times
            if not spent and self._matches(i, rule.match, ask, number):
                self._used[i] += 1
                return i, _source(rule), self._services[i]
        return -1, self.script.fallback, self._services[-1]

    def _matches(self, index: int, match: Match, ask: Ask, number: int) -> bool:
        pattern = self._patterns[index]
        return (
            (match.path is None or match.path == ask.path)
            and (match.model is None or match.model == ask.model)
            and (match.streamed is None or match.streamed == ask.streamed)
            and (not match.nth or number in match.nth)
            and (match.every is None or (number + 1) % match.every == 0)
            and all(ask.headers.get(name.lower()) == value for name, value in match.header.items())
            and (match.contains is None or match.contains in ask.text)
            and (pattern is None or pattern.search(ask.text) is not None)
        )

    def forget_prefixes(self) -> None:
        self.cache_resets += 1
        for state in self.services:
            if state.cache is not None:
                state.cache.clear()

    def ended(self, exchange: Exchange) -> None:
        self.open.discard(exchange)
        self.num_done += 1
        self.prompt_tokens += exchange.entry.prompt_tokens
        self.output_tokens += exchange.entry.num_tokens_sent

    def stop(self) -> None:
        for exchange in self.open:
            exchange.cancel()
        self.open.clear()


def _source(rule: Rule) -> Reply | Service:
    source = rule.reply or rule.service
    assert source is not None  # check_script
    return source


def _at_work(source: Reply | Service | None) -> ServiceState | None:
    return ServiceState(source) if isinstance(source, Service) else None
