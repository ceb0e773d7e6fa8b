"""Server-sent events out of bytes that arrive in any pieces.

`feed` gives the data of each event that is complete. Comments are skipped, any of the three line ends is understood,
several data lines are joined. The common case (whole events in one read, one `data: ` line each) costs one split.
"""

from __future__ import annotations

MAX_EVENT_BYTES = 16 << 20


class EventTooLongError(ValueError):
    """An event that does not end."""


class EventSplitter:
    """State of one stream."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Data of the events that end within `data`, in order. Raises EventTooLongError."""
        if self._rest:
            data = self._rest + data
            self._rest = b""
        if b"\r" in data:
            data = self._plain(data)
        if data.endswith(b"\n\n"):
            blocks = data[:-2].split(b"\n\n")
        else:
            blocks = data.split(b"\n\n")
            last = blocks.pop() + self._rest  # what `_plain` set aside comes after
            if len(last) > MAX_EVENT_BYTES:
                raise EventTooLongError
            self._rest = last
        found = []
        for block in blocks:
            if block.startswith(b"data: ") and b"\n" not in block:
                found.append(block[6:])
            elif (event := _slow(block)) is not None:
                found.append(event)
        return found

    def end(self) -> list[bytes]:
        """The event that the end of the stream cut off before its blank line, if it holds data."""
        block, self._rest = self._rest.replace(b"\r", b"\n"), b""
        event = _slow(block)
        return [] if event is None else [event]

    def _plain(self, data: bytes) -> bytes:
        """With "\\n" as the only line end. A last "\\r" may be half of one: it waits for what follows."""
        if data.endswith(b"\r"):
            self._rest = b"\r"
            data = data[:-1]
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def _slow(block: bytes) -> bytes | None:
    """Data of an event's lines; None if it has none. What is called an error in another way than by its data (an event
    of that name, or the field `error:`, as llama.cpp once had it) gets an object around it that says so."""
    lines = []
    is_error = False
    for line in block.split(b"\n"):
        name, colon, value = line.partition(b":")
        if not colon or not name:
            continue  # a comment, or a field without a value
        value = value.removeprefix(b" ")
        if name == b"data":
            lines.append(value)
        elif name == b"error":
            lines, is_error = [value], True
        elif name == b"event" and value == b"error":
            is_error = True
    data = b"\n".join(lines)
    if is_error and b'"error"' not in data:
        return b'{"error":' + (data or b'"an event of this name"') + b"}"
    return data if lines else None
