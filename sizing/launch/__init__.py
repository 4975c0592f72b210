"""How a deployment is started: commands and manifests of an answer, and those of a deployment that exists, read.

One table of flags by engine and version (hardware_profiles/launch) serves both ways, so what is written reads back to the same.
"""
