"""Quality: whether the answers are still right. Scores sets over HTTP, compares two servers, never changes either.

    validity       validators that a class of requests can name; the load generator calls them for each answer
    items, readers sets as JSON lines: a shipped one, and public files
    score          one set against one server, alone or under load
    paired         two scores of a set: McNemar, an interval, "not worse by more than"
    divergence     KL and top-1 agreement by position, from log probabilities
    agreement      where two greedy answers part
    perplexity     of a text, by windows
    lm_eval        the harness of that name, where it is installed

May import `paceline.lab.load`, `workload` and `stats`. It measures no latency and decides no gate.
"""

from __future__ import annotations

from paceline.lab.quality.agreement import Agreement, greedy_agreement
from paceline.lab.quality.caller import Caller
from paceline.lab.quality.distributions import PromptLogprobs
from paceline.lab.quality.divergence import Comparison
from paceline.lab.quality.items import Item, QualitySet
from paceline.lab.quality.paired import SetComparison, compare_scores
from paceline.lab.quality.perplexity import Perplexity, perplexity
from paceline.lab.quality.prompt_divergence import prompt_divergence
from paceline.lab.quality.readers import SHIPPED, load_set
from paceline.lab.quality.refusal import CommandJudge, Judge, ModelJudge, PhraseJudge
from paceline.lab.quality.score import SetScore, read_score, score_set, write_score
from paceline.lab.quality.validity import VALIDATORS, check_names, validate

__all__ = [
    "SHIPPED",
    "VALIDATORS",
    "Agreement",
    "Caller",
    "CommandJudge",
    "Comparison",
    "Item",
    "Judge",
    "ModelJudge",
    "Perplexity",
    "PhraseJudge",
    "PromptLogprobs",
    "QualitySet",
    "SetComparison",
    "SetScore",
    "check_names",
    "compare_scores",
    "greedy_agreement",
    "load_set",
    "perplexity",
    "prompt_divergence",
    "read_score",
    "score_set",
    "validate",
    "write_score",
]
