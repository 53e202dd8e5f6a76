"""The experiment file: one YAML, checked whole before anything is computed.

Every class is one block of the file. Unknown keys and impossible values are refused with the
key's path, the value, and what is allowed (`read_experiment`).
"""

import copy
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import ceil
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar, get_args

import yaml
from platformdirs import user_cache_path
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from konsil.errors import ConfigError, suggestion

Synthetic = Literal["retina", "prostate", "pathology"]
SYNTHETIC: tuple[str, ...] = get_args(Synthetic)
SOURCES = ("synthetic", "folder", "csv", "file")
# What an experiment says of one source's images, which means nothing of another's.
OF_A_SOURCE = ("images", "sites", "channels", "patient_pattern")
PLACES = ("folder", "csv", "file", "cache", "cache_limit")  # where data lie changes no number
CACHE_LIMIT = "50 GB"  # of decoded images, unless said otherwise
DEVICES = ("cpu", "cuda", "mps")
Precision = Literal["float32", "bf16", "fp16", "auto"]
Targets = Literal["masks", "classes"]  # what a task learns from: a mask a structure, or a class
# Keys of `training` that make it plain, for tests and benchmarks: one rate, images as they are.
PLAIN = {"schedule": "constant", "augment": "none"}
MOST_MOMENTUM = 0.9  # of `server.momentum: auto`: more than that remembers all of a short run
UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
B = TypeVar("B", bound=BaseModel)


def must(holds: Callable[[Any], bool], words: str) -> AfterValidator:
    """A rule for one key, and the words for a value that breaks it."""

    def check(value: Any) -> Any:
        if not holds(value):
            raise ValueError(words)
        return value

    return AfterValidator(check)


def number_of_bytes(text: int | str) -> int:
    """Bytes, as a number or as one writes them: 20 GB."""
    match = re.fullmatch(r"\s*(\d+\.?\d*)\s*((?:[KMGT]?B)?)\s*", str(text).upper())
    if match is None:
        raise ValueError("must be a number of bytes, such as 20 GB")
    return int(float(match[1]) * UNITS[match[2]])


def _expanded(path: Path) -> Path:
    return Path(os.path.expandvars(path)).expanduser()


def _fixed(path: Path) -> Path:
    """Worker processes look for the very same file."""
    return _expanded(path).absolute()


Place = Annotated[Path, AfterValidator(_expanded)]
Fractions = Annotated[
    tuple[float, float, float],
    must(
        lambda parts: min(parts) > 0 and abs(sum(parts) - 1) <= 1e-6,
        "train, validation and test must be positive and sum to 1",
    ),
]


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


class Chosen(Block):
    """Something chosen by name; it checks the keys beyond those of its block itself."""

    model_config = ConfigDict(extra="allow")

    @property
    def settings(self) -> dict[str, Any]:
        """What the file says beyond the keys of this block."""
        return dict(self.model_extra or {})


class FederationConfig(Block):
    """Where the images of which sites are. Exactly one of the four sources is given."""

    synthetic: Synthetic | None = None
    images: dict[str, int] | None = None  # synthetic only: images a site; default: the built-in
    folder: Place | None = None
    csv: Place | None = None
    file: Place | None = None  # a federation.yaml, or the folder that holds it
    sites: list[str] | None = None  # keep these sites only, in this order
    image_size: int = Field(64, ge=16)
    channels: Literal[1, 3] = 3
    patient_pattern: str | None = None  # regular expression; group 1 of the file's stem
    split: Fractions = (0.5, 0.25, 0.25)
    split_seed: int = 0
    cache: Place | None = None  # default: $KONSIL_CACHE, or the user's cache folder
    cache_limit: int | str | None = None  # default: $KONSIL_CACHE_LIMIT, or CACHE_LIMIT

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
        given = self.cache_limit
        return usual_cache_limit() if given is None else number_of_bytes(given)


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


class TaskConfig(Chosen):
    """What is learned: a task by name, what its labels mean, and the task's own settings."""

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


class NetworkConfig(Chosen):
    """The network that every site trains: one by name, or any class by its path."""

    name: str | None = None  # default: the usual one for the task's targets
    target: str | None = None  # package.module.Class; its arguments stand beside it
    # a file of weights that it begins with instead of random ones
    initial: Annotated[Path, AfterValidator(_fixed)] | None = None

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if self.name is not None and self.target is not None:
            raise ValueError("give a name or a target, not both")
        if self.target is not None and "." not in self.target:  # the rest: when it is imported
            wrong = f"target = {self.target!r}"
            raise ValueError(f"{wrong}: must be the path of a class, package.module.Class")
        return self


