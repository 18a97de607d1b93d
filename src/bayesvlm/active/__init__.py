"""Active learning: what to label, how the posterior learns from it, and fine-tuning on it. All on Features."""

from bayesvlm.active.finetune import finetune
from bayesvlm.active.online import OnlineLaplace
from bayesvlm.active.selection import STRATEGIES, Epig, Selection, Strategy, rank, select

__all__ = ["STRATEGIES", "Epig", "OnlineLaplace", "Selection", "Strategy", "finetune", "rank", "select"]
