"""What every engine's process does, whatever the engine: read an order, do it, answer. The standard library alone.

    worker.py '{"model": ..., "threads": 2, ...}'

Orders and answers are lines of JSON on standard input and output; whatever the engine prints goes to standard error.
The first answer says that the engine is ready. The process ends when its input does.

    {"prompts": [[ids], ...], "num_out": 128}       all at once -> {"seconds", "lengths"}
    {..., "keep": true}                              -> and "outputs"
    {"schedule": [{"at_s", "ids", "num_out"}, ...], "limit_s": 60, "late_s": 1, "most_late": 30}   without a server
                                                     -> {"times": [{"first_s", "last_s", "num_tokens"} or null, ...]}
        fewer times than requests: stopped, as more than `most_late` waited longer than `late_s`
"""

import json
import os
import sys
import time


def options():
    """The engine's, from the command line."""
    return json.loads(sys.argv[1])


def take_stdout():
    """Standard output for answers alone; engines and their libraries print to standard error from now on."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return answers


def work(answers, generate, *, version, about=None, online=None, prepare=None):
    """`generate(prompts, num_out)` gives the output ids of each prompt, in order. `prepare` is called with the same
    before the clock starts; `online(**order)`: see above. Seconds are from all prompts handed over to all
    answers there."""

    def say(answer):
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    say({"ready": True, "version": version, "about": about or {}})
    for line in sys.stdin:
        order = json.loads(line)
        if "schedule" in order:
            say({"times": online(**order)})
            continue
        if prepare is not None:
            prepare(order["prompts"], order["num_out"])
        begun = time.perf_counter()
        outputs = generate(order["prompts"], order["num_out"])
        seconds = time.perf_counter() - begun
        answer = {"seconds": seconds, "lengths": sorted({len(output) for output in outputs})}
        if order.get("keep"):
            answer["outputs"] = outputs
        say(answer)