class TrainingConfig(Block):
    """One site's local work in one round: the same for every method but what it has of its own."""

    batch_size: int = Field(8, ge=1)
    local_epochs: int = Field(1, ge=1)
    optimizer: Literal["adam", "adamw", "sgd"] = "adam"
    lr: float = Field(1e-3, gt=0)
    schedule: Literal["constant", "cosine", "polynomial"] = "cosine"  # of lr, over the rounds
    final_lr: float = Field(0.02, ge=0, le=1)  # of lr: where a schedule ends
    warmup: int = Field(0, ge=0)  # rounds in which lr grows
    clip: float | None = Field(None, gt=0)  # the largest norm of a gradient
    betas: Annotated[
        tuple[float, float],
        must(lambda betas: all(0 <= b < 1 for b in betas), "must be two numbers from 0 to below 1"),
    ] = (0.9, 0.999)
    momentum: float = Field(0.0, ge=0, lt=1)
    weight_decay: float = Field(0.0, ge=0)
    augment: Literal["none", "light", "strong"] = "strong"
    # 0: flips alone; auto: in proportion to the number of steps, up to 1
    augment_strength: Annotated[float, Field(ge=0)] | Literal["auto"] = "auto"
    augment_flips: Literal["none", "horizontal", "both"] = "horizontal"
    validate_every: int = Field(1, ge=1)  # rounds; the last round is always validated
    # which validated round's models count: the best, the last, the best by a running mean of the
    # scores, or a running mean of all of them (with this memory)
    keep: Literal["best", "last", "smoothed", "ema"] = "best"
    ema: float = Field(0.9, ge=0, lt=1)
    running_statistics: Literal["average", "local"] = "average"

    def laid_over(self, usual: Self) -> Self:
        """What is written here, and the usual settings for all that is not."""
        return usual.model_copy(update={key: getattr(self, key) for key in self.model_fields_set})


class ServerConfig(Block):
    """When a round is complete, and which uploads are refused."""

    min_sites: int | None = Field(None, ge=1)  # default: every site
    deadline: float | None = Field(None, gt=0)  # seconds a round
    # beta of the server's momentum under every averaged part; auto: by the number of sites
    momentum: float | Literal["auto"] = 0.0
    weights: Literal["images", "equal"] = "images"  # what a site's model counts in a mean
    compression: Literal["none", "bf16", "int8"] = "none"  # of what sites send
    fraction: float = Field(1.0, gt=0, le=1)  # of the sites that a round asks, drawn anew each time
    on_bad_upload: Literal["skip", "stop"] = "stop"
    max_rms: float = Field(1e3, gt=0)  # root mean square of a part's values
    absences: dict[str, list[int]] = {}  # simulate drop-outs: site -> rounds it misses
    means_only: bool = False  # a promise: methods that need single models are refused

    @property
    def coding(self) -> Literal["bf16", "int8"] | None:
        """How uploads are packed, if they are."""
        return None if self.compression == "none" else self.compression

    def asked(self, sites: int) -> int:
        """How many of so many sites a round asks."""
        return ceil(self.fraction * sites)

    def momentum_among(self, sites: int) -> float:
        """The server's momentum; auto: 1 - 1/K, as if K sites stepped one after another."""
        return min(1 - 1 / sites, MOST_MOMENTUM) if self.momentum == "auto" else self.momentum

    @field_validator("momentum", mode="before")
    @classmethod
    def _beta(cls, given: Any) -> Any:
        number = isinstance(given, int | float) and not isinstance(given, bool)
        if given == "auto" or (number and 0 <= given < 1):
            return given
        raise ValueError("must be auto, or a number from 0 to below 1")


class EngineConfig(Block):
    """How messages travel. It changes no number: same seed, same bits on every engine."""

    name: Literal["inprocess", "processes"] = "inprocess"
    workers: int | None = Field(None, ge=1)  # default: one a core
    durable: bool = False  # fsync every state file: survive a power cut, not only a kill


