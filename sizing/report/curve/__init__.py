"""`llmsize curve`: its record (`record`), and the record for people, rows and a picture (`sections`)."""
