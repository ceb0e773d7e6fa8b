"""What a model's chat template adds to simulated prompts: it is shared, as prefixes are."""

from __future__ import annotations

from paceline import hub
from paceline.assemble.files import load_template
from paceline.config import EngineConfig
from paceline.errors import PacelineError
from paceline.sim.prompts import NO_TEMPLATE, Template
from paceline.text import load_tokenizer

_MARKS = ("first", "second")


def template_of(config: EngineConfig, files: hub.ModelFiles | None) -> Template:
    """Counted with the model's own tokenizer, as the server would encode a chat. `NO_TEMPLATE` where there are no files
    (a card of the planner), no tokenizer among them, or no chat template: such a model is asked for completions."""
    if files is None:
        return NO_TEMPLATE
    try:
        tokenizer = load_tokenizer(config.model.tokenizer or files)
        template = load_template(config, files, tokenizer)
        try:
            text = template.render([{"role": "system", "content": _MARKS[0]}, {"role": "user", "content": _MARKS[1]}])
        except PacelineError:  # some take no system messages
            text = template.render([{"role": "user", "content": _MARKS[0]}])
    except PacelineError:
        return NO_TEMPLATE
    before, _, rest = text.partition(_MARKS[0])
    between, second, _ = rest.partition(_MARKS[1])

    def count(part: str) -> int:
        return len(tokenizer.encode(part, add_special=False, parse_special=True))

    return Template(before=count(before), between=count(between) if second else 0)