class ComputeConfig(Block):
    """What a site computes with. Part of the plan, because it changes the last bits."""

    device: Annotated[
        str, must(lambda d: d.split(":")[0] in DEVICES, "must be cpu, cuda, cuda:N or mps")
    ] = "cpu"
    threads: int = Field(1, ge=1)  # threads a site
    # of forward and backward passes in training; weights and answers are float32 always
    precision: Precision = "float32"
    memory_format: Literal["contiguous", "channels_last"] = "contiguous"
    kernels: Literal["reference", "fast"] = "reference"  # fast: layers sum in another order


class MethodConfig(Chosen):
    """A method by name, a label for the tables, its own training, and its own settings."""

    name: str
    # also a folder's name: `..` would be the folder above, and a hidden one would not be found
    label: Annotated[
        str,
        Field(pattern=r"^[A-Za-z0-9._-]*$"),
        must(lambda t: t[:1] != ".", "must not begin with a dot: it is also a folder's name"),
    ] = ""
    training: TrainingConfig = TrainingConfig()  # laid over the experiment's, for this method alone

    @property
    def title(self) -> str:
        """The name in tables, folders and results."""
        return self.label or self.name


def _alone(*kinds: type) -> BeforeValidator:
    """A single value of these types needs no list around it."""
    return BeforeValidator(lambda value: [value] if isinstance(value, kinds) else value)


def _by_name(methods: Any) -> Any:
    listed = methods if isinstance(methods, list) else [methods]
    return [{"name": m} if isinstance(m, str) else m for m in listed]


def _absolute(paths: list[Path]) -> list[Path]:
    return list(dict.fromkeys(map(_fixed, paths)))


class Experiment(Block):
    """An experiment file: what is learned where, by which methods, in how many rounds."""

    name: str = Field("experiment", pattern=r"^[A-Za-z0-9._-]+$")
    federation: FederationConfig
    task: TaskConfig = TaskConfig()
    network: NetworkConfig = NetworkConfig()
    training: TrainingConfig = TrainingConfig()
    methods: Annotated[list[MethodConfig], Field(min_length=1), BeforeValidator(_by_name)]
    rounds: int = Field(ge=1)
    seeds: Annotated[list[int], Field(min_length=1), _alone(int)] = [0]
    server: ServerConfig = ServerConfig()
    engine: EngineConfig = EngineConfig()
    compute: ComputeConfig = ComputeConfig()
    performance: Literal["plain", "auto"] = "plain"  # auto: what `compute` leaves open, by a trial
    # Python files with methods, networks, tasks of your own
    plugins: Annotated[list[Path], _alone(str, Path), AfterValidator(_absolute)] = []

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        titles = [m.title for m in self.methods]
        twice = sorted({t for t in titles if titles.count(t) > 1})
        if twice:
            raise ValueError(f"methods: {twice[0]} stands twice; give one of them a label")
        if self.compute.precision == "auto" and self.performance != "auto":
            raise ValueError(
                "compute.precision = 'auto': only a trial tells; say performance: auto"
            )
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds = {self.seeds}: every seed once")
        return self


def read_experiment(
    source: Path | Mapping[str, Any] | Experiment,
    overrides: Sequence[str] | Mapping[str, Any] = (),
    plugins: Sequence[Path | str] = (),
    overlays: Sequence[Path] = (),
) -> Experiment:
    """The experiment of a YAML file, or of its keys, with overrides laid over it.

    Overrides are texts `key=value`, as --set takes them, or values by key. `plugins` are added.
    `overlays` are YAML files that are laid over it before, in their order.
    """
    if isinstance(source, Experiment) and not overrides and not plugins and not overlays:
        return source
    raw, name = _keys_of(source)
    for overlay in overlays:
        raw = _with_overlay(raw, parse_yaml(overlay, "overlay"), overlay)
        name += f" with {overlay}"
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
        raise ConfigError(explain(error, source, model, given)) from None


def explain(error: ValidationError, source: str, model: type[BaseModel], given: Any = None) -> str:
    """Pydantic's findings as one line a mistake: key's path, value, what is allowed."""
    lines = [f"  {_explain_one(dict(e), model, given)}" for e in error.errors()]
    return f"{source}: this cannot be meant:\n" + "\n".join(lines)


# Pydantic's kinds of findings, or how they begin, in the words of who writes an experiment file.
IN_WORDS = {
    "int": "must be a whole number",
    "float": "must be a number",
    "bool": "must be true or false",
    "string_type": "must be a text",
    "string_pattern_mismatch": "must be letters, digits, dots, dashes and underscores only",
    "path_type": "must be a path",
    "list": "must be a list",
    "tuple": "must be a list",
    "dict": "must be a block of keys",
    "finite": "must be a finite number",
}


