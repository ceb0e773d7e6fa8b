"""`mistral` and `mistral_args`: calls behind the special token `[TOOL_CALLS]`. One parser reads both.

[TOOL_CALLS][{"name": "f", "arguments": {"city": "Bern"}}]          tokenizer version 3 and later
[TOOL_CALLS]f[ARGS]{"city": "Bern"}                                 tokenizer version 11 and later
[TOOL_CALLS]f[CALL_ID]a1b2c3d4e[ARGS]{"city": "Bern"}

Any name is a call, also one that no tool has. In the newer form the marker stands before each call.
"""

from __future__ import annotations

import re

from paceline.text.tools.json_calls import JsonCallParser
from paceline.text.tools.reader import Steps

BEGIN, CALL_ID, ARGS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"
_NAME = re.compile(r"[^\s\[\]{}()\"'<>]*")


class MistralParser(JsonCallParser):
    def _read(self) -> Steps[None]:
        while (yield from self._find(BEGIN)):
            yield from self._attempt(self._block())

    def _block(self) -> Steps[None]:
        yield from self._expect(BEGIN)
        yield from self._space()
        if (yield from self._need()) in "[{":
            yield from self._calls(sure=True)
            return
        name = self._checked_name((yield from self._run(_NAME)), sure=True)
        yield from self._need()  # a name at the end of the text may lack its last letters
        if (yield from self._literal(CALL_ID)):
            yield from self._run(_NAME)
        yield from self._literal(ARGS)
        yield from self._space()
        yield from self._named(name)
