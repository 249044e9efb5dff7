"""What a step costs, and with it c and v(K), by two figures of a machine: bandwidth and operations a second.

Decoding one token streams every weight once and spends about two floating-point operations on each: about one
operation a byte in 16 bit, where a data centre's accelerator needs hundreds to be busy. So the time is nearly all
memory traffic, and a pass over K + 1 tokens costs about what one over a single token costs.

Not so in a mixture of experts: each token wakes its own, so that a pass over n tokens reads more of them. Of E experts
a token wakes a; n tokens wake E (1 - (1 - a/E)^n) on average, if each wakes them independently and all equally often.
A router that favours some experts, or neighbours that wake the same ones, wake fewer: it is a bound.

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
class Experts:
    """How a mixture of experts is read, in each of its layers.

    Attributes:
        number: E, of experts.
        active: a, of those that one token wakes.
        dense_share: of the weights that a step reads, those that every token shares: attention, head, shared experts.
    """

    number: int
    active: int
    dense_share: float = 0.0

    def __post_init__(self) -> None:
        if not 1 <= self.active <= self.number:
            raise ValueError(f"a token wakes between 1 and all of {self.number} experts, not {self.active}")
        if not 0 <= self.dense_share < 1:
            raise ValueError(f"a share of the weights is 0 or above and below 1, not {self.dense_share:g}")

    def woken(self, num_tokens: int) -> float:
        """Experts that so many tokens wake together, by uniform routing."""
        return self.number * (1 - (1 - self.active / self.number) ** num_tokens)

    def pass_cost(self, num_tokens: int) -> float:
        """Weights that a pass over so many tokens reads, in those of a step."""
        return self._cost(self.woken(num_tokens))

    def most_pass_cost(self, num_tokens: int) -> float:
        """The same where no two tokens wake the same expert, as long as there are others."""
        return self._cost(min(self.number, self.active * num_tokens))

    def _cost(self, woken: float) -> float:
        return self.dense_share + (1 - self.dense_share) * woken / self.active


@dataclass(frozen=True)
class Model:
    """A model as its weights are read.

    Attributes:
        parameters: how many; of a mixture of experts, those that one token uses.
        dtype: a key of BYTES_PER_PARAMETER.
        experts: None where every token uses all weights.
    """

    parameters: float
    dtype: str
    experts: Experts | None = None

    def __post_init__(self) -> None:
        if self.parameters <= 0:
            raise ValueError("a model has parameters")
        if self.dtype not in BYTES_PER_PARAMETER:
            raise ValueError(f"the dtype must be one of {', '.join(BYTES_PER_PARAMETER)}, not '{self.dtype}'")

    @property
    def bytes(self) -> float:
        """Of all weights that a step reads."""
        return self.parameters * BYTES_PER_PARAMETER[self.dtype]


def memory_s(model: Model, machine: Machine, num_tokens: int = 1) -> float:
    """Seconds to read once every weight that so many tokens use."""
    steps = 1.0 if model.experts is None else model.experts.pass_cost(num_tokens)
    return steps * model.bytes / machine.bytes_per_s


def arithmetic_s(model: Model, machine: Machine, num_tokens: int = 1) -> float:
    """Seconds to compute with every weight, for so many tokens."""
    return OPERATIONS_PER_PARAMETER * model.parameters * num_tokens / machine.flop_per_s


def step_s(model: Model, machine: Machine, num_tokens: int = 1) -> float:
    """Seconds of one pass over so many tokens: traffic and arithmetic, added."""
    return memory_s(model, machine, num_tokens) + arithmetic_s(model, machine, num_tokens)


def draft_cost(target: Model, draft: Model, machine: Machine) -> float:
    """c: a draft step in target steps."""
    return step_s(draft, machine) / step_s(target, machine)


def verify_cost(target: Model, machine: Machine, num_draft_tokens: int) -> float:
    """v: the target's pass over K + 1 tokens in its steps."""
    return step_s(target, machine, num_draft_tokens + 1) / step_s(target, machine)
