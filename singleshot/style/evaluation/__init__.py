"""Quality of stylised pictures and videos, and the time that they take."""
