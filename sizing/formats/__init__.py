"""The output of commands as data (`view`), and a writer for each format: terminal (`text`), JSON, CSV, Markdown (`tables`)."""
