"""The command line: one file a command, each parses, calls the library and writes; nothing else prints or exits."""
