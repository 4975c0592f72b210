"""Result files of benchmark tools, recognised by content and read into measured runs."""
