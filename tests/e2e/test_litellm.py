"""`litellm` against a real server, in a process of its own: it is slow to import and warns a lot."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from tests.fakes.served_toy import serial_toy, serve_toy

from paceline.contracts.request import SamplingParams

SCRIPT = """
import asyncio, json, sys
import litellm
from litellm import acompletion, completion, text_completion

base, model = sys.argv[1] + "/v1", "openai/" + sys.argv[2]
chat = dict(model=model, api_base=base, api_key="none", num_retries=0, messages=[{"role": "user", "content": "Hello"}])
out = {}
answer = completion(**chat, temperature=0, max_tokens=8)
out["chat"] = answer.choices[0].message.content
out["usage"] = answer.usage.completion_tokens
parts = completion(**chat, seed=5, temperature=0.8, max_tokens=8, stream=True, stream_options={"include_usage": True})
out["stream"] = "".join((p.choices[0].delta.content or "") for p in parts if p.choices)

async def later():
    return "".join([(p.choices[0].delta.content or "") async for p in
                    await acompletion(**chat, temperature=0, max_tokens=8, stream=True) if p.choices])

out["async"] = asyncio.run(later())
out["text"] = text_completion(model="text-completion-openai/" + sys.argv[2], api_base=base, api_key="none",
                              prompt="Once", temperature=0, max_tokens=8).choices[0].text
arguments = {"type": "object", "properties": {"a": {"enum": [1]}}, "required": ["a"]}
tool = {"type": "function", "function": {"name": "f", "parameters": arguments}}
must = dict(tools=[tool], tool_choice="required", parallel_tool_calls=False, temperature=0, max_tokens=100)
call = completion(**chat, **must).choices[0]
made = call.message.tool_calls[0].function
out["tool"] = [call.finish_reason, made.name, made.arguments]
parts = list(completion(**chat, **must, stream=True))
out["pieces"] = "".join(t.function.arguments or "" for p in parts for t in p.choices[0].delta.tool_calls or [])
for name, kind, fields in (("bad", litellm.BadRequestError, dict(temperature=-3)),
                           ("none", litellm.NotFoundError, dict(model="openai/nobody"))):
    try:
        completion(**(chat | fields), max_tokens=2)
        out[name] = "no error"
    except kind as error:
        out[name] = error.status_code
print("RESULT " + json.dumps(out))
"""


def test_litellm_gets_the_engines_answers() -> None:
    serial = serial_toy()
    hello = [{"role": "user", "content": "Hello"}]
    (greedy,) = serial.answers(hello, SamplingParams(temperature=0.0, max_tokens=8))
    (seeded,) = serial.answers(hello, SamplingParams(seed=5, temperature=0.8, max_tokens=8))
    (text,) = serial.answers("Once", SamplingParams(temperature=0.0, max_tokens=8))
    with serve_toy({"max_model_len": 2048, "num_blocks": 1024}) as server:  # tools are told in words
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, server.url, server.model],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            env={**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"},  # else it asks the network for prices
        )
    assert done.returncode == 0, done.stderr[-3000:]
    out = json.loads(done.stdout.rsplit("RESULT ", 1)[1])
    assert out == {
        "chat": greedy.text,
        "usage": len(greedy.token_ids),
        "stream": seeded.text,
        "async": greedy.text,
        "text": text.text,
        "tool": ["tool_calls", "f", '{"a": 1}'],
        "pieces": '{"a": 1}',
        "bad": 400,
        "none": 404,
    }
