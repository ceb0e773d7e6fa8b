"""llama.cpp through its own server on the loopback, as it has no other front that batches.

A server has a fixed number of slots with a fixed context each, so it is started for the load: one slot for one prompt,
few for prompts that share a prefix (a slot reuses what it computed before), many for many.
"""

import ctypes
import http.client
import json
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import worker_loop

answers = worker_loop.take_stdout()
START_S = 120.0


def die_with_parent():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    def __init__(self, given):
        self.given = given
        self.child = None
        self.slots = self.context = 0

    def serve(self, slots, context):
        """At least `context` tokens in each of `slots` slots."""
        if self.child is not None and (slots, context) == (self.slots, self.context):
            return
        self.stop()
        self.slots, self.context, self.port = slots, context, free_port()
        given = self.given
        command = [
            given["program"],
            "-m",
            given["model"],
            "--no-webui",
            "--host",
            "127.0.0.1",
            "--port",
            str(self.port),
        ]
        command += ["-t", str(given["threads"]), "-tb", str(given["threads"]), "-np", str(slots)]
        command += ["-c", str(slots * context), "-b", "2048", "-ub", "512"]
        log = open(given["log"], "a")  # noqa: SIM115
        self.child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=die_with_parent
        )
        end = time.monotonic() + START_S
        while time.monotonic() < end:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=2) as answer:
                    if answer.status == 200:
                        return
            except OSError:
                pass
            if self.child.poll() is not None:
                break
            time.sleep(0.05)
        sys.exit(f"llama-server did not start, see {given['log']}")

    def stop(self):
        if self.child is not None:
            self.child.terminate()
            self.child.wait()
            self.child = None

    def complete(self, ids, num_out):
        body = {"prompt": ids, "n_predict": num_out, "temperature": 0, "ignore_eos": True}
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/completion", json.dumps(body | {"return_tokens": True}), headers)
        answer = json.loads(connection.getresponse().read())
        connection.close()
        return answer["tokens"]

    def prepare(self, prompts, num_out):
        longest = max(map(len, prompts)) + num_out
        if len(prompts) == 1:
            self.serve(1, 4096)
        elif shared(prompts) >= 64:
            self.serve(min(4, len(prompts)), longest + 64)
        else:
            self.serve(min(self.given["slots"], len(prompts)), longest + 64)

    def generate(self, prompts, num_out):
        with ThreadPoolExecutor(len(prompts)) as pool:
            return list(pool.map(lambda ids: self.complete(ids, num_out), prompts))


def shared(prompts):
    """Tokens that all begin with."""
    return next((i for i, column in enumerate(zip(*prompts, strict=False)) if len(set(column)) > 1), len(prompts[0]))


def main():
    server = Server(worker_loop.options())
    server.serve(1, 4096)
    build = subprocess.run([server.given["program"], "--version"], capture_output=True, text=True, check=False)
    words = (build.stderr + build.stdout).split("version:")[-1].split()
    worker_loop.work(answers, server.generate, version=words[0], prepare=server.prepare)
    server.stop()


if __name__ == "__main__":
    main()
