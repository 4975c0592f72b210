"""Starting deployments: write the commands and manifests of an answer, and read those of an existing deployment.

Writing and reading use the same table of flags by engine and version (hardware_profiles/launch). Written files therefore read
back to the same deployment.
"""
