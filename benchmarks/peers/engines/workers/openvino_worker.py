"""OpenVINO GenAI's continuous batching, in process; it has no server, so it carries out schedules as well."""

import time

import worker_loop

answers = worker_loop.take_stdout()

import numpy as np  # noqa: E402
import openvino  # noqa: E402
import openvino_genai  # noqa: E402


class Pipeline:
    def __init__(self, given):
        config = openvino_genai.SchedulerConfig()
        config.cache_size = given["cache_gib"]
        config.max_num_batched_tokens = given["max_num_batched_tokens"]
        config.max_num_seqs = given["max_num_seqs"]
        config.enable_prefix_caching = True
        config.dynamic_split_fuse = True
        properties = {"INFERENCE_NUM_THREADS": given["threads"]}
        self.inner = openvino_genai.ContinuousBatchingPipeline(given["model"], config, "CPU", properties)
        self.count = 0

    def add(self, ids, num_out):
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = config.min_new_tokens = num_out
        config.ignore_eos, config.do_sample = True, False
        self.count += 1
        return self.inner.add_request(self.count, openvino.Tensor(np.array([ids], dtype=np.int64)), config)

    def generate(self, prompts, num_out):
        handles = [self.add(ids, num_out) for ids in prompts]
        while self.inner.has_non_finished_requests():
            self.inner.step()
        return [list(handle.read_all()[0].generated_ids) for handle in handles]

    def online(self, schedule, limit_s, late_s, most_late):
        """Requests are added between steps, when their time has come; times are from the start of the schedule."""
        begun = time.perf_counter()
        times = [None] * len(schedule)
        running, upcoming, num_late = {}, 0, 0
        while upcoming < len(schedule) or running:
            now = time.perf_counter() - begun
            if now > limit_s or num_late > most_late:
                break
            while upcoming < len(schedule) and schedule[upcoming]["at_s"] <= now:
                request = schedule[upcoming]
                running[upcoming] = self.add(request["ids"], request["num_out"])
                times[upcoming] = {"first_s": None, "last_s": None, "num_tokens": 0}
                upcoming += 1
            if not running:
                time.sleep(max(0.0, schedule[upcoming]["at_s"] - now))
                continue
            self.inner.step()
            now = time.perf_counter() - begun
            for index, handle in list(running.items()):
                seen = times[index]
                while handle.can_read():
                    seen["num_tokens"] += sum(len(part.generated_ids) for part in handle.read().values())
                    if seen["first_s"] is None:
                        seen["first_s"] = now
                        num_late += now - schedule[index]["at_s"] > late_s
                    seen["last_s"] = now
                if seen["num_tokens"] >= schedule[index]["num_out"]:
                    del running[index]
        for handle in running.values():
            handle.drop() if hasattr(handle, "drop") else None
        while self.inner.has_non_finished_requests():
            self.inner.step()
        return times[:upcoming] if num_late > most_late else times


def main():
    pipeline = Pipeline(worker_loop.options())
    version = openvino_genai.get_version() if hasattr(openvino_genai, "get_version") else openvino_genai.__version__
    worker_loop.work(answers, pipeline.generate, version=version, online=pipeline.online)


if __name__ == "__main__":
    main()
