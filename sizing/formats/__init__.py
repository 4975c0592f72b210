"""What a command says, as data (`view`), and one writer a format: terminal (`text`), JSON, CSV and Markdown (`tables`)."""
