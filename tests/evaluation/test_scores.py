"""scores.parquet: its rows by hand, and what is refused."""

import pytest

from konsil.errors import RunError
from konsil.evaluation.comparison import compare
from konsil.evaluation.results import Series
from konsil.evaluation.scores import (
    FILE,
    Scored,
    join_scores,
    patients_in,
    read_scores,
    write_scores,
)
from konsil.files import write_text
from konsil.tasks.classification import Classification
from konsil.tasks.segmentation import Segmentation

SITES = ["north", "south"]
CLASSES = Classification(["healthy", "ill"])


def scored(columns, method="fedavg", seed=0, role="global"):
    return Scored(method, seed, role, SITES, columns)


def test_a_row_an_image_and_structure():
    task = Segmentation(["disc", "cup"])
    columns = {
        "dice": [0.5, 0.6],
        "dice_disc": [0.7, 0.8],
        "dice_cup": [0.3, 0.4],
        "_area_disc": [9.0, 8.0],
    }
    rows = list(scored({"south": columns}).rows(task, {"south": [4, 2]}))
    keys = {"method": "fedavg", "seed": 0, "role": "global", "site": "south"}
    first = {"patient": 4, "image": 0}
    assert rows == [
        keys | first | {"structure": None, "dice": 0.5},
        keys | first | {"structure": "disc", "dice": 0.7, "area": 9.0},
        keys | first | {"structure": "cup", "dice": 0.3},
        keys | {"patient": 2, "image": 1, "structure": None, "dice": 0.6},
        keys | {"patient": 2, "image": 1, "structure": "disc", "dice": 0.8, "area": 8.0},
        keys | {"patient": 2, "image": 1, "structure": "cup", "dice": 0.4},
    ]


def test_of_structures_that_end_alike_the_longer_name_counts():
    task = Segmentation(["cup", "optic_cup"])
    columns = {"dice": [0.5], "dice_cup": [0.1], "dice_optic_cup": [0.9]}
    found = {row["structure"]: row["dice"] for row in scored({"north": columns}).rows(task, {})}
    assert found == {None: 0.5, "cup": 0.1, "optic_cup": 0.9}


def test_one_structure_and_classes_have_one_row_an_image():
    columns = {"north": {"dice": [0.5], "_area": [3.0]}}
    (row,) = scored(columns).rows(Segmentation(["prostate"]), {})
    assert (row["structure"], row["dice"], row["area"], row["patient"]) == (None, 0.5, 3.0, None)
    columns = {"north": {"accuracy": [1.0], "_target": [1.0], "_score": [2.5]}}
    (row,) = scored(columns).rows(CLASSES, {})
    assert (row["structure"], row["target"], row["score"]) == (None, 1.0, 2.5)


def test_whom_the_selector_asked_and_what_others_would_have_scored():
    columns = {
        "dice": [0.9, 0.8],
        "unfamiliar": [0.0, 1.0],
        "_probability_0": [0.2, 0.5],
        "_probability_1": [0.8, 0.5],
        "_share_0": [0.5, 1.0],
        "_share_1": [0.0, 0.0],
        "_share_2": [0.5, 0.0],
        "score_of_global": [0.7, 0.8],
        "score_of_south": [0.6, 0.1],
    }
    task = Segmentation(["disc"])
    first, second = scored({"south": columns}, "fedsm", role="super").rows(task, {})
    # by the roster, though north is not among those who told
    assert (first["like_north"], first["like_south"]) == (0.2, 0.8)
    assert (first["asked"], second["asked"]) == ("global + south", "global")
    assert (first["score_of_global"], first["score_of_south"]) == (0.7, 0.6)
    assert (second["unfamiliar"], second["score_of_south"]) == (1.0, 0.1)


