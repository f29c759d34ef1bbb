"""A pickle that makes arrays is read; one that asks for anything else is refused before anything of it runs."""

from __future__ import annotations

import codecs
import contextlib
import pickle
import pickletools
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.server import server_environment

from fastdeploy_lp.checkpoint import CheckpointError
from fastdeploy_lp.checkpoint.pdparams import read_pdparams

ARRAY = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_what_paddle_saves_is_read(tmp_path: Path, protocol: int) -> None:
    path = tmp_path / "model_state.pdparams"
    state = {"a": paddle.to_tensor(ARRAY), "b": paddle.to_tensor(ARRAY).astype("bfloat16")}
    paddle.save(state, str(path), protocol=protocol)
    read = read_pdparams(path)
    assert list(read) == ["a", "b"]
    np.testing.assert_array_equal(read["a"], ARRAY)
    assert read["b"].dtype.name == "bfloat16"
    np.testing.assert_array_equal(read["b"].astype(np.float32), ARRAY)


@pytest.mark.parametrize(
    "state",
    [
        {"a": ARRAY},
        OrderedDict(a=ARRAY),
        {"a": ("parameter_0", ARRAY)},
        {"a": ARRAY.astype(np.float64), "StructuredToParameterName@@": {"a": "parameter_0"}},
        {"a": np.asfortranarray(ARRAY)},
    ],
)
def test_other_ways_to_write_a_table_of_arrays_are_read(tmp_path: Path, state: Any) -> None:
    (tmp_path / "a.pdparams").write_bytes(pickle.dumps(state, protocol=4))
    read = read_pdparams(tmp_path / "a.pdparams")
    assert list(read) == ["a"]
    np.testing.assert_array_equal(read["a"], ARRAY)


class _Calls:
    """Pickles as a call of a function."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self._call = function, arguments

    def __reduce__(self) -> Any:
        return self._call


def _reconstructed(shape_type_bytes: tuple[Any, ...]) -> Any:
    """An array with a state of one's choice."""
    return _Stated((1, *shape_type_bytes[:2], False, shape_type_bytes[2]))


class _Stated:
    def __init__(self, state: tuple[Any, ...]) -> None:
        self._state = state

    def __reduce__(self) -> Any:
        return (*ARRAY.__reduce__()[:2], self._state)


def hostile(marker: Path) -> dict[str, Any]:
    import builtins
    import os

    command = f"touch {marker}"
    return {
        "os.system": _Calls(os.system, command),
        "eval": _Calls(builtins.eval, f"open({str(marker)!r}, 'w')"),
        "exec": _Calls(builtins.exec, f"open({str(marker)!r}, 'w')"),
        "subprocess": _Calls(subprocess.call, ["touch", str(marker)]),
        "getattr": _Calls(builtins.getattr, "text", "upper"),
        "import": _Calls(builtins.__import__, "os"),
        "open": _Calls(builtins.open, str(marker), "w"),
        "load": _Calls(np.load, str(marker), None, True),
        "memmap": _Calls(np.memmap, str(marker), "uint8", "w+", 0, (4,)),
        "a codec": _Calls(codecs.encode, "text", "rot13"),
        "objects": np.array([{"a": 1}], dtype=object),
        "a class": _Calls,
        "a dtype of objects": _Calls(np.dtype, "O"),
        "objects at addresses of the file's choice": _Calls(np.ndarray, (4,), "O", b"A" * 32),
        "an array of its own making": _Calls(np.ndarray, (4,), "f4", b"A" * 16),
        "a class as a shape": _reconstructed((np.ndarray, np.dtype("f4"), b"")),
        "a shape of more bytes": _reconstructed(((5,), np.dtype("f4"), b"A" * 16)),
        "a shape of fewer bytes": _reconstructed(((3,), np.dtype("f4"), b"A" * 16)),
        "a negative shape": _reconstructed(((-2, -2), np.dtype("f4"), b"A" * 16)),
        "a huge shape": _reconstructed(((2**62, 4), np.dtype("f4"), b"")),
        "a type in words": _reconstructed(((4,), "O", b"A" * 32)),
        "a text for bytes": _reconstructed(((4,), np.dtype("f4"), "A" * 16)),
    }


@pytest.mark.parametrize("name", hostile(Path("marker")))
@pytest.mark.parametrize("protocol", [2, 4])
def test_whatever_is_no_array_is_refused_and_not_run(tmp_path: Path, name: str, protocol: int) -> None:
    marker, path = tmp_path / "marker", tmp_path / "model_state.pdparams"
    path.write_bytes(pickle.dumps({"a": ARRAY, "b": hostile(marker)[name]}, protocol=protocol))
    with pytest.raises(CheckpointError, match=r"model_state\.pdparams: .*asks for") as caught:
        read_pdparams(path)
    assert "\n" not in str(caught.value)
    assert not marker.exists()


def test_addresses_in_a_file_are_never_followed(tmp_path: Path) -> None:
    """By a process that would end with a segmentation fault."""
    path = tmp_path / "model_state.pdparams"
    path.write_bytes(pickle.dumps({"a": _Calls(np.ndarray, (4,), "O", b"A" * 32)}, protocol=2))
    program = "import sys; from pathlib import Path; from fastdeploy_lp.checkpoint.pdparams import read_pdparams\n"
    program += "print(read_pdparams(Path(sys.argv[1]))['a'])"
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)], capture_output=True, text=True, env=server_environment()
    )
    assert done.returncode == 1
    assert "CheckpointError" in done.stderr.splitlines()[-1]


# PROTO 2, an empty dict, MARK; b"u." ends each.
OPEN = b"\x80\x02}("


