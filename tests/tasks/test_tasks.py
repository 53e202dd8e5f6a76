import pytest
import torch
import torch.nn.functional as F
from monai.losses import DiceLoss

from konsil.config import TaskConfig
from konsil.errors import ConfigError
from konsil.tasks import make_task


def test_make_task():
    segmentation = make_task(TaskConfig(), ["disc", "cup"])
    assert (segmentation.outputs, segmentation.main_metric) == (2, "dice")
    assert segmentation.labels == ["disc", "cup"]
    classification = make_task(TaskConfig(name="classification"), ["normal", "tumour"])
    assert (classification.outputs, classification.main_metric) == (2, "accuracy")


def test_the_loss_is_the_one_of_the_experiment_file():
    logits, y = torch.randn(2, 1, 4, 4), torch.ones(2, 1, 4, 4)
    dice = DiceLoss(sigmoid=True)(logits, y)
    cross_entropy = F.binary_cross_entropy_with_logits(logits, y)
    papers = make_task(TaskConfig(loss="dice"), ["prostate"])
    default = make_task(TaskConfig(), ["prostate"])
    assert torch.allclose(papers.loss(logits, y), dice)
    assert torch.allclose(default.loss(logits, y), dice + cross_entropy)


@pytest.mark.parametrize(
    ("config", "labels"),
    [(TaskConfig(), []), (TaskConfig(name="classification"), ["tumour"])],
)
def test_too_few_labels_are_refused(config, labels):
    with pytest.raises(ConfigError, match="at least"):
        make_task(config, labels)
