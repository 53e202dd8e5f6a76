"""Ask a super model that `konsil export --to onnx` wrote; Konsil and torch are not needed.

    python konsil_onnx.py DIR IMAGE... -o OUT

`DIR` holds pipeline.json and one ONNX file a network. What is needed: numpy, onnxruntime, Pillow.
From Python: `Pipeline("DIR").answer(images)`, `Pipeline("DIR").predict("photo.png")`.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import io
import json
import math
import re
import struct
import sys
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

PIPELINE, FORMAT = "pipeline.json", 1
GLOBAL, SELECTOR, NOVELTY, ALL = "global", "selector", "novelty", "all"
NAMES_MODELS = ("argmax", "ensemble")  # rules of selectors with an output for the global model
RULES = ("threshold", "utility", "blend", *NAMES_MODELS, "fixed", "even")
FORMATS = ("PNG", "JPEG", "BMP", "TIFF")
MASKS = {".png": "PNG", ".bmp": "BMP", ".tif": "TIFF", ".tiff": "TIFF"}  # that keep values
SUFFIXES = (*MASKS, ".jpg", ".jpeg")
SIXTEEN_BIT = ("I", "I;16", "I;16B", "I;16L", "I;16N")
PLAIN_NAME = re.compile(r"[\w-][\w.-]*")
TABLE = "answers.csv"


class Refused(Exception):
    """A folder or a picture that cannot be used; the message says why."""


# --- whom to ask --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Route:
    """Whom to ask, image by image, and why: as SuperModel.route gives it."""

    probabilities: np.ndarray  # [images, sites], or with the global model before the sites
    confidence: np.ndarray
    site: np.ndarray  # the likeliest; -1: the selector names the global model
    shares: np.ndarray  # [images, 1 + sites]: what the global model and each specialist count
    novelty: np.ndarray
    unfamiliar: np.ndarray


def chosen(place: np.ndarray, sites: int) -> np.ndarray:
    """Shares that give everything to one model, by its column."""
    return np.eye(1 + sites, dtype=np.float32)[place]


def shares_of(rule: dict[str, Any], probabilities: np.ndarray) -> np.ndarray:
    """What each model counts in the answer, [images, 1 + sites], by the selector's word."""
    count, sites = probabilities.shape
    name = rule["rule"]
    if name == "threshold":
        sure = probabilities.max(axis=1) > np.float32(rule["gamma"])
        return chosen(np.where(sure, probabilities.argmax(axis=1) + 1, 0), sites)
    if name == "utility":
        return _utility(np.asarray(rule["table"], np.float64), probabilities)
    if name == "blend":
        return _blend(rule["share"], rule["top"], probabilities)
    if name == "argmax":
        return chosen(probabilities.argmax(axis=1), sites - 1)
    if name == "ensemble":
        return probabilities.copy()
    if name == "fixed":
        return chosen(np.full(count, rule["model"]), sites)
    even = np.full((count, 1 + sites), 1 / sites, np.float32)
    even[:, 0] = 0
    return even


def _utility(table: np.ndarray, probabilities: np.ndarray) -> np.ndarray:
    """The highest expected score; the last answers are a specialist and the global model evenly."""
    best, sites = (probabilities.astype(np.float64) @ table).argmax(axis=1), len(table)
    even = best > sites
    alone = chosen(np.where(even, best - sites, best), sites)
    halves = (alone + chosen(np.zeros_like(best), sites)) / 2
    return np.where(even[:, None], halves, alone)


def _blend(share: float, top: int, probabilities: np.ndarray) -> np.ndarray:
    """The likeliest specialists for `share` of the answer, the global model for the rest."""
    count, sites = probabilities.shape
    places = np.argsort(-probabilities, axis=1, kind="stable")[:, :top]
    likely = np.take_along_axis(probabilities, places, axis=1)
    shares = np.zeros((count, 1 + sites), np.float32)
    shares[:, 0] = 1 - share
    weights = np.float32(share) * (likely / likely.sum(axis=1, keepdims=True))
    np.put_along_axis(shares, places + 1, weights, axis=1)
    return shares


