"""CUDA graphs as a recorder of passes (see `graphs`). Written after torch's documentation; not yet run on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from specdec_cli.runtime.models.graphs import Recording, Results

WARM_UPS = 2


@dataclass
class _CudaRecording:
    graph: torch.cuda.CUDAGraph
    outputs: Results
    share: Callable[[torch.Generator], None]

    def replay(self, generator: torch.Generator) -> None:
        self.share(generator)
        self.graph.replay()


class CudaRecorder:
    """CUDA graphs on one device, in one memory pool: they never run at the same time.

    A graph draws from the generator state that it was made with, while every text has a generator of its own. So
    all of them are made to share one state, each taking its seed and place along.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)
        self._state = torch.Generator(device)
        self._sharing: torch.Generator | None = None

    def record(self, function: Callable[[], Results], generator: torch.Generator) -> Recording:
        """Warm up on a side stream, since what libraries set up at their first call cannot be recorded; then record."""
        self._share(generator)
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(self._state)
        with torch.cuda.device(self._device):
            current = torch.cuda.current_stream()
            self._stream.wait_stream(current)
            try:
                with torch.cuda.stream(self._stream):
                    for _ in range(WARM_UPS):
                        function()
                    with torch.cuda.graph(
                        graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
                    ):
                        outputs = function()
            except RuntimeError:
                # The state may go on waiting for a recording that never ended.
                self._state = torch.Generator(self._device)
                self._sharing = None
                generator.graphsafe_set_state(torch.Generator(self._device).graphsafe_get_state())
                raise
            current.wait_stream(self._stream)
        return _CudaRecording(graph, outputs, self._share)

    def _share(self, generator: torch.Generator) -> None:
        if generator is self._sharing:
            return
        place = generator.get_state()
        generator.graphsafe_set_state(self._state.graphsafe_get_state())
        generator.set_state(place)
        self._sharing = generator
