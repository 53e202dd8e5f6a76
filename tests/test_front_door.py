"""`import konsil`: which names it has, what they cost, and that the page about them is true."""

import ast
import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
import yaml
from PIL import Image

import konsil
from konsil.errors import ConfigError, DataError, RunError

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
INIT = ast.parse((ROOT / "konsil" / "__init__.py").read_text(encoding="utf-8"))
NAMES = [
    "Averaged", "ConfigError", "Context", "Experiment", "KonsilError", "Learner", "Means",
    "Method", "MethodSettings", "Parts", "Personal", "Piece", "RunResult", "Shared", "Site",
    "Task", "TrainedNetwork", "Upload", "Weights", "__version__", "importer", "load", "method",
    "mix", "network", "open_federation", "run", "task", "testing", "train",
]  # fmt: skip
HEAVY = ("torch", "monai", "matplotlib", "pandas", "numpy", "pydantic", "rich")
TINY = {"network": {"name": "unet", "width": 2}, "training": {"batch_size": 3}, "rounds": 2}


# --- the names ----------------------------------------------------------------------------------


def test_the_names_are_these():
    """Others build on them: adding one is a decision, removing one breaks their code."""
    assert sorted(konsil.__all__) == NAMES
    assert set(NAMES) <= set(dir(konsil))
    assert all(getattr(konsil, name) is not None for name in NAMES)


def test_type_checkers_are_told_the_same_names():
    (block,) = [n for n in INIT.body if isinstance(n, ast.If) and isinstance(n.test, ast.Name)]
    told = {alias.asname or alias.name for node in block.body for alias in node.names}
    assert sorted({*told, "__version__"}) == NAMES


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="'konsil' has no attribute 'runn'"):
        _ = konsil.runn
    with pytest.raises(ImportError):
        exec("from konsil import runn")


def test_the_page_names_them_all():
    table = PAGE.split("| to | |")[1].split("\n\n")[0]
    assert sorted({*re.findall(r"`(\w+)`", table), "__version__"}) == NAMES


def called(*arguments: str) -> str:
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_import_loads_nothing_heavy():
    script = f"import sys, konsil; print([name for name in {HEAVY} if name in sys.modules])"
    assert called("-c", script).strip() == "[]"


def test_a_super_model_is_asked_without_training_code_and_run_is_named_without_torch():
    script = "import sys, konsil; konsil.run, konsil.load; print('torch' in sys.modules)"
    assert called("-c", script).strip() == "False"
    wanted = ("konsil.federation", "konsil.ingredients", "konsil.report", "matplotlib")
    script = f"""
import sys, konsil
try:
    konsil.load(".")
except konsil.KonsilError:
    print([name for name in {wanted} if name in sys.modules])
"""
    assert called("-c", script).strip() == "[]"


def test_python_m_konsil_is_the_command():
    out = called("-m", "konsil", "--help")
    assert "Usage: konsil [OPTIONS]" in out
    assert called("-m", "konsil", "--version") == f"konsil {konsil.__version__}\n"


def test_testing_needs_no_pytest():
    tools = "('pytest', 'hypothesis')"
    script = f"import sys, konsil.testing; print([n for n in {tools} if n in sys.modules])"
    assert called("-c", script).strip() == "[]"


# --- runs ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def keys(squares: Path) -> dict:
    return {"federation": {"folder": str(squares), "image_size": 32}, "methods": ["fedsm"], **TINY}


@pytest.fixture(scope="module")
def result(keys: dict, tmp_path_factory: pytest.TempPathFactory) -> konsil.RunResult:
    return konsil.run(keys, out=tmp_path_factory.mktemp("runs") / "<b>", quiet=True)


