"""How a task writes about itself: its README.md, the figures beside it, and what a notebook shows."""

from adaptree.card.figures import figures
from adaptree.card.markdown import plain
from adaptree.card.page import page
from adaptree.card.readme import write

__all__ = ["figures", "page", "plain", "write"]
