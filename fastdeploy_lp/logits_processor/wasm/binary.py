"""The binary format of modules: sections, and the numbers and names in them."""

from __future__ import annotations

from collections.abc import Iterator

from fastdeploy_lp.logits_processor.wasm.errors import WasmError

MAGIC = b"\0asm\x01\0\0\0"
_CUSTOM = 0
# Bits of a number; a byte has 7 of them.
_NUMBER_BITS = 35


class ByteReader:
    """Reads bytes from a place on; its methods raise WasmError at their end."""

    def __init__(self, content: bytes, place: int = 0) -> None:
        self._content, self._place = content, place

    @property
    def is_at_end(self) -> bool:
        """True if nothing is left."""
        return self._place >= len(self._content)

    def take(self, count: int) -> bytes:
        """Returns the next bytes."""
        found = self._content[self._place : self._place + count]
        if len(found) < count:
            raise WasmError("ends in the middle of a section")
        self._place += count
        return found

    def byte(self) -> int:
        """Returns the next byte."""
        return self.take(1)[0]

    def number(self) -> int:
        """Returns an unsigned LEB128 number of 32 bits."""
        value = 0
        for shift in range(0, _NUMBER_BITS, 7):
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise WasmError("has a number of more than 32 bits")

    def name(self) -> str:
        """Returns a text with its length before it."""
        return self.take(self.number()).decode("utf-8", "replace")

    def rest(self) -> bytes:
        """Returns all bytes that are left."""
        return self.take(len(self._content) - self._place)


def sections(content: bytes) -> Iterator[tuple[int, bytes]]:
    """Yields number and content of each section; stops at the first one that is damaged."""
    reader = ByteReader(content, len(MAGIC))
    while not reader.is_at_end:
        try:
            yield reader.byte(), reader.take(reader.number())
        except WasmError:
            return


def custom_sections(content: bytes) -> Iterator[tuple[str, bytes]]:
    """Yields name and content of each custom section; stops at the first section that is damaged."""
    for kind, body in sections(content):
        if kind == _CUSTOM:
            reader = ByteReader(body)
            try:
                name = reader.name()
            except WasmError:
                return
            yield name, reader.rest()


def with_custom_section(content: bytes, name: str, body: bytes) -> bytes:
    """Returns a module with one more custom section at its end."""
    named = _encoded(len(name.encode())) + name.encode() + body
    return content + bytes([_CUSTOM]) + _encoded(len(named)) + named


def _encoded(value: int) -> bytes:
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])
