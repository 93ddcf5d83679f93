"""Real engines where they are installed: their printed caches and their decode steps, held against the prediction."""
