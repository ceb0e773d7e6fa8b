"""What the device probe reads: limits of both cgroup versions from made-up trees, and this machine's own numbers."""

import os

import pytest
import torch

from paceline.errors import ConfigError
from paceline.runtime import device
from paceline.runtime.device import CgroupMemory
from paceline.runtime.kernels.dispatch import choose, native_half

GIB = 1 << 30


def tree(root, files):
    for path, text in files.items():
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    return root


def test_cgroup_v2_limits_of_the_process_and_its_parents_are_read(tmp_path):
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/a/b\n",
            "sys/fs/cgroup/a/b/memory.max": "max\n",
            "sys/fs/cgroup/a/b/memory.current": "100\n",
            "sys/fs/cgroup/a/memory.max": f"{4 * GIB}\n",
            "sys/fs/cgroup/a/memory.current": f"{2 * GIB}\n",
            "sys/fs/cgroup/a/memory.stat": f"anon 5\ninactive_file {GIB}\nactive_file 7\n",
        },
    )
    (found,) = device.cgroup_memory(root)
    assert (found.limit_bytes, found.usage_bytes) == (4 * GIB, GIB)


def test_cgroup_v1_limit_is_read_and_its_no_limit_number_is_none(tmp_path):
    files = {
        "proc/self/cgroup": "4:memory:/job\n0::/\n",
        "sys/fs/cgroup/memory/job/memory.limit_in_bytes": f"{2 * GIB}\n",
        "sys/fs/cgroup/memory/job/memory.usage_in_bytes": f"{GIB}\n",
        "sys/fs/cgroup/memory/job/memory.stat": "cache 1\ntotal_inactive_file 1000\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": "1\n",
    }
    (found,) = device.cgroup_memory(tree(tmp_path, files))
    assert (found.limit_bytes, found.usage_bytes) == (2 * GIB, GIB - 1000)


def test_inside_a_container_the_mount_itself_is_the_cgroup(tmp_path):
    files = {
        "proc/self/cgroup": "0::/docker/not-mounted-here\n",
        "sys/fs/cgroup/memory.max": f"{GIB}\n",
        "sys/fs/cgroup/memory.current": "0\n",
    }
    (found,) = device.cgroup_memory(tree(tmp_path, files))
    assert found.limit_bytes == GIB


def test_no_cgroups_is_no_limit(tmp_path):
    assert device.cgroup_memory(tmp_path) == []


@pytest.mark.parametrize(
    ("files", "quota_cores"),
    [
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "50000 100000\n"}, 1),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "150000 100000\n"}, 2),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}, None),
        (
            {
                "proc/self/cgroup": "1:cpu,cpuacct:/\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "100000\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            1,
        ),
        ({"proc/self/cgroup": "1:cpu:/\n", "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n"}, None),
    ],
)
def test_a_cpu_quota_bounds_the_cores(tmp_path, files, quota_cores):
    affinity = len(os.sched_getaffinity(0))
    expected = affinity if quota_cores is None else min(affinity, quota_cores)
    assert device.usable_cores(tree(tmp_path, files)) == expected


def test_the_tightest_limit_decides_and_is_named():
    loose = CgroupMemory(limit_bytes=8 * GIB, usage_bytes=GIB, path="loose")
    tight = CgroupMemory(limit_bytes=3 * GIB, usage_bytes=2 * GIB, path="tight")
    reading = device.smallest_memory(16 * GIB, 10 * GIB, [loose, tight])
    assert (reading.total_bytes, reading.available_bytes) == (3 * GIB, GIB)
    assert "tight" in reading.source
    assert device.smallest_memory(16 * GIB, 10 * GIB, []).source == "MemAvailable"


def test_usage_above_the_limit_leaves_nothing():
    over = CgroupMemory(limit_bytes=GIB, usage_bytes=2 * GIB, path="over")
    assert device.smallest_memory(16 * GIB, 10 * GIB, [over]).available_bytes == 0


def test_this_machine_is_probed_and_torch_threads_are_left_alone():
    threads = torch.get_num_threads()
    spec = device.probe_device("cpu", "float32", num_threads=1)
    assert spec.kind == "cpu"
    assert spec.source == "measured"
    assert spec.gflops > 0
    assert spec.memory_gbps > 0
    assert 0 < spec.num_cores <= (os.cpu_count() or 1)
    assert spec.memory_bytes == device.device_memory("cpu").total_bytes
    assert 0 < device.device_memory("cpu").available_bytes <= spec.memory_bytes
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize(
    ("flags", "dtype"),
    [({"avx2", "fma"}, "float32"), ({"avx512f", "avx512_bf16"}, "bfloat16"), ({"asimd", "bf16"}, "bfloat16")],
)
def test_auto_dtype_follows_the_instruction_set(flags, dtype):
    chosen, why = device.choose_dtype("auto", "cpu", cpu_flags=frozenset(flags))
    assert chosen == dtype
    assert why


def test_auto_dtype_is_never_one_that_kernels_would_widen():
    dtype, _ = device.choose_dtype("auto", "cpu")
    assert native_half(device.DTYPES[dtype])
    assert choose("linear", "cpu", device.DTYPES[dtype], "fast").name != "widened"


def test_a_dtype_that_was_set_is_taken():
    assert device.choose_dtype("float16", "cpu", cpu_flags=frozenset()) == ("float16", "set")


def test_auto_device_is_what_there_is_and_missing_cuda_is_said(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert device.choose_device("auto") == "cpu"
    assert device.choose_device("cpu") == "cpu"
    with pytest.raises(ConfigError, match="no CUDA device"):
        device.choose_device("cuda")
