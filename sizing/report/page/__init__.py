"""`llmsize report`: the record of a page, its decision, its drawings, its chapters."""
