"""The ground floor: models, work, chips and bounds. Standard library only; everything else may import it."""