def novelty_of(known: dict[str, np.ndarray], features: np.ndarray) -> np.ndarray:
    """How much better "a hospital never seen" explains each image than its nearest site."""
    whiten, centres, new = (known[n].astype(np.float64) for n in ("whiten", "centres", "new"))
    placed = features.astype(np.float64) @ whiten.T
    nearest = np.min([np.square(placed - one).sum(axis=1) for one in centres], axis=0)
    foreign = np.square((placed - centres.mean(axis=0)) @ new.T).sum(axis=1)
    return ((nearest - foreign) / features.shape[1]).astype(np.float32)


# --- logits and probabilities -------------------------------------------------------------------


def softmax(logits: np.ndarray) -> np.ndarray:
    """Probabilities that sum up to 1 in each row."""
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def to_probabilities(targets: str, logits: np.ndarray) -> np.ndarray:
    """Of masks each structure has a probability of its own a pixel; classes share one."""
    if targets == "classes":
        return softmax(logits)
    small = np.exp(-np.abs(logits))  # of the two forms of the sigmoid the one that cannot overflow
    return np.where(logits >= 0, 1 / (1 + small), small / (1 + small)).astype(np.float32)


def to_logits(targets: str, probabilities: np.ndarray) -> np.ndarray:
    """Logits that have these probabilities; certainty is capped where float32 ends."""
    if targets == "classes":
        return np.log(np.maximum(probabilities, np.finfo(np.float32).tiny))
    inside = np.clip(probabilities, np.float32(1e-6), np.float32(1 - 1e-6))
    return np.asarray(np.log(inside / (1 - inside)))


def mixed(targets: str, logits: Sequence[np.ndarray], shares: np.ndarray) -> np.ndarray:
    """The probabilities of several models mixed by shares [images, models], as logits.

    Who has the whole share answers as it is.
    """
    spread = shares.reshape(*shares.shape, *[1] * (logits[0].ndim - 1))
    together = np.zeros_like(logits[0])
    for column, own in enumerate(logits):
        together += spread[:, column] * to_probabilities(targets, own)
    result = to_logits(targets, together)
    for column, own in enumerate(logits):
        whole = shares[:, column] == 1
        result[whole] = own[whole]
    return result


