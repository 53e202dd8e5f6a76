"""The experiment file: one YAML, checked whole before anything is computed.

Every class is one block of the file. Unknown keys and impossible values are refused with the
key's path, the value, and what is allowed (`read_experiment`).
"""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self, TypeVar, get_args

import yaml
from platformdirs import user_cache_path
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from konsil.errors import ConfigError, suggestion

SYNTHETIC = ("retina", "prostate", "pathology")
SOURCES = ("synthetic", "folder", "csv", "file")
PLACES = ("folder", "csv", "file", "cache", "cache_limit")  # where data lie changes no number
CACHE_LIMIT = "50 GB"  # of decoded images, unless said otherwise
Targets = Literal["masks", "classes"]  # what a task learns from: a mask a structure, or a class
UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
B = TypeVar("B", bound=BaseModel)


class Block(BaseModel):
    """A part of the experiment file: immutable, and strict about its keys."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", populate_by_name=True, allow_inf_nan=False
    )

    @field_validator("*", mode="before")
    @classmethod
    def _not_a_switch(cls, value: Any, info: ValidationInfo) -> Any:
        """YAML reads yes, no, on and off as booleans, and Python reads those as 1 and 0."""
        field = cls.model_fields[str(info.field_name)]
        if isinstance(value, bool) and field.annotation is not bool:
            raise ValueError("must not be true or false (as YAML reads yes, no, on and off)")
        return value


class FederationConfig(Block):
    """Where the images of which sites are. Exactly one of the four sources is given."""

    synthetic: Literal["retina", "prostate", "pathology"] | None = None
    images: dict[str, int] | None = None  # synthetic only: images a site; default: the built-in
    folder: Path | None = None
    csv: Path | None = None
    file: Path | None = None  # a federation.yaml, or the folder that holds it
    sites: list[str] | None = None  # keep these sites only, in this order
    image_size: int = Field(64, ge=16)
    channels: Literal[1, 3] = 3
    patient_pattern: str | None = None  # regular expression; group 1 of the file's stem
    split: tuple[float, float, float] = (0.5, 0.25, 0.25)
    split_seed: int = 0
    cache: Path | None = None  # default: $KONSIL_CACHE, or the user's cache folder
    cache_limit: int | str | None = None  # default: $KONSIL_CACHE_LIMIT, or CACHE_LIMIT

    @field_validator("folder", "csv", "file", "cache")
    @classmethod
    def _expand(cls, path: Path | None) -> Path | None:
        return None if path is None else Path(os.path.expandvars(path)).expanduser()

    @field_validator("split")
    @classmethod
    def _fractions(cls, split: tuple[float, float, float]) -> tuple[float, float, float]:
        if min(split) <= 0 or abs(sum(split) - 1) > 1e-6:
            raise ValueError("train, validation and test must be positive and sum to 1")
        return split

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        given = [k for k in SOURCES if getattr(self, k) is not None]
        if len(given) != 1:
            raise ValueError(
                f"give exactly one of synthetic ({', '.join(SYNTHETIC)}), folder, csv and file; "
                f"found {' and '.join(given) or 'none'}"
            )
        if self.file is not None and self.patient_pattern is not None:
            raise ValueError("patient_pattern: with file, `patient` stands in the federation file")
        if self.images is not None and self.synthetic is None:
            raise ValueError("images: a count a site goes with synthetic only")
        return self

    @property
    def cache_folder(self) -> Path:
        """Where decoded images are kept between runs."""
        return self.cache if self.cache is not None else usual_cache()

    @field_validator("cache_limit")
    @classmethod
    def _readable(cls, limit: int | str | None) -> int | str | None:
        if limit is not None:
            number_of_bytes(limit)
        return limit

    @property
    def cache_limit_bytes(self) -> int:
        """How large the cache may grow."""
        limit = self.cache_limit
        return usual_cache_limit() if limit is None else number_of_bytes(limit)


def usual_cache() -> Path:
    """Where decoded images are kept unless an experiment says otherwise."""
    given = os.environ.get("KONSIL_CACHE")
    return user_cache_path("konsil", appauthor=False) if given is None else Path(given).expanduser()


def usual_cache_limit() -> int:
    """How large the cache may grow unless an experiment says otherwise."""
    given = os.environ.get("KONSIL_CACHE_LIMIT", CACHE_LIMIT)
    try:
        return number_of_bytes(given)
    except ValueError as error:
        raise ConfigError(f"KONSIL_CACHE_LIMIT = {given!r}: {error}") from None


def number_of_bytes(text: int | str) -> int:
    """Bytes, as a number or as one writes them: 20 GB."""
    match = re.fullmatch(r"\s*(\d+\.?\d*)\s*((?:[KMGT]?B)?)\s*", str(text).upper())
    if match is None:
        raise ValueError("must be a number of bytes, such as 20 GB")
    return int(float(match[1]) * UNITS[match[2]])


class TaskConfig(Block):
    """What is learned: a task by name, what its labels mean, and the task's own settings."""

    model_config = ConfigDict(extra="allow")

    name: str = "segmentation"
    # of masks: structure -> the mask values that belong to it (they may overlap: disc and cup)
    structures: dict[str, list[int]] | None = None
    # of classes: their names in order; the last is the positive one of a binary task
    classes: list[str] | None = None
    normalise: bool = True  # per image and channel, zero mean and unit variance

    @model_validator(mode="after")
    def _meant(self) -> Self:
        if self.classes is not None and len(set(self.classes)) < max(2, len(self.classes)):
            raise ValueError(f"classes = {self.classes}: at least two different names")
        for structure, values in (self.structures or {}).items():
            if not values or 0 in values:
                raise ValueError(
                    f"structures.{structure} = {values}: list its mask values; 0 is background"
                )
        return self

    @property
    def settings(self) -> dict[str, Any]:
        """What the file says beyond the keys above; the task itself checks it."""
        return dict(self.model_extra or {})


