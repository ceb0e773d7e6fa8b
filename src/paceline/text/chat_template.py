"""Chat templates: messages to the text a model was trained on.

A model may bring one template or several by name; "tool_use" serves requests with tools where it exists, "default" the
rest. A template given by the user goes before the model's. Messages reach the template as plain JSON values: keys whose
value is None are left out, and a content made of text parts becomes one string unless the template handles parts
itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from paceline.errors import ConfigError, ModelError, RequestError
from paceline.hub.gguf_file import GGUFFile
from paceline.text.gguf_vocabulary import templates_from_gguf
from paceline.text.loading import optional_json
from paceline.text.tokenizer import utf8

if TYPE_CHECKING:
    from collections.abc import Callable

    import jinja2

Message: TypeAlias = Mapping[str, Any]
MAX_CHARS = 1 << 22  # of a rendered chat, unless the caller knows better
_MAX_WHERE = 200  # characters of a place in a message; longer ones are cut
NO_TEMPLATE = "this model has no chat template: it is a base model, which continues text"
NO_TEMPLATE_FIX = "send the prompt as plain text, or give a template with --chat-template FILE"


class ChatTemplate:
    """The templates of one model. Rendering changes nothing, so threads may share it."""

    def __init__(
        self,
        sources: Mapping[str, str],
        *,
        special_tokens: Mapping[str, str] | None = None,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        """`sources`: template text by name, empty for a base model. `special_tokens`: what templates see as bos_token,
        eos_token and so on."""
        self.sources = dict(sources)
        self.special_tokens = dict(special_tokens or {})
        self._now = now
        self._compiled: dict[str, tuple[jinja2.Template, bool]] = {}

    @classmethod
    def load(
        cls, source: Any, *, override: str | Path | None = None, special_tokens: Mapping[str, str] | None = None
    ) -> ChatTemplate:
        """Templates of a model. `source` is as for `load_tokenizer`. `override` is a template's text, a file that holds
        one, or the name of one of the model's; it is compiled here, so that a mistake shows at start (ConfigError).
        """
        own = _own_templates(Path(getattr(source, "path", source)))
        if override is None:
            return cls(own, special_tokens=special_tokens)
        template = cls({"default": _override_text(override, own)}, special_tokens=special_tokens)
        template.compiled("default")
        return template

    @property
    def available(self) -> bool:
        """False for a base model without a template."""
        return bool(self.sources)

    def require(self) -> None:
        """Raise ConfigError when the model has no template, before anybody writes a message."""
        if not self.available:
            raise ConfigError(NO_TEMPLATE, fix=NO_TEMPLATE_FIX)

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        max_chars: int = MAX_CHARS,
        **variables: Any,
    ) -> str:
        """The prompt as text, special tokens written out (encode it with parse_special=True, add_special=False).

        `add_generation_prompt` ends it with the start of the assistant's turn. `variables` are passed on to the
        template. Raises RequestError when messages are malformed, when the template refuses them (with its words and,
        if it can be told, which message it looked at last), or when there is no template.
        """
        plain, touched = _checked_messages(messages), _Touched()
        name = self._choose(tools is not None)
        template, parts = self.compiled(name)
        if not parts:
            plain = [_joined_parts(message, index) for index, message in enumerate(plain)]
        values = {
            **self.special_tokens,
            **_plain(variables),
            "messages": [_Watched(message, index, touched) for index, message in enumerate(plain)],
            "tools": None if tools is None else _plain(tools),
            "documents": _plain(variables.get("documents")),
            "add_generation_prompt": add_generation_prompt,
        }
        from paceline.text.template_limits import TemplateLimitError
        from paceline.text.template_sandbox import line_of, run_template

        try:
            return run_template(template, values, max_chars=max_chars)
        except TemplateLimitError as error:
            raise RequestError("the chat template went past its limits", param="messages", seen=str(error)) from None
        except Exception as error:  # a template may raise anything; all of it is about this request
            where = "messages" if touched.index is None else f"messages[{touched.index}]"
            last = "no message read yet" if touched.index is None else f"{where} read last"
            raise RequestError(
                f"the chat template refused the messages: {error}",
                param=where,
                seen=f"{type(error).__name__} at line {line_of(error)} of the template, {last}",
                fix="send messages the model's template accepts, or give another one with --chat-template",
            ) from error

    def compiled(self, name: str) -> tuple[jinja2.Template, bool]:
        """(template, whether it handles contents made of parts). Raises ConfigError with the line of a mistake."""
        if name not in self._compiled:
            import jinja2

            from paceline.text.template_sandbox import compile_template, takes_parts

            source = self.sources[name]
            try:
                self._compiled[name] = (compile_template(source, now=self._now), takes_parts(source))
            except jinja2.TemplateSyntaxError as error:
                raise ConfigError(
                    f"the chat template {name!r} is not valid Jinja: {error.message}",
                    seen=f"line {error.lineno}: {source.splitlines()[error.lineno - 1].strip()[:120]}"
                    if source
                    else "nothing",
                    fix="mend that line, or give another template with --chat-template",
                ) from error
        return self._compiled[name]

    def source(self, *, tools: bool) -> str | None:
        """Text of the template that serves requests with `tools`, or those without; None where that is refused."""
        try:
            return self.sources[self._choose(tools)]
        except RequestError:
            return None

    def _choose(self, tools: bool) -> str:
        if not self.sources:
            raise RequestError(NO_TEMPLATE, param="messages", fix=NO_TEMPLATE_FIX)
        if tools and "tool_use" in self.sources:
            return "tool_use"
        if "default" in self.sources:
            return "default"
        if len(self.sources) == 1:
            return next(iter(self.sources))
        raise RequestError(
            "this model has several chat templates and none is the default",
            param="messages",
            seen=", ".join(sorted(self.sources)),
            fix="choose one with --chat-template NAME",
        )


def _own_templates(path: Path) -> dict[str, str]:
    """Templates by name, from a GGUF file or from the folder that `path` is or lies in."""
    if path.suffix == ".gguf":
        return templates_from_gguf(GGUFFile(path).metadata)
    folder = path if path.is_dir() else path.parent
    listed = optional_json(folder / "tokenizer_config.json").get("chat_template")
    sources = {"default": listed} if isinstance(listed, str) else {}
    for entry in listed if isinstance(listed, list) else ():
        if not isinstance(entry, dict) or not {"name", "template"} <= entry.keys():
            raise ModelError(
                "tokenizer_config.json lists a chat template without name or template",
                seen=f"{entry!r:.80}",
                fix="copy it from the model again",
            )
        sources[str(entry["name"])] = str(entry["template"])
    if (folder / "chat_template.jinja").is_file():
        sources["default"] = (folder / "chat_template.jinja").read_text(encoding="utf-8")
    for file in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        sources[file.stem] = file.read_text(encoding="utf-8")
    return sources


def _override_text(override: str | Path, own: Mapping[str, str]) -> str:
    text = str(override)
    if text in own:
        return own[text]
    if "{" in text or "\n" in text:
        return text
    try:
        return Path(text).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(
            "cannot read the chat template",
            seen=f"{text}: {getattr(error, 'strerror', None) or error}",
            expected="a file"
            + (f", or one of the model's own: {', '.join(sorted(own))}" if own else ", or the template's text"),
        ) from error


class _Touched:
    """Which message the template read last."""

    index: int | None = None


class _Watched(dict[str, Any]):
    """A message that notes when it is read, so that a refusal can name it."""

    def __init__(self, message: Mapping[str, Any], index: int, touched: _Touched) -> None:
        super().__init__(message)
        self._index, self._touched = index, touched

    def __getitem__(self, key: str) -> Any:
        self._touched.index = self._index
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self._touched.index = self._index
        return super().get(key, default)

    def __contains__(self, key: object) -> bool:
        self._touched.index = self._index
        return super().__contains__(key)


# What jinja shows when a template asks for a key that a message lacks: 'message object' has no attribute 'content'.
_Watched.__name__, _Watched.__module__ = "message", "builtins"


def _checked_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Sequence) or not messages:
        raise RequestError(
            "messages must be a list with at least one message",
            param="messages",
            seen=f"{type(messages).__name__}: {messages!r:.80}",
        )
    checked = []
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        if not isinstance(message, Mapping):
            raise RequestError(
                "a message must be an object", param=where, seen=f"{message!r:.80}", expected="role and content"
            )
        role, content = message.get("role"), message.get("content")
        if not isinstance(role, str) or not role:
            raise RequestError(
                "a message needs a role",
                param=f"{where}.role",
                seen=f"{role!r:.80}",
                expected="system, user, assistant or tool",
            )
        if not (content is None or isinstance(content, str) or _is_list(content)):
            raise RequestError(
                "a message's content must be text or a list of parts", param=f"{where}.content", seen=f"{content!r:.80}"
            )
        plain = {key: value for key, value in _plain(message).items() if value is not None}
        _check_text(plain, where)
        checked.append(plain)
    return checked


def _joined_parts(message: dict[str, Any], index: int) -> dict[str, Any]:
    """The message with a content of text parts as one string."""
    content = message.get("content")
    if not isinstance(content, list):
        return message
    texts = []
    for number, part in enumerate(content):
        text = part if isinstance(part, str) else part.get("text") if isinstance(part, dict) else None
        if not isinstance(text, str):
            raise RequestError(
                "this model takes text only",
                param=f"messages[{index}].content[{number}]",
                seen=f"{part!r:.80}",
                expected='{"type": "text", "text": "..."}',
            )
        texts.append(text)
    return {**message, "content": "".join(texts)}


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))


def _check_text(value: Any, where: str) -> None:
    """Every string of a plain value is valid Unicode. The place is cut at each level: it is made for every value."""
    if isinstance(value, str):
        utf8(value, where)
    elif isinstance(value, dict):
        for key, item in value.items():
            _check_text(item, f"{where}.{key[:_MAX_WHERE]}"[:_MAX_WHERE])
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _check_text(item, f"{where}[{index}]"[:_MAX_WHERE])


def _plain(value: Any) -> Any:
    """The value out of plain JSON types only: objects have methods the sandbox does not know. Raises RequestError."""
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if _is_list(value):
        return [_plain(item) for item in value]
    if isinstance(value, str):  # an enum, say
        return str.__str__(value)
    raise RequestError("a chat template takes plain JSON values", param="messages", seen=type(value).__name__)
