"""Which stored tasks help a new one: ranked by a linear probe on what each makes of the new task's texts."""

from __future__ import annotations

from adaptree.analysis.suggest.probe import Gain, Ranking, ranking
from adaptree.analysis.suggest.suggestion import Suggestion, suggest

__all__ = ["Gain", "Ranking", "Suggestion", "ranking", "suggest"]
