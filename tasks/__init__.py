"""The computations: plain torch and numpy code, usable as a library, without DVC, Ray or MLflow."""
