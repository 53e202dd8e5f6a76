import math

import numpy as np
import pytest
import torch
from sklearn.metrics import balanced_accuracy_score, f1_score, recall_score, roc_auc_score

from konsil.tasks.classification import Classification, expected_calibration_error

BINARY = Classification(["normal", "tumour"])


def summary_of(task, logits, y):
    columns = task.columns(torch.as_tensor(logits), torch.as_tensor(y))
    return task.summarise({name: column.numpy() for name, column in columns.items()})


def test_columns_by_hand():
    columns = BINARY.columns(torch.tensor([[1.0, 3.0], [2.0, -1.0]]), torch.tensor([1, 1]))
    values = {name: column.tolist() for name, column in columns.items()}
    assert values == {"accuracy": [1, 0], "_target": [1, 1], "_score": [2, -3]}
    assert all(column.dtype == torch.float64 for column in columns.values())


def test_summary_by_hand():
    # Scores: negatives 0 and 2, positives 1 and 3. Of four pairs, three are in order.
    logits = [[0.0, 0.0], [0.0, 2.0], [0.0, 1.0], [0.0, 3.0]]
    assert summary_of(BINARY, logits, [0, 0, 1, 1]) == {"accuracy": 0.75, "auc": 0.75}


def test_a_tie_counts_half():
    assert summary_of(BINARY, [[0.0, 1.0], [0.0, 1.0]], [0, 1])["auc"] == 0.5


def test_auc_equals_sklearn():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(50, 2, generator=generator)
    y = torch.randint(0, 2, (50,), generator=generator)
    expected = roc_auc_score(y, torch.softmax(logits.double(), dim=1)[:, 1])
    assert summary_of(BINARY, logits, y)["auc"] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("bias", "shift_deviation", "micro"), [(1.5, 0, 0.73), (0, 1, 0.69), (0, 3, 0.58)]
)
def test_auc_does_not_depend_on_class_bias_and_common_shift(bias, shift_deviation, micro):
    """PAPERS B3: the micro average that FedSoup's code takes falls from .876 to these values."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 20_000)
    difference = rng.normal(0, 1, len(y)) + 1.155 * math.sqrt(2) * (y - 0.5)
    logits = np.stack([-difference / 2, difference / 2], axis=1)
    logits[:, 1] += bias
    logits += shift_deviation * rng.normal(0, 1, (len(y), 1))
    assert summary_of(BINARY, logits, y)["auc"] == pytest.approx(0.876, abs=0.005)
    assert roc_auc_score(np.eye(2)[y], logits, average="micro") == pytest.approx(micro, abs=0.01)


def test_one_class_has_no_auc():
    assert summary_of(BINARY, [[0.0, 1.0], [0.0, -1.0]], [1, 1]) == {"accuracy": 0.5}


def test_three_classes_have_no_auc():
    task = Classification(["a", "b", "c"])
    assert task.metrics == ["accuracy"]
    logits = [[3.0, 0, 0], [0.0, 3, 0], [0.0, 3, 0]]
    assert summary_of(task, logits, [0, 1, 2]) == {"accuracy": pytest.approx(2 / 3)}


def test_no_images_no_summary():
    empty = np.array([])
    assert BINARY.summarise({"accuracy": empty, "_target": empty, "_score": empty}) == {}


def test_loss_by_hand():
    logits = torch.tensor([[0.0, 0.0], [0.0, math.log(3)]])  # probabilities 1/2 and 3/4
    loss = BINARY.loss(logits, torch.tensor([0, 1], dtype=torch.uint8))
    assert loss.item() == pytest.approx((math.log(2) + math.log(4 / 3)) / 2)


def test_probabilities_sum_to_one():
    probabilities = BINARY.probabilities(torch.tensor([[0.0, math.log(3)]]))
    assert probabilities[0].tolist() == pytest.approx([0.25, 0.75])


# --- what is said of test images beside accuracy and AUC -----------------------------------------


def detailed_of(task, logits, y):
    logits, y = torch.as_tensor(logits), torch.as_tensor(y)
    columns = task.columns(logits, y) | task.detailed(logits, y)
    return task.summarise({name: column.numpy() for name, column in columns.items()})


def test_further_metrics_by_hand():
    """Three ill, of whom two are found; five healthy, of whom one is called ill."""
    said = [1, 1, 0, 1, 0, 0, 0, 0]
    logits = [[0.0, math.log(3) if one else -math.log(3)] for one in said]  # sure to .75
    found = detailed_of(BINARY, logits, [1, 1, 1, 0, 0, 0, 0, 0])
    assert found["sensitivity"] == pytest.approx(2 / 3)
    assert found["specificity"] == pytest.approx(4 / 5)
    assert found["balanced_accuracy"] == pytest.approx((2 / 3 + 4 / 5) / 2)
    assert found["f1"] == pytest.approx(2 * 2 / (2 * 2 + 1 + 1))
    assert found["accuracy"] == pytest.approx(6 / 8)
    assert found["calibration_error"] == pytest.approx(0, abs=1e-6)  # .75 sure, .75 right


@pytest.mark.parametrize("classes", [2, 3, 5])
def test_further_metrics_equal_sklearn(classes):
    generator = torch.Generator().manual_seed(classes)
    task = Classification([f"class{k}" for k in range(classes)])
    logits = torch.randn(80, classes, generator=generator)
    y = torch.randint(0, classes, (80,), generator=generator)
    said, found = logits.argmax(dim=1), detailed_of(task, logits, y)
    assert found["balanced_accuracy"] == pytest.approx(balanced_accuracy_score(y, said))
    average = "binary" if classes == 2 else "macro"
    assert found["f1"] == pytest.approx(f1_score(y, said, average=average))
    if classes == 2:
        assert found["sensitivity"] == pytest.approx(recall_score(y, said))
        assert found["specificity"] == pytest.approx(recall_score(y, said, pos_label=0))
    assert set(task.further) <= found.keys()


def test_calibration_error_by_hand():
    """Two images at .95, one right: off by .45; two at .55, both right: off by .45, too."""
    sure, right = np.array([0.95, 0.95, 0.55, 0.55]), np.array([1.0, 0, 1, 1])
    assert expected_calibration_error(sure, right) == pytest.approx(0.45)
    assert expected_calibration_error(np.ones(3), np.ones(3)) == 0  # 1 is in the last bin


def test_without_a_class_what_speaks_of_it_is_left_out():
    found = detailed_of(BINARY, [[0.0, 1.0], [0.0, -1.0]], [1, 1])
    assert found["sensitivity"] == found["balanced_accuracy"] == 0.5
    assert "specificity" not in found
    assert "auc" not in found


def test_a_class_that_nobody_has_or_names_has_no_f1_to_be_averaged():
    task = Classification(["a", "b", "c"])
    found = detailed_of(task, [[3.0, 0, 0], [0.0, 3, 0]], [0, 1])
    assert found["f1"] == found["balanced_accuracy"] == 1
