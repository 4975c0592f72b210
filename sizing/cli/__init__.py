"""The command line: one file a command. Each parses, calls the library and writes; nothing else prints or exits."""
