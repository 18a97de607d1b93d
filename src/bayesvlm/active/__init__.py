"""Active learning: what to label, how the posterior learns from it, fine-tuning, when to stop. All on Features."""

from bayesvlm.active.finetune import finetune
from bayesvlm.active.online import OnlineLaplace
from bayesvlm.active.selection import STRATEGIES, Epig, Selection, Strategy, rank, select
from bayesvlm.active.stopping import Gain, Outlook, outlook, stopped_paying

__all__ = [
    "STRATEGIES",
    "Epig",
    "Gain",
    "OnlineLaplace",
    "Outlook",
    "Selection",
    "Strategy",
    "finetune",
    "outlook",
    "rank",
    "select",
    "stopped_paying",
]
