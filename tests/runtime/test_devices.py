"""Which device, which number type, how much memory, and whose clock."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest
import torch

from specdec_cli.errors import UsageError
from specdec_cli.runtime import devices
from specdec_cli.runtime.devices import choose_device, choose_dtype, clock_for, free_memory

CPU = torch.device("cpu")
no_cuda = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
no_mps = pytest.mark.skipif(torch.backends.mps.is_available(), reason="there is an MPS device here")


@pytest.mark.parametrize(
    ("cuda", "mps", "expected"),
    [(True, True, "cuda:1"), (True, False, "cuda:1"), (False, True, "mps"), (False, False, "cpu")],
)
def test_auto_prefers_cuda_then_mps_then_the_cpu(
    cuda: bool, mps: bool, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
    assert choose_device("auto", "--device") == torch.device(expected)


def test_a_device_that_is_here_is_taken() -> None:
    assert choose_device("cpu", "--device") == CPU


@pytest.mark.parametrize("option", ["--device", "--draft-device"])
@pytest.mark.parametrize(
    "wanted",
    [
        pytest.param("cuda", marks=no_cuda),
        pytest.param("mps", marks=no_mps),
        "cuda:99",
        "cuda:first",
        "gpu",
        "CPU",
        "",
        "xla",
        "hpu",  # torch looks for a Python module of this name
    ],
)
def test_a_device_that_is_not_here_is_a_usage_error_that_lists_those_that_are(wanted: str, option: str) -> None:
    with pytest.raises(UsageError) as caught:
        choose_device(wanted, option)
    message = str(caught.value)
    assert caught.value.exit_code == 2
    assert message.startswith(f"{option} '{wanted}' is not available; here there is: cpu")
    assert "\n" not in message


def test_the_message_lists_every_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    with pytest.raises(UsageError, match=r"here there is: cpu, cuda:0, cuda:1, mps$"):
        choose_device("tpu", "--device")


def test_meta_is_refused() -> None:
    with pytest.raises(UsageError, match=r"^--draft-device 'meta' holds no data: choose") as caught:
        choose_device("meta", "--draft-device")
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("wanted", "expected"), [("float32", torch.float32), ("bfloat16", torch.bfloat16), ("float16", torch.float16)]
)
def test_an_explicit_type_is_taken_whatever_is_stored(wanted: str, expected: torch.dtype) -> None:
    for stored in (torch.float32, torch.bfloat16):
        assert choose_dtype(wanted, stored, CPU) == (expected, "as asked")


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("fast", [True, False])
def test_auto_takes_the_stored_type_where_it_is_fast(
    stored: torch.dtype, fast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[torch.dtype, torch.device]] = []

    def is_fast(dtype: torch.dtype, device: torch.device) -> bool:
        asked.append((dtype, device))
        return fast

    monkeypatch.setattr(devices, "_is_fast", is_fast)
    dtype, why = choose_dtype("auto", stored, CPU)
    assert asked == [(stored, CPU)]
    if fast:
        assert (dtype, why) == (stored, "as stored")
    else:
        assert (dtype, why) == (torch.float32, f"this cpu has no fast {str(stored).removeprefix('torch.')}")


def test_auto_never_questions_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "_is_fast", lambda dtype, device: False)
    assert choose_dtype("auto", torch.float32, CPU) == (torch.float32, "as stored")


@pytest.mark.parametrize("available", [True, False])
@pytest.mark.parametrize(("bf16", "fp16"), [(True, False), (False, True)])
def test_a_cpu_is_asked_what_it_has_units_for(
    bf16: bool, fp16: bool, available: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked, not timed: one seed must give one text on one machine, however busy it is."""
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: available)
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: bf16)
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_fp16_supported", lambda: fp16)
    assert devices._is_fast(torch.bfloat16, CPU) is (bf16 and available)
    assert devices._is_fast(torch.float16, CPU) is (fp16 and available)


def test_a_build_of_torch_without_mkldnn_has_no_units_for_16_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """On Apple's CPUs, say: there the operators that would tell do not exist either."""
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    monkeypatch.setattr(torch.ops, "mkldnn", SimpleNamespace())
    assert devices._is_fast(torch.bfloat16, CPU) is False
    assert devices._is_fast(torch.float16, CPU) is False


@pytest.mark.parametrize("native", [True, False])
def test_a_cuda_device_says_whether_it_has_bfloat16(native: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: native or including_emulation)
    cuda = torch.device("cuda")
    assert devices._is_fast(torch.bfloat16, cuda) is native
    assert devices._is_fast(torch.float16, cuda) is True


def test_free_memory_of_the_machine_is_positive_and_below_its_total() -> None:
    from psutil import virtual_memory

    assert 0 < free_memory(CPU) <= virtual_memory().total


def test_free_memory_of_a_gpu_is_the_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {torch.device("cuda:0"): (5, 10), torch.device("cuda:1"): (7, 10)}
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: sizes[device])
    assert free_memory(torch.device("cuda:1")) == 7


def test_the_clock_for_the_cpu_is_perf_counter() -> None:
    assert clock_for(CPU) is time.perf_counter
    assert clock_for(CPU, CPU) is time.perf_counter


def test_the_clock_waits_for_every_other_device_once_and_reads_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: events.append(str(device)))
    monkeypatch.setattr(torch.mps, "synchronize", lambda: events.append("mps"))

    def perf_counter() -> float:
        events.append("read")
        return 1.5

    monkeypatch.setattr(devices, "time", SimpleNamespace(perf_counter=perf_counter))
    clock = clock_for(*(torch.device(name) for name in ("cuda:1", "cpu", "cuda:0", "cuda:1", "mps")))
    assert clock() == 1.5
    assert sorted(events[:-1]) == ["cuda:0", "cuda:1", "mps"]
    assert events[-1] == "read"
