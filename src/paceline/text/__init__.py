"""Text: tokenizer, incremental detokenizer, chat templates, and the pipeline that puts them around an engine.

Turns prompts (text, ids, messages) into requests and outputs into text, byte for byte. May import contracts, errors and
the file readers of `hub`; never torch, never the engine. The engine sees ids, and text only as bytes:
`Tokenizer.token_bytes` is what it matches stop strings against, and its `hold_bytes` and `cut_bytes` come back here.

`tokenizers` and `jinja2` are imported when first needed, so that importing this package is quick.
"""

from paceline.text.chat_template import ChatTemplate
from paceline.text.detokenizer import Detokenizer
from paceline.text.gguf_vocabulary import tokenizer_from_gguf
from paceline.text.loading import load_tokenizer
from paceline.text.pipeline import TextDelta, TextPipeline, TextStream
from paceline.text.tokenizer import TextTokenizer

__all__ = [
    "ChatTemplate",
    "Detokenizer",
    "TextDelta",
    "TextPipeline",
    "TextStream",
    "TextTokenizer",
    "load_tokenizer",
    "tokenizer_from_gguf",
]
