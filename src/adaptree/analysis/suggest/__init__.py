"""Which stored tasks help a new one: ranked by a linear probe on the vectors that each makes of the new texts."""

from __future__ import annotations

from adaptree.analysis.suggest.probe import Gain, Ranking, ranking
from adaptree.analysis.suggest.suggestion import Suggestion, suggest

__all__ = ["Gain", "Ranking", "Suggestion", "ranking", "suggest"]
