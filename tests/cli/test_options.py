"""Options are declared once, as fields of dataclasses: what Typer is given of them, and what a subcommand gets back."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Annotated, Any

import pytest
import typer
from running import Specdec

from specdec_cli.cli import app
from specdec_cli.cli.bench import BenchOptions
from specdec_cli.cli.options.declare import InPanel, flag, flat, option, refuse_given
from specdec_cli.cli.options.models import DraftQuantize, Dtype, LoadingOptions, Quantize
from specdec_cli.cli.sweep_k import SweepOptions
from specdec_cli.errors import UsageError
from specdec_cli.settings import AUTO, DTYPES, QUANTIZE


@dataclass(frozen=True)
class Inner:
    """A group in a group."""

    seed: Annotated[int, option("--seed", help="A seed.")] = 7


@dataclass(frozen=True, kw_only=True)
class Group:
    """What two subcommands take."""

    k: Annotated[int | None, option("--k", "-k", panel="Speculation", help="K.")] = None
    inner: Annotated[Inner, InPanel("Draws")]
    raw: Annotated[bool, flag("--raw", help="As it is.")] = False


@dataclass(frozen=True, kw_only=True)
class OtherK(Group):
    """The same with another --k, and one more."""

    k: Annotated[int, option("--k", panel="Speculation", help="Another K.")] = 4
    limit: Annotated[int, option("--limit", help="So many.")] = 0


@dataclass(frozen=True, kw_only=True)
class One:
    """A subcommand's options."""

    name: Annotated[str, typer.Argument(help="A name.")]
    group: Group


@dataclass(frozen=True, kw_only=True)
class Another(One):
    """Those of another, with another group in the same place."""

    group: OtherK
    last: Annotated[bool, flag("--last", help="The last.")] = False


@dataclass(frozen=True, kw_only=True)
class Twice:
    """A mistake."""

    group: Group
    seed: Annotated[int, option("--seed", help="Again.")] = 0


def runner(command: Callable[[Any], int]) -> Callable[..., int]:
    app = typer.Typer()
    app.command()(flat(command))
    return lambda *words: typer.main.get_command(app)(list(words), standalone_mode=False)


def test_a_subcommand_gets_its_groups_filled() -> None:
    got: list[One] = []

    def command(options: One) -> int:
        got.append(options)
        return 3

    run = runner(command)
    assert run("here") == 3
    assert run("there", "-k", "2", "--seed", "1", "--raw") == 3
    assert got == [
        One(name="here", group=Group(inner=Inner())),
        One(name="there", group=Group(k=2, inner=Inner(seed=1), raw=True)),
    ]


def test_what_is_declared_again_stays_in_its_place() -> None:
    got: list[Another] = []

    def command(options: Another) -> int:
        got.append(options)
        return 0

    parameters = inspect.signature(flat(command)).parameters
    assert list(parameters) == ["name", "k", "seed", "raw", "limit", "last"]
    assert parameters["name"].default is inspect.Parameter.empty
    assert parameters["k"].default == 4
    assert runner(command)("x", "--limit", "5") == 0
    assert got == [Another(name="x", group=OtherK(inner=Inner(), limit=5))]


def test_a_group_goes_to_the_panel_where_it_stands() -> None:
    def command(options: One) -> int:
        return 0

    parameters = inspect.signature(flat(command)).parameters
    panels = {name: parameter.annotation.__metadata__[0].rich_help_panel for name, parameter in parameters.items()}
    assert panels == {"name": None, "k": "Speculation", "seed": "Draws", "raw": None}
    assert inspect.signature(flat(alone)).parameters["seed"].annotation.__metadata__[0].rich_help_panel is None


def alone(options: Inner) -> int:
    """A subcommand with the inner group and nothing else."""
    return options.seed


def test_name_and_help_are_the_commands() -> None:
    command = flat(alone)
    assert (command.__name__, command.__doc__) == ("alone", alone.__doc__)
    assert command(seed=5) == 5


def test_one_option_cannot_be_declared_in_two_groups() -> None:
    def command(options: Twice) -> int:
        return 0

    with pytest.raises(ValueError, match="duplicate parameter name: 'seed'"):
        flat(command)


