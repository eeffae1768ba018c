"""The work itself: plain torch and numpy, usable as a library. Knows no DVC, Ray or MLflow."""
