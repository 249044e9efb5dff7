"""What a round may cost beside its forwards: one transfer to the host, whatever K and however it samples.

On a CPU nothing is transferred, but every operation that would wait for a GPU is the same one, and is counted: by
torch's dispatcher where it sees it, else by the method that Python calls.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from specdec_cli.decoding.loop import Generation
from specdec_cli.decoding.stopping import Stopping
from specdec_cli.drafters import make_drafter
from specdec_cli.drafters.base import Drafter
from specdec_cli.drafters.draft_model import DraftModel
from specdec_cli.drafters.plain import NoDrafter
from specdec_cli.drafters.spec import parse_draft
from specdec_cli.runtime.pairs.pair import Pair
from specdec_cli.settings import SamplingSettings

# Operations whose result's value or shape the host must know before it can go on.
WAITING = {"_local_scalar_dense", "nonzero", "masked_select", "unique_dim", "_unique2", "equal", "is_nonzero"}
METHODS = ("tolist", "item", "cpu", "numpy", "__bool__", "__int__", "__float__", "__index__", "__array__")
PROMPT = "def read_lines(path):\n    with open("
SETTINGS = {
    "greedy": SamplingSettings(temperature=0.0),
    "sampled": SamplingSettings(temperature=0.8),
    "every warper": SamplingSettings(temperature=0.8, top_k=50, top_p=0.9, min_p=0.02, repetition_penalty=1.1),
}


class Transfers(TorchDispatchMode):
    """Counts what would wait for the device."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in WAITING:
            self.seen[name] += 1
        return func(*args, **(kwargs or {}))


@pytest.fixture
def transfers(monkeypatch: pytest.MonkeyPatch) -> Transfers:
    """Counts from the moment it is entered."""
    mode = Transfers()
    inside = False

    def counted(name: str) -> Any:
        original = getattr(Tensor, name)

        def method(self: Tensor, *args: Any, **kwargs: Any) -> Any:
            nonlocal inside
            before = inside
            if not inside:  # item() inside __bool__ is one transfer
                mode.seen[name] += 1
            inside = True
            try:
                return original(self, *args, **kwargs)
            finally:
                inside = before

        return method

    for name in METHODS:
        monkeypatch.setattr(Tensor, name, counted(name))
    return mode


def rounds(pair: Pair, drafter: Drafter, k: int, sampling: SamplingSettings) -> Any:
    ids = pair.encode([{"role": "user", "content": PROMPT}], raw=True)
    return iter(
        Generation(pair.target, drafter, ids, num_draft_tokens=k, sampling=sampling, stopping=Stopping(64), seed=5)
    )


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("k", [1, 4, 8])
def test_a_round_waits_for_the_device_once(demo: Pair, transfers: Transfers, k: int, settings: str) -> None:
    assert demo.draft is not None
    sampling = SETTINGS[settings]
    steps = rounds(demo, DraftModel(demo.draft, sampling), k, sampling)
    next(steps)
    transfers.seen.clear()
    with transfers:
        for _ in range(4):
            next(steps)
    assert transfers.seen == Counter(tolist=4)


@pytest.mark.parametrize("settings", SETTINGS)
def test_a_tree_and_what_it_teaches_wait_once(demo: Pair, transfers: Transfers, settings: str) -> None:
    sampling = SETTINGS[settings]
    steps = rounds(demo, make_drafter(parse_draft("lookahead"), demo.drafter_parts(sampling, 0.0)), 4, sampling)
    next(steps)
    transfers.seen.clear()
    with transfers:
        for _ in range(4):
            assert next(steps).tree
    assert transfers.seen == Counter(tolist=4)


def test_plain_decoding_waits_once_too(demo: Pair, transfers: Transfers) -> None:
    steps = rounds(demo, NoDrafter(demo.target.device), 1, SETTINGS["sampled"])
    next(steps)
    transfers.seen.clear()
    with transfers:
        for _ in range(4):
            next(steps)
    assert transfers.seen == Counter(tolist=4)


def test_the_count_sees_what_waits(transfers: Transfers) -> None:
    """So that the tests above can fail."""
    values = torch.tensor([0.0, 1.0, 2.0])
    transfers.seen.clear()
    with transfers:
        values.nonzero()
        values.tolist()
        if values[1] > 0:
            values.sum().item()
        values[values > 0.5]
        values.cpu()
    assert transfers.seen["nonzero"] >= 1
    assert transfers.seen["tolist"] == 1
    assert transfers.seen["__bool__"] + transfers.seen["_local_scalar_dense"] >= 1
    assert transfers.seen["item"] == 1
    assert transfers.seen["cpu"] == 1
