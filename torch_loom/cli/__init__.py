"""The ``loom`` command: thin, no logic of its own."""
