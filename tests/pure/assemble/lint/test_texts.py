"""PL208: invented texts and forced lengths, with speculation or a mixture of experts; as people write them, not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.pure.assemble.lint.kit import Case, numbers

from paceline.assemble.lint import ALONE, Serving, lint_config, serving_of
from paceline.cost.prior import Degrees

DENSE, ROUTED = {"model": "llama-3.1-8b", "max_model_len": 4096}, {"model": "qwen3-30b-a3b", "max_model_len": 4096}
DRAFTS = serving_of(acceptance=(1.7, 2.2))
INVENTED = {"content": "synthetic"}
IDS = {"content": "token_ids", "endpoint": "token_ids", "exact_output": False}


def case(folder: Path, settings: dict[str, Any], serving: Serving, stream: dict[str, Any]) -> Case:
    whole = {"arrival": {"kind": "closed", "slots": 2}, "input": 64, "output": 16, **stream}
    return Case(folder, settings, {"num_requests": 6, "stream": [whole]}, serving=serving)


@pytest.mark.parametrize(("settings", "serving"), [(DENSE, DRAFTS), (ROUTED, ALONE)])
@pytest.mark.parametrize("stream", [INVENTED, IDS, {}])
def test_what_nobody_would_send_is_found_and_the_fix_clears_it(
    tmp_path: Path, settings: dict[str, Any], serving: Serving, stream: dict[str, Any]
) -> None:
    wrong = case(tmp_path, settings, serving, stream)
    predicted, measured = wrong.predicted("PL208"), wrong.measured("PL208").finding
    assert predicted is not None
    assert measured is not None
    assert predicted.fix == measured.fix
    assert numbers(measured)["answers that end at the planned length"] == 1.0
    assert ("content" in predicted.fix.workload) == (stream != {})
    assert ("exact_output" in predicted.fix.workload) == (stream != IDS)
    right = case(tmp_path, settings, serving, {**stream, **predicted.fix.workload})
    assert right.predicted("PL208") is None
    assert right.measured("PL208", name="right").finding is None


def test_without_either_feature_the_text_does_not_matter() -> None:
    result = lint_config(None, DENSE, _beside("h100-sxm", ALONE))
    assert "speculation" in result.skipped["PL208"]
    result = lint_config(None, ROUTED, _beside("h100-sxm", serving_of(ep=2)))
    assert "a workload" in result.skipped["PL208"]
    assert serving_of(ep=2).degrees == Degrees(ep=2)


def _beside(device: str, serving: Serving):  # type: ignore[no-untyped-def]
    from paceline.assemble.lint import Beside

    return Beside(device=device, serving=serving)
