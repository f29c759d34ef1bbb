"""NVIDIA's runtime compiler, which needs neither a GPU nor a toolkit."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
from pathlib import Path

from fastdeploy_lp.model_executor.ops.cuda.sources import KernelSources

PACKAGE = "nvidia-cuda-nvrtc-cu12"
# The releases of one major version of CUDA run each other's code; the newest is tried first.
LIBRARIES = ("libnvrtc.so.13", "libnvrtc.so.12")
# Namespaces of NVIDIA's packages for CUDA 12 and CUDA 13; the library is in their folder `lib`.
PACKAGE_DIRECTORIES = ("nvidia.cuda_nvrtc", "nvidia.cu13")
# No product and sum become one instruction unless the source says so: results have the CPU's bits.
OPTIONS = ("--std=c++17", "--fmad=false")


class NvrtcError(RuntimeError):
    """The compiler is missing or failed; the message states the reason."""


class Nvrtc:
    """The compiler's library; raises NvrtcError if it is missing."""

    def __init__(self) -> None:
        self._library = _library()

    @functools.cached_property
    def version(self) -> str:
        """Version of CUDA, such as "12.9"."""
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._call("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
        return f"{major.value}.{minor.value}"

    @functools.cached_property
    def architectures(self) -> list[str]:
        """Devices that it compiles for, such as "sm_90"."""
        count = ctypes.c_int()
        self._call("nvrtcGetNumSupportedArchs", ctypes.byref(count))
        numbers = (ctypes.c_int * count.value)()
        self._call("nvrtcGetSupportedArchs", numbers)
        return [f"sm_{number}" for number in numbers]

    def compile(self, sources: KernelSources, architecture: str) -> bytes:
        """Returns machine code for a device; raises NvrtcError with the compiler's messages."""
        if architecture not in self.architectures:
            known = ", ".join(self.architectures)
            raise NvrtcError(f"NVRTC {self.version} does not compile for {architecture}; it compiles for {known}")
        program = ctypes.c_void_p()
        names = [name.encode() for name in sources.headers]
        texts = [text.encode() for text in sources.headers.values()]
        strings = ctypes.c_char_p * len(names)
        self._call(
            "nvrtcCreateProgram",
            *(ctypes.byref(program), sources.main.encode(), b"kernels.cu"),
            *(len(names), strings(*texts), strings(*names)),
        )
        try:
            options = [option.encode() for option in (f"--gpu-architecture={architecture}", *OPTIONS)]
            status = self._library.nvrtcCompileProgram(
                program, len(options), (ctypes.c_char_p * len(options))(*options)
            )
            log = self._bytes(program, "nvrtcGetProgramLogSize", "nvrtcGetProgramLog").rstrip(b"\0").decode().strip()
            if status != 0:
                raise NvrtcError(f"NVRTC {self.version} failed for {architecture}: {log[-2000:]}")
            return self._bytes(program, "nvrtcGetCUBINSize", "nvrtcGetCUBIN")
        finally:
            self._call("nvrtcDestroyProgram", ctypes.byref(program))

    def _bytes(self, program: ctypes.c_void_p, size_function: str, function: str) -> bytes:
        size = ctypes.c_size_t()
        self._call(size_function, program, ctypes.byref(size))
        found = ctypes.create_string_buffer(size.value)
        self._call(function, program, found)
        return found.raw

    def _call(self, function: str, *arguments: object) -> None:
        status = getattr(self._library, function)(*arguments)
        if status != 0:
            raise NvrtcError(f"{function} failed: {self._library.nvrtcGetErrorString(status).decode()}")


@functools.cache
def _library() -> ctypes.CDLL:
    """A package's library, else one that the dynamic linker finds, such as a toolkit's."""
    packaged = [path for directory in PACKAGE_DIRECTORIES for path in _packaged(directory)]
    for path in (*packaged, *map(Path, LIBRARIES)):
        try:
            # The library loads its builtins by name alone; CUDA 13's package does not find those beside it.
            for builtins in path.parent.glob("libnvrtc-builtins.so.*") if path in packaged else ():
                ctypes.CDLL(str(builtins))
            library = ctypes.CDLL(str(path))
        except OSError:
            continue
        library.nvrtcGetErrorString.restype = ctypes.c_char_p
        return library
    raise NvrtcError(f"NVIDIA's compiler is missing; the package {PACKAGE}, of the extra fastdeploy-lp[gpu], has it")


def _packaged(directory: str) -> list[Path]:
    try:
        spec = importlib.util.find_spec(directory)
    except ModuleNotFoundError:
        return []
    places = (spec.submodule_search_locations or []) if spec else []
    return [path for place in places for name in LIBRARIES if (path := Path(place) / "lib" / name).is_file()]
