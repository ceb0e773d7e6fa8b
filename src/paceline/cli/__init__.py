"""The command line: one file per command, thin over `paceline.llm`, `paceline.assemble` and `paceline.hub`.

Nothing heavy is imported until a command that needs it runs: `paceline --help` loads no torch. Errors of the library
are printed without a traceback; see `errors.py` here.
"""
