"""How good stylised pictures and videos are, and how long they take."""