def test_a_selector_that_names_models_has_an_output_for_the_global_one():
    columns = {"dice": [0.9]}
    columns |= {f"_probability_{k}": [p] for k, p in enumerate((0.7, 0.2, 0.1))}
    columns |= {f"_share_{k}": [p] for k, p in enumerate((1.0, 0.0, 0.0))}
    (row,) = scored({"north": columns}).rows(Segmentation(["disc"]), {})
    assert (row["like_global"], row["like_north"], row["like_south"]) == (0.7, 0.2, 0.1)
    assert row["asked"] == "global"


def test_patients_are_numbers_in_the_order_of_the_test_images(tmp_path):
    write_text(
        tmp_path / "splits.csv",
        "site,image,label,patient,split\n"
        "north,a.png,,maria,test\nnorth,b.png,,josef,test\nnorth,c.png,,maria,test\n"
        "north,d.png,,anna,train\nsouth,a.png,,paul,test\nsouth,b.png,,maria,test\n",
    )
    assert patients_in(tmp_path / "splits.csv") == {"north": [0, 1, 0], "south": [0, 1]}
    assert patients_in(tmp_path / "other.csv") == {}


# --- files ---------------------------------------------------------------------------------------


def files(folder, *parts):
    for number, part in enumerate(parts):
        write_scores(folder / f"{number}.parquet", part)
    join_scores(folder / FILE, [folder / f"{n}.parquet" for n in range(len(parts))])
    return folder


def of_disc(method, values, seed=0, role="global", patients=(0, 1), site="north"):
    columns = {site: {"dice": list(values)}}
    return list(scored(columns, method, seed, role).rows(Segmentation(["disc"]), {site: patients}))


def test_one_file_of_several_with_other_columns(tmp_path):
    further = [row | {"like_north": 0.5} for row in of_disc("fedsm", [0.3, 0.4])]
    files(tmp_path, of_disc("fedavg", [0.1, 0.2]), further)
    table = read_scores(tmp_path / FILE)
    assert table.column("dice").to_pylist() == [0.1, 0.2, 0.3, 0.4]
    assert table.column("like_north").to_pylist() == [None, None, 0.5, 0.5]
    assert str(table.schema.field("image").type) == "int32"
    assert str(table.schema.field("structure").type) == "string"


def test_a_damaged_file_is_named(tmp_path):
    (tmp_path / FILE).write_bytes(b"PAR1 no")
    with pytest.raises(RunError, match=r"scores\.parquet: not the scores of a run"):
        read_scores(tmp_path / FILE)


def test_who_is_compared_on_what(tmp_path):
    parts = [of_disc("fedavg", [0.1, 0.3]), of_disc("fedavg", [0.3, 0.5], seed=1)]
    found = compare([files(tmp_path, *parts, of_disc("fedsm", [0.5, 0.7], role="super"))], "dice")
    assert found.candidates == [Series("fedavg", "global"), Series("fedsm", "super")]
    assert found.seeds == {found.candidates[0]: [0, 1], found.candidates[1]: [0]}
    assert (found.images, found.patients) == (2, 2)
    assert [one.value for one in found.compared.estimates("north")] == pytest.approx([0.3, 0.6])
    assert found.place("fedsm super") == 1
    with pytest.raises(
        RunError, match=r"fedprox: nobody of that name .* fedavg global, fedsm super"
    ):
        found.place("fedprox")


def test_of_twins_the_control_gives_the_line_its_name(tmp_path):
    """Folders come as a shell lists them: ditto and fedsm before fedavg, whose model is theirs."""
    parts = [
        of_disc("ditto", [0.1, 0.3]),
        of_disc("ditto", [0.2, 0.4], role="personal"),
        of_disc("fedavg", [0.1, 0.3]),
        of_disc("local", [0.4, 0.6], role="local"),
    ]
    found = compare([files(tmp_path, *parts)], "dice")
    names = ["local", "fedavg global", "ditto global", "ditto personal"]
    assert [one.name for one in found.candidates] == names
    assert [one.name for _, one in found.distinct()] == [names[0], names[1], names[3]]
    assert found.twins(1) == [Series("ditto", "global")]


