"""DLJob."""
