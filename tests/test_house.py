"""The repository as a whole: what a newcomer relies on before reading any code."""

import ast
import os
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("torch_loom", "csrc", "tests", "benchmarks", "docs", ".ci")
TEXT = {".py", ".h", ".cpp", ".md", ".toml", ".json", ".mlir", ""}


def text_files():
    found = [p for p in ROOT.iterdir() if p.is_file() and not p.name.endswith(".so")]
    for folder in FOLDERS:
        found += [p for p in (ROOT / folder).rglob("*") if p.is_file() and "__pycache__" not in p.parts]
    return [p for p in found if p.suffix in TEXT and p != Path(__file__)]


def modules():
    return sorted((ROOT / "torch_loom").rglob("*.py"))


def test_the_licence_is_apache_2():
    text = (ROOT / "LICENSE").read_text()
    assert "Apache License" in text and "Version 2.0, January 2004" in text
    assert "END OF TERMS AND CONDITIONS" in text
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["license"] == "Apache-2.0"


def test_python_needs_3_11_and_make_says_so():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["requires-python"] == ">=3.11"
    assert "(3, 11)" in (ROOT / "Makefile").read_text()


@pytest.mark.parametrize("target", ["demo", "test", "sanitize", "lint", "bench", "build", "format", "clean"])
def test_make_has_the_target(target):
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.M)


def test_ci_runs_lint_and_tests_and_can_be_executed():
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    lines = script.read_text().splitlines()
    assert "set -euo pipefail" in lines
    assert lines[-3:] == ["make lint", "make sanitize", "make test"]


def test_every_extra_that_make_installs_exists():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    wanted = set(re.findall(r"extra-(\w+)", (ROOT / "Makefile").read_text()))
    assert wanted == {"demo", "test", "lint"}
    assert wanted <= extras.keys()


@pytest.mark.parametrize("command", ["make demo", "make test"])
def test_the_readme_names_the_commands(command):
    assert command in (ROOT / "README.md").read_text()


def test_every_page_is_in_the_index():
    pages = {p.name for p in (ROOT / "docs").glob("*.md")} - {"README.md"}
    index = (ROOT / "docs" / "README.md").read_text()
    assert pages == set(re.findall(r"\]\((\w[\w-]*\.md)\)", index))


def test_links_between_pages_lead_somewhere():
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_module_says_why_it_exists():
    missing = [str(p.relative_to(ROOT)) for p in modules() if not ast.get_docstring(ast.parse(p.read_text()))]
    assert missing == []


@pytest.mark.parametrize(
    "pattern",
    [
        r"\bTODO\b|\bFIXME\b|\bXXX\b",
        r"--index-url|--extra-index-url",
        r"/root/|/home/\w+/",
    ],
    ids=["unfinished work", "places to fetch packages from", "paths of one machine"],
)
def test_no_file_holds(pattern):
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in text_files()
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if re.search(pattern, line)
    ]
    assert found == []


def test_tests_have_names_of_their_own():
    names = [p.name for p in (ROOT / "tests").rglob("*.py") if p.name not in ("conftest.py", "__init__.py")]
    assert sorted(names) == sorted(set(names))
