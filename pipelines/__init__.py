"""Orchestration with DVC, Ray and MLflow. The science is in the package `tasks`."""
