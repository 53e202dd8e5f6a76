"""What is written down must be true: examples run, recipes are valid, links lead somewhere."""

import doctest
import inspect
import pkgutil
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import FunctionType

import pytest

import konsil
import konsil.ingredients.method
from konsil.config import read_experiment
from konsil.federation.plan import load_choices
from konsil.ingredients.method import METHODS

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
RECIPES = sorted((ROOT / "recipes").glob("*.yaml"))
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)[^)]*\)")


def test_the_method_in_the_docstring_runs():
    before = METHODS.all()
    result = doctest.testmod(konsil.ingredients.method)
    assert result.attempted >= 3
    assert result.failed == 0
    assert before == METHODS.all()


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_is_valid(recipe: Path):
    load_choices(read_experiment(recipe))


def test_there_are_recipes_and_they_travel_with_the_package():
    assert RECIPES
    assert (ROOT / "recipes").resolve() == ROOT / "konsil" / "recipes"


def public(home: object, prefix: str) -> Iterator[tuple[str, object]]:
    """What a module or class defines by itself under names for others; overrides left out."""
    for name, found in vars(home).items():
        thing = getattr(found, "__func__", getattr(found, "fget", getattr(found, "func", found)))
        inherited = any(name in vars(base) for base in getattr(home, "__mro__", ())[1:])
        own = getattr(thing, "__module__", "") == getattr(home, "__module__", prefix)
        if name.startswith("_") or inherited or not own or name != getattr(thing, "__name__", ""):
            continue
        if isinstance(thing, FunctionType | type):
            yield f"{prefix}.{name}", thing
        if isinstance(thing, type):
            yield from public(thing, f"{prefix}.{name}")


def modules() -> Iterator[str]:
    for module in pkgutil.walk_packages(konsil.__path__, "konsil."):
        if not module.name.endswith("__main__"):
            yield module.name


def test_what_is_public_says_what_it_is():
    """An override needs no docstring; what has one of its own says more than its name."""
    short = []
    for module in modules():
        for name, thing in public(import_module(module), module):
            text = inspect.cleandoc(thing.__doc__ or "")
            if len(text.split()) <= 3 and not text.startswith(f"{name.rpartition('.')[2]}("):
                short.append(f"{name}: {text!r}")
    assert not short, "\n".join(short)


def links(page: Path) -> list[str]:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    found = LINK.findall(text) + re.findall(r'(?:src|href)="([^"]+)"', text)
    return [link for link in found if not re.match(r"[a-z]+:|#", link)]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_to_files_that_exist(page: Path):
    broken = [link for link in links(page) if not (page.parent / link.split("#")[0]).exists()]
    assert not broken


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {heading.strip().replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_into_a_page_lead_to_a_heading(page: Path):
    text = page.read_text(encoding="utf-8")
    for target, anchor in re.findall(r"\]\(([^)#\s:]*\.md)?#([^)\s]+)\)", text):
        other = page.parent / target if target else page
        assert not other.exists() or anchor in anchors(other), f"{target}#{anchor}"
