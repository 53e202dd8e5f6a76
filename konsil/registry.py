"""What is chosen by name: methods, networks, tasks, importers.

Every kind is found the same way, in three places: in its own package (`konsil.methods`), in a
user's file (`--plugin`), and in installed packages, through entry points of a group that has the
package's name unless the kind says otherwise. None of them is listed anywhere.

The plan's hash holds what a plugin file contains and not where it lies. A plugin is one file: what
it imports beside Konsil is the environment's, like Konsil's own libraries.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import pkgutil
import re
import sys
import traceback
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, TypeVar

from konsil.errors import ConfigError

T = TypeVar("T")
PREFIX = "konsil_plugin_"  # of the names of plugins' modules
NAME = r"[A-Za-z0-9_-]+"
REGISTRIES: dict[str, Registry[Any]] = {}


class Registry(Generic[T]):
    """Everything of one kind, by name."""

    def __init__(
        self,
        kind: str,
        package: str,
        check: Callable[[str, T], None] = lambda name, entry: None,
        group: str | None = None,
    ) -> None:
        """`check` refuses what could only fail in the middle of a plan; `group`: entry points'."""
        self.kind, self.package, self.group = kind, package, group or package
        self._check = check
        self._entries: dict[str, T] = {}
        self._homes: dict[str, tuple[str, str]] = {}  # name -> module and name of its definition
        self._silent: set[str] = set()  # names that are not offered
        self._searched = False
        REGISTRIES[package] = self

    def add(
        self, name: str, entry: T, definition: Callable[..., Any], offered: bool = True
    ) -> None:
        """Register under a name that no other has; `definition`: the class or function behind it.

        The same definition may come again: a module can be imported anew. What is not `offered` is
        found by its name and listed nowhere.
        """
        if not re.fullmatch(NAME, name):
            raise ConfigError(f"{self.kind} {name!r}: a name is letters, digits, - and _")
        if definition.__module__.startswith(PREFIX):
            self._search()  # first, so that it is the plugin that finds a name taken
        home = definition.__module__, definition.__qualname__
        module, _ = known = self._homes.get(name, home)
        if known != home:  # a module of a package, or a user's file
            place = sys.modules[module].__file__ if module.startswith(PREFIX) else module
            raise ConfigError(f"{self.kind} {name}: {place} has it already; choose another name")
        self._check(name, entry)
        self._entries[name], self._homes[name] = entry, home
        if not offered:
            self._silent.add(name)

    def remove(self, name: str) -> None:
        """Take a name back, if it is there."""
        self._entries.pop(name, None)
        self._homes.pop(name, None)

    def all(self) -> dict[str, T]:
        """All that are offered, in the order of their names."""
        self._search()
        return {n: entry for n, entry in sorted(self._entries.items()) if n not in self._silent}

    def find(self, name: str, where: str) -> T:
        """The one of this name; `where` begins the error if there is none."""
        offered = self.all()
        if name not in self._entries:
            raise ConfigError(
                f"{where}: unknown {self.kind} {name!r}; there are {', '.join(offered)}; "
                "one of your own comes from a file under `plugins` (--plugin FILE.py)"
            )
        return self._entries[name]

    def names_from(self, module: str) -> list[str]:
        """What a module has registered."""
        return [name for name, home in self._homes.items() if home[0] == module]

    def forget(self, module: str) -> None:
        """Leave nothing of a module."""
        for name in self.names_from(module):
            self.remove(name)

    def _search(self) -> None:
        if self._searched:
            return
        self._searched = True
        package = importlib.import_module(self.package)
        for module in pkgutil.iter_modules(package.__path__):
            importlib.import_module(f"{self.package}.{module.name}")
        for entry in entry_points(group=self.group):
            try:
                entry.load()
            except Exception as error:
                source = f"{entry.dist.name} " if entry.dist else ""
                raise ConfigError(
                    f"{source}(entry point {entry.name} = {entry.value} of {self.group}): "
                    f"{type(error).__name__}: {error}; mend or uninstall it"
                ) from None


def load_plugins(
    paths: Iterable[Path | str], agreed: Collection[str] | None = None
) -> dict[str, str]:
    """Run these files, each once a process; what they register, each with its file's sha256.

    `agreed`: the contents that a plan was made with. Another one is refused before it runs.
    """
    found: dict[str, str] = {}
    for given in paths:
        path = Path(os.path.expandvars(given)).expanduser().absolute()
        if path.suffix != ".py":
            raise ConfigError(f"{path}: not a plugin; that is a Python file, NAME.py")
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
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such plugin file") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None


def _load(path: Path, source: bytes, sha256: str) -> list[str]:
    """The names of what a file registers; those of other kinds than methods with their kind."""
    module = f"{PREFIX}{re.sub(r'[^a-zA-Z0-9]', '_', path.stem)}_{sha256[:16]}"
    if module not in sys.modules:
        plugged = [m for name, m in sys.modules.items() if name.startswith(PREFIX)]
        if any(getattr(m, "__file__", "") == str(path) for m in plugged):  # plans may rest on it
            raise ConfigError(
                f"{path}: it has changed since this process loaded it; start a new one"
            )
        _run(module, path, source)
    names = [
        name if registry.kind == "method" else f"{registry.kind} {name}"
        for registry in REGISTRIES.values()
        for name in registry.names_from(module)
    ]
    if not names:
        _forget(module)
        raise ConfigError(
            f"{path}: no method, network, task or importer in it; put a decorator such as "
            '@method("name", paper="...") or @network("name", segments=True) on what it holds'
        )
    return names


def kind_and_name(registered: str) -> str:
    """What a plan calls something of a plugin, for people: methods have their kind, too."""
    return registered if " " in registered else f"method {registered}"


def _run(name: str, path: Path, source: bytes) -> None:
    """Run the very bytes that were hashed, as a module of that name."""
    module = sys.modules[name] = ModuleType(name)
    module.__file__ = str(path)
    try:
        exec(compile(source, str(path), "exec"), vars(module))
    except (Exception, SystemExit) as error:
        _forget(name)
        place = f"{path}{_line(error, path)}"
        if isinstance(error, ConfigError):
            raise ConfigError(f"{place}: {error}") from None
        words = error.msg if isinstance(error, SyntaxError) else str(error)
        raise ConfigError(f"{place}: {type(error).__name__}: {words}") from None


def _forget(module: str) -> None:
    """Leave nothing of a file that could not be used."""
    sys.modules.pop(module, None)
    for registry in REGISTRIES.values():
        registry.forget(module)


def _line(error: BaseException, path: Path) -> str:
    """Where in the user's file it happened: its last line on the way to the error."""
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path)]
    if isinstance(error, SyntaxError) and error.filename == str(path):
        lines.append(error.lineno)
    return f", line {lines[-1]}" if lines else ""
