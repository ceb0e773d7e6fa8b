"""The server process: HTTP on one side, an engine in another process on the other.

Speaks the OpenAI API, decides nothing about tokens. One event loop does the I/O; text is made in a thread of its own;
the engine is reached through `contracts.ports.EngineClient` alone. May import text, contracts, errors and the options
in config.server; never engine, runtime, hub, assemble or torch.
"""
