"""Adapters to other libraries, one folder each; they use only the public API of the package."""
