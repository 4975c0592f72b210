"""Capacity planning: what is added to the size for a peak, when more is due, what follows the load, and how sure it all is."""

from __future__ import annotations
