"""What a step costs, and with it c and v(K), by two figures of a machine: bandwidth and operations a second.

Decoding one token streams every weight once and spends about two floating-point operations on each: about one
operation a byte in 16 bit, where a data centre's accelerator needs hundreds to be busy. So the time is nearly all
memory traffic, and a pass over K + 1 tokens costs about what one over a single token costs.

Traffic and arithmetic are added here, as if nothing of them overlapped, which is a bound from above. Attention, the
cache's own traffic and the fixed cost of a launch are left out, which is one from below; a measured c is often higher.
"""

from __future__ import annotations

from dataclasses import dataclass

BYTES_PER_PARAMETER = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0, "float8": 1.0, "int8": 1.0, "int4": 0.5}
OPERATIONS_PER_PARAMETER = 2.0  # a multiplication and an addition, for each token


@dataclass(frozen=True)
class Machine:
    """An accelerator, or a processor and its memory.

    Attributes:
        bytes_per_s: memory bandwidth.
        flop_per_s: arithmetic, in the type that it computes in.
    """

    bytes_per_s: float
    flop_per_s: float

    def __post_init__(self) -> None:
        if self.bytes_per_s <= 0 or self.flop_per_s <= 0:
            raise ValueError("bandwidth and arithmetic must be above 0")

    @property
    def flop_per_byte(self) -> float:
        """How many operations a byte of traffic must be used for to keep the arithmetic busy."""
        return self.flop_per_s / self.bytes_per_s


@dataclass(frozen=True)
class Model:
    """A model as its weights are read.

    Attributes:
        parameters: how many; of a mixture of experts, those that one token uses.
        dtype: a key of BYTES_PER_PARAMETER.
    """

    parameters: float
    dtype: str

    def __post_init__(self) -> None:
        if self.parameters <= 0:
            raise ValueError("a model has parameters")
        if self.dtype not in BYTES_PER_PARAMETER:
            raise ValueError(f"the dtype must be one of {', '.join(BYTES_PER_PARAMETER)}, not '{self.dtype}'")

    @property
    def bytes(self) -> float:
        """Of all weights."""
        return self.parameters * BYTES_PER_PARAMETER[self.dtype]


def memory_s(model: Model, machine: Machine) -> float:
    """Seconds to read every weight once."""
    return model.bytes / machine.bytes_per_s


def arithmetic_s(model: Model, machine: Machine, num_tokens: int = 1) -> float:
    """Seconds to compute with every weight, for so many tokens."""
    return OPERATIONS_PER_PARAMETER * model.parameters * num_tokens / machine.flop_per_s


def step_s(model: Model, machine: Machine, num_tokens: int = 1) -> float:
    """Seconds of one pass over so many tokens: traffic and arithmetic, added."""
    return memory_s(model, machine) + arithmetic_s(model, machine, num_tokens)


def draft_cost(target: Model, draft: Model, machine: Machine) -> float:
    """c: a draft step in target steps."""
    return step_s(draft, machine) / step_s(target, machine)


def verify_cost(target: Model, machine: Machine, num_draft_tokens: int) -> float:
    """v: the target's pass over K + 1 tokens in its steps."""
    return step_s(target, machine, num_draft_tokens + 1) / step_s(target, machine)
