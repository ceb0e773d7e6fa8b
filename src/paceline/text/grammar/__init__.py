"""Structured output: what an answer must look like (`GrammarSpec`), and llguidance behind the engine's port.

    spec = GrammarSpec(kind="json", value={"type": "object"})      checked for size and kind as it is made
    data = encode_spec(spec)                                       -> Request.grammar; also the key of every cache
    GrammarCompiler.of(tokenizer, vocab_size=..., eos_token_ids=...)    a contracts.ports.GrammarFactory, for the engine
    GrammarChecker.of(tokenizer, vocab_size=..., eos_token_ids=...)     tries grammars of strangers, for a server

A grammar of a stranger can take seconds and hundreds of megabytes to compile, whatever limits the library is given. So
a server has it tried first by `GrammarChecker`, a small process that is ended when it takes too long, and hands to the
engine only what went well there.

May import contracts, errors and `text.tokenizer`; llguidance only inside functions, torch never.
"""

from paceline.text.grammar.checker import GrammarChecker
from paceline.text.grammar.compiler import GrammarCompiler
from paceline.text.grammar.spec import GrammarSpec, decode_spec, encode_spec

__all__ = ["GrammarChecker", "GrammarCompiler", "GrammarSpec", "decode_spec", "encode_spec"]