def at_size(maps: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Maps [structures, rows, columns] at another size, by antialiased interpolation."""
    if maps.shape[1:] == size:
        return maps
    images = [Image.fromarray(np.ascontiguousarray(one, np.float32)) for one in maps]
    return np.stack([np.asarray(i.resize(size[::-1], Image.Resampling.BILINEAR)) for i in images])


# --- pictures -----------------------------------------------------------------------------------


def open_picture(path: Path, window: Any) -> Image.Image:
    """A picture with 8 bit a channel, as training saw it. The EXIF orientation is left alone."""
    try:
        data = path.read_bytes()
        image = Image.open(io.BytesIO(data), formats=FORMATS)
        frames = getattr(image, "n_frames", 1) if image.format in ("PNG", "TIFF") else 1
        image.load()
    except Exception as error:  # decoders raise whatever they stumble over in a damaged file
        raise Refused(f"image that cannot be read ({type(error).__name__}: {error})") from None
    if frames > 1:
        raise Refused(f"file with more than one frame ({frames}); save each as a file of its own")
    if image.format == "PNG" and data[24:26] in (b"\x10\2", b"\x10\6"):
        wide = read_wide_colour(data)  # Pillow would drop the lower half of the bits
        return Image.fromarray(to_eight_bit(wide, window or "full"))
    return _eight_bit(image, window)


def read_wide_colour(data: bytes) -> np.ndarray:
    """A PNG with 16 bit a colour, [H, W, 3], without transparency."""
    try:
        width, height, _, kind, *_, interlaced = struct.unpack(">IIBBBBB", data[16:29])
        parts, start = [], 8
        while start < len(data):
            length, name = struct.unpack(">I4s", data[start : start + 8])
            parts += [data[start + 8 : start + 8 + length]] if name == b"IDAT" else []
            start += 12 + length
        step = 8 if kind == 6 else 6  # bytes a pixel
        raw = np.frombuffer(zlib.decompress(b"".join(parts)), np.uint8)
        lines = raw.reshape(height, 1 + width * step)
    except (struct.error, zlib.error, ValueError) as error:
        raise Refused(f"image that cannot be read ({error})") from None
    if interlaced:
        raise Refused("interlaced PNG with 16 bit a colour; save it without interlacing")
    pixels = np.zeros((height, width * step), np.uint8)
    above = np.zeros(width * step, np.uint8)
    for line, row in zip(lines, pixels, strict=True):
        row[:] = above = _unfiltered(int(line[0]), line[1:], above, step)
    wide = pixels.reshape(height, width, step // 2, 2).astype(np.uint16)
    return np.asarray((wide[..., 0] << 8 | wide[..., 1])[..., :3])


def _unfiltered(kind: int, line: np.ndarray, above: np.ndarray, step: int) -> np.ndarray:
    """A row of a PNG from its differences to the left, to the row above, or to both."""
    if kind in (0, 2):
        return line + above if kind else line.copy()
    if kind == 1:
        left = np.cumsum(line.reshape(-1, step), axis=0, dtype=np.uint64)
        return np.asarray(left.astype(np.uint8).reshape(-1))
    if kind not in (3, 4):
        raise Refused(f"image that cannot be read (a PNG with filter {kind})")
    row, up = line.astype(np.int64).reshape(-1, step), above.astype(np.int64).reshape(-1, step)
    a, c = np.zeros(step, np.int64), np.zeros(step, np.int64)  # left, and above that
    for x, b in enumerate(up):
        guess = (a + b) // 2 if kind == 3 else _paeth(a, b, c)
        row[x] = (row[x] + guess) & 255
        a, c = row[x], b
    return np.asarray(row.astype(np.uint8).reshape(-1))


def _paeth(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """Of left, above and above left the one that is nearest to left + above - above left."""
    to_a, to_b, to_c = np.abs(b - c), np.abs(a - c), np.abs(a + b - 2 * c)
    return np.where((to_a <= to_b) & (to_a <= to_c), a, np.where(to_b <= to_c, b, c))


def _eight_bit(image: Image.Image, window: Any) -> Image.Image:
    if window is not None:
        return Image.fromarray(to_eight_bit(_intensities(image), window))
    if image.mode in SIXTEEN_BIT:  # 65535 becomes 255
        return Image.fromarray(((_sixteen_bit(image) + 128) // 257).astype(np.uint8))
    if image.mode == "F":
        raise Refused("image of floating-point pixels; save it with 8 or 16 bit a pixel")
    return image


def _intensities(image: Image.Image) -> np.ndarray:
    """What the file says of each pixel; palettes are looked up."""
    if image.mode in SIXTEEN_BIT:
        return _sixteen_bit(image).astype(np.uint16)
    if image.mode in ("1", "P", "PA", "CMYK", "YCbCr", "RGBA", "LA"):
        image = image.convert("L" if image.mode in ("1", "LA") else "RGB")
    return np.asarray(image)


def _sixteen_bit(image: Image.Image) -> np.ndarray:
    wide = np.asarray(image).astype(np.int64)
    if wide.min() < 0 or wide.max() > 65535:
        raise Refused("image of more than 16 bit a pixel; save it with 8 or 16 bit")
    return wide


def to_eight_bit(values: np.ndarray, window: Any) -> np.ndarray:
    """Linear between the window's ends, which become 0 and 255, cut off beyond them, rounded."""
    low, high = map(float, _ends(values, window))
    if high <= low:
        return np.zeros(values.shape, np.uint8)
    scaled = (values.astype(np.float32) - np.float32(low)) * np.float32(255 / (high - low))
    return np.asarray(np.rint(scaled.clip(0, 255)).astype(np.uint8))


def _ends(values: np.ndarray, window: Any) -> tuple[Any, Any]:
    """Of two numbers, {"percentiles": [...]} or "full": as pipeline.json has them."""
    if isinstance(window, list):
        return window[0], window[1]
    if isinstance(window, dict):
        low, high = np.percentile(values, window["percentiles"])
        if low < high:  # or most of it is background
            return low, high
    elif np.issubdtype(values.dtype, np.integer):
        kind = np.iinfo(values.dtype)
        return kind.min, kind.max
    return values.min(), values.max()


def fit(image: Image.Image, channels: int, size: int) -> np.ndarray:
    """An 8-bit image as the networks see it, [C, size, size] in [0, 1]."""
    image = image.convert("L" if channels == 1 else "RGB")
    image = image.resize((size, size), Image.Resampling.BILINEAR, reducing_gap=3.0)
    pixels = np.asarray(image).reshape(size, size, channels).transpose(2, 0, 1)
    return pixels.astype(np.float32) / np.float32(255)


# --- the pipeline -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Prediction:
    """What the super model says of a picture."""

    asked: str  # `global`, a site's name, several with a plus, or `all`
    route: Route  # of this image alone
    logits: np.ndarray  # at the networks' size
    probabilities: np.ndarray  # classes', or [structures, rows, columns] of the picture
    mask: np.ndarray | None  # values 1, 2, ... of the structures; none of classes


class Pipeline:
    """Selector, models and rule of a folder that `konsil export --to onnx` wrote."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.facts = _facts(self.folder)
        self.sites: list[str] = self.facts["sites"]
        self.rule: dict[str, Any] = self.facts["routing"]
        self._open: dict[str, Any] = {}
        for name, entry in self.facts["files"].items():
            _check_file(self.folder, name, entry)

    @property
    def _answering(self) -> list[str]:
        """Whose model answers for each site: the global one where the specialist is withheld."""
        withheld = self.facts["withheld"]
        return [GLOBAL if site in withheld else site for site in self.sites]

    @cached_property
    def _known(self) -> dict[str, np.ndarray] | None:
        """What tells images of no site, if anything does."""
        if NOVELTY not in self.facts["files"]:
            return None
        path = self.folder / self.facts["files"][NOVELTY]["file"]
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in ("whiten", "centres", "new")}

    def run(self, name: str, images: np.ndarray) -> list[np.ndarray]:
        """What one network says: logits, and of the selector its features, too."""
        import onnxruntime

        if name not in self._open:
            options = onnxruntime.SessionOptions()
            options.log_severity_level = 3
            path = str(self.folder / self.facts["files"][name]["file"])
            providers = ["CPUExecutionProvider"]
            self._open[name] = onnxruntime.InferenceSession(path, options, providers=providers)
        return list(self._open[name].run(None, {"images": images.astype(np.float32)}))

    def route(self, images: np.ndarray) -> Route:
        """Whom to ask about images [n, channels, size, size] in [0, 1]."""
        if SELECTOR not in self.facts["files"]:
            unknown = np.full((len(images), len(self.sites)), np.nan, np.float32)
            familiar = np.zeros(len(images), bool)
            shares, nobody = self._shares(unknown, familiar), np.full(len(images), -1)
            return Route(unknown, unknown[:, 0], nobody, shares, unknown[:, 0], familiar)
        logits, features = self.run(SELECTOR, images)
        probabilities = softmax(logits / np.float32(self.facts["temperature"]))
        site = probabilities.argmax(axis=1) - (self.rule["rule"] in NAMES_MODELS)
        novel = np.full(len(images), np.nan, np.float32)
        if self._known is not None:
            novel = novelty_of(self._known, features)
        limit = self.facts["limit"]
        unfamiliar = novel > np.float32(np.inf if limit is None else limit)
        shares = self._shares(probabilities, unfamiliar)
        return Route(probabilities, probabilities.max(axis=1), site, shares, novel, unfamiliar)

    def _shares(self, probabilities: np.ndarray, unfamiliar: np.ndarray) -> np.ndarray:
        """The rule's; the global model stands in for withheld specialists, and answers what is
        unfamiliar."""
        shares = shares_of(self.rule, probabilities)
        withheld = [1 + k for k, name in enumerate(self._answering) if name == GLOBAL]
        shares[:, 0] += shares[:, withheld].sum(axis=1)
        shares[:, withheld] = 0
        if GLOBAL not in self.facts["files"]:  # those who are left answer
            shares[:, 0] = 0
            shares /= shares.sum(axis=1, keepdims=True)
        shares[unfamiliar] = 0
        shares[unfamiliar, 0] = 1
        return shares

    def asked(self, route: Route) -> list[str]:
        """Who answers each image: `global`, a site's name, or several with a plus; or `all`."""
        names = [GLOBAL, *self.sites]
        answering = [[names[i] for i in np.flatnonzero(row > 0)] for row in route.shares]
        return [ALL if len(who) == len(names) > 2 else " + ".join(who) for who in answering]

    def answer(self, images: np.ndarray) -> tuple[np.ndarray, Route]:
        """Logits, and whom they are of; only those who have a share are asked."""
        route = self.route(images)
        found, columns = [], []
        for column, name in enumerate([GLOBAL, *self._answering]):
            wanted = route.shares[:, column] > 0
            if wanted.any():
                (logits,) = self.run(name, images[wanted])
                whole = np.zeros((len(images), *logits.shape[1:]), np.float32)
                whole[wanted] = logits
                found.append(whole)
                columns.append(column)
        return mixed(self.facts["targets"], found, route.shares[:, columns]), route

    def window(self, site: str | None = None) -> Any:
        """Black and white of pictures, as this site's were read, or those of all sites."""
        if site is not None and site not in self.sites:
            raise Refused(f"{site}: no site of this model; it has {', '.join(self.sites)}")
        known = self.facts["reading"]
        found = [known.get(one, {}).get("window") for one in ([site] if site else self.sites)]
        if any(one != found[0] for one in found):
            raise Refused("the sites read their images in different ways: say as whose (--site)")
        return found[0]

    def predict(self, path: str | Path, site: str | None = None) -> Prediction:
        """What the super model says of a picture's file."""
        picture = open_picture(Path(path), self.window(site))
        image = fit(picture, self.facts["in_channels"], self.facts["image_size"])[None]
        logits, route = self.answer(image)
        probabilities = to_probabilities(self.facts["targets"], logits)[0]
        mask = None
        if self.facts["targets"] == "masks":
            probabilities = at_size(probabilities, picture.size[::-1])
            mask = np.zeros(probabilities.shape[1:], np.uint8)
            for number, one in enumerate(probabilities, 1):
                mask[one > 0.5] = number
        return Prediction(self.asked(route)[0], route, logits[0], probabilities, mask)


def _facts(folder: Path) -> dict[str, Any]:
    try:
        facts = json.loads((folder / PIPELINE).read_text(encoding="utf-8"))
        if facts["format"] != FORMAT:
            raise Refused(f"{folder}: format {facts['format']!r}, this script reads {FORMAT}")
        needed = ("sites", "labels", "targets", "withheld", "temperature", "limit", "reading")
        for key in (*needed, "in_channels", "image_size", "files", "colours"):
            facts[key]
        if facts["routing"]["rule"] not in RULES:
            raise Refused(f"{folder}: routing by {facts['routing']['rule']!r}, which is no rule")
    except (OSError, ValueError, KeyError, TypeError) as error:
        what = f"{type(error).__name__}: {error}"
        raise Refused(f"{folder}: not a folder of konsil export --to onnx ({what})") from None
    return dict(facts)


def _check_file(folder: Path, name: str, entry: Any) -> None:
    """A plain file of this folder with the content that pipeline.json was written with."""
    file = entry.get("file") if isinstance(entry, dict) else None
    if not isinstance(file, str) or not PLAIN_NAME.fullmatch(file):
        raise Refused(f"{folder}: pipeline.json names the file {str(file)[:80]!r} for {name}")
    path = folder / file
    if path.is_symlink() or not path.is_file():
        raise Refused(f"{path}: not there, or no plain file; copy the whole folder again")
    if hashlib.sha256(path.read_bytes()).hexdigest() != entry.get("sha256"):
        raise Refused(f"{path}: damaged, or of another export (its sha256 is another)")


# --- the command --------------------------------------------------------------------------------


def find_pictures(given: Sequence[str]) -> list[tuple[Path, str]]:
    """Files, and the pictures of folders, each with its name among the answers."""
    found: dict[str, Path] = {}
    for one in map(Path, given):
        inside = sorted(p for p in one.rglob("*") if p.suffix.lower() in SUFFIXES)
        for path in inside if one.is_dir() else [one]:
            name = path.relative_to(one).as_posix() if one.is_dir() else path.name
            if found.setdefault(name, path) != path:
                raise Refused(f"{found[name]} and {path}: their answers would have the same name")
    if not found:
        raise Refused(f"no pictures ({', '.join(SUFFIXES)}) in {', '.join(given)}")
    return [(path, name) for name, path in found.items()]


def mask_name(name: str) -> str:
    """The picture's own name; of a JPEG, which changes values, with .png."""
    path = Path(name)
    return name if path.suffix.lower() in MASKS else path.with_suffix(".png").as_posix()


def write_mask(mask: np.ndarray, colours: Sequence[str], path: Path) -> None:
    """Values as the indices of a palette: programs read the values, people see colours."""
    picture = Image.frombytes("P", mask.shape[::-1], mask.tobytes())
    shown = "".join(colour.removeprefix("#") for colour in colours[: int(mask.max())])
    picture.putpalette(bytes.fromhex("000000" + shown))
    path.parent.mkdir(parents=True, exist_ok=True)
    picture.save(path, MASKS[path.suffix.lower()])


def row_of(pipeline: Pipeline, name: str, said: Prediction) -> dict[str, str]:
    """A line of answers.csv: the columns of `konsil predict`."""
    facts, route = pipeline.facts, said.route
    row = {"file": name, "plane": "", "ask": "auto", "asked": said.asked}
    row |= {"confidence": _number(route.confidence[0]), "novelty": _number(route.novelty[0])}
    row["unfamiliar"] = "yes" if route.unfamiliar[0] else "no"
    if SELECTOR in facts["files"]:
        likes = route.probabilities[0][-len(pipeline.sites) :]
        row |= {f"like_{s}": _number(p) for s, p in zip(pipeline.sites, likes, strict=True)}
    if said.mask is None:
        row["class"] = facts["labels"][int(said.probabilities.argmax())]
        row["sure"] = _number(said.probabilities.max())
        own = said.probabilities
    else:
        row["sure"] = _number(_sure(said.probabilities))
        own = (said.probabilities > 0.5).mean(axis=(1, 2))
    kind = "class" if said.mask is None else "share"
    return row | {f"{kind}_{k}": _number(v) for k, v in zip(facts["labels"], own, strict=True)}


def _sure(maps: np.ndarray) -> float:
    marked = (maps > 0.5).any(axis=0)
    least = np.abs(maps - 0.5).min(axis=0)[marked]
    return float(least.mean() + 0.5) if marked.any() else math.nan


def _number(value: Any) -> str:
    return "" if math.isnan(float(value)) else f"{float(value):.4f}"


def ask_about(
    pipeline: Pipeline, pictures: Sequence[tuple[Path, str]], out: Path, site: str | None
) -> Iterator[str]:
    """Masks and answers.csv in `out`; what could not be answered comes back, with why."""
    pipeline.window(site)  # what is wrong with every picture is said once
    rows = []
    for path, name in pictures:
        try:
            said = pipeline.predict(path, site)
        except Refused as refused:
            yield f"{name}: {refused}"
            continue
        rows.append(row_of(pipeline, name, said))
        if said.mask is not None:
            write_mask(said.mask, pipeline.facts["colours"], out / "masks" / mask_name(name))
    out.mkdir(parents=True, exist_ok=True)
    with open(out / TABLE, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, rows[0] if rows else ["file"], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; 1 if something could not be answered."""
    parser = argparse.ArgumentParser(description="Ask a super model about pictures.")
    parser.add_argument("folder", metavar="DIR", help="What konsil export --to onnx wrote.")
    parser.add_argument("images", metavar="IMAGE", nargs="+", help="Pictures, or folders of them.")
    parser.add_argument("-o", "--out", required=True, help="Where the answers go.")
    parser.add_argument("--site", help="Read pictures as this site's were, where sites differ.")
    given = parser.parse_args(arguments)
    try:
        pipeline, pictures = Pipeline(given.folder), find_pictures(given.images)
        failed = list(ask_about(pipeline, pictures, Path(given.out), given.site))
    except Refused as refused:
        print(f"error: {refused}", file=sys.stderr)
        return 1
    for line in failed:
        print(f"not answered: {line}", file=sys.stderr)
    print(f"{len(pictures) - len(failed)} of {len(pictures)} answered: {Path(given.out) / TABLE}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
