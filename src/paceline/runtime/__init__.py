"""The computing side: the only package that imports torch.

    executor -> model_runner -> models -> layers -> kernels         loader feeds models; quant plugs into layers.linear
             -> input_batch, sampler, logit_rules, logprobs, noise

It does what a plan says and decides nothing: which rows run, how many positions and which blocks come from the engine
through `contracts.step`. A plan and the plans before it are all an executor knows, so one in another process (`remote`)
gives the same tokens. May import contracts and errors, the loader also the hub; never the engine, text or config.

Import from the module that defines a name: `executor` (TorchExecutor, build_executor), `worker` (Worker), `worst_plan`
(StepLimits), `remote` (RemoteExecutor, serve_executor), `device`. Nothing is imported here, so that naming the package
does not load torch.
"""

from __future__ import annotations

__all__: list[str] = []
