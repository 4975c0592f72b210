"""Reports: a neutral document a command, then one file a format that writes any of them. Text only; nothing prints."""
