"""Methods of your own: a Python file outside the package whose `@method` registers here.

The plan's hash holds what a file contains and not where it lies. A plugin is one file: what it
imports beside Konsil is the environment's, like Konsil's own libraries.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import re
import sys
import traceback
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path
from types import ModuleType

from konsil.errors import ConfigError
from konsil.method import REGISTRY, Method, all_methods

PREFIX = "konsil_plugin_"  # of the modules' names


def load_plugins(
    paths: Iterable[Path | str], agreed: Collection[str] | None = None
) -> dict[str, str]:
    """Run these files, each once a process; their methods, each with its file's sha256.

    `agreed`: the contents that a plan was made with. Another one is refused before it runs.
    """
    found: dict[str, str] = {}
    for given in paths:
        path = Path(os.path.expandvars(given)).expanduser().absolute()
        source = _read(path)
        sha256 = hashlib.sha256(source).hexdigest()
        if agreed is not None and sha256 not in agreed:
            raise ConfigError(
                f"{path}: this plugin has changed since the run began; put it back, or begin "
                "another run"
            )
        found |= dict.fromkeys(_load(path, source, sha256), sha256)
    return found


def with_contents(paths: Iterable[Path], contents: Collection[str]) -> dict[str, Path]:
    """Of these files those with one of these sha256, each content once; none of them is run."""
    found: dict[str, Path] = {}
    for path in paths:
        with suppress(ConfigError):  # a file that cannot be read has none of the contents
            sha256 = hashlib.sha256(_read(path)).hexdigest()
            if sha256 in contents:
                found.setdefault(sha256, path)
    return found


def _read(path: Path) -> bytes:
    if path.suffix != ".py":
        raise ConfigError(f"{path}: not a plugin; that is a Python file, NAME.py")
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such plugin file") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None


def _load(path: Path, source: bytes, sha256: str) -> list[str]:
    """The names of the methods of a file."""
    name = f"{PREFIX}{re.sub(r'[^a-zA-Z0-9]', '_', path.stem)}_{sha256[:16]}"
    if name not in sys.modules:
        all_methods()  # first, so that it is the plugin that finds a name taken
        _refuse_second_version(path)
        _run(name, path, source)
    methods = [method for method, cls in REGISTRY.items() if cls.__module__ == name]
    if not methods:
        _forget(name)
        raise ConfigError(f'{path}: no method in it; put @method("name", paper="...") on its class')
    return methods


def _refuse_second_version(path: Path) -> None:
    """Plans of this process may rest on the first one."""
    if any(getattr(sys.modules[c.__module__], "__file__", "") == str(path) for c in _plugged()):
        raise ConfigError(f"{path}: it has changed since this process loaded it; start a new one")


def _plugged() -> list[type[Method]]:
    return [cls for cls in REGISTRY.values() if cls.__module__.startswith(PREFIX)]


def _run(name: str, path: Path, source: bytes) -> None:
    """Run the very bytes that were hashed, as a module of that name."""
    module = sys.modules[name] = ModuleType(name)
    module.__file__ = str(path)
    try:
        exec(compile(source, str(path), "exec"), vars(module))
        _check(module)
    except (Exception, SystemExit) as error:
        _forget(name)
        place = f"{path}{_line(error, path)}"
        if isinstance(error, ConfigError):
            raise ConfigError(f"{place}: {error}") from None
        raise ConfigError(f"{place}: {type(error).__name__}: {_message(error)}") from None


def _check(module: ModuleType) -> None:
    """What would otherwise be found in the middle of a plan."""
    for name, cls in REGISTRY.items():
        if cls.__module__ == module.__name__:
            if not issubclass(cls, Method):
                raise ConfigError(f"method {name}: {cls.__name__} is not a subclass of Method")
            if inspect.isabstract(cls):
                missing = ", ".join(sorted(cls.__abstractmethods__))
                raise ConfigError(f"method {name}: {cls.__name__} has no {missing}")


def _forget(module: str) -> None:
    """Leave nothing of a file that could not be used."""
    sys.modules.pop(module, None)
    for name in [n for n, cls in REGISTRY.items() if cls.__module__ == module]:
        del REGISTRY[name]


def _line(error: BaseException, path: Path) -> str:
    """Where in the user's file it happened: its last line on the way to the error."""
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path)]
    if isinstance(error, SyntaxError) and error.filename == str(path):
        lines.append(error.lineno)
    return f", line {lines[-1]}" if lines else ""


def _message(error: BaseException) -> str:
    return error.msg if isinstance(error, SyntaxError) else str(error)
