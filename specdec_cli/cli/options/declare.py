"""How options are declared, and how Typer comes to read them.

A subcommand is a function of one frozen dataclass. Each field of that is an option, or a group: another such dataclass,
which several subcommands take.

    @dataclass(frozen=True)
    class SamplingOptions:
        top_k: Annotated[int, option("--top-k", panel=SAMPLING, help="Keep the k most likely tokens; 0: all.")] = 0

    @dataclass(frozen=True, kw_only=True)
    class ChatOptions:
        sampling: SamplingOptions
        raw: Annotated[bool, flag("--raw", help="Send prompts as they are, without the chat template.")] = False

    def chat(options: ChatOptions) -> int: ...

    app.command()(flat(chat))

Typer reads functions that have one parameter an option, such as `flat` makes of this one. Help lists options in the
order of fields; a subclass that declares a field again leaves it in its place.
"""

from __future__ import annotations

import inspect
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from enum import Enum
from functools import cache, wraps
from inspect import Parameter, Signature
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand
from typer.models import OptionInfo

from specdec_cli.errors import UsageError
from specdec_cli.settings import is_unicode

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T")
MODELS, SAMPLING, SPECULATION, OUTPUT = "Models", "Sampling", "Speculation", "Output"
# Help shows the everyday options first, and all others behind them.
CONTRARIES = "On or off"
ADVANCED = "Advanced"
EVERYDAY = (
    *("preset", "target", "draft", "k", "temperature", "max_new_tokens", "prompts", "limit", "show_draft", "probe"),
    *("plot", "resume", "dry_run", "output_format", "output", "quiet", "verbose"),
)


def option(*names: str, help: str, panel: str | None = None, **more: Any) -> Any:
    """An option that takes a value, by its names, and the panel of `--help` that shows it."""
    return typer.Option(*names, help=help, rich_help_panel=panel, **more)


def in_utf8(value: Any) -> Any:
    """Typed text, for an option's `callback`: in a locale without UTF-8, Python kept its bytes aside (PEP 383)."""
    if isinstance(value, (list, tuple)):
        return [in_utf8(each) for each in value]
    if not isinstance(value, str) or is_unicode(value):
        return value
    try:
        return os.fsencode(value).decode("utf-8")
    except UnicodeError:  # it is none, and is refused where it is read
        return value


def flag(*names: str, help: str, panel: str | None = None) -> Any:
    """An option that is given or not; Typer's help would name it a <bool>, as though it took a value."""
    return option(*names, help=help, panel=panel, metavar="")


@dataclass(frozen=True)
class InPanel:
    """Marks a group, as `Annotated[Group, InPanel(NAME)]`: help shows its options in this panel."""

    name: str


def flat(command: Callable[[T], int]) -> Callable[..., int]:
    """A subcommand as Typer reads it: one parameter an option, with the name and the help text of `command`."""
    (group,) = (hint for name, hint in get_type_hints(command).items() if name != "return")

    @wraps(command)
    def flattened(**values: Any) -> int:
        return command(_filled(group, values))

    parameters = list(_parameters(group))
    flattened.__signature__ = Signature(parameters, return_annotation=int)  # type: ignore[attr-defined]
    flattened.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return flattened


def everyday_first(command: Callable[..., int]) -> Callable[..., int]:
    """The same command, made by `flat`, with help in two panels: what most need, then ADVANCED."""
    everyday: list[Parameter] = []
    advanced: list[Parameter] = []
    for parameter in inspect.signature(command).parameters.values():
        kind, declaration = get_args(parameter.annotation)
        if not isinstance(declaration, OptionInfo):
            everyday.append(parameter)
            continue
        rare = parameter.name not in EVERYDAY
        declaration = copy(declaration)
        contrary = any("/" in str(name) for name in (declaration.default, *(declaration.param_decls or ())))
        # A contrary needs a column of its own, for which the names of the others would be cut.
        declaration.rich_help_panel = CONTRARIES if contrary else ADVANCED if rare else None
        if isinstance(kind, type) and issubclass(kind, Enum):  # its values would fill a column
            declaration.metavar = "<word>"
            declaration.help = f"{declaration.help} One of {', '.join(value.value for value in kind)}."
        (advanced if rare else everyday).append(parameter.replace(annotation=Annotated[kind, declaration]))
    parameters = [*everyday, *advanced]
    command.__signature__ = Signature(parameters, return_annotation=int)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


class Subcommand(TyperCommand):
    """A subcommand that refuses an option given twice, of which the last alone would count."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Called by Typer with the words behind the subcommand's name."""
        _, _, given = self.make_parser(ctx).parse_args(args=list(args))
        for parameter, times in Counter(given).items():
            # A flag may be said twice, unless it has a contrary.
            harmless = getattr(parameter, "is_flag", False) and not parameter.secondary_opts
            if times > 1 and not harmless and not getattr(parameter, "multiple", False):
                often = "twice" if times == 2 else f"{times} times"
                raise UsageError(f"{parameter.opts[0]} is given {often}, and takes one value: choose one")
        return super().parse_args(ctx, args)


def refuse_given(options: DataclassInstance, names: tuple[str, ...], why: str) -> None:
    """Refuse options that would do nothing here.

    Args:
        names: fields of `options`; each is named as its option is.
        why: the rest of the message behind the option, with the remedy.

    Raises:
        UsageError: one of them has another value than its default.
    """
    for field in fields(options):
        if field.name in names and getattr(options, field.name) != field.default:
            raise UsageError(f"--{field.name.replace('_', '-')} {why}")


@cache  # most groups are read by several subcommands whenever one starts
def _declared(group: type[Any]) -> list[tuple[Field[Any], Any]]:
    """Every field with its annotation, evaluated."""
    hints = get_type_hints(group, include_extras=True)
    return [(field, hints[field.name]) for field in fields(group)]


def _group_in(hint: Any) -> tuple[type[Any] | None, str | None]:
    """The group that an annotation names, and the panel for it."""
    kind, *marks = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    if not isinstance(kind, type) or not is_dataclass(kind):
        return None, None
    return kind, next((mark.name for mark in marks if isinstance(mark, InPanel)), None)


def _parameters(group: type[Any], panel: str | None = None) -> Iterator[Parameter]:
    for field, hint in _declared(group):  # type: ignore[arg-type]  # mypy holds that a class has no hash
        inner, inner_panel = _group_in(hint)
        if inner is not None:
            yield from _parameters(inner, inner_panel or panel)
            continue
        kind, declaration = get_args(hint)
        if panel is not None:
            declaration = copy(declaration)
            declaration.rich_help_panel = panel
        default = Parameter.empty if field.default is MISSING else field.default
        yield Parameter(field.name, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, declaration])


def _filled(group: type[T], values: Mapping[str, Any]) -> T:
    filled = {}
    for field, hint in _declared(group):  # type: ignore[arg-type]  # mypy holds that a class has no hash
        inner, _ = _group_in(hint)
        filled[field.name] = values[field.name] if inner is None else _filled(inner, values)
    return group(**filled)
