from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import paddle
import pytest
from support.gpu_config import gpu_fd_config

from fastdeploy_lp.platforms import CpuPlatform, Platform, current_platform
from fastdeploy_lp.platforms.cpu import ALLOCATOR, THREAD_VARIABLES, _available_memory, _mkl_code_path, _usable_cores

AVX512 = "avx2 avx512f avx512bw avx512vl"


@pytest.fixture(autouse=True)
def _nothing_set_by_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*THREAD_VARIABLES, *ALLOCATOR, "MKL_DEBUG_CPU_TYPE"):
        monkeypatch.delenv(name, raising=False)


def test_the_cpu_is_the_platform() -> None:
    platform = current_platform()
    assert isinstance(platform, CpuPlatform)
    assert isinstance(platform, Platform)
    assert platform.name == "cpu"


def test_an_option_of_gpus_is_refused() -> None:
    platform = CpuPlatform()
    assert platform.check_and_update_config(gpu_fd_config()) == gpu_fd_config()
    with pytest.raises(
        ValueError, match="attention_backend: kernels is not allowed on a CPU; it is an option for GPUs"
    ):
        platform.check_and_update_config(gpu_fd_config(attention_backend="kernels"))


def test_importing_the_platform_does_not_import_paddle() -> None:
    program = (
        "import sys; from fastdeploy_lp.platforms import current_platform; "
        "current_platform().worker_environment(); print('paddle' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "False"


# The worker's environment


def test_every_thread_variable_says_how_many_cores_the_process_may_use() -> None:
    environment = CpuPlatform().worker_environment()
    assert {"OMP_NUM_THREADS", "MKL_NUM_THREADS", "FLAGS_paddle_num_threads"} <= set(environment)
    for name in THREAD_VARIABLES:
        assert environment[name] == str(_usable_cores(Path("/sys/fs/cgroup")))


def test_a_process_on_one_core_computes_with_one_thread() -> None:
    core = min(os.sched_getaffinity(0))
    program = (
        f"import os; os.sched_setaffinity(0, {{{core}}}); from fastdeploy_lp.platforms import current_platform; "
        "print(current_platform().worker_environment()['OMP_NUM_THREADS'])"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "1"


@pytest.mark.parametrize(("given", "threads"), [({}, None), ({"OMP_NUM_THREADS": "1"}, "1")])
def test_paddles_own_setting_is_not_taken_for_the_callers(given: dict[str, str], threads: str | None) -> None:
    program = (
        "import os, paddle; from fastdeploy_lp.platforms import current_platform; "
        "print(os.environ['OMP_NUM_THREADS'], current_platform().worker_environment()['OMP_NUM_THREADS'])"
    )
    plain = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env={**plain, **given}
    )
    cores = str(_usable_cores(Path("/sys/fs/cgroup")))
    assert ran.stdout.split() == ["1", threads or cores]


@pytest.mark.parametrize(
    ("content", "cores"),
    [("max 100000", 64), ("200000 100000", 2), ("399000 100000", 3), ("50000 100000", 1), ("9900000 100000", 64)],
)
def test_cores_stay_within_the_control_groups_share(
    content: str, cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `docker run --cpus` and limits of Kubernetes set it, on a machine of 64 cores."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    assert _usable_cores(tmp_path) == 64
    (tmp_path / "cpu.max").write_text(f"{content}\n")
    assert _usable_cores(tmp_path) == cores
    monkeypatch.setattr("fastdeploy_lp.platforms.cpu.CONTROL_GROUP", tmp_path)
    platform = CpuPlatform()
    assert platform.worker_environment()["OMP_NUM_THREADS"] == str(cores)
    assert platform.rank_environment(2)["OMP_NUM_THREADS"] == str(max(1, cores // 2))
    assert platform.data_parallel_environment(0, 1)["OMP_NUM_THREADS"] == str(cores)


def test_the_allocator_keeps_freed_memory() -> None:
    environment = CpuPlatform().worker_environment()
    assert int(environment["MALLOC_MMAP_THRESHOLD_"]) >= 1 << 30
    assert int(environment["MALLOC_TRIM_THRESHOLD_"]) >= 1 << 30


@pytest.mark.parametrize("name", [*THREAD_VARIABLES, *ALLOCATOR])
def test_what_the_user_has_set_wins(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "7")
    environment = CpuPlatform().worker_environment()
    assert environment[name] == "7"
    monkeypatch.delenv(name)
    assert CpuPlatform().worker_environment()[name] != "7"


def test_asking_for_the_environment_changes_nothing() -> None:
    before = dict(os.environ)
    CpuPlatform().worker_environment()
    assert dict(os.environ) == before


def test_every_value_can_be_put_into_an_environment() -> None:
    for name, value in CpuPlatform().worker_environment().items():
        assert isinstance(name, str)
        assert isinstance(value, str)


# Memory


def test_free_memory_is_what_the_kernel_calls_available(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal:       2000 kB\nMemFree:  10 kB\nMemAvailable:    1000 kB\n")
    assert _available_memory(tmp_path / "meminfo", tmp_path) == 1000 * 1024
    (tmp_path / "memory.max").write_text("max\n")
    assert _available_memory(tmp_path / "meminfo", tmp_path) == 1000 * 1024


@pytest.mark.parametrize(("limit", "expected"), [(800_000, 800_000 - 500_000 + 300), (10**9, 1000 * 1024)])
def test_free_memory_stays_within_the_control_group(tmp_path: Path, limit: int, expected: int) -> None:
    (tmp_path / "meminfo").write_text("MemAvailable:    1000 kB\n")
    (tmp_path / "memory.max").write_text(f"{limit}\n")
    (tmp_path / "memory.current").write_text("500000\n")
    (tmp_path / "memory.stat").write_text("anon 7\ninactive_file 100\nactive_file 200\n")
    assert _available_memory(tmp_path / "meminfo", tmp_path) == expected


def test_a_system_that_does_not_tell_has_all_of_its_memory(tmp_path: Path) -> None:
    free = _available_memory(tmp_path / "none", tmp_path)
    assert free == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 0 < CpuPlatform().free_memory() <= free


# MKL


def cpuinfo(tmp_path: Path, vendor: str, flags: str) -> Path:
    core = f"processor\t: 0\nvendor_id\t: {vendor}\nfpu_exception\t: yes\nflags\t\t: fpu sse2 {flags}\nbugs\t\t: none\n"
    path = tmp_path / "cpuinfo"
    path.write_text("\n".join([core, core.replace("processor\t: 0", "processor\t: 1")]))
    return path


@pytest.mark.parametrize(
    ("vendor", "flags", "expected"),
    [
        ("AuthenticAMD", AVX512, {"MKL_DEBUG_CPU_TYPE": "7"}),
        ("AuthenticAMD", "avx avx2", {"MKL_DEBUG_CPU_TYPE": "5"}),
        ("AuthenticAMD", "avx2 avx512f", {"MKL_DEBUG_CPU_TYPE": "5"}),
        ("AuthenticAMD", "avx avx2x", {}),
        ("AuthenticAMD", "avx", {}),
        ("HygonGenuine", AVX512, {"MKL_DEBUG_CPU_TYPE": "7"}),
        ("GenuineIntel", AVX512, {}),
        ("GenuineIntel", "avx2", {}),
    ],
)
def test_mkl_is_told_what_a_processor_that_is_not_intels_can_do(
    tmp_path: Path, vendor: str, flags: str, expected: dict[str, str]
) -> None:
    assert _mkl_code_path(cpuinfo(tmp_path, vendor, flags)) == expected


def test_mkl_is_left_alone_on_other_architectures(tmp_path: Path) -> None:
    path = tmp_path / "cpuinfo"
    path.write_text("processor\t: 0\nBogoMIPS\t: 50.00\nFeatures\t: fp asimd evtstrm aes\nCPU architecture: 8\n")
    assert _mkl_code_path(path) == {}


def test_mkl_is_left_alone_where_nothing_is_known_about_the_processor(tmp_path: Path) -> None:
    assert _mkl_code_path(tmp_path / "missing") == {}
    (tmp_path / "empty").write_text("")
    assert _mkl_code_path(tmp_path / "empty") == {}


def test_the_users_choice_for_mkl_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MKL_DEBUG_CPU_TYPE", "4")
    assert CpuPlatform().worker_environment().get("MKL_DEBUG_CPU_TYPE", "4") == "4"


# Zeros


@pytest.mark.parametrize("dtype", ["float32", "float16", "int64"])
@pytest.mark.parametrize("shape", [[3, 5], [1], [64, 1024], [2, 3, 4]])
def test_zeros_have_the_shape_and_type_asked_for_and_are_zero(shape: list[int], dtype: str) -> None:
    zeros = CpuPlatform().zeros(shape, dtype)
    assert isinstance(zeros, paddle.Tensor)
    assert (list(zeros.shape), zeros.numpy().dtype) == (shape, np.dtype(dtype))
    assert not zeros.numpy().any()


def test_zeros_can_be_written_in_place_and_outlive_their_making() -> None:
    zeros = CpuPlatform().zeros([1000, 64], "float32")
    where = zeros.data_ptr()
    rows = paddle.to_tensor([0, 17, 999])
    paddle.scatter_(zeros, rows, paddle.ones([3, 64]))
    assert zeros.data_ptr() == where
    expected = np.zeros([1000, 64], np.float32)
    expected[[0, 17, 999]] = 1.0
    np.testing.assert_array_equal(zeros.numpy(), expected)
    view = zeros.reshape([-1, 32])
    del zeros
    assert view[1].sum().item() == 32.0


def test_two_tensors_of_zeros_do_not_share_memory() -> None:
    platform = CpuPlatform()
    one, other = platform.zeros([8], "float32"), platform.zeros([8], "float32")
    one.fill_(1.0)
    assert not other.numpy().any()


def test_zeros_that_nobody_writes_take_no_memory() -> None:
    # 4 GiB, as a KV cache may be.
    before = resident_bytes()
    zeros = CpuPlatform().zeros([1 << 18, 1 << 12], "float32")
    paddle.scatter_(zeros, paddle.to_tensor([5]), paddle.ones([1, 1 << 12]))
    assert zeros[5].sum().item() == 1 << 12
    assert resident_bytes() - before < 1 << 28


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


FREES_BESIDE_A_READER = """
import sys
import threading

import numpy as np
import paddle

from fastdeploy_lp.platforms import CpuPlatform


def read_while_another_thread_frees(platform_of_zeros):
    platform, over = CpuPlatform(), threading.Event()

    def allocate():
        while not over.is_set():
            platform_of_zeros().zeros([1 << 20], "float32")

    thread = threading.Thread(target=allocate)
    thread.start()
    for _ in range(500):
        platform.view_of(np.zeros(4, np.float32))
    over.set()
    thread.join()


sys.setswitchinterval(1e-5)
one = CpuPlatform()
read_while_another_thread_frees(lambda: one)
read_while_another_thread_frees(CpuPlatform)
"""


def test_zeros_that_one_thread_frees_do_not_stop_another_one() -> None:
    """Paddle frees under a lock, for which the other thread waits without giving up the interpreter's.

    The zeros are of one platform, then each of its own, which goes with them.
    """
    subprocess.run([sys.executable, "-c", FREES_BESIDE_A_READER], check=True, timeout=300)


def test_zeros_are_unmapped_once_their_tensor_is_gone() -> None:
    platform = CpuPlatform()

    def mapped() -> int:
        return int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")

    platform.zeros([1], "float32")
    before, size = mapped(), 256 << 20
    for _ in range(10):
        zeros = platform.zeros([size // 4], "float32")
        del zeros
    assert mapped() - before < 3 * size
