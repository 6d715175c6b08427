"""Architectures of transformers, from configurations at toy size: nothing is downloaded."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from raygpu import Mean
from tests.contracts.zoo.entry import CLASSES, LENGTH, VOCABULARY, Entry, Images, Texts, classes
from tests.contracts.zoo.sequences import LatePadding

SMALL = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 12}
STILL = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


class Logits(nn.Module):
    """The logits of a model of transformers, as a tensor."""

    def __init__(self, model: nn.Module, **options: Any) -> None:
        super().__init__()
        self.model, self.options = model, options

    def forward(self, *inputs: torch.Tensor, **named: torch.Tensor) -> torch.Tensor:
        return self.model(*inputs, **named, **self.options).logits


def bert(**options: Any) -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    sizes = {"vocab_size": VOCABULARY, "max_position_embeddings": 16, "num_labels": CLASSES, "pad_token_id": 0}
    return BertForSequenceClassification(BertConfig(**SMALL, **sizes, **options))


class Padded(Logits):
    """Tells where padding is by a mask that is ready for use: its code asks nothing about it."""

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        lowest = -1e9 * (input_ids == 0)[:, None, None].expand(-1, -1, LENGTH, -1)
        return self.model(input_ids, attention_mask=lowest.to(self.model.dtype)).logits


class PaddedBert(LatePadding):
    """A classifier of texts of different lengths."""

    def model(self, hp: Any) -> nn.Module:
        return Padded(bert(**STILL))


class BertWithDropout(LatePadding):
    random = True

    def model(self, hp: Any) -> nn.Module:
        return Padded(bert())


class BertThatAsksItsMask(Entry):
    """Its code asks the mask by a Python `if` whether there is any padding."""

    fused = r"data-dependent"

    def part(self, generator: np.random.Generator, count: int) -> tuple[Any, Any]:
        tokens = generator.integers(1, VOCABULARY, (count, LENGTH))
        tokens[-6:, 4:] = 0
        return {"input_ids": tokens, "attention_mask": (tokens > 0).astype(np.int64)}, classes(generator, count)

    def model(self, hp: Any) -> nn.Module:
        return Logits(bert(**STILL))


class Gpt2(Texts):
    def model(self, hp: Any) -> nn.Module:
        from transformers import GPT2Config, GPT2LMHeadModel

        still = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
        sizes = {"vocab_size": VOCABULARY, "n_positions": 16, "n_embd": 8, "n_layer": 1, "n_head": 2}
        return Logits(GPT2LMHeadModel(GPT2Config(**sizes, **still)), use_cache=False)


class Llama(Texts):
    """Its norms are computed in float32 by its own code."""

    tolerance = 1e-6

    def model(self, hp: Any) -> nn.Module:
        from transformers import LlamaConfig, LlamaForCausalLM

        sizes = {"vocab_size": VOCABULARY, "max_position_embeddings": 16, "num_key_value_heads": 1}
        return Logits(LlamaForCausalLM(LlamaConfig(**SMALL, **sizes)), use_cache=False)


class T5(Entry):
    """A text into another one; targets without a token are not counted. Its norms are computed in float32."""

    tolerance = 1e-6

    def part(self, generator: np.random.Generator, count: int) -> tuple[Any, Any]:
        texts = {
            "input_ids": classes(generator, count, LENGTH, number=VOCABULARY),
            "decoder_input_ids": classes(generator, count, 4, number=VOCABULARY),
        }
        targets = classes(generator, count, 4, number=VOCABULARY)
        targets[generator.random(targets.shape) < 0.3] = -100
        return texts, targets

    def model(self, hp: Any) -> nn.Module:
        from transformers import T5Config, T5ForConditionalGeneration

        sizes = {"vocab_size": VOCABULARY, "d_model": 8, "d_kv": 4, "d_ff": 12, "num_layers": 1, "num_heads": 2}
        config = T5Config(**sizes, dropout_rate=0.0, decoder_start_token_id=0)
        return Logits(T5ForConditionalGeneration(config), use_cache=False)

    def loss(self, outputs: Any, targets: Any) -> Any:
        losses = nn.functional.cross_entropy(outputs.flatten(0, 1), targets.flatten(), reduction="sum")
        return Mean(losses, (targets != -100).sum())

    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        return {"accuracy": Mean((outputs.argmax(-1) == targets).sum(), (targets != -100).sum())}


class Vit(Images):
    def model(self, hp: Any) -> nn.Module:
        from transformers import ViTConfig, ViTForImageClassification

        return Logits(
            ViTForImageClassification(ViTConfig(**SMALL, **STILL, image_size=8, patch_size=4, num_labels=CLASSES))
        )
