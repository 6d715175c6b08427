"""The direction of a metric, as far as its name says it: whether a larger value is better."""

from __future__ import annotations

import re

from raygpu.config.sections import Direction

PARTS = {"loss": "min", "error": "min", "entropy": "min", "perplexity": "min", "accuracy": "max"}
"""Directions by parts of words that imply them, as in logloss."""
MIN = (
    "mae mse rmse msle rmsle mape smape err nll ppl bpc wer cer fid kl kld divergence distance regret cost brier ece"
    " rank misses mistakes latency flops"
)
MAX = (
    "acc auc auroc auprc prauc f1 fbeta precision recall sensitivity specificity score r2 dice iou miou jaccard map ap"
    " bleu rouge meteor psnr ssim reward rewards return returns correlation pearson spearman kappa mcc ndcg mrr hits"
    " top1 top5 likelihood elbo fitness"
)
"""Words in the names of metrics of which a larger value is better; MIN has those of the others."""
NEGATED = frozenset(["neg", "negative", "minus", "inverse", "inv"])
"""Words that reverse a direction, so that the name does not tell it."""


def direction_of(metric: str) -> Direction | None:
    """Return "max" or "min" by the words in a metric's name, as validation/accuracy; None if they do not say it."""
    words = set(re.split(r"[^a-z0-9]+", metric.lower().replace("inaccuracy", "error")))
    directions = {direction for part, direction in PARTS.items() if any(part in word for word in words)}
    directions |= {"min"} if words & set(MIN.split()) else set()
    directions |= {"max"} if words & set(MAX.split()) else set()
    if len(directions) != 1 or words & NEGATED:
        return None
    return "max" if "max" in directions else "min"
