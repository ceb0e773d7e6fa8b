"""The OpenAI-compatible endpoints: from a checked body to the engine and back.

`generation` runs one call; `chat`, `completions`, `tokens` and `models` word it; `protocol` holds what clients may
send. May import the rest of the server, text and contracts; never the engine.
"""