class NetworkConfig(Block):
    """The network that every site trains: one by name, or any class by its path."""

    model_config = ConfigDict(extra="allow")

    name: str | None = None  # default: the usual one for the task's targets
    target: str | None = None  # package.module.Class; its arguments stand beside it

    @field_validator("target")
    @classmethod
    def _a_path(cls, target: str | None) -> str | None:
        if target is not None and "." not in target:  # the rest is said when it is imported
            raise ValueError("must be the path of a class, package.module.Class")
        return target

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if self.name is not None and self.target is not None:
            raise ValueError("give a name or a target, not both")
        return self

    @property
    def settings(self) -> dict[str, Any]:
        """What the file says beyond the keys above; the network itself checks it."""
        return dict(self.model_extra or {})


class TrainingConfig(Block):
    """One site's local work in one round. Every method gets the same."""

    batch_size: int = Field(8, ge=1)
    local_epochs: int = Field(1, ge=1)
    optimizer: Literal["adam", "sgd"] = "adam"
    lr: float = Field(1e-3, gt=0)
    betas: tuple[float, float] = (0.9, 0.999)
    momentum: float = Field(0.0, ge=0, lt=1)
    weight_decay: float = Field(0.0, ge=0)
    augment: Literal["none", "light"] = "none"
    validate_every: int = Field(1, ge=1)  # rounds; the last round is always validated
    running_statistics: Literal["average", "local"] = "average"

    @field_validator("betas")
    @classmethod
    def _fading(cls, betas: tuple[float, float]) -> tuple[float, float]:
        if not all(0 <= beta < 1 for beta in betas):
            raise ValueError("must be two numbers from 0 to below 1")
        return betas


class ServerConfig(Block):
    """When a round is complete, and which uploads are refused."""

    min_sites: int | None = Field(None, ge=1)  # default: every site
    deadline: float | None = Field(None, gt=0)  # seconds a round
    on_bad_upload: Literal["skip", "stop"] = "stop"
    max_rms: float = Field(1e3, gt=0)  # root mean square of a part's values
    absences: dict[str, list[int]] = {}  # simulate drop-outs: site -> rounds it misses
    means_only: bool = False  # a promise: methods that need single models are refused


class EngineConfig(Block):
    """How messages travel. It changes no number: same seed, same bits on every engine."""

    name: Literal["inprocess", "processes"] = "inprocess"
    workers: int | None = Field(None, ge=1)  # default: one a core
    durable: bool = False  # fsync every state file: survive a power cut, not only a kill


class ComputeConfig(Block):
    """What a site computes with. Part of the plan, because it changes the last bits."""

    device: str = "cpu"
    threads: int = Field(1, ge=1)  # threads a site

    @field_validator("device")
    @classmethod
    def _known(cls, device: str) -> str:
        kind = device.split(":")[0]
        if kind not in ("cpu", "cuda", "mps"):
            raise ValueError("must be cpu, cuda, cuda:N or mps")
        return device


class MethodConfig(BaseModel):
    """A method by name, a label for the tables, and the method's own settings."""

    model_config = ConfigDict(frozen=True, extra="allow")

    name: str
    label: str = Field("", pattern=r"^[A-Za-z0-9._-]*$")  # also a folder's name

    @field_validator("label")
    @classmethod
    def _no_way_up(cls, label: str) -> str:
        """`..` would be the folder above, and a hidden folder would not be found."""
        if label.startswith("."):
            raise ValueError("must not begin with a dot: it is also a folder's name")
        return label

    @property
    def title(self) -> str:
        """The name in tables, folders and results."""
        return self.label or self.name

    @property
    def settings(self) -> dict[str, Any]:
        """What the file says beyond name and label; the method itself checks it."""
        return dict(self.model_extra or {})


