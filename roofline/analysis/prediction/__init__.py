"""What a case should take: a model of its cost, fitted on a run's own times."""
