"""Answers to a question: search, confirmation by simulation, comparison, variation, suggestions."""
