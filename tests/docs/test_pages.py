"""What README.md and docs/*.md say of options, JSON keys and other pages is there."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from pages import COMMANDS, DATA, PAGES, anchors, blocks, links, name, prose
from running import ROOT, Specdec, benchmark_script

from specdec_cli.cli import app

README = PAGES[0]
SCRIPTING = ROOT / "docs" / "scripting.md"
# Options that pages name and that belong to other programs.
# Options that no page needs to name: the command line explains itself.
NEEDS_NO_PAGE = {"--help", "--version", "--show-completion"}
FEW = ("-n", "8", "--ignore-eos", "--seed", "1", "-q")


def options_of_commands() -> set[str]:
    """Every long option of every subcommand, and those of specdec itself."""
    group: Any = typer.main.get_command(app)
    commands = [group, *group.commands.values()]
    named = {name for c in commands for p in c.params for name in (*p.opts, *p.secondary_opts)}
    return {name for name in named if name.startswith("--")} | {"--help"}


class Known(Exception):
    """The options of a script are known."""


def options_of_scripts(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Every long option of the scripts of benchmarks/."""

    def stop(parser: argparse.ArgumentParser) -> None:
        raise Known([name for action in parser._actions for name in action.option_strings])

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", stop)
    for path in (ROOT / "benchmarks").glob("*.py"):
        with benchmark_script(path.stem) as script, pytest.raises(Known) as known:
            script.main()
        yield from (name for name in known.value.args[0] if name.startswith("--"))


def options_named(text: str) -> set[str]:
    """What looks like a long option."""
    return set(re.findall(r"(?<![\w-])--[a-z](?:[a-z0-9-]*[a-z0-9])?", text))


# Options


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_option_that_a_page_names_exists(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named = options_named(page.read_text(encoding="utf-8"))
    unknown = named - options_of_commands()
    assert not unknown or not unknown - set(options_of_scripts(monkeypatch))


def test_every_option_of_a_command_is_named_on_some_page() -> None:
    named = {option for page in PAGES for option in options_named(page.read_text(encoding="utf-8"))}
    missing = options_of_commands() - named - NEEDS_NO_PAGE
    assert not missing, f"say on a page of docs/ what they are for: {', '.join(sorted(missing))}"


# Links and form


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_link_points_to_something(page: Path) -> None:
    for path, anchor in links(page):
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{name(page)} points to {path}, which is not there"
        assert not anchor or anchor in anchors(target), f"{name(page)} points to {path}#{anchor}: no such heading"


@pytest.mark.parametrize("page", PAGES[1:], ids=name)
def test_a_page_says_what_it_answers_and_leads_back(page: Path) -> None:
    title, _, head = page.read_text(encoding="utf-8").split("\n")[:3]
    assert title.startswith("# ")
    assert re.fullmatch(r"\*.+\?\* · \[back to the README\]\(\.\./README\.md\)", head)
    assert name(page) in {path for path, _ in links(README)}, "the README must lead to it"


def test_the_readme_is_short() -> None:
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 200


def test_every_block_says_what_it_is() -> None:
    for block in blocks():
        where = f"{name(block.page)}:{block.line}"
        assert block.language in COMMANDS + DATA, f"{where}: ```sh, console, json or yaml, so that commands are found"
        assert not block.note or block.noted("not run") or block.noted("file"), f"{where}: {block.note}"
        if block.language == "json":
            assert all(map(json.loads, block.text.splitlines()))


def test_fences_are_closed() -> None:
    for page in PAGES:
        assert "```" not in prose(page)


# What the page about scripting says of JSON


def section(heading: str) -> str:
    """What stands under a heading of docs/scripting.md, up to the next of its level."""
    whole = rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)"
    (found,) = re.findall(whole, SCRIPTING.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return str(found)


def assert_named(keys: set[str], heading: str) -> None:
    """Every key stands between backticks under the heading, or under the one about all documents."""
    told = set(re.findall(r"`([^`]+)`", section("Every JSON document") + section(heading)))
    assert keys <= told, f"docs/scripting.md does not name {sorted(keys - told)}"


def test_keys_of_generate_and_of_a_trace(specdec: Specdec, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    code, out, _ = specdec("generate", "def f(", "-d", "ngram+demo:draft", "--format", "json", "--trace", trace, *FEW)
    assert code == 0
    record = json.loads(out)
    assert_named({*record, *record["timings"], *record["sources"]["demo:draft"]} - {"sources"}, "`generate`")
    assert_named({key for line in trace.read_text().splitlines() for key in json.loads(line)}, "`--trace`")


def test_keys_of_bench(specdec: Specdec) -> None:
    code, out, _ = specdec("bench", "--format", "json", "--limit", "1", *FEW)
    assert code == 0
    record = json.loads(out)
    (result,) = record["results"]
    inner = {key for part in ("acceptance", "cost") for key in result[part]}
    assert_named({*record, *result, *inner} - {"results"}, "`bench` and `sweep-k`")


def test_keys_of_pair_check(specdec: Specdec) -> None:
    code, out, _ = specdec("pair-check", "--format", "json")
    assert code == 0
    record = json.loads(out)
    (pair,) = record["pairs"]
    assert_named({*record, *pair, *pair["checks"][0], *pair["elsewhere"][0]}, "`pair-check`")


def test_keys_of_predict(specdec: Specdec) -> None:
    code, out, _ = specdec("predict", "--alpha", "0.8", "--cost", "0.1", "--format", "json")
    assert code == 0
    record = json.loads(out)
    assert_named({*record, *record["results"][0]}, "`predict`")


def test_options_of_scripts_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {"--hopeless", "--rounds", "--output"} <= set(options_of_scripts(monkeypatch))
