"""Where a tokenizer comes from: a Hugging Face folder, a SentencePiece model, or the metadata of a GGUF file.

Which end-of-text ids a model has is scattered: the union of what the files name is taken (generation_config.json or
config.json, the tokenizer's own eos token; for GGUF the eos, eot and eom ids and control tokens with well-known names).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.errors import ModelError, UnsupportedError
from paceline.hub.files import read_json
from paceline.hub.gguf_file import GGUFFile
from paceline.text.byte_level import byte_level_bytes
from paceline.text.gguf_vocabulary import tokenizer_from_gguf
from paceline.text.sentencepiece_bpe import (
    SPACE,
    PieceType,
    add_typed_tokens,
    build_sentencepiece,
    sentencepiece_bytes,
)
from paceline.text.tokenizer import TextTokenizer

if TYPE_CHECKING:
    from collections.abc import Callable

    import tokenizers

ROLES = ("bos_token", "eos_token", "unk_token", "pad_token")


def load_tokenizer(source: Any) -> TextTokenizer:
    """The tokenizer of a model: `source` is a folder, a .gguf, a tokenizer.json, a tokenizer.model, or an object whose
    `path` is one of these. Raises ModelError when there is none or it is broken, UnsupportedError when its kind is
    unknown.
    """
    path = Path(getattr(source, "path", source))
    if path.is_dir():
        return _from_folder(path)
    if not path.is_file():
        raise ModelError(
            "no tokenizer: the path does not exist", seen=str(path), fix="check the path or pull the model"
        )
    if path.suffix == ".gguf":
        return tokenizer_from_gguf(GGUFFile(path).metadata)
    if path.suffix == ".model":
        return _from_folder(path.parent, model=path)
    return _from_folder(path.parent, json_file=path)


def _from_folder(folder: Path, *, json_file: Path | None = None, model: Path | None = None) -> TextTokenizer:
    if json_file is None and model is None:
        if (folder / "tokenizer.json").is_file():
            json_file = folder / "tokenizer.json"
        elif (folder / "tokenizer.model").is_file():
            model = folder / "tokenizer.model"
        else:
            raise ModelError(
                "no tokenizer in the model's folder",
                seen=str(folder),
                expected="tokenizer.json or tokenizer.model",
                fix="copy the tokenizer files of the model into it",
            )
    config = optional_json(folder / "tokenizer_config.json")
    add_bos, add_eos = config.get("add_bos_token"), config.get("add_eos_token")
    roles = _folder_roles(folder, config)
    if json_file is not None:
        backend = _read_tokenizer_json(json_file)
        piece_bytes, strip_space = _decoding(backend)
        if backend.post_processor is None:
            add_bos, add_eos = bool(add_bos), bool(add_eos)
    else:
        assert model is not None
        backend, own_roles, strip_space = _read_sentencepiece(model)
        piece_bytes, roles = sentencepiece_bytes, {**own_roles, **roles}
        add_bos, add_eos = add_bos is not False, bool(add_eos)
    _add_listed_tokens(backend, config)
    size = max((index for index in backend.get_added_tokens_decoder()), default=-1) + 1
    vocab_size = max(size, backend.get_vocab_size(), int(_text_config(folder).get("vocab_size") or 0))
    return TextTokenizer(
        backend,
        vocab_size=vocab_size,
        piece_bytes=piece_bytes,
        special_tokens=roles,
        eos_token_ids=_folder_ends(folder, backend, roles),
        add_bos=add_bos if add_bos is None else bool(add_bos),
        add_eos=add_eos if add_eos is None else bool(add_eos),
        strip_space=strip_space,
        replace_marks=model is not None,
    )


def _read_tokenizer_json(path: Path) -> tokenizers.Tokenizer:
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises a bare Exception
        raise ModelError(
            "cannot read the tokenizer", seen=f"{path}: {error}", fix="copy tokenizer.json from the model again"
        ) from error


def _decoding(backend: tokenizers.Tokenizer) -> tuple[Callable[[str], bytes], bool]:
    """How a piece becomes bytes, and whether `decode` takes a space off the start: both follow from the decoder."""
    state: dict[str, Any] = (
        json.loads(backend.decoder.__getstate__()) if backend.decoder is not None else {"type": "none"}
    )
    steps: list[dict[str, Any]] = state["decoders"] if state["type"] == "Sequence" else [state]
    kinds = [step["type"] for step in steps]
    if kinds == ["ByteLevel"]:
        return byte_level_bytes, False
    if kinds == ["Metaspace"]:
        return sentencepiece_bytes, steps[0].get("prepend_scheme", "always") != "never"
    replaces = [step for step in steps if step["type"] == "Replace"]
    if set(kinds) <= {"Replace", "ByteFallback", "Fuse", "Strip"} and [
        (step["pattern"], step["content"]) for step in replaces
    ] == [({"String": SPACE}, " ")]:
        return sentencepiece_bytes, any(step["type"] == "Strip" and step.get("start") for step in steps)
    raise UnsupportedError(
        "this tokenizer.json turns ids into text in a way that paceline does not know",
        seen=f"decoder {state['type']}" + (f" of {', '.join(kinds)}" if state["type"] == "Sequence" else ""),
        expected="ByteLevel, Metaspace, or the Replace and ByteFallback of SentencePiece models",
    )


def _read_sentencepiece(path: Path) -> tuple[tokenizers.Tokenizer, dict[str, str], bool]:
    """(backend, roles, strip_space) of a SentencePiece BPE model file."""
    try:
        from sentencepiece import sentencepiece_model_pb2
    except ImportError as error:
        raise ModelError(
            "this model has only a tokenizer.model, and reading it needs an optional package",
            seen=str(error),
            fix="pip install 'paceline[sentencepiece]'",
        ) from error
    generated: Any = sentencepiece_model_pb2  # protobuf makes its classes at run time
    proto = generated.ModelProto()
    try:
        proto.ParseFromString(path.read_bytes())
    except Exception as error:  # protobuf's DecodeError, whose place differs between versions
        raise ModelError(
            "cannot read the tokenizer", seen=f"{path}: {error}", fix="copy tokenizer.model again"
        ) from error
    spec, normalizer = proto.trainer_spec, proto.normalizer_spec
    if spec.model_type != spec.BPE:
        raise UnsupportedError(
            "this tokenizer.model is not a BPE model",
            seen=spec.ModelType.Name(spec.model_type),
            expected="BPE",
            fix="use the model's tokenizer.json",
        )
    if normalizer.precompiled_charsmap or normalizer.remove_extra_whitespaces or spec.treat_whitespace_as_suffix:
        raise UnsupportedError(
            "this tokenizer.model changes text before it is cut",
            seen=f"normalizer {normalizer.name!r}",
            expected="identity, without removing or moving spaces",
            fix="use the model's tokenizer.json",
        )
    types = [piece.type for piece in proto.pieces]
    pieces = [p.piece.replace(SPACE, " ") if p.type == PieceType.USER_DEFINED else p.piece for p in proto.pieces]
    backend = build_sentencepiece(
        pieces, [p.score for p in proto.pieces], types, prefix_space=normalizer.add_dummy_prefix
    )
    add_typed_tokens(backend, pieces, types)
    ids = {"bos_token": spec.bos_id, "eos_token": spec.eos_id, "unk_token": spec.unk_id, "pad_token": spec.pad_id}
    return backend, {role: pieces[i] for role, i in ids.items() if 0 <= i < len(pieces)}, normalizer.add_dummy_prefix


def _add_listed_tokens(backend: tokenizers.Tokenizer, config: Mapping[str, Any]) -> None:
    """Add what tokenizer_config.json lists under added_tokens_decoder and the vocabulary lacks."""
    from tokenizers import AddedToken

    known = backend.get_added_tokens_decoder()
    listed = config.get("added_tokens_decoder") or {}
    if not all(key.isdecimal() and isinstance(entry, dict) and "content" in entry for key, entry in listed.items()):
        raise ModelError(
            "tokenizer_config.json lists added tokens in a way that cannot be read",
            seen=f"{listed!r:.80}",
            expected="added_tokens_decoder: id to an object with content",
            fix="copy it from the model again",
        )
    for key, entry in sorted(listed.items(), key=lambda item: int(item[0])):
        if int(key) in known and known[int(key)].content == entry["content"]:
            continue
        flags = {name: bool(entry.get(name)) for name in ("lstrip", "rstrip", "single_word", "normalized", "special")}
        backend.add_tokens([AddedToken(entry["content"], **flags)])
        if backend.token_to_id(entry["content"]) != int(key):
            raise ModelError(
                "tokenizer_config.json gives an added token an id that does not follow the vocabulary",
                seen=f"{entry['content']!r} as {key}",
                expected=f"{backend.token_to_id(entry['content'])}",
                fix="use the model's tokenizer.json",
            )


def _folder_roles(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Text of the special tokens by role. A token is written as text or as an object with `content`."""
    roles = {}
    for source in (optional_json(folder / "special_tokens_map.json"), config):
        for role in ROLES:
            token = source.get(role)
            text = token.get("content") if isinstance(token, dict) else token
            if isinstance(text, str):
                roles[role] = text
    return roles


def _folder_ends(folder: Path, backend: tokenizers.Tokenizer, roles: Mapping[str, str]) -> list[int]:
    named = optional_json(folder / "generation_config.json").get("eos_token_id")
    if named is None:
        named = _text_config(folder).get("eos_token_id")
    ends = [int(i) for i in named] if isinstance(named, list) else [] if named is None else [int(named)]
    own = backend.token_to_id(roles["eos_token"]) if "eos_token" in roles else None
    return ends if own is None else [*ends, own]


def _text_config(folder: Path) -> dict[str, Any]:
    """config.json, or its part about text where a model also has other inputs."""
    config = optional_json(folder / "config.json")
    inner = config.get("text_config")
    return {**config, **inner} if isinstance(inner, dict) else config


def optional_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file, {} when there is no such file. Raises ModelError when it is not a JSON object."""
    return read_json(path) if path.is_file() else {}