def test_a_run_gives_its_results_figures_super_model_and_folder(result: konsil.RunResult):
    columns = ["method", "seed", "role", "split", "site", "metric", "value", "n"]
    assert all(list(row) == columns for row in (*result.results, *result.results_last))
    assert {row["site"] for row in result.results} >= {"north", "south"}
    assert type(result.results[0]["value"]) is float
    assert json.loads(json.dumps(result.results)) == result.results
    assert {"curves", "sites", "predictions"} <= set(result.figures)
    assert all(path.suffix == ".png" and path.exists() for path in result.figures.values())
    assert result.plan.sites == ("north", "south")
    for model in (result.super_model(), result.super_model("fedsm", seed=0)):
        assert model.facts.plan == result.plan.hash


class Texts(HTMLParser):
    """The tags and the text of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list) -> None:
        self.tags.add(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


def test_it_shows_the_table_and_a_name_is_no_markup(result: konsil.RunResult):
    page = Texts()
    page.feed(result._repr_html_())
    assert page.tags <= {"pre", "span"}  # the run's folder is called <b>
    for text in (page.text, str(result)):
        assert "client average" in " ".join(text.split())
        assert "fedsm super" in " ".join(text.split())
        assert "<b>" in text
    assert repr(result) == f"<konsil run {result.folder}: fedsm at 2 sites>"


def test_a_file_a_dict_and_an_experiment_are_the_same_run(
    keys: dict, result: konsil.RunResult, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    file = tmp_path / "tiny.yaml"
    file.write_text(yaml.safe_dump(keys | {"name": "tiny"}))
    experiment = konsil.Experiment.model_validate(keys | {"rounds": 9})
    before = json.dumps(keys)
    sources = {str(file): {}, file: {}, "keys": {}, "experiment": {"rounds": 2}}
    given = {"keys": keys, "experiment": experiment}
    for source, overrides in sources.items():
        again = konsil.run(
            given.get(source, source), out=result.folder, resume=True, overrides=overrides
        )
        assert again.results == result.results  # it refuses another plan
    assert json.dumps(keys) == before
    shown = capsys.readouterr().out
    assert shown.count(f"plan {result.plan.hash}") == 4
    assert "the server sees" in " ".join(shown.split())


def test_progress_is_that_of_the_command_and_quiet_is_quiet(
    keys: dict, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    fedavg = {"methods": ["fedavg"], "rounds": 1}
    loud = konsil.run(keys | {"name": "loud"}, overrides=fedavg)
    said = capsys.readouterr().out
    assert "fedavg/seed0: round 1/1" in said
    assert "fedavg/seed0: done in" in said
    assert loud.folder == Path("runs/loud")
    konsil.run(keys | {"name": "silent"}, overrides=fedavg, quiet=True)
    assert capsys.readouterr() == ("", "")
    assert (tmp_path / "runs" / "silent" / "results.csv").exists()


@pytest.mark.parametrize(
    ("change", "overrides", "words"),
    [
        ({"rounds": 0}, {}, ["experiment: ", "rounds = 0"]),
        ({"rouns": 3}, {}, ["rouns: unknown key; did you mean rounds?"]),
        ({}, {"methods.fedsm.lamda": 0.7}, ["methods.fedsm", "did you mean lambda?"]),
        ({}, {"methods.fedavg.mu": 0.7}, ["overrides['methods.fedavg.mu']: no entry fedavg"]),
        ({}, {"rounds.most": 3}, ["overrides['rounds.most']: rounds has no keys below it"]),
    ],
)
def test_mistakes_in_a_dict_are_named_by_their_keys(
    keys: dict, tmp_path: Path, change: dict, overrides: dict, words: list[str]
):
    with pytest.raises(ConfigError) as error:
        konsil.run(keys | change, overrides=overrides, out=tmp_path / "out", quiet=True)
    assert all(word in str(error.value) for word in words)
    assert "--set" not in str(error.value)
    assert not (tmp_path / "out").exists()


def test_an_old_folder_is_refused_in_words_for_python(keys: dict, result: konsil.RunResult):
    with pytest.raises(RunError, match=r"holds a run already; .*in Python resume=True"):
        konsil.run(keys, out=result.folder, quiet=True)


def test_a_plugin_file_is_used(keys: dict, tmp_path: Path):
    file = tmp_path / "louder.py"
    file.write_text(
        "from konsil import Method, Upload, method\n"
        "@method('front-door-plugin', paper='none')\n"
        "class Louder(Method):\n"
        "    'As FedAvg.'\n"
        "    def local(self, site, shared):\n"
        "        model = site.train(site.learner('global', shared['global']))\n"
        "        return Upload().add('global', model.weights(), weight=site.images)\n"
    )
    change = {"methods": ["front-door-plugin"], "rounds": 1, "engine": {"name": "processes"}}
    done = konsil.run(keys | change, plugins=[file], out=tmp_path / "run", quiet=True)
    assert {row["method"] for row in done.results} == {"front-door-plugin"}


def test_stopped_in_a_notebook_it_can_go_on_there(
    keys: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The traceback of Ctrl-C lives on in a notebook: it must not keep the folder locked."""
    from konsil.federation.server import Server

    usual = Server._round

    def interrupted(self: Server, number: int) -> None:
        if number == 2:
            raise KeyboardInterrupt
        usual(self, number)

    monkeypatch.setattr(Server, "_round", interrupted)
    with pytest.raises(KeyboardInterrupt) as stop:
        konsil.run(keys, out=tmp_path / "run", quiet=True)
    assert "resume=True goes on" in stop.value.__notes__[0]
    monkeypatch.undo()
    done = konsil.run(keys, out=tmp_path / "run", resume=True, quiet=True)
    rounds = re.findall(r'"round_done".*?"round": (\d)', (done.folder / "events.jsonl").read_text())
    assert rounds == ["1", "2"]


