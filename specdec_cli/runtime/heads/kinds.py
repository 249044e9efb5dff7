"""Which kind of trained head a folder holds, and which of the target's states it reads.

Formats differ in names more than in numbers: a kind is known by its tensors, a layout by its configuration. What one
name means in two layouts (the numbers of tapped layers) is decided here and told in a line, since a head that reads
the wrong states runs, and is only bad.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor
from transformers import PreTrainedConfig

from specdec_cli.decoding.model import Tap
from specdec_cli.errors import IncompatiblePairError, SpecdecError
from specdec_cli.runtime.checkpoints.head_marks import MARKS, is_marked
from specdec_cli.runtime.checkpoints.locate import Place
from specdec_cli.runtime.heads.files import HeadFiles, open_files, read_config

NAMES = {
    "eagle": "EAGLE",
    "eagle3": "EAGLE-3",
    "medusa": "Medusa",
    "mtp": "multi-token prediction",
    "peagle": "P-EAGLE",
    "dflash": "DFlash",
    "dspark": "DSpark",
}
OF_BLOCKS = ("dflash", "dspark")
OF_SPECULATORS = ("eagle3", "peagle", *OF_BLOCKS)
_MEDUSA = re.compile(r"(medusa_head\.)?\d+\.\d+\.(linear\.)?weight")
# Only Medusa's and one layer's heads are read by the target's last state, after its final norm.
_LAST_STATE = ("eagle", "medusa", "mtp")


@dataclass(frozen=True)
class Head:
    """What was detected.

    Attributes:
        files: where it is.
        kind: a key of `NAMES`.
        layout: who publishes heads of this form: "SafeAILab", "SpecForge", "speculators", "Medusa".
        config: of its layers and its own flags, in one mapping, whatever was nested in what.
        num_taps: how many states it reads of each token.
        tap_ids: the layers that its configuration names, as it names them; None where it names none.
        id_shift: what makes a boundary (see `Tap`) of such a number: 0 or 1.
        alternatives: other values of `id_shift` that such a configuration may have been meant by.
    """

    files: HeadFiles
    kind: str
    layout: str
    config: Mapping[str, Any]
    num_taps: int = 1
    tap_ids: tuple[int, ...] | None = None
    id_shift: int = 0
    alternatives: tuple[int, ...] = field(default=())

    @property
    def name(self) -> str:
        """What the kind is called."""
        return NAMES[self.kind]

    @property
    def target_hidden_size(self) -> int:
        """Width of the target's states."""
        return int(self.config.get("target_hidden_size") or self.config["hidden_size"])

    @property
    def vocab_size(self) -> int | None:
        """Rows of the target's embedding; None where the configuration does not say."""
        found = self.config.get("vocab_size")
        return None if found is None else int(found)

    def taps(self, num_layers: int) -> tuple[Tap, ...]:
        """The states that it reads, of a target with so many layers; in the order of their concatenation.

        Raises:
            IncompatiblePairError: the target has no such layers.
        """
        if self.kind in _LAST_STATE:
            return (Tap(num_layers, normed=True),)
        if self.tap_ids is not None:
            boundaries = [k + self.id_shift for k in self.tap_ids]
        elif self.kind in OF_BLOCKS:
            boundaries = _usual_of_blocks(num_layers, self.num_taps)
        else:
            boundaries = _usual(num_layers)
        strange = [b for b in boundaries if not 0 <= b <= num_layers]
        if strange:
            raise IncompatiblePairError(
                f"{self.files.place.name}: its config.json reads states after layer {_and(strange)}, and the target "
                f"has {num_layers} layers: the head belongs to another target"
            )
        return tuple(Tap(boundary) for boundary in boundaries)

    def require_target(self, config: PreTrainedConfig, num_rows: int) -> None:
        """Refuse a target that the head was not made for, as far as sizes tell.

        Args:
            config: of the target's language model.
            num_rows: of its embedding.

        Raises:
            IncompatiblePairError: naming what differs.
        """
        name = self.files.place.name
        if self.kind != "medusa" and self.target_hidden_size != config.hidden_size:
            raise IncompatiblePairError(
                f"{name} reads states of {self.target_hidden_size:,} numbers, and the target's have "
                f"{config.hidden_size:,}: the head belongs to another target"
            )
        if self.vocab_size is not None and self.vocab_size != num_rows:
            raise IncompatiblePairError(
                f"{name} was made for a vocabulary of {self.vocab_size:,} tokens, and the target has {num_rows:,}: the "
                "head belongs to another target"
            )

    def describe(self, num_layers: int) -> str:
        """What was detected and how it reads the target's states, in a line."""
        taps = self.taps(num_layers)
        where = _and([_boundary(tap, num_layers) for tap in taps])
        return (
            f"draft {self.files.place.settings.source}: {self.name} head ({self.layout}), reads the target's "
            f"{'state' if len(taps) == 1 else 'states'} {where}{self._why()}"
        )

    def _why(self) -> str:
        if self.kind in _LAST_STATE:
            return ""
        if self.tap_ids is None:
            return " (the usual ones: its config.json names none)"
        read = "outputs of these layers" if self.id_shift else "boundaries"
        return f" (its ids {', '.join(map(str, self.tap_ids))}, read as {read})"

    def tensors(self) -> dict[str, Tensor]:
        """By names that do not depend on the layout: `layers.0.` for EAGLE-3's `midlayer.`, no `model.` before all."""
        return {_plain_name(name): tensor for name, tensor in self.files.tensors().items()}

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of the tensors, by the same names."""
        return {_plain_name(name): shape for name, shape in self.files.shapes.items()}


def detect(place: Place) -> Head | None:
    """The head that a folder or a hub id holds; None where it is a model, or a file.

    Of a hub id nothing but config.json is fetched where that describes a model of more than one layer.

    Raises:
        SpecdecError: it is a head whose files cannot be read, or of a kind that specdec does not know; one line.
    """
    config = read_config(place)
    if config is None or not _may_be_head(config):
        return None
    declared = config.get("speculators_model_type")
    if declared is not None and declared not in OF_SPECULATORS:
        raise SpecdecError(
            f"{place.name} is a speculators head of the kind '{declared}', which specdec does not know: choose one of "
            f"{', '.join(OF_SPECULATORS)}"
        )
    try:
        return _of_files(open_files(place, config))
    except SpecdecError:
        if is_marked(config):
            raise
        return None  # what is wrong with a model of one layer is told as a model's fault


def _may_be_head(config: Mapping[str, Any]) -> bool:
    """Whether the configuration is a head's, or may be: EAGLE's first heads say nothing but that they have a layer."""
    return is_marked(config) or config.get("num_hidden_layers") == 1


def _of_files(files: HeadFiles) -> Head | None:
    shapes = {_plain_name(name): shape for name, shape in files.shapes.items()}
    config = _flat(files.config)
    kind = _kind(files.config, shapes)
    if kind is None:
        if not any(key in files.config for key in MARKS):
            return None  # a model of one layer
        raise SpecdecError(
            f"{files.place.name} is configured as a trained head, and its tensors are of no kind that specdec knows "
            f"({', '.join(NAMES.values())}): choose another"
        )
    layout = _layout(files.config, kind)
    if kind == "medusa":
        return Head(files, kind, layout, config)
    for key in ("hidden_size", "num_attention_heads"):
        if not isinstance(config.get(key), int):
            raise SpecdecError(f"{files.place.name}: its config.json gives no {key}: download it again")
    head = Head(files, kind, layout, config)
    if kind == "eagle":
        return head
    return _with_taps(head, shapes)


def _kind(config: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> str | None:
    declared = config.get("speculators_model_type")
    if declared is not None:
        return str(declared)
    if any(_MEDUSA.fullmatch(name) for name in shapes):
        return "medusa"
    if "fc.weight" not in shapes or "layers.0.mlp.down_proj.weight" not in shapes:
        return None
    if any(name.startswith("markov_head.") for name in shapes):
        return "dspark"
    if "dflash_config" in config or ("hidden_norm.weight" in shapes and "layers.0.hidden_norm.weight" not in shapes):
        return "dflash"
    if "layers.0.hidden_norm.weight" in shapes:
        return "peagle" if "mask_hidden" in shapes else "eagle3"
    return "eagle"


def _layout(config: Mapping[str, Any], kind: str) -> str:
    if kind == "medusa":
        return "Medusa"
    if "speculators_model_type" in config:
        return "speculators"
    architectures = config.get("architectures") or [""]
    if kind in OF_BLOCKS or architectures[0] == "LlamaForCausalLMEagle3" or "eagle_config" in config:
        return "SpecForge"
    return "SafeAILab"


def _with_taps(head: Head, shapes: Mapping[str, tuple[int, ...]]) -> Head:
    """The same, with the states that its files speak of.

    Raises:
        SpecdecError: its fc has no whole number of them, or another than its configuration.
    """
    files, name = head.files, head.files.place.name
    if "fc.weight" not in shapes:
        raise SpecdecError(f"{name} has no fc.weight, which the target's states go through: download it again")
    width, hidden = shapes["fc.weight"][1], head.target_hidden_size
    num_taps, rest = divmod(width, hidden)
    if rest or not num_taps:
        raise SpecdecError(
            f"{name}: its fc takes {width:,} numbers, no multiple of the {hidden:,} of a state: its config.json (or "
            "target_hidden_size in it) is another head's"
        )
    key = "eagle_aux_hidden_state_layer_ids"
    nested = files.config.get("dflash_config" if head.kind in OF_BLOCKS else "eagle_config")
    nested = nested if isinstance(nested, Mapping) else {}
    ids = nested.get("target_layer_ids" if head.kind in OF_BLOCKS else key)
    shift = 1
    if ids is None:
        ids, shift = files.config.get("aux_hidden_state_layer_ids" if head.kind in OF_BLOCKS else key), 0
    if ids is None and head.kind not in OF_BLOCKS and num_taps != len(_usual(0)):
        raise SpecdecError(
            f"{name} reads {num_taps} states of the target, and its config.json does not say which ({key}): choose "
            "another, or write them into it"
        )
    if ids is None:
        return replace(head, num_taps=num_taps)
    if not isinstance(ids, list) or not all(isinstance(i, int) for i in ids) or len(ids) != num_taps:
        raise SpecdecError(
            f"{name}: its config.json names the layers {ids}, and its fc takes {num_taps} states: download it again"
        )
    # Some who publish in SGLang's form give boundaries; in speculators' form there is one reading.
    others = () if head.layout == "speculators" else (1 - shift,)
    return replace(head, num_taps=num_taps, tap_ids=tuple(ids), id_shift=shift, alternatives=others)


def _usual(num_layers: int) -> list[int]:
    """The boundaries that EAGLE-3 takes where nothing is said: low, middle and high."""
    return [2, num_layers // 2, num_layers - 3]


def _usual_of_blocks(num_layers: int, number: int) -> list[int]:
    """The boundaries that DFlash takes where nothing is said: evenly from the second layer's to the last but two's."""
    if number == 1:
        return [num_layers // 2 + 1]
    first, last = 1, num_layers - 3
    return [round(first + i * (last - first) / (number - 1)) + 1 for i in range(number)]


def _flat(config: Mapping[str, Any]) -> dict[str, Any]:
    layers = config.get("transformer_layer_config")
    flat = {**(layers if isinstance(layers, Mapping) else {}), **config}
    if isinstance(layers, Mapping) and "architectures" in config:
        flat["model_type"] = layers.get("model_type", "llama")
    return flat


def _plain_name(name: str) -> str:
    name = name.removeprefix("model.") if name.startswith(("model.midlayer.", "model.fc.")) else name
    return f"layers.0.{name.removeprefix('midlayer.')}" if name.startswith("midlayer.") else name


def _boundary(tap: Tap, num_layers: int) -> str:
    if tap.boundary == 0:
        return "of the embeddings"
    if tap.boundary == num_layers:
        return f"after the {'final norm' if tap.normed else 'last layer, not normed'}"
    return f"after layer {tap.boundary}"


def _and(parts: Sequence[object]) -> str:
    *others, last = map(str, parts)
    return f"{', '.join(others)} and {last}" if others else last
