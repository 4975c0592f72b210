"""`llmsize plan`: its record (`record`), and its sections, rows and picture (`sections`)."""