def test_a_run_leaves_torch_as_it_was(keys: dict, tmp_path: Path):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        konsil.run(
            keys, overrides={"methods": ["fedavg"], "rounds": 1}, out=tmp_path / "run", quiet=True
        )
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


# --- super models and federations ---------------------------------------------------------------


def test_load_takes_a_super_models_folder_or_a_run_with_one(result: konsil.RunResult):
    own = result.folder / "fedsm" / "seed0" / "supermodel"
    for folder in (own, str(own), result.folder):
        assert konsil.load(folder).facts.plan == result.plan.hash


def test_load_says_what_there_is(result: konsil.RunResult, tmp_path: Path):
    with pytest.raises(RunError, match="no such folder"):
        konsil.load(tmp_path / "none")
    with pytest.raises(RunError, match="no super model in"):
        konsil.load(tmp_path)
    with pytest.raises(RunError, match=r"no super model in fedavg/seed0"):
        result.super_model("fedavg", seed=0)
    for seed in (0, 1):
        (tmp_path / "fedsm" / f"seed{seed}" / "supermodel").mkdir(parents=True)
        (tmp_path / "fedsm" / f"seed{seed}" / "supermodel" / "model.json").write_text("{}")
    with pytest.raises(RunError, match=r"several super models.*seed0.*seed1"):
        konsil.load(tmp_path)


def test_a_super_model_reads_pictures_as_training_did(result: konsil.RunResult, squares: Path):
    from konsil.data import test_images

    model = result.super_model()
    site = squares / "south" / "images"
    read = model.read(*sorted(site.iterdir()))
    assert read.shape == (12, 3, 32, 32)
    decoded = test_images(result.plan.data_folder, "south").images
    known = {image.numpy().tobytes() for image in (read * 255).round().to(torch.uint8)}
    assert len(decoded) > 0
    assert all(torch.as_tensor(image).numpy().tobytes() in known for image in decoded)
    assert model.answer(read).logits.shape == (12, 1, 32, 32)
    with pytest.raises(DataError, match=r"nowhere\.png: file that cannot be opened"):
        model.read("nowhere.png")
    with pytest.raises(DataError, match=r"test_front_door\.py: "):
        model.read(__file__)