class Experiment(Block):
    """The whole file."""

    name: str = Field("experiment", pattern=r"^[A-Za-z0-9._-]+$")
    federation: FederationConfig
    task: TaskConfig = TaskConfig()
    network: NetworkConfig = NetworkConfig()
    training: TrainingConfig = TrainingConfig()
    methods: list[MethodConfig] = Field(min_length=1)
    rounds: int = Field(ge=1)
    seeds: list[int] = Field([0], min_length=1)
    server: ServerConfig = ServerConfig()
    engine: EngineConfig = EngineConfig()
    compute: ComputeConfig = ComputeConfig()
    plugins: list[Path] = []  # Python files with methods, networks, tasks of your own

    @field_validator("plugins", mode="before")
    @classmethod
    def _one_plugin(cls, plugins: Any) -> Any:
        return [plugins] if isinstance(plugins, str | Path) else plugins

    @field_validator("plugins")
    @classmethod
    def _absolute(cls, plugins: list[Path]) -> list[Path]:
        """Worker processes look for the very same files."""
        found = [Path(os.path.expandvars(path)).expanduser().absolute() for path in plugins]
        return list(dict.fromkeys(found))

    @field_validator("methods", mode="before")
    @classmethod
    def _names(cls, methods: Any) -> Any:
        if not isinstance(methods, list):
            methods = [methods]
        return [{"name": m} if isinstance(m, str) else m for m in methods]

    @field_validator("seeds", mode="before")
    @classmethod
    def _one_seed(cls, seeds: Any) -> Any:
        return [seeds] if isinstance(seeds, int) else seeds

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        titles = [m.title for m in self.methods]
        twice = sorted({t for t in titles if titles.count(t) > 1})
        if twice:
            raise ValueError(f"methods: {twice[0]} stands twice; give one of them a label")
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds = {self.seeds}: every seed once")
        return self


def read_experiment(
    source: Path | Mapping[str, Any] | Experiment,
    overrides: Sequence[str] | Mapping[str, Any] = (),
    plugins: Sequence[Path | str] = (),
) -> Experiment:
    """The experiment of a YAML file, or of its keys, with overrides laid over it.

    Overrides are texts `key=value`, as --set takes them, or values by key. `plugins` are added.
    """
    if isinstance(source, Experiment) and not overrides and not plugins:
        return source
    raw, name = _keys_of(source)
    for key, value, said in _parsed(overrides):
        _lay_over(raw, key, value, said)
    experiment = check_experiment(raw, name)
    if not plugins:
        return experiment
    files = [str(plugin) for plugin in (*experiment.plugins, *plugins)]
    return check_experiment(raw | {"plugins": files}, name)


def _keys_of(source: Path | Mapping[str, Any] | Experiment) -> tuple[dict[str, Any], str]:
    """The keys, ours to change, and what errors call them."""
    if isinstance(source, Path):
        return parse_yaml(source, "experiment"), str(source)
    if isinstance(source, Experiment):
        return source.model_dump(mode="json", exclude_unset=True), "experiment"
    return copy.deepcopy(dict(source)), "experiment"


def parse_yaml(path: Path, what: str) -> dict[str, Any]:
    """The keys of a YAML file; a key that stands twice is refused rather than overruled."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such {what} file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read ({error})") from None
    try:
        raw = yaml.load(text, _EveryKeyOnce)
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not valid YAML: {_trouble(error)}") from None
    if not isinstance(raw, dict):
        raise ConfigError(f"{path}: this {what} file holds no mapping of keys, `key: value`")
    return raw


class _EveryKeyOnce(yaml.SafeLoader):
    """YAML lets the last of two equal keys win silently: here that is a mistake."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, str | int) and key in keys:
                problem = f"the key {key} stands twice in one block"
                raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
            keys.add(str(key) if not isinstance(key, str | int) else key)
        return super().construct_mapping(node, deep)


def check_experiment(raw: dict[str, Any], source: str) -> Experiment:
    """A checked experiment, or a ConfigError that lists every mistake."""
    return checked(Experiment, raw, source)


def checked(model: type[B], given: Mapping[str, Any] | B, source: str) -> B:
    """What is given as a model, or a ConfigError that lists every mistake in it."""
    try:
        return model.model_validate(given)
    except ValidationError as error:
        raise ConfigError(explain(error, source, model)) from None


def explain(error: ValidationError, source: str, model: type[BaseModel]) -> str:
    """Pydantic's findings as one line a mistake: key's path, value, what is allowed."""
    lines = [f"  {_explain_one(dict(e), model)}" for e in error.errors()]
    return f"{source}: this cannot be meant:\n" + "\n".join(lines)