def test_patients_that_are_not_known_are_images(tmp_path):
    folder = files(tmp_path, of_disc("fedavg", [0.1, 0.3], patients=(None, None)))
    found = compare([folder], "dice")
    assert found.patients == 0
    assert found.compared.sites["north"].patients.tolist() == [0, 1]


@pytest.mark.parametrize(
    "other",
    [
        of_disc("fedsm", [0.1, 0.3, 0.5], patients=(0, 1, 2)),
        of_disc("fedsm", [0.1]),
        of_disc("fedsm", [0.1, 0.3], patients=(0, 0)),
        of_disc("fedsm", [0.1, 0.3], site="south"),
    ],
)
def test_other_images_are_not_compared(tmp_path, other):
    with pytest.raises(RunError, match=r"site (north|south): .*not answered the same test images"):
        compare([files(tmp_path, of_disc("fedavg", [0.1, 0.3]), other)], "dice")


def test_a_run_is_compared_with_itself_once(tmp_path):
    folder = files(tmp_path, of_disc("fedavg", [0.1, 0.3]))
    with pytest.raises(RunError, match=r"fedavg, seed 0: image 0 of north twice; .* other labels"):
        compare([folder, folder], "dice")


def test_what_is_not_there_is_named(tmp_path):
    with pytest.raises(RunError, match="not there; runs of this version leave it"):
        compare([tmp_path], "dice")
    folder = files(tmp_path, of_disc("fedavg", [0.1, 0.3]))
    with pytest.raises(RunError, match="no hd95; there is dice"):
        compare([folder], "hd95")
    with pytest.raises(RunError, match="no image has a score in dice of cup"):
        compare([folder], "dice", "cup")


def test_a_patients_slices_are_one_volume(tmp_path):
    """Patient 0: (2 + 6) of (8 + 8) pixels in disc, 0 of 0 in cup; patient 1 has one slice."""
    columns = {
        "dice": [0.0] * 3,
        **{f"_overlap_{s}": v for s, v in {"disc": [2.0, 6, 1], "cup": [0.0, 0, 3]}.items()},
        **{f"_area_{s}": v for s, v in {"disc": [8.0, 8, 8], "cup": [0.0, 0, 8]}.items()},
    }
    task = Segmentation(["disc", "cup"])
    rows = list(scored({"north": columns}).rows(task, {"north": [0, 0, 1]}))
    folder = files(tmp_path, rows)
    found = compare([folder], "volume_dice")
    assert (found.images, found.patients) == (2, 2)
    of_disc, of_cup = [2 * 8 / 16, 2 * 1 / 8], [1.0, 2 * 3 / 8]
    assert found.compared.sites["north"].values[0].tolist() == [
        [pytest.approx((d + c) / 2) for d, c in zip(of_disc, of_cup, strict=True)]
    ]
    alone = compare([folder], "volume_dice", "disc").compared.sites["north"]
    assert alone.values[0].tolist() == [of_disc]


def test_without_patients_there_are_no_volumes(tmp_path):
    columns = {"north": {"dice": [0.5], "_overlap": [1.0], "_area": [4.0]}}
    folder = files(tmp_path, list(scored(columns).rows(Segmentation(["disc"]), {})))
    with pytest.raises(RunError, match="which slices are of one patient is not known"):
        compare([folder], "volume_dice")


def test_auc_ranks_by_the_score(tmp_path):
    columns = {"accuracy": [1.0, 0, 1], "_target": [1.0, 1, 0], "_score": [2.0, -3, -2]}
    rows = scored({"north": columns}).rows(CLASSES, {"north": [0, 1, 2]})
    found = compare([files(tmp_path, list(rows))], "auc")
    assert found.compared.estimates("north")[0].value == 0.5
    with pytest.raises(RunError, match="no dice; there is accuracy, auc"):
        compare([tmp_path], "dice")