def test_open_federation_takes_paths_keys_and_configs(squares: Path, shades: Path, tmp_path: Path):
    from konsil.config import FederationConfig

    keys = {"folder": str(squares), "image_size": 32}
    for source in (keys, FederationConfig(folder=squares, image_size=32), squares, str(squares)):
        assert konsil.open_federation(source, quiet=True).sites == ["north", "south"]
    classes = konsil.open_federation(shades, {"name": "classification"}, quiet=True)
    assert classes.labels == ["healthy", "ill"]
    classes.write_splits(tmp_path / "splits.csv")
    with pytest.raises(ConfigError, match=r"federation: .*\n  image_siz: unknown key"):
        konsil.open_federation(keys | {"image_siz": 3})
    with pytest.raises(ConfigError, match=r"task.name: unknown task 'sorting'"):
        konsil.open_federation(keys, {"name": "sorting"})
    with pytest.raises(DataError, match=r"none\.csv"):
        konsil.open_federation(tmp_path / "none.csv", quiet=True)


# --- a method of this session -------------------------------------------------------------------


@pytest.fixture
def here():
    """A method as a notebook's cell defines it."""
    from konsil.ingredients.method import METHODS

    scope = {"__name__": "__main__"}
    code = (
        "import konsil\n"
        "@konsil.method('of-this-session', paper='none')\n"
        "class Mine(konsil.Method):\n"
        "    'As FedAvg.'\n"
        "    def local(self, site, shared):\n"
        "        model = site.train(site.learner('global', shared['global']))\n"
        "        return konsil.Upload().add('global', model.weights(), weight=site.images)\n"
    )
    exec(code, scope)
    exec(code, scope)  # a cell may be run again
    yield {"methods": ["fedavg", "of-this-session"], "rounds": 1}
    METHODS.remove("of-this-session")


def test_a_method_of_this_session_runs_in_process(keys: dict, tmp_path: Path, here: dict):
    done = konsil.run(keys | here, out=tmp_path / "run", quiet=True)
    found = {(r["site"], r["split"], r["metric"], r["method"]): r["value"] for r in done.results}
    ours = {key[:3]: value for key, value in found.items() if key[3] == "of-this-session"}
    theirs = {key[:3]: value for key, value in found.items() if key[3] == "fedavg"}
    assert ours == theirs != {}


@pytest.mark.parametrize(
    ("engine", "resume", "words"),
    [
        ("processes", False, "worker processes do not find it; put it into a file and give"),
        ("inprocess", True, "nobody can tell whether it is still what the run began with; put it"),
    ],
)
def test_where_it_cannot_be_found_it_is_refused(
    keys: dict, tmp_path: Path, here: dict, engine: str, resume: bool, words: str
):
    with pytest.raises(ConfigError, match=f"^methods.of-this-session: .*{words}") as error:
        konsil.run(
            keys | here | {"engine": {"name": engine}},
            out=tmp_path / "run", resume=resume, quiet=True,
        )  # fmt: skip
    assert "--plugin" in str(error.value)
    assert not (tmp_path / "run").exists()


# --- the page -----------------------------------------------------------------------------------


def blocks() -> list[tuple[str, str]]:
    """The page's blocks with what they print, if that is written below."""
    found = re.findall(r"^```python\n(.*?)^```\n(?:```\n(.*?)^```$)?", PAGE, re.DOTALL | re.M)
    assert len(found) == PAGE.count("```python") >= 7
    return found


def test_the_walk_of_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    from konsil.ingredients.method import METHODS

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KONSIL_CACHE", str(tmp_path / "cache"))
    Image.new("RGB", (40, 40), "tomato").save("photo.png")
    scope: dict = {"__name__": "__main__"}
    try:
        for code, printed in blocks():
            exec(code, scope)
            out = capsys.readouterr().out
            assert not printed or out.endswith(printed)
    finally:
        METHODS.remove("equal-voices")
    assert scope["rows"]
    assert scope["checked"] == ["learns", "any_order", "one_site"]
    assert {row["method"] for row in scope["equal"].results} == {"equal-voices"}
    assert konsil.load("runs/eyes").facts.sites == ["aster", "birch"]
