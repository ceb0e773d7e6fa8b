"""Small traces in the published formats, written for these tests."""

from __future__ import annotations

import gzip
import io
import tarfile
from pathlib import Path

AZURE_2023 = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.2319600,3180,8
2023-11-16 18:17:05.9799600,110,27
2023-11-16 18:17:05.9799600,7433,14
"""
AZURE_2024 = """TIMESTAMP,ContextTokens,GeneratedTokens
2024-05-12 00:00:00.001163+00:00,2162,5
2024-05-12 00:00:01.501163+00:00,2399,6
"""
BURSTGPT = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,ChatGPT,1087,230,1317,Conversation log
118,GPT-4,417,0,417,API log
"""
BURSTGPT_SESSIONS = """Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type
1.5,7,2.0,GPT-4,10,20,30,Conversation log
4,7,2.0,GPT-4,11,21,32,Conversation log
"""
MOONCAKE = """{"timestamp": 0, "input_length": 1200, "output_length": 52, "hash_ids": [0, 1, 2]}
{"timestamp": 0, "input_length": 900, "output_length": 26, "hash_ids": [0, 3]}
{"timestamp": 3000, "input_length": 1100, "output_length": 90, "hash_ids": [0, 1, 4]}
{"timestamp": 9000, "input_length": 300, "output_length": 4, "hash_ids": [5]}
"""
BAILIAN = (
    '{"chat_id": 1, "parent_chat_id": -1, "timestamp": 61.1, "input_length": 40, "output_length": 13,'
    ' "type": "text", "turn": 1, "hash_ids": [1, 2, 3]}\n'
    '{"chat_id": 2, "parent_chat_id": 1, "timestamp": 75.6, "input_length": 60, "output_length": 9,'
    ' "type": "text", "turn": 2, "hash_ids": [1, 2, 4, 5]}\n'
)
SERVEGEN_RATES = """0,0,0,,0,0
600,2.0,2.5,Gamma,0.16,3.1
1200,1.0,0.7,Weibull,1.4,1.1
1800,0.5,0,,0,0
"""
SERVEGEN_LENGTHS = (
    '{"0": {"input_tokens": "{45: 0.25, 46: 0.75}", "output_tokens": "{7: 1.0}", "reason_ratio": "{0.0: 1.0}"},'
    ' "1200": {"input_tokens": "{900: 1.0}", "output_tokens": "{80: 1.0}"}}'
)


def servegen(folder: Path, *, lengths: bool = True) -> Path:
    """A .tar.gz with two clients."""
    path = folder / "pool.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for client in ("chunk-0", "chunk-7"):
            _add(archive, f"data/pool/{client}-trace.csv", SERVEGEN_RATES)
            if lengths:
                _add(archive, f"data/pool/{client}-dataset.json", SERVEGEN_LENGTHS)
        _add(archive, "LICENSE", "words")
    return path


def _add(archive: tarfile.TarFile, name: str, text: str) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(text.encode())
    archive.addfile(member, io.BytesIO(text.encode()))


def saved(folder: Path, name: str, text: str) -> Path:
    """A file with this text, packed if its name ends in .gz."""
    path = folder / name
    data = text.encode()
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return path