# Pydantic's kinds of findings, in the words of somebody who writes an experiment file.
IN_WORDS = {
    "int_parsing": "must be a whole number",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_parsing": "must be a number",
    "float_type": "must be a number",
    "bool_parsing": "must be true or false",
    "bool_type": "must be true or false",
    "string_type": "must be a text",
    "string_pattern_mismatch": "must be letters, digits, dots, dashes and underscores only",
    "path_type": "must be a path",
    "list_type": "must be a list",
    "tuple_type": "must be a list",
    "dict_type": "must be a block of keys",
    "finite_number": "must be a finite number",
}


def _explain_one(finding: dict[str, Any], model: type[BaseModel]) -> str:
    loc, kind = list(finding["loc"]), finding["type"]
    path = ".".join(map(str, loc))
    if kind == "extra_forbidden":
        return f"{path}: unknown key; {_suggestion(model, loc)}"
    if kind == "missing":
        short_list = loc and isinstance(loc[-1], int)
        return f"{path}: missing; " + ("the list is too short" if short_list else "no default")
    if kind == "model_type":
        allowed = ", ".join(_allowed_keys(model, loc))
        return f"{path} = {finding['input']!r}: must be a block of keys; allowed: {allowed}"
    message = IN_WORDS.get(kind) or _in_our_words(finding["msg"])
    if isinstance(finding["input"], dict | BaseModel):  # a whole block: the message names the key
        joint = "." if re.match(r"[\w.]+(:| = )", message) else ": "
        return f"{path}{joint}{message}" if path else message
    return f"{path} = {finding['input']!r}: {message}"


def _suggestion(model: type[BaseModel], loc: list[Any]) -> str:
    return suggestion(str(loc[-1]), _allowed_keys(model, loc[:-1]))


def keys_of(model: type[BaseModel]) -> list[str]:
    """A block's keys as one writes them."""
    return sorted(f.alias or name for name, f in model.model_fields.items())


def _in_our_words(message: str) -> str:
    message = message.removeprefix("Value error, ").replace("Input should be", "must be")
    message = message.replace("List should have", "must have").replace(" after validation", "")
    return message[0].lower() + message[1:]


def _trouble(error: yaml.YAMLError) -> str:
    """What is wrong with a YAML text and in which line, without its parser's vocabulary."""
    mark = getattr(error, "problem_mark", None)
    place = f"line {mark.line + 1}: " if mark is not None else ""
    return place + str(getattr(error, "problem", None) or error)


def _allowed_keys(model: type[BaseModel], loc: list[Any]) -> list[str]:
    for part in loc:
        field = model.model_fields.get(str(part))
        annotation = getattr(field, "annotation", None)
        for one in (annotation, *get_args(annotation)):  # of a list or a mapping, its entries
            if isinstance(one, type) and issubclass(one, BaseModel):
                model = one
    return keys_of(model)


def _parsed(
    overrides: Sequence[str] | Mapping[str, Any],
) -> Iterator[tuple[str, Any, str]]:
    """Key, value and what was said, for errors."""
    if isinstance(overrides, Mapping):
        yield from ((key, value, f"overrides[{key!r}]") for key, value in overrides.items())
        return
    for override in overrides:
        said = f"--set {override}"
        key, equals, text = override.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"{said}: write key=value, such as --set rounds=10")
        try:
            yield key.strip(), yaml.safe_load(text), said
        except yaml.YAMLError as error:
            raise ConfigError(f"{said}: the value is not valid YAML: {_trouble(error)}") from None


def _lay_over(raw: dict[str, Any], key: str, value: Any, said: str) -> None:
    *parents, last = key.split(".")
    node: Any = raw
    for depth, parent in enumerate(parents):
        node = _child(node, parent, ".".join(parents[: depth + 1]), said)
    if isinstance(node, list):
        node[_index(node, last, said)] = value
    elif isinstance(node, dict):
        node[last] = value
    else:
        raise ConfigError(f"{said}: {'.'.join(parents)} has no keys below it")


def _child(node: Any, key: str, path: str, said: str) -> Any:
    if isinstance(node, list):
        index = _index(node, key, said)
        if isinstance(node[index], str):  # a method given by its bare name gets settings
            node[index] = {"name": node[index]}
        return node[index]
    if not isinstance(node, dict):
        above = path.rpartition(".")[0]
        raise ConfigError(f"{said}: {above} has no keys below it")
    if node.get(key) is None:
        node[key] = {}
    return node[key]


def _index(node: list[Any], key: str, said: str) -> int:
    """A position in a list, by number or by the name of a method in it."""
    names = [n.get("label") or n.get("name") if isinstance(n, dict) else n for n in node]
    if key in names:
        return names.index(key)
    if key.isdigit() and int(key) < len(node):
        return int(key)
    raise ConfigError(f"{said}: no entry {key}; there are {', '.join(map(str, names))}")
