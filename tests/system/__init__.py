"""The system tests: the real binary with real clients."""
