"""The command line: one file for each command. A command parses options, calls the library and writes the result.

No other package prints or exits.
"""
