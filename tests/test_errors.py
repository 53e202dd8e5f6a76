import ast
import re
from pathlib import Path

import pytest

import konsil
from konsil import errors

NAMES = [
    "ConfigError",
    "DataError",
    "KonsilError",
    "RoundFailed",
    "RunError",
    "StateError",
    "UploadRefused",
]


def sources() -> dict[Path, str]:
    package = Path(konsil.__file__).parent
    return {path: path.read_text() for path in package.rglob("*.py")}


def test_the_exported_names_are_these():
    """Others catch them by name: adding one is a decision, removing one breaks their code."""
    assert sorted(n for n in vars(errors) if n[0].isupper()) == NAMES


def test_the_tree_in_the_docstring_is_the_tree():
    drawn = re.findall(r"^ *(?:\|--|`--) (\w+) ", errors.__doc__ or "", re.MULTILINE)
    assert sorted(["KonsilError", *drawn]) == NAMES
    for name in drawn:
        assert getattr(errors, name).__bases__ == (errors.KonsilError,)
    assert errors.KonsilError.__bases__ == (Exception,)


def raised(tree: ast.AST) -> set[str]:
    """Names of the exceptions that a module creates."""
    calls = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    return {func.id for func in calls if isinstance(func, ast.Name)}


@pytest.mark.parametrize("name", [n for n in NAMES if n != "KonsilError"])
def test_every_error_is_raised_somewhere(name: str):
    assert any(name in raised(ast.parse(text)) for text in sources().values())


def test_the_base_itself_is_never_raised():
    assert not any("KonsilError" in raised(ast.parse(text)) for text in sources().values())
