"""A model of Hugging Face's transformers that learns to tell the classes of texts.

    MODEL=~/models/bert TEXTS=~/reviews.csv python -m raygpu.sweep conf/sweep/hugging_face.toml

MODEL is a folder with a model and its tokenizer, as `save_pretrained` writes them, or a name on Hugging Face's Hub.
TEXTS is a CSV file with the columns `text` and `label`. Needs transformers.
"""

from __future__ import annotations

import csv
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from raygpu import Splits, TorchExperiment

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import nn

LENGTH = 128
"""Tokens of a text; longer ones are cut, shorter ones filled up."""
NUM_SYNTHETIC = 2_000
READY_MASKS = (
    *("albert", "bert", "camembert", "convbert", "distilbert", "electra", "ernie", "modernbert", "mpnet", "nomic_bert"),
    *("roberta", "roformer", "xlm-roberta"),
)
"""Types of models that take a mask of attention in the form in which it is added to the scores. They ask nothing about
it by a Python `if`, which an array of models could not follow."""


class Texts(TorchExperiment):
    """The model of MODEL with a new layer for `classes` classes; `pretrained = false` begins with new parameters."""

    def data(self) -> Splits:
        path = Path(os.environ.get("TEXTS") or "texts.csv").expanduser()
        if not path.is_file():
            raise FileNotFoundError(f"{path}: no such file; TEXTS names a CSV file with the columns text and label")
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        if not rows or not {"text", "label"} <= set(rows[0]):
            raise ValueError(f"{path}: the columns text and label are wanted, and at least one line below them")
        labels = sorted({row["label"] for row in rows})
        from transformers import AutoTokenizer

        encoded = AutoTokenizer.from_pretrained(_folder())(
            [row["text"] for row in rows], padding="max_length", truncation=True, max_length=LENGTH, return_tensors="np"
        )
        targets = np.array([labels.index(row["label"]) for row in rows])
        return Splits.of(encoded["input_ids"].astype(np.int64), targets, validation=0.2)

    def synthetic(self) -> Splits:
        from transformers import AutoConfig

        generator = np.random.default_rng(0)
        tokens = generator.integers(1, AutoConfig.from_pretrained(_folder()).vocab_size, (NUM_SYNTHETIC, LENGTH))
        return Splits.of(tokens, generator.integers(0, 2, NUM_SYNTHETIC), validation=0.2)

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        import torch
        from transformers import AutoConfig, AutoModelForSequenceClassification, logging

        logging.set_verbosity_error()  # it warns of the new layer
        config = AutoConfig.from_pretrained(_folder(), num_labels=hp["classes"])
        dtype = torch.float32  # by default that of the folder: in bfloat16 most steps of fine-tuning would round away
        if hp.get("pretrained", True):
            return _with_mask(AutoModelForSequenceClassification.from_pretrained(_folder(), config=config, dtype=dtype))
        return _with_mask(AutoModelForSequenceClassification.from_config(config, dtype=dtype))


def _folder() -> str:
    """Return where the model is. Raises ValueError if MODEL does not name it."""
    if "MODEL" not in os.environ:
        raise ValueError(
            "MODEL: not set; it names a folder with a model and its tokenizer, as save_pretrained writes them"
        )
    return str(Path(os.environ["MODEL"]).expanduser())


def _with_mask(model: Any) -> nn.Module:
    """Return a module of token numbers, (batch, length), and logits, (batch, classes): padding has no part in it."""
    import torch
    from torch import nn

    class Classifier(nn.Module):
        """Tells the model where padding is."""

        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            """Return the logits of texts."""
            mask: torch.Tensor = tokens != self.model.config.pad_token_id
            if self.model.config.model_type in READY_MASKS:
                hidden = (~mask)[:, None, None].expand(-1, -1, tokens.shape[-1], -1)
                mask = -1e9 * hidden.to(self.model.dtype)
            logits: torch.Tensor = self.model(input_ids=tokens, attention_mask=mask).logits
            return logits

    return Classifier()
