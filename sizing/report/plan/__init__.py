"""`llmsize plan`: its record (`record`), and the record for people (`sections`)."""
