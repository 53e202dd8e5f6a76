"""Where a run is found: its own folder, folds below it, a server's, and the server's kit."""

from pathlib import Path

import pytest

from konsil.errors import RunError
from konsil.watch.places import find_place, find_runs


def run_in(folder: Path, events: bool = True) -> Path:
    folder.mkdir(parents=True)
    (folder / "plan.yaml").write_text("{}")
    if events:
        (folder / "events.jsonl").write_text("")
    return folder


def kit(folder: Path, kind: str) -> Path:
    startup = folder / "startup"
    startup.mkdir(parents=True)
    (startup / f"fed_{kind}.json").write_text("{}")
    return folder


def server_in(folder: Path, own: Path) -> Path:
    """What `konsil server start` makes of its folder: links to the kit's files."""
    startup = folder / "flare" / "startup"
    startup.mkdir(parents=True)
    for file in (own / "startup").iterdir():
        (startup / file.name).symlink_to(file.absolute())
    return folder


def test_a_run_is_itself_whatever_lies_below(tmp_path: Path):
    run = run_in(tmp_path / "mine")
    run_in(run / "old")
    assert find_runs(find_place(run)) == {"mine": run}


def test_folds_and_stages_lie_below(tmp_path: Path):
    whole = run_in(tmp_path / "unseen", events=False)  # its plan is that of all sites
    assert find_runs(whole) == {"unseen": whole}
    folds = [run_in(whole / f"without-{site}") for site in ("a", "b")]
    assert find_runs(find_place(whole)) == {fold.name: fold for fold in folds}


def test_a_servers_folder_before_and_with_runs(tmp_path: Path):
    own = kit(tmp_path / "kits" / "server", "server")
    server = server_in(tmp_path / "server", own)
    assert find_runs(find_place(server)) == {}
    (server / "runs" / "eyes-1").mkdir(parents=True)  # sites have not agreed yet
    assert find_runs(find_place(server)) == {"eyes-1": server / "runs" / "eyes-1"}


def test_a_local_deployment_is_followed_at_its_server(tmp_path: Path):
    out = run_in(tmp_path / "trial")  # fetched when it failed; it goes on at the server
    server = server_in(
        out / ".deploy" / "server", kit(out / ".deploy" / "kits" / "server", "server")
    )
    assert find_runs(find_place(out)) == {"trial": out}
    run = run_in(server / "runs" / "eyes-1")
    assert find_runs(find_place(out)) == {"eyes-1": run}


def test_a_kit_leads_to_the_usual_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    own = kit(tmp_path / "kits" / "server", "server")
    with pytest.raises(RunError, match="--folder of its `konsil server start`"):
        find_place(own)
    server_in(Path("konsil-server"), kit(tmp_path / "others", "server"))
    with pytest.raises(RunError, match="keeps them elsewhere"):
        find_place(own)  # that server is another's
    server_in(tmp_path / "b" / "konsil-server", own)
    monkeypatch.chdir(tmp_path / "b")
    assert find_place(own) == Path("konsil-server")


@pytest.mark.parametrize(("kind", "whose"), [("client", "a site"), ("admin", "an admin")])
def test_others_kits_lead_nowhere(tmp_path: Path, kind: str, whose: str):
    with pytest.raises(RunError, match=f"the start-up kit of {whose}.*deploy status"):
        find_place(kit(tmp_path / "kit", kind))


def test_what_is_no_run_is_refused(tmp_path: Path):
    with pytest.raises(RunError, match="no such folder"):
        find_place(tmp_path / "nowhere")
    with pytest.raises(RunError, match="no run in it"):
        find_place(tmp_path)
