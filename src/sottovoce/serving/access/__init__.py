"""Who may come in, by which key, and how much each key may ask for."""