def test_only_what_differs_from_its_default_is_refused() -> None:
    names = ("draft_device", "draft_vocab")
    refuse_given(LoadingOptions(device="cpu", draft_dtype=Dtype.float16), names, "is not for this")
    with pytest.raises(UsageError, match=r"^--draft-vocab is not for this$"):
        refuse_given(LoadingOptions(draft_vocab="none"), names, "is not for this")


def test_values_offered_are_those_that_settings_take() -> None:
    assert tuple(Dtype) == DTYPES
    assert tuple(DraftQuantize) == QUANTIZE
    assert (*Quantize, AUTO) == QUANTIZE


def test_sweep_k_takes_what_bench_takes_in_the_same_places() -> None:
    assert [field.name for field in fields(SweepOptions)] == [field.name for field in fields(BenchOptions)]


# Given twice, or heeded by nothing


def options_taking_one_value() -> list[tuple[str, str]]:
    """Every such option of every subcommand, by its longest name; and those flags that have a contrary."""
    found = []
    for name, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        for parameter in command.params:
            if parameter.param_type_name != "option" or parameter.multiple:
                continue
            if not parameter.is_flag or parameter.secondary_opts:
                found.append((name, max(parameter.opts, key=len)))
    return found


@pytest.mark.parametrize(("command", "name"), options_taking_one_value())
def test_an_option_of_one_value_is_refused_twice(specdec: Specdec, command: str, name: str) -> None:
    words = [name, "--no-ignore-eos"] if name == "--ignore-eos" else [name, "1", f"{name}=2"]
    code, out, err = specdec(command, *words)
    assert (code, out, err) == (2, "", f"specdec: {name} is given twice, and takes one value: choose one\n")


def test_short_and_long_name_are_one_option(specdec: Specdec) -> None:
    code, _, err = specdec("generate", "x", "-n", "4", "-n5", "--max-new-tokens", "6")
    assert (code, err) == (2, "specdec: --max-new-tokens is given 3 times, and takes one value: choose one\n")


def test_a_flag_may_be_said_twice(specdec: Specdec) -> None:
    """As an alias and a script may both do."""
    code, _, err = specdec("generate", "x", "-q", "--quiet", "--target", "nowhere")
    assert (code, err.startswith("specdec: --draft is missing")) == (2, True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("generate x -d none --k 4", "--k is how much is drafted, and --draft none drafts nothing: leave it out"),
        ("generate x -d none --k auto", "--k is how much is drafted, and --draft none drafts nothing: leave it out"),
        (
            "generate x -d none --show-draft",
            "--show-draft marks drafted text, and --draft none drafts none: leave it out",
        ),
        ("generate x -d none --draft-stop 0.5", "--draft-stop is for a draft with probabilities"),
        ("sweep-k --export vllm --format json", "--export and --format json both write to stdout: add --output FILE"),
        ("sweep-k --export vllm --format csv", "--export and --format csv both write to stdout: add --output FILE"),
        ("predict --alpha 0.8 --cost 0.1 --seed 3", "--seed is of the simulation: add --simulate, or leave it out"),
        (
            "predict --alpha 0.8 --target-params 70B --draft-params 1B --flops 1P --bandwidth 30",
            "--bandwidth must be bytes a second with their unit, such as 3.35TB/s or 3350GB/s, not '30'",
        ),
        (
            "predict --alpha 0.8 --target-params 70 --draft-params 1B --flops 1P --bandwidth 30GB/s",
            "--target-params must be a number of parameters, such as 70B or 135M, not '70'",
        ),
    ],
)
def test_what_nothing_heeds_is_refused(specdec: Specdec, words: str, message: str) -> None:
    code, out, err = specdec(*words.split())
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"specdec: {message}")


@pytest.mark.parametrize("command", ["generate", "bench", "sweep-k", "pair-check"])
def test_help_shows_everyday_options_in_the_first_screen(
    specdec: Specdec, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = specdec(command, "--help")
    assert code == 0
    lines = out.splitlines()
    panels = [line for line in lines if line.startswith("╭─")]
    assert [name for line in panels for name in ("Options", "Advanced") if name in line] == ["Options", "Advanced"]
    (advanced,) = (i for i, line in enumerate(lines) if "─ Advanced ─" in line)
    assert advanced <= 40
    first = "\n".join(lines[:advanced])
    assert all(option in first for option in ("--target", "--draft ", "--format", "--output", "--verbose"))
    assert "--draft-vocab" not in first
    assert "--draft-vocab" in out
