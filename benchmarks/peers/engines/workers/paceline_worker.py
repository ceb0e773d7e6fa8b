"""paceline through its LLM class."""

import worker_loop

answers = worker_loop.take_stdout()

import paceline  # noqa: E402


def main():
    llm = paceline.LLM(**worker_loop.options())

    def generate(prompts, num_out):
        results = llm.generate(prompts, temperature=0.0, max_tokens=num_out, ignore_eos=True)
        return [result.outputs[0].token_ids for result in results]

    knobs = {name: str(value) for name, value in vars(llm.knobs).items()} if hasattr(llm.knobs, "__dict__") else {}
    worker_loop.work(answers, generate, version=paceline.__version__, about=knobs)
    llm.close()


if __name__ == "__main__":
    main()
