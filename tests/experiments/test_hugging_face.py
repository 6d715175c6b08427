"""Models of transformers by their folder: the same with padding as without, fused where the type allows it."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from experiments.hugging_face import LENGTH, READY_MASKS, Texts
from raygpu.search.trials import Trial
from raygpu.training.base import Settings
from raygpu.training.fused.groups import TorchGrouper
from raygpu.training.torch.solo import TorchSolo

transformers = pytest.importorskip("transformers")
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "good", "bad", "film", "book", "very"]
HP = {"optimizer": "adamw", "lr": 0.01, "batch_size": 8, "classes": 2}
SMALL = {
    "vocab_size": len(WORDS), "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
    "intermediate_size": 16, "max_position_embeddings": LENGTH + 8, "pad_token_id": 0,
}  # fmt: skip
OWN: dict[str, dict[str, Any]] = {
    "albert": {"embedding_size": 8},
    "electra": {"embedding_size": 8},
    "modernbert": {"bos_token_id": 2, "eos_token_id": 3, "cls_token_id": 2, "sep_token_id": 3},
    "distilbert": {"dim": 16, "n_layers": 1, "n_heads": 2, "hidden_dim": 16},
    "llama": {"num_key_value_heads": 1},
}
"""Options of a configuration beside or in place of those of BERT."""
QUICK = ("bert", "convbert", "distilbert", "modernbert", "mpnet")
"""Types that have an attention of their own; the code of most others is BERT's."""


def config(kind: str) -> Any:
    named = {name: SMALL[name] for name in ("vocab_size", "max_position_embeddings", "pad_token_id")}
    return transformers.AutoConfig.for_model(kind, **(named if kind == "distilbert" else SMALL), **OWN.get(kind, {}))


def save(kind: str, folder: Path) -> None:
    """A model and its tokenizer, as one saves them."""
    model = transformers.AutoModelForSequenceClassification.from_config(config(kind))
    model.save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(WORDS))
    transformers.BertTokenizer(str(folder / "vocab.txt")).save_pretrained(folder)


@pytest.fixture
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MODEL", str(tmp_path))
    monkeypatch.setenv("TEXTS", str(tmp_path / "texts.csv"))
    generator = np.random.default_rng(0)
    with (tmp_path / "texts.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label"])
        for row in range(60):
            words = [
                "a",
                *["very"] * generator.integers(0, 3),
                ["good", "bad"][row % 2],
                ["film", "book"][row % 3 == 0],
            ]
            writer.writerow([" ".join(words), ["like", "dislike"][row % 2]])
    return tmp_path


def train(hp: dict[str, Any], epochs: int) -> Any:
    solo = TorchSolo(Texts(), Texts().data(), Trial("t0000", 3, hp), Settings(epochs, 1, "float32", Path()))
    results = list(iter(solo.run_epoch, None))
    return results[-1].metrics


def test_texts_are_learnt_from_the_parameters_of_the_folder(texts: Path) -> None:
    save("bert", texts)
    splits = Texts().data()
    assert (splits.num_train, splits.train_inputs.shape) == (48, (48, LENGTH))  # type: ignore[union-attr]
    words = splits.train_inputs[0][splits.train_inputs[0] > 0]  # type: ignore[call-overload]
    assert [WORDS[word] for word in words][:2] == ["[CLS]", "a"]
    assert train(HP, 12)["validation/accuracy"] == 1.0
    kept = transformers.AutoModelForSequenceClassification.from_pretrained(texts)
    begun, new = (Texts().model({"classes": 2, "pretrained": each}).model for each in (True, False))
    name = "bert.encoder.layer.0.intermediate.dense.weight"
    assert torch.equal(begun.state_dict()[name], kept.state_dict()[name])
    assert not torch.equal(new.state_dict()[name], kept.state_dict()[name])


@pytest.mark.parametrize(
    "kind", [*QUICK, *(pytest.param(kind, marks=pytest.mark.slow) for kind in READY_MASKS if kind not in QUICK)]
)
def test_a_ready_mask_hides_padding_as_the_model_s_own_does(kind: str, texts: Path) -> None:
    config(kind).save_pretrained(texts)
    model = Texts().model({"classes": 2, "pretrained": False}).eval()
    tokens = torch.randint(1, len(WORDS), (6, 12), generator=torch.Generator().manual_seed(0))
    tokens[2, 7:] = 0
    with torch.no_grad():
        wanted = model.model(input_ids=tokens, attention_mask=(tokens > 0).long()).logits
        assert torch.allclose(model(tokens), wanted, atol=1e-5)


@pytest.mark.parametrize(("kind", "reason"), [("bert", None), ("llama", "data-dependent")])
def test_trials_are_fused_where_the_type_of_model_allows_it(kind: str, reason: str | None, texts: Path) -> None:
    save(kind, texts)
    trials = [Trial(Trial.name(i), i, {**HP, "lr": lr}) for i, lr in enumerate((0.01, 0.02))]
    reasons = {group.reason for group in TorchGrouper(Texts(), Texts().data()).groups(trials)}
    assert (reasons == {None}) if reason is None else all(reason in str(each) for each in reasons), reasons


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("TEXTS", "nothing.csv", "nothing.csv: no such file; TEXTS names a CSV file"),
        ("TEXTS", "empty.csv", "empty.csv: the columns text and label are wanted"),
        ("MODEL", None, "MODEL: not set; it names a folder with a model and its tokenizer"),
    ],
)
def test_what_is_missing_is_named(
    texts: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str | None, message: str
) -> None:
    monkeypatch.chdir(texts)
    Path("empty.csv").write_text("words,label\na,b\n")
    if value is None:
        monkeypatch.delenv(name)
    else:
        monkeypatch.setenv(name, value)
    with pytest.raises((OSError, ValueError), match=message):
        Texts().data()


@pytest.mark.parametrize("pretrained", [True, False])
def test_a_folder_in_half_precision_is_trained_in_float32(texts: Path, pretrained: bool) -> None:
    transformers.AutoModelForSequenceClassification.from_config(config("bert")).bfloat16().save_pretrained(texts)
    model = Texts().model({**HP, "pretrained": pretrained})
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
