"""Which files a configuration means."""

from __future__ import annotations

from pathlib import Path

from paceline import hub
from paceline.config import EngineConfig, Environment, read_environment
from paceline.errors import ModelError
from paceline.text import ChatTemplate, TextTokenizer


def find_files(config: EngineConfig, environment: Environment) -> hub.ModelFiles:
    access = hub.HubAccess(endpoint=environment.hf_endpoint, token=environment.hf_token, offline=environment.hf_offline)
    name = config.model.model
    if config.model.load_format == "dummy" and not name.startswith("dummy:"):
        name = f"dummy:{name}"
    files = hub.resolve(name, environment.home, config.model.revision, access=access)
    wanted = {"gguf": "gguf", "safetensors": "folder"}.get(config.model.load_format)
    if wanted is not None and files.kind != wanted:
        raise ModelError(
            f"{name} is not in the format asked for",
            seen=f"{files.path}: {files.kind}",
            expected=f"load_format={config.model.load_format}",
            fix="leave load_format at auto",
        )
    return files


def load_template(config: EngineConfig, files: hub.ModelFiles, tokenizer: TextTokenizer | None = None) -> ChatTemplate:
    """The model's chat templates, or the one the configuration names instead. Without a tokenizer its special tokens
    are not known to them."""
    given = config.model.chat_template
    special = {} if tokenizer is None else tokenizer.special_tokens
    return ChatTemplate.load(files, override=None if given is None else Path(given), special_tokens=special)


def require_chat_template(config: EngineConfig) -> None:
    """Raise ConfigError when the model has no chat template and none is given. Reads no weights."""
    load_template(config, find_files(config, read_environment())).require()
