"""What the library does with a question: search, confirm, compare, vary, advise."""
