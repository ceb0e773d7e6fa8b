"""A scripted OpenAI-compatible server of known truth: what it sends, when, and what goes wrong are written down before.

Every number the lab shows is tested against it, and it is the null server by which a client finds its own limits. It
speaks HTTP only, counts one token per word, and keeps a log of what it saw and did on the monotonic clock. It makes no
text anybody would want to read, and it does not imitate the load behaviour of a real engine beyond slots, prefill per
token and a prefix cache.

It may import `paceline.contracts`, `paceline.errors` and `httptools`; no other part of the lab.
"""

from paceline.contracts.artefact import ChunkKind
from paceline.lab.mock.loading import load_script
from paceline.lab.mock.log import LogEntry, SentChunk
from paceline.lab.mock.process import MockProcess
from paceline.lab.mock.script import Fault, Flavour, Match, Reply, Rule, Script, ScriptChunk, Service, null_script
from paceline.lab.mock.server import MockServer

__all__ = [
    "ChunkKind",
    "Fault",
    "Flavour",
    "LogEntry",
    "Match",
    "MockProcess",
    "MockServer",
    "Reply",
    "Rule",
    "Script",
    "ScriptChunk",
    "SentChunk",
    "Service",
    "load_script",
    "null_script",
]
