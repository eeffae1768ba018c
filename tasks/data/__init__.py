"""Getting files: downloads with checksum and resume."""