@pytest.mark.parametrize(
    ("operations", "reason"),
    [
        # Tuples of tuples, each twice in the next one: hashing the last one would take longer than the universe has.
        pytest.param(b"NN" + b"\x86q\x00h\x00" * 100 + b"\x86N", "something else than names", id="hash"),
        pytest.param(b"c_codecs\nencode\nX\x02\0\0\0abX\4\0\0\0hex_\x86RN", "codec other than", id="codec"),
        pytest.param(b"cnumpy\nndarray\n)\x81N", "an operation that makes no array", id="new object"),
        pytest.param(b"(icollections\nOrderedDict\nN", "an operation that makes no array", id="instance"),
        pytest.param(b"\x82\x01N", "an operation that makes no array", id="extension"),
        pytest.param(b"X\1\0\0\0aX\1\0\0\0b)R", "a call of something", id="call of a text"),
        pytest.param(b"I" + b"9" * 5000 + b"\nN", "an operation that makes no array", id="a number in words"),
    ],
)
def test_operations_beyond_those_of_tables_of_arrays_are_refused(
    tmp_path: Path, operations: bytes, reason: str
) -> None:
    (tmp_path / "a.pdparams").write_bytes(OPEN + operations + b"u.")
    with pytest.raises(CheckpointError, match=f"asks for .*{reason}"):
        read_pdparams(tmp_path / "a.pdparams")


def test_a_text_that_is_spelt_again_and_again_takes_no_memory(tmp_path: Path) -> None:
    text = b"X" + (60_000).to_bytes(4, "little") + b"a" * 60_000 + b"q\x02"
    again = b"h\0h\x02h\1\x86R" * 5000
    (tmp_path / "a.pdparams").write_bytes(b"\x80\x02}(c_codecs\nencode\nq\0X\6\0\0\0latin1q\1" + text + again + b"u.")
    with pytest.raises(CheckpointError, match="asks for more bytes than it has"):
        read_pdparams(tmp_path / "a.pdparams")


def test_a_long_name_is_cut_in_the_message(tmp_path: Path) -> None:
    (tmp_path / "a.pdparams").write_bytes(pickle.dumps({"a\n" * 10_000: 5}, protocol=2))
    with pytest.raises(CheckpointError, match="is no tensor") as caught:
        read_pdparams(tmp_path / "a.pdparams")
    assert len(str(caught.value)) < 400
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"text", b"\x80\x04.", b"\x80\x04]\x94.", b"\x80\x04}\x94(K\x01K\x02u."])
def test_a_file_that_is_no_table_of_arrays_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.pdparams").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"a\.pdparams: ") as caught:
        read_pdparams(tmp_path / "a.pdparams")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("dtype", [np.int64, np.bool_, np.complex64])
def test_arrays_of_other_than_floats_are_refused(tmp_path: Path, dtype: type[np.generic]) -> None:
    (tmp_path / "a.pdparams").write_bytes(pickle.dumps({"a": np.ones(3, dtype)}))
    with pytest.raises(CheckpointError, match=r"asks for arrays of '\w+'; weights must be floating-point"):
        read_pdparams(tmp_path / "a.pdparams")


class _Typed:
    """An element type with a state of one's choice."""

    def __init__(self, state: tuple[Any, ...]) -> None:
        self._state = state

    def __reduce__(self) -> Any:
        return np.dtype, ("f4", False, True), self._state


@pytest.mark.parametrize(
    "state",
    [
        (3, ">", None, None, None, -1, -1, 0),
        (3, "|", None, None, None, -1, -1, 63),
        (4, "<", None, ("a",), {}, 4, 1, 0),
    ],
)
def test_a_type_cannot_be_made_another_one(tmp_path: Path, state: tuple[Any, ...]) -> None:
    """Flags that a type does not have would let bytes pass for addresses."""
    (tmp_path / "a.pdparams").write_bytes(pickle.dumps({"a": _Typed(state)}))
    with pytest.raises(CheckpointError, match="asks for numbers in another order"):
        read_pdparams(tmp_path / "a.pdparams")


def test_functions_that_are_allowed_get_no_state(tmp_path: Path) -> None:
    # GLOBAL _codecs encode, an empty dict, BUILD.
    (tmp_path / "a.pdparams").write_bytes(b"\x80\x02c_codecs\nencode\n}b.")
    with pytest.raises(CheckpointError, match="asks for the state of something that is no array"):
        read_pdparams(tmp_path / "a.pdparams")


def test_a_damaged_count_takes_no_memory(tmp_path: Path) -> None:
    # LONG_BINPUT 2**32 - 1: one place of that many.
    (tmp_path / "a.pdparams").write_bytes(b"\x80\x02}r\xff\xff\xff\xff.")
    assert read_pdparams(tmp_path / "a.pdparams") == {}


WHOLE = pickle.dumps({"a": ARRAY}, protocol=2)


@given(st.integers(0, len(WHOLE) - 1), st.binary(max_size=40))
def test_damage_anywhere_is_an_error_or_readable_but_never_anything_else(
    tmp_path_factory: pytest.TempPathFactory, at: int, replacement: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged.pdparams"
    path.write_bytes(WHOLE[:at] + replacement + WHOLE[at + len(replacement) :])
    with contextlib.suppress(CheckpointError):
        read_pdparams(path)


def test_paddle_names_nothing_that_is_not_allowed(tmp_path: Path) -> None:
    paddle.save({"a": paddle.ones([2])}, str(tmp_path / "a"), protocol=2)
    named = {arg for op, arg, _ in pickletools.genops((tmp_path / "a").read_bytes()) if op.name == "GLOBAL"}
    assert {name.split()[1] for name in named} == {"_reconstruct", "ndarray", "dtype", "encode"}