def _explain_one(finding: dict[str, Any], model: type[BaseModel], given: Any) -> str:
    loc, kind = list(finding["loc"]), finding["type"]
    path = ".".join(map(str, _by_title(loc, given)))
    if kind == "extra_forbidden":
        return f"{path}: unknown key; {suggestion(str(loc[-1]), _allowed_keys(model, loc[:-1]))}"
    if kind == "missing":
        short_list = loc and isinstance(loc[-1], int)
        return f"{path}: missing; " + ("the list is too short" if short_list else "no default")
    if kind == "model_type":
        allowed = ", ".join(_allowed_keys(model, loc))
        return f"{path} = {finding['input']!r}: must be a block of keys; allowed: {allowed}"
    known = IN_WORDS.get(kind) or IN_WORDS.get(kind.partition("_")[0])
    message = known or _in_our_words(finding["msg"])
    if isinstance(finding["input"], dict | BaseModel):  # a whole block: the message names the key
        joint = "." if re.match(r"[\w.]+(:| = )", message) else ": "
        return f"{path}{joint}{message}" if path else message
    return f"{path} = {finding['input']!r}: {message}"


def _by_title(loc: list[Any], given: Any) -> list[Any]:
    """A place in a method's block of training by the method's name or label, as --set takes it."""
    if loc[:1] != ["methods"] or loc[2:3] != ["training"]:
        return loc
    place = loc[1]
    return ["methods", _names(_by_name(given["methods"]))[place] or place, *loc[2:]]


def _names(methods: list[Any]) -> list[Any]:
    """What the entries of a list of methods are called."""
    return [m.get("label") or m.get("name") if isinstance(m, dict) else m for m in methods]


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


def _with_overlay(raw: dict[str, Any], given: dict[str, Any], overlay: Path) -> dict[str, Any]:
    """The keys of a file under those of an overlay, whose source of images replaces the other."""
    below, above = (keys.get("federation") for keys in (raw, given))
    if isinstance(below, dict) and isinstance(above, dict) and any(map(above.get, SOURCES)):
        own = {key: v for key, v in below.items() if key not in (*SOURCES, *OF_A_SOURCE)}
        raw = raw | {"federation": own}
    merged: dict[str, Any] = _merged(raw, given, f"--overlay {overlay}", [])
    return merged


def _merged(below: Any, above: Any, said: str, path: list[str]) -> Any:
    """Blocks are merged by key, all else is replaced, null takes a key away (RFC 7396).

    A block over a list of methods is merged into those that it names.
    """
    if not isinstance(above, dict):
        return above
    if path == ["methods"] and below is not None:
        return _merged_methods(_by_name(below), above, said)
    merged = dict(below) if isinstance(below, dict) else {}
    for key, value in above.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = _merged(merged.get(key), value, said, [*path, key])
    return merged


def _merged_methods(below: list[Any], above: dict[str, Any], said: str) -> list[Any]:
    """Methods with the settings that an overlay has for those it names; null leaves one out."""
    places = {_place(below, str(key), ["methods"], said): value for key, value in above.items()}
    return [
        _merged(method, places.get(place, {}), said, ["methods", str(place)])
        for place, method in enumerate(below)
        if places.get(place, {}) is not None
    ]


def _lay_over(raw: dict[str, Any], key: str, value: Any, said: str) -> None:
    *parents, last = key.split(".")
    node: Any = raw
    for depth, parent in enumerate(parents):
        place = _place(node, parent, parents[:depth], said)
        below = node[place] if isinstance(node, list) else node.get(place)
        if isinstance(node, list) and isinstance(below, str):
            below = {"name": below}  # a method given by its bare name gets settings
        node[place] = {} if below is None else below
        node = node[place]
    node[_place(node, last, parents, said)] = value


def _place(node: Any, key: str, above: list[str], said: str) -> Any:
    """A key of a block, or a position in a list: by number, or by the name of a method in it."""
    if isinstance(node, dict):
        return key
    if not isinstance(node, list):
        raise ConfigError(f"{said}: {'.'.join(above)} has no keys below it")
    names = _names(node)
    if key in names:
        return names.index(key)
    if key.isdigit() and int(key) < len(node):
        return int(key)
    raise ConfigError(f"{said}: no entry {key}; there are {', '.join(map(str, names))}")
