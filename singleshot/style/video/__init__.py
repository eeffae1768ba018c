"""Videos: read frame by frame, stylised in segments, and written."""
