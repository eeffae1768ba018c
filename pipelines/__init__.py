"""Orchestration: thin, typed; knows DVC, Ray and MLflow. The science is in `tasks`."""
