"""README.md fits on a page; links lead to files, files that pages name exist, and a test runs every command."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from gbactl.cli import cli
from gbactl.launch.hydra_config import compose
from tests.support.pages import MARKS, ROOT, blocks, commands, files, pages, text_of

LINK = re.compile(r"\]\(<?([^)\s>]+)>?\)")
PYTHON = re.compile(r"[\w./]*\w\.py\b")
FOLDERS = ("gbactl", "tests", "experiments", "docs")
COMMAND = re.compile(r"^(?:\$ )?(?:gbactl|make|python|sudo|\.venv/bin/\S+) \S", re.MULTILINE)


def prose(page: Path) -> str:
    """Text of a page without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", text_of(page), flags=re.DOTALL | re.MULTILINE)


def test_the_readme_is_one_page() -> None:
    text = text_of("README.md")
    assert len(text.splitlines()) <= 200
    assert len(text.encode()) <= 10_000


@pytest.mark.parametrize("page", pages(), ids=str)
def test_relative_links_lead_to_files(page: Path) -> None:
    targets = [link.partition("#")[0] for link in LINK.findall(prose(page)) if "://" not in link and link[0] != "#"]
    missing = [target for target in targets if target and not (ROOT / page.parent / target).exists()]
    assert not missing


@pytest.mark.parametrize("page", pages(), ids=str)
def test_commands_are_in_blocks_that_a_test_runs(page: Path) -> None:
    for block in blocks(page):
        assert block.mark in MARKS, block.text
        if block.language != "sh":
            assert not block.mark, block.text
            if block.language in ("", "text", "bash", "console", "shell"):
                assert not COMMAND.search(block.text), block.text
    marks = re.findall(r"<!-- test: .*? -->", text_of(page))
    assert len(marks) == sum(bool(block.mark) for block in blocks(page)), "a mark that is above no block"


@pytest.mark.parametrize("line", [line for page in pages() for line in commands(page, "synopsis")])
def test_verbs_options_and_keys_of_a_synopsis_exist(line: str) -> None:
    program, verb, *words = shlex.split(line)
    command = cli.get_command(click.Context(cli), verb)
    assert program == "gbactl" and command is not None
    options = {name for parameter in command.params for name in parameter.opts}
    assert {word for word in words if word.startswith("-")} <= {*options, "-m"}
    if verb == "train" and "-m" not in words:
        nodes = ["cluster.hosts=[n1:8]"] if "cluster=slurm" in words else []  # as in an allocation
        compose([*(word for word in words if not word.startswith("-")), *nodes])


@pytest.mark.parametrize("page", pages(), ids=str)
def test_files_of_the_tree_that_pages_name_exist(page: Path) -> None:
    named = set(re.findall(r"(?<![\w/])(?:gbactl|tests|experiments|conf)/[\w/.]+\.(?:py|yaml|md)\b", text_of(page)))
    missing = [name for name in sorted(named - set(files(page))) if "NAME" not in name and not (ROOT / name).exists()]
    assert not missing


def python_files() -> set[str]:
    """Paths of all Python files of the tree, each beginning with a slash."""
    return {f"/{path.relative_to(ROOT)}" for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")}


@pytest.mark.parametrize("page", pages(), ids=str)
def test_every_python_file_in_prose_and_diagrams_exists(page: Path) -> None:
    shown = "\n".join(block.text for block in blocks(page, "mermaid"))
    named = PYTHON.findall(f"{prose(page)}\n{shown}")
    there = python_files() | {f"/{name}" for name in files(page)}
    missing = {name for name in named if "NAME" not in name and not any(path.endswith(f"/{name}") for path in there)}
    assert not missing
