"""What `configs/inference.json` of a MONAI bundle is made of.

`monai.bundle run` builds these by their `_target_`: a network that routes, the opening of image
files as training opened them, and masks on the files' own pixels. No file is a pickle.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from konsil.data.findings import BadFile
from konsil.data.image_file import open_image
from konsil.errors import DataError
from konsil.prepare.inputs import Input, find_inputs
from konsil.supermodel import Answer, SuperModel
from konsil.supermodel.asking import TABLE, Row, rows_of, write_table
from konsil.supermodel.predict import (
    AUTO,
    BATCH,
    Prediction,
    mask_name,
    prediction_of,
    write_mask,
)

Item = dict[str, Any]


class RoutedNetwork(nn.Module):
    """A super model as one network: images in, the logits of whom its rule asks out."""

    def __init__(self, folder: str | Path, device: str = "cpu") -> None:
        super().__init__()
        self.model = SuperModel.load(Path(folder), device)

    def forward(self, images: Tensor) -> Tensor:
        """Logits of images [n, channels, size, size] in [0, 1]."""
        return self.answer(images).logits

    def answer(self, images: Tensor) -> Answer:
        """The same, and whom they are of."""
        return self.model.answer(images)


class OpenImage:
    """The preprocessing: a file's planes, read and resized as training read its files."""

    def __init__(self, network: RoutedNetwork, site: str | None = None) -> None:
        """`site`: as whose files, where the sites read theirs in different ways."""
        self.facts, self.reading = network.model.facts, network.model.reading(site)

    def __call__(self, one: Input) -> Item:
        """`image`: [planes, channels, size, size] in [0, 1]; or `problem`, of a bad file."""
        try:
            opened = open_image(one.path, self.reading)
        except BadFile as bad:
            return {"input": one, "problem": str(bad)}
        size, channels = self.facts.network["image_size"], self.facts.network["in_channels"]
        planes = [opened.plane(n, channels, size) for n in range(len(opened.pictures))]
        image = torch.from_numpy(np.stack(planes)).float().div_(255)
        return {"input": one, "opened": opened, "reading": self.reading, "image": image}


class WriteAnswers:
    """The postprocessing: masks at the files' own size, and answers.csv, as `konsil predict`."""

    def __init__(self, network: RoutedNetwork, output_dir: str | Path) -> None:
        self.model, self.out = network.model, Path(output_dir)
        self.rows: list[Row] = []

    def __call__(self, item: Item, said: Prediction) -> None:
        """One file's."""
        one: Input = item["input"]
        if said.facts.targets == "masks":
            below = self.out / "masks" / Path(one.name).parent
            write_mask(said, below / mask_name(one.path), one.path)
        self.rows += rows_of(one.name, AUTO, said)

    def finish(self) -> None:
        """The table of all."""
        write_table(self.out / TABLE, self.rows, self.model)


class Evaluator:
    """Takes every file of a dataset from opening to its mask; a bad one does not stop the others.

    Files have many sizes, and a volume is a batch by itself: one is taken after the other.
    """

    def __init__(
        self,
        dataset: Sequence[Item],
        network: RoutedNetwork,
        inferer: Callable[..., Answer],
        postprocessing: WriteAnswers,
    ) -> None:
        self.dataset, self.network, self.inferer = dataset, network, inferer
        self.postprocessing = postprocessing

    def run(self) -> None:
        """Answer all; DataError at the end if some could not be."""
        failed = []
        for number in range(len(self.dataset)):
            item = self.dataset[number]
            try:
                self.postprocessing(item, self._said(item))
            except (DataError, OSError) as error:
                failed.append(f"{item['input'].name}: {error}")
        self.postprocessing.finish()
        if failed:
            raise DataError(f"not answered: {'; '.join(failed)}")

    def _said(self, item: Item) -> Prediction:
        if "problem" in item:
            raise DataError(item["problem"])
        pieces = item["image"].split(BATCH)
        said = (self.inferer(piece, self.network.answer) for piece in pieces)
        model = self.network.model
        return prediction_of(model, item["opened"], AUTO, item["reading"], said)


def images_in(folder: str | Path) -> list[Input]:
    """The pictures, volumes and DICOM series of a folder."""
    return find_inputs([Path(folder)])
